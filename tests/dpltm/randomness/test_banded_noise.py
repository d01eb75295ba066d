"""Banded noise: its strategy, its expected errors, and the streaming form against dense matrices."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.linalg import toeplitz
from scipy.optimize import minimize

from dpltm.randomness.banded_noise import (
    MOST,
    SLACK,
    BandedNoise,
    check_noise,
    noise_of_sums,
    norm,
    optimal_strategy,
    squared_error,
)
from refusals import refused

GOLDEN = (
    ((1.0, 0.5), 6, [1.0, 1.25, 1.8125, 2.203125, 2.67578125, 3.1064453125]),
    ((1.0, 0.7, 0.5, 0.2), 6, [1.0, 1.09, 1.1741, 1.373909, 1.60632941, 1.7515132709]),
)
"""Strategies, steps, and ``jax_privacy.matrix_factorization.toeplitz.per_query_error`` of jax_privacy 2.0.0 in float64."""

OPTIMA = ((2, 20, 6.269233303307336), (4, 100, 15.336178170715025), (8, 420, 31.726288835454326))
"""Bands, steps, and the error of ``optimize_banded_toeplitz`` of the same version at sensitivity 1."""


def dense(strategy: tuple[float, ...], steps: int) -> np.ndarray:
    """C."""
    return toeplitz([*strategy, *[0.0] * steps][:steps], np.zeros(steps))


@pytest.mark.parametrize(("strategy", "steps", "errors"), GOLDEN)
def test_expected_errors_are_those_of_jax_privacy(strategy, steps, errors):
    assert noise_of_sums(strategy, steps) == pytest.approx(errors, rel=1e-12)


@pytest.mark.parametrize(("bands", "steps", "error"), OPTIMA)
def test_optimal_strategies_are_as_good_as_those_of_jax_privacy(bands, steps, error):
    assert squared_error(optimal_strategy(bands, steps), steps) == pytest.approx(error, rel=1e-9)


def test_jax_privacy_itself_has_the_same_errors():
    jax = pytest.importorskip("jax", reason="jax_privacy is not installed: pip install 'dpltm[oracles]'")
    theirs = pytest.importorskip("jax_privacy.matrix_factorization.toeplitz", reason="jax_privacy is not installed")
    jax.config.update("jax_enable_x64", True)
    for strategy, steps, errors in GOLDEN:
        assert np.asarray(theirs.per_query_error(strategy_coef=np.array(strategy), n=steps)) == pytest.approx(errors)
    for bands, steps, _ in OPTIMA:
        mine = optimal_strategy(bands, steps)
        errors = np.asarray(theirs.per_query_error(strategy_coef=np.array(mine), n=steps))
        assert noise_of_sums(mine, steps) == pytest.approx(errors, rel=1e-12)
        found = np.asarray(theirs.optimize_banded_toeplitz(steps, bands=bands))
        best = float(np.mean(theirs.per_query_error(strategy_coef=found, n=steps)) * (found @ found))
        assert squared_error(mine, steps) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize(("bands", "steps"), [(2, 3), (4, 40), (8, 100)])
def test_errors_are_those_of_dense_matrices(bands, steps):
    strategy = optimal_strategy(bands, steps)
    error = np.tri(steps) @ np.linalg.inv(dense(strategy, steps))
    assert noise_of_sums(strategy, steps) == pytest.approx((error**2).sum(1), rel=1e-9)
    sensitivity = np.linalg.norm(dense(strategy, steps), axis=0).max()
    assert squared_error(strategy, steps) == pytest.approx(
        (sensitivity * np.linalg.norm(error)) ** 2 / steps, rel=1e-9
    )
    assert sensitivity * (1 + SLACK) == pytest.approx(norm(strategy))


def test_no_strategy_nearby_is_better():
    """By an optimizer that knows no derivatives, of the error by dense matrices."""
    steps, bands = 12, 3

    def error(rest: np.ndarray) -> float:
        c = dense((1.0, *rest), steps)
        return float((c[:, 0] @ c[:, 0]) * np.linalg.norm(np.tri(steps) @ np.linalg.inv(c)) ** 2 / steps)

    found = minimize(error, np.full(bands - 1, 0.3), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
    assert optimal_strategy(bands, steps)[1:] == pytest.approx(found.x, abs=3e-6)  # the grid of coefficients is 1e-6


def test_coefficients_fall_from_one_on_a_grid():
    strategy = optimal_strategy(MOST, 1000)
    assert strategy[0] == 1
    assert all(one >= other > 0 for one, other in itertools.pairwise(strategy))
    assert all((a * 2.0**20).is_integer() for a in strategy)


@pytest.mark.parametrize("bands", [2, 8])
def test_more_noise_than_the_slack_is_for_is_refused(bands):
    """The largest noise multiplier, by the formula of the module and C^-1 as a matrix."""
    steps, live = 200, 10**6
    strategy = optimal_strategy(bands, steps)
    inverse = np.abs(np.linalg.inv(dense(strategy, steps))).sum(0).max()
    grown = SLACK / 2.0**-52 / math.sqrt(bands) / (bands + 2) - 2**20
    most = grown / (sum(strategy) * 16 * math.sqrt(live) * inverse)
    assert most > 1000
    check_noise(strategy, steps, 0.99 * most, live)
    expected = f"`noise`: banded cannot have a noise multiplier of {1.01 * most:.4g}; take secure"
    assert refused(check_noise, strategy, steps, 1.01 * most, live) == expected


@pytest.mark.parametrize("strategy", [(1.0, 0.5), (1.0, 0.7, 0.5, 0.2), optimal_strategy(8, 30)])
def test_streaming_is_the_product_with_the_inverse(strategy):
    """Answers are S + C^-1 Z, and what the mechanism gets differs from C S by a function of answers."""
    steps, live = 30, 5
    draw = np.random.default_rng(0)
    sums, noise = draw.normal(size=(steps, live)), 3 * draw.normal(size=(steps, live))
    c = dense(strategy, steps)
    stream = BandedNoise(strategy, torch.zeros(live, dtype=torch.float64))
    answers, queries = [], []
    for step, (total, z) in enumerate(zip(torch.from_numpy(sums), torch.from_numpy(noise), strict=True)):
        queries.append(stream.query(total, step))
        answers.append(queries[-1] + z)
        stream.keep(answers[-1], total, step)
    found, asked = torch.stack(answers).numpy(), torch.stack(queries).numpy()
    assert found == pytest.approx(sums + np.linalg.solve(c, noise), rel=1e-9, abs=1e-9)
    assert asked == pytest.approx(c @ sums - (c - np.eye(steps)) @ found, rel=1e-9, abs=1e-9)
    assert np.cumsum(found - sums, axis=0) == pytest.approx(np.tri(steps) @ np.linalg.inv(c) @ noise, abs=1e-9)


def test_a_participation_shows_in_one_block_and_by_the_norm():
    """Given equal answers, as they are in the proof: what the mechanism gets of neighbours."""
    strategy, steps = (1.0, 0.7, 0.5, 0.2), 20
    draw = np.random.default_rng(1)
    sums, answers = draw.normal(size=(steps, 3)), torch.from_numpy(5 * draw.normal(size=(steps, 3)))
    v, moved = np.array([0.6, 0.0, 0.8]), sums.copy()
    moved[6] += v
    asked = []
    for each in (sums, moved):
        stream = BandedNoise(strategy, torch.zeros(3, dtype=torch.float64))
        for step, (total, answer) in enumerate(zip(torch.from_numpy(each), answers, strict=True)):
            asked.append(stream.query(total, step).numpy())
            stream.keep(answer, total, step)
    change = np.array(asked[steps:]) - np.array(asked[:steps])
    assert change[6:10] == pytest.approx(np.outer(strategy, v), abs=1e-12)
    assert np.abs(np.delete(change, range(6, 10), axis=0)).max() < 1e-12
    assert np.linalg.norm(change) <= norm(strategy)
