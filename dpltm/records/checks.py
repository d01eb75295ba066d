"""What must hold before records are used: shapes, dtypes, finite features, labels 0 to K-1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpltm.errors import DataError, first_line, shown_value
from dpltm.privacy.checks import check_delta_of
from dpltm.records.mapped import copied, pieces
from dpltm.records.raw import RawSplit, shown

if TYPE_CHECKING:
    from dpltm.records.dataset import Dataset

_LABEL_LIMIT = 2**31


def as_array(values: object, name: str) -> np.ndarray:
    """The array that an argument stands for: itself, the values of a tensor, or those of nested lists.

    Args:
        values: what was passed; a memory map is not read.
        name: of the argument.

    Raises:
        DataError: no array holds the same: masked entries would count as records like any other, lists are ragged, or a
            tensor is sparse or of a type that arrays do not have.
    """
    parts = values if isinstance(values, (list, tuple)) else (values,)
    if any(isinstance(part, np.ma.MaskedArray) for part in parts):
        raise DataError(f"`{name}`: a masked array, whose mask would be lost; fill it, or leave those records out")
    tensor = hasattr(values, "detach")
    try:
        return values.detach().cpu().numpy() if tensor else np.asarray(values)  # type: ignore[attr-defined]
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:
        fix = "pass x.to_dense().float()" if tensor else "give each record as many numbers"
        raise DataError(
            f"`{name}`: {shown_value(values)} is no array: {first_line(error).rstrip('.')}; {fix}"
        ) from None


def checked_features(raw: RawSplit) -> np.ndarray:
    """The features of ``raw`` in native byte order, contiguous, known to be real and finite, and as many as its labels.

    Raises:
        DataError: wrong dtype or shape, no data, or a value that is not finite.
    """
    x, where = raw.x, f"{raw.source}: {raw.x_name}"
    if x.dtype.kind not in "biuf" or x.dtype.itemsize > 8:
        raise DataError(
            f"{where} has dtype {x.dtype}; expected bool, integers or floats of 64 bits or fewer; convert it"
        )
    if x.ndim < 2:
        raise DataError(f"{where} has shape {x.shape}; expected (records, features...); reshape it, one record a row")
    if x.size == 0:
        raise DataError(f"{where} has shape {x.shape} and holds no data; give a file with records and features")
    if raw.y is not None and len(x) != len(np.atleast_1d(raw.y)):
        raise DataError(
            f"{where} has {len(x)} records but {raw.y_name} has {raw.y.size} labels; give one label a record"
        )
    if x.dtype.kind == "f":
        _check_finite(raw, where)
    plain = x.dtype.newbyteorder("=")
    return np.ascontiguousarray(x) if x.flags.c_contiguous and x.dtype == plain else copied(x)


def _check_finite(raw: RawSplit, where: str) -> None:
    """Raises DataError for the first value that is not finite."""
    before = 0
    for rows in pieces(raw.x):
        if not np.isfinite(rows).all():
            flat = rows.reshape(len(rows), -1)
            record, feature = np.argwhere(~np.isfinite(flat))[0]
            column = f"column {raw.columns[feature]!r}" if raw.columns else f"feature {feature}"
            raise DataError(
                f"{where} has {flat[record, feature]} at record {before + record}, {column} (counted from 0); features must"
                " be finite; replace the value or drop the record"
            )
        before += len(rows)


EMPTY = -1
"""Label of a place that a published file fixes and that holds no record: whoever stood there was taken out."""


def checked_labels(raw: RawSplit, empty: bool = False) -> np.ndarray:
    """The labels of ``raw`` as int64, known to be whole numbers from 0 up; floats equal to integers are accepted.

    Args:
        raw: the split.
        empty: whether places may be ``EMPTY``.

    Raises:
        DataError: wrong dtype or shape, or a label that is not a whole number from 0 up.
    """
    assert raw.y is not None
    y, where = raw.y, f"{raw.source}: {raw.y_name}"
    if y.dtype.kind not in "biuf" or y.dtype.itemsize > 8:
        raise DataError(f"{where} has dtype {y.dtype}; labels must be integers 0 to K-1; number the classes from 0")
    if y.ndim != 1:
        raise DataError(f"{where} has shape {y.shape}; expected (records,); give one label a record")
    # Half-precision numbers cannot be compared with the limit. NaN fails every comparison: so ask for what is right.
    values = y.astype(np.float64) if y.dtype.kind == "f" else y
    right = (values >= 0) & (values < _LABEL_LIMIT)
    if empty and y.dtype.kind in "if":
        right |= values == EMPTY
    if y.dtype.kind == "f":
        right &= np.floor(values) == values
    if not right.all():
        record = int(np.argmin(right))
        raise DataError(
            f"{where} has label {y[record]} at record {record}; labels must be integers 0 to K-1; "
            "number the classes from 0"
        )
    return y.astype(np.int64)


def check_range(y: np.ndarray, classes: int, raw: RawSplit) -> None:
    """Every label is below the number of classes.

    Args:
        y: labels, ``(n,)``, whole numbers from 0 up.
        classes: how many there are.
        raw: where the labels come from, for the message.

    Raises:
        DataError: one is not; the first is named.
    """
    outside = y >= classes
    if outside.any():
        record = int(np.argmax(outside))
        raise DataError(
            f"{raw.source}: {raw.y_name} has label {y[record]} at record {record}, but there are {classes} classes, "
            "numbered from 0; correct the label or pass `classes`"
        )


def count_classes(y: np.ndarray, raw: RawSplit) -> int:
    """Number of classes as the labels show it.

    Raises:
        DataError: a number between 0 and the largest label does not occur.
    """
    seen = np.unique(y)
    if seen[-1] != len(seen) - 1:
        gap = int(np.argmax(seen != np.arange(len(seen))))
        raise DataError(
            f"{raw.source}: {raw.y_name} goes up to {seen[-1]}, but no record has label {gap}; "
            f"number the classes without gaps or pass `classes` {seen[-1] + 1}"
        )
    return len(seen)


def check_trainable(y: np.ndarray, classes: int, name: str, subset: str | None) -> None:
    """There is something to learn: as many records as classes, and two classes or more.

    Args:
        y: labels, ``(n,)``.
        classes: how many there are.
        name: of the dataset, for messages.
        subset: the part of it that these are, as it was asked for; None for the whole.

    Raises:
        DataError: there is not.
    """
    where = name if subset is None else f"`subset` {subset}: {name}"
    if len(y) < classes:
        raise DataError(
            f"{where} has fewer records than its {classes} classes; give as many records as classes or more"
        )
    if (y == y[0]).all():
        fix = "give a file with two classes or more"
        if subset is not None:
            fix = "rows may be grouped by label: shuffle the file or take a wider subset"
        raise DataError(f"{where} has label {y[0]} in all of its records; {fix}")


def check_same_features(train: RawSplit, test: RawSplit) -> None:
    """A test record has the features of a training record.

    Raises:
        DataError: the columns or the shapes differ.
    """
    if train.columns != test.columns and train.columns and test.columns:
        strange = sorted(set(test.columns) ^ set(train.columns))
        what = f"columns that are in one of the two only ({shown(strange)})" if strange else "them in another order"
        raise DataError(
            f"{test.source}: its feature columns differ from those of {train.source}, it has {what}; "
            "give both files the same columns in the same order"
        )
    if train.x.shape[1:] != test.x.shape[1:]:
        raise DataError(
            f"{test.source}: {test.x_name} has records of shape {test.x.shape[1:]} but {train.x_name} of shape "
            f"{train.x.shape[1:]}; give both splits the same features"
        )


def check_delta(delta: float, dataset: Dataset) -> None:
    """Raises InputError unless 0 < delta < 1/n: at 1/n, publishing a random record would pass.

    A declared number of records below the true one does not loosen the bound. A described one is used as it is: the true one
    differs from it in ratings alone, by little, and is private.
    """
    described = dataset.records_origin == "described"
    check_delta_of(delta, dataset.records, dataset.records if described else len(dataset.train), dataset.unit)
