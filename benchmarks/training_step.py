"""The cost of a DP training step of dpltm, against a plain dense SGD step and against Opacus, in one process.

A step is everything between a batch in memory and the updated weights: sampling is left out, noise and optimizer are in.
Prints JSON: medians over interleaved runs, in milliseconds and in plain steps P, and what a step holds in memory beyond P.

    python benchmarks/training_step.py [--network mlp] [--density 0.1] [--batch 400] [--repeat 40] [--peers] [--device cuda]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from dpltm.filters import Clip, Filter, make_filter
from dpltm.networks import ModelSpec, build
from dpltm.networks.compaction import compact
from dpltm.networks.masks import Mask
from dpltm.networks.state import weights_of
from dpltm.options.train import TrainOptions
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.randomness.noise import SecureSource
from dpltm.randomness.sampling import USUAL
from dpltm.records.batches import Records
from dpltm.tickets.ticket_set import load_ticket_set
from dpltm.training.descent import NoisyGradients
from dpltm.training.plan import NoisySteps

Step = Callable[[], None]

NETWORKS = {"mlp": "mlp:300,100", "wide": "mlp:4096,4096", "cnn": "cnn:28x28x1"}


def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output, labels, reduction="none")


def plain(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Step:
    """What anyone would write."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def random_mask(model: nn.Module, density: float) -> Mask:
    """A share of the weights of every layer, and all biases."""
    generator = torch.Generator().manual_seed(0)
    return Mask(
        {
            name: torch.rand(value.shape, generator=generator) < (density if value.ndim > 1 else 2)
            for name, value in model.named_parameters()
        }
    )


def ours(
    model: nn.Module, mask: Mask, x: torch.Tensor, y: torch.Tensor, filter: Filter, compile: bool = False
) -> Step:
    """The same network under a mask, as dpltm.training.descent does it."""
    config = NoisySteps(filter, NoisySgd(1.0, 1, 1.0), len(x), 0.1, options=TrainOptions(compile=compile))
    engine = NoisyGradients(
        model, mask, loss, Records(x, y, device=x.device), config, sampling=SecureSource(), noise=SecureSource()
    )
    engine.apply_mask()
    optimizer = torch.optim.SGD(engine.parameters, lr=0.1)
    total = torch.zeros(engine.gradients.live, dtype=torch.float64, device=x.device)
    starts = range(0, len(x), USUAL)  # as coins would have it, about
    chunks = [slice(start, min(start + USUAL, len(x))) for start in starts]

    def step() -> None:
        engine.release(engine.gradients.filtered_sum(x, y, filter, chunks=chunks, out=total.zero_()).values)
        optimizer.step()

    step.gradients = engine.gradients  # type: ignore[attr-defined]
    return step


def opacus(model: nn.Module, x: torch.Tensor, y: torch.Tensor, mode: str) -> Step:
    """Opacus on the dense network, noise and clipping as its make_private sets them up; its loader is left out."""
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

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


def steps_of(
    network: str, density: float, batch: int, peers: bool, ticket: str | None, device: str
) -> dict[str, Step]:
    """Every step that is timed, each with a network of its own."""
    spec = ModelSpec(NETWORKS[network], 784, 10)
    x, y = torch.rand(batch, 784).to(device), torch.randint(10, (batch,)).to(device)

    def new() -> nn.Module:
        return build(spec, 0).to(device)

    sparse = random_mask(new(), density)
    steps: dict[str, Step] = {
        "plain": plain(new(), x, y),
        "clip": ours(new(), sparse, x, y, Clip(1.0)),
        "clip, dense": ours(new(), Mask.dense(new()), x, y, Clip(1.0)),
        "clip-then-tanh": ours(new(), sparse, x, y, make_filter("tanh")),
    }
    if network != "cnn":
        small = random_mask(new(), 0.02)
        steps |= {
            "clip-then-tanh, compiled": ours(new(), sparse, x, y, make_filter("tanh"), True),
            "tanh-then-clip": ours(new(), sparse, x, y, make_filter("tanh-clip")),
            "clip, 2 % live": ours(new(), small, x, y, Clip(1.0)),
        }
        less = compact(spec, weights_of(new()), small)
        steps["clip, 2 % live, compacted"] = ours(less.model.to(device), less.mask, x, y, Clip(1.0))
        if ticket is not None:
            name, _, number = ticket.rpartition("@")
            found = load_ticket_set(Path(name)).ticket(int(number)).mask
            less = compact(spec, weights_of(new()), found)
            share = f"clip, ticket with {found.density:.2%} live"
            steps |= {
                share: ours(new(), found, x, y, Clip(1.0)),
                f"{share}, compacted": ours(less.model.to(device), less.mask, x, y, Clip(1.0)),
            }
    if peers:
        steps |= {f"opacus {mode}": opacus(new(), x, y, mode) for mode in ("ghost", "hooks")}
        if network == "cnn":
            steps["opacus functorch"] = opacus(new(), x, y, "functorch")
    return steps


def held(step: Step) -> int:
    """Largest sum of tensor memory that one step allocates and has not freed yet, and the buffers it keeps, in bytes."""
    if torch.cuda.is_initialized():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated() - before  # the buffers that it keeps are counted by nobody here
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        step()
    most = now = 0
    for event in trace.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    plan = getattr(getattr(step, "gradients", None), "_plan", None)
    spaces = [getattr(layer, "space", None) for layer in plan.layers] if plan else []
    kept = [buffer for space in spaces if space for buffer in space._buffers.values()]
    return most + sum(buffer.numel() * buffer.element_size() for buffer in kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--network",
        choices=tuple(NETWORKS),
        default="mlp",
        help="784-300-100-10, hidden layers of 4,096, or cnn (GDP paper)",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ticket", metavar="SET@ROUND", help="a ticket of 784-300-100-10 to time as well")
    parser.add_argument("--density", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=400)
    parser.add_argument("--repeat", type=int, default=40)
    parser.add_argument("--peers", action="store_true", help="Opacus too, which must be installed")
    parser.add_argument("--without", nargs="*", default=[], metavar="STEP", help="steps to leave out, by name")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # Opacus's
    torch.manual_seed(0)
    steps = steps_of(given.network, given.density, given.batch, given.peers, given.ticket, given.device)
    steps = {name: step for name, step in steps.items() if name not in given.without}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(given.repeat + 3):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            if given.device == "cuda":
                torch.cuda.synchronize()
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
    where = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
    print(json.dumps({"device": where, "threads": torch.get_num_threads(), **body}, indent=1))


if __name__ == "__main__":
    main()
