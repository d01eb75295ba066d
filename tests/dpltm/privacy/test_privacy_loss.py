"""Each mechanism's loss distribution against the exact profile of its worst pair, in both directions; and its profile."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as theirs
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.special import logsumexp, ndtr, softmax

from dpltm.privacy import gdp, pld
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.mechanisms import DiscreteGaussianRelease, GaussianRelease, NoisySgd, Zcdp
from dpltm.privacy.privacy_loss import (
    BoundedRangeLoss,
    DiscreteGaussianLoss,
    GaussianLoss,
    GaussianProfile,
    GuaranteeLoss,
    LaplaceLoss,
    RandomizedResponseLoss,
    SampledGaussianLoss,
    ZcdpLoss,
)
from exact import added_delta, gaussian_delta, hockey_stick, removed_delta, two_outcomes

WIDTH = 2.0**-10
EPSILONS = np.linspace(0, 5, 20)


def profile(mechanism, epsilons, width=WIDTH):
    """delta of each direction of a mechanism's own loss distribution."""
    return [losses.delta(np.asarray(epsilons)) for losses in map(pld.Losses, mechanism.pld(width))]


def dominates(mechanism, exact, epsilons, slack, width=WIDTH):
    """Every direction is at least its exact profile, and no more than ``slack`` above. ``exact`` holds one or two."""
    found = profile(mechanism, epsilons, width)
    for truth, values in zip(exact * (len(found) if len(exact) == 1 else 1), found, strict=True):
        truth = np.array([truth(x) for x in epsilons])
        assert (values >= truth - 1e-13).all()
        assert (values <= truth + slack).all()


@pytest.mark.parametrize("sigma", [0.3, 1.0, 8.0])
def test_gaussian(sigma):
    epsilons = np.linspace(-2, 1 / sigma**2 + 3 / sigma, 60)
    dominates(GaussianLoss(sigma), [lambda x: gaussian_delta(x, 1 / sigma)], epsilons, 1e-6)


@pytest.mark.parametrize(("sigma", "rate"), [(0.4, 0.01), (1.0, 0.1), (1.0, 0.7), (3.0, 0.5)])
def test_sampled_gaussian_add_remove(sigma, rate):
    exact = [lambda x: removed_delta(x, sigma, rate), lambda x: added_delta(x, sigma, rate)]
    dominates(SampledGaussianLoss(sigma, rate, False), exact, np.linspace(-1, 1 / sigma**2 + 2 / sigma, 80), 1e-6)


@pytest.mark.parametrize("sigma", [0.05, 0.3, 1.0])
def test_a_rate_next_to_one_costs_what_one_costs(sigma):
    """dp-accounting refuses some of these."""
    for replace_one in (False, True):
        whole = GaussianLoss(sigma) if not replace_one else SampledGaussianLoss(sigma, 1.0, True)
        for near in profile(SampledGaussianLoss(sigma, 1 - 2.0**-53, replace_one), EPSILONS):
            assert near == pytest.approx(profile(whole, EPSILONS)[0], abs=1e-9)


def replaced_delta(eps, sigma, rate, first=-0.5, second=0.5):
    """(1-q) N(0) + q N(first) against (1-q) N(0) + q N(second), first < 0 < second: the loss falls with x."""

    def loss(x):
        top, bottom = (math.log(rate) + (2 * x * c - c * c) / (2 * sigma**2) for c in (first, second))
        plain = math.log1p(-rate)
        return float(np.logaddexp(plain, top) - np.logaddexp(plain, bottom))

    edge = 60 * sigma + 60 * sigma**2
    if loss(-edge) <= eps:
        return 0.0
    x = brentq(lambda x: loss(x) - eps, -edge, edge, xtol=1e-12) if loss(edge) < eps else edge
    upper, lower = ((1 - rate) * ndtr(x / sigma) + rate * ndtr((x - centre) / sigma) for centre in (first, second))
    return max(0.0, upper - math.exp(eps) * lower)


