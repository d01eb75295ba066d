"""The certified accountant, against published figures, closed forms and numerical integration of the mechanisms."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from dpltm.errors import InputError
from dpltm.privacy import accountant
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.events import DatasetRef, Event, NonPrivateEvent, ProvenanceEvent, SelectionEvent, TrainingEvent

DATA = DatasetRef("mnist", "a" * 64, "k1", 0, 60000)
DELTA = 1e-5
Q = 256 / 60000


def training(steps, sigma, rate=Q, adjacency="add-remove", **other):
    """A training event; everything that the accountant must not look at can be overridden by name."""
    values = {"sensitivity": 1.0, "nominal_sensitivity": None, "filter": "clip 1", "live": 10, "time": "t"} | other
    return TrainingEvent(
        dataset=DATA,
        adjacency=adjacency,
        unit="record",
        sampling_rate=rate,
        steps=steps,
        noise_multiplier=sigma,
        **values,
    )


def selection(eps1, adjacency="add-remove", certified=None):
    certified = eps1 if certified is None else certified
    return SelectionEvent(
        DATA, "t", adjacency, "record", "exponential", "product", eps1, "exact", 0.1, certified, 15, "set"
    )


def provenance(kind):
    return ProvenanceEvent(DATA, "t", "add-remove", "record", kind, "set")


NON_PRIVATE = NonPrivateEvent(DATA, "t", "add-remove", "record", "scores")


# Oracles: exact hockey-stick divergences, none of them through a privacy loss distribution.


def gaussian_delta(eps, mu):
    """Balle and Wang 2018, Theorem 8: the exact delta of a Gaussian mechanism with sensitivity / deviation = mu."""
    return ndtr(mu / 2 - eps / mu) - np.exp(eps + log_ndtr(-mu / 2 - eps / mu))


def gaussian_epsilon(mu, delta):
    return brentq(lambda eps: gaussian_delta(eps, mu) - delta, 0.0, mu * mu + 50 * mu, xtol=1e-13)


def removed_delta(eps, sigma, rate):
    """Exact delta of ((1-q) N(0) + q N(1), N(0)): the loss rises with x, so the worst set is a half line."""
    eps = np.asarray(eps, dtype=float)
    inside = 1 + (rate - 1) * np.exp(-eps)  # (e^eps - 1 + q) / e^eps; the loss never falls below log(1-q)
    reached = inside > 0
    point = sigma**2 * (eps + np.log(np.where(reached, inside, 1.0)) - math.log(rate)) + 0.5
    first = (1 - rate) * ndtr(-point / sigma) + rate * ndtr((1 - point) / sigma)
    return np.where(reached, first - np.exp(eps + log_ndtr(-point / sigma)), 1 - np.exp(np.minimum(eps, 0)))


def added_delta(eps, sigma, rate):
    """Exact delta of (N(0), (1-q) N(0) + q N(1)): the loss falls with x and never exceeds -log(1-q)."""
    below = math.exp(-eps) - 1 + rate
    if below <= 0:
        return 0.0
    point = sigma**2 * math.log(below / rate) + 0.5
    second = (1 - rate) * ndtr(point / sigma) + rate * ndtr((point - 1) / sigma)
    return ndtr(point / sigma) - math.exp(eps) * second


def step_epsilon(sigma, rate, delta):
    """Exact epsilon of one Poisson-subsampled Gaussian step under add/remove."""

    def excess(eps):
        return max(float(removed_delta(eps, sigma, rate)), added_delta(eps, sigma, rate)) - delta

    return brentq(excess, 0.0, 1 / sigma**2 + 50 / sigma, xtol=1e-12)


def from_above(value, exact, slack):
    """The accountant may round up, by at most ``slack``; it may not be below the truth (1e-9: the oracle's own error)."""
    assert exact * (1 - 1e-9) <= value <= exact + slack


# Golden values.


@pytest.mark.parametrize(
    ("sigma", "steps", "golden"),
    [
        (1.3, 3516, 0.8646),
        (1.1, 14062, 2.382),
        (0.7, 10547, 5.640),
        (0.6, 14531, 10.950),
        (0.55, 15938, 15.717),
        (0.5, 23438, 28.05),
    ],
)
def test_golden_gdp_table(sigma, steps, golden):
    """PRIVACY.md section 5: GDP Table 1 under the PLD accountant."""
    assert epsilon([training(steps, sigma)], DELTA) == pytest.approx(golden, rel=1e-3)


def test_golden_training_then_selection():
    """PRIVACY.md section 5: 1.134 alone; 1.596 with a pure 0.5-DP draw, against a naive sum of 1.634."""
    assert epsilon([training(3515, 1.1)], DELTA) == pytest.approx(1.134, abs=5e-4)
    assert epsilon([selection(0.5), training(3515, 1.1)], DELTA) == pytest.approx(1.596, abs=5e-4)


def test_golden_tanh_bound():
    """PRIVACY.md section 4: 26,010 live weights, c = 1, sigma = 1.1 against a bound of 1: about 11,156 for one step."""
    sigma = 1.1 / math.sqrt(26010)
    exact = step_epsilon(sigma, 0.00427, DELTA)
    assert exact == pytest.approx(11156, abs=1)
    from_above(epsilon([training(1, sigma, 0.00427)], DELTA), exact, 2e-4 * exact)


# Closed forms and integration.


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize(
    ("sigma", "delta"), [(0.4, 1e-5), (1.0, 1e-8), (1.0, 1e-5), (3.0, 0.1), (4.0, 0.1), (50.0, 1e-5), (50.0, 1e-3)]
)
def test_one_full_step_is_the_analytic_gaussian_mechanism(sigma, delta, adjacency):
    """Both relations: the noise multiplier is stated against a sensitivity that replace-one has doubled already."""
    if gaussian_delta(0.0, 1 / sigma) <= delta:
        assert epsilon([training(1, sigma, 1.0, adjacency)], delta) == 0
    else:
        exact = gaussian_epsilon(1 / sigma, delta)
        from_above(epsilon([training(1, sigma, 1.0, adjacency)], delta), exact, 1e-3)


@pytest.mark.parametrize("sigma", [2.0, 7.0])
def test_full_steps_compose_like_one_step_with_less_noise(sigma):
    """T Gaussian steps with deviation sigma are exactly one with sigma / sqrt(T)."""
    exact = gaussian_epsilon(math.sqrt(50) / sigma, DELTA)
    from_above(epsilon([training(50, sigma, 1.0)], DELTA), exact, 2e-3)


@pytest.mark.parametrize(
    ("sigma", "rate", "delta"),
    [(1.0, 0.01, 1e-5), (0.6, 0.1, 1e-6), (2.0, 0.5, 1e-5), (3.0, 0.9, 1e-3), (5.0, 0.02, 1e-6), (0.1, 0.004, 1e-5)],
)
def test_one_subsampled_step_is_exact_from_above(sigma, rate, delta):
    from_above(epsilon([training(1, sigma, rate)], delta), step_epsilon(sigma, rate, delta), 1e-3)


def test_two_subsampled_steps_by_integration():
    """delta of two steps = the mean, over the first step's losses, of one step's delta at what is left of epsilon."""
    sigma, rate = 1.0, 0.2
    x = np.linspace(-10 * sigma, 1 + 10 * sigma, 200_001)
    zero, one = (np.exp(-((x - mean) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi)) for mean in (0, 1))
    mixed = (1 - rate) * zero + rate * one

    def excess(eps):
        return np.trapezoid(mixed * removed_delta(eps - np.log(mixed / zero), sigma, rate), x) - DELTA

    exact = brentq(excess, 0.1, 20.0)
    assert exact > step_epsilon(sigma, rate, DELTA) + 0.1  # the second step shows, far beyond the slack below
    from_above(epsilon([training(2, sigma, rate)], DELTA), exact, 1e-3)


@pytest.mark.parametrize(("eps1", "sigma"), [(0.5, 1.5), (2.0, 1.0), (0.1, 5.0)])
def test_selection_and_one_full_step_in_closed_form(eps1, sigma):
    """The worst eps1-DP draw is randomised response: loss +eps1 with chance p, -eps1 otherwise."""
    chance = 1 / (1 + math.exp(-eps1))

    def excess(eps):
        high, low = gaussian_delta(eps - eps1, 1 / sigma), gaussian_delta(eps + eps1, 1 / sigma)
        return chance * high + (1 - chance) * low - DELTA

    exact = brentq(excess, 0.0, 100.0)
    from_above(epsilon([training(1, sigma, 1.0), selection(eps1)], DELTA), exact, 1e-3)


@pytest.mark.parametrize("draws", [1, 3])
def test_draws_alone(draws):
    """Randomised response at k eps1 has delta(eps) = (e^(k eps1) - e^eps) / (1 + e^(k eps1)), solved for eps."""
    total = 0.3 * draws
    exact = math.log(math.exp(total) - DELTA * (1 + math.exp(total)))
    from_above(epsilon([selection(0.3)] * draws, DELTA), exact, 2e-4)


def test_a_draw_costs_its_certified_epsilon_not_its_eps1():
    assert epsilon([selection(0.1, certified=0.4)], 1e-9) == pytest.approx(0.4, abs=1e-4)


@pytest.mark.parametrize(("sigma", "rate"), [(0.6, 0.3), (1.0, 0.05)])
def test_replace_one_covers_every_pair_of_gradients(sigma, rate):
    """No two gradients in the ball do worse than the accountant says; opposite ones reach it. By integration in 2-D."""
    value = epsilon([training(1, sigma, rate, "replace-one")], 1e-3)
    axis = np.linspace(-0.5 - 6 * sigma, 0.5 + 6 * sigma, 301)
    cell = (axis[1] - axis[0]) ** 2
    x, y = np.meshgrid(axis, axis)

    def mixture(radius, angle):
        with_record = np.exp(-((x - radius * np.cos(angle)) ** 2 + (y - radius * np.sin(angle)) ** 2) / (2 * sigma**2))
        return ((1 - rate) * np.exp(-(x**2 + y**2) / (2 * sigma**2)) + rate * with_record) / (2 * math.pi * sigma**2)

    def delta(first, second, eps):
        return np.maximum(first - math.exp(eps) * second, 0).sum() * cell

    fixed = mixture(0.5, 0.0)
    for radius in (0.0, 0.25, 0.5):
        for angle in (0.0, math.pi / 2, 0.9 * math.pi, math.pi):
            other = mixture(radius, angle)
            assert max(delta(fixed, other, value), delta(other, fixed, value)) <= 1e-3 * (1 + 1e-3)
    assert delta(fixed, mixture(0.5, math.pi), value - 2e-3) > 1e-3


@pytest.mark.parametrize(("sigma", "steps"), [(1.3, 3516), (1.1, 14062)])
def test_never_above_the_renyi_accountant(sigma, steps):
    """dp-accounting's RDP accountant is an upper bound by another road, and looser."""
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    peer = RdpAccountant()
    peer.compose(dp_event.PoissonSampledDpEvent(Q, dp_event.GaussianDpEvent(sigma)), steps)
    assert epsilon([training(steps, sigma)], DELTA) < peer.get_epsilon(DELTA)


# Properties.

plans = st.tuples(st.integers(5, 30), st.floats(2.0, 4.0), st.floats(0.05, 0.4), st.floats(-6.0, -4.0))


@settings(max_examples=3)
@given(plan=plans, factor=st.floats(1.3, 2.0))
def test_epsilon_grows(plan, factor):
    """With more steps, a higher rate, less noise, a smaller delta."""
    steps, sigma, rate, log_delta = plan
    delta = 10**log_delta
    value = epsilon([training(steps, sigma, rate)], delta)
    assert epsilon([training(math.ceil(steps * factor), sigma, rate)], delta) > value
    assert epsilon([training(steps, sigma, rate * factor)], delta) > value
    assert epsilon([training(steps, sigma / factor, rate)], delta) > value
    assert epsilon([training(steps, sigma, rate)], delta / factor) > value


MIXED = (
    training(30, 3.0, 0.05),
    training(5, 6.0, 1.0),
    selection(0.3),
    training(7, 3.0, 0.05),
    selection(0.1),
    provenance("public"),
)


@settings(max_examples=8)
@given(st.permutations(MIXED))
def test_order_is_free(events):
    assert epsilon(events, DELTA) == pytest.approx(epsilon(MIXED, DELTA), rel=1e-9)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5))
