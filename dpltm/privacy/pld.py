"""Composition by privacy loss distributions: the privacy profile delta(epsilon) of many releases together.

All discretisation is pessimistic, so a profile is an upper bound. This module decides how wide the grid of losses is, and
how far the rounding of a fast Fourier transform may be trusted.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpltm.privacy.accountants import FINE, Resolution
from dpltm.privacy.privacy_loss import BoundedRangeLoss, LossDistribution, Pair, PrivacyLoss, both_plus

MAX_WIDTH = 50.0
"""A grid of losses this wide says nothing any more."""

ROUNDING = 2e-15
"""Error of the Fourier transforms in delta, either way, for every composed step. Measured, not proven: at most 7e-17 a
step for Gaussians, whose composition is known exactly, but 3e-16 at low sampling rates, where nearly all losses are
one (against transforms in long double). It is added to every delta. The rounding of a step's deltas, 4e-16 (1 +
|epsilon|), adds up in the same way, and is paid for too: at losses that are large enough for more, connecting deltas
adds far more."""

MAX_LOSS = 700.0
"""Beyond this e^loss leaves float64."""

DRAW_PARTS, DRAW_TABLE = 4096, 2e5
"""Parts that the losses of a draw are divided into, and how many parts the epsilons asked for may span."""


class Losses:
    """Hockey-stick divergences of one direction, from its losses: delta(x) = A - e^x B.

    A sums the chances of losses above x, infinity included, and B the chances times e^-loss: once, for all x.
    """

    def __init__(self, known: LossDistribution) -> None:
        chances = known.chances  # some are about -1e-18: clipped at 0, half the rounding would pile up
        self._width, self._first, self._count = known.width, known.first, len(chances)
        losses = (self._first + np.arange(self._count)) * self._width
        self._infinity = known.infinite
        self._above = np.append(np.cumsum(chances[::-1])[::-1], 0.0) + self._infinity
        self._below = np.append(np.cumsum((chances * np.exp(-np.maximum(losses, -MAX_LOSS)))[::-1])[::-1], 0.0)

    def delta(self, epsilons: np.ndarray) -> np.ndarray:
        """delta at each of ``epsilons``, in any order; those above ``MAX_LOSS`` leave B out, which only adds."""
        place = np.clip(np.floor(epsilons / self._width) - self._first + 1, 0, self._count).astype(np.int64)
        growth = np.where(epsilons > MAX_LOSS, 0.0, np.exp(np.minimum(epsilons, MAX_LOSS)))
        return np.asarray(self._above[place] - growth * self._below[place])

    def epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 at ``delta``; infinite if the chance of an infinite loss is that large."""
        if self._infinity >= delta:
            return math.inf
        place = bisect.bisect_left(range(self._count), -delta, key=lambda place: -self._at_loss(place))
        loss = (self._first + place) * self._width  # delta(loss) fits, delta(loss - width) does not
        if loss > MAX_LOSS or self._below[place] <= 0:
            return max(0.0, loss)
        excess = self._above[place] - delta
        return max(0.0, min(math.log(excess / self._below[place]), loss)) if excess > 0 else max(0.0, loss)

    def _at_loss(self, place: int) -> float:
        return float(self.delta(np.array([(self._first + place) * self._width]))[0])


