"""What a set says of its origin: DP releases, a parent, no records at all; and schemas 1 and 2 beside the newest.

Documents are edited with their digest made right, so that what is refused is the disagreement and not the edit.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from dpltm.errors import ArtifactError
from dpltm.networks import ModelSpec
from dpltm.privacy.event_json import KINDS, to_json
from dpltm.privacy.events import OPEN_END
from dpltm.pruning.generation import GenerationConfig, without_data
from dpltm.pruning.ticket_set import Parent
from dpltm.tickets.origin import check_text, origin_of
from dpltm.tickets.ticket_set import card_is_as_written, load_ticket_set
from entries import SEARCH
from refusals import told
from set_events import BUDGET, COUNT, DRAWN, LABELS, MEAN, MOMENTS, SAID, SHOWN, SOURCE, SOURCE_JSON, TIME, TRAINED
from sets import store_set

EVENTS = (TRAINED, MOMENTS)
ROWS = [to_json(event) for event in EVENTS]
PARENT = Parent("cd" * 32, "its parent", 2, "transfer to other records")
SPEC, CONFIG = ModelSpec("mlp:6", 7, 3), GenerationConfig(rounds=2, prune=(0.3,), criterion="random", seed=4)
TEXT = "not a printable text of at most 200 characters"
AGREE = "and events do not go together: dp alone has any"
OLD = "schema 1 knew public and private sets alone, with predictors"


@pytest.fixture(scope="module")
def originals(tmp_path_factory, tickets):
    """``dp``: from DP releases and a parent, with predictors; ``free``: from no data, without; tests work on copies."""
    home = tmp_path_factory.mktemp("originals")
    dp = {"criterion": "dp-train", "provenance": "dp", "source": SOURCE, "events": EVENTS, "parent": PARENT}
    store_set(home / "dp", tickets, name="n", config={"a": [1, 2.5]}, **dp)
    free = {"criterion": "random", "provenance": "data-free", "source": None, "config": asdict(CONFIG)}
    store_set(home / "free", without_data(SPEC, CONFIG), name="n", **free)
    return home


@pytest.fixture
def cwd(tmp_path, originals, monkeypatch):
    """A working folder with copies of both."""
    shutil.copytree(originals, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return Path()


@pytest.fixture
def edit(cwd, raw):
    """Changes keys of tickets.json, with the digest made right."""
    return lambda name, /, **changes: raw.edit(cwd / name / "tickets.json", **changes)


def refused(name):
    """The message that a set is refused with, less the file it begins with."""
    message = told(load_ticket_set, Path(name))
    assert message.startswith(f"{name}/tickets.json: ")
    return message.removeprefix(f"{name}/tickets.json: ")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_set_from_releases_and_a_parent(cwd, tickets):
    loaded = load_ticket_set(cwd / "dp")
    assert (loaded.provenance, loaded.source, loaded.events, loaded.parent) == ("dp", SOURCE, EVENTS, PARENT)
    assert [ticket.accuracy for ticket in loaded.body.tickets] == [ticket.accuracy for ticket in tickets.tickets]
    document = json.loads((cwd / "dp/tickets.json").read_text())
    assert document["parent"] == asdict(PARENT)
    assert document["events"][1] == {
        **{"kind": "gaussian", "dataset": SOURCE_JSON, "time": TIME, "adjacency": "add-remove", "unit": "record"},
        **{"what": "moments", "sensitivity": 2.0, "noise_multiplier": 7.5},
    }


def test_a_set_without_predictors(cwd, raw):
    made, loaded = without_data(SPEC, CONFIG), load_ticket_set(cwd / "free")
    files = {"README.md", "masks.safetensors", "theta0.safetensors", "tickets.json"}
    assert {path.name for path in (cwd / "free").iterdir()} == files
    document = json.loads((cwd / "free/tickets.json").read_text())
    assert (document["predictors_id"], document["source"], document["events"]) == (None, None, [])
    assert document["id"] == loaded.id == raw.set_id(cwd / "free")
    assert not loaded.is_scored
    assert same(loaded.body.theta0, made.theta0)
    for back, ticket in zip(loaded.body.tickets, made.tickets, strict=True):
        assert back.mask.same_as(ticket.mask)
        assert (back.predictor, back.accuracy) == (None, None)


def make_schema_1(folder, raw, **changes):
    """Rewrites a set's description by the letter of docs/formats.md at schema 1."""
    source = {"name": "digits", "fingerprint": "ab" * 16, "key_id": "01234567", "start": 0, "stop": 719}
    old = {
        **{"schema": 1, "name": "of old", "created": "2025-01-01T00:00:00Z", "dpltm": "0.0.9"},
        **{"criterion": "magnitude", "provenance": "public", "source": source, "config": {"prune": [0.3, 0.4]}},
        **dict.fromkeys(("events", "draws", "parent", "card", "feature_map"), ...),
    }
    raw.edit(folder / "tickets.json", **{**old, **changes})


