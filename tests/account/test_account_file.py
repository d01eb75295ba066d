"""The ledger file: what is entered comes back, every edit, loss or change of order shows, and trouble spends nothing."""

import concurrent.futures
import errno
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deaths import counted, in_child, in_children
from dpltm.errors import ArtifactError, BudgetError
from dpltm.privacy.entry import Entry, Part, to_json
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import (
    GaussianRelease,
    Guarantee,
    LaplaceRelease,
    NoisySgd,
    PrivateSearch,
    RandomizedResponse,
    Selection,
    Unprotected,
)
from dpltm.tickets.ledger_file import ledger_path, open_ledger, record_path
from refusals import refused

TRAINING = NoisySgd(1 / 3, steps=10, noise_multiplier=1.1)
DRAFTS = (
    Entry("release", Part("a.csv", "a" * 64, ("x", "y"), "record", 0, 5), (TRAINING, LaplaceRelease(2.0)), "steps", "f"),
    Entry("release", mechanisms=(Selection(0.5, 0.6), PrivateSearch((TRAINING,), 0.1, 0.5), Unprotected())),
    Entry("local", mechanisms=(RandomizedResponse(1.0, 3),), words="a message, \u00fcber"),
    Entry("public", Part("b.csv")),
    Entry("apart", population="other people"),
    Entry("budget", mechanisms=(Guarantee(3.0, 1e-5),)),
)  # fmt: skip
ONE = Entry("release", mechanisms=(GaussianRelease(9.0),))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder, which is the working one, and a configuration folder of its own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


@pytest.fixture
def path():
    """A ledger of six entries, of another user."""
    ledger = open_ledger("l.jsonl", population="P")
    for draft in DRAFTS:
        ledger.declare(draft)
    shutil.rmtree(record_path().parent)
    return Path("l.jsonl")


refusal = partial(refused, open_ledger)


def chained(header: dict, bodies: list[dict]) -> str:
    """A ledger by the letter of docs/formats.md, for any bodies."""
    identity = [header["id"], header["population"]]
    digest = hashlib.sha256(json.dumps(identity, separators=(",", ":")).encode()).hexdigest()
    lines = [json.dumps(header)]
    for body in bodies:
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256((digest + text).encode()).hexdigest()
        lines.append(f'{{"entry": {text}, "digest": "{digest}"}}')
    return "".join(line + "\n" for line in lines)


def parsed(path: Path) -> tuple[dict, list[dict]]:
    header, *lines = map(json.loads, path.read_text().splitlines())
    return header, [line["entry"] for line in lines]


# --- what is entered comes back ---


def test_the_file_is_by_the_letter_of_its_format(path):
    header, bodies = parsed(path)
    assert list(header.items())[:2] == [("format", "dpltm-ledger"), ("schema", 5)]
    assert (header["population"], len(header["id"])) == ("P", 64)
    assert path.read_text() == chained(header, bodies)
    ledger = open_ledger(path)
    assert not record_path().exists(), "looking writes nothing"
    assert bodies == [json.loads(json.dumps(to_json(entry))) for entry in ledger.entries]
    for place, (entry, draft) in enumerate(zip(ledger.entries, DRAFTS, strict=True), start=1):
        population = draft.population or "P"
        assert entry == replace(draft, id=entry.id, home=header["id"], sequence=place, population=population)
    before = path.read_bytes()
    ledger.declare(Entry("public"))
    assert path.read_bytes().startswith(before)
    assert path.read_text() == chained(*parsed(path))


def test_a_missing_file_is_an_empty_ledger_and_appears_with_its_first_entry():
    ledger = open_ledger("new/l.jsonl", unit="patient")
    assert (ledger.entries, ledger.unit, ledger.population) == ((), "patient", None)
    assert os.listdir() == []
    refused(ledger.declare, ONE)
    assert not os.path.exists("new/l.jsonl")
    (entry,) = ledger.declare(replace(ONE, unit="patient"))
    assert sorted(os.listdir("new")) == ["l.jsonl", "l.key"]
    assert open_ledger("new/l.jsonl").entries == (entry,)
    assert open_ledger("new/l.jsonl").unit == "patient"


