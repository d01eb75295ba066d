"""What must hold of the accountants whatever the settings; certified figures against adversaries built here."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_ndtr

from dpltm.privacy import gdp, pld
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.accountants import CERTIFIED
from dpltm.privacy.mechanisms import (
    GaussianRelease,
    Guarantee,
    LaplaceRelease,
    NoisySgd,
    RandomizedResponse,
    Selection,
)
from dpltm.privacy.privacy_loss import BoundedRangeLoss, GaussianLoss, SampledGaussianLoss

GRID = 1e-3
"""What two figures may differ by, relatively, for having been composed on grids of different width (accountants.FINE)."""


def selection(eps1, adaptive=True, draw="exponential", adjacency="add-remove"):
    return Selection(eps1, eps1, draw=draw, adaptive=adaptive, adjacency=adjacency)


sigmas = st.floats(-0.3, 1).map(lambda x: round(10**x, 3))
rates = st.floats(-4, -0.3).map(lambda x: float(f"{10**x:.3g}"))
steps = st.floats(0, 3.5).map(lambda x: round(10**x))
deltas = st.floats(-9, -2).map(lambda x: 10**x)
adjacencies = st.sampled_from(["add-remove", "replace-one"])


@settings(max_examples=6)
@given(
    sigma=sigmas,
    rate=rates,
    steps=steps,
    delta=deltas,
    adjacency=adjacencies,
    factor=st.floats(1.05, 2.0),
    accountant=st.sampled_from(list(CERTIFIED)),
)
def test_epsilon_grows(sigma, rate, steps, delta, adjacency, factor, accountant):
    """With T, q, 1/sigma and 1/delta."""

    def cost(sigma, rate, steps, delta):
        return epsilon([NoisySgd(rate, steps, sigma, adjacency=adjacency)], delta, accountant)

    value = cost(sigma, rate, steps, delta)
    assert value >= 0
    for more in (
        cost(sigma, rate, math.ceil(steps * factor), delta),
        cost(sigma, min(rate * factor, 1.0), steps, delta),
        cost(sigma / factor, rate, steps, delta),
        cost(sigma, rate, steps, delta / factor),
    ):
        assert more >= value * (1 - GRID) - 1e-7


@settings(max_examples=6)
@given(sigma=sigmas, rate=rates, steps=steps, delta=deltas, adjacency=adjacencies, draw=st.sampled_from([0, 0.1, 1.0]))
def test_accountants_stay_in_order(sigma, rate, steps, delta, adjacency, draw):
    """pld <= rdp <= ma, each an upper bound by another road; 1e-6 for the search over orders.

    A draw that came first is composed in 4096 parts, each rounded up, and the place of epsilon too: two parts more.
    """
    events = [NoisySgd(rate, steps, sigma, adjacency=adjacency)]
    for adaptive in (False, True) if draw else (False,):
        both = [*events, selection(draw, adaptive, adjacency=adjacency)] if draw else events
        tight, renyi, moments = (epsilon(both, delta, accountant) for accountant in CERTIFIED)
        assert 0 <= tight <= renyi * (1 + 1e-6) + 1e-9 + draw / 2000
        assert renyi <= moments * (1 + 1e-6) + 1e-9


@settings(max_examples=5)
@given(sigma=sigmas, rate=st.sampled_from([0.001, 0.05, 0.5, 1.0]), steps=steps, delta=deltas)
def test_replace_one_never_costs_less_for_the_same_noise(sigma, rate, steps, delta):
    """Replacing is removing and adding: its sensitivity is twice as large, so that the same noise is half the multiplier.

    Its neighbours include a record that contributes nothing against one that contributes all, which is add/remove.
    """
    for accountant in CERTIFIED:
        one = epsilon([NoisySgd(rate, steps, sigma)], delta, accountant)
        two = epsilon([NoisySgd(rate, steps, sigma / 2, adjacency="replace-one")], delta, accountant)
        assert two >= one * (1 - GRID) - 1e-7


MIXED = (
    NoisySgd(0.02, 40, 1.5),
    NoisySgd(1.0, 5, 3.0),
    NoisySgd(0.02, 7, 1.5),
    selection(0.3, adaptive=False),
    selection(0.2),
    selection(0.2),
    selection(0.4, draw="permute-and-flip"),
    LaplaceRelease(5.0),
    GaussianRelease(4.0),
    Guarantee(0.1, 1e-7),
)
REPLACED = (
    *(replace(event, adjacency="replace-one") for event in MIXED),
    *(RandomizedResponse(0.2, k) for k in (2, 10, 10)),
)


@settings(max_examples=6)
@given(st.data(), st.sampled_from([MIXED, REPLACED]), st.sampled_from(list(CERTIFIED)))
def test_order_is_free(data, events, accountant):
    """An odd one out, too: whichever subset is taken."""
    shuffled = data.draw(st.permutations(events))
    some = shuffled[: data.draw(st.integers(1, len(events)))]
    value = epsilon(some, 1e-5, accountant)
    assert value == pytest.approx(epsilon(sorted(some, key=events.index), 1e-5, accountant), rel=1e-9)
    assert epsilon(events, 1e-5, accountant) >= value * (1 - GRID)


# The exponential mechanism.


@settings(max_examples=5)
@given(
    sigma=sigmas,
    rate=rates,
    steps=st.integers(1, 300),
    eps1=st.floats(0.02, 3),
    delta=deltas,
    shares=st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
def test_draws_lie_between_their_members_and_pure_dp(sigma, rate, steps, eps1, delta, shares):
    """Members: the pair with losses t and t - eps1, beside the training's profile D, in closed form."""
    noisy = NoisySgd(rate, steps, sigma)
    first = epsilon([selection(eps1, adaptive=False), noisy], delta)
    later = epsilon([noisy, selection(eps1)], delta)
    pure = epsilon([noisy, selection(eps1, draw="permute-and-flip")], delta)
    assert first <= later * (1 + GRID) + 1e-4 * eps1
    assert later <= pure * (1 + GRID) + 1e-4 * eps1
    body = pld.compose({SampledGaussianLoss(sigma, rate, False): steps})
    coarse = 0.0  # by what the body, rounded up on one grid for all x, is above the figure of the training alone
    if body.delta(np.zeros(1))[0] > delta:
        whole = brentq(lambda x: body.delta(np.array([x]))[0] - delta, 0.0, first + 1, xtol=1e-9)
        coarse = max(0.0, whole - epsilon([noisy], delta))
    for t in [0.0, eps1, *(share * eps1 for share in shares)]:
        p = math.expm1(t - eps1) / math.expm1(-eps1)

        def member(x, t=t, p=p):
            both = body.delta(np.array([x - t, x - t + eps1])) - 2e-13  # more than its rounding
            return p * both[0] + (1 - p) * both[1]

        if member(0.0) > delta + 1e-12:
            own = brentq(lambda x, member=member: member(x) - delta, 0.0, first + eps1 + 1, xtol=1e-9)
            assert first >= own * (1 - 1e-6) - 1e-8 - coarse


