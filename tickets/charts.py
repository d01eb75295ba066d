"""Charts and pictures, drawn by matplotlib: as SVG inside a page, or as files of their own (PNG, SVG or PDF)."""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import itertools
import json
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpltm.errors import ArtifactError, DpltmError
from dpltm.filters import FILTERS, make_filter
from dpltm.privacy.describe import figure as figure_text
from dpltm.privacy.trade_off import MIN_DELTA, Curves
from dpltm.registry import Deferred
from dpltm.tickets.files import check_free, check_writable, read_bytes, replaced

if TYPE_CHECKING:
    from dpltm.training.artifacts import TicketSet

_FIGURE, _RC = Deferred("matplotlib.figure:Figure"), Deferred("matplotlib:rc_context")
_MARKS, _IMSAVE = Deferred("matplotlib.ticker:LogLocator"), Deferred("matplotlib.image:imsave")
_LINSPACE, _TENSOR = Deferred("torch:linspace"), Deferred("torch:from_numpy")
_MEANS = Deferred("torch.nn.functional:adaptive_avg_pool2d")

PLOTS = (".png", ".svg", ".pdf")

COLOURS = {"blue": "#0a58a5", "orange": "#9a4a00", "green": "#17653b", "violet": "#6b3fa0"}
TEXT, SOFT, LINE = "#1b1f24", "#505a64", "#d5dae0"
"""Colours of a page on white; inside a page the variables of its style take their place, on dark ones too."""

TITLE = 60
"""Letters of a title above a chart; a longer one goes on below."""

FEW = 3
"""Lines of a legend that find room among the curves; more stand below."""

EVERY = 6
"""Of the points of a trade-off function: as many as can be told apart."""

SIDE = 160
"""Points of a picture of a mask, at most, along either side; larger masks are averaged."""

MAX_METRICS = 2**26
"""No run notes more bytes than this."""

EPSILONS = (0.05, 1e3)
"""Ends of the axis of an audit."""

CLAIMS = {
    "certified": ("|", "tab:blue", "certified: proven"),
    "nominal": ("x", "tab:orange", "nominal: claimed, not proven"),
    "lower_bound": (">", "tab:red", "at least: by the audit"),
}
"""Marker, colour and name in the legend of an audit."""

Pairs = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Series:
    """Points that belong together, of one name in the legend.

    Attributes:
        style: of matplotlib; ``o`` for points alone, ``:`` for a line that is there for comparison only.
        spread: low and high of each point, drawn as bars of points or as a band around a line; empty for none.
    """

    name: str
    points: Pairs
    style: str = "-"
    spread: Pairs = ()


