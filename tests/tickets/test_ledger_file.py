"""The ledger file: what is entered comes back, and every edit, loss or change of order shows."""

from __future__ import annotations

import hashlib
import json
import math
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpltm.errors import ArtifactError, BudgetError
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
from dpltm.privacy.parts import total_epsilon
from dpltm.tickets.ledger_file import copy_events, open_ledger

REF = DatasetRef("digits", "ab" * 16, "01234567", 719, 1438, "places")
EVENTS = (
    ProvenanceEvent(REF, "private", "12" * 32, time="2026-01-02T03:04:05Z"),
    SelectionEvent(
        REF, Selection(0.1, math.inf), "product", "paper", 49.0, 15, "12" * 32, time="2026-01-02T03:04:05Z"
    ),
    TrainingEvent(
        REF, NoisySgd(0.1, 300, 1.1, 2.5, 1.0), "clip(C=1) then tanh(c=1, k=1)", 432, time="2026-01-02T03:04:05Z"
    ),
    TrainingEvent(REF, NoisySgd(1 / 3, 1, 0.0), "clip(C=1)", 432, time="2026-01-02T03:04:05Z"),
    NonPrivateEvent(REF, Unprotected(), "scores", time="2026-01-02T03:04:05Z"),
)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A ledger of five events, named l.jsonl in the working folder."""
    monkeypatch.chdir(tmp_path)
    ledger = open_ledger(tmp_path / "l.jsonl")
    for event in EVENTS:
        ledger.append(event)
    return (tmp_path / "l.jsonl").relative_to(tmp_path)


def refused(path):
    with pytest.raises(ArtifactError) as caught:
        open_ledger(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


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


def test_round_trip(path):
    ledger, before = open_ledger(path), path.read_bytes()
    assert ledger.events == EVENTS
    assert [type(event) for event in ledger.events] == [type(event) for event in EVENTS]
    ledger.append(EVENTS[0])
    assert open_ledger(path).events == (*EVENTS, EVENTS[0])
    assert path.read_bytes().startswith(before)


def test_a_missing_file_is_an_empty_ledger_until_its_first_event(tmp_path):
    ledger = open_ledger(tmp_path / "deep/l.jsonl")
    assert ledger.events == ()
    assert list(tmp_path.iterdir()) == []
    ledger.append(EVENTS[0])
    assert open_ledger(tmp_path / "deep/l.jsonl").events == EVENTS[:1]


EVERY_KIND = (
    BudgetEvent(REF, 1e6, 1e-5, time="2026-01-02T03:04:05Z"),
    ProvenanceEvent(REF, "data-free", "12" * 32, time="2026-01-02T03:04:05Z"),
    SelectionEvent(
        REF, Selection(0.1, 0.1, adaptive=False), "additive", "exact", 0.01, 15, "12" * 32, time="2026-01-02T03:04:05Z"
    ),
    SelectionEvent(
        REF,
        Selection(0.1, 0.1, draw="permute-and-flip"),
        "additive",
        "exact",
        0.01,
        15,
        "12" * 32,
        time="2026-01-02T03:04:05Z",
    ),
    TrainingEvent(REF, NoisySgd(0.1, 3, 1.1, 2.5, 1.0), "clip(C=1)", 432, time="2026-01-02T03:04:05Z"),
    LaplaceEvent(REF, LaplaceRelease(0.7, 1 / 3), "a mean", time="2026-01-02T03:04:05Z"),
    GaussianEvent(REF, GaussianRelease(1.1, 0.1), "a sum", time="2026-01-02T03:04:05Z"),
    GuaranteeEvent(REF, Guarantee(0.5, 1e-7), "a count", time="2026-01-02T03:04:05Z"),
)


def test_round_trip_of_every_kind(tmp_path):
    """One relation a ledger: randomised response, which has only the other, gets one of its own."""
    relations = (
        EVERY_KIND,
        (
            RandomizedResponseEvent(REF, RandomizedResponse(1.0, 10), "labels", time="2026-01-02T03:04:05Z"),
            NonPrivateEvent(REF, Unprotected(adjacency="replace-one"), "scores", time="2026-01-02T03:04:05Z"),
        ),
    )
    kinds = set()
    for number, events in enumerate(relations):
        file = tmp_path / f"{number}.jsonl"
        ledger = open_ledger(file)
        for event in events:
            ledger.append(event)
        assert open_ledger(file).events == events
        assert list(map(type, open_ledger(file).events)) == list(map(type, events))
        kinds |= {json.loads(line)["event"]["kind"] for line in lines_of(file)[1:]}
    assert kinds == set(KINDS)


def test_a_budget_on_disk_holds_in_the_next_process(tmp_path):
    """Nothing of what it refuses is written; what fits is."""
    file = tmp_path / "l.jsonl"
    open_ledger(file).append(BudgetEvent(REF, 0.7, 1e-5, time="2026-01-02T03:04:05Z"))
    open_ledger(file).append(GuaranteeEvent(REF, Guarantee(0.5), "a count", time="2026-01-02T03:04:05Z"))
    before = file.read_bytes()
    with pytest.raises(BudgetError, match=r"above the budget of 0\.7 set on 2026-01-02"):
        open_ledger(file).append(GuaranteeEvent(REF, Guarantee(0.5), "another", time="2026-01-02T03:04:05Z"))
    assert file.read_bytes() == before
    open_ledger(file).append(GuaranteeEvent(REF, Guarantee(0.1), "a smaller one", time="2026-01-02T03:04:05Z"))
    assert len(open_ledger(file).events) == 3


def test_a_draw_that_claims_to_be_first_is_refused_and_not_written(path):
    before = path.read_bytes()
    with pytest.raises(ArtifactError, match="earlier releases from these records"):
        open_ledger(path).append(EVERY_KIND[2])
    assert path.read_bytes() == before


def test_a_draw_of_an_older_version(path):
    """Written before draws said whether they came first: read as one that did not, with its digest as it was."""
    bodies = [json.loads(line)["event"] for line in lines_of(path)[1:]]
    assert bodies[1].pop("adaptive") is True
    rewrite(path, chain(bodies))
    ledger = open_ledger(path)
    assert ledger.events == EVENTS
    ledger.append(EVENTS[4])
    assert open_ledger(path).events == (*EVENTS, EVENTS[4])


def before(body):
    """An entry as versions before 0.2 wrote it."""
    ref = body["dataset"]
    old = {"name": ref["name"], "fingerprint": ref["id"], "key_id": ref["key_id"], "start": ref["start"]}
    return {**body, "dataset": {**old, "stop": ref["stop"]}}


@pytest.mark.parametrize("schema", [1, 2])
def test_a_ledger_of_an_older_version_is_read_as_the_costlier_case(path, schema):
    """Its ranges moved, and its fingerprints told apart what was the same; docs/formats.md."""
    ranges = [replace(REF, start=0, stop=719), REF]
    released = [GuaranteeEvent(ref, Guarantee(0.5), "a count", time="2026-01-02T03:04:05Z") for ref in ranges]
    there = path.with_name("there.jsonl")
    for event in released:
        open_ledger(there).append(event)
    now_ = open_ledger(there).events
    rewrite(there, chain([before(to_json(event)) for event in released], schema))
    then = open_ledger(there).events
    assert [(event.dataset.cut, event.dataset.start, event.dataset.stop) for event in then] == [
        ("positions", 0, OPEN_END),
        ("positions", 0, OPEN_END),
    ]
    assert total_epsilon(now_, 1e-12) == pytest.approx(0.5, abs=1e-6)
    assert total_epsilon(then, 1e-12) == pytest.approx(2.0, abs=1e-6)
    # It goes on as it is: what is entered now stands beside, and may be about the same people.
    open_ledger(there).append(
        GuaranteeEvent(DatasetRef("n", "ef" * 16, "89abcdef"), Guarantee(0.25), "another", time="2026-01-02T03:04:05Z")
    )
    assert json.loads(lines_of(there)[0])["schema"] == schema
    assert total_epsilon(open_ledger(there).events, 1e-12) == pytest.approx(2.25, abs=1e-6)


def test_the_whole_of_a_dataset_stays_the_whole(path):
    """Written with an open end, it was no range."""
    there = path.with_name("there.jsonl")
    body = to_json(
        GuaranteeEvent(replace(REF, start=0, stop=2**63 - 1), Guarantee(0.5), "a count", time="2026-01-02T03:04:05Z")
    )
    rewrite(there, chain([before(body)], 2))
    (event,) = open_ledger(there).events
    assert (event.dataset.cut, str(event.dataset)) == ("whole", "digits")
    assert total_epsilon([event], 1e-12) == pytest.approx(0.5, abs=1e-6)


def test_what_an_id_stands_for_is_not_in_the_file(path):
    """And not known from it alone: whoever opens it elsewhere adds everything up."""
    known = replace(REF, content="01234567:" + "9" * 32, shares=frozenset({"01234567:" + "8" * 32}))
    open_ledger(path).append(GuaranteeEvent(known, Guarantee(0.5), "a count", time="2026-01-02T03:04:05Z"))
    assert "9" * 32 not in path.read_text()
    assert "8" * 32 not in path.read_text()
    assert open_ledger(path).events[-1].dataset.content == ""


def test_lines_by_the_document(path):
    header, *lines = lines_of(path)
    assert json.loads(header) == {"format": "dpltm-ledger", "schema": 3}
    digest = ""
    for number, (line, event) in enumerate(zip(lines, EVENTS, strict=True), start=1):
        entry = json.loads(line)
        assert set(entry) == {"sequence", "event", "digest"}
        assert entry["sequence"] == number
        assert entry["event"] == to_json(event)
        text = digest + json.dumps(entry["event"], sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()
        assert entry["digest"] == digest
    kinds = [json.loads(line)["event"]["kind"] for line in lines]
    assert kinds == ["provenance", "selection", "training", "training", "non-private"]
    assert json.loads(lines[1])["event"]["certified_epsilon"] == "inf"


SCRIPT = """
import sys
from pathlib import Path
from dpltm.tickets.ledger_file import copy_events, open_ledger
print(len(open_ledger(Path(sys.argv[1])).events))
"""


def test_an_event_is_on_disk_when_append_returns(path):
    """Seen by another process, before the file object of this one is closed or collected."""
    ledger = open_ledger(path)
    ledger.append(EVENTS[0])
    done = subprocess.run([sys.executable, "-c", SCRIPT, path], capture_output=True, text=True, check=True)
    assert done.stdout == "6\n"


@pytest.mark.parametrize("exists", [True, False])
def test_appending_after_another_is_refused(path, tmp_path, exists):
    path = path if exists else tmp_path / "new.jsonl"
    first, second = open_ledger(path), open_ledger(path)
    second.append(EVENTS[0])
    before = path.read_bytes()
    with pytest.raises(ArtifactError) as caught:
        first.append(EVENTS[1])
    assert str(caught.value) == f"{path}: another process has written to the ledger meanwhile; run again"
    assert path.read_bytes() == before
    assert first.events == (EVENTS if exists else ())  # not on disk, so not entered
    second.append(EVENTS[1])
    assert open_ledger(path).events[-2:] == EVENTS[:2]


def test_two_names_of_one_file_are_one_ledger(path, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "l.jsonl")
    first, second = open_ledger(path), open_ledger(tmp_path / "link")
    first.append(EVENTS[0])
    with pytest.raises(ArtifactError):
        second.append(EVENTS[0])
    assert len(open_ledger(tmp_path / "link").events) == 6


# --- what shows ---


def bodies_of(lines):
    return [json.loads(line)["event"] for line in lines[1:]]


def in_line(number, old, new):
    """A change of one line, and nothing else."""

    def change(lines):
        assert old in lines[number - 1]
        return [*lines[: number - 1], lines[number - 1].replace(old, new), *lines[number:]]

    return change


def with_fields(number, **changes):
    """A change of an event, with all digests made right."""

    def change(lines):
        bodies = bodies_of(lines)
        bodies[number - 2] |= changes
        return chain(bodies)

    return change


def with_digest(digest):
    return lambda lines: [*lines[:2], json.dumps({**json.loads(lines[2]), "digest": digest}), *lines[3:]]


def upper_digest(lines):
    return with_digest(json.loads(lines[2])["digest"].upper())(lines)


def own_digest_made_right(lines):
    """The next line still depends on the digest that was."""
    return [*lines[:3], with_fields(4, steps=3)(lines)[3], *lines[4:]]


def forgets_the_lines_before(lines):
    alone = json.loads(chain(bodies_of(lines)[3:4])[1])
    return [*lines[:4], json.dumps({**alone, "sequence": 4}), *lines[5:]]


def numbers_made_right(lines):
    entries = [json.loads(line) for line in lines[:2] + lines[3:]]
    return [json.dumps({**entry, **({"sequence": n} if n else {})}) for n, entry in enumerate(entries)]


def missing_field(lines):
    bodies = bodies_of(lines)
    del bodies[1]["eps1"]
    return chain(bodies)


EDITED = "the digest does not match: this line, or one before it, was changed after the fact"
MOVED = "sequence {}, expected {}; a line is missing or moved"
NO_ENTRY, NO_JSON = "expected sequence, event and digest", "not valid JSON"
NO_LEDGER = "not a document of format 'dpltm-ledger'"
KNOWN = (
    "unknown event {!r}: known are provenance, selection, training, laplace, gaussian, randomized-response, guarantee,"
    " non-private, budget; a newer dpltm may have written it"
)
UNSHOWABLE = ["\x1b[2J", "two\nlines", "\x00", "\ud800", "\u202e", "x" * 1001]
CHANGES = [
    (in_line(2, '"private"', '"public"'), 2, EDITED),
    (in_line(3, '"eps1": 0.1', '"eps1": 0.01'), 3, EDITED),
    (in_line(4, '"steps": 300', '"steps": 3'), 4, EDITED),
    (in_line(4, '"noise_multiplier": 1.1', '"noise_multiplier": 11.0'), 4, EDITED),
    (in_line(5, '"stop": 1438', '"stop": 720'), 5, EDITED),
    (in_line(6, "scores", "nothing"), 6, EDITED),
    (in_line(3, '"adaptive": true', '"adaptive": false'), 3, EDITED),  # cheaper in composition
    *((with_digest(digest), 3, EDITED) for digest in ("0" * 64, None, 5, "")),
    (upper_digest, 3, EDITED),
    (own_digest_made_right, 5, EDITED),
    (forgets_the_lines_before, 5, EDITED),
    (numbers_made_right, 3, EDITED),
    (lambda lines: lines[:2] + lines[3:], 3, MOVED.format(3, 2)),
    (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2, MOVED.format(2, 1)),
    (lambda lines: [*lines, lines[-1]], 7, MOVED.format(5, 6)),
    *((lambda lines, line=line: [*lines, line], 7, NO_JSON) for line in ("hello", "", "[" * 100_000, "\udcff")),
    *(
        (lambda lines, line=line: [*lines, line], 7, NO_ENTRY)
        for line in ("[]", '{"sequence": 6, "event": {}}', '{"sequence": 6, "event": {}, "digest": "", "more": 1}')
    ),
    # an event that is not understood is never skipped
    *((with_fields(4, kind=kind), 4, KNOWN.format(kind)) for kind in ("audit", None)),
    (with_fields(4, more=1), 4, "training event: unknown or missing field 'more'"),
    (with_fields(4, steps="300"), 4, "training event: field steps: bad value '300', expected int"),
    (with_fields(4, steps=True), 4, "training event: field steps: bad value True, expected int"),
    (
        with_fields(4, adjacency="zero-out"),
        4,
        "training event: field adjacency: bad value 'zero-out', expected Adjacency",
    ),
    (with_fields(4, live=None), 4, "training event: field live: bad value None, expected int"),
    (with_fields(4, dataset="digits"), 4, "reference to records: expected an object"),
    (with_fields(4, dataset={"name": "digits"}), 4, "reference to records: unknown or missing field 'cut'"),
    (with_fields(4, noise_multiplier=-1.0), 4, "Expected finite noise_multiplier=-1.0 >= 0"),
    (with_fields(4, sampling_rate=2.0), 4, "Expected 0 < sampling_rate=2.0 <= 1"),
    *(
        (with_fields(6, what=text), 6, f"non-private event: field what: bad value {text!r:.60}, expected str")
        for text in UNSHOWABLE
    ),
    (lambda _: chain([[1]]), 2, "an event must be a JSON object"),
    (missing_field, 3, "selection event: unknown or missing field 'eps1'"),
    (lambda lines: lines[1:], 1, NO_LEDGER),
    *(
        (lambda lines, header=header: [header, *lines[1:]], 1, message)
        for header, message in (
            (
                '{"format": "dpltm-ledger", "schema": 4}',
                "schema 4 is newer than this version of dpltm reads (3); upgrade dpltm",
            ),
            ('{"format": "dpltm-ledger", "schema": 0}', "schema 0 is not a positive whole number"),
            ('{"format": "dpltm-run", "schema": 1}', NO_LEDGER),
            ("[]", NO_LEDGER),
            ("hello", NO_JSON),
        )
    ),
]


@pytest.mark.parametrize(("change", "line", "message"), CHANGES)
def test_what_was_changed_shows(path, change, line, message):
    rewrite(path, change(lines_of(path)))
    assert refused(path) == f"l.jsonl: line {line}: {message}"


@pytest.mark.parametrize("keep", [1, 20, 200])
def test_broken_last_line(path, keep):
    """Power lost in the middle of a line, then closed by an editor that ends files with a line break."""
    lines = lines_of(path)
    path.write_bytes(("".join(line + "\n" for line in lines[:-1]) + lines[-1][:keep]).encode())
    assert refused(path) == (
        "l.jsonl: line 6: the last line is incomplete; remove it only if you know what it paid for"
    )
    rewrite(path, [*lines[:-1], lines[-1][:keep]])
    assert refused(path) == "l.jsonl: line 6: not valid JSON"


# --- places that cannot be used ---


def test_unwritable_places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    assert refused((tmp_path / "folder").relative_to(tmp_path)) == ("folder: cannot be read: Is a directory")
    assert refused((tmp_path / "file/l.jsonl").relative_to(tmp_path)) == (
        "file/l.jsonl: the ledger cannot be read: Not a directory"
    )


def test_a_place_where_nothing_can_be_made():
    ledger = open_ledger(Path("/proc/none/l.jsonl"))
    with pytest.raises(ArtifactError) as caught:
        ledger.append(EVENTS[0])
    assert str(caught.value) == (
        "/proc/none/l.jsonl: the ledger cannot be written: No such file or directory; nothing was spent"
    )
    assert ledger.events == ()


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


# --- properties ---


def check_change(path, data):
    """Refused in one line that names the file, or exactly the events that were entered."""
    path.write_bytes(data)
    events, message = None, ""
    try:
        events = open_ledger(path).events
    except ArtifactError as error:
        message = str(error)
    if events is None:
        assert message.startswith("l.jsonl: ")
        assert "\n" not in message
        return True
    assert events == EVENTS
    return False


def test_every_byte_with_a_flipped_bit_is_refused_or_changes_no_event(path):
    """Nearly all are refused: what may pass is a blank that becomes another, or a digit past the end of a float."""
    data = path.read_bytes()
    passed = [
        place
        for place in range(len(data))
        if not check_change(path, data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
    ]
    assert len(passed) <= 4, passed


# The file is written anew for each example, so that sharing the folder does no harm.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(draw=st.data())
def test_a_byte_changed_removed_or_added_is_refused_or_changes_no_event(path, draw):
    original = "".join(line + "\n" for line in chain([to_json(event) for event in EVENTS])).encode()
    place = draw.draw(st.integers(0, len(original) - 1))
    byte = bytes([draw.draw(st.integers(0, 255))])
    tail = {"change": 1, "remove": 1, "add": 0}[how := draw.draw(st.sampled_from(["change", "remove", "add"]))]
    check_change(path, original[:place] + (b"" if how == "remove" else byte) + original[place + tail :])


def test_a_file_cut_short_is_refused_or_holds_the_first_events(path):
    """Lost at a line's end, the last events are gone without a trace: the digests cannot show that."""
    data = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(data) if byte == ord("\n")]
    near = {end + step for end in ends for step in (-2, -1, 0, 1)}
    for size in sorted({*near, *range(0, len(data), 29)} - {len(data), len(data) + 1}):
        path.write_bytes(data[:size])
        if size == 0 or size in ends:
            assert open_ledger(path).events == EVENTS[: max(0, ends.index(size) if size else 0)]
        else:
            assert refused(path).endswith("the last line is incomplete; remove it only if you know what it paid for")


