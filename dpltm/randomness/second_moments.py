"""Second moments of norm-bounded rows, released once with Gaussian noise: damped Newton steps divide by them.

The curvature of a single layer on features, trained by cross-entropy, is at most half of these (Boehning 1992).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from dpltm.randomness.gaussian_mechanism import gaussian_mechanism
from dpltm.randomness.noise import RandomSource

SENSITIVITY = 1.0  # L2, of the sum of svec(u u^T) over rows u of norm at most 1, add/remove; replace-one doubles it
BITS = 16  # rows are cut to multiples of 2^-16, so that every sum over records is one of whole numbers, and exact
ROWS = 4096  # records at a time: products of 32 bits, so many of them, are exact in float64 (2^44 of 2^53)
MAX_NOISE = 2.0**16
LOW = 48  # bits that take part in the rounding of the noise: grid steps are below 2^41 up to ``MAX_NOISE``


def release_second_moments(batches: Iterable[Tensor], features: int, noise_std: float, noise: RandomSource) -> Tensor:
    """The sum of u u^T over all rows u, with noise: ``(features, features)`` float64, symmetric, not positive semi-definite.

    Args:
        batches: rows, ``(n, features)`` floating point each, any values; private.
        noise_std: standard deviation of the noise on every coordinate of svec, at most ``MAX_NOISE``: that of the noise
            on the diagonal, and sqrt 2 times that of the noise off it.

    Guarantees:
        A Gaussian mechanism on svec(sum of u u^T), where svec takes the upper triangle with off-diagonals times sqrt 2.

        Sensitivity: norm(svec(u u^T)) = norm(u)^2 <= 1. A longer row is divided by its norm first. That the norm is at
        most 1 is checked on the whole numbers 2^16 u, whose squares add up without rounding. A row that fails the check,
        as those that are not finite do, adds nothing. So whatever the values, a record added or removed moves the sum
        by at most 1, and one replaced by at most 2 (docs/privacy-model.md 4.7). Their sums are exact in any order.
    """
    second = torch.zeros(features, features, dtype=torch.int64)
    for batch in batches:
        for rows in batch.split(ROWS):
            integers = whole_rows(rows.cpu()).numpy()
            # NumPy computes one triangle, in half the time
            second += torch.from_numpy((integers.T @ integers).astype(np.int64))
    return noisy_symmetric(second, noise_std, noise)


def whole_rows(rows: Tensor) -> Tensor:
    """Rows ``(n, features)`` over their norm where that is above 1, times 2^16, cut towards zero: whole numbers in
    float64, of norm at most 2^16; zeros if unusable."""
    wide = rows.to(torch.float64)
    largest = wide.abs().amax(dim=1, keepdim=True).clamp(min=1.0)  # so that no square overflows
    wide = wide / largest
    wide = wide / wide.square().sum(dim=1, keepdim=True).sqrt().clamp(min=1 / largest)
    integers = (wide * ((1 - 2.0**-30) * 2.0**BITS)).trunc()
    usable = integers.square().sum(dim=1) <= 4.0**BITS  # exact for numbers up to 2^16, and a larger one fails
    return integers.where(usable[:, None], torch.zeros_like(integers))


def noisy_symmetric(second: Tensor, noise_std: float, noise: RandomSource) -> Tensor:
    """Symmetric int64 sums over 2^32, with noise of ``noise_std`` on the diagonal and that over sqrt 2 off it."""
    first, other = torch.triu_indices(len(second), len(second), 1)
    pairs = noisy_whole(second[first, other], noise_std / math.sqrt(2), noise)
    released = torch.diag(noisy_whole(second.diagonal(), noise_std, noise))
    released[first, other] = pairs
    released[other, first] = pairs
    return released


def noisy_whole(integers: Tensor, std: float, source: RandomSource) -> Tensor:
    """``integers / 2^32`` with noise of this ``std``, float64 of the same shape."""
    high = integers >> LOW << LOW  # a multiple of every grid step up to ``MAX_NOISE``: it has no part in the rounding
    low = (integers - high).to(torch.float64)
    noisy = torch.from_numpy(gaussian_mechanism(low.reshape(-1).numpy(), std * 4.0**BITS, source)).view_as(low)
    return (high.to(torch.float64) + noisy) / 4.0**BITS


def edge(features: int, noise_std: float) -> float:
    """Edge of the eigenvalues of the noise alone: 2 sqrt(features) times its deviation off the diagonal."""
    return 2 * math.sqrt(features) * noise_std / math.sqrt(2)
