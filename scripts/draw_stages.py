"""Draws docs/stages.png: the three stages, what moves between them, and the one ledger beneath.

python scripts/draw_stages.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

OUT = Path(__file__).resolve().parents[1] / "docs" / "stages.png"
STAGES = (
    (1.5, "generate", "train, prune, rewind,\nround after round", "public records,\nor none"),
    (5.5, "select", "draw the winner by the\nexponential mechanism", "private records"),
    (9.5, "train", "DP-SGD on the live\nweights alone", "private records"),
)
BETWEEN = ((3.5, "ticket set"), (7.5, "winner"))


def box(axes: plt.Axes, x: float, y: float, size: tuple[float, float], color: str) -> None:
    width, height = size
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0.08", fc=color, ec="#333333"
        )
    )


def arrow(axes: plt.Axes, start: tuple[float, float], end: tuple[float, float], color: str = "#333333") -> None:
    axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "-|>", "color": color, "lw": 1.4})


def main() -> None:
    figure, axes = plt.subplots(figsize=(9.6, 3.9))
    for x, name, what, records in STAGES:
        axes.text(
            x, 4.35, records, ha="center", va="center", color="#1f5c99" if "private" not in records else "#a33b20"
        )
        arrow(axes, (x, 4.0), (x, 3.42))
        box(axes, x, 2.75, (2.5, 1.1), "#f3f1ea")
        axes.text(x, 3.05, name, ha="center", va="center", weight="bold", size=12)
        axes.text(x, 2.57, what, ha="center", va="center", size=9)
        arrow(axes, (x, 2.08), (x, 1.14), "#888888")
    for x, name in BETWEEN:
        arrow(axes, (x - 0.62, 2.75), (x + 0.62, 2.75))
        axes.text(x, 3.0, name, ha="center", va="bottom", size=9)
    arrow(axes, (10.87, 2.75), (12.1, 2.75))
    axes.text(11.45, 3.0, "run", ha="center", va="bottom", size=9)
    for x, text in ((1.5, "where they\ncome from"), (5.5, "eps1"), (9.5, "noise, steps,\nsampling")):
        axes.text(x + 0.12, 1.62, text, ha="left", va="center", size=8, color="#555555")
    box(axes, 5.5, 0.72, (10.6, 0.62), "#e5ecf3")
    axes.text(
        5.5, 0.72, "one ledger: certified epsilon, and beneath it what the papers claim", ha="center", va="center"
    )
    axes.set_xlim(0, 12.3)
    axes.set_ylim(0.2, 4.8)
    axes.axis("off")
    figure.savefig(OUT, dpi=130, bbox_inches="tight", metadata={"Software": None})


if __name__ == "__main__":
    main()
