"""What tells one record from another: public hashes that cut parts out of a dataset, and keyed ones that identify its rows.

A **public hash** looks at one record and at nothing else, so that a record more or less changes the part that it falls into
and no other (privacy-model.md 1.5). It is the same for everybody. It does not depend on the order of the file, on how
wide its numbers are, or on which column is the label.

**Keyed hashes** answer whether two datasets have rows in common. They are private, stay in the user's configuration folder,
and are taken in up to three *views* of a row, so that the same people are recognised in files of another form:

- *values*: the features in their order, without the label. Knows an array again under other labels.
- *columns*: every value, the label too, under the name of its column. Knows a table again whichever column is the label,
  whatever their order.
- *bag*: every value, the label too, in any order. Knows an array as a table, and a table under other names. Left out where
  it tells rows apart badly, as it does where all values are zeros and ones.

Where a column says whose each row is, rows are taken with it and without it, and two more views tell of persons:

- *whose*: the person, under the name of that column. Knows a person again whose rows in another file are others.
- *owned*: the values, and whose they are. Tells whether another file says of the same rows that they are somebody else's.

Numbers count as float32, so 1 is 1.0 and True; a table stored with fewer digits, scaled, or without some of its columns is
not recognised.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from dpltm.privacy.events import HASHES
from dpltm.records.mapped import pieces

VALUES = 2**16
"""Values that are hashed at once: what is made of them stays in a processor's cache."""

DISTINCT = 0.9
"""Of rows that differ in their values, the part that must differ as bags for bags to be of use."""

_U, _STEP = np.uint64, 0x9E3779B97F4A7C15


