"""Make the inputs of an exported network from a CSV file, by the names of its columns. Python alone is needed.

    python encode.py new.csv inputs.json
    from encode import inputs; inputs("new.csv")     # a list for each input of the network, by name

``dpltm export`` writes this file beside a network, with the settings of its table. dpltm itself reads rows, numbers and
dates by it: what a cell means is said here alone.
"""

import codecs
import csv
import datetime
import json
import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

SETTINGS: dict[str, Any] = {}
DAY = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ]\d\d(?::?\d\d){0,2}(?:[.,]\d+)?\s?(?:Z|[+-]\d\d(?::?\d\d)?)?)?")


def table(path: str | Path, settings: dict[str, Any] = SETTINGS) -> tuple[dict[str, list[str]], list[int]]:
    """Return the columns of a CSV file: the texts in each, by its name; and the line of each record."""
    try:
        with rows_of(path, settings["skip"], settings["separator"], settings["encoding"]) as rows:
            names = settings["names"] or [name.strip() for name in next(rows, (0, []))[1]]
            records = [(line, [cell.strip() for cell in row]) for line, row in rows]
    except (UnicodeDecodeError, csv.Error) as error:
        how = f"{settings['encoding']} separated by {settings['separator']!r}"
        raise ValueError(f"{path}: is no text in {how}: {error}") from None
    for line, row in records:
        if len(row) != len(names):
            raise ValueError(f"{path}: line {line} has {len(row)} cells in place of {len(names)}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{path}: has twice the columns {', '.join(twice)}")
    columns = {name: [row[place] for _, row in records] for place, name in enumerate(names)}
    return columns, [line for line, _ in records]


@contextmanager
def rows_of(path: str | Path, skip: str, separator: str, encoding: str) -> Iterator[Iterator[tuple[int, list[str]]]]:
    """Yield the lines of a file that are not blank, the header among them, and their cells: what Python's reader takes for
    rows and cells is what a table holds."""
    csv.field_size_limit(2**31 - 1)  # of a cell, in all of the process: long texts are no fault
    encoding = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
    with open(path, newline="", encoding=encoding) as stream:
        lines = ("" if skip and line.startswith(skip) else line for line in stream)
        rows = csv.reader(lines, strict=True, skipinitialspace=True, delimiter=separator)
        yield ((rows.line_num, row) for row in rows if len(row) > 1 or (row and row[0].strip()))


def inputs(path: str | Path, settings: dict[str, Any] = SETTINGS) -> dict[str, list[Any]]:
    """Return the inputs that the network takes for the records of a CSV file, a list each, by name.

    Numbers and dates, as days from the year 1, are floats, NaN for a hole; categories are texts; hashed words are
    buckets (-1 a hole). A table without a schema is one
    input, ``records``. Columns may stand in any order, and further ones are passed over.

    Raises:
        ValueError: a column is missing, or a cell does not hold what the network was trained on.
    """
    cells, lines = table(path, settings)
    missing = [column["name"] for column in settings["columns"] if column["name"] not in cells]
    if missing:
        raise ValueError(f"{path}: lacks the columns {', '.join(missing)}; it has {', '.join(cells) or 'none'}")
    empty = frozenset(settings["missing"])
    values: dict[str, list[Any]] = {}
    for column in settings["columns"]:
        name = column["name"]
        values[name] = []
        for cell, line in zip(cells[name], lines, strict=True):
            try:
                values[name].append(_value(column, cell, empty))
            except ValueError as error:
                raise ValueError(f"{path}: line {line}, column {name!r}{error}") from None
    if settings["matrix"]:
        return {"records": [list(row) for row in zip(*values.values(), strict=True)]}
    return values


def _value(column: dict[str, Any], cell: str, empty: frozenset[str]) -> str | int | float:
    kind = column["kind"]
    if cell in empty:
        if not column["missing"]:
            raise ValueError(" is empty, which is not allowed")
        return cell if kind == "category" else -1 if kind == "hashed" else math.nan
    if kind == "hashed":
        return bucket_of(cell, column["buckets"])
    if kind == "category":
        if cell not in column["values"] and not column["other"]:
            raise ValueError(f": {cell!r:.40} is none of its values")
        return cell
    value = as_days(cell) if kind == "date" else as_number(cell, column.get("decimal", "."))
    if value is not None and not math.isnan(value) and not (kind == "quantity" and math.isinf(value)):
        return value
    if not column["other"]:
        raise ValueError(f": {cell!r:.40} is no {'date (YYYY-MM-DD)' if kind == 'date' else 'number'}")
    return math.nan


def bucket_of(cell: str, buckets: int) -> int:
    """Return the number that a word is hashed to, below ``buckets``."""
    return int.from_bytes(blake2b(cell.encode(), digest_size=8).digest(), "big") % buckets


def as_days(cell: str) -> float | None:
    """Return the days from the year 1 to a date, YYYY-MM-DD and perhaps a time; None where a cell holds none."""
    day = DAY.fullmatch(cell)
    try:
        return None if day is None else float(datetime.date.fromisoformat(day[1]).toordinal())
    except ValueError:
        return None


def as_number(cell: str, decimal: str = ".") -> float | None:
    """Return the number that a cell holds, written with such a point; None where it holds none."""
    if decimal != ".":
        cell = "no number" if "." in cell else cell.replace(decimal, ".")
    try:
        return None if "_" in cell else float(cell)  # 1_05 is no number, but of Python
    except ValueError:
        return None


def main() -> None:
    """Write the inputs for a CSV file as JSON: names of a network's inputs, and a list for each."""
    if len(sys.argv) != 3:
        sys.exit("usage: python encode.py new.csv inputs.json")
    try:
        body = inputs(sys.argv[1])
        with open(sys.argv[2], "x", encoding="utf-8") as stream:
            json.dump(body, stream)
    except (OSError, ValueError, csv.Error) as error:
        sys.exit(f"encode.py: {error}")


if __name__ == "__main__":
    main()