def test_a_copy_asks_no_budget_again(tmp_path):
    """What another ledger admitted is copied as it stands, even where a budget was set below it since."""
    spent, limit = EVENTS[-1], BudgetEvent(EVENTS[-1].dataset, 1e-3, 1e-5, time="2026-01-02T03:04:05Z")
    events = (*EVENTS, limit)
    copy_events(tmp_path / "copy.jsonl", events)
    assert open_ledger(tmp_path / "copy.jsonl").events == events
    assert spent in events


@pytest.mark.parametrize("text", UNSHOWABLE, ids=ascii)
@pytest.mark.parametrize("place", ["field", "dataset"])
def test_an_event_that_could_not_be_read_again_is_not_written(path, text, place):
    """The file stays byte for byte, and is read and written as before: a ledger that nobody can open is worse than none."""
    before = path.read_bytes()
    ledger, event = open_ledger(path), NonPrivateEvent(REF, Unprotected(), text, time="2026-01-02T03:04:05Z")
    if place == "dataset":
        event = NonPrivateEvent(replace(REF, name=text), Unprotected(), "scores", time="2026-01-02T03:04:05Z")
    with pytest.raises(ArtifactError) as caught:
        ledger.append(event)
    field = {"field": "what", "dataset": "name"}[place]
    assert str(caught.value) == f"event field {field}: {text!r:.60} is no printable text of at most 1000 characters"
    assert path.read_bytes() == before
    assert ledger.events == open_ledger(path).events == EVENTS  # not on disk, so not entered
    ledger.append(EVENTS[0])  # the very same ledger goes on
    assert open_ledger(path).events == (*EVENTS, EVENTS[0])


def test_a_ledger_does_not_begin_with_an_event_that_could_not_be_read_again(tmp_path):
    bad = NonPrivateEvent(REF, Unprotected(), "\x1b[2J", time="2026-01-02T03:04:05Z")
    with pytest.raises(ArtifactError, match="event field what: "):
        open_ledger(tmp_path / "deep/l.jsonl").append(bad)
    for events in ([bad], [*EVENTS, bad]):
        with pytest.raises(ArtifactError, match="event field what: "):
            copy_events(tmp_path / "deep/l.jsonl", events)
    assert list(tmp_path.iterdir()) == []
