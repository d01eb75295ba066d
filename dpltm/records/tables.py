"""Tables with named columns: ``.csv``, ``.parquet`` and ``.arrow`` files as arrays, of numbers or by a schema."""

from __future__ import annotations

import csv
import datetime
import itertools
import json
import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dpltm.errors import DataError, first_line
from dpltm.privacy.entry import Lineage
from dpltm.records.dataset import Dataset, RawSplit, Rows, shown
from dpltm.records.mapped import AT_ONCE, let_go, pieces, room_for
from dpltm.records.schema import Column, Schema, as_days, as_number, classes_of, encoded, lineage_text, number_of
from dpltm.records.settle import settle

BLOCK = 10_000
"""Records that are encoded at once."""

MOST_FAULTS = 6
"""Cells that do not fit a schema which one message names."""

Row = tuple[int, list[str]]
"""The line that a record stands on, and its cells without blanks around them; first of all the header."""

Coder = Callable[[Column, list[str], frozenset[str]], np.ndarray]
"""Coder of a column of which something is still to be found: one number a record, float64."""


@contextmanager
def comma_separated(path: Path) -> Iterator[None]:
    """Refuse a file that proves, in this block, not to be comma-separated text in UTF-8."""
    try:
        yield
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path}: is not comma-separated text in UTF-8 ({first_line(error)}); save it as that"
        ) from error


def table_rows(path: Path, schema: Schema | None = None) -> Iterator[Row]:
    """Yield all rows of a table as texts, names of columns first; a schema may name columns, and lines that are no rows."""
    if path.suffix.lower() != ".csv":
        yield from _batch_rows(path)
        return
    skip = "" if schema is None else schema.skip
    with path.open(newline="", encoding="utf-8-sig") as stream:
        lines = ("" if skip and line.startswith(skip) else line for line in stream)
        rows = csv.reader(lines, strict=True, skipinitialspace=True)
        named = None if schema is None or schema.header else [each.name for each in schema.columns]
        yield 0, [cell.strip() for cell in next(rows, [])] if named is None else named
        for row in rows:
            if len(row) > 1 or (row and row[0].strip()):
                yield rows.line_num, [cell.strip() for cell in row]


def _batch_rows(path: Path) -> Iterator[Row]:
    """Rows of a file of columns, as a .csv file would have them."""
    with record_batches(path) as (schema, _, batches):
        yield 0, list(schema.names)
        columns = ([map(_text, column.to_pylist()) for column in batch.columns] for batch in batches())
        rows = itertools.chain.from_iterable(zip(*some, strict=True) for some in columns)
        yield from ((line, list(row)) for line, row in enumerate(rows, start=1))


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    return str(cell.isoformat() if isinstance(cell, (datetime.date, datetime.datetime)) else cell).strip()


# files of columns

Opened = tuple[Any, int, Callable[[], Iterator[Any]]]
"""The schema of a file, its number of rows, and its record batches."""


