"""Ledgers inside ticket folders that somebody else made: no link is followed, nothing hangs, nothing large is read."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
COMMANDS = {
    "verify": ("tickets", "verify", "pub", "--json"),
    "select": ("select", "pub", *PRIVATE, "--eps1", "0.1"),
    "select dry": ("select", "pub", *PRIVATE, "--eps1", "0.1", "--dry-run"),
    "train": ("train", "pub@1", *PRIVATE, "--steps", "1", "--noise-multiplier", "5", "--out", "r"),
    "train dry": ("train", "pub@1", *PRIVATE, "--steps", "1", "--noise-multiplier", "5", "--dry-run"),
}


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def dangling(path: Path) -> None:
    path.symlink_to(Path("outside/new.jsonl").absolute())


def to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def to_a_file(path: Path) -> None:
    shutil.copyfile("outside/old.jsonl", "outside/l.jsonl")
    path.symlink_to(Path("outside/l.jsonl").absolute())


def folder(path: Path) -> None:
    path.mkdir()


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 3 * 2**30)


def just_too_large(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**26 + 1)


def names() -> dict[str, tuple[int, int]]:
    """What is there, with size and time of change; nothing is opened."""
    return {
        str(path): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in Path().rglob("*")
        if not path.is_dir() or path.is_symlink()
    }


def hung(*_: object) -> None:
    raise AssertionError("it waits for ever")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("way", [pipe, device, dangling, to_itself, to_a_file, folder, sparse, just_too_large])
def test_a_ledger_that_is_none_is_refused_in_one_line(cli, cwd, way, command):  # noqa: ARG001
    cli("privacy", "budget", "outside/old.jsonl", *PRIVATE, "--epsilon", "1")
    Path("pub/ledger.jsonl").unlink(missing_ok=True)
    way(Path("pub/ledger.jsonl"))
    before, alarm = names(), signal.signal(signal.SIGALRM, hung)
    signal.alarm(20)
    try:
        done = cli(*COMMANDS[command])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, alarm)
    assert names() == before
    if command == "verify":
        (message,) = json.loads(done.out)["problems"]
        assert (done.code, done.err) == (1, "")
    else:
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        message = done.err.removeprefix("error: ").removesuffix("\n")
    assert message.startswith("pub/ledger.jsonl: ")
    if way in (device, dangling, to_itself, to_a_file):
        assert message == "pub/ledger.jsonl: is a link, which is not followed"


def test_a_link_that_appears_after_reading_is_not_written_through(cwd):
    from dpltm.errors import ArtifactError
    from dpltm.privacy.events import BudgetEvent, DatasetRef
    from dpltm.tickets.ledger_file import open_ledger

    event = BudgetEvent(
        DatasetRef("digits", "ab" * 16, "01234567", 0, 719, "places"), 1.0, 0.1, time="2026-01-01T00:00:00Z"
    )
    ledger = open_ledger(cwd / "l.jsonl", links=False)
    (cwd / "l.jsonl").symlink_to(cwd / "outside.jsonl")
    with pytest.raises(ArtifactError, match="the ledger cannot be written"):
        ledger.append(event)
    assert not (cwd / "outside.jsonl").exists()
    assert ledger.events == ()


@pytest.mark.usefixtures("cwd")
def test_a_ledger_that_the_user_named_may_be_a_link(cli, events):
    Path("home").mkdir()
    Path("l.jsonl").symlink_to("home/real.jsonl")
    for number in range(2):
        cli("select", "pub", *PRIVATE, "--eps1", "0.1", "--ledger", "l.jsonl", "--quiet")
        kinds = [event["kind"] for event in events("home/real.jsonl")]
        assert kinds.count("selection") == number + 1
    assert Path("l.jsonl").is_symlink()


@pytest.mark.usefixtures("cwd")
def test_a_ledger_that_the_user_named_is_no_pipe_either(cli):
    os.mkfifo("l.jsonl")
    alarm = signal.signal(signal.SIGALRM, hung)
    signal.alarm(20)
    try:
        done = cli("select", "pub", *PRIVATE, "--eps1", "0.1", "--ledger", "l.jsonl")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, alarm)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("error: l.jsonl: ")
