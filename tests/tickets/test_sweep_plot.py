"""Figures of sweeps: what goes into a line, and that whatever is certified, or not, can be drawn."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from dpltm.errors import ArtifactError
from dpltm.tickets.sweep_plot import Line, draw, over_steps

INF = math.inf
FORMULA = "$\\foo$"


def line(*epsilons: float, name: str = "x", spent: str = "2") -> Line:
    return Line(name, (1, 2), (0.5, 0.6), (0.4, 0.5), (0.6, 0.7), epsilons, spent)


def figure(path: Path, *lines: Line, measure: str = "accuracy", steps: bool = True, log: bool = False) -> None:
    draw(path, list(lines), title=f"T {FORMULA}", x=f"x {FORMULA}", measure=measure, steps=steps, log=log)


def noted(folder: Path, *lines: tuple[int, float | str, float | None]) -> Path:
    folder.mkdir()
    text = "".join(json.dumps({"step": s, "epsilon": e, "accuracy": a}) + "\n" for s, e, a in lines)
    (folder / "metrics.jsonl").write_text(text)
    return folder


def test_a_line_is_the_mean_with_the_least_and_the_most(tmp_path: Path) -> None:
    one = noted(tmp_path / "one", (1, 0.5, 0.2), (2, "inf", 0.6))
    two = noted(tmp_path / "two", (1, 0.75, 0.4), (2, 0.75, 0.8), (3, 1.0, 0.9))  # it went on for longer
    found = over_steps("x", [two, one], "accuracy", "0.75")
    assert found is not None
    assert list(found.x) == [1, 2]  # where both are
    assert found.y == pytest.approx([0.3, 0.7])
    assert (list(found.low), list(found.high)) == ([0.2, 0.6], [0.4, 0.8])
    assert list(found.epsilon) == [0.75, INF]  # the largest of the runs
    assert over_steps("x", [one], "rmse", "1") is None, "nothing was noted"


GOOD = '{"step": 1, "epsilon": 9.0, "accuracy": 0.9}\n'


@pytest.mark.parametrize(
    "damage",
    [
        *(None, "", GOOD + '{"step": 2, "eps', "[]\n", "[" * 100_000, GOOD + "\xff\n"),
        *(GOOD.replace("9.0", value) for value in ("null", '"x"', "NaN", "true", "1" * 5000)),
        *(GOOD.replace("0.9", value) for value in ('"x"', "NaN", "true")),
        *(GOOD.replace(": 1,", f": {value},") for value in ("null", '"1"', "1.5", "true")),
        GOOD.replace('"step"', '"other"'),
    ],
)
def test_a_run_that_is_damaged_is_left_out(tmp_path: Path, damage: str | None) -> None:
    runs = [noted(tmp_path / "a", (1, 0.5, 0.2)), tmp_path / "b", noted(tmp_path / "c", (1, 0.5, 0.4))]
    if damage is not None:
        runs[1].mkdir()
        (runs[1] / "metrics.jsonl").write_text(damage, encoding="latin-1")
    found = over_steps("x", runs, "accuracy", "1")
    assert found is not None
    assert (list(found.x), list(found.epsilon)) == ([1], [0.5])
    assert found.y == pytest.approx([0.3])
    assert found.name == "x (2 of 3 seeds)"
    assert over_steps("x", runs[1:2], "accuracy", "1") is None


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All texts of the figures that are saved from here on, at a low resolution."""
    found: list[str] = []
    save = Figure.savefig

    def saved(self: Figure, *given: object, **named: object) -> None:
        save(self, *given, **{**named, "dpi": 20})
        found.extend(text.get_text() for text in self.findobj(Text))

    monkeypatch.setattr(Figure, "savefig", saved)
    return found


@pytest.mark.parametrize("epsilons", [(1.0, 2.0), (INF, INF), (1.0, INF)])
@pytest.mark.parametrize(("steps", "measure"), [(True, "accuracy"), (False, "rmse")])
def test_whatever_is_certified_can_be_drawn(
    tmp_path: Path, words: list[str], epsilons: tuple[float, float], steps: bool, measure: str
) -> None:
    """No name is a formula, and the figure says what its bands are."""
    lines = [line(e, e, name=f"arm {e} {FORMULA}", spent=f"{e:g} {FORMULA}") for e in epsilons]
    lines.append(Line("diverged", (1, 2), (1.0, INF), (1.0, 2.0), (1.0, INF), (1.0, 2.0), "2"))
    figure(tmp_path / "f.png", *lines, measure=measure, steps=steps, log=True)
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    shown = "\n".join(words)
    for part in ("T", "x", *(f"arm {e}" for e in epsilons)):
        assert f"{part} {FORMULA}" in shown
    assert ("least to most of the seeds" in shown) == steps
    assert ("95 % interval" in shown) != steps


def test_a_figure_that_fails_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "figure.png").write_text("earlier")
    monkeypatch.setattr(Figure, "savefig", fails)
    with pytest.raises(KeyboardInterrupt):
        figure(tmp_path / "figure.png", line(1.0, 2.0))
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("figure.png", "earlier")]
    with pytest.raises(ArtifactError, match="cannot be written"):
        figure(tmp_path / "none/f.png", line(1.0, 2.0))
