"""What killed processes leave hidden, gone with the next run of the name, and never a live one's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from child_processes import PATIENCE
from dpltm.tickets.files import new_file, new_folder, replaced, staged_file

HOLD = """
import sys, time
from pathlib import Path
from dpltm.tickets import files
with getattr(files, sys.argv[1])(Path(sys.argv[2])) as staging:
    if staging.is_dir():
        (staging / "tickets.json").write_text("half")
    else:
        staging.write_text("half")
    print("ready", flush=True)
    time.sleep(1e6)
"""
WAYS = {"new_folder": new_folder, "new_file": new_file, "replaced": replaced, "staged_file": staged_file}


@contextmanager
def writing(way: str, target: str) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of a write."""
    command = [sys.executable, "-c", HOLD, way, target]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def hidden() -> list[str]:
    return sorted(path.name for path in Path().iterdir() if path.name.startswith(".r."))


@pytest.mark.parametrize("way", WAYS)
def test_the_next_write_removes_what_the_dead_left_and_nothing_of_the_living(cwd, way):
    with writing(way, "r") as dying:
        (left,) = hidden()
        dying.kill()
        dying.wait(PATIENCE)
    assert hidden() == [left], "killed, so it could not tidy up"
    with writing(way, "r"):
        (own,) = hidden()
        assert own != left
        with WAYS[way](cwd / "r"):
            assert len(hidden()) == 2
            assert own in hidden(), "a live process is at it"
        assert hidden() == [own]


def test_listings_never_show_what_is_being_written(cli):
    known = cli("tickets", "ls", "--json").json
    with writing("new_folder", "r"):
        assert len(hidden()) == 1
        assert cli("tickets", "ls", "--json").json == known
