"""What tells records apart: public hashes by the letter, the digest of a file, and rows in two files."""

import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest

from dpltm.privacy.entry import HASHES
from dpltm.records.split import VALUES, Rows

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


def test_a_table_whose_names_tell_nothing_is_an_array():
    """Two columns of one name have no order; nor is there one without a label."""
    assert (Rows(X, Y).cut, table().cut) == (("record", ()), ("record", tuple(sorted([*NAMES, "label"]))))
    twice = Rows(FLAT, Y, ("a", "a", "b", "c", "d", "e"), "label")
    for rows in (twice, Rows(FLAT, Y, NAMES), Rows(FLAT, Y, NAMES, NAMES[2])):
        assert rows.cut == ("record", ())
        assert rows.public_hashes().tolist() == Rows(X, Y).public_hashes().tolist()


def test_texts_are_hashed_as_long_as_they_are():
    texts = [[1, 2, 3], [], [3, 2, 1], [7], [1, 2]]
    values = np.array([word for text in texts for word in text], dtype=np.uint16)
    offsets = np.cumsum([0, *map(len, texts)])
    rows = Rows(np.zeros((5, 4), dtype=np.int32), np.array([0, 1, 0, 1, 0]), _ragged=(values, offsets))
    assert rows.public_hashes().tolist() == [by_hand(text) for text in texts]
    words = values.astype(np.int64), offsets.astype(np.int32)
    other = replace(rows, _ragged=words).known_by(np.ones((5, 9), dtype=np.int32))
    assert other.digest == rows.digest  # what is kept of them has no say
    assert other.public_hashes().tolist() == rows.public_hashes().tolist()


def test_rows_are_hashed_some_at_a_time():
    first = VALUES // 3
    x = np.arange(3 * (first + 5)).reshape(-1, 3)
    rows, late = Rows(x, x[:, 0] % 2), Rows(x[first:], x[first:, 0] % 2)
    assert (
        rows.public_hashes()[first:].tolist() == late.public_hashes().tolist() == [by_hand(row) for row in x[first:]]
    )
    assert rows.identities()[first:].tolist() == late.identities().tolist()
    assert len(np.unique(rows.identities())) == len(rows)


ORDER = GENERATOR.permutation(60)


def test_the_digest_is_of_the_very_file():
    """In its order; but whichever column of a table is the label, in whatever order they stand, and whosever they are."""
    changes = [{"_cells": X[ORDER], "_targets": Y[ORDER]}, {"_targets": 3 - Y}, {"_cells": FLAT}]
    assert len({Rows(X, Y).digest, *(replace(Rows(X, Y), **change).digest for change in changes)}) == 4
    owned = replace(Rows(X, Y), _units=Y.astype(str), units_name="who")
    assert owned.digest == Rows(X, Y).digest
    assert (
        len({Rows(X, Y).owners_digest, owned.owners_digest, replace(owned, _units=(3 - Y).astype(str)).owners_digest})
        == 3
    )
    assert Rows(X.copy(order="F"), Y.astype(">i8")).digest == Rows(X.astype("f8"), Y).digest == Rows(X, Y).digest
    tables = {table(label, order).digest for label in (None, "age", "é") for order in (None, [5, 3, 1, 0, 2, 4])}
    assert len(tables) == 1
    assert table(names=tuple("abcdef")).digest not in tables


def test_whose_a_record_is_is_told_exactly():
    """Public hashes of records see float32 alone; persons are cut by what they are called."""
    one, other = (
        Rows(np.array([[number, 1.0]]), Y[:1], ("who", "a"), "y", _units=np.array([str(number)]), units_name="who")
        for number in (123456789, 123456790)
    )
    assert one.public_hashes() == other.public_hashes()
    assert one.cut_hashes() != other.cut_hashes()
    assert one.digest != other.digest


def test_parts_of_persons_are_cut_by_person():
    units = np.array([f"p{place % 7}" for place in range(60)])
    rows = Rows(X, Y, _units=units, units_name="who")
    assert rows.cut == ("person", ("who",))
    hashes = rows.cut_hashes()
    expected = {
        name: int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") % HASHES
        for name in set(units.tolist())
    }
    assert hashes.tolist() == [expected[name] for name in units.tolist()]
    some = rows.taken(np.array([3, 5]))
    assert (some._units.tolist(), some.public_hashes().tolist()) == (
        ["p3", "p5"],
        rows.public_hashes()[[3, 5]].tolist(),
    )


@pytest.mark.parametrize("count", [1, 2, 60])
def test_equal_rows_are_identical_whatever_their_labels(count):
    one, other = Rows(X, Y), Rows(np.concatenate([255 - X, X[:count]]), np.zeros(60 + count))
    assert other.identities()[60:].tolist() == one.identities()[:count].tolist()
    assert not np.isin(other.identities()[:60], one.identities()).any()
