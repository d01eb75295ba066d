"""Charts, drawn by matplotlib: inside a page, or as files of their own (PNG, SVG or PDF)."""

from __future__ import annotations

import base64
import io
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpltm.errors import ArtifactError
from dpltm.privacy.trade_off import Curves
from dpltm.registry import Deferred
from dpltm.tickets.files import check_free, check_writable, read_bytes, replaced

_FIGURE, _RC = Deferred("matplotlib.figure:Figure"), Deferred("matplotlib:rc_context")
_MARKS, _SHIFT = Deferred("matplotlib.ticker:LogLocator"), Deferred("matplotlib.transforms:ScaledTranslation")

PLOTS = (".png", ".svg", ".pdf")

STYLE = {
    "axes.axisbelow": True, "axes.grid": True, "axes.spines.right": False, "axes.spines.top": False,
    "axes.titlesize": "medium", "grid.color": "#d5dae0", "legend.fontsize": "small", "legend.frameon": False,
    "svg.hashsalt": "dpltm",  # the same ids in each file
}  # fmt: skip

LETTERS = 60  # on a line of a title above a chart, or of its legend; what is longer goes on below
MAX_METRICS = 2**26  # no run notes more bytes than this
ACCURACY = "accuracy, %"  # along axes

Pairs = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Series:
    """Points that belong together, of one name in the legend."""

    name: str
    points: Pairs
    style: str = "-"  # of matplotlib; ``o`` for points alone, ``:`` for a line that is there for comparison only
    spread: Pairs = ()  # low and high of each point, drawn as bars; empty for none

    @property
    def label(self) -> str:
        return textwrap.fill(self.name, LETTERS)


@dataclass(frozen=True)
class Chart:
    """A chart: its ``title`` is also for people who hear it, its ``caption`` a sentence below."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    axes: Mapping[str, Any] = field(default_factory=dict)
    caption: str = ""

    def image(self) -> str:
        """Return the chart, without its title, as an address that holds all of it: for a page."""
        file = io.BytesIO()
        _figure([replace(self, title="")], file, ".svg")
        return f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def _draw(axes: Any, chart: Chart) -> None:
    log = chart.axes.get("xscale") == "log"
    for series in chart.series:
        values = np.array(series.points, float).reshape(-1, 2)
        drawable = np.isfinite(values).all(1) & ((values[:, 0] > 0) | (not log))
        x, y = values[drawable].T
        spread = np.array(series.spread, float).reshape(-1, 2)[drawable if series.spread else slice(0)]
        bars = np.abs(spread.T - y) if len(spread) else None
        color = "0.4" if series.style == ":" else None
        axes.errorbar(x, y, bars, fmt=series.style, label=series.label, color=color, markersize=4, elinewidth=1)
    axes.set(title=chart.title, xlabel=chart.x, ylabel=chart.y, **chart.axes)
    if log:  # matplotlib's own marks are powers of ten
        axes.xaxis.set_major_locator(_MARKS(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    texts = [axes.title, axes.xaxis.label, axes.yaxis.label]
    if len(chart.series) > 1:
        below = axes.transAxes + _SHIFT(0, -0.5, axes.figure.dpi_scale_trans)  # by inches, for the name of the axis
        legend = axes.legend(loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=below)
        texts += legend.get_texts()
    for text in texts:
        text.set_parse_math(False)  # names are people's: no $ in them begins a formula


def _figure(charts: Sequence[Chart], place: Path | io.BytesIO, suffix: str, title: str = "") -> None:
    across = min(len(charts), 2)
    down = -(-len(charts) // across)
    lines = max(sum(1 + series.label.count("\n") for series in chart.series) for chart in charts)
    with _RC(STYLE):
        figure = _FIGURE(figsize=(5.2 * across, (3.6 + 0.2 * lines) * down), layout="constrained")
        for number, chart in enumerate(charts, start=1):
            _draw(figure.add_subplot(down, across, number), chart)
        if title:
            figure.suptitle(textwrap.fill(title, LETTERS * across), fontsize="medium", parse_math=False)
        undated: dict[str, dict[str, None]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        figure.savefig(place, dpi=150, format=suffix[1:], metadata=undated.get(suffix))


# --- files ------------------------------------------------------------------------------------------------------------


def new_picture(plot: str | None) -> Path | None:
    """Return the file that `plot` names, which can be written once there is something to draw; None where nothing is."""
    if plot is None:
        return None
    path = Path(plot)
    check_free(path, "plot")
    if path.suffix.lower() not in PLOTS:
        raise ArtifactError(f"{path}: not a picture; let its name end in {', '.join(PLOTS)}")
    check_writable(path)
    return path


def write_charts(path: Path, charts: Sequence[Chart], title: str) -> None:
    """Write charts side by side; the suffix of the file, replaced if it is there, decides the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as staging:
        _figure(charts, staging, path.suffix.lower(), title)


