"""Renyi divergences against brute-force integration and sums, and the two conversions against exact epsilons."""

import math
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq, minimize_scalar
from scipy.special import logsumexp

from dpltm.privacy import renyi
from exact import gaussian_delta

Q = 256 / 60000


def divergence(log_p, log_q, order, cuts):
    """D_order(P || Q) by adaptive quadrature of P^a Q^(1-a), in pieces between ``cuts``, scaled by its largest value."""

    def log(x):
        return order * log_p(x) + (1 - order) * log_q(x)

    scale = max(log(x) for x in np.linspace(cuts[0], cuts[-1], 4001))
    pieces = [
        quad(lambda x: math.exp(log(x) - scale), low, high, epsabs=1e-13, epsrel=1e-10, limit=400)[0]
        for low, high in pairwise(cuts)
    ]
    return (math.log(math.fsum(pieces)) + scale) / (order - 1)


def mixture(sigma, rate, centre):
    """Log density of (1-q) N(0) + q N(centre)."""
    norm = -math.log(sigma * math.sqrt(2 * math.pi))

    def log(x):
        plain, moved = -((x / sigma) ** 2) / 2, -(((x - centre) / sigma) ** 2) / 2
        with_record = math.log(rate) + moved
        return norm + (with_record if rate == 1 else float(np.logaddexp(math.log1p(-rate) + plain, with_record)))

    return log


def cuts(low, high, sigma):
    return np.unique(np.concatenate([np.arange(low - 16 * sigma, high + 16 * sigma, 4 * sigma), [high + 16 * sigma]]))


@pytest.mark.parametrize(("sigma", "rate"), [(0.3, 0.01), (0.5, Q), (1.0, 0.9), (4.0, 0.3)])
@pytest.mark.parametrize("order", [1.5, 2.0, 7.3, 32.0])
def test_sampled_gaussian_is_the_larger_direction(sigma, rate, order):
    """Mironov, Talwar, Zhang 2019: (mixture against plain) is the worse direction; both are integrated here."""
    pair, range_ = (mixture(sigma, rate, 1.0), mixture(sigma, rate, 0.0)), cuts(min(0, 1 - order), order, sigma)
    forward, backward = divergence(*pair, order, range_), divergence(*pair[::-1], order, range_)
    assert forward > backward * (1 - 1e-9)
    assert order < 7 or rate > 0.1 or forward > 1.5 * backward  # so that this test can tell them apart
    assert renyi.sampled_gaussian(sigma, rate, order) == pytest.approx(forward, rel=1e-7, abs=1e-12)


@pytest.mark.parametrize(
    ("sigma", "rate", "order"),
    [
        (0.3, 0.01, 1.5),
        (0.5, Q, 8.0),
        (1.0, 0.1, 2.0),
        (2.0, 0.5, 40.0),
        (10.0, 0.3, 90.0),
        # Nearly every record in every batch: the mass of P^a Q^(1-a) lies far out, between 1/2 - a and -a/2.
        (3.0, 0.99, 81.0),
        (10.0, 0.9, 636.0),
        (3.0, 0.999, 122.0),
        (1.0, 0.999999999, 41.0),
    ],
)
def test_sampled_gaussian_replace_one(sigma, rate, order):
    pair, range_ = (mixture(sigma, rate, -0.5), mixture(sigma, rate, 0.5)), cuts(-order, order, sigma)
    forward, backward = divergence(*pair, order, range_), divergence(*pair[::-1], order, range_)
    assert forward == pytest.approx(backward, rel=1e-8)
    assert renyi.sampled_gaussian(sigma, rate, order, replace_one=True) == pytest.approx(forward, rel=1e-7)


@pytest.mark.parametrize("replace_one", [False, True])
def test_sampled_gaussian_limits(replace_one):
    """q = 1 is the Gaussian's closed form, smaller q costs less, and orders too large to integrate fall back on q = 1."""
    assert renyi.sampled_gaussian(2.0, 1.0, 3.0, replace_one=replace_one) == 3 / 8
    assert renyi.sampled_gaussian(2.0, 1 - 1e-12, 3.0, replace_one=replace_one) == pytest.approx(3 / 8, rel=1e-9)
    values = [renyi.sampled_gaussian(2.0, rate, 3.0, replace_one=replace_one) for rate in (1e-6, 1e-3, 0.1, 0.9, 1.0)]
    assert values == sorted(values)
    assert renyi.sampled_gaussian(0.1, 0.5, 1e5, replace_one=replace_one) == pytest.approx(1e5 / 0.02, rel=1e-12)


@pytest.mark.parametrize(("epsilon", "order"), [*product([0.05, 0.5, 4.0], [1.05, 2.0, 8.5, 60.0])])
def test_bounded_range_is_the_worst_of_its_pairs(epsilon, order):
    """A grid over t in both directions can only miss the largest by a little, and never exceed it."""
    losses = np.linspace(0, epsilon, 20001)[1:-1]
    first = np.expm1(losses - epsilon) / math.expm1(-epsilon)
    second = first * np.exp(-losses)
    pairs = np.log([first, 1 - first]), np.log([second, 1 - second])
    for top, bottom in (pairs, pairs[::-1]):
        worst = logsumexp(order * top + (1 - order) * bottom, axis=0).max() / (order - 1)
        assert worst * (1 - 1e-9) <= renyi.bounded_range(epsilon, order) <= worst * (1 + 1e-6) + 1e-13 / (order - 1)


