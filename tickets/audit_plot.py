"""Figures of audits: claims, certificates and lower bounds on one axis of epsilon; an attack beside what is certified."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpltm.privacy.figures import figure as figure_text
from dpltm.privacy.trade_off import curves
from dpltm.tickets.curve_files import check_plot
from dpltm.tickets.files import replaced

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dpltm.audit.black_box import Membership
    from dpltm.privacy.mechanisms import NoisySgd

ENDS = (0.05, 1e3)
"""Of the axis of epsilon; a claim beyond is an arrow there, with its figure."""

STYLES = {
    "certified": ("|", "tab:blue", "certified"),
    "nominal": ("x", "tab:orange", "nominal: claimed, not proven"),
    "lower_bound": (">", "tab:red", "audit: epsilon is at least"),
}
"""Marker, colour and name in the legend."""


def write_audit_plot(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Draws one line a row: lower bounds rounded down, claims up.

    Args:
        path: of the file; its suffix says in which format (``curve_files.check_plot``).
        rows: ``audited``, ``nominal``, ``certified`` and ``lower_bound`` of each; epsilons, ``inf`` as a text or None.
    """
    figure = _figure(8, 1.3 + 0.6 * len(rows))
    axes = figure.subplots()
    axes.set(xscale="log", xlim=ENDS, ylim=(-0.6, len(rows) - 0.3), xlabel="epsilon")
    for place, row in enumerate(reversed(rows)):
        open_from, certified = max(float(row["lower_bound"]), ENDS[0]), min(float(row["certified"]), ENDS[1])
        if open_from < certified:
            axes.plot([open_from, certified], [place] * 2, color="0.85", lw=6, zorder=1, label="left open",
                      solid_capstyle="butt")  # fmt: skip
        for name in STYLES:
            if row[name] is not None:
                _mark(axes, name, float(row[name]), place)
    axes.set_yticks(range(len(rows)), [row["audited"] for row in reversed(rows)])
    axes.grid(axis="x", color="0.93")
    axes.set_axisbelow(True)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        *zip(*dict(zip(labels, zip(handles, labels, strict=True), strict=True)).values(), strict=True),
        loc="outside upper center", ncols=4, frameon=False, fontsize="small",
    )  # fmt: skip
    with replaced(path) as staging:
        figure.savefig(staging, dpi=150, format=path.suffix[1:].lower())


def _mark(axes: Axes, name: str, value: float, place: int) -> None:
    """One epsilon with its figure; at the end of the axis an arrow stands for a claim beyond it."""
    marker, colour, label = STYLES[name]
    text = label_of(name, value)
    inside = ENDS[0] <= value <= ENDS[1]
    at = ([value], [place]) if inside else ([], [])  # the legend names what is beyond, too
    axes.plot(*at, marker, color=colour, markersize=11, markeredgewidth=2.5, label=label, zorder=2)
    if inside:
        axes.annotate(text, (value, place), (0, 9), textcoords="offset points", ha="center", fontsize="small")
    elif name != "lower_bound":
        right = value > ENDS[1]
        end, tail = (ENDS[1], ENDS[1] / 2) if right else (ENDS[0], ENDS[0] * 2)
        down, up = (0.0, 7) if name == "certified" else (0.22, -14)  # so that both claims may be beyond one end
        arrow = {"arrowstyle": "-|>", "color": colour, "lw": 2.5, "mutation_scale": 16, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (end, place - down), (tail, place - down), arrowprops=arrow)
        axes.annotate(
            text, (end, place - down), (-4 if right else 4, up), textcoords="offset points",
            ha="right" if right else "left", fontsize="small",
        )  # fmt: skip


def label_of(name: str, value: float) -> str:
    """A figure as it is drawn: a lower bound never larger than it is, a claim never smaller."""
    if 1000 <= value < math.inf:
        return f"{math.ceil(value):,}"
    return figure_text(value, 3, down=name == "lower_bound")


def write_roc_plot(path: Path, found: Membership, mechanism: NoisySgd, title: str) -> None:
    """Draws the tests of an attack, with their intervals, beside the certified trade-off curve and the nominal one.

    Args:
        path: of the file, .png, .svg or .pdf.
        found: by the attack.
        mechanism: of the training, as it is certified; its nominal sensitivity, where it has one, gives the nominal curve.
        title: above.

    Raises:
        ArtifactError: a suffix of no known format.
        InputError: nothing can be certified.
    """
    check_plot(path)
    figure = _figure(6.4, 5.2)
    axes = figure.subplots()
    claims = [("certified: no attack is above", "tab:blue", "-", mechanism)]
    if mechanism.nominal_sensitivity not in (None, mechanism.sensitivity):
        believed = replace(mechanism, sensitivity=mechanism.nominal_sensitivity, nominal_sensitivity=None)
        claims.append(("nominal: claimed, not proven", "tab:orange", "--", believed))
    for label, colour, line, claim in claims:
        curve = curves((claim,))
        axes.plot(curve.false_alarms, 1 - curve.misses, color=colour, linestyle=line, label=label)
    alarms, hits = (np.array([getattr(point, side) for point in found.points]).T for side in ("false_alarms", "hits"))
    across, along = (np.abs(shares[1:] - shares[0]) for shares in (alarms, hits))
    axes.errorbar(
        alarms[0], hits[0], along, across, "o", color="tab:red", capsize=3, label="attack, with 95 % intervals"
    )
    chance = np.geomspace(1e-4, 1)
    axes.plot(chance, chance, color="0.6", linewidth=1, linestyle=":", label="nothing learnt")
    axes.set(xscale="log", xlim=(5e-4, 1), ylim=(0, 1.02), xlabel="false alarms", ylabel="hits", title=title)
    axes.grid(color="0.93")
    axes.legend(loc="lower right", fontsize="small", frameon=False)
    with replaced(path) as staging:
        figure.savefig(staging, dpi=150, format=path.suffix[1:].lower())


def _figure(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
