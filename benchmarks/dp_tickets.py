"""Tickets of private records, found under DP: what they are worth beside public, random and no tickets.

MNIST, a total certified epsilon of 0.2 (delta 1e-5, add/remove), tickets of about 3 % density. dp-train spends 0.05 of
it on a DP training of the whole network; the rest goes to training the ticket. Every method
is tuned alike: 8 settings, one run each, scored on a fifth of the training records held out for it; the best goes on to the
seeds, on all training records, scored on the test split. The tuning is not paid for in epsilon, for no method. Prints JSON.

    DPLTM_DATA=... python benchmarks/dp_tickets.py [--cache FILE] [--seeds 5]
"""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transfer import DELTA, Cache, half_width, source_tickets, tensors

from dpltm.filters import make_filter
from dpltm.networks import ModelSpec, build
from dpltm.networks.evaluation import accuracy
from dpltm.networks.masks import Mask
from dpltm.options.generate import GenerateOptions
from dpltm.privacy.account import Planned
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.mechanisms import Mechanism, NoisySgd
from dpltm.pruning.generation import Tickets, prune_once, weights_of, without_data
from dpltm.randomness.noise import SecureSource
from dpltm.records import load
from dpltm.records.batches import Records
from dpltm.training.descent import train
from dpltm.training.plan import NoisySteps

TOTAL, TICKET, ROUND, BATCH = 0.2, 0.05, 10, 1600
METHODS = ("dense", "dp-train", "public", "random")
SETTINGS = {
    "dense": tuple(itertools.product((0.5, 1.0, 2.0, 4.0), (4, 8))),
    "sparse": tuple(itertools.product((2.0, 4.0, 8.0, 16.0), (4, 8))),
}
"""Step size and epochs."""

SPEC = ModelSpec("mlp:300,100", 784, 10)


@cache
def planned(epsilon: float, rate: float, steps: int, before: tuple[Mechanism, ...] = ()) -> NoisySgd:
    return calibrate_noise(epsilon, DELTA, NoisySgd(rate, steps, noise_multiplier=1.0), Planned.after(*before))


@cache
def first_training(records: int) -> NoisySgd:
    return planned(TICKET, BATCH / records, round(4 * records / BATCH))


def descend(model: torch.nn.Module, mask: Mask, x: Any, y: Any, sgd: NoisySgd, lr: float) -> None:
    batch = sgd.sampling_rate * len(x)
    config = NoisySteps(make_filter("clip"), NoisySgd(sgd.sampling_rate, sgd.steps, sgd.noise_multiplier), batch, lr)
    train(model, mask, Records(x, y), config, sampling=SecureSource(), noise=SecureSource())


def found(method: str, x: torch.Tensor, y: torch.Tensor, seed: int) -> tuple[Tickets | None, tuple[Mechanism, ...]]:
    """The tickets, and what they cost."""
    config = GenerateOptions(rounds=ROUND, iterations=400, batch_size=200, seed=seed).for_records(len(x))
    if method == "dense":
        return None, ()
    if method == "public":
        return source_tickets("mlp:300,100", seed), ()
    if method == "random":
        return without_data(SPEC, replace(config, criterion="random")), ()
    model = build(SPEC, seed)
    theta0, sgd = weights_of(model), first_training(len(x))
    descend(model, Mask.dense(model), x, y, sgd, 1.0)
    return prune_once(SPEC, theta0, weights_of(model), config), (sgd,)


@cache
def kept(method: str, seed: int, tuning: bool) -> tuple[Tickets | None, tuple[Mechanism, ...]]:
    """One set of tickets for all settings that are tried."""
    x, y, _ = split(tuning)
    return found(method, x, y, seed)


@cache
def split(tuning: bool) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    dataset = load("mnist")
    x, y = tensors(dataset.train, dataset)
    if not tuning:
        return x, y, tensors(dataset.test, dataset)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(x)))
    held, rest = order[: len(x) // 5], order[len(x) // 5 :]
    return x[rest], y[rest], (x[held], y[held])


def run(method: str, lr: float, epochs: int, seed: int, tuning: bool) -> float:
    x, y, score = split(tuning)
    tickets, before = kept(method, seed, tuning)
    model = build(SPEC, seed)
    mask = Mask.dense(model)
    if tickets is not None:
        model.load_state_dict(tickets.theta0)
        mask = tickets.tickets[min(ROUND, len(tickets.tickets) - 1)].mask
    sgd = planned(TOTAL, BATCH / len(x), round(epochs * len(x) / BATCH), before)
    descend(model, mask, x, y, sgd, lr)
    return accuracy(model, *score)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    measured, rows = Cache(given.cache, run), []
    for method in METHODS:
        settings = SETTINGS["dense" if method == "dense" else "sparse"]
        best = max(settings, key=lambda s: measured(method, *s, 0, True))
        scores = [measured(method, *best, seed, False) for seed in range(given.seeds)]
        rows.append(
            {
                "method": method,
                "lr": best[0],
                "epochs": best[1],
                "accuracy": np.mean(scores),
                "half_width": half_width(scores),
            }
        )
    print(json.dumps({"epsilon": TOTAL, "delta": DELTA, "round": ROUND, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
