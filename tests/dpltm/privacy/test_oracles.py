"""The certified accountant against Opacus: the same Renyi divergences, and the PRV accountant's rigorous bracket.

Opacus takes the larger direction of add/remove, as we do for Renyi; its PRV accountant composes one direction (mixture
against plain), so that its lower bound is a lower bound on ours. It composes by another discretisation (Gopi, Lee,
Wutschitz 2021, rounding to the nearest with the mean kept) and another bound on its error.
"""

import math

import numpy as np
import pytest
from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent
from opacus.accountants.prv import PRVAccountant

from dpltm.privacy import renyi
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.mechanisms import NoisySgd

pytestmark = pytest.mark.filterwarnings("ignore:Optimal order is the")  # Opacus's PRV asks its RDP for a domain size


def bracket(sigma, rate, steps, delta, eps_error):
    """Lower and upper bound of Opacus's PRV accountant."""
    accountant = PRVAccountant()
    accountant.history = [(sigma, rate, steps)]
    losses = accountant._get_dprv(eps_error=eps_error, delta_error=delta / 1000)
    lower, _, upper = losses.compute_epsilon(delta, delta / 1000, eps_error)
    return float(lower), float(upper)


RUNS = ((3, 1e-3), (200, 1e-5), (1000, 1e-6), (2000, 1e-8))  # steps and delta
SIGMAS, RATES = (0.6, 1.1, 5.0), (0.001, 0.02, 0.2)


@pytest.mark.one_of(4)
@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("rate", RATES)
def test_pld_lies_in_the_bracket(sigma, rate):
    """Never below the lower bound, and above the upper one by no more than our own grid.

    18 settings: every two of noise and rate meet, at half of the runs.
    """
    place = SIGMAS.index(sigma) + RATES.index(rate)
    for steps, delta in (RUNS[place % 4], RUNS[(place + 2) % 4]):
        found = epsilon([NoisySgd(rate, steps, sigma)], delta)
        lower, upper = bracket(sigma, rate, steps, delta, eps_error=max(0.01, 0.002 * found))
        assert lower < upper
        assert lower <= found <= max(upper, 0.0) + 5e-4 * found + 1e-4, (steps, delta)


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("rate", RATES)
def test_renyi_divergences_agree(sigma, rate):
    """At whole and at fractional orders: ours is integrated, theirs is summed with its signs."""
    for order in (1.25, 2.0, 3.7, 8.0, 31.5, 64.0):
        theirs = float(compute_rdp(q=rate, noise_multiplier=sigma, steps=1, orders=order))
        ours = renyi.sampled_gaussian(sigma, rate, order)
        assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-12)  # their series ends at e^-30
        assert ours >= theirs * (1 - 1e-8) - 1e-12


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "delta"), [(1.1, 256 / 60000, 14062, 1e-5), (5.0, 0.3, 1000, 1e-8)]
)
def test_rdp_epsilon_agrees(sigma, rate, steps, delta):
    """On a dense set of orders Opacus is a little above our best real order, and not by more than the density allows."""
    orders = list(1 + np.geomspace(0.05, 200, 300))
    spent = compute_rdp(q=rate, noise_multiplier=sigma, steps=steps, orders=orders)
    theirs, _ = get_privacy_spent(orders=orders, rdp=spent, delta=delta)
    ours = epsilon([NoisySgd(rate, steps, sigma)], delta, "rdp")
    assert ours <= theirs * (1 + 1e-6)
    assert ours == pytest.approx(theirs, rel=1e-3)
    classical = min(rdp - math.log(delta) / (order - 1) for rdp, order in zip(spent, orders, strict=True))
    assert epsilon([NoisySgd(rate, steps, sigma)], delta, "ma") == pytest.approx(classical, rel=1e-3)
