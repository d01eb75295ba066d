"""What owners and server agree on before a record is sent: features, their public statistics, and how they are randomised.

All of it is public: made without any private record, or by what a ledger has been charged for (a network in front).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property

import numpy as np

from dpltm.errors import InputError
from dpltm.features.feature_map import FeatureMap
from dpltm.local.bit_strings import BitStrings
from dpltm.local.codebook import Codebook
from dpltm.privacy.entry import NO_LINEAGE, Lineage
from dpltm.randomness.noise import RandomSource

VERSION = 1
"""Part of every id; raised when the same settings give other messages."""

ROWS = 500
"""Records at a time."""

MIN_DEVIATION = 1e-3
"""Of a feature, over the largest: nothing is blown up more than that."""


@dataclass(frozen=True)
class Scheme:
    """How a record becomes a message.

    Attributes:
        feature_map: takes a record to features, by itself.
        mean, deviation: of each feature over public records, ``(features,)`` float32.
        answer: takes z-scores and a label to what is sent.
        lineage: what it was made from: records declared public, and the training of a network in front.
    """

    feature_map: FeatureMap
    mean: np.ndarray
    deviation: np.ndarray
    answer: BitStrings | Codebook
    lineage: Lineage = field(default=NO_LINEAGE, compare=False)

    def __post_init__(self) -> None:
        if not len(self.mean) == len(self.deviation) == self.feature_map.features == self.answer.values:
            raise InputError(
                f"Expected as many statistics and values as the {self.feature_map.features} features, not {len(self.mean)},"
                f" {len(self.deviation)} and {self.answer.values}"
            )
        if not (np.isfinite([self.mean, self.deviation]).all() and (self.deviation > 0).all()):
            raise InputError("Expected finite means and finite, positive deviations of features")

    @cached_property
    def id(self) -> str:
        """SHA-256 (hex) over all that decides messages."""
        digest = hashlib.sha256()
        digest.update(
            json.dumps(
                [VERSION, self.feature_map.id, type(self.answer).__name__, asdict(self.answer)], sort_keys=True
            ).encode()
        )
        for value in (self.mean, self.deviation):
            digest.update(value.astype("<f4").tobytes())
        return digest.hexdigest()

    @property
    def labels_are_public(self) -> bool:
        """Whether labels are sent as they are."""
        return isinstance(self.answer, BitStrings) and self.answer.label_epsilon is None

    def scores(self, x: np.ndarray) -> np.ndarray:
        """z-scores of records as stored: ``(n, *shape)`` to ``(n, features)`` float32, row by row."""
        return (self.feature_map(x).numpy() - self.mean) / self.deviation

    def messages(
        self, x: np.ndarray, y: np.ndarray, source: RandomSource, progress: Callable[[int], None] | None = None
    ) -> Iterator[np.ndarray]:
        """What is sent of records as stored, some at a time.

        Args:
            x: ``(n, *shape)``.
            y: ``(n,)`` labels.
            source: coins.
            progress: called with the number of records done.
        """
        for start in range(0, len(x), ROWS):
            scores, labels = self.scores(x[start : start + ROWS]), np.asarray(y[start : start + ROWS])
            yield self.answer.randomise(scores, labels, source)
            if progress is not None:
                progress(min(start + ROWS, len(x)))


def public_statistics(feature_map: FeatureMap, batches: Iterator[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each feature over public records; no deviation is left near zero."""
    count, total, squares = 0, np.zeros(feature_map.features), np.zeros(feature_map.features)
    for x in batches:
        values = feature_map(x).numpy().astype(np.float64)
        count, total, squares = count + len(values), total + values.sum(0), squares + np.square(values).sum(0)
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - np.square(mean), 0.0))
    least = max(MIN_DEVIATION * float(deviation.max()), 1e-12)
    return mean.astype(np.float32), np.maximum(deviation, least).astype(np.float32)


def no_statistics(feature_map: FeatureMap) -> tuple[np.ndarray, np.ndarray]:
    """The same for answers to which only the direction of features counts: they stay as they are."""
    return np.zeros(feature_map.features, np.float32), np.ones(feature_map.features, np.float32)