def test_a_first_entry_that_is_refused_leaves_no_file():
    with pytest.raises(BudgetError):
        open_ledger("l.jsonl").declare(Entry("budget", mechanisms=(Guarantee(1.0, 1e-5),)), *[ONE] * 9)
    assert os.listdir() == []
    Path("l.jsonl").touch()
    assert open_ledger("l.jsonl").entries == (), "as good as none"


@pytest.mark.parametrize(
    ("name", "key"), [("l.jsonl", "l.key"), ("digits.ledger.jsonl", "digits.ledger.key"), ("l.txt", "l.txt.key")]
)
def test_the_key_of_snapshots_lies_beside_it_for_its_owner_alone(name, key):
    ledger = open_ledger(name)
    snapshot = ledger.snapshot(b"content")
    ledger.declare(ONE)
    assert sorted(os.listdir()) == sorted([name, key])
    assert stat.S_IMODE(os.stat(key).st_mode) == 0o600
    assert bytes.fromhex(Path(key).read_text()).hex() not in Path(name).read_text()
    assert open_ledger(name).snapshot(b"content") == snapshot != open_ledger(name).snapshot(b"other content")
    os.unlink(key)
    again = open_ledger(name).snapshot(b"content")
    assert again != snapshot, "nothing is apart from what the old key named"
    Path(key).write_text("damaged")
    assert key in refusal(name)


# --- refused by line ---


def test_any_byte_that_is_changed_is_refused():
    """By the line that it is in, or, for the header, at the latest by the first entry, whose digest is of it."""
    open_ledger("l.jsonl").declare(ONE, Entry("public"))
    shutil.rmtree(record_path().parent)
    data = Path("l.jsonl").read_bytes()
    for place, byte in enumerate(data):
        Path("l.jsonl").write_bytes(data[:place] + bytes([byte ^ (1 if place % 2 else 32)]) + data[place + 1 :])
        told = refusal("l.jsonl")
        number = data.count(b"\n", 0, place) + 1
        named = [f"line {each}: " for each in (number, number + 1 if number == 1 or byte == 10 else number)]
        assert any(each in told for each in named) or (number == 1 and "schema" in told), (place, told)
    Path("l.jsonl").write_bytes(data)
    assert len(open_ledger("l.jsonl").entries) == 2


def swapped(lines):
    return [*lines[:3], lines[4], lines[3], *lines[5:]]


@pytest.mark.parametrize(
    ("edit", "number", "what"),
    [
        (lambda lines: [*lines[:2], "{", *lines[3:]], 3, "not an entry"),
        (lambda lines: [*lines[:2], lines[2].replace('": "', '":"'), *lines[3:]], 3, "not an entry"),
        (lambda lines: [*lines[:1], *lines[2:]], 2, "missing or moved"),
        (swapped, 4, "missing or moved"),
        (lambda lines: [*lines[:3], lines[2], *lines[3:]], 4, "missing or moved"),
        (lambda lines: [lines[0].replace('"P"', '"Q"'), *lines[1:]], 2, "changed"),
        (lambda lines: [lines[0].replace('"P"', "7"), *lines[1:]], 1, "not the header"),
        (lambda lines: lines[:1] * 2, 2, "not an entry"),
    ],
)
def test_an_edited_line_is_named(path, edit, number, what):
    lines = path.read_text().splitlines()
    path.write_text("".join(line + "\n" for line in edit(lines)))
    told = refusal(path)
    assert f"line {number}: " in told
    assert what in told


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"kind": "free"}, "kind"),
        ({"mechanisms": []}, "without a mechanism"),
        ({"mechanisms": [{"mechanism": "new"}]}, "does not know"),
        ({"more": 1}, "more"),
        ({"home": "b" * 64}, "another ledger"),
        ({"id": "same"}, "twice"),
        ({"part": {}}, "part"),
    ],
)
def test_an_entry_that_this_version_does_not_know_is_named_though_its_digest_is_right(path, changes, what):
    header, bodies = parsed(path)
    changes = {name: bodies[0]["id"] if value == "same" else value for name, value in changes.items()}
    path.write_text(chained(header, [*bodies[:2], {**bodies[2], **changes}, *bodies[3:]]))
    told = refusal(path)
    assert "line 4: " in told
    assert what in told


