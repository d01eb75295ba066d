"""The best attacker: exact for mechanisms whose trade-off function is known, and never better off than that by much."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from dpltm.privacy import gdp
from dpltm.privacy.mechanisms import GaussianRelease, Guarantee, Mechanism, NoisySgd
from dpltm.privacy.trade_off import curves
from dpltm.reports.statement import FALSE_ALARMS, PRIORS, odds, precision


def told(*mechanisms: Mechanism) -> tuple[dict[float, float], dict[float, float]]:
    """How often the best attacker is right, by prior; and what he finds, by false alarms."""
    body = odds(curves(mechanisms))
    right, found = (list(body[name]) for name in ("right", "found"))
    return ({row["prior"]: row["at_most"] for row in right}, {row["false_alarms"]: row["at_most"] for row in found})


def test_against_a_gaussian_release() -> None:
    """Of mu = 1: total variation 2 Phi(1/2) - 1, trade-off Phi(Phi^-1(1 - alpha) - 1), delta by Balle and Wang."""
    right, found = told(GaussianRelease(1.0))
    assert right[0.5] == pytest.approx(norm.cdf(0.5), abs=1e-4)
    assert right[0.5] >= norm.cdf(0.5)
    exact = 0.9 + 0.1 * gdp.delta(math.log(9), 1.0)
    assert exact <= right[0.1] <= exact + 1e-3
    for alarms in FALSE_ALARMS:
        assert found[alarms] == pytest.approx(1 - norm.cdf(norm.ppf(1 - alarms) - 1), rel=0.01)
        assert found[alarms] >= 1 - norm.cdf(norm.ppf(1 - alarms) - 1)


def test_against_a_pure_guarantee() -> None:
    """Of epsilon = ln 3 the best guess at even odds is right in 3 of 4 cases, and a yes at alpha finds 3 alpha."""
    right, found = told(Guarantee(math.log(3)))
    assert 0.75 <= right[0.5] <= 0.75001
    assert right[0.1] == pytest.approx(0.9, abs=1e-6)  # 9 to 1 against: no answer outweighs that
    assert found[0.05] == pytest.approx(0.15, rel=1e-3)


def test_nothing_learnt() -> None:
    right, found = told()
    assert right == {prior: max(prior, 1 - prior) for prior in PRIORS}
    assert found == pytest.approx({alarms: alarms for alarms in FALSE_ALARMS})


@given(st.floats(0.5, 20), st.floats(1e-3, 1), st.integers(1, 200))
def test_no_attacker_does_worse_than_guessing_or_better_than_always(noise: float, rate: float, steps: int) -> None:
    right, found = told(NoisySgd(rate, steps, noise))
    for prior, share in right.items():
        assert max(prior, 1 - prior) <= share + 1e-12 <= 1 + 1e-9
    for alarms, share in found.items():
        assert alarms <= share + 1e-9
        assert share <= 1


def test_precision_is_bayes() -> None:
    assert precision(0.3, 0.1, 0.5) == pytest.approx(0.75)
    assert precision(0.3, 0.1, 0.1) == pytest.approx(0.25)
    assert precision(0.0, 0.0, 0.1) == 0.1
