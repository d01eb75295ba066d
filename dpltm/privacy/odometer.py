"""The odometer: epsilon so far at every step of a training, from a schedule made once before it starts."""

from __future__ import annotations

import bisect
from dataclasses import replace

from dpltm.privacy.account import Before, Planned, epsilon_with
from dpltm.privacy.accountants import QUICK
from dpltm.privacy.mechanisms import NoisySgd

POINTS = 10
"""Steps at which the schedule is exact; in between, the next one is an upper bound."""


class Odometer:
    """What a training has spent so far, together with what counts beside it.

    Args:
        before: what was done to the same people already.
        plan: the training.
        delta: in (0, 1).
        accountant: of the figures.

    Guarantees:
        Each reading is an upper bound on the true epsilon of the steps taken, and readings never fall: between two points of
        the schedule the later one holds. The points are composed on the coarse grid; the last is the certified figure, which
        holds for fewer steps too.
    """

    def __init__(self, before: Before, plan: NoisySgd, delta: float, accountant: str = "pld") -> None:
        before = before if isinstance(before, Planned) else tuple(before)
        points = min(POINTS, plan.steps)
        self.steps = tuple(plan.steps * place // points for place in range(1, points + 1))
        end = epsilon_with(before, plan, delta, accountant)
        bounds = [
            min(end, epsilon_with(before, replace(plan, steps=steps), delta, accountant, resolution=QUICK))
            for steps in self.steps[:-1]
        ]
        # a later bound holds earlier too
        self._epsilons = [min(bounds[place:], default=end) for place in range(points)]

    def after(self, steps: int) -> float:
        """Return epsilon after ``steps`` steps, 1 to those planned: an upper bound, in constant time."""
        return self._epsilons[bisect.bisect_left(self.steps, steps)]
