"""Whether tanh saturates, is unstable or keeps ascending over 60 epochs, a length of ours: accuracy over steps, finely.

    DPLTM_DATA=... python benchmarks/tanh_curves.py [--dataset mnist] [--arms clip ...] [--epochs 60] [--plot FILE]

The convolutional network trains at the paper's settings (sigma 1.1 of a claimed bound of 1, batches of 256 by Poisson
sampling, step size 0.15), under clip and under tanh as printed. Each fiftieth step is scored on 2,000 test records. Prints,
for each arm, means over seeds of accuracy after some epochs, of the best, and of the last ten measurements; the least of
each seed after five epochs; over the last third the swing, which is the root of half the mean square of changes from one
measurement to the next, and the slope, in points for 10 epochs. Samples and noise are of seeded generators here, which a
real run never has. ``dpltm run --config examples/papers/tanh-figure.toml`` trains by whole commands, measured ten times a
run.
"""

from __future__ import annotations

import argparse
import math
from functools import cache
from pathlib import Path

import numpy as np
import torch
from filtered_norms import BATCH, RATE, SIGMA
from torch import Tensor

from dpltm.filters import Filter, make_filter
from dpltm.networks import ModelSpec, build
from dpltm.networks.evaluation import accuracy
from dpltm.networks.masks import Mask
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.randomness.noise import FastSource
from dpltm.records import Public, Rows, load
from dpltm.records.batches import Records
from dpltm.records.scaling import scale
from dpltm.tickets.charts import Chart, Series, write_charts
from dpltm.training.descent import train
from dpltm.training.plan import NoisySteps

EVERY, SEEN = 50, 2000
EPOCHS = (1, 2, 5, 10, 20, 30, 40, 50, 60)
ARMS: dict[str, tuple[str, dict[str, float | bool]]] = {
    "clip": ("clip", {"clip_norm": 1.0}),
    **{
        f"tanh as printed, k = {k:g}, c = {c:g}": ("tanh", {"tanh_range": k, "tanh_scale": c, "no_pre_clip": True})
        for k, c in ((1.0, 1.0), (10.0, 1.0), (1.0, 0.5), (1.0, 2.0))
    },
}
"""Filters by name; the first three are the figure's, the others change the vertical range."""


@cache
def inputs(name: str) -> tuple[str, Tensor, Tensor, Tensor, Tensor]:
    """The network for a dataset; features and labels of its training records, and of the ``SEEN`` that are scored."""
    dataset, public = load(name), Public("a benchmark")
    parts: list[Tensor] = []
    for split in (dataset.train.open(public), dataset.test.open(public)):
        parts += [torch.from_numpy(scale(np.asarray(split.x), dataset.bounds)), torch.from_numpy(split.y)]
    x, y, test, labels = parts
    shape = dataset.train.shape if len(dataset.train.shape) == 3 else (*dataset.train.shape, 1)
    return "cnn:" + "x".join(map(str, shape)), x, y, test[:SEEN], labels[:SEEN]


def curve(name: str, filter: Filter, epochs: int, seed: int) -> np.ndarray:
    """Accuracy on test records in percent, after each ``EVERY`` steps."""
    network, x, y, test, labels = inputs(name)
    model = build(ModelSpec(network, x.shape[1], 10), seed)
    config = NoisySteps(filter, NoisySgd(BATCH / len(x), round(epochs * len(x) / BATCH), SIGMA), BATCH, RATE)
    found: list[float] = []

    def measure(step: int) -> None:
        if step % EVERY == 0:
            found.append(100 * accuracy(model, test, labels))

    records = Records(x, y, read=Rows(x.numpy(), y.numpy()))
    sampling, noise = FastSource(seed + 1000), FastSource(seed)
    train(model, Mask.dense(model), records, config, sampling=sampling, noise=noise, progress=measure)
    return np.array(found)


def told(found: np.ndarray, each: float) -> str:
    """One line on curves, ``(seeds, measurements)``, of which there are ``each`` an epoch."""
    at = {epoch: round(epoch * each) - 1 for epoch in EPOCHS}
    reached = ", ".join(
        f"{epoch}: {found[:, place].mean():.2f}" for epoch, place in at.items() if 0 <= place < found.shape[1]
    )
    last = found[:, -(found.shape[1] // 3) :]
    swing = math.sqrt((np.diff(last, axis=1) ** 2).mean() / 2)
    slope = np.polyfit(np.arange(last.shape[1]) / each, last.mean(0), 1)[0]
    best, end, least = found.max(1).mean(), last[:, -10:].mean(), found[:, round(5 * each) :].min(1)
    lowest = ", ".join(f"{value:.1f}" for value in least)
    over = f"best {best:.2f}, last ten {end:.2f}, least after epoch 5 {lowest}"
    return f"after epochs {reached}; {over}; swing {swing:.2f}; slope {10 * slope:+.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if options.epochs < 6:
        parser.error("--epochs: what comes after five takes at least 6")
    torch.set_num_threads(1)
    each, lines = len(inputs(options.dataset)[1]) / BATCH / EVERY, []
    if each < 1:
        parser.error(f"--dataset: an epoch takes at least {EVERY} steps, so {BATCH * EVERY:,} records")
    for arm in options.arms:
        filter = make_filter(ARMS[arm][0], **ARMS[arm][1])
        found = np.stack([curve(options.dataset, filter, options.epochs, seed) for seed in range(options.seeds)])
        print(f"{options.dataset}, {arm}: {told(found, each)}", flush=True)
        points = [((place + 1) / each, value) for place, value in enumerate(found.mean(0).tolist())]
        lines.append(Series(arm, points, "-"))
    if options.plot is not None:
        title = f"{options.dataset}: tanh as printed, {options.epochs} epochs"
        write_charts(options.plot, [Chart("Accuracy over epochs", "epoch", "accuracy, %", lines)], title)


if __name__ == "__main__":
    main()
