"""What a budget allows: the least noise, the most steps, or the largest sampling rate whose certified epsilon fits.

Each search looks for its answer on a coarse grid of losses and settles it on the fine one that the accountant uses. The
central limit theorem gives the place to start looking, and nothing else: it never decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import NoReturn

from scipy.optimize import brentq

from dpltm.errors import BudgetError, CalibrationError, InputError
from dpltm.privacy import gdp
from dpltm.privacy.accountant import CERTIFIED, epsilon
from dpltm.privacy.events import Event, TrainingEvent
from dpltm.privacy.pld import FINE, QUICK, Resolution

TOLERANCE = 1e-3
"""What is found never spends more than the budget, and as near to it, relatively, as this; for budgets of 1e-5 and less,
as near as the accountant's grid allows."""

SMALLEST_NOISE, LARGEST_NOISE = 0.1, 2.0**14
"""No noise multiplier below or above these is tried; where even the least one underspends, it is taken."""

MOST_STEPS = 10**8
SMALLEST_RATE = 1e-9

Spent = Callable[[TrainingEvent, Resolution], float]


def calibrate_noise(
    budget: float, delta: float, plan: TrainingEvent, before: Iterable[Event] = (), accountant: str = "pld"
) -> TrainingEvent:
    """The training event ``plan`` with the noise multiplier that spends ``budget`` and no more.

    Args:
        budget: the whole certified epsilon, including what ``before`` costs.
        delta: in (0, 1).
        plan: the training that is planned; its ``noise_multiplier`` is ignored.
        before: events already on record for the same records (a selection, earlier training).
        accountant: one of ``CERTIFIED``.

    Returns:
        ``plan`` with its noise multiplier set; its certified epsilon together with ``before`` is in
        ``[(1 - TOLERANCE) budget, budget]``.

    Raises:
        BudgetError: ``before`` spends the budget, or leaves too little of it.
        CalibrationError: the budget is not a positive number, or no noise multiplier up to ``LARGEST_NOISE`` is enough.
        InputError: an accountant that certifies nothing.
    """
    # what the answer does not depend on is taken out, so that the same question is answered once
    asked = replace(plan, time="", noise_multiplier=1.0, sensitivity=1.0, nominal_sensitivity=None, filter="", live=1)
    return replace(plan, noise_multiplier=_least_noise(budget, delta, asked, tuple(before), accountant))


@lru_cache(maxsize=128)
def _least_noise(
    budget: float, delta: float, plan: TrainingEvent, before: tuple[Event, ...], accountant: str
) -> float:
    """The noise multiplier of :func:`calibrate_noise`."""
    spent, left = _check(budget, delta, plan, before, accountant)

    def excess(log_sigma: float, resolution: Resolution) -> float:
        return _excess(spent(replace(plan, noise_multiplier=math.exp(log_sigma)), resolution), budget)

    guess = gdp.clt_noise(gdp.mu(left, delta), plan.sampling_rate, plan.steps, replace_one=_replace(plan))
    root = _least(excess, math.log(guess), math.log(SMALLEST_NOISE), math.log(LARGEST_NOISE))
    if root is None:
        _refuse(
            budget, left, f"even noise multiplier {LARGEST_NOISE:g} over {plan.steps} steps at sampling rate"
            f" {plan.sampling_rate:.3g} spends more; raise --epsilon or take fewer steps"
        )  # fmt: skip
    return math.exp(root)


def calibrate_rate(
    budget: float, delta: float, plan: TrainingEvent, before: Iterable[Event] = (), accountant: str = "pld"
) -> TrainingEvent:
    """The training event ``plan`` with the largest sampling rate whose epsilon fits; as :func:`calibrate_noise`.

    Where even a rate of 1 underspends, that is what is returned.
    """
    spent, left = _check(budget, delta, plan, before, accountant)

    def excess(log_rate: float, resolution: Resolution) -> float:  # falls as its argument, -ln q, grows
        return _excess(spent(replace(plan, sampling_rate=math.exp(-log_rate)), resolution), budget)

    guess = gdp.mu(left, delta) / gdp.clt_mu(_noise(plan), 1.0, plan.steps, replace_one=_replace(plan))
    root = _least(excess, -math.log(min(max(guess, SMALLEST_RATE), 1.0)), 0.0, -math.log(SMALLEST_RATE))
    if root is None:
        _refuse(
            budget, left, f"even sampling rate {SMALLEST_RATE:g} over {plan.steps} steps at noise multiplier"
            f" {plan.noise_multiplier:.3g} spends more; raise --epsilon or the noise, or take fewer steps"
        )  # fmt: skip
    return replace(plan, sampling_rate=math.exp(-root))


