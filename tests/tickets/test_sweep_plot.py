"""Figures of sweeps: what goes into a line, and that whatever is certified, or not, can be drawn."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from dpltm.errors import ArtifactError
from dpltm.tickets.sweep_plot import Line, draw, over_steps


def noted(folder: Path, *lines: tuple[int, float | str, float | None]) -> Path:
    folder.mkdir()
    text = "".join(json.dumps({"step": s, "epsilon": e, "accuracy": a}) + "\n" for s, e, a in lines)
    (folder / "metrics.jsonl").write_text(text)
    return folder


def test_a_line_is_the_mean_with_the_least_and_the_most(tmp_path: Path) -> None:
    one = noted(tmp_path / "one", (1, 0.5, 0.2), (2, 0.75, 0.6))
    two = noted(tmp_path / "two", (1, 0.5, 0.4), (2, 0.75, 0.8), (3, 1.0, 0.9))  # it went on for longer
    line = over_steps("x", [one, two], "accuracy", "0.75")
    assert line is not None
    assert list(line.x) == [1, 2]  # where both are
    assert line.y == pytest.approx([0.3, 0.7])
    assert (list(line.low), list(line.high)) == ([0.2, 0.6], [0.4, 0.8])
    assert list(line.epsilon) == [0.5, 0.75]


def test_nothing_noted_is_no_line(tmp_path: Path) -> None:
    assert over_steps("x", [noted(tmp_path / "one", (1, 0.5, None))], "accuracy", "1") is None
    assert over_steps("x", [noted(tmp_path / "two", (1, 0.5, 0.5))], "rmse", "1") is None


@pytest.mark.parametrize("epsilons", [(1.0, 2.0), (math.inf, math.inf), (1.0, math.inf)])
@pytest.mark.parametrize("steps", [True, False])
@pytest.mark.parametrize("measure", ["accuracy", "rmse"])
def test_whatever_is_certified_can_be_drawn(
    tmp_path: Path, epsilons: tuple[float, float], steps: bool, measure: str
) -> None:
    lines = [Line(f"line {e}", (1, 2), (0.5, 0.6), (0.4, 0.5), (0.6, 0.7), (e, e), f"{e:g}") for e in epsilons]
    draw(tmp_path / "f.png", lines, title="T", x="x", measure=measure, steps=steps, log=True)
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    line = Line("x", (1,), (0.5,), (0.5,), (0.5,), (1.0,))
    with pytest.raises(ArtifactError, match="cannot be written"):
        draw(tmp_path / "none" / "f.png", [line], title="T", x="x", measure="accuracy", steps=False, log=False)
