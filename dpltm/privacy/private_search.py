"""Private search: several trainings at settings drawn at random, of which the best alone is released (privacy-model.md 5.7).

A *try* draws one of the public settings, trains on the private records, and scores the result by a noisy count: it is a
mechanism Q with outputs in the order of their scores, ties broken by coins. A search makes K tries and releases the best,
with K drawn from a logarithmic distribution and kept secret (Papernot, Steinke 2022; after Liu, Talwar 2019).

**The bound.** Let f be the generating function of K, F(y) the chance of Q that a try on D comes out at most as good as y,
and G(y) the same on D'. The winner has the density f'(F) dQ on D and f'(G) dQ' on D'. F and G are the chances of one event,
so G >= g(F), where g is the least that the profile of Q allows. f' grows, so with a = f' and b = f' o g, at every y

    f'(F) q - e^x f'(G) q'  <=  a(F) q - e^x b(F) q'  <=  sup over u in [0, 1] of (a(u) q - e^x b(u) q')+ .

The right side is e^x-homogeneous in the lines (a, b): the upper envelope of the lines a(u) r - b(u) in r, a convex piecewise
linear function sum over k of w_k (r - t_k)+ with w_k > 0. Integrating it over y gives

    delta(x) of the search  <=  sum over k of  w_k delta_Q(x + ln t_k)

for every x, in either direction: the profile of one try, moved and weighed. (Koskela, Redberg, Wang 2024 price private
selection by profiles as well. Here f'(F) and f'(G) are bounded together: at F near 1 the two are nearest.)
"""

from __future__ import annotations

import bisect
import functools
import math
from dataclasses import dataclass

import numpy as np

from dpltm.privacy import pld
from dpltm.privacy.accountants import FINE
from dpltm.privacy.mechanisms import mean_tries
from dpltm.privacy.privacy_loss import Curve, LossDistribution, Pair, PrivacyLoss, SymmetricLoss, connected, convex

_SLACK = 1e-12  # added to profiles where a small difference of large numbers follows
_LEVELS = 3000  # values of u between which the lines are bounded, evenly spaced in ln a(u)


def derivative(gamma: float, x: np.ndarray) -> np.ndarray:
    """f'(x) = (1 - gamma) / (ln(1 / gamma) (1 - (1 - gamma) x)) of the generating function, for x in [0, 1]."""
    return (1 - gamma) / (-math.log(gamma) * (1 - (1 - gamma) * np.asarray(x)))


def search_curve(curve: Curve, reverse: Curve, gamma: float) -> Curve:
    """An upper bound on delta of a search, in [0, 1] and falling, from that of one try, on D against D' and in reverse."""
    levels = np.clip(-np.expm1(np.linspace(0.0, math.log(gamma), _LEVELS)) / (1 - gamma), 0.0, 1.0)
    levels[-1] = 1.0
    least = _least(curve, reverse, levels)
    # u lies between two levels: the line of larger slope and smaller offset is above its own
    weights, moves = _envelope(derivative(gamma, levels[1:]), derivative(gamma, least[:-1]))

    def delta(epsilons: np.ndarray) -> np.ndarray:
        points = np.asarray(epsilons, dtype=np.float64)
        deltas = curve((points[..., None] + moves).ravel()).reshape(*points.shape, -1)
        return np.minimum(deltas @ weights * (1 + _SLACK), 1.0)

    return delta


def _least(curve: Curve, reverse: Curve, levels: np.ndarray) -> np.ndarray:
    """g(u): the least with u <= e^epsilon g + delta(epsilon) and 1 - g <= e^epsilon (1 - u) + reverse delta(epsilon)."""
    epsilons = np.concatenate([[0.0], np.geomspace(1e-6, 50.0, 1500)])
    grown = np.exp(epsilons)
    above = curve(epsilons) + _SLACK
    below = reverse(epsilons) + _SLACK
    least = np.array([max(((u - above) / grown).max(), (1 - grown * (1 - u) - below).max(), 0.0) for u in levels])
    return np.minimum(least, levels)


