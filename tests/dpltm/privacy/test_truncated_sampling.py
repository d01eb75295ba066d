"""Truncated Poisson sampling: every outcome of small cases against what is claimed of them, and dp-accounting's event."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import dp_accounting as dp
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from scipy.special import ndtr

from dpltm.errors import BudgetError
from dpltm.privacy import accountant
from dpltm.privacy.account import Account, Planned
from dpltm.privacy.accountant import epsilon, filter_epsilon, profile
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.entry import Entry
from dpltm.privacy.mechanisms import Guarantee, NoisySgd, TruncatedSgd
from dpltm.privacy.statement import statement
from dpltm.privacy.truncated_sampling import truncation_chance

DELTA = 1e-5
EPSILONS = np.array([0.0, 0.5, 1.0, 2.0, 4.0, 6.0, 9.0, 12.0])


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
    """delta of the first against the second at EPSILONS, of so many independent steps that are seen in cells of an eighth of
    the noise: no more than the truth, and hardly less."""
    cells = np.arange(-4 - 6 * noise, 4 + 6 * noise, noise / 8)
    cells = np.array([-np.inf, *cells, 1.5 * LOUD, 2.5 * LOUD, np.inf])
    first, second = (
        sum(chance * np.diff(ndtr((cells - value) / noise)) for value, chance in law.items()) for law in (one, other)
    )
    if steps == 2:
        first, second = np.outer(first, first), np.outer(second, second)
    return np.array([np.maximum(first - math.exp(x) * second, 0).sum() for x in EPSILONS])


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
    claimed = profile([mechanism]).delta(EPSILONS)
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
def test_nothing_is_assumed_of_a_step_that_is_cut_and_no_less_would_do(
    rate, steps, batch, records, adjacency, monkeypatch
):
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


def test_trainings_that_take_all_of_delta_are_told_and_no_epsilon_is_called_for():
    """Each takes a tenth at most, and an account holds more than ten of them."""
    plan = truncated(256 / 60000, 3515, 8.0, 353, 61470)
    entry = Entry("release", mechanisms=(plan,), day="2026-11-28")
    held = Account() + [entry] * 12
    full = Account() + [entry] * 13
    body = statement(held, DELTA)
    assert (body.certified.epsilon < 1, "off delta" in "".join(body.notes)) == (True, False)
    for account, budget in ((held, 3.0), (full, 100.0)):
        with pytest.raises(BudgetError, match="set a larger `delta`, a new budget"):
            calibrate_noise(budget, DELTA, plan, Planned(account))
    notes = statement(full, DELTA).notes
    assert (
        "releases that may fail, such as of truncated batches, take 1.1e-05 off delta together, which leaves nothing of"
        " 1e-05: whatever is certified needs a larger delta"
    ) in notes
    assert math.isinf(full.epsilon(DELTA))
    assert math.isfinite(full.epsilon(2e-5))
