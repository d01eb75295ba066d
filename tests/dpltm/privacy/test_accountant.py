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
from dpltm.privacy.accountant import approximate, central_limit_mu, epsilon, profile
from dpltm.privacy.composition import compose
from dpltm.privacy.events import (
    DatasetRef,
)
from dpltm.privacy.mechanisms import (
    GaussianRelease,
    Guarantee,
    LaplaceRelease,
    Mechanism,
    NoisySgd,
    RandomizedResponse,
    Selection,
    Unprotected,
)
from dpltm.privacy.privacy_loss import BoundedRangeLoss, GaussianLoss

DATA = DatasetRef("mnist", "a" * 64, "k1", 0, 60000, "places")
DELTA = 1e-5
Q = 256 / 60000


def training(steps, sigma, rate=Q, adjacency="add-remove", **other):
    """A training; what the accountant must not look at can be given by name."""
    return NoisySgd(rate, steps, sigma, adjacency=adjacency, **other)


def selection(eps1, adjacency="add-remove", certified=None, adaptive=True, mechanism="exponential"):
    certified = eps1 if certified is None else certified
    return Selection(eps1, certified, draw=mechanism, adaptive=adaptive, adjacency=adjacency)


def first_draw(eps1):
    return selection(eps1, adaptive=False)


def flip(eps1):
    return selection(eps1, mechanism="permute-and-flip")


def laplace(sensitivity, scale, adjacency="add-remove"):
    return LaplaceRelease(scale, sensitivity, adjacency=adjacency)


def gaussian(sigma, adjacency="add-remove"):
    return GaussianRelease(sigma, 3.0, adjacency=adjacency)


def guarantee(eps, delta=0.0, adjacency="add-remove"):
    return Guarantee(eps, delta, adjacency=adjacency)


def response(eps, categories=2):
    return RandomizedResponse(eps, categories)


NON_PRIVATE = Unprotected()


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


GDP_TABLE = [
    (1.3, 15, 0.835, 1.19, 0.8646),
    (1.1, 60, 2.324, 3.01, 2.382),
    (0.7, 45, 5.066, 7.10, 5.640),
    (0.6, 62, 9.982, 13.27, 10.950),
    (0.55, 68, 14.984, 18.72, 15.717),
    (0.5, 100, 31.117, 32.35, 28.05),
]


@pytest.mark.parametrize(
    ("sigma", "rate", "epochs", "delta", "clt", "ma", "certified"),
    [(sigma, Q, epochs, DELTA, *figures) for sigma, epochs, *figures in GDP_TABLE]
    + [
        (0.56, 512 / 25000, 9, DELTA, 10.43, 15.24, 12.14),
        (0.55, 256 / 29305, 18, DELTA, 10.20, 14.7, 11.81),
        (0.6, 1 / 80, 20, 1e-6, 10.61, 15.39, 12.75),
    ],
    ids=["1.3", "1.1", "0.7", "0.6", "0.55", "0.5", "imdb", "adult", "movielens"],
)
def test_golden_table(sigma, rate, epochs, delta, clt, ma, certified):
    """privacy-model.md 5.5 (GDP Table 1), and the paper's IMDb, Adult and MovieLens: T = epochs / q, rounded."""
    events = [training(round(epochs / rate), sigma, rate)]
    assert approximate(events, delta) == pytest.approx(clt, rel=1e-3)
    assert epsilon(events, delta, "ma") == pytest.approx(ma, rel=5e-3)
    assert epsilon(events, delta) == pytest.approx(certified, rel=1e-3)
    assert epsilon(events, delta) < epsilon(events, delta, "rdp") < epsilon(events, delta, "ma")