@dataclass(frozen=True)
class Chart:
    """A chart: its ``title`` is also for people who hear it, its ``caption`` a sentence below."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    axes: Mapping[str, Any] = field(default_factory=dict)
    caption: str = ""

    def svg(self) -> str:
        """Return the chart as an SVG element for a page; every text in it is a text, and escaped."""
        text = io.StringIO()
        with _RC({"svg.fonttype": "none", "svg.hashsalt": self.title}):  # ids of charts on one page differ
            figure = _FIGURE(figsize=(5.0, _height([self], 3.3)), layout="constrained")
            axes = figure.subplots()
            for patch in (figure.patch, axes.patch):  # the page has its own background
                patch.set_visible(False)
            _draw(axes, replace(self, title=""))
            axes.tick_params(which="both", length=0)  # lines go through the whole chart
            figure.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        head, _, drawn = text.getvalue().partition("<svg ")[2].partition(">")
        (box,) = re.findall(r'viewBox="[^"]*"', head)
        drawn = re.sub(r'<!--.*?-->|<style.*?</style>|(?<=<g) id="[^"]*"', "", drawn, flags=re.DOTALL)
        drawn = re.sub(r' font-family: [^;"]*;?| transform="rotate\(-0 [^"]*"', "", drawn)  # fonts are the page's own
        drawn = re.sub(r"<[^>]*>", lambda tag: _PLACE.sub(_rounded, re.sub("([:;]) ", r"\1", tag[0])), drawn)
        drawn = _ungrouped(drawn)
        drawn = re.sub(r"\s+", " ", drawn).replace("> <", "><").replace("xlink:href", "href")
        for name, colour in {**COLOURS, "text": TEXT, "soft": SOFT, "line": LINE}.items():
            drawn = drawn.replace(colour, f"var(--{name})")
        return f'<svg {box} role="img" aria-label="{escape(self.title)}">{drawn}'


_PLACE = re.compile(r"(?<![#\w.])-?\d+\.\d+")


def _rounded(place: re.Match[str]) -> str:
    """To a tenth of a point, which nobody sees, and which halves a chart."""
    return f"{float(place[0]):.1f}".removesuffix(".0")


def _ungrouped(drawn: str) -> str:
    """Without groups that say nothing: those without attributes."""
    kept, pieces = list[bool](), list[str]()
    for piece in re.split(r"(<g\b[^>]*>|</g>)", re.sub(r"<g\s*/>", "", drawn)):
        if piece.startswith("<g"):
            kept.append(piece.strip("<g >") != "")
        keep = kept[-1] if piece.startswith("<g") else kept.pop() if piece == "</g>" else True
        pieces += [piece] if keep else []
    return "".join(pieces)


def _height(charts: Sequence[Chart], height: float) -> float:
    return height + 0.2 * max((len(chart.series) for chart in charts if len(chart.series) > FEW), default=0)


def _draw(axes: Any, chart: Chart) -> None:
    colours = list(COLOURS.values()) if len(chart.series) <= len(COLOURS) else [f"C{number}" for number in range(10)]
    finite, log = list[float](), chart.axes.get("xscale") == "log"
    for one, colour in zip(chart.series, itertools.cycle(colours), strict=False):
        values = np.array(one.points, float).reshape(-1, 2)
        known = np.isfinite(values).all(1) & ((values[:, 0] > 0) | (not log))
        (x, y), spread = values[known].T, np.array(one.spread, float).reshape(-1, 2)[known if one.spread else slice(0)]
        finite.extend(x)
        if one.style == "o":
            axes.errorbar(x, y, np.abs(spread.T - y) if len(spread) else None, fmt="o", color=colour, label=one.name)
            continue
        axes.plot(x, y, one.style, color=SOFT if one.style == ":" else colour, label=one.name, markersize=4)
        if len(spread):
            axes.fill_between(x, *spread.T, color=colour, alpha=0.15, linewidth=0)
    axes.set_title(chart.title, fontsize="medium")
    axes.set(xlabel=chart.x, ylabel=chart.y, **({} if log and not finite else chart.axes))
    if log and finite:  # matplotlib's own marks are powers of ten
        several = (1, 2, 5) if max(finite) > 10 * min(finite) else (1, 2, 3, 4, 5, 6, 8)
        axes.xaxis.set_major_locator(_MARKS(subs=several))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.minorticks_off()
    axes.grid(color=LINE)
    axes.set_axisbelow(True)
    axes.tick_params(colors=LINE, labelcolor=TEXT)
    for side, spine in axes.spines.items():
        spine.set(color=SOFT, visible=side in ("left", "bottom"))
    below = {"loc": "upper left", "bbox_to_anchor": (0, -0.18)} if len(chart.series) > FEW else {}
    legend = axes.legend(fontsize="small", frameon=False, **below) if len(chart.series) > 1 else None
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label, *([] if legend is None else legend.get_texts())):
        text.set(color=TEXT, parse_math=False)  # names are people's: no $ in them begins a formula


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
    across = min(len(charts), 2)
    down = -(-len(charts) // across)
    figure = _FIGURE(figsize=(5.4 * across, _height(charts, 3.9) * down), layout="constrained")
    for axes, chart in itertools.zip_longest(figure.subplots(down, across, squeeze=False).flat, charts):
        if chart is None:
            axes.set_visible(False)
        else:
            _draw(axes, chart)
    figure.suptitle(textwrap.fill(title, TITLE * across), fontsize="medium", parse_math=False)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    undated: dict[str, dict[str, None]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with replaced(path) as staging, _RC({"svg.hashsalt": "dpltm"}):
        kind = path.suffix.lower()
        figure.savefig(staging, dpi=150, format=kind[1:], metadata=undated.get(kind))


def write_csv(path: Path, curves: Curves) -> None:
    """Columns ``curve,x,y``: ``delta`` over epsilon, ``misses`` and, if there is one, ``misses_gdp`` over false alarms."""
    series = [("delta", curves.epsilons, curves.deltas), ("misses", curves.false_alarms, curves.misses)]
    if curves.misses_gdp is not None:
        series.append(("misses_gdp", curves.false_alarms, curves.misses_gdp))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as staging, staging.open("w", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("curve", "x", "y"))
        for name, x, y in series:
            writer.writerows((name, repr(float(a)), repr(float(b))) for a, b in zip(x, y, strict=True))


# --- what there is to draw --------------------------------------------------------------------------------------------


def trade_off(curves: Curves) -> Chart:
    """Return the chart of a trade-off function, with the nominal one beside it."""

    def line(name: str, misses: np.ndarray, style: str) -> Series:
        points = list(zip((100 * curves.false_alarms).tolist(), (100 * misses).tolist(), strict=True))
        return Series(name, [*points[::EVERY], points[-1]], style)

    series = [line("certified: no attacker is below", curves.misses, "-")]
    if curves.misses_gdp is not None:
        series.append(line(f"nominal: G with mu {curves.mu or 0.0:.3g}", curves.misses_gdp, "--"))
    series.append(Series("nothing learnt", [(0.0, 100.0), (100.0, 0.0)], ":"))
    caption = "The nearer the curve is to the dotted line, the less an attacker can tell."
    ends = {"xlim": (0, 100), "ylim": (0, 100)}
    return Chart("What an attacker must miss", "false alarms, %", "misses, %", series, ends, caption)


def deltas(curves: Curves) -> Chart:
    """Return the chart of the certified delta over epsilon."""
    points = [pair for pair in zip(curves.epsilons.tolist(), curves.deltas.tolist(), strict=True) if pair[1] > 0]
    axes = {"yscale": "log", "xlim": (0, float(curves.epsilons[-1])), "ylim": (MIN_DELTA, 1)}
    series = [Series("certified", points or [(0.0, MIN_DELTA)])]
    return Chart("Certified delta over epsilon", "epsilon", "delta", series, axes)


def over_steps(metrics: Mapping[int, tuple[float | None, float]], measure: str) -> list[Chart]:
    """Return accuracy (or RMSE), and certified epsilon, over the steps of a training; without what was not measured."""
    noted, scale = sorted(metrics.items()), scale_of(measure)
    measured = [(float(step), scale * value) for step, (value, _) in noted if value is not None]
    spent = Series("certified epsilon", [(float(step), epsilon) for step, (_, epsilon) in noted], "o-")
    return _over_steps([Series(measure, measured, "o-")] if measured else [], [spent], measure)


def _over_steps(measured: Sequence[Series], spent: Sequence[Series], measure: str) -> list[Chart]:
    charts = [Chart(f"{NAMES[measure]} over steps", "step", LABELS[measure], measured)] if measured else []
    if most := max((y for one in spent for _, y in one.points if y < math.inf), default=0.0):
        caption, ends = "What all entries would cost, had the training ended at that step.", (0.0, most * 1.05)
        charts.append(Chart("Certified epsilon over steps", "step", "epsilon", spent, {"ylim": ends}, caption))
    return charts


NAMES, LABELS = {"accuracy": "Accuracy", "rmse": "RMSE"}, {"accuracy": "accuracy, %", "rmse": "RMSE"}
"""Of measures, in titles and along axes."""


def scale_of(measure: str) -> float:
    """Return what a measure is multiplied by along its axis."""
    return 100.0 if measure == "accuracy" else 1.0


def seeds_over_steps(arms: Mapping[str, Sequence[Path]], measure: str) -> list[Chart]:
    """Return the charts of the arms of a sweep over steps: mean over seeds, least to most, and the largest epsilon.

    A run whose notes are missing or damaged is left out, and the name of its arm says so.
    """
    measured, spent = [], []
    for name, runs in arms.items():
        readable = [metrics for run in runs if (metrics := read_metrics(run / "metrics.jsonl", measure)) is not None]
        steps = sorted(set.intersection(*(set(metrics) for metrics in readable))) if readable else []
        if not steps:
            continue
        missing = f" ({len(readable)} of {len(runs)} seeds)" if len(readable) < len(runs) else ""
        values = {step: [scale_of(measure) * metrics[step][0] for metrics in readable] for step in steps}
        means = [(float(step), sum(row) / len(row)) for step, row in values.items()]
        measured.append(Series(name + missing, means, "o-", [(min(row), max(row)) for row in values.values()]))
        epsilons = [(float(step), max(metrics[step][1] for metrics in readable)) for step in steps]
        bare = "" if math.isfinite(epsilons[-1][1]) else ": nothing is certified"
        spent.append(Series(name + bare, epsilons, "o-"))
    return _over_steps(measured, spent, measure) if measured else []


def read_metrics(path: Path, measure: str) -> dict[int, tuple[float, float]] | None:
    """Return what a run noted, by step: its measure and certified epsilon; None if the file is missing or damaged."""
    metrics = {}
    try:
        for line in read_bytes(path, MAX_METRICS, 1).decode().splitlines():
            body: Any = json.loads(line)
            if body.get(measure) is None:
                continue
            step, here, epsilon = body["step"], figure_in(body[measure]), figure_in(body["epsilon"])
            if type(step) is not int or figure_in(step) is None or here is None or epsilon is None:
                return None
            metrics[step] = (here, epsilon)
    except (ArtifactError, ValueError, KeyError, AttributeError, RecursionError):
        return None
    return metrics


def figure_in(value: object) -> float | None:
    """Return a number as ``json_figure`` writes it, from 0 on or the text ``inf``; None for anything else."""
    if isinstance(value, bool) or not (value == "inf" or (isinstance(value, (int, float)) and 0 <= value < 1e308)):
        return None
    return float(value)


def against_density(tickets: TicketSet) -> list[Chart]:
    """Return accuracy of the tickets of a set against their density; nothing where it is not known."""
    known = [(one.mask.density, one.accuracy) for one in tickets.body.tickets if one.accuracy is not None]
    series = [Series("tickets", [(100 * density, 100 * accuracy) for density, accuracy in known], "o-")]
    caption, axes = "Trained without noise on the records that they were made from.", {"xscale": "log"}
    title = "Accuracy of tickets against density"
    return [Chart(title, "density, %", LABELS["accuracy"], series, axes, caption)] if known else []


def filter_shape(options: Mapping[str, Any]) -> list[Chart]:
    """Return the curve of the gradient filter that the options of a run name; nothing for one that treats layers apart.

    Of a radial filter that is norm against norm, of an element-wise one value against value, without what clips in front.
    """
    with contextlib.suppress(DpltmError, TypeError, KeyError):
        named = FILTERS.find(options["filter"])
        filter = make_filter(
            named.name,
            **{one.name: options[one.name] for one in named.parameters if options.get(one.name) is not None},
        )
        if filter.kind == "radial":
            what, before = "norm of a gradient", _LINSPACE(0, 4.0 * filter.certified_bound(1), 161)
            after = before * filter.factor(before)
        elif filter.kind == "element-wise":
            reach = 4.0 * float(getattr(filter, "range", 1.0))
            what, before = "value of a coordinate", _LINSPACE(-reach, reach, 161)
            after = filter.map(before.clone())
        else:
            return []
        most = 1.3 * float(after.abs().max())  # where the dotted line ends
        least = 0.0 if filter.kind == "radial" else -most
        points = list(zip(before.tolist(), after.tolist(), strict=True))
        series = [Series(str(options["filter"]), points), Series("unchanged", [(least, least), (most, most)], ":")]
        return [Chart("Shape of the gradient filter", f"{what}, before", "after", series)]
    return []


def against_epsilon(rows: Sequence[Mapping[str, Any]], measure: str = "accuracy") -> list[Chart]:
    """Return accuracy (or rmse) against certified epsilon, for each row with ``value`` and ``epsilon``."""
    rows = [row for row in rows if row["value"] is not None]
    finite = [row for row in rows if isinstance(row["epsilon"], (int, float)) and row["epsilon"] > 0]
    if not finite:
        return []
    (least, most), scale = (pick(row["epsilon"] for row in finite) for pick in (min, max)), scale_of(measure)
    bars, series = any(row["low"] is not None for row in finite), []
    for row in finite:
        spread = [] if row["low"] is None else [(scale * row["low"], scale * row["high"])]
        series.append(Series(row["label"], [(row["epsilon"], scale * row["value"])], "o", spread))
    for row in (row for row in rows if row["epsilon"] == "inf"):
        ends = [(end, scale * row["value"]) for end in (least, most)]
        series.append(Series(f"{row['label']} (nothing is certified)", ends, "--"))
    axes = {"xlim": (least / 1.2, most * 1.2), **({"xscale": "log"} if most > 3 * least else {})}
    title, caption = f"{NAMES[measure]} against certified epsilon", "Bars: 95 % intervals." if bars else ""
    return [Chart(title, "certified epsilon", LABELS[measure], series, axes, caption)]


# --- audits -----------------------------------------------------------------------------------------------------------


def write_audit_plot(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Draw one line a row: lower bounds rounded down, claims up. A claim beyond the axis is told by its figure alone."""
    figure = _FIGURE(figsize=(8, 1.3 + 0.6 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.set(xscale="log", xlim=EPSILONS, ylim=(len(rows) - 0.5, -0.5), xlabel="epsilon")
    left, right = (np.clip([float(row[name]) for row in rows], *EPSILONS) for name in ("lower_bound", "certified"))
    axes.hlines(range(len(rows)), left, np.maximum(left, right), color="0.85", lw=6, zorder=1, label="left open")
    names = [row["audited"] for row in rows]
    for name, (marker, colour, label) in CLAIMS.items():
        values = [math.nan if row[name] is None else float(row[name]) for row in rows]
        axes.plot(values, range(len(rows)), marker, color=colour, ms=11, mew=2.5, label=label, zorder=2)
        for at, value in enumerate(values):
            names[at] += "" if math.isnan(value) else f"\n{label.partition(':')[0]} {label_of(name, value)}"
    axes.set_yticks(range(len(rows)), names, fontsize="small")
    axes.grid(axis="x", color=LINE)
    axes.set_axisbelow(True)
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize="small")
    _save(figure, path)


def label_of(name: str, value: float) -> str:
    """Return a figure as it is drawn: a lower bound never larger than it is, a claim never smaller."""
    if 1000 <= value < math.inf:
        return f"{math.ceil(value):,}"
    return figure_text(value, 3, down=name == "lower_bound")


# --- masks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Picture:
    """A picture of a mask, in a data URI that holds all of it; width and height are in points."""

    title: str
    data: str
    width: int
    height: int


def layer(name: str, mask: np.ndarray) -> Picture:
    """Return the mask of a weight: a row for each output, a column for each input, darker where more is live."""
    flat = _TENSOR(mask.reshape(len(mask), -1)).float()
    rows, columns = flat.shape
    small = _MEANS(flat[None], (min(rows, SIDE), min(columns, SIDE)))[0].numpy()
    return _picture(f"mask of {name}: {rows} outputs (rows) by {columns} inputs (columns)", small)


def first_layer(mask: np.ndarray, shape: tuple[int, ...] | None) -> Picture | None:
    """Return a picture of the pixels that the first layer of a network for images looks at.

    Args:
        shape: of an image, (height, width) or (height, width, channels); None where that is not known.

    Returns:
        Of a linear layer, the share of its units that look at each pixel; of a convolution, its kernels side by side. None
        where neither makes sense.
    """
    if mask.ndim == 4 and max(mask.shape[2:]) > 1:
        kernels = mask.mean(axis=1, dtype=np.float32)[:SIDE]
        count, across = len(kernels), math.ceil(math.sqrt(len(kernels)))
        down = math.ceil(count / across)
        sheet = np.pad(kernels, ((0, down * across - count), (0, 1), (0, 1)), constant_values=np.nan)
        height, width = sheet.shape[1:]
        sheet = sheet.reshape(down, across, height, width).swapaxes(1, 2).reshape(down * height, across * width)
        return _picture(f"{count} kernels of the first layer: darker where more channels are live", sheet[:-1, :-1])
    if mask.ndim != 2 or shape is None or mask.shape[1] != math.prod(shape):
        return None
    pixels = mask.mean(axis=0, dtype=np.float32).reshape(*shape[:2], -1).mean(axis=2)
    most = float(pixels.max())
    title = f"share of the first layer's units that look at each pixel: darkest {100 * most:.0f} %"
    return _picture(title, pixels / (most or 1.0))


def _picture(title: str, shares: np.ndarray) -> Picture:
    """Shares from 0 (nearly white) to 1 (dark blue); nan is transparent."""
    file = io.BytesIO()
    _IMSAVE(file, shares, vmin=0, vmax=1, cmap="Blues", metadata={"Software": "dpltm"})
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return Picture(title, f"data:image/png;base64,{data}", shares.shape[1], shares.shape[0])
