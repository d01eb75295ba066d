"""Loss distributions on a grid and their composition, of many steps too, against dp-accounting and what is known exactly."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import fft
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import binom

from contour import Steps, epsilons
from dpltm.privacy import gdp, pld
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.accountants import FINE, QUICK, Resolution
from dpltm.privacy.mechanisms import LaplaceRelease, NoisySgd, Selection
from dpltm.privacy.pld import Losses
from dpltm.privacy.privacy_loss import (
    TAILS,
    BoundedRangeLoss,
    GaussianLoss,
    GuaranteeLoss,
    LossDistribution,
    SampledGaussianLoss,
    _bulk,
    connected,
)
from exact import gaussian_delta


@pytest.mark.parametrize("steps", [1, 1000, 100_000])
@pytest.mark.parametrize("mu", [0.1, 5.0])
def test_composed_gaussians_are_covered_down_to_the_rounding(steps, mu):
    """T Gaussians of sigma = sqrt(T) / mu are one mu-GDP pair exactly; what is above is grid and stated rounding.

    At delta near 1e-11 a Fourier transform without an allowance would be below the truth somewhere on this table.
    """
    profile = pld.compose({GaussianLoss(math.sqrt(steps) / mu): steps})
    deltas = [delta for delta in (1e-2, 1e-5, 1e-8, 1e-11, 1e-13) if delta < gdp.delta(0, mu)]
    epsilons = np.array([gdp.epsilon(delta, mu) for delta in deltas])
    exact, found = gaussian_delta(epsilons, mu), profile.delta(epsilons)
    assert (found >= exact * (1 - 1e-9)).all()
    grid = {1: 1e-5, 1000: 1e-3, 100_000: 0.03}[steps]
    assert (found <= exact * (1 + grid) + 6e-15 * (steps + 10)).all()


@pytest.mark.parametrize("sigma", [0.41619377759832593, 0.6157, 0.84857, 3.055])
def test_one_step_is_covered_on_the_grid(sigma):
    """Where no chord lies between the true profile and what is certified, nothing but arithmetic does."""
    profile = pld.compose({GaussianLoss(sigma): 1})
    exact = float(mpmath.erf(1 / (2 * mpmath.mpf(sigma) * mpmath.sqrt(2))))  # total variation
    assert exact <= profile.delta(np.array([0.0]))[0] <= exact + 1e-13


def test_the_rounding_is_needed():
    """Among composed Gaussians some have a transform that alone falls below the truth; with its allowance none."""
    below = 0
    for mu, steps in ((3.0, 1000), (4.0, 3000), (6.0, 1000), (8.0, 3000)):
        epsilons = np.linspace(gdp.epsilon(1e-11, mu), gdp.epsilon(1e-13, mu), 9)
        exact = gaussian_delta(epsilons, mu)
        profile = pld.compose({GaussianLoss(math.sqrt(steps) / mu): steps})
        bare = np.max([losses.computed(epsilons) for losses in profile.body], axis=0)
        below += int((bare < exact).sum())
        assert (profile.delta(epsilons) >= exact).all()
        for delta in (1e-11, 1e-10):
            assert profile.epsilon(delta) >= gdp.epsilon(delta, mu)
        beside = pld.compose({GaussianLoss(math.sqrt(steps) / mu): steps}, 1e-7)
        assert all(beside.delta(np.array([x]))[0] >= y for x, y in zip(epsilons, exact, strict=True))
    assert below > 0


@pytest.mark.one_of(2)
@pytest.mark.parametrize(("sigma", "rate", "steps"), [(0.25, 1.67e-4, 30_000), (0.3, 1e-5, 100_000)])
def test_low_sampling_rates_are_covered_too(sigma, rate, steps):
    """Nearly every loss is one and the same there, so that rounding piles up more than for Gaussians: against transforms
    of the same discretised losses in long double."""
    profile = pld.compose({SampledGaussianLoss(sigma, rate, False): steps})
    width = profile.body[0]._width
    single = SampledGaussianLoss(sigma, rate, False).pld(width)
    for found, one in zip(profile.body, single, strict=True):
        size = fft.next_fast_len(2 * max(found._count, len(one.chances)))
        spectrum = fft.rfft(np.asarray(one.chances, dtype=np.longdouble), size)
        power = np.ones_like(spectrum)
        for bit in f"{steps:b}":
            power = power * power * (spectrum if bit == "1" else 1)
        place = (found._first - steps * one.first + np.arange(found._count)) % size
        chances = fft.irfft(power, size)[place]
        losses = (found._first + np.arange(found._count)) * np.longdouble(width)
        above = np.cumsum(chances[::-1])[::-1]
        below = np.cumsum((chances * np.exp(-np.maximum(losses, -700)))[::-1])[::-1]
        for index in np.linspace(max(0, -found._first), found._count - 2, 200).astype(int):
            x = float(losses[index])
            reference = float(above[index + 1] - np.exp(np.longdouble(x)) * below[index + 1])
            at = np.array([x])
            assert found.computed(at)[0] + found.rounding(at)[0] / 3 >= reference  # a margin of three


@pytest.mark.parametrize(("epsilon", "count"), [(0.1, 30), (1.0, 5)])
def test_pure_composition(epsilon, count):
    """Kairouz, Oh, Viswanath 2015, Theorem 3.3: k biased coins, counted by a binomial."""
    heads = np.arange(count + 1)
    losses = (2 * heads - count) * epsilon
    likely = binom.pmf(heads, count, 1 / (1 + math.exp(-epsilon)))
    profile = pld.compose({GuaranteeLoss(epsilon): count})
    for x in np.linspace(0, count * epsilon, 7):
        exact = float((likely * np.maximum(-np.expm1(x - losses), 0)).sum())
        found = float(profile.delta(np.array([x]))[0])
        assert exact - 1e-15 <= found <= exact + 2e-3 * epsilon * math.sqrt(count) + 1e-9


def test_four_different_losses_add_up():
    """Almost surely all at once, at so small a delta: none is lost, none counts twice."""
    sizes = (0.1, 0.2, 0.4, 0.8)
    assert pld.compose({GuaranteeLoss(size): 1 for size in sizes}).epsilon(1e-6) == pytest.approx(1.5, rel=2e-3)


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1])
def test_guarantees_that_may_fail(delta):
    """k of them fail with chance 1 - (1-d)^k, and only then tell all."""
    profile = pld.compose({GuaranteeLoss(0.5, delta): 3})
    assert profile.delta(np.array([1.51]))[0] == pytest.approx(1 - (1 - delta) ** 3, rel=1e-5)
    assert math.isinf(profile.epsilon(2.9 * delta if delta < 0.01 else 0.27))
    assert profile.epsilon(3.1 * delta) <= 1.5 * 1.003


@pytest.mark.parametrize("resolution", [FINE, QUICK, Resolution(0.5, 30, 3e3, 4e6), Resolution(0.01, 1e5, 4e5, 4e6)])
def test_every_resolution_is_an_upper_bound(resolution):
    """30 full steps, known exactly; a coarser grid may only raise epsilon."""
    exact = gdp.epsilon(1e-5, math.sqrt(30) / 3)
    found = pld.compose({GaussianLoss(3.0): 30}, resolution=resolution).epsilon(1e-5)
    assert exact <= found <= exact * (1.001 if resolution.least > 1000 else 1.2)


def test_losses_are_read_as_dp_accounting_reads_them():
    """Its loops over every loss are the oracle of our sums."""
    for known in (*SampledGaussianLoss(1.0, 0.1, False).pld(1e-2), *SampledGaussianLoss(0.7, 0.3, True).pld(1e-2)):
        losses, pmf = pld.Losses(known), DensePLDPmf(1e-2, known.first, known.chances, known.infinite, True)
        x = np.array([-0.3, -0.01, 0.0, 0.005, 0.01, 0.4, 2.0, 90.0])
        assert losses.delta(x) == pytest.approx([pmf.get_delta_for_epsilon(float(at)) for at in x], abs=1e-14)
        for delta in (0.04, 1e-3, 1e-6, 1e-9):
            assert losses.epsilon(delta) == pytest.approx(pmf.get_epsilon_for_delta(delta), abs=1e-9)


@settings(max_examples=8)
@given(
    sigma=st.floats(0.5, 5),
    rate=st.floats(0.01, 0.9),
    steps=st.integers(1, 60),
    draw=st.sampled_from([0.0, 0.02, 0.7]),
    replace_one=st.booleans(),
    log_delta=st.floats(-9, -0.5),
)
def test_epsilon_and_delta_are_one_curve(sigma, rate, steps, draw, replace_one, log_delta):
    """delta at the epsilon that was found fits, and a little before it does not."""
    delta = 10**log_delta
    profile = pld.compose({SampledGaussianLoss(sigma, rate, replace_one): steps}, draw, QUICK)
    found = profile.epsilon(delta)
    assert found >= 0
    assert profile.delta(np.array([found + draw / 4000]))[0] <= delta * (1 + 1e-6) + 1e-13
    before = found * 0.999 - draw / 2000 - 1e-6
    if before > 0:
        assert profile.delta(np.array([before]))[0] > delta
    curve = profile.delta(np.linspace(0, found + 1, 50))
    assert (np.diff(curve) <= 1e-13).all()
    assert ((curve >= 0) & (curve <= 1)).all()


def members(x, draw, mu, count=4001):
    """Exact delta beside mu-GDP of every pair of a draw: losses t and t - draw, for t on a grid."""
    losses = np.linspace(0, draw, count)
    large = np.expm1(losses - draw) / math.expm1(-draw)  # how likely the larger loss is
    return large * gaussian_delta(x - losses, mu) + (1 - large) * gaussian_delta(x - losses + draw, mu)


@pytest.mark.parametrize(("draw", "mu"), [(0.5, 0.6), (3.0, 0.4)])
def test_draw_is_the_largest_over_its_pairs(draw, mu):
    """Beside a Gaussian every pair's delta is known exactly, and so is their largest, but for the grid over t."""
    profile = pld.compose({GaussianLoss(1 / mu): 1}, draw)
    epsilons = np.linspace(0, draw + gdp.epsilon(1e-8, mu), 9)
    for x, value in zip(epsilons, profile.delta(epsilons), strict=True):
        largest = members(x, draw, mu).max()
        assert largest * (1 - 1e-9) <= value <= largest * (1 + 2e-3 * max(draw, 1)) + 1e-6 * draw + 1e-13
    for delta in (1e-6, 1e-3):
        exact = brentq(lambda x, delta=delta: members(x, draw, mu, 401).max() - delta, -1, 60)
        assert exact - 1e-9 <= profile.epsilon(delta) <= exact + 1e-3 * max(draw, 1)


