"""Poisson sampling: the exact threshold, the binomial law, independence, bad inputs; and rows by index, in pieces."""

import itertools
import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from dpltm.randomness.noise import FastSource, SecureSource
from dpltm.randomness.sampling import LIMIT, allocate, in_chunks, poisson_sample
from dpltm.records.batches import PREPARED, Records
from refusals import refused

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
    candidates = {0, near - 1, near, near + 1, int(where * (2**32 - 1)), 2**32 - 1}
    words = sorted(w for w in candidates if 0 <= w < 2**32)
    source = SimpleNamespace(random_bytes=lambda count: np.array(words, dtype=np.uint32).tobytes()[:count])
    taken = set(poisson_sample(source, len(words), rate).tolist())
    for index, word in enumerate(words):
        assert (index in taken) == (Fraction(word + 1, 2**32) <= Fraction(rate))


@given(st.integers(0, 2**32), st.integers(0, 300), rates)
def test_indices_rise_without_repeats_and_are_in_range(seed, records, rate):
    taken = poisson_sample(FastSource(seed), records, rate)
    assert taken.dtype == np.int64
    assert taken.ndim == 1
    assert (np.diff(taken) > 0).all()
    assert not len(taken) or (taken[0] >= 0 and taken[-1] < records)


def test_coins_are_independent():
    """Pairs of records come together with chance q^2, and one step says nothing about the next."""
    source, steps, rate = FastSource(13), 10_000, 0.3
    steps_in = np.zeros((steps, 2), dtype=bool)
    for step in range(steps):
        steps_in[step, poisson_sample(source, 2, rate)] = True
    first, second = steps_in.T
    for one, two in [(first, second), (first[1:], first[:-1]), (first[1:], second[:-1])]:
        both = int((one & two).sum())
        assert stats.binomtest(both, len(one), rate * rate).pvalue > 1e-3


def test_rates_at_both_ends_and_no_records():
    """An empty batch is legal: the step still adds its noise."""
    assert poisson_sample(SecureSource(), 5, 1).tolist() == [0, 1, 2, 3, 4]
    for records, rate in ((1000, 1e-12), (0, 0.5), (0, 1.0)):
        taken = poisson_sample(SecureSource(), records, rate)
        assert (taken.shape, taken.dtype) == ((0,), np.int64)


@pytest.mark.parametrize("rate", [0, -0.1, 1.0000001, math.nan, math.inf])
def test_bad_rate(rate):
    assert refused(poisson_sample, SecureSource(), 10, rate) == f"Expected 0 < sampling_rate={rate} <= 1"


@given(st.integers(0, 2**32), st.integers(0, 40), st.integers(1, 12), st.integers(1, 12))
def test_an_allocation_puts_every_record_into_so_many_steps(seed, records, one, other):
    participations, steps = sorted((one, other))
    taken = list(allocate(FastSource(seed), records, steps, participations))
    assert len(taken) == steps
    assert all(each.dtype == np.int64 and (np.diff(each) > 0).all() for each in taken)
    assert np.bincount(np.concatenate(taken), minlength=records).tolist() == [participations] * records


def test_all_sets_of_steps_are_equally_likely_and_two_records_know_nothing_of_each_other():
    records, sets = 20_000, list(itertools.combinations(range(5), 3))
    taken = allocate(FastSource(15), records, 5, 3)
    where = np.zeros((records, 5), dtype=bool)
    for step, theirs in enumerate(taken):
        where[theirs, step] = True
    known = np.array([sets.index(tuple(np.flatnonzero(row))) for row in where])
    assert stats.chisquare(np.bincount(known, minlength=10)).pvalue > 1e-3
    pairs = np.bincount(10 * known[::2] + known[1::2], minlength=100)
    assert stats.chisquare(pairs).pvalue > 1e-3


def test_words_that_would_make_some_steps_likelier_are_drawn_again():
    """Of the 2^64 words a third would be one too many, were the last not drawn again."""
    words = iter([[0, 2**64 - 1], [4], [0, 2**64 - 1], [0, 0]])
    source = SimpleNamespace(random_bytes=lambda _: np.array(next(words), dtype=np.uint64).tobytes())
    assert [each.tolist() for each in allocate(source, 2, 3, 1)] == [[0], [], [1]]


def test_chunks_are_coins_of_their_own():
    """Every record in each chunk equally often, and two records together as often as chance has it; none is lost."""
    source, steps, index = FastSource(14), 6000, np.arange(10, 13)
    where = np.zeros((steps, 3), dtype=int)
    for step in range(steps):
        order, sizes = in_chunks(source, index, 3)
        assert sorted(order.tolist()) == index.tolist()
        assert sum(sizes) == len(order)
        assert len(sizes) == 3
        where[step, order - 10] = np.repeat(range(3), sizes)
        assert all((np.diff(part) > 0).all() for part in np.split(order, np.cumsum(sizes)[:-1]))
    for record in range(3):
        assert stats.chisquare(np.bincount(where[:, record], minlength=3)).pvalue > 1e-3
    for one, two in ((0, 1), (1, 2)):
        pairs = np.bincount(3 * where[:, one] + where[:, two], minlength=9)
        assert stats.chisquare(pairs).pvalue > 1e-3
    assert in_chunks(source, index[:0], 4)[1] == [0, 0, 0, 0]
    order, sizes = in_chunks(SecureSource(), index, 1)
    assert (order.tolist(), sizes) == ([10, 11, 12], [3])