def test_golden_training_then_selection():
    """docs/privacy-model.md section 5.5: 1.134 alone; then a draw of 0.5, against a naive sum of 1.634."""
    alone, after = training(3515, 1.1), [training(3515, 1.1)]
    assert epsilon([alone], DELTA) == pytest.approx(1.134, abs=5e-4)
    assert epsilon([flip(0.5), alone], DELTA) == pytest.approx(1.596, abs=5e-4)  # pure DP and no more
    assert epsilon([first_draw(0.5), alone], DELTA) == pytest.approx(1.42, abs=5e-3)
    assert epsilon([*after, selection(0.5)], DELTA) == pytest.approx(1.444, abs=1e-3)  # adaptive: between the two


def test_golden_tanh_bound():
    """privacy-model.md 4.3: 26,010 live weights, c = 1, sigma = 1.1 against a bound of 1: about 11,156 for one step."""
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
    """Permute-and-flip. The worst eps1-DP draw is randomised response: loss +eps1 with chance p, -eps1 otherwise."""
    chance = 1 / (1 + math.exp(-eps1))

    def excess(eps):
        high, low = gaussian_delta(eps - eps1, 1 / sigma), gaussian_delta(eps + eps1, 1 / sigma)
        return chance * high + (1 - chance) * low - DELTA

    exact = brentq(excess, 0.0, 100.0)
    from_above(epsilon([training(1, sigma, 1.0), flip(eps1)], DELTA), exact, 1e-3)


@pytest.mark.parametrize("draws", [1, 3])
def test_draws_alone(draws):
    """k pure draws, whose composition is known: losses (2j - k) eps1 with binomial chances."""
    likely = 1 / (1 + math.exp(-0.3))

    def excess(eps):
        return -DELTA + sum(
            math.comb(draws, j)
            * likely**j
            * (1 - likely) ** (draws - j)
            * max(0, 1 - math.exp(eps - (2 * j - draws) * 0.3))
            for j in range(draws + 1)
        )

    from_above(epsilon([flip(0.3)] * draws, DELTA), brentq(excess, 0.0, 0.3 * draws), 2e-4)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("delta", [1e-5, 1e-3, 0.05])
def test_an_exponential_draw_alone(adaptive, delta):
    """delta(x) = (1 - e^((x-e)/2))^2 / (1 - e^-e), whichever came first where nothing else came."""
    exact = brentq(lambda x: (1 - math.exp((x - 0.8) / 2)) ** 2 - delta * (1 - math.exp(-0.8)), 0.0, 0.8)
    from_above(epsilon([selection(0.8, adaptive=adaptive)], delta), exact, 1e-3)


def test_two_draws_first_are_one_first_and_one_later():
    """Two cannot both have come before everything else; the larger gains more from being first."""
    total = compose([first_draw(0.2), first_draw(0.5), first_draw(0.3)])
    assert total.draw == 0.5
    assert total.losses == {BoundedRangeLoss(0.2): 1, BoundedRangeLoss(0.3): 1}


def test_a_draw_costs_its_certified_epsilon_not_its_eps1():
    """At a delta so small that pure DP is all there is."""
    for event in (selection(0.1, certified=0.4), replace(first_draw(0.1), certified_epsilon=0.4)):
        assert epsilon([event], 1e-9) == pytest.approx(0.4, abs=1e-4)


# The other kinds of events.


@pytest.mark.parametrize(("eps", "mu"), [(0.5, 0.7), (2.0, 0.3)])
def test_laplace_and_gaussian_by_integration(eps, mu):
    """Laplace's loss is e with chance 1/2, -e with e^-e/2, else e (1 - 2u) at density e e^(-e u)/2, 0 < u < 1."""
    u = (np.arange(100_000) + 0.5) / 100_000

    def exact(x):
        between = (eps / 2 * np.exp(-eps * u) * gaussian_delta(x - eps * (1 - 2 * u), mu)).mean()
        return gaussian_delta(x - eps, mu) / 2 + math.exp(-eps) / 2 * gaussian_delta(x + eps, mu) + between

    found = epsilon([laplace(2.0, 2.0 / eps), gaussian(1 / mu)], DELTA)
    from_above(found, brentq(lambda x: exact(x) - DELTA, 0.0, 30.0), 1e-3)


