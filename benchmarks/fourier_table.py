"""Random Fourier features against records as they are, behind them one layer trained by DP-SGD, at certified budgets.

    DPLTM_DATA=... python benchmarks/fourier_table.py [--datasets table isolet a9a] [--epsilons 0.2 1 3] [--seeds 3]
    python benchmarks/fourier_table.py --write table.npz

The table is made up, in the shape of UCI Letter: 16,000 records and 4,000 test records of 16 whole numbers from 0 to 15, in
26 classes. A class is six Gaussian clusters around its centre, so that no single layer on the columns tells classes apart.
``--write`` writes it as a file for ``dpltm train --dataset table.npz --bounds 0,15``.

Prints one JSON object: per dataset, budget and features the mean accuracy on test records and the half width of its 95 %
confidence interval (Student's t over the seeds, which decide sampling and noise). Settings are the same for all features:
clip norm 0.2, momentum, 40 steps whose sizes add up to 0.24 times records times epsilon, in units of the clip norm. Nothing
is chosen here on any records. Sampling and noise come from seeded generators, which a real run never does.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from functools import cache
from pathlib import Path

import numpy as np
import torch
from certified_accuracy import noise

from dpltm.experiments import summary
from dpltm.features import parse
from dpltm.features.feature_map import map_of
from dpltm.features.normalisation import SENSITIVITY, noisy_sum
from dpltm.filters import make_filter
from dpltm.networks import ModelSpec, build
from dpltm.networks.evaluation import accuracy
from dpltm.networks.masks import Mask
from dpltm.options.train import TrainOptions
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.randomness.noise import FastSource
from dpltm.records import Dataset, Public, from_arrays, load, scale
from dpltm.records.batches import Records
from dpltm.training.descent import train
from dpltm.training.plan import NoisySteps

PUBLIC = Public("a benchmark")

DELTA, FIRST_SEED = 1e-5, 10
CLIP_NORM, STEPS, LENGTH = 0.2, 40, 0.24
BATCHES = {"a9a": 4096.0}
"""Expected batches; all records where nothing is said."""

ARMS: tuple[tuple[str, float | None], ...] = (
    ("none", None),
    ("unit", None),
    ("unit", 0.05),
    ("fourier", None),
    ("fourier", 0.05),
)
"""Features, and the part of the budget for their mean."""

CLASSES, CLUSTERS, COLUMNS, HIGHEST = 26, 6, 16, 15
RECORDS, TEST_RECORDS = 16_000, 4_000


def table() -> tuple[np.ndarray, np.ndarray]:
    """Records, ``(20000, 16)`` bytes from 0 to 15, and their labels; those of the test split last."""
    draw, count = np.random.default_rng(0), RECORDS + TEST_RECORDS
    centres = draw.normal(HIGHEST / 2, 1.2, (CLASSES, 1, COLUMNS))
    clusters = centres + draw.normal(0, 2.0, (CLASSES, CLUSTERS, COLUMNS))
    y, which = draw.integers(0, CLASSES, count), draw.integers(0, CLUSTERS, count)
    x = np.rint(clusters[y, which] + draw.normal(0, 1.2, (count, COLUMNS)))
    return np.clip(x, 0, HIGHEST).astype(np.uint8), y


@cache
def dataset(name: str) -> Dataset:
    if name != "table":
        return load(name)
    x, y = table()
    test = (x[RECORDS:], y[RECORDS:])
    return from_arrays(x[:RECORDS], y[:RECORDS], test=test, bounds=(0, HIGHEST), classes=CLASSES, name="table")


@cache
def inputs(name: str, features: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of the training and of the test records."""
    records = dataset(name)
    assert records.test is not None
    splits = (records.train.open(PUBLIC).x, records.test.open(PUBLIC).x)
    if features == "none":
        first, second = (torch.from_numpy(scale(x, records.bounds)) for x in splits)
        return first, second
    found = map_of(parse(features), splits[0].shape[1:], records.bounds)
    return found(splits[0]), found(splits[1])


def run(name: str, features: str, centre: float | None, epsilon: float, seed: int) -> float:
    """Accuracy of one training on the test split."""
    records = dataset(name)
    assert records.test is not None
    (x, test), count, source = inputs(name, features), len(records.train), FastSource(seed)
    batch = min(BATCHES.get(name, math.inf), count)
    training_noise, mean_noise = noise(epsilon, batch / count, STEPS, centre)
    if centre is not None:
        plain = map_of(parse(features), records.train.shape, records.bounds)
        found = plain.centred_at(
            (noisy_sum([x], x.shape[1], SENSITIVITY, mean_noise * SENSITIVITY, source) / count).float()
        )
        x, test = found.centred(x), found.centred(test)
    model = build(ModelSpec("mlp", x.shape[1], records.classes), seed)
    steps, lr = (
        NoisySgd(batch / count, STEPS, training_noise * CLIP_NORM),
        LENGTH * count * epsilon / STEPS * CLIP_NORM,
    )
    filter, moves = make_filter("clip", clip_norm=CLIP_NORM), TrainOptions(optimizer="momentum")
    config = NoisySteps(filter, steps, batch, lr, options=moves)
    labels = torch.from_numpy(records.train.open(PUBLIC).y)
    train(model, Mask.dense(model), Records(x, labels), config, sampling=FastSource(seed + 1000), noise=source)
    return accuracy(model, test, torch.from_numpy(records.test.open(PUBLIC).y))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["table", "isolet", "a9a"])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.2, 1.0, 3.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    if options.write is not None:
        x, y = table()
        test = {"x_test": x[RECORDS:], "y_test": y[RECORDS:]}
        np.savez_compressed(options.write, x_train=x[:RECORDS], y_train=y[:RECORDS], **test)
        return
    torch.set_num_threads(options.threads)
    rows = []
    for name in options.datasets:
        for features, centre in ARMS:
            for epsilon in options.epsilons:
                seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
                found = summary([run(name, features, centre, epsilon, seed) for seed in seeds])
                row = {"dataset": name, "features": features, "centre": centre, "epsilon": epsilon}
                rows.append({**row, "mean": found.mean, "half": found.half})
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"delta": DELTA, "seeds": options.seeds, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
