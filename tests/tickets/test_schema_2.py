"""Ticket sets of schema 2: without predictors, from DP releases, from other sets; and schema 1 beside it.

Documents are edited with their digest made right, so that what is refused is the disagreement and not the edit.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace

import pytest
import torch

from dpltm.errors import ArtifactError
from dpltm.generation import GenerationConfig, without_data
from dpltm.models import ModelSpec
from dpltm.privacy.event_json import KINDS, to_json
from dpltm.privacy.events import (
    OPEN_END,
    BudgetEvent,
    DatasetRef,
    GaussianEvent,
    GuaranteeEvent,
    LaplaceEvent,
    NonPrivateEvent,
    ProvenanceEvent,
    RandomizedResponseEvent,
    SelectionEvent,
    TrainingEvent,
    now,
)
from dpltm.privacy.mechanisms import (
    GaussianRelease,
    Guarantee,
    LaplaceRelease,
    NoisySgd,
    RandomizedResponse,
    Selection,
    Unprotected,
)
from dpltm.ticket_set import Parent
from dpltm.tickets.ticket_set import card_is_as_written, load_ticket_set
from sets import store_set

SOURCE = DatasetRef("digits", "ab" * 16, "01234567", 0, 719, "places")
TIME = "2026-01-02T03:04:05Z"
EVENTS = (
    TrainingEvent(SOURCE, NoisySgd(0.25, 60, 3.5), "clip(C=1)", 610, time=TIME),
    GaussianEvent(SOURCE, GaussianRelease(7.5, 2.0), "moments", time=TIME),
)
PARENT = Parent("cd" * 32, "its parent", 2, "transfer to other records")
SPEC, CONFIG = ModelSpec("mlp:6", 7, 3), GenerationConfig(rounds=2, prune=(0.3,), criterion="random", seed=4)
TEXT = "not a printable text of at most 200 characters"
AGREE = "and events do not go together: dp alone has any"
OLD = "schema 1 knew public and private sets alone, with predictors"


@pytest.fixture(scope="module")
def originals(tmp_path_factory, tickets):
    """``dp``: from DP releases and a parent, with predictors; ``free``: from no data, without; tests work on copies."""
    home = tmp_path_factory.mktemp("originals")
    store_set(
        home / "dp", tickets, name="n", criterion="dp-train", provenance="dp", source=SOURCE, config={"a": [1, 2.5]},
        events=EVENTS, parent=PARENT,
    )  # fmt: skip
    store_set(
        home / "free", without_data(SPEC, CONFIG), name="n", criterion="random", provenance="data-free", source=None,
        config=asdict(CONFIG),
    )  # fmt: skip
    return home


@pytest.fixture
def cwd(tmp_path, originals, monkeypatch):
    """A working folder with copies of both."""
    shutil.copytree(originals, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def edit(cwd, raw):
    """Changes keys of tickets.json, with the digest made right."""

    def call(folder, /, **changes):
        path = cwd / folder / "tickets.json"
        document = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({**document, "digest": raw.digest(document)}))

    return call


@pytest.fixture
def refused(cwd):
    """The message that a set is refused with, less the file it begins with."""

    def call(name):
        with pytest.raises(ArtifactError) as caught:
            load_ticket_set((cwd / name).relative_to(cwd))
        message = str(caught.value)
        assert "\n" not in message
        assert message.startswith(f"{name}/tickets.json: ")
        return message.removeprefix(f"{name}/tickets.json: ")

    return call


def told(call, *arguments, **options):
    """The one line that a call is refused with."""
    with pytest.raises(ArtifactError) as caught:
        call(*arguments, **options)
    return str(caught.value)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# --- what is saved comes back ---


def test_a_set_from_releases_and_a_parent(cwd, tickets):
    loaded = load_ticket_set(cwd / "dp")
    assert (loaded.provenance, loaded.source, loaded.events, loaded.parent) == ("dp", SOURCE, EVENTS, PARENT)
    assert loaded.is_scored
    assert [ticket.accuracy for ticket in loaded.body.tickets] == [ticket.accuracy for ticket in tickets.tickets]
    document = json.loads((cwd / "dp/tickets.json").read_text())
    assert document["parent"] == {
        "id": "cd" * 32,
        "name": "its parent",
        "round": 2,
        "how": "transfer to other records",
    }
    assert document["events"][1] == {
        "kind": "gaussian",
        "dataset": {"name": "digits", "id": "ab" * 16, "key_id": "01234567", "start": 0, "stop": 719, "cut": "places"},
        "time": TIME,
        "adjacency": "add-remove",
        "unit": "record",
        "what": "moments",
        "sensitivity": 2.0,
        "noise_multiplier": 7.5,
    }


def test_a_set_without_predictors(cwd, raw):
    made, loaded = without_data(SPEC, CONFIG), load_ticket_set(cwd / "free")
    assert sorted(path.name for path in (cwd / "free").iterdir()) == [
        "README.md",
        "masks.safetensors",
        "theta0.safetensors",
        "tickets.json",
    ]
    document = json.loads((cwd / "free/tickets.json").read_text())
    assert (document["predictors_id"], document["source"], document["events"]) == (None, None, [])
    assert document["id"] == loaded.id == raw.set_id(cwd / "free")
    assert not loaded.is_scored
    assert same(loaded.body.theta0, made.theta0)
    for back, ticket in zip(loaded.body.tickets, made.tickets, strict=True):
        assert back.mask.same_as(ticket.mask)
        assert (back.predictor, back.accuracy) == (None, None)
    card = (cwd / "free/README.md").read_text()
    assert "there are no predictors to select by" in card
    assert "dpltm select" not in card


def test_the_id_does_not_depend_on_predictors(tmp_path, tickets, save):
    without = replace(tickets, tickets=tuple(replace(ticket, predictor=None) for ticket in tickets.tickets))
    with_them, bare = save(tmp_path / "a"), save(tmp_path / "b", without)
    assert with_them.id == bare.id
    assert (with_them.is_scored, bare.is_scored) == (True, False)
    total = {name: sum(path.stat().st_size for path in (tmp_path / name).iterdir()) for name in "ab"}
    predictors = sum(4 * ticket.mask.live for ticket in tickets.tickets)
    assert total["a"] - total["b"] >= predictors


# --- schema 1 ---


def make_schema_1(folder, raw, **changes):
    """Rewrites a set's description by the letter of docs/formats.md at schema 1."""
    path = folder / "tickets.json"
    new = json.loads(path.read_text())
    old = {
        "format": "dpltm-ticket-set",
        "schema": 1,
        "id": raw.set_id(folder),
        "predictors_id": raw.content_id(raw.read(folder / "predictors.safetensors")),
        "name": "of old",
        "created": "2025-01-01T00:00:00Z",
        "dpltm": "0.0.9",
        "model": "mlp:8",
        "features": 64,
        "classes": 10,
        "criterion": "magnitude",
        "provenance": "public",
        "source": {"name": "digits", "fingerprint": "ab" * 16, "key_id": "01234567", "start": 0, "stop": 719},
        "config": {"rounds": 3, "prune": [0.3, 0.4], "iterations": 20, "seed": 5},
        "tickets": new["tickets"],
    } | changes
    path.write_text(json.dumps({**old, "digest": raw.digest(old)}))


