"""zCDP and the discrete Gaussian: bounds, with dp-accounting as oracle; old ledgers hold them."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as theirs
from scipy.optimize import minimize_scalar

from dpltm.privacy import gdp, pld
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.mechanisms import (
    DiscreteGaussianRelease,
    GaussianRelease,
    NoisySgd,
    Zcdp,
    over_two_steps,
)
from dpltm.privacy.privacy_loss import DiscreteGaussianLoss, ZcdpLoss

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


def test_two_steps() -> None:
    assert over_two_steps(Zcdp(0.5)).rho == 2.0
    assert over_two_steps(DiscreteGaussianRelease(3.0, 2)).sensitivity == 4
