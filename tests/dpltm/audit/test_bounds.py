"""What an audit proves: exact cases, linear programming, and how often the truth of known mechanisms is exceeded."""

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.special import ndtr
from scipy.stats import beta, binom

from dpltm.audit import (
    TradeOff,
    clopper_pearson,
    epsilon_bound,
    gaussian_epsilon,
    guess,
    least_canaries,
    noise_bound,
    p_value,
    pair_bound,
    planned,
    refutes,
)
from dpltm.privacy.accountant import profile
from dpltm.privacy.mechanisms import NoisySgd
from exact import gaussian_delta


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


def gaussian_curve(mu):
    epsilons = np.linspace(0, mu * mu / 2 + 7 * mu, 200)
    return TradeOff(epsilons, gaussian_delta(epsilons, mu) if mu else np.zeros(200))


def pure_curve(epsilon):
    return TradeOff(np.array([epsilon]), np.zeros(1))


def largest_chance(curve, canaries, guesses, correct):
    """The largest chance of ``correct`` or more right guesses that (1) of ``f_dp`` allows, by linear programming."""
    slopes, values = curve.lines()
    numbers = np.arange(guesses + 1)
    rows, bounds = [], []
    for least in range(1, guesses + 1):
        right = np.where(numbers >= least, numbers, 0) / canaries
        wrong = np.where(numbers >= least - 1, guesses - numbers, 0) / canaries
        rows += [slope * right - wrong for slope in slopes]
        bounds += list(-values)
    found = linprog(
        -(numbers >= correct).astype(float), rows, bounds, np.ones((1, guesses + 1)), [1.0], method="highs"
    )
    assert found.success
    return -found.fun


@pytest.mark.parametrize(
    "curve", [gaussian_curve(0.5), gaussian_curve(2.0), pure_curve(1.0)], ids=["0.5", "2", "pure"]
)
@pytest.mark.parametrize(("canaries", "guesses", "correct"), [(6, 6, 5), (10, 6, 6), (9, 9, 7), (12, 8, 6)])
def test_what_is_refuted_is_what_linear_programming_finds_impossible(curve, canaries, guesses, correct):
    chance = largest_chance(curve, canaries, guesses, correct)
    if chance < 0.999:
        assert refutes(curve, canaries, guesses, correct, 1 - 1.001 * chance)
    assert not refutes(curve, canaries, guesses, correct, 1 - 0.999 * chance)


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
def test_what_happens_is_not_refuted_at_its_own_chance(mu):
    """Independent Gaussian answers, each guess right with the largest chance that G_mu allows, Phi(mu / 2)."""
    for correct in range(1, 13):
        chance = float(binom.sf(correct - 1, 12, ndtr(mu / 2)))
        assert not refutes(gaussian_curve(mu), 12, 12, correct, 1 - chance)


def test_no_right_guess_refutes_nothing_and_perfection_refutes_the_perfectly_private():
    assert not refutes(pure_curve(0.0), 100, 100, 0, 0.95)
    assert refutes(pure_curve(0.0), 100, 100, 100, 0.95)
    assert not refutes(pure_curve(0.0), 100, 100, 50, 0.95)


@cache
def sgd(noise, rate, steps):
    one = profile((NoisySgd(rate, steps, noise),))
    return one, TradeOff.of(one.epsilon, one.delta)


def bound(rate, steps, start, canaries, guesses, correct, confidence=0.95):
    training = NoisySgd(rate, steps, start)
    return noise_bound(training, 1e-5, lambda curve: refutes(curve, canaries, guesses, correct, confidence))