def test_laplace_alone():
    """delta(x) = 1 - e^((x - e)/2); e is sensitivity over scale."""
    from_above(epsilon([laplace(3.0, 2.0)], 0.01), 1.5 + 2 * math.log1p(-0.01), 1e-3)


@pytest.mark.parametrize("count", [1, 5])
def test_randomised_response_is_counted(count):
    """dp-accounting's own accountant loses the count. Two categories are biased coins."""
    from_above(epsilon([response(0.4)] * count, 1e-12), 0.4 * count, 1e-3)
    same = epsilon([guarantee(0.4, adjacency="replace-one")] * count, 1e-2)
    assert epsilon([response(0.4)] * count, 1e-2) == pytest.approx(same, abs=1e-3)
    assert epsilon([response(0.4, 10)] * count, 1e-2) <= same + 1e-6


def test_gaussians_are_one_gaussian():
    """Full batches and statistics alike: precisions add, under either relation."""
    for adjacency in ("add-remove", "replace-one"):
        events = [gaussian(3.0, adjacency), training(4, 5.0, 1.0, adjacency), gaussian(2.0, adjacency)]
        ((mechanism, count),) = compose(events).losses.items()
        assert isinstance(mechanism, GaussianLoss)
        assert count == 1
        assert mechanism.noise_multiplier == pytest.approx((1 / 9 + 4 / 25 + 1 / 4) ** -0.5)
        exact = gaussian_epsilon(math.sqrt(1 / 9 + 4 / 25 + 1 / 4), DELTA)
        from_above(epsilon(events, DELTA), exact, 1e-3)


@pytest.mark.parametrize("accountant", ["rdp", "ma"])
def test_guarantees_that_may_fail_leave_less_delta(accountant):
    events, other = [training(100, 1.0, 0.01)], guarantee(1e-9, 4e-6)
    together = epsilon([*events, other, other], DELTA, accountant)
    assert together == pytest.approx(epsilon(events, DELTA - 8e-6, accountant), rel=1e-6)
    assert epsilon([*events, guarantee(1e-9, DELTA)], DELTA, accountant) == math.inf
    assert epsilon([*events, guarantee(1e-9, DELTA)], DELTA) == math.inf
    assert epsilon([*events, other, other], DELTA) >= epsilon(events, DELTA - 7e-6)


KINDS = [
    training(20, 1.0, 0.05),
    training(1, 3.0, 1.0),
    gaussian(3.0),
    laplace(1.0, 3.0),
    selection(0.3),
    first_draw(0.3),
    flip(0.3),
    guarantee(0.3),
    guarantee(0.3, 1e-6),
]


@pytest.mark.parametrize("accountant", ["pld", "rdp", "ma"])
@pytest.mark.parametrize("event", KINDS, ids=range(len(KINDS)))
def test_every_kind_is_counted(event, accountant):
    """Beside a training, twice is more than once is more than none."""
    base = [training(50, 1.5, 0.05)]
    none, once, twice = (epsilon(base + [event] * count, DELTA, accountant) for count in (0, 1, 2))
    assert none + 0.01 < once < twice - 0.01


@pytest.mark.parametrize("accountant", ["rdp", "ma"])
def test_pure_events_never_cost_more_than_their_sum(accountant):
    """At a delta that Renyi divergences cannot use."""
    events = [laplace(1.0, 5.0), flip(0.3), selection(0.1), first_draw(0.2), guarantee(0.4)]
    assert epsilon(events, 1e-200, accountant) == pytest.approx(1.2, abs=1e-9)
    assert epsilon(events, 1e-9) <= 1.2