def _envelope(slopes: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest of 0 and the lines slope r - offset over r > 0, as sum of w (r - t)+: w and ln t."""
    corners = [(0.0, 0.0)]
    for slope, offset in zip(slopes.tolist(), offsets.tolist(), strict=True):
        if slope <= corners[-1][0]:
            continue
        while len(corners) > 1 and _turn(corners[-2], corners[-1]) >= _turn(corners[-1], (slope, offset)):
            corners.pop()
        corners.append((slope, offset))
    steps = np.diff(np.array(corners), axis=0)
    return steps[:, 0], np.log(steps[:, 1] / steps[:, 0])


def _turn(left: tuple[float, float], right: tuple[float, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])


Try = tuple[tuple[PrivacyLoss, int], ...]  # losses of one try, and how often each occurs

_WIDEST, _NEGLIGIBLE = 64.0, 1e-15
"""Losses that count as infinite; largest excess of delta at the last loss on the grid over that, which does as well."""

_ORDERS = 1 + np.geomspace(1e-2, 1e5, 60)  # second orders of the Renyi bound


@dataclass(frozen=True)
class SearchLoss(SymmetricLoss):
    """Privacy loss of the winner of a search; ``tries`` holds losses of one, and at how many of the settings."""

    tries: tuple[tuple[Try, int], ...]
    gamma: float

    @property
    def scale(self) -> float:
        # that of one try: a search spreads no less
        return max(math.sqrt(sum(count * loss.scale**2 for loss, count in losses)) for losses, _ in self.tries)

    def pld(self, width: float) -> Pair:
        curves = _curves(self)
        if curves is None:
            return (LossDistribution(width, 0, np.zeros(1), 1.0),)
        last = math.ceil(self.most / width)
        return tuple(connected(functools.partial(convex, curve), width, -last, last) for curve in curves)

    def renyi(self, order: float) -> float:
        """Papernot, Steinke 2022, Theorem 2, eta = 0: D(a) + (1 - 1/b) D(b) + ln(1/gamma) / b + ln E K / (a - 1), best b."""
        more = min((1 - 1 / second) * self._try(second) - math.log(self.gamma) / second for second in _ORDERS.tolist())
        return self._try(order) + more + math.log(mean_tries(self.gamma)) / (order - 1)

    def _try(self, order: float) -> float:
        total = sum(number for _, number in self.tries)
        moments = [
            (order - 1) * sum(count * loss.renyi(order) for loss, count in losses) + math.log(number / total)
            for losses, number in self.tries
        ]
        return float(np.logaddexp.reduce(moments)) / (order - 1)

    @functools.cached_property
    def most(self) -> float:
        curves = _curves(self)
        if curves is None:
            return 1.0

        def delta(loss: float) -> float:
            return max(float(curve(np.array([loss]))[0]) for curve in curves)

        losses = np.geomspace(1e-6, _WIDEST, 2000).tolist()
        most = delta(_WIDEST) + _NEGLIGIBLE
        place = bisect.bisect_left(losses, -most, hi=len(losses) - 1, key=lambda loss: -delta(loss))
        return float(losses[place])


@functools.lru_cache(maxsize=8)
def _curves(search: SearchLoss) -> tuple[Curve, Curve] | None:
    """Bounds on delta in either direction; None where a try's losses spread too far for a grid."""
    profiles = [pld.compose(dict(losses), 0.0, FINE) for losses, _ in search.tries]
    if not all(profiles):
        return None
    shares = np.array([number for _, number in search.tries]) / sum(number for _, number in search.tries)

    def mean(direction: int) -> Curve:
        bodies = [profile.body[min(direction, len(profile.body) - 1)] for profile in profiles if profile]
        return lambda epsilons: shares @ [losses.delta(epsilons) for losses in bodies]

    forward, backward = mean(0), mean(1)
    return search_curve(forward, backward, search.gamma), search_curve(backward, forward, search.gamma)
