"""One file, or one dataset by name, is public or private in one ledger, whatever command, process or path asks.

Other files are what their owner declares (DESIGN, rule 7): rows are compared within one command alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from dpltm import PrivateLoop
from dpltm.errors import InputError
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


def copied() -> str:
    """The file under another name, with columns in another order and another label."""
    lines = (line.split(",") for line in Path("a.csv").read_text().splitlines())
    Path("b.csv").write_text("\n".join(",".join((c, ill, b, a)) for a, b, c, ill in lines) + "\n")
    return "--dataset b.csv"


def renamed() -> str:
    """The ledger under another name, with its key."""
    for suffix in (".jsonl", ".key"):
        Path(f"dpltm.ledger{suffix}").rename(f"moved{suffix}")
    return "--dataset a.csv --ledger moved.jsonl"


def linked() -> str:
    Path("elsewhere").mkdir()
    Path("elsewhere/l.csv").symlink_to(Path("a.csv").resolve())
    return "--dataset elsewhere/l.csv"


def old() -> str:
    """Beside a ledger of a version that kept digests of rows, whatever they hold."""
    Path("dpltm.ledger.rows").write_bytes(b"none")
    return "--dataset a.csv"


@pytest.mark.one_of(2)
@pytest.mark.parametrize("way", [copied, renamed, linked, old])
@pytest.mark.usefixtures("rows")
def test_a_file_is_public_or_private_whatever_names_it(cli, refused, way):
    """In either order."""
    assert cli(PUBLIC).code == 0
    where = way()
    assert "declared public" in refused(f"{TRAIN} {where} --out r")
    assert cli(f"{TRAIN} --dataset a.csv --ledger private.jsonl --out r").code == 0
    assert "is protected by a release on record" in refused(f"{PUBLIC}2 --ledger private.jsonl")


@pytest.mark.usefixtures("rows")
def test_another_process_refuses_it_too(cli):
    assert cli(PUBLIC).code == 0
    copied()
    before = Path("dpltm.ledger.jsonl").read_bytes()
    program = [sys.executable, "-c", "import sys; from dpltm.cli.main import run; sys.exit(run(sys.argv[1:]))"]
    command = [*program, *f"{TRAIN} --dataset b.csv --out r".split()]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert (done.returncode, "declared public" in done.stderr) == (2, True), done.stderr
    assert Path("dpltm.ledger.jsonl").read_bytes() == before
    assert not Path("r").exists()


def test_a_file_that_was_tested_on_is_not_private(cli, rows, refused):
    """All of it, or the part that a hash held out."""
    table("t.csv", OTHERS)
    assert cli(f"{TRAIN} --dataset a.csv --test t.csv --out r").code == 0
    Path("t.csv").rename("u.csv")
    assert "a test split" in refused(f"{TRAIN} --dataset u.csv --out q")
    table("b.csv", 1 - rows)
    assert cli(f"{TRAIN} --dataset b.csv --test 0.4 --out s").code == 0
    Path("b.csv").rename("c.csv")
    assert "a test split" in refused(f"{TRAIN} --dataset c.csv --out q")


@pytest.mark.usefixtures("rows")
def test_a_private_file_is_not_tested_on_for_nothing(cli, refused):
    assert cli(f"{TRAIN} --dataset a.csv --out r").code == 0
    table("t.csv", OTHERS)
    Path("a.csv").rename("b.csv")
    assert "is protected by a release" in refused(f"{TRAIN} --dataset t.csv --test b.csv --out q")
    assert "is protected by a release" in refused(
        "evaluate r --dataset t.csv --test b.csv --label ill --bounds 0,1 --classes 2"
    )


def test_a_dataset_by_name_is_public_or_private(cli, refused):
    """Also without the key: a name is known to everybody."""
    assert cli(f"generate --dataset digits {MAKE} --ledger A.jsonl --quiet").code == 0
    Path("A.key").unlink()
    private = "train --dense --model mlp:4 --steps 2 --noise-multiplier 9 --delta 1e-4 --dataset digits"
    assert "declared public" in refused(f"{private} --ledger A.jsonl --out r")


@pytest.mark.usefixtures("rows")
def test_a_file_that_was_public_is_not_private_once_it_was_edited(cli, refused):
    """By the name of the file alone: not one row is the same."""
    assert cli(PUBLIC).code == 0
    table("a.csv", OTHERS)
    assert "declared public" in refused(f"{TRAIN} --dataset a.csv --out r")


def test_another_file_with_the_same_rows_is_what_it_is_declared(cli, rows, tree):
    """Rule 7; and no digest of a row is kept anywhere."""
    assert cli(PUBLIC).code == 0
    table("b.csv", rows[::-1])
    assert cli(f"{TRAIN} --dataset b.csv --test 0.4 --out r").code == 0
    assert {Path(name).suffix for name in tree() if name.startswith("dpltm.ledger")} == {".jsonl", ".key"}


def test_within_one_command_rows_are_compared(cli, rows, refused):
    """Whatever their labels and the order of columns; how many are private is for the eyes of their owner."""
    table("t.csv", np.vstack([OTHERS, rows[:2]]))
    told = refused(f"{TRAIN} --dataset a.csv --test t.csv --out r")
    assert told.startswith("--test: a: 2 of the 62 records of t.csv are training records of a.csv")
    assert cli(f"{TRAIN} --dataset a.csv --test t.csv --rows-coincide --out r").code == 0


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
def test_a_loop_knows_arrays_that_were_declared():
    x, y = OTHERS.astype("f4"), np.arange(60) % 2
    open_ledger("l.jsonl").declare_public(from_arrays(x, y, bounds=(0, 1), classes=2, name="theirs"), "tickets")

    def loop(rows: np.ndarray) -> int:
        about = {"batch_size": 20, "steps": 1, "noise_multiplier": 9.0, "delta": 1e-3, "records": 60}
        loss = nn.CrossEntropyLoss(reduction="none")
        return len(list(PrivateLoop(nn.Linear(3, 2), loss, rows, y, ledger=open_ledger("l.jsonl"), **about)))

    with pytest.raises(InputError, match="declared public"):
        loop(x.copy())
    assert loop(x / 2) == 1