@dataclass(frozen=True, eq=False)
class Rows:
    """The records of one split as they were read, for their hashes.

    Attributes:
        x: features, ``(n, ...)``, as stored.
        y: labels, ``(n,)``.
        columns: names of the columns of ``x``, where a table has them.
        label: name of the label's column.
        ragged: of texts, all words, and where each record's begin, ``(n + 1,)``; then ``x`` is not looked at.
        kin: rows of another kin are never the same: those of made-up records are nobody's.
        units: whose each record is, ``(n,)`` texts, where a column says so; and
        units_name: that column.
        full: the features with that column, in numbers, and names of all their columns, where a table has it among them.
    """

    x: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    columns: tuple[str, ...] | None = None
    label: str | None = None
    ragged: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)
    kin: str = ""
    units: np.ndarray | None = field(default=None, repr=False)
    units_name: str = ""
    full: tuple[np.ndarray, tuple[str, ...]] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of exactly this file's content, order and types too: private, and a name for what is kept of it."""
        content = hashlib.sha256(repr((self.columns, self.label, self.kin)).encode())
        for part in (*(self.ragged or (self.x,)), self.y):
            content.update(f"{part.dtype.name} {part.shape}\n".encode())
            for piece in pieces(part):
                content.update(np.ascontiguousarray(piece, dtype=part.dtype.newbyteorder("<")).tobytes())
        if self.units is not None:
            whole = () if self.full is None else self.full[1]
            content.update(repr((self.units_name, whole, self.units.tolist())).encode())
        return content.hexdigest()

    @property
    def cut(self) -> Literal["values", "columns"]:
        """How a part is cut out of these records: ``columns`` of a table with names, else ``values``."""
        return "values" if self._names is None else "columns"

    def public_hashes(self) -> np.ndarray:
        """A number from 0 to ``HASHES`` - 1 for each record, ``(n,)`` int64, from what it holds alone.

        The first 8 bytes of BLAKE2b over its values as little-endian float32, modulo ``HASHES``: the features in their
        order, or, of a table, all columns with the label in the order of their names.

        Guarantees:
            Depends on no other record. Equal records have equal hashes, so all copies of one are in the same part.
        """
        hashes = (
            int.from_bytes(hashlib.blake2b(row, digest_size=8).digest(), "little") % HASHES for row in self._plain()
        )
        return np.fromiter(hashes, dtype=np.int64, count=len(self))

    def keyed_hashes(self, key: bytes) -> np.ndarray:
        """Hashes of all rows in every view, sorted, ``(m,)`` uint64, m up to three times n: what rows are recognised by.

        With a column of persons, up to eight times.

        Args:
            key: secret; without it the hashes confirm no guess of a row.
        """
        hashes = self._hashes_of_rows(key)
        if self.units is None:
            return hashes
        with_them = [] if self.full is None else [self._with_units._hashes_of_rows(key)]
        hashes = np.concatenate([hashes, *with_them, np.unique(self.whose_hashes(key)), self._owned_hashes(key)])
        hashes.sort()
        return hashes

    @property
    def _with_units(self) -> Rows:
        """The same rows with the column of persons among the others; themselves where a table has none."""
        if self.full is None:
            return self
        return Rows(self.full[0], self.y, self.full[1], self.label, kin=self.kin)

    def whose_hashes(self, key: bytes) -> np.ndarray:
        """The view *whose*: a hash of the person that each row is of, under the name of the column, ``(n,)`` uint64."""
        assert self.units is not None
        names, codes = np.unique(self.units, return_inverse=True)
        secret = hashlib.sha256(key + self.kin.encode() + b"whose " + self.units_name.encode()).digest()
        digests = [hashlib.blake2b(name.encode(), digest_size=8, key=secret).digest() for name in names.tolist()]
        return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)[codes]

    def _owned_hashes(self, key: bytes) -> np.ndarray:
        """The view *owned*: of the values of each row and of its person together, ``(n,)`` uint64."""
        with np.errstate(over="ignore"):
            return _mix(self.value_hashes(key) * _U(_STEP) + self.whose_hashes(key))

    def regroups(self, key: bytes, theirs: np.ndarray) -> bool:
        """Whether rows of another file are here as well, and here are somebody else's: more than coincidence explains.

        Args:
            key: that their hashes were taken under.
            theirs: hashes of the rows of another file, which says whose they are by a column of this name; sorted.
        """
        if self.units is None or not len(theirs):
            return False
        values = self.value_hashes(key)
        others = _are_among(values, theirs) & ~_are_among(self._owned_hashes(key), theirs)
        return bool(others.any()) and _beyond_coincidence(values, values[others]) > 0

    def _hashes_of_rows(self, key: bytes) -> np.ndarray:
        key = key + self.kin.encode()
        if self.ragged is not None:
            return np.sort(np.concatenate([_hash(rows, key, "values") for rows in self._mixed_texts(key)]))
        names = self._names
        views = np.empty((2 if names is None else 3, len(self)), dtype=np.uint64)  # values, bag, columns
        done = 0
        for rows in self._chunks(self.x, label=True):
            mixed, part = _mixed(rows, key), views[:, done : done + len(rows)]
            part[0], part[1] = _hash(mixed[:, :-1], key, "values"), _hash_bag(mixed, key)
            if names is not None:
                part[2] = _hash(mixed[:, names[0]], key, "columns " + "\0".join(names[1]))
            done += len(rows)
        views.sort(axis=1)
        distinct = 1 + np.count_nonzero(views[:2, 1:] != views[:2, :-1], axis=1)
        hashes = (np.delete(views, 1, axis=0) if distinct[1] < DISTINCT * distinct[0] else views).ravel()
        hashes.sort()
        return hashes

    def value_hashes(self, key: bytes) -> np.ndarray:
        """The view *values* alone, a hash for each row in its order, ``(n,)`` uint64: to find one split in another."""
        key = key + self.kin.encode()
        if self.ragged is not None:
            return np.concatenate([_hash(rows, key, "values") for rows in self._mixed_texts(key)])
        return np.concatenate([_hash(_mixed(rows, key), key, "values") for rows in self._chunks(self.x)])

    @property
    def _names(self) -> tuple[np.ndarray, list[str]] | None:
        """The order of all columns, the label's last one too, by their names; None where they have none of their own."""
        if self.columns is None or self.label is None or len({*self.columns, self.label}) <= len(self.columns):
            return None
        names = [*self.columns, self.label]
        return np.array(sorted(range(len(names)), key=names.__getitem__)), sorted(names)

    def _plain(self) -> Iterator[bytes]:
        """The bytes of each record that its public hash is taken over."""
        if self.full is not None:
            yield from self._with_units._plain()
            return
        if self.ragged is not None:
            values, offsets = self.ragged
            for start, stop in itertools.pairwise(offsets):
                yield _float32(values[start:stop]).tobytes()
            return
        names = self._names
        for rows in self._chunks(self.x, label=names is not None):
            for row in rows if names is None else rows[:, names[0]]:
                yield row.tobytes()

    def _chunks(self, x: np.ndarray, label: bool = False) -> Iterator[np.ndarray]:
        """Rows as float32, some at a time; with the label behind the features if asked."""
        done, at_once = 0, max(1, VALUES // max(1, x[:1].size))
        for piece in pieces(x):
            for start in range(0, len(piece), at_once):
                part = piece[start : start + at_once]
                rows = _float32(part).reshape(len(part), -1)
                y = self.y[done : done + len(part)]
                yield np.column_stack([rows, _float32(y)]) if label else rows
                done += len(part)

    def _mixed_texts(self, key: bytes) -> Iterator[np.ndarray]:
        """Every text as one row of its own length, mixed."""
        assert self.ragged is not None
        values, offsets = self.ragged
        for start, stop in itertools.pairwise(offsets):
            yield _mixed(_float32(values[start:stop]).reshape(1, -1), key)


def share_rows(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two sorted arrays of hashes have one in common."""
    small, large = sorted((one, other), key=len)
    return bool(len(small)) and bool(_are_among(small, large).any())


def count_shared(train: np.ndarray, test: np.ndarray) -> int:
    """How many test rows are training rows too, and not by coincidence; 0 where coincidence explains them.

    Rows that several training records share identify nobody, and neither do those that a further record would be expected to
    share with a single one: by Good and Turing, out of N records of which N2 values occur twice, about 2 N2 / N of new ones
    equal a record that was alone. More than that, by four standard deviations, is no coincidence. Copies of a whole file
    count as one; where nobody is alone even so, coincidence explains everything but the very same rows.

    Args:
        train, test: hashes of their rows, one a row (see :meth:`Rows.value_hashes`).
    """
    if len(train) == len(test) and np.array_equal(np.sort(train), np.sort(test)):
        return len(test)
    return _beyond_coincidence(train, test)


def _beyond_coincidence(train: np.ndarray, test: np.ndarray) -> int:
    """The same for hashes of any rows; where nobody in ``train`` is alone, none."""
    values, counts = np.unique(train, return_counts=True)
    counts = counts // np.gcd.reduce(counts)
    alone = values[counts == 1]
    if not len(alone):
        return 0
    hits = int(_are_among(test, alone).sum())
    expected = len(test) * 2 * int((counts == 2).sum()) / int(counts.sum())
    return int(_are_among(test, values).sum()) if hits > expected + 4 * math.sqrt(expected) else 0


def _are_among(wanted: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Which of ``wanted`` are among the sorted ``values``."""
    place = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    return np.asarray(values[place] == wanted)


def _float32(values: np.ndarray) -> np.ndarray:
    """Little-endian float32, with one zero instead of two; what is too large for it is infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values.astype("<f4") + np.float32(0))


def _secrets(key: bytes, view: str) -> tuple[np.uint64, np.uint64]:
    """Two secret numbers for a view."""
    digest = hmac.new(key, view.encode(), hashlib.sha256).digest()
    return _U(int.from_bytes(digest[:8], "little")), _U(int.from_bytes(digest[8:16], "little"))


def _mix(value: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser, in place: every bit of the result depends on every bit of the argument."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value ^= value >> _U(shift)
        value *= _U(factor)
    value ^= value >> _U(31)
    return value


def _mixed(rows: np.ndarray, key: bytes) -> np.ndarray:
    """A secret number for each value of some rows, float32 to uint64."""
    first, second = _secrets(key, "value")
    with np.errstate(over="ignore"):
        mixed = rows.view("<u4").astype(np.uint64)
        mixed += first
        mixed *= _U(_STEP)
        mixed ^= second
        return _mix(mixed)


def _hash(mixed: np.ndarray, key: bytes, view: str) -> np.ndarray:
    """A hash of each row, ``(r, d)`` to ``(r,)``, in which the place of a value counts: a sum with secret odd weights."""
    first, second = _secrets(key, view)
    with np.errstate(over="ignore"):
        weights = _mix(np.arange(1, mixed.shape[1] + 1, dtype=np.uint64) * _U(_STEP) ^ first) | _U(1)
        return _mix(mixed @ weights + second + _U(mixed.shape[1]))


def _hash_bag(mixed: np.ndarray, key: bytes) -> np.ndarray:
    """The same where the place of a value does not count."""
    with np.errstate(over="ignore"):
        return _mix(mixed.sum(axis=1, dtype=np.uint64) ^ _secrets(key, "bag")[0])
