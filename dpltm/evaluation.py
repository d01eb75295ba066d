"""How far from the truth the ratings are that a network expects."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dpltm.generation import CHUNK


def root_mean_squared_error(model: nn.Module, x: Tensor, y: Tensor, chunk: int = CHUNK) -> float:
    """Root mean squared error of the expected rating, sum_k p_k k, against the rating.

    Args:
        model: gives a row of values a record, ``(batch, classes)``; p is their softmax.
        x: ``(n, features)``, n from 1 up.
        y: ratings as classes, ``(n,)``, whole numbers from 0; adding one to all of them changes nothing.
        chunk: records at a time.

    Returns:
        Infinity for a network that training drove out of the numbers.
    """
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(x), chunk):
            chances = torch.softmax(model(x[start : start + chunk]).double(), 1)
            stars = torch.arange(chances.shape[1], dtype=chances.dtype, device=chances.device)
            total += float((chances @ stars - y[start : start + chunk]).square().sum())
    return math.sqrt(total / len(x)) if math.isfinite(total) else math.inf
