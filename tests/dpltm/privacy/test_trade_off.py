"""Trade-off curves: closed forms, the shape that theory demands, and attackers that never beat them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from dpltm.errors import InputError
from dpltm.privacy.account import Account
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.entry import HASHES, Entry, Part
from dpltm.privacy.mechanisms import (
    GaussianRelease,
    Guarantee,
    LaplaceRelease,
    NoisySgd,
    RandomizedResponse,
    Selection,
    Unprotected,
)
from dpltm.privacy.trade_off import curves, curves_of_account, sentence
from exact import two_outcomes

FIRST = Selection(0.5, 0.5, adaptive=False)
SPARSE = NoisySgd(256 / 60000, 3515, 1.1)
ALPHAS = np.array([0.0, 1e-4, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0])


def at(found, alphas=ALPHAS):
    return np.array([found.misses_at(alpha) for alpha in alphas])


def curves_of(*entries):
    return curves_of_account(Account() + entries)


def binary(eps, delta, alphas):
    """(eps, delta)-DP: the larger of two lines, less delta, and 0 (Wasserman, Zhou 2010; Kairouz, Oh, Viswanath 2015)."""
    return np.maximum(np.maximum(1 - delta - math.exp(eps) * alphas, math.exp(-eps) * (1 - delta - alphas)), 0)


@pytest.mark.parametrize(("eps", "delta"), [(0.1, 0.0), (3.0, 0.0), (8.0, 0.0), (1.0, 1e-3)])
def test_a_guarantee(eps, delta):
    """Nothing else is known of it, and of pure ones randomised response with two answers attains it."""
    for mechanism in (Guarantee(eps, delta), *([] if delta else [RandomizedResponse(eps, 2)])):
        misses, exact = at(curves([mechanism])), binary(eps, delta, ALPHAS)
        assert np.all(misses <= exact + 1e-12)
        assert np.all(misses >= exact - (2e-3 if delta else 1e-4))


def neyman_pearson(p, q, alphas):
    """Least misses of the best test between two distributions on finitely many outcomes, randomised at the threshold."""
    order = np.argsort(-p / q)
    false_alarms = np.concatenate([[0.0], np.cumsum(q[order])])
    misses = 1 - np.concatenate([[0.0], np.cumsum(p[order])])
    return np.interp(alphas, false_alarms, misses)


MANY = [
    [NoisySgd(1.0, 1, 1.0)],
    [SPARSE],
    [NoisySgd(0.1, 20, 0.8, adjacency="replace-one")],
    [FIRST],
    [replace(FIRST, adaptive=True)],
    [FIRST, SPARSE, GaussianRelease(2.0)],
    [LaplaceRelease(1.0, 1.5), LaplaceRelease(1.0, 1.5), Guarantee(1.0)],
    [RandomizedResponse(2.0, 5)],
    [Guarantee(8.0)],
    [NoisySgd(1.0, 10, 0.3)],
    [],
]


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
@pytest.mark.parametrize(
    "mechanism", [NoisySgd(1.0, 1, 1.0, adjacency="replace-one"), NoisySgd(1.0, 4, 2.0), GaussianRelease(1.0, 3.0)]
)
def test_full_gaussian_steps_are_the_gaussian_curve(mu, mechanism):
    """G_mu exactly (Dong, Roth, Su 2022): never above it, and below by no more than 1e-4."""
    found = curves([replace(mechanism, noise_multiplier=mechanism.noise_multiplier / mu)])
    for alphas, misses in ((ALPHAS, at(found)), (found.false_alarms, found.misses)):
        exact = ndtr(ndtri(1 - alphas) - mu)
        assert np.all(misses <= exact + 1e-15)
        assert np.all(misses >= exact - 1e-4)


def test_laplace():
    """The best test is a threshold on the released value (Dong, Roth, Su 2022, Lemma A.6)."""
    threshold = np.linspace(-30, 30, 20001)

    def below(x):
        return np.where(x < 0, np.exp(np.minimum(x, 0)) / 2, 1 - np.exp(-np.maximum(x, 0)) / 2)

    false_alarms, misses = 1 - below(threshold), below(threshold - 1.5)
    exact = np.interp(ALPHAS, false_alarms[::-1], misses[::-1], left=1.0, right=0.0)
    found = at(curves([LaplaceRelease(1.0, 1.5)]))
    assert np.all(found <= exact + 1e-5)  # the interpolation errs upwards
    assert np.all(found >= exact - 2e-3)


@pytest.mark.parametrize("eps", [0.5, 2.0])
def test_no_draw_pair_beats_the_curve(eps):
    """A first draw: two outcomes with losses t and t - eps for any t; the curve lies under each, and touches the least."""
    found = at(curves([replace(FIRST, eps1=eps, certified_epsilon=eps)]))
    pairs = [two_outcomes(loss, eps) for loss in np.linspace(0, eps, 402)[1:-1]]
    exact = np.min([neyman_pearson(p, q, ALPHAS) for p, q in pairs], axis=0)
    assert np.all(found <= exact + 1e-9)
    assert np.all(found >= exact - 3e-3)


def errors(absent, present, alpha):
    """Misses of the test whose false alarms among ``absent`` are a share of ``alpha``, larger scores mean present."""
    return float(np.mean(present <= np.quantile(absent, 1 - alpha)))


@pytest.mark.parametrize(("steps", "rate", "sigma", "first"), [(1, 0.3, 0.6, None), (20, 0.2, 1.0, 1.0)])
def test_the_best_attacker_never_beats_the_curve(steps, rate, sigma, first):
    """The likelihood ratio of the sampled Gaussian itself, of a draw before it too: played 100,000 times, either way round.

    The margin is four standard deviations of each share; where the pair is the worst one, the curve is close.
    """
    rng, n = np.random.default_rng(20260102), 100_000

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

    before = [replace(FIRST, eps1=first, certified_epsilon=first)] if first else []
    found = curves([*before, NoisySgd(rate, steps, sigma)])
    there, gone = play(True), play(False)
    for absent, present in ((gone, there), (-there, -gone)):  # added, removed
        for alpha in (0.01, 0.05, 0.1, 0.3, 0.5):
            later = min(alpha + 4 * math.sqrt(alpha * (1 - alpha) / n), 1.0)
            assert errors(absent, present, alpha) >= found.misses_at(later) - 4 * math.sqrt(0.25 / n)
        gaps = [errors(absent, present, alpha) - found.misses_at(alpha) for alpha in (0.05, 0.5)]
        assert min(gaps) < 0.1  # and the attack is one


@pytest.mark.parametrize("mechanisms", MANY, ids=range(len(MANY)))
def test_shape(mechanisms):
    """A trade-off function is convex, falls, and lies under 1 - alpha; the arrays go together."""
    found = curves(mechanisms)
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


@pytest.mark.parametrize("mechanisms", MANY[:6], ids=range(6))
def test_the_epsilon_curve_is_the_certified_one(mechanisms):
    """At every delta the curve and the accountant agree, to the spacing of the curve."""
    found = curves(mechanisms)
    for place in (40, 100, 200, 300):
        delta = float(found.deltas[place])
        assert delta > 1e-9
        spent = epsilon(mechanisms, delta * (1 + 1e-9))
        assert found.epsilons[place - 1] <= spent <= found.epsilons[place + 1]


def test_the_central_limit_is_drawn_beside():
    """docs/privacy-model.md section 5.5: mu = 0.5736 for 14062 steps. Not of a draw."""
    found = curves([NoisySgd(256 / 60000, 14062, 1.1)])
    assert found.mu == pytest.approx(0.5736, abs=5e-5)
    assert found.misses_gdp == pytest.approx(ndtr(ndtri(1 - found.false_alarms) - found.mu), abs=1e-12)
    assert found.misses_at(0.05) < np.interp(0.05, found.false_alarms, found.misses_gdp)
    other = curves([FIRST, SPARSE])
    assert other.mu is None
    assert other.misses_gdp is None


def test_curves_of_an_account():
    """Whoever is attacked, the curve of the part that was treated worst holds; what has no curve is refused."""
    halves = [
        Part("people", "ab" * 32, cut="record", start=start, stop=start + HASHES // 2) for start in (0, HASHES // 2)
    ]
    mechanisms = (NoisySgd(0.1, 10, 1.0), NoisySgd(1.0, 1, 3.0))
    entries = [Entry("release", part, (sgd,), "training") for part, sgd in zip(halves, mechanisms, strict=True)]
    both, first, last = (curves_of(*entries), curves([mechanisms[0]]), curves([mechanisms[1]]))
    assert at(both) == pytest.approx(np.minimum(at(first), at(last)), abs=1e-3)
    assert both.mu == max(first.mu, last.mu)
    for silent in (Unprotected(), NoisySgd(0.1, 10, 0.0)):
        with pytest.raises(InputError, match="there is no curve to draw"):
            curves_of(*entries, Entry("release", halves[0], (silent,), "tickets"))
    draw = Entry("release", halves[1], (FIRST,), "winner")
    assert curves_of(entries[0], draw).mu is None


WHOSE = "whether one person's record was used misses at least {} % of those whose record was"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((0.8469, 0.05), "at 5 % false alarms, an attacker who asks " + WHOSE.format("84.6")),
        ((0.84699999, 0.005), "at 0.5 % false alarms, an attacker who asks " + WHOSE.format("84.6")),
        ((0.8460001, 0.125), "at 12.5 % false alarms, an attacker who asks " + WHOSE.format("84.6")),
        ((0.0009, 0.05), "at 5 % false alarms, an attacker who asks " + WHOSE.format("0")),
        ((1.0, 0.05), "at 5 % false alarms, an attacker who asks " + WHOSE.format("100")),
        (
            (0.5, 0.05, "add-remove", "user"),
            "whether any record of one user was used misses at least 50 % of those whose",
        ),
        ((0.5, 0.05, "replace-one", "record"), "which of two records was used misses at least 50 % of the cases"),
        ((0.5, 0.05, "replace-one", "user"), "which of two users was used misses at least 50 % of the cases"),
    ],
)
def test_sentences_round_down_and_name_relation_and_unit(arguments, said):
    """What is promised is never more than what holds: neither more misses, nor at more false alarms."""
    assert said in sentence(*arguments)
