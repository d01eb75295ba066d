"""What tells records apart: public hashes by the letter, and what keyed hashes recognise, and what they do not."""

import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpltm.data import load
from dpltm.data.rows import ROWS, Rows, count_shared, share_rows
from dpltm.privacy.events import HASHES

KEY = bytes(range(32))
GENERATOR = np.random.default_rng(7)
X = GENERATOR.integers(0, 200, (60, 2, 3)).astype(np.uint8)
Y = GENERATOR.integers(0, 4, 60)
FLAT = X.reshape(60, 6)
NAMES = ("weight", "age", "height", "pulse", "Zucker", "é")
WIDTHS = [np.uint8, np.int16, np.int64, np.uint64, np.float32, np.float64, ">f4", ">i4"]


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


def test_public_hashes_by_hand():
    assert HASHES == 10**9
    assert Rows(X, Y).public_hashes().tolist() == [by_hand(row) for row in FLAT]
    assert Rows(X, Y).public_hashes().dtype == np.int64


def test_public_hashes_golden():
    """Whoever has a record knows its part, with this version or a later one."""
    found = Rows(np.array([[0.0, 1.0], [1.5, -2.0], [255.0, 1e-3]]), np.zeros(3)).public_hashes()
    assert found.tolist() == [by_hand(row) for row in ([0, 1], [1.5, -2], [255, 1e-3])] == GOLDEN


GOLDEN = [863305622, 415867208, 4940384]


def test_public_hashes_of_a_table_by_hand():
    """All columns in the order of their names, by code points; the label is one of them."""
    values = dict(zip([*NAMES, "label"], np.column_stack([FLAT, Y]).T, strict=True))
    assert sorted(values) == ["Zucker", "age", "height", "label", "pulse", "weight", "é"]
    expected = [by_hand(row) for row in np.column_stack([values[name] for name in sorted(values)])]
    for label in (None, "age", "é"):
        for order in (None, [5, 3, 1, 0, 2, 4]):
            assert table(label, order).public_hashes().tolist() == expected


@pytest.mark.parametrize("dtype", WIDTHS)
def test_public_hashes_do_not_know_how_wide_numbers_are(dtype):
    expected = Rows(X, Y).public_hashes().tolist()
    assert Rows(X.astype(dtype), Y.astype(dtype)).public_hashes().tolist() == expected
    assert Rows(np.asfortranarray(X.astype(dtype)), Y).public_hashes().tolist() == expected
    names = table().public_hashes().tolist()
    assert table(x=FLAT.astype(dtype), y=Y.astype(dtype)).public_hashes().tolist() == names


def test_truths_are_ones_and_there_is_one_zero():
    assert Rows(X > 99, Y).public_hashes().tolist() == Rows((X > 99).astype(np.uint8), Y).public_hashes().tolist()
    zeros = np.array([[0.0, 1.0]]), np.array([[-0.0, 1.0]])
    assert zeros[0].tobytes() != zeros[1].tobytes()
    for x in zeros:
        assert Rows(x, Y[:1]).public_hashes().tolist() == [by_hand([0.0, 1.0])]
        assert np.array_equal(Rows(x, Y[:1]).keyed_hashes(KEY), Rows(zeros[0], Y[:1]).keyed_hashes(KEY))


def test_labels_of_an_array_have_no_say():
    """A file of other labels for the same records: the same parts."""
    assert Rows(X, 3 - Y).public_hashes().tolist() == Rows(X, Y).public_hashes().tolist()
    assert table(y=3 - Y).public_hashes().tolist() != table().public_hashes().tolist()


def test_a_table_whose_names_tell_nothing_is_an_array():
    """Two columns of one name have no order."""
    twice = Rows(FLAT, Y, ("a", "a", "b", "c", "d", "e"), "label")
    assert (twice.cut, Rows(X, Y).cut, table().cut) == ("values", "values", "columns")
    assert twice.public_hashes().tolist() == Rows(X, Y).public_hashes().tolist()
    assert Rows(FLAT, Y, NAMES).cut == "values"  # no label: records alone
    assert Rows(FLAT, Y, NAMES, NAMES[2]).cut == "values"


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


