"""What tells one record from another: public hashes, by which parts are cut out of a dataset, and a digest of all of it.

A public hash looks at one record, or one person, and at nothing else, so that a record more or less changes the part that it
falls into and no other (privacy-model.md 1.5). It is the same for everybody. It does not depend on the order of the file, on
how wide its numbers are, on which column is the label, or on a schema. Numbers count as float32, so 1 is 1.0 and True.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from dpltm.privacy.entry import HASHES, Cut
from dpltm.records.mapped import gathered, pieces
from dpltm.records.tokens import texts_of

VALUES = 2**16
"""Values that are hashed at once: what is made of them stays in a processor's cache."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The records of one split as they were read, before any schema.

    Attributes:
        x: cells, ``(n, ...)``, as stored; of a table also those of the column that says whose a record is.
        y: labels, ``(n,)``.
        columns: names of the columns of ``x``, where a table has them.
        label: name of the label's column.
        ragged: of texts, all words, and where each record's begin, ``(n + 1,)``; then ``x`` is not looked at.
        units: whose each record is, ``(n,)`` texts, where something says so; and
        units_name: the noun.
        places: at which these records stand, where others are empty.
    """

    x: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    columns: tuple[str, ...] | None = None
    label: str | None = None
    ragged: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)
    units: np.ndarray | None = field(default=None, repr=False)
    units_name: str = ""
    places: np.ndarray | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def cut(self) -> tuple[Cut, tuple[str, ...]]:
        """How parts are cut out of these records, and the columns that hashes are taken by."""
        if self.units is not None:
            return "person", (self.units_name,)
        return "record", () if self._names is None else tuple(self._names[1])

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of these records in their order: of the cells as they were read, labels and persons included."""
        names = None if self._names is None else self._names[1]
        content = hashlib.sha256(repr((names, len(self))).encode())
        if self.ragged is not None:
            for part in (*self.ragged, self.y):
                for piece in pieces(part):
                    content.update(np.ascontiguousarray(piece, dtype="<i8").tobytes())
        else:
            content.update(repr(self.x.shape[1:] if names is None else "").encode())
            for rows in self._chunks(
                label=True, dtype="<f4" if names is None else "<f8"
            ):  # whose a record is, exactly
                content.update((rows if self._names is None else rows[:, self._names[0]]).tobytes())
        if self.places is not None:
            content.update(self.places.astype("<i8").tobytes())
        if self.units is not None and self.units_name not in (self.columns or ()):
            content.update(repr((self.units_name, self.units.tolist())).encode())
        return content.digest()

    def public_hashes(self) -> np.ndarray:
        """A number from 0 to ``HASHES`` - 1 for each record, ``(n,)`` int64, from what it holds alone.

        The first 8 bytes of BLAKE2b over its values as little-endian float32, modulo ``HASHES``: the features in their
        order, or, of a table, all columns with the label in the order of their names.

        Guarantees:
            Depends on no other record. Equal records have equal hashes, so all copies of one are in the same part.
        """
        names = self._names
        if names is None:
            return _hashed(self._features())
        return _hashed(row.tobytes() for rows in self._chunks(label=True) for row in rows[:, names[0]])

    def cut_hashes(self) -> np.ndarray:
        """What parts are cut by: the public hash of each record, or of its person, where something says whose it is."""
        if self.units is None:
            return self.public_hashes()
        names, codes = np.unique(self.units, return_inverse=True)
        return _hashed(name.encode() for name in names.tolist())[codes]

    def taken(self, index: np.ndarray) -> Rows:
        """Return some of these records.

        Args:
            index: places, ``(k,)`` whole numbers.
        """
        return replace(
            self,
            x=gathered(self.x, index, to_stay=True),
            y=self.y[index],
            ragged=None if self.ragged is None else texts_of(*self.ragged, index),
            units=None if self.units is None else self.units[index],
            places=None if self.places is None else self.places[index],
        )

    def shared(self, other: Rows) -> np.ndarray:
        """Return the places of records here whose features ``other`` has as well, whatever the labels.

        Args:
            other: records with the same features; those with others share none.
        """
        if sorted(self.columns or ()) != sorted(other.columns or ()):
            return np.empty(0, dtype=np.int64)
        theirs = {hashlib.blake2b(row, digest_size=16).digest() for row in other._features(by_name=True)}
        ours = (hashlib.blake2b(row, digest_size=16).digest() in theirs for row in self._features(by_name=True))
        return np.flatnonzero(np.fromiter(ours, dtype=bool, count=len(self)))

    @property
    def _names(self) -> tuple[np.ndarray, list[str]] | None:
        """The order of all columns, the label's last one too, by their names; None where they have none of their own."""
        if self.columns is None or self.label is None or len({*self.columns, self.label}) <= len(self.columns):
            return None
        names = [*self.columns, self.label]
        return np.array(sorted(range(len(names)), key=names.__getitem__)), sorted(names)

    def _features(self, by_name: bool = False) -> Iterator[bytes]:
        """The bytes of each record without its label; columns in their order, or that of their names."""
        if self.ragged is None:
            order = np.argsort(self.columns) if by_name and self.columns is not None else slice(None)
            yield from (row.tobytes() for rows in self._chunks() for row in rows[:, order])
            return
        values, offsets = self.ragged
        for start, stop in itertools.pairwise(offsets):
            yield _floats(values[start:stop], "<f4").tobytes()

    def _chunks(self, label: bool = False, dtype: str = "<f4") -> Iterator[np.ndarray]:
        """Rows as floats, some at a time; with the label behind the features if asked."""
        done, at_once = 0, max(1, VALUES // max(1, self.x[:1].size))
        for piece in pieces(self.x):
            for start in range(0, len(piece), at_once):
                part = piece[start : start + at_once]
                rows = _floats(part, dtype).reshape(len(part), -1)
                y = self.y[done : done + len(part)]
                yield np.column_stack([rows, _floats(y, dtype)]) if label else rows
                done += len(part)


def _hashed(rows: Iterator[bytes]) -> np.ndarray:
    hashes = (int.from_bytes(hashlib.blake2b(row, digest_size=8).digest(), "little") % HASHES for row in rows)
    return np.fromiter(hashes, dtype=np.int64)


def _floats(values: np.ndarray, dtype: str) -> np.ndarray:
    """Little-endian floats, with one zero instead of two; what is too large for float32 is infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values.astype(dtype) + np.dtype(dtype).type(0))
