"""Persons as units: all records that share a value of one column, a person, a household, a device, are protected together.

``at_unit`` makes one record of them, ``(slots, ...)``, and the mean of their losses is what a gradient filter gets: so a
unit more or less is one record more or less, and every bound for records holds for units (privacy-model.md 1.1 and 4.1).
"""

from __future__ import annotations

import datetime
import math
import re
import unicodedata
from dataclasses import replace
from typing import Any

import numpy as np

from dpltm.errors import DataError
from dpltm.privacy.checks import PER_UNIT
from dpltm.privacy.entry import RECORD
from dpltm.records.dataset import Dataset, RawSplit
from dpltm.records.encode import as_number
from dpltm.records.split import Arrays, Rows

MAX_SLOTS = 4096
"""Most records of one unit that count."""

MAX_VALUES = 2**31
"""Most values in the slots of all units together; a guard against typing errors."""

ABSENT = -100
"""Label of a slot that its unit leaves empty."""

_HOLES = frozenset({"", "nan", "na", "n/a", "null", "none", "nat", "?", "-"})
"""Cells that stand for nobody, in small letters."""

_WHOLE = re.compile(r"([+-]?)0*([0-9]+)(?:\.0*)?")


def text_of(cell: Any) -> str | None:
    """Return a cell as a text: days as YYYY-MM-DD, whole numbers without a point; None for one that holds nothing."""
    if type(cell).__name__ in ("NoneType", "NAType", "NaTType") or cell != cell:  # NaN is not NaN
        return None
    if isinstance(cell, (datetime.date, datetime.datetime)):
        return cell.isoformat()
    if isinstance(cell, (float, np.floating)):  # whole in a column of whole numbers with holes
        return str(int(cell)) if float(cell).is_integer() else str(float(cell))
    return str(cell).strip()


def whose(value: object) -> str:
    """Return the name of a unit, by this value alone: composed text (NFC); 7, 7.0, "7" and " 007" are one unit."""
    text = (value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)).strip()
    match = _WHOLE.fullmatch(text)
    if match is None:
        return unicodedata.normalize("NFC", text)
    return ("-" if match[1] == "-" and match[2] != "0" else "") + match[2]


def checked_units(raw: RawSplit, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
    """Return the person of each record of a split, ``(m,)`` of texts (see ``whose``), of the places that are ``taken``."""
    values = raw.units
    where = f"{raw.source}: {raw.units_name!r}"
    assert values is not None
    if raw.units_name == RECORD:
        raise DataError(f"{where}: a {RECORD} is no person; call the column otherwise, by whom it names")
    if values.dtype == object and values.ndim == 1:  # as a column of pandas has them
        values = np.array([text_of(owner) or "" for owner in values], dtype=str)
    if values.dtype.kind not in "iuUSf" or values.shape != (len(raw.x),):
        what = f"each of the {len(raw.x)} records a number or a name"
        raise DataError(f"{where} has dtype {values.dtype} and shape {values.shape}; give {what}")
    distinct, codes = np.unique(values[rows], return_inverse=True)
    cells = (int(cell) if isinstance(cell, float) and cell.is_integer() else cell for cell in distinct.tolist())
    names = list(map(whose, cells))
    for place, name in enumerate(names):
        hole = name.lower() in _HOLES
        if hole or (as_number(name) is not None and not _WHOLE.fullmatch(name)):
            record = int(np.argmax(codes == place))
            what = "says nobody" if hole else f"holds {name!r:.40}, a number that is not whole,"
            raise DataError(f"{where} {what} at record {record} (counted from 0); give whole numbers or texts")
    return np.array(names)[codes]


def check_per_unit(per_unit: int | None) -> None:
    """Raise DataError if it is said how many records of a person count, where single records are the unit."""
    if per_unit is not None:
        raise DataError("`per_unit`: bounds what a person gives; add `unit_column`, or leave it out")


def in_slots(units: np.ndarray, hashes: np.ndarray, slots: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the records in slots: of each unit those of the lowest hashes, at most ``slots``, by those of that unit alone.

    Returns:
        Indices of the records that count, and row and slot of each; units are in the order of their numbers.
    """
    order = np.lexsort((hashes, units))
    _, first, count = np.unique(units[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(first, count)
    row = np.repeat(np.arange(len(count)), count)
    fits = rank < slots
    return order[fits], row[fits], rank[fits]


def places_of_persons(rows: Rows, slots: int) -> list[np.ndarray]:
    """Return the places of the records of each person that count, of rows that say whose they are. See :func:`in_slots`."""
    assert rows._units is not None
    order, row, _ = in_slots(np.unique(rows._units, return_inverse=True)[1], rows.public_hashes(), slots)
    return np.split(order, np.flatnonzero(np.diff(row)) + 1)


def at_unit(dataset: Dataset, per_unit: int | None) -> Dataset:
    """Return the records at the unit that is to be protected: a person, where something says whose each record is.

    ``x (persons, K, ...)`` with labels ``y (persons, K)``, ``ABSENT`` in empty slots, whose records are zeros. K is
    ``per_unit``, public, or ``PER_UNIT``. The test split stays as it is, and so does the identity.

    Guarantees:
        A row depends on the records of its own person, those of the K lowest public hashes, and on public inputs alone: one
        person more or less, whatever it holds, is one row more or less.
    """
    if dataset.of_persons:
        return dataset
    if not dataset.names_units:
        check_per_unit(per_unit)
        return dataset
    slots = PER_UNIT if per_unit is None else per_unit
    assert dataset.rows._units is not None
    names, units = np.unique(dataset.rows._units, return_inverse=True)
    count = len(names)
    if dataset.part.cut == "place":
        raise DataError("`unit_column`: places part the records of a person; give a fraction as `subset`")
    if count < 2:
        raise DataError(f"`unit_column`: all records of {dataset.name} are of one person; give those of several")
    if not 1 <= slots <= MAX_SLOTS or count * slots * math.prod(dataset.train.shape) > MAX_VALUES:
        raise DataError(f"`per_unit` {slots}: must be 1 to {MAX_SLOTS:,}, fewer where persons or features are many")
    order, row, slot = in_slots(units, dataset.rows.public_hashes(), slots)
    values, labels = dataset.train._closed
    x = np.zeros((count, slots, *dataset.train.shape), dataset.train.dtype)
    y = np.full((count, slots), ABSENT, dtype=np.int64)
    x[row, slot], y[row, slot] = values[order], labels[order]
    declared = dataset.records_origin == "declared"
    return replace(
        dataset,
        train=replace(dataset.train, _closed=Arrays(x, y)),
        records=dataset.records if declared else count,
        records_origin="declared" if declared else "counted",
        unit=dataset.rows.units_name,
    )
