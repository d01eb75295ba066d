"""What a dataset is here: records with labels, public bounds, a public size, and an identity.

Features stay as they were stored (bytes stay bytes) until a batch is asked for. The bounds, the number of classes and
the number of records ``n`` that sampling rates are computed from are *public inputs* (privacy-model.md 1.4): each
says where it comes from, so that a report can name the ones that were only read off the private data.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from dpltm.privacy.events import DatasetRef, Event
from dpltm.privacy.mechanisms import Unit
from dpltm.records.mapped import pieces
from dpltm.records.rows import Rows
from dpltm.records.subset import WHOLE, Part
from dpltm.records.synthetic_origin import SyntheticOrigin

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
        part: how it is cut out of the full training split.
        rows: the records of the *full* training split, whatever the part, for what identifies them.
        test_rows: the same of the test split, so that private records can be recognised where they pass for one.
        known: whether it is one of the catalogue, whose records are what their publication says.
        published: whether a publication fixes who stands at which place of the training split.
        feature_map: what stands in front of the network; None where it takes the records as they are.
        tables: where the values of a record are no quantities but positions in tables (of words; of users and items), the
            sizes of those, public inputs: one for all values, or one a value. Empty where they are quantities.
        tables_origin: where what is at which position comes from; of words, their ranking.
        unit: whether a record of ``train`` is one rating, or anything else, or a user (see ``dpltm.records.at_unit``).
        units: whose each record of ``train`` is, ``(n,)`` int64, private; None where nothing says, and of users.
        units_name: what says so: the column of a table, the array of an archive.
        schema: of a table that was encoded by one, its text; and
        found: the releases that bounds and categories in it were found by.
        hold_out: the part of a file that became the test split; 0 where nothing was held out.
        synthetic: what the records are post-processing of, if they are synthetic; None of anybody's.
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
    part: Part = WHOLE
    known: bool = False
    published: bool = False
    feature_map: FeatureMap | None = None
    tables: tuple[int, ...] = ()
    tables_origin: Origin = "declared"
    unit: Unit = "record"
    bounds_origin: BoundsOrigin = "declared"
    public_notes: tuple[str, ...] = ()
    units: np.ndarray | None = field(default=None, repr=False)
    units_name: str = ""
    schema: str = ""
    synthetic: SyntheticOrigin | None = None
    found: tuple[Event, ...] = ()
    hold_out: float = 0.0

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}: {self.records:,} {self.unit}s of shape {self.train.x.shape[1:]} in"
            f" {self.bounds[0]:g} to {self.bounds[1]:g}, {self.classes} classes)"
        )

    @property
    def behind(self) -> tuple[Event, ...]:
        """Releases that its columns were found by and its records come from; public records that a schema was read off."""
        return self.found if self.synthetic is None else (*self.found, self.synthetic.event)

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
        return self.train.x.shape[1:] if self.unit == "record" else self.train.x.shape[2:]

    @property
    def input_tables(self) -> tuple[int, ...]:
        """Tables that those inputs are positions in; none behind a feature map, which gives quantities."""
        return self.tables if self.feature_map is None else ()

    @property
    def rated(self) -> bool:
        """Whether the records are ratings: a user and an item, and how many stars."""
        return len(self.tables) == 2

    def fingerprint(self, key: bytes) -> str:
        """Keyed identity of the full training split: equal for equal rows in whatever order, meaningless without the key."""
        return hmac.new(key, self.rows.keyed_hashes(key).data, hashlib.sha256).hexdigest()[:32]

    def reference(self, key: bytes | None = None) -> DatasetRef:
        """Which records these are, for events: a name and a random id, and what tells them apart in this process.

        References to the same rows are known to be the same, and parts of them by hash or place to be apart. Any other
        two may overlap: what rows they have in common is looked up by ``dpltm.tickets.identity`` alone.

        Args:
            key: secret, 32 bytes; by default one of this process, which ends with it.
        """
        key = _PASSING if key is None else key
        fingerprint = self.fingerprint(key)
        content = f"{fingerprint}:{fingerprint}"  # comparable with itself alone (see ``DatasetRef``)
        part = self.part
        return DatasetRef(
            self.name, secrets.token_hex(16), key_id(key), part.start, part.stop, part.cut, content=content
        )

    @property
    def whole(self) -> bool:
        """Whether all training records are meant."""
        return self.part.cut == "whole"


_PASSING = secrets.token_bytes(32)
"""Tells records apart within this process."""


def key_id(key: bytes) -> str:
    """Short public name of a key."""
    return hashlib.sha256(b"dpltm key id" + key).hexdigest()[:8]