@settings(max_examples=6)
def test_steps_split_over_events_cost_the_same(parts):
    """What is not the mechanism (time, filter, live coordinates, the claimed bound) does not count."""
    whole = epsilon([training(sum(parts), 1.2, 0.02)], DELTA)
    others = [
        training(n, 1.2, 0.02, time=f"t{n}", filter=f"f{n}", live=n, nominal_sensitivity=0.5, sensitivity=float(n))
        for n in parts
    ]
    assert epsilon(others, DELTA) == whole


@settings(max_examples=6)
@given(st.permutations(MIXED), st.integers(1, len(MIXED) - 1))
def test_an_event_never_lowers_epsilon_and_never_costs_more_than_the_sum(events, cut):
    """Basic composition: (e1, d/2) and (e2, d/2) make (e1 + e2, d)."""
    first, second = events[:cut], events[cut:]
    together = epsilon(events, DELTA)
    assert together >= max(epsilon(first, DELTA), epsilon(second, DELTA)) - 1e-9
    assert together <= epsilon(first, DELTA / 2) + epsilon(second, DELTA / 2) + 1e-3


# The grid.


@pytest.mark.parametrize("width", [1e-2, 1e-3, 1e-4, 5e-5])
def test_every_width_is_an_upper_bound(monkeypatch, width):
    """A wider grid may only raise epsilon: 30 full steps, known exactly, and one subsampled step."""
    monkeypatch.setattr(accountant, "COARSE", width)
    monkeypatch.setattr(accountant, "FINE", width)
    from_above(epsilon([training(30, 3.0, 1.0)], DELTA), gaussian_epsilon(math.sqrt(30) / 3, DELTA), 30 * width)
    from_above(epsilon([training(1, 0.8, 0.1)], DELTA), step_epsilon(0.8, 0.1, DELTA), width)


