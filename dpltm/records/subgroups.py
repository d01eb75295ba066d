"""Subgroups of records by one column of their table, such as sex or age: of records that are not protected."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpltm.errors import InputError
from dpltm.records.dataset import Dataset
from dpltm.records.input_parts import shown
from dpltm.records.schema import Column

BANDS, MOST_VALUES = 4, 8
"""Parts of about equal size that numbers are cut into, if they have more different values than this."""


class Subgroups(NamedTuple):
    """Names of subgroups, and in which each record is, ``(n,)``."""

    names: tuple[str, ...]
    codes: np.ndarray


def check_column(dataset: Dataset, name: str) -> None:
    """Raise InputError for a column that tells no subgroups of the test split, or where there is none."""
    if dataset.target is not None:
        raise InputError("`by`: is for classes, and the target is a number; leave it out")
    if dataset.test is None:
        raise InputError("`by`: subgroups are those of a test split; give `test`, or leave `by` out")
    _find(dataset, name)


def subgroups_of(dataset: Dataset, x: np.ndarray, name: str) -> Subgroups:
    """Return the subgroups of records as read, ``(n, ...)``, by a column: its categories, or bands of its numbers."""
    column, start = _find(dataset, name)
    rows = x.reshape(len(x), -1)
    if column is None:
        return _bands(name, rows[:, start].astype(np.float64), np.zeros(len(x), dtype=bool), None)
    own = rows[:, start : start + column.features].astype(np.float64).clip(0, 1)  # what is beyond saturates
    empty = own[:, -1] > 0 if column.missing else np.zeros(len(x), dtype=bool)
    if column.kind != "category":
        low, high = column.bounds
        grown = np.expm1(own[:, 0] * np.log1p(high - low)) if column.log else own[:, 0] * (high - low)
        return _bands(name, low + grown, empty, column)
    many = len(column.values)
    codes = np.where(empty, many + 1, np.where(own[:, :many].any(1), own[:, :many].argmax(1), many))
    return _there(
        [f"{name} {value}" for value in (*(spellings[0] for spellings in column.values), "other", "empty")], codes
    )


def _find(dataset: Dataset, name: str) -> tuple[Column | None, int]:
    """Return the column by a schema, None without one, and its first value in a record."""
    columns = dataset.schema.feature_columns
    names = [column.name for column in columns] or list(dataset.columns or ())
    hashed = {column.name for column in columns if column.kind == "hashed"}
    usable = tuple(name for name in dict.fromkeys(names) if name not in hashed)
    if name in usable:
        start = names.index(name)
        return columns[start] if columns else None, start
    raise InputError(f"`by` {name!s:.60}: no column that tells subgroups; there is {shown(usable) or 'none'}")


def _bands(name: str, values: np.ndarray, empty: np.ndarray, column: Column | None) -> Subgroups:
    distinct = np.unique(values[~empty])
    edges = distinct[1:]
    if len(distinct) > MOST_VALUES:
        edges = np.unique(np.quantile(values[~empty], np.arange(1, BANDS) / BANDS))
    codes = np.searchsorted(edges, values, side="right")
    codes[empty] = len(edges) + 1
    dated = column is not None and column.kind == "date"
    tell = (lambda end: datetime.date.fromordinal(round(end)).isoformat()) if dated else "{:.4g}".format
    bands = [values[codes == place] for place in range(len(edges) + 1)]
    ends = [(tell(band.min()), tell(band.max())) if len(band) else ("", "") for band in bands]
    names = [low if low == high else f"{low} to {high}" for low, high in ends]
    if len(distinct) > MOST_VALUES:  # the outermost values are those of single persons
        names[0], names[-1] = f"up to {ends[0][1]}", f"from {ends[-1][0]}"
    return _there([*(f"{name} {band}" for band in names), f"{name} empty"], codes)


def _there(names: Sequence[str], codes: np.ndarray) -> Subgroups:
    present, codes = np.unique(codes, return_inverse=True)
    return Subgroups(tuple(names[place] for place in present), codes)
