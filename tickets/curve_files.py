"""Privacy curves as files: CSV for programs, PNG, SVG or PDF for people."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dpltm.errors import ArtifactError
from dpltm.tickets.files import check_free, check_writable, replaced

if TYPE_CHECKING:
    from dpltm.privacy.trade_off import Curves

PLOTS = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Raises ArtifactError unless ``path`` names a kind of picture that can be written."""
    if path.suffix.lower() not in PLOTS:
        raise ArtifactError(f"{path}: not a picture; let its name end in {', '.join(PLOTS)}")


def new_picture(plot: str | None) -> Path | None:
    """The file that `plot` names, which can be written once there is something to draw; None where nothing is to be drawn.

    Raises:
        ArtifactError: a file that is there already, cannot be written, or is of no known format.
    """
    if plot is None:
        return None
    path = Path(plot)
    check_free(path, "plot")
    check_plot(path)
    check_writable(path)
    return path


def write_csv(path: Path, curves: Curves) -> None:
    """Columns ``curve,x,y``: ``delta`` over epsilon, ``misses`` and, if there is one, ``misses_gdp`` over false alarms."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(("curve", "x", "y"))
    series = [("delta", curves.epsilons, curves.deltas), ("misses", curves.false_alarms, curves.misses)]
    if curves.misses_gdp is not None:
        series.append(("misses_gdp", curves.false_alarms, curves.misses_gdp))
    for name, x, y in series:
        writer.writerows((name, repr(float(a)), repr(float(b))) for a, b in zip(x, y, strict=True))
    _put(path, lambda staging: staging.write_text(table.getvalue(), encoding="utf-8"))


def write_plot(path: Path, curves: Curves, title: str) -> None:
    """Two panels: the trade-off function, with G_mu beside it, and delta over epsilon.

    Args:
        path: of the file; its suffix says in which format.
        curves: what is drawn.
        title: above both panels.

    Raises:
        ArtifactError: a suffix of no known format.
    """
    check_plot(path)
    from matplotlib.figure import Figure

    from dpltm.privacy import gdp
    from dpltm.privacy.trade_off import MIN_DELTA

    figure = Figure(figsize=(9.6, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.fill_between(curves.false_alarms, curves.misses, color="tab:blue", alpha=0.12, linewidth=0)
    left.plot(curves.false_alarms, curves.misses, color="tab:blue", label="certified: no attacker is below")
    if curves.misses_gdp is not None:
        left.plot(
            curves.false_alarms, curves.misses_gdp, color="tab:orange", linestyle="--",
            label=f"nominal: $G_\\mu$, $\\mu$ = {curves.mu:.3g}",
        )  # fmt: skip
    left.plot((0, 1), (1, 0), color="0.6", linewidth=1, linestyle=":", label="nothing learnt")
    left.set(xlabel="false alarms (type I error)", ylabel="misses (type II error)", xlim=(0, 1), ylim=(0, 1))
    left.set_aspect("equal")
    left.legend(loc="upper right", fontsize="small", frameon=False)
    shown = curves.deltas > 0
    right.semilogy(curves.epsilons[shown], curves.deltas[shown], color="tab:blue")
    if curves.mu is not None:
        nominal = [gdp.delta(epsilon, curves.mu) for epsilon in curves.epsilons]
        right.plot(curves.epsilons, nominal, color="tab:orange", linestyle="--")
    right.set(xlabel="epsilon", ylabel="delta", xlim=(0, None), ylim=(MIN_DELTA, 1))
    right.grid(color="0.9")
    figure.suptitle(title, fontsize="medium")
    _put(path, lambda staging: figure.savefig(staging, dpi=150, format=path.suffix[1:].lower()))


def _put(path: Path, write: Callable[[Path], object]) -> None:
    """Writes beside ``path``, then moves: whoever looks sees the whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as staging:
        write(staging)
