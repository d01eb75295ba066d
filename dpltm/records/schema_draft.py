"""A first schema of a table: from names and types of its columns alone, or from the values of records declared public."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

from dpltm.errors import DataError
from dpltm.privacy.entry import Lineage
from dpltm.records.dataset import Dataset
from dpltm.records.raw import shown
from dpltm.records.schema import Column, Schema, lineage_text
from dpltm.records.settle import settle
from dpltm.records.tables import as_days, as_number, comma_separated, read_by_schema, record_batches, table_rows

FEW = 64
"""Most different words of a public column that are drafted as categories; others are hashed."""

MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "None")

_UNKNOWN = """kind = "?"                     # number, category, hashed, date, label or ignored
# bounds = [0, 100]            # of a number or a date, or "private"; log = true where few are large
# values = ["A", "B"]          # of a category, or "private"; other = true allows more
# classes = ["A", "B"]         # of a label
# missing = true               # where cells may be empty"""

_FIRST = """# The public schema of {name}. It says what its columns can hold, and nothing that was read off private records.
"""

_READ_OFF = """# The schema of {name}, read off its records. They were declared public, and cannot be private any more.
"""


def draft(path: Path, label: str | None, header: bool, from_public: bool, lineage: Lineage | None = None) -> str:
    """A schema to be filled in, TOML.

    Args:
        path: a ``.csv``, ``.parquet`` or ``.arrow`` file.
        label: the column of labels.
        header: whether the first line of a .csv file has names; if not, columns are called c1, c2 and so on.
        from_public: whether all records are declared public, so that kinds, bounds and categories may be read off them.
        lineage: that says so, for whoever uses the schema.

    Raises:
        DataError: the file is not what it claims to be, or has no such column.
    """
    with comma_separated(path):
        return _draft(path, label, header, from_public, lineage)


def public_records(path: Path, label: str | None, header: bool) -> Dataset:
    """The records that a schema is read off, so that they are known again.

    Args:
        path: of the file, as :func:`draft`.
        label: the column of labels; None where that is not known yet.
        header: whether the first line of a .csv file has names.

    Raises:
        DataError: the file is not what it claims to be, or has no such column.
    """
    with comma_separated(path):
        names = _names(path, header)
        last = names[-1] if label is None else label  # which column is the label is not needed to know rows again
        if last not in names:
            raise _no_column(path, last, names)
        classes = tuple((cell,) for cell in _cells(path, names, header)[last])
    columns = [Column(name, "hashed", buckets=2, missing=True) for name in names if name != last]
    by_place = {column.name: column for column in (*columns, Column(last, "label", values=classes))}
    raw = read_by_schema(path, Schema(tuple(by_place[name] for name in names), header, ("",)))
    return settle(path.stem, raw, None, None, ((0.0, 1.0), len(classes)), ())


def _no_column(path: Path, label: str, names: list[str]) -> DataError:
    return DataError(f"`label` {label}: {path} has no such column; it has {shown(names)}")


def _draft(path: Path, label: str | None, header: bool, from_public: bool, lineage: Lineage | None) -> str:
    names = _names(path, header)
    if label is not None and label not in names:
        raise _no_column(path, label, names)
    said = _of_values(path, names, header, label) if from_public else _of_types(path, names, label)
    first = (_READ_OFF if from_public else _FIRST).format(name=path.name) + ("" if header else "header = false\n")
    parts = [first + f"missing = {json.dumps(list(MISSING))}" + (f"\n{lineage_text(lineage)}" if lineage else "")]
    parts += [f"[column.{json.dumps(name, ensure_ascii=False)}]\n{said[name]}" for name in names]
    return "\n\n".join(parts) + "\n"


def _names(path: Path, header: bool) -> list[str]:
    if path.suffix.lower() != ".csv":
        with record_batches(path) as (schema, _, _batches):
            names = list(schema.names)
        lacking = "name of its own for each column"
    else:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            first = next(csv.reader(stream, skipinitialspace=True), [])
        names = [cell.strip() for cell in first] if header else [f"c{place}" for place in range(1, len(first) + 1)]
        lacking = "header with a name for each column; say header = false, or name them"
    if not names or len(set(names)) < len(names) or not all(names):
        raise DataError(f"{path}: has no {lacking}")
    if len(names) == 1:
        raise DataError(f"{path}: has one column alone; records have a label, and something that it is learned from")
    return names


def _of_types(path: Path, names: list[str], label: str | None) -> dict[str, str]:
    """By the types of columns, where a file has them: no value is looked at."""
    said = dict.fromkeys(names, _UNKNOWN)
    if path.suffix.lower() != ".csv":
        with record_batches(path) as (schema, _, _batches):
            for name, kind in zip(names, map(str, schema.types), strict=True):
                if kind.startswith(("int", "uint", "float", "double", "half")):
                    said[name] = 'kind = "number"\nbounds = ["?", "?"]            # public: what it can be'
                elif kind.startswith(("date", "timestamp")):
                    said[name] = 'kind = "date"\nbounds = ["?", "?"]            # public: the first and the last day'
                elif kind.startswith(("string", "large_string", "dictionary", "bool")):
                    said[name] = 'kind = "category"\nvalues = ["?"]                 # or kind = "hashed", buckets = 16'
    if label is not None:
        said[label] = 'kind = "label"\nclasses = ["?", "?"]'
    return said


def _of_values(path: Path, names: list[str], header: bool, label: str | None) -> dict[str, str]:
    return {name: _column_of(cells, name == label) for name, cells in _cells(path, names, header).items()}


def _cells(path: Path, names: list[str], header: bool) -> dict[str, list[str]]:
    """The different cells of each column."""
    columns = tuple(Column(name, "ignored") for name in names)
    rows = table_rows(path, Schema(columns, header, MISSING))
    next(rows)
    cells: dict[str, dict[str, None]] = {name: {} for name in names}
    for line, row in rows:
        if len(row) != len(names):
            raise DataError(f"{path}: line {line} has {len(row)} cells in place of {len(names)}; correct it")
        for name, cell in zip(names, row, strict=True):
            cells[name][cell] = None
    return {name: list(cells[name]) for name in names}


def _column_of(cells: list[str], is_label: bool) -> str:
    there = [cell for cell in cells if cell not in MISSING]
    hole = "missing = true\n" if len(there) < len(cells) else ""
    numbers: list[Any] = [as_number(cell) for cell in there]
    if is_label:
        return f'kind = "label"\nclasses = {json.dumps(sorted(there), ensure_ascii=False)}'
    if there and all(number is not None and math.isfinite(number) for number in numbers):
        low, high = min(numbers), max(numbers)
        high = high if high > low else low + 1
        return f'kind = "number"\n{hole}bounds = [{low!r}, {high!r}]'
    days = [as_days(cell) for cell in there]
    if there and all(day is not None for day in days):
        return f'kind = "date"\n{hole}bounds = [{min(there)[:10]}, {max(there)[:10]}]'
    if len(there) <= FEW:
        return f'kind = "category"\n{hole}other = true\nvalues = {json.dumps(sorted(there), ensure_ascii=False)}'
    return f'kind = "hashed"\n{hole}buckets = {FEW}'
