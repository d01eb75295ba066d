"""Trade-off curves: closed forms, the shape that theory demands, and attackers that never beat them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from dpltm.errors import InputError
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.events import (
    BudgetEvent,
    DatasetRef,
    ProvenanceEvent,
    TrainingEvent,
)
from dpltm.privacy.mechanisms import (
    GaussianRelease,
    Guarantee,
    LaplaceRelease,
    NoisySgd,
    RandomizedResponse,
    Selection,
    Unprotected,
)
from dpltm.privacy.trade_off import curves, curves_of_events, sentence

DATA = DatasetRef("mnist", "f1", "k1", 0, 60000, "places")
FIRST = Selection(0.5, 0.5, adaptive=False)
LAPLACE = LaplaceRelease(1.0, 1.5)
GAUSSIAN = GaussianRelease(2.0, 3.0)
GUARANTEE = Guarantee(1.0)
PUBLIC = ProvenanceEvent(DATA, "public", "s", time="t")
ALPHAS = np.array([0.0, 1e-4, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0])


def training(steps, rate, sigma, adjacency="add-remove"):
    return NoisySgd(rate, steps, sigma, adjacency=adjacency)


def randomized(eps, categories):
    return RandomizedResponse(eps, categories)


def at(found, alphas=ALPHAS):
    return np.array([found.misses_at(alpha) for alpha in alphas])


def binary(eps, alphas):
    """Randomised response with two answers, the worst of pure epsilon-DP (Wasserman and Zhou 2010)."""
    return np.maximum(np.maximum(1 - math.exp(eps) * alphas, math.exp(-eps) * (1 - alphas)), 0)


def neyman_pearson(p, q, alphas):
    """Least misses of the best test between two distributions on finitely many outcomes, randomised at the threshold."""
    order = np.argsort(-p / q)
    false_alarms = np.concatenate([[0.0], np.cumsum(q[order])])
    misses = 1 - np.concatenate([[0.0], np.cumsum(p[order])])
    return np.interp(alphas, false_alarms, misses)


MANY = [
    [training(1, 1.0, 1.0)],
    [training(3515, 256 / 60000, 1.1)],
    [training(200, 0.1, 0.8, "replace-one")],
    [FIRST],
    [replace(FIRST, adaptive=True)],
    [FIRST, training(3515, 256 / 60000, 1.1), GAUSSIAN],
    [LAPLACE],
    [LAPLACE, LAPLACE, GUARANTEE],
    [randomized(2.0, 5)],
    [replace(GUARANTEE, epsilon=8.0)],
    [training(10, 1.0, 0.3)],
    [],
]


# Closed forms.


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("kind", ["training", "replace-one", "gaussian", "four steps"])
def test_full_gaussian_steps_are_the_gaussian_curve(mu, kind):
    """G_mu exactly (Dong, Roth, Su 2022): never above it, and below by no more than 1e-4."""
    event = {
        "training": training(1, 1.0, 1 / mu),
        "replace-one": training(1, 1.0, 1 / mu, "replace-one"),
        "gaussian": replace(GAUSSIAN, noise_multiplier=1 / mu),
        "four steps": training(4, 1.0, 2 / mu),
    }[kind]
    found = curves([event])
    for alphas, misses in ((ALPHAS, at(found)), (found.false_alarms, found.misses)):
        exact = ndtr(ndtri(1 - alphas) - mu)
        assert np.all(misses <= exact + 1e-15)
        assert np.all(misses >= exact - 1e-4)


@pytest.mark.parametrize("eps", [0.1, 1.0, 3.0, 8.0])
def test_pure_differential_privacy(eps):
    """Of a guarantee nothing else is known, and randomised response with two answers attains it."""
    for event in (replace(GUARANTEE, epsilon=eps), randomized(eps, 2)):
        misses, exact = at(curves([event])), binary(eps, ALPHAS)
        assert np.all(misses <= exact + 1e-12)
        assert np.all(misses >= exact - 1e-4)


@pytest.mark.parametrize(("eps", "categories"), [(1.0, 3), (2.0, 10), (0.5, 100)])
def test_randomized_response(eps, categories):
    """The likelihood ratio takes three values: e^eps, 1 and e^-eps."""
    likely = math.exp(eps) / (math.exp(eps) + categories - 1)
    rare = likely / math.exp(eps)
    p = np.array([likely, rare, rare * (categories - 2)])
    q = np.array([rare, likely, rare * (categories - 2)])
    misses, exact = at(curves([randomized(eps, categories)])), neyman_pearson(p, q, ALPHAS)
    assert np.all(misses <= exact + 1e-12)
    assert np.all(misses >= exact - 2e-3)


@pytest.mark.parametrize("shift", [0.3, 1.0, 3.0])
def test_laplace(shift):
    """The best test is a threshold on the released value (Dong, Roth, Su 2022, Lemma A.6)."""
    threshold = np.linspace(-30, 30, 20001)

    def below(x):
        return np.where(x < 0, np.exp(np.minimum(x, 0)) / 2, 1 - np.exp(-np.maximum(x, 0)) / 2)

    false_alarms, misses = 1 - below(threshold), below(threshold - shift)
    exact = np.interp(ALPHAS, false_alarms[::-1], misses[::-1], left=1.0, right=0.0)
    found = at(curves([replace(LAPLACE, sensitivity=shift)]))
    assert np.all(found <= exact + 1e-5)  # the interpolation errs upwards
    assert np.all(found >= exact - 2e-3)


@pytest.mark.parametrize("eps", [0.5, 2.0])
def test_no_draw_pair_beats_the_curve(eps):
    """A first draw: two outcomes with losses t and t - eps for any t; the curve lies under each, and touches the least."""
    found = at(curves([replace(FIRST, eps1=eps, certified_epsilon=eps)]))
    t = np.linspace(0, eps, 402)[1:-1]
    exact = np.empty((len(t), len(ALPHAS)))
    for row, loss in enumerate(t):
        chance = math.expm1(loss - eps) / math.expm1(-eps)
        p = np.array([chance, 1 - chance])
        exact[row] = neyman_pearson(p, p * np.exp([-loss, eps - loss]), ALPHAS)
    assert np.all(found <= exact.min(axis=0) + 1e-9)
    assert np.all(found >= exact.min(axis=0) - 3e-3)


@pytest.mark.parametrize("eps", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("adaptive", [True, False])
def test_the_epsilon_curve_of_a_draw(eps, adaptive):
    """(1 - e^((x - eps)/2))^2 / (1 - e^-eps), the largest over the two-outcome pairs: never below, and close."""
    found = curves([replace(FIRST, eps1=eps, certified_epsilon=eps, adaptive=adaptive)])
    exact = np.expm1((np.minimum(found.epsilons, eps) - eps) / 2) ** 2 / -math.expm1(-eps)
    assert np.all(found.deltas >= exact - 1e-12)  # as far as float64 tells the two apart
    assert np.all(found.deltas <= exact + 1e-3 * eps)


def test_nothing_released_tells_nothing():
    for found in (curves([]), curves_of_events([]), curves_of_events([PUBLIC, BudgetEvent(DATA, 1.0, 1e-5)])):
        assert at(found) == pytest.approx(1 - ALPHAS, abs=1e-12)


# Attackers.


def errors(absent, present, alpha):
    """Misses of the test whose false alarms among ``absent`` are a share of ``alpha``, larger scores mean present."""
    return float(np.mean(present <= np.quantile(absent, 1 - alpha)))


@pytest.mark.parametrize(
    ("steps", "rate", "sigma", "first"), [(1, 0.3, 0.6, None), (40, 0.1, 0.7, None), (20, 0.2, 1.0, 1.0)]
)
@pytest.mark.parametrize("direction", ["added", "removed"])
def test_the_best_attacker_never_beats_the_curve(steps, rate, sigma, first, direction):
    """The likelihood ratio of the sampled Gaussian itself, of a draw before it too: played 200,000 times.

    The margin is four standard deviations of each share; where the pair is the worst one, the curve is close.
    """
    rng, n = np.random.default_rng(20260102), 200_000

    def play(present):
        score = np.zeros(n)
        if first:
            loss = first / 2  # the pair whose losses are +-eps/2
            chance = math.expm1(loss - first) / math.expm1(-first)  # under present
            high = rng.random(n) < (chance if present else chance * math.exp(-loss))
            score += np.where(high, loss, loss - first)
        for _ in range(steps):
            enters = present & (rng.random(n) < rate)
            x = enters + sigma * rng.standard_normal(n)
            score += np.log1p(rate * np.expm1((2 * x - 1) / (2 * sigma**2)))
        return score

    absent, present = play(False), play(True)
    if direction == "removed":
        absent, present = -present, -absent
    events = [training(steps, rate, sigma)]
    if first:
        events = [replace(FIRST, eps1=first, certified_epsilon=first), *events]
    found = curves(events)
    for alpha in (0.01, 0.05, 0.1, 0.3, 0.5):
        margin = 4 * math.sqrt(0.25 / n)
        later = min(alpha + 4 * math.sqrt(alpha * (1 - alpha) / n), 1.0)
        assert errors(absent, present, alpha) >= found.misses_at(later) - margin
    gaps = [errors(absent, present, alpha) - found.misses_at(alpha) for alpha in (0.05, 0.5)]
    assert min(gaps) < 0.1  # and the attack is one


def test_one_full_gaussian_step_attacked_exactly():
    """Threshold tests on N(0, 1) against N(mu, 1), false alarms and misses by their formulas."""
    found = curves([training(1, 1.0, 1 / 1.5)])
    for threshold in np.linspace(-4, 6, 101):
        assert ndtr(threshold - 1.5) >= found.misses_at(float(ndtr(-threshold))) - 1e-15


@settings(max_examples=20)
@given(st.floats(0.2, 3.0), st.integers(1, 12), st.floats(0.001, 0.999))
def test_many_answers_of_randomised_response(eps, answers, alpha):
    """The number of true answers tells all: two binomials."""
    likely = 1 / (1 + math.exp(-eps))
    counts = np.arange(answers + 1)
    p, q = binom.pmf(counts, answers, likely), binom.pmf(counts, answers, 1 - likely)
    found = curves([randomized(eps, 2)] * answers).misses_at(alpha)
    assert found <= neyman_pearson(p, q, np.array([alpha]))[0] + 1e-9


# Shape.


@pytest.mark.parametrize("events", MANY, ids=range(len(MANY)))
def test_shape(events):
    """A trade-off function is convex, falls, and lies under 1 - alpha; the arrays go together."""
    found = curves(events)
    alphas, misses = found.false_alarms, found.misses
    assert alphas[0] == 0
    assert alphas[-1] == 1
    assert np.all(np.diff(alphas) > 0)
    assert np.all(misses >= 0)
    assert np.all(misses + alphas <= 1 + 1e-15)
    assert np.all(np.diff(misses) <= 1e-15)
    slopes = np.diff(misses) / np.diff(alphas)
    assert np.all(np.diff(slopes) >= -1e-6 * np.abs(slopes[1:]) - 1e-9)
    assert misses[-1] == 0
    assert misses[0] >= 1 - 1e-6
    assert at(found, alphas) == pytest.approx(misses, abs=1e-15)
    assert found.epsilons[0] == 0
    assert len(found.epsilons) == len(found.deltas)
    assert np.all(np.diff(found.epsilons) > 0)
    assert np.all(np.diff(found.deltas) <= 1e-15)
    assert found.deltas[0] <= 1
    assert 0 <= found.deltas[-1] <= 1e-6


@pytest.mark.parametrize("events", MANY[:7], ids=range(7))
def test_the_epsilon_curve_is_the_certified_one(events):
    """At every delta the curve and the accountant agree, to the spacing of the curve."""
    found = curves(events)
    for place in (40, 100, 200, 300):
        delta = float(found.deltas[place])
        if delta > 1e-9:
            assert epsilon(events, delta * (1 + 1e-9)) <= found.epsilons[place + 1]
            assert epsilon(events, delta * (1 + 1e-9)) >= found.epsilons[place - 1]


def test_more_releases_leave_fewer_misses():
    steps = [at(curves([training(steps, 0.05, 1.0)])) for steps in (10, 100, 1000)]
    assert np.all(steps[0] >= steps[1])
    assert np.all(steps[1] >= steps[2])
    assert steps[0][4] > steps[1][4] > steps[2][4]


# The nominal curve.


def test_the_central_limit_is_drawn_beside():
    """docs/privacy-model.md section 5.5: mu = 0.5736 for 14062 steps."""
    found = curves([training(14062, 256 / 60000, 1.1)])
    assert found.mu == pytest.approx(0.5736, abs=5e-5)
    assert found.misses_gdp == pytest.approx(ndtr(ndtri(1 - found.false_alarms) - found.mu), abs=1e-12)
    assert found.misses_at(0.05) < np.interp(0.05, found.false_alarms, found.misses_gdp)


def test_no_central_limit_of_a_draw():
    for events in ([FIRST, training(10, 0.1, 1.0)], [LAPLACE], [randomized(1.0, 2)]):
        found = curves(events)
        assert found.mu is None
        assert found.misses_gdp is None


# Refusals.


@pytest.mark.parametrize(
    "event",
    [
        Unprotected(),
        training(1, 0.1, 0.0),
        replace(GUARANTEE, epsilon=1000.0),
    ],
)
def test_nothing_to_draw(event):
    with pytest.raises(InputError) as caught:
        curves([training(10, 0.1, 1.0), event])
    assert str(caught.value) == (
        "records: there is no curve to draw: something was released without protection, or at an epsilon above 500"
    )


def test_curves_of_a_ledger():
    """Whoever is attacked, the curve of the part that was treated worst holds; what has no curve is named."""
    halves = [replace(DATA, start=start, stop=start + 30000) for start in (0, 30000)]
    mechanisms = (training(10, 0.1, 1.0), training(1, 1.0, 3.0))
    events = [TrainingEvent(ref, sgd, "clip 1", 10) for ref, sgd in zip(halves, mechanisms, strict=True)]
    both, first, last = curves_of_events(events), curves([mechanisms[0]]), curves([mechanisms[1]])
    worst = np.minimum([first.misses_at(alpha) for alpha in ALPHAS], [last.misses_at(alpha) for alpha in ALPHAS])
    assert at(both) == pytest.approx(worst, abs=1e-3)
    assert both.mu == max(first.mu, last.mu)
    with pytest.raises(InputError, match=r"^mnist\[0:60000\]: there is no curve to draw: "):
        curves_of_events([replace(PUBLIC, provenance="private")])


def test_a_guarantee_that_may_fail():
    """(eps, delta)-DP is the larger of two lines, less delta, and 0 (Wasserman, Zhou 2010; Kairouz, Oh, Viswanath 2015)."""
    found = at(curves([replace(GUARANTEE, epsilon=1.0, delta=1e-3)]))
    exact = np.maximum(np.maximum(1 - 1e-3 - math.e * ALPHAS, (1 - 1e-3 - ALPHAS) / math.e), 0)
    assert np.all(found <= exact + 1e-12)
    assert np.all(found >= exact - 2e-3)


# In words.


@pytest.mark.parametrize(
    ("misses", "alarms", "shown"),
    [
        (0.8469, 0.05, "at 5 % false alarms"),
        (0.84699999, 0.01, "at 1 % false alarms"),
        (0.8461, 0.005, "at 0.5 % false alarms"),
        (0.8460001, 0.125, "at 12.5 % false alarms"),
    ],
)
def test_sentence_rounds_down(misses, alarms, shown):
    """What is promised is never more than what holds: neither more misses, nor at more false alarms."""
    assert sentence(misses, alarms) == (
        f"{shown}, an attacker who asks whether one person's record was used misses at least 84.6 % of those whose record"
        " was"
    )


@given(st.floats(0, 1))
def test_sentence_never_promises_more(misses):
    share = float(sentence(misses).split("at least ")[1].split(" %")[0])
    assert misses * 100 - 0.1001 <= share <= misses * 100 + 1e-9


def test_sentence_at_the_ends():
    assert " misses at least 0 % of" in sentence(0.0)
    assert " misses at least 0 % of" in sentence(0.0009)
    assert " misses at least 95 % of" in sentence(0.95)
    assert " misses at least 100 % of" in sentence(1.0)
