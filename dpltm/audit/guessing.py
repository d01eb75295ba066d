"""How many coins are guessed, decided before a score is looked at, and which.

A bound holds for a number of guesses that depends on no coin. Two numbers are tried: one that suits the attack as it would
be if nothing were wrong, from public numbers alone, and all canaries, which tells most where a bug makes the attack perfect.
Each gets a part of the error that is allowed (Bonferroni).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr

from dpltm.audit.one_run import epsilon_bound

SHARES = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64)
"""Of the canaries, that may be guessed."""

PLANNED = 0.8
"""Part of the allowed error that the planned number of guesses gets; all canaries get the rest."""


@dataclass(frozen=True)
class Guesses:
    """A number of guesses, and how many were right.

    Attributes:
        guesses: half of them for the largest scores, half for the smallest.
        correct: of these.
        error: that is allowed a bound from them: 1 minus its confidence.
    """

    guesses: int
    correct: int
    error: float


@lru_cache(maxsize=64)
def planned(canaries: int, mu: float, error: float) -> int:
    """The number of guesses with the best expected bound at delta 0.

    Scores are taken as N(0, 1), and N(mu, 1) where a canary is in.

    Args:
        canaries: m.
        mu: of the attack, from public numbers.
        error: that is allowed.
    """
    numbers = [2 * max(1, int(share * canaries / 2)) for share in SHARES]
    accuracy = [_accuracy(number / canaries, min(mu, 30.0)) for number in numbers]
    bounds = [
        epsilon_bound(canaries, number, int(number * right), 0.0, 1 - error)
        for number, right in zip(numbers, accuracy, strict=True)
    ]
    return numbers[int(np.argmax(bounds))]


def _accuracy(share: float, mu: float) -> float:
    """Of guesses on the ``share`` of canaries at both ends; by symmetry, of those with the largest scores."""
    if share >= 1:
        return float(ndtr(mu / 2))
    threshold = brentq(lambda at: ndtr(mu - at) + ndtr(-at) - share, -40.0, 80.0)
    return float(ndtr(mu - threshold) / share)


def guess(scores: np.ndarray, included: np.ndarray, mu: float, confidence: float) -> tuple[Guesses, ...]:
    """Guesses at both numbers.

    Args:
        scores: of canaries, the larger the likelier in, ``(m,)``.
        included: their coins, ``(m,)`` bool.
        mu: of the attack, from public numbers.
        confidence: that bounds from all guesses hold together.
    """
    order, count, error = np.argsort(-scores, kind="stable"), len(scores), 1 - confidence
    numbers = {count // 2 * 2: error * (1 - PLANNED)}
    best = planned(count, mu, error * PLANNED)
    numbers[best] = numbers.get(best, 0.0) + error * PLANNED
    return tuple(
        Guesses(
            number, int(included[order[: number // 2]].sum() + (~included[order[count - number // 2 :]]).sum()), part
        )
        for number, part in numbers.items()
    )
