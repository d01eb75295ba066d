"""The charts of reports and comparisons, as values: drawn inside a page (``svg``) or into a file of their own."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpltm.errors import DpltmError
from dpltm.filters import FILTERS, make_filter
from dpltm.privacy.trade_off import Curves
from dpltm.pruning.ticket_set import TicketSet
from dpltm.registry import Deferred
from dpltm.reports.filter_shape import shape_of
from dpltm.tickets.curve_files import check_plot
from dpltm.tickets.files import replaced
from dpltm.tickets.svg import Chart, Series

_FIGURE = Deferred("matplotlib.figure:Figure")
_MARKS, _NO_MARKS = Deferred("matplotlib.ticker:LogLocator"), Deferred("matplotlib.ticker:NullFormatter")

EVERY = 6
"""Of the points of a trade-off function: as many as can be told apart."""


def trade_off(curves: Curves) -> Chart:
    """The trade-off function."""
    points = list(zip(curves.false_alarms.tolist(), curves.misses.tolist(), strict=True))
    series = [Series("certified: no attacker is below", [*points[::EVERY], points[-1]])]
    if curves.misses_gdp is not None:
        gaussian = list(zip(curves.false_alarms.tolist(), curves.misses_gdp.tolist(), strict=True))
        series.append(
            Series(f"nominal: G with mu {curves.mu or 0.0:.3g}", [*gaussian[::EVERY], gaussian[-1]], "dashed")
        )
    series.append(Series("nothing learnt", [(0.0, 1.0), (1.0, 0.0)], "dotted"))
    return Chart(
        "What an attacker must miss", "false alarms", "misses", series, percent=True, percent_x=True, x_range=(0, 1),
        y_range=(0, 1), caption="The nearer the curve is to the dotted line, the less an attacker can tell.",
    )  # fmt: skip


def over_steps(metrics: Mapping[int, tuple[float | None, float]], measure: str) -> list[Chart]:
    """Accuracy (or RMSE), and certified epsilon, over the steps of a training; what was not measured is left out."""
    steps = sorted(metrics)
    name = "accuracy" if measure == "accuracy" else "RMSE"
    measured = [(float(step), value) for step in steps if (value := metrics[step][0]) is not None]
    spent = [(float(step), metrics[step][1]) for step in steps if metrics[step][1] < float("inf")]
    charts = [
        Chart(
            f"{name[0].upper()}{name[1:]} over steps",
            "step",
            name,
            [Series(name, measured, "marked")],
            percent=measure == "accuracy",
        )
    ]
    if spent:
        charts.append(
            Chart(
                "Certified epsilon over steps",
                "step",
                "epsilon",
                [Series("certified epsilon", spent, "marked")],
                y_range=(0.0, max(value for _, value in spent) * 1.05),
                caption="Of everything on record on these records, had the training ended there.",
            )
        )
    return charts if measured else charts[1:]


def against_density(tickets: TicketSet) -> list[Chart]:
    """Accuracy of the tickets of a set against their density; nothing where it is not known."""
    points = [(one.mask.density, one.accuracy) for one in tickets.body.tickets if one.accuracy is not None]
    if not points:
        return []
    return [
        Chart(
            "Accuracy of tickets against density",
            "density",
            "accuracy",
            [Series("tickets", points, "marked")],
            percent=True,
            percent_x=True,
            log=True,
            caption="Trained without noise on the records that they were made from.",
        )
    ]


def filter_shape(options: Mapping[str, Any]) -> list[Chart]:
    """The gradient filter that the options of a run name; nothing where it has no curve."""
    with contextlib.suppress(DpltmError, TypeError, KeyError):
        descriptor = FILTERS.find(options["filter"])
        parameters = {
            one.name: options[one.name] for one in descriptor.parameters if options.get(one.name) is not None
        }
        shape = shape_of(make_filter(descriptor.name, **parameters))
        if shape is not None:
            most = 1.3 * max(map(abs, shape.after))  # where the dotted line ends
            least = -most if shape.what == "value" else 0.0
            series = [
                Series(str(options["filter"]), list(zip(shape.before, shape.after, strict=True))),
                Series("unchanged", [(least, least), (most, most)], "dotted"),
            ]
            what = "norm of a gradient" if shape.what == "norm" else "value of a coordinate"
            return [Chart("Shape of the gradient filter", f"{what}, before", "after", series)]
    return []


def against_epsilon(rows: Sequence[Mapping[str, Any]], measure: str = "accuracy") -> list[Chart]:
    """Accuracy against certified epsilon, a point for each row that has both.

    Args:
        rows: with ``label``, ``value``, ``epsilon``, and ``low`` and ``high``, which may be None.
        measure: ``accuracy`` or ``rmse``.
    """
    finite = [
        row
        for row in rows
        if row["value"] is not None and isinstance(row["epsilon"], (int, float)) and row["epsilon"] > 0
    ]
    if not finite:
        return []
    series = [
        Series(
            row["label"],
            [(row["epsilon"], row["value"])],
            "dots",
            [] if row["low"] is None else [(row["low"], row["high"])],
        )
        for row in finite
    ]
    name, ends = "accuracy" if measure == "accuracy" else "RMSE", _ends(finite)
    flat = [
        Series(f"{row['label']} (nothing is certified)", [(end, row["value"]) for end in ends], "dashed")
        for row in rows if row["value"] is not None and row["epsilon"] == "inf"
    ]  # fmt: skip
    return [
        Chart(
            f"{name[0].upper()}{name[1:]} against certified epsilon",
            "certified epsilon",
            name,
            [*series, *flat],
            percent=measure == "accuracy",
            log=ends[1] > 3 * ends[0],
            x_range=(ends[0] / 1.2, ends[1] * 1.2),
            caption="Bars: 95 % intervals." if any(one.bars for one in series) else "",
        )
    ]


def _ends(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    values = [row["epsilon"] for row in rows]
    return min(values), max(values)


def write_charts(path: Path, charts: Sequence[Chart], title: str) -> None:
    """Charts side by side as a file; its suffix says in which format.

    Args:
        path: of the file, replaced if it is there.
        charts: at least one.
        title: above them.
    """
    check_plot(path)
    across = min(len(charts), 2)
    down = -(-len(charts) // across)
    figure: Any = _FIGURE(figsize=(5.4 * across, 3.9 * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flat
    for axes, chart in itertools.zip_longest(panels, charts):
        if chart is None:
            axes.set_visible(False)
        else:
            _draw(axes, chart)
    figure.suptitle(title, fontsize="medium", parse_math=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as staging:
        figure.savefig(staging, dpi=150, format=path.suffix[1:].lower(), metadata=_undated(path))


def _scale_by_factors(axes: Any, values: Sequence[float]) -> None:
    """A logarithmic axis whose marks are plain numbers: matplotlib's own has powers of ten, and shares in percent beside."""
    axes.set_xscale("log")
    several = (1, 2, 5) if max(values) > 10 * min(values) else (1, 2, 3, 4, 5, 6, 8)
    axes.xaxis.set_major_locator(_MARKS(subs=several))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(_NO_MARKS())