@given(st.lists(st.integers(0, 120), max_size=7), st.integers(1, 150))
@example([100, 101, 40], 60)
def test_batches_hold_whole_chunks_and_cuts_follow_from_the_chunk_alone(sizes, rows):
    count = sum(sizes)
    records, places = Records(np.arange(count)[:, None], np.zeros(count)), np.repeat(range(len(sizes)), sizes)
    seen, pieces = [], {}
    for batch in records.batches(np.arange(count), rows, sizes):
        values = batch.x[:, 0].numpy()
        assert 1 <= len(values) <= rows
        for piece in batch.chunks:
            chunk = set(places[values[piece]].tolist())
            assert len(chunk) == 1
            assert sizes[min(chunk)] <= LIMIT
            pieces.setdefault(min(chunk), []).append(piece.stop - piece.start)
        seen += values.tolist()
    assert seen == list(range(count))
    assert {place: sum(lengths) for place, lengths in pieces.items()} == {
        place: size for place, size in enumerate(sizes) if 0 < size <= LIMIT
    }
    for place, lengths in pieces.items():
        own = records.batches(np.arange(sizes[place]), rows, [sizes[place]])
        assert lengths == [piece.stop - piece.start for batch in own for piece in batch.chunks]


# Rows by index

STORED = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool")
TOKENS = ("int32", "int64")  # for an embedding; whole numbers of other widths are features


def stored(dtype: str, records: int = 6, features: int = 2) -> np.ndarray:
    """Rows of different values, both signs where there are any, that every type holds exactly."""
    values = np.arange(records * features).reshape(records, features)
    if dtype == "bool":
        return values % 3 == 0
    return (values if dtype == "uint8" else values - 5).astype(dtype)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy], ids=["array", "tensor"])
@pytest.mark.parametrize("dtype", STORED)
def test_features_become_what_the_network_takes_and_labels_whole_numbers_unless_stored_as_fractions(kind, dtype):
    values, index = stored(dtype), np.array([4, 0, 4, 3])
    before = values.copy()
    for wanted in (torch.float32, torch.float64):
        x, y = Records(kind(values), kind(values[:, 0].copy()), dtype=wanted).take(index)
        assert x.dtype == (torch.int64 if dtype in TOKENS else wanted)
        assert x.tolist() == values[index].astype(float).tolist()
        assert y.dtype == (wanted if dtype.startswith("float") else torch.int64)
        assert y.tolist() == values[index, 0].tolist()
        x.zero_()
        assert (values == before).all(), "what was given out is a copy"


def test_prepare_sees_rows_as_stored_in_one_shape_and_decides_what_they_become():
    seen = []

    def prepare(rows):
        seen.append((rows.dtype, tuple(rows.shape)))
        return rows.to(torch.float16) / 4

    records = Records(stored("uint8"), stored("int8")[:, 0], dtype=torch.float64, prepare=prepare)
    assert len(records.take(np.arange(PREPARED + 1) % 6)[0]) == PREPARED + 1
    x, y = records.take(np.array([3, 1]))
    assert set(seen[-3:]) == {(torch.uint8, (PREPARED, 2))}
    assert x.dtype == torch.float16, "not made anything else afterwards"
    assert x.tolist() == [[1.5, 1.75], [0.5, 0.75]]
    assert y.tolist() == [1, -3]


@given(st.integers(0, 30), st.integers(1, 12), st.integers(0, 2**32))
@example(0, 5, 0)
@example(12, 4, 0)
@example(13, 4, 0)
def test_every_index_comes_exactly_once_in_order_and_in_pieces(taken, rows, seed):
    index = np.sort(np.random.default_rng(seed).choice(30, taken, replace=False))
    x = np.arange(30, dtype=np.float32)[:, None]
    batches = list(Records(x, np.arange(100, 130)).batches(index, rows))
    assert len(batches) == math.ceil(taken / rows)
    found = []
    for batch in batches:
        assert len(batch.x) == len(batch.y)
        assert (batch.y == 100 + batch.x[:, 0]).all(), "features and labels of one record stay together"
        assert 1 <= len(batch.x) <= rows
        found += batch.x[:, 0].tolist()
    assert found == index.tolist()
    assert all(len(batch.x) == rows for batch in batches[:-1]), "full passes, and what is left"


def test_one_label_a_record():
    assert (
        refused(Records, np.zeros((0, 2)), torch.zeros(1)) == "x, y: 0 records and 1 labels; give one label a record"
    )
