"""Loss distributions on a grid, and their sums, against dp-accounting and against what is known exactly."""

import math

import numpy as np
import pytest
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.pld_pmf import DensePLDPmf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from dpltm.privacy.pld import Losses
from dpltm.privacy.privacy_loss import TAILS, LossDistribution, _bulk, connected


@given(st.floats(1e-4, 3.0), st.integers(-50, 50), st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_connected_is_what_dp_accounting_connects(width, first, rates):
    """Of any profile: mixtures of losses have one that is convex in e^epsilon."""
    losses = np.arange(first, first + len(rates)) * width
    weights = np.array(rates) / max(sum(rates), 1e-300)
    deltas = np.array([float(weights @ np.maximum(-np.expm1(x - losses), 0.0)) for x in losses])
    found = connected(lambda _: deltas, width, first, first + len(rates) - 1)
    known = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(width, first, first + len(rates) - 1, deltas)
    known = known.to_dense_pmf()
    assert found.first == known._lower_loss
    assert found.chances == pytest.approx(known._probs, abs=1e-12 / min(width, 1))
    assert found.infinite == known._infinity_mass


@settings(max_examples=25)
@given(st.floats(1e-5, 0.01), st.integers(500, 4000), st.integers(0, 99))
def test_connecting_loses_nothing(width, points, seed):
    """Summed in long double, a distribution has the deltas that it was made of: rounding e^width once for all losses would
    take 1e-13 from them."""
    rng = np.random.default_rng(seed)
    losses = (np.arange(points) - points // 2) * width
    weights = rng.random(points) * np.exp(-0.5 * (losses / (0.2 * width * points)) ** 2)
    weights /= weights.sum()
    above = np.cumsum(weights[::-1])[::-1]
    below = np.cumsum((weights * np.exp(-losses))[::-1])[::-1]
    deltas = np.clip(above - np.exp(losses) * below, 0.0, 1.0)
    found = connected(lambda _: deltas, width, -(points // 2), points - 1 - points // 2)
    chances, at = found.chances.astype(np.longdouble), losses.astype(np.longdouble)
    for place in range(0, points, 97):
        reached = slice(place, None)
        delta = (chances[reached] * -np.expm1(at[place] - at[reached])).sum() + found.infinite
        assert delta >= deltas[place] - 5e-15


@given(st.floats(1e-3, 1.0), st.lists(st.floats(0, 1), min_size=2, max_size=30), st.integers(-10, 10))
def test_connected_is_above_whatever_rounding_makes_of_a_profile(width, values, first):
    """Deltas that rise, or bend the wrong way."""
    deltas = np.array(values)
    found = connected(lambda _: deltas, width, first, first + len(values) - 1)
    at = (first + np.arange(len(values))) * width
    assert (Losses(found).delta(at) >= deltas - 1e-12).all()
    assert (found.chances >= 0).all()


def some_losses(seed, points=300):
    """Chances on a grid, most of them at a few losses, as at low sampling rates."""
    chances = np.random.default_rng(seed).random(points) ** (1 + 40 * (seed % 3))
    return LossDistribution(0.01, -points // 3, chances / (chances.sum() * (1 + 1e-6)), 1e-6 / (1 + 1e-6))


def theirs(known):
    return DensePLDPmf(known.width, known.first, known.chances, known.infinite, True)


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_like_steps_compose_as_dp_accounting_composes_them(count, seed):
    known = some_losses(seed)
    found, expected = known.times(count), theirs(known).self_compose(count)
    mean = count * float(known.chances @ np.arange(-100, 200)) * known.width
    epsilons = mean + np.linspace(-0.3, 0.3, 41) * math.sqrt(count)
    assert Losses(found).delta(epsilons) == pytest.approx(expected.get_delta_for_epsilon(epsilons), abs=1e-14 * count)
    left_out = TAILS if count > 1 else 0.0  # which they count as infinite, and pld adds to delta
    assert found.infinite + left_out == pytest.approx(expected._infinity_mass, rel=1e-9)


@pytest.mark.parametrize("tilt", [0.5, 5.0])
@pytest.mark.parametrize("count", [2, 50])
def test_tilted_losses_compose_to_the_same_sums(tilt, count):
    """Each chance, but for rounding that is small beside the tilted ones."""
    known = some_losses(0)
    plain, tilted = known.times(count), known.tilted(tilt).times(count)
    assert tilted.chances.sum() == pytest.approx(1.0, abs=1e-12)
    chances = tilted.chances * np.exp(tilted.log_scale - tilt * tilted.losses)
    shared = np.intersect1d(np.round(plain.losses / 0.01), np.round(tilted.losses / 0.01)).astype(int)
    assert len(shared) > 100
    found, expected = chances[shared - tilted.first], plain.chances[shared - plain.first]
    off = 1e-14 * count * (1 + np.exp(tilted.log_scale - tilt * 0.01 * shared)) + 1e-11 * expected
    assert (np.abs(found - expected) <= off).all()


def test_tilted_losses_add_up_to_the_same_sums():
    one, other = some_losses(0), some_losses(1, 77)
    plain, tilted = one.plus(other), one.tilted(3.0).plus(other.tilted(3.0))
    assert (plain.first, plain.infinite) == (tilted.first, tilted.infinite)
    chances = tilted.chances * np.exp(tilted.log_scale - 3.0 * tilted.losses)
    assert chances == pytest.approx(plain.chances, abs=1e-13)


def test_a_sum_that_is_bunched_closer_than_its_terms_may_be():
    """All chance in one place, far along the grid: what is transformed must not be cut."""
    chances = np.zeros(1000)
    chances[990] = 1.0
    low, high = _bulk(chances, 2)
    assert 1980 - 990 < low <= 1980 <= high
    assert high - low < 990
    found = LossDistribution(0.01, -500, chances, 0.0).times(2)
    assert found.first == -1000 + low
    assert found.chances[1980 - low] == pytest.approx(1.0)


def test_sums_of_different_losses_are_those_of_dp_accounting():
    one, other = some_losses(1), some_losses(2, 77)
    found, expected = one.plus(other), theirs(one).compose(theirs(other))
    assert (found.width, found.first) == (expected._discretization, expected._lower_loss)
    assert found.chances == pytest.approx(expected._probs, abs=1e-16)
    assert found.infinite == expected._infinity_mass


def test_what_tells_all_goes_on_telling_all():
    nothing = LossDistribution(0.1, 0, np.zeros(1), 1.0)
    for found in (nothing.times(3), nothing.plus(some_losses(0)), some_losses(0).plus(nothing)):
        assert Losses(found).delta(np.array([0.0, 50.0])) == pytest.approx([1.0, 1.0])


@settings(max_examples=30)
@given(st.one_of(st.sampled_from([0.0, 1.0]), st.floats(1e-200, 1)), st.integers(2, 200), st.integers(1, 400))
def test_hardly_anything_is_outside_the_bulk(chance, points, count):
    """Two values: how often the larger comes is binomial."""
    chances = np.zeros(points)
    chances[0], chances[-1] = 1 - chance, chance
    low, high = _bulk(chances, count)
    heads = np.arange(count + 1)
    outside = (heads * (points - 1) < low) | (heads * (points - 1) > high)
    assert 0 <= low <= high <= count * (points - 1)
    assert binom.pmf(heads[outside], count, chance).sum() <= TAILS


def test_the_bulk_is_not_everything():
    """A normal sum: not much more than the 8 deviations to either side that hold all but 1e-15."""
    low, high = _bulk(np.full(100, 0.01), 10_000)
    assert 16 < (high - low) / (math.sqrt((100**2 - 1) / 12) * 100) < 18.5
