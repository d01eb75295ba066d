"""Centring features at their noisy mean: one Gaussian query, which spends part of the budget and often saves more of it.

Where records have much in common, so have their features, and gradients of a linear layer point where that common part does.
Taking it off leaves the clip norm to what tells records apart.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from dpltm.features.conventions import NORM
from dpltm.randomness.gaussian_mechanism import gaussian_mechanism
from dpltm.randomness.noise import RandomSource

SENSITIVITY = NORM
"""L2 change that one record, added or removed, makes to the sum; half of what one replaced makes."""

_WITHIN = SENSITIVITY * (1 - 1e-9)
"""What each record is clipped to: less by more than what clipping it in float64 rounds."""

_STEP = 2.0**-22
"""Rows are cut to multiples of it, toward zero: no norm grows, and sums of up to 2^28 rows are exact, in any order."""


def release_mean(
    batches: Iterable[Tensor], features: int, records: int, noise_std: float, noise: RandomSource
) -> Tensor:
    """Noisy mean of features: (sum of clipped rows + N(0, noise_std^2)) / records.

    Args:
        batches: features, ``(n, features)`` each; private.
        features: their number.
        records: public number of records.
        noise_std: standard deviation of the noise on each coordinate of the sum.
        noise: random bits.

    Returns:
        ``(features,)`` float32.

    Guarantees:
        A Gaussian mechanism: one record changes the sum by at most ``SENSITIVITY`` (add/remove), whatever the rows hold,
        since each is clipped to the norm that features have, and one that is not finite counts for nothing. The sum of up
        to 2^28 records has no rounding: partial sums are multiples of 2^-22 below 2^31, which float64 holds. Noise is added
        by ``gaussian_mechanism``.
    """
    total = torch.zeros(features, dtype=torch.float64)
    for batch in batches:
        rows = batch.double()
        norms = rows.norm(dim=1, keepdim=True)
        rows = torch.where(norms.isfinite(), rows * (_WITHIN / norms.clamp_min(_WITHIN)), 0.0)
        total += ((rows / _STEP).trunc() * _STEP).sum(0)
    return (torch.from_numpy(gaussian_mechanism(total.numpy(), noise_std, noise)) / records).float()
