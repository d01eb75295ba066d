"""Datasets: records with labels, public bounds, a public size, and an identity.

Features stay as they were stored (bytes stay bytes) until a batch is asked for. The bounds, the number of classes and
the number of records ``n`` that sampling rates are computed from are *public inputs* (privacy-model.md 1.4): each
says where it comes from, so that a report can name the ones that were only read off the private data.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from dpltm.errors import DataError
from dpltm.privacy.entry import HASHES, NO_LINEAGE, RECORD, UNKNOWN_RECORDS, Cut, Id, Lineage, Part
from dpltm.records.input_parts import Parts, shown
from dpltm.records.mapped import filled, gathered, pieces
from dpltm.records.split import LabelForm, Split

if TYPE_CHECKING:
    from dpltm.features.feature_map import FeatureMap

Origin = Literal["described", "declared", "counted"]
"""Source of a public input: the description of a known dataset, the user, or (to be noted) the data itself."""

BoundsOrigin = Literal["described", "declared", "type", "assumed"]
"""Source of bounds: the same, the type of truth values, or (to be noted) the range of a byte."""


@dataclass(frozen=True)
class RawSplit:
    """One split as read, before any check, with what messages need to name its parts.

    Attributes:
        y: labels as stored; None where only records were asked for.
        rows: what identifies the records, of tables and texts; None where that is ``x`` and ``y``.
        units: whose each record is, ``(n,)`` numbers or texts, where the source was asked for it; and
        units_name: its column, or array.
        left_out: columns that are row numbers by their names, and no features.
        parts: what stands side by side in a record; empty where that is one array.
    """

    x: np.ndarray
    y: np.ndarray | None
    source: str
    x_name: str = "x_train"
    y_name: str = "y_train"
    columns: tuple[str, ...] | None = None
    rows: Rows | None = None
    units: np.ndarray | None = None
    units_name: str = "units"
    left_out: tuple[str, ...] = ()
    parts: Parts = ()

    def in_order(self, columns: Sequence[str] | None, whose: str) -> RawSplit:
        """Return the same with features in the order of these names, which ``whose`` has; as it is where there are none."""
        if not columns or not self.columns or self.columns == tuple(columns):
            return self
        places = places_of(columns, self.columns, self.source, whose)
        return replace(self, x=self.x[:, places], columns=tuple(columns))

    @property
    def has_texts(self) -> bool:
        """Tell whether the records are texts."""
        return self.rows is not None and self.rows._ragged is not None


def places_of(wanted: Sequence[str], there: Sequence[str], source: str, whose: str) -> list[int]:
    """Return where each of the wanted columns is; DataError for columns that are missing, too many, or twice there."""
    twice = sorted({name for name in there if there.count(name) > 1})
    lacking, strange = sorted(set(wanted) - set(there)), sorted(set(there) - set(wanted))
    told = [
        f"{what} {shown(names)}"
        for what, names in (("lacks", lacking), ("has, beside those,", strange), ("has twice", twice))
        if names
    ]
    if told:
        raise DataError(
            f"{source}: its columns are not those of {whose}: it {'; it '.join(told)}; give it the same columns"
        )
    return [there.index(name) for name in wanted]


@dataclass(frozen=True)
class Dataset:
    """A dataset ready for use: checked, bounded, with a public size. It prints public facts alone, no record.

    Attributes:
        name: what the user asked for (a registry name or a path's stem).
        train: the records that are generated from, selected on or trained on.
        test: a split declared separate from the records above, or None when there is none.
        classes: number of classes K, a public input; 0 where labels are no class numbers.
        bounds: public ``(low, high)`` of every feature; values outside saturate.
        records: the public size of ``train`` (after ``subset``); sampling rates and score denominators use it. Where it
            was declared, of known ratings, and of a part of a known dataset, there may be a few more or less.
        classes_origin, records_origin, bounds_origin: where those public inputs come from.
        rows, test_rows: the records of each split as they were read, single ones even of persons.
        file: all records that were read, where those are a part; None where they are all.
        part, test_part: which records of the file each split is, by name and cut; the snapshot is given by a ledger.
        lineage: what the columns come from: a schema that was found.
        known: whether it is one of the catalogue, whose records are what their publication says.
        published: whether a publication fixes who stands at which place of the training split.
        feature_map: the map in front of the network; None where it takes the records as they are.
        tables: where the values of a record are no quantities but positions in tables (of words; of users and items), the
            sizes of those, public inputs: one for all values, or one a value. Empty where they are quantities.
        tables_origin: where what is at which position comes from; of words, their ranking.
        unit: noun of whom a row of ``train`` is: ``record``, or, behind ``at_unit``, a person with records in slots.
        _units: whose each record of ``train`` is, ``(n,)`` int64, private; None where nothing says, and of persons.
        units_name: the noun of those: the column of a table, the array of an archive, or what arrays say.
        schema: of a table that was encoded by one, its text.
        hold_out: the part of a file that became the test split; 0 where nothing was held out.
        columns: names of the features, in their order, of a table without a schema; None of all others.
        left_out: columns of that table that are row numbers by their names, and no features.
        of_table: whether the values are columns of a table, of arrays that have no names.
        parts: what stands side by side in a record, public; empty where that is one array.
    """

    name: str
    train: Split
    test: Split | None
    classes: int
    bounds: tuple[float, float]
    records: int
    classes_origin: Origin
    records_origin: Origin
    rows: Rows
    test_rows: Rows | None = None
    file: Rows | None = field(default=None, repr=False)
    part: Part = UNKNOWN_RECORDS
    test_part: Part = UNKNOWN_RECORDS
    lineage: Lineage = NO_LINEAGE
    known: bool = False
    published: bool = False
    feature_map: FeatureMap | None = None
    tables: tuple[int, ...] = ()
    tables_origin: Origin = "declared"
    unit: str = RECORD
    bounds_origin: BoundsOrigin = "declared"
    _units: np.ndarray | None = field(default=None, repr=False)
    units_name: str = ""
    schema: str = ""
    hold_out: float = 0.0
    columns: tuple[str, ...] | None = None
    left_out: tuple[str, ...] = ()
    of_table: bool = False
    parts: Parts = ()

    def __post_init__(self) -> None:
        if self.test is not None and self.published_id() is not None:  # the publication says that its splits are apart
            object.__setattr__(self, "test", self.test.as_nobodys())

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}: {self.records:,} {self.unit}s of shape {self.train.shape} in"
            f" {self.bounds[0]:g} to {self.bounds[1]:g}, {self.labels or f'{self.classes} classes'})"
        )

    @property
    def labels(self) -> LabelForm | None:
        """Public facts about labels that are no class numbers; None of class numbers."""
        return None if self.classes else self.train.labels

    @property
    def of_persons(self) -> bool:
        """Tell whether a row of ``train`` is a person, with records in slots."""
        return self.train.slots is not None

    @property
    def names_units(self) -> bool:
        """Tell whether something says whose each record is."""
        return self._units is not None

    @property
    def noun(self) -> str:
        """Whom a training protects: whoever the records say they are of, else a record."""
        return self.units_name or self.unit

    @property
    def is_table(self) -> bool:
        """Tell whether the records are rows of a table: their values are columns with names, or it was said."""
        return bool(self.columns or self.schema or self.of_table)

    @property
    def features(self) -> int:
        """Number of inputs that a network gets for one record: its values, or what the feature map makes of them."""
        return math.prod(self.input_shape)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of those inputs, before they are flattened."""
        return self.row_shape if self.feature_map is None else self.feature_map.feature_shape

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one record as stored; a user has several."""
        return self.train.shape[1:] if self.of_persons else self.train.shape

    @property
    def input_tables(self) -> tuple[int, ...]:
        """Tables that those inputs are positions in; none behind a feature map, which gives quantities."""
        return self.tables if self.feature_map is None else ()

    @property
    def input_parts(self) -> Parts:
        """Parts of those inputs; none behind a feature map, which takes one array."""
        return self.parts if self.feature_map is None else ()

    @property
    def rated(self) -> bool:
        """Tell whether the records are ratings: a user and an item, and how many stars."""
        return len(self.tables) == 2

    @property
    def whole(self) -> bool:
        """Tell whether all training records are meant."""
        return self.part.cut == "whole"

    def in_order(self, columns: Sequence[str] | None, whose: str) -> Dataset:
        """Return the same with features in the order of these names, which ``whose`` has; as it is where there are none.

        Raises:
            DataError: columns are missing, too many, or twice there.
        """
        if not columns or not self.columns or self.columns == tuple(columns):
            return self
        places = places_of(columns, self.columns, self.name, whose)

        def moved(split: Split) -> Split:
            keep = partial(filled, (len(split), *split.shape), split.dtype)
            return split.map(lambda x, _: x[..., places], keep)

        test = None if self.test is None else moved(self.test)
        return replace(self, train=moved(self.train), test=test, columns=tuple(columns))

    def content_digest(self) -> bytes:
        """SHA-256 of the whole file as it was read, labels included; private, for ``Ledger.snapshot``."""
        return (self.rows if self.file is None else self.file).digest

    def owners_digest(self) -> bytes | None:
        """SHA-256 of whose each record of the whole file is; None where nothing says so. Private, as the content's."""
        return (self.rows if self.file is None else self.file).owners_digest

    def published_id(self) -> Id | None:
        """Return the id of a published dataset in every ledger; None of all others, whose content is private.

        It is of the name alone: the publication fixes who stands at which place, and a digest would tell which are empty.
        """
        if not self.published:
            return None
        return hashlib.sha256(b"published " + self.name.encode()).hexdigest()

    def tested(self) -> Dataset:
        """Return the test split, which there must be, as a dataset of its own, with its part."""
        assert self.test is not None
        assert self.test_rows is not None
        return replace(
            self,
            name=self.test_part.name,
            train=self.test,
            test=None,
            rows=self.test_rows,
            test_rows=None,
            file=self.file if self.hold_out else None,
            part=self.test_part,
            records=len(self.test),
            records_origin="counted",
            _units=None,
        )


VALUES = 2**16
"""Values that are hashed at once: what is made of them stays in a processor's cache."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The records of one split as they were read, before any schema, by which one is told from another.

    A public hash looks at one record, or one person, and at nothing else, so that a record more or less changes the part
    that it falls into and no other (privacy-model.md 1.5). It is the same for everybody, whatever the order of the file, the
    width of its numbers, the column of the label, or a schema. Numbers count as float32, so 1 is 1.0 and True.

    They are closed, as those of a ``Split`` are.

    Attributes:
        _cells: ``(n, ...)``, as stored; of a table also those of the column that says whose a record is.
        _targets: labels, ``(n,)``; where they are no class numbers ``(n, ...)``.
        _ragged: of texts, all words, and where each record's begin, ``(n + 1,)``; then the cells are not looked at.
        _units: whose each record is, ``(n,)`` texts, where something says so; and
        units_name: the noun.
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
        """SHA-256 of these records in their order: of the cells as they were read, labels included.

        Whose they are is left out unless a column says so, so the same records are the same whoever is protected.
        """
        names = None if self._names is None else self._names[1]
        content = hashlib.sha256(repr((names, len(self))).encode())
        if self._ragged is not None:
            for part in (*self._ragged, self._targets):
                for piece in pieces(part):
                    content.update(np.ascontiguousarray(piece, dtype="<i8").tobytes())
        else:
            content.update(repr(self._cells.shape[1:] if names is None else "").encode())
            # of a table whose a record is counts exactly
            for rows in self._chunks(label=True, dtype="<f4" if names is None else "<f8"):
                content.update((rows if self._names is None else rows[:, self._names[0]]).tobytes())
        return content.digest()

    @property
    def owners_digest(self) -> bytes | None:
        """SHA-256 of whose each record is, by name, as cuts by person hash them; None where nothing says so."""
        return None if self._units is None else hashlib.sha256(repr(self._units.tolist()).encode()).digest()

    def public_hashes(self) -> np.ndarray:
        """Return a number from 0 to ``HASHES`` - 1 for each record, ``(n,)`` int64, from its content alone.

        The first 8 bytes of BLAKE2b over its values as little-endian float32, modulo ``HASHES``: the features in their
        order, or, of a table, all columns with the label in the order of their names.

        Guarantees:
            Depends on no other record. Equal records have equal hashes, so all copies of one are in the same part.
        """
        names = self._names
        if names is None:
            return _public(_hashed(self._features()))
        rows = (row.tobytes() for rows in self._chunks(label=True) for row in rows[:, names[0]])
        return _public(_hashed(rows))

    def cut_hashes(self) -> np.ndarray:
        """Return the hashes of cuts: the public hash of each record, or of its person, where something says whose it is."""
        if self._units is None:
            return self.public_hashes()
        names, codes = np.unique(self._units, return_inverse=True)
        return _public(_hashed(map(str.encode, names.tolist())))[codes]

    def taken(self, index: np.ndarray) -> Rows:
        """Return the records at some places, ``(k,)`` whole numbers."""
        return replace(
            self,
            _cells=gathered(self._cells, index, to_stay=True),
            _targets=self._targets[index],
            _ragged=None if self._ragged is None else texts_of(*self._ragged, index),
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
        """Return a digest of each record, ``(n,)`` uint64: of its features and their names, or of whose it is. Private."""
        if of_persons:
            assert self._units is not None
            return _hashed(map(str.encode, self._units.tolist()), b"persons")
        names = repr(sorted(self.columns or ())).encode()
        return _hashed(self._features(by_name=True), hashlib.sha256(names).digest())

    @property
    def _names(self) -> tuple[np.ndarray, list[str]] | None:
        """The order of all columns, the label's last one too, by their names; None where they have none of their own."""
        if self.columns is None or self.label is None or len({*self.columns, self.label}) <= len(self.columns):
            return None
        names = [*self.columns, self.label]
        return np.array(sorted(range(len(names)), key=names.__getitem__)), sorted(names)

    def _features(self, by_name: bool = False) -> Iterator[bytes]:
        """Yield the bytes of each record without its label; columns in their order, or that of their names."""
        if self._ragged is None:
            order = np.argsort(self.columns) if by_name and self.columns is not None else slice(None)
            yield from (row.tobytes() for rows in self._chunks() for row in rows[:, order])
            return
        values, offsets = self._ragged
        for start, stop in itertools.pairwise(offsets):
            yield _floats(values[start:stop], "<f4").tobytes()

    def _chunks(self, label: bool = False, dtype: str = "<f4") -> Iterator[np.ndarray]:
        """Rows as floats, some at a time; with the label behind the features if asked."""
        done, at_once = 0, max(1, VALUES // max(1, self._cells[:1].size))
        for piece in pieces(self._cells):
            for start in range(0, len(piece), at_once):
                part = piece[start : start + at_once]
                rows = _floats(part, dtype).reshape(len(part), -1)
                y = _floats(self._targets[done : done + len(part)], dtype).reshape(len(part), -1)
                yield np.column_stack([rows, y]) if label else rows
                done += len(part)


class RecordSet:
    """Records and persons, by which a refusal knows them again: private, and in the memory of one process alone."""

    def __init__(self, rows: Rows | None = None) -> None:
        records = [] if rows is None else [rows.identities()]
        persons = [] if rows is None or rows._units is None else [rows.identities(of_persons=True)]
        self._digests = np.unique(np.concatenate([*records, *persons])) if records else np.zeros(0, np.uint64)

    def with_all_of(self, *others: RecordSet) -> RecordSet:
        """Return the records and persons of this set and of others."""
        joined = RecordSet()
        joined._digests = np.unique(np.concatenate([each._digests for each in (self, *others)]))
        return joined

    def has_any(self, rows: Rows, *, of_persons: bool) -> bool:
        """Return whether it has some of these records, or of the persons whose they are."""
        return bool(np.isin(rows.identities(of_persons=of_persons), self._digests).any())

    def has_all(self, rows: Rows) -> bool:
        """Return whether it has all of these records."""
        return bool(np.isin(rows.identities(), self._digests).all())


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


def texts_of(values: np.ndarray, offsets: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the records ``index`` of ragged arrays (``offsets`` ``(records + 1,)``) as ragged arrays."""
    texts = [values[offsets[place] : offsets[place + 1]] for place in index]
    return np.concatenate([values[:0], *texts]), np.cumsum([0, *map(len, texts)])