@pytest.mark.parametrize("provenance", ["public", "private"])
def test_schema_1_gives_the_same_content(cwd, raw, tickets, provenance):
    make_schema_1(cwd / "dp", raw, provenance=provenance)
    loaded = load_ticket_set(cwd / "dp")
    assert (loaded.name, loaded.criterion, loaded.provenance) == ("of old", "magnitude", provenance)
    assert (loaded.source, loaded.events, loaded.parent) == (
        replace(SOURCE, cut="positions", start=0, stop=OPEN_END),
        (),
        None,
    )
    assert loaded.source.content == ""  # its fingerprint knew the file, not the people
    assert loaded.config["prune"] == [0.3, 0.4]
    assert same(loaded.body.theta0, tickets.theta0)
    for back, ticket in zip(loaded.body.tickets, tickets.tickets, strict=True):
        assert back.mask.same_as(ticket.mask)
        assert same(back.predictor, ticket.predictor)
        assert back.accuracy == ticket.accuracy
    assert card_is_as_written(cwd / "dp")  # it does not say, so nothing can be held against it
    (cwd / "dp/README.md").write_text("mine")
    assert card_is_as_written(cwd / "dp")


@pytest.mark.parametrize("key", ["events", "parent", "card", "feature_map"])
def test_schema_1_knew_no_keys_of_schema_2(cwd, raw, refused, key):
    make_schema_1(cwd / "dp", raw, **{key: None})
    assert refused("dp") == f"unknown or missing key {key!r}"


