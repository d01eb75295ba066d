"""The figure of an audit: what is claimed, what is certified, and the lower bound, on one axis of epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpltm.tickets.files import replaced

LARGEST = 1e3
"""Epsilon at the right end; what is above stands there, with its figure."""


def write_audit_plot(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Draws one line a row.

    Args:
        path: of the file; its suffix says in which format (``curve_files.check_plot``).
        rows: ``audited``, ``nominal``, ``certified`` and ``lower_bound`` of each; epsilons, ``inf`` as a text or None.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.3 + 0.55 * len(rows)), layout="constrained")
    axes = figure.subplots()
    styles = {
        "certified": ("|", "tab:blue", "certified"),
        "nominal": ("x", "tab:orange", "nominal: claimed, not proven"),
        "lower_bound": (">", "tab:red", "audit: epsilon is at least"),
    }
    for place, row in enumerate(reversed(rows)):
        bound = float(row["lower_bound"])
        axes.plot(
            [max(bound, 0.01), LARGEST * 2], [place, place], color="0.85", linewidth=6, zorder=1, label="left open"
        )
        for name, (marker, colour, label) in styles.items():
            if row[name] is None:
                continue
            value = float(row[name])
            at = min(max(value, 0.01), LARGEST)
            axes.plot(at, place, marker, color=colour, markersize=11, markeredgewidth=2.5, label=label, zorder=2)
            beyond = f"{value:,.0f}" if value > LARGEST else f"{value:.3g}"
            axes.annotate(beyond, (at, place), (0, 9), textcoords="offset points", ha="center", fontsize="small")
    # a claim beyond the right end stands at it, with its figure
    axes.set(xscale="log", xlim=(0.05, LARGEST * 2), ylim=(-0.6, len(rows) - 0.3), xlabel="epsilon")
    axes.set_yticks(range(len(rows)), [row["audited"] for row in reversed(rows)])
    axes.grid(axis="x", color="0.93")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        *zip(*dict(zip(labels, zip(handles, labels, strict=True), strict=True)).values(), strict=True),
        loc="outside upper center", ncols=4, frameon=False, fontsize="small",
    )  # fmt: skip
    with replaced(path) as staging:
        figure.savefig(staging, dpi=150, format=path.suffix[1:].lower())
