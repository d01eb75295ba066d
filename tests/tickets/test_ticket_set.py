"""Ticket sets and winners: what is saved comes back, and files say what docs/formats.md says, read without the package."""

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpltm.errors import InputError
from dpltm.privacy.entry import Lineage, lineage_from_json, to_json
from dpltm.privacy.ledger import canonical
from dpltm.tickets import tensors, ticket_set
from dpltm.tickets.store import listing, problems, split_round
from dpltm.tickets.ticket_set import check_text, last_winner, load_ticket_set, load_winner, save_winner
from dpltm.training.artifacts import PROVENANCES, Parent, Winner
from refusals import told
from set_entries import DRAWN, LINEAGES, MADE, MOMENTS, SAID, TRAINED, store_set
from tensors import same_tensors


def test_round_trip(tmp_path, tickets, save):
    saved, loaded = save(tmp_path / "s"), load_ticket_set(tmp_path / "s")
    for field in ("path", "id", "name", "criterion", "provenance", "lineage", "parent"):
        assert getattr(loaded, field) == getattr(saved, field)
    assert loaded.config == json.loads(json.dumps(saved.config))
    assert loaded.body.spec == tickets.spec
    assert same_tensors(loaded.body.theta0, tickets.theta0)
    assert [ticket.round for ticket in loaded.body.tickets] == [0, 1, 2, 3]
    for back, ticket in zip(loaded.body.tickets, tickets.tickets, strict=True):
        assert back.accuracy == ticket.accuracy
        assert same_tensors(back.mask, ticket.mask)
        assert same_tensors(back.predictor, ticket.predictor)


def test_document(tmp_path, tickets, save, raw):
    saved = save(tmp_path / "s")
    tensors = {f"{name}.safetensors" for name in ("masks", "predictors", "theta0")}
    files = {"README.md", "lineage.json", "tickets.json", *tensors}
    assert {path.name for path in (tmp_path / "s").iterdir()} == files
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    document = json.loads((tmp_path / "s/tickets.json").read_text())
    assert set(document) == {
        *("format", "schema", "id", "predictors_id", "name", "created", "dpltm", "model", "features", "classes"),
        *("criterion", "provenance", "lineage", "parent", "config", "card", "tickets", "digest"),
        "feature_map",
    }
    stated = {
        **{"format": "dpltm-ticket-set", "schema": 4, "name": "a name", "parent": None},
        **{"feature_map": None, "model": "mlp:8", "features": 64, "classes": 10, "criterion": "magnitude"},
        **{"provenance": "public", "id": raw.set_id(tmp_path / "s")},
        "predictors_id": raw.content_id(raw.read(tmp_path / "s/predictors.safetensors")),
        "card": hashlib.sha256((tmp_path / "s/README.md").read_bytes()).hexdigest(),
        "digest": raw.digest(document),
        "lineage": {SAID.id: hashlib.sha256(canonical(to_json(SAID)).encode()).hexdigest()},
    }
    lineage = json.loads((tmp_path / "s/lineage.json").read_text())
    assert set(lineage) == {"format", "schema", "of", "lineage", "digest"}
    assert (lineage["format"], lineage["schema"], lineage["of"]) == ("dpltm-lineage", 1, document["id"])
    assert lineage["digest"] == raw.digest(lineage)
    assert lineage_from_json(lineage["lineage"]) == LINEAGES["public"]
    assert {key: document[key] for key in stated} == stated
    assert saved.id == document["id"]
    assert document["config"]["prune"] == [0.3, 0.4]
    for row, ticket in zip(document["tickets"], tickets.tickets, strict=True):
        weights = [value for value in ticket.mask.values() if value.ndim == 2]
        assert row == {
            "round": ticket.round,
            "density": sum(int(value.sum()) for value in weights) / 592,
            "live": sum(int(value.sum()) for value in ticket.mask.values()),
            "accuracy": ticket.accuracy,
        }


