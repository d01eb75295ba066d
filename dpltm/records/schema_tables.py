"""Tables with words, dates and holes as records, by their public schema.

Whatever does not fit the schema is said in one message, before anything is spent.
"""

from __future__ import annotations

import csv
import datetime
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from dpltm.errors import DataError
from dpltm.records.cells import as_days, as_number, number_of
from dpltm.records.raw import RawSplit, shown
from dpltm.records.schema import Column, Schema
from dpltm.records.tables import comma_separated, record_batches

BLOCK = 10_000
"""Records that are encoded at once."""


@dataclass
class Faults:
    """What does not fit a schema, said in one message.

    Attributes:
        source: file.
        count: how many there are.
        first: some of them.
    """

    source: str
    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Notes one."""
        self.count += 1
        if len(self.first) < MOST_FAULTS:
            self.first.append(text)

    def refuse(self) -> None:
        """Raises DataError if there were any."""
        if self.count:
            more = f"; and {self.count - len(self.first):,} more" if self.count > len(self.first) else ""
            raise DataError(
                f"{self.source}: does not fit its schema: {'; '.join(self.first)}{more}; correct one of them"
            )


MOST_FAULTS = 6


Coder = Callable[[Column, list[str], frozenset[str]], np.ndarray]
"""What makes numbers of the cells of a column of which something is still to be found: one a record, float64."""


def read_by_schema(
    path: Path, schema: Schema, units: str | None = None, labelled: bool = True, coder: Coder | None = None
) -> RawSplit:
    """The records of a table, encoded.

    Args:
        path: a ``.csv``, ``.parquet`` or ``.arrow`` file.
        schema: what it holds.
        units: the column that says whose each record is, whatever the schema says of it; it is no feature.
        labelled: whether labels are read; otherwise their column is left out, where it is there.
        coder: of columns whose bounds or values are still to be found; None where that is refused.

    Returns:
        Features ``(n, len(schema.features))`` float32 in [0, 1], or what the coder makes of them, and classes; ``full`` has
        all cells as numbers, by which records are known again under another schema.

    Raises:
        DataError: the file is not what it claims to be, or does not fit the schema.
    """
    if coder is None:
        schema.check_finished()
    faults = Faults(str(path))
    with comma_separated(path):
        rows = table_rows(path, schema)
        header = next(rows)[1]
        plan = _Plan(path, schema, header, units, labelled)
        parts = [plan.encode(block, faults, coder) for block in _blocks(rows)]
    faults.refuse()
    if not parts:
        raise DataError(f"{path}: holds no records")
    x, y, full, labels = (np.concatenate(each) for each in list(zip(*parts, strict=True))[:4])
    label = schema.label.name
    return RawSplit(
        x,
        y if labelled else None,
        str(path),
        "the feature table",
        f"column {label!r}",
        schema.features,
        label,
        units=None if plan.units is None else np.array([cell for part in parts for cell in part[4]]),
        units_name=units or "",
        full=(full, plan.names),
        label_numbers=labels if labelled else None,
    )


Row = tuple[int, list[str]]
"""The line that a record stands on, and its cells without blanks around them; first of all the header."""


def table_rows(path: Path, schema: Schema) -> Iterator[Row]:
    """All rows of a table as texts: names of columns first."""
    return _csv_rows(path, schema) if path.suffix.lower() == ".csv" else _batch_rows(path)


def _csv_rows(path: Path, schema: Schema) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8-sig") as stream:
        lines = ("" if schema.skip and line.startswith(schema.skip) else line for line in stream)
        rows = csv.reader(lines, strict=True, skipinitialspace=True)
        header = [cell.strip() for cell in next(rows, [])] if schema.header else [each.name for each in schema.columns]
        yield 0, header
        for row in rows:
            if len(row) > 1 or (row and row[0].strip()):
                yield rows.line_num, [cell.strip() for cell in row]


def _batch_rows(path: Path) -> Iterator[Row]:
    """Rows of a file of columns, as a .csv file would have them."""
    with record_batches(path) as (schema, _, batches):
        yield 0, list(schema.names)
        done = 0
        for batch in batches():
            columns = [[_text(cell) for cell in batch.column(at).to_pylist()] for at in range(len(schema.names))]
            for row in zip(*columns, strict=True):
                done += 1
                yield done, list(row)


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    return str(cell.isoformat() if isinstance(cell, (datetime.date, datetime.datetime)) else cell).strip()


def _blocks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    block: list[Row] = []
    for row in rows:
        block.append(row)
        if len(block) == BLOCK:
            yield block
            block = []
    if block:
        yield block


class _Plan:
    """Where the columns of a schema stand in a file."""

    def __init__(self, path: Path, schema: Schema, header: list[str], units: str | None, labelled: bool) -> None:
        known = {column.name for column in schema.columns}
        spare = {column.name for column in schema.columns if not column.features}
        lacking = sorted(known - set(header) - (set() if labelled else spare))
        strange = sorted(set(header) - known - {units})
        twice = sorted({name for name in header if header.count(name) > 1})
        for what, names in (("lacks", lacking), ("has, beside its schema,", strange), ("has twice", twice)):
            if names:
                raise DataError(f"{path}: {what} the columns {shown(names)}; correct the schema, or the file")
        if units is not None and (units not in header or units == schema.label.name) and labelled:
            what = "has its labels in that column" if units == schema.label.name else "has no such column"
            raise DataError(f"`unit_column` {units}: {path} {what}; it has {shown(header)}")
        self.schema, self.labelled, self.header = schema, labelled, header
        self.units = header.index(units) if labelled and units is not None else None
        self.at = {name: header.index(name) for name in known if name in header}
        self.full = [at for at, name in enumerate(header) if name != schema.label.name]
        self.names = tuple(header[at] for at in self.full)
        self.columns = [column for column in schema.columns if column.name != units or not column.features]
        if units is not None and any(column.name == units and column.features for column in schema.columns):
            raise DataError(f'`unit_column` {units}: is a feature by the schema; give that column kind "ignored"')

    def encode(
        self, block: list[Row], faults: Faults, coder: Coder | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[str]]:
        """Features, classes, all other cells and those of labels as numbers, and whose each record is, of some rows."""
        width, whole = len(self.header), []
        for line, cells in block:
            if len(cells) == width:
                whole.append((line, cells))
            else:
                faults.add(f"line {line} has {len(cells)} cells in place of {width}")
        lines, empty = [line for line, _ in whole], frozenset(self.schema.missing)
        table = list(zip(*(cells for _, cells in whole), strict=True)) if whole else [()] * width
        features = []
        for column in self.columns:
            cells = list(table[self.at[column.name]]) if column.features else []
            if column.wanted and coder is not None:
                features.append(coder(column, cells, empty)[:, None])
            elif column.features:
                features.append(encoded(column, cells, empty, faults, lines))
        label = self.schema.label
        y, labels = np.zeros(len(lines), dtype=np.int64), np.zeros(len(lines))
        if self.labelled:
            cells = list(table[self.at[label.name]])
            y, labels = classes_of(label, cells, faults, lines), np.array(list(map(number_of, cells)))
        full = np.array([[number_of(cell) for cell in table[at]] for at in self.full], dtype=np.float64).T
        whose = [] if self.units is None else list(table[self.units])
        return np.concatenate(features, axis=1), y, full.reshape(len(lines), len(self.full)), labels, whose


def encoded(column: Column, cells: list[str], empty: frozenset[str], faults: Faults, lines: list[int]) -> np.ndarray:
    """Features of one column, ``(n, len(column.features))`` float32 in [0, 1].

    Args:
        column: what it holds.
        cells: of all records, without blanks around them.
        empty: what stands for an empty cell.
        faults: told of cells that do not fit.
        lines: where the records stand.

    Guarantees:
        Row i depends on cell i and on the schema alone.
    """
    found = np.zeros((len(cells), len(column.features)), dtype=np.float32)
    places = {spelling: place for place, spellings in enumerate(column.values) for spelling in spellings}
    hole = found.shape[1] - 1
    for row, cell in enumerate(cells):
        if cell in empty:
            if column.missing:
                found[row, hole] = 1.0
            else:
                faults.add(f"line {lines[row]}, column {column.name!r} is empty (missing = true allows that)")
        elif column.kind == "category":
            place = places.get(cell)
            if place is not None:
                found[row, place] = 1.0
            elif not column.other:
                faults.add(f"line {lines[row]}, column {column.name!r}: {cell!r:.40} is none of its values")
        elif column.kind == "hashed":
            found[row, int.from_bytes(blake2b(cell.encode(), digest_size=8).digest()) % column.buckets] = 1.0
        else:
            value = as_days(cell) if column.kind == "date" else as_number(cell)
            if (value is None or math.isnan(value)) and column.other:
                found[row, hole] = 1.0
            elif value is None or math.isnan(value):
                what = "date (YYYY-MM-DD)" if column.kind == "date" else "number"
                faults.add(f"line {lines[row]}, column {column.name!r}: {cell!r:.40} is no {what}")
            else:
                found[row, 0] = _scaled(value, column)
    return found


def _scaled(value: float, column: Column) -> float:
    low, high = column.bounds
    inside = min(max(value, low), high) - low
    return math.log1p(inside) / math.log1p(high - low) if column.log else inside / (high - low)


def classes_of(column: Column, cells: list[str], faults: Faults, lines: list[int]) -> np.ndarray:
    """The class of each record, ``(n,)`` int64. Arguments as :func:`encoded`."""
    places = {spelling: place for place, spellings in enumerate(column.values) for spelling in spellings}
    for row, cell in enumerate(cells):
        if cell not in places:
            faults.add(f"line {lines[row]}, column {column.name!r}: {cell!r:.40} is none of its classes")
    return np.array([places.get(cell, 0) for cell in cells], dtype=np.int64)
