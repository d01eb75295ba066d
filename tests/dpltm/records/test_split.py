"""Records are closed: what opens them was paid for, declared, or they are nobody's."""

import hashlib
import hmac
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from dpltm.errors import InputError
from dpltm.privacy.entry import NO_LINEAGE, Entry, Secret
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Guarantee, Unprotected
from dpltm.privacy.release import Once, pay
from dpltm.records import Arrays, Public, Split, from_arrays, load
from dpltm.records.split import ROWS, filled
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
    assert refused(split.open, by()) == (
        "records: nothing on record opens them; pay for what is read of them, or declare it in their ledger"
    )


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
    ledger.exclude(mine)
    (excluded,) = ledger.entries
    assert (ledger.declared(mine), ledger.declared_test(mine)) == (None, excluded)
    ledger.declare(Entry("release", ledger.part(other), NOISY))
    assert ledger.declared(other) is None, "with a mechanism, its secret opens them"
    ledger.declare(Entry("release", ledger.part(other), (Unprotected(),)))
    assert ledger.declared(other) == ledger.entries[-1]
    ledger.declare_public(mine, "a test")
    assert ledger.declared(mine) == ledger.entries[-1]
    assert ledger.declared_test(load("digits")) is None, "its publication says so"
