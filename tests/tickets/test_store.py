"""Ticket sets by name: what stands for a set, for a round of one, and what a folder of them holds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from dpltm.data import key_id
from dpltm.data.registry import PUBLIC_KEY
from dpltm.errors import ArtifactError, InputError
from dpltm.privacy.events import ProvenanceEvent, SelectionEvent
from dpltm.privacy.mechanisms import Selection
from dpltm.tickets import store, ticket_set
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.store import bundled_names, find_set, is_bundled, listing, problems, set_path, split_round
from dpltm.tickets.ticket_set import ledger_path, load_ticket_set
from dpltm.tickets.winner import save_winner

TIME = "2026-01-01T00:00:00Z"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Where bundled sets lie, empty; the working folder is another one."""
    folder = tmp_path / "bundled"
    folder.mkdir()
    for module in (store, ticket_set):
        monkeypatch.setattr(module, "BUNDLED_HOME", folder)
    (tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path / "own")
    return folder


# --- SET@ROUND ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", ("a", None)),
        ("a@0", ("a", 0)),
        ("a@15", ("a", 15)),
        ("a@007", ("a", 7)),
        ("a@999999999", ("a", 999999999)),
        ("b/a.tickets@3", ("b/a.tickets", 3)),
        ("a@b@2", ("a@b", 2)),
        ("@2", ("", 2)),
        ("bundled:x@4", ("bundled:x", 4)),
    ],
)
def test_rounds(tmp_path, monkeypatch, text, expected):
    monkeypatch.chdir(tmp_path)
    assert split_round(text) == expected


@pytest.mark.parametrize(
    "number", ["", "-1", "1e3", "+1", " 1", "1 ", "1.0", "x", "0x1", "1_0", "²", "9" * 10, "9" * 100, "1/"]
)
def test_what_is_no_round(tmp_path, monkeypatch, number):
    """A whole number of at most nine digits is; everything else is refused in one short line that says what to write."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        split_round(f"a@{number}")
    assert str(caught.value) == (
        f"SET@ROUND: {number[:40]!r} is not a round; write a whole number after @, such as a@10"
    )


def test_a_round_longer_than_a_file_name_may_be(tmp_path, monkeypatch):
    """The system itself would refuse it as a path."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        split_round(f"a@{'9' * 5000}")
    assert len(str(caught.value)) < 200


def test_an_at_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="SET@ROUND: '' is not a round"):
        split_round("@")


def test_a_folder_with_an_at_in_its_name_is_that_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a@home", "a@3"):
        (tmp_path / name).mkdir()
        assert split_round(name) == (name, None)
        assert split_round(f"{name}@2") == (name, 2)
    (tmp_path / "b@4").write_text("a file is no folder")
    assert split_round("b@4") == ("b", 4)


# --- names ---


def test_a_folder_by_name(home, save):
    saved = save(home.parent / "own" / "mine")
    assert find_set("mine").id == saved.id
    assert not is_bundled(set_path("mine"))


def test_a_bundled_set_by_name(home, save):
    save(home / "small")
    save(home / "another")
    (home / "no-set").mkdir()
    (home / "README.md").write_text("what these are")
    assert bundled_names() == ("bundled:another", "bundled:small")
    assert find_set("bundled:small").id == save(home.parent / "copy").id
    assert is_bundled(set_path("bundled:small"))


@pytest.mark.parametrize(
    "name", ["bundled:", "bundled:none", "bundled:../own/mine", "bundled:small/../small", "bundled:/etc", "bundled:."]
)
def test_an_unknown_bundled_set_is_refused_and_the_known_ones_named(home, save, name):
    save(home / "small")
    save(home.parent / "own" / "mine")
    with pytest.raises(ArtifactError) as caught:
        find_set(name)
    assert str(caught.value) == f"{name}: no such ticket set comes with dpltm; there are bundled:small"


def test_a_folder_called_like_a_bundled_set_is_reached_by_a_path(home, save):
    saved = save(home.parent / "own" / "bundled:mine")
    assert find_set("./bundled:mine").id == saved.id
    with pytest.raises(ArtifactError, match="no such ticket set comes with dpltm"):
        find_set("bundled:mine")


def test_no_bundled_sets_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "BUNDLED_HOME", tmp_path / "nowhere")
    assert bundled_names() == ()
    with pytest.raises(ArtifactError) as caught:
        find_set("bundled:x")
    assert str(caught.value) == "bundled:x: no such ticket set comes with dpltm; there are none"


