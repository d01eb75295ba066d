"""Bounds from releases of two inputs: exact cases, and how often a true epsilon is exceeded."""

import math

import numpy as np
import pytest
from scipy.stats import beta, binom

from dpltm.audit import pair_bound


def test_two_inputs_that_are_always_told_apart():
    """Of n counted releases none was mistaken: a is at least 0.025^(1/n), and b at most 1 less that."""
    low = 0.025 ** (1 / 100)
    expected = math.log(low / (1 - low))
    assert pair_bound(np.ones(200), np.zeros(200), 0.0, 0.95) == pytest.approx(expected)
    assert pair_bound(np.ones(200), np.zeros(200), 0.1, 0.95) == pytest.approx(math.log((low - 0.1) / (1 - low)))


def test_the_half_that_decides_is_not_counted():
    """A test that looks perfect there is counted where it is not."""
    first, second = np.zeros(200), np.zeros(200)
    first[::2], first[1:40:2] = 1.0, 1.0
    low = beta.ppf(0.025, 20, 81)
    high = 1 - 0.025 ** (1 / 100)
    assert pair_bound(first, second, 0.0, 0.95) == pytest.approx(math.log(low / high), rel=1e-6)


def test_equal_inputs_are_not_told_apart():
    assert pair_bound(np.zeros(100), np.zeros(100), 0.0, 0.95) == 0.0
    assert pair_bound(np.zeros(100), np.ones(100), 0.0, 0.95) == 0.0, "scores that speak for the other one"


@pytest.mark.parametrize("epsilon", [2.0, pytest.param(0.2, marks=pytest.mark.long)])
def test_a_true_epsilon_is_exceeded_no_oftener_than_it_may(epsilon):
    """100 audits of randomised response at 95 %, on answers with noise that a threshold may fit."""
    generator, above = np.random.default_rng(11), 0
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    for _ in range(100):
        first, second = ((generator.random(400) < p) + 0.01 * generator.random(400) for p in (chance, 1 - chance))
        above += pair_bound(first, second, 0.0, 0.95) > epsilon
    assert above <= binom.ppf(0.999, 100, 0.05)