def test_tensors_on_disk(tmp_path, tickets, save, raw):
    save(tmp_path / "s")
    theta0, masks, predictors = (
        raw.read(tmp_path / "s" / f"{name}.safetensors") for name in ("theta0", "masks", "predictors")
    )
    assert theta0.keys() == tickets.theta0.keys()
    assert len(masks) == len(predictors) == 4 * 4
    for name, value in tickets.theta0.items():
        assert theta0[name].dtype == np.float32
        assert np.array_equal(theta0[name], value.numpy())
        for ticket in tickets.tickets:
            packed, mask = masks[f"{ticket.round}/{name}"], ticket.mask[name].numpy()
            assert packed.shape == (-(-mask.size // 8),)
            assert np.array_equal(raw.unpack(packed, mask.shape), mask)
            live = predictors[f"{ticket.round}/{name}"]
            assert np.array_equal(live, ticket.predictor[name].numpy()[mask])
    # ten values in two bytes; all ten live, six bits of padding
    assert masks["3/fc2.bias"].tolist() == [0b11111111, 0b11000000]


def test_id_depends_on_content_only(tmp_path, tickets, save, raw):
    """Not on names, places, predictors, or the order of tensors in a file."""
    one = save(tmp_path / "a")
    assert save(tmp_path / "deeper/b", name="other", provenance="private").id == one.id
    bare = replace(tickets, tickets=tuple(replace(ticket, predictor=None) for ticket in tickets.tickets))
    assert save(tmp_path / "c", bare).id == one.id
    theta0 = {name: value + (name == "fc2.bias") for name, value in tickets.theta0.items()}
    assert save(tmp_path / "d", replace(tickets, theta0=theta0)).id != one.id
    assert save(tmp_path / "e", replace(tickets, tickets=tickets.tickets[:3])).id != one.id
    for path in (tmp_path / "a").glob("*.safetensors"):
        raw.write(path, dict(reversed(raw.read(path).items())))
    shutil.move(tmp_path / "a", tmp_path / "moved")
    assert load_ticket_set(tmp_path / "moved").id == one.id


def test_a_draw_marks_the_set_in_memory_and_in_its_folder(tmp_path, save):
    """Whoever reads the set later, or read it before and draws as well, has both."""
    one = save(tmp_path / "s")
    other = load_ticket_set(tmp_path / "s")
    one.mark(Lineage((DRAWN,)))
    later = replace(DRAWN, id="e" * 64)
    other.mark(Lineage((later,)))
    assert one.lineage.entries == (SAID, DRAWN)
    found = load_ticket_set(tmp_path / "s")
    assert (found.lineage.entries, found.id) == ((SAID, DRAWN, later), one.id)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


# --- the winner beside a set ---

OTHER = "does not belong to this ticket set; run dpltm select s again"
FACTS = {"eps1": 0.1, "mechanism": "exponential"}


@pytest.fixture
def drawn(tmp_path, save, monkeypatch):
    """A set named s in the working folder, round 2 of which won."""
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "s")
    tickets = load_ticket_set(Path("s"))
    save_winner(Path("s"), Winner(2, Lineage((SAID, DRAWN)), tickets, FACTS))
    return tickets


@pytest.fixture
def edit(drawn, raw):
    """Changes keys of winner.json, and makes its digest right if it is ``signed``."""
    return lambda **changes: raw.edit(drawn.path / "winner.json", **changes)


def refused(tickets):
    message = told(load_winner, tickets)
    assert message.startswith("s/winner.json: ")
    assert told(last_winner, tickets) == message
    return message.removeprefix("s/winner.json: ")


def test_a_winner_comes_back(drawn, raw):
    found = load_winner(drawn)
    assert (found.round, found.lineage, found.facts) == (2, Lineage((SAID, DRAWN)), FACTS)
    assert found.tickets is drawn
    body = json.loads((drawn.path / "winner.json").read_text())
    assert set(body) == {"format", "schema", "ticket_set", "round", "facts", "lineage", "day", "digest"}
    assert (body["format"], body["schema"], body["ticket_set"]) == ("dpltm-winner", 1, drawn.id)
    assert body["digest"] == raw.digest(body)


def test_nothing_drawn_yet(drawn):
    (drawn.path / "winner.json").unlink()
    assert told(load_winner, drawn) == "s: no winner was drawn yet; run dpltm select s, or name a round as s@ROUND"
    assert last_winner(drawn) is None


def test_later_draws_from_the_set_go_with_the_winner(drawn):
    """They were seen when it was taken."""
    later = Lineage((replace(DRAWN, id="f" * 64),))
    drawn.mark(later)
    assert load_winner(drawn).lineage == Lineage((SAID, DRAWN)) | later


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ticket_set": "0" * 64}, OTHER),
        *(({"round": value}, OTHER) for value in (True, "2", None)),
        *(({"round": value}, f"s@{value}: no such round; it has rounds 0 to 3") for value in (4, -1)),
        ({"facts": None}, OTHER),
        ({"lineage": [5]}, "lineage: unknown or missing field 'all of it'"),
        ({"lineage": {"entries": [to_json(SAID)] * 2, "heads": []}}, "lineage: lineage: the same id twice"),
    ],
)
def test_with_the_digest_made_right(drawn, edit, change, message):
    edit(**change)
    assert refused(drawn) == message


