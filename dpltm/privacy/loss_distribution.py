"""Privacy loss distributions on a grid of losses: how a profile becomes one, and how they add up.

For neighbours with distributions P and Q of what is released, the loss is ln(P / Q), distributed as under P (Sommer, Meiser,
Mohammadi 2019). A distribution here *dominates*: its delta at every epsilon is at least the true one. So is that of a sum
of independent ones at least that of an adaptive composition (Zhu, Dong, Wang 2022, Theorem 10). dp-accounting, which does
the same a loss at a time, is the oracle of the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import fft

TAILS = 1e-15
"""Most chance of a sum of like losses that is left out at both ends; it counts as that of an infinite loss."""

LARGEST_ORDER = 64.0
"""Of Chernoff bounds on these tails, for losses that spread over 1: their exponentials stay far within float64."""


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """Of one direction.

    Attributes:
        width: of the grid.
        first: the first loss, in widths.
        chances: of the losses ``first``, ``first + 1``, ... times ``width``; below 0 at most by rounding.
        infinite: the chance of an infinite loss.
    """

    width: float
    first: int
    chances: np.ndarray
    infinite: float

    def plus(self, other: LossDistribution) -> LossDistribution:
        """Of the sum with an independent loss on the same grid."""
        count = len(self.chances) + len(other.chances) - 1
        size = fft.next_fast_len(count, real=True)
        chances = fft.irfft(fft.rfft(self.chances, size) * fft.rfft(other.chances, size), size)[:count]
        infinite = self.infinite + other.infinite - self.infinite * other.infinite
        return LossDistribution(self.width, self.first + other.first, chances, infinite)

    def times(self, count: int) -> LossDistribution:
        """Of the sum of ``count`` independent losses like this one.

        Its chances are a power in Fourier space, which wraps around: so it takes as many points as hold all but ``TAILS`` of
        the sum (Koskela et al. 2020).
        """
        if count == 1:
            return self
        low, high = _bulk(self.chances, count)
        size = fft.next_fast_len(max(high - low + 1, len(self.chances)), real=True)
        chances = np.roll(fft.irfft(fft.rfft(self.chances, size) ** count, size), -low)[: high - low + 1]
        infinite = TAILS - math.expm1(count * math.log1p(-self.infinite)) if self.infinite < 1 else 1.0
        return LossDistribution(self.width, count * self.first + low, chances, infinite)


Pair = tuple[LossDistribution, ...]
"""Both directions, or the one that stands for both."""


def both_plus(left: Pair, right: Pair) -> Pair:
    """:meth:`LossDistribution.plus` in each direction."""
    return tuple(
        left[min(i, len(left) - 1)].plus(right[min(i, len(right) - 1)]) for i in range(max(len(left), len(right)))
    )


def connected(deltas: Callable[[np.ndarray], np.ndarray], width: float, first: int, last: int) -> LossDistribution:
    """A distribution that dominates a profile: its deltas on a grid, connected (Doroshenko et al. 2022, Algorithm 1).

    Between losses of the grid, delta as a function of e^epsilon is the chord, which is above whatever is convex. Where
    rounding lets deltas rise, or bends them the wrong way, those below are raised, and chances below 0 left out: both only
    add.

    Args:
        deltas: the profile, asked for at ascending losses.
        width, first, last: of the grid, whose losses are ``first`` to ``last`` times ``width``.
    """
    known = np.maximum.accumulate(deltas(np.arange(first, last + 1) * width)[::-1])[::-1]
    falls = -np.diff(known)  # d_i - d_i+1
    slopes = np.append(falls / math.expm1(width), 0.0)
    # (falls_i-1 e^h - falls_i) / (e^h - 1); so written, what rounds e^h does not add up over the losses
    chances = np.append((1.0 - known[0]) - slopes[0], (slopes[:-1] - slopes[1:]) + falls)
    return LossDistribution(width, first, np.maximum(chances, 0.0), float(known[-1]))


def _bulk(chances: np.ndarray, count: int) -> tuple[int, int]:
    """The first and the last of the values that the sum of ``count`` draws of 0, 1, ... takes, but for ``TAILS`` of them.

    For every t > 0, P(S >= s) <= E[e^(t S)] e^(-t s), and likewise below. The s where that is half of ``TAILS`` is taken for
    the best of some t: for a normal sum it is about t = sqrt(2 ln(2 / TAILS) / Var S), for one of rare large losses more.
    What rounding does to such a bound (1e-10 of it) is nothing beside how far it is from the tail itself.

    Args:
        chances: of each value; together at most 1, but for rounding.
        count: of draws.
    """
    chances, values, left = np.maximum(chances, 0.0), np.arange(len(chances)), math.log(2 / TAILS)
    low, high, total = 0.0, float((len(chances) - 1) * count), float(chances.sum())
    if total == 0:
        return 0, 0
    variance = float(chances @ np.square(values - chances @ values / total))
    t = min(0.5 * math.sqrt(2 * left / (count * max(variance, 1e-9))), 2 / len(chances))
    above = np.exp(t * values)
    below = 1 / above
    while t <= LARGEST_ORDER / len(chances):
        high = min(high, (count * math.log(chances @ above) + left) / t)
        low = max(low, -(count * math.log(chances @ below) + left) / t)
        above, below, t = above * above, below * below, 2 * t
    return math.floor(low), max(math.floor(low), math.ceil(high))
