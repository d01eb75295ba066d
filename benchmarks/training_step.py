"""The cost of a DP training step of dpltm, against a plain dense SGD step and against Opacus, in one process.

A step is everything between two batches in memory and the updated weights: sampling is left out, noise and optimizer are in.
Prints JSON: medians over interleaved runs, in milliseconds and in plain steps P, and what a step holds in memory beyond P.

    python benchmarks/training_step.py [--density 0.1] [--batch 400] [--repeat 40] [--peers]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from dpltm.filters import Clip, Filter, make_filter
from dpltm.gradients import RecordGradients
from dpltm.masks import Mask
from dpltm.models import ModelSpec, build
from dpltm.noise import SecureSource
from dpltm.training import noisy_mean

Step = Callable[[], None]


def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output, labels, reduction="none")


def plain(x: torch.Tensor, y: torch.Tensor) -> Step:
    """What anyone would write."""
    model = build(ModelSpec("mlp:300,100", 784, 10), 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def ours(x: torch.Tensor, y: torch.Tensor, filter: Filter, density: float) -> Step:
    """The same network with a share of its weights live, as dpltm.training does it."""
    model = build(ModelSpec("mlp:300,100", 784, 10), 0)
    generator = torch.Generator().manual_seed(0)
    mask = Mask(
        {
            name: torch.rand(value.shape, generator=generator) < (density if value.ndim > 1 else 2)
            for name, value in model.named_parameters()
        }
    )
    mask.apply(model)
    gradients, source = RecordGradients(model, mask, loss), SecureSource()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    live = torch.cat([mask[name].flatten() for name, _ in model.named_parameters()]).nonzero().squeeze(1)
    flat = torch.zeros(sum(parameter.numel() for parameter in parameters))
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)

    def step() -> None:
        total = gradients.filtered_sum(x, y, filter).values
        flat[live] = noisy_mean(total, 1.0, len(x), source)
        optimizer.step()

    return step


def opacus(x: torch.Tensor, y: torch.Tensor, mode: str) -> Step:
    """Opacus on the dense network, noise and clipping as its make_private sets them up; its loader is left out."""
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    model = build(ModelSpec("mlp:300,100", 784, 10), 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(x, y), batch_size=len(x))
    ghost = mode == "ghost"
    parts = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0,
        poisson_sampling=False, grad_sample_mode=mode, **({"criterion": nn.CrossEntropyLoss()} if ghost else {}),
    )  # fmt: skip
    model, optimizer = parts[0], parts[1]
    criterion = parts[2] if ghost else nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

    return step


def held(step: Step) -> int:
    """Largest sum of tensor memory that one step allocates and has not freed yet, in bytes."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        step()
    most = now = 0
    for event in trace.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--density", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=400)
    parser.add_argument("--repeat", type=int, default=40)
    parser.add_argument("--peers", action="store_true", help="Opacus too, which must be installed")
    given = parser.parse_args()
    torch.manual_seed(0)
    x, y = torch.rand(given.batch, 784), torch.randint(10, (given.batch,))
    tanh = make_filter("tanh")
    steps: dict[str, Step] = {
        "plain": plain(x, y),
        "clip": ours(x, y, Clip(1.0), given.density),
        "clip, dense": ours(x, y, Clip(1.0), 2.0),
        "clip, 2 % live": ours(x, y, Clip(1.0), 0.02),
        "clip-then-tanh": ours(x, y, tanh, given.density),
        "tanh-then-clip": ours(x, y, make_filter("tanh-clip"), given.density),
    }
    if given.peers:
        steps |= {"opacus ghost": opacus(x, y, "ghost"), "opacus hooks": opacus(x, y, "hooks")}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(given.repeat + 3):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            if turn >= 3:
                times[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(values) for name, values in times.items()}
    base = held(steps["plain"])
    body = {
        name: {
            "ms": round(1e3 * medians[name], 3),
            "P": round(medians[name] / medians["plain"], 2),
            "MiB beyond P": round((held(step) - base) / 2**20, 1),
        }
        for name, step in steps.items()
    }
    print(json.dumps({"threads": torch.get_num_threads(), **body}, indent=1))


if __name__ == "__main__":
    main()
