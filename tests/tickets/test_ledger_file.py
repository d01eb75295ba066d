"""The ledger file: what is entered comes back, and every edit, loss or change of order shows."""

from __future__ import annotations

import hashlib
import json
import math
import resource
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpltm.errors import ArtifactError, BudgetError
from dpltm.privacy.event_json import to_json
from dpltm.privacy.events import OPEN_END, DatasetRef, GuaranteeEvent
from dpltm.privacy.mechanisms import Guarantee
from dpltm.privacy.parts import total_epsilon
from dpltm.tickets.ledger_file import enrol, open_ledger, write_events
from entries import having
from refusals import told
from set_events import BUDGET, DRAWN, SAID, SHOWN, SOURCE, TIME, TRAINED

EVENTS = (
    SAID,
    having(DRAWN, certified_epsilon=math.inf),
    TRAINED,
    having(TRAINED, sampling_rate=1 / 3, steps=1, noise_multiplier=0.0),
    SHOWN,
)


def count(epsilon, ref=SOURCE, what="a count"):
    return GuaranteeEvent(ref, Guarantee(epsilon), what, time=TIME)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A ledger of five events, named l.jsonl in the working folder."""
    monkeypatch.chdir(tmp_path)
    ledger = open_ledger(Path("l.jsonl"))
    for event in EVENTS:
        ledger.append(event)
    return Path("l.jsonl")


def refused(path):
    return told(open_ledger, path)


def lines_of(path):
    return path.read_text().splitlines()


def rewrite(path, lines):
    path.write_bytes("".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape"))


def chain(bodies, schema=3):
    """Entries with digests by docs/formats.md."""
    digest, entries = "", [json.dumps({"format": "dpltm-ledger", "schema": schema})]
    for sequence, body in enumerate(bodies, start=1):
        text = digest + json.dumps(body, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()
        entries.append(json.dumps({"sequence": sequence, "event": body, "digest": digest}))
    return entries


# --- what is entered comes back ---


def test_round_trip(path):
    """Each line is by the letter of the document."""
    ledger, before = open_ledger(path), path.read_bytes()
    assert lines_of(path) == chain([to_json(event) for event in EVENTS])
    assert ledger.events == EVENTS
    ledger.append(EVENTS[0])
    assert open_ledger(path).events == (*EVENTS, EVENTS[0])
    assert path.read_bytes().startswith(before)


def test_what_an_id_stands_for_is_not_in_the_file(path):
    """And not known from it alone: whoever opens it elsewhere adds everything up."""
    known = replace(SOURCE, content="01234567:" + "9" * 32, shares=frozenset({"01234567:" + "8" * 32}))
    open_ledger(path).append(count(0.5, known))
    assert "9" * 32 not in path.read_text()
    assert "8" * 32 not in path.read_text()
    assert open_ledger(path).events[-1].dataset.content == ""


# --- older versions ---


def test_a_draw_of_an_older_version(tmp_path):
    """Written before draws said whether they came first: read as one that did not, with its digest as it was."""
    bodies = [to_json(event) for event in EVENTS]
    assert bodies[1].pop("adaptive") is True
    rewrite(tmp_path / "l.jsonl", chain(bodies))
    assert open_ledger(tmp_path / "l.jsonl").events == EVENTS


def written_before(path, events, schema):
    """A ledger as versions before 0.2 wrote it."""
    bodies = [to_json(event) for event in events]
    for body in bodies:
        ref = body["dataset"]
        body["dataset"] = {**{key: ref[key] for key in ("name", "key_id", "start", "stop")}, "fingerprint": ref["id"]}
    rewrite(path, chain(bodies, schema))


@pytest.mark.parametrize("schema", [1, 2])
def test_a_ledger_of_an_older_version_is_read_as_the_costlier_case(tmp_path, schema):
    """Its ranges moved, and its fingerprints told apart what was the same; docs/formats.md."""
    there = tmp_path / "l.jsonl"
    released = [count(0.5), count(0.5, replace(SOURCE, start=719, stop=1438))]
    assert total_epsilon(released, 1e-12) == pytest.approx(0.5, abs=1e-6)
    written_before(there, released, schema)
    then = open_ledger(there).events
    assert {(event.dataset.cut, event.dataset.start, event.dataset.stop) for event in then} == {
        ("positions", 0, OPEN_END)
    }
    assert total_epsilon(then, 1e-12) == pytest.approx(2.0, abs=1e-6)
    # Declared once, it goes on as it is: what is entered now stands beside, and may be about the same people.
    assert enrol(there) == 2
    open_ledger(there).append(count(0.25, DatasetRef("n", "ef" * 16, "89abcdef")))
    assert json.loads(lines_of(there)[0])["schema"] == schema
    assert total_epsilon(open_ledger(there).events, 1e-12) == pytest.approx(2.25, abs=1e-6)
    # The whole of a dataset, written with an open end, was no range.
    there = tmp_path / "whole.jsonl"
    written_before(there, [count(0.5, replace(SOURCE, start=0, stop=2**63 - 1))], schema)
    (event,) = open_ledger(there).events
    assert (event.dataset.cut, str(event.dataset)) == ("whole", "digits")


# --- what is not entered ---


@pytest.mark.parametrize(
    ("events", "refused", "why"),
    [
        ([replace(BUDGET, epsilon=0.7), count(0.5)], count(0.5, what="b"), r"above the budget of 0\.7 set on"),
        (EVENTS, having(DRAWN, adaptive=False), "earlier releases from these records"),  # claims to be the first
    ],
)
def test_what_the_ledger_refuses_is_not_written_and_what_it_admits_is(tmp_path, events, refused, why):
    """By what lies on disk, for whoever opens it next; a copy asks no budget again."""
    file = tmp_path / "l.jsonl"
    for event in events:
        open_ledger(file).append(event)
    before = file.read_bytes()
    with pytest.raises((ArtifactError, BudgetError), match=why):
        open_ledger(file).append(refused)
    assert file.read_bytes() == before
    open_ledger(file).append(count(0.1, what="a smaller one"))
    assert len(open_ledger(file).events) == len(events) + 1
    copied = (*open_ledger(file).events, replace(BUDGET, epsilon=1e-3))  # set below what another ledger admitted
    write_events(tmp_path / "copy.jsonl", copied)
    assert open_ledger(tmp_path / "copy.jsonl").events == copied


@pytest.mark.parametrize("exists", [True, False])
def test_appending_after_another_is_refused(path, exists):
    """Under whatever name the other one opened it."""
    path = path if exists else Path("new.jsonl")
    Path("link").symlink_to(path)
    first, second = open_ledger(path), open_ledger(Path("link"))
    second.append(EVENTS[0])
    before = path.read_bytes()
    message = told(first.append, EVENTS[1])
    assert message == f"{path}: another process has written to the ledger meanwhile; run again"
    assert path.read_bytes() == before
    assert first.events == (EVENTS if exists else ())  # not on disk, so not entered
    second.append(EVENTS[1])
    assert open_ledger(path).events[-2:] == EVENTS[:2]


def test_an_event_that_could_not_be_read_again_is_not_written(path):
    """The file stays byte for byte, and is read and written as before: a ledger that nobody can open is worse than none."""
    before, ledger = path.read_bytes(), open_ledger(path)
    event = replace(EVENTS[4], dataset=replace(SOURCE, name="\x1b[2J"))
    why = "event field name: '\\x1b[2J' is no printable text of at most 1000 characters"
    assert told(ledger.append, event) == why
    assert path.read_bytes() == before
    assert ledger.events == open_ledger(path).events == EVENTS  # not on disk, so not entered
    ledger.append(EVENTS[0])  # the very same ledger goes on
    assert open_ledger(path).events == (*EVENTS, EVENTS[0])
    assert told(write_events, Path("new/l.jsonl"), [*EVENTS, event]) == why
    assert not Path("new").exists()


# --- places that cannot be used ---


def test_places_that_cannot_be_used(path):
    """A missing file is an empty ledger until its first event."""
    Path("folder").mkdir()
    assert refused(Path("folder")) == "folder: cannot be read: Is a directory"
    assert refused(path / "l.jsonl") == "l.jsonl/l.jsonl: the ledger cannot be read: Not a directory"
    ledger = open_ledger(Path("/proc/none/l.jsonl"))
    assert told(ledger.append, EVENTS[0]) == (
        "/proc/none/l.jsonl: the ledger cannot be written: No such file or directory; nothing was spent"
    )
    assert ledger.events == ()
    ledger = open_ledger(Path("deep/l.jsonl"))
    assert not Path("deep").exists()
    ledger.append(EVENTS[0])
    assert open_ledger(Path("deep/l.jsonl")).events == EVENTS[:1]


@pytest.mark.parametrize("room", [0, 1, 100])
def test_a_line_that_does_not_fit_leaves_the_file_as_it_was(path, room):
    """A limit on file sizes stands for a full disk."""
    ledger, before = open_ledger(path), path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, hard))
    try:
        with pytest.raises(ArtifactError, match=r"^l\.jsonl: the ledger cannot be written: .*; nothing was spent$"):
            ledger.append(EVENTS[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    ledger.append(EVENTS[0])
    assert open_ledger(path).events == (*EVENTS, EVENTS[0])


# --- what was changed after the fact shows ---


def in_line(number, old, new):
    """A change of one line, and nothing else."""

    def change(lines):
        assert old in lines[number - 1]
        return [*lines[: number - 1], lines[number - 1].replace(old, new), *lines[number:]]

    return change


def with_fields(number, **changes):
    """A change of an event, with all digests made right; ``...`` drops a field."""

    def change(_):
        bodies = [to_json(event) for event in EVENTS]
        body = {**bodies[number - 2], **changes}
        bodies[number - 2] = {key: value for key, value in body.items() if value is not ...}
        return chain(bodies)

    return change


def own_digest_made_right(lines):
    """The next line still depends on the digest that was."""
    return [*lines[:3], with_fields(4, steps=3)(lines)[3], *lines[4:]]


def numbers_made_right(lines):
    entries = [json.loads(line) for line in lines[:2] + lines[3:]]
    return [json.dumps({**entry, **({"sequence": n} if n else {})}) for n, entry in enumerate(entries)]


EDITED = "the digest does not match: this line, or one before it, was changed after the fact"
MOVED = "sequence {}, expected {}; a line is missing or moved"
NO_ENTRY, NO_JSON = "expected sequence, event and digest", "not valid JSON"
NO_LEDGER = "not a document of format 'dpltm-ledger'"
KNOWN = (
    "unknown event {!r}: known are provenance, selection, training, search, laplace, gaussian, randomized-response,"
    " guarantee, non-private, budget; a newer dpltm may have written it"
)
CHANGES = [
    (in_line(2, '"public"', '"private"'), 2, EDITED),
    (in_line(4, '"noise_multiplier": 3.5', '"noise_multiplier": 35.0'), 4, EDITED),
    (in_line(6, "scores", "nothing"), 6, EDITED),
    (in_line(3, '"adaptive": true', '"adaptive": false'), 3, EDITED),  # cheaper in composition
    (lambda lines: [*lines[:2], json.dumps({**json.loads(lines[2]), "digest": None}), *lines[3:]], 3, EDITED),
    (numbers_made_right, 3, EDITED),
    (own_digest_made_right, 5, EDITED),
    (lambda lines: lines[:2] + lines[3:], 3, MOVED.format(3, 2)),
    (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2, MOVED.format(2, 1)),
    (lambda lines: [*lines, lines[-1]], 7, MOVED.format(5, 6)),
    (lambda lines: [*lines[:-1], lines[-1][:20]], 6, NO_JSON),  # power lost, then saved by an editor
    *((lambda lines, line=line: [*lines, line], 7, NO_JSON) for line in ("", "[" * 100_000, "\udcff")),
    *((lambda lines, line=line: [*lines, line], 7, NO_ENTRY) for line in ("[]", '{"sequence": 6, "event": {}}')),
    # an event that is not understood is never skipped
    (with_fields(4, kind="audit"), 4, KNOWN.format("audit")),
    (with_fields(4, more=1), 4, "training event: unknown or missing field 'more'"),
    (lambda _: chain([[1]]), 2, "an event must be a JSON object"),
    (lambda lines: lines[1:], 1, NO_LEDGER),
    (in_line(1, "3", "4"), 1, "schema 4 is newer than this version of dpltm reads (3); upgrade dpltm"),
    (in_line(1, "ledger", "run"), 1, NO_LEDGER),
    (lambda lines: ["hello", *lines[1:]], 1, NO_JSON),
]


@pytest.mark.parametrize(("change", "line", "message"), CHANGES)
def test_what_was_changed_shows(path, change, line, message):
    rewrite(path, change(lines_of(path)))
    assert refused(path) == f"l.jsonl: line {line}: {message}"


def test_a_file_cut_short_is_refused(path):
    """Lost at a line's end, the last events are gone without a trace in the file: the journal knows of them."""
    data = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(data) if byte == ord("\n")]
    near = {end + step for end in ends for step in (-2, -1, 0, 1)}
    for size in sorted({*near, *range(0, len(data), 97)} - {len(data), len(data) + 1}):
        path.write_bytes(data[:size])
        if size == 0 or size in ends:
            left = max(0, ends.index(size) if size else 0)
            assert refused(path).startswith(f"l.jsonl: holds {left} event")
        else:
            line = 1 + data[:size].count(b"\n")
            why = "the last line is incomplete; remove it only if you know what it paid for"
            assert refused(path) == f"l.jsonl: line {line}: {why}"


# The file is written anew for each example, so that sharing the folder does no harm.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(draw=st.data())
def test_a_byte_changed_removed_or_added_is_refused_or_changes_no_event(path, draw):
    original = "".join(line + "\n" for line in chain([to_json(event) for event in EVENTS])).encode()
    place = draw.draw(st.integers(0, len(original) - 1))
    byte = bytes([draw.draw(st.integers(0, 255))])
    tail = {"change": 1, "remove": 1, "add": 0}[how := draw.draw(st.sampled_from(["change", "remove", "add"]))]
    path.write_bytes(original[:place] + (b"" if how == "remove" else byte) + original[place + tail :])
    events, message = EVENTS, "l.jsonl: "
    try:
        events = open_ledger(path).events
    except ArtifactError as error:
        message = str(error)
    assert events == EVENTS
    assert message.startswith("l.jsonl: ")
    assert "\n" not in message
