"""What tells records apart: public hashes by the letter, and what keyed hashes recognise, and what they do not."""

import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest

from dpltm.privacy.events import HASHES
from dpltm.records.rows import VALUES, Rows, count_shared, share_rows

KEY = bytes(range(32))
GENERATOR = np.random.default_rng(7)
X = GENERATOR.integers(0, 200, (60, 2, 3)).astype(np.uint8)
Y = GENERATOR.integers(0, 4, 60)
FLAT = X.reshape(60, 6)
NAMES = ("weight", "age", "height", "pulse", "Zucker", "é")


def by_hand(values):
    """docs/formats.md: 8 bytes of BLAKE2b over little-endian float32, modulo a thousand million."""
    packed = struct.pack(f"<{len(values)}f", *(float(value) for value in values))
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") % 10**9


def table(label=None, order=None, x=FLAT, y=Y, names=NAMES):
    """One table, with ``label`` (the seventh column if None) and features in an order of their own."""
    columns, values = [*names, "label"], np.column_stack([x, y])
    at = len(names) if label is None else columns.index(label)
    rest = [place for place in range(len(columns)) if place != at]
    if order is not None:
        rest = [rest[place] for place in order]
    return Rows(values[:, rest], values[:, at], tuple(columns[place] for place in rest), columns[at])


def same_people(one, other, key=KEY):
    return share_rows(one.keyed_hashes(key), other.keyed_hashes(key))


# --- public hashes ---


def test_public_hashes_by_hand_and_golden():
    """Whoever has a record knows its part, with this version or a later one."""
    assert HASHES == 10**9
    assert Rows(X, Y).public_hashes().tolist() == [by_hand(row) for row in FLAT]
    assert Rows(X, Y).public_hashes().dtype == np.int64
    found = Rows(np.array([[0.0, 1.0], [1.5, -2.0], [255.0, 1e-3]]), np.zeros(3)).public_hashes().tolist()
    assert found == [by_hand(row) for row in ([0, 1], [1.5, -2], [255, 1e-3])] == [863305622, 415867208, 4940384]
    far = np.array([[1e300, 1.0], [-1e300, 1.0], [2.0**60, 1.0]])  # what float32 does not hold is as large as any
    expected = [by_hand([np.inf, 1]), by_hand([-np.inf, 1]), by_hand([2.0**60, 1])]
    assert Rows(far, Y[:3]).public_hashes().tolist() == expected


def test_public_hashes_of_a_table_by_hand():
    """All columns in the order of their names, by code points; the label is one of them."""
    values = dict(zip([*NAMES, "label"], np.column_stack([FLAT, Y]).T, strict=True))
    assert sorted(values) == ["Zucker", "age", "height", "label", "pulse", "weight", "é"]
    expected = [by_hand(row) for row in np.column_stack([values[name] for name in sorted(values)])]
    for label in (None, "age", "é"):
        for order in (None, [5, 3, 1, 0, 2, 4]):
            assert table(label, order).public_hashes().tolist() == expected


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, np.uint64, np.float32, np.float64, ">f4", ">i4"])
def test_public_hashes_do_not_know_how_wide_numbers_are(dtype):
    expected = Rows(X, Y).public_hashes().tolist()
    assert Rows(np.asfortranarray(X.astype(dtype)), 3 - Y).public_hashes().tolist() == expected  # nor their labels
    names = table().public_hashes().tolist()
    assert table(x=FLAT.astype(dtype), y=Y.astype(dtype)).public_hashes().tolist() == names
    assert table(y=3 - Y).public_hashes().tolist() != names


def test_truths_are_ones_and_there_is_one_zero():
    assert Rows(X > 99, Y).public_hashes().tolist() == Rows((X > 99).astype(np.uint8), Y).public_hashes().tolist()
    zeros = Rows(np.array([[0.0, 1.0], [-0.0, 1.0]]), Y[:2])
    assert zeros.public_hashes().tolist() == [by_hand([0.0, 1.0])] * 2
    assert len(set(zeros.value_hashes(KEY).tolist())) == 1


