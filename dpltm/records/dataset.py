"""Datasets: records with labels, public bounds, a public size, and an identity.

Features stay as they were stored (bytes stay bytes) until a batch is asked for. The bounds, the number of classes and
the number of records ``n`` that sampling rates are computed from are *public inputs* (privacy-model.md 1.4): each
says where it comes from, so that a report can name the ones that were only read off the private data.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from dpltm.privacy.entry import HASHES, NO_LINEAGE, RECORD, Id, Lineage, Part
from dpltm.records.input_parts import Parts, check_columns
from dpltm.records.schema import NO_SCHEMA, Schema
from dpltm.records.split import LabelForm, Rows, Split

if TYPE_CHECKING:
    from dpltm.features.feature_map import FeatureMap

Origin = Literal["described", "declared", "counted"]
"""Source of a public input: the description of a known dataset, the user, or (to be noted) the data itself."""

BoundsOrigin = Literal["described", "declared", "type", "assumed"]
"""Source of bounds: the same, the type of truth values, or (to be noted) the range of a byte."""


LEVELS = 2**15
"""Equal steps of the public range of a target that is a number: labels count them, from 0 to this."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """What values stand for, public.

    Attributes:
        columns: names of the features, in their order, of a table without a schema; None of all others.
        left_out: columns of that table that are row numbers by their names, and no features.
        schema: that the columns of a table were encoded by; one without columns elsewhere.
        parts: what stands side by side in a record; empty where that is one array.
        tables: sizes of the tables of words that values are positions in; empty where they are quantities.
    """

    columns: tuple[str, ...] | None = None
    left_out: tuple[str, ...] = ()
    schema: Schema = NO_SCHEMA
    parts: Parts = ()
    tables: tuple[int, ...] = ()

    def order(self, columns: Sequence[str] | None, source: str, whose: str) -> list[int] | None:
        """Return the places of these columns, which ``whose`` has; None where they are in that order, or have no names."""
        if not columns or not self.columns or tuple(columns) == self.columns:
            return None
        check_columns(columns, self.columns, source, whose)
        return [self.columns.index(name) for name in columns]


@dataclass(frozen=True)
class RawSplit(Form):
    """One split as read, before any check, with what messages need to name its parts.

    Attributes:
        y: labels as stored; None where only records were asked for.
        rows: what identifies the records, of tables and texts; None where that is ``x`` and ``y``.
        units: whose each record is, ``(n,)`` numbers or texts, where the source was asked for it; and
        units_name: its column, or array.
    """

    x: np.ndarray
    y: np.ndarray | None
    source: str
    x_name: str = "x_train"
    y_name: str = "y_train"
    rows: Rows | None = None
    units: np.ndarray | None = None
    units_name: str = "units"

    @property
    def has_texts(self) -> bool:
        return self.rows is not None and self.rows._ragged is not None

    def in_order(self, columns: Sequence[str] | None, whose: str) -> RawSplit:
        """Return the same with features in the order of :meth:`order`."""
        places = self.order(columns, self.source, whose)
        return self if places is None else replace(self, x=self.x[:, places], columns=tuple(columns or ()))


@dataclass(frozen=True)
class Dataset(Form):
    """A dataset ready for use: checked, bounded, with a public size. It prints public facts alone, no record.

    Attributes:
        name: what the user asked for (a registry name or a path's stem).
        train, test: the records that are learned from, and a split declared separate from them, or None.
        classes: number of classes K, a public input; 0 where labels are no class numbers.
        bounds: public ``(low, high)`` of every feature; values outside saturate.
        records: the public size of ``train`` (after ``subset``); sampling rates and score denominators use it. Where it
            was declared, and of a part of a known dataset, there may be a few more or less.
        classes_origin, records_origin, bounds_origin: where those public inputs come from.
        lineage: what the columns come from: a schema that was found.
        catalogued: whether it is one of the catalogue, whose records are what their publication says.
        _places: where a publication fixes who stands at which place of the file, the place of each record of ``train``,
            ``(n,)``, private; None elsewhere.
        feature_map: the map in front of the network; None where it takes the records as they are.
        unit: noun of whom a row of ``train`` is: ``record``, or, behind ``at_unit``, a person with records in slots.
        of_table: whether the values are columns of a table, of arrays that have no names.
        target: public ``(low, high)`` of targets that are numbers: labels are ``LEVELS`` of it, and the network has an
            output for each end, whose chances weigh both. None of classes.
    """

    name: str
    train: Split
    test: Split | None
    classes: int
    bounds: tuple[float, float]
    records: int
    classes_origin: Origin
    records_origin: Origin
    lineage: Lineage = NO_LINEAGE
    catalogued: bool = False
    _places: np.ndarray | None = field(default=None, repr=False)
    feature_map: FeatureMap | None = None
    unit: str = RECORD
    bounds_origin: BoundsOrigin = "declared"
    of_table: bool = False
    target: tuple[float, float] | None = None

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}: {self.records:,} {self.unit}s of shape {self.train.shape} in"
            f" {self.bounds[0]:g} to {self.bounds[1]:g}, {self.told_labels})"
        )

    @property
    def told_labels(self) -> str:
        if self.target is not None:
            return "targets from {:g} to {:g}".format(*self.target)
        return str(self.labels or f"{self.classes} classes")

    @property
    def rows(self) -> Rows:
        return self.train.rows

    @property
    def part(self) -> Part:
        return self.train.part

    @property
    def hold_out(self) -> float:
        """The part of a file that became the test split; 0 where nothing was held out."""
        return 0.0 if self.test is None or self.test.part.cut == "whole" else self.test.part.stop / HASHES

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
        return bool(self.rows.units_name) and not self.of_persons

    @property
    def noun(self) -> str:
        """Whom a training protects: whoever the records say they are of, else a record."""
        return self.rows.units_name or self.unit

    @property
    def is_table(self) -> bool:
        """Tell whether the records are rows of a table: their values are columns with names, or it was said."""
        return bool(self.columns or self.schema.columns or self.of_table)

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

    def in_order(self, columns: Sequence[str] | None, whose: str) -> Dataset:
        """Return the same with features in the order of :meth:`order`."""
        places = self.order(columns, self.name, whose)
        if places is None:
            return self
        test = None if self.test is None else self.test.columns(places)
        return replace(self, train=self.train.columns(places), test=test, columns=tuple(columns or ()))

    def content_digest(self) -> bytes:
        """SHA-256 of the whole file as it was read, labels included; private, for ``Ledger.snapshot``."""
        return self.train.content.digest

    def owners_digest(self) -> bytes | None:
        """SHA-256 of whose each record of the whole file is; None where nothing says so. Private, as the content's."""
        return self.train.content.owners_digest

    def published_id(self) -> Id | None:
        """Return the id of a published dataset in every ledger; None of all others, whose content is private.

        It is of the name alone: the publication fixes who stands at which place, and a digest would tell which are empty.
        """
        if self._places is None:
            return None
        return hashlib.sha256(b"published " + self.name.encode()).hexdigest()

    def tested(self) -> Dataset:
        """Return the test split, which there must be, as a dataset of its own, with its part."""
        assert self.test is not None
        name, count = self.test.part.name, len(self.test)
        places = self._places if self.test.nobodys or name == self.name else None  # another file is no publication's
        return replace(
            self, name=name, train=self.test, test=None, records=count, records_origin="counted", _places=places
        )