def calibrate_steps(
    budget: float, delta: float, plan: TrainingEvent, before: Iterable[Event] = (), accountant: str = "pld"
) -> TrainingEvent:
    """The training event ``plan`` with the most steps, up to ``MOST_STEPS``, whose epsilon fits.

    Raises:
        BudgetError, CalibrationError, InputError: as :func:`calibrate_noise`; not even one step fits.
    """
    spent, left = _check(budget, delta, plan, before, accountant)

    def excess(log_steps: float, resolution: Resolution) -> float:  # falls as its argument, -ln T, grows
        steps = min(max(round(math.exp(-log_steps)), 1), MOST_STEPS)
        return _excess(spent(replace(plan, steps=steps), resolution), budget)

    per_step = gdp.clt_mu(_noise(plan), plan.sampling_rate, 1, replace_one=_replace(plan))
    guess = min(max((gdp.mu(left, delta) / per_step) ** 2, 1.0), MOST_STEPS)
    root = _least(excess, -math.log(guess), -math.log(MOST_STEPS), 0.0)
    steps = 1 if root is None else round(math.exp(-root))
    low, _ = _around(lambda count: spent(replace(plan, steps=count), FINE) <= budget, steps, max(steps // 2000, 1))
    if low == 0:
        _refuse(
            budget, left, f"even one step at noise multiplier {plan.noise_multiplier:.3g} and sampling rate"
            f" {plan.sampling_rate:.3g} spends more; raise --epsilon or the noise"
        )  # fmt: skip
    return replace(plan, steps=low)


def slack_noise(plan: TrainingEvent, delta: float) -> float:
    """The smaller noise multiplier that the GDP paper would use for the same epsilon: nominal, and never calibrated to.

    The moments accountant states an epsilon for ``plan``; the central limit theorem reaches it at a larger mu (GDP,
    Equation 7), hence with less noise (Equation 8).
    """
    stated = epsilon([plan], delta, "ma")
    if stated == 0 or math.isinf(stated):
        return plan.noise_multiplier
    return gdp.clt_noise(gdp.mu(stated, delta), plan.sampling_rate, plan.steps, replace_one=_replace(plan))


def _check(
    budget: float, delta: float, like: TrainingEvent, before: Iterable[Event], accountant: str
) -> tuple[Spent, float]:
    """What a plan spends together with ``before``, for the unit of ``like``, and what ``before`` leaves of the budget."""
    if accountant not in CERTIFIED:
        raise InputError(
            f"--accountant: {accountant} is an approximation and can satisfy no budget; use {', '.join(CERTIFIED)}"
        )
    if not (budget > 0 and math.isfinite(budget)):
        raise CalibrationError(f"--epsilon: {budget:g} is not a positive number")
    before = tuple(before)
    used = epsilon(before, delta, accountant, unit=like.unit)
    if used >= budget:
        raise BudgetError(
            f"budget: the ledger already holds epsilon {used:.4g} for these records, so nothing is left of"
            f" {budget:g} for training; raise --epsilon, or name another --ledger if that release is never made"
        )

    def spent(plan: TrainingEvent, resolution: Resolution) -> float:
        return epsilon((*before, plan), delta, accountant, resolution=resolution, unit=like.unit)

    return spent, budget - used


def _replace(plan: TrainingEvent) -> bool:
    return plan.adjacency == "replace-one"


def _noise(plan: TrainingEvent) -> float:
    if plan.noise_multiplier <= 0:
        raise CalibrationError("--noise-multiplier: without noise no budget is enough")
    return plan.noise_multiplier


def _refuse(budget: float, left: float, why: str) -> NoReturn:
    """Raises the error that says whether the budget was too small from the start."""
    if left < budget:
        raise BudgetError(
            f"budget: the ledger already holds epsilon {budget - left:.4g} of {budget:g} for these records, and what is left"
            f" is too little: {why}"
        )
    raise CalibrationError(f"--epsilon: {budget:g} is too small to calibrate: {why}")


def _excess(spent: float, budget: float) -> float:
    """Log of spent over budget, shifted so that its root lies in the middle of the tolerance; spent may be 0."""
    return math.log(min(max(spent / budget, 1e-12), 1e12)) + TOLERANCE / 2


def _least(excess: Callable[[float, Resolution], float], guess: float, low: float, high: float) -> float | None:
    """The least x in [low, high] at which ``excess``, which falls in x, is within half the tolerance of 0.

    ``low`` if it underspends there already, None if it overspends even at ``high``.
    """
    quick = _root(lambda x: excess(x, QUICK), guess, 0.05, low, high)
    root = high if quick is None else quick
    found = excess(root, FINE)
    if not -TOLERANCE / 2 <= found <= TOLERANCE / 2:
        fine = _root(lambda x: excess(x, FINE), root, min(max(abs(found) / 2, TOLERANCE / 4), 0.05), low, high)
        if fine is None:
            return None
        root = fine
    return root


def _root(excess: Callable[[float], float], guess: float, step: float, low: float, high: float) -> float | None:
    """Where ``excess`` crosses 0, on the side where it is at most half the tolerance; as :func:`_least`."""
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


def _around(fits: Callable[[int], bool], guess: int, step: int) -> tuple[int, int]:
    """Neighbouring whole numbers: the largest that fits (0 if none does), and the next, which does not."""
    low, high = 0, MOST_STEPS + 1
    at = guess
    while low < at < high:  # grow steps away from the guess until it is between the two
        if fits(at):
            low, at = at, min(at + step, high)
        else:
            high, at = at, max(at - step, low)
        step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low, high
