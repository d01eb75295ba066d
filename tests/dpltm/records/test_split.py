"""Records are closed: what opens them was paid for, declared, or they are nobody's; and what tells records apart."""

import hashlib
import hmac
import pickle
import struct
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from dpltm.errors import InputError
from dpltm.privacy.entry import HASHES, NO_LINEAGE, Entry, Secret
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Guarantee, Unprotected
from dpltm.privacy.release import Once, pay
from dpltm.records import Arrays, Public, Split, from_arrays, load
from dpltm.records.split import ROWS, VALUES, Rows, filled
from refusals import refused

X, Y = np.arange(1200, dtype=np.uint8).reshape(600, 2), np.arange(600) % 3
NOISY = (Guarantee(1.0),)


@pytest.fixture
def split():
    return Split(Arrays(X, Y))


def on_record(kind, mechanisms=(), **fields):
    (entry,) = Ledger().declare(Entry(kind, mechanisms=mechanisms, **fields))
    return entry


def paid():
    """The secret of a release that a ledger holds."""
    release = Once(Entry("release", mechanisms=NOISY), NO_LINEAGE, lambda secret: secret)
    return next(pay(lambda *_: release, Ledger()).values)


@pytest.mark.parametrize(
    "by",
    [
        paid,
        lambda: Secret(paid().entry, None),
        lambda: on_record("public"),
        lambda: on_record("excluded"),
        lambda: on_record("release", (Unprotected(),)),
        lambda: on_record("release", (*NOISY, Unprotected())),
        lambda: Public("a test"),
    ],
)
def test_what_opens_records(split, by):
    x, y = split.open(by())
    assert x is X, "no copy"
    assert y is Y


@pytest.mark.parametrize(
    "by",
    [
        lambda: None,
        lambda: Entry("public"),  # a draft that nobody entered
        lambda: Entry("release", mechanisms=(Unprotected(),)),
        lambda: on_record("release", NOISY),  # its secret does
        lambda: on_record("local", NOISY),
        lambda: on_record("budget", (Guarantee(1.0, 1e-5),)),
        lambda: on_record("apart", population="others"),
        lambda: True,
    ],
)
def test_what_opens_nothing(split, by):
    said = "records: nothing on record opens them; pay for what is read of them, or declare it"
    assert refused(split.open, by()) == said


def test_records_of_nobody(split):
    assert Split(Arrays(X, Y), nobodys=True).open(None).x is X
    assert not split.nobodys
    assert replace(split, nobodys=True).open(None).y is Y
    made, digits = from_arrays(X, Y, bounds=(0, 255)), load("digits")
    assert not made.train.nobodys
    assert (digits.train.nobodys, digits.test.nobodys) == (False, True), "its publication holds them out"
    assert not from_arrays(X, Y, bounds=(0, 255), test=(255 - X[:9], Y[:9])).test.nobodys


def test_no_attribute_is_an_array(split):
    shown = {name: getattr(split, name) for name in dir(split) if not name.startswith("_")}
    assert not [name for name, value in shown.items() if isinstance(value, (np.ndarray, tuple)) and name != "shape"]
    assert (split.shape, split.dtype, split.slots, len(split)) == ((2,), np.uint8, None, 600)
    assert Split(Arrays(X.reshape(200, 3, 2), Y.reshape(200, 3))).slots == 3
    assert "255" not in repr(split)
    assert "600" not in repr(split), "how many there are is private"
    again = pickle.loads(pickle.dumps(split))
    assert again.digest(b"k") == split.digest(b"k")


def test_a_map_is_of_each_record_and_stays_closed(split):
    seen, told = [], []

    def rows(x, y):
        seen.append(len(x))
        return x.sum(1, dtype=np.int64) * 10 + y

    found = split.map(rows, partial(filled, (600,), np.int64), told.append)
    expected = [(int(a) + int(b)) * 10 + place % 3 for place, (a, b) in enumerate(X)]
    assert found.open(Public("a test")).x.tolist() == expected
    assert found.open(Public("a test")).y is Y
    assert (seen, told) == ([ROWS, 600 - ROWS], [ROWS, 600])
    assert refused(found.open, None).startswith("records: nothing on record")
    assert replace(split, nobodys=True).map(rows, partial(filled, (600,), np.int64)).nobodys
    assert split.with_features(X[:, :1]).shape == (1,)


