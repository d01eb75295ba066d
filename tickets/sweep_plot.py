"""The figure of a sweep: over the steps of its trainings, or over the value that varies between its rows."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpltm.errors import ArtifactError
from dpltm.tickets.files import read_bytes, replaced
from dpltm.tickets.sweep_files import number

MAX_METRICS = 2**26
"""No run notes more bytes than this."""


@dataclass(frozen=True)
class Line:
    """One line of a figure.

    Attributes:
        name: for the legend.
        x: steps, or values.
        y: means over seeds.
        low, high: band around them: least and most of the seeds, or the ends of 95 % intervals.
        epsilon: certified, at each x, the largest over the seeds; inf where nothing is certified.
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

    A run whose notes are missing or damaged is left out, and the name says so.

    Args:
        name: for the legend.
        runs: folders of runs.
        measure: ``accuracy`` or ``rmse``.
        spent: certified epsilon at the end, in words.
    """
    read = [read_metrics(run / "metrics.jsonl", measure) for run in runs]
    readable = [metrics for metrics in read if metrics is not None]
    if not readable:
        return None
    steps = sorted(set.intersection(*(set(metrics) for metrics in readable)))
    if not steps:
        return None
    if len(readable) < len(runs):
        name = f"{name} ({len(readable)} of {len(runs)} seeds)"
    values = [[metrics[step][0] for metrics in readable] for step in steps]
    epsilon = [max(metrics[step][1] for metrics in readable) for step in steps]
    means = [sum(row) / len(row) for row in values]
    return Line(name, steps, means, [min(row) for row in values], [max(row) for row in values], epsilon, spent)


def read_metrics(path: Path, measure: str) -> dict[int, tuple[float, float]] | None:
    """What a run noted, by step: its measure and certified epsilon; None if the file is missing or damaged."""
    metrics = {}
    try:
        lines = read_bytes(path, MAX_METRICS, 1).decode().splitlines()
        for line in lines:
            body: Any = json.loads(line)
            value = body.get(measure)
            if value is None:
                continue
            step, here, epsilon = body["step"], number(value), number(body["epsilon"])
            if not isinstance(step, int) or number(step) is None or here is None or epsilon is None:
                return None
            metrics[step] = (here, epsilon)
    except (ArtifactError, ValueError, KeyError, AttributeError, RecursionError):
        return None
    return metrics


def draw(path: Path, lines: Sequence[Line], *, title: str, x: str, measure: str, steps: bool, log: bool) -> None:
    """Write a PNG, in place of an earlier one.

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

    certified = any(value < math.inf for line in lines for value in line.epsilon)
    panels = 2 if steps and certified else 1
    figure = Figure(figsize=(7.6, (4.2, 6.4)[panels - 1] + 0.2 * (len(lines) + 1)), layout="constrained")
    axes = figure.subplots(panels, 1, sharex=True, squeeze=False, height_ratios=(3, 2)[:panels])[:, 0]
    above, last = axes[0], axes[-1]
    scale = 100.0 if measure == "accuracy" else 1.0
    for at, line in enumerate(lines):
        color, style = f"C{at % 10}", "-" if at < 10 else "--"
        y, low, high = (scale * np.asarray(values) for values in (line.y, line.low, line.high))
        spent = np.where(np.isfinite(line.epsilon), line.epsilon, np.nan)
        bare = panels == 2 and np.isnan(spent).all()
        name = f"{line.name}: nothing is certified" if bare else line.name
        above.plot(line.x, y, style, color=color, marker="o", ms=3, label=name)
        above.fill_between(line.x, low, high, color=color, alpha=0.15, linewidth=0)
        if panels == 2:
            last.plot(line.x, spent, style, color=color, marker="o", ms=3)
    above.set_title(title, parse_math=False)  # names are people's: a dollar sign in one begins no formula
    above.set_ylabel("test accuracy, %" if measure == "accuracy" else "test RMSE")
    if measure == "accuracy":
        above.set_ylim(max(above.get_ylim()[0], 0), min(above.get_ylim()[1], 101))
    bands = "least to most of the seeds" if steps else "95 % intervals over seeds"
    legend = figure.legend(
        loc="outside lower left", fontsize="small", frameon=False, alignment="left", title=f"line: mean; band: {bands}",
        title_fontproperties={"size": "small"},
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)
    last.set_xlabel(x if certified else f"{x} (nothing is certified)", parse_math=False)
    if log:
        last.set_xscale("log")
    if log and not steps:
        values = sorted({float(value) for line in lines for value in line.x})
        last.set_xticks(values, [f"{value:g}" for value in values])
        last.minorticks_off()
    if panels == 2:
        last.set(ylabel="certified epsilon", yscale="log")
        ends = {line.spent: line for line in lines if line.epsilon[-1] < math.inf}.values()
        for line in ends:
            place = line.x[-1], line.epsilon[-1]
            last.annotate(line.spent, place, (0, 5), textcoords="offset points", ha="right", parse_math=False)
        last.margins(y=0.15)
    for panel in axes:
        panel.grid(axis="y", color="0.9")
    with replaced(path) as staging:
        figure.savefig(staging, format="png", dpi=140)