def test_a_bundled_set_by_any_of_its_paths(home, save, monkeypatch):
    """Nothing may be written there, whatever it is called."""
    save(home / "small")
    save(home.parent / "own" / "mine")
    (home.parent / "link").symlink_to(home)
    (home.parent / "short").symlink_to(home / "small")
    monkeypatch.chdir(home)
    for name in ("small", "./small", "../bundled/small", "../link/small", "../short", "../own/../bundled/small"):
        assert is_bundled(Path(name))
        assert load_ticket_set(Path(name)).id
    for name in (".", "..", "../own/mine", "small/deeper", "../own/small"):
        assert not is_bundled(Path(name))


def test_what_comes_along_is_whole_and_free_to_use():
    names = bundled_names()
    if not names:
        pytest.skip("no ticket sets come with this version")
    for name in names:
        assert problems(set_path(name)) == []
        found = find_set(name)
        assert found.provenance in ("public", "data-free")
        assert found.source is None or found.source.key_id == key_id(PUBLIC_KEY)
        assert not any(set_path(name).glob("*.jsonl"))


# --- a folder of sets ---


def test_listing(home, save):
    own = home.parent / "own"
    save(home / "small")
    ids = {name: save(own / name, provenance="public").id for name in ("b", "a")}
    (own / "other").mkdir()
    (own / "file").write_text("no set")
    save(own / "deeper" / "down")
    found = list(listing(own))
    assert [entry.name for entry in found] == [str(own / "a"), str(own / "b"), "bundled:small"]
    assert all(entry.problem is None for entry in found)
    assert [entry.tickets.id for entry in found[:2]] == [ids["a"], ids["b"]]
    for entry in found:
        files = set_path(entry.name).iterdir()
        assert entry.size == sum(len(path.read_bytes()) for path in files) > 0


def test_a_damaged_set_does_not_hide_the_others(home, save):
    own = home.parent / "own"
    for name in ("a", "b", "c", "d"):
        save(own / name)
    (own / "b" / "theta0.safetensors").unlink()
    (own / "c" / "tickets.json").write_text("{")
    (own / "d" / "tickets.json").unlink()
    (own / "d" / "tickets.json").mkdir()
    found = {entry.name.rpartition("/")[2]: entry for entry in listing(own)}
    assert list(found) == ["a", "b", "c", "d"]
    assert found["a"].tickets is not None
    for name, words in (("b", "theta0.safetensors"), ("c", "tickets.json"), ("d", "tickets.json")):
        assert found[name].tickets is None
        assert words in found[name].problem
        assert "\n" not in found[name].problem


def test_a_folder_that_cannot_be_listed(home):
    (home.parent / "own" / "file").write_text("")
    for name, words in (("none", "No such file or directory"), ("file", "Not a directory")):
        with pytest.raises(ArtifactError) as caught:
            list(listing(home.parent / "own" / name))
        assert str(caught.value) == (
            f"{home.parent / 'own' / name}: cannot be read: {words}; name a folder of ticket sets"
        )


def test_an_empty_folder(home):
    assert list(listing(home.parent / "own")) == []


# --- problems ---


@pytest.fixture
def healthy(tmp_path, save):
    """A set with a selection and a ledger."""
    saved = save(tmp_path / "s")
    drawn = SelectionEvent(saved.source, Selection(0.1, 0.1), "product", "exact", 0.5, 3, saved.id, time=TIME)
    ledger = open_ledger(ledger_path(saved.path))
    ledger.append(ProvenanceEvent(saved.source, "public", saved.id, time=TIME))
    ledger.append(drawn)
    save_winner(saved, 2, "exponential", [drawn])
    return saved


def test_nothing_is_wrong(healthy):
    assert problems(healthy.path) == []


def test_nothing_is_wrong_without_selection_and_ledger(tmp_path, save):
    assert problems(save(tmp_path / "s").path) == []


def flip(path, place=-3):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "name", ["theta0.safetensors", "masks.safetensors", "predictors.safetensors", "README.md", "ledger.jsonl"]
)
def test_a_flipped_bit_is_found_in_every_file(healthy, name):
    flip(healthy.path / name)
    (found,) = problems(healthy.path)
    assert "\n" not in found
    assert name in found or "theta0 and masks" in found