@pytest.mark.parametrize("cut", [1, 50])
def test_an_incomplete_line_is_named(path, cut):
    data = path.read_bytes()
    path.write_bytes(data[:-cut])
    assert "line 7: the line is incomplete" in refusal(path)
    path.write_bytes(data[:20])
    assert "line 1: the line is incomplete" in refusal(path)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"format": "dpltm-ledger", "schema": 4}\n', "line 1: schema 4 was written by dpltm before 0.3; price it"),
        ('{"format": "dpltm-ledger", "schema": 6}\n', "newer than this version"),
        ('{"format": "dpltm-journal", "schema": 1}\n', "not a document of format"),
        ('{"format": "dpltm-ledger", "schema": 5}\n', "not the header"),
        ("x,y\n1,2\n", "not valid JSON"),
        ("\0" * 4096, "incomplete"),
    ],
)
def test_what_is_no_ledger_of_this_version_is_refused(text, what):
    Path("l.jsonl").write_text(text)
    assert what in refusal("l.jsonl")


@pytest.mark.usefixtures("path")
def test_only_a_plain_file_is_a_ledger():
    os.mkdir("folder")
    assert "not a plain file" in refusal("folder")
    os.mkfifo("pipe")
    assert "not a plain file" in refusal("pipe")
    os.symlink("l.jsonl", "link.jsonl")
    assert len(open_ledger("link.jsonl").entries) == 6


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"population": "Q"}, ("`population`", "'P'", "'Q'")),
        ({"unit": "patient"}, (": this ledger protects one record, not one patient; name another",)),
        ({"population": ""}, ("`population`",)),
        ({"unit": "two\nlines"}, ("`unit`",)),
    ],
)
def test_another_population_or_unit_than_the_file_says_is_refused(path, asked, named):
    told = refusal(path, **asked)
    assert all(each in told for each in named)
    assert len(open_ledger(path, population="P", unit="record").entries) == 6


def test_declarations_alone_settle_no_unit():
    """Public records protect nobody: the first release does, or a budget."""
    public = Entry("public", words="tickets")
    open_ledger("l.jsonl").declare(public)
    for unit in ("patient", "record"):
        assert open_ledger("l.jsonl", unit=unit).unit == unit
    open_ledger("l.jsonl", unit="patient").declare(replace(ONE, unit="patient"))
    assert open_ledger("l.jsonl").unit == "patient"
    assert "patient" in refusal("l.jsonl", unit="record")
    limit = Entry("budget", mechanisms=(Guarantee(1.0, 1e-5),), unit="household")
    open_ledger("m.jsonl", unit="household").declare(public, limit)
    assert "household" in refusal("m.jsonl", unit="record")
    # rows of people who could be protected
    open_ledger("e.jsonl").declare(public, Entry("excluded", words="a test split"))
    assert "record" in refusal("e.jsonl", unit="patient")


def test_a_ledger_of_people_whom_nobody_named_is_not_somebodys():
    open_ledger("l.jsonl").declare(ONE)
    assert "nobody named" in refusal("l.jsonl", population="Q")


# --- what was there before ---


@pytest.fixture
def used():
    """A ledger that was used here, three times."""
    ledger = open_ledger("l.jsonl")
    for _ in range(3):
        ledger.declare(ONE)
    return ledger


def recorded() -> dict[str, dict]:
    """What the user's folder says, by id, read without the package."""
    header, *lines = map(json.loads, record_path().read_text().splitlines())
    assert header == {"format": "dpltm-ledgers", "schema": 1}
    assert len({line["id"] for line in lines}) == len(lines)
    return {line["id"]: line for line in lines}