@contextmanager
def record_batches(path: Path) -> Iterator[Opened]:
    """Yield the schema of a ``.parquet`` or ``.arrow`` file, its number of rows, and what iterates over its batches."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise DataError(
            f"{path}: reading {path.suffix.lower()} needs pyarrow; pip install 'dpltm[parquet]'"
        ) from error
    with ExitStack() as opened:
        try:
            yield (_parquet if path.suffix.lower() == ".parquet" else _arrow)(path, opened)
        except (pa.ArrowException, UnicodeDecodeError) as error:  # names that are no text
            raise DataError(
                f"{path}: is not a {path.suffix.lower()[1:]} file that can be read ({first_line(error)}); write it again"
            ) from error


def _parquet(path: Path, opened: ExitStack) -> Opened:
    import pyarrow.parquet as pq

    file = opened.enter_context(pq.ParquetFile(path))
    rows = max(1, AT_ONCE // (8 * max(1, len(file.schema_arrow.names))))
    return file.schema_arrow, file.metadata.num_rows, lambda: file.iter_batches(batch_size=rows)


def _arrow(path: Path, opened: ExitStack) -> Opened:
    import pyarrow as pa

    file = opened.enter_context(pa.OSFile(str(path)))
    try:
        reader: Any = opened.enter_context(pa.ipc.open_file(file))
    except pa.ArrowInvalid:
        file.seek(0)
        reader = opened.enter_context(pa.ipc.open_stream(file))
        count = sum(batch.num_rows for batch in reader)

        def again() -> Iterator[Any]:
            file.seek(0)
            yield from pa.ipc.open_stream(file)

        return reader.schema, count, again
    numbers = range(reader.num_record_batches)
    count = sum(reader.get_batch(number).num_rows for number in numbers)
    return reader.schema, count, lambda: (reader.get_batch(number) for number in numbers)


# tables of numbers


def read_table(
    path: Path,
    label: str | None,
    labelled: bool = True,
    units: str | None = None,
    spare: Sequence[str] = (),
) -> RawSplit:
    """Return the records of a table of numbers.

    Args:
        labelled: otherwise the column of labels, if one is named, is left out.
        units: the column of persons, in numbers or words; it is no feature.
    """
    if path.suffix.lower() == ".csv":
        with comma_separated(path):
            rows = table_rows(path)
            header = next(rows)[1]
            position, whose, read = _positions(path, header, label, labelled, units, spare)
            _check_names(path, header)
            table, names = _csv_cells(path, rows, header, read, whose)
        place = None if position is None or not labelled else read.index(position)
        y = None if place is None else table[:, place].copy()
        x = table if place is None else np.delete(table, place, axis=1)
    else:
        with record_batches(path) as (schema, count, batches):
            header = list(schema.names)
            position, whose, read = _positions(path, header, label, labelled, units, spare)
            x, y, names = _filled(path, schema, count, batches, position, whose, read)
    columns = [at for at in read if at != position]
    all_names = tuple(header[at] for at in columns)
    told = None if position is None else header[position]
    rows_of = Rows(x, np.empty(0) if y is None else y, all_names, told)
    kept = [place for place, at in enumerate(columns) if at != whose]
    return RawSplit(
        x if len(kept) == len(columns) else _picked(x, kept),
        y,
        str(path),
        "the feature table",
        "no column" if told is None else f"column {told!r}",
        tuple(all_names[place] for place in kept),
        rows_of,
        None if whose is None else np.array(names),
        units or "units",
        left_out=tuple(header[at] for at in index_columns(header) if at not in read),
    )


def _positions(
    path: Path, header: list[str], label: str | None, labelled: bool, units: str | None, spare: Sequence[str]
) -> tuple[int | None, int | None, list[int]]:
    """Return the column of labels, and of persons, None where nothing is named; and all columns that are read."""
    if not header:
        raise DataError(f"{path}: is empty; expected a header line and records")
    if label is None and labelled:
        raise DataError(f"{path}: needs `label` COLUMN to name the label column; it has {shown(header)}")
    if label is not None and header.count(label) != 1:
        what = "has no such column" if label not in header else "has that column more than once"
        raise DataError(f"`label` {label}: {path} {what}; it has {shown(header)}")
    if units is not None and (header.count(units) != 1 or units == label):
        what = "has its labels in that column" if units == label else "has that column more than once"
        raise DataError(
            f"`unit_column` {units}: {path} {what if units in header else 'has no such column'}; it has {shown(header)}"
        )
    if all(name in (label, units) or name in spare for name in header):
        raise DataError(f"{path}: has no column of features; it has {shown(header)}")
    index = set(index_columns(header)) - {header.index(name) for name in (label, units) if name in header}
    read = [
        at for at, name in enumerate(header)
        if name not in spare and (labelled or name != label) and at not in index
    ]  # fmt: skip
    if not any(header[at] not in (label, units) for at in read):
        raise DataError(f"{path}: has no column of features but a row number; it has {shown(header)}")
    return None if label is None else header.index(label), None if units is None else header.index(units), read


def index_columns(header: Sequence[str]) -> list[int]:
    """Return the places of columns that are row numbers by their names, as pandas writes them; no cell is looked at."""
    return [
        at for at, name in enumerate(header)
        if re.fullmatch(r"Unnamed: 0(\.\d+)?|__index_level_\d+__", name) or (at == 0 and not name.strip())
    ]  # fmt: skip


def _check_names(path: Path, header: list[str]) -> None:
    """Raise DataError for a first line that is a record: it would be lost. Distinct whole numbers may be names."""
    if all(as_number(cell) is not None for cell in header) and not (
        all(cell.isdecimal() for cell in header) and len(set(header)) == len(header)
    ):
        raise DataError(f"{path}: its first line holds numbers where names of columns belong; add a header line")


def _csv_cells(
    path: Path, rows: Iterator[Row], header: list[str], read: list[int], units: int | None
) -> tuple[np.ndarray, list[str]]:
    """The columns that are read, in one flat array of doubles as it grows: far smaller than lists. And whose records are."""
    cells, whose = array("d"), list[str]()
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(
                f"{path}: line {line} has {len(row)} cells but the header has {len(header)}; give every line one cell a"
                " column"
            )
        if units is not None:
            whose.append(row[units])
        try:
            cells.extend([float(row[at]) if at != units else number_of(row[at]) for at in read])
        except ValueError as error:
            column = next(at for at in read if at != units and as_number(row[at]) is None)
            raise DataError(
                f"{path}: line {line}, column {header[column]!r} holds {row[column]!r}; every cell must be a number; encode"
                " or drop it"
            ) from error
    return np.frombuffer(cells, dtype=np.float64).reshape(-1, len(read)), whose


def _filled(
    path: Path,
    schema: Any,
    count: int,
    batches: Callable[[], Iterator[Any]],
    label: int | None,
    units: int | None,
    read: list[int],
) -> tuple[np.ndarray, np.ndarray | None, list[str]]:
    """Return columns as arrays, features in the narrowest type that holds all of them; and whose records are."""
    header, features = schema.names, [at for at in read if at != label]
    numbers = [at for at in read if _is_column(schema.types[at], text=False)]
    for at in read:
        kind = schema.types[at]
        if at not in numbers and (at != units or not _is_column(kind, text=True)):
            raise DataError(
                f"{path}: column {header[at]!r} has type {kind}; every column must be numeric; encode or drop it"
            )
    types = [np.dtype(schema.types[at].to_pandas_dtype() if at in numbers else np.float64) for at in features]
    x = room_for((count, len(features)), np.result_type(*types))
    y = None if label not in read else np.empty(count, schema.types[label].to_pandas_dtype())
    done, nulls, whose = 0, Counter[int](), list[str]()
    for batch in batches():
        rows = slice(done, done + batch.num_rows)
        nulls.update({at: batch.column(at).null_count for at in read})
        for place, at in enumerate(() if nulls.total() else features):  # a null is no number
            values = batch.column(at).to_pylist() if at == units else batch.column(at).to_numpy(zero_copy_only=False)
            if at == units:
                whose += map(str, values)
                values = values if at in numbers else list(map(number_of, values))
            x[rows, place] = values
        if y is not None and not nulls.total():
            y[rows] = batch.column(label).to_numpy(zero_copy_only=False)
        done = rows.stop
        let_go(x)
    for at in (at for at in read if nulls[at]):
        raise DataError(f"{path}: column {header[at]!r} has {nulls[at]} nulls; fill them or drop the column")
    x.flags.writeable = False
    return x, y, whose


def _is_column(kind: Any, *, text: bool) -> bool:
    name = str(kind)
    if text:
        return (str(kind.value_type) if name.startswith("dictionary") else name) in ("string", "large_string")
    return name.startswith(("int", "uint", "float", "double", "halffloat", "bool"))


def _picked(table: np.ndarray, columns: list[int]) -> np.ndarray:
    """Return some columns of a table, read some rows at a time."""
    rest, done = room_for((len(table), len(columns)), table.dtype), 0
    for rows in pieces(table):
        rest[done : done + len(rows)] = rows[:, columns]
        done += len(rows)
        let_go(rest)
    rest.flags.writeable = False
    return rest


# tables with a schema


def read_by_schema(
    path: Path, schema: Schema, units: str | None = None, labelled: bool = True, coder: Coder | None = None
) -> RawSplit:
    """Return the records of a table, encoded: features ``(n, schema.features)`` float32 in [0, 1], and classes.

    Args:
        units: the column of persons, whatever the schema says of it; it is no feature.
        coder: of columns whose bounds or values are still to be found; None where that is refused.
    """
    if coder is None:
        schema.check_finished()
    label = schema.label.name
    with comma_separated(path):
        rows = table_rows(path, schema)
        header = next(rows)[1]
        _check_header(path, schema, header, units, labelled)
        whose = None if units is None or not labelled else header.index(units)
        blocks: list[tuple[np.ndarray, ...]] = []
        names: list[str] = []
        while block := list(itertools.islice(rows, BLOCK)):
            faults = [
                f"line {line} has {len(row)} cells in place of {len(header)}"
                for line, row in block
                if len(row) != len(header)
            ]
            whole = [(line, row) for line, row in block if len(row) == len(header)]
            table = [[row[at] for _, row in whole] for at in range(len(header))]
            lines = [line for line, _ in whole]
            blocks.append(_encode(schema, dict(zip(header, table, strict=True)), labelled, coder, faults, lines))
            if faults:
                more = f"; and {len(faults) - MOST_FAULTS:,} more" if len(faults) > MOST_FAULTS else ""
                raise DataError(
                    f"{path}: does not fit its schema: {'; '.join(faults[:MOST_FAULTS])}{more}; correct one of them"
                )
            names += [] if whose is None else table[whose]
    if not blocks:
        raise DataError(f"{path}: holds no records")
    x, y, full, labels = (np.concatenate(each) for each in zip(*blocks, strict=True))
    return RawSplit(
        x,
        y if labelled else None,
        str(path),
        "the feature table",
        f"column {label!r}",
        None,
        Rows(full, labels, tuple(name for name in header if name != label), label),  # known under any schema
        None if whose is None else np.array(names),
        units or "",
    )


def _encode(
    schema: Schema,
    cells: dict[str, list[str]],
    labelled: bool,
    coder: Coder | None,
    faults: list[str],
    lines: list[int],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features, classes, and all other cells and those of labels as numbers, of some rows."""
    empty, label, features = frozenset(schema.missing), schema.label, []
    for column in (column for column in schema.columns if column.features):
        if column.wanted and coder is not None:
            features.append(coder(column, cells[column.name], empty)[:, None])
        else:
            features.append(encoded(column, cells[column.name], empty, faults, lines))
    full = [list(map(number_of, some)) for name, some in cells.items() if name != label.name]
    told = cells[label.name] if labelled else []
    y = classes_of(label, told, faults, lines) if labelled else np.zeros(len(lines), dtype=np.int64)
    numbers = np.array(full, dtype=np.float64).reshape(len(full), len(lines)).T
    return np.concatenate(features, axis=1), y, numbers, np.array(list(map(number_of, told)))


