"""Audits of a draw: every neighbour of few candidates, exactly; or draws from the worst two of them, counted.

One record more or less changes the count of right answers of any candidates by one, all in one direction. So a count vector
of k candidates has at most 2^(k+1) neighbours, and the chances of every winner follow from the scores in closed form.
"""

from __future__ import annotations

import itertools

import numpy as np

from dpltm.audit.one_run import check_confidence
from dpltm.audit.pairs import pair_bound
from dpltm.errors import InputError
from dpltm.privacy.selection import (
    SelectionPlan,
    draw,
    exponential_probabilities,
    permute_and_flip_probabilities,
)
from dpltm.randomness.noise import RandomSource

FEW = 12
"""Candidates whose neighbours are enumerated."""


def worst_neighbour(plan: SelectionPlan, correct: np.ndarray) -> tuple[float, np.ndarray]:
    """The largest log ratio of the chances of a winner over all neighbours, either way round, and where it is met.

    Args:
        plan: of the draw, under add-remove.
        correct: counts of right answers of the candidates, ``(k,)``, k at most ``FEW``.

    Returns:
        The exact epsilon at these counts, and the counts of that neighbour.

    Raises:
        InputError: too many candidates to enumerate.
    """
    correct = np.asarray(correct)
    if len(correct) > FEW:
        raise InputError(f"Expected at most {FEW} candidates to enumerate, not {len(correct)}; take draws instead")
    here, worst, found = np.log(chances(plan, correct)), 0.0, correct
    for subset in itertools.product((0, 1), repeat=len(correct)):
        for sign in (1, -1):
            other = correct + sign * np.array(subset)
            if (other < 0).any():
                continue
            loss = float(np.abs(here - np.log(chances(plan, other))).max())
            if loss > worst:
                worst, found = loss, other
    return worst, found


def drawn_bound(
    plan: SelectionPlan,
    first: np.ndarray,
    second: np.ndarray,
    draws: int,
    confidence: float,
    source: RandomSource,
) -> float:
    """A lower bound on epsilon of the code that draws, by winners of two neighbouring count vectors.

    Args:
        plan: of the draw.
        first, second: counts, ``(k,)``.
        draws: of either.
        confidence: of the bound, in [0.5, 1).
        source: coins of the draws.

    Guarantees:
        If a draw is epsilon-DP, the bound exceeds epsilon with probability at most 1 - ``confidence``.
    """
    check_confidence(confidence)
    ratios = np.log(chances(plan, first)) - np.log(chances(plan, second))
    before, after = (
        np.array([ratios[draw(plan, counts, source)] for _ in range(draws)]) for counts in (first, second)
    )
    return pair_bound(before, after, 0.0, confidence)


def chances(plan: SelectionPlan, correct: np.ndarray) -> np.ndarray:
    """That each candidate wins, ``(k,)``, by the formula of the mechanism."""
    scores = plan.scores(correct)
    if plan.mechanism == "exponential":
        return exponential_probabilities(scores, plan.exponent)
    return permute_and_flip_probabilities(scores, plan.exponent)
