"""Damaged and hostile files of every kind: ``benchmarks/fuzz.py``, which tries many more; and what it has found."""

import os
from pathlib import Path

import pytest

from commands import PRIVATE
from programs import program

fuzz = program("benchmarks/fuzz.py")
TRAIN = f"train --dense {PRIVATE} --model mlp:4 --steps 1 --noise-multiplier 9"


def test_one_line_or_an_answer_and_nothing_half_written(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, os.environ[name])
    monkeypatch.delenv("DPLTM_DEBUG", raising=False)
    found = fuzz.main(["--inputs", str(4 * len(fuzz.KINDS)), "--jobs", "1", "--seed", "1"])
    assert found["problems"] == []
    assert found["inputs"] == 4 * len(fuzz.KINDS)
    assert found["codes"]["2"] > found["inputs"] / 3  # damage that nobody notices would prove nothing


def test_a_message_holds_nothing_that_a_terminal_acts_on(refused, cwd):
    name = "a\x1b[31m\u202eb.csv"
    (cwd / name).write_text("x,y\n1,\x072\n")
    said = refused("datasets", "info", name, "--label", "y")
    assert said.isprintable()
    assert "a\\x1b[31m\\u202eb.csv" in said


@pytest.mark.parametrize("name", ["own.jsonl", "own.key", "config/dpltm/ledgers.jsonl"])
def test_nobody_waits_for_a_pipe_beside_the_ledger(cli, cwd, monkeypatch, name):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(cwd / "config"))
    assert cli(f"{TRAIN} --ledger own.jsonl --out one").code == 0
    (cwd / name).unlink()
    os.mkfifo(cwd / name)
    done = cli(f"{TRAIN} --ledger own.jsonl --out two")
    assert done.code == 2
    assert "is not a plain file" in done.err
    assert not Path("two").exists()


def test_nobody_waits_for_a_pipe_among_cached_features(cli, cwd, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cwd / "cache"))
    command = f"{TRAIN} --model mlp --features scatter:1,2"
    assert cli(f"{command} --out one").code == 0
    files = list(Path("cache").rglob("*.npy"))
    assert files
    for path in files:
        path.unlink()
        os.mkfifo(path)
    assert cli(f"{command} --out two").code == 0
    assert all(path.is_file() for path in files)  # computed anew