@pytest.mark.parametrize(
    "changes",
    [{"provenance": "dp"}, {"provenance": "data-free", "source": None}, {"provenance": "data-free"}]
    + [{"provenance": value} for value in ("unknown", "", None, ["public"], {})],
    ids=repr,
)
def test_schema_1_knew_public_and_private_alone(cwd, raw, refused, changes):
    """docs/formats.md: schema 1 had provenance ``public`` or ``private``, and is read as before."""
    make_schema_1(cwd / "dp", raw, **changes)
    assert refused("dp") == OLD


@pytest.mark.parametrize("there", [True, False])
def test_schema_1_always_had_predictors(cwd, raw, refused, there):
    """docs/formats.md: schema 1 had "always predictors", and is read as before."""
    make_schema_1(cwd / "dp", raw, predictors_id=None)
    if not there:
        (cwd / "dp/predictors.safetensors").unlink()
    assert refused("dp") == OLD


def test_schema_2_gives_the_same_content(cwd, raw):
    """Before 0.2: references had a fingerprint, and ranges were of positions."""
    path = cwd / "dp/tickets.json"
    document = json.loads(path.read_text())

    def before(ref):
        return {**{key: ref[key] for key in ("name", "key_id", "start", "stop")}, "fingerprint": ref["id"]}

    old = document | {
        "schema": 2,
        "source": before(document["source"]),
        "events": [{**event, "dataset": before(event["dataset"])} for event in document["events"]],
    }
    path.write_text(json.dumps({**old, "digest": raw.digest(old)}))
    loaded = load_ticket_set(cwd / "dp")
    assert loaded.id == document["id"]
    assert loaded.source == replace(SOURCE, cut="positions", start=0, stop=OPEN_END)
    assert loaded.events == tuple(replace(event, dataset=loaded.source) for event in EVENTS)
    assert {event.dataset.content for event in loaded.events} == {loaded.source.content} == {""}
    assert (loaded.provenance, loaded.parent) == ("dp", PARENT)
    assert card_is_as_written(cwd / "dp")


# --- what does not agree ---