def adversary(mu, eps1, x, adaptive):
    """Exact delta(x) of a Gaussian release y, then an exponential mechanism between two candidates.

    The log odds of the two shift by eps1 between the neighbours. Where the analyst may choose the candidates after y,
    the odds are set by what makes (y, winner) tell the most; else they are the best that do not look at y. Outcomes are
    summed as pairs of probabilities, with no loss distribution and no formula of bounded range.
    """
    y = np.linspace(-9, mu + 9, 20001)
    weight = (y[1] - y[0]) / math.sqrt(2 * math.pi)
    first, second = np.exp(-((y - mu) ** 2) / 2) * weight, np.exp(-(y**2) / 2) * weight
    odds = np.linspace(-6, 6 + eps1, 801)  # log odds of the first candidate where the record is in
    gains = np.zeros((len(odds), len(y)))
    for place, logit in enumerate(odds):
        inside, outside = 1 / (1 + math.exp(-logit)), 1 / (1 + math.exp(eps1 - logit))
        for p, q in ((inside, outside), (1 - inside, 1 - outside)):
            gains[place] += np.maximum(first * p - math.exp(x) * second * q, 0)
    return float(gains.max(axis=0).sum() if adaptive else gains.sum(axis=1).max())


@pytest.mark.parametrize(("mu", "eps1", "x"), [(1.0, 1.0, 0.3), (0.6, 0.5, 1.0), (2.0, 2.5, 2.0)])
def test_an_analyst_who_looks_first_is_covered(mu, eps1, x):
    """The adaptive figure is reached by this analyst; the one for a fixed draw is beaten, and so would be no bound."""
    clever, fixed = adversary(mu, eps1, x, True), adversary(mu, eps1, x, False)
    one_pair = float(pld.compose({GaussianLoss(1 / mu): 1}, eps1).delta(np.array([x]))[0])
    all_pairs = float(pld.compose({GaussianLoss(1 / mu): 1, BoundedRangeLoss(eps1): 1}).delta(np.array([x]))[0])
    assert fixed <= one_pair + 1e-9
    assert fixed == pytest.approx(one_pair, rel=3e-3)
    assert clever > fixed * 1.01  # looking pays
    assert clever > one_pair * 1.005
    assert clever <= all_pairs + 1e-9
    assert clever == pytest.approx(all_pairs, rel=1e-3)