def test_a_table_whose_names_tell_nothing_is_an_array():
    """Two columns of one name have no order; nor is there one without a label."""
    assert (Rows(X, Y).cut, table().cut) == ("values", "columns")
    twice = Rows(FLAT, Y, ("a", "a", "b", "c", "d", "e"), "label")
    for rows in (twice, Rows(FLAT, Y, NAMES), Rows(FLAT, Y, NAMES, NAMES[2])):
        assert rows.cut == "values"
        assert rows.public_hashes().tolist() == Rows(X, Y).public_hashes().tolist()


def test_texts_are_hashed_as_long_as_they_are():
    texts = [[1, 2, 3], [], [3, 2, 1], [7], [1, 2]]
    values = np.array([word for text in texts for word in text], dtype=np.uint16)
    offsets = np.cumsum([0, *map(len, texts)])
    rows = Rows(np.zeros((5, 4), dtype=np.int32), np.array([0, 1, 0, 1, 0]), ragged=(values, offsets))
    assert rows.public_hashes().tolist() == [by_hand(text) for text in texts]
    assert len(set(rows.keyed_hashes(KEY).tolist())) == 5
    other = replace(
        rows, x=np.ones((5, 9), dtype=np.int32), ragged=(values.astype(np.int64), offsets.astype(np.int32))
    )
    assert np.array_equal(other.keyed_hashes(KEY), rows.keyed_hashes(KEY))  # what is kept of them has no say
    assert other.public_hashes().tolist() == rows.public_hashes().tolist()


def test_rows_are_hashed_some_at_a_time():
    first = VALUES // 3
    x = np.arange(3 * (first + 5)).reshape(-1, 3)
    rows, late = Rows(x, x[:, 0] % 2), Rows(x[first:], x[first:, 0] % 2)
    assert (
        rows.public_hashes()[first:].tolist() == late.public_hashes().tolist() == [by_hand(row) for row in x[first:]]
    )
    assert np.array_equal(rows.value_hashes(KEY)[first:], late.value_hashes(KEY))
    assert len(rows.keyed_hashes(KEY)) == 2 * len(x)
    assert len(np.unique(rows.keyed_hashes(KEY))) == 2 * len(x)


# --- keyed hashes: what is recognised ---

ORDER = GENERATOR.permutation(60)
COLUMNS = [4, 2, 0, 5, 1, 3]


RECOGNISED = {
    "in another order": (Rows(X, Y), Rows(X[ORDER], Y[ORDER])),
    "wider": (Rows(X, Y), Rows(X.astype(np.float64), Y.astype(np.float32))),
    "big-endian": (Rows(X.astype(">i4"), Y), Rows(X.astype("<i8"), Y)),
    "flattened": (Rows(X, Y), Rows(FLAT, Y)),
    "under other labels": (Rows(X, Y), Rows(X, 3 - Y)),
    "with another label column": (table(), table("age")),
    "with other labels and label column": (table("age", y=3 - Y), table(order=COLUMNS, y=3 - Y)),
    "with its columns in another order": (table(), table(order=COLUMNS)),
    "with columns of other names": (table(), table(names=tuple("abcdef"))),
    "a table as an array": (table(), Rows(X, Y)),
    "a permuted table as an array": (table("height", COLUMNS), Rows(X, Y)),
    "an array with its columns in another order": (Rows(FLAT[:, COLUMNS], Y), Rows(X, Y)),
    "one row of many": (Rows(X, Y), Rows(X[7:8], Y[7:8])),
    "one row more": (Rows(X, Y), Rows(np.concatenate([X, 255 - X[:1]]), np.append(Y, 0))),
}


@pytest.mark.parametrize(("one", "other"), RECOGNISED.values(), ids=RECOGNISED)
def test_recognised(one, other):
    assert same_people(one, other)
    assert same_people(other, one)


NOBODY = {
    "other people": Rows(255 - X, Y),
    "one value changed in each": Rows(X + np.eye(1, 3, dtype=np.uint8), Y),
    "without a column": Rows(FLAT[:, 1:], Y),
    "scaled": Rows(X / 255, Y),
}