@pytest.mark.parametrize(("sigma", "rate"), [(0.4, 0.01), (0.5, 0.3), (1.0, 0.9)])
def test_sampled_gaussian_replace_one(sigma, rate):
    epsilons = np.linspace(-1, 0.5 / sigma**2 + 2 / sigma, 60)
    dominates(SampledGaussianLoss(sigma, rate, True), [lambda x: replaced_delta(x, sigma, rate)], epsilons, 1e-6)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 5.0])
def test_laplace(epsilon):
    """The loss is e with chance 1/2, -e with e^-e / 2, and between: delta(x) = 1 - e^((x - e)/2) from -e to e."""

    def exact(x):
        return 1 - math.exp(x) if x < -epsilon else max(0.0, -math.expm1((x - epsilon) / 2))

    dominates(
        LaplaceLoss(epsilon), [exact], np.linspace(-1.2 * epsilon, 1.2 * epsilon, 61), 1e-5, width=epsilon / 1024
    )


@pytest.mark.parametrize(("epsilon", "categories"), [(0.5, 2), (0.5, 5), (3.0, 10)])
def test_randomized_response(epsilon, categories):
    """Three losses: e, 0 for every other answer, -e."""
    rare = 1 / (math.exp(epsilon) + categories - 1)
    first, second = np.full((2, categories), rare)
    first[0] = second[1] = rare * math.exp(epsilon)
    epsilons = np.linspace(-1.2 * epsilon, 1.2 * epsilon, 61)
    exact = [lambda x: hockey_stick(first, second, x)]
    dominates(RandomizedResponseLoss(epsilon, categories=categories), exact, epsilons, 1e-3, width=epsilon / 1024)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (2.0, 0.0), (0.5, 0.01)])
def test_guarantee(epsilon, delta):
    """The worst of (e, d)-DP (Kairouz, Oh, Viswanath 2015): everything shows with chance d, else a biased coin."""
    coin = (1 - delta) / (1 + math.exp(-epsilon))
    first = [delta, coin, 1 - delta - coin, 0.0]
    second = [0.0, 1 - delta - coin, coin, delta]
    epsilons = np.linspace(-1.2 * epsilon, 1.2 * epsilon, 61)
    exact = [lambda x: hockey_stick(first, second, x)]
    dominates(GuaranteeLoss(epsilon, delta), exact, epsilons, 1e-3, width=epsilon / 1024)


# Bounded range.


@pytest.mark.one_of(2)
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 4.0])
def test_bounded_range_profile_is_the_largest_over_its_pairs(epsilon):
    epsilons = np.linspace(-1.3 * epsilon, 1.3 * epsilon, 27)
    brute = [max(hockey_stick(*two_outcomes(t, epsilon), x) for t in np.linspace(0, epsilon, 2001)) for x in epsilons]
    found = BoundedRangeLoss(epsilon).profile(epsilons)
    assert (found >= np.array(brute) - 1e-14).all()
    assert found == pytest.approx(brute, abs=1e-6)
    for x in np.linspace(-epsilon, epsilon, 9):  # reached where the proof says it is
        at_best = hockey_stick(*two_outcomes((x + epsilon) / 2, epsilon), x)
        assert BoundedRangeLoss(epsilon).profile(np.array([x]))[0] == pytest.approx(at_best, abs=1e-14)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 4.0])
def test_bounded_range_pld(epsilon):
    """Off the grid too, and well below what pure DP alone gives."""
    mechanism = BoundedRangeLoss(epsilon)
    epsilons = np.linspace(-1.2 * epsilon, 1.2 * epsilon, 97)
    dominates(mechanism, [lambda x: float(mechanism.profile(np.array([x]))[0])], epsilons, 1e-4, width=epsilon / 1024)
    pure = profile(GuaranteeLoss(epsilon), [0.0], epsilon / 1024)[0]
    assert profile(mechanism, [0.0], epsilon / 1024)[0] == pytest.approx(math.tanh(epsilon / 4), rel=1e-4)
    assert pure == pytest.approx(math.tanh(epsilon / 2), rel=1e-4)


