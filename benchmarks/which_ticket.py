"""Whether any ticket beats the whole network behind features: twenty paired seeds, five datasets, one rule for all arms.

    DPLTM_DATA=... python benchmarks/which_ticket.py --cache FILE [--datasets mnist ...] [--epsilons 0.2 1] [--seeds 20]

Behind each map stands a single layer or, but for photographs, one with 100 hidden units. Arms keep half of it: weights or
inputs at random; the first components of the map, where those have an order (no data); inputs or weights that are largest
in a network trained on public records, where there are any of the kind; weights that are largest in a training under DP,
for a tenth of the budget. Of the hidden network: all of it, half of its weights at random, and the last
layer alone. Clip norm 0.2, momentum; batches of 4,096 for 16 epochs, or all records 120 times. The step size is that at
which the noise of all steps adds up to S in each weight. S is 0.125, 0.25 or 0.5, chosen for every arm, budget and dataset
on three seeds of kmnist-7k (for itself, MNIST) with mean gradients as noisy as the private run's.

All arms of a seed have the same starting weights and the same sampling. Prints one JSON object a cell and arm: accuracy on
the test split, and its difference to the whole single layer, paired by seed; means with half the width of their 95 %
interval (Student's t). The mean of a centred map is released for a twentieth of the budget. Finished runs are kept in
--cache.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpltm.experiments import summary
from dpltm.features import parse
from dpltm.features.feature_map import map_of
from dpltm.features.normalisation import SENSITIVITY, noisy_sum
from dpltm.filters import make_filter
from dpltm.networks import ModelSpec, build
from dpltm.networks.evaluation import accuracy
from dpltm.networks.masks import Mask
from dpltm.options.generate import GenerateOptions
from dpltm.options.train import TrainOptions
from dpltm.privacy.account import Planned
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.mechanisms import GaussianRelease, Mechanism, NoisySgd
from dpltm.pruning.generation import generate
from dpltm.randomness.noise import FastSource
from dpltm.records import Public, load
from dpltm.records.batches import Records
from dpltm.tickets.feature_files import FeatureCache
from dpltm.training.descent import train
from dpltm.training.plan import NoisySteps

PUBLIC = Public("a benchmark")

DELTA, CLIP, DENSITY = 1e-5, 0.2, 0.5
SPREADS, TUNING, TENTH, TWENTIETH = (0.125, 0.25, 0.5), (100, 101, 102), 0.1, 0.05
PUBLIC_RECORDS = 7000


@dataclass(frozen=True)
class Cell:
    """A dataset, its map, the public records of its kind, and whether the map has an order and is centred."""

    features: str
    public: str | None = None
    ordered: bool = False
    centred: bool = False


CELLS = {
    "mnist": Cell("drawings", "kmnist-7k", ordered=True),
    "kmnist-7k": Cell("drawings", "mnist", ordered=True),
    "isolet": Cell("unit", centred=True),
    "har-raw": Cell("wavelets", centred=True),
    "cifar10-12k": Cell("photographs"),
}
ARMS = {
    "whole": ("mlp", "all"),
    "random weights": ("mlp", "weights at random"),
    "random inputs": ("mlp", "inputs at random"),
    "first components": ("mlp", "first inputs"),
    "public inputs": ("mlp", "inputs"),
    "public weights": ("mlp", "magnitude"),
    "weights under DP": ("mlp", "dp"),
    "hidden": ("mlp:100", "all"),
    "hidden, random weights": ("mlp:100", "weights at random"),
    "hidden, last layer": ("mlp:100", "last layer"),
}
"""Network and what is kept of it, by name."""


def taken(name: str) -> tuple[float, int]:
    """Expected batch and steps."""
    records = load(name).records
    return (4096.0, 16 * records // 4096) if records > 40_000 else (float(records), 120)


@cache
def inputs(name: str, features: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features and labels of the training records (7,000 at most, where they are public) and of the test split."""
    records = load(name)
    assert records.test is not None
    found = map_of(parse(features), records.train.shape, records.bounds)
    splits = (FeatureCache().features(records, split, found) for split in (records.train, records.test))
    both = [np.array(split.open(PUBLIC).x, "f4") for split in splits]
    x, test = map(torch.from_numpy, both)
    return x, torch.from_numpy(records.train.open(PUBLIC).y), test, torch.from_numpy(records.test.open(PUBLIC).y)


@cache
def noise(epsilon: float, rate: float, steps: int, before: tuple[Mechanism, ...] = ()) -> float:
    return calibrate_noise(
        epsilon, DELTA, NoisySgd(rate, steps, noise_multiplier=1.0), Planned.after(*before)
    ).noise_multiplier


def config_of(name: str, count: int, multiplier: float, steps: int, spread: float) -> NoisySteps:
    """Of a training on ``count`` records as noisy as one on those of ``name``."""
    batch, records = taken(name)[0], load(name).records
    taking, sampled = min(batch, count), batch / records
    sizes = max(multiplier * CLIP, sampled * math.sqrt(steps) * CLIP / 2) * math.sqrt(steps) * 10
    noise_std = multiplier * CLIP * taking / batch
    return NoisySteps(
        make_filter("clip", clip_norm=CLIP),
        NoisySgd(taking / count, steps, noise_std),
        taking,
        spread * batch / sizes,
        options=TrainOptions(optimizer="momentum"),
    )


def half(order: Tensor) -> Tensor:
    """The larger half of ``order``."""
    kept = order.flatten().topk(round(DENSITY * order.numel())).indices
    return torch.zeros(order.numel(), dtype=torch.bool).index_fill(0, kept, True).view_as(order)


