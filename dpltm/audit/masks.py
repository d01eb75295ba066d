"""An attack on tickets that are made from records with no mechanism: features that no record has (privacy-model.md 2).

Where a feature is zero in every record, its weights get no gradient: they end where they started. So magnitude pruning
drops exactly those of them below one threshold, and anybody who has the starting weights sees whether it did. One record
that has the feature moves them, and the order breaks. Canary i is a record with feature i alone, at the largest value that
inputs may have; a coin decides whether it is among the records. Masks and starting weights are all that the attack looks at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpltm.audit.one_run import epsilon_bound, least_canaries
from dpltm.errors import InputError


@dataclass(frozen=True)
class MaskFindings:
    """What the attack came to.

    Attributes:
        canaries: that were in or out.
        correct: guesses of their coins.
        lower_bound: on epsilon at delta 0 of making tickets.
        confidence: of the bound.
    """

    canaries: int
    correct: int
    lower_bound: float
    confidence: float


def unset_features(x: np.ndarray, zero: float = 0.0) -> np.ndarray:
    """Places of features that no record has, ascending.

    Args:
        x: records as stored, ``(n, ...)``.
        zero: the value that scaling takes to 0.
    """
    return np.flatnonzero((x.reshape(len(x), -1) == zero).all(0))


def with_canaries(x: np.ndarray, places: np.ndarray, largest: float) -> np.ndarray:
    """The records, and behind them one canary a place, of the same dtype.

    Args:
        x: records as stored, ``(n, ...)``.
        places: of features that canaries have.
        largest: value of that feature.
    """
    made = np.zeros((len(places), int(np.prod(x.shape[1:]))), x.dtype)
    made[np.arange(len(places)), places] = largest
    return np.concatenate([x, made.reshape(len(places), *x.shape[1:])])


def out_of_order(weights: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """How many weights of each feature were kept below the threshold, or dropped above; 0 where nothing moved them.

    Args:
        weights: absolute starting weights, ``(units, features)``.
        mask: which of them live after one round, of the same shape.

    Returns:
        Counts, ``(features,)``; the threshold is one that has fewest of them in all.
    """
    order = np.argsort(weights, axis=None)
    kept = mask.flatten()[order]
    below = np.concatenate([[0], np.cumsum(kept)])  # kept, if the threshold is before place i
    above = np.concatenate([np.cumsum(~kept[::-1])[::-1], [0]])
    threshold = np.append(weights.flatten()[order], np.inf)[int(np.argmin(below + above))]
    return ((weights < threshold) == mask).sum(0)


def mask_findings(moved: np.ndarray, included: np.ndarray, confidence: float) -> MaskFindings:
    """The bound from guessing that a canary is in where its weights are out of order.

    Args:
        moved: what :func:`out_of_order` gave for each canary.
        included: their coins, fair and independent, ``(m,)`` bool.
        confidence: of the bound, in [0.5, 1).

    Raises:
        InputError: too few canaries for the confidence.

    Guarantees:
        If making tickets is (epsilon, 0)-DP for one record more or less, the bound exceeds epsilon with probability at most
        1 - ``confidence``.
    """
    canaries = len(moved)
    if canaries < least_canaries(confidence):
        raise InputError(
            f"`dataset`: {canaries} of its features are zero in every record, and `confidence` {confidence:g} needs"
            f" {least_canaries(confidence)}; this attack is for images with an empty border, such as mnist"
        )
    correct = int(((moved > 0) == included).sum())
    bound = epsilon_bound(canaries, canaries, correct, 0.0, confidence)
    return MaskFindings(canaries, correct, bound, confidence)
