"""Noise for a budget: the smallest noise multiplier whose certified epsilon, with all that came before, fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from scipy.optimize import brentq
from scipy.special import log_ndtr

from dpltm.errors import BudgetError, CalibrationError
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.events import Event, TrainingEvent

TOLERANCE = 1e-3
"""The returned noise never spends more than the budget, and as near to it, relatively, as this; for budgets of 1e-5 and
less, as near as the accountant's grid allows."""

LEAST_NOISE, LARGEST_NOISE = 0.1, 2.0**14
"""No noise multiplier below or above these is tried; where even the least one underspends, about that much is taken."""


def calibrate_noise(budget: float, delta: float, plan: TrainingEvent, before: Iterable[Event] = ()) -> TrainingEvent:
    """The training event ``plan`` with the noise multiplier that spends ``budget`` and no more.

    Args:
        budget: the whole certified epsilon, including what ``before`` costs.
        delta: in (0, 1).
        plan: the training that is planned; its ``noise_multiplier`` is ignored.
        before: events already on record for the same records (a selection, earlier training).

    Returns:
        ``plan`` with its noise multiplier set; its certified epsilon together with ``before`` is in
        ``[(1 - TOLERANCE) budget, budget]``.

    Raises:
        BudgetError: ``before`` spends the budget, or leaves too little of it.
        CalibrationError: the budget is not a positive number, or no noise multiplier up to ``LARGEST_NOISE`` is enough.
    """
    if not (budget > 0 and math.isfinite(budget)):
        raise CalibrationError(f"--epsilon: {budget:g} is not a positive number")
    before = tuple(before)
    spent = epsilon(before, delta)
    if spent >= budget:
        raise BudgetError(
            f"budget: the ledger already holds epsilon {spent:.4g} for these records, so nothing is left of"
            f" {budget:g} for training; raise --epsilon, or name another --ledger if that release is never made"
        )

    def excess(log_sigma: float) -> float:
        """Log of spent over budget, shifted so that its root lies in the middle of the tolerance."""
        total = epsilon((*before, replace(plan, noise_multiplier=math.exp(log_sigma))), delta)
        return math.log(max(total / budget, 1e-12)) + TOLERANCE / 2  # an epsilon of exactly 0 is possible

    try:
        low, high = _bracket(excess, _first_guess(budget - spent, delta, plan), budget, plan)
    except CalibrationError:
        if spent == 0:
            raise
        raise BudgetError(
            f"budget: the ledger already holds epsilon {spent:.4g} of {budget:g} for these records, and what is left is too"
            f" little for {plan.steps} steps; raise --epsilon, or name another --ledger if that release is never made"
        ) from None
    root = brentq(excess, low, high, xtol=TOLERANCE / 8, rtol=1e-9) if low < high else high
    while excess(root) > TOLERANCE / 2:  # the root is known to xtol only; step to the safe side of the budget
        root += TOLERANCE / 8
    return replace(plan, noise_multiplier=math.exp(root))


def _first_guess(share: float, delta: float, plan: TrainingEvent) -> float:
    """Log noise multiplier by the central limit formula (PRIVACY.md section 5): only a place to start looking."""

    def log_delta(mu: float) -> float:
        """Log of Phi(mu/2 - share/mu) - e^share Phi(-mu/2 - share/mu), in logs so that nothing underflows."""
        first, second = log_ndtr(mu / 2 - share / mu), share + log_ndtr(-mu / 2 - share / mu)
        return first + math.log1p(-min(math.exp(min(second - first, 0.0)), 1 - 1e-12)) - math.log(delta)

    mu = brentq(log_delta, 1e-6, 100.0 + 2 * share)
    sigma = 1 / math.sqrt(math.log1p(mu * mu / (plan.sampling_rate**2 * plan.steps)))
    return min(max(math.log(sigma), math.log(0.1)), math.log(LARGEST_NOISE))


def _bracket(
    excess: Callable[[float], float], guess: float, budget: float, plan: TrainingEvent
) -> tuple[float, float]:
    """Log noise multipliers on both sides of the budget, found by growing steps from the guess."""
    low = high = guess
    step = 0.05
    if excess(guess) > 0:
        while excess(high := min(high + step, math.log(LARGEST_NOISE))) > 0:
            if high == math.log(LARGEST_NOISE):
                raise CalibrationError(
                    f"--epsilon: {budget:g} is too small to calibrate: even noise multiplier {LARGEST_NOISE:g} over"
                    f" {plan.steps} steps at sampling rate {plan.sampling_rate:.3g} spends more; raise --epsilon or"
                    " take fewer steps"
                )
            low, step = high, 2 * step
        return low, high
    while excess(low := low - step) <= 0:
        high, step = low, 2 * step
        if low < math.log(LEAST_NOISE):
            return high, high
    return low, high
