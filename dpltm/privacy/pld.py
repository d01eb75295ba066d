"""Composition by privacy loss distributions: the privacy profile delta(epsilon) of many releases together.

All discretisation is pessimistic, so a profile is an upper bound.

**Small deltas.** What a transform rounds adds up over the steps, to far more than a small delta. So losses are *tilted*:
with K(t) = ln E e^(t L) of all of them together, and L_t of chances e^(t l - K(t)) P(L = l), which composes as L does,

    delta(x) = e^(K(t) - t x) E[e^(-t (L_t - x)) (1 - e^(x - L_t)); L_t > x].

Whatever is off in the chances of L_t, by r in sum, moves delta(x) by at most e^(K(t) - t x) r, for what is under E lies in
[0, 1]. That factor is Chernoff's bound on delta(x). At the t where it is least, it is not much more than delta(x) itself;
at any t this holds, and t = 0 is what does without.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpltm.privacy.accountants import FINE, Resolution
from dpltm.privacy.privacy_loss import MAX_EXPONENT, TAILS, BoundedRangeLoss, LossDistribution, Pair, PrivacyLoss

MAX_WIDTH = 50.0  # a grid of losses this wide says nothing any more

ROUNDING = 2e-15
"""Error of the Fourier transforms in delta, either way, for every composed step, added to every delta. Measured, not proven:
at most 7e-17 a step for Gaussians, but 3e-16 at low sampling rates, where nearly all losses are one (against transforms in
long double). It pays for the rounding of a step's deltas, 4e-16 (1 + |epsilon|), too: at larger losses connecting adds
more."""

NEGLIGIBLE = 1e4  # where delta is this many times the rounding, it is not worth tilting
LEAST_TILT = 2.0**-8  # the least tilt that is tried
MAX_LOSS = 700.0  # beyond this e^loss leaves float64
DRAW_PARTS, DRAW_TABLE = 4096, 2e5  # parts of the losses of a draw; parts that the epsilons asked for may span


class Losses:
    """Hockey-stick divergences of one direction, from its losses: delta(x) = A - e^x B, and what may be off. A sums the
    chances of losses above x, infinity included, and B the chances times e^-loss: once, for all x."""

    def __init__(self, distribution: LossDistribution, rounding: float = 0.0) -> None:
        chances = distribution.chances  # some are about -1e-18: clipped at 0, half the rounding would pile up
        self._width, self._first, self._count = distribution.width, distribution.first, len(chances)
        self._tilt, self._log_scale, self._rounding = distribution.tilt, distribution.log_scale, rounding
        losses = distribution.losses
        if distribution.tilt:
            logs = distribution.log_scale - distribution.tilt * losses
            chances = chances * np.exp(np.clip(logs, -MAX_LOSS, MAX_EXPONENT / 2))
        self.infinity = distribution.infinite
        self._above = np.append(np.cumsum(chances[::-1])[::-1], 0.0) + self.infinity
        self._below = np.append(np.cumsum((chances * np.exp(-np.maximum(losses, -MAX_LOSS)))[::-1])[::-1], 0.0)

    def delta(self, epsilons: np.ndarray) -> np.ndarray:
        """An upper bound on delta at each of ``epsilons``, in any order; in [0, 1]."""
        return np.clip(self.computed(epsilons) + self.rounding(epsilons), 0.0, 1.0)

    def computed(self, epsilons: np.ndarray) -> np.ndarray:
        """delta as it comes out, off by ``rounding`` at most; above ``MAX_LOSS`` without B, which only adds."""
        place = np.clip(np.floor(epsilons / self._width) - self._first + 1, 0, self._count).astype(np.int64)
        growth = np.where(epsilons > MAX_LOSS, 0.0, np.exp(np.minimum(epsilons, MAX_LOSS)))
        return np.asarray(self._above[place] - growth * self._below[place])

    def rounding(self, epsilons: np.ndarray) -> np.ndarray:
        """What may be missing from delta for arithmetic, and for what sums leave out."""
        return self._rounding * np.exp(np.clip(self._log_scale - self._tilt * epsilons, -MAX_LOSS, MAX_LOSS))

    def epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 at ``delta``; infinite if an infinite loss is that likely, or no such delta is resolved."""
        place = bisect.bisect_left(range(self._count), -delta, key=lambda place: -self._at_loss(place))
        if place == self._count and self._at_loss(place) > delta:
            return math.inf
        loss = (self._first + place) * self._width  # delta(loss) fits, delta(loss - width) does not
        if loss > MAX_LOSS or self._below[place] <= 0:
            return max(0.0, loss)
        excess = self._above[place] - (delta - float(self.rounding(np.array(loss - self._width))))
        return max(0.0, min(math.log(excess / self._below[place]), loss)) if excess > 0 else max(0.0, loss)

    def _at_loss(self, place: int) -> float:
        return float(self.delta(np.array([(self._first + place) * self._width]))[0])


