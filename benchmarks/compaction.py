"""What compaction makes of tickets: parameters, multiplications, file size and DP step time, before and after.

    python benchmarks/compaction.py SET@ROUND ... [--batch 400] [--repeat 40]

A DP step is everything between a batch in memory and the updated weights, with clip, noise and optimizer (see
training_step.py); medians of interleaved steps in one process. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from safetensors.torch import save
from torch import nn
from training_step import ours, plain

from dpltm.filters import Clip
from dpltm.networks import build
from dpltm.networks.compaction import compact
from dpltm.tickets.store import find_set, split_round


def multiplications(model: nn.Module, features: int) -> int:
    """Of one record's forward pass, pruned weights included: nothing skips them on ordinary hardware."""
    total = 0

    def count(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        nonlocal total
        del inputs
        total += module.weight.numel() * math.prod(output.shape[2:])  # type: ignore[union-attr, operator]

    hooks = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    model(torch.zeros(1, features))
    for hook in hooks:
        hook.remove()
    return total


def file_size(model: nn.Module) -> int:
    """Of the state dict as safetensors, in bytes."""
    return len(save({name: value.detach().contiguous() for name, value in model.named_parameters()}))


def medians(steps: list[Callable[[], None]], repeat: int) -> list[float]:
    times: list[list[float]] = [[] for _ in steps]
    for turn in range(repeat + 3):
        for step, found in zip(steps, times, strict=True):
            began = time.perf_counter()
            step()
            if turn >= 3:
                found.append(time.perf_counter() - began)
    return [1e3 * statistics.median(found) for found in times]


def row(text: str, batch: int, repeat: int) -> dict[str, Any]:
    name, number = split_round(text)
    tickets = find_set(name)
    if number is None:
        raise SystemExit(f"{name}: write {name}@ROUND")
    spec, mask = tickets.body.spec, tickets.ticket(number).mask
    model = build(spec)
    model.load_state_dict(tickets.body.theta0)
    small = compact(spec, tickets.body.theta0, mask)
    x, y = torch.rand(batch, spec.features), torch.randint(spec.classes, (batch,))
    sides = ((model, mask), (small.model, small.mask))
    steps = [plain(build(spec, 0), x, y), *(ours(network, keep, x, y, Clip(1.0)) for network, keep in sides)]
    base, *ms = medians(steps, repeat)
    figures = [
        {
            "parameters": sum(value.numel() for value in network.parameters()),
            "live": keep.live,
            "multiplications": multiplications(network, spec.features),
            "bytes": file_size(network),
            "step ms": round(spent, 2),
            "plain dense steps": round(spent / base, 2),
        }
        for (network, keep), spent in zip(sides, ms, strict=True)
    ]
    return {
        "ticket": text,
        "criterion": tickets.criterion,
        "density": mask.density,
        "networks": [spec.text, small.spec.text],
        "before": figures[0],
        "after": figures[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tickets", nargs="+", metavar="SET@ROUND")
    parser.add_argument("--batch", type=int, default=400)
    parser.add_argument("--repeat", type=int, default=40)
    given = parser.parse_args()
    rows = [row(text, given.batch, given.repeat) for text in given.tickets]
    print(json.dumps({"threads": torch.get_num_threads(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
