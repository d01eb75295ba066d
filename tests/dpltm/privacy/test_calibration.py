"""Noise for a budget: it fits, it is not wasteful, it agrees with peers, and it ends where no noise will do."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from dpltm.errors import BudgetError, CalibrationError
from dpltm.privacy import calibration
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.calibration import TOLERANCE, calibrate_noise
from dpltm.privacy.events import DatasetRef, NonPrivateEvent, ProvenanceEvent, SelectionEvent, TrainingEvent

DATA = DatasetRef("mnist", "a" * 64, "k1", 0, 60000)
DELTA = 1e-5


def plan(steps, rate, sigma=1.0, adjacency="add-remove"):
    return TrainingEvent(DATA, "t", adjacency, "record", rate, steps, sigma, 1.0, None, "clip 1", 10)


def selection(eps1):
    return SelectionEvent(
        DATA, "t", "add-remove", "record", "exponential", "product", eps1, "exact", 0.1, eps1, 15, "s"
    )


def analytic_sigma(budget, delta, steps=1):
    """Exact noise multiplier of ``steps`` full Gaussian steps (Balle and Wang 2018, Theorem 8)."""

    def excess(mu):
        return ndtr(mu / 2 - budget / mu) - math.exp(budget + log_ndtr(-mu / 2 - budget / mu)) - delta

    return math.sqrt(steps) / brentq(excess, 1e-3 * min(budget, 1.0), 50.0)


@pytest.mark.parametrize(
    ("budget", "steps", "rate", "before"),
    [
        (0.01, 100, 0.1, []),
        (0.1, 1000, 256 / 60000, []),
        (1.0, 1000, 0.01, [selection(0.5)]),
        (1.0, 1000, 0.01, [selection(0.99)]),
        (1.0, 1000, 0.01, [selection(0.25), selection(0.25), plan(100, 0.01, 2.0)]),
        (1.0, 100, 0.1, [ProvenanceEvent(DATA, "t", "add-remove", "record", "public", "s")]),
        (2.0, 10, 1.0, [plan(20, 0.1, 6.0)]),
        (3.0, 10, 0.8, []),
    ],
)
def test_spends_the_budget_and_no_more(budget, steps, rate, before):
    event = calibrate_noise(budget, DELTA, plan(steps, rate), before)
    assert (1 - TOLERANCE) * budget <= epsilon([*before, event], DELTA) <= budget


@settings(max_examples=3)
@given(st.floats(0.3, 1.5), st.integers(50, 500), st.floats(0.1, 0.4), st.floats(0.0, 0.8), st.floats(-7.0, -4.0))
def test_spends_the_budget_and_no_more_anywhere(budget, steps, rate, share, log_delta):
    before = [selection(share * budget)] if share > 0 else []
    event = calibrate_noise(budget, 10**log_delta, plan(steps, rate), before)
    assert (1 - TOLERANCE) * budget <= epsilon([*before, event], 10**log_delta) <= budget


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize(
    ("budget", "delta", "steps"), [(1.0, 1e-5, 1), (0.1, 1e-6, 1), (2.0, 1e-3, 1), (2.0, 1e-5, 64)]
)
def test_full_steps_get_the_analytic_noise(budget, delta, steps, adjacency):
    """Never less noise than the exact solution; at most what the tolerance and the grid add to it."""
    event = calibrate_noise(budget, delta, plan(steps, 1.0, adjacency=adjacency))
    exact = analytic_sigma(budget, delta, steps)
    assert exact <= event.noise_multiplier <= exact * (1 + 3e-3)


def test_agrees_with_dp_accounting():
    """Their search over their own accountant."""
    from dp_accounting import calibrate_dp_mechanism, dp_event
    from dp_accounting.pld import PLDAccountant

    def event_of(sigma):
        step = dp_event.PoissonSampledDpEvent(0.2, dp_event.GaussianDpEvent(sigma))
        return dp_event.SelfComposedDpEvent(step, 20)

    peer = calibrate_dp_mechanism(PLDAccountant, event_of, 1.0, DELTA, tol=1e-3)
    assert calibrate_noise(1.0, DELTA, plan(20, 0.2)).noise_multiplier == pytest.approx(peer, rel=3e-3)


def test_only_the_noise_multiplier_is_set():
    """Whatever noise the plan names has no influence, and every other field comes back as it was."""
    first, second = (calibrate_noise(1.0, DELTA, plan(20, 1.0, sigma)) for sigma in (0.0, 9.0))
    assert first == second
    assert replace(first, noise_multiplier=0.0) == plan(20, 1.0, 0.0)


def test_a_larger_share_already_spent_needs_more_noise():
    sigmas = [calibrate_noise(1.0, DELTA, plan(100, 0.05), [selection(e)]).noise_multiplier for e in (0.2, 0.7)]
    assert calibrate_noise(1.0, DELTA, plan(100, 0.05)).noise_multiplier < sigmas[0] < sigmas[1]


@pytest.mark.parametrize(
    ("before", "shown"),
    [
        ([selection(1.5)], "1.5"),
        ([NonPrivateEvent(DATA, "t", "add-remove", "record", "scores")], "inf"),
        ([plan(1, 1.0, 0.5)], f"{epsilon([plan(1, 1.0, 0.5)], DELTA):.4g}"),
    ],
)
def test_nothing_left(before, shown):
    with pytest.raises(BudgetError) as caught:
        calibrate_noise(1.25, DELTA, plan(10, 0.1), before)
    assert str(caught.value) == (
        f"budget: the ledger already holds epsilon {shown} for these records, so nothing is left of 1.25 for training;"
        " raise --epsilon, or name another --ledger if that release is never made"
    )


def test_exactly_spent_is_spent():
    """With nothing at all left, no noise multiplier is looked for."""
    spent = epsilon([selection(1.0)], DELTA)
    with pytest.raises(BudgetError):
        calibrate_noise(spent, DELTA, plan(10, 0.1), [selection(1.0)])


@pytest.mark.parametrize(("budget", "steps", "rate"), [(1e-7, 1, 1.0), (1e-7, 1000, 0.00427), (1e-9, 100, 0.1)])
def test_too_small_to_calibrate(monkeypatch, budget, steps, rate):
    """Even 2^14 times the sensitivity is too little noise. It says so after a handful of evaluations."""
    calls = []
    monkeypatch.setattr(calibration, "epsilon", lambda *args: calls.append(1) or epsilon(*args))
    with pytest.raises(CalibrationError) as caught:
        calibrate_noise(budget, DELTA, plan(steps, rate))
    assert str(caught.value) == (
        f"--epsilon: {budget:g} is too small to calibrate: even noise multiplier 16384 over {steps} steps at sampling"
        f" rate {rate:.3g} spends more; raise --epsilon or take fewer steps"
    )
    assert len(calls) < 20


def test_a_sliver_left_is_too_small():
    """Spent is just below the budget: the error names the ledger, not the noise."""
    with pytest.raises(BudgetError, match="already holds epsilon 1 of 1 for these records"):
        calibrate_noise(1.0, DELTA, plan(1000, 0.01), [selection(0.99999)])


def test_epsilon_zero_within_reach():
    """Enough noise brings the two outputs closer than delta in total variation: epsilon 0, which fits any budget."""
    event = calibrate_noise(1e-7, DELTA, plan(1, 0.001))
    assert epsilon([event], DELTA) <= 1e-7


@pytest.mark.parametrize("budget", [math.nan, math.inf, 0.0, -1.0])
def test_budget_must_be_a_positive_number(budget):
    with pytest.raises(CalibrationError) as caught:
        calibrate_noise(budget, DELTA, plan(10, 0.1))
    assert str(caught.value) == f"--epsilon: {budget:g} is not a positive number"


def test_an_inexact_root_is_corrected_to_the_safe_side(monkeypatch):
    """The budget holds even where the root finder stops on the wrong side of it."""
    monkeypatch.setattr(calibration, "brentq", lambda *args, **kwargs: brentq(*args, **kwargs) - 2e-3)
    event = calibrate_noise(1.0, DELTA, plan(1, 1.0))
    assert analytic_sigma(1.0, DELTA) <= event.noise_multiplier
    assert epsilon([event], DELTA) <= 1.0
