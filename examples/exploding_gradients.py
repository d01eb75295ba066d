"""A recurrent network whose gradients explode: plain SGD diverges, SGD on tanh-filtered gradients learns.

    python examples/exploding_gradients.py

The task: say whether the first of 60 numbers was positive. The recurrent weights start a little too large, so that the
gradient through 60 steps grows with every update until it explodes. The tanh filter of Amian's thesis (5.4) takes the place
of gradient clipping; no noise, no privacy. The settings were chosen to show this.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from dpltm.gradients import tanh_grad_

STEPS, LENGTH, WIDTH, BATCH = 300, 60, 16, 64


class Network(nn.Module):
    """A linear-threshold recurrence and a linear read-out of its last state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell = nn.RNNCell(1, WIDTH, nonlinearity="relu")
        self.out = nn.Linear(WIDTH, 2)
        with torch.no_grad():
            self.cell.weight_hh.copy_(1.04 * torch.eye(WIDTH))  # each step grows the state by 4 %

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(len(x), WIDTH)
        for number in x.T:
            state = self.cell(number[:, None], state)
        return self.out(state)


def run(filtered: bool) -> tuple[float, float]:
    """Trains; returns the last loss and the accuracy on fresh sequences."""
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(1)
    loss = torch.tensor(0.0)
    for _ in range(STEPS):
        x = torch.randn(BATCH, LENGTH, generator=generator) * torch.tensor([1.0] + [0.02] * (LENGTH - 1))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        loss.backward()
        if filtered:
            tanh_grad_(model.parameters(), scale=0.1, range=1.0)
        optimizer.step()
    x = torch.randn(1000, LENGTH, generator=generator) * torch.tensor([1.0] + [0.02] * (LENGTH - 1))
    with torch.no_grad():
        right = (model(x).argmax(1) == (x[:, 0] > 0)).float().mean().item()
    return loss.item(), right


def main() -> None:
    torch.set_num_threads(1)  # steps are small
    for name, filtered in (("plain SGD", False), ("SGD on tanh-filtered gradients", True)):
        loss, right = run(filtered)
        outcome = "diverged" if not math.isfinite(loss) else f"loss {loss:.3f}"
        print(f"{name}: {outcome}, accuracy {right:.1%}")


if __name__ == "__main__":
    main()
