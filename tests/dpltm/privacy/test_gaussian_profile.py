"""The profile of a sampled Gaussian step against dp-accounting and against 60 digits."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from hypothesis import given, settings
from hypothesis import strategies as st

from dpltm.privacy.privacy_loss import GaussianProfile

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
