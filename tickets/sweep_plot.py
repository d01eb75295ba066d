"""The figure of a sweep: over the steps of its trainings, or over the value that varies between its rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.errors import ArtifactError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Line:
    """One line of a figure.

    Attributes:
        name: for the legend.
        x: steps, or values.
        y: means over seeds.
        low, high: band around them: least and most of the seeds, or the ends of 95 % intervals.
        epsilon: certified, at each x; inf where nothing is certified.
        spent: the last of them in words, rounded up.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    epsilon: Sequence[float]
    spent: str = ""


def over_steps(name: str, runs: Sequence[Path], measure: str, spent: str) -> Line | None:
    """A line from what runs noted on their way; None if they noted nothing.

    Args:
        name: for the legend.
        runs: folders of runs.
        measure: ``accuracy`` or ``rmse``.
        spent: certified epsilon at the end, in words.
    """
    by_step: dict[int, list[float]] = {}
    epsilon: dict[int, float] = {}
    for run in runs:
        for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            body: dict[str, Any] = json.loads(line)
            if body.get(measure) is not None:
                by_step.setdefault(body["step"], []).append(float(body[measure]))
                epsilon[body["step"]] = float(body["epsilon"])
    full = {step: values for step, values in sorted(by_step.items()) if len(values) == len(runs)}
    if not full:
        return None
    means = [sum(values) / len(values) for values in full.values()]
    ends = [[pick(values) for values in full.values()] for pick in (min, max)]
    return Line(name, list(full), means, ends[0], ends[1], [epsilon[step] for step in full], spent)


def draw(path: Path, lines: Sequence[Line], *, title: str, x: str, measure: str, steps: bool, log: bool) -> None:
    """Writes a PNG, in place of an earlier one.

    Args:
        path: to write.
        lines: at least one.
        title: above it.
        x: along the x axis.
        measure: ``accuracy`` or ``rmse``.
        steps: whether x are steps: then certified epsilon has a panel of its own beneath.
        log: whether x is logarithmic.
    """
    from matplotlib.figure import Figure

    certified = any(value < float("inf") for line in lines for value in line.epsilon)
    figure = Figure(figsize=(7.6, 6.4 if steps and certified else 4.6), layout="constrained")
    above, below = _panels(figure, steps and certified)
    scale = 100.0 if measure == "accuracy" else 1.0
    for number, line in enumerate(lines):
        color = f"C{number % 10}"
        style = "-" if number < 10 else "--"
        numbers = [float(value) for value in line.x]
        above.plot(numbers, [scale * value for value in line.y], style, color=color, marker="o", ms=3, label=line.name)
        above.fill_between(
            numbers, [scale * value for value in line.low], [scale * value for value in line.high], color=color, alpha=0.15,
            linewidth=0,
        )  # fmt: skip
        if below is not None:
            _epsilons(below, numbers, line, color, style)
    above.set(ylabel="test accuracy, %" if measure == "accuracy" else "test RMSE", title=title)
    above.legend(fontsize="small", frameon=False)
    last = below or above
    last.set_xlabel(x if certified else f"{x} (nothing is certified)")
    if log:
        last.set_xscale("log")
    if measure == "accuracy":
        above.set_ylim(max(above.get_ylim()[0], 0), min(above.get_ylim()[1], 101))
    if below is not None:
        below.set(ylabel="certified epsilon", yscale="log")
        for line in {line.spent: line for line in lines if line.epsilon[-1] < float("inf")}.values():
            below.annotate(
                line.spent, (float(line.x[-1]), line.epsilon[-1]), xytext=(0, 5), textcoords="offset points",
                fontsize="small", ha="right",
            )  # fmt: skip
        below.grid(axis="y", color="0.9")
    above.grid(axis="y", color="0.9")
    try:
        figure.savefig(path, dpi=140)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be written: {error.strerror}") from None


def _panels(figure: Figure, steps: bool) -> tuple[Axes, Axes | None]:
    if not steps:
        return figure.subplots(), None
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    return above, below


def _epsilons(panel: Axes, numbers: list[float], line: Line, color: str, style: str) -> None:
    """Certified epsilon over steps; where nothing is certified there is nothing to draw, and the legend says so."""
    finite = [(x, value) for x, value in zip(numbers, line.epsilon, strict=True) if value < float("inf")]
    if finite:
        panel.plot(*zip(*finite, strict=True), style, color=color, marker="o", ms=3)
    else:
        panel.plot([], [], style, color=color, label=f"{line.name}: nothing is certified")
        panel.legend(fontsize="small", frameon=False)
