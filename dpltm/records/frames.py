"""Data frames of pandas and polars: columns by name, and cells as a ``.csv`` file would have them."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpltm.errors import DataError
from dpltm.records.cells import as_column
from dpltm.records.input_parts import shown

AT_ONCE = 10_000
"""Rows that become texts at a time."""


def is_frame(values: object) -> bool:
    """Tell whether an argument is a data frame: a table whose columns have names."""
    return hasattr(values, "columns") and hasattr(values, "shape") and not isinstance(values, np.ndarray)


@dataclass(frozen=True)
class Frame:
    """A data frame, as a table that is read by a schema."""

    values: Any
    name: str

    def __str__(self) -> str:
        return self.name

    def __len__(self) -> int:
        return int(self.values.shape[0])

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, as texts."""
        return tuple(map(str, self.values.columns))

    def rows(self) -> Iterator[tuple[range, list[Any]]]:
        """Yield the places of some rows at a time, and all columns there, as Arrow arrays."""
        if twice := sorted({name for name in self.names if self.names.count(name) > 1}):
            raise DataError(f"{self.name}: has twice the columns {shown(twice)}; rename one of them")
        columns = [self.values[key] for key in self.values.columns]
        for start in range(0, len(self), AT_ONCE):
            rows = range(start, start + AT_ONCE)
            yield rows, [as_column(column[rows.start : rows.stop].to_list()) for column in columns]


def numbers_of(frame: Frame, places: Sequence[int]) -> np.ndarray:
    """Return columns of numbers as an array, ``(n, columns)``; DataError for one that holds anything else."""
    keys, columns = list(frame.values.columns), []
    for at in places:
        values = np.asarray(frame.values[keys[at]])
        if values.ndim != 1:
            raise DataError(f"{frame.name}: has twice the columns {frame.names[at]!r}; rename one of them")
        if values.dtype == object and all(isinstance(one, (numbers.Real, type(None))) for one in values):
            values = values.astype(np.float64)
        if values.dtype.kind not in "biuf":
            raise DataError(
                f"{frame.name}: column {frame.names[at]!r} holds no numbers; give `schema`, which says what columns hold"
                " (dpltm datasets schema drafts one)"
            )
        columns.append(values)
    if not columns:
        raise DataError(f"{frame.name}: has no column of features; it has {shown(frame.names)}")
    return np.column_stack([one.astype(np.result_type(*columns)) for one in columns])
