"""Renyi divergences, GDP and their conversions, against brute-force integration and sums, and figures of the papers."""

import math
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq, minimize_scalar
from scipy.special import logsumexp, ndtr

from dpltm.privacy import gdp, renyi
from dpltm.privacy.calibration import slack_noise
from dpltm.privacy.mechanisms import NoisySgd
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
            ("randomized_response", 2): answers(2),
            ("randomized_response", 7): answers(7),
            ("laplace",): (a * exp((a - 1) * e) + (a - 1) * exp(-a * e)) / (2 * a - 1),
            ("bounded_range",): chance * exp(a * loss) + (1 - chance) * exp(a * (loss - e)),
        }
        return {name: float(log(total) / (a - 1)) for name, total in sums.items()}


@settings(max_examples=200, deadline=None)
@given(log_epsilon=st.floats(-7, 2.69), log_excess=st.floats(-4, 5))
@example(log_epsilon=-7, log_excess=5)  # logarithms of 7e4 whose difference is 5e-5
@example(log_epsilon=-7, log_excess=-4)
def test_pure_kinds_are_never_rounded_below_the_true_divergence(log_epsilon, log_excess):
    epsilon, order = 10**log_epsilon, 1 + 10**log_excess
    for (name, *categories), exact in exact_pure_kinds(epsilon, order).items():
        assert exact <= getattr(renyi, name)(epsilon, *categories, order) <= exact * (1 + 1e-10)


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


# --- Gaussian differential privacy: the paper's figures, and integration of the pair of Gaussians ---


@pytest.mark.parametrize(("sigma", "epochs", "less"), [(1.3, 20, 1.06), (0.7, 70, 0.638)])
def test_golden_slack(sigma, epochs, less):
    """GDP Section 4: the noise that the paper would use for the epsilon that the moments accountant states."""
    plan = NoisySgd(Q, round(epochs / Q), sigma)
    assert slack_noise(plan, 1e-5) == pytest.approx(less, abs=0.005 if less > 1 else 0.001)
    assert slack_noise(NoisySgd(Q, 10, 0.0), 1e-5) == 0


@pytest.mark.parametrize(("epsilon", "mu"), [(0.0, 0.1), (1.0, 1.0), (5.0, 4.0), (0.0, 6.0)])
def test_delta_by_integration(epsilon, mu):
    """The hockey-stick divergence of N(mu, 1) and N(0, 1); the first is larger right of eps/mu + mu/2."""
    grown = math.exp(epsilon)

    def excess(x):
        return (math.exp(-((x - mu) ** 2) / 2) - grown * math.exp(-(x**2) / 2)) / math.sqrt(2 * math.pi)

    start = epsilon / mu + mu / 2
    exact = sum(quad(excess, start + k, start + k + 1, epsabs=0, epsrel=1e-11)[0] for k in range(14))
    assert gdp.delta(epsilon, mu) == pytest.approx(exact, rel=1e-8)


@settings(max_examples=60)
@given(log_mu=st.floats(-6, 2.5), log_delta=st.floats(-14, -0.05))
def test_epsilon_and_mu_are_inverses(log_mu, log_delta):
    mu, delta = 10**log_mu, 10**log_delta
    epsilon = gdp.epsilon(delta, mu)
    assert epsilon >= 0
    assert gdp.delta(epsilon, mu) <= delta * (1 + 1e-5)
    if epsilon > 1e-6:
        assert gdp.delta(epsilon, mu) == pytest.approx(delta, rel=1e-5)
        assert gdp.mu(epsilon, delta) == pytest.approx(mu, rel=1e-5)
        assert gdp.epsilon(delta / 2, mu) > epsilon
    else:
        assert gdp.epsilon(delta, mu / 2) <= epsilon


def test_ends():
    assert gdp.epsilon(1e-5, math.inf) == math.inf
    assert gdp.epsilon(1e-5, 0.0) == 0.0
    assert gdp.epsilon(0.1, 0.2) == 0.0  # delta(0; 0.2) = 2 Phi(0.1) - 1 = 0.0797
    assert gdp.delta(0.0, 0.2) == pytest.approx(2 * ndtr(0.1) - 1, rel=1e-12)
    assert gdp.clt_mu(0.03, 0.1, 10) == math.inf  # e^(1/sigma^2) leaves float64
    assert gdp.delta(100.0, 0.01) == 0.0


@pytest.mark.parametrize(("sigma", "rate"), [(0.1, 0.01), (0.06, 0.01), (0.05, 0.01), (0.15, 1e-3)])
@pytest.mark.parametrize("replace_one", [False, True])
def test_little_noise_has_a_figure(sigma, rate, replace_one):
    """Of a large mu, epsilon is mu^2 / 2 and some mu more: nothing that float64 can still tell from it."""
    mu = gdp.clt_mu(sigma, rate, 1, replace_one=replace_one)
    assert gdp.epsilon(1e-5, mu) == pytest.approx(mu**2 / 2, rel=20 / max(mu, 0.3) + 1e-9)


def test_mu_is_looked_for_between_its_limits():
    """At epsilon 0, delta is 2 Phi(mu/2) - 1, about mu over sqrt(2 pi): 4e-9 at the least mu and 1e-8 at 2.5e-8."""
    assert gdp.mu(0.0, 1e-9) == gdp.MIN_MU == 1e-8
    assert gdp.mu(0.0, 1e-8) == pytest.approx(1e-8 * math.sqrt(2 * math.pi), rel=1e-6)
    assert gdp.mu(1e17, 0.1) == gdp.MAX_MU == 1e8


@given(sigma=st.floats(0.2, 100), log_rate=st.floats(-6, 0), steps=st.integers(1, 10**7))
@settings(max_examples=60)
def test_noise_is_the_inverse_of_mu(sigma, log_rate, steps):
    mu = gdp.clt_mu(sigma, 10**log_rate, steps)
    assert mu == pytest.approx(math.sqrt(steps) * gdp.clt_mu(sigma, 10**log_rate, 1), rel=1e-12)
    assert gdp.clt_noise(mu, 10**log_rate, steps) == pytest.approx(sigma, rel=1e-9)


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_trade_off_is_dual_to_delta(mu):
    """f(a) = sup over epsilon of 1 - delta(epsilon) - e^epsilon a, negative epsilons standing for the other branch."""
    alphas = np.array([0.0, 1e-4, 0.05, 0.3, 0.7, 0.99, 1.0])
    epsilons = np.linspace(-60, 60, 120_001)
    grown = np.exp(epsilons)
    deltas = np.array(ndtr(mu / 2 - epsilons / mu) - grown * ndtr(-mu / 2 - epsilons / mu))
    dual = np.maximum((1 - deltas - grown * alphas[:, None]).max(axis=1), 0)
    assert gdp.trade_off(alphas, mu) == pytest.approx(dual, abs=1e-6)
    assert gdp.trade_off(np.array([0.0, 1.0]), mu) == pytest.approx([1.0, 0.0])
