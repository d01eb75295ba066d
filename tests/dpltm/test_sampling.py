"""Poisson sampling: the exact threshold, the binomial law, independence, and its bad inputs."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from dpltm.errors import InputError
from dpltm.noise import FastSource, SecureSource
from dpltm.sampling import poisson_sample


class Words:
    """A source of prepared 32-bit words."""

    def __init__(self, *words):
        self.data = np.array(words, dtype=np.uint32).tobytes()

    def random_bytes(self, count):
        assert count == len(self.data)
        return self.data


rates = st.floats(0, 1, exclude_min=True, exclude_max=True)


@given(rates, st.floats(0, 1))
@example(math.nextafter(1, 0), 1.0)
@example(2.0**-32, 0.0)
@example(math.nextafter(2.0**-32, 0), 0.0)
@example(5e-324, 0.0)
@example(256 / 60000, 0.0)
def test_the_chance_is_the_largest_on_the_grid_that_is_not_above_the_rate(rate, where):
    """If word w lets a record in, so do the w words below it: w + 1 of 2^32 may not exceed q; if not, w + 1 does."""
    near = int(Fraction(rate) * 2**32)
    words = {w for w in (0, near - 1, near, near + 1, int(where * (2**32 - 1)), 2**32 - 1) if 0 <= w < 2**32}
    words = sorted(words)
    taken = set(poisson_sample(Words(*words), len(words), rate).tolist())
    for index, word in enumerate(words):
        assert (index in taken) == (Fraction(word + 1, 2**32) <= Fraction(rate))


@given(st.integers(0, 2**32), st.integers(0, 300), rates)
def test_indices_rise_without_repeats_and_are_in_range(seed, records, rate):
    taken = poisson_sample(FastSource(seed), records, rate)
    assert taken.dtype == np.int64
    assert taken.ndim == 1
    assert (np.diff(taken) > 0).all()
    assert not len(taken) or (taken[0] >= 0 and taken[-1] < records)


@pytest.mark.parametrize("rate", [0.003, 0.3, 0.97])
def test_batch_sizes_are_binomial(rate):
    """Over 3000 steps of 200 records, against the binomial distribution in cells of 10 or more expected."""
    source, records, steps = FastSource(11), 200, 3000
    sizes = np.array([len(poisson_sample(source, records, rate)) for _ in range(steps)])
    law = stats.binom(records, rate)
    low, high = int(law.ppf(10 / steps)), int(law.isf(10 / steps))
    assert high - low >= 3
    expected = np.array([law.cdf(low), *law.pmf(range(low + 1, high)), law.sf(high - 1)]) * steps
    observed = np.bincount(np.clip(sizes, low, high) - low, minlength=high - low + 1)
    assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_every_record_has_the_same_chance():
    source, records, steps, rate = FastSource(12), 100, 5000, 0.1
    counts = np.zeros(records)
    for _ in range(steps):
        counts[poisson_sample(source, records, rate)] += 1
    statistic = ((counts - steps * rate) ** 2 / (steps * rate * (1 - rate))).sum()
    assert stats.chi2(records).sf(statistic) > 1e-3
    assert stats.chi2(records).cdf(statistic) > 1e-3  # too even would be as wrong: fixed-size batches are


def test_coins_are_independent():
    """Pairs of records come together with chance q^2, and one step says nothing about the next."""
    source, steps, rate = FastSource(13), 40_000, 0.3
    steps_in = np.zeros((steps, 2), dtype=bool)
    for step in range(steps):
        steps_in[step, poisson_sample(source, 2, rate)] = True
    first, second = steps_in.T
    for one, two in [(first, second), (first[1:], first[:-1]), (first[1:], second[:-1])]:
        both = int((one & two).sum())
        assert stats.binomtest(both, len(one), rate * rate).pvalue > 1e-3


@pytest.mark.parametrize("rate", [1, 1.0])
def test_rate_one_takes_all(rate):
    assert poisson_sample(SecureSource(), 5, rate).tolist() == [0, 1, 2, 3, 4]


def test_a_tiny_rate_gives_an_empty_batch():
    """Legal: the step still adds its noise."""
    taken = poisson_sample(SecureSource(), 1000, 1e-12)
    assert taken.shape == (0,)
    assert taken.dtype == np.int64


@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_no_records(rate):
    assert poisson_sample(SecureSource(), 0, rate).shape == (0,)


def test_secure_steps_differ():
    """Chance of a false alarm: 0.68^1000."""
    source = SecureSource()
    assert poisson_sample(source, 1000, 0.2).tolist() != poisson_sample(source, 1000, 0.2).tolist()


@pytest.mark.parametrize("rate", [0, 0.0, -0.1, 1.0000001, 2, math.nan, math.inf])
def test_bad_rate(rate):
    with pytest.raises(InputError) as caught:
        poisson_sample(SecureSource(), 10, rate)
    assert str(caught.value) == f"Expected 0 < sampling_rate={rate} <= 1"
