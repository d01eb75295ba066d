"""Normalisation and a fixed norm: the steps that features go through, every row by itself; and noisy sums of rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from dpltm.randomness.gaussian_mechanism import gaussian_mechanism
from dpltm.randomness.noise import RandomSource

NORM = 8.0
"""L2 norm of every feature vector. The bias of a layer behind sees an input of 1, so its share of the squared norm of a
gradient is 1 / (1 + NORM^2), under 2 %; with norm 1 it would be a half, taken from what clipping leaves for the weights."""


@dataclass(frozen=True, eq=False)
class ChannelStatistics:
    """``(n, channels, height, width)`` less mean and over deviation, ``(channels,)``, of each channel over public images."""

    mean: Tensor
    deviation: Tensor

    def __call__(self, values: Tensor) -> Tensor:
        smallest = max(1e-4 * float(self.deviation.max()), 1e-12)  # so that no channel is blown up
        return (values - self.mean[:, None, None]) / self.deviation.clamp_min(smallest)[:, None, None]


def group_normalised(values: Tensor, groups: int) -> Tensor:
    """At most so many groups of neighbouring channels, each less its mean and over its deviation within its record."""
    channels = values.shape[1]
    groups = next(number for number in range(min(groups, channels), 0, -1) if channels % number == 0)
    return functional.group_norm(values, groups, eps=1e-10)


def normalised(values: Tensor, groups: int | None, statistics: ChannelStatistics | None = None) -> Tensor:
    """Transformed records as features, ``(n, features)``, pixel by pixel, with channels normalised within a record or by
    ``statistics``; without ``groups`` they are that already."""
    if groups is None:
        return values
    values = statistics(values) if statistics else group_normalised(values, groups)
    return values.permute(0, 2, 3, 1).flatten(1)


def fixed_norm(values: Tensor) -> Tensor:
    """``(n, features)`` with every row of norm ``NORM``; rows of zeros stay zero."""
    return values * (NORM / values.norm(dim=1, keepdim=True).clamp_min(1e-12))


SENSITIVITY = NORM  # L2 change that one record, added or removed, makes to a sum of features; one replaced: twice that
_STEP = 2.0**-25  # rows over their bound are cut to multiples of it, toward zero: no norm grows


def noisy_sum(batches: Iterable[Tensor], width: int, bound: float, noise_std: float, noise: RandomSource) -> Tensor:
    """Return the sum of rows, each clipped to a norm, with noise: ``(width,)`` float64 (docs/privacy-model.md 4.7).

    Args:
        batches: rows, ``(n, width)`` each, any values; private.
        bound: L2 norm that rows are clipped to; a power of two.
        noise_std: standard deviation of the noise on each coordinate of the sum.

    Guarantees:
        A Gaussian mechanism: one record changes the sum by at most ``bound`` (add/remove), whatever the rows hold; one
        that is not finite counts for nothing. The sum of up to 2^28 records has no rounding: over ``bound``, partial sums
        are multiples of 2^-25 of at most 2^28, which float64 holds.
    """
    total = torch.zeros(width, dtype=torch.float64)
    within = 1 - 1e-9  # less by more than what clipping rounds
    for batch in batches:
        rows = batch.double() / bound
        norms = rows.norm(dim=1, keepdim=True)
        rows = torch.where(norms.isfinite(), rows * (within / norms.clamp_min(within)), 0.0)
        total += ((rows / _STEP).trunc() * _STEP).sum(0)
    return torch.from_numpy(gaussian_mechanism((total * bound).numpy(), noise_std, noise))
