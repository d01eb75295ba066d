"""What an attack's errors suggest, if the release is Gaussian-DP: an estimate, not a bound.

Of G_mu, false alarms a and misses b give mu = Phi^-1(1 - a) - Phi^-1(b) (Nasr et al. 2023, "Tight Auditing of Differentially
Private Machine Learning", section 4). Upper Clopper-Pearson bounds on a and b make mu a lower bound *if* canaries of one run
are independent trials and the trade-off function is Gaussian. Neither is certain, so the figure refutes nothing.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri
from scipy.stats import beta

from dpltm.privacy import gdp


def clopper_pearson(count: int, trials: int, confidence: float) -> float:
    """An upper bound on a probability (Clopper, Pearson 1934), exact for independent trials.

    Args:
        count: of trials that it was met in.
        trials: at least ``count``.
        confidence: one-sided, in (0, 1).
    """
    return 1.0 if count >= trials else float(beta.ppf(confidence, count + 1, trials - count))


def gaussian_epsilon(scores: np.ndarray, included: np.ndarray, delta: float, confidence: float) -> float:
    """Epsilon at ``delta`` of the mu that the errors suggest; the half with the larger scores is taken to be in.

    Args:
        scores: of canaries, ``(m,)``.
        included: their coins, ``(m,)`` bool.
        delta: in (0, 1).
        confidence: of both errors together, in (0, 1).
    """
    taken = np.zeros(len(scores), dtype=bool)
    taken[np.argsort(-scores, kind="stable")[: len(scores) // 2]] = True
    each = 1 - (1 - confidence) / 2
    inside, outside = int(included.sum()), int((~included).sum())
    alarms = clopper_pearson(int((taken & ~included).sum()), outside, each)
    misses = clopper_pearson(int((~taken & included).sum()), inside, each)
    if alarms + misses >= 1:
        return 0.0
    return gdp.epsilon(delta, float(ndtri(1 - alarms) - ndtri(misses)))