@pytest.mark.parametrize("accountant", ["pld", "rdp", "ma"])
@pytest.mark.parametrize(
    "event", [selection(600.0), flip(600.0), laplace(1200.0, 2.0), guarantee(600.0)], ids=lambda e: type(e).__name__
)
def test_what_is_too_large_is_added(event, accountant):
    """Basic composition: (600, 0)-DP adds 600, once."""
    small = [training(20, 1.0, 0.05)]
    assert epsilon([event], DELTA, accountant) == pytest.approx(600, abs=1e-3)
    assert epsilon([event, *small], DELTA, accountant) == pytest.approx(600 + epsilon(small, DELTA, accountant))


# The central limit theorem: nominal.


def test_central_limit_adds_up():
    """Squares of mu for trainings and Gaussians; epsilons for the rest."""
    noisy = [training(1000, 1.0, 0.01), training(5, 6.0, 1.0), gaussian(4.0)]
    mu = math.sqrt(1000 * 1e-4 * math.expm1(1.0) + 5 / 36 + 1 / 16)
    assert central_limit_mu(noisy) == pytest.approx(mu, rel=1e-12)
    assert approximate(noisy, DELTA) == pytest.approx(gaussian_epsilon(mu, DELTA), rel=1e-6)
    rest = [selection(0.3), first_draw(0.2), laplace(1.0, 10.0), guarantee(0.05), flip(0.4)]
    assert approximate(noisy + rest, DELTA) == pytest.approx(gaussian_epsilon(mu, DELTA) + 1.05, rel=1e-6)
    assert central_limit_mu([*noisy, first_draw(0.1)]) is None
    assert central_limit_mu([*noisy, laplace(1.0, 1.0)]) is None
    assert central_limit_mu([NON_PRIVATE]) is None
    assert central_limit_mu([]) == 0.0
    assert approximate([], DELTA) == 0.0
    assert approximate([*noisy, NON_PRIVATE], DELTA) == math.inf


def test_central_limit_beside_a_guarantee_that_may_fail():
    """Its epsilon is added, and its chance comes off delta."""
    noisy = [training(1000, 1.0, 0.01)]
    expected = 0.3 + gaussian_epsilon(central_limit_mu(noisy), 6e-6)
    assert approximate([*noisy, guarantee(0.3, 4e-6)], DELTA) == pytest.approx(expected, rel=1e-6)
    assert approximate([*noisy, guarantee(0.3, DELTA)], DELTA) == math.inf


@pytest.mark.parametrize(("sigma", "steps"), [(1.1, 14062), (0.55, 15938)])
def test_central_limit_of_replace_one(sigma, steps):
    """mu^2 = T times the integral of (P - Q)^2 over N(0), here q^2 4 sinh(1/(4 sigma^2)): P and Q are half as far from N(0).

    The formula of add/remove would give 2.32 and 14.98 here; the certified figures are 1.82 and 4.54.
    """
    event = training(steps, sigma, adjacency="replace-one")
    mu = Q * math.sqrt(steps * 4 * math.sinh(0.25 / sigma**2))
    assert approximate([event], DELTA) == pytest.approx(gaussian_epsilon(mu, DELTA), rel=1e-6)
    assert approximate([event], DELTA) == pytest.approx(epsilon([event], DELTA), rel=0.02)


def test_no_curve_of_what_has_none():
    for mechanism in (NON_PRIVATE, guarantee(600.0)):
        with pytest.raises(InputError) as caught:
            profile([mechanism])
        assert str(caught.value) == (
            "records: there is no curve to draw: something was released without protection, or at an epsilon above 500"
        )


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
    first_draw(0.1),
    laplace(1.0, 4.0),
    gaussian(5.0),
)


@settings(max_examples=8)
@given(st.permutations(MIXED))
def test_order_is_free(events):
    assert epsilon(events, DELTA) == pytest.approx(epsilon(MIXED, DELTA), rel=1e-9)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5))
@settings(max_examples=6)
def test_steps_split_over_events_cost_the_same(parts):
    """What is not the noise over the bound (the bound itself, the claimed one) does not count."""
    whole = epsilon([training(sum(parts), 1.2, 0.02)], DELTA)
    others = [training(n, 1.2, 0.02, nominal_sensitivity=0.5, sensitivity=float(n)) for n in parts]
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