@dataclass(frozen=True)
class Profile:
    """An upper bound on delta(epsilon) of a composition.

    Attributes:
        body: the composed losses of everything but the draw, in either direction; empty where there is nothing else.
        draw: epsilon of one bounded-range mechanism whose candidates were fixed before every other release; 0 for none.
        coarse: whether the grid had to be so wide that another accountant may do better.
    """

    body: tuple[Losses, ...]
    draw: float
    coarse: bool

    def delta(self, epsilons: np.ndarray) -> np.ndarray:
        """delta at each of ``epsilons``, which ascend from 0; in [0, 1]."""
        epsilons = np.asarray(epsilons, dtype=np.float64)
        if self.draw == 0:
            return self._body_delta(epsilons)
        draw = _Draw(self, float(epsilons[0]), float(epsilons[-1]))
        places = ((epsilons - epsilons[0]) / draw.part).astype(int)  # floor: delta falls
        return np.array([draw.delta(int(place)) for place in places])

    def epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 at ``delta`` in (0, 1); infinite where delta is beneath what the arithmetic resolves."""
        if not self.body:
            return max(0.0, self.draw + 2 * math.log1p(-math.sqrt(delta * -math.expm1(-self.draw))))
        least = max(losses.epsilon(delta) for losses in self.body)
        if self.draw == 0 or math.isinf(least):
            return least
        draw = _Draw(self, least, least + self.draw)
        place = bisect.bisect_left(range(draw.parts), -delta, key=lambda place: -draw.delta(place))
        return min(least + place * draw.part, least + self.draw)  # basic composition is the ceiling

    def _body_delta(self, epsilons: np.ndarray) -> np.ndarray:
        if not self.body:
            return np.maximum(-np.expm1(epsilons), 0.0)
        return np.asarray(np.max([losses.delta(epsilons) for losses in self.body], axis=0))


class _Draw:
    """delta of a profile with a draw, on a grid of epsilons: the largest over the draw's pairs (privacy-model.md 5.4)."""

    # D falls in x and p = (1 - e^(t - e)) / (1 - e^-e) in t: for every t in [a, b], p D(x - t) + (1 - p) D(x - t + e) is at
    # most p(a) D(x - b) + (1 - p(a)) D(x - b + e)

    def __init__(self, profile: Profile, low: float, high: float) -> None:
        span = max(high - low, profile.draw)
        loss = max(profile.draw, span / DRAW_TABLE)  # too small a draw for the table is rounded up
        self.parts = max(1, min(DRAW_PARTS, int(DRAW_TABLE * loss / span)))
        self.part = loss / self.parts
        steps = math.ceil((high - low) / self.part)
        self._table = profile._body_delta(low + self.part * np.arange(-self.parts, steps + self.parts + 1))
        first = np.arange(self.parts)
        self._large = np.expm1(self.part * first - loss) / math.expm1(-loss)
        self._place = self.parts - 1 - first  # of low - b in the table

    def delta(self, place: int) -> float:
        """An upper bound at epsilon = low + ``place`` parts."""
        here = self._place + place
        mixed = self._large * self._table[here] + (1 - self._large) * self._table[here + self.parts]
        return float(mixed.max())


def compose(
    losses: Mapping[PrivacyLoss, int], draw: float = 0.0, resolution: Resolution = FINE, delta: float = 1.0
) -> Profile | None:
    """The profile of all ``losses`` together, adaptively, and of ``draw`` (0: none) before them: an upper bound,
    tilted where it takes that to be tight at ``delta``; None where no grid of bearable size resolves them."""
    counts = tuple(sorted(losses.items(), key=repr))
    profile = _compose(counts, draw, resolution)
    if profile is None or not losses or delta >= NEGLIGIBLE * (rounding := _rounding(counts)):
        return profile
    tilts = tuple(
        _tilt(counts, place, resolution, body.epsilon(max(delta, 4 * rounding + body.infinity)))
        for place, body in enumerate(profile.body)
    )
    return _compose(counts, draw, resolution, tilts)


