"""A lower bound on epsilon from many releases of two neighbouring inputs, told apart by a score.

If a mechanism is (epsilon, delta)-DP, a test that says "first" with probability a on the first input, and b on the second,
has a <= e^epsilon b + delta (Wasserman, Zhou 2010; Kairouz, Oh, Viswanath 2015). Clopper-Pearson intervals on a and b make a
lower bound on epsilon of that. The test is a threshold on the score; one half of the releases decides it, and the other half
is counted, so that the intervals hold whatever the scores are.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import beta

THRESHOLDS = 40
"""That are tried on the half that decides."""


def pair_bound(first: np.ndarray, second: np.ndarray, delta: float, confidence: float) -> float:
    """The bound; 0 where nothing is refuted.

    Args:
        first, second: scores of independent releases of either input, each ``(n,)``; larger ones speak for the first.
        delta: that epsilon is for.
        confidence: in (0, 1).

    Guarantees:
        For an (epsilon, delta)-DP mechanism the bound exceeds epsilon with probability at most 1 - ``confidence``.
    """
    levels = np.unique(np.quantile(np.concatenate([first[::2], second[::2]]), np.linspace(0, 1, THRESHOLDS)))
    least = np.nextafter(levels[0], -math.inf)
    tests = [(level, side) for level in (least, *levels) for side in (True, False)]
    level, side = max(tests, key=lambda test: _bound(first[::2], second[::2], test[0], test[1], delta, confidence))
    return max(0.0, _bound(first[1::2], second[1::2], level, side, delta, confidence))


def _bound(first: np.ndarray, second: np.ndarray, level: float, side: bool, delta: float, confidence: float) -> float:
    """Of one test: that the score is above ``level`` speaks for the first input, or its opposite for the second."""
    likely, unlikely = (first > level, second > level) if side else (second <= level, first <= level)
    each = 1 - (1 - confidence) / 2
    low = 1 - clopper_pearson(int((~likely).sum()), len(likely), each)
    high = clopper_pearson(int(unlikely.sum()), len(unlikely), each)
    return math.log((low - delta) / high) if low > delta else -math.inf


def clopper_pearson(count: int, trials: int, confidence: float) -> float:
    """An upper bound on a probability (Clopper, Pearson 1934), exact for independent trials.

    Args:
        count: of trials that it was met in.
        trials: at least ``count``.
        confidence: one-sided, in (0, 1).
    """
    return 1.0 if count >= trials else float(beta.ppf(confidence, count + 1, trials - count))