def test_little_noise_stays_an_upper_bound_on_a_wide_grid():
    sigma = 0.005
    exact = step_epsilon(sigma, 0.004, DELTA)
    from_above(epsilon([training(1, sigma, 0.004)], DELTA), exact, 1e-3 * exact)
    exact = gaussian_epsilon(1 / sigma, DELTA)
    from_above(epsilon([training(1, sigma, 1.0)], DELTA), exact, 1e-3 * exact)


@pytest.mark.parametrize(
    ("event", "delta"),
    [(training(1000, 1.0, 0.01), 1e-14), (training(10**6, 0.3, 0.5), 1e-5)],
    ids=["delta beneath the rounding", "coarse"],
)
def test_renyi_steps_in_where_the_grid_or_the_arithmetic_shows(event, delta):
    """pld is never looser than rdp, not even where it could certify nothing alone."""
    assert 0 < epsilon([event], delta) <= epsilon([event], delta, "rdp") < math.inf


# What has no finite figure, and what costs nothing.


@pytest.mark.parametrize(
    "event",
    [
        NON_PRIVATE,
        training(1, 0.0),
        gaussian(1e-4),
        selection(0.1, certified=math.inf),
    ],
    ids=["non-private", "no noise", "hardly any noise", "unbounded draw"],
)
@pytest.mark.parametrize("among", [0, 1])
def test_non_private_is_infinite(event, among):
    assert epsilon([training(10, 5.0)] * among + [event] + [selection(0.1)] * among, DELTA) == math.inf


def test_nothing_costs_nothing():
    assert epsilon([], DELTA) == 0


def test_epsilon_is_read_from_any_iterable_once():
    assert epsilon(iter([selection(0.3), training(10, 1.0, 0.01)]), DELTA) == epsilon(
        [selection(0.3), training(10, 1.0, 0.01)], DELTA
    )


# Bad inputs.


@pytest.mark.parametrize("delta", [0, 1, -0.1, 1.5, math.nan, math.inf])
def test_bad_delta(delta):
    with pytest.raises(InputError) as caught:
        epsilon([], delta)
    assert str(caught.value) == f"`delta`: {delta:g} is not between 0 and 1"


@pytest.mark.parametrize("accountant", ["clt", "PLD", ""])
def test_bad_accountant(accountant):
    with pytest.raises(InputError) as caught:
        epsilon([], DELTA, accountant)
    assert str(caught.value) == f"`accountant`: {accountant!r} certifies nothing; known are pld, rdp, ma"


@pytest.mark.parametrize("other", [selection(0.1, "replace-one"), training(1, 1.0, adjacency="replace-one")])
def test_mixed_adjacency_is_refused(other):
    with pytest.raises(InputError) as caught:
        epsilon([training(1, 1.0), other], DELTA)
    assert str(caught.value) == (
        "adjacency: the ledger holds events under add-remove and under replace-one, which have no common guarantee;"
        " use one relation throughout, or separate ledgers"
    )


def test_unknown_mechanism_is_refused():
    """A kind without a cost must never pass as free."""
    with pytest.raises(InputError) as caught:
        epsilon([Mechanism()], DELTA)
    assert str(caught.value) == "the accountant does not know the mechanism Mechanism"


def test_same_mechanism_under_another_relation_is_another_cost():
    """Below q = 1 the two relations differ (replace-one: the record is in both), so the cache must not mix them up."""
    event = training(20, 1.0, 0.1)
    first = epsilon([event], DELTA)
    assert epsilon([replace(event, adjacency="replace-one")], DELTA) != pytest.approx(first, rel=1e-2)
    assert epsilon([event], DELTA) == first


def test_a_very_expensive_draw_has_a_figure():
    assert epsilon([selection(1000.0)], DELTA) == pytest.approx(1000.0, abs=1e-3)