Counts = tuple[tuple[PrivacyLoss, int], ...]


@functools.lru_cache(maxsize=8)
def _compose(
    counts: Counts, draw: float, resolution: Resolution, tilts: tuple[float, ...] = (0.0, 0.0)
) -> Profile | None:
    width, coarse = _width(dict(counts), resolution)
    if width > MAX_WIDTH:
        return None
    directions = max((len(_pair(loss, width)) for loss, _ in counts), default=0)
    body = []
    for place, tilt in enumerate(tilts[:directions]):
        parts = [_repeated(loss, count, width, place, tilt) for loss, count in counts]
        while len(parts) > 1:  # in a tree: each loss is convolved a logarithmic number of times
            pairs = [left.plus(right) for left, right in zip(parts[::2], parts[1::2], strict=False)]
            parts = [*pairs, *parts[2 * len(pairs) :]]
        body.append(Losses(parts[0], _rounding(counts)))
    return Profile(tuple(body), draw, coarse)


def _rounding(counts: Counts) -> float:
    return ROUNDING * (sum(count for _, count in counts) + 10 * len(counts)) + TAILS * len(counts)


@functools.lru_cache(maxsize=32)
def _repeated(loss: PrivacyLoss, count: int, width: float, place: int, tilt: float) -> LossDistribution:
    return _single(loss, width, place).tilted(tilt).times(count)


@functools.lru_cache(maxsize=32)
def _pair(loss: PrivacyLoss, width: float) -> Pair:
    return loss.pld(width)


def _single(loss: PrivacyLoss, width: float, place: int) -> LossDistribution:
    pair = _pair(loss, width)
    return pair[min(place, len(pair) - 1)]


def _tilt(counts: Counts, place: int, resolution: Resolution, epsilon: float) -> float:
    """The power of two t at which K(t) - t ``epsilon`` is about least; 0 where none is below that of 0."""
    width, _ = _width(dict(counts), resolution)
    singles = [(_single(loss, width, place), count) for loss, count in counts]
    largest = max(abs(float(distribution.losses[end])) for distribution, _ in singles for end in (0, -1))
    best = 0.0
    tilt = LEAST_TILT
    least = sum(count * math.log(float(distribution.chances.sum())) for distribution, count in singles)
    grown = [np.exp(tilt * distribution.losses) for distribution, _ in singles]
    while tilt * largest <= MAX_EXPONENT and math.isfinite(epsilon):
        logs = (
            count * math.log(float(distribution.chances @ growth))
            for (distribution, count), growth in zip(singles, grown, strict=True)
        )
        bound = sum(logs) - tilt * epsilon
        if bound > least:
            break
        best, least, tilt = tilt, bound, 2 * tilt
        with np.errstate(over="ignore"):  # of a tilt that is too large, and not looked at
            grown = [growth * growth for growth in grown]
    return best


def _width(losses: Mapping[PrivacyLoss, int], resolution: Resolution) -> tuple[float, bool]:
    """The grid's width, and whether it is wider than it should be: guesses alone, since any width gives an upper bound."""
    # rounding adds some h^2/4 to the variance of each step's loss, which is kept to a fraction of the total variance; of one
    # loss the width is the same for any number of steps, bit for bit, so that its losses are discretised once
    if not losses:
        return 1.0, False
    count = sum(losses.values())
    mean = sum(number / count * loss.scale**2 for loss, number in losses.items())
    wanted = resolution.fraction * math.sqrt(mean)
    wanted = min(wanted, *(loss.scale / 10 for loss in losses if isinstance(loss, BoundedRangeLoss)), math.inf)
    wanted = min(wanted, sum(loss.span for loss in losses) / resolution.least)
    total = sum(min(number * loss.reach, loss.reach + number * loss.scale**2) for loss, number in losses.items())
    allowed = max(
        sum(loss.reach for loss in losses) / resolution.most, (total + 20 * math.sqrt(count * mean)) / resolution.total
    )
    return max(wanted, allowed), allowed > 4 * wanted
