"""Calibration: the least noise, or the most steps, whose certified epsilon fits a budget; and epsilon so far at every step.

Each search looks for its answer on a coarse grid of losses and settles it on the fine one that the accountant uses. The
central limit theorem gives the place to start looking, and nothing else: it never decides.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import NoReturn

from scipy.optimize import brentq

from dpltm.errors import BudgetError, CalibrationError
from dpltm.privacy import gdp
from dpltm.privacy.account import NOTHING, Planned
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.accountants import FINE, QUICK, Resolution, check_certifies
from dpltm.privacy.describe import describe, figure
from dpltm.privacy.mechanisms import AllocatedSgd, NoisySgd

TOLERANCE = 1e-3
"""Relative distance below the budget within which an answer lies, never above; for budgets of 1e-5 and less, as near
as the accountant's grid allows."""

MIN_NOISE, MAX_NOISE = 0.1, 2.0**14  # noise multipliers that are tried; the least is taken even if it underspends
MAX_STEPS = 10**8

MIN_SHARE = 0.02
"""What is left of a budget is refused below this share of it: a search ends up to ``TOLERANCE`` short of its budget, and
some noise, 30 to 50,000 times that of the whole, fits any crumb that is left."""


def calibrate_noise(
    budget: float, delta: float, plan: NoisySgd, before: Planned = NOTHING, accountant: str = "pld"
) -> NoisySgd:
    """The mechanism ``plan`` with the noise multiplier that spends ``budget``, the whole certified epsilon, and no more.

    >>> plan = calibrate_noise(1.0, 1e-5, NoisySgd(256 / 60000, steps=14062, noise_multiplier=1))
    >>> round(plan.noise_multiplier, 2)
    2.03

    Args:
        plan: the training that is planned; its ``noise_multiplier`` is ignored.
        before: what counts already.

    Raises:
        BudgetError: ``before`` spends the budget, or leaves too little of it (see ``MIN_SHARE``).
        CalibrationError: the budget is not a positive number, or no noise multiplier up to ``MAX_NOISE`` is enough.

    Guarantees:
        The certified epsilon together with ``before`` is in ``[(1 - TOLERANCE) budget, budget]``.
    """
    # what the answer does not depend on is taken out, so that the same question is answered once
    unit_plan = replace(plan, noise_multiplier=1.0, sensitivity=1.0, nominal_sensitivity=None)
    return replace(plan, noise_multiplier=_least_noise(budget, delta, unit_plan, before, accountant))


@lru_cache(maxsize=128)
def _least_noise(budget: float, delta: float, plan: NoisySgd, before: Planned, accountant: str) -> float:
    spent, left = _check(budget, delta, before, accountant)

    def excess(log_sigma: float, resolution: Resolution) -> float:
        """Log of spent over budget, shifted so that its root lies in the middle of the tolerance; spent may be 0."""
        share = spent(replace(plan, noise_multiplier=math.exp(log_sigma)), resolution=resolution) / budget
        return math.log(min(max(share, 1e-12), 1e12)) + TOLERANCE / 2

    root = _least(excess, math.log(_clt_noise(left, delta, plan)), math.log(MIN_NOISE), math.log(MAX_NOISE))
    if root is None:
        _refuse(
            budget, left, delta, before, f"even noise multiplier {MAX_NOISE:g} over {plan.steps} steps at"
            f" sampling rate {plan.sampling_rate:.3g} spends more", "raise `epsilon` or take fewer steps",
        )  # fmt: skip
    return math.exp(root)


def calibrate_steps(
    budget: float,
    delta: float,
    plan: NoisySgd,
    before: Planned = NOTHING,
    accountant: str = "pld",
    most: int = MAX_STEPS,
) -> NoisySgd:
    """The mechanism ``plan`` with the most steps, up to ``most``, whose epsilon fits. Raises as :func:`calibrate_noise`,
    also where not even one step fits."""
    spent, left = _check(budget, delta, before, accountant)

    def fits(steps: int) -> bool:
        return spent(replace(plan, steps=steps)) <= budget

    if fits(most):
        return replace(plan, steps=most)
    replace_one = plan.adjacency == "replace-one"
    per_step = gdp.clt_mu(max(plan.noise_multiplier, MIN_NOISE), plan.sampling_rate, 1, replace_one=replace_one)
    steps = _largest(fits, round(min((gdp.mu(left, delta) / per_step) ** 2, most - 1)), most)
    if steps == 0:
        _refuse(
            budget, left, delta, before, f"even one step at noise multiplier {plan.noise_multiplier:.3g} and"
            f" sampling rate {plan.sampling_rate:.3g} spends more", "raise `epsilon` or the noise",
        )  # fmt: skip
    return replace(plan, steps=steps)


def slack_noise(plan: NoisySgd, delta: float) -> float:
    """The noise multiplier at which the central limit theorem has the epsilon of the moments accountant for ``plan`` (GDP,
    Equations 7 and 8): smaller, nominal, and never calibrated to."""
    stated = epsilon([plan], delta, "ma")
    return plan.noise_multiplier if stated == 0 or math.isinf(stated) else _clt_noise(stated, delta, plan)


def _clt_noise(epsilon: float, delta: float, plan: NoisySgd) -> float:
    replace_one = plan.adjacency == "replace-one"
    return gdp.clt_noise(gdp.mu(epsilon, delta), plan.sampling_rate, plan.compositions, replace_one=replace_one)


