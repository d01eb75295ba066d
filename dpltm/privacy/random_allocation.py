"""Random allocation: a record takes part in exactly one of m steps, drawn before the first (privacy-model.md 5.10).

Let W_1, ..., W_m be independent under Q, each the likelihood ratio e^l of N(1, s^2) over N(0, s^2) under the latter, and R
their mean. The pair of one of m has the likelihood ratio R, with E_Q R = 1, so in either direction delta is a convex
function of R in expectation:

    removed: E_Q (R - e^x)+,        added: E_Q (1 - e^x R)+.

A *mean-preserving spread* of R, which moves mass away from where it is and keeps its mean, can only raise both; and sums of
independent spreads are spreads of the sum. So all that is rounded here is spread: a value between two points of a grid goes
to both, in the parts that keep its mean, and tails go to 0 and to infinity. What comes out dominates in both directions at
once, and rounds to second order: in log, a grid of width h adds at most h^2/4 to the variance.

Grids are geometric: e^(h i) + e^(h j) is e^(h i) times what depends on i - j alone. A sum is one of two halves, and the
grid becomes finer as its relative deviation shrinks.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dpltm.privacy.privacy_loss import GaussianLoss, LossDistribution, Pair

LEAST_NOISE = 0.2  # with less e^l leaves what is computed with, and a record's step counts as known
PARTS, COARSEST, MOST = 100, 0.02, 1e4  # grid points to a deviation of the log, about; largest width; most points

_TAIL = 1e-22
"""Most of the mean, and of the chances, that one end of a sum loses to 0 and infinity. Of m terms, each without 1.6e-23 of
both from the start, there are m - 1 sums: all of them lose less than ten m times it."""

ROUNDING = 2e-14
"""Chance of an infinite loss beside that, for the rounding of places: 2^-52 over h of a mass goes to the wrong one of two
neighbours, and moves the mean by 2^-52 of it, at each of at most 60 sums."""

_RELATIVE = 1e-11  # error of a chance, a sum of at most 10^5 terms, none below 0; m times that of m of them
Law = tuple[int, np.ndarray]  # chances under Q of e^(h i), for i from the first; h is the width of a grid


@dataclass(frozen=True)
class AllocationLoss(GaussianLoss):
    """Privacy loss of a record in one of ``steps`` Gaussian steps, at least 2; add/remove. Its Renyi divergence is that of a
    step that is known: R^a is at most the mean of W^a, for a above 1 and for a below 0."""

    steps: int

    @property
    def reach(self) -> float:
        most = math.log1p(math.expm1(0.5 / self.noise_multiplier**2 + 8 / self.noise_multiplier) / self.steps)
        return min(self.span, most + 8 * self.scale)

    @property
    def scale(self) -> float:
        return min(math.sqrt(math.expm1(self.noise_multiplier**-2) / self.steps), 1 / self.noise_multiplier)

    def pld(self, width: float) -> Pair:
        finest = max(min(max(width, self.scale / PARTS), self.scale / 4, COARSEST), self.reach / MOST)
        start, law = _sum(self.noise_multiplier, self.steps, finest)
        lower, upper = _split((start + np.arange(len(law))) * finest - math.log(self.steps), width)
        first, size = int(lower[0]), int(lower[-1] - lower[0]) + 2
        parts = np.append(1 - upper, upper) * np.append(law, law) * (1 + _RELATIVE * self.steps)
        chances = np.bincount(np.append(lower, lower + 1) - first, parts, size)
        removed = chances * np.exp((first + np.arange(size)) * width)
        infinite = ROUNDING + 10 * _TAIL * self.steps
        return (
            LossDistribution(width, first, removed, infinite),
            LossDistribution(width, 1 - first - size, chances[::-1], infinite),
        )


@functools.lru_cache(maxsize=128)
def _sum(noise_multiplier: float, terms: int, finest: float, depth: int = 0) -> Law:
    """W_1 + ... + W_m, on a grid whose width is ``finest`` at depth 0, and twice that for a quarter of the terms."""
    most = int(math.log2(COARSEST / finest))
    width, coarser = (finest * 2.0 ** min(place // 2, most) for place in (depth, depth + 1))
    if terms == 1:
        return _of_step(noise_multiplier, width)
    halves = [_sum(noise_multiplier, part, finest, depth + 1) for part in (terms // 2, terms - terms // 2)]
    first, law = _added(halves, coarser)
    weights = law * (1 + np.exp((first + np.arange(len(law))) * coarser) / terms)
    start = int(np.searchsorted(np.cumsum(weights), _TAIL))
    stop = len(law) - int(np.searchsorted(np.cumsum(weights[::-1]), _TAIL))
    first, law = first + start, law[start:stop]
    return (first, law) if coarser == width else (2 * first, np.kron(law, (1.0, 0.0))[:-1])


def _of_step(noise_multiplier: float, width: float) -> Law:
    """W = e^(z / s - 1 / (2 s^2)) of a normal z, within ten deviations of where ln W is under Q, and under P."""
    # intervals are at most a quarter of a deviation wide: eight points of Gauss and Legendre leave 1e-20 of the integral
    shift = 0.5 / noise_multiplier**2
    (nodes, weights) = np.polynomial.legendre.leggauss(8)
    far = math.ceil((shift + 10 / noise_multiplier) / width)
    points = (np.arange(-far, far)[:, None] + (1 + nodes) / 2) * width
    density = np.exp(-0.5 * ((points + shift) * noise_multiplier) ** 2) * weights
    _, upper = _split(points[far], width)
    law = np.append(density @ (1 - upper), 0.0) + np.append(0.0, density @ upper)
    return -far, law * (noise_multiplier * width / 2 / math.sqrt(2 * math.pi))


def _added(laws: list[Law], width: float) -> Law:
    """The sum of two: with the larger at i and the other at i - d, it lies behind i + k for a range of d for each k."""
    ends = [(start, start + len(law)) for start, law in laws]
    low, high = (int(np.logaddexp(*(width * end for end in pair)) / width) for pair in zip(*ends, strict=True))
    low, added = low - 2, np.zeros(high - low + 4)
    for (first, larger), (below, smaller) in (laws, laws[::-1]):
        apart = np.arange(max(0, first - below - len(smaller) + 1), first + len(larger) - below)
        lower, upper = _split(np.log1p(np.exp(-width * apart)), width)
        share = np.where(apart, 1.0, 0.5)  # of equal ones either is the larger
        for start, stop in pairwise([*np.unique(-lower, return_index=True)[1], len(apart)]):
            for above, parts in enumerate(((1 - upper) * share, upper * share)):
                met = np.convolve(smaller, parts[start:stop])
                shift = below + apart[start] - first
                inside = slice(max(0, shift), min(len(larger), shift + len(met)))
                products = larger[inside] * met[inside.start - shift : inside.stop - shift]
                added[first + inside.start + lower[start] + above - low :][: len(products)] += products
    return low, added


def _split(logs: np.ndarray, width: float) -> tuple[np.ndarray, np.ndarray]:
    """Points of the grid at or below numbers, and the parts of these that go to the points above."""
    places = logs / width
    lower = np.floor(places)
    return lower.astype(np.int64), np.expm1((places - lower) * width) / math.expm1(width)