@pytest.mark.parametrize("draw", [1e-4, 0.5, 20.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-3, 0.3])
def test_draw_alone(draw, delta):
    """delta(x) = (1 - e^((x - e)/2))^2 / (1 - e^-e), solved for x; so do a draw first and one in between agree."""
    exact = 0.0
    if math.tanh(draw / 4) > delta:
        exact = brentq(lambda x: (1 - math.exp((x - draw) / 2)) ** 2 + delta * math.expm1(-draw), 0, draw, xtol=1e-14)
    assert pld.compose({}, draw).epsilon(delta) == pytest.approx(exact, abs=1e-9)
    assert exact - 1e-9 <= pld.compose({BoundedRangeLoss(draw): 1}).epsilon(delta) <= exact + 1e-3 * draw


@pytest.mark.parametrize(("draw", "span"), [(2.0, 1e5), (1.0, 3e4)])
def test_few_parts_are_still_above_every_pair(draw, span):
    """A curve so long that the losses of the draw are divided into a handful: each part's upper edge counts."""
    parts = int(pld.DRAW_TABLE * draw / span)
    assert parts < 8
    epsilons = draw / parts * np.arange(3 * parts)
    found = pld.compose({GaussianLoss(1.0): 1}, draw).delta(np.append(epsilons, span))
    for x, value in zip(epsilons, found, strict=False):
        basic = gaussian_delta(x - draw, 1.0)
        assert members(x, draw, 1.0).max() <= value <= basic * (1 + 1e-6) + 1e-9


