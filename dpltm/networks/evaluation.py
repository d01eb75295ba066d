"""Evaluation of a network on given records: how many it gets right, and how far off its ratings are."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn

from dpltm.networks import ModelSpec
from dpltm.networks.full_precision import full_precision


class Rows(Protocol):
    """Inputs that are prepared as they are read."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor | slice) -> Tensor: ...


Inputs = Tensor | Rows
"""``(n, features)``, in memory or a batch at a time."""


CHUNK = 1024
"""Records that are looked at together. A convolutional network's activations of many more outgrow a processor's caches."""

DIVERGED = "training diverged: the network gives no finite numbers, so it tells nothing; take a smaller `lr`"


@torch.no_grad()
def has_diverged(model: nn.Module, spec: ModelSpec) -> bool:
    """True if a network has weights, or outputs for a record of zeros (nobody's), that are not finite."""
    kept = list(model.parameters())
    zeros = torch.zeros(1, spec.features, dtype=torch.long if spec.tables else torch.float32, device=kept[0].device)
    return not all(bool(value.isfinite().all()) for value in (*kept, model(zeros)))


@torch.no_grad()
def count_correct(model: nn.Module, x: Inputs, y: Tensor, chunk: int = CHUNK) -> int:
    """Number of records whose largest output is at their label.

    Guarantees:
        Rows go through the network so many at a time, the last ones beside rows of zeros: products of another size may
        round in another way, and then a record more could change what others count for.
    """
    right = 0
    with full_precision():  # whether a record is right should not depend on those beside it
        for start in range(0, len(x), chunk):
            rows, labels = x[start : start + chunk], y[start : start + chunk]
            missing = rows.new_zeros(chunk - len(rows), *rows.shape[1:])
            right += int((model(torch.cat([rows, missing]))[: len(rows)].argmax(1) == labels).sum())
    return right


def accuracy(model: nn.Module, x: Inputs, y: Tensor, chunk: int = CHUNK) -> float:
    """Fraction of records that the network gets right, from 0 to 1. Arguments as :func:`count_correct`."""
    return count_correct(model, x, y, chunk) / len(x)


def root_mean_squared_error(model: nn.Module, x: Inputs, y: Tensor, chunk: int = CHUNK) -> float:
    """Root mean squared error of the expected rating, sum_k p_k k, against the rating; infinity if not finite."""
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(x), chunk):
            chances = torch.softmax(model(x[start : start + chunk]).double(), 1)
            stars = torch.arange(chances.shape[1], dtype=chances.dtype, device=chances.device)
            total += float((chances @ stars - y[start : start + chunk]).square().sum())
    return math.sqrt(total / len(x)) if math.isfinite(total) else math.inf