def test_small_epsilon_takes_the_finer_grid(monkeypatch):
    """The exact value is 0.0203; at the coarse width alone the rounding would show."""
    event = training(1000, 1000.0, 1.0)
    exact = gaussian_epsilon(math.sqrt(1000) / 1000, DELTA)
    fine = epsilon([event], DELTA)
    monkeypatch.setattr(accountant, "FINE", accountant.COARSE)
    coarse = epsilon([event], DELTA)
    assert exact <= fine < coarse
    assert fine - exact < 0.5 * (coarse - exact)


def test_little_noise_stays_an_upper_bound_on_a_wide_grid():
    sigma = 0.005
    exact = step_epsilon(sigma, 0.004, DELTA)
    from_above(epsilon([training(1, sigma, 0.004)], DELTA), exact, 1e-3 * exact)
    exact = gaussian_epsilon(1 / sigma, DELTA)
    from_above(epsilon([training(1, sigma, 1.0)], DELTA), exact, 1e-3 * exact)


# What has no finite figure, and what costs nothing.


@pytest.mark.parametrize(
    "event",
    [
        NON_PRIVATE,
        provenance("private"),
        training(1, 0.0),
        selection(0.1, certified=math.inf),
    ],
    ids=["non-private", "private provenance", "no noise", "unbounded draw"],
)
@pytest.mark.parametrize("among", [0, 1])
def test_non_private_is_infinite(event, among):
    assert epsilon([training(10, 5.0)] * among + [event] + [selection(0.1)] * among, DELTA) == math.inf


