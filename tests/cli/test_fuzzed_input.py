"""Damaged and hostile files of every kind: ``benchmarks/fuzz.py``, which tries many more; and what it has found."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from programs import program

fuzz = program("benchmarks/fuzz.py")
PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")


def test_one_line_or_an_answer_and_nothing_half_written(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, os.environ[name])
    monkeypatch.delenv("DPLTM_DEBUG", raising=False)
    found = fuzz.main(["--inputs", str(8 * len(fuzz.KINDS)), "--jobs", "1", "--seed", "1"])
    assert found["problems"] == []
    assert found["inputs"] == 8 * len(fuzz.KINDS)
    assert found["codes"]["2"] > found["inputs"] / 3  # damage that nobody notices would prove nothing


def test_a_message_holds_nothing_that_a_terminal_acts_on(refused, cwd):
    name = "a\x1b[31m\u202eb.csv"
    (cwd / name).write_text("x,y\n1,\x072\n")
    said = refused("datasets", "info", name, "--label", "y")
    assert said.isprintable()
    assert "a\\x1b[31m\\u202eb.csv" in said


@pytest.mark.usefixtures("cwd")
def test_links_that_lead_to_themselves(refused):
    Path("loop").symlink_to("loop")
    for options in (("tickets", "show", "loop"), ("select", "loop", *PRIVATE, "--eps1", "1")):
        assert refused(*options) == "loop: no ticket set there; make one with dpltm generate --out loop"
    refused("privacy", "ledger", "loop")


def test_arrays_that_are_archives(refused, cwd):
    np.savez(cwd / "x.npz", a=np.zeros(3))
    Path("f").mkdir()
    for name in ("x_train", "y_train"):
        Path(f"f/{name}.npy").write_bytes(Path("x.npz").read_bytes())
    assert refused("datasets", "info", "./f") == (
        "f: x_train is damaged (an archive of arrays, where one array belongs); save it again as an array of numbers"
    )


@pytest.mark.parametrize("name", ["own.jsonl", "own.key", "config/dpltm/ledgers.jsonl"])
def test_nobody_waits_for_a_pipe_beside_the_ledger(cli, cwd, monkeypatch, name):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(cwd / "config"))
    command = ("train", "--dense", *PRIVATE, "--model", "mlp:4", "--steps", "1", "--noise-multiplier", "9", "--quiet")
    assert cli(*command, "--ledger", "own.jsonl", "--out", "one").code == 0
    (cwd / name).unlink()
    os.mkfifo(cwd / name)
    done = cli(*command, "--ledger", "own.jsonl", "--out", "two")
    assert done.code == 2
    assert "is not a plain file" in done.err
    assert not Path("two").exists()


def test_nobody_waits_for_a_pipe_among_cached_features(cli, cwd, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cwd / "cache"))
    command = (
        "train",
        "--dense",
        *PRIVATE,
        "--features",
        "scatter",
        "--steps",
        "1",
        "--noise-multiplier",
        "9",
        "--quiet",
    )
    assert cli(*command, "--out", "one").code == 0
    files = list(Path("cache").rglob("*.npy"))
    assert files
    for path in files:
        path.unlink()
        os.mkfifo(path)
    assert cli(*command, "--out", "two").code == 0
    assert all(path.is_file() for path in files)  # computed anew
