"""One file, or one dataset by name, is public or private in one ledger, whatever command, process or path asks.

Other files are what their owner declares (DESIGN, rule 7): rows are compared within one command alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

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
    assert cli(PUBLIC).code == 0
    where = way()
    assert "declared public" in refused(f"{TRAIN} {where} --out r")
    assert cli(f"{TRAIN} --dataset a.csv --ledger private.jsonl --out r").code == 0
    assert "is protected by a release on record" in refused(f"{PUBLIC}2 --ledger private.jsonl")


def test_a_file_that_was_tested_on_is_not_private(cli, rows, refused):
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