@dataclass(frozen=True)
class Profile:
    """An upper bound on delta(epsilon) of a composition.

    Attributes:
        body: the composed losses of everything but the draw, in either direction; empty where there is nothing else.
        draw: epsilon of one bounded-range mechanism whose candidates were fixed before every other release; 0 for none.
        rounding: what is added to delta for the arithmetic.
        coarse: whether the grid had to be so wide that another accountant may do better.
    """

    body: tuple[Losses, ...]
    draw: float
    rounding: float
    coarse: bool

    def delta(self, epsilons: np.ndarray) -> np.ndarray:
        """delta at each of ``epsilons``, which ascend from 0; in [0, 1]."""
        epsilons = np.asarray(epsilons, dtype=np.float64)
        if self.draw == 0:
            return np.minimum(self._body_delta(epsilons) + self.rounding, 1.0)
        draw = _Draw(self, float(epsilons[0]), float(epsilons[-1]))
        return np.array(
            [draw.delta(int(place)) for place in (epsilons - epsilons[0]) / draw.part]
        )  # floor: delta falls

    def epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 at ``delta`` in (0, 1); infinite where delta is beneath what the arithmetic resolves."""
        if delta <= 2 * self.rounding:
            return math.inf
        if not self.body:
            return max(0.0, self.draw + 2 * math.log1p(-math.sqrt(delta * -math.expm1(-self.draw))))
        least = max(losses.epsilon(delta - self.rounding) for losses in self.body)
        if self.draw == 0 or math.isinf(least):
            return least
        draw = _Draw(self, least, least + self.draw)
        place = bisect.bisect_left(range(draw.parts), -delta, key=lambda place: -draw.delta(place))
        return min(least + place * draw.part, least + self.draw)  # basic composition is the ceiling

    def _body_delta(self, epsilons: np.ndarray) -> np.ndarray:
        if not self.body:
            return np.maximum(-np.expm1(epsilons), 0.0)
        return np.clip(np.max([losses.delta(epsilons) for losses in self.body], axis=0), 0.0, 1.0)


class _Draw:
    """delta of a profile with a draw, on a grid of epsilons: the largest over the draw's pairs, certified.

    Beside the pair with losses t and t - e, chances p and 1 - p under P, the rest of the composition, of profile D, gives
    p D(x - t) + (1 - p) D(x - t + e). D falls in x and p = (1 - e^(t - e)) / (1 - e^-e) falls in t, so for every t in
    [a, b] that is at most p(a) D(x - b) + (1 - p(a)) D(x - b + e): losses rounded up, chances of the larger too.
    """

    def __init__(self, profile: Profile, low: float, high: float) -> None:
        span = max(high - low, profile.draw)
        loss = max(profile.draw, span / DRAW_TABLE)  # too small a draw for the table is rounded up
        self.parts = max(1, min(DRAW_PARTS, int(DRAW_TABLE * loss / span)))
        self.part = loss / self.parts
        self._rounding = profile.rounding
        steps = math.ceil((high - low) / self.part)
        self._table = profile._body_delta(low + self.part * np.arange(-self.parts, steps + self.parts + 1))
        first = np.arange(self.parts)
        self._large = np.expm1(self.part * first - loss) / math.expm1(-loss)
        self._place = self.parts - 1 - first  # of low - b in the table

    def delta(self, place: int) -> float:
        """An upper bound at epsilon = low + ``place`` parts."""
        here = self._place + place
        mixed = self._large * self._table[here] + (1 - self._large) * self._table[here + self.parts]
        return min(float(mixed.max()) + self._rounding, 1.0)


def compose(losses: Mapping[PrivacyLoss, int], draw: float = 0.0, resolution: Resolution = FINE) -> Profile | None:
    """The profile of all ``losses`` together, in any order, adaptively, and of ``draw`` (0: none) before them; None
    where they spread so far (an epsilon of many thousands) that no grid of bearable size resolves them."""
    return _compose(tuple(sorted(losses.items(), key=repr)), draw, resolution)


@functools.lru_cache(maxsize=4)
def _compose(counts: tuple[tuple[PrivacyLoss, int], ...], draw: float, resolution: Resolution) -> Profile | None:
    losses = dict(counts)
    width, coarse = _width(losses, resolution)
    if width > MAX_WIDTH:
        return None
    parts = [_repeated(loss, count, width) for loss, count in losses.items()]
    while len(parts) > 1:  # in a tree: each loss is convolved a logarithmic number of times
        pairs = [both_plus(left, right) for left, right in zip(parts[::2], parts[1::2], strict=False)]
        parts = [*pairs, *parts[2 * len(pairs) :]]
    rounding = ROUNDING * (sum(losses.values()) + 10 * len(losses))
    return Profile(tuple(map(Losses, parts[0])) if parts else (), draw, rounding if parts else 0.0, coarse)


@functools.lru_cache(maxsize=16)
def _repeated(loss: PrivacyLoss, count: int, width: float) -> Pair:
    return tuple(single.times(count) for single in loss.pld(width))


def _width(losses: Mapping[PrivacyLoss, int], resolution: Resolution) -> tuple[float, bool]:
    """The grid's width, and whether it is wider than it should be.

    Rounding adds some h^2/4 to the variance of each step's loss; it is kept to a fraction of the total variance. These
    are guesses of size alone: any width gives an upper bound. Of one loss the width is the same for any number of
    steps, bit for bit, so that its losses are discretised once.
    """
    if not losses:
        return 1.0, False
    count = sum(losses.values())
    mean = sum(number / count * loss.scale**2 for loss, number in losses.items())
    wanted = resolution.fraction * math.sqrt(mean)
    wanted = min(wanted, *(loss.scale / 10 for loss in losses if isinstance(loss, BoundedRangeLoss)), math.inf)
    span = sum(loss.span for loss in losses)
    wanted = min(wanted, span / resolution.least)
    total = sum(min(number * loss.span, loss.span + number * loss.scale**2) for loss, number in losses.items())
    allowed = max(span / resolution.most, (total + 20 * math.sqrt(count * mean)) / resolution.total)
    return max(wanted, allowed), allowed > 4 * wanted
