"""Poisson sampling: every record enters a step on its own coin."""

from __future__ import annotations

import numpy as np

from dpltm.errors import InputError
from dpltm.noise import RandomSource


def poisson_sample(source: RandomSource, records: int, sampling_rate: float) -> np.ndarray:
    """Indices of the records that enter one step, in increasing order; possibly none.

    Args:
        source: where the coins come from; secret, since amplification by sampling rests on nobody knowing them.
        records: number of records n at hand; private under add/remove, so only the result may depend on it.
        sampling_rate: q in (0, 1].

    Returns:
        int64 indices, shape ``(m,)`` with m ~ Binomial(n, q).

    Guarantees:
        Independent coins with probability floor(q 2^32) / 2^32, at most q; accounting for q covers it.
    """
    if not 0 < sampling_rate <= 1:
        raise InputError(f"Expected 0 < sampling_rate={sampling_rate} <= 1")
    if sampling_rate == 1:
        return np.arange(records)
    coins = np.frombuffer(source.random_bytes(4 * records), dtype=np.uint32)
    return np.flatnonzero(coins < np.uint32(int(sampling_rate * 2**32)))