@settings(max_examples=60)
@given(
    epsilon=st.floats(0.05, 6),
    moves=st.lists(st.tuples(st.floats(-3, 3), st.floats(-1, 1)), min_size=2, max_size=6),
    monotone=st.booleans(),
    order=st.floats(1.1, 40),
)
def test_bounded_range_dominates_real_exponential_mechanisms(epsilon, moves, monotone, order):
    """Scores that move by at most 1 either way, or at most 1 in one direction where the factor 2 is dropped."""
    scores, shifts = np.array(moves).T
    factor = epsilon if monotone else epsilon / 2
    first, second = softmax(factor * scores), softmax(factor * (scores + (np.abs(shifts) if monotone else shifts)))
    epsilons = np.linspace(-epsilon, epsilon, 25)
    mechanism = BoundedRangeLoss(epsilon)
    for pair in ((first, second), (second, first)):
        assert (mechanism.profile(epsilons) >= [hockey_stick(*pair, x) - 1e-12 for x in epsilons]).all()
        spent = float(logsumexp(order * np.log(pair[0]) + (1 - order) * np.log(pair[1]))) / (order - 1)
        assert spent <= mechanism.renyi(order) + 1e-11 / (order - 1) + 1e-12


def test_the_bound_is_reached_and_without_the_sensitivity_factor_broken():
    """Two candidates whose scores move apart by all they may: the log odds shift by epsilon; by twice that, drawn with
    epsilon instead of epsilon / 2 on scores that are not monotone."""
    epsilon, x = 0.8, 0.3
    chance = two_outcomes((x + epsilon) / 2, epsilon)[0][0]
    gap = math.log(chance / (1 - chance))
    second = softmax([gap - epsilon / 2, epsilon / 2])  # scores moved by -1 and +1, times epsilon / 2
    bound = BoundedRangeLoss(epsilon).profile(np.array([x, 0.0]))
    assert hockey_stick(softmax([gap, 0.0]), second, x) == pytest.approx(bound[0], rel=1e-12)
    assert hockey_stick(softmax([0.0, 0.0]), softmax([epsilon, -epsilon]), 0.0) > bound[1]


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.9, 0.1), (0.2, 0.3, 0.5)])
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_laplace_stands_for_noise_on_every_coordinate(shares, epsilon):
    """A LaplaceEvent bounds the L1 change: however it is spread, one coordinate that takes it all is the worst."""
    spread = pld.compose({LaplaceLoss(share * epsilon): shares.count(share) for share in shares})
    for x in np.linspace(0, epsilon, 12):
        whole = max(0.0, -math.expm1((x - epsilon) / 2))
        assert spread.delta(np.array([x]))[0] <= whole + 3e-5  # the grid, at the atom of the loss


@pytest.mark.parametrize(
    "mechanism",
    [
        SampledGaussianLoss(0.8, 0.1, False),
        SampledGaussianLoss(0.8, 0.1, True),
        GaussianLoss(2.0),
        LaplaceLoss(0.7),
        RandomizedResponseLoss(0.7, categories=4),
        GuaranteeLoss(0.7),
        BoundedRangeLoss(0.7),
    ],
    ids=lambda mechanism: type(mechanism).__name__,
)
@pytest.mark.parametrize("order", [1.5, 3.0, 5.0])
def test_renyi_and_losses_tell_one_story(mechanism, order):
    """D_a from the profile: E_P e^((a-1) L) - 1 = the integral of a (a-1) e^((a-1) x) delta(x), both directions.

    (Integration by parts twice; delta(x) - max(1 - e^x, 0) is what decays on the left.) For the mechanisms that are one
    pair the two agree; a bounded-range pair is the envelope of a family, hence at least the family's divergence.
    """
    width = 2.0**-9
    found = []
    for losses in map(pld.Losses, mechanism.pld(width)):
        x = np.arange(-12, 40, width / 4)
        truncated = losses.delta(np.array([1e4]))  # counted as an infinite loss; all orders of it are infinite
        surplus = losses.delta(x) - np.maximum(-np.expm1(x), 0) - truncated
        assert truncated < 1e-20
        moment = 1 + order * (order - 1) * np.trapezoid(np.exp((order - 1) * x) * surplus, x)
        found.append(math.log(moment) / (order - 1))
    spent = mechanism.renyi(order)
    assert max(found) >= spent * (1 - 1e-4)
    assert isinstance(mechanism, BoundedRangeLoss) or max(found) == pytest.approx(spent, rel=5e-3)