# Extremes.

extremes = {
    "sigma": st.floats(math.log10(0.3), math.log10(500)).map(lambda x: 10**x),
    "rate": st.floats(-6, 0).map(lambda x: 10**x),
    "steps": st.floats(0, 6).map(lambda x: round(10**x)),
    "delta": st.floats(-12, -1).map(lambda x: 10**x),
    "adjacency": adjacencies,
}


@settings(max_examples=8)
@given(**extremes)
def test_extreme_settings_have_a_figure(sigma, rate, steps, delta, adjacency):
    """Finite, in order, above q = 0 and below q = 1, whose cost is known exactly."""
    event = NoisySgd(rate, steps, sigma, adjacency=adjacency)
    values = [epsilon([event], delta, accountant) for accountant in CERTIFIED]
    assert all(0 <= value < math.inf for value in values)
    assert values[0] <= values[1] * (1 + 1e-6) + 1e-9
    assert values[1] <= values[2] * (1 + 1e-6) + 1e-9
    full = epsilon([replace(event, sampling_rate=1.0)], delta)
    assert values[0] <= full * (1 + 5e-3) + 1e-4
    exact = gdp.epsilon(delta, math.sqrt(steps) / sigma)
    assert exact * (1 - 1e-9) <= full <= exact * 1.003 + 1e-4
    assert epsilon([replace(event, steps=max(1, steps // 3))], delta) <= values[0] * (1 + 5e-3) + 1e-6


@settings(max_examples=8)
@given(sigma=extremes["sigma"], rate=extremes["rate"], part=st.floats(0.0, 0.99))
def test_one_extreme_step_is_exact_from_above(sigma, rate, part):
    """The hockey-stick divergence of ((1-q) N(0) + q N(1), N(0)), whose worst set is a half line, above 0.

    delta is from 1e-12 to what it is at epsilon 0, where nothing would be left to compare.
    """

    def log_delta(eps):
        x = sigma**2 * (eps + math.log1p((rate - 1) * math.exp(-eps)) - math.log(rate)) + 0.5
        log_first = np.logaddexp(
            math.log1p(-rate) + log_ndtr(-x / sigma) if rate < 1 else -math.inf,
            math.log(rate) + log_ndtr((1 - x) / sigma),
        )
        log_second = eps + log_ndtr(-x / sigma)
        return log_first + math.log(max(-math.expm1(min(log_second - log_first, 0.0)), 1e-300))

    most, least = log_delta(1e-12), math.log(1e-12)
    asked = least + part * (most - least)
    exact = brentq(lambda eps: log_delta(eps) - asked, 1e-12, 1 / sigma**2 + 60 / sigma, xtol=1e-15)
    found = epsilon([NoisySgd(rate, 1, sigma)], math.exp(asked))
    assert exact * (1 - 1e-6) - 1e-12 <= found <= exact * 1.003 + 1e-4