def _undated(path: Path) -> dict[str, None]:
    """A file of the same charts is the same file."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower(), {})


def _draw(axes: Any, chart: Chart) -> None:
    styles = {"line": "-", "marked": "o-", "dashed": "--", "dotted": ":"}
    for number, one in enumerate(chart.series):
        x, y = zip(*one.points, strict=True)
        if one.style == "dots":
            bars = [
                [y[at] - low for at, (low, _) in enumerate(one.bars)],
                [high - y[at] for at, (_, high) in enumerate(one.bars)],
            ]
            axes.errorbar(x, y, yerr=bars if one.bars else None, fmt="o", color=f"C{number % 10}", label=one.name)
        else:
            colour = "0.6" if one.style == "dotted" else f"C{number % 10}"
            axes.plot(x, y, styles[one.style], color=colour, label=one.name, markersize=4)
    axes.set_title(chart.title, fontsize="medium", parse_math=False)
    axes.set_xlabel(chart.x, parse_math=False)
    axes.set_ylabel(chart.y, parse_math=False)
    if chart.log:
        _scale_by_factors(axes, [x for one in chart.series for x, _ in one.points])
    for axis, share in ((axes.xaxis, chart.percent_x), (axes.yaxis, chart.percent)):
        if share:
            axis.set_major_formatter(lambda value, _: f"{100 * value:.4g} %")
    for limit, ends in ((axes.set_xlim, chart.x_range), (axes.set_ylim, chart.y_range)):
        if ends is not None:
            limit(*ends)
    axes.grid(color="0.9")
    if len(chart.series) > 1:
        for text in axes.legend(fontsize="small", frameon=False).get_texts():
            text.set_parse_math(False)