@pytest.mark.parametrize("provenance", ["public", "private"])
def test_schema_1_gives_the_same_content(cwd, raw, tickets, provenance):
    make_schema_1(cwd / "dp", raw, provenance=provenance)
    loaded = load_ticket_set(cwd / "dp")
    assert (loaded.name, loaded.criterion, loaded.provenance) == ("of old", "magnitude", provenance)
    assert loaded.source == replace(SOURCE, cut="positions", start=0, stop=OPEN_END)
    assert (loaded.events, loaded.parent, loaded.config["prune"]) == ((), None, [0.3, 0.4])
    assert loaded.source.content == ""  # its fingerprint knew the file, not the people
    assert same(loaded.body.theta0, tickets.theta0)
    for back, ticket in zip(loaded.body.tickets, tickets.tickets, strict=True):
        assert back.mask.same_as(ticket.mask)
        assert (same(back.predictor, ticket.predictor), back.accuracy) == (True, ticket.accuracy)
    (cwd / "dp/README.md").write_text("mine")
    assert card_is_as_written(cwd / "dp")  # it does not say, so nothing can be held against it


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({key: None}, f"unknown or missing key {key!r}") for key in ("events", "parent")),
        *(({"provenance": value}, OLD) for value in ("dp", None, {})),
        ({"provenance": "data-free", "source": None}, OLD),
        ({"predictors_id": None}, OLD),
    ],
)
def test_schema_1_knew_less(cwd, raw, changes, message):
    """docs/formats.md: provenance was ``public`` or ``private``, with "always predictors", and is read as before."""
    make_schema_1(cwd / "dp", raw, **changes)
    assert refused("dp") == message


def test_schema_2_gives_the_same_content(cwd, edit):
    """Before 0.2: references had a fingerprint, and ranges were of positions."""
    before = {
        **{key: SOURCE_JSON[key] for key in ("name", "key_id", "start", "stop")},
        "fingerprint": SOURCE_JSON["id"],
    }
    edit("dp", schema=2, source=before, events=[{**row, "dataset": before} for row in ROWS])
    loaded = load_ticket_set(cwd / "dp")
    assert loaded.source == replace(SOURCE, cut="positions", start=0, stop=OPEN_END)
    assert loaded.events == tuple(replace(event, dataset=loaded.source) for event in EVENTS)
    assert {event.dataset.content for event in loaded.events} == {loaded.source.content} == {""}
    assert (loaded.provenance, loaded.parent) == ("dp", PARENT)
    assert card_is_as_written(cwd / "dp")


