"""The odometer: epsilon so far at every step of a training, from a schedule made once before it starts."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import replace

from dpltm.privacy.accountant import epsilon
from dpltm.privacy.events import Event, TrainingEvent
from dpltm.privacy.pld import QUICK

POINTS = 10
"""Steps at which the schedule is exact; in between, the next one is an upper bound."""


class Odometer:
    """What a training has spent so far, together with what came before it.

    Args:
        before: events already on record for the same records.
        plan: the training.
        delta: in (0, 1).
        accountant: of the figures.

    Guarantees:
        Never below the certified epsilon of the steps taken: between two points of the schedule the later one holds.
        The points are composed on the coarse grid; the last is the certified figure itself.
    """

    def __init__(self, before: Iterable[Event], plan: TrainingEvent, delta: float, accountant: str = "pld") -> None:
        before = tuple(before)
        points = min(POINTS, plan.steps)
        self.steps = tuple(plan.steps * place // points for place in range(1, points + 1))
        self._epsilons = [
            epsilon((*before, replace(plan, steps=steps)), delta, accountant, resolution=QUICK)
            for steps in self.steps[:-1]
        ]
        self._epsilons.append(epsilon((*before, plan), delta, accountant))

    def after(self, steps: int) -> float:
        """Epsilon after ``steps`` steps, 1 to those planned: an upper bound, in constant time."""
        return self._epsilons[bisect.bisect_left(self.steps, steps)]