# --- what there is to draw --------------------------------------------------------------------------------------------


def trade_off(curves: Curves) -> Chart:
    """Return the chart of a trade-off function, with the nominal one beside it."""
    lines = {"certified: no attacker is below": (curves.misses, "-")}
    if curves.misses_gdp is not None:
        lines[f"nominal: G with mu {curves.mu or 0.0:.3g}"] = (curves.misses_gdp, "--")
    lines["nothing learnt"] = (1 - curves.false_alarms, ":")
    series = [
        Series(name, (100 * np.column_stack([curves.false_alarms, misses])).tolist(), style)
        for name, (misses, style) in lines.items()
    ]
    caption = "The nearer the curve is to the dotted line, the less an attacker can tell."
    ends = {"xlim": (0, 100), "ylim": (0, 100)}
    return Chart("What an attacker must miss", "false alarms, %", "misses, %", series, ends, caption)


Metrics = Mapping[int, float]
"""Accuracy of a training, by step."""


def accuracy_over_steps(arms: Mapping[str, Sequence[Metrics | None]]) -> list[Chart]:
    """Return the chart of the runs of each arm: mean, and least to most; None stands for a run that cannot be read.

    Such a run is left out, and the name of its arm says so.
    """
    lines = list[Series]()
    for name, runs in arms.items():
        readable = [metrics for metrics in runs if metrics is not None]
        steps = sorted(set.intersection(*map(set, readable))) if readable else []
        rows = [(float(step), [100 * metrics[step] for metrics in readable]) for step in steps]
        missing = f" ({len(readable)} of {len(runs)} seeds)" if len(readable) < len(runs) else ""
        spread = [(min(row), max(row)) for _, row in rows] if len(readable) > 1 else ()
        if rows:
            lines.append(Series(name + missing, [(step, sum(row) / len(row)) for step, row in rows], "o-", spread))
    return [Chart("Accuracy over steps", "step", ACCURACY, lines)] if lines else []


def read_metrics(path: Path) -> dict[int, float] | None:
    """Return the accuracies that a run noted, by step; None if the file is missing or damaged."""
    try:
        lines = [json.loads(line) for line in read_bytes(path, MAX_METRICS, 1).decode().splitlines()]
        metrics = {line["step"]: line["accuracy"] for line in lines if line["accuracy"] is not None}
        fit = all(type(step) is int and math.isfinite(accuracy) for step, accuracy in metrics.items())
    except (ArtifactError, LookupError, OverflowError, TypeError, ValueError, RecursionError):
        return None
    return metrics if fit else None


def against_epsilon(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Return accuracy against certified epsilon, for rows of ``dpltm compare`` that have both."""
    series = [
        Series(
            row["run"],
            [(row["certified"], 100 * row["accuracy"])],
            "o",
            [] if row["low"] is None else [(100 * row["low"], 100 * row["high"])],
        )
        for row in rows
        if row["accuracy"] is not None and isinstance(row["certified"], (int, float)) and row["certified"] > 0
    ]
    title = "Accuracy against certified epsilon; bars: 95 % intervals"
    return [Chart(title, "certified epsilon", ACCURACY, series, {"xscale": "log"})] if series else []
