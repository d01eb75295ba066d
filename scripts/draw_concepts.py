"""Draws the pictures of docs/concepts.md: what a ticket is, a step of private training, and what an attacker can do.

python scripts/draw_concepts.py
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm

DOCS = Path(__file__).resolve().parents[1] / "docs"
LAYERS = (4, 4, 2)
"""Units of the network that is drawn."""

BLUE, RED, GREY = "#1f5c99", "#a33b20", "#bbbbbb"
matplotlib.rcParams.update({"svg.hashsalt": "dpltm", "font.size": 9, "svg.fonttype": "path"})


def save(figure: plt.Figure, name: str) -> None:
    figure.savefig(DOCS / name, bbox_inches="tight", facecolor="white", metadata={"Date": None})
    plt.close(figure)


def network(axes: plt.Axes, weights: list[np.ndarray], color: str, live: list[np.ndarray] | None = None) -> None:
    """Units as dots; weights as lines, as thick as they are large; none where they are not live."""
    height = max(LAYERS)
    at = [[(2 * place, (height - count) / 2 + unit) for unit in range(count)] for place, count in enumerate(LAYERS)]
    for place, matrix in enumerate(weights):
        for source, start in enumerate(at[place]):
            for target, end in enumerate(at[place + 1]):
                if live is None or live[place][source, target]:
                    width = 0.3 + 2.6 * abs(matrix[source, target])
                    axes.plot(*zip(start, end, strict=True), color=color, lw=width, zorder=1)
    for layer in at:
        axes.scatter(*zip(*layer, strict=True), s=70, color="white", edgecolor="#333333", zorder=2)
    axes.set_xlim(-0.4, 4.4)
    axes.set_ylim(-0.6, height - 0.4)
    axes.axis("off")


def ticket() -> None:
    """Train, drop, rewind."""
    draw = np.random.default_rng(5)
    first = [draw.uniform(-0.45, 0.45, shape) for shape in pairwise(LAYERS)]
    trained = [matrix + draw.uniform(-0.75, 0.75, matrix.shape) for matrix in first]
    live = [abs(matrix) > np.quantile(abs(matrix), 0.6) for matrix in trained]
    panels = (
        ("1. starting weights", first, GREY, None),
        ("2. train", trained, BLUE, None),
        ("3. drop the smallest: the mask", trained, BLUE, live),
        ("4. back to the start: a ticket", first, GREY, live),
    )
    figure, axes = plt.subplots(1, 4, figsize=(9.6, 2.3))
    for each, (title, weights, color, kept) in zip(axes, panels, strict=True):
        network(each, weights, color, kept)
        each.set_title(title, size=9)
    save(figure, "concept_ticket.svg")


def step() -> None:
    """Gradients of records, clipped, summed and noised."""
    draw = np.random.default_rng(3)
    gradients = draw.normal([0.55, 0.35], 0.55, (9, 2))
    gradients[4] = (2.1, -1.5)
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    clipped = gradients * np.minimum(1, 0.8 / norms)
    total = clipped.sum(0)
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 2.9))
    for each, arrows, title in (
        (axes[0], gradients, "one gradient for each record"),
        (axes[1], clipped, "each clipped to norm C"),
    ):
        for place, (x, y) in enumerate(arrows):
            color = RED if place == 4 else BLUE
            each.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "-|>", "color": color, "lw": 1.2})
        each.add_patch(plt.Circle((0, 0), 0.8, fill=False, ls=":", color="#555555"))
        each.set_xlim(-1.3, 2.4)
        each.set_ylim(-1.7, 1.7)
        each.set_title(title, size=9)
    cloud = draw.normal(total, 0.9, (400, 2))
    axes[2].scatter(*cloud.T, s=4, color=GREY)
    for start, end, color in (((0, 0), total, BLUE), ((0, 0), total - clipped[4], RED)):
        axes[2].annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": color, "lw": 1.6})
    axes[2].set_title(
        "the sum with one record (blue) and without (red),\nand the noise that hides which it was", size=9
    )
    axes[2].set_xlim(-1, 7.5)
    axes[2].set_ylim(-2.5, 5)
    for each in axes:
        each.set_aspect("equal")
        each.set_xticks([])
        each.set_yticks([])
    save(figure, "concept_step.svg")


def guess() -> None:
    """What an attacker sees, and what can be made of it."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.2))
    x = np.linspace(-4, 5, 400)
    for mean, color, label in ((0, BLUE, "without Ann's record"), (1, RED, "with it")):
        left.plot(x, norm.pdf(x, mean), color=color, label=label)
    left.axvline(1.2, color="#555555", ls=":")
    left.fill_between(x[x > 1.2], norm.pdf(x[x > 1.2]), color=BLUE, alpha=0.25)
    left.fill_between(x[x < 1.2], norm.pdf(x[x < 1.2], 1), color=RED, alpha=0.15)
    left.annotate("misses", (0.3, 0.1), color=RED, ha="center")
    left.annotate("false alarms", (1.75, 0.02), (2.6, 0.16), color=BLUE, arrowprops={"arrowstyle": "-", "color": BLUE})
    left.set_ylim(0, 0.55)
    left.set_yticks([])
    left.set_xlabel("what is released")
    left.legend(loc="upper left", frameon=False)
    alarms = np.linspace(1e-4, 1 - 1e-4, 400)
    for mu, style in ((0, "-"), (0.5, "--"), (1, "-."), (3, ":")):
        label = "no better than guessing" if mu == 0 else f"shifted by {mu:g} standard deviations"
        right.plot(alarms, norm.cdf(norm.isf(alarms) - mu), style, color="#333333", label=label)
    right.set_xlabel("false alarms")
    right.set_ylabel("misses")
    right.set_xlim(0, 1)
    right.set_ylim(0, 1)
    right.legend(frameon=False)
    save(figure, "concept_guess.svg")


if __name__ == "__main__":
    ticket()
    step()
    guess()
