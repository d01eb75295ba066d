"""Tables with named columns: ``.csv``, ``.parquet`` and ``.arrow`` files as arrays."""

from __future__ import annotations

import csv
import datetime
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from dpltm.errors import DataError, first_line
from dpltm.records.mapped import AT_ONCE, let_go, pieces, room_for
from dpltm.records.raw import RawSplit, shown
from dpltm.records.schema import Column, Schema


def read_table(
    path: Path,
    label: str | None,
    labelled: bool = True,
    units: str | None = None,
    spare: Sequence[str] = (),
) -> RawSplit:
    """The records of a table.

    Args:
        path: a ``.csv``, ``.parquet`` or ``.arrow`` file.
        label: the column of labels.
        labelled: whether labels are read; otherwise that column, if one is named, is left out.
        units: the column that says whose each record is, in numbers or words; it is no feature.
        spare: columns that are left out unread where they are there.

    Raises:
        DataError: the file is not what it claims to be, or ``label`` or ``units`` does not fit it.
    """
    read = _read_csv if path.suffix.lower() == ".csv" else _read_columns
    return read(path, label, labelled, units, spare)


@dataclass(frozen=True)
class _Places:
    """Where the columns of a table stand.

    Attributes:
        header: names of all columns.
        label, units: places of those that are no features; None where there are none.
        read: places of those that are read, in their order.
    """

    header: list[str]
    label: int | None
    units: int | None
    read: list[int]

    def split(self, path: Path, x: np.ndarray, y: np.ndarray | None, whose: list[str]) -> RawSplit:
        """The records.

        Args:
            path: of the file.
            x: the columns that are read but for the label's, ``(n, columns)``; that of units in numbers.
            y: labels, if they are read.
            whose: the cells of the column of units.
        """
        columns = [at for at in self.read if at != self.label]
        names = tuple(self.header[at] for at in columns)
        label = None if self.label is None else self.header[self.label]
        y_name = "no column" if label is None else f"column {label!r}"
        raw = RawSplit(x, y, str(path), "the feature table", y_name, names, label)
        if self.units not in columns:
            return raw
        kept = [place for place, at in enumerate(columns) if at != self.units]
        return replace(
            raw,
            x=_picked(x, kept),
            columns=tuple(names[place] for place in kept),
            units=np.array(whose),
            units_name=self.header[self.units],
            full=(x, names),
        )


def _places(
    path: Path, header: list[str], label: str | None, labelled: bool, units: str | None, spare: Sequence[str]
) -> _Places:
    position = _label_position(path, header, label, labelled)
    whose = header.index(units) if units in header else None
    if units is not None and (header.count(units) != 1 or whose == position):
        what = "has no such column" if whose is None else "has that column more than once"
        what = "has its labels in that column" if whose == position and whose is not None else what
        raise DataError(f"`unit_column` {units}: {path} {what}; it has {shown(header)}")
    if all(at in (position, whose) or name in spare for at, name in enumerate(header)):
        raise DataError(f"{path}: has no column of features; it has {shown(header)}")
    left = [at for at, name in enumerate(header) if name in spare or (at == position and not labelled)]
    read = [at for at in range(len(header)) if at not in left]
    return _Places(header, position, whose, read)


def _picked(table: np.ndarray, columns: list[int]) -> np.ndarray:
    """Those columns of a table, some rows at a time."""
    rest, done = room_for((len(table), len(columns)), table.dtype), 0
    for rows in pieces(table):
        rest[done : done + len(rows)] = rows[:, columns]
        done += len(rows)
        let_go(rest)
    rest.flags.writeable = False
    return rest


@contextmanager
def comma_separated(path: Path) -> Iterator[None]:
    """Says of what is read inside, and proves not to be comma-separated text in UTF-8, that it is not.

    Raises:
        DataError: see above.
    """
    try:
        yield
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path}: is not comma-separated text in UTF-8 ({first_line(error)}); save it as that"
        ) from error


def _read_csv(path: Path, label: str | None, labelled: bool, units: str | None, spare: Sequence[str]) -> RawSplit:
    with comma_separated(path), path.open(newline="", encoding="utf-8-sig") as stream:
        header = next(csv.reader(stream, strict=True), [])
        stream.seek(0)
        places = _places(path, header, label, labelled, units, spare)
        if not labelled:
            _check_names(path, header)
        cells, whose = _csv_cells(path, stream, places)
    table = np.frombuffer(cells, dtype=np.float64).reshape(-1, len(places.read))
    if places.label not in places.read:
        return places.split(path, table, None, whose)
    at = places.read.index(places.label)
    return places.split(path, np.delete(table, at, axis=1), table[:, at], whose)


def _csv_cells(path: Path, stream: TextIO, places: _Places) -> tuple[array[float], list[str]]:
    """The cells of the columns that are read, row by row, in one flat array of doubles: far smaller than lists.

    Cells of the column of units stand there as ``number_of``, and beside it as they are.
    """
    header, read, units = places.header, places.read, places.units if places.units in places.read else None
    cells, whose = array("d"), list[str]()
    rows = csv.reader(stream, strict=True)
    next(rows)
    for row in rows:
        if not row:
            continue
        if len(row) != len(header):
            raise DataError(
                f"{path}: line {rows.line_num} has {len(row)} cells but the header has {len(header)}; "
                "give every line one cell a column"
            )
        if units is not None:
            whose.append(row[units])
        try:
            cells.extend([float(row[at]) if at != units else number_of(row[at]) for at in read])
        except ValueError as error:
            column = next(at for at in read if at != units and as_number(row[at]) is None)
            raise DataError(
                f"{path}: line {rows.line_num}, column {header[column]!r} holds {row[column]!r}; "
                "every cell must be a number; encode or drop it"
            ) from error
    return cells, whose


