"""Rows that were declared public or tested on, and come back as another file, in another process.

What a process remembers is gone then: digests beside the ledger tell (DESIGN, rule 7). One second command is a process of
its own; the others begin with nothing remembered.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from torch import nn

from dpltm import PrivateLoop
from dpltm.errors import InputError
from dpltm.privacy import guards
from dpltm.records import from_arrays
from dpltm.tickets import open_ledger

SCALED = "--bounds 0,1 --classes 2 --label ill --quiet"
TRAIN = f"train --dense --model mlp:4 --steps 2 --noise-multiplier 9 --delta 1e-3 {SCALED}"
MAKE = "--model mlp:4 --rounds 1 --iterations 2 --batch-size 20 --provenance public --out s"
PUBLIC = f"generate --dataset a.csv {SCALED} {MAKE}"
OTHERS = np.random.default_rng(6).random((60, 3)).round(4)


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


@pytest.fixture
def forget(monkeypatch):
    """Begins anew, as another process does."""

    def begin():
        monkeypatch.setattr(guards, "_met", {})
        monkeypatch.setattr(guards, "_joined", set())
        monkeypatch.setattr(guards, "_KEY", b"another")

    return begin


def test_a_copy_of_public_rows_is_refused_by_another_process(cli, rows):
    assert cli(PUBLIC).code == 0
    table("b.csv", rows[::-1])
    before = Path("dpltm.ledger.jsonl").read_bytes()
    program = [sys.executable, "-c", "import sys; from dpltm.cli.main import run; sys.exit(run(sys.argv[1:]))"]
    command = [*program, *f"{TRAIN} --dataset b.csv --out r".split()]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert (done.returncode, "declared public" in done.stderr) == (2, True), done.stderr
    assert Path("dpltm.ledger.jsonl").read_bytes() == before
    assert not Path("r").exists()


@pytest.mark.parametrize("change", ["a few of them", "a record more", "other people"])
def test_rows_that_were_declared_public_are_not_private_in_another_file(cli, rows, forget, change):
    assert cli(PUBLIC).code == 0
    held = {"a few of them": [OTHERS, rows[:3]], "a record more": [rows, OTHERS[:1]], "other people": [OTHERS]}
    table("b.csv", np.vstack(held[change]))
    forget()
    done = cli(f"{TRAIN} --dataset b.csv --out r")
    assert done.code == (0 if change == "other people" else 2), done.err


def test_public_rows_of_a_dataset_by_name_are_not_private_in_a_file(cli, forget, refused):
    assert cli(f"generate --dataset digits {MAKE} --ledger A.jsonl --quiet").code == 0
    digits = load_digits()
    np.savez("ours.npz", x_train=digits.images[:40], y_train=digits.target[:40])
    forget()
    private = "train --dense --model mlp:4 --steps 2 --noise-multiplier 9 --delta 1e-3 --bounds 0,16 --classes 10"
    assert "declared public" in refused(f"{private} --dataset ours.npz --ledger A.jsonl --out r")


def test_rows_that_were_tested_on_are_not_private_in_another_file(cli, rows, forget, refused):
    assert cli(f"{TRAIN} --dataset a.csv --test 0.4 --out r").code == 0
    table("b.csv", rows[::-1])
    forget()
    assert "a test split" in refused(f"{TRAIN} --dataset b.csv --out q")


@pytest.mark.usefixtures("rows")
def test_a_file_that_was_public_is_not_private_once_it_was_edited(cli, forget, refused):
    """In the name of the file alone: not one row is the same."""
    assert cli(PUBLIC).code == 0
    table("a.csv", OTHERS)
    forget()
    assert "declared public" in refused(f"{TRAIN} --dataset a.csv --out r")


@pytest.mark.usefixtures("rows")
def test_public_records_beside_those_of_persons_do_not_settle_the_unit(cli, refused):
    """A ledger that holds declarations alone takes the unit of its first release."""
    assert cli(PUBLIC).code == 0
    lines = (f"{a:.4f},{b:.4f},{c:.4f},{int(a > 0.5)},p{place // 2}" for place, (a, b, c) in enumerate(OTHERS))
    Path("b.csv").write_text("\n".join(["a,b,c,ill,patient", *lines]) + "\n")
    done = cli(f"{TRAIN} --dataset b.csv --unit-column patient --per-unit 2 --out r")
    assert done.code == 0, done.err
    assert "patient" in refused(f"{TRAIN} --dataset b.csv --out q")


@pytest.mark.usefixtures("cwd")
def test_a_loop_knows_rows_that_another_process_declared(forget):
    x, y = OTHERS.astype("f4"), np.arange(60) % 2
    open_ledger("l.jsonl").declare_public(from_arrays(x, y, bounds=(0, 1), classes=2, name="theirs"), "tickets")
    forget()

    def loop(rows: np.ndarray) -> int:
        about = {"batch_size": 20, "steps": 1, "noise_multiplier": 9.0, "delta": 1e-3, "records": 60}
        loss = nn.CrossEntropyLoss(reduction="none")
        return len(list(PrivateLoop(nn.Linear(3, 2), loss, rows, y, ledger=open_ledger("l.jsonl"), **about)))

    with pytest.raises(InputError, match="declared public"):
        loop(x[::-1].copy())
    assert loop(x / 2) == 1