THEIRS = {"removed": AdjacencyType.REMOVE, "added": AdjacencyType.ADD, "replaced": AdjacencyType.REPLACE}
WAYS = list(THEIRS)


def at_losses(sigma, rate, way):
    """dp-accounting's loss, and epsilons all over its range, near zero, and where one of the two stops."""
    shift = 0.5 if way == "replaced" else 1.0
    theirs = GaussianPrivacyLoss(sigma, shift, sampling_prob=rate, adjacency_type=THEIRS[way])
    bounds = theirs.connect_dots_bounds()
    edge = math.log1p(-rate) if rate < 1 else 0.0
    near = [sign * edge + off for sign in (-1, 1) for off in (0.0, 1e-12, -1e-12, 1e-6, -1e-6)]
    return theirs, np.concatenate([np.linspace(bounds.epsilon_lower, bounds.epsilon_upper, 200), near])


@settings(deadline=None, max_examples=100)
@given(sigma=st.floats(0.05, 1000), rate=st.one_of(st.just(1.0), st.floats(1e-7, 0.999)), way=st.sampled_from(WAYS))
def test_deltas_asked_for_at_once_are_those_that_dp_accounting_finds_one_by_one(sigma, rate, way):
    theirs, epsilons = at_losses(sigma, rate, way)
    bounds = theirs.connect_dots_bounds()
    known = (bounds.epsilon_lower, bounds.epsilon_upper)
    assert GaussianProfile(sigma, rate, way).range == pytest.approx(known, rel=1e-9, abs=1e-12)
    found = GaussianProfile(sigma, rate, way).deltas(epsilons)
    assert found == pytest.approx(theirs.get_delta_for_epsilon(epsilons), abs=1e-11)


def exact_deltas(sigma, rate, epsilons):
    """Removal, addition and replacement, to 60 digits."""
    with mpmath.workdps(60):
        s, q = mpmath.mpf(sigma), mpmath.mpf(rate)

        def removed(epsilon):
            e = mpmath.exp(epsilon)
            if e <= 1 - q:
                return 1 - e
            x = -mpmath.mpf(0.5) - mpmath.log((e - 1 + q) / q) * s**2
            below, shifted = mpmath.ncdf(x / s), mpmath.ncdf((x + 1) / s)
            return (1 - q) * below + q * shifted - e * below

        def replaced(epsilon):
            alpha = mpmath.exp(1 / (8 * s**2)) * (1 - q) / q
            x = -(s**2) * (2 * mpmath.asinh(alpha * mpmath.sinh(epsilon / 2)) + epsilon)
            top, bottom = ((1 - q) * mpmath.ncdf(x / s) + q * mpmath.ncdf((x + c) / s) for c in (0.5, -0.5))
            return top - mpmath.exp(epsilon) * bottom

        replace = [float(replaced(mpmath.mpf(x))) for x in epsilons]
        remove = [float(removed(mpmath.mpf(x))) for x in epsilons]
        add = [float(1 - mpmath.exp(mpmath.mpf(x)) * (1 - removed(-mpmath.mpf(x)))) for x in epsilons]
    return {"removed": remove, "added": add, "replaced": replace}


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    ("sigma", "rate"), [(0.125, 0.5), (0.25, 1.0), (0.25, 0.25), (2.0, 1e-5), (1.1, 0.999), (40.0, 0.01)]
)
def test_deltas_are_right_in_the_last_bits(sigma, rate):
    _, epsilons = at_losses(sigma, rate, "removed")
    for way, exact in exact_deltas(sigma, rate, epsilons).items():
        off = np.abs(GaussianProfile(sigma, rate, way).deltas(epsilons) - exact)
        assert (off <= 3e-16 * (1 + np.abs(epsilons))).all()  # e^epsilon Q is the exponential of a sum


