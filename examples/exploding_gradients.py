"""A recurrent network whose gradients explode: plain SGD diverges, SGD on clipped or tanh-filtered gradients learns.

    python examples/exploding_gradients.py

The task: say whether the first of 60 numbers was positive. The recurrent weights start at 1.2, so that a state grows by
1.2^60, more than 50,000 times. The gradient grows as much: one step of plain SGD, and the next forward pass overflows.
The tanh filter of Amian's thesis (5.4) takes the place of gradient clipping, which stands beside it: no step moves a
weight by more than a tenth of the learning rate. No noise, no privacy. The settings were chosen to show this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from dpltm.gradients import tanh_grad_

SEEDS, STEPS, LENGTH, WIDTH, BATCH, RATE = 3, 300, 60, 16, 64, 0.02


WAYS: dict[str, Callable[[Iterable[torch.Tensor]], object]] = {
    "plain SGD": lambda _: None,
    "clipped": partial(nn.utils.clip_grad_norm_, max_norm=1.0),
    "tanh-filtered": partial(tanh_grad_, scale=0.1, range=1.0),
}


class Network(nn.Module):
    """A linear-threshold recurrence and a linear read-out of its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(1, WIDTH, nonlinearity="relu")
        self.out = nn.Linear(WIDTH, 2)
        with torch.no_grad():
            self.cell.weight_hh.copy_(1.2 * torch.eye(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(len(x), WIDTH)
        for number in x.T:
            state = self.cell(number[:, None], state)
        return self.out(state)


def sequences(count: int, generator: torch.Generator) -> torch.Tensor:
    """The first number is what counts; the others are small."""
    return torch.randn(count, LENGTH, generator=generator) * torch.tensor([1.0] + [0.02] * (LENGTH - 1))


def run(seed: int, limited: Callable[[Iterable[torch.Tensor]], object]) -> str:
    """Trains with a learning rate that falls to 0, on gradients of batches that are limited so; returns what came of it."""
    torch.manual_seed(seed)
    model, generator = Network(), torch.Generator().manual_seed(seed + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / STEPS)
        x = sequences(BATCH, generator)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        if not math.isfinite(loss.item()):
            return f"diverged at step {step + 1}"
        loss.backward()
        limited(model.parameters())
        optimizer.step()
    x = sequences(1000, generator)
    with torch.no_grad():
        right = (model(x).argmax(1) == (x[:, 0] > 0)).float().mean().item()
    return f"accuracy {right:.1%}"


def main() -> None:
    torch.set_num_threads(1)  # steps are small
    for seed in range(SEEDS):
        print(f"seed {seed}: " + ", ".join(f"{name} {run(seed, limited)}" for name, limited in WAYS.items()))


if __name__ == "__main__":
    main()