def _check_names(path: Path, header: list[str]) -> None:
    """Raises DataError for a first line that is a record: it would be lost. Distinct whole numbers may be names."""
    if all(as_number(cell) is not None for cell in header) and not (
        all(cell.strip().isdecimal() for cell in header) and len(set(header)) == len(header)
    ):
        raise DataError(f"{path}: its first line holds numbers where names of columns belong; add a header line")


def _read_columns(path: Path, label: str | None, labelled: bool, units: str | None, spare: Sequence[str]) -> RawSplit:
    """A ``.parquet`` or ``.arrow`` file, some rows at a time."""
    with record_batches(path) as (schema, count, batches):
        return _filled(path, schema, count, batches, _places(path, schema.names, label, labelled, units, spare))


Opened = tuple[Any, int, Callable[[], Iterator[Any]]]
"""The schema of a file, its number of rows, and its record batches."""


@contextmanager
def record_batches(path: Path) -> Iterator[Opened]:
    """A ``.parquet`` or ``.arrow`` file, open: its schema, its number of rows, and its record batches.

    Raises:
        DataError: it is none, or nobody can read it here.
    """
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
    """Arrow's file format, or its stream format."""
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


def _filled(path: Path, schema: Any, count: int, batches: Callable[[], Iterator[Any]], places: _Places) -> RawSplit:
    """The columns of a file as arrays: features in the narrowest type that holds all of them."""
    header, taken, position = places.header, places.read, places.label
    features = [at for at in taken if at != position]
    numbers = [at for at in taken if _is_column(schema.types[at], text=False)]
    for at in taken:
        kind = schema.types[at]
        if at not in numbers and (at != places.units or not _is_column(kind, text=True)):
            raise DataError(
                f"{path}: column {header[at]!r} has type {kind}; every column must be numeric; encode or drop it"
            )
    types = [np.dtype(schema.types[at].to_pandas_dtype() if at in numbers else np.float64) for at in features]
    x = room_for((count, len(features)), np.result_type(*types) if types else np.float64)
    y = np.empty(count, schema.types[position].to_pandas_dtype()) if position in taken else None
    done, nulls, whose = 0, Counter[int](), list[str]()
    for batch in batches():
        rows = slice(done, done + batch.num_rows)
        nulls.update({at: batch.column(at).null_count for at in taken})
        if not nulls.total():  # a null is no number
            for place, at in enumerate(features):
                column = batch.column(at)
                if at == places.units:
                    cells = [str(cell) for cell in column.to_pylist()]
                    whose += cells
                    if at not in numbers:
                        x[rows, place] = [number_of(cell) for cell in cells]
                        continue
                x[rows, place] = column.to_numpy(zero_copy_only=False)
            if y is not None:
                y[rows] = batch.column(position).to_numpy(zero_copy_only=False)
        done = rows.stop
        let_go(x)
    for at in taken:
        if nulls[at]:
            raise DataError(f"{path}: column {header[at]!r} has {nulls[at]} nulls; fill them or drop the column")
    x.flags.writeable = False
    return places.split(path, x, y, whose)


def _is_column(kind: Any, *, text: bool) -> bool:
    """Whether a column of that type holds numbers, or texts."""
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        return text and _is_column(kind.value_type, text=True)
    checks = (
        (types.is_string, types.is_large_string) if text else (types.is_integer, types.is_floating, types.is_boolean)
    )
    return any(check(kind) for check in checks)


def _label_position(path: Path, header: list[str], label: str | None, needed: bool) -> int | None:
    """Which column holds the labels; None where none is named and ``needed`` is False."""
    if not header:
        raise DataError(f"{path}: is empty; expected a header line and records")
    if label is None and not needed:
        return None
    if label is None:
        raise DataError(f"{path}: needs `label` COLUMN to name the label column; it has {shown(header)}")
    if header.count(label) != 1:
        what = "has no such column" if label not in header else "has that column more than once"
        raise DataError(f"`label` {label}: {path} {what}; it has {shown(header)}")
    if header == [label] and not needed:
        raise DataError(f"`label` {label}: {path} has no other column; give one that has the features")
    return header.index(label)


def number_of(cell: str) -> float:
    """What stands for a cell where records are told apart: itself, or of a word a number made of it."""
    value = as_number(cell)
    return float(int.from_bytes(blake2b(cell.encode(), digest_size=6).digest())) if value is None else value


def as_number(cell: str) -> float | None:
    """The number that a cell holds; None where it holds none."""
    try:
        return float(cell)
    except ValueError:
        return None


def as_days(cell: str) -> float | None:
    """The days from the year 1 to a date, YYYY-MM-DD and perhaps a time; None where a cell holds none."""
    try:
        return float(datetime.date.fromisoformat(cell[:10]).toordinal())
    except ValueError:
        return None


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
