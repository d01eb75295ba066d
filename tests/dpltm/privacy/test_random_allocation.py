"""Steps that are no plain Poisson samples: allocation, truncation, banded noise, against integrals or every outcome."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import dp_accounting as dp
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from dpltm.privacy import accountant
from dpltm.privacy.account import NOTHING, Account, as_replace_one
from dpltm.privacy.accountant import central_limit_mu, epsilon, filter_epsilon, profile, truncation_chance
from dpltm.privacy.accountants import QUICK
from dpltm.privacy.calibration import Odometer, calibrate_steps
from dpltm.privacy.entry import Entry
from dpltm.privacy.mechanisms import (
    AllocatedSgd,
    BandedSgd,
    GaussianRelease,
    Guarantee,
    NoisySgd,
    RandomizedResponse,
    TruncatedSgd,
    over_two_steps,
)
from dpltm.privacy.random_allocation import _sum
from dpltm.privacy.statement import statement
from refusals import refused

# --- truncated Poisson sampling: every outcome of small cases, and dp-accounting's event ---

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
def test_several_of_few_steps_are_dominated_by_one_of_each_of_so_many_groups(participations: int, steps: int) -> None:
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
def test_hostile_ones_lie_between_more_noise_and_known_steps(noise: float, participations: int, steps: int) -> None:
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
    assert refused(calibrate_steps, 1.0, DELTA, mechanism).endswith("to be participations over steps")
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


AT = np.array([0.0, 0.5, 1.0, 2.0, 4.0, 6.0, 9.0, 12.0])


def truncated(
    rate: float, steps: int, noise: float, batch: int, records: int, adjacency: str = "add-remove"
) -> TruncatedSgd:
    return TruncatedSgd(rate, steps, noise, adjacency=adjacency, truncated_batch_size=batch, most_records=records)  # type: ignore[arg-type]


def cut_sets(members: tuple[int, ...], most: int) -> Iterator[tuple[int, ...]]:
    """What may be left of some, all equally likely: those beyond ``most`` are left out at random."""
    yield from itertools.combinations(members, min(most, len(members)))


LOUD = 1000
"""Of a step that is cut where nothing is assumed of it: it tells whose value was there."""


def sums(values: tuple[int, ...], rate: Fraction, most: int, telling: int | None = None) -> dict[int, float]:
    """The law of the sum of what a step takes of records of these values, by all coins and all cuts; the last record
    tells of itself by so much where it is in a step with as many others as fit."""
    found: Counter[int] = Counter()
    for coins in itertools.product((0, 1), repeat=len(values)):
        chance = math.prod(rate if coin else 1 - rate for coin in coins)
        left = list(cut_sets(tuple(np.flatnonzero(coins).tolist()), most))
        for taken in left:
            told = telling if telling is not None and coins[-1] and sum(coins) > most else None
            found[sum(values[each] for each in taken) if told is None else told] += chance / len(left)  # type: ignore[assignment]
    return {value: float(chance) for value, chance in found.items()}


def deltas(one: dict[int, float], other: dict[int, float], noise: float, steps: int) -> np.ndarray:
    """delta of the first against the second at AT, of so many independent steps that are seen in cells of an eighth of
    the noise: no more than the truth, and hardly less."""
    cells = np.arange(-4 - 6 * noise, 4 + 6 * noise, noise / 8)
    cells = np.array([-np.inf, *cells, 1.5 * LOUD, 2.5 * LOUD, np.inf])
    first, second = (
        sum(chance * np.diff(ndtr((cells - value) / noise)) for value, chance in law.items()) for law in (one, other)
    )
    if steps == 2:
        first, second = np.outer(first, first), np.outer(second, second)
    return np.array([np.maximum(first - math.exp(x) * second, 0).sum() for x in AT])


def neighbours(mechanism: TruncatedSgd, tells: bool) -> Iterator[tuple[dict[int, float], dict[int, float]]]:
    """The laws of a step of all neighbours whose records have values -1, 0 and 1, which reach the bound."""
    rate, most, values = Fraction(mechanism.sampling_rate), mechanism.truncated_batch_size, (-1, 0, 1)
    for size in range(mechanism.most_records):
        for others in itertools.combinations_with_replacement(values, size):
            laws = [sums((*others, one), rate, most, LOUD * (one + 2) if tells else None) for one in values]
            if mechanism.adjacency == "replace-one":
                yield from itertools.permutations(laws, 2)
            else:
                alone = sums(others, rate, most)
                yield from itertools.chain.from_iterable(((law, alone), (alone, law)) for law in laws)


def excess(mechanism: TruncatedSgd, noise: float, tells: bool = False) -> float:
    """How far the true delta of any neighbours exceeds what is claimed."""
    claimed = profile([mechanism]).delta(AT)
    return max(float((deltas(*pair, noise, mechanism.steps) - claimed).max()) for pair in neighbours(mechanism, tells))


RELATIONS = {"add-remove": 1.0, "replace-one": 0.5}


@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize(
    ("rate", "steps", "noise", "batch", "records"),
    [(0.25, 1, 0.5, 1, 3), (0.5, 1, 0.5, 2, 4), (0.125, 2, 0.75, 1, 3), (0.125, 2, 0.5, 2, 3)],
)
def test_the_claim_holds_for_all_neighbours(rate, steps, noise, batch, records, adjacency):
    """One that is replaced within a full batch moves the sum by twice the bound."""
    mechanism = truncated(rate, steps, noise * RELATIONS[adjacency], batch, records, adjacency)
    assert 0 < truncation_chance(mechanism) < 1
    assert excess(mechanism, noise) <= 1e-12


@pytest.mark.parametrize(
    ("rate", "steps", "noise", "batch", "records", "adjacency"),
    [(0.25, 1, 0.5, 1, 3, "replace-one"), (0.125, 2, 0.75, 1, 3, "add-remove")],
)
def test_a_bug_that_adds_nothing_to_delta_is_refuted(rate, steps, noise, batch, records, adjacency, monkeypatch):
    monkeypatch.setattr(accountant, "truncation_chance", lambda _: 0.0)
    assert excess(truncated(rate, steps, noise * RELATIONS[adjacency], batch, records, adjacency), noise) > 1e-4


@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize(
    ("rate", "steps", "batch", "records"), [(0.25, 1, 1, 3), (0.5, 1, 2, 4), (0.125, 2, 2, 4), (0.125, 2, 3, 4)]
)
def test_nothing_is_assumed_of_a_cut_step_and_no_less_would_do(rate, steps, batch, records, adjacency, monkeypatch):
    """The noise hides a record of any other step, so that what is added to delta is all that there is."""
    mechanism, noise = truncated(rate, steps, 4.0 * RELATIONS[adjacency], batch, records, adjacency), 4.0
    chance = truncation_chance(mechanism)
    assert excess(mechanism, noise, tells=True) <= 1e-12
    monkeypatch.setattr(accountant, "truncation_chance", lambda _: 0.9 * chance)
    assert excess(mechanism, noise, tells=True) > 0.01 * chance


@pytest.mark.parametrize(
    ("records", "rate", "batch"),
    [
        (61470, 256 / 60000, 353),
        (101, 0.3, 55),
        (101, 0.02, 1),
        (3, 0.5, 2),
        (20001, 0.1, 2400),
        (13, 0.75, 12),
        (10**7, 20e-7, 77),
        (10**9, 4096e-9, 4629),
        (10**12, 20e-12, 58),
    ],
)
def test_the_chance_is_no_less_than_the_binomial_tail_of_the_others(records, rate, batch):
    """In 60 digits; scipy before 1.12 is too low by up to 2e-6 in the last three."""
    others = records - 1
    with mpmath.workdps(60):
        q, tail = mpmath.mpf(rate), mpmath.mpf(0)
        term = mpmath.binomial(others, batch) * q**batch * (1 - q) ** (others - batch)
        for count in range(batch, others + 1):
            tail += term
            term *= (others - count) * q / ((count + 1) * (1 - q))
            if term < tail * mpmath.mpf(10) ** -20:
                break
        exact = q * tail
    found = truncation_chance(truncated(rate, 1, 1.0, batch, records))
    assert exact <= found <= exact * mpmath.mpf("1.0002")
    assert truncation_chance(truncated(rate, 7, 1.0, batch, records)) == pytest.approx(min(7 * found, 1))


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("method", ["pld", "rdp", "ma"])
def test_it_is_taken_off_delta(method, adjacency):
    rate, steps, noise = 0.01, 200, 2.0
    mechanism = truncated(rate, steps, noise, 28, 1000, adjacency)
    plain, chance = NoisySgd(rate, steps, noise, adjacency=adjacency), truncation_chance(mechanism)
    assert 1e-6 < chance < 5e-5
    delta = 1e-4
    found = epsilon([mechanism], delta, method)
    assert epsilon([plain], delta, method) < found
    assert found == pytest.approx(epsilon([plain], delta - chance, method), rel=5e-4)


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    ("rate", "steps", "noise", "batch", "records"),
    [(256 / 60000, 3515, 1.1, 353, 61470), (256 / 60000, 3515, 1.1, 400, 61470), (0.01, 200, 2.0, 40, 1000)],
)
def test_dp_accounting_asks_no_more(rate, steps, noise, batch, records):
    """It prices a cut step as a replaced record, and here nothing is assumed of one: at a tenth of delta by 1 % at most."""
    event = dp.TruncatedSubsampledGaussianDpEvent(records, rate, batch, noise)
    theirs = PLDAccountant(value_discretization_interval=3e-4).compose(event, steps).get_epsilon(DELTA)
    mechanism = truncated(rate, steps, noise, batch, records)
    ours, share = epsilon([mechanism], DELTA), truncation_chance(mechanism) / DELTA
    assert theirs * (1 - 2e-3) <= ours <= theirs * (1.002 + 0.1 * share)


def test_dp_accounting_prices_replaced_records_alike():
    accountant_of_theirs = PLDAccountant(dp.NeighboringRelation.REPLACE_ONE, value_discretization_interval=3e-4)
    event = dp.TruncatedSubsampledGaussianDpEvent(1000, 0.01, 45, 4.0)
    theirs = accountant_of_theirs.compose(event, 200).get_epsilon(DELTA)
    assert epsilon([truncated(0.01, 200, 2.0, 45, 1000, "replace-one")], DELTA) == pytest.approx(theirs, rel=2e-3)


def test_steps_that_are_surely_cut_certify_nothing():
    mechanism = truncated(0.5, 100, 1.0, 10, 1000)
    assert truncation_chance(mechanism) == 1
    assert math.isinf(epsilon([mechanism], DELTA))


def test_a_filter_counts_it():
    mechanism = truncated(0.01, 200, 2.0, 28, 1000)
    chance = truncation_chance(mechanism)
    assert filter_epsilon([mechanism], 2.01 * chance) == filter_epsilon([NoisySgd(0.01, 200, 2.0)], 2.01 * chance), (
        "half of delta is for what may fail"
    )
    assert math.isinf(filter_epsilon([mechanism], 1.99 * chance))


def test_beside_other_releases_both_chances_count():
    mechanism, other = truncated(0.01, 200, 2.0, 28, 1000), Guarantee(1e-9, 2e-5)
    plain = NoisySgd(0.01, 200, 2.0)
    chance = truncation_chance(mechanism)
    both = epsilon([mechanism, other], 1e-4)
    assert both == pytest.approx(epsilon([plain], 1e-4 - 2e-5 - chance), rel=1e-3)


def test_trainings_that_take_all_of_delta_have_no_epsilon():
    entry = Entry("release", mechanisms=(truncated(256 / 60000, 3515, 8.0, 353, 61470),))
    assert statement(Account() + [entry] * 12, DELTA).certified.epsilon < 1
    full = Account() + [entry] * 13
    assert math.isinf(full.epsilon(DELTA))
    assert math.isfinite(full.epsilon(2e-5))


# --- banded noise: a sampled Gaussian release for each step that a record may enter ---

BANDED = BandedSgd(0.1, 11, 0.9, 1.3, strategy=(1.0, 0.7, 0.5, 0.2))


@pytest.mark.parametrize("accountant", ["pld", "rdp", "ma"])
@pytest.mark.parametrize(("steps", "entered"), [(1, 1), (4, 1), (5, 2), (11, 3), (12, 3), (13, 4)])
def test_it_costs_what_a_record_can_enter(accountant, steps, entered):
    """Also where it was left early, and where all of a part enter."""
    for rate in (0.1, 1.0):
        banded = replace(BANDED, steps=steps, sampling_rate=rate)
        assert banded.compositions == entered
        plain = NoisySgd(rate, entered, 0.9, 1.3)
        assert epsilon([banded], 1e-5, accountant) == epsilon([plain], 1e-5, accountant)


def test_a_record_in_its_own_steps_alone_is_worth_no_more():
    """An adversary who is told nothing but whether a record of one number was there, by drawing: T = 3 steps, two bands.

    The record is in the first part, whose steps are 0 and 2, and adds the whole bound to each that it enters. Chances that
    the likelihood ratio is above e^x differ by no more than the accountant's delta(x), within four standard errors.
    """
    strategy, q, steps, draws = (1.0, 0.8), 0.4, 3, 400_000
    bound = float(np.hypot(*strategy))
    mechanism, draw = BandedSgd(q, steps, 0.8, bound, strategy=strategy), np.random.default_rng(0)
    entered = draw.random((draws, 2)) < q
    changes = np.array([[1.0, 0.8, 0.0], [0.0, 0.0, 1.0]])  # C v, cut off where training ends
    seen = entered @ changes + mechanism.noise_std * draw.normal(size=(draws, steps))
    along, norms = seen @ changes.T / mechanism.noise_std**2, (changes**2).sum(1) / (2 * mechanism.noise_std**2)
    loss = np.log1p(q * np.expm1(along - norms)).sum(1)
    certified, x = profile([mechanism]), np.array([0.0, 0.3, 0.8, 1.5])
    for point, most in zip(x, certified.delta(x), strict=True):
        excess = np.clip(-np.expm1(point - loss), 0.0, None)
        assert excess.mean() <= most + 4 * excess.std() / np.sqrt(draws)
        if point < 1:  # and it is not far off, though the last step shows less than the norm
            assert excess.mean() > 0.4 * most


def test_the_most_steps_of_a_budget_are_whole_rounds():
    most = calibrate_steps(1.0, 1e-5, replace(BANDED, noise_multiplier=5.0), most=1000)
    assert most.steps % 4 == 0
    assert epsilon([most], 1e-5) <= 1.0 < epsilon([replace(most, steps=most.steps + 1)], 1e-5)


def test_a_replaced_record_may_leave_one_part_and_enter_another():
    """So it counts without sampling: at most 2 bound |a| for each of three pairs of blocks, side by side."""
    assert over_two_steps(BANDED) == NoisySgd(1.0, 3, 0.45, 2.6, adjacency="replace-one")
    answers = Entry("local", mechanisms=(RandomizedResponse(1.0, 3),))
    account = Account((Entry("release", mechanisms=(BANDED,)), answers))
    assert account.epsilon(1e-5) == pytest.approx(
        epsilon([over_two_steps(BANDED), RandomizedResponse(1.0, 3)], 1e-5), rel=1e-9
    )
    assert account.epsilon(1e-5) > epsilon([BANDED], 1e-5)


def test_dp_accounting_asks_as_much_for_the_steps_that_a_record_can_enter():
    steps = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(0.9)), 3)
    oracle = PLDAccountant(value_discretization_interval=1e-3).compose(steps)
    assert epsilon([BANDED], 1e-5) == pytest.approx(oracle.get_epsilon(1e-5), rel=2e-3)