def exact_pure_kinds(epsilon, order):
    """The four divergences by their plain formulas, in 80 digits."""
    from mpmath import exp, log, mp, mpf

    with mp.workdps(80):
        e, a = mpf(epsilon), mpf(order)
        loss = e + log((a - 1) / a) + log(1 - exp(-a * e)) - log(1 - exp(-(a - 1) * e))
        chance = (exp(-loss) - exp(-e)) / (1 - exp(-e))

        def answers(k):
            rare = 1 / (exp(e) + k - 1)
            likely = rare * exp(e)
            return likely**a * rare ** (1 - a) + rare**a * likely ** (1 - a) + (k - 2) * rare

        sums = {
            "pure": answers(2),
            "randomized_response": answers(7),
            "laplace": (a * exp((a - 1) * e) + (a - 1) * exp(-a * e)) / (2 * a - 1),
            "bounded_range": chance * exp(a * loss) + (1 - chance) * exp(a * (loss - e)),
        }
        return {name: float(log(total) / (a - 1)) for name, total in sums.items()}


@settings(max_examples=200, deadline=None)
@given(log_epsilon=st.floats(-7, 2.69), log_excess=st.floats(-4, 5))
@example(log_epsilon=-7, log_excess=5)  # logarithms of 7e4 whose difference is 5e-5
@example(log_epsilon=-7, log_excess=-4)
def test_pure_kinds_are_never_rounded_below_the_true_divergence(log_epsilon, log_excess):
    epsilon, order = 10**log_epsilon, 1 + 10**log_excess
    for name, exact in exact_pure_kinds(epsilon, order).items():
        more = (7,) if name == "randomized_response" else ()
        assert exact <= getattr(renyi, name)(epsilon, *more, order) <= exact * (1 + 1e-10)


@settings(max_examples=100)
@given(
    p=st.floats(1e-6, 1 - 1e-6), q=st.floats(1e-6, 1 - 1e-6), order=st.floats(1.01, 50), log_delta=st.floats(-8, -0.3)
)
def test_both_conversions_cover_any_two_outcomes(p, q, order, log_delta):
    delta = 10**log_delta
    spent = math.log(p**order * q ** (1 - order) + (1 - p) ** order * (1 - q) ** (1 - order)) / (order - 1)
    modern, classical = renyi.modern_epsilon(spent, order, delta), renyi.classical_epsilon(spent, order, delta)
    assert modern <= classical
    for eps in (modern, classical):
        if eps >= 0:
            grown = math.exp(min(eps, 700))
            assert max(p - grown * q, 0) + max(1 - p - grown * (1 - q), 0) <= delta * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize(("order", "loss"), [(1.5, 30.0), (4.0, 12.0), (20.0, 3.0)])
def test_the_modern_conversion_is_tight(order, loss):
    """A pair whose loss is rarely z, and else about 0, with epsilon = z - ln(a/(a-1)), meets the bound."""
    epsilon, rare = loss - math.log(order / (order - 1)), 1e-3
    rest = -math.log((1 - rare * math.exp(-loss)) / (1 - rare))
    spent = math.log(rare * math.exp((order - 1) * loss) + (1 - rare) * math.exp((order - 1) * rest)) / (order - 1)
    delta = rare * -math.expm1(epsilon - loss)
    assert epsilon - 1e-12 <= renyi.modern_epsilon(spent, order, delta) <= epsilon + 0.01


@pytest.mark.parametrize(("mu", "delta"), [*product([0.05, 1.0, 8.0], [1e-9, 1e-5, 1e-2])])
def test_best_epsilon_of_gaussians(mu, delta):
    """Classical: mu^2/2 + mu sqrt(2 ln 1/delta) is its least over all orders. Modern: a fine search; above the truth."""

    def spent(order):
        return order * mu**2 / 2

    classical = renyi.best_epsilon(spent, delta, renyi.classical_epsilon)
    assert classical == pytest.approx(mu**2 / 2 + mu * math.sqrt(-2 * math.log(delta)), rel=1e-7)

    def modern(log_excess):
        order = 1 + math.exp(log_excess)
        return spent(order) + math.log((order - 1) / order) - (math.log(delta) + math.log(order)) / (order - 1)

    least = min(minimize_scalar(modern, bounds=(low, low + 1), method="bounded").fun for low in np.arange(-9, 11))
    exact = brentq(lambda eps: gaussian_delta(eps, mu) - delta, 0, 200) if gaussian_delta(0, mu) > delta else 0.0
    value = renyi.best_epsilon(spent, delta)
    assert exact <= value < classical
    assert value == pytest.approx(max(least, 0.0), rel=1e-7)
    assert renyi.best_epsilon(lambda order: order * 1e-9, 0.5) == 0.0
