"""Gaussian differential privacy: the paper's figures, and integration of the pair of Gaussians."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtr

from dpltm.privacy import gdp
from dpltm.privacy.calibration import slack_noise
from dpltm.privacy.mechanisms import NoisySgd

Q = 256 / 60000


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
