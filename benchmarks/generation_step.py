"""The cost of a generation step, against a bare PyTorch loop of the same network, batch and steps.

Prints one JSON object: median seconds per step of each, over interleaved runs in one process, and their ratio.

    python benchmarks/generation_step.py [--density 0.1] [--repeats 15] [--steps 200]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from torch import nn
from torch.nn import functional

from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.pruning.generation import shuffled_batches, train_plain

RECORDS, FEATURES, CLASSES, BATCH, LR = 60_000, 784, 10, 400, 0.1


def bare(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int) -> None:
    """What anyone would write: shuffled batches from memory, torch.optim.SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    order = torch.randperm(len(x))
    for step in range(steps):
        start = step * BATCH % (len(x) - BATCH + 1)
        index = order[start : start + BATCH]
        optimizer.zero_grad()
        functional.cross_entropy(model(x[index]), y[index]).backward()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--density", type=float, default=0.1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(RECORDS, FEATURES, generator=generator)
    y = torch.randint(0, CLASSES, (RECORDS,), generator=generator)
    spec = ModelSpec("mlp:300,100", FEATURES, CLASSES)
    plain, ticket = build(spec, 0), build(spec, 0)
    mask = Mask(
        {
            name: torch.rand(value.shape, generator=generator) < (arguments.density if value.ndim > 1 else 2)
            for name, value in ticket.named_parameters()
        }
    )
    mask.apply(ticket)
    batches = shuffled_batches(RECORDS, BATCH, generator)
    times: dict[str, list[float]] = {"bare": [], "generate": []}
    for _ in range(arguments.repeats + 1):
        began = time.perf_counter()
        bare(plain, x, y, arguments.steps)
        middle = time.perf_counter()
        train_plain(ticket, mask, (x, y), batches, arguments.steps, LR)
        times["bare"].append(middle - began)
        times["generate"].append(time.perf_counter() - middle)
    medians = {name: statistics.median(values[1:]) / arguments.steps for name, values in times.items()}
    ratios = [ours / theirs for ours, theirs in zip(times["generate"][1:], times["bare"][1:], strict=True)]
    print(
        json.dumps(
            {
                "seconds_per_step": medians,
                "ratio_of_medians": medians["generate"] / medians["bare"],
                "median_of_ratios": statistics.median(ratios),
                "density": arguments.density,
                "batch": BATCH,
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
            }
        )
    )


if __name__ == "__main__":
    main()
