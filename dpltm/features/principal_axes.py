"""Principal axes of rows: the directions in which they vary most."""

from __future__ import annotations

import torch
from torch import Tensor


def principal_axes(rows: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean ``(width,)``, the largest variances ``(count,)`` and their unit directions ``(width, count)``, all float64.

    Of the two signs of a direction, its largest entry is positive.

    Args:
        rows: ``(n, width)``.
        count: at most n and at most ``width``; more are not there.
    """
    wide = rows.double()
    mean = wide.mean(0)
    wide = wide - mean
    if len(wide) >= wide.shape[1]:
        variances, vectors = torch.linalg.eigh(wide.T @ wide / len(wide))
    else:  # the same from the other side, where that is smaller
        variances, vectors = torch.linalg.eigh(wide @ wide.T / len(wide))
        vectors = wide.T @ vectors / (len(wide) * variances.clamp_min(1e-30)).sqrt()
    variances, vectors = variances.flip(0)[:count], vectors.flip(1)[:, :count]
    return mean, variances, vectors * vectors.gather(0, vectors.abs().argmax(0, keepdim=True)).sign()