REFERENCE = "reference to records"
BODY = {"name": "digits", "id": "ab" * 16, "key_id": "01234567", "start": 0, "stop": 719, "cut": "places"}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("dp", {"provenance": "data-free"}, "provenance data-free and source do not go together"),
        ("dp", {"provenance": "data-free", "source": None}, f"events: provenance data-free {AGREE}"),
        ("dp", {"source": None}, "provenance dp and source do not go together"),
        ("dp", {"provenance": "public"}, f"events: provenance public {AGREE}"),
        ("dp", {"provenance": "private"}, f"events: provenance private {AGREE}"),
        ("dp", {"events": []}, f"events: provenance dp {AGREE}"),
        ("dp", {"events": None}, "events: not a list"),
        ("dp", {"events": {"kind": "training"}}, "events: not a list"),
        ("dp", {"events": "[]"}, "events: not a list"),
        ("dp", {"provenance": "private", "events": None}, "events: not a list"),
        ("dp", {"provenance": "unknown"}, "provenance 'unknown' is none of data-free, public, dp, private"),
        ("dp", {"provenance": ["dp"]}, "provenance ['dp'] is none of data-free, public, dp, private"),
        ("dp", {"source": {**BODY, "name": "mnist"}}, "events: one is on other records than the source"),
        ("dp", {"source": {**BODY, "key_id": "89abcdef"}}, "events: one is on other records than the source"),
        ("dp", {"source": {**BODY, "stop": 720}}, "events: one is on other records than the source"),
        ("dp", {"source": {**BODY, "start": 0.0}}, f"source: {REFERENCE}: field start: bad value 0.0, expected int"),
        (
            "dp",
            {"source": {**BODY, "start": False}},
            f"source: {REFERENCE}: field start: bad value False, expected int",
        ),
        ("dp", {"source": {**BODY, "more": 1}}, f"source: {REFERENCE}: unknown or missing field 'more'"),
        ("dp", {"source": [BODY]}, f"source: {REFERENCE}: expected an object"),
        ("dp", {"source": {**BODY, "cut": "hash"}}, f"source: {REFERENCE}: field cut: bad value 'hash', expected Cut"),
        ("dp", {"source": {**BODY, "cut": "positions"}}, "events: one is on other records than the source"),
        (
            "dp",
            {"source": {**BODY, "fingerprint": "ab" * 16}},
            f"source: {REFERENCE}: unknown or missing field 'fingerprint'",
        ),
        (
            "dp",
            {"source": {**BODY, "cut": "whole"}},
            "source: dataset reference digits: the whole of it has no range 0:719",
        ),
        (
            "dp",
            {"source": {**BODY, "cut": "values", "stop": 2**40}},
            f"source: dataset reference digits: records 0:{2**40} are not a range",
        ),
        ("free", {"source": BODY}, "provenance data-free and source do not go together"),
        ("free", {"provenance": "public"}, "provenance public and source do not go together"),
        ("free", {"provenance": "private"}, "provenance private and source do not go together"),
        ("free", {"provenance": "dp"}, "provenance dp and source do not go together"),
        ("free", {"provenance": "dp", "source": BODY}, f"events: provenance dp {AGREE}"),
        ("dp", {"parent": {}}, "parent is not a reference to a ticket set"),
        ("dp", {"parent": "cd" * 32}, "parent is not a reference to a ticket set"),
        ("dp", {"parent": {**asdict(PARENT), "more": 1}}, "parent is not a reference to a ticket set"),
        ("dp", {"parent": {**asdict(PARENT), "round": -1}}, "parent: round -1 is not a round"),
        ("dp", {"parent": {**asdict(PARENT), "round": True}}, "parent: round True is not a round"),
        ("dp", {"parent": {**asdict(PARENT), "round": 1.0}}, "parent: round 1.0 is not a round"),
        ("dp", {"parent": {**asdict(PARENT), "id": 5}}, f"parent: id: {TEXT}"),
        ("dp", {"parent": {**asdict(PARENT), "how": None}}, f"parent: how: {TEXT}"),
    ],
)
def test_disagreements(edit, refused, name, changes, message):
    edit(name, **changes)
    assert refused(name) == message


def test_an_edit_that_agrees_is_read(cwd, edit):
    """The refusals above are about what they say, not about the editing."""
    edit("dp", provenance="private", events=[], parent=None)
    assert load_ticket_set(cwd / "dp").provenance == "private"
    edit("free", parent={**asdict(PARENT), "round": None})
    assert load_ticket_set(cwd / "free").parent == replace(PARENT, round=None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "gaussians"}, "events: unknown event 'gaussians': known are "),
        ({"more": 1}, "events: gaussian event: unknown or missing field 'more'"),
        ({"noise_multiplier": -1.0}, "events: "),
        ({"noise_multiplier": "7.5"}, "events: gaussian event: field noise_multiplier: bad value '7.5'"),
        ({"dataset": {**BODY, "start": 1}}, "events: one is on other records than the source"),
        ({"dataset": {**BODY, "id": "cd" * 16}}, "events: one is on other records than the source"),
        ({"dataset": None}, "events: "),
    ],
)
def test_events_that_are_none_or_on_other_records(cwd, edit, refused, change, message):
    rows = json.loads((cwd / "dp/tickets.json").read_text())["events"]
    edit("dp", events=[rows[0], {**rows[1], **change}])
    assert refused("dp").startswith(message)
    edit("dp", events=[*rows, 5])
    assert refused("dp") == "events: an event must be a JSON object"


