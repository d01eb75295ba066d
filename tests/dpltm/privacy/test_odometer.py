"""The odometer: never below what the steps cost, exact at the end, and one figure a step."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from dpltm.errors import InputError
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.mechanisms import Guarantee, NoisySgd, Selection, Unprotected
from dpltm.privacy.odometer import Odometer
from dpltm.privacy.parts import epsilon_with

DELTA = 1e-5
FIRST = Selection(0.5, 0.5, adaptive=False)
GUARANTEE = Guarantee(0.3, 1e-7)
REVEALED = Unprotected()


def plan(steps, rate=256 / 60000, sigma=1.1, adjacency="add-remove"):
    return NoisySgd(rate, steps, sigma, adjacency=adjacency)


def gaussian_epsilon(steps, sigma):
    """``steps`` full Gaussian steps are sqrt(steps)/sigma-GDP, whose epsilon has a formula (privacy-model.md 5.3)."""
    mu = math.sqrt(steps) / sigma
    return brentq(
        lambda eps: ndtr(-eps / mu + mu / 2) - math.exp(eps + log_ndtr(-eps / mu - mu / 2)) - DELTA,
        0,
        mu * mu + 20 * mu,
    )


def readings(odometer, steps):
    return [odometer.after(step) for step in range(1, steps + 1)]


def test_golden_end():
    """docs/privacy-model.md section 5.5: 14062 steps cost 2.382, the first 3515 of them 1.134."""
    odometer = Odometer([], plan(14062), DELTA)
    assert odometer.after(14062) == pytest.approx(2.382, rel=1e-3)
    assert odometer.after(14062) == epsilon([plan(14062)], DELTA)
    assert 1.134 <= odometer.after(3515) < 1.134 * 1.2


@pytest.mark.parametrize("before", [[], [FIRST], [FIRST, GUARANTEE, plan(200, 0.01, 2.0)]])
@pytest.mark.parametrize(
    "planned",
    [plan(1), plan(3, 0.1), plan(10, 0.5, 3.0), plan(11, 1.0, 5.0), plan(999, 0.01), plan(3515)],
    ids=lambda event: str(event.steps),
)
def test_never_below_what_the_steps_cost(planned, before):
    """At and on either side of points of the schedule, where a step too few would show."""
    odometer = Odometer(before, planned, DELTA)
    points = [odometer.steps[place] for place in {0, len(odometer.steps) // 2, len(odometer.steps) - 1}]
    near = {step + by for step in points for by in (-1, 0, 1)} | {1, 2}
    for step in sorted(near & set(range(1, planned.steps + 1))):
        assert odometer.after(step) >= epsilon([*before, replace(planned, steps=step)], DELTA)
    assert odometer.after(planned.steps) == epsilon([*before, planned], DELTA)
    found = readings(odometer, planned.steps)
    assert found == sorted(found)


def test_close_to_what_was_spent_at_the_points():
    """Every tenth of the steps the reading is that of the steps taken, but for the coarser grid (0.1 % and a little)."""
    odometer = Odometer([], plan(1000, 0.05), DELTA)
    for step in range(100, 1001, 100):
        assert odometer.after(step) <= epsilon([plan(step, 0.05)], DELTA) * 1.005


@settings(max_examples=6)
@given(st.integers(1, 400), st.floats(0.5, 20.0))
def test_full_steps_against_the_formula(steps, sigma):
    """Never below the exact figure, and never above that of the next tenth of the steps by more than the coarse grid."""
    odometer = Odometer([], plan(steps, 1.0, sigma), DELTA)
    for step, found in enumerate(readings(odometer, steps), start=1):
        assert found >= gaussian_epsilon(step, sigma)
        later = min(step + math.ceil(steps / 10), steps)
        assert found <= gaussian_epsilon(later, sigma) * 1.005


@pytest.mark.parametrize("accountant", ["rdp", "ma"])
def test_other_accountants(accountant):
    odometer = Odometer([FIRST], plan(1000), DELTA, accountant)
    for step in (1, 100, 101, 555, 1000):
        assert odometer.after(step) >= epsilon([FIRST, plan(step)], DELTA, accountant)
    assert odometer.after(1000) == epsilon([FIRST, plan(1000)], DELTA, accountant)


def test_replace_one_costs_more():
    """Both records of a neighbouring pair may enter a step."""
    both = [Odometer([], plan(500, 0.05, 1.0, adjacency), DELTA) for adjacency in ("add-remove", "replace-one")]
    full = [Odometer([], plan(500, 1.0, 30.0, adjacency), DELTA) for adjacency in ("add-remove", "replace-one")]
    for step in (1, 50, 77, 500):
        assert both[1].after(step) != both[0].after(step)
        assert both[1].after(step) >= epsilon([plan(step, 0.05, 1.0, "replace-one")], DELTA)
        assert full[1].after(step) == full[0].after(step)  # with every record in, sensitivity says it all


def test_what_came_before_is_counted_from_the_first_step():
    """A pure guarantee of which nothing else is known, then steps that cost next to nothing."""
    odometer = Odometer([replace(GUARANTEE, epsilon=2.0, delta=0.0)], plan(100, 1e-4, 5.0), DELTA)
    assert min(readings(odometer, 100)) >= 1.99
    assert max(readings(odometer, 100)) <= 2.01


def test_nothing_is_certified_after_a_release_without_protection():
    odometer = Odometer([REVEALED], plan(50), DELTA)
    assert readings(odometer, 50) == [math.inf] * 50
    assert readings(Odometer([], plan(50, sigma=0.0), DELTA), 50) == [math.inf] * 50


def test_earlier_events_are_read_once():
    odometer = Odometer(iter([FIRST, GUARANTEE]), plan(50, 0.1), DELTA)
    assert readings(odometer, 50) == readings(Odometer([FIRST, GUARANTEE], plan(50, 0.1), DELTA), 50)


def test_a_reading_takes_no_accountant(monkeypatch):
    """The schedule is made once, in at most eleven compositions; reading it composes nothing."""
    from dpltm.privacy import odometer as module

    calls = []
    monkeypatch.setattr(module, "epsilon_with", lambda *args, **how: calls.append(1) or epsilon_with(*args, **how))
    odometer = Odometer([], plan(5000), DELTA)
    made = len(calls)
    assert 2 <= made <= 11
    readings(odometer, 5000)
    assert len(calls) == made


@pytest.mark.parametrize("delta", [0.0, 1.0])
def test_bad_delta(delta):
    with pytest.raises(InputError) as caught:
        Odometer([], plan(50), delta)
    assert str(caught.value) == f"`delta`: {delta:g} is not between 0 and 1"


def test_the_central_limit_is_no_odometer():
    with pytest.raises(InputError, match="'clt' certifies nothing"):
        Odometer([], plan(50), DELTA, "clt")


def test_readings_never_fall():
    """A short training after a long one: the grids differ by more than the last tenth of its steps costs."""
    found = readings(Odometer([plan(3000, 0.01)], plan(10, 0.001, 2.0), DELTA), 10)
    assert found == sorted(found)