@given(
    hnp.arrays(np.float32, (9, 3), elements=st.floats(-100, 100, width=32)),
    st.integers(0, 8),
    st.integers(0, 9),
    st.permutations(range(9)),
)
def test_a_public_hash_looks_at_one_record_alone(x, gone, at, order):
    """Whoever leaves, comes or moves: everybody else keeps their number. So parts change by one record, or not at all."""
    y = np.arange(9) % 2
    found = Rows(x, y).public_hashes()
    assert np.array_equal(Rows(np.delete(x, gone, 0), np.delete(y, gone)).public_hashes(), np.delete(found, gone))
    more = Rows(np.insert(x, at, 7.5, 0), np.insert(y, at, 1)).public_hashes()
    assert np.array_equal(np.delete(more, at), found)
    assert np.array_equal(Rows(x[order], y[order]).public_hashes(), found[order])
    assert ((found >= 0) & (found < HASHES)).all()


def test_hashes_are_even():
    """Each of ten parts holds a tenth of 20,000 records, but for chance: four standard deviations are 170."""
    found = Rows(np.arange(40_000).reshape(-1, 2), np.zeros(20_000)).public_hashes()
    assert len(set(found.tolist())) > 19_990
    assert np.abs(np.histogram(found, 10, (0, HASHES))[0] - 2000).max() < 170


def test_rows_are_hashed_some_at_a_time():
    x = np.arange(3 * (ROWS + 5)).reshape(-1, 3)
    rows, late = Rows(x, x[:, 0] % 2), Rows(x[ROWS:], x[ROWS:, 0] % 2)
    assert rows.public_hashes()[ROWS:].tolist() == late.public_hashes().tolist() == [by_hand(row) for row in x[ROWS:]]
    assert np.array_equal(rows.value_hashes(KEY)[ROWS:], late.value_hashes(KEY))
    assert len(rows.keyed_hashes(KEY)) == 2 * len(x)
    assert len(np.unique(rows.keyed_hashes(KEY))) == 2 * len(x)


# --- keyed hashes: what is recognised ---

ORDER = GENERATOR.permutation(60)
COLUMNS = [4, 2, 0, 5, 1, 3]


