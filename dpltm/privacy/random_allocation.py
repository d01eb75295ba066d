"""Random allocation: a record takes part in exactly one of m steps, drawn before the first (privacy-model.md 5.10).

Let W_1, ..., W_m be independent under Q, each the likelihood ratio e^l of N(1, s^2) over N(0, s^2) under the latter, and R
their mean. The pair of one of m has the likelihood ratio R, with E_Q R = 1, so in either direction delta is a convex
function of R in expectation:

    removed: E_Q (R - e^x)+,        added: E_Q (1 - e^x R)+.

A *mean-preserving spread* of R, which moves mass away from where it is and keeps its mean, can only raise both; and sums of
independent spreads are spreads of the sum. So all that is rounded here is spread: a value between two points of a grid goes
to both, in the parts that keep its mean, and tails go to 0 and to infinity. What comes out dominates in both directions at
once, and rounds to second order: in log, a grid of width h adds at most h^2/4 to the variance. (Feldman and Shenfeld 2026
round to first order, each direction by itself.)

Grids are geometric: e^(h i) + e^(h j) is e^(h i) times what depends on j - i alone. The law of 2^k terms comes from that of
2^(k-1), on grids that become finer as the mean narrows.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from dpltm.privacy.privacy_loss import GaussianLoss, LossDistribution, Pair

LEAST_NOISE = 0.2
"""With less noise e^l leaves what is computed with, and a record in one step is priced as one whose step is known."""

PARTS, COARSEST, MOST = 50, 0.02, 1e4
"""Points of a grid to one deviation of the log of what is on it, about; its largest width; and the most points, about."""

_FAR = 10.0
"""Deviations within which W is on the grid."""

_TAIL = 1e-22
"""Most of the mean, and of the chances, that one end of a sum loses to 0 and infinity. What 2^k terms lose is at most twice
what 2^(k-1) lose, and this: of m, some 2 m times it."""

ROUNDING = 2e-14
"""Chance of an infinite loss beside those, for the rounding of places: 2^-52 over h of a mass goes to the wrong one of two
neighbours, and moves the mean by 2^-52 of it, at each of at most 60 sums."""

_RELATIVE = 1e-11
"""Relative error of a chance on the grid, whose sum has at most 10^5 terms, none below 0; what comes of m of them is off by
at most m times that, and raised by it."""

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


@dataclass(frozen=True)
class AllocationLoss:
    """Privacy loss of a record that takes part in one of ``steps`` Gaussian steps, at least 2; add/remove."""

    noise_multiplier: float
    steps: int

    @property
    def span(self) -> float:
        return GaussianLoss(self.noise_multiplier).span

    @property
    def reach(self) -> float:
        most = math.log1p(math.expm1(0.5 / self.noise_multiplier**2 + 8 / self.noise_multiplier) / self.steps)
        return min(self.span, most + 8 * self.scale)

    @property
    def scale(self) -> float:
        return min(math.sqrt(math.expm1(self.noise_multiplier**-2) / self.steps), 1 / self.noise_multiplier)

    def pld(self, width: float) -> Pair:
        finest = max(min(max(width, self.scale / PARTS), self.scale / 4, COARSEST), self.reach / MOST)
        return _sum(self.noise_multiplier, self.steps, finest).over(self.steps, width)

    def renyi(self, order: float) -> float:
        """That of a step that is known: R^a is at most the mean of W^a, for a above 1 and for a below 0."""
        return GaussianLoss(self.noise_multiplier).renyi(order)


@dataclass(frozen=True, eq=False)
class _Law:
    """Law under Q of a number above 0: ``chances`` of e^(``width`` i) for i from ``first``, ``zero`` of 0, and what of its
    mean is at infinity, ``far``."""

    width: float
    first: int
    chances: np.ndarray
    zero: float
    far: float

    @property
    def logs(self) -> np.ndarray:
        return (self.first + np.arange(len(self.chances))) * self.width

    @property
    def means(self) -> np.ndarray:
        """What each point adds to the mean."""
        return self.chances * np.exp(self.logs)

    def plus(self, other: _Law) -> _Law:
        """The law of the sum with an independent number, on the same grid; where one of the two is 0, at 0 and infinity."""
        one, two, same = self, other, self is other
        ends = one.first + len(one.chances), two.first + len(two.chances)
        first, _ = self._added(one.first, two.first)
        last, _ = self._added(ends[0], ends[1])
        found = np.zeros(last - first + 2)
        for apart in range(0 if same else two.first - ends[0] + 1, ends[1] - one.first):
            low, high = max(one.first, two.first - apart), min(ends[0], ends[1] - apart)
            both = one.chances[low - one.first : high - one.first]
            both = both * two.chances[low + apart - two.first : high + apart - two.first]
            both *= 2 if same and apart else 1
            place, upper = self._added(low, low + apart)
            found[place - first : place - first + len(both)] += (1 - upper) * both
            found[place - first + 1 : place - first + 1 + len(both)] += upper * both
        zero = one.zero + two.zero - one.zero * two.zero
        far = one.far + two.far + two.zero * one.means.sum() + one.zero * two.means.sum()
        return _Law(self.width, first, found, zero, float(far))

    def _added(self, i: int, j: int) -> tuple[int, float]:
        """Where e^(h i) + e^(h j) lies: the point below it, and the part of it that goes to the one above."""
        more = math.log1p(math.exp(-self.width * abs(i - j))) / self.width
        return max(i, j) + math.floor(more), float(_upper(more % 1, self.width))

    def trimmed(self) -> _Law:
        """The same with both ends at 0 and at infinity, as far as they hardly count."""
        means = self.means
        weights = self.chances + means / means.sum()
        start = int(np.searchsorted(np.cumsum(weights), _TAIL))
        stop = len(weights) - int(np.searchsorted(np.cumsum(weights[::-1]), _TAIL))
        zero, far = (float(each[:start].sum() + each[stop:].sum()) for each in (self.chances, means))
        return _Law(self.width, self.first + start, self.chances[start:stop], self.zero + zero, self.far + far)

    def halved(self) -> _Law:
        """The same on the grid of half the width."""
        chances = np.zeros(2 * len(self.chances) - 1)
        chances[::2] = self.chances
        return _Law(self.width / 2, 2 * self.first, chances, self.zero, self.far)

    def over(self, terms: int, width: float) -> Pair:
        """Losses ln R of both directions on multiples of ``width``, where this is the law of ``terms`` R."""
        places = (self.logs - math.log(terms)) / width
        first = math.floor(places[0])
        upper, place = _upper(places % 1, width), np.floor(places).astype(np.int64) - first
        size = int(place[-1]) + 2
        chances = np.zeros(size)
        np.add.at(chances, place, (1 - upper) * self.chances)
        np.add.at(chances, place + 1, upper * self.chances)
        chances *= 1 + _RELATIVE * terms
        removed = chances * np.exp((first + np.arange(size)) * width)
        return (
            LossDistribution(width, first, removed, self.far / terms + ROUNDING),
            LossDistribution(width, 1 - first - size, chances[::-1], self.zero + ROUNDING),
        )


def _upper(share: float | np.ndarray, width: float) -> float | np.ndarray:
    """The part of a value e^(width ``share``) between 1 and e^width that goes to the latter."""
    return np.expm1(width * share) / math.expm1(width)


def _one(noise_multiplier: float, width: float) -> _Law:
    """The law of W = e^(z / s - 1 / (2 s^2)) of a normal z.

    Of each interval of the grid the integral of the two parts is taken; at most a quarter of a deviation wide, eight points
    of Gauss and Legendre leave 1e-20 of it.
    """
    shift = 0.5 / noise_multiplier**2
    low, high = (math.floor((side * _FAR / noise_multiplier - shift) / width) for side in (-1, 1))
    high += math.ceil((1 / noise_multiplier**2) / width)  # by as much E(W; W > w) reaches further than P(W > w)
    edges, inner = np.arange(low, high)[:, None], (1 + _NODES) / 2
    points = ((edges + inner) * width + shift) * noise_multiplier
    density = np.exp(-0.5 * points**2) / math.sqrt(2 * math.pi) * (noise_multiplier * width * _WEIGHTS / 2)
    upper = _upper(inner, width)
    chances = np.append((density * (1 - upper)).sum(1), 0.0) + np.append(0.0, (density * upper).sum(1))
    least, most = ((edge * width + shift) * noise_multiplier for edge in (low, high))
    mean = 1 / noise_multiplier
    return _Law(width, low, chances, float(ndtr(least) + ndtr(-most)), float(ndtr(least - mean) + ndtr(mean - most)))


@functools.lru_cache(maxsize=32)
def _sum(noise_multiplier: float, steps: int, finest: float) -> _Law:
    """The law of W_1 + ... + W_m, by the binary digits of m, at last on a grid of about the width ``finest``."""
    levels = steps.bit_length() - 1
    halvings = min(levels // 2, int(math.log2(max(1.0, COARSEST / finest))))
    power, total = _one(noise_multiplier, finest * 2.0**halvings), None
    for level in range(levels + 1):
        if steps >> level & 1:
            total = power if total is None else total.plus(power).trimmed()
        if level < levels:
            power = power.plus(power).trimmed()
            if halvings > (levels - level - 1) // 2:  # a mean of twice as many is narrower by the root of 2
                halvings -= 1
                power, total = power.halved(), None if total is None else total.halved()
    assert total is not None
    return total
