"""Rows that were declared public or tested on, and come back as another file, in another process.

What a process remembers is gone then: digests beside the ledger tell (DESIGN, rule 7). Each second command is a process of
its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCALED = ("--bounds", "0,1", "--classes", "2", "--label", "ill")
NETWORK = ("--model", "mlp:4", "--rounds", "1", "--iterations", "2", "--batch-size", "20")
TRAIN = (
    "train",
    "--dense",
    "--model",
    "mlp:4",
    "--steps",
    "2",
    "--noise-multiplier",
    "9",
    "--delta",
    "1e-3",
    *SCALED,
    "--quiet",
)
PUBLIC = ("generate", *SCALED, *NETWORK, "--provenance", "public", "--out", "s", "--quiet")


def table(path: str, rows: np.ndarray) -> None:
    lines = (",".join([*(f"{value:.4f}" for value in row), str(int(row[0] > 0.5))]) for row in rows)
    Path(path).write_text("\n".join(["a,b,c,ill", *lines]) + "\n")


@pytest.fixture
def rows(cli) -> np.ndarray:
    """Sixty rows, which are in ``a.csv`` of the working folder."""
    assert cli
    found = np.random.default_rng(5).random((60, 3)).round(4)
    table("a.csv", found)
    return found


def elsewhere(*command: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    program = [
        sys.executable,
        "-c",
        "import sys; from dpltm.cli.main import run; sys.exit(run(sys.argv[1:]))",
        *command,
    ]
    return subprocess.run(program, capture_output=True, text=True, env=os.environ, check=False)


@pytest.mark.parametrize(
    "change",
    ["a copy backwards", "a few of them", "a record more"],
)
def test_rows_that_were_declared_public_are_not_private_in_another_file(cli, rows, change):
    assert cli(*PUBLIC, "--dataset", "a.csv").code == 0
    others = np.random.default_rng(6).random((60, 3)).round(4)
    table("b.csv", {"a copy backwards": rows[::-1], "a few of them": np.vstack([others, rows[:3]]), "a record more":
                    np.vstack([rows, others[:1]])}[change])  # fmt: skip
    before = Path("dpltm.ledger.jsonl").read_bytes()
    done = elsewhere(*TRAIN, "--dataset", "b.csv", "--out", "r")
    assert done.returncode == 2, done.stderr
    assert "declared public" in done.stderr
    assert Path("dpltm.ledger.jsonl").read_bytes() == before
    assert not Path("r").exists()
    table("b.csv", others)  # the control: other people
    assert elsewhere(*TRAIN, "--dataset", "b.csv", "--out", "r").returncode == 0


def test_rows_that_were_tested_on_are_not_private_in_another_file(cli, rows):
    assert cli(*TRAIN, "--dataset", "a.csv", "--test", "0.4", "--out", "r").code == 0
    table("b.csv", rows[::-1])
    done = elsewhere(*TRAIN, "--dataset", "b.csv", "--out", "q")
    assert done.returncode == 2, done.stderr
    assert not Path("q").exists()


@pytest.mark.usefixtures("rows")
def test_a_file_that_was_public_is_not_private_once_it_was_edited(cli):
    """In the name of the file alone: not one row is the same."""
    assert cli(*PUBLIC, "--dataset", "a.csv").code == 0
    table("a.csv", np.random.default_rng(7).random((60, 3)).round(4))
    done = elsewhere(*TRAIN, "--dataset", "a.csv", "--out", "r")
    assert done.returncode == 2, done.stderr
    assert "declared public" in done.stderr


@pytest.mark.usefixtures("rows")
def test_public_records_beside_those_of_persons_do_not_settle_the_unit(cli):
    """A ledger that holds declarations alone takes the unit of its first release."""
    assert cli(*PUBLIC, "--dataset", "a.csv").code == 0
    others = np.random.default_rng(6).random((60, 3)).round(4)
    lines = (f"{a:.4f},{b:.4f},{c:.4f},{int(a > 0.5)},p{place // 2}" for place, (a, b, c) in enumerate(others))
    Path("b.csv").write_text("\n".join(["a,b,c,ill,patient", *lines]) + "\n")
    done = cli(*TRAIN, "--dataset", "b.csv", "--unit-column", "patient", "--per-unit", "2", "--out", "r")
    assert done.code == 0, done.err
    assert "patient" in elsewhere(*TRAIN, "--dataset", "b.csv", "--out", "q").stderr
