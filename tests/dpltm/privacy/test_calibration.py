"""Noise or steps for a budget: it fits and wastes little, and ends where nothing fits; the odometer of the steps."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from dpltm.errors import BudgetError, CalibrationError, InputError
from dpltm.privacy import calibration
from dpltm.privacy.account import NOTHING, Account, Planned
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.calibration import MIN_NOISE, TOLERANCE, Odometer, calibrate_noise, calibrate_steps
from dpltm.privacy.describe import describe
from dpltm.privacy.entry import HASHES, Entry, Part
from dpltm.privacy.mechanisms import (
    AllocatedSgd,
    BandedSgd,
    GaussianRelease,
    Guarantee,
    NoisySgd,
    Selection,
    TruncatedSgd,
    Unprotected,
)
from exact import gaussian_epsilon
from refusals import refused

DELTA = 1e-5
SEARCHES = (calibrate_noise, calibrate_steps)
REMEDY = (
    "; set a larger `epsilon`, a new budget for all of it together, or name the account of other people (`ledger`,"
    " `population`)"
)
DAY = "2026-01-02"
PEOPLE = Part("people", "ab" * 32)


def plan(steps, rate=256 / 60000, sigma=1.1, adjacency="add-remove"):
    return NoisySgd(rate, steps, sigma, adjacency=adjacency)


def selection(eps1, adaptive=True):
    return Selection(eps1, eps1, adaptive=adaptive)


def entry(*mechanisms, part=PEOPLE, words="a count", kind="release"):
    return Entry(kind, part, mechanisms, words, day=DAY)


def pure(spent, part=PEOPLE):
    return entry(Guarantee(spent), part=part)


def planned(*entries, part=PEOPLE, others=()):
    """Behind what an account holds."""
    return Planned(Account() + entries, part, others)


after = Planned.after
BUDGET = entry(Guarantee(1.2, 1e-5), kind="budget")
DRAW = entry(selection(0.5), words="winner of 15 tickets")
TRAINING = entry(NoisySgd(256 / 60000, 3515, 1.1), words="training, clip 1")
REVEALED = entry(Unprotected(), words="every ticket's score")


def refusal(error, search, *arguments, **named):
    return refused(search, *arguments, kind=error, **named)


def analytic_sigma(budget, delta, steps=1):
    """Exact noise multiplier of ``steps`` full Gaussian steps."""
    return math.sqrt(steps) / brentq(lambda mu: gaussian_epsilon(mu, delta) - budget, 3 * delta, 50.0)


# What a search finds.


@pytest.mark.one_of(4)
@pytest.mark.parametrize(
    ("budget", "asked", "before"),
    [
        (0.01, plan(100, 0.1), []),
        (1.0, plan(1000, 0.01), [selection(0.9)]),
        (2.0, plan(10, 1.0), [plan(20, 0.1, 6.0)]),
        (50.0, plan(10**6, 1.0), []),
        (1e-3, plan(10**4, 1e-6), []),  # 0.01 records a training: epsilon leaves 0 steeply
        (1e-3, plan(1, 1.0), []),
        (2.0, plan(10, 0.1), [Guarantee(0.5, 1e-6), selection(0.3, adaptive=False), GaussianRelease(4.0)]),
        (2.0, TruncatedSgd(0.01, 200, 1.0, truncated_batch_size=30, most_records=1000), []),
        (2.0, AllocatedSgd(15 / 555, 555, 1.0, participations=15), []),
        (2.0, BandedSgd(0.1, 1000, 1.0, 1.3, strategy=(1.0, 0.7, 0.5, 0.2)), []),
    ],
)
def test_spends_the_budget_and_no_more(budget, asked, before):
    found = calibrate_noise(budget, DELTA, asked, after(*before))
    assert found == replace(asked, noise_multiplier=found.noise_multiplier)
    assert (1 - TOLERANCE) * budget <= after(*before).epsilon(found, DELTA) <= budget


@pytest.mark.parametrize(
    ("budget", "delta", "steps", "adjacency"),
    [
        (1.0, 1e-5, 1, "add-remove"),
        (1.0, 1e-5, 1, "replace-one"),
        (0.1, 1e-6, 1, "add-remove"),
        (2.0, 1e-3, 1, "replace-one"),
        (2.0, 1e-5, 64, "add-remove"),
    ],
)
def test_full_steps_get_the_analytic_noise(budget, delta, steps, adjacency):
    """Never less noise than the exact solution; at most what the tolerance and the grid add to it."""
    found = calibrate_noise(budget, delta, plan(steps, 1.0, adjacency=adjacency))
    exact = analytic_sigma(budget, delta, steps)
    assert exact <= found.noise_multiplier <= exact * (1 + 3e-3)


@pytest.mark.parametrize(
    ("search", "field", "values"),
    [
        (calibrate_noise, "noise_multiplier", (0.0, 9.0)),
        (calibrate_steps, "steps", (1, 10**9)),
    ],
)
def test_only_what_is_searched_for_is_set(search, field, values):
    """Whatever the plan has there has no influence, and every other field comes back as it was."""
    asked = NoisySgd(0.1, 20, 3.0, 2.0, 0.5)
    first, second = (search(1.0, DELTA, replace(asked, **{field: value})) for value in values)
    assert first == second != asked
    assert replace(first, **{field: getattr(asked, field)}) == asked


def test_an_inexact_root_is_corrected_to_the_safe_side(monkeypatch):
    """The budget holds even where the root finder stops on the wrong side of it."""
    monkeypatch.setattr(calibration, "brentq", lambda *args, **kwargs: brentq(*args, **kwargs) - 2e-3)
    found = calibrate_noise(1.0, DELTA, plan(1, 1.0))
    assert analytic_sigma(1.0, DELTA) <= found.noise_multiplier
    assert epsilon([found], DELTA) <= 1.0


def test_the_least_noise_that_is_tried():
    """One step at q = 1e-6 costs nothing at delta 1e-5: only a record that enters can be seen, and q < delta."""
    found = calibrate_noise(50.0, DELTA, plan(1, 1e-6))
    assert found.noise_multiplier == pytest.approx(MIN_NOISE)
    assert epsilon([found], DELTA) == 0
    assert epsilon([calibrate_noise(1e20, DELTA, plan(1, 1.0))], DELTA) <= 1e20


@pytest.mark.parametrize(
    ("budget", "rate", "sigma", "before"),
    [
        (20.0, 0.1, 0.5, []),
        (0.05, 0.1, 100.0, []),
        (2.0, 0.1, 2.0, [selection(0.5, adaptive=False), plan(100, 0.01, 2.0)]),
    ],
)
def test_the_most_steps_that_fit(budget, rate, sigma, before):
    found = calibrate_steps(budget, DELTA, plan(1, rate, sigma), after(*before))
    assert epsilon([*before, found], DELTA) <= budget
    assert epsilon([*before, replace(found, steps=found.steps + 1)], DELTA) > budget


@pytest.mark.parametrize(("budget", "sigma"), [(1.0, 10.0), (20.0, 5.0)])
def test_full_steps_are_as_many_as_the_exact_count_allows(budget, sigma):
    """T of them are exactly sqrt(T)/sigma-GDP. Never more; at most what the grid costs fewer."""
    exact = (sigma / analytic_sigma(budget, DELTA)) ** 2
    assert exact * (1 - 2e-3) - 1 <= calibrate_steps(budget, DELTA, plan(1, 1.0, sigma)).steps <= exact


@pytest.mark.parametrize("most", [1, 10**6])
def test_no_more_steps_than_are_wanted(most):
    fitting = calibrate_steps(1.0, DELTA, plan(1, 0.1, 2.0)).steps
    assert 10 < fitting < 10**6
    assert calibrate_steps(1.0, DELTA, plan(7, 0.1, 2.0), most=most) == plan(min(fitting, most), 0.1, 2.0)


@pytest.mark.parametrize("accountant", ["rdp", "ma"])
def test_other_accountants_keep_the_budget_too(accountant):
    """By their own figure to the tolerance; by the tightest one with room to spare."""
    before = [selection(0.5)]
    found = calibrate_noise(2.0, DELTA, plan(100, 0.05), after(*before), accountant)
    assert (1 - TOLERANCE) * 2 <= epsilon([*before, found], DELTA, accountant) <= 2
    assert epsilon([*before, found], DELTA) < 1.96
    found = calibrate_steps(2.0, DELTA, plan(1, 0.05, 2.0), accountant=accountant)
    more = replace(found, steps=found.steps + 1)
    assert epsilon([found], DELTA, accountant) <= 2 < epsilon([more], DELTA, accountant)


def test_what_leaves_nothing_is_named():
    """The costliest release first, with its day; of what the release holds itself no day is known."""
    for costliest, shown in ((pure(1.5), "1.5"), (REVEALED, "inf")):
        assert refusal(BudgetError, calibrate_noise, 1.25, DELTA, plan(10, 0.1), planned(costliest)) == (
            f"budget: on these records epsilon {shown} goes to {describe(costliest)} ({DAY}), so nothing is left of"
            f" 1.25{REMEDY}"
        )
    held = planned(pure(0.1), DRAW, TRAINING, pure(0.4), BUDGET)
    said = refusal(BudgetError, calibrate_noise, 1.0, DELTA, plan(10, 0.1), held)
    assert f" goes to {describe(TRAINING)} ({DAY}) and 3 other releases, so nothing is left of 1;" in said
    said = refusal(BudgetError, calibrate_noise, 1.25, DELTA, plan(10, 0.1), planned(others=(Guarantee(1.5),)))
    assert REMEDY in said
    assert "on these records epsilon 1.5 goes to what this release holds beside, so nothing is left" in said


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("left", [0.0, 1e-6, 0.0199])
def test_a_sliver_left_is_refused(search, left):
    """Whatever is searched for: a spent budget leaves up to ``TOLERANCE``, and some noise would fit it."""
    held = planned(pure(0.1), DRAW)  # a draw after another release, so an adaptive one
    spent = epsilon([Guarantee(0.1), selection(0.5)], DELTA)
    budget = spent / (1 - left)
    why = f"so nothing is left of {budget:g}"
    if left:
        why = f"which leaves less than 2 % of {budget:g}, nothing but noise"
    assert refusal(BudgetError, search, budget, DELTA, plan(1000, 0.01), held) == (
        f"budget: on these records epsilon {spent:.4g} goes to {describe(DRAW)} ({DAY}) and 1 other release, {why}{REMEDY}"
    )


@pytest.mark.parametrize("search", SEARCHES)
def test_what_a_calibrated_training_leaves_is_a_sliver(search):
    """The same search a second time is refused, whatever was searched for the first time."""
    first = search(3.0, DELTA, plan(10, 0.05))
    with pytest.raises(BudgetError, match="which leaves less than 2 % of"):
        search(3.0, DELTA, plan(10, 0.05), after(first))


# Where nothing fits.


@pytest.mark.parametrize(("budget", "steps", "rate"), [(1e-7, 1, 1.0), (1e-9, 100, 0.1)])
def test_too_small_to_calibrate(budget, steps, rate):
    """Even 2^14 times the sensitivity is too little noise."""
    assert refusal(CalibrationError, calibrate_noise, budget, DELTA, plan(steps, rate)) == (
        f"`epsilon`: {budget:g} is too small to calibrate: even noise multiplier 16384 over {steps} steps at sampling"
        f" rate {rate:.3g} spends more; raise `epsilon` or take fewer steps"
    )


def test_no_step_fits():
    """One full step at sigma 1 is 1-GDP, 4.377 at 1e-5."""
    assert refusal(CalibrationError, calibrate_steps, 4.3, DELTA, plan(10, 1.0, 1.0)) == (
        "`epsilon`: 4.3 is too small to calibrate: even one step at noise multiplier 1 and sampling rate 1 spends more;"
        " raise `epsilon` or the noise"
    )
    assert calibrate_steps(4.38, DELTA, plan(10, 1.0, 1.0)).steps == 1
    assert refusal(BudgetError, calibrate_steps, 4.4, DELTA, plan(10, 1.0, 1.0), planned(pure(0.5))) == (
        f"budget: on these records epsilon 0.5 goes to a count: known to be (0.5)-DP ({DAY}), which leaves too little of"
        f" 4.4: even one step at noise multiplier 1 and sampling rate 1 spends more{REMEDY}"
    )
    for noise in (0.2, 0.0):
        with pytest.raises(CalibrationError, match="even one step at noise multiplier"):
            calibrate_steps(1.0, DELTA, plan(10, 0.5, noise))


@pytest.mark.parametrize("search", SEARCHES)
def test_bad_settings(search):
    for budget in (math.nan, math.inf, 0.0, -1.0):
        said = refusal(CalibrationError, search, budget, DELTA, plan(10, 0.1))
        assert said == f"`epsilon`: {budget:g} is not a positive number"
    for delta in (0.0, 1.0, math.nan):
        said = refusal(InputError, search, 1.0, delta, plan(10, 0.1))
        assert said == f"`delta`: {delta:g} is not between 0 and 1"
    assert refusal(InputError, search, 1.0, DELTA, plan(10, 0.1), accountant="clt") == (
        "`accountant`: clt is an approximation and can neither calibrate noise nor satisfy a budget; use pld, rdp or ma"
    )
    message = "`accountant`: unknown accountant 'rpd'; known: pld, rdp, ma, clt; did you mean rdp?"
    assert refusal(InputError, search, 1.0, DELTA, plan(10, 0.1), accountant="rpd") == message


# The odometer of the steps.


FIRST = Selection(0.5, 0.5, adaptive=False)


def readings(odometer, steps):
    return [odometer.after(step) for step in range(1, steps + 1)]


def test_golden_end():
    """docs/privacy-model.md section 5.5: 14062 steps cost 2.382, the first 3515 of them 1.134."""
    odometer = Odometer(NOTHING, plan(14062), DELTA)
    assert odometer.after(14062) == pytest.approx(2.382, rel=1e-3)
    assert 1.134 <= odometer.after(3515) < 1.134 * 1.2


@pytest.mark.parametrize(
    ("planned", "before", "accountant"),
    [
        (plan(1), [FIRST], "pld"),
        (plan(11, 1.0, 5.0), [Guarantee(0.3, 1e-7), plan(20, 0.01, 2.0)], "pld"),
        (plan(999, 0.01), [], "pld"),
        (plan(77, 0.05, 1.0, "replace-one"), [], "pld"),
        (BandedSgd(0.1, 50, 0.9, 1.3, strategy=(1.0, 0.7, 0.5, 0.2)), [], "pld"),
        (TruncatedSgd(0.01, 200, 2.0, truncated_batch_size=30, most_records=1000), [], "pld"),
        (plan(1000), [FIRST], "rdp"),
        (plan(1000), [FIRST], "ma"),
    ],
)
def test_never_below_what_the_steps_cost(planned, before, accountant):
    """At and on either side of points of the schedule, where a step too few would show; and never falling."""
    odometer = Odometer(Planned.after(*before), planned, DELTA, accountant)
    points = [odometer.steps[place] for place in {0, len(odometer.steps) // 2, len(odometer.steps) - 1}]
    near = {step + by for step in points for by in (-1, 0, 1)} | {1, 2}
    for step in sorted(near & set(range(1, planned.steps + 1))):
        assert odometer.after(step) >= epsilon([*before, replace(planned, steps=step)], DELTA, accountant)
    assert odometer.after(planned.steps) == epsilon([*before, planned], DELTA, accountant)
    found = readings(odometer, planned.steps)
    assert found == sorted(found)


@settings(max_examples=4)
@given(st.integers(1, 400), st.floats(0.5, 20.0))
def test_full_steps_against_the_formula(steps, sigma):
    """Never below the exact figure, and never above that of the next tenth of the steps by more than the coarse grid."""
    found = readings(Odometer(NOTHING, plan(steps, 1.0, sigma), DELTA), steps)
    for step in {1, 2, steps // 3 + 1, steps}:
        if step <= steps:
            later = min(step + math.ceil(steps / 10), steps)
            least, most = (gaussian_epsilon(math.sqrt(count) / sigma) for count in (step, later))
            assert least <= found[step - 1] <= most * 1.005


def test_what_came_before_is_counted_from_the_first_step():
    """A pure guarantee of which nothing else is known, then steps that cost next to nothing; or no mechanism at all."""
    found = readings(Odometer(Planned.after(Guarantee(2.0)), plan(50, 1e-4, 5.0), DELTA), 50)
    assert 1.99 <= min(found) <= max(found) <= 2.01
    assert readings(Odometer(Planned.after(Unprotected()), plan(50), DELTA), 50) == [math.inf] * 50
    assert readings(Odometer(NOTHING, plan(50, sigma=0.0), DELTA), 50) == [math.inf] * 50


def test_what_an_account_holds_counts_with_the_steps():
    """Releases of the other half may cost more than the first steps do: the figure is of whoever is treated worst."""
    halves = [
        Part("people", "ab" * 32, cut="record", start=start, stop=start + HASHES // 2) for start in (0, HASHES // 2)
    ]
    held = [Entry("release", halves[1], (Guarantee(0.5),), "a count")]
    account = Account() + held
    planned, centre = plan(20, 1.0, 5.0), Guarantee(0.1)
    here = readings(Odometer(Planned(account, halves[0]), planned, DELTA), 20)
    assert here == [
        max(epsilon([Guarantee(0.5)], DELTA), each) for each in readings(Odometer(NOTHING, planned, DELTA), 20)
    ]
    both = readings(Odometer(Planned(account, halves[1], (centre,)), planned, DELTA), 20)
    assert both == readings(Odometer(Planned.after(Guarantee(0.5), centre), planned, DELTA), 20)


def test_readings_never_fall(monkeypatch):
    """Grids of two lengths may differ by more than a few steps cost: a later bound holds for fewer steps too."""
    told = {1: 3.0, 2: 2.0, 3: 4.0, 4: 3.5}
    monkeypatch.setattr(Planned, "epsilon", lambda _, planned, *__, **___: told[planned.steps])
    assert readings(Odometer(NOTHING, plan(4), DELTA), 4) == [2.0, 2.0, 3.5, 3.5]
