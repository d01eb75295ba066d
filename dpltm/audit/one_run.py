"""A lower bound on epsilon from one run (Steinke, Nasr, Jagielski 2023, "Privacy Auditing with One (1) Training Run").

m canaries are each in or out by a fair coin. Whoever sees what was released guesses r of the coins, with v right. Theorem
5.2 there: if the release is (epsilon, delta)-DP for one canary more or less, then for W ~ Binomial(r, 1 / (1 + e^-epsilon))

    P[at least v right] <= P[W >= v] + 2 m delta max_{1 <= i <= v} P[v - i <= W < v] / i.                              (1)
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import binom

from dpltm.errors import InputError

MAX_EPSILON = 50.0
"""No number of canaries in reach says more."""


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The chance (1), or a bound on it, that a release which is (epsilon, delta)-DP lets so many guesses be right.

    Args:
        canaries: m, each in or out by a fair coin of its own.
        guesses: r, a number that depends on no coin, from 0 to m.
        correct: v, from 0 to r.
        epsilon: of the claim that is tested, at least 0.
        delta: of the claim, from 0 to 1.

    Returns:
        At most 1.
    """
    check_counts(canaries, guesses, correct)
    if correct == 0:
        return 1.0
    chance = float(expit(epsilon))
    tail = float(binom.sf(correct - 1, guesses, chance))
    below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, chance)) / np.arange(1, correct + 1)
    return min(1.0, tail + 2 * canaries * delta * float(below.max()))


def epsilon_bound(canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    """The largest epsilon that so many right guesses refute; 0 where they refute none.

    Args:
        canaries, guesses, correct: as in :func:`p_value`.
        delta: that epsilon is for.
        confidence: in (0, 1).

    Guarantees:
        For a release that is (epsilon, delta)-DP, the bound exceeds epsilon with probability at most 1 - ``confidence``,
        over the coins and the release. It asks nothing of the attack, but that ``guesses`` was fixed before.
    """
    allowed = 1 - confidence

    def excess(epsilon: float) -> float:
        return p_value(canaries, guesses, correct, epsilon, delta) - allowed

    if excess(0.0) >= 0:
        return 0.0
    if excess(MAX_EPSILON) < 0:
        return MAX_EPSILON
    return max(0.0, float(brentq(excess, 0.0, MAX_EPSILON, xtol=1e-9)) - 1e-8)


def least_canaries(confidence: float) -> int:
    """How many guesses, all of them right, are the fewest that refute anything: 2^-r < 1 - ``confidence``."""
    return math.floor(-math.log2(1 - confidence)) + 1


def check_counts(canaries: int, guesses: int, correct: int) -> None:
    """Refuses numbers that no audit has.

    Args:
        canaries, guesses, correct: as in :func:`p_value`.

    Raises:
        InputError: not 0 <= correct <= guesses <= canaries.
    """
    if not 0 <= correct <= guesses <= canaries:
        raise InputError(f"Expected 0 <= correct={correct} <= guesses={guesses} <= canaries={canaries}")


def check_confidence(confidence: float) -> None:
    """Raises InputError for a confidence that is not in [0.5, 1)."""
    if not 0.5 <= confidence < 1:
        raise InputError(f"`confidence`: {confidence:g} is not at least 0.5 and below 1, such as 0.95")
