"""Texts: what a ragged file becomes, word by word, against a plain loop; and every way in which one is wrong."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpltm.records import Layout, load, load_records
from dpltm.records.files import POSITIONS, padded
from opened import arrays_of
from refusals import refused

TEXTS = [[1, 2, 3], [], [7, 0, 6, 5, 1, 1], [4], [9_996, 9_997, 2**31]]
VALUES = np.array([word for text in TEXTS for word in text], dtype=np.uint32)
OFFSETS = np.cumsum([0, *map(len, TEXTS)])
Y = np.array([0, 1, 0, 1, 1])


@pytest.fixture
def write(tmp_path):
    """Writes t.npz, the texts above where nothing else is given (None: left out), and returns its path as text."""

    def write_npz(name="t.npz", **arrays):
        held = {"values_train": VALUES, "offsets_train": OFFSETS, "y_train": Y} | arrays
        np.savez(tmp_path / name, **{key: value for key, value in held.items() if value is not None})
        return str(tmp_path / name)

    return write_npz


def one_by_one(texts: list[list[int]], words: int, length: int) -> list[list[int]]:
    """As keras: a start, then each word three further on, the last ones kept, padded in front."""
    found = []
    for text in texts:
        whole = [1, *(word + 3 if word and word + 3 < words else 2 for word in text)][-length:]
        found.append([0] * (length - len(whole)) + whole)
    return found


def test_by_hand(write):
    found = load(write(), words=10, length=5)
    assert arrays_of(found.train).x.tolist() == [
        [0, 1, 4, 5, 6],
        [0, 0, 0, 0, 1],
        [2, 9, 8, 4, 4],
        [0, 0, 0, 1, 7],
        [0, 1, 2, 2, 2],
    ]
    assert found.train.dtype == np.int32
    assert (found.tables, found.tables_origin, found.bounds, found.classes) == ((10,), "declared", (0, 9), 2)
    usual = load(write())
    assert (arrays_of(usual.train).x.shape, usual.tables) == ((5, 256), (10_000,))
    assert arrays_of(usual.train).x[4, -3:].tolist() == [9_999, 2, 2]


@given(
    st.lists(st.lists(st.integers(0, 14), max_size=9), min_size=1, max_size=6),
    st.integers(5, 20),
    st.integers(1, 12),
    st.sampled_from(["u1", "i2", "<u4", ">i4", "u8"]),
)
def test_as_one_by_one(texts, words, length, dtype):
    values = np.array([word for text in texts for word in text], dtype=dtype)
    offsets = np.cumsum([0, *map(len, texts)])
    found = padded(values, offsets, Layout(words, length), "t")
    assert found.tolist() == one_by_one(texts, words, length)


def test_more_than_are_made_at_a_time():
    generator = np.random.default_rng(0)
    texts = [generator.integers(0, 9, generator.integers(0, 12)).tolist() for _ in range(70)]
    values, offsets = np.concatenate(texts).astype(np.int64), np.cumsum([0, *map(len, texts)])
    length = POSITIONS // 32
    assert np.array_equal(padded(values, offsets, Layout(8, length), "t")[:, -12:], one_by_one(texts, 8, 12))


def test_other_words_or_lengths_are_the_same_records(write):
    """Else what a ledger holds for them would not add up; and they fall into the same parts."""
    other = {"values_test": np.array([3, 3, 3, 5]), "offsets_test": np.array([0, 3, 4]), "y_test": np.array([1, 0])}
    path = write(**other)
    found = [load(path), load(path, words=9), load(path, length=2)]
    assert len({each.content_digest() for each in found}) == 1
    for rows in ([each.rows for each in found], [each.test.rows for each in found]):
        assert len({each.digest for each in rows}) == 1
        assert len({tuple(each.public_hashes()) for each in rows}) == 1
    assert found[0].rows.digest != found[0].test.rows.digest
    half = arrays_of(load(path, subset="0.5", words=8, length=2).train)
    kept = np.flatnonzero(found[0].rows.public_hashes() < 5 * 10**8)
    assert half.x.tolist() == one_by_one([TEXTS[place] for place in kept], 8, 2)
    assert half.y.tolist() == Y[kept].tolist()
    for labels in (Y, 1 - Y):  # whoever wrote a text is known by it
        path = write(values_test=VALUES, offsets_test=OFFSETS, y_test=labels)
        assert f"5 of the 5 records of {path} are training records of {path}" in refused(load, path)


def test_nothing_is_allocated_by_numbers_in_a_file(write):
    """A hundred kilobytes of offsets that all are 0 would become gigabytes."""
    labels = np.arange(20_000) % 2
    path = write(offsets_train=np.zeros(20_001, dtype=np.int64), values_train=VALUES[:0], y_train=labels)
    assert refused(load, path, length=100_000) == (
        f"{path}: 20,000 records of 100,000 words are more than the 1,073,741,824 positions that are taken; pass a smaller"
        " `length`"
    )
    assert arrays_of(load(path, length=2).train).x.tolist() == [[0, 1]] * 20_000


def test_features_that_are_positions(write):
    x = np.array([[0, 4], [9, 1], [3, 3]])

    def features(x):
        return write(values_train=None, offsets_train=None, x_train=x, y_train=[0, 1, 0])

    found = load(features(x.astype(">f4")), words=10)
    assert np.array_equal(arrays_of(found.train).x, x)
    assert (found.tables, found.tables_origin, found.bounds) == ((10,), "declared", (0, 9))


@pytest.mark.parametrize("names", [("values", "offsets"), ("values_test", "offsets_test")])
def test_records_alone(tmp_path, names):
    path = tmp_path / "r.npz"
    np.savez(path, **dict(zip(names, (VALUES, OFFSETS), strict=True)))
    assert load_records(str(path), layout=Layout(10, 4)).tolist() == one_by_one(TEXTS, 10, 4)
    assert refused(load_records, str(path)) == (
        f"{path}: holds texts ({names[0]}), where records of quantities belong; give those, as x"
    )
    np.savez(path, x=Y[:, None], values=VALUES, offsets=OFFSETS)
    assert refused(load_records, str(path)) == f"{path}: has both x and values; keep the one with the records"
