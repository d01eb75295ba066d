"""Do tickets carry over? Tickets from kmnist-7k, trained under DP on other records, beside their controls.

Every method is tuned alike: 12 settings, one run each, scored on a fifth of the training records that is held out for it;
the best goes on to five seeds (of tickets, weights, sampling and noise) on all training records, scored on the test split.
The tuning is not paid for in epsilon, for no method. Prints one JSON object: per dataset, epsilon and method the settings,
the mean test accuracy and the half width of its 95 % confidence interval (Student's t over the seeds).

    DPLTM_DATA=... python benchmarks/transfer.py [--datasets mnist isolet har-signals] [--cache FILE]

Finished runs are kept in --cache (JSON Lines), so that an interrupted measurement goes on where it ended.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpltm.experiments import summary
from dpltm.filters import make_filter
from dpltm.networks import ModelSpec, build
from dpltm.networks.evaluation import accuracy
from dpltm.networks.masks import Mask
from dpltm.options.generate import GenerateOptions
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.pruning.generation import Tickets, generate
from dpltm.randomness.noise import SecureSource
from dpltm.records import Dataset, Public, load, scale
from dpltm.records.batches import Records
from dpltm.training.descent import train
from dpltm.training.plan import NoisySteps
from dpltm.verbs.transfer import carry_over, retarget

PUBLIC = Public("a benchmark")

SOURCE, DELTA, SEEDS = "kmnist-7k", 1e-5, range(5)
EPSILONS = (0.2, 0.5, 1.0)
METHODS = ("dense", "ticket", "mask-only", "shuffled-mask", "random", "projection")
DENSE = tuple(itertools.product((None,), (0.25, 0.5, 1.0, 2.0), (5, 10, 20)))
SPARSE = tuple(itertools.product((4, 8), (1.0, 2.0, 4.0), (5, 15)))
"""Round (None: dense), step size, epochs: 12 of each."""

ROUNDS = 10
PLAIN, PROJECTION = "mlp:300,100", "mlp:project64,300,100"


def tensors(split: Any, dataset: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(scale(split.open(PUBLIC).x, dataset.bounds)), torch.from_numpy(split.open(PUBLIC).y)


@cache
def source_tickets(text: str, seed: int) -> Tickets:
    public = load(SOURCE)
    spec = ModelSpec(text, public.features, public.classes)
    config = GenerateOptions(rounds=ROUNDS, iterations=1500, seed=seed).for_records(public.records)
    return generate(spec, tensors(public.train, public), config)


@cache
def noise_multiplier(epsilon: float, rate: float, steps: int) -> float:
    return calibrate_noise(epsilon, DELTA, NoisySgd(rate, steps, noise_multiplier=1.0)).noise_multiplier


def start(method: str, dataset: Dataset, chosen: int | None, seed: int) -> tuple[torch.nn.Module, Mask]:
    """The network before training, and its mask."""
    text = PROJECTION if method == "projection" else PLAIN
    spec = ModelSpec(text, dataset.features, dataset.classes)
    if method == "dense":
        model = build(spec, seed + 100)
        return model, Mask.dense(model)
    tickets = source_tickets(text, seed)
    mode = "ticket" if method == "projection" else method
    target = retarget(tickets.spec, dataset.train.shape, dataset.features, dataset.classes)
    made = carry_over(tickets, target, mode, seed=seed + 100)[0]
    model = build(target)
    model.load_state_dict(made.theta0)
    assert chosen is not None
    return model, made.tickets[chosen].mask


def run(
    name: str, epsilon: float, method: str, setting: tuple[int | None, float, int], seed: int, tuning: bool
) -> float:
    dataset = load(name)
    x, y = tensors(dataset.train, dataset)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(x)))
    held = order[: len(x) // 5]
    score = (x[held], y[held]) if tuning else tensors(dataset.test, dataset)
    if tuning:
        rest = order[len(x) // 5 :]
        x, y = x[rest], y[rest]
    chosen, lr, epochs = setting
    batch = min(1600, len(x) // 4)
    steps = max(1, round(epochs * len(x) / batch))
    sigma = noise_multiplier(epsilon, batch / len(x), steps)
    model, mask = start(method, dataset, chosen, seed)
    config = NoisySteps(make_filter("clip"), NoisySgd(batch / len(x), steps, sigma), float(batch), lr)
    train(model, mask, Records(x, y), config, sampling=SecureSource(), noise=SecureSource())
    return accuracy(model, *score)


class Cache:
    """Finished runs by their settings."""

    def __init__(self, path: Path | None, run: Callable[..., float]) -> None:
        self._path, self._run = path, run
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self._known = {json.dumps(row["key"]): row["accuracy"] for row in map(json.loads, lines)}

    def __call__(self, *key: Any) -> float:
        text = json.dumps(key)
        if text not in self._known:
            self._known[text] = self._run(*json.loads(text))
            print(f"{text} {self._known[text]:.4f}", file=sys.stderr, flush=True)
            if self._path is not None:
                with self._path.open("a") as stream:
                    stream.write(json.dumps({"key": key, "accuracy": self._known[text]}) + "\n")
        return self._known[text]


def half_width(scores: list[float]) -> float:
    """Of the 95 % confidence interval of their mean (Student's t)."""
    return summary(scores).half


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["isolet", "har-signals", "mnist"])
    parser.add_argument("--cache", type=Path)
    given = parser.parse_args()
    measured, rows = Cache(given.cache, run), []
    for name, epsilon, method in itertools.product(given.datasets, EPSILONS, METHODS):
        if method == "projection" and name == "mnist":  # nothing to project: the network fits as it is
            continue
        settings = DENSE if method == "dense" else SPARSE
        best = max(settings, key=lambda s: measured(name, epsilon, method, s, 0, True))
        scores = [measured(name, epsilon, method, best, seed, False) for seed in SEEDS]
        row = {
            "dataset": name,
            "epsilon": epsilon,
            "method": method,
            "round": best[0],
            "lr": best[1],
            "epochs": best[2],
        }
        rows.append({**row, "accuracy": float(np.mean(scores)), "half_width": half_width(scores)})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"delta": DELTA, "source": SOURCE, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
