"""Private search: the bound against true divergences of small mechanisms, and against figures from the literature."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from dpltm.privacy.accountant import epsilon
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.mechanisms import (
    MIN_GAMMA,
    GaussianRelease,
    Mechanism,
    NoisySgd,
    PrivateSearch,
    mean_tries,
    over_two_steps,
)
from dpltm.privacy.private_search import search_curve

DELTA = 1e-5
TRAINING = NoisySgd(4096 / 60000, 234, noise_multiplier=1.0)
SILENT = 1e6
"""Noise of a score that tells nothing."""


def gamma_for(mean: float) -> float:
    """The parameter at which ``mean`` tries are expected."""
    return float(math.exp(brentq(lambda log: mean_tries(math.exp(log)) - mean, math.log(MIN_GAMMA), -1e-4)))


def search(mean: float, *trainings: NoisySgd, score_noise: float = SILENT) -> PrivateSearch:
    return PrivateSearch(trainings, score_noise, gamma_for(mean))


def generating(gamma: float, x: np.ndarray) -> np.ndarray:
    """f(x) of the logarithmic distribution."""
    return np.log1p(-(1 - gamma) * x) / math.log(gamma)


def winner(chances: np.ndarray, gamma: float) -> np.ndarray:
    """Chances of the best output, where later ones are better."""
    return np.diff(generating(gamma, np.append(0.0, np.cumsum(chances))))


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilons: np.ndarray) -> np.ndarray:
    return np.maximum(p - np.exp(epsilons)[:, None] * q, 0).sum(axis=1)


def profile(p: np.ndarray, q: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """:func:`hockey_stick` at many epsilons: sums over the outputs of larger loss."""
    order = np.argsort(np.log(p / q))
    losses = np.log(p / q)[order]
    above, below = (np.append(np.cumsum(side[order][::-1])[::-1], 0.0) for side in (p, q))

    def delta(epsilons: np.ndarray) -> np.ndarray:
        place = np.searchsorted(losses, epsilons)
        return above[place] - np.exp(epsilons) * below[place]

    return delta


def worst_order(p: np.ndarray, q: np.ndarray, gamma: float, epsilons: np.ndarray) -> np.ndarray:
    """The true delta of a search over a mechanism of few outputs, in whichever order of them is worst."""
    orders = map(list, itertools.permutations(range(len(p))))
    return np.max(
        [hockey_stick(winner(p[order], gamma), winner(q[order], gamma), epsilons) for order in orders], axis=0
    )


@pytest.mark.long
@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(1e-3, 1), st.floats(1e-3, 1)), min_size=2, max_size=5), st.floats(1.01, 200))
def test_no_small_mechanism_in_any_order_exceeds_the_bound(weights: list[tuple[float, float]], mean: float) -> None:
    p, q = (np.array(side) / sum(side) for side in zip(*weights, strict=True))
    epsilons, gamma = np.linspace(0, 6, 25), gamma_for(mean)
    bound = search_curve(profile(p, q), profile(q, p), gamma)
    assert (bound(epsilons) >= worst_order(p, q, gamma, epsilons) - 1e-12).all()


def test_the_bound_is_nearly_reached() -> None:
    """By an order of the parts of two Gaussians, half a deviation apart: likely ones of some middle, then the likeliest."""
    cuts = np.concatenate([[-math.inf], np.linspace(-6, 6.5, 200), [math.inf]])
    below = np.vectorize(lambda x, mean: 0.5 * math.erfc((mean - x) / math.sqrt(2)))
    p, q = np.diff(below(cuts, 0.5)), np.diff(below(cuts, 0.0))
    epsilons, gamma, likely = np.linspace(0, 4, 401), gamma_for(10), np.argsort(-p / q)
    reached = np.zeros(401)
    for first in range(0, 200, 8):
        for last in range(first, 200, 8):
            order = np.concatenate([likely[first:last], likely[:first], likely[last:]])
            reached = np.maximum(reached, hockey_stick(winner(p[order], gamma), winner(q[order], gamma), epsilons))
    bound = search_curve(profile(p, q), profile(q, p), gamma)(epsilons)
    for delta in (1e-3, 1e-5):
        attacked, proven = (float(epsilons[(curve <= delta).argmax()]) for curve in (reached, bound))
        assert attacked <= proven <= attacked + 0.05


@pytest.mark.parametrize(("each", "renyi", "most"), [(0.2, 0.42, 0.31), (1.0, 1.925, 1.45)])
def test_the_best_of_ten(each: float, renyi: float, most: float) -> None:
    """Renyi: the figures of Papernot and Steinke's theorem; profiles are below; both above a try, and below ten."""
    training = calibrate_noise(each, DELTA, TRAINING)
    found = search(10, training)
    by_renyi, by_profile = epsilon([found], DELTA, "rdp"), epsilon([found], DELTA)
    assert 0.99 * renyi < by_renyi <= renyi
    assert each < by_profile <= most
    assert by_profile < epsilon([training] * 10, DELTA)


@pytest.mark.long
def test_settings_cost_what_they_cost_in_the_mean() -> None:
    cheap, dear = (calibrate_noise(each, DELTA, TRAINING) for each in (0.3, 0.6))
    low, mixed, high = (epsilon([search(10, *some)], DELTA) for some in ((cheap,), (cheap, dear), (dear,)))
    assert low < mixed < high
    assert epsilon([search(10, cheap, cheap)], DELTA) == pytest.approx(low, rel=1e-9)


def test_a_score_costs_as_well() -> None:
    training = calibrate_noise(0.5, DELTA, TRAINING)
    without, told = epsilon([search(10, training)], DELTA), epsilon([search(10, training, score_noise=10.0)], DELTA)
    assert told > 1.1 * without


@pytest.mark.parametrize("accountant", ["pld", "rdp", "ma", "clt"])
def test_searches_compose_with_everything_else(accountant: str) -> None:
    training = calibrate_noise(0.5, DELTA, TRAINING)
    one, other = search(10, training), GaussianRelease(8.0)
    parts = epsilon([one], DELTA, "pld"), epsilon([other], DELTA, "pld")
    if accountant != "clt":
        assert max(parts) < epsilon([one, other], DELTA, accountant) < 2.5 * sum(parts)
    assert epsilon([one, one], DELTA, "pld") < 2 * parts[0]


@pytest.mark.long
def test_directions_and_relations() -> None:
    add, replaced = (
        PrivateSearch((replace(TRAINING, noise_multiplier=4.0, adjacency=relation),), SILENT, 0.1, adjacency=relation)
        for relation in ("add-remove", "replace-one")
    )
    assert epsilon([add], DELTA) < epsilon([over_two_steps(add)], DELTA) < 3 * epsilon([add], DELTA)
    assert 0 < epsilon([replaced], DELTA) < math.inf


@pytest.mark.parametrize("gamma", [0.9, 0.1, 1e-3])
def test_the_mean_number_of_tries(gamma: float) -> None:
    """That of chances (1 - gamma)^k / (k ln(1 / gamma)), summed."""
    k = np.arange(1, 100_000)
    chances = np.exp(k * math.log1p(-gamma)) / (k * -math.log(gamma))
    assert chances.sum() == pytest.approx(1)
    assert mean_tries(gamma) == pytest.approx((k * chances).sum())


@pytest.mark.parametrize(
    "silent", [search(10, replace(TRAINING, noise_multiplier=0.0)), search(10, TRAINING, score_noise=1e-9)]
)
def test_a_try_without_noise_is_no_mechanism(silent: Mechanism) -> None:
    assert epsilon([silent], DELTA) == math.inf