# --- sets by name: what stands for a set, for a round of one, and what a folder of them holds ---


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("home")
def test_rounds():
    expected = {"a": ("a", None), "a@0": ("a", 0), "a@007": ("a", 7), "b/a.t@999999999": ("b/a.t", 999999999)}
    for text, parts in {**expected, "a@b@2": ("a@b", 2), "@2": ("", 2)}.items():
        assert split_round(text) == parts
    Path("a@3").mkdir()  # a folder with an @ in its name is that folder
    assert split_round("a@3") == ("a@3", None)
    assert split_round("a@3@2") == ("a@3", 2)


@pytest.mark.usefixtures("home")
def test_what_is_no_round():
    """A whole number of at most nine digits is; everything else is refused in one short line that says what to write."""
    for number in ("", "-1", "1e3", "+1", " 1", "1.0", "0x1", "1_0", "²", "9" * 10, "9" * 5000, "1/"):
        said = f"SET@ROUND: {number[:40]!r} is not a round; write a whole number after @, such as a@10"
        assert told(split_round, f"a@{number}", kind=InputError) == said


@pytest.mark.usefixtures("home")
def test_listing(save):
    """What is damaged does not hide the others."""
    assert list(listing(Path())) == []
    for name in ("bundled:small", "a", "a\x1b[2Jb", "c\nd", "b", "d", "deeper/down"):
        save(Path(name))
    Path("other").mkdir()
    Path("file").write_text("no set")
    Path("self").symlink_to("self")
    Path("pipe").mkdir()
    os.mkfifo("pipe/tickets.json")
    Path("b/theta0.safetensors").unlink()
    Path("d/tickets.json").write_text("{")
    found = list(listing(Path()))
    whole, damaged = ["a", "'a\\x1b[2Jb'", "bundled:small", "'c\\nd'"], ["b", "d", "pipe"]
    assert sorted(entry.name for entry in found if entry.problem is None) == sorted(whole)
    assert sorted(entry.name for entry in found if entry.tickets is None) == damaged
    (entry,) = (entry for entry in found if entry.name == "a")
    assert entry.size == sum(len(path.read_bytes()) for path in Path("a").iterdir())
    why = "cannot be read: Not a directory; name a folder of ticket sets"
    assert told(lambda: list(listing(Path("file")))) == f"file: {why}"


@pytest.fixture
def healthy(tmp_path, save):
    saved = save(tmp_path / "s")
    save_winner(saved.path, Winner(2, Lineage((SAID, DRAWN)), saved))
    return saved


def flip(path):
    data = path.read_bytes()
    path.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])