def test_deltas_next_to_the_loss_that_none_exceeds():
    """dp-accounting takes a threshold within 1e-9 of it for infinite: delta is 0 there, 1.4e-10 too small."""
    sigma, rate = 0.022957406205236397, 0.6969347613990869
    epsilons = -np.log1p(-rate) * (1 - np.array([1.2e-10, 1e-9, 1e-8]))
    exact = exact_deltas(sigma, rate, epsilons)["added"]
    assert exact[0] == pytest.approx(1.43e-10, rel=1e-2)
    assert GaussianProfile(sigma, rate, "added").deltas(epsilons) == pytest.approx(exact, abs=3e-16)


DELTA = 1e-5


@pytest.mark.parametrize(("deviation", "sensitivity"), [(0.3, 1), (1.0, 1), (5.0, 2), (40.0, 3)])
def test_discrete_noise_costs_what_dp_accounting_says(deviation: float, sensitivity: int) -> None:
    oracle = theirs.from_discrete_gaussian_mechanism(deviation, sensitivity, value_discretization_interval=1e-4)
    found = epsilon([DiscreteGaussianRelease(deviation, sensitivity)], DELTA)
    assert found == pytest.approx(oracle.get_epsilon_for_delta(DELTA), abs=1e-4)


@pytest.mark.parametrize("sensitivity", [1, 2, 7])
@pytest.mark.parametrize("deviation", [0.2, 1.0, 3.0])
def test_the_profile_of_discrete_noise_is_a_sum_over_all_values(deviation: float, sensitivity: int) -> None:
    values = np.arange(-200, 201)
    p, q = (np.exp(-0.5 * ((values - by) / deviation) ** 2) for by in (0, sensitivity))
    p, q = p / p.sum(), q / q.sum()
    x = np.linspace(-6, 6, 97)
    exact = np.maximum(p - np.exp(x)[:, None] * q, 0).sum(1)
    loss = DiscreteGaussianLoss(deviation, sensitivity)
    assert loss.profile(x) == pytest.approx(exact, abs=1e-13)
    for smaller in range(1, sensitivity):
        assert (DiscreteGaussianLoss(deviation, smaller).profile(x) <= exact + 1e-13).all()


def test_much_discrete_noise_is_continuous() -> None:
    found = epsilon([DiscreteGaussianRelease(2000.0, 3)] * 10, DELTA)
    assert found == pytest.approx(epsilon([GaussianRelease(2000 / 3)] * 10, DELTA), rel=1e-3)


@pytest.mark.parametrize("rho", [1e-6, 0.01, 0.5, 5.0, 200.0])
def test_zcdp_costs_the_least_over_orders(rho: float) -> None:
    def at(log: float) -> float:
        order = 1 + math.exp(log)
        return rho * order + math.log1p(-1 / order) - math.log(DELTA * order) / (order - 1)

    best = minimize_scalar(at, bounds=(-6, 9), method="bounded").fun
    for accountant in ("pld", "rdp"):
        assert epsilon([Zcdp(rho)], DELTA, accountant) == pytest.approx(best, rel=1e-3)
    assert epsilon([GaussianRelease((2 * rho) ** -0.5)], DELTA) <= best


def test_zcdp_adds_up_and_composes_with_the_rest() -> None:
    assert epsilon([Zcdp(0.1)] * 3, DELTA) == epsilon([Zcdp(0.1 + 0.1 + 0.1)], DELTA)
    steps = NoisySgd(0.01, 1000, 1.0)
    both = epsilon([Zcdp(0.1), steps], DELTA)
    assert epsilon([GaussianRelease(math.sqrt(5)), steps], DELTA) < both < epsilon([Zcdp(0.1), steps], DELTA, "rdp")


@pytest.mark.parametrize("rho", [0.01, 0.5, 3.0])
def test_the_profile_of_zcdp_dominates_gaussians_in_both_directions(rho: float) -> None:
    x = np.linspace(-3, 8, 50)
    bound = pld.compose({ZcdpLoss(rho): 1})
    assert bound is not None
    assert (bound.delta(x) >= [gdp.delta(each, math.sqrt(2 * rho)) for each in x]).all()