def test_events_without_their_digest_made_right(cwd):
    """Less noise than was stated: careless, and seen."""
    path = cwd / "dp/tickets.json"
    path.write_text(path.read_text().replace('"noise_multiplier": 7.5', '"noise_multiplier": 8.5'))
    assert told(load_ticket_set, cwd / "dp").endswith(
        "the digest does not match; the description is damaged or was changed"
    )


RELEASES = {
    "training": EVENTS[0],
    "gaussian": EVENTS[1],
    "laplace": LaplaceEvent(SOURCE, LaplaceRelease(4.0, 2.0), "a mean", time=TIME),
    "guarantee": GuaranteeEvent(SOURCE, Guarantee(0.5, 1e-6), "a count", time=TIME),
}
NO_RELEASES = {
    "budget": BudgetEvent(SOURCE, 0.1, 1e-5, time=TIME),
    "provenance": ProvenanceEvent(SOURCE, "public", "x", time=TIME),
    "non-private": NonPrivateEvent(SOURCE, Unprotected(), "scores", time=TIME),
    "selection": SelectionEvent(SOURCE, Selection(0.1, 0.1), "product", "exact", 0.5, 3, "x", time=TIME),
    "randomized-response": RandomizedResponseEvent(SOURCE, RandomizedResponse(1.0, 10), "labels", time=TIME),
}


def test_every_kind_is_a_release_or_none():
    assert {*RELEASES, *NO_RELEASES} == set(KINDS)


@pytest.mark.parametrize("kind", RELEASES)
def test_releases_that_tickets_can_be_made_from(tmp_path, cwd, edit, save, kind):
    saved = save(tmp_path / "s", provenance="dp", source=SOURCE, events=[RELEASES[kind]])
    assert load_ticket_set(saved.path).events == (RELEASES[kind],)
    edit("dp", events=[to_json(RELEASES[kind])])
    assert load_ticket_set(cwd / "dp").events == (RELEASES[kind],)


@pytest.mark.parametrize("kind", NO_RELEASES)
@pytest.mark.parametrize("place", ["alone", "first", "last"])
def test_what_is_no_release_that_tickets_can_be_made_from(tmp_path, edit, refused, save, kind, place):
    """docs/formats.md: events are "what making them spent". Others cost nothing, or everything, and a ledger acts on
    them."""
    event = NO_RELEASES[kind]
    events = {"alone": [event], "first": [event, *EVENTS], "last": [*EVENTS, event]}[place]
    message = f"{type(event).__name__} is no DP release that tickets could be made from"
    edit("dp", events=[to_json(one) for one in events])
    assert refused("dp") == f"events: {message}"
    assert told(save, tmp_path / "a", provenance="dp", source=SOURCE, events=events) == message
    assert not (tmp_path / "a").exists()


def test_a_release_that_stands_there_twice(tmp_path, edit, refused, save):
    """A ledger takes equal events for one, so the second would be for free."""
    twice, message = (
        (EVENTS[1], EVENTS[0], EVENTS[1]),
        "one stands there twice; two releases differ at least in their time",
    )
    edit("dp", events=[to_json(one) for one in twice])
    assert refused("dp") == f"events: {message}"
    assert told(save, tmp_path / "a", provenance="dp", source=SOURCE, events=twice) == message
    assert not (tmp_path / "a").exists()
    apart = (EVENTS[1], replace(EVENTS[1], time=now()), replace(EVENTS[1], time=now()))
    assert load_ticket_set(save(tmp_path / "b", provenance="dp", source=SOURCE, events=apart).path).events == apart


