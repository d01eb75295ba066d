"""Plain SGD of a masked network, without privacy: for tickets that do not depend on private records."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpltm.errors import InputError
from dpltm.networks.evaluation import Inputs
from dpltm.networks.masks import Mask

MAX_LR = 1e30
"""Largest step size: single precision ends at 3e38, and some optimizers divide by a tenth or less."""


def check_lr(lr: float) -> None:
    """Raise InputError unless ``lr`` is a step size that single precision can hold, whatever the optimizer."""
    if not (lr > 0 and math.isfinite(lr)):
        raise InputError(f"`lr`: {lr} is not a positive number")
    if lr > MAX_LR:
        raise InputError(f"`lr`: {lr:g} is more than {MAX_LR:g}; take a smaller one")


def train_plain(
    model: nn.Module,
    mask: Mask,
    records: tuple[Inputs, Tensor],
    batches: Iterator[Tensor],
    steps: int,
    lr: float,
    progress: Callable[[int], None] | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> None:
    """Run ``steps`` of plain SGD on the mean loss, over live coordinates only; changes ``model`` in place.

    Weights must be masked at the start, and each gradient is masked before it is used, so pruned weights stay exactly zero.
    Frozen ones stay what they are. ``progress`` is called with the steps done, every 25 and at the end. ``loss`` gives one
    value a record; None is the cross-entropy of classes.
    """
    x, y = records
    parameters = [value for value in model.parameters() if value.requires_grad]
    # as numbers: a product with booleans converts them first, which takes longer than the product
    pruned = [(p, mask[name].to(p.dtype)) for name, p in model.named_parameters() if not bool(mask[name].all())]
    mean = functional.cross_entropy if loss is None else lambda outputs, labels: loss(outputs, labels).mean()
    for step in range(steps):
        index = next(batches)
        value = mean(model(x[index]), y[index])
        for parameter in parameters:
            parameter.grad = None
        value.backward()
        with torch.no_grad():
            for parameter, live in pruned:
                if parameter.grad is not None:
                    parameter.grad.mul_(live)
            for parameter in parameters:
                if parameter.grad is not None:  # one that is not used has none
                    parameter.sub_(parameter.grad, alpha=lr)
        if progress is not None and (step % 25 == 24 or step == steps - 1):
            progress(step + 1)
    for parameter in parameters:
        parameter.grad = None


@contextlib.contextmanager
def dropping(model: nn.Module, share: float, generator: torch.Generator) -> Iterator[None]:
    """A block with that share, at least 0 and below 1, of the last layer's inputs left out at random and made up for."""
    if not 0 <= share < 1:
        raise InputError(f"`dropout`: {share:g} is not at least 0 and below 1")

    def drop(layer: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        del layer
        keep = torch.rand(given[0].shape, generator=generator) >= share
        return (given[0] * keep / (1 - share),)

    handle = list(model.children())[-1].register_forward_pre_hook(drop) if share else None
    try:
        yield
    finally:
        if handle is not None:
            handle.remove()


class Batches:
    """Index batches ``(batch_size,)`` int64 without end, one shuffled epoch after another; a short rest is left out."""

    def __init__(self, records: int, batch_size: int, generator: torch.Generator) -> None:
        self._records, self._size, self._generator = records, batch_size, generator
        self._parts: tuple[Tensor, ...] = ()
        self._epoch, self._taken = generator.get_state(), 0

    def __iter__(self) -> Iterator[Tensor]:
        return self

    def __next__(self) -> Tensor:
        if self._taken == len(self._parts):
            self._shuffle()
        self._taken += 1
        return self._parts[self._taken - 1]

    def state(self) -> tuple[Tensor, int]:
        """The generator's state before this epoch, and the batches taken of it."""
        return self._epoch, self._taken

    def resume(self, epoch: Tensor, taken: int) -> None:
        self._generator.set_state(epoch)
        self._epoch, self._taken = epoch, 0
        if taken:
            self._shuffle()
            self._taken = taken

    def _shuffle(self) -> None:
        self._epoch, self._taken = self._generator.get_state(), 0
        order = torch.randperm(self._records, generator=self._generator)
        self._parts = order[: self._records - self._records % self._size].split(self._size)


@contextlib.contextmanager
def threads(number: int | None) -> Iterator[None]:
    """A block with that many CPU threads; restores the former number."""
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
