"""Predict by an exported network: for every record a class and the chance of each, or a number. dpltm is not needed.

    python predict.py new.csv predictions.csv [ID]
    from predict import inputs; inputs("new.csv")     # a list for each input of the network, by name

ID names a column that is written first, such as a record's number. Records that are no table come as ``.npy`` or as ``x``
in an ``.npz``. What the network cannot take has NaN. ``dpltm export`` writes this file as ``predict.py`` beside a network
and its ``about.json``. dpltm itself reads rows, numbers and dates by it: what a cell means is said here alone.
"""

import codecs
import csv
import datetime
import gzip
import importlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

DAY = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ]\d\d(?::?\d\d){0,2}(?:[.,]\d+)?\s?(?:Z|[+-]\d\d(?::?\d\d)?)?)?")
ROWS = 32  # records in the network at once, or in what stands in front of it: an image may take 20 MB there


def described(folder: Path = Path(__file__).parent) -> dict[str, Any]:
    """Return what the folder of a network says of it, its inputs and its table."""
    about: dict[str, Any] = json.loads((folder / "about.json").read_text("utf-8"))
    return about


def table(path: str | Path, about: dict[str, Any]) -> tuple[dict[str, list[str]], list[int]]:
    """Return the columns of a CSV file: the texts in each, by its name; and the line of each record."""
    settings = about["table"]
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
    """Yield the lines of a file that are not blank, the header too, and their cells, as Python's reader takes them."""
    csv.field_size_limit(2**31 - 1)  # of a cell, in all of the process: long texts are no fault
    encoding = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
    opening: Any = gzip.open if str(path).lower().endswith(".gz") else open
    with opening(path, "rt", newline="", encoding=encoding) as stream:
        lines = ("" if skip and line.startswith(skip) else line for line in stream)
        rows = csv.reader(lines, strict=True, skipinitialspace=True, delimiter=separator_of(path, separator))
        yield ((rows.line_num, row) for row in rows if len(row) > 1 or (row and row[0].strip()))


def separator_of(path: str | Path, separator: str) -> str:
    """Return what stands between the cells of a file: tabs in a ``.tsv`` file where nothing but a comma is said."""
    tabs = separator == "," and str(path).lower().removesuffix(".gz").endswith(".tsv")
    return "\t" if tabs else separator


def inputs(path: str | Path, about: dict[str, Any] | None = None) -> dict[str, list[Any]]:
    """Return the inputs that the network takes for the records of a CSV file, a list each, by name. Python alone is needed.

    Numbers and dates, as days from the year 1, are floats, NaN for a hole; categories are texts; hashed words are buckets
    (-1 a hole). Columns may stand in any order, and further ones are passed over. ValueError for a column that is missing,
    or a cell that does not hold what the network was trained on.
    """
    about = about or described()
    cells, lines = table(path, about)
    plain = about["inputs"][0].get("columns")  # of a table without a schema
    columns = about["inputs"] if plain is None else [{"name": name, "kind": "quantity"} for name in plain]
    missing = [column["name"] for column in columns if column["name"] not in cells]
    if missing:
        raise ValueError(f"{path}: lacks the columns {', '.join(missing)}; it has {', '.join(cells) or 'none'}")
    empty = frozenset(about["table"]["missing"])
    values: dict[str, list[Any]] = {}
    for column in columns:
        name = column["name"]
        values[name] = []
        for cell, line in zip(cells[name], lines, strict=True):
            try:
                values[name].append(_value(column, cell, empty))
            except ValueError as error:
                raise ValueError(f"{path}: line {line}, column {name!r}{error}") from None
    return values if plain is None else {"records": [list(row) for row in zip(*values.values(), strict=True)]}


def _value(column: dict[str, Any], cell: str, empty: frozenset[str]) -> str | int | float:
    kind, other = column["kind"], column.get("other")
    if cell in empty:
        if not column.get("missing"):
            raise ValueError(" is empty, which is not allowed")
        return cell if kind == "category" else -1 if kind == "hashed" else math.nan
    if kind == "hashed":
        return bucket_of(cell, column["buckets"])
    if kind == "category":
        if not other and not any(cell in spellings for spellings in column["values"]):
            raise ValueError(f": {cell!r:.40} is none of its values")
        return cell
    value = as_days(cell) if kind == "date" else as_number(cell, column.get("decimal", "."))
    if value is not None and not math.isnan(value) and not (kind == "quantity" and math.isinf(value)):
        return value
    if not other:
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


def network(folder: Path) -> Callable[[dict[str, Any]], Any]:
    """Return the network in a folder: a function of arrays by their names, to ``(n, classes)``, or ``(n,)`` numbers."""
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise ValueError(f"needs ONNX Runtime; pip install onnxruntime ({error})") from None
    session = runtime.InferenceSession(str(folder / "model.onnx"))
    return lambda arrays: session.run(None, arrays)[0]


def _arrays(source: Path, about: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    if "table" in about:
        return {name: np.array(values) for name, values in inputs(source, about).items()}
    (wanted,) = about["inputs"]
    values = np.load(source, allow_pickle=False)
    values = values["x"] if source.suffix.lower() == ".npz" else values
    if values.size != len(values) * math.prod(wanted["shape"]):
        raise ValueError(f"{source}: has records of shape {values.shape[1:]}, and the network takes {wanted['shape']}")
    return {"records": values.reshape(len(values), *wanted["shape"]).astype(wanted["dtype"])}


def no_formula(text: str) -> str:
    """Return a text for a cell of a table, behind an apostrophe where a spreadsheet would take it for a formula."""
    try:
        float(text)
    except ValueError:
        return f"'{text}" if len(text) > 1 and text[0] in "=+-@\t\r" else text
    return text


def predict(source: Path, target: str, column: str | None = None) -> None:
    """Write the predictions for a file of records into a CSV file, behind a column of theirs."""
    about = described()
    arrays = _arrays(source, about)
    count = len(next(iter(arrays.values())))
    rows: list[list[str]] = [[] for _ in range(count)]
    names = about.get("classes")  # None of a number
    heads = ["prediction"] if names is None else ["label", *(f"p {name}" for name in names)]
    if column is not None:
        cells = table(source, about)[0]
        if column not in cells:
            raise ValueError(f"{source}: has no column {column}; it has {', '.join(cells)}")
        heads.insert(0, no_formula(column))
        rows = [[no_formula(cell)] for cell in cells[column]]
    run = network(Path(__file__).parent)
    parts = [run({name: values[at : at + ROWS] for name, values in arrays.items()}) for at in range(0, count, ROWS)]
    for row, output in zip(rows, (output for part in parts for output in part.tolist()), strict=True):
        chances = [output] if names is None else output
        if names is not None:
            hole = any(map(math.isnan, chances))
            row.append("" if hole else no_formula(names[chances.index(max(chances))]))
        row.extend(f"{chance:.9g}" for chance in chances)
    with open(target, "x", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows([heads, *rows])


def main() -> None:
    """Run the program."""
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: python predict.py new.csv predictions.csv [ID]")
    try:
        predict(Path(sys.argv[1]), *sys.argv[2:])
    except (OSError, ValueError, KeyError, csv.Error) as error:
        sys.exit(f"predict.py: {error}")


if __name__ == "__main__":
    main()
