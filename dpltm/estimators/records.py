"""What scikit-learn hands to an estimator as what dpltm trains on: columns scaled by public bounds, labels numbered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from dpltm.api import held_out
from dpltm.errors import DataError, InputError, in_python
from dpltm.records import Dataset, Rows, from_arrays
from dpltm.records.raw import RawSplit
from dpltm.records.scaling import affine
from dpltm.records.units import checked_units
from dpltm.training.artifacts import Run

Bounds = tuple[float, float] | tuple[Sequence[float], Sequence[float]] | np.ndarray | None
"""Public range of the features: one for all, or the low and the high end of each column."""


@dataclass(frozen=True, eq=False)
class Columns:
    """How the columns of a table become records: settled by public facts alone.

    Attributes:
        bounds: of all values; None to have it settled by their type.
        low, high: of each column, ``(features,)``, where each has its own; then values go to the unit range, and records
            are known by what they were.
        shape: of a record; empty for the columns as they are.
    """

    bounds: tuple[float, float] | None
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    shape: tuple[int, ...] = ()

    @classmethod
    def of(cls, bounds: Any, features: int, shape: Any = None) -> Columns:
        """The columns that parameters describe.

        Args:
            bounds: a pair of numbers, or of arrays with a number a column; None to have it settled by the type of values.
            features: number of columns.
            shape: of a record whose values stand in a row, such as ``(28, 28)``; None for the columns as they are.

        Raises:
            DataError: no such bounds, or no such shape.
        """
        form = () if shape is None else tuple(int(side) for side in np.atleast_1d(shape))
        if form and int(np.prod(form)) != features:
            raise DataError(f"`record_shape`: {form} has {int(np.prod(form))} values, but records have {features}")
        if bounds is None:
            return cls(None, shape=form)
        try:
            low, high = (np.asarray(end, dtype=np.float64) for end in bounds)
        except (TypeError, ValueError):
            raise DataError(
                "`bounds`: not a pair (low, high) of numbers, or of arrays with a number for each column; pass the public"
                " range of the features"
            ) from None
        if low.ndim == high.ndim == 0:
            affine((float(low), float(high)))
            return cls((float(low), float(high)), shape=form)
        for end, name in ((low, "low"), (high, "high")):
            if end.shape not in ((), (features,)):
                raise DataError(
                    f"`bounds`: {name} has shape {end.shape}, but records have {features} columns; give a number for each"
                )
        low, high = np.broadcast_to(low, features), np.broadcast_to(high, features)
        with np.errstate(over="ignore", invalid="ignore"):
            wrong = np.flatnonzero(~(np.isfinite(high - low) & (low < high)))
        if len(wrong):
            at = int(wrong[0])
            raise DataError(
                f"`bounds`: column {at} (counted from 0) has ({low[at]:g}, {high[at]:g}); give finite (low, high), low"
                " first, not too far apart"
            )
        return cls((0.0, 1.0), low, high, form)

    def records(self, x: np.ndarray) -> np.ndarray:
        """Records as dpltm takes them, ``(n, ...)``; row i depends on row i and on public facts alone."""
        if self.low is not None and self.high is not None:
            with np.errstate(over="ignore"):  # far outside is where the clip puts it
                x = np.clip((x - self.low) / (self.high - self.low), 0.0, 1.0)
        return x.reshape(len(x), *self.shape) if self.shape else x


def dense(x: Any) -> np.ndarray:
    """The values of a table, zeros of a sparse one included."""
    return x.toarray() if sparse.issparse(x) else x


def owners(units: Any) -> np.ndarray:
    """Whose each record is, ``(n,)`` of numbers or texts, as a column of pandas, polars or NumPy says it.

    Args:
        units: the column. Columns of objects, as pandas has them for texts, become texts; nobody becomes the empty one.

    Raises:
        InputError: it is no column.
    """
    values = units if isinstance(units, np.ndarray) else np.asarray(units)
    if values.ndim != 1:
        raise InputError(
            f"`units`: has {values.ndim} dimensions, not one; give a column that says whose each record is"
        )
    if values.dtype != object:
        return values
    return np.array(["" if _is_nobody(value) else str(_as_whole(value)) for value in values], dtype=str)


def _is_nobody(value: Any) -> bool:
    """Whether a cell is empty: None, NaN, or one of pandas', which is not even itself."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or value != value


def _as_whole(value: Any) -> Any:
    """A whole number for a float that is one, as pandas makes of a column with holes; as it is otherwise."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def private_records(columns: Columns, x: np.ndarray, y: np.ndarray, facts: dict[str, Any]) -> Dataset:
    """The dataset that a fit trains on.

    Args:
        columns: what becomes of the table.
        x: ``(n, columns)``.
        y: classes, ``(n,)``, from 0.
        facts: ``classes``, ``records``, ``units``, ``rows_coincide``, ``name`` and ``for_training``, as
            ``records.from_arrays`` takes them.
    """
    with in_python():
        dataset = from_arrays(columns.records(x), y, bounds=columns.bounds, **facts)
    return dataset if columns.low is None else replace(dataset, rows=_rows(dataset.rows, x, y))


def separate_records(
    run: Run,
    columns: Columns,
    x: np.ndarray,
    y: np.ndarray,
    units: np.ndarray | None = None,
    unit: str = "user",
    coincide: bool = False,
) -> Dataset:
    """Return records that were held out, as the test split that :func:`dpltm.evaluate` measures on.

    Args:
        run: that is evaluated.
        columns: as it was fitted.
        x: ``(n, columns)``.
        y: classes, ``(n,)``, from 0.
        units: whose each record is; None where that is not known.
        unit: the noun of those.
        coincide: whether records of different people may well be equal.
    """
    dataset = held_out(run, columns.records(x), y, {"name": "the scored records"})
    assert dataset.test_rows is not None
    rows = replace(dataset.test_rows, coincide=coincide)
    if units is not None:
        with in_python():
            names = checked_units(RawSplit(x, y, "the scored records", units=units))
        rows = replace(rows, units=names, units_name=unit)
    return replace(dataset, test_rows=rows if columns.low is None else _rows(rows, x, y))


def _rows(rows: Rows, x: np.ndarray, y: np.ndarray) -> Rows:
    """What records are known by: their values as they came, whatever bounds they are scaled by, and whose they are."""
    return replace(rows, x=np.ascontiguousarray(x), y=y)


def numbered(y: np.ndarray, classes: np.ndarray, seen: str) -> np.ndarray:
    """The class of each label, ``(n,)`` int64: its place in ``classes``, which is sorted.

    Args:
        y: labels.
        classes: that there are.
        seen: where they are from, for the message.

    Raises:
        InputError: a label that is none of them.
    """
    try:
        places = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
        strange = classes[places] != y
    except TypeError:  # numbers and texts have no order
        raise InputError(f"`y`: labels are of another kind than the classes {seen}; use labels of one kind") from None
    if np.any(strange):
        label = str(y[int(np.argmax(strange))])
        raise InputError(
            f"`y`: label {label!r:.40} is none of the {len(classes)} classes {seen}; declare every label with `classes`, or"
            " leave those records out"
        )
    return places.astype(np.int64)
