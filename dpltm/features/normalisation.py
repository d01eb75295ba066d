"""Normalisation that reads no private record but the one at hand: by public statistics, or within the record."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

NORM = 8.0
"""L2 norm of every feature vector. The bias of a layer behind sees an input of 1, so its share of the squared norm of a
gradient is 1 / (1 + NORM^2), under 2 %; with norm 1 it would be a half, taken from what clipping leaves for the weights."""

GROUPS = 27
"""Groups of channels, for each colour channel of an image, that are normalised within a record."""


def by_channel(values: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """``(n, channels, height, width)`` less the mean and over the deviation of each channel, which are public.

    No channel is blown up by more than ten thousand times what the one is that varies most among the public records.
    """
    least = max(1e-4 * float(deviation.max()), 1e-12)
    return (values - mean[:, None, None]) / deviation.clamp_min(least)[:, None, None]


def by_group(values: Tensor, groups: int) -> Tensor:
    """Every record's channels in groups of neighbours, each less its mean and over its deviation within that record.

    Where the number of channels does not divide, there are as many groups as the next smaller number that divides it.
    """
    channels = values.shape[1]
    groups = next(number for number in range(min(groups, channels), 0, -1) if channels % number == 0)
    return functional.group_norm(values, groups, eps=1e-10)


def of_norm(values: Tensor) -> Tensor:
    """``(n, features)`` with every row of norm ``NORM``; rows of zeros stay zero."""
    return values * (NORM / values.norm(dim=1, keepdim=True).clamp_min(1e-12))
