"""Whose each record is: with a person as the unit, all records of one person are protected together.

A *unit* is all records that share a value of one column: a person, a household, a device. ``by_unit`` makes one record of
them, ``(slots, ...)``, and the mean of their losses is what a gradient filter gets: so a unit more or less, whatever it
holds, is one record more or less, and every bound for records holds for units as it stands (privacy-model.md 1.1 and 4.1).
"""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dpltm.errors import DataError
from dpltm.privacy.entry import RECORD
from dpltm.records.mapped import gathered, let_go, room_for
from dpltm.records.tables import as_number

if TYPE_CHECKING:
    from dpltm.records.dataset import Dataset
    from dpltm.records.raw import RawSplit

MAX_SLOTS = 4096
"""Most records of one unit that count."""

MAX_VALUES = 2**31
"""Most values in the slots of all units together; a guard against typing errors."""

ABSENT = -100
"""Label of a slot that its unit leaves empty."""

_HOLES = frozenset({"", "nan", "na", "n/a", "null", "none", "nat", "?", "-"})
"""What stands for nobody, in small letters."""

_WHOLE = re.compile(r"([+-]?)0*([0-9]+)(?:\.0*)?")


def whose(value: object) -> str:
    """What a unit is called: composed text (NFC) without blanks around it; whole numbers are the same however written.

    Args:
        value: a cell of a table, or of an array. 7, 7.0, "7" and " 007" are one unit.

    Guarantees:
        Depends on this value alone: a record more or less never makes two units of one.
    """
    text = (value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)).strip()
    whole = _WHOLE.fullmatch(text)
    if whole is None:
        return unicodedata.normalize("NFC", text)
    return ("-" if whole[1] == "-" and whole[2] != "0" else "") + whole[2]


def checked_units(raw: RawSplit, taken: np.ndarray | None = None) -> np.ndarray:
    """Whose each record of a split is, ``(m,)`` of texts (see ``whose``).

    Args:
        raw: the split.
        taken: which of its places hold a record, ``(n,)`` bool; None for all.

    Raises:
        DataError: a value for each record is missing, or there is none for one of them.
    """
    values, where = raw.units, f"{raw.source}: {raw.units_name!r}"
    assert values is not None
    if raw.units_name == RECORD:
        raise DataError(f"{where}: a {RECORD} is no person; call the column otherwise, by whom it names")
    if values.dtype.kind not in "iuUSf":
        raise DataError(f"{where} has dtype {values.dtype}; give whole numbers or texts, one value a person")
    if values.shape != (len(raw.x),):
        raise DataError(f"{where} has shape {values.shape}; expected ({len(raw.x)},), one value for each record")
    values = values if taken is None else values[taken]
    distinct, codes = np.unique(values, return_inverse=True)
    names = [whose(_plain(value)) for value in distinct.tolist()]
    holes = [number for number, name in enumerate(names) if name.lower() in _HOLES]
    odd = [
        name
        for name in names
        if as_number(name) is not None and not _WHOLE.fullmatch(name) and name.lower() not in _HOLES
    ]
    if odd:
        raise DataError(f"{where} holds {odd[0]!r:.40}, a number that is not whole; give whole numbers or texts")
    if holes:
        record = int(np.flatnonzero(np.isin(codes, holes))[0])
        raise DataError(
            f"{where} says nobody at record {record} (counted from 0); say whose it is, or leave the record out"
        )
    return np.array(names)[codes]


def _plain(value: object) -> object:
    """A whole number for a float that is one; as it is otherwise."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def check_apart(train: np.ndarray, test: np.ndarray, test_raw: RawSplit) -> None:
    """Raises DataError where units are in both splits: accuracy on their test records would be a free look at them.

    Args:
        train, test: whose the records are, texts.
        test_raw: where the test split comes from.
    """
    shared = len(np.intersect1d(train, test))
    if shared:
        raise DataError(
            f"{test_raw.source}: {shared} of the {len(np.unique(test))} values of {test_raw.units_name!r} are in the"
            " training split too, so accuracy there would show what is protected; keep all records of one on one side"
        )


def in_slots(units: np.ndarray, hashes: np.ndarray, slots: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which record goes where: of each unit those of the lowest hashes, at most ``slots``.

    Args:
        units: whose each record is, ``(n,)``, numbers.
        hashes: of records, ``(n,)``; equal ones keep their order.
        slots: of a unit, K, public.

    Returns:
        Indices of the records that count, and row and slot of each; units are in the order of their numbers.

    Guarantees:
        Which records of a unit count, and where, depends on those of that unit alone.
    """
    order = np.lexsort((hashes, units))
    _, first, count = np.unique(units[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(first, count)
    row, taken = np.repeat(np.arange(len(count)), count), rank < slots
    return order[taken], row[taken], rank[taken]


def check_slots(units: int, slots: int, values: int) -> None:
    """Raises DataError for slots out of range, or for more than any memory holds.

    Args:
        units: their number.
        slots: of each.
        values: in one record.
    """
    if not 1 <= slots <= MAX_SLOTS:
        raise DataError(f"`per_unit` {slots}: is not between 1 and {MAX_SLOTS:,}")
    if units * slots * values > MAX_VALUES:
        raise DataError(
            f"`per_unit` {slots}: {units:,} users with so many records of {values:,} values each are more than the"
            f" {MAX_VALUES:,} values that are taken; pass a smaller `per_unit`"
        )


def by_unit(dataset: Dataset, slots: int) -> Dataset:
    """The same records with a unit as the record: all that share a value of the column that says whose they are.

    Args:
        dataset: with that column (``Dataset.units``). A declared number of records is one of units.
        slots: most records of a unit that count, K, public.

    Returns:
        Training records ``x (units, K, ...)`` with labels ``y (units, K)``, ``ABSENT`` in empty slots, whose records are
        zeros. The test split stays as it is, single records of other units. The identity is that of ``dataset``: it is the
        same data.

    Raises:
        DataError: a part by places, K out of range, too much for memory, or a single unit.

    Guarantees:
        A row depends on the records of its own unit and on public inputs alone: where a unit has more than K, those of the
        K lowest public hashes are taken. So one unit more or less, whatever it holds, is one row more or less.
    """
    units = dataset.units
    assert units is not None
    if dataset.part.cut == "place":
        raise DataError(
            "`unit_column`: takes every record of a person; places part them, so give a fraction as `subset`"
        )
    x, y = dataset.train.x, dataset.train.y
    count = len(np.unique(units))
    if count < 2:
        raise DataError(
            f"`unit_column`: all records of {dataset.name} are one person's, so nothing can be learned of many"
        )
    check_slots(count, slots, math.prod(x.shape[1:]))
    index, row, slot = in_slots(units, dataset.rows.public_hashes(), slots)
    records = room_for((count, slots, *x.shape[1:]), x.dtype)
    records[...] = 0
    labels = np.full((count, slots), ABSENT, dtype=np.int64)
    records[row, slot], labels[row, slot] = gathered(x, index), y[index]
    let_go(records)
    declared = dataset.records_origin == "declared"
    return replace(
        dataset,
        train=replace(dataset.train, x=records, y=labels),
        records=dataset.records if declared else count,
        records_origin="declared" if declared else "counted",
        units=None,
        unit=dataset.units_name,
    )