# Ends.


def test_nothing_costs_nothing():
    profile = pld.compose({})
    assert profile.epsilon(1e-5) == 0.0
    assert (profile.delta(np.array([0.0, 1.0])) == 0).all()


def test_beneath_the_rounding_nothing_is_certified():
    losses = {SampledGaussianLoss(1.0, 0.01, False): 1000}
    profile = pld.compose(losses)
    assert profile.epsilon(2e-12) == math.inf
    assert profile.epsilon(1e-9) < math.inf
    assert pld.compose(losses, delta=2e-12).epsilon(2e-12) < math.inf


def test_losses_beyond_float64():
    """e^x leaves float64 at 709: the second term is left out, which only adds."""
    profile = pld.compose({GaussianLoss(0.02): 1})
    exact = gdp.epsilon(1e-5, 50.0)
    assert exact > 1000
    assert exact <= profile.epsilon(1e-5) <= exact * 1.001
    assert 1e-5 <= profile.delta(np.array([0.0, exact]))[1] <= 1.5e-5
    near = pld.compose({GaussianLoss(1 / 36): 1})
    for x in (690.0, 701.0, 705.0, 709.0, 715.0):
        assert (
            math.exp(gdp._log_delta(x, 36.0)) * (1 - 1e-9) <= near.delta(np.array([x]))[0] <= ndtr(18 - x / 36) * 1.001
        )