REFERENCE = "source: reference to records"
ELSEWHERE = "events: one is on other records than the source"
NO_PARENT = "parent is not a reference to a ticket set"


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("dp", {"provenance": "data-free"}, "provenance data-free and source do not go together"),
        ("dp", {"provenance": "data-free", "source": None}, f"events: provenance data-free {AGREE}"),
        ("dp", {"source": None}, "provenance dp and source do not go together"),
        *(("dp", {"provenance": kind}, f"events: provenance {kind} {AGREE}") for kind in ("public", "private")),
        ("dp", {"events": []}, f"events: provenance dp {AGREE}"),
        *(("dp", {"events": value}, "events: not a list") for value in (None, {"kind": "training"})),
        ("dp", {"draws": None}, "draws: not a list"),
        ("dp", {"provenance": ["dp"]}, "provenance ['dp'] is none of data-free, public, dp, private"),
        *(
            ("dp", {"source": {**SOURCE_JSON, **change}}, ELSEWHERE)
            for change in ({"name": "mnist"}, {"key_id": "89abcdef"}, {"stop": 720}, {"cut": "positions"})
        ),
        ("dp", {"source": {**SOURCE_JSON, "start": 0.0}}, f"{REFERENCE}: field start: bad value 0.0, expected int"),
        ("dp", {"source": [SOURCE_JSON]}, f"{REFERENCE}: expected an object"),
        ("free", {"provenance": "public"}, "provenance public and source do not go together"),
        ("free", {"source": SOURCE_JSON}, "provenance data-free and source do not go together"),
        ("free", {"provenance": "dp", "source": SOURCE_JSON}, f"events: provenance dp {AGREE}"),
        *(("dp", {"parent": value}, NO_PARENT) for value in ({}, "cd" * 32, {**asdict(PARENT), "more": 1})),
        *(("dp", {"parent": {**asdict(PARENT), "round": n}}, f"parent: round {n} is not a round") for n in (-1, True)),
        ("dp", {"events": [ROWS[0], {**ROWS[1], "dataset": {**SOURCE_JSON, "start": 1}}]}, ELSEWHERE),
        ("dp", {"events": [*ROWS, 5]}, "events: an event must be a JSON object"),
    ],
)
def test_disagreements(edit, name, changes, message):
    edit(name, **changes)
    assert refused(name) == message


RELEASES = (TRAINED, MOMENTS, MEAN, COUNT)
SEARCHED = replace(SEARCH, dataset=SOURCE)
NO_RELEASES = {to_json(event)["kind"]: event for event in (BUDGET, SAID, SHOWN, DRAWN, LABELS, SEARCHED)}


def test_releases_that_tickets_can_be_made_from(cwd, save):
    assert {*(to_json(event)["kind"] for event in RELEASES), *NO_RELEASES} == set(KINDS)
    for number, event in enumerate(RELEASES):
        saved = save(cwd / str(number), provenance="dp", source=SOURCE, events=[event])
        assert load_ticket_set(saved.path).events == (event,)


@pytest.mark.parametrize("kind", NO_RELEASES)
def test_what_is_no_release_that_tickets_can_be_made_from(cwd, edit, save, kind):
    """docs/formats.md: events are "what making them spent". Others cost nothing, or everything."""
    event = NO_RELEASES[kind]
    message = f"{type(event).__name__} is no DP release that tickets could be made from"
    for events in ([event], [*EVENTS, event]):
        edit("dp", events=[to_json(one) for one in events])
        assert refused("dp") == f"events: {message}"
        assert told(save, cwd / "a", provenance="dp", source=SOURCE, events=events) == message
    assert not (cwd / "a").exists()


def test_a_release_that_stands_there_twice(cwd, edit, save):
    """A ledger takes equal events for one, so the second would be for free."""
    twice = (EVENTS[1], EVENTS[0], EVENTS[1])
    message = "one stands there twice; two releases differ at least in their time"
    edit("dp", events=[to_json(one) for one in twice])
    assert refused("dp") == f"events: {message}"
    assert told(save, cwd / "a", provenance="dp", source=SOURCE, events=twice) == message
    apart = (EVENTS[1], *(replace(EVENTS[1], time=f"2026-01-02T03:04:0{second}Z") for second in (6, 7)))
    assert load_ticket_set(save(cwd / "a", provenance="dp", source=SOURCE, events=apart).path).events == apart


def test_draws_come_back_and_nothing_else_is_saved_as_one(cwd, edit, save):
    saved = save(cwd / "s", draws=[DRAWN])
    found = load_ticket_set(cwd / "s")
    assert saved.draws == found.draws == origin_of(found).draws == (DRAWN,)
    assert found.id == save(cwd / "t").id  # what was paid is no content
    message = "BudgetEvent is not what the draw of a winner enters"
    assert told(save, cwd / "u", draws=[BUDGET]) == message
    edit("dp", draws=[to_json(DRAWN), to_json(BUDGET)])
    assert refused("dp") == f"draws: {message}"


