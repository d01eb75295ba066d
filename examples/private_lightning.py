"""Private training in Lightning: a callback begins the private loop, and each step of the trainer takes one of its steps.

    pip install lightning
    python examples/private_lightning.py

PrivateLoop draws the records of a step itself, so the trainer only counts: its data loader is ``range(steps)``. The module
asks the loop for the gradient instead of computing a loss, by Lightning's manual optimization. Other callbacks, loggers and
checkpoints work as they do elsewhere.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import lightning
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from dpltm.verbs.private_loop import PrivateLoop, Step

SETTINGS = {"batch_size": 300, "steps": 120, "epsilon": 3.0, "delta": 1e-5, "records": 1500}


class Digits(lightning.LightningModule):
    """A small network, and how Lightning takes a step."""

    steps: Iterator[Step]

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)

    def training_step(self, *_: object) -> None:
        next(self.steps).backward()  # the one private gradient of this step, in every parameter's grad
        self.optimizers().step()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class PrivateTraining(lightning.Callback):
    """Begins the loop, which enters what it costs, and says at the end what that came to."""

    def __init__(self, loop: PrivateLoop) -> None:
        self.loop = loop

    def on_train_start(self, _: lightning.Trainer, module: lightning.LightningModule) -> None:
        module.steps = iter(self.loop)

    def on_train_end(self, *_: object) -> None:
        certified = self.loop.report().certified
        print(
            f"certified epsilon {certified.epsilon:.3f} at delta {certified.delta:g}, {certified.adjacency} one record"
        )


def records() -> tuple[np.ndarray, np.ndarray]:
    """The digits in a fixed order: 1,500 that are private, then a test split."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    return (digits.data[order] / 16).astype(np.float32), digits.target[order]


def train(**settings: Any) -> Digits:
    """Trains the module; settings beside ``SETTINGS`` are for tests."""
    torch.manual_seed(0)
    x, y = records()
    module = Digits()
    loop = PrivateLoop(module, nn.CrossEntropyLoss(reduction="none"), x[:1500], y[:1500], **{**SETTINGS, **settings})
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", callbacks=[PrivateTraining(loop)], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, train_dataloaders=range(len(loop)))
    return module


def main() -> None:
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")  # about workers of a data loader, which there is none of
    module = train()
    x, y = records()
    with torch.no_grad():
        right = module.eval()(torch.from_numpy(x[1500:])).argmax(1).numpy() == y[1500:]
    print(f"test accuracy {right.mean():.1%}")


if __name__ == "__main__":
    main()
