"""Noise, steps or rate for a budget: it fits, it is not wasteful, it agrees with peers, and it ends where nothing fits."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from dpltm.errors import BudgetError, CalibrationError, InputError
from dpltm.privacy import calibration
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.calibration import (
    MAX_NOISE_RATIO,
    MIN_NOISE,
    TOLERANCE,
    calibrate_noise,
    calibrate_rate,
    calibrate_steps,
    slack_noise,
)
from dpltm.privacy.describe import describe
from dpltm.privacy.events import (
    BudgetEvent,
    DatasetRef,
    GuaranteeEvent,
    NonPrivateEvent,
    ProvenanceEvent,
    SelectionEvent,
    TrainingEvent,
)
from dpltm.privacy.mechanisms import GaussianRelease, Guarantee, NoisySgd, Selection, Unprotected
from dpltm.privacy.parts import OnRecord, epsilon_with

REMEDY = (
    "; set a larger `epsilon`, a new budget for all of it together, or name another `ledger`, which will be added up with"
    " this one"
)

DATA = DatasetRef("mnist", "a" * 64, "k1", 0, 60000, "places")
DELTA = 1e-5


def plan(steps, rate, sigma=1.0, adjacency="add-remove"):
    return NoisySgd(rate, steps, sigma, adjacency=adjacency)


def selection(eps1, adaptive=True):
    return Selection(eps1, eps1, adaptive=adaptive)


def guarantee(eps, delta=0.0):
    return Guarantee(eps, delta)


def recorded(*mechanisms):
    """The mechanisms as a ledger has them on the records of the plan."""
    return OnRecord(DATA, tuple(entry(mechanism) for mechanism in mechanisms))


def entry(mechanism):
    match mechanism:
        case NoisySgd():
            return TrainingEvent(DATA, mechanism, "clip 1", 10, time="t")
        case Selection():
            return SelectionEvent(DATA, mechanism, "product", "exact", 0.1, 15, "s", time="t")
        case Guarantee():
            return GuaranteeEvent(DATA, mechanism, "a count", time="t")
    return NonPrivateEvent(DATA, mechanism, "scores", time="t")


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
        (1.0, 1000, 0.01, [selection(0.9)]),
        (1.0, 1000, 0.01, [selection(0.25), selection(0.25), plan(100, 0.01, 2.0)]),
        (2.0, 10, 1.0, [plan(20, 0.1, 6.0)]),
        (3.0, 10, 0.8, []),
        (1e-3, 100, 1e-3, []),
        (1e-3, 1, 1.0, []),
        (1.0, 10**4, 1e-6, []),
        (1.0, 10**6, 1.0, []),
        (50.0, 1, 1e-3, []),
        (50.0, 10**4, 0.1, []),
        (50.0, 10**6, 1.0, []),
        (2.0, 1, 1e-3, [selection(0.5, adaptive=False), plan(100, 0.01, 2.0)]),
        (2.0, 100, 0.1, [selection(0.5, adaptive=False), plan(100, 0.01, 2.0)]),
        (2.0, 100, 0.1, [guarantee(0.5, 1e-6), selection(0.3)]),
        (2.0, 100, 0.1, [GaussianRelease(4.0)]),
    ],
)
def test_spends_the_budget_and_no_more(budget, steps, rate, before):
    event = calibrate_noise(budget, DELTA, plan(steps, rate), before)
    assert (1 - TOLERANCE) * budget <= epsilon([*before, event], DELTA) <= budget


def test_what_a_ledger_holds_counts_where_it_may_touch_the_records():
    """The plan is on all of them, so it adds up with the costlier half; a statement costs nothing."""
    halves = [replace(DATA, start=start, stop=start + 30000) for start in (0, 30000)]
    events = [GuaranteeEvent(ref, Guarantee(eps), "a count") for ref, eps in zip(halves, (0.5, 0.3), strict=True)]
    found = [
        calibrate_noise(2.0, DELTA, plan(100, 0.1), before)
        for before in (
            OnRecord(DATA, (*events, ProvenanceEvent(DATA, "public", "s"))),
            [guarantee(0.5)],
            OnRecord(halves[1], (*events[1:],)),
            [guarantee(0.3)],
        )
    ]
    assert found[0] == found[1]
    assert found[2] == found[3] != found[0]


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
        ([guarantee(1.5)], "1.5"),
        ([Unprotected()], "inf"),
        ([plan(1, 1.0, 0.5)], f"{epsilon([plan(1, 1.0, 0.5)], DELTA):.4g}"),
    ],
)
def test_nothing_left(before, shown):
    with pytest.raises(BudgetError) as caught:
        calibrate_noise(1.25, DELTA, plan(10, 0.1), recorded(*before))
    assert str(caught.value) == (
        f"budget: on these records epsilon {shown} goes to {describe(entry(before[0]))} (t), so nothing is left of"
        f" 1.25{REMEDY}"
    )


def test_exactly_spent_is_spent():
    """With nothing at all left, no noise multiplier is looked for."""
    spent = epsilon([selection(1.0)], DELTA)
    for search in (calibrate_noise, calibrate_steps, calibrate_rate):
        with pytest.raises(BudgetError, match=r"so nothing is left of 0\.99"):
            search(spent, DELTA, plan(10, 0.1), [selection(1.0)])


@pytest.mark.parametrize(("budget", "steps", "rate"), [(1e-7, 1, 1.0), (1e-7, 10000, 0.1), (1e-9, 100, 0.1)])
def test_too_small_to_calibrate(monkeypatch, budget, steps, rate):
    """Even 2^14 times the sensitivity is too little noise. It says so after a handful of evaluations."""
    calls = []
    counted = lambda *args, **how: calls.append(1) or epsilon_with(*args, **how)  # noqa: E731
    monkeypatch.setattr(calibration, "epsilon_with", counted)
    with pytest.raises(CalibrationError) as caught:
        calibrate_noise(budget, DELTA, plan(steps, rate))
    assert str(caught.value) == (
        f"`epsilon`: {budget:g} is too small to calibrate: even noise multiplier 16384 over {steps} steps at sampling"
        f" rate {rate:.3g} spends more; raise `epsilon` or take fewer steps"
    )
    assert len(calls) < 20


def test_of_mechanisms_alone_no_date_is_known():
    with pytest.raises(BudgetError) as caught:
        calibrate_noise(1.25, DELTA, plan(10, 0.1), [guarantee(1.5)])
    assert str(caught.value) == (
        "budget: on these records epsilon 1.5 goes to what comes before, so nothing is left of 1.25; set a larger `epsilon`"
    )


@pytest.mark.parametrize("search", [calibrate_noise, calibrate_steps, calibrate_rate])
@pytest.mark.parametrize("left", [1e-6, 5e-4, 0.0199])
def test_a_sliver_left_is_refused(search, left):
    """Whatever is searched for: a spent budget leaves up to ``TOLERANCE``, and some noise would fit it."""
    before = [selection(0.5)]
    spent = epsilon(before, DELTA)
    budget = spent / (1 - left)
    with pytest.raises(BudgetError) as caught:
        search(budget, DELTA, plan(1000, 0.01), recorded(*before))
    assert str(caught.value) == (
        f"budget: on these records epsilon {spent:.4g} goes to {describe(entry(before[0]))} (t), which leaves less than 2 %"
        f" of {budget:g}, nothing but noise{REMEDY}"
    )


@pytest.mark.parametrize("search", [calibrate_noise, calibrate_steps, calibrate_rate])
@pytest.mark.parametrize(("budget", "sigma"), [(0.1, 30.0), (3.0, 1.0)])
def test_what_a_calibrated_training_leaves_is_a_sliver(search, budget, sigma):
    """The same search a second time is refused, whatever was searched for the first time."""
    first = search(budget, DELTA, plan(100, 0.05, sigma))
    with pytest.raises(BudgetError, match="which leaves less than 2 % of"):
        search(budget, DELTA, plan(100, 0.05, sigma), [first])


@pytest.mark.parametrize("budget", [0.1, 1.0, 3.0, 8.0, 50.0])
@pytest.mark.parametrize(("steps", "rate"), [(1, 1.0), (100, 0.05), (1000, 0.01)])
def test_a_tenth_left_by_a_draw_is_spent(budget, steps, rate):
    whole = calibrate_noise(budget, DELTA, plan(steps, rate)).noise_multiplier
    tenth = calibrate_noise(budget, DELTA, plan(steps, rate), [guarantee(0.9 * budget)]).noise_multiplier
    assert whole < tenth < MAX_NOISE_RATIO * whole


@pytest.mark.parametrize("share", [0.5, 0.9, 0.97, 0.979])
def test_what_another_training_leaves_calls_for_less_noise(share):
    """Gaussian noise adds up by its inverse square: 2.1 % left is a fifth of what there was, at five times the noise."""
    before = [calibrate_noise(share, DELTA, plan(100, 0.05))]
    whole, rest = (calibrate_noise(1.0, DELTA, plan(100, 0.05), known).noise_multiplier for known in ((), before))
    assert whole < rest < 6 * whole


@pytest.mark.parametrize(("share", "refused"), [(0.92, False), (0.97, True)])
def test_more_than_ten_times_the_noise_of_the_whole_is_refused(monkeypatch, share, refused):
    """At 3 % left by a release whose guarantee is all that is known, noise would be 25 times as much."""
    mechanisms = [guarantee(share), guarantee(1e-3)]
    first, last = recorded(*mechanisms).events
    before = OnRecord(DATA, (first, ProvenanceEvent(DATA, "public", "s", time="t"), last))
    if not refused:
        calibrate_noise(1.0, DELTA, plan(1, 1.0), before)
        return
    with pytest.raises(BudgetError) as caught:
        calibrate_noise(1.0, DELTA, plan(1, 1.0), before)
    assert str(caught.value) == (
        f"budget: on these records epsilon {epsilon(mechanisms, DELTA):.4g} goes to a count, known to be (0.97)-DP (t) and 1"
        " other release, which leaves so little of 1 that the noise would be over 10 times that of the whole" + REMEDY
    )
    whole = calibrate_noise(1.0, DELTA, plan(1, 1.0)).noise_multiplier
    monkeypatch.setattr(calibration, "MAX_NOISE_RATIO", 50.0)
    assert 20 * whole < calibrate_noise(1.0, DELTA, plan(1, 1.0), before).noise_multiplier < 50 * whole


def test_the_costliest_release_is_named():
    costliest = plan(200, 0.05, 2.0)
    assert epsilon([costliest], DELTA) > 0.2
    before = recorded(guarantee(0.1), costliest, selection(0.2), guarantee(0.5))
    before = replace(before, events=(*before.events, BudgetEvent(DATA, 9, 1e-5, time="t")))
    with pytest.raises(BudgetError) as caught:
        calibrate_noise(1.0, DELTA, plan(100, 0.05), before)
    assert f" goes to {describe(entry(costliest))} (t) and 3 other releases, so nothing is left of 1;" in str(
        caught.value
    )


def test_epsilon_zero_within_reach():
    """Enough noise brings the two outputs closer than delta in total variation: epsilon 0, which fits any budget."""
    for steps, rate in ((1, 0.001), (1000, 0.00427)):
        event = calibrate_noise(1e-7, DELTA, plan(steps, rate))
        assert epsilon([event], DELTA) <= 1e-7


@pytest.mark.parametrize("search", [calibrate_noise, calibrate_steps, calibrate_rate])
@pytest.mark.parametrize("budget", [math.nan, math.inf, 0.0, -1.0])
def test_budget_must_be_a_positive_number(budget, search):
    with pytest.raises(CalibrationError) as caught:
        search(budget, DELTA, plan(10, 0.1))
    assert str(caught.value) == f"`epsilon`: {budget:g} is not a positive number"


def test_an_inexact_root_is_corrected_to_the_safe_side(monkeypatch):
    """The budget holds even where the root finder stops on the wrong side of it."""
    monkeypatch.setattr(calibration, "brentq", lambda *args, **kwargs: brentq(*args, **kwargs) - 2e-3)
    event = calibrate_noise(1.0, DELTA, plan(1, 1.0))
    assert analytic_sigma(1.0, DELTA) <= event.noise_multiplier
    assert epsilon([event], DELTA) <= 1.0


def test_a_budget_beyond_any_noise_takes_the_least():
    """One step at q = 1e-6 costs nothing at delta 1e-5: only a record that enters can be seen, and q < delta."""
    event = calibrate_noise(50.0, DELTA, plan(1, 1e-6))
    assert event.noise_multiplier == pytest.approx(MIN_NOISE)
    assert epsilon([event], DELTA) == 0


@pytest.mark.parametrize("delta", [0.0, 1.0, math.nan])
@pytest.mark.parametrize("search", [calibrate_noise, calibrate_steps, calibrate_rate])
def test_bad_delta(search, delta):
    with pytest.raises(InputError) as caught:
        search(1.0, delta, plan(10, 0.1))
    assert str(caught.value) == f"`delta`: {delta:g} is not between 0 and 1"


# Steps.


def exact_steps(budget, delta, sigma):
    """Full Gaussian steps that fit: T of them are exactly sqrt(T)/sigma-GDP."""
    return (sigma / analytic_sigma(budget, delta)) ** 2


@pytest.mark.parametrize(
    ("budget", "rate", "sigma", "before"),
    [
        (1.0, 0.1, 2.0, []),
        (20.0, 0.1, 0.5, []),
        (1.0, 1e-3, 2.0, []),
        (0.05, 0.1, 100.0, []),
        (2.0, 0.1, 2.0, [selection(0.5, adaptive=False), plan(100, 0.01, 2.0)]),
        (2.0, 0.1, 2.0, [selection(0.5)]),
    ],
)
def test_the_most_steps_that_fit(budget, rate, sigma, before):
    event = calibrate_steps(budget, DELTA, plan(1, rate, sigma), before)
    assert epsilon([*before, event], DELTA) <= budget
    assert epsilon([*before, replace(event, steps=event.steps + 1)], DELTA) > budget


@pytest.mark.parametrize(("budget", "sigma"), [(1.0, 10.0), (0.1, 100.0), (20.0, 5.0), (1.0, 1000.0)])
def test_full_steps_are_as_many_as_the_exact_count_allows(budget, sigma):
    """Never more; at most what the grid costs fewer."""
    found = calibrate_steps(budget, DELTA, plan(1, 1.0, sigma)).steps
    exact = exact_steps(budget, DELTA, sigma)
    assert exact * (1 - 2e-3) - 1 <= found <= exact


def test_steps_and_noise_undo_each_other():
    """The noise for 500 steps allows 500 steps, or the few more that the tolerance of 0.1 % leaves."""
    event = calibrate_noise(1.0, DELTA, plan(500, 0.05))
    assert 500 <= calibrate_steps(1.0, DELTA, event).steps <= 502


def test_only_the_steps_are_set():
    first, second = (calibrate_steps(1.0, DELTA, plan(steps, 0.1, 3.0)) for steps in (1, 10**9))
    assert first == second
    assert replace(first, steps=7) == plan(7, 0.1, 3.0)


def test_no_step_fits():
    """One full step at sigma 1 is 1-GDP, 4.377 at 1e-5."""
    with pytest.raises(CalibrationError) as caught:
        calibrate_steps(4.3, DELTA, plan(10, 1.0, 1.0))
    assert str(caught.value) == (
        "`epsilon`: 4.3 is too small to calibrate: even one step at noise multiplier 1 and sampling rate 1 spends more;"
        " raise `epsilon` or the noise"
    )
    assert calibrate_steps(4.38, DELTA, plan(10, 1.0, 1.0)).steps == 1


def test_no_step_fits_beside_what_was_spent():
    with pytest.raises(BudgetError) as caught:
        calibrate_steps(4.4, DELTA, plan(10, 1.0, 1.0), recorded(guarantee(0.5)))
    assert str(caught.value) == (
        "budget: on these records epsilon 0.5 goes to a count, known to be (0.5)-DP (t), which leaves too little of 4.4:"
        " even one step at noise multiplier 1 and sampling rate 1 spends more" + REMEDY
    )


@pytest.mark.parametrize("most", [1, 100, 10**6])
def test_no_more_steps_than_are_wanted(monkeypatch, most):
    fitting = calibrate_steps(1.0, DELTA, plan(1, 0.01, 1.0)).steps
    assert 100 < fitting < 10**6
    calls = []
    counted = lambda *args, **how: calls.append(1) or epsilon_with(*args, **how)  # noqa: E731
    monkeypatch.setattr(calibration, "epsilon_with", counted)
    assert calibrate_steps(1.0, DELTA, plan(7, 0.01, 1.0), most=most) == plan(min(fitting, most), 0.01, 1.0)
    assert (len(calls) == 2) == (most < fitting)  # what was spent before, and whether it fits


# Rate.


@pytest.mark.parametrize(
    ("budget", "steps", "sigma", "before"),
    [
        (0.01, 1000, 2.0, []),
        (1.0, 1, 1.0, []),
        (1.0, 1000, 2.0, [selection(0.5, adaptive=False)]),
        (20.0, 1000, 0.5, []),
        (10.0, 10**4, 30.0, []),
        (2.0, 100, 2.0, [plan(100, 0.01, 2.0)]),
    ],
)
def test_the_largest_rate_that_fits(budget, steps, sigma, before):
    event = calibrate_rate(budget, DELTA, plan(steps, 0.5, sigma), before)
    assert (1 - TOLERANCE) * budget <= epsilon([*before, event], DELTA) <= budget
    assert replace(event, sampling_rate=0.5) == plan(steps, 0.5, sigma)


@pytest.mark.parametrize("below", [0.0, 1e-5, 3e-4, 1e-3, 1e-2])
def test_a_rate_close_to_one(below):
    """The search must not step over 1, where no rate is."""
    budget = epsilon([plan(100, 1.0, 5.0)], DELTA) * (1 - below)
    event = calibrate_rate(budget, DELTA, plan(100, 0.1, 5.0))
    assert 0.9 < event.sampling_rate <= 1
    assert (1 - TOLERANCE) * budget <= epsilon([event], DELTA) <= budget


def test_a_budget_beyond_any_rate_takes_every_record():
    assert calibrate_rate(50.0, DELTA, plan(1, 0.1, 1.0)).sampling_rate == 1


def test_rate_and_noise_undo_each_other():
    event = calibrate_noise(1.0, DELTA, plan(500, 0.05))
    assert calibrate_rate(1.0, DELTA, replace(event, sampling_rate=0.9)).sampling_rate == pytest.approx(0.05, rel=2e-3)


def test_no_rate_fits():
    """At a rate of 1e-9 a record enters one of 10^5 steps with chance 1e-4: more than delta, and nearly no noise."""
    with pytest.raises(CalibrationError) as caught:
        calibrate_rate(0.1, 1e-6, plan(10**5, 0.1, 0.01))
    assert str(caught.value) == (
        "`epsilon`: 0.1 is too small to calibrate: even sampling rate 1e-09 over 100000 steps at noise multiplier 0.01"
        " spends more; raise `epsilon` or the noise, or take fewer steps"
    )


# Settings at which a search fails today.


@pytest.mark.parametrize("search", [calibrate_rate, calibrate_steps])
def test_without_noise_nothing_fits(search):
    with pytest.raises(CalibrationError):
        search(1.0, DELTA, plan(10, 0.1, 0.0))


@pytest.mark.parametrize("budget", [1e16, 1e20])
def test_a_budget_beyond_reason(budget):
    event = calibrate_noise(budget, DELTA, plan(10, 0.1))
    assert epsilon([event], DELTA) <= budget


def test_a_sliver_left_at_a_small_delta():
    """What is left is 1e-9 at delta 1e-9: mu would have to be below 1e-8."""
    with pytest.raises(BudgetError):
        calibrate_noise(1.0, 1e-9, plan(100, 0.1), [guarantee(1 - 1e-9)])


@pytest.mark.parametrize(("budget", "rate", "sigma"), [(0.01, 0.1, 1.0), (1.0, 0.5, 0.2)])
def test_no_sampled_step_fits(budget, rate, sigma):
    with pytest.raises(CalibrationError, match="even one step at noise multiplier"):
        calibrate_steps(budget, DELTA, plan(10, rate, sigma))


@pytest.mark.parametrize(("budget", "rate", "sigma"), [(3.0, 1e-3, 2.0), (1.0, 1e-6, 100.0)])
def test_very_many_steps_fit(budget, rate, sigma):
    event = calibrate_steps(budget, DELTA, plan(10, rate, sigma))
    assert epsilon([event], DELTA) <= budget


def test_a_small_budget_at_a_small_rate():
    """q T = 0.01 records a training: epsilon leaves 0 steeply."""
    event = calibrate_noise(1e-3, DELTA, plan(10**4, 1e-6))
    assert (1 - TOLERANCE) * 1e-3 <= epsilon([event], DELTA) <= 1e-3


# Accountants.


@pytest.mark.parametrize("search", [calibrate_noise, calibrate_steps, calibrate_rate])
def test_what_certifies_nothing_satisfies_no_budget(search):
    with pytest.raises(InputError) as caught:
        search(1.0, DELTA, plan(10, 0.1), accountant="clt")
    assert str(caught.value) == (
        "`accountant`: clt is an approximation and can neither calibrate noise nor satisfy a budget; use pld, rdp or ma"
    )


@pytest.mark.parametrize("search", [calibrate_noise, calibrate_steps, calibrate_rate])
@pytest.mark.parametrize("accountant", ["rpd", ""])
def test_an_accountant_that_there_is_not(search, accountant):
    with pytest.raises(InputError) as caught:
        search(1.0, DELTA, plan(10, 0.1), accountant=accountant)
    assert str(caught.value) == f"`accountant`: unknown accountant {accountant!r}; known: pld, rdp, ma, clt"


@pytest.mark.parametrize("accountant", ["rdp", "ma"])
def test_other_accountants_keep_the_budget_too(accountant):
    """By their own figure to the tolerance; by the tightest one with room to spare."""
    event = calibrate_noise(2.0, DELTA, plan(1000, 0.01), [selection(0.5)], accountant)
    assert (1 - TOLERANCE) * 2 <= epsilon([selection(0.5), event], DELTA, accountant) <= 2
    assert epsilon([selection(0.5), event], DELTA) < 1.96
    steps = calibrate_steps(2.0, DELTA, plan(1, 0.01, 1.0), accountant=accountant)
    assert (
        epsilon([steps], DELTA, accountant) <= 2 < epsilon([replace(steps, steps=steps.steps + 1)], DELTA, accountant)
    )
    rate = calibrate_rate(2.0, DELTA, plan(1000, 0.5, 1.0), accountant=accountant)
    assert (1 - TOLERANCE) * 2 <= epsilon([rate], DELTA, accountant) <= 2


# The slack that the GDP paper takes.


def test_slack_noise_is_smaller_and_nominal():
    """By the formulas of privacy-model.md 5.3: at the slack noise the central limit epsilon is the MA's 3.01."""
    event = plan(14062, 256 / 60000, 1.1)
    sigma = slack_noise(event, DELTA)
    mu = 256 / 60000 * math.sqrt(14062 * math.expm1(sigma**-2))
    stated = brentq(lambda e: ndtr(-e / mu + mu / 2) - math.exp(e + log_ndtr(-e / mu - mu / 2)) - DELTA, 0.0, 50.0)
    assert stated == pytest.approx(3.01, abs=6e-3)
    assert sigma < 1.1
    assert epsilon([replace(event, noise_multiplier=sigma)], DELTA) > 3.02  # what it costs in truth


def test_slack_of_training_without_noise():
    assert slack_noise(plan(10, 0.1, 0.0), DELTA) == 0
