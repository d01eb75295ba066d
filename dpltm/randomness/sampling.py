"""Poisson sampling: every record enters a step on its own coin, and a chunk of it on another; and random allocation.

**Sums in float32, and why no record moves them by more than its bound** (docs/privacy-model.md 4.4). A batch is split into
chunks, by an independent coin of every sampled record: a neighbour's extra record r is then in one chunk, and all others are
sums of the same numbers in the same order, added up in float64.

That chunk is computed once with r and once without. In a sum of m products every term takes part in at most m roundings, and
in two before: of its factor, and of the factor times its output gradient. So with s_b the contribution of record b,
|s_b| <= C, and u = 2^-24, coordinate by coordinate and therefore in L2,

    |computed - exact| <= gamma sum_b |s_b| <= gamma m C,    gamma = (m + 2) u / (1 - (m + 2) u)    (Higham 2002, (3.4)),

whatever the order. Between neighbours this happens twice: the sum moves by at most C (1 + 2 gamma m). ``ROUNDING`` is the
inverse at m = ``LIMIT``: contributions are scaled by it, and C holds. A larger chunk is summed in float64, and scaled all
the same: the scale may not depend on the records.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dpltm.errors import InputError
from dpltm.randomness.noise import KEY, KeyedSource, RandomSource, below

LIMIT = 100  # most records of a chunk that is summed in float32
USUAL = 80  # records of a chunk on average, at most: one in a hundred comes out larger than ``LIMIT``
_GAMMA = (LIMIT + 2) * 2.0**-24 / (1 - (LIMIT + 2) * 2.0**-24)  # gamma of the bound above, of a full chunk
ROUNDING = 1 / (1 + 2 * _GAMMA * LIMIT)  # scale of contributions

HIGHEST = 2.0**60
"""Factors, and linear layers' output gradients times these, are cut off here: above, products of float32 numbers could
overflow. In float64 sums as well, since another record may decide which of them one is in."""


def scale_of(bound: float) -> float:
    """The power of two next above a bound, by which factors are divided and sums multiplied, exactly: what float32
    cannot hold is then negligible beside the bound, however small that is."""
    return 2.0 ** math.ceil(math.log2(bound)) if 0 < bound < math.inf else 1.0


def held_in_float32(factor: Tensor) -> Tensor:
    """Factors that float32 rounds by no more than 2^-24: above ``HIGHEST`` they are cut off, below its normal numbers
    (of records with gradients beyond 2^125) made zero. Both make contributions smaller."""
    return functional.hardshrink(factor.clamp(-HIGHEST, HIGHEST), torch.finfo(torch.float32).tiny)


def check_chunks(chunks: Sequence[slice], records: int) -> None:
    """Raise InputError for chunks that are not rows of a batch one after the other, at most ``LIMIT`` each."""
    stop = 0
    for rows in chunks:
        if not stop <= rows.start <= rows.stop <= records or rows.stop - rows.start > LIMIT:
            raise InputError(
                f"`chunks`: rows {rows.start} to {rows.stop} of {records} are no chunk; give them in order, apart, and at"
                f" most {LIMIT} together"
            )
        stop = rows.stop


def others(chunks: Sequence[slice], records: int) -> list[slice]:
    """Rows of a batch that are in no chunk."""
    starts = [0, *(rows.stop for rows in chunks)]
    stops = [*(rows.start for rows in chunks), records]
    return [slice(start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop]


def poisson_sample(source: RandomSource, records: int, sampling_rate: float) -> np.ndarray:
    """Indices of the records that enter one step, int64 ``(m,)``, m ~ Binomial(n, q), in increasing order; maybe none.

    Args:
        source: of the coins, which are secret.
        records: number of records n at hand; private under add/remove, so only the result may depend on it.
        sampling_rate: q in (0, 1].

    Guarantees:
        Independent coins with probability floor(q 2^32) / 2^32, at most q; accounting for q covers it.
    """
    if not 0 < sampling_rate <= 1:
        raise InputError(f"Expected 0 < sampling_rate={sampling_rate} <= 1")
    if sampling_rate == 1:
        return np.arange(records)
    coins = np.frombuffer(source.random_bytes(4 * records), dtype=np.uint32)
    return np.flatnonzero(coins < np.uint32(int(sampling_rate * 2**32)))


def allocate(source: RandomSource, records: int, steps: int, participations: int) -> Iterator[np.ndarray]:
    """Yield the indices of the records that enter each step, as ``poisson_sample``: every record enters so many.

    All sets of so many steps are equally likely for a record, whatever the others' are: with r of them left, and t steps, it
    enters with chance r / t (Knuth, volume 2, 3.4.2, algorithm S).
    """
    left = np.full(records, participations)
    for ahead in range(steps, 0, -1):
        enters = below(source, records, ahead) < left
        left -= enters
        yield np.flatnonzero(enters)


def in_chunks(source: RandomSource, index: np.ndarray, chunks: int) -> tuple[np.ndarray, list[int]]:
    """The records of a step chunk by chunk: the index in another order, and how many records each chunk has.

    The number of ``chunks`` is public. Every record's chunk is a coin of its own: a neighbour's extra record changes one.
    """
    if chunks == 1:
        return index, [len(index)]
    coins = np.frombuffer(source.random_bytes(4 * len(index)), dtype=np.uint32) % np.uint32(chunks)
    return index[np.argsort(coins, kind="stable")], np.bincount(coins, minlength=chunks).tolist()


def record_keys(source: RandomSource, records: int) -> np.ndarray:
    """A key for each of the records at hand, ``(records,)`` int64, by its place: independent and uniform, as far as a key
    stream of 256 bits of ``source`` is. What a network draws for it in a step follows from it."""
    stream = KeyedSource(bytes(source.random_bytes(KEY))).random_bytes(8 * records)
    return np.frombuffer(stream, dtype=np.int64)