def mask_of(kind: str, spec: ModelSpec, model: nn.Module, cell: Cell, seed: int) -> Mask:
    """What is kept of a network, before a private record is read."""
    live = {name: torch.ones_like(value, dtype=torch.bool) for name, value in model.named_parameters()}
    generator, wide = torch.Generator().manual_seed(seed), live["fc1.weight"].shape
    if kind == "weights at random":
        live["fc1.weight"] = half(torch.rand(wide, generator=generator))
    elif kind == "inputs at random":
        live["fc1.weight"] = half(torch.rand(wide[1], generator=generator)).expand(wide)
    elif kind == "first inputs":
        live["fc1.weight"] = half(-torch.arange(float(wide[1]))).expand(wide)
    elif kind in ("inputs", "magnitude"):
        x, y = (part[:PUBLIC_RECORDS] for part in inputs(cell.public or "", cell.features)[:2])
        settings = {"iterations": 1500, "batch_size": 400, "lr": 0.1, "seed": seed, "criterion": kind}
        options = GenerateOptions(rounds=1, prune=(1 - DENSITY,), **settings).for_records(len(x))
        return generate(spec, (x, y), options).tickets[-1].mask
    return Mask({name: value.contiguous() for name, value in live.items()})


def run(name: str, on: str, cell: Cell, arm: str, epsilon: float, spread: float, seed: int) -> float:
    """Accuracy on the test split of ``on``, trained on its records with the noise that those of ``name`` call for."""
    text, kind = ARMS[arm]
    x, y, test, labels = inputs(on, cell.features)
    (batch, steps), count, source = taken(name), len(y), FastSource(seed)
    rate, before = batch / load(name).records, list[Mechanism]()
    if cell.centred:
        alone = noise(epsilon, 1.0, 1)
        before = [GaussianRelease(alone / math.sqrt(TWENTIETH), SENSITIVITY)]
        scale = before[0].noise_multiplier * SENSITIVITY * count / load(name).records
        mean = (noisy_sum(iter(x.split(1000)), x.shape[1], SENSITIVITY, scale, source) / count).float()
        x, test = (_recentred(part, mean) for part in (x, test))
    if kind == "last layer":  # the hidden layer stays as it was drawn
        text, hidden = "mlp", build(ModelSpec(text, x.shape[1], load(on).classes), seed)[:2]
        with torch.no_grad():
            x, test = (hidden(part) for part in (x, test))
        x, test = (8 * part / part.norm(dim=1, keepdim=True).clamp_min(1e-9) for part in (x, test))
    spec = ModelSpec(text, x.shape[1], load(on).classes)
    model = build(spec, seed)
    mask = mask_of(kind, spec, model, cell, seed)
    if kind == "dp":
        first = noise(TENTH * epsilon, rate, steps)
        config = config_of(name, count, first, steps, spread)
        train(model, mask, Records(x, y), config, sampling=FastSource(seed + 2000), noise=source)
        sizes = dict(model.named_parameters())["fc1.weight"].detach().abs()
        live = {key: torch.ones_like(value, dtype=torch.bool) for key, value in model.named_parameters()}
        mask, model = Mask({**live, "fc1.weight": half(sizes)}), build(spec, seed)
        before.append(NoisySgd(rate, steps, noise_multiplier=first))
    config = config_of(name, count, noise(epsilon, rate, steps, tuple(before)), steps, spread)
    train(model, mask, Records(x, y), config, sampling=FastSource(seed + 1000), noise=source)
    return 100 * accuracy(model, test, labels)


def _recentred(x: Tensor, mean: Tensor) -> Tensor:
    """Rows less a mean, at their fixed norm again."""
    away = x - mean
    return x.norm(dim=1, keepdim=True) * away / away.norm(dim=1, keepdim=True).clamp_min(1e-9)


class Cache:
    """Finished runs, by what was run."""

    def __init__(self, path: Path) -> None:
        self._path, lines = path, path.read_text().splitlines() if path.exists() else []
        self._known = {tuple(key): value for key, value in map(json.loads, lines)}

    def score(self, name: str, on: str, cell: Cell, *what: Any) -> float:
        key = (name, on, *what)
        if key not in self._known:
            self._known[key] = run(name, on, cell, *what)
            with self._path.open("a") as lines:
                lines.write(json.dumps([key, self._known[key]]) + "\n")
        return self._known[key]


def arms_of(cell: Cell) -> list[str]:
    """Arms that the dataset has what they need for."""
    left_out = (
        ["first"] * (not cell.ordered) + ["public"] * (not cell.public) + ["hidden"] * (cell.features == "photographs")
    )
    return [arm for arm in ARMS if not arm.startswith(tuple(left_out))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--datasets", nargs="+", default=list(CELLS), choices=CELLS)
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.2, 1.0])
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = Cache(options.cache)
    for name in options.datasets:
        cell, other = CELLS[name], "mnist" if name == "kmnist-7k" else "kmnist-7k"
        like = CELLS[other]
        for epsilon in options.epsilons:
            whole: np.ndarray | None = None
            for arm in arms_of(cell):
                tried = {
                    spread: sum(known.score(name, other, like, arm, epsilon, spread, seed) for seed in TUNING)
                    for spread in SPREADS
                }
                spread = max(tried, key=lambda each: tried[each])
                scores = np.array(
                    [known.score(name, name, cell, arm, epsilon, spread, seed) for seed in range(options.seeds)]
                )
                whole = scores if whole is None else whole
                row = {"dataset": name, "epsilon": epsilon, "arm": arm, "spread": spread}
                figures = {"accuracy": summary(scores.tolist()), "difference": summary((scores - whole).tolist())}
                row |= {
                    f"{key}_{part}": getattr(found, part)
                    for key, found in figures.items()
                    for part in ("mean", "half")
                }
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
