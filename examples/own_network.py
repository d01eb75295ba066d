"""A network of one's own from tickets to a file for others: ResNet-20 with GroupNorm, half as wide, on a part of CIFAR-10.

    DPLTM_DATA=FOLDER python examples/own_network.py

FOLDER holds cifar10-12k.npz. It takes seconds, so it learns little: for accuracy take thousands of steps.
"""

import os
import tempfile
from pathlib import Path

import numpy as np
from torch import Tensor, nn

import dpltm
from dpltm import tickets
from dpltm.tickets.export import Origin, export_torch_prune


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        first, second = (
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
        )
        self.body = nn.Sequential(first, nn.GroupNorm(4, after), nn.ReLU(), second, nn.GroupNorm(4, after))
        self.skip = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) + self.skip(x)).relu()


class ResNet20(nn.Sequential):
    def __init__(self) -> None:
        sizes = [(8, 8, 1)] * 3 + [(8, 16, 2)] + [(16, 16, 1)] * 2 + [(16, 32, 2)] + [(32, 32, 1)] * 2
        blocks = [Block(*size) for size in sizes]
        super().__init__(nn.Conv2d(3, 8, 3, 1, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def main(folder: Path) -> None:
    with np.load(Path(os.environ["DPLTM_DATA"]) / "cifar10-12k.npz") as cifar:
        x, y, x_test, y_test = (cifar[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    public, private = (x[:100], y[:100]), (x[9600:], y[9600:])
    few = {"rounds": 2, "iterations": 5, "batch_size": 50}
    made = dpltm.generate(*public, classes=10, model=ResNet20, provenance="public", **few)
    winner = dpltm.select(made, *private, classes=10, eps1=0.5, score="additive")
    run = dpltm.train(winner, *private, classes=10, epsilon=3.0, batch_size=50, steps=4)
    print(f"round {winner.round}, certified epsilon {run.privacy.certified.epsilon:.3f} at delta 1e-05")
    tickets.save(run, folder / "cifar.run")
    again = tickets.load(folder / "cifar.run", model=ResNet20)  # elsewhere: files hold no code
    print(f"accuracy {dpltm.evaluate(again, x_test[:200], y_test[:200]).accuracy:.0%}")
    export_torch_prune(made.body.theta0, winner.ticket.mask, folder / "ticket.safetensors", Origin.of(made))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