def test_a_look_may_refuse_and_gives_nothing_away(split):
    assert split.check(lambda records: records.x.sum()) is None

    def refuse(records: Arrays) -> None:
        raise InputError(f"{len(records.x)} records of {records.y.max() + 1} classes")

    assert refused(split.check, refuse) == "600 records of 3 classes"


def test_digest(split):
    content = hashlib.sha256(
        b"uint8 (600, 2)\n" + X.tobytes() + b"int64 (600,)\n" + Y.astype("<i8").tobytes()
    ).hexdigest()
    assert split.digest(b"key") == hmac.new(b"key", content.encode(), "sha256").hexdigest()
    others = [
        Split(Arrays(*each))
        for each in ((X, Y[::-1]), (X[::-1], Y), (X.astype(np.int16), Y), (X.reshape(600, 2, 1), Y))
    ]
    assert len({each.digest(b"key") for each in (split, *others)} | {split.digest(b"other")}) == 6


def test_what_is_declared_of_a_dataset():
    ledger, mine = Ledger(), from_arrays(X, Y, bounds=(0, 255), name="mine", test=(255 - X[:9], Y[:9]))
    other = from_arrays(X - X % 2, Y, bounds=(0, 255), name="other")
    assert (ledger.declared(mine), ledger.declared_test(mine), ledger.declared_test(other)) == (None, None, None)
    ledger.declare_once(*ledger.apart(mine))
    (excluded,) = ledger.entries
    assert (ledger.declared(mine), ledger.declared_test(mine)) == (None, excluded)
    ledger.declare(Entry("release", ledger.part(other), NOISY))
    assert ledger.declared(other) is None, "with a mechanism, its secret opens them"
    ledger.declare(Entry("release", ledger.part(other), (Unprotected(),)))
    assert ledger.declared(other) == ledger.entries[-1]
    ledger.declare_once(*ledger.public(mine, "a test"))
    assert ledger.declared(mine) == ledger.entries[-1]
    assert ledger.declared_test(load("digits")) is None, "its publication says so"


GENERATOR = np.random.default_rng(7)
GRID = GENERATOR.integers(0, 200, (60, 2, 3)).astype(np.uint8)
TAGS = GENERATOR.integers(0, 4, 60)
FLAT = GRID.reshape(60, 6)
NAMES = ("weight", "age", "height", "pulse", "Zucker", "é")


def by_hand(values):
    """docs/formats.md: 8 bytes of BLAKE2b over little-endian float32, modulo a thousand million."""
    packed = struct.pack(f"<{len(values)}f", *(float(value) for value in values))
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") % 10**9


def tabular(label=None, order=None, x=FLAT, y=TAGS, names=NAMES):
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
    assert Rows(GRID, TAGS).public_hashes().tolist() == [by_hand(row) for row in FLAT]
    assert Rows(GRID, TAGS).public_hashes().dtype == np.int64
    found = Rows(np.array([[0.0, 1.0], [1.5, -2.0], [255.0, 1e-3]]), np.zeros(3)).public_hashes().tolist()
    assert found == [by_hand(row) for row in ([0, 1], [1.5, -2], [255, 1e-3])] == [863305622, 415867208, 4940384]
    far = np.array([[1e300, 1.0], [-1e300, 1.0], [2.0**60, 1.0]])  # what float32 does not hold is as large as any
    expected = [by_hand([np.inf, 1]), by_hand([-np.inf, 1]), by_hand([2.0**60, 1])]
    assert Rows(far, TAGS[:3]).public_hashes().tolist() == expected