@pytest.mark.parametrize("case", NOBODY)
def test_not_recognised(case):
    """docs/privacy.md says so: what is stored with other values is other rows."""
    assert not same_people(Rows(X, Y), NOBODY[case])
    assert not same_people(table(), NOBODY[case])


def test_bags_of_values_count_only_where_they_tell_rows_apart():
    binary = np.random.default_rng(1).integers(0, 2, (50, 12))
    assert [len(rows.keyed_hashes(KEY)) for rows in (Rows(binary, np.zeros(50)), Rows(X, Y))] == [50, 120]


def test_made_up_people_are_nobody():
    """Whatever ids the made-up users have, real ones have them too."""
    real, made_up = Rows(FLAT[:, :2], Y), Rows(FLAT[:, :2], Y, kin="movielens-like")
    assert same_people(made_up, made_up)
    assert not same_people(real, made_up)
    assert not set(real.value_hashes(KEY).tolist()) & set(made_up.value_hashes(KEY).tolist())
    assert real.public_hashes().tolist() == made_up.public_hashes().tolist()
    none = np.empty(0, dtype=np.uint64)
    assert not share_rows(none, none)
    assert not share_rows(none, real.keyed_hashes(KEY))


# --- keyed hashes: what they tell ---


@pytest.mark.parametrize("rows", [Rows(X, Y), table()], ids=["array", "table"])
def test_without_the_key_nothing_is_told(rows):
    """Another key gives other hashes of every row, in every view; sorted, they say nothing of the file's order."""
    found = rows.keyed_hashes(KEY)
    for other in (bytes(32), KEY[:-1] + b"\0", KEY[::-1]):
        assert not set(found.tolist()) & set(rows.keyed_hashes(other).tolist())
        assert not set(rows.value_hashes(KEY).tolist()) & set(rows.value_hashes(other).tolist())
    assert not set(found.tolist()) & set(rows.public_hashes().tolist())
    assert found.dtype == np.uint64
    assert found.tolist() == sorted(found.tolist())
    assert np.array_equal(replace(rows, x=rows.x[ORDER], y=rows.y[ORDER]).keyed_hashes(KEY), found)


def test_the_digest_is_of_the_very_file():
    """It names what is kept of a file; recognising people is for the hashes."""
    changes = [{"x": X[ORDER], "y": Y[ORDER]}, {"x": X.astype(np.int64)}, {"y": Y.astype(np.float32)}, {"y": 3 - Y}]
    changes += [{"x": FLAT}, {"columns": NAMES}, {"label": "label"}, {"kin": "other"}]
    assert len({Rows(X, Y).digest, *(replace(Rows(X, Y), **change).digest for change in changes)}) == 9
    assert Rows(X.copy(order="F"), Y.astype(">i8")).digest == Rows(X, Y).digest


# --- one split in another ---


def labelled(x, y):
    return Rows(x, y).value_hashes(KEY)


TRAIN, TEST = labelled(X, Y), labelled(255 - X, Y)


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_shared_rows_of_distinct_data_are_found(copies):
    """Copies of a whole file hide nobody: nobody is alone in them, and yet everybody is known."""
    train = np.concatenate([TRAIN] * copies)
    assert count_shared(train, TEST) == 0
    for count in (1, 2, 60):
        assert count_shared(train, TRAIN[:count]) == count
        assert count_shared(train, np.append(TEST, TRAIN[:count])) == count


def few(count, seed, features=5):
    """Records of few different values, as drawn: alike by chance."""
    x = np.random.default_rng(seed).geometric(0.35, (count, features))
    return labelled(x, x[:, 0] % 2)


@pytest.mark.parametrize("seed", range(3))
def test_coincidences_are_no_shared_rows(seed):
    """Good and Turing: of rows that were alone among those trained on, as many come again as pairs there are."""
    train, test = few(3000, seed), few(1000, seed + 100)
    assert np.isin(test, train).sum() > 100
    assert count_shared(train, test) == 0
    assert count_shared(train, np.append(train, test[:1])) >= 3000
    assert count_shared(train, train[:1500]) == 1500
    kinds = few(3000, seed, 1) % np.uint64(8)  # where nobody is alone nothing is told
    assert count_shared(kinds, kinds[:50]) == 0