@pytest.mark.parametrize(
    ("noise", "steps", "one_run", "by_trade_off"),
    [(1.1, 14062, 1.26, 1.57), pytest.param(0.7, 10547, 2.04, 2.64, marks=pytest.mark.long)],
)
def test_an_ideal_attacker_reaches_the_reference_bounds(noise, steps, one_run, by_trade_off):
    """docs/privacy-model.md section 7, within three deviations of how many guesses are right; 5,000 canaries.

    The scores of the ideal attacker are sums of very many small losses: N(0, 1), or N(mu, 1) with mu of the CLT.
    """
    rate = 256 / 60000
    mu = rate * math.sqrt(steps * math.expm1(noise**-2))
    guesses = planned(5000, mu, 0.05)
    share = guesses / 5000
    threshold = next(at for at in np.arange(6, -2, -1e-3) if ndtr(mu - at) + ndtr(-at) >= share)
    chance = float(ndtr(mu - threshold) / share)
    off = 3 * math.sqrt(guesses * chance * (1 - chance))
    low, middle, high = (min(round(guesses * chance + side * off), guesses) for side in (-1, 0, 1))
    certified = sgd(noise, rate, steps)[0].epsilon(1e-5)
    assert one_run < epsilon_bound(5000, guesses, high, 1e-5, 0.95)
    assert by_trade_off < bound(rate, steps, noise, 5000, guesses, high)
    assert bound(rate, steps, noise, 5000, guesses, middle) < certified
    assert bound(rate, steps, noise, 5000, guesses, low) > epsilon_bound(5000, guesses, low, 1e-5, 0.95) > 0.5


def test_the_search_starts_anywhere():
    found = {round(bound(0.05, 200, start, 1000, 200, 150), 2) for start in (0.5, 1.0, 4.0)}
    assert len(found) <= 2
    assert max(found) - min(found) <= 0.011


def simulated_scores(generator, included, noise, rate, steps):
    """The audit that an ideal attacker makes: log-likelihood ratios of every step."""
    scores = np.zeros(len(included))
    for _ in range(steps):
        x = noise * generator.standard_normal(len(included)) + (included & (generator.random(len(included)) < rate))
        scores += np.log1p(rate * np.expm1((2 * x - 1) / (2 * noise**2)))
    return scores


@pytest.mark.parametrize(
    ("noise", "rate", "steps"),
    [(0.6, 0.02, 50), *(pytest.param(*case, marks=pytest.mark.long) for case in ((1.0, 0.1, 50), (2.0, 1.0, 4)))],
)
def test_simulated_audits_exceed_the_certified_epsilon_no_oftener_than_they_may(noise, rate, steps):
    """200 audits of noisy SGD at 95 %, all errors paid for; refuting the truth itself is exceeding it."""
    generator, above = np.random.default_rng(3), 0
    certified, curve = sgd(noise, rate, steps)
    mu = rate * math.sqrt(steps * math.expm1(noise**-2))
    for _ in range(200):
        included = generator.random(500) < 0.5
        scores = simulated_scores(generator, included, noise, rate, steps)
        above += any(
            refutes(curve, 500, one.guesses, one.correct, 1 - one.error / 2)
            or epsilon_bound(500, one.guesses, one.correct, 1e-5, 1 - one.error / 2) > certified.epsilon(1e-5)
            for one in guess(scores, included, mu, 0.95)
        )
    assert above <= binom.ppf(0.999, 200, 0.05)


@pytest.mark.parametrize(("count", "trials"), [(0, 10), (3, 20), (20, 20)])
def test_clopper_pearson_is_where_so_few_become_unlikely(count, trials):
    upper = clopper_pearson(count, trials, 0.95)
    assert upper == 1.0 if count == trials else binom.cdf(count, trials, upper) == pytest.approx(0.05)


def test_the_estimate_is_near_the_mu_of_gaussian_scores():
    generator = np.random.default_rng(5)
    included = generator.random(100_000) < 0.5
    found = gaussian_epsilon(generator.normal(size=100_000) + 1.5 * included, included, 1e-5, 0.95)
    assert gaussian_delta(found, 1.4) < 1e-5 < gaussian_delta(found, 1.5)
    assert gaussian_epsilon(generator.normal(size=1000), np.arange(1000) % 2 == 0, 1e-5, 0.95) < 0.5


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


@pytest.mark.parametrize("epsilon", [2.0, pytest.param(0.2, marks=pytest.mark.long)])
def test_a_true_epsilon_is_exceeded_no_oftener_than_it_may(epsilon):
    """100 audits of randomised response at 95 %, on answers with noise that a threshold may fit."""
    generator, above = np.random.default_rng(11), 0
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    for _ in range(100):
        first, second = ((generator.random(400) < p) + 0.01 * generator.random(400) for p in (chance, 1 - chance))
        above += pair_bound(first, second, 0.0, 0.95) > epsilon
    assert above <= binom.ppf(0.999, 100, 0.05)