def check_share(budget: float, used: float, before: Planned, delta: float, kind: str = "epsilon") -> None:
    """Raise BudgetError, which names what took it, if ``used`` leaves less than ``MIN_SHARE`` of a budget."""
    if budget - used >= MIN_SHARE * budget:
        return
    share = f"which leaves less than {100 * MIN_SHARE:g} % of {budget:g}, nothing but noise"
    why = f"so nothing is left of {budget:g}" if used >= budget else share
    raise BudgetError(taken(before, f"{kind} {used:.4g}", why, delta))


def taken(before: Planned, amount: str, why: str, delta: float) -> str:
    """One line on what took a budget: the costliest event, with its date if known, how many others, and a remedy."""
    paid = before.with_mechanism(None).paid
    # rdp is quick, and good enough to rank by
    first = max(paid, key=lambda entry: replace(before.account, entries=(entry,)).epsilon(delta, "rdp"), default=None)
    others = f" and {len(paid) - 1} other release{'s' if len(paid) > 2 else ''}" if len(paid) > 1 else ""
    gone = "what this release holds beside" if first is None or not first.day else f"{describe(first)} ({first.day})"
    return (
        f"budget: on these records {amount} goes to {gone}{others}, {why}; set a larger `epsilon`, a new budget for all of"
        " it together, or name the account of other people (`ledger`, `population`)"
    )


def _check(budget: float, delta: float, before: Planned, accountant: str) -> tuple[Callable[..., float], float]:
    """Epsilon of ``before`` and a plan, as a function, and what ``before`` leaves of the budget."""
    check_certifies(accountant)
    if not (budget > 0 and math.isfinite(budget)):
        raise CalibrationError(f"`epsilon`: {budget:g} is not a positive number")
    used = before.epsilon(None, delta, accountant)
    check_share(budget, used, before, delta)
    return partial(before.epsilon, delta=delta, accountant=accountant), budget - used


def _refuse(budget: float, left: float, delta: float, before: Planned, why: str, remedy: str) -> NoReturn:
    if left < budget:
        little = f"which leaves too little of {budget:g}: {why}"
        raise BudgetError(taken(before, f"epsilon {figure(budget - left)}", little, delta))
    raise CalibrationError(f"`epsilon`: {budget:g} is too small to calibrate: {why}; {remedy}")


def _least(excess: Callable[[float, Resolution], float], guess: float, low: float, high: float) -> float | None:
    """The least x at which ``excess``, falling, is within half the tolerance of 0, or ``low``; None if there is none."""
    quick = _root(lambda x: excess(x, QUICK), guess, 0.05, low, high)
    root = high if quick is None else quick
    off = excess(root, FINE)
    if abs(off) <= TOLERANCE / 2:
        return root
    return _root(lambda x: excess(x, FINE), root, min(max(abs(off) / 2, TOLERANCE / 4), 0.05), low, high)


def _root(excess: Callable[[float], float], guess: float, step: float, low: float, high: float) -> float | None:
    """Root of ``excess``, on the side where it is at most half the tolerance; as :func:`_least`."""
    below = above = min(max(guess, low), high)
    if excess(below) > 0:
        while excess(above := min(above + step, high)) > 0:
            if above == high:
                return None
            below, step = above, 2 * step
    else:
        while excess(below := max(below - step, low)) <= 0:
            if below == low:
                return low
            above, step = below, 2 * step

    def settled(x: float) -> float:
        value = excess(x)
        return 0.0 if abs(value) <= TOLERANCE / 4 else value  # near enough: brentq stops at a zero

    root = float(brentq(settled, below, above, xtol=1e-8, rtol=1e-12))
    step = 1e-8
    while excess(root) > TOLERANCE / 2:  # a jump between two grids: take its far side
        root, step = min(root + step, above), 2 * step
    return root


def _largest(fits: Callable[[int], bool], guess: int, high: int) -> int:
    """The largest whole number below ``high`` that fits; 0 if none does, and ``high`` does not."""
    low, at, step = 0, max(guess, 1), max(guess // 64, 1)
    while low < at < high:  # grow steps away from the guess until the answer is between the two
        low, high, at = (at, high, at + step) if fits(at) else (low, at, at - step)
        step *= 2
    return low + bisect.bisect_left(range(low + 1, high), True, key=lambda steps: not fits(steps))


POINTS = 10  # steps at which the schedule is exact; in between, the next one is an upper bound


class Odometer:
    """Epsilon that a training has spent so far, together with what counts ``before``.

    Each reading is an upper bound on the true epsilon of the steps taken, and readings never fall: between two points of the
    schedule the later one holds. The last is the certified figure, which holds for fewer steps, any of an allocation.
    """

    def __init__(self, before: Planned, plan: NoisySgd, delta: float, accountant: str = "pld") -> None:
        points = min(POINTS, plan.steps)
        self.steps = tuple(plan.steps * place // points for place in range(1, points + 1))
        end = before.epsilon(plan, delta, accountant)
        bounds = [
            min(end, before.epsilon(replace(plan, steps=steps), delta, accountant, resolution=QUICK))
            for steps in (() if isinstance(plan, AllocatedSgd) else self.steps[:-1])
        ]
        # a later bound holds earlier too
        self._epsilons = [min(bounds[place:], default=end) for place in range(points)]

    def after(self, steps: int) -> float:
        """Return epsilon after ``steps`` steps, 1 to those planned: an upper bound, in constant time."""
        return self._epsilons[bisect.bisect_left(self.steps, steps)]
