"""Random allocation: the bound against integrals of small cases and a transform of larger ones; beside Poisson sampling."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from dpltm.errors import InputError
from dpltm.privacy.account import NOTHING, as_replace_one
from dpltm.privacy.accountant import central_limit_mu, epsilon, profile
from dpltm.privacy.accountants import QUICK
from dpltm.privacy.calibration import Odometer, calibrate_rate, calibrate_steps
from dpltm.privacy.mechanisms import AllocatedSgd, GaussianRelease, NoisySgd
from dpltm.privacy.random_allocation import _sum

DELTA = 1e-5
EPSILONS = np.array([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0])
STEPS = {2: 0.005, 3: 0.03, 4: 0.14}
"""Of the trapezoidal rule, by the number of steps."""


def allocation(participations: int, steps: int, noise: float) -> AllocatedSgd:
    return AllocatedSgd(participations / steps, steps, noise, participations=participations)


def both_ways(mechanism: AllocatedSgd) -> Iterator[np.ndarray]:
    """Deltas where a record is removed, then where it is added."""
    return (losses.delta(EPSILONS) for losses in profile([mechanism]).body)


def integrated(
    steps: int, noise: float, split: Callable[[list[np.ndarray]], tuple[np.ndarray, np.ndarray]]
) -> list[np.ndarray]:
    """Deltas of both ways where the likelihood ratio is W_1 a + b, and a and b are of W_2 to W_T: in W_1 by the formula of
    Black and Scholes, in the rest by the trapezoidal rule, to some 1e-4 of it (halved steps change no more)."""
    z = np.arange(-7.5, 7.5, step := STEPS[steps])
    density = step * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    axes = np.meshgrid(*[z] * (steps - 1), indexing="ij", sparse=True)
    weight = np.prod(
        np.stack(np.broadcast_arrays(*np.meshgrid(*[density] * (steps - 1), indexing="ij", sparse=True))), 0
    )
    a, b = split([np.exp(each / noise - 0.5 / noise**2) for each in axes])
    removed, added = [], []
    for x in EPSILONS if steps < 4 else EPSILONS[:4]:
        for strikes, found, scale in ((math.exp(x) - b, removed, 1.0), (math.exp(-x) - b, added, math.exp(x))):
            strike = np.maximum(strikes / a, 1e-300)
            low = (np.log(strike) + 0.5 / noise**2) * noise  # where W_1 is the strike
            call = a * (ndtr(1 / noise - low) - strike * ndtr(-low)) if found is removed else None
            put = a * (strike * ndtr(low) - ndtr(low - 1 / noise))
            value = (
                np.where(strikes > 0, call, a + b - math.exp(x)) if call is not None else np.where(strikes > 0, put, 0)
            )
            found.append(scale * float((weight * np.broadcast_to(value, weight.shape)).sum()))
    return [np.array(removed), np.array(added)]


def symmetric(values: list[np.ndarray], order: int) -> np.ndarray:
    """Sum over all products of ``order`` of the values."""
    return np.asarray(sum((math.prod(some) for some in itertools.combinations(values, order)), start=np.zeros(1)))


def check(mechanism: AllocatedSgd, truth: list[np.ndarray], most: float) -> None:
    """Neither way is below the truth, as far as that is known, nor far above."""
    for found, true in zip(both_ways(mechanism), truth, strict=True):
        assert (found[: len(true)] >= true * (1 - 2e-4) - 1e-13).all()
        assert (found[: len(true)] <= true * most + 1e-12).all()


@pytest.mark.one_of(4)
@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("steps", STEPS)
def test_one_of_a_few_steps_is_what_the_integral_says(steps: int, noise: float) -> None:
    truth = integrated(steps, noise, lambda rest: (np.float64(1 / steps), sum(rest) / steps))
    check(allocation(1, steps, noise), truth, 1.01)


@pytest.mark.one_of(3)
@pytest.mark.parametrize(("participations", "steps"), [(2, 4), (3, 4), (2, 3)])
def test_several_of_a_few_steps_are_dominated_by_one_of_each_of_so_many_groups(
    participations: int, steps: int
) -> None:
    ways = math.comb(steps, participations)

    def split(rest: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        return symmetric(rest, participations - 1) / ways, symmetric(rest, participations) / ways

    check(allocation(participations, steps, 1.0), integrated(steps, 1.0, split), 4.0)


@pytest.mark.one_of(2)
@pytest.mark.parametrize(("steps", "noise"), [(37, 1.0), (200, 0.7)])
def test_one_of_many_steps_lies_within_what_a_transform_leaves(steps: int, noise: float) -> None:
    """The sum on an even grid, all values rounded down, or all up: the truth is between the two, in either direction."""
    width, points = 0.01, 2**21
    edges = np.arange(points + 1) * width
    with np.errstate(divide="ignore"):
        chances = np.diff(ndtr((np.log(edges) + 0.5 / noise**2) * noise))
    power = np.fft.irfft(np.fft.rfft(chances) ** steps, points)
    low = edges[:-1] / steps
    ours = list(both_ways(allocation(1, steps, noise)))
    for x, removed, added in zip(EPSILONS, *ours, strict=True):
        bounds = [float(power @ np.maximum(ratio - math.exp(x), 0)) for ratio in (low, low + width)]
        assert bounds[0] - 1e-9 <= removed <= bounds[1] * 1.001 + 1e-9
        bounds = [float(power @ np.maximum(1 - math.exp(x) * ratio, 0)) for ratio in (low + width, low)]
        assert bounds[0] - 1e-9 <= added <= bounds[1] * 1.001 + 1e-9


BESIDE = [
    (0.5, 1, 1000),
    (0.6, 10, 1000),
    (0.7, 50, 200),
    (1.0, 15, 555),
    (1.0, 1, 10),
    (2.0, 60, 14062),
    (4.0, 100, 1000),
]


@pytest.mark.one_of(3)
@pytest.mark.parametrize(("noise", "participations", "steps"), BESIDE)
def test_it_never_costs_more_than_poisson_sampling_of_as_many(noise: float, participations: int, steps: int) -> None:
    """Feldman, Shenfeld 2026 find it at least as good. Here it is, by what is printed."""
    poisson = NoisySgd(participations / steps, steps, noise)
    assert epsilon([allocation(participations, steps, noise)], DELTA) <= epsilon([poisson], DELTA)


THEIRS = [((1, 37, 1.0), 1.13328, 1.17423), ((2, 10, 1.0), 3.77481, 3.82952), ((4, 100, 0.7), 5.50131, 5.57469)]
"""Lower and upper bounds by the authors' own code, ``gaussian_allocation_epsilon_range`` of moshenfeld/PLD_accounting."""


