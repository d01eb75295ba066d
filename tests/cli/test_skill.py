"""A run that is no better than always saying the same says so in its last line, everywhere; one that is, does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hospital

TABLE = "--dataset visits.csv --schema visits.toml --test others.csv --records 1000"
BRIEFLY = "--delta 1e-4 --epsilon 1 --steps 4 --batch-size 100 --model mlp:4"


@pytest.fixture
def table(cwd: Path) -> None:
    hospital.write(cwd, 1000)


def last(text: str) -> str:
    return text.splitlines()[-1]


@pytest.mark.usefixtures("table")
def test_without_skill(cli: Any) -> None:
    """Barely trained under much noise, on a table whose outcome about one in six has."""
    done = cli(f"train --dense {TABLE} {BRIEFLY} --lr 0.01 --out r")
    skill = json.loads(Path("r/result.json").read_text())["skill"]
    labels = [line.rsplit(",", 1)[1] for line in Path("others.csv").read_text().splitlines()[1:]]
    share = labels.count("no") / len(labels)
    assert (skill["majority"], skill["majority_accuracy"], skill["records"]) == ("no", share, len(labels))
    said = f'No better than always saying "no", which is right in {100 * share:.2f} % of test records: accuracy '
    assert skill["verdict"].startswith(said)
    assert last(done.out) == skill["verdict"]
    assert last(cli("evaluate r --dataset visits.csv --test others.csv").out) == skill["verdict"]
    done = cli("report r -o r.html")
    assert last(done.out) == skill["verdict"]
    page = Path("r.html").read_text()
    escaped = skill["verdict"].replace('"', "&#34;")
    assert f'role="note">{escaped}.</p>' in page
    assert cli("report r -o other.html --json").json["verdict"] == skill["verdict"]
    assert cli("report r --card -o card.md").code == 0
    assert "No better than always saying" in Path("card.md").read_text()
    assert cli("privacy check card.md --json").json["ok"]


def test_with_skill(cli: Any) -> None:
    """A label that one column decides."""
    draw = np.random.default_rng(0)
    for name, count in (("d", 600), ("t", 200)):
        x = draw.random(count).round(6)
        lines = [f"{value},{int(value > 0.5)}" for value in x]
        Path(f"{name}.csv").write_text("\n".join(["a,y", *lines]) + "\n")
    where = "--dataset d.csv --label y --bounds 0,1 --classes 2 --records 600 --test t.csv"
    done = cli(f"train --dense {where} --delta 1e-4 --epsilon 20 --steps 80 --batch-size 200 --model mlp:8 --out r")
    skill = json.loads(Path("r/result.json").read_text())["skill"]
    assert skill["verdict"] is None
    assert skill["auc"]["low"] > 0.9
    assert "No better" not in done.out
    assert "No better" not in cli("report r -o r.html").out
    shown = cli("evaluate r --dataset d.csv --test t.csv").out
    assert f"{skill['auc']['value']:.3f} (95 %: " in shown


@pytest.mark.usefixtures("table")
def test_nothing_of_it_is_computed_where_accuracy_is_paid_for(cli: Any) -> None:
    """A test split is there, and is left alone; the records themselves are counted, and no more."""
    assert cli(f"train --dense {TABLE} {BRIEFLY} --eval-private 0.5 --out r").code == 0
    result = json.loads(Path("r/result.json").read_text())
    assert result["accuracy"] is not None
    assert result["skill"] is None
    assert cli("report r -o r.html").code == 0
    assert "AUC" not in Path("r.html").read_text()