@pytest.mark.parametrize("name", ["theta0.safetensors", "masks.safetensors", "predictors.safetensors", "README.md"])
def test_a_missing_file_is_found(healthy, name):
    (healthy.path / name).unlink()
    (found,) = problems(healthy.path)
    assert found == f"{healthy.path / name}: cannot be read: No such file or directory"


@pytest.mark.parametrize("key", ["name", "criterion", "created", "config", "provenance", "classes", "round"])
def test_an_edited_description_is_found(healthy, key):
    path = healthy.path / "tickets.json"
    body = json.loads(path.read_text())
    if key == "round":
        body["tickets"][1]["accuracy"] = 0.123
    else:
        body[key] = {"config": {}, "provenance": "private", "classes": 11}.get(key, "other")
    path.write_text(json.dumps(body))
    (found,) = problems(healthy.path)
    assert "\n" not in found


def test_a_selection_of_another_set_is_found(healthy, tmp_path, save, make_tickets):
    other = save(tmp_path / "other", make_tickets(6))
    save_winner(other, 1, "exponential")
    shutil.copy(other.path / "selection.json", healthy.path / "selection.json")
    assert problems(healthy.path) == [
        f"{healthy.path / 'selection.json'}: does not belong to this ticket set; run dpltm select {healthy.path} again"
    ]


def test_an_edited_winner_is_found(healthy):
    path = healthy.path / "selection.json"
    path.write_text(path.read_text().replace('"round": 2', '"round": 1'))
    (found,) = problems(healthy.path)
    assert found.startswith(f"{path}: the digest does not match")


def test_damage_to_set_and_ledger_are_both_told(healthy):
    flip(healthy.path / "theta0.safetensors")
    flip(healthy.path / "ledger.jsonl", -20)
    found = problems(healthy.path)
    assert len(found) == 2
    assert "the id does not match" in found[0]
    assert "ledger.jsonl: line 3" in found[1]


def test_everything_that_is_wrong_is_told(healthy):
    """Set, card, selection and ledger each, and what two checks find only once."""
    for name in ("README.md", "ledger.jsonl"):
        flip(healthy.path / name)
    path = healthy.path / "selection.json"
    path.write_text(path.read_text().replace('"round": 2', '"round": 1'))
    card, selection, ledger = problems(healthy.path)
    assert card == f"{healthy.path / 'README.md'}: not the card that was written with the set; edited or damaged"
    assert selection.startswith(f"{path}: the digest does not match")
    assert ledger.startswith(f"{healthy.path / 'ledger.jsonl'}: line 3")
    flip(healthy.path / "theta0.safetensors")  # with the set damaged, whose winner it is cannot be told
    first, *rest = problems(healthy.path)
    assert "the id does not match" in first
    assert rest == [card, ledger]


@pytest.mark.parametrize("how", ["cut short", "removed"])
def test_a_card_is_checked_where_the_set_is_damaged(healthy, how):
    flip(healthy.path / "masks.safetensors")
    card = healthy.path / "README.md"
    if how == "removed":
        card.unlink()
    else:
        card.write_bytes(card.read_bytes()[:-10])
    found = problems(healthy.path)
    assert len(found) == 2
    assert found[1].startswith(f"{card}: ")


def test_a_description_that_cannot_be_read_is_told_once(healthy):
    (healthy.path / "tickets.json").write_text("{")
    assert problems(healthy.path) == [f"{healthy.path / 'tickets.json'}: not valid JSON"]


def test_swapped_masks_of_two_rounds_are_found(healthy, raw):
    masks = raw.read(healthy.path / "masks.safetensors")
    masks["1/fc1.weight"], masks["2/fc1.weight"] = masks["2/fc1.weight"], masks["1/fc1.weight"]
    assert not np.array_equal(masks["1/fc1.weight"], masks["2/fc1.weight"])
    raw.write(healthy.path / "masks.safetensors", masks)
    (found,) = problems(healthy.path)
    assert "the id does not match" in found


@pytest.mark.parametrize("what", ["nothing", "a file", "an empty folder"])
def test_where_no_set_is(tmp_path, what):
    path = tmp_path / "s"
    if what == "a file":
        path.write_text("{}")
    elif what == "an empty folder":
        path.mkdir()
    with pytest.raises(ArtifactError) as caught:
        problems(path)
    assert str(caught.value) == f"{path}: no ticket set there; name a folder made by dpltm generate"