def _check_header(path: Path, schema: Schema, header: list[str], units: str | None, labelled: bool) -> None:
    """Raise DataError unless a file has the columns of its schema, and the one that says whose each record is."""
    known = {column.name for column in schema.columns}
    spare = set() if labelled else {column.name for column in schema.columns if not column.features}
    lacking = sorted(known - set(header) - spare)
    strange = sorted(set(header) - known - {units})
    twice = sorted({name for name in header if header.count(name) > 1})
    for what, names in (("lacks", lacking), ("has, beside its schema,", strange), ("has twice", twice)):
        if names:
            raise DataError(f"{path}: {what} the columns {shown(names)}; correct the schema, or the file")
    if units is not None and (units not in header or units == schema.label.name) and labelled:
        what = "has its labels in that column" if units == schema.label.name else "has no such column"
        raise DataError(f"`unit_column` {units}: {path} {what}; it has {shown(header)}")
    if any(column.name == units and column.features for column in schema.columns):
        raise DataError(f'`unit_column` {units}: is a feature by the schema; give that column kind "ignored"')


# drafts of schemas: from names and types of columns alone, or from the values of records declared public

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
    """Return a schema to be filled in, TOML.

    Args:
        from_public: whether all records are declared public, so that kinds, bounds and categories may be read off them.
    """
    with comma_separated(path):
        names = _names(path, header)
        if label is not None and label not in names:
            raise _no_column(path, label, names)
        if from_public:
            said = {name: _column_of(cells, name == label) for name, cells in _cells(path, names, header).items()}
        else:
            said = _of_types(path, names, label)
    first = (_READ_OFF if from_public else _FIRST).format(name=path.name) + ("" if header else "header = false\n")
    parts = [first + f"missing = {json.dumps(list(MISSING))}" + (f"\n{lineage_text(lineage)}" if lineage else "")]
    parts += [f"[column.{json.dumps(name, ensure_ascii=False)}]\n{said[name]}" for name in names]
    return "\n\n".join(parts) + "\n"


