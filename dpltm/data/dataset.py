"""What a dataset is here: records with labels, public bounds, a public size, and an identity.

Features stay as they were stored (bytes stay bytes) until a batch is asked for. The bounds, the number of classes and
the number of records ``n`` that sampling rates are computed from are *public inputs* (PRIVACY.md section 1): each
says where it comes from, so that a report can name the ones that were only read off the private data.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from dpltm.errors import DataError
from dpltm.privacy.events import Unit

if TYPE_CHECKING:
    from dpltm.features import FeatureMap

Origin = Literal["described", "declared", "counted"]
"""Where a public input comes from: the description of a known dataset, the user, or (to be noted) the data itself."""


@dataclass(frozen=True)
class Split:
    """Records of one split.

    Attributes:
        x: features, ``(n, ...)``, any real dtype, all finite.
        y: labels, ``(n,)`` int64, in ``0..classes-1``.
    """

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Dataset:
    """A dataset ready for use: checked, bounded, with a public size.

    Attributes:
        name: what the user asked for (a registry name or a path's stem).
        train: the records that are generated from, selected on or trained on.
        test: a split declared separate from the records above, or None when there is none.
        classes: number of classes K; a public input.
        bounds: public ``(low, high)`` of every feature; values outside saturate.
        records: the public size of ``train`` (after ``subset``); sampling rates and score denominators use it. Where it was
            declared, and of known ratings, there may be a few more or less.
        classes_origin, records_origin: where those public inputs come from.
        subset: half-open range ``(start, stop)`` of the full training split, in records.
        source_digest: SHA-256 (hex) of the *full* training split's content, whatever the subset; private, since it would
            confirm a guess of the data. Only its keyed form, ``fingerprint``, is ever written.
        test_digest: the same of the test split, so that private records can be recognised where they pass for one.
        whole: whether ``subset`` is simply everything, so that its end is a count and no choice of the user's.
        feature_map: what stands in front of the network; None where it takes the records as they are.
        tables: where the values of a record are no quantities but positions in tables (of words; of users and items), the
            sizes of those, public inputs: one for all values, or one a value. Empty where they are quantities.
        tables_origin: where what is at which position comes from; of words, their ranking.
        unit: whether a record of ``train`` is one rating, or anything else, or a user (see ``dpltm.data.by_user``).
    """

    name: str
    train: Split
    test: Split | None
    classes: int
    bounds: tuple[float, float]
    records: int
    classes_origin: Origin
    records_origin: Origin
    subset: tuple[int, int]
    source_digest: str
    test_digest: str | None = None
    whole: bool = True
    feature_map: FeatureMap | None = None
    tables: tuple[int, ...] = ()
    tables_origin: Origin = "declared"
    unit: Unit = "record"

    @property
    def features(self) -> int:
        """Number of inputs that a network gets for one record: its values, or what the feature map makes of them."""
        return math.prod(self.input_shape)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of those inputs, before they are flattened."""
        if self.feature_map is not None:
            return self.feature_map.feature_shape
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
        """Keyed identity of the full training split: equal for equal data under one key, meaningless without it."""
        return _keyed(key, self.source_digest)

    def test_fingerprint(self, key: bytes) -> str | None:
        """Keyed identity of the test split, to be compared with ``fingerprint`` of some training split."""
        return None if self.test_digest is None else _keyed(key, self.test_digest)

    def take(self, start: int, stop: int) -> Dataset:
        """The records ``start..stop-1`` of this training split as a dataset of its own, same identity and bounds.

        Raises:
            DataError: the range is empty or outside the split.
        """
        if not 0 <= start < stop <= len(self.train):
            raise DataError(
                f"--subset {start}:{stop}: {self.name} has records 0 to {len(self.train)}; give a range inside"
            )
        cut = Split(self.train.x[start:stop], self.train.y[start:stop])
        offset = self.subset[0]
        return replace(
            self,
            train=cut,
            records=stop - start,
            records_origin="described" if self.records_origin == "described" and not self.rated else "counted",
            subset=(offset + start, offset + stop),
            whole=False,
        )


def _keyed(key: bytes, digest: str) -> str:
    return hmac.new(key, digest.encode(), hashlib.sha256).hexdigest()[:32]
