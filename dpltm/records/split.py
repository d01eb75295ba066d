"""The records of a split, closed: whoever reads them says what was paid for it, or who said that nobody has to pay.

Three ways lead in. ``map`` makes other records of them, one by one, and those stay closed. ``check`` lets a function look,
which may refuse and gives nothing away. ``open`` hands the arrays out: for the secret of a release that was paid for, for a
declaration on record, or where the records are nobody's.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from dpltm.errors import InputError
from dpltm.privacy.entry import HASHES, UNKNOWN_RECORDS, Cut, Entry, Part, Secret

ROWS = 512
"""Records that are mapped at a time."""


AT_ONCE = 2**24
"""Bytes of an array that are worked on at once."""


def pieces(values: np.ndarray, rows: int | None = None) -> Iterator[np.ndarray]:
    """Yield views of so many consecutive rows, by default about ``AT_ONCE`` bytes."""
    if rows is None:
        rows = max(1, AT_ONCE // max(1, values[:1].nbytes))
    for start in range(0, len(values), rows):
        yield values[start : start + rows]


def filled(shape: tuple[int, ...], dtype: DTypeLike, rows: Iterator[np.ndarray]) -> np.ndarray:
    """Return an array of so many rows, taken some at a time."""
    values = np.empty(shape, dtype)
    done = 0
    for block in rows:
        values[done : done + len(block)] = block.reshape(len(block), *shape[1:])
        done += len(block)
    return values


class Arrays(NamedTuple):
    """Records in the open: features ``(n, ...)``, all finite; labels ``(n,)`` int64, or as in ``Dataset``.

    Of users features are ``(n, slots, ...)`` and labels ``(n, slots)``, ``ABSENT`` in empty slots.
    """

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Public:
    """The word of a caller that records are public, where no ledger holds it yet, and of what is read off them."""

    words: str


Opener = Secret | Entry | Public | None
"""What opens records; None opens those that are nobody's."""


