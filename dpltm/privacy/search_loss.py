"""The privacy loss of a private search, from those of its tries (see ``private_search`` for the bound)."""

from __future__ import annotations

import bisect
import functools
import math
from dataclasses import dataclass

import numpy as np

from dpltm.privacy import pld
from dpltm.privacy.accountants import FINE
from dpltm.privacy.loss_distribution import LossDistribution, Pair, connected
from dpltm.privacy.mechanisms import mean_tries
from dpltm.privacy.privacy_loss import PrivacyLoss
from dpltm.privacy.private_search import Curve, search_curve

Try = tuple[tuple[PrivacyLoss, int], ...]
"""What one try releases: losses, and how often each occurs."""

_NEGLIGIBLE = 1e-15
"""How much more than at ``_WIDEST`` delta may be at the last loss on the grid; all of it counts as an infinite loss."""

_WIDEST, _POINTS = 64.0, 2001
"""Losses beyond this count as infinite; and points at which a profile is asked before it is made convex."""

_ORDERS = 1 + np.geomspace(1e-2, 1e5, 60)
"""Second orders of the Renyi bound."""


@dataclass(frozen=True)
class SearchLoss:
    """Of the winner of a search.

    Attributes:
        tries: what a try releases, and at how many of the settings, which are all equally likely.
        gamma: of the number of tries.
    """

    tries: tuple[tuple[Try, int], ...]
    gamma: float

    @property
    def span(self) -> float:
        return 2 * self._end

    @property
    def scale(self) -> float:
        """Of one try: a search spreads no less."""
        return max(math.sqrt(sum(count * loss.scale**2 for loss, count in one)) for one, _ in self.tries)

    def pld(self, width: float) -> Pair:
        """See :attr:`PrivacyLoss.pld`: the largest convex curve below the bound, connected between losses."""
        curves = _curves(self)
        if curves is None:
            return (LossDistribution(width, 0, np.zeros(1), 1.0),)
        last = math.ceil(self._end / width)
        return tuple(connected(functools.partial(_convex, curve), width, -last, last) for curve in curves)

    def renyi(self, order: float) -> float:
        """Papernot, Steinke 2022, Theorem 2, eta = 0: D(a) + (1 - 1/b) D(b) + ln(1/gamma) / b + ln E K / (a - 1), best b."""
        more = min((1 - 1 / second) * self._try(second) - math.log(self.gamma) / second for second in _ORDERS.tolist())
        return self._try(order) + more + math.log(mean_tries(self.gamma)) / (order - 1)

    def _try(self, order: float) -> float:
        """Renyi divergence of a try whose setting is told."""
        total = sum(number for _, number in self.tries)
        each = [
            (order - 1) * sum(count * loss.renyi(order) for loss, count in one) + math.log(number / total)
            for one, number in self.tries
        ]
        return float(np.logaddexp.reduce(each)) / (order - 1)

    @functools.cached_property
    def _end(self) -> float:
        """A loss above which hardly anything is."""
        curves = _curves(self)
        if curves is None:
            return 1.0

        def delta(loss: float) -> float:
            return max(float(curve(np.array([loss]))[0]) for curve in curves)

        losses, most = np.geomspace(1e-6, _WIDEST, 2000).tolist(), delta(_WIDEST) + _NEGLIGIBLE
        place = bisect.bisect_left(losses, -most, hi=len(losses) - 1, key=lambda loss: -delta(loss))
        return float(losses[place])


@functools.lru_cache(maxsize=8)
def _curves(search: SearchLoss) -> tuple[Curve, Curve] | None:
    """Bounds on delta in either direction; None where a try's losses spread too far for a grid."""
    profiles = [pld.compose(dict(one), 0.0, FINE) for one, _ in search.tries]
    if not all(profiles):
        return None
    shares = np.array([number for _, number in search.tries]) / sum(number for _, number in search.tries)

    def mean(direction: int) -> Curve:
        known = [
            (profile.body[min(direction, len(profile.body) - 1)], profile.rounding) for profile in profiles if profile
        ]
        return lambda epsilons: (
            shares @ [np.minimum(losses.delta(epsilons) + rounding, 1.0) for losses, rounding in known]
        )

    one, other = mean(0), mean(1)
    return search_curve(one, other, search.gamma), search_curve(other, one, search.gamma)


def _convex(curve: Curve, losses: np.ndarray) -> np.ndarray:
    """The largest function below ``curve`` that is convex in e^loss and 1 at e^loss = 0, at each of ``losses``.

    The true profile is such a function, so it is below.

    Args:
        curve: an upper bound.
        losses: ascending; the first and the last bound what is asked.
    """
    asked = np.linspace(losses[0], losses[-1], _POINTS)
    points = np.column_stack([np.append(0.0, np.exp(asked)), np.append(1.0, curve(asked))])
    hull: list[np.ndarray] = []
    for point in points:
        while len(hull) > 1 and _above(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    below = np.array(hull)
    return np.clip(np.interp(np.exp(losses), below[:, 0], below[:, 1]), 0.0, 1.0)


def _above(left: np.ndarray, middle: np.ndarray, right: np.ndarray) -> bool:
    """Whether the middle point is on or above the chord of the others."""
    return bool((middle[1] - left[1]) * (right[0] - left[0]) >= (right[1] - left[1]) * (middle[0] - left[0]))
