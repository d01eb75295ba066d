"""Gradients before and behind clipping, and the noise beside them, over the number of live weights: why should tickets win?

    DPLTM_DATA=... python benchmarks/clipped_norms.py [--seeds 3] [--epsilon 1] [--cache FILE]

DPLTM's introduction gives a reason: the norm of a record's gradient is proportional to the number of weights, so clipping
leaves less of a large network's gradient, which noise then drowns. Here one network, mlp:300,100 on MNIST, trains under
DP-SGD at ten densities: of one training on Kuzushiji the smallest weights are dropped, 30, 30 and 20 % a round, up to round
9. All have one noise multiplier, clip norm 1, batches of 1,600 by Poisson sampling, an epoch, and a step size at which the
noise moves all of them equally far, 2 sqrt(N/n) for n of N live weights. Of 500 training records, at the start, half-way and
at the end: the median norm of a gradient; the share of it that clipping leaves (mean of min(1, C/norm)); the mean clipped
norm; the norm of the mean clipped gradient, which is the signal of a step; the norm of a step's noise, sigma C sqrt(n)/B;
then the accuracy on the test split. The exponent of a power law n^p is fitted to each by least squares. Means over seeds (of
tickets, sampling and noise), with half the width of their 95 % interval (Student's t). The records are public here.
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
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from transfer import half_width, tensors

from dpltm.filters import make_filter
from dpltm.networks import ModelSpec, build
from dpltm.networks.evaluation import accuracy
from dpltm.networks.masks import Mask
from dpltm.networks.state import weights_of
from dpltm.options.generate import GenerateOptions
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.pruning.generation import Tickets, generate, prune_once
from dpltm.randomness.noise import KeyedSource
from dpltm.records import load
from dpltm.records.batches import Records
from dpltm.training.descent import train
from dpltm.training.plan import NoisySteps

NETWORK, ROUNDS, CLIP, BATCH, DELTA, SEEN = "mlp:300,100", 9, 1.0, 1600, 1e-5, 500
MEASURES = ("norm", "left by clipping", "clipped norm", "signal", "noise")


@cache
def records() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test records."""
    dataset = load("mnist")
    return tensors(dataset.train, dataset), tensors(dataset.test, dataset)


@cache
def tickets_of(seed: int) -> Tickets:
    public = load("kmnist-7k")
    spec = ModelSpec(NETWORK, 784, 10)
    config = GenerateOptions(rounds=ROUNDS, iterations=400, seed=seed).for_records(public.records)
    trained = generate(spec, tensors(public.train, public), replace(config, rounds=1)).tickets[0].predictor
    assert trained is not None
    return prune_once(spec, weights_of(build(spec, seed)), trained, config)


def measured(model: nn.Module, mask: Mask, x: Tensor, y: Tensor, noise: float) -> list[float]:
    """Return MEASURES of the first SEEN records; ``noise`` is its standard deviation in each coordinate of a mean."""

    def loss(values: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, values, (row[None],)), label[None])

    values = {name: value.detach() for name, value in model.named_parameters()}
    gradients = vmap(grad(loss), in_dims=(None, 0, 0))
    norms, total = [], {name: torch.zeros_like(value) for name, value in values.items()}
    for part in torch.arange(SEEN).split(100):
        each = {name: value * mask[name] for name, value in gradients(values, x[part], y[part]).items()}
        norm = torch.stack([value.flatten(1).square().sum(1) for value in each.values()]).sum(0).sqrt()
        scale = (CLIP / norm).clamp(max=1)
        norms.append(norm)
        for name, value in each.items():
            total[name] += torch.tensordot(scale, value, dims=1) / SEEN
    norm = torch.cat(norms)
    signal = math.sqrt(sum(float(value.square().sum()) for value in total.values()))
    left = float((CLIP / norm).clamp(max=1).mean())
    return [float(norm.median()), left, float(norm.clamp(max=CLIP).mean()), signal, noise * math.sqrt(mask.live)]


def run(epsilon: float, number: int, seed: int) -> list[float]:
    """Return live weights, MEASURES at the start, half-way and at the end, and the accuracy."""
    ((x, y), test), tickets = records(), tickets_of(seed)
    mask, model = tickets.tickets[number].mask, build(tickets.spec)
    model.load_state_dict(tickets.theta0)
    mask.apply(model)
    rate, half = BATCH / len(x), len(x) // BATCH // 2
    sigma = calibrate_noise(epsilon, DELTA, NoisySgd(rate, 2 * half, noise_multiplier=1.0)).noise_multiplier
    lr = 2 * math.sqrt(tickets.tickets[0].mask.live / mask.live)
    plan = NoisySteps(make_filter("clip", clip_norm=CLIP), NoisySgd(rate, half, sigma), float(BATCH), lr)
    found = [float(mask.live), *measured(model, mask, x, y, sigma * CLIP / BATCH)]
    for part in range(2):
        sources = (KeyedSource(f"{seed} {part} {what}".encode().ljust(32)) for what in ("sampling", "noise"))
        train(model, mask, Records(x, y), plan, sampling=next(sources), noise=next(sources))
        found += measured(model, mask, x, y, sigma * CLIP / BATCH)
    return [*found, accuracy(model, *test)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--cache", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines = given.cache.read_text().splitlines() if given.cache is not None and given.cache.exists() else []
    known = {tuple(key): found for key, found in map(json.loads, lines)}

    def cached(*key: Any) -> list[float]:
        if key not in known:
            known[key] = run(*key)
            if given.cache is not None:
                with given.cache.open("a") as stream:
                    stream.write(json.dumps([key, known[key]]) + "\n")
        return known[key]

    rows, seeds = [], range(given.seeds)
    for seed, number in itertools.product(seeds, range(ROUNDS + 1)):
        cached(given.epsilon, number, seed)
    for number in range(ROUNDS + 1):
        found = np.array([cached(given.epsilon, number, seed) for seed in seeds])
        rows.append(found.mean(0))
        half = half_width([float(value) for value in found[:, -1]])
        print(f"round {number}, {found[0, 0]:,.0f} live: accuracy {found[:, -1].mean():.4f}±{half:.4f}")
        for place, when in enumerate(("start", "half-way", "end")):
            at = found.mean(0)[1 + place * len(MEASURES) :]
            print(f"  {when}: " + ", ".join(f"{name} {value:.3g}" for name, value in zip(MEASURES, at, strict=False)))
    table = np.log(np.array(rows))
    for (place, when), (at, name) in itertools.product(enumerate(("start", "half-way", "end")), enumerate(MEASURES)):
        power = np.polyfit(table[:, 0], table[:, 1 + place * len(MEASURES) + at], 1)[0]
        print(f"{when}: {name} grows as n^{power:.2f}")


if __name__ == "__main__":
    main()