def test_public_hashes_of_a_table_by_hand():
    """All columns in the order of their names, by code points; the label is one of them."""
    values = dict(zip([*NAMES, "label"], np.column_stack([FLAT, TAGS]).T, strict=True))
    assert sorted(values) == ["Zucker", "age", "height", "label", "pulse", "weight", "é"]
    expected = [by_hand(row) for row in np.column_stack([values[name] for name in sorted(values)])]
    for label in (None, "age", "é"):
        for order in (None, [5, 3, 1, 0, 2, 4]):
            assert tabular(label, order).public_hashes().tolist() == expected


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, np.uint64, np.float32, np.float64, ">f4", ">i4"])
def test_public_hashes_do_not_know_how_wide_numbers_are(dtype):
    expected = Rows(GRID, TAGS).public_hashes().tolist()
    # nor their labels
    assert Rows(np.asfortranarray(GRID.astype(dtype)), 3 - TAGS).public_hashes().tolist() == expected
    names = tabular().public_hashes().tolist()
    assert tabular(x=FLAT.astype(dtype), y=TAGS.astype(dtype)).public_hashes().tolist() == names
    assert tabular(y=3 - TAGS).public_hashes().tolist() != names


def test_a_table_whose_names_tell_nothing_is_an_array():
    """Two columns of one name have no order; nor is there one without a label."""
    assert (Rows(GRID, TAGS).cut, tabular().cut) == (("record", ()), ("record", tuple(sorted([*NAMES, "label"]))))
    twice = Rows(FLAT, TAGS, ("a", "a", "b", "c", "d", "e"), "label")
    for rows in (twice, Rows(FLAT, TAGS, NAMES), Rows(FLAT, TAGS, NAMES, NAMES[2])):
        assert rows.cut == ("record", ())
        assert rows.public_hashes().tolist() == Rows(GRID, TAGS).public_hashes().tolist()


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
    changes = [{"_cells": GRID[ORDER], "_targets": TAGS[ORDER]}, {"_targets": 3 - TAGS}, {"_cells": FLAT}]
    assert len({Rows(GRID, TAGS).digest, *(replace(Rows(GRID, TAGS), **change).digest for change in changes)}) == 4
    owned = replace(Rows(GRID, TAGS), _units=TAGS.astype(str), units_name="who")
    assert owned.digest == Rows(GRID, TAGS).digest
    assert (
        len(
            {
                Rows(GRID, TAGS).owners_digest,
                owned.owners_digest,
                replace(owned, _units=(3 - TAGS).astype(str)).owners_digest,
            }
        )
        == 3
    )
    assert (
        Rows(GRID.copy(order="F"), TAGS.astype(">i8")).digest
        == Rows(GRID.astype("f8"), TAGS).digest
        == Rows(GRID, TAGS).digest
    )
    tables = {tabular(label, order).digest for label in (None, "age", "é") for order in (None, [5, 3, 1, 0, 2, 4])}
    assert len(tables) == 1
    assert tabular(names=tuple("abcdef")).digest not in tables


def test_whose_a_record_is_is_told_exactly():
    """Public hashes of records see float32 alone; persons are cut by what they are called."""
    one, other = (
        Rows(np.array([[number, 1.0]]), TAGS[:1], ("who", "a"), "y", _units=np.array([str(number)]), units_name="who")
        for number in (123456789, 123456790)
    )
    assert one.public_hashes() == other.public_hashes()
    assert one.cut_hashes() != other.cut_hashes()
    assert one.digest != other.digest


def test_parts_of_persons_are_cut_by_person():
    units = np.array([f"p{place % 7}" for place in range(60)])
    rows = Rows(GRID, TAGS, _units=units, units_name="who")
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
    one, other = Rows(GRID, TAGS), Rows(np.concatenate([255 - GRID, GRID[:count]]), np.zeros(60 + count))
    assert other.identities()[60:].tolist() == one.identities()[:count].tolist()
    assert not np.isin(other.identities()[:60], one.identities()).any()
