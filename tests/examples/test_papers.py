"""Every recipe of the papers, in its quick version: on small data, which shows that it works and no more.

All of them are planned: every arm is checked and priced. The suite runs a few, and ``make papers`` all.
"""

import json
import math
import re
import tomllib
from pathlib import Path

import pytest

from dpltm.cli.main import run
from dpltm.tickets.workbench.recipes import read_recipe

FACTS = Path(__file__).parents[2] / "examples" / "papers" / "sources.toml"
"""What the sources print."""

PAPERS = sorted({*FACTS.parent.glob("*.toml")} - {FACTS})

MADE_UP = {"tanh-microbatches", "dpsr-cg"}
"""Recipes whose quick version needs no file of the data home."""

RUN = {"gdp-adult", "tanh-figure", "tanh-microbatches"}
"""Together they have a search, a figure; images and columns. Pages of the documents have tickets and draws."""

PLANNED = {"dpltm-figure-1", "dpltm-table-2", "gdp-figure-4", "tanh-recurrent", "tickets-isolet"}
"""One of each kind of those that are not run; the others, with make proofs."""


def test_every_recipe_has_a_line_in_the_sources() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sources.md").read_text(encoding="utf-8")
    assert len(PAPERS) >= 15
    assert {path.stem for path in PAPERS} <= set(re.findall(r"papers/([a-z0-9-]+)\.toml\)", page))


@pytest.fixture
def command(path: Path, tmp_path: Path, request: pytest.FixtureRequest) -> list[str]:
    if path.stem not in MADE_UP:
        request.getfixturevalue("data_home")
    return ["run", "--config", str(path), "--quick", "--jobs", "1", "--out", str(tmp_path / "sweep"), "--json"]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path.stem in PLANNED else pytest.mark.long) for path in PAPERS],
    ids=lambda path: path.stem,
)
def test_plan(command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--dry-run"]) == 0
    planned = json.loads(capfd.readouterr().out)
    assert [arm["name"] for arm in planned["arms"]]
    assert not (tmp_path / "sweep").exists()


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path.stem in RUN else pytest.mark.long) for path in PAPERS],
    ids=lambda path: path.stem,
)
def test_quick(command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sweep"
    assert run(command) == 0
    body = json.loads(capfd.readouterr().out)
    assert body["finished"] == body["members"] > 0
    for row in body["arms"]:
        assert row["missing"] == []
        assert row["count"] == len(body["seeds"])
        assert 0 <= row["mean"] <= 1
        certified = float(row["privacy"]["certified"]["epsilon"])
        assert certified > 0
        if math.isinf(certified):  # never without a reason that is in its name
            reasons = ("as printed", "no noise", "without noise", "random ticket")
            assert any(word in row["name"] for word in reasons), row["name"]
        if row["privacy"]["nominal"] is not None:
            assert row["privacy"]["nominal"]["source"]
    assert (out / "results.md").read_text().count("\n| ") == len(body["arms"]) + 1
    assert (out / "figure.png").exists() == (body["figure"] is not None)


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_as_it_is_published(path: Path) -> None:
    """Right as a whole, with five seeds or the reason that there are fewer; every arm states where it stands."""
    document = tomllib.loads(path.read_text())
    papers = [arm["paper"] for arm in document["arm"] if "paper" in arm]
    assert all(isinstance(paper, str) for paper in papers), "what a source prints is written in sources.toml alone"
    recipe = read_recipe(document, path)
    assert recipe.head.source
    assert recipe.head.seeds >= 3
    for arm in recipe.arms:
        private = [name for name in (arm.tickets,) if name and recipe.tickets[name].get("provenance") == "private"]
        assert not private or any("nothing is certified" in note for note in recipe.head.notes), arm.name
