"""Feature maps that give the same bits on every machine, and need NumPy alone: what owners of records encode with.

They are the maps ``drawings`` and ``unit`` of ``dpltm.features.feature_map`` up to rounding, in the arithmetic of
``dpltm.randomness.exact``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dpltm.features.conventions import NORM, map_id
from dpltm.features.drawings.exact import ExactEncoder, whole_drawings
from dpltm.features.registry import MapChoice
from dpltm.privacy.entry import Lineage
from dpltm.randomness.exact import fixed_norm, on_grid
from dpltm.records.scaling import scale

EXACT_MAPS = ("drawings", "unit")
"""Names of the kinds that are computed here."""

VALUE_BITS = 24
"""Digits behind the point of values that ``unit`` averages: all that float32 has for a number near 1."""

ROWS = 512
"""Records at a time."""


@dataclass(frozen=True)
class ExactMap:
    """A map of records to features of norm ``NORM``, each record by itself.

    Attributes:
        base: ``drawings`` or ``unit`` with its parameter.
        shape: of a record as stored.
        bounds: public range of its values.
        encoder: of drawings; None for ``unit``.

    Guarantees:
        Features are the same bits on every machine with IEEE 754, and those of a record do not depend on the others.
    """

    base: MapChoice
    shape: tuple[int, ...]
    bounds: tuple[float, float]
    encoder: ExactEncoder | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        """As in ``drawings:400``."""
        return self.base.text

    @property
    def features(self) -> int:
        """Number of features."""
        if self.encoder is not None:
            return self.encoder.directions
        return -(-math.prod(self.shape) // self._width)

    @cached_property
    def id(self) -> str:
        """That of the feature map: it decides which map, not how it is rounded."""
        return map_id([self.text, list(self.shape), list(self.bounds), None], self.base.digest)

    @property
    def network(self) -> None:
        """It is no network of a run."""

    @property
    def lineage(self) -> Lineage:
        """What it was made from: no data."""
        return Lineage()

    def rows(self, x: np.ndarray) -> np.ndarray:
        """Features of records as stored: ``(n, *shape)`` to ``(n, features)`` float32, each row of norm ``NORM``.

        Of a record that is the same everywhere, ``unit`` gives zeros.
        """
        parts = [self._of_some(x[start : start + ROWS]) for start in range(0, len(x), ROWS)]
        return np.concatenate(parts) if parts else np.zeros((0, self.features), np.float32)

    def _of_some(self, x: np.ndarray) -> np.ndarray:
        values = scale(x, self.bounds).reshape(len(x), *self.shape)
        if self.encoder is None:
            return fixed_norm(_averages(on_grid(values, VALUE_BITS).reshape(len(x), -1), self._width), NORM)
        unit = values / 2 + np.float32(0.5) if self.bounds[0] < 0 else values
        return fixed_norm(self.encoder(whole_drawings(unit, self.encoder.side)), NORM)

    @property
    def _width(self) -> int:
        return int(self.base.values[0])


def _averages(values: np.ndarray, width: int) -> np.ndarray:
    """Whole numbers ``(n, d)``, averaged ``width`` at a time and less their mean, times how many averages there are."""
    starts = np.arange(0, values.shape[1], width)
    averages = np.rint(np.add.reduceat(values, starts, axis=1) / np.diff(starts, append=values.shape[1]))
    centred: np.ndarray = averages * len(starts) - averages.sum(axis=1, keepdims=True)
    return centred
