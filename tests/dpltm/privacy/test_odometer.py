"""The odometer: never below what the steps cost, exact at the end, and one figure a step."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpltm.privacy.account import NOTHING, Account, Planned
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.calibration import Odometer
from dpltm.privacy.entry import HASHES, Entry, Part
from dpltm.privacy.mechanisms import BandedSgd, Guarantee, NoisySgd, Selection, TruncatedSgd, Unprotected
from exact import gaussian_epsilon

DELTA = 1e-5
FIRST = Selection(0.5, 0.5, adaptive=False)


def plan(steps, rate=256 / 60000, sigma=1.1, adjacency="add-remove"):
    return NoisySgd(rate, steps, sigma, adjacency=adjacency)


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


def test_a_reading_takes_no_accountant(monkeypatch):
    """The schedule is made once, in at most eleven compositions; reading it composes nothing."""
    calls, price = [], Planned.epsilon
    monkeypatch.setattr(Planned, "epsilon", lambda *args, **how: calls.append(1) or price(*args, **how))
    odometer = Odometer(NOTHING, plan(5000), DELTA)
    made = len(calls)
    assert 2 <= made <= 11
    readings(odometer, 5000)
    assert len(calls) == made


def test_readings_never_fall(monkeypatch):
    """Grids of two lengths may differ by more than a few steps cost: a later bound holds for fewer steps too."""
    told = {1: 3.0, 2: 2.0, 3: 4.0, 4: 3.5}
    monkeypatch.setattr(Planned, "epsilon", lambda _, planned, *__, **___: told[planned.steps])
    assert readings(Odometer(NOTHING, plan(4), DELTA), 4) == [2.0, 2.0, 3.5, 3.5]
