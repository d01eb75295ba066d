"""What a guarantee means: how often the best attacker is right, at a fixed prior (Dong, Roth, Su 2022; Kairouz et al. 2015).

The attacker knows everything but whether one record (or one user) was among those used, and sees all that was released. H0
says that it was not, H1 that it was. All figures are upper bounds, from the certified curve delta(epsilon).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpltm.privacy.trade_off import Curves

PRIORS = (0.5, 0.1)
"""Chances of H1 before anything is seen."""

FALSE_ALARMS = (0.001, 0.01, 0.05, 0.1)
"""Of the table."""


@dataclass(frozen=True)
class Odds:
    """The best attacker.

    Attributes:
        right: by prior, the largest share of cases in which any guess is right. Guessing alone gives max(p, 1 - p).
        found: by share of false alarms, the largest share of the records used that are found.
    """

    right: dict[float, float]
    found: dict[float, float]

    def to_json(self) -> dict[str, Any]:
        """As a statement holds them."""
        return {
            "right": [{"prior": prior, "at_most": share} for prior, share in self.right.items()],
            "found": [{"false_alarms": alarms, "at_most": share} for alarms, share in self.found.items()],
        }


def odds(curves: Curves) -> Odds:
    """The best attacker against a certified curve.

    Guarantees:
        With prior p <= 1/2 the best guess is right with chance (1 - p) + p delta(ln((1 - p) / p)), since
        p P(S) + (1 - p)(1 - Q(S)) is largest where P - e^epsilon Q is, at epsilon = ln((1 - p) / p). delta is an upper
        bound and taken at the next smaller point of its curve, where it is not smaller.
    """
    right = {}
    for prior in PRIORS:
        place = int(np.searchsorted(curves.epsilons, math.log((1 - prior) / prior), side="right")) - 1
        right[prior] = min((1 - prior) + prior * float(curves.deltas[place]), 1.0)
    return Odds(right, {alarms: 1 - curves.misses_at(alarms) for alarms in FALSE_ALARMS})


def precision(found: float, false_alarms: float, prior: float) -> float:
    """How often an attacker who says "it was used" is right, by Bayes.

    Args:
        found: share of the records used that he finds.
        false_alarms: share of the others that he takes for used.
        prior: chance that one was used, before he looks.
    """
    said = prior * found + (1 - prior) * false_alarms
    return prior * found / said if said else prior