def test_what_costs_nothing():
    assert epsilon([], DELTA) == 0
    assert epsilon([provenance("data-free"), provenance("public"), provenance("dp")], DELTA) == 0
    events = [training(10, 1.0, 0.01)]
    assert epsilon([provenance("dp"), *events], DELTA) == epsilon(events, DELTA) > 0


def test_epsilon_is_read_from_any_iterable_once():
    assert epsilon(iter([selection(0.3), training(10, 1.0, 0.01)]), DELTA) == epsilon(
        [selection(0.3), training(10, 1.0, 0.01)], DELTA
    )


# Bad inputs.


@pytest.mark.parametrize("delta", [0, 1, -0.1, 1.5, math.nan, math.inf])
def test_bad_delta(delta):
    with pytest.raises(InputError) as caught:
        epsilon([], delta)
    assert str(caught.value) == f"delta: {delta} is not between 0 and 1"


@pytest.mark.parametrize("other", [selection(0.1, "replace-one"), training(1, 1.0, adjacency="replace-one")])
def test_mixed_adjacency_is_refused(other):
    with pytest.raises(InputError) as caught:
        epsilon([training(1, 1.0), other], DELTA)
    assert str(caught.value) == (
        "adjacency: the ledger holds events under add-remove and under replace-one, which have no common guarantee;"
        " use one relation throughout, or separate ledgers"
    )


def test_unknown_event_is_refused():
    """A kind without a cost must never pass as free."""
    with pytest.raises(InputError) as caught:
        epsilon([Event(DATA, "t", "add-remove", "record")], DELTA)
    assert str(caught.value) == "the accountant does not know the event Event"


def test_same_mechanism_under_another_relation_is_another_cost():
    """Below q = 1 the two relations differ (replace-one: the record is in both), so the cache must not mix them up."""
    event = training(20, 1.0, 0.1)
    first = epsilon([event], DELTA)
    assert epsilon([replace(event, adjacency="replace-one")], DELTA) != pytest.approx(first, rel=1e-2)
    assert epsilon([event], DELTA) == first


def test_a_very_expensive_draw_has_a_figure():
    assert epsilon([selection(1000.0)], DELTA) == pytest.approx(1000.0, abs=1e-3)