@pytest.mark.parametrize(
    ("provenance", "source", "events", "message"),
    [
        *((kind, SOURCE, EVENTS, f"provenance {kind} {AGREE}") for kind in ("public", "private")),
        ("data-free", None, EVENTS, f"provenance data-free {AGREE}"),
        ("dp", SOURCE, (), f"provenance dp {AGREE}"),
        ("dp", replace(SOURCE, start=1), EVENTS, ELSEWHERE.removeprefix("events: ")),
    ],
)
def test_what_does_not_agree_is_not_written(tmp_path, save, provenance, source, events, message):
    assert told(save, tmp_path / "a", provenance=provenance, source=source, events=events) == message
    assert list(tmp_path.iterdir()) == []


def test_texts(tmp_path, save):
    """What is shown on a terminal has no control characters, and no end of lines."""
    for text in ("\x1b[2J", "line\nbreak", "\x00", "\u202e", "\x7f", "a\tb", "\ud800", "a" * 201, None, 5):
        assert told(check_text, "where", text) == f"where: {TEXT}"
    for text in ("a" * 200, "", "Größe 数字 ½", "[bold]x[/bold]"):
        check_text("where", text)
    for where, key in (("`name`", "name"), ("criterion", "criterion")):
        assert told(save, tmp_path / "a", **{key: "line\nbreak"}) == f"{where}: {TEXT}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("key", "other"), [("name", "name"), ("id", "id"), ("key_id", "how")])
def test_texts_of_source_and_parent(tmp_path, edit, save, key, other):
    """A reference in a ledger may have longer texts than that of a set."""
    edit("dp", provenance="private", events=[], source={**SOURCE_JSON, key: "a" * 201})
    assert refused("dp") == f"source: {key}: {TEXT}"
    edit("dp", source=SOURCE_JSON, parent={**asdict(PARENT), other: "\x1b[2J"})
    assert refused("dp") == f"parent: {other}: {TEXT}"
    text = "\x1b[2J"
    assert told(save, tmp_path / "a", source=replace(SOURCE, **{key: text})) == f"`dataset`: its {key}: {TEXT}"
    assert told(save, tmp_path / "a", parent=replace(PARENT, **{other: text})) == f"parent: {other}: {TEXT}"
    assert not (tmp_path / "a").exists()


def test_a_card_may_be_edited(cwd, edit):
    """Nothing but the card itself minds; what is no file is no card."""
    path = cwd / "dp/README.md"
    text = path.read_text()
    assert card_is_as_written(cwd / "dp")
    path.write_text(text + "\nmore\n")
    assert not card_is_as_written(cwd / "dp")
    path.write_text(text)
    edit("dp", card="ab" * 32)
    assert not card_is_as_written(cwd / "dp")
    path.rename("elsewhere")
    path.symlink_to(Path("elsewhere").absolute())
    with pytest.raises(ArtifactError):
        card_is_as_written(cwd / "dp")
    path.unlink()
    assert load_ticket_set(cwd / "dp").name == "n"


@pytest.mark.parametrize("stated", [None, 5, "", "AB" * 32, "ab" * 32 + "\n", "٣" * 64], ids=ascii)
def test_a_card_that_is_no_hash(cwd, edit, stated):
    """It never passes for the card as written."""
    edit("dp", card=stated)
    assert refused("dp") == "card is not a SHA-256"
    with pytest.raises(ArtifactError, match="card is not a SHA-256"):
        card_is_as_written(cwd / "dp")


def test_the_card_tells_where_the_set_comes_from(cwd):
    text, free = ((cwd / name / "README.md").read_text() for name in ("dp", "free"))
    assert "provenance: **dp**" in text
    assert "- from: the set its parent (`cdcdcdcdcdcd`, round 2) by transfer to other records\n" in text
    assert "pruning from `digits[0:719]`" in text
    assert "random pruning from no data" in free
    assert "- from:" not in free
    assert free.count("| not measured |") == 3
    assert "dpltm select" not in free
