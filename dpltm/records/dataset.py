"""What a dataset is here: records with labels, public bounds, a public size, and an identity.

Features stay as they were stored (bytes stay bytes) until a batch is asked for. The bounds, the number of classes and
the number of records ``n`` that sampling rates are computed from are *public inputs* (privacy-model.md 1.4): each
says where it comes from, so that a report can name the ones that were only read off the private data.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from dpltm.privacy.entry import RECORD, UNKNOWN_RECORDS, Id, Lineage, Part
from dpltm.records.mapped import pieces
from dpltm.records.rows import Rows

if TYPE_CHECKING:
    from dpltm.features.feature_map import FeatureMap

Origin = Literal["described", "declared", "counted"]
"""Where a public input comes from: the description of a known dataset, the user, or (to be noted) the data itself."""

BoundsOrigin = Literal["described", "declared", "type", "assumed"]
"""Where bounds come from: the same, the type of truth values, or (to be noted) what a byte can hold."""


@dataclass(frozen=True)
class Split:
    """Records of one split.

    Attributes:
        x: features, ``(n, ...)``, any real dtype, all finite; of users ``(n, slots, ...)``.
        y: labels, ``(n,)`` int64, in ``0..classes-1``; of users ``(n, slots)``, ``ABSENT`` in empty slots.
    """

    x: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of these features and labels, in their order: private."""
        content = hashlib.sha256()
        for values in (self.x, self.y):
            content.update(f"{values.dtype.name} {values.shape}\n".encode())
            for piece in pieces(values):
                content.update(np.ascontiguousarray(piece, dtype=values.dtype.newbyteorder("<")).tobytes())
        return content.hexdigest()

    @property
    def slots(self) -> int | None:
        """Records of a user, with empty slots; None where every record stands alone."""
        return self.y.shape[1] if self.y.ndim == 2 else None


@dataclass(frozen=True)
class Dataset:
    """A dataset ready for use: checked, bounded, with a public size. It prints public facts alone, no record.

    Attributes:
        name: what the user asked for (a registry name or a path's stem).
        train: the records that are generated from, selected on or trained on.
        test: a split declared separate from the records above, or None when there is none.
        classes: number of classes K; a public input.
        bounds: public ``(low, high)`` of every feature; values outside saturate.
        records: the public size of ``train`` (after ``subset``); sampling rates and score denominators use it. Where it
            was declared, of known ratings, and of a part of a known dataset, there may be a few more or less.
        classes_origin, records_origin, bounds_origin: where those public inputs come from.
        part: which records of the file ``train`` is, by name and cut; the snapshot is given by a ledger.
        test_part: the same of the test split.
        lineage: what the columns, or the records, come from: a schema that was found, a release that they were drawn from.
        rows: the records of ``train`` as they were read, single ones even of persons.
        test_rows: the same of the test split.
        file: all records that were read, where those are a part; None where they are all.
        known: whether it is one of the catalogue, whose records are what their publication says.
        published: whether a publication fixes who stands at which place of the training split.
        feature_map: what stands in front of the network; None where it takes the records as they are.
        tables: where the values of a record are no quantities but positions in tables (of words; of users and items), the
            sizes of those, public inputs: one for all values, or one a value. Empty where they are quantities.
        tables_origin: where what is at which position comes from; of words, their ranking.
        unit: noun of whom a row of ``train`` is: ``record``, or, behind ``at_unit``, a person with records in slots.
        units: whose each record of ``train`` is, ``(n,)`` int64, private; None where nothing says, and of persons.
        units_name: the noun of those: the column of a table, the array of an archive, or what arrays say.
        schema: of a table that was encoded by one, its text.
        hold_out: the part of a file that became the test split; 0 where nothing was held out.
        synthetic: whether the records are synthetic: nobody's.
        public_notes: what was assumed of records declared public that the feature map was made from.
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
    lineage: Lineage = field(default_factory=Lineage)
    known: bool = False
    published: bool = False
    feature_map: FeatureMap | None = None
    tables: tuple[int, ...] = ()
    tables_origin: Origin = "declared"
    unit: str = RECORD
    bounds_origin: BoundsOrigin = "declared"
    public_notes: tuple[str, ...] = ()
    units: np.ndarray | None = field(default=None, repr=False)
    units_name: str = ""
    schema: str = ""
    synthetic: bool = False
    hold_out: float = 0.0

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}: {self.records:,} {self.unit}s of shape {self.train.x.shape[1:]} in"
            f" {self.bounds[0]:g} to {self.bounds[1]:g}, {self.classes} classes)"
        )

    @property
    def of_persons(self) -> bool:
        """Whether a row of ``train`` is a person, with records in slots."""
        return self.train.slots is not None

    @property
    def noun(self) -> str:
        """Whom a training protects: whoever the records say they are of, else a record."""
        return self.units_name or self.unit

    @property
    def features(self) -> int:
        """Number of inputs that a network gets for one record: its values, or what the feature map makes of them."""
        return math.prod(self.input_shape)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of those inputs, before they are flattened."""
        if self.feature_map is not None:
            return self.feature_map.feature_shape
        return self.row_shape

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one record as stored; a user has several."""
        return self.train.x.shape[2:] if self.of_persons else self.train.x.shape[1:]

    @property
    def input_tables(self) -> tuple[int, ...]:
        """Tables that those inputs are positions in; none behind a feature map, which gives quantities."""
        return self.tables if self.feature_map is None else ()

    @property
    def rated(self) -> bool:
        """Whether the records are ratings: a user and an item, and how many stars."""
        return len(self.tables) == 2

    @property
    def whole(self) -> bool:
        """Whether all training records are meant."""
        return self.part.cut == "whole"

    def content_digest(self) -> bytes:
        """SHA-256 of the whole file as it was read, labels and persons included; private, for ``Ledger.snapshot``."""
        return (self.rows if self.file is None else self.file).digest

    def test_digest(self) -> bytes:
        """Return the same of the test split.

        Raises:
            AssertionError: there is none.
        """
        assert self.test_rows is not None
        return self.test_rows.digest

    def published_id(self) -> Id | None:
        """Return what a published dataset is known by in every ledger; None of all others, whose content is private.

        It is of the name alone: the publication fixes who stands at which place, and a digest would tell which are empty.
        """
        if not (self.known and self.published):
            return None
        return hashlib.sha256(b"published " + self.name.encode()).hexdigest()

    def tested(self) -> Dataset:
        """Return the test split as a dataset of its own, with its part.

        Raises:
            AssertionError: there is none.
        """
        assert self.test is not None
        assert self.test_rows is not None
        return replace(
            self,
            train=self.test,
            test=None,
            rows=self.test_rows,
            test_rows=None,
            file=self.file if self.hold_out else None,
            part=self.test_part,
            records=len(self.test),
            records_origin="counted",
            units=None,
        )