def test_a_tilt_that_is_too_large_is_not_looked_at_in_silence():
    """Warnings are errors here; at a terminal one would stand above the figure."""
    assert epsilon([LaplaceRelease(1.0)] * 3, 1e-15) == 3.0


def test_the_coarse_flag():
    """A million steps with little noise would need more points than there are."""
    assert pld.compose({SampledGaussianLoss(0.3, 0.5, False): 10**6}).coarse
    assert not pld.compose({SampledGaussianLoss(1.1, 256 / 60000, False): 14062}).coarse


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


def certified(sigma: float, rate: float, steps: int, delta: float, replace_one: bool = False) -> float:
    return epsilon([NoisySgd(rate, steps, sigma, adjacency="replace-one" if replace_one else "add-remove")], delta)


@pytest.mark.parametrize("removed", [True, False])
def test_the_integrals_are_those_of_a_gaussian(removed: bool) -> None:
    way = Steps(20.0, 1.0, 1000, "removed" if removed else "added", 1e-20)
    for x in (1.0, 5.0, 9.0):
        assert way.log_delta(x) == pytest.approx(
            math.log(gaussian_delta(np.array([x]), math.sqrt(1000) / 20)[0]), abs=1e-9
        )


SHORT = [
    (1.0, 1e-5, 10**6, 1e-9, False),
    (0.5, 1e-5, 10**6, 1e-12, False),
    (1.0, 1e-3, 10**6, 1e-5, False),
    (2.0, 1e-3, 10**6, 1e-9, True),
    (20.0, 1e-2, 10**7, 1e-9, False),
]
"""Noise, rate, steps, delta, replace-one."""