def test_one_line_a_ledger_says_where_it_is_and_how_far_it_has_come(used):
    (other,) = open_ledger("other.jsonl").declare(ONE)
    head = used.book.head
    mine = {"path": os.path.realpath("l.jsonl"), "id": head.ledger, "count": 3, "digest": head.digest}
    assert recorded()[head.ledger] == mine
    assert recorded()[other.home]["count"] == 1
    assert len(recorded()) == 2
    assert stat.S_IMODE(record_path().stat().st_mode) == 0o600


def shorten(keep: int) -> None:
    lines = Path("l.jsonl").read_text().splitlines(keepends=True)
    Path("l.jsonl").write_text("".join(lines[: 1 + keep]))


def begin_another() -> None:
    os.unlink("l.jsonl")
    lines = record_path().read_text().splitlines(keepends=True)
    record_path().unlink()
    open_ledger("l.jsonl").declare(ONE)
    record_path().write_text("".join(lines))


def go_on_otherwise() -> None:
    """An older copy in which as much was entered."""
    lines = record_path().read_text()
    shorten(2)
    record_path().unlink()
    open_ledger("l.jsonl").declare(ONE)
    record_path().write_text(lines)


@pytest.mark.parametrize(
    ("harm", "left"),
    [
        (lambda: shorten(2), 2),
        (lambda: shorten(0), 0),
        (lambda: os.unlink("l.jsonl"), 0),
        (lambda: Path("l.jsonl").write_text(""), 0),
        (begin_another, 1),
        (go_on_otherwise, 3),
    ],
    ids=["shortened", "all entries", "deleted", "emptied", "another", "copy"],
)
def test_a_ledger_that_holds_less_than_it_did_is_refused_with_both_heads(used, harm, left):
    head = used.book.head
    harm()
    told = refusal("l.jsonl")
    assert str(head) in told, "what it held"
    assert f"holds {left} entr" in told
    assert str(record_path()) in told
    refused(used.declare, ONE, kind=ArtifactError)
    assert recorded()[head.ledger]["count"] == 3


@pytest.mark.usefixtures("used")
def test_who_removes_the_line_begins_anew():
    os.unlink("l.jsonl")
    lines = record_path().read_text().splitlines(keepends=True)
    record_path().write_text("".join(line for line in lines if "id" not in json.loads(line)))
    open_ledger("l.jsonl").declare(ONE)
    assert len(open_ledger("l.jsonl").entries) == 1


def test_of_two_copies_one_goes_on(used):
    head = used.book.head
    shutil.copy("l.jsonl", "copy.jsonl")
    shutil.copy("l.key", "copy.key")
    copy = open_ledger("copy.jsonl")
    copy.declare(ONE)
    told = refusal("l.jsonl")
    assert str(head) in told
    assert str(copy.book.head) in told
    assert os.path.realpath("copy.jsonl") in told, "the one that goes on"
    copy.declare(ONE)
    assert len(recorded()) == 1


@pytest.mark.usefixtures("used")
def test_a_ledger_that_was_moved_is_known_at_its_new_place_once_it_is_used_there():
    os.rename("l.jsonl", "m.jsonl")
    os.rename("l.key", "m.key")
    assert "held 3 entries" in refusal("l.jsonl")
    open_ledger("m.jsonl").declare(ONE)
    assert open_ledger("l.jsonl").entries == (), "its former place is free"
    open_ledger("l.jsonl").declare(ONE)
    assert len(open_ledger("m.jsonl").entries) == 4
    os.rename("m.jsonl", "l.jsonl")
    assert "the ledger that lay here held 1 entry" in refusal("l.jsonl")


def test_nothing_is_entered_without_the_key_that_it_had(used):
    """Under another, records that were declared public, or tested on, would pass for others."""
    os.rename("l.key", "kept")
    assert "its key, l.key, is not beside it" in refused(used.declare, ONE, kind=ArtifactError)
    assert not os.path.exists("l.key")
    assert len(open_ledger("l.jsonl").account().entries) == 3, "what it holds can be priced"
    os.rename("kept", "l.key")
    used.declare(ONE)
    assert len(open_ledger("l.jsonl").entries) == 4


