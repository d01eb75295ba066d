"""Banded noise against independent noise at the same certified epsilon, over numbers of passes: trainings on CIFAR-10.

    DPLTM_DATA=... python benchmarks/banded.py [--epsilons 3 8] [--passes 1 2 4 8 16] [--batch 500] [--cache FILE]

One layer behind ``photographs``. For each cell and each kind of noise, a step size with a schedule or an average, twelve
settings, is chosen by the mean accuracy of two trainings on nine tenths of the training records, on the last tenth; the
epsilon does not cover that. Then ten seeds train on all 45,000, and are scored on the test split. Pairs share start and
seeds. Prints one JSON object a cell: means, and the mean paired difference, with half widths of 95 % intervals (Student's
t). Finished trainings are kept in --cache (JSON Lines). Sampling and noise come from seeded generators here, which a real
run never does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpltm.experiments import paired, summary
from dpltm.features import parse
from dpltm.features.feature_map import map_of
from dpltm.filters import make_filter
from dpltm.networks import ModelSpec, build
from dpltm.networks.evaluation import accuracy
from dpltm.networks.masks import Mask
from dpltm.options.train import TrainOptions
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.mechanisms import BandedSgd, NoisySgd
from dpltm.randomness import banded_noise
from dpltm.randomness.noise import FastSource
from dpltm.records import Public, Rows, load
from dpltm.records.batches import Records
from dpltm.tickets.feature_files import FeatureCache
from dpltm.training.descent import train
from dpltm.training.plan import NoisySteps

DELTA, HELD_OUT, TUNING, SEEDS = 1e-5, 4500, (100, 101), range(10, 20)
Setting = tuple[float, str, str]
WAYS = (("linear", "none"), ("constant", "poly"))
SETTINGS: tuple[Setting, ...] = tuple((2.0**power, *way) for power in range(1, 7) for way in WAYS)


@cache
def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features and labels of training and test records."""
    records, public = load("cifar10-45k"), Public("a benchmark")
    found = map_of(parse("photographs"), records.train.shape, records.bounds)
    parts = []
    for split in (records.train, records.test):
        x = FeatureCache().features(records, split, found).open(public).x
        parts += [torch.from_numpy(np.array(x, dtype="f4")), torch.from_numpy(split.open(public).y)]
    return tuple(parts)


@cache
def mechanism(kind: str, epsilon: float, rate: float, steps: int) -> tuple[NoisySgd, float]:
    """That of least error of prefix sums, and its noise multiplier times its sensitivity."""

    def noise(plan: NoisySgd) -> float:
        return plan.sensitivity * calibrate_noise(epsilon, DELTA, plan).noise_multiplier

    plain = NoisySgd(rate, steps, 1.0)
    if kind == "independent":
        return plain, noise(plain)
    most = min(steps, math.floor(1 / rate), banded_noise.MOST)
    found = []
    for bands in (2**power for power in range(1, most.bit_length())):
        strategy = banded_noise.optimal_strategy(bands, steps)
        plan = BandedSgd(rate * bands, steps, 1.0, banded_noise.norm(strategy), strategy=strategy)
        found.append((noise(plan) ** 2 * banded_noise.noise_of_sums(strategy, steps).mean(), bands, plan))
    _, _, best = min(found)
    return best, noise(best)


def scored(kind: str, epsilon: float, passes: int, batch: int, setting: Setting, seed: int, *, final: bool) -> float:
    """Accuracy after a training on all records, on the test split; or on nine tenths, on the last tenth."""
    x, y, test, labels = inputs()
    if not final:
        x, y, test, labels = x[:-HELD_OUT], y[:-HELD_OUT], x[-HELD_OUT:], y[-HELD_OUT:]
    lr, schedule, average = setting
    steps = round(passes * len(y) / batch)
    plan, noise = mechanism(kind, epsilon, batch / len(y), steps)
    noisy = replace(plan, noise_multiplier=noise, sensitivity=1.0)
    moves = TrainOptions(schedule=schedule, average=average)
    config = NoisySteps(make_filter("clip", clip_norm=1.0), noisy, batch, lr, options=moves)
    model = build(ModelSpec("mlp", x.shape[1], 10), seed)
    records = Records(x, y, read=Rows(x.numpy(), y.numpy()))
    train(model, Mask.dense(model), records, config, sampling=FastSource(seed + 1000), noise=FastSource(seed))
    return 100 * accuracy(model, test, labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", nargs="+", type=float, default=[3.0, 8.0])
    parser.add_argument("--passes", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--cache", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept: dict[str, float] = {}
    if options.cache is not None and options.cache.exists():
        kept = dict(json.loads(line) for line in options.cache.read_text().splitlines())

    def once(*case: Any, final: bool) -> float:
        key = json.dumps([*case, final])
        if key not in kept:
            kept[key] = scored(*case, final=final)
            if options.cache is not None:
                with options.cache.open("a") as file:
                    file.write(json.dumps([key, kept[key]]) + "\n")
        return kept[key]

    for epsilon, passes in itertools.product(options.epsilons, options.passes):
        row: dict[str, Any] = {"epsilon": epsilon, "passes": passes, "batch": options.batch}
        found = {}
        for kind in ("independent", "banded"):
            case = (kind, epsilon, passes, options.batch)
            tuned = {one: sum(once(*case, one, seed, final=False) for seed in TUNING) for one in SETTINGS}
            best = max(tuned, key=tuned.__getitem__)
            found[kind] = {seed: once(*case, best, seed, final=True) for seed in SEEDS}
            told = summary(list(found[kind].values()))
            row[kind] = {"setting": best, "mean": round(told.mean, 2), "half": round(told.half, 2)}
        told = paired(found["banded"], found["independent"])
        print(json.dumps(row | {"difference": round(told.mean, 2), "half": round(told.half, 2)}), flush=True)


if __name__ == "__main__":
    main()