@pytest.mark.parametrize(
    ("provenance", "source", "events"),
    [("public", SOURCE, EVENTS), ("private", SOURCE, EVENTS), ("data-free", None, EVENTS), ("dp", SOURCE, ())],
    ids=["public", "private", "data-free", "dp"],
)
def test_what_does_not_agree_is_not_written(tmp_path, save, provenance, source, events):
    message = told(save, tmp_path / "a", provenance=provenance, source=source, events=events)
    assert message == f"provenance {provenance} {AGREE}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("start", "stop", "shown"), [(719, 719, "719:719"), (9, 3, "9:3"), (-1, 719, "-1:719"), (0, 0, "0:0")]
)
def test_a_source_of_no_records_names_the_file(edit, refused, start, stop, shown):
    edit("dp", source={**BODY, "start": start, "stop": stop})
    assert refused("dp") == f"source: dataset reference digits: records {shown} are not a range"


# --- starting weights ---


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["fc1.weight", "fc2.bias"])
def test_starting_weights_that_are_not_finite(tmp_path, cwd, raw, edit, tickets, save, name, value):
    theta0 = {key: tensor.clone() for key, tensor in tickets.theta0.items()}
    theta0[name].view(-1)[1] = value
    message = told(save, tmp_path / "a", replace(tickets, theta0=theta0))
    assert message == f"`lr`: {name}: a starting weight is not finite"
    assert not (tmp_path / "a").exists()
    path = cwd / "dp/theta0.safetensors"
    stored = raw.read(path)
    stored[name].reshape(-1)[1] = value
    raw.write(path, stored)
    edit("dp", id=raw.set_id(cwd / "dp"))  # all else agrees
    assert told(load_ticket_set, cwd / "dp") == f"{path}: {name}: a starting weight is not finite"


# --- texts ---

BAD = ["\x1b[2J", "line\nbreak", "\x00", "\u202e", "\x7f", "a\tb", "\ud800", "a" * 201]
GOOD = ["a" * 200, "", "Größe 数字 ½", "[bold]x[/bold]"]


@pytest.mark.parametrize("key", ["name", "created", "dpltm", "criterion"])
def test_texts_of_the_description(cwd, edit, refused, key):
    for text in BAD:
        edit("dp", **{key: text})
        assert refused("dp") == f"{key}: {TEXT}"
    for text in GOOD:
        edit("dp", **{key: text})
        assert len(load_ticket_set(cwd / "dp").body.tickets) == 4


@pytest.mark.parametrize("key", ["name", "id", "key_id"])
def test_texts_of_source_and_parent(edit, refused, key):
    for text in BAD:
        edit("dp", provenance="private", events=[], source={**BODY, key: text})
        assert refused("dp") in (  # texts of a reference may be longer in a ledger than in a set
            f"source: {key}: {TEXT}",
            f"source: {REFERENCE}: field {key}: bad value {text!r:.60}, expected str",
        )
        other = "how" if key == "key_id" else key
        edit("dp", provenance="dp", events=[to_json(event) for event in EVENTS], source=BODY)
        edit("dp", parent={**asdict(PARENT), other: text})
        assert refused("dp") == f"parent: {other}: {TEXT}"


@pytest.mark.parametrize("key", ["what", "time"])
def test_texts_of_events(tmp_path, cwd, edit, refused, save, key):
    """Texts are printable (docs/formats.md), and these end up in ledgers that are printed."""
    rows = json.loads((cwd / "dp/tickets.json").read_text())["events"]
    for text in (*BAD[:-1], "a" * 1001):
        edit("dp", events=[rows[0], {**rows[1], key: text}])
        assert refused("dp") == f"events: gaussian event: field {key}: bad value {text!r:.60}, expected str"
        changed = [replace(EVENTS[1], **{key: text})]
        message = told(save, tmp_path / "a", provenance="dp", source=SOURCE, events=changed)
        assert message == f"event field {key}: {text!r:.60} is no printable text of at most 1000 characters"
        assert not (tmp_path / "a").exists()
    for text in (*GOOD, "a" * 1000):
        edit("dp", events=[rows[0], {**rows[1], key: text}])
        assert getattr(load_ticket_set(cwd / "dp").events[1], key) == text