def test_a_link_has_the_key_of_its_ledger(used):
    """Or what was declared by the one name could be private by the other."""
    os.mkdir("project")
    Path("project/link.jsonl").symlink_to(Path("l.jsonl").absolute())
    linked = open_ledger("project/link.jsonl")
    assert linked.snapshot(b"records") == used.snapshot(b"records")
    linked.declare(ONE)
    assert len(used.entries) == 4
    assert os.listdir("project") == ["link.jsonl"]


def test_a_ledger_that_is_ahead_was_left_by_a_process_that_died_and_is_taken_over(used):
    before = record_path().read_bytes()
    used.declare(ONE)
    record_path().write_bytes(before)
    ledger = open_ledger("l.jsonl")
    assert len(ledger.entries) == 4
    ledger.declare(ONE)
    assert recorded()[ledger.book.home]["count"] == 5


def test_a_record_that_is_damaged_refuses_everything(used):
    good = record_path().read_text()
    counted, later = good.replace('"count": 3', '"count": "many"'), good.replace('"schema": 1', '"schema": 2')
    for bad in ("", "x\n", counted, good[:-30], later):
        record_path().write_text(bad)
        for name in ("l.jsonl", "other.jsonl"):
            assert str(record_path()) in refusal(name)
        refused(used.declare, ONE, kind=ArtifactError)
    record_path().unlink()
    assert len(open_ledger("l.jsonl").entries) == 3


def test_where_the_record_lies(monkeypatch, here):
    assert record_path() == here / "config/dpltm/ledgers.jsonl"
    monkeypatch.setenv("HOME", str(here / "home"))
    for relative in ("", "config"):
        monkeypatch.setenv("XDG_CONFIG_HOME", relative)
        assert record_path() == here / "home/.config/dpltm/ledgers.jsonl"


@pytest.mark.parametrize("began", [False, True])
def test_what_a_torn_write_left_is_taken_away_where_the_record_says_that_nothing_is_missing(used, began):
    data = Path("l.jsonl").read_bytes()
    Path("l.jsonl").write_bytes(data + data.splitlines(keepends=True)[-1][:300])
    ledger = used if began else open_ledger("l.jsonl")
    assert len(ledger.entries) == 3
    ledger.declare(ONE)
    assert Path("l.jsonl").read_bytes().startswith(data)
    assert len(open_ledger("l.jsonl").entries) == 4
    record_path().unlink()
    Path("l.jsonl").write_bytes(data + b"{")
    assert "line 5: the line is incomplete" in refusal("l.jsonl")


def test_what_is_torn_is_refused_where_the_ledger_is_ahead_of_its_record(used):
    """Part of it was entered elsewhere, so nobody here knows what the line paid for."""
    known = record_path().read_bytes()
    used.declare(ONE)
    record_path().write_bytes(known)
    with open("l.jsonl", "ab") as stream:
        stream.write(b"{")
    assert "line 6: the line is incomplete" in refusal("l.jsonl")


# --- full disks, folders that cannot be written ---


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("new", [False, True])
def test_any_call_that_fails_spends_nothing(here, monkeypatch, new, code):
    """All or nothing, whatever fails, in a new ledger and in one that holds something."""
    spared = list[str]()
    for number in itertools.count(1):
        monkeypatch.setenv("XDG_CONFIG_HOME", str(here / f"config {number}"))
        path = Path(f"{number}/l.jsonl")
        ledger = open_ledger(path)
        if not new:
            ledger.declare(ONE)
        before, count = contents(path, record_path()), len(ledger.entries)
        told, failed = declared_though_failing(ledger, number, code)
        if told is None:
            spared += failed
        else:
            assert "nothing was spent" in told
            assert contents(path, record_path()) == before
            assert len(ledger.entries) == count
            ledger.declare(ONE, ONE)
        assert len(open_ledger(path).entries) == len(ledger.entries) == 2 + count
        assert recorded()[ledger.book.home]["count"] == 2 + count
        if not failed:
            break
    assert set(spared) - {"mkdir"} == {"fsync"}, "of the user's folder, at the very end: then the ledger is ahead"
    assert number > (12 if new else 7), "so many calls write or sync something, at least"


