"""Ledgers inside ticket folders that somebody else made: no link is followed, nothing hangs, nothing large is read."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpltm.errors import ArtifactError
from dpltm.privacy.events import BudgetEvent, DatasetRef
from dpltm.tickets.ledger_file import open_ledger

PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
NOISY = ("--steps", "1", "--noise-multiplier", "5")
COMMANDS = [
    ("select", "pub", *PRIVATE, "--eps1", "0.1"),
    ("select", "pub", *PRIVATE, "--eps1", "0.1", "--dry-run"),
    ("train", "pub@1", *PRIVATE, *NOISY, "--out", "r"),
    ("train", "pub@1", *PRIVATE, *NOISY, "--dry-run"),
]
LINK = "pub/ledger.jsonl: is a link, which is not followed"


def large(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


WAYS = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "dangling link": lambda path: path.symlink_to(Path("outside/new.jsonl").absolute()),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a ledger": lambda path: path.symlink_to(Path("outside/old.jsonl").absolute()),
    "folder": Path.mkdir,
    "sparse": lambda path: large(path, 3 * 2**30),
    "just too large": lambda path: large(path, 2**26 + 1),
}


@pytest.fixture(autouse=True)
def _nothing_hangs() -> Iterator[None]:
    def hung(*_: object) -> None:
        raise AssertionError("it waits for ever")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def names() -> dict[str, tuple[int, int]]:
    """What is there, with size and time of change; nothing is opened."""
    return {
        str(path): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in Path().rglob("*")
        if not path.is_dir() or path.is_symlink()
    }


@pytest.mark.parametrize("way", WAYS)
def test_a_ledger_that_is_none_is_refused_in_one_line(cli, way):
    cli("privacy", "budget", "outside/old.jsonl", *PRIVATE, "--epsilon", "1")
    Path("pub/ledger.jsonl").unlink(missing_ok=True)
    WAYS[way](Path("pub/ledger.jsonl"))
    before = names()
    found = cli("tickets", "verify", "pub", "--json")
    said = json.loads(found.out)["problems"]
    assert (found.code, found.err, len(said)) == (1, "", 1)
    for command in COMMANDS:
        done = cli(*command)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        said.append(done.err.removeprefix("error: ").removesuffix("\n"))
    assert names() == before
    linked = Path("pub/ledger.jsonl").is_symlink()
    assert all(message == LINK if linked else message.startswith("pub/ledger.jsonl: ") for message in said)


def test_a_link_that_appears_after_reading_is_not_written_through(cwd):
    ref = DatasetRef("digits", "ab" * 16, "01234567", 0, 719, "places")
    ledger = open_ledger(cwd / "l.jsonl", links=False)
    (cwd / "l.jsonl").symlink_to(cwd / "outside.jsonl")
    with pytest.raises(ArtifactError, match="the ledger cannot be written"):
        ledger.append(BudgetEvent(ref, 1.0, 0.1, time="2026-01-01T00:00:00Z"))
    assert not (cwd / "outside.jsonl").exists()
    assert ledger.events == ()


def test_a_ledger_that_the_user_named_may_be_a_link_and_is_no_pipe(cli, events):
    Path("home").mkdir()
    Path("l.jsonl").symlink_to("home/real.jsonl")
    for number in range(2):
        cli("select", "pub", *PRIVATE, "--eps1", "0.1", "--ledger", "l.jsonl", "--quiet")
        kinds = [event["kind"] for event in events("home/real.jsonl")]
        assert kinds.count("selection") == number + 1
    assert Path("l.jsonl").is_symlink()
    os.mkfifo("pipe.jsonl")
    done = cli("select", "pub", *PRIVATE, "--eps1", "0.1", "--ledger", "pipe.jsonl")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("error: pipe.jsonl: ")