@pytest.mark.parametrize("text", BAD)
def test_texts_are_refused_before_anything_is_written(tmp_path, save, text):
    source = replace(SOURCE, name=text)
    for where, changes in (
        ("`name`", {"name": text}),
        ("criterion", {"criterion": text}),
        ("`dataset`: its name", {"source": source}),
    ):
        assert told(save, tmp_path / "a", **changes) == f"{where}: {TEXT}"
    assert list(tmp_path.iterdir()) == []


LONG_NAME = without_data(ModelSpec("mlp:" + ",".join(["10"] * 70), 5, 2), CONFIG)
ELSEWHERE = GuaranteeEvent(replace(SOURCE, start=1), Guarantee(1.0), "x", time=TIME)


@pytest.mark.parametrize(
    "changes",
    [
        {"body": LONG_NAME, "provenance": "data-free", "source": None},
        *({"source": replace(SOURCE, name=text)} for text in ("a" * 201, "\x1b[2J")),  # `name` does not help there
        {"provenance": "dp", "events": [ELSEWHERE]},
    ],
    ids=["network", "long source", "unprintable source", "releases elsewhere"],
)
def test_what_could_not_be_read_is_not_written(tmp_path, tickets, changes):
    body = changes.get("body", tickets)
    settings = {"name": "n", "criterion": "magnitude", "provenance": "public", "source": SOURCE, "config": {}}
    settings |= {key: value for key, value in changes.items() if key != "body"}
    try:
        store_set(tmp_path / "a", body, **settings)
    except ArtifactError:
        assert not (tmp_path / "a").exists()
    else:
        assert load_ticket_set(tmp_path / "a").name == "n"


# --- the card ---


def test_a_card_may_be_edited(cwd):
    path = cwd / "dp/README.md"
    text = path.read_text()
    assert card_is_as_written(cwd / "dp")
    path.write_text(text + "\nmore\n")
    assert not card_is_as_written(cwd / "dp")
    assert load_ticket_set(cwd / "dp").name == "n"
    path.write_text(text)
    assert card_is_as_written(cwd / "dp")
    path.unlink()
    assert load_ticket_set(cwd / "dp").name == "n"  # nothing else minds


@pytest.mark.parametrize(
    "stated",
    [None, 5, ["a"], {}, "", "ab" * 31, "ab" * 33, "AB" * 32, "xy" * 32, "ab" * 32 + "\n", "٣" * 64],
    ids=ascii,
)
def test_a_card_that_is_no_hash(cwd, edit, refused, stated):
    """Schema 2 always states one; a field that does not fit is refused, and never passes for the card as written."""
    edit("dp", card=stated)
    assert refused("dp") == "card is not a SHA-256"
    with pytest.raises(ArtifactError, match="card is not a SHA-256"):
        card_is_as_written(cwd / "dp")


def test_the_hash_of_another_card(cwd, edit):
    edit("dp", card="ab" * 32)
    assert not card_is_as_written(cwd / "dp")
    assert load_ticket_set(cwd / "dp").name == "n"


def test_the_card_tells_where_the_set_comes_from(cwd):
    text = (cwd / "dp/README.md").read_text()
    assert "provenance: **dp**" in text
    assert "- from: the set its parent (`cdcdcdcdcdcd`, round 2) by transfer to other records\n" in text
    assert "pruning from `digits[0:719]`" in text
    free = (cwd / "free/README.md").read_text()
    assert "random pruning from no data" in free
    assert "- from:" not in free
    assert free.count("| not measured |") == 3


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_card_that_is_no_file(cwd, kind):
    path = cwd / "dp/README.md"
    text = path.read_bytes()
    path.unlink()
    if kind == "link":
        (cwd / "elsewhere").write_bytes(text)
        path.symlink_to(cwd / "elsewhere")
    else:
        path.mkdir()
    with pytest.raises(ArtifactError):
        card_is_as_written(cwd / "dp")