def test_everything_that_is_wrong_is_told(healthy, raw):
    """Set, card and winner each, and what two checks find only once."""
    assert problems(healthy.path) == []
    flip(healthy.path / "README.md")
    path = healthy.path / "winner.json"
    raw.edit(path, signed=False, round=1)
    card, winner = problems(healthy.path)
    assert card == f"{healthy.path / 'README.md'}: not the card that was written with the set; edited or damaged"
    assert winner.startswith(f"{path}: the digest does not match")
    flip(healthy.path / "theta0.safetensors")  # with the set damaged, whose winner it is cannot be told
    first, *rest = problems(healthy.path)
    assert "the id does not match" in first
    assert rest == [card]


# --- whatever is done to a set's files, loading it refuses in one clear line or returns what was saved ---

PARENT = Parent("cd" * 32, "its parent", 2, "transfer to other records")
TEXT = "not a printable text of at most 200 characters"
CHANGED = "s/tickets.json: the id does not match theta0 and masks; the set is damaged or was changed"
TENSOR_FILES = ("theta0.safetensors", "masks.safetensors", "predictors.safetensors")


@pytest.fixture(scope="module")
def original(tmp_path_factory, tickets):
    """A saved set; tests work on copies."""
    folder = tmp_path_factory.mktemp("original") / "s"
    said = {"name": "n", "criterion": "dp-train", "provenance": "dp", "config": {"rounds": 3}, "parent": PARENT}
    store_set(folder, tickets, **said)
    return folder


@pytest.fixture
def folder(tmp_path, original, monkeypatch):
    """A copy named s in the working folder."""
    shutil.copytree(original, tmp_path / "s")
    monkeypatch.chdir(tmp_path)
    return Path("s")


@pytest.fixture
def amend(folder, raw):
    """Changes keys of tickets.json, with the digest made right, unless ``signed`` is false: so it is not what tells."""
    return lambda **changes: raw.edit(folder / "tickets.json", **changes)


@pytest.fixture
def rows(folder):
    return json.loads((folder / "tickets.json").read_text())["tickets"]


def loading():
    return told(load_ticket_set, Path("s"))


def test_flipped_mask_bit(folder, raw, amend):
    """The id tells; once it is made right, the predictors have another number of live values."""
    masks = raw.read(folder / "masks.safetensors")
    before = int(np.unpackbits(masks["1/fc1.weight"]).sum())
    masks["1/fc1.weight"][0] ^= 0x80
    after = int(np.unpackbits(masks["1/fc1.weight"]).sum())
    raw.write(folder / "masks.safetensors", masks)
    assert loading() == CHANGED
    amend(id=raw.set_id(folder))
    found = f"found (({before},), 'float32'), expected (({after},), 'float32')"
    assert loading() == f"s/predictors.safetensors: tensor '1/fc1.weight': {found}"


def test_masks_that_are_not_nested_with_the_id_made_right(folder, raw, amend):
    """A weight that round 1 dropped comes back in round 2, and another one goes, so that every count is as before."""
    masks = raw.read(folder / "masks.safetensors")
    one, two = (np.unpackbits(masks[f"{number}/fc1.weight"]) for number in (1, 2))
    two[np.flatnonzero(one == 0)[0]], two[np.flatnonzero(two)[0]] = 1, 0
    masks["2/fc1.weight"] = np.packbits(two)
    raw.write(folder / "masks.safetensors", masks)
    assert loading() == CHANGED
    amend(id=raw.set_id(folder))
    assert loading() == "s/tickets.json: the mask of round 2 is not nested in that of round 1"