@dataclass(frozen=True)
class LabelForm:
    """Public facts about labels: the dtype (``int64`` or ``float32``), and the shape of one."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} labels of shape {self.shape}"


VALUES = 2**16
"""Values that are hashed at once: what is made of them stays in a processor's cache."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The records of one split as they were read, before any schema, by which one is told from another; closed.

    A public hash looks at one record, or one person, and at nothing else, so that a record more or less changes the part
    that it falls into and no other (privacy-model.md 1.5). It is the same for everybody, whatever the order of the file, the
    width of its numbers, the column of the label, or a schema. Numbers count as float32, so 1 is 1.0 and True.

    Attributes:
        _cells: ``(n, ...)``, as stored; of a table also those of the column that says whose a record is.
        _targets: labels, ``(n,)``; where they are no class numbers ``(n, ...)``.
        _ragged: of texts, all words, and where each record's begin, ``(n + 1,)``; then the cells are not looked at.
        _units: whose each record is, ``(n,)`` texts, where something says so; ``units_name`` is the noun.
    """

    _cells: np.ndarray = field(repr=False)
    _targets: np.ndarray = field(repr=False)
    columns: tuple[str, ...] | None = None
    label: str | None = None
    _ragged: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)
    _units: np.ndarray | None = field(default=None, repr=False)
    units_name: str = ""

    def __len__(self) -> int:
        return len(self._targets)

    @property
    def cut(self) -> tuple[Cut, tuple[str, ...]]:
        """Return the kind of cut of these records, and the columns that hashes are taken by."""
        if self._units is not None:
            return "person", (self.units_name,)
        return "record", () if self._names is None else tuple(self._names[1])

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of these records in their order, labels included; whose they are only counts where a column says so."""
        order, names = (None, None) if self._names is None else self._names
        content = hashlib.sha256(repr((names, len(self))).encode())
        if self._ragged is not None:
            for part in (*self._ragged, self._targets):
                for piece in pieces(part):
                    content.update(np.ascontiguousarray(piece, dtype="<i8").tobytes())
            return content.digest()
        content.update(repr(self._cells.shape[1:] if names is None else "").encode())
        # of a table whose a record is counts exactly
        for rows in self._chunks(label=True, dtype="<f4" if names is None else "<f8"):
            content.update((rows if order is None else rows[:, order]).tobytes())
        return content.digest()

    @cached_property
    def owners(self) -> np.ndarray | None:
        """Return whose each record is, ``(n,)`` numbers from 0; None where nothing says so."""
        return None if self._units is None else np.unique(self._units, return_inverse=True)[1]

    @property
    def owners_digest(self) -> bytes | None:
        """SHA-256 of whose each record is, by name, as cuts by person hash them; None where nothing says so."""
        return None if self._units is None else hashlib.sha256(repr(self._units.tolist()).encode()).digest()

    def public_hashes(self) -> np.ndarray:
        """Return a number from 0 to ``HASHES`` - 1 for each record, ``(n,)`` int64, from its content alone.

        The first 8 bytes of BLAKE2b over its values as little-endian float32, modulo ``HASHES``: the features in their
        order, or, of a table, all columns with the label in the order of their names. Copies of a record are in one part.
        """
        if self._names is None:
            return _public(_hashed(self._bytes()))
        return _public(_hashed(self._bytes(self._names[0], label=True)))

    def cut_hashes(self) -> np.ndarray:
        """Return the hashes of cuts: the public hash of each record, or of its person, where something says whose it is."""
        if self._units is None:
            return self.public_hashes()
        names, codes = np.unique(self._units, return_inverse=True)
        return _public(_hashed(map(str.encode, names.tolist())))[codes]

    def taken(self, index: np.ndarray) -> Rows:
        """Return the records at some places, ``(k,)`` whole numbers."""
        ragged = self._ragged
        if ragged is not None:
            values, offsets = ragged
            texts = [values[offsets[place] : offsets[place + 1]] for place in index]
            ragged = np.concatenate([values[:0], *texts]), np.cumsum([0, *map(len, texts)])
        return replace(
            self,
            _cells=self._cells[index],
            _targets=self._targets[index],
            _ragged=ragged,
            _units=None if self._units is None else self._units[index],
        )

    def known_by(self, cells: np.ndarray) -> Rows:
        """Return the same records, told from others by other cells, ``(n, ...)``."""
        return replace(self, _cells=cells)

    def known_as(self, other: Rows) -> Rows:
        """Return the same records, told from others by the cells of ``other``, in the order of its columns' names."""
        order = slice(None) if other.columns is None else np.argsort(other.columns)
        return self.known_by(np.ascontiguousarray(other._cells[:, order]))

    def owned(self, units: np.ndarray, units_name: str) -> Rows:
        """Return the same, with whose each record is, ``(n,)`` texts, and the noun of those."""
        return replace(self, _units=units, units_name=units_name)

    def identities(self, *, of_persons: bool = False) -> np.ndarray:
        """Return a digest of each record without its label, ``(n,)`` uint64, or of whose it is, by a key of this process."""
        if of_persons:
            assert self._units is not None
            return _hashed(map(str.encode, self._units.tolist()), b"persons")
        names = hashlib.sha256(_secret() + repr(sorted(self.columns or ())).encode()).digest()
        return _hashed(self._bytes(slice(None) if self.columns is None else np.argsort(self.columns)), names)

    @property
    def _names(self) -> tuple[np.ndarray, list[str]] | None:
        """The order of all columns, the label's last one too, by their names; None where they have none of their own."""
        if self.columns is None or self.label is None or len({*self.columns, self.label}) <= len(self.columns):
            return None
        names = [*self.columns, self.label]
        return np.array(sorted(range(len(names)), key=names.__getitem__)), sorted(names)

    def _bytes(self, order: slice | np.ndarray = slice(None), label: bool = False) -> Iterator[bytes]:
        """Yield the bytes of each record: its values in this order, the label's behind the features if asked."""
        if self._ragged is None:
            yield from (row.tobytes() for rows in self._chunks(label) for row in rows[:, order])
            return
        values, offsets = self._ragged
        for start, stop in itertools.pairwise(offsets):
            yield _floats(values[start:stop], "<f4").tobytes()

    def _chunks(self, label: bool = False, dtype: str = "<f4") -> Iterator[np.ndarray]:
        """Rows as floats, some at a time; with the label behind the features if asked."""
        done, at_once = 0, max(1, VALUES // max(1, self._cells[:1].size))
        for part in pieces(self._cells, at_once):
            rows = _floats(part, dtype).reshape(len(part), -1)
            y = _floats(self._targets[done : done + len(part)], dtype).reshape(len(part), -1)
            yield np.column_stack([rows, y]) if label else rows
            done += len(part)


class RecordSet:
    """Records and persons, by which a refusal knows them again: private, and in the memory of one process alone."""

    def __init__(self, rows: Rows) -> None:
        persons = [] if rows._units is None else [rows.identities(of_persons=True)]
        self._digests = np.unique(np.concatenate([rows.identities(), *persons]))

    def has_any(self, rows: Rows, *, of_persons: bool) -> bool:
        """Return whether it has some of these records, or of the persons whose they are."""
        return bool(np.isin(rows.identities(of_persons=of_persons), self._digests).any())

    @staticmethod
    def have_all(sets: Iterable[RecordSet], rows: Rows) -> bool:
        """Return whether some sets together have all of these records."""
        digests = np.concatenate([np.zeros(0, np.uint64), *(records._digests for records in sets)])
        return bool(np.isin(rows.identities(), digests).all())


@cache
def _secret() -> bytes:
    """Of this process: what identities are computed with."""
    return secrets.token_bytes(24)


def _hashed(values: Iterable[bytes], key: bytes = b"") -> np.ndarray:
    """The first 8 bytes of BLAKE2b over each value, ``(n,)`` uint64."""
    hashes = (int.from_bytes(hashlib.blake2b(value, key=key, digest_size=8).digest(), "little") for value in values)
    return np.fromiter(hashes, dtype=np.uint64)


def _public(hashes: np.ndarray) -> np.ndarray:
    return (hashes % np.uint64(HASHES)).astype(np.int64)


def _floats(values: np.ndarray, dtype: str) -> np.ndarray:
    """Little-endian floats, with one zero instead of two; what is too large for float32 is infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values.astype(dtype) + np.dtype(dtype).type(0))


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Records of one split, with their labels, closed. ``len`` counts them, which is private under add/remove.

    Python keeps nobody from attributes that begin with an underscore. So it keeps no reader out; it makes whoever opens
    records say by what, and a test knows every place that does.

    Attributes:
        rows: these records as they were read, single ones even of persons; by default what they hold.
        part: which records of their file they are, by name and cut; the snapshot is given by a ledger.
        file: all records that were read, where these are a part; None where they are all.
        nobodys: whether they are nobody's of any population: held out by the publication that they are from.
        valued: whether labels are no class numbers: then several in a row are those of one record, and not of a person.
    """

    _closed: Arrays
    rows: Rows = None  # type: ignore[assignment]  # never after it is made
    part: Part = UNKNOWN_RECORDS
    file: Rows | None = None
    nobodys: bool = False
    valued: bool = False

    def __post_init__(self) -> None:
        if self.rows is None:
            object.__setattr__(self, "rows", Rows(*self._closed))

    def __len__(self) -> int:
        return len(self._closed.y)

    def __repr__(self) -> str:
        return f"<Split of records of shape {self.shape}, {self.dtype}>"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record's features, public: of users ``(slots, ...)``."""
        return self._closed.x.shape[1:]

    @property
    def dtype(self) -> np.dtype:
        """Type of the features, public."""
        return self._closed.x.dtype

    @property
    def labels(self) -> LabelForm:
        """Public facts about labels."""
        labels = self._closed.y
        return LabelForm(labels.dtype.name, labels.shape[1:])

    @property
    def slots(self) -> int | None:
        """Records of a user, with empty slots; None where every record stands alone."""
        labels = self._closed.y
        return labels.shape[1] if labels.ndim == 2 and not self.valued else None

    @property
    def content(self) -> Rows:
        """All records that were read."""
        return self.rows if self.file is None else self.file

    def map(
        self,
        rows: Callable[[np.ndarray, np.ndarray], np.ndarray],
        keep: Callable[[Iterator[np.ndarray]], np.ndarray],
        step: Callable[[int], None] | None = None,
    ) -> Split:
        """Return the same records, closed as before, with what a function makes of their features.

        Args:
            rows: of features and labels of some records, ``(k, ...)``, what stands in the place of the features; it treats
                every record by itself.
            keep: gives the array that what comes of them lies in, piece by piece (``filled`` is one).
            step: told how many records are done.
        """

        def mapped() -> Iterator[np.ndarray]:
            (x, y), done = self._closed, 0
            for block in pieces(x, ROWS):
                yield rows(block, y[done : done + len(block)])
                done += len(block)
                if step is not None:
                    step(done)

        return self.with_features(keep(mapped()))

    def columns(self, places: Sequence[int]) -> Split:
        """Return the same records, closed as before, with their values at some places, ``(..., k)``."""
        return self.with_features(self._closed.x[..., places])

    def with_features(self, x: np.ndarray) -> Split:
        """Return the same records with features that were made of them before, ``(n, ...)``."""
        return replace(self, _closed=Arrays(x, self._closed.y))

    def taken(self, index: np.ndarray) -> Split:
        """Return the records at some places, ``(k,)`` whole numbers: a part of the file."""
        (x, y) = self._closed
        rows = self.rows.taken(index)
        x = rows._cells if self.rows._cells is x else x[index]
        return replace(self, _closed=Arrays(x, y[index]), rows=rows, file=self.content)

    def made_up(self) -> Arrays:
        """Return one record like these, all zeros: what a function makes of its shape and dtype tells of nobody."""
        return Arrays(*(np.zeros((1, *values.shape[1:]), values.dtype) for values in self._closed))

    def check(self, look: Callable[[Arrays], object]) -> None:
        """Let a function look at the records, which refuses or does not; what it returns is dropped."""
        look(self._closed)

    def digest(self, key: bytes) -> str:
        """Return a digest of features and labels in their order, HMAC-SHA-256 (hex): without the key it tells nothing."""
        return hmac.new(key, self._digest.encode(), hashlib.sha256).hexdigest()

    @cached_property
    def _digest(self) -> str:
        content = hashlib.sha256()
        for values in self._closed:
            content.update(f"{values.dtype.name} {values.shape}\n".encode())
            for piece in pieces(values):
                content.update(np.ascontiguousarray(piece, dtype=values.dtype.newbyteorder("<")).tobytes())
        return content.hexdigest()

    def open(self, by: Opener) -> Arrays:
        """Return the arrays, not copied; InputError where nothing is on record by which they are read.

        Args:
            by: the secret of a release that was paid for; an entry on record by which they are read as they are
                (``Ledger.declared``); the word of a caller; or None for records that are nobody's.
        """
        if isinstance(by, Entry):
            opened = bool(by.home) and by.exposes
        else:
            opened = self.nobodys if by is None else isinstance(by, (Secret, Public))
        if not opened:
            raise InputError("records: nothing on record opens them; pay for what is read of them, or declare it")
        return self._closed
