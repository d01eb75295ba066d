"""A million steps and more, and small deltas: against integrals of their own (``contour``), and what is known exactly."""

import math

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

from contour import Steps, epsilons
from dpltm.privacy import gdp, pld
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.mechanisms import NoisySgd, Selection
from dpltm.privacy.privacy_loss import GaussianLoss, SampledGaussianLoss
from exact import gaussian_delta


def certified(sigma: float, rate: float, steps: int, delta: float, replace_one: bool = False) -> float:
    return epsilon([NoisySgd(rate, steps, sigma, adjacency="replace-one" if replace_one else "add-remove")], delta)


@pytest.mark.parametrize("removed", [True, False])
def test_the_integrals_are_those_of_a_gaussian(removed: bool) -> None:
    way = Steps(20.0, 1.0, 1000, "removed" if removed else "added", 1e-20)
    for x in (1.0, 5.0, 9.0):
        assert way.log_delta(x) == pytest.approx(
            math.log(gaussian_delta(np.array([x]), math.sqrt(1000) / 20)[0]), abs=1e-9
        )


SHORT = [
    (1.0, 1e-5, 10**6, 1e-9, False),
    (0.5, 1e-5, 10**6, 1e-12, False),
    (1.0, 1e-3, 10**6, 1e-5, False),
    (2.0, 1e-3, 10**6, 1e-9, True),
    (20.0, 1e-2, 10**7, 1e-9, False),
]
"""Noise, rate, steps, delta, replace-one."""

LONG = [
    (sigma, rate, steps, delta, replace_one)
    for rate, sigmas in {1e-5: (0.5, 1.0, 5.0), 1e-4: (0.7, 2.0), 1e-3: (1.0, 20.0), 1e-2: (5.0, 20.0)}.items()
    for sigma in sigmas
    for steps in (10**6, 10**7)
    for delta in (1e-5, 1e-7, 1e-9, 1e-12)
    for replace_one in (False, True)
]


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "delta", "replace_one"),
    [*SHORT, *(pytest.param(*row, marks=pytest.mark.long) for row in LONG)],
)
def test_what_is_certified_is_just_above_the_truth(
    sigma: float, rate: float, steps: int, delta: float, replace_one: bool
) -> None:
    found = certified(sigma, rate, steps, delta, replace_one)
    low, high = epsilons(sigma, rate, steps, delta, found, replace_one=replace_one)
    assert low * (1 - 1e-6) <= found <= high * 1.015  # 1.2 % where one step spreads far more than its deviation


def test_small_deltas_are_those_of_dp_accounting() -> None:
    sigma, rate, steps = 0.7, 4e-5, 100_000
    theirs = from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=1e-4).self_compose(steps)
    for delta in (1e-8, 4.1e-10, 3.9e-10, 1e-10):  # below, what rounds their transforms is no longer small
        assert certified(sigma, rate, steps, delta) == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=0.02)


@pytest.mark.parametrize(
    ("sigma", "rate", "steps"), [(1.1, 256 / 60_000, 14_062), (1.0, 1e-3, 10**6), (3.0, 0.5, 100)]
)
def test_tilted_or_not_is_the_same_where_both_resolve(sigma: float, rate: float, steps: int) -> None:
    losses = {SampledGaussianLoss(sigma, rate, False): steps}
    delta = 5e3 * pld._rounding(tuple(losses.items()))
    plain, tilted = pld.compose(losses), pld.compose(losses, delta=delta)
    assert plain is not tilted
    assert tilted.epsilon(delta) == pytest.approx(plain.epsilon(delta), rel=1e-3)
    near = tilted.epsilon(delta) * np.array([0.9, 1.0, 1.1])
    assert tilted.delta(near) == pytest.approx(plain.delta(near), rel=0.02)


@pytest.mark.one_of(3)
@pytest.mark.parametrize("mu", [0.03, 1.0, 6.0])
@pytest.mark.parametrize("delta", [1e-7, 1e-10, 1e-14])
def test_a_million_gaussians_of_two_kinds(mu: float, delta: float) -> None:
    """One mu-GDP pair, exactly; a tilted profile is an upper bound at other epsilons, too."""
    half = 500_000
    losses = {GaussianLoss(1000 / (mu * share)): half for share in (0.6, math.sqrt(2 - 0.36))}
    exact, profile = gdp.epsilon(delta, mu), pld.compose(losses, delta=delta)
    assert exact <= profile.epsilon(delta) <= exact * 1.002
    epsilons = np.linspace(0, 2 * exact, 20)
    assert (profile.delta(epsilons) >= gaussian_delta(epsilons, mu) * (1 - 1e-9)).all()


def test_a_direction_that_stands_for_both_goes_with_either() -> None:
    """A Gaussian beside sampled steps, either of which alone gives less, at a delta that takes tilting."""
    delta, sampled, plain = 1e-11, NoisySgd(1e-3, 10**6, 2.0), NoisySgd(1.0, 1, 5.0)
    together, one, other = (epsilon(each, delta) for each in ([sampled, plain], [sampled], [plain]))
    assert max(one, other) < together < one + other
    assert together == pytest.approx(math.hypot(one, other), rel=0.05)


def test_a_draw_beside_a_million_steps() -> None:
    training = NoisySgd(1e-3, 10**6, 2.0)
    draw = Selection(0.1, 0.1, adaptive=False)
    alone, together = epsilon([training], 1e-10), epsilon([draw, training], 1e-10)
    assert alone < together < alone + 0.1
