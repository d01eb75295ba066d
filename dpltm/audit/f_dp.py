"""A tighter bound from one run, by trade-off functions (Mahloujifar, Melis, Chaudhuri 2024, "Auditing f-DP in One Run").

Of m canaries, each in or out by a fair coin, r are guessed; p_j is the chance that j guesses are right. Let f be a symmetric
trade-off function of the release for one canary more or less. Theorem 9 there: for every i,

    sum_{j >= i} (j / m) p_j <= 1 - f( sum_{j >= i} ((r - j + 1) / m) p_{j - 1} ).                                      (1)

(Take a guess at random. That it is right, with i or more right, is an event; with that coin turned it is wrong, with one
fewer right. f is convex, so Jensen's inequality averages over coins.) With h_i = sum_{j >= i} j p_j / m and
k_i = sum_{j >= i} (r - j) p_j / m this is k_{i - 1} >= f(1 - h_i).

Suppose v or more are right with chance t. Then p_v = t, and nothing above, asks least of the chances below: by (1),
k_{i - 1} has a least value for i = v, v - 1, ..., 1, and with it h_{i - 1}. Now h_0 + k_0 is r / m times the sum of all
chances. Where it would exceed r / m, no release with this f lets v guesses be right with chance t.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dpltm.audit.one_run import check_counts
from dpltm.errors import InputError
from dpltm.privacy.accountant import profile
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.privacy.pld import Profile

LINES = 200
"""Lines beneath a trade-off function, by which it is replaced."""

LOOSE, TIGHT, HALVINGS = 60.0, 1e-3, 12
"""Epsilons between which a family is searched, and how often the last interval is halved."""


@dataclass(frozen=True)
class TradeOff:
    """A trade-off function from beneath, by a certified profile (Dong, Roth, Su 2022, Proposition 2.12).

    f(alpha) is at least the largest of 1 - delta - e^epsilon alpha, e^-epsilon (1 - delta - alpha), and 0.

    Attributes:
        epsilons: at least 0, ``(lines,)``.
        deltas: upper bounds at these, ``(lines,)``.
    """

    epsilons: np.ndarray
    deltas: np.ndarray

    @classmethod
    def of(cls, epsilon: Callable[[float], float], delta: Callable[[np.ndarray], np.ndarray]) -> TradeOff:
        """That of a profile.

        Args:
            epsilon: as a function of delta.
            delta: at ascending epsilons.
        """
        ends = (epsilon(least) for least in (1e-9, 1e-6, 1e-3))
        epsilons = np.linspace(0.0, min(next((end for end in ends if math.isfinite(end)), LOOSE), 700.0), LINES)
        return cls(epsilons, delta(epsilons))

    def misses(self, alarms: float) -> float:
        """f(alpha): the least share of misses of a test with this share of false alarms."""
        slopes, values = self.lines()
        return float((slopes * (1 - alarms) + values).max())

    def lines(self) -> tuple[np.ndarray, np.ndarray]:
        """Slopes and values at 0 of lines beneath h -> f(1 - h), ``(2 lines + 1,)`` each."""
        growth = np.exp(self.epsilons)
        slopes = np.concatenate([growth, 1 / growth, [0.0]])
        return slopes, np.concatenate([1 - self.deltas - growth, -self.deltas / growth, [0.0]])


def refutes(curve: TradeOff, canaries: int, guesses: int, correct: int, confidence: float) -> bool:
    """Whether so many right guesses refute a trade-off function.

    Args:
        curve: of the claim.
        canaries: m, each in or out by a fair coin of its own.
        guesses: r, a number that depends on no coin, from 0 to m.
        correct: v, from 0 to r.
        confidence: in (0, 1).

    Guarantees:
        A release whose trade-off function for one canary more or less is at least ``curve`` is refuted with probability at
        most 1 - ``confidence``.
    """
    check_counts(canaries, guesses, correct)
    if correct == 0:
        return False
    slopes, values = curve.lines()
    allowed, whole = 1 - confidence, guesses / canaries
    right, wrong = allowed * correct / canaries, allowed * (guesses - correct) / canaries  # h_v and k_v
    for one in range(correct - 1, -1, -1):
        least = float((slopes * right + values).max())
        if least > wrong:
            right += one / (guesses - one) * (least - wrong)
            wrong = least
        if right + wrong > whole * (1 + 1e-9):
            return True
    return False


def epsilon_bound(refuted: Callable[[float], bool], epsilon: Callable[[float], float], start: float) -> float:
    """The largest epsilon of a family of releases that is refuted; 0 where none is.

    Args:
        refuted: whether the release with this noise multiplier is; with more noise it stays so.
        epsilon: of that release; it falls with the noise.
        start: noise multiplier to begin at.

    Guarantees:
        A release that is at least as private as that of the family with epsilon E gets a bound above E only where
        ``refuted`` errs at E.
    """
    low, high = start, start
    while not refuted(high):  # more noise: a bolder claim
        if epsilon(high) < TIGHT:
            return 0.0
        low, high = high, 2 * high
    if low == high:
        while refuted(low):
            if epsilon(low) > LOOSE:
                return epsilon(low)
            low, high = low / 2, low
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return epsilon(high)


class NoiseFamily:
    """All trainings like one, with more noise or less: what a bound by trade-off functions is taken over.

    Args:
        mechanism: that one.
        delta: of every epsilon.
    """

    def __init__(self, mechanism: NoisySgd, delta: float) -> None:
        self._mechanism, self._delta = replace(mechanism, sensitivity=1.0, nominal_sensitivity=None), delta

    def bound(self, refuted: Callable[[TradeOff], bool]) -> float:
        """The largest epsilon of a member that is refuted; 0 where none is.

        Args:
            refuted: whether the release with this trade-off function is; with more noise it stays so.
        """

        def at(noise: float) -> bool:
            known = self._member(noise)
            return known is not None and refuted(known[1])

        def epsilon(noise: float) -> float:
            known = self._member(noise)
            return math.inf if known is None else known[0].epsilon(self._delta)

        return epsilon_bound(at, epsilon, max(self._mechanism.noise_multiplier, 0.5))

    def _member(self, noise: float) -> tuple[Profile, TradeOff] | None:
        return _claims(replace(self._mechanism, noise_multiplier=noise))


@lru_cache(maxsize=200)
def _claims(mechanism: NoisySgd) -> tuple[Profile, TradeOff] | None:
    """What a training claims; None where hardly any noise claims nothing."""
    try:
        one = profile((mechanism,))
    except InputError:
        return None
    return one, TradeOff.of(one.epsilon, one.delta)