@pytest.mark.parametrize(("setting", "least", "most"), THEIRS)
def test_it_lies_between_the_bounds_of_the_authors(setting: tuple[int, int, float], least: float, most: float) -> None:
    assert least < epsilon([allocation(*setting)], DELTA) < most


def test_reference_values() -> None:
    found = [epsilon([allocation(*each)], DELTA) for each in ((1, 1000, 1.0), (15, 555, 1.0))]
    assert found == pytest.approx([0.138873, 3.702915], abs=1e-5)


@settings(max_examples=12)
@given(st.floats(-3, 6).map(lambda log: 10.0**log), st.integers(1, 40), st.integers(1, 10**4))
def test_a_hostile_setting_costs_no_less_than_one_of_more_noise_nor_more_than_known_steps(
    noise: float, participations: int, steps: int
) -> None:
    mechanism = allocation(participations, max(steps, participations), noise)
    price = epsilon([mechanism], DELTA, resolution=QUICK)
    known = epsilon([GaussianRelease(noise)] * participations, DELTA)
    more = epsilon([replace(mechanism, noise_multiplier=2 * noise)], DELTA, resolution=QUICK)
    assert more <= price * (1 + 1e-3) <= known * (1 + 0.01)


@given(st.floats(0.2, 50), st.integers(1, 500))
@settings(max_examples=20)
def test_neither_chances_nor_means_are_lost(noise: float, steps: int) -> None:
    """Whatever is rounded or cut off, chances add up to 1, and the mean stays."""
    first, law = _sum(noise, steps, 0.02)
    assert law.sum() == pytest.approx(1, rel=1e-12)
    assert law @ np.exp((first + np.arange(len(law))) * 0.02) == pytest.approx(steps, rel=1e-12)


def test_only_the_whole_has_a_price() -> None:
    mechanism = allocation(4, 40, 1.0)
    for calibrate in (calibrate_rate, calibrate_steps):
        with pytest.raises(InputError, match=r"to be participations over steps$"):
            calibrate(1.0, DELTA, mechanism)
    odometer = Odometer(NOTHING, mechanism, DELTA)
    assert {odometer.after(step) for step in (1, 20, 40)} == {epsilon([mechanism], DELTA)}


def test_who_is_replaced_may_have_been_in_steps_that_are_known() -> None:
    two = as_replace_one(allocation(4, 40, 3.0))
    assert epsilon([two], DELTA) == pytest.approx(epsilon([GaussianRelease(3.0 / (2 * math.sqrt(4)))], DELTA))
    assert (two.adjacency, two.noise_std) == ("replace-one", 3.0)


@pytest.mark.parametrize("accountant", ["rdp", "ma"])
def test_accountants_by_renyi_divergence_know_of_no_amplification(accountant: str) -> None:
    known = epsilon([GaussianRelease(0.5)], DELTA, accountant)
    assert epsilon([allocation(4, 40, 1.0)], DELTA, accountant) == pytest.approx(known)


def test_the_limit_theorem_takes_each_group_as_coins_of_its_length() -> None:
    """9 of 40: 5 groups of 4 steps, and 4 of 5."""
    mu = math.sqrt((math.e - 1) * (5 / 4 + 4 / 5))
    assert central_limit_mu([allocation(9, 40, 1.0)]) == pytest.approx(mu, rel=1e-12)