def public_records(path: Path, label: str | None, header: bool) -> Dataset:
    """Return the records that a schema is read off, so that they are known again. Arguments as :func:`draft`."""
    with comma_separated(path):
        names = _names(path, header)
        last = names[-1] if label is None else label  # which column is the label is not needed to know rows again
        if last not in names:
            raise _no_column(path, last, names)
        classes = tuple((cell,) for cell in _cells(path, names, header)[last])
    columns = (
        Column(name, "label", values=classes) if name == last else Column(name, "hashed", buckets=2, missing=True)
        for name in names
    )
    raw = read_by_schema(path, Schema(tuple(columns), header, ("",)))
    return settle(path.stem, raw, None, None, ((0.0, 1.0), len(classes)), ())


def _no_column(path: Path, label: str, names: list[str]) -> DataError:
    return DataError(f"`label` {label}: {path} has no such column; it has {shown(names)}")


def _names(path: Path, header: bool) -> list[str]:
    if path.suffix.lower() != ".csv":
        with record_batches(path) as (schema, _, _batches):
            names = list(schema.names)
        lacking = "name of its own for each column"
    else:
        names = next(table_rows(path))[1]
        names = names if header else [f"c{place}" for place in range(1, len(names) + 1)]
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


def _cells(path: Path, names: list[str], header: bool) -> dict[str, list[str]]:
    rows = table_rows(path, Schema(tuple(Column(name, "ignored") for name in names), header))
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
