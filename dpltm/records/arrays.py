"""From arrays, tensors and data frames to a checked ``Dataset``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np

from dpltm.errors import DataError, first_line, shown_value
from dpltm.gone import instead
from dpltm.privacy.entry import HASHES
from dpltm.records.dataset import Dataset, RawSplit
from dpltm.records.input_parts import (
    Parts,
    Words,
    check_words,
    differences,
    facts_of,
    side_by_side,
)
from dpltm.records.schema import Schema, as_schema
from dpltm.records.settle import (
    IN_SCHEMA,
    MAX_NAME,
    VALUES,
    Declared,
    check_name,
    check_none,
    settle,
    take_part,
)
from dpltm.records.tables import Table, is_frame, read_by_schema, read_table


def from_arrays(
    x: Any,
    y: Any = None,
    *,
    test: Any = None,
    bounds: tuple[float, float] | None = None,
    classes: int | None = None,
    target_bounds: tuple[float, float] | None = None,
    records: int | None = None,
    words: Words = None,
    units: np.ndarray | None = None,
    unit: str | None = None,
    schema: str | Path | Schema | None = None,
    rows_coincide: bool = False,
    name: str = "records",
    for_training: bool = True,
) -> Dataset:
    """Return a dataset of arrays: every record checked, its public inputs settled as by :func:`load`.

    The arrays are copied: what is trained on later are the records that a ledger has, whatever becomes of the arrays.
    Columns of data frames go by name.

    Args:
        x: features, ``(n, ...)``, bytes, booleans or finite numbers; or a data frame of pandas or polars; or a mapping of
            arrays, which reach a network of the user's own by name.
        y: labels, ``(n,)``, from 0 to the number of classes - 1; with a schema, as its classes are spelled, or None where
            the frame has them; with ``classes`` 0 numbers of any shape, ``(n, ...)``.
        test: features and labels of the test split, declared separate; with a schema, a frame with labels will do; or a part
            such as 0.2, which a public hash of each record, or person, holds out.
        classes: public number of classes; counted on the labels if None, and noted. 0 says that labels are no class numbers:
            then a network of the user's own has a ``loss`` for them.
        words: public number of whole numbers (positions of words), which the values are then; of a mapping by name.
        units: whose each record is, ``(n,)`` whole numbers or texts: then a training protects all of a person's together.
        unit: noun of whom those are, such as ``patient``; by default ``user``.
        name: what messages and the ledger call them, printable, at most 200 characters.
        bounds, target_bounds, records, schema, rows_coincide, for_training: as of :func:`load`.

    Raises:
        DataError: anything about the arguments or the data is not what it must be.
    """
    table_schema = as_schema(schema)
    declared = Declared(bounds, classes, records, target_bounds, rows_coincide)
    if table_schema is not None:
        check_none(IN_SCHEMA, bounds=bounds, classes=classes, words=words, target_bounds=target_bounds)
    check_name(name)
    hold_out = Fraction(test).limit_denominator(HASHES) if isinstance(test, float) and 0 < test < 1 else None
    pair = test if isinstance(test, (tuple, list)) and len(test) == 2 else None
    if pair is None and table_schema is not None and is_frame(test):
        pair = (test, None)
    if test is not None and pair is None and hold_out is None:
        raise DataError("`test`: not a pair of features and labels, nor a part between 0 and 1")
    train = _split(x, y, table_schema, name, "x", "y", words)
    if units is not None:
        train = replace(train, units=as_array(units, "units"), units_name="user" if unit is None else unit)
    elif unit is not None:
        raise DataError("`unit`: says whom `units` names, so it goes with these; leave it out, or add them")
    held_out = None if pair is None else _split(pair[0], pair[1], table_schema, name, "x of test", "y of test", words)
    if declared.classes == VALUES and units is not None:
        raise DataError("`units`: a person's labels are class numbers, and these are none; leave `units` out")
    return take_part(settle(name, train, held_out, declared, hold_out=hold_out), None, declared.records, for_training)


def copied(values: np.ndarray) -> np.ndarray:
    """Return a copy in row-major order and native bytes, which nobody writes to."""
    copy = np.array(values, values.dtype.newbyteorder("="), order="C")
    copy.flags.writeable = False
    return copy


def _split(x: Any, y: Any, schema: Schema | None, name: str, x_name: str, y_name: str, words: Words) -> RawSplit:
    """Features and labels of a split as they are given."""
    if schema is not None:
        if not is_frame(x):
            raise DataError(
                f"`schema`: goes with a data frame, whose columns have names, and {x_name} is none; drop it"
            )
        labels = None if y is None else list(as_array(y, "y"))
        if labels is not None and len(labels) != len(x):
            raise DataError(
                f"{name}: {x_name} has {len(x)} records but {y_name} has {len(labels)} labels; give one each"
            )
        return read_by_schema(Table(x, schema, name), labels=labels)
    if y is None:
        raise DataError("`y` is missing: the labels that go with `x`")
    targets = copied(as_array(y, "test" if y_name != "y" else y_name))
    raw = replace(unlabelled(x, words, name, x_name), y=targets, y_name=y_name)
    if words is not None and not raw.parts:
        check_words(raw.x, words, f"{name}: {x_name}")
        raw = replace(raw, tables=(cast(int, words),))
    return raw if raw.parts else replace(raw, x=copied(raw.x))


def unlabelled(x: Any, words: Words, name: str, x_name: str, *, check: bool = True) -> RawSplit:
    """Return records without labels: of an array, of a data frame, or those of a mapping side by side.

    Raises:
        DataError: parts that are no arrays, or have no names that arguments could have.
    """
    check_no_loader(x)
    if isinstance(x, tuple) and x and all(hasattr(part, "detach") or isinstance(part, np.ndarray) for part in x):
        raise DataError("`x`: a tuple of arrays; give a mapping of them by the names of the network's arguments")
    if is_frame(x):
        raw = read_table(Table(x, name=f"`{x_name}`"), None, labelled=False)
        return RawSplit(raw.x, None, name, x_name, columns=raw.columns, left_out=raw.left_out)
    if not isinstance(x, Mapping):
        return RawSplit(as_array(x, "test" if x_name.endswith("of test") else x_name), None, name, x_name)
    if not x:
        raise DataError(f"`{x_name}`: a mapping of nothing; give it the arrays that the network takes")
    for key in x:
        if not isinstance(key, str) or not key.isidentifier() or len(key) > MAX_NAME:
            raise DataError(f"`x`: {key!r:.100} is no name of an argument; call each part as the network does")
    arrays = {key: as_array(x[key], f"x[{key!r}]") for key in sorted(x)}
    side, parts = side_by_side(arrays, words, x_name, check=check)
    side.flags.writeable = False
    return RawSplit(side, None, name, x_name, parts=parts)


def records_of(x: Any, schema: Schema | None, columns: tuple[str, ...] | None, parts: Parts = ()) -> RawSplit:
    """Return records without labels as a run takes them: encoded by its schema, with columns in their order, or parts."""
    if schema is not None and is_frame(x):
        return read_by_schema(Table(x, schema, "x"), labelled=False)
    words = facts_of(parts, x).get("words") if isinstance(x, Mapping) else None
    raw = unlabelled(x, words, "records", "x", check=False)
    if raw.parts and (other := differences(parts, raw.parts)):
        raise DataError(f"`x`: its records {other}; give it records of the same parts as the run's")
    return raw.in_order(columns, "the run")


def as_array(values: object, name: str) -> np.ndarray:
    """Return the array that an argument stands for: itself, the values of a tensor, or those of nested lists.

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
        fix = "give each record as many numbers, and pad rows to one public length"
        fix = "pass x.to_dense().float()" if tensor else fix
        raise DataError(
            f"`{name}`: {shown_value(values)} is no array: {first_line(error).rstrip('.')}; {fix}"
        ) from None


def check_no_loader(x: object) -> None:
    """Raise DataError for a dataset of PyTorch or Hugging Face, or a loader: what one gives may differ each time."""
    from torch.utils import data

    if isinstance(x, (data.Dataset, data.DataLoader)) or (hasattr(x, "column_names") and not is_frame(x)):
        raise DataError(f"`x`: {type(x).__name__}{instead('x of a Dataset')}")