LONG = [
    (sigma, rate, steps, delta, replace_one)
    for rate, sigmas in {1e-5: (0.5, 1.0, 5.0), 1e-4: (0.7, 2.0), 1e-3: (1.0, 20.0), 1e-2: (5.0, 20.0)}.items()
    for sigma in sigmas
    for steps in (10**6, 10**7)
    for delta in (1e-5, 1e-7, 1e-9, 1e-12)
    for replace_one in (False, True)
]


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "delta", "replace_one"),
    [*SHORT, *(pytest.param(*row, marks=pytest.mark.long) for row in LONG)],
)
def test_certified_is_just_above_truth(sigma: float, rate: float, steps: int, delta: float, replace_one: bool) -> None:
    found = certified(sigma, rate, steps, delta, replace_one)
    low, high = epsilons(sigma, rate, steps, delta, found, replace_one=replace_one)
    assert low * (1 - 1e-6) <= found <= high * 1.015  # 1.2 % where one step spreads far more than its deviation


def test_small_deltas_are_those_of_dp_accounting() -> None:
    sigma, rate, steps = 0.7, 4e-5, 100_000
    theirs = from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=1e-4).self_compose(steps)
    for delta in (1e-8, 4.1e-10, 3.9e-10, 1e-10):  # below, what rounds their transforms is no longer small
        assert certified(sigma, rate, steps, delta) == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=0.02)


@pytest.mark.parametrize(
    ("sigma", "rate", "steps"), [(1.1, 256 / 60_000, 14_062), (1.0, 1e-3, 10**6), (3.0, 0.5, 100)]
)
def test_tilted_or_not_is_the_same_where_both_resolve(sigma: float, rate: float, steps: int) -> None:
    losses = {SampledGaussianLoss(sigma, rate, False): steps}
    delta = 5e3 * pld._rounding(tuple(losses.items()))
    plain, tilted = pld.compose(losses), pld.compose(losses, delta=delta)
    assert plain is not tilted
    assert tilted.epsilon(delta) == pytest.approx(plain.epsilon(delta), rel=1e-3)
    near = tilted.epsilon(delta) * np.array([0.9, 1.0, 1.1])
    assert tilted.delta(near) == pytest.approx(plain.delta(near), rel=0.02)


@pytest.mark.one_of(3)
@pytest.mark.parametrize("mu", [0.03, 1.0, 6.0])
@pytest.mark.parametrize("delta", [1e-7, 1e-10, 1e-14])
def test_a_million_gaussians_of_two_kinds(mu: float, delta: float) -> None:
    """One mu-GDP pair, exactly; a tilted profile is an upper bound at other epsilons, too."""
    half = 500_000
    losses = {GaussianLoss(1000 / (mu * share)): half for share in (0.6, math.sqrt(2 - 0.36))}
    exact, profile = gdp.epsilon(delta, mu), pld.compose(losses, delta=delta)
    assert exact <= profile.epsilon(delta) <= exact * 1.002
    epsilons = np.linspace(0, 2 * exact, 20)
    assert (profile.delta(epsilons) >= gaussian_delta(epsilons, mu) * (1 - 1e-9)).all()


def test_a_direction_that_stands_for_both_goes_with_either() -> None:
    """A Gaussian beside sampled steps, either of which alone gives less, at a delta that takes tilting."""
    delta, sampled, plain = 1e-11, NoisySgd(1e-3, 10**6, 2.0), NoisySgd(1.0, 1, 5.0)
    together, one, other = (epsilon(each, delta) for each in ([sampled, plain], [sampled], [plain]))
    assert max(one, other) < together < one + other
    assert together == pytest.approx(math.hypot(one, other), rel=0.05)


def test_a_draw_beside_a_million_steps() -> None:
    training = NoisySgd(1e-3, 10**6, 2.0)
    draw = Selection(0.1, 0.1, adaptive=False)
    alone, together = epsilon([training], 1e-10), epsilon([draw, training], 1e-10)
    assert alone < together < alone + 0.1