@pytest.mark.parametrize(("name", "value"), [("fc1.weight", np.nan), ("fc2.bias", -np.inf)])
def test_starting_weights_that_are_not_finite(folder, raw, amend, tickets, save, name, value):
    theta0 = {key: tensor.clone() for key, tensor in tickets.theta0.items()}
    theta0[name].view(-1)[1] = value
    message = told(save, Path("a"), replace(tickets, theta0=theta0))
    assert message == f"`lr`: {name}: a starting weight is not finite"
    assert not Path("a").exists()
    stored = raw.read(folder / "theta0.safetensors")
    stored[name].reshape(-1)[1] = value
    raw.write(folder / "theta0.safetensors", stored)
    amend(id=raw.set_id(folder))
    assert loading() == f"s/theta0.safetensors: {name}: a starting weight is not finite"


def test_rows(amend, rows):
    for key, value in (("live", 609), ("live", True), ("density", 0.5), ("density", "1.0")):
        amend(tickets=[{**rows[0], key: value}, *rows[1:]])
        wrong = "its round, live or density disagrees with its place and its mask"
        assert loading() == f"s/tickets.json: tickets[0]: {wrong}"
    for value in (-0.1, 1.1):
        amend(tickets=[rows[0], {**rows[1], "accuracy": value}, *rows[2:]])
        assert loading() == f"s/tickets.json: tickets[1]: accuracy {value!r} is not between 0 and 1"
    for row in ({}, 5, {**rows[2], "round": 3}, {**rows[2], "more": 1}, {**rows[2], "accuracy": True}):
        amend(tickets=[*rows[:2], row, rows[3]])
        assert loading().startswith("s/tickets.json: tickets[2]: ")
    for value in ([], {}, None, "tickets"):
        amend(tickets=value)
        assert loading() == "s/tickets.json: tickets is not a list of 1 to 10000 rounds"
    amend(tickets=rows[:3])
    assert loading() == "s/masks.safetensors: tensor '3/fc1.bias': found ((1,), 'uint8'), expected none"
    amend(tickets=[*rows[:3], {**rows[3], "accuracy": 0.99}], signed=False)
    assert loading() == "s/tickets.json: the digest does not match; it is damaged or was changed"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": "0" * 64}, CHANGED.partition(": ")[2]),
        ({"more": 1}, "unknown or missing key 'more'"),
        ({"lineage": ...}, "unknown or missing key 'lineage'"),
        ({"digest": ..., "signed": False}, "unknown or missing key 'digest'"),
        ({"classes": 0}, "model mlp:8: classes 0 is not between 1 and 100000"),
        ({"config": []}, "config is not an object"),
        ({"provenance": ["dp"]}, "provenance ['dp'] is none of data-free, public, dp, private"),
    ],
)
def test_keys(amend, changes, message):
    amend(**changes)
    assert loading() == f"s/tickets.json: {message}"


def test_another_id_of_the_predictors(amend):
    for stated in ("0" * 64, "", 0, False, [], {}):
        amend(predictors_id=stated)
        assert (
            loading() == "s/predictors.safetensors: does not match predictors_id in tickets.json; damaged or changed"
        )
    amend(predictors_id=None)
    message = "s/predictors.safetensors: there, though tickets.json knows of no predictors; remove it"
    assert loading() == message


@pytest.mark.parametrize(("model", "features", "rounds"), [("mlp:9000,9000", 64, 4), ("mlp:300,100", 784, 1100)])
def test_a_set_of_more_coordinates_than_are_read(folder, amend, rows, monkeypatch, model, features, rounds):
    """A sparse file of the right size would take all memory there is; the description alone says so."""
    amend(model=model, features=features, tickets=[{**rows[0], "round": number} for number in range(rounds)])
    for name in TENSOR_FILES:
        os.truncate(folder / name, 2**40)
    for reader in ("read_masks", "read_tensors", "read_weights"):
        monkeypatch.setattr(tensors, reader, None)
    said = f"s/tickets.json: {rounds} masks of {model} have more coordinates than the 268,435,456 of the largest set"
    assert loading() == said