def csv_of(folder, rows, name="t.csv"):
    path = folder / name
    values = np.column_stack([rows.x, rows.y])
    lines = [",".join([*rows.columns, rows.label]), *(",".join(map(str, row)) for row in values.tolist())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


RECOGNISED = {
    "in another order": (Rows(X, Y), Rows(X[ORDER], Y[ORDER])),
    "a table in another order": (table(), table(x=FLAT[ORDER], y=Y[ORDER])),
    "wider": (Rows(X, Y), Rows(X.astype(np.float64), Y.astype(np.float32))),
    "big-endian": (Rows(X.astype(">i4"), Y), Rows(X.astype("<i8"), Y)),
    "flattened": (Rows(X, Y), Rows(FLAT, Y)),
    "under other labels": (Rows(X, Y), Rows(X, 3 - Y)),
    "with another label column": (table(), table("age")),
    "with two other label columns": (table("Zucker"), table("é")),
    "with other labels and label column": (table("age", y=3 - Y), table(order=COLUMNS, y=3 - Y)),
    "with its columns in another order": (table(), table(order=COLUMNS)),
    "with columns of other names": (table(), table(names=tuple("abcdef"))),
    "with other names in another order": (table(), table(order=COLUMNS, names=tuple("fedcba"))),
    "a table as an array": (table(), Rows(X, Y)),
    "a permuted table as an array": (table("height", COLUMNS), Rows(X, Y)),
    "an array with its columns in another order": (Rows(FLAT[:, COLUMNS], Y), Rows(X, Y)),
    "one row of many": (Rows(X, Y), Rows(X[7:8], Y[7:8])),
    "one row more": (Rows(X, Y), Rows(np.concatenate([X, 255 - X[:1]]), np.append(Y, 0))),
}


@pytest.mark.parametrize("case", RECOGNISED)
def test_recognised(case):
    one, other = RECOGNISED[case]
    assert same_people(one, other)
    assert same_people(other, one)


def test_csv_against_npz(tmp_path):
    """The same people in two files, read as a user would have them read."""
    path = csv_of(tmp_path, table(x=FLAT % 50))
    np.savez(tmp_path / "t.npz", x_train=FLAT % 50, y_train=Y)
    array = load(str(tmp_path / "t.npz"), bounds=(0, 255), classes=4)
    for label in ("label", "height"):
        text = load(path, label=label, bounds=(0, 255), classes=50)
        assert same_people(text.rows, array.rows)
        assert not same_people(text.rows, replace(array.rows, x=array.rows.x[:, ::-1] + 100, y=array.rows.y + 5))
    both = [load(path, label=label, bounds=(0, 255), classes=50).rows.public_hashes() for label in ("label", "age")]
    assert np.array_equal(*both)


NOBODY = {
    "other people": Rows(255 - X, Y),
    "one value changed in each": Rows(X + np.eye(1, 3, dtype=np.uint8), Y),
    "without a column": Rows(FLAT[:, 1:], Y),
    "with a column more": Rows(np.column_stack([FLAT, FLAT[:, 0]]), Y),
    "scaled": Rows(X / 255, Y),
    "rounded": Rows(X // 10, Y),
}


@pytest.mark.parametrize("case", NOBODY)
def test_not_recognised(case):
    """docs/privacy.md says so: what is stored with other values is other rows."""
    assert not same_people(Rows(X, Y), NOBODY[case])
    assert not same_people(table(), NOBODY[case])


def test_places_count_but_for_the_bag():
    """Rows of the same values in other places are other rows, unless their values alone tell all rows apart."""
    binary = np.random.default_rng(1).integers(0, 2, (50, 12))
    rows = Rows(binary, np.zeros(50))
    assert len(np.unique(binary.sum(axis=1))) < 13  # as bags they are hardly told apart, so that view is left out
    assert len(rows.keyed_hashes(KEY)) == 50
    assert len(Rows(X, Y).keyed_hashes(KEY)) == 120
    assert len(table().keyed_hashes(KEY)) == 180
    reverse = Rows(1 - binary, np.zeros(50))
    assert share_rows(rows.keyed_hashes(KEY), reverse.keyed_hashes(KEY)) == bool(
        {tuple(row) for row in binary.tolist()} & {tuple(row) for row in (1 - binary).tolist()}
    )


@given(
    hnp.arrays(np.uint8, st.tuples(st.integers(1, 12), st.just(3)), elements=st.integers(0, 3)),
    hnp.arrays(np.uint8, st.tuples(st.integers(1, 12), st.just(3)), elements=st.integers(0, 3)),
)
def test_values_are_shared_just_where_rows_are(one, other):
    found = share_rows(
        np.sort(Rows(one, one[:, 0]).value_hashes(KEY)), np.sort(Rows(other, other[:, 1]).value_hashes(KEY))
    )
    assert found == bool({tuple(row) for row in one.tolist()} & {tuple(row) for row in other.tolist()})


def test_nothing_is_shared_with_nobody():
    none = np.empty(0, dtype=np.uint64)
    assert not share_rows(none, none)
    assert not share_rows(none, Rows(X, Y).keyed_hashes(KEY))
    assert not share_rows(Rows(X, Y).keyed_hashes(KEY), none)


def test_made_up_people_are_nobody():
    """Whatever ids the made-up users have, real ones have them too."""
    real, made_up = Rows(FLAT[:, :2], Y), Rows(FLAT[:, :2], Y, kin="movielens-like")
    assert same_people(real, real)
    assert same_people(made_up, made_up)
    assert not same_people(real, made_up)
    assert not set(real.value_hashes(KEY).tolist()) & set(made_up.value_hashes(KEY).tolist())
    assert real.public_hashes().tolist() == made_up.public_hashes().tolist()


def test_numbers_that_float32_does_not_hold():
    """They are as large as any; nobody is warned of it."""
    x = np.array([[1e300, 1.0], [-1e300, 1.0], [2.0**60, 1.0]])
    hashes = Rows(x, Y[:3]).public_hashes().tolist()
    assert hashes == [by_hand([np.inf, 1]), by_hand([-np.inf, 1]), by_hand([2.0**60, 1])]
    assert len(set(Rows(x, Y[:3]).keyed_hashes(KEY).tolist())) == 6


# --- keyed hashes: what they tell ---


def test_without_the_key_nothing_is_told():
    """Another key gives other hashes of every row, in every view: a guess of a row cannot be checked."""
    for rows in (Rows(X, Y), table()):
        for other in (bytes(32), KEY[:-1] + b"\0", KEY[::-1]):
            for view in (Rows.keyed_hashes, Rows.value_hashes):
                assert not set(view(rows, KEY).tolist()) & set(view(rows, other).tolist())
        assert not set(rows.keyed_hashes(KEY).tolist()) & set(rows.public_hashes().tolist())


def test_every_bit_of_a_keyed_hash_depends_on_every_value():
    """One value more by 1: half of the bits flip on average; a row of zeros is as good as any."""
    base = np.zeros((1, 6), dtype=np.uint8)
    (start,) = Rows(base, np.zeros(1)).value_hashes(KEY).tolist()
    assert start not in (0, 1)
    flips = []
    for place in range(6):
        changed = base.copy()
        changed[0, place] = 1
        (value,) = Rows(changed, np.zeros(1)).value_hashes(KEY).tolist()
        flips.append((start ^ value).bit_count())
    assert len(set(flips)) > 1
    assert 24 <= sum(flips) / 6 <= 40
    assert Rows(base, np.array([0])).value_hashes(KEY) == Rows(base, np.array([1])).value_hashes(KEY)


def test_the_hashes_of_all_rows_tell_no_order():
    """They are written down: sorted, so that nothing of the file's order is."""
    for rows in (Rows(X, Y), table()):
        found = rows.keyed_hashes(KEY)
        assert found.dtype == np.uint64
        assert (np.diff(found.astype(object)) >= 0).all()
        other = replace(rows, x=rows.x[ORDER], y=rows.y[ORDER])
        assert np.array_equal(other.keyed_hashes(KEY), found)


@pytest.mark.parametrize(
    "change",
    [
        {"x": X[ORDER], "y": Y[ORDER]},
        {"x": X.astype(np.int64)},
        {"y": Y.astype(np.float32)},
        {"y": 3 - Y},
        {"x": FLAT},
        {"columns": NAMES},
        {"label": "label"},
        {"kin": "other"},
        {"x": X[:-1], "y": Y[:-1]},
    ],
    ids=lambda change: ",".join(change),
)
def test_the_digest_is_of_the_very_file(change):
    """It names what is kept of a file; recognising people is for the hashes."""
    assert replace(Rows(X, Y), **change).digest != Rows(X, Y).digest
    assert Rows(X.copy(order="F"), Y.astype(">i8")).digest == Rows(X, Y).digest


# --- one split in another ---


def labelled(x, y):
    return Rows(x, y).value_hashes(KEY)


TRAIN, TEST = labelled(X, Y), labelled(255 - X, Y)


@pytest.mark.parametrize("count", [1, 2, 60])
def test_shared_rows_of_distinct_data_are_found(count):
    test = np.concatenate([TEST, TRAIN[:count]])
    assert count_shared(TRAIN, TEST) == 0
    assert count_shared(TRAIN, test) == count
    assert count_shared(TRAIN, TRAIN[:count]) == count
    assert count_shared(test[-1:], TRAIN) == 1


def few(count, seed, features=5):
    """Records of few different values, as drawn: alike by chance."""
    x = np.random.default_rng(seed).geometric(0.35, (count, features))
    return labelled(x, x[:, 0] % 2)


@pytest.mark.parametrize("seed", range(5))
def test_coincidences_are_no_shared_rows(seed):
    """Good and Turing: of rows that were alone among those trained on, as many come again as pairs there are."""
    train, test = few(3000, seed), few(1000, seed + 100)
    alone = np.unique(train, return_counts=True)[1] == 1
    assert alone.any()
    assert np.isin(test, train).sum() > 100
    assert count_shared(train, test) == 0
    assert count_shared(train, np.append(train, test[:1])) >= 3000
    assert count_shared(train, train[:1500]) == 1500


def test_where_nobody_is_alone_nothing_is_told():
    """Eight kinds of people: those of any test split were met, whoever they are."""
    train, test = few(3000, 0, 1) % np.uint64(8), few(50, 1, 1) % np.uint64(8)
    assert (np.unique(train, return_counts=True)[1] > 1).all()
    assert np.isin(test, train).all()
    assert count_shared(train, test) == 0


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_copies_of_a_whole_file_hide_nobody(copies):
    """Nobody is alone in them, and yet everybody is known."""
    train = np.concatenate([TRAIN] * copies)
    assert count_shared(train, TRAIN) == 60
    assert count_shared(train, np.append(TRAIN, TEST[:1])) == 60
    assert count_shared(train, np.append(TEST, TRAIN[:1])) == 1
    assert count_shared(train, TEST) == 0


def test_a9a(data_home):
    """123 zeros and ones: many published test records equal training records, and are others."""
    if not (data_home / "a9a.npz").is_file():
        pytest.skip("a9a.npz is not in the data home")
    data = load("a9a", home=data_home)
    train, test = data.rows.value_hashes(KEY), data.test_rows.value_hashes(KEY)
    assert np.isin(test, train).sum() > 1000
    assert count_shared(train, test) == 0
    assert count_shared(train, np.append(train, test[:1])) > 32_000
    assert count_shared(train, train[: len(train) // 2]) == len(train) // 2
    assert count_shared(train[::2], train[1::2]) == 0  # two halves at random
