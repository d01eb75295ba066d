"""The bound from one run: exact cases, and audits of mechanisms of known epsilon, which it must not exceed."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from dpltm.audit import epsilon_bound, guess, least_canaries, p_value
from dpltm.errors import InputError


def binomial_tail(trials, least, chance):
    """P[at least so many of independent trials], summed out."""
    return sum(math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(least, trials + 1))


@given(st.integers(1, 12), st.integers(0, 12), st.floats(0, 4))
def test_of_randomised_response_the_chance_is_exact(guesses, correct, epsilon):
    """Every coin answered rightly with e^epsilon to 1: no pure mechanism lets more guesses be right."""
    correct = min(correct, guesses)
    expected = binomial_tail(guesses, correct, math.exp(epsilon) / (1 + math.exp(epsilon)))
    assert p_value(20, guesses, correct, epsilon, 0.0) == pytest.approx(expected)


@given(st.integers(1, 6), st.floats(0, 2), st.floats(0, 0.1))
def test_a_mechanism_that_fails_with_chance_delta_stays_beneath(canaries, epsilon, delta):
    """Randomised response that tells the coin outright with chance delta, each canary by itself, enumerated."""
    honest = math.exp(epsilon) / (1 + math.exp(epsilon))
    chance = delta + (1 - delta) * honest
    for correct in range(canaries + 1):
        truth = binomial_tail(canaries, correct, chance)
        assert truth <= p_value(canaries, canaries, correct, epsilon, delta) + 1e-12


def test_all_right_refutes_what_a_page_of_arithmetic_says():
    """chance^r = 0.05 at r = 1000: chance = 0.05^(1/1000), epsilon = ln(chance / (1 - chance)) = 5.81."""
    chance = 0.05 ** (1 / 1000)
    assert epsilon_bound(1000, 1000, 1000, 0.0, 0.95) == pytest.approx(math.log(chance / (1 - chance)), abs=1e-6)
    assert epsilon_bound(1000, 1000, 500, 1e-5, 0.95) == 0.0
    assert epsilon_bound(1000, 1000, 1000, 1e-5, 0.95) < epsilon_bound(1000, 1000, 1000, 0.0, 0.95)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_the_fewest_canaries_that_refute_anything(confidence):
    least = least_canaries(confidence)
    assert epsilon_bound(least, least, least, 0.0, confidence) > 0
    assert epsilon_bound(least - 1, least - 1, least - 1, 0.0, confidence) == 0


def test_numbers_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="^" + re.escape("Expected 0 <= correct=3 <= guesses=2 <= canaries=9") + "$"):
        p_value(9, 2, 3, 1.0, 0.0)


def test_the_number_of_guesses_follows_from_public_numbers_alone():
    generator = np.random.default_rng(0)
    taken = {
        tuple(one.guesses for one in guess(generator.normal(size=500), generator.random(500) < 0.5, 1.0, 0.95))
        for _ in range(5)
    }
    assert len(taken) == 1
    assert sum(one.error for one in guess(np.arange(10.0), np.arange(10) > 4, 1.0, 0.95)) == pytest.approx(0.05)


@pytest.mark.parametrize("strength", [0.5, 3.0, 50.0])
def test_guesses_are_the_ends_of_the_order(strength):
    scores = np.array([5.0, -3.0, 2.0, 0.0, -1.0, 4.0, -2.0, 1.0])
    included = scores > 0.5
    assert all(one.correct == one.guesses for one in guess(scores, included, strength, 0.95))
    assert all(one.correct == 0 for one in guess(-scores, included, strength, 0.95))


@pytest.mark.parametrize("epsilon", [2.0, *(pytest.param(each, marks=pytest.mark.long) for each in (0.5, 4.0))])
def test_simulated_audits_exceed_a_true_epsilon_no_oftener_than_they_may(epsilon):
    """200 audits of randomised response, the worst that epsilon allows, with all errors paid for."""
    generator, canaries, above = np.random.default_rng(7), 400, 0
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    for _ in range(200):
        included = generator.random(canaries) < 0.5
        answers = np.where(generator.random(canaries) < chance, included, ~included)
        scores = answers + 1e-3 * generator.random(canaries)
        found = guess(scores, included, 1.0, 0.95)
        bounds = [epsilon_bound(canaries, one.guesses, one.correct, 0.0, 1 - one.error) for one in found]
        above += max(bounds) > epsilon
    assert above <= binom.ppf(0.999, 200, 0.05)