def test_the_largest_set_is_read_and_a_larger_one_is_not_written(folder, save, monkeypatch):
    size, larger = 4 * 610, "4 masks of mlp:8 have more coordinates than the 2,439 of the largest set"
    monkeypatch.setattr(ticket_set, "MAX_SET", size)
    assert len(load_ticket_set(folder).body.tickets) == 4
    monkeypatch.setattr(ticket_set, "MAX_SET", size - 1)
    assert loading() == f"s/tickets.json: {larger}"
    assert told(save, Path("a")) == f"`rounds`: {larger}"
    assert not Path("a").exists()


# --- what a set says of where it comes from: its lineage, a parent, no records at all ---


@pytest.mark.parametrize("provenance", PROVENANCES)
def test_a_provenance_that_its_lineage_does_not_bear_out(tmp_path, save, amend, provenance):
    """Neither written nor read; a set of no records may carry anything, such as the draw behind its density."""
    message = f"provenance {provenance}: its lineage holds no entry that this could come from"
    for name, entries in {"nothing": (), "public": (SAID,), "dp": (TRAINED,), "private": (MADE,)}.items():
        said = {"provenance": provenance, "made_from": Lineage(entries)}
        if provenance in ("data-free", name):
            assert load_ticket_set(save(tmp_path / name, **said).path).lineage.entries == entries
        else:
            assert told(save, tmp_path / name, **said) == message
            assert not (tmp_path / name).exists()
    amend(provenance=provenance)
    if provenance in ("public", "private"):
        assert loading() == f"s/tickets.json: {message}"


def test_an_entry_of_the_set_is_not_dropped_or_changed(folder, amend, raw):
    """A draw that was marked later may be there or not: the ledger and the winner know of it."""
    full, path = to_json(LINEAGES["dp"]), folder / "lineage.json"
    missing = "s/lineage.json: does not hold the entries that the set was written with"
    raw.edit(path, lineage=to_json(LINEAGES["dp"] | Lineage((DRAWN,))))
    assert load_ticket_set(folder).lineage.entries == (TRAINED, MOMENTS, DRAWN)
    for entries in ([], full["entries"][:1], [full["entries"][0], {**full["entries"][1], "words": "other"}]):
        raw.edit(path, lineage={"entries": entries, "heads": []})
        assert loading() == missing
    raw.edit(path, lineage=full)
    for stated in (None, [], {TRAINED.id: "0" * 64}, {"0" * 64: "0" * 64}):
        amend(lineage=stated)
        assert loading() == missing


@pytest.mark.parametrize(
    ("signed", "change", "message"),
    [
        (False, {"of": "0" * 64}, "the digest does not match; it is damaged or was changed"),
        (True, {"of": "0" * 64}, "belongs to another artifact; its weights, its masks or this file were exchanged"),
        (True, {"lineage": 5}, "lineage: unknown or missing field 'all of it'"),
        (True, {"lineage": {"entries": [{}], "heads": []}}, "lineage: entries: unknown or missing field 'day'"),
    ],
)
def test_a_lineage_that_is_none(folder, raw, signed, change, message):
    raw.edit(folder / "lineage.json", signed=signed, **change)
    assert loading() == f"s/lineage.json: {message}"
    (folder / "lineage.json").unlink()
    assert loading() == "s/lineage.json: cannot be read: No such file or directory"


def test_texts(tmp_path, save):
    """What is shown on a terminal has no control characters, and no end of lines."""
    for text in ("\x1b[2J", "line\nbreak", "\x00", "\u202e", "\x7f", "a\tb", "\ud800", "a" * 201, None, 5):
        assert told(check_text, "where", text) == f"where: {TEXT}"
    for text in ("a" * 200, "", "Größe 数字 ½", "[bold]x[/bold]"):
        check_text("where", text)
    for where, key in (("`name`", "name"), ("criterion", "criterion")):
        assert told(save, tmp_path / "a", **{key: "line\nbreak"}) == f"{where}: {TEXT}"
    parent = replace(PARENT, name="\x1b[2J")
    assert told(save, tmp_path / "a", parent=parent) == f"parent: name: {TEXT}"
    assert list(tmp_path.iterdir()) == []