def declared_though_failing(ledger: Ledger, number: int, code: int) -> tuple[str | None, list[str]]:
    """What the refusal says, if there is one, and what failed: the nth call that changes or syncs something, once.

    Half of what was to be written is written.
    """
    failed = list[str]()

    def fail(name: str, inner: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        failed.append(name)
        if name == "write":
            inner(arguments[0], arguments[1][: len(arguments[1]) // 2])
        raise OSError(code, os.strerror(code))

    with pytest.MonkeyPatch.context() as patch:
        for name, call in counted(number, fail).items():
            if name not in ("unlink", "ftruncate"):
                patch.setattr(os, name, call)
        try:
            ledger.declare(ONE, ONE)
        except ArtifactError as error:
            return str(error), failed
    return None, failed


def contents(*paths: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in paths if path.exists()}


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_spent(here, monkeypatch):
    """Folders that are not there, or below a file: nobody can write to them, whoever runs this."""
    os.symlink(here / "nowhere" / "l.jsonl", "link.jsonl")
    (here / "file").touch()
    assert "`ledger`" in refused(open_ledger("link.jsonl").declare, ONE, kind=ArtifactError)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(here / "file"))
    assert "XDG_CONFIG_HOME" in refused(open_ledger("l.jsonl").declare, ONE, kind=ArtifactError)
    assert not os.path.exists("l.jsonl")


# --- several at once, and how much is read ---


@pytest.mark.parametrize("fails", [False, True])
def test_a_reader_waits_for_what_is_being_written(used, monkeypatch, fails):
    """And sees all of it, or, where the disk is full in the middle, nothing."""
    half, go, inner, first = threading.Event(), threading.Event(), os.write, [True]

    def write(descriptor: int, data: bytes) -> int:
        if not first:
            return inner(descriptor, data)
        first.clear()
        inner(descriptor, data[:9])
        half.set()
        assert go.wait(60)
        if fails:
            raise OSError(errno.ENOSPC, "full")
        return 9

    monkeypatch.setattr(os, "write", write)
    with ThreadPoolExecutor(2) as pool:
        writes = pool.submit(used.declare, ONE, ONE)
        assert half.wait(60)
        reads = pool.submit(open_ledger, "l.jsonl")
        concurrent.futures.wait([reads], 0.1)
        waited = not reads.done()
        go.set()
        assert (writes.exception() is not None) == fails
        assert len(reads.result().entries) == (3 if fails else 5)
    assert waited


@pytest.mark.parametrize(
    "enter",
    [Ledger.declare_once, Ledger.declare, lambda ledger, draft: ledger.enter(draft, "0" * 64, ledger.book.head)],
    ids=["declare once", "declare", "enter"],
)
def test_what_was_hashed_before_another_process_began_the_ledger_is_never_entered(tmp_path, enter):
    """Its snapshots would be by a key that nobody has, so that what was tested on could be private next."""
    mine, other = (open_ledger(tmp_path / "l.jsonl") for _ in range(2))
    early = Entry("excluded", Part("mine", snapshot=mine.snapshot(b"mine")))
    other.declare(Entry("public", Part("theirs", snapshot=other.snapshot(b"theirs"))))
    assert "another command began it" in refused(enter, mine, early)
    assert len(other.entries) == 1
    enter(mine, Entry("excluded", Part("mine", snapshot=mine.snapshot(b"mine"))))
    assert [entry.part.snapshot for entry in other.entries] == [other.snapshot(b"theirs"), other.snapshot(b"mine")]


def test_a_ledger_stays_where_it_is_when_the_process_goes_elsewhere(tmp_path, monkeypatch):
    """Else the next release would begin another account, which knows nothing of this one."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    ledger = open_ledger("l.jsonl")
    ledger.declare(ONE)
    monkeypatch.chdir("elsewhere")
    ledger.declare(ONE)
    assert len(ledger.entries) == len(open_ledger(tmp_path / "l.jsonl").entries) == 2
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("elsewhere", [True, False], ids=["another ledger", "nothing"])
def test_what_a_process_saw_of_a_ledger_is_not_forgotten_when_its_link_is_moved(tmp_path, elsewhere):
    open_ledger(tmp_path / "a.jsonl").declare(ONE)
    if elsewhere:
        open_ledger(tmp_path / "b.jsonl").declare(ONE)
    link = tmp_path / "l.jsonl"
    link.symlink_to("a.jsonl")
    ledger = open_ledger(link)
    ledger.declare(ONE)
    link.unlink()
    link.symlink_to("b.jsonl")
    for _ in range(2):  # the first refusal is no leave for the second
        assert "held 2 entries" in refused(ledger.declare, ONE, kind=ArtifactError)
    assert len(open_ledger(tmp_path / "b.jsonl").entries) == elsewhere


def test_whoever_opens_a_ledger_that_was_begun_takes_snapshots_by_its_key(tmp_path):
    early, late = (open_ledger(tmp_path / "l.jsonl") for _ in range(2))
    snapshot = early.snapshot(b"records")
    early.begin()
    early.begin()
    assert (late.snapshot(b"records"), late.entries) == (snapshot, ())
    late.declare(Entry("public", Part("records", snapshot=snapshot)))
    assert early.entries == late.entries


def test_a_ledger_that_was_only_begun_may_go_and_be_begun_again(tmp_path):
    open_ledger(tmp_path / "l.jsonl").begin()
    for path in tmp_path.glob("l*"):
        path.unlink()
    open_ledger(tmp_path / "l.jsonl").declare(ONE)
    assert len(open_ledger(tmp_path / "l.jsonl").entries) == 1


# --- where the account of a dataset lies ---


def test_a_link_to_a_file_has_the_ledger_of_the_file(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "d.csv").write_text("x,label\n")
    (tmp_path / "b" / "d.csv").symlink_to(tmp_path / "a" / "d.csv")
    assert ledger_path(str(tmp_path / "b" / "d.csv")) == ledger_path(str(tmp_path / "a" / "d.csv"))
    assert ledger_path("d.csv") == Path("dpltm.ledger.jsonl")


@pytest.mark.parametrize(("name", "ledger"), [("kmnist-7k", "kmnist"), ("har-raw", "har"), ("digits", "digits")])
def test_other_forms_of_a_dataset_have_one_ledger(name, ledger):
    """They are of the same people; made-up ones are of nobody."""
    assert ledger_path(name) == Path(f"{ledger}.ledger.jsonl")


def test_processes_add_one_after_the_other_and_readers_see_whole_entries():
    def write() -> None:
        ledger = open_ledger("l.jsonl")
        for _ in range(10):
            ledger.declare(ONE, ONE)

    def look() -> None:
        counts = [0]
        while counts[-1] < 40:
            counts.append(len(open_ledger("l.jsonl").entries))
        assert counts == sorted(counts)
        assert all(count % 2 == 0 for count in counts), "two were entered together"

    assert in_children(write, write, look) == [0, 0, 0]
    held = open_ledger("l.jsonl")
    assert [entry.sequence for entry in held.entries] == list(range(1, 41))
    assert Path("l.jsonl").read_text() == chained(*parsed(Path("l.jsonl")))


def test_a_child_that_was_forked_within_a_block_does_not_give_its_lock_back(used):
    block = used.adding()
    block.__enter__()
    assert in_child(lambda: block.__exit__(None, None, None)) == 0
    assert not is_free()
    block.__exit__(None, None, None)
    assert is_free()


def is_free() -> bool:
    with open("l.jsonl") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
