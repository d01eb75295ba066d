"""Which mechanisms go together: each pair of the table in privacy-model.md 4.9 works, or is refused by name."""

import csv
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "privacy-model"

MECHANISMS = {
    "`--sampling allocation`": "--sampling allocation:2",
    "`--noise banded`": "--noise banded:2",
}
BESIDE = {
    "persons": "--unit-column who --per-unit 3",
    "tickets": "",
    "`--microbatch`": "--microbatch 3",
    "`--class-weight`": "--class-weight 1,2",
    "`--adjacency replace-one`": "--adjacency replace-one",
    "`--eval-private`": "--eval-private 0.5",
    "`--centre`": "--features unit --centre 0.1",
    "`--budget-stop`": "--noise-multiplier 2 --budget-stop",
    "`--audit`": "--audit 6",
    "`--head least-squares`": "--features unit --head least-squares",
    "`--filter tanh`": "--filter tanh",
    **MECHANISMS,
}


def refusals() -> dict[str, set[str]]:
    """The table of the document: what each mechanism refuses. All other pairs work."""
    part = DOCUMENT.with_suffix(".md").read_text().split("### 4.9 ")[1].split("\n## ")[0]
    return {row: set(names.split(", ")) for row, names in re.findall(r"^\| (`--.+?`) \| (.+) \|$", part, re.MULTILINE)}


@pytest.fixture
def tables(cwd: Path) -> None:
    """``d`` and its test records ``t``; and the same with a column that says whose each is, ``dw`` and ``tw``."""
    draw = np.random.default_rng(0)
    for name, count in (("d", 120), ("t", 40)):
        values = draw.random((count, 3)).round(4).tolist()
        for whose in ("", "w"):
            with (cwd / f"{name}{whose}.csv").open("w", newline="") as file:
                rows = csv.writer(file)
                rows.writerow(["a", "b", "c", *(["who"] if whose else []), "y"])
                for i, row in enumerate(values):
                    rows.writerow([*row, *([f"{name}{i // 2}"] if whose else []), i % 2])


def test_the_table_names_what_is_tried_here() -> None:
    table = refusals()
    assert set(table) == set(MECHANISMS)
    assert set().union(*table.values()) <= set(BESIDE)
    for mechanism, names in table.items():
        assert {other for other in table if mechanism in table[other]} == names & set(MECHANISMS)


@pytest.mark.one_of(16)
@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize(
    ("beside", "mechanism"),
    [pair for pair in itertools.product(BESIDE, MECHANISMS) if len({name.split()[0] for name in pair}) > 1],
)
def test_a_pair_works_or_is_refused_by_name(cli: Any, refused: Any, beside: str, mechanism: str) -> None:
    asked, whose, start = f"{MECHANISMS[mechanism]} {BESIDE[beside]}", "w" if beside == "persons" else "", "--dense"
    data = f"--dataset d{whose}.csv --label y --bounds 0,1 --classes 2"
    if beside == "tickets":
        make = f"generate {data} --provenance data-free --criterion random --model mlp:4 --features none --rounds 2"
        assert cli(f"{make} --out set --quiet").code == 0
        start = "set@1"
    else:
        asked += "" if "unit" in BESIDE[beside].split() else " --model mlp:4 --features none"
    head, allocated = "least-squares" in asked, "allocation" in asked
    asked += ("" if head or allocated else " --steps 6") + ("" if head else " --batch-size 20")
    command = f"train {start} {data} --records {60 if whose else 120} --test t{whose}.csv {asked} --epsilon 3"
    command += " --delta 1e-3 --out r --json"
    if beside not in refusals()[mechanism]:
        done = cli(command)
        assert done.code == 0, done.err
        assert 0 < done.json["privacy"]["certified"]["epsilon"] <= 3
    else:
        told = refused(command)
        assert any(name in told for name in re.findall(r"--[a-z-]+", asked)), told
