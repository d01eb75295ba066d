"""Tables with named columns: ``.csv``, ``.parquet`` and ``.arrow`` files as arrays, of numbers or by a schema."""

from __future__ import annotations

import codecs
import csv
import itertools
import json
import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpltm.errors import DataError, first_line
from dpltm.records.dataset import Dataset, RawSplit, Rows
from dpltm.records.frames import Frame, text_of
from dpltm.records.input_parts import shown
from dpltm.records.mapped import AT_ONCE, let_go, pieces, room_for
from dpltm.records.schema import (
    MISSING,
    UNKNOWN,
    Column,
    Faults,
    Schema,
    as_days,
    as_number,
    classes_of,
    encoded,
    number_of,
)
from dpltm.records.settle import settle

BLOCK = 10_000
"""Records that are encoded at once."""

MOST_FAULTS = 6
"""Faults of columns which one message names."""

Row = tuple[int, list[str]]
"""The line that a record stands on, and its cells without blanks around them; first of all the header."""

Coder = Callable[[Column, list[str], frozenset[str]], np.ndarray]
"""Coder of a column of which something is still to be found: one number a record, float64."""

_PLAIN = Schema(())
"""What is meant of a file where no schema says how it is written."""


@contextmanager
def comma_separated(path: Path, schema: Schema = _PLAIN) -> Iterator[None]:
    """Refuse a file that proves, in this block, not to be the text that a schema says it is."""
    try:
        yield
    except (UnicodeDecodeError, csv.Error) as error:
        separated = "comma-separated text" if schema.separator == "," else f"text separated by {schema.separator!r}"
        raise DataError(
            f"{path}: is not {separated} in {schema.encoding.upper()} ({first_line(error)}); save it as that, or let its"
            ' schema say encoding = "latin-1" or separator = ";"'
        ) from error


def table_rows(source: Path | Frame, schema: Schema = _PLAIN) -> Iterator[Row]:
    """Yield all rows of a table as texts, names of columns first; a schema may name columns, and lines that are no rows."""
    hole = schema.missing[0] if schema.missing else ""
    if isinstance(source, Frame):
        yield 0, list(source.names)
        yield from _numbered(source.columns(), hole, 0)
        return
    if source.suffix.lower() != ".csv":
        with record_batches(source) as (columns, _, batches):
            yield 0, list(columns.names)
            chunks = ([column.to_pylist() for column in batch.columns] for batch in batches())
            yield from _numbered(chunks, hole, 1)
        return
    encoding = "utf-8-sig" if codecs.lookup(schema.encoding).name == "utf-8" else schema.encoding
    with source.open(newline="", encoding=encoding) as stream:
        lines = ("" if schema.skip and line.startswith(schema.skip) else line for line in stream)
        rows = csv.reader(lines, strict=True, skipinitialspace=True, delimiter=schema.separator)
        named = None if schema.header else [each.name for each in schema.columns]
        yield 0, [cell.strip() for cell in next(rows, [])] if named is None else named
        for row in rows:
            if len(row) > 1 or (row and row[0].strip()):
                yield rows.line_num, [cell.strip() for cell in row]


def _numbered(chunks: Iterable[list[list[Any]]], hole: str, first: int) -> Iterator[Row]:
    """Rows of columns, some at a time, as a .csv file would have them; what counts as empty stands for nothing."""
    columns = ([(text_of(cell, hole) for cell in column) for column in some] for some in chunks)
    rows = itertools.chain.from_iterable(zip(*some, strict=True) for some in columns)
    yield from ((line, list(row)) for line, row in enumerate(rows, start=first))


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
            _check_names(path, header, "add a line of names, or rename those columns")
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
        raise DataError(f"`label` {label}: {path} {what}; it has {shown(header)}{separated(header)}")
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


def separated(header: Sequence[str]) -> str:
    """Return the end of a message about names that seem to be all in one, by another separator than a comma."""
    if len(header) != 1:
        return ""
    mark = next((each for each in ";\t|" if each in header[0]), None)
    return f"; where a schema says separator = {json.dumps(mark)}, that is more than one column" if mark else ""


def index_columns(header: Sequence[str]) -> list[int]:
    """Return the places of columns that are row numbers by their names, as pandas writes them; no cell is looked at."""
    return [
        at for at, name in enumerate(header)
        if re.fullmatch(r"Unnamed: 0(\.\d+)?|__index_level_\d+__", name) or (at == 0 and not name.strip())
    ]  # fmt: skip


def _check_names(path: Path, header: Sequence[str], fix: str) -> None:
    """Raise DataError for a first line that may be a record, which would be lost. Names may be numbers that count."""
    numbers = [cell for cell in header if as_number(cell) is not None or as_days(cell) is not None]
    whole = [int(cell) for cell in numbers if cell.isdecimal() and len(cell) < 10]
    least = 3 if len(numbers) == len(header) else 2
    counts = len(whole) >= least and whole == list(range(whole[0], whole[0] + len(whole)))
    if numbers and not (counts and len(whole) == len(numbers)):
        raise DataError(f"{path}: its first line holds {shown(numbers, 2)} where names of columns belong; {fix}")


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
            if any("_" in row[at] for at in read if at != units):  # 1_05 is a number of Python's alone
                raise ValueError
            cells.extend([float(row[at]) if at != units else number_of(row[at]) for at in read])
        except ValueError as error:
            column = next(at for at in read if at != units and as_number(row[at]) is None)
            raise DataError(
                f"{path}: line {line}, column {header[column]!r} holds {row[column]!r}; every cell must be a number, or"
                " say by `schema` what the columns hold (dpltm datasets schema drafts one)"
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
    source: Path | Frame,
    schema: Schema,
    units: str | None = None,
    labelled: bool = True,
    coder: Coder | None = None,
    labels: Sequence[Any] | None = None,
    spare: Sequence[str] = (),
    *,
    marked: bool = False,
) -> RawSplit:
    """Return the records of a table, encoded: features ``(n, schema.features)`` float32 in [0, 1], and classes.

    Args:
        source: a file, or a data frame.
        units: the column of persons, whatever the schema says of it; it is no feature.
        coder: of columns of which something is still to be found; None where that is refused.
        labels: of each record, in the place of the column of labels.
        spare: columns that may be there beside those of the schema.
        marked: as of :func:`encoded`.
    """
    if coder is None:
        schema.check_finished()
    label = schema.label.name if labelled else None
    faults = Faults("record" if isinstance(source, Frame) else "line")
    blocks, whose, told = list[tuple[np.ndarray, ...]](), list[str](), None
    if labels is not None:
        told = iter([text_of(cell) for cell in labels])
    columns, left_out = tuple[str, ...](), tuple[str, ...]()
    for unread, lines, cells in _blocks(source, schema, faults, units, labelled and labels is None, spare):
        if told is not None and label is not None:
            cells[label] = list(itertools.islice(told, len(lines)))
        blocks.append(_encode(schema, cells, label, coder, faults, lines, marked=marked))
        whose += [] if units is None or not labelled else cells[units]
        columns, left_out = tuple(name for name in cells if name != label), tuple(unread)
    if faults.found:
        some = [f"{column or 'whole lines'}: {fault}, {fix}" for column, fault, fix in faults.rows()]
        more = f"; and {len(some) - MOST_FAULTS:,} more" if len(some) > MOST_FAULTS else ""
        raise DataError(
            f"{source}: does not fit its schema: {'; '.join(some[:MOST_FAULTS])}{more} (dpltm datasets schema FILE"
            " `schema` THIS shows all)"
        )
    if not blocks:
        raise DataError(f"{source}: holds no records")
    x, y, full, targets = (np.concatenate(each) for each in zip(*blocks, strict=True))
    return RawSplit(
        x,
        y if labelled else None,
        str(source),
        "the feature table",
        f"column {label!r}",
        None,
        Rows(full, targets, columns, label),  # known under any schema
        np.array(whose) if units is not None and labelled else None,
        units or "",
        left_out=left_out,
    )


def faults_of(source: Path, schema: Schema, units: str | None = None) -> list[tuple[str, str, str]]:
    """Return what of a table does not fit a schema, as rows of column, fault and fix; columns still to be found are free."""
    faults = Faults()
    label = next((column.name for column in schema.columns if column.kind == "label"), None)

    def free(column: Column, cells: list[str], empty: frozenset[str]) -> np.ndarray:
        del column, empty
        return np.zeros(len(cells))

    for _, lines, cells in _blocks(source, schema, faults, units, True):
        _encode(schema, cells, label, free, faults, lines)
    return faults.rows()


def _blocks(
    source: Path | Frame,
    schema: Schema,
    faults: Faults,
    units: str | None,
    labelled: bool,
    spare: Sequence[str] = (),
) -> Iterator[tuple[list[str], list[int], dict[str, list[str]]]]:
    """Yield names of columns that are left out, lines, and cells by column, of some rows that have a cell a column."""
    with comma_separated(source, schema) if isinstance(source, Path) else nullcontext():
        rows = table_rows(source, schema)
        header = next(rows)[1]
        known = {units, *(column.name for column in schema.columns)}
        unread = [*index_columns(header), *(at for at, name in enumerate(header) if name in spare)]
        unread = [at for at in unread if header[at] not in known]
        kept = [at for at in range(len(header)) if at not in unread]
        named, left_out = [header[at] for at in kept], [header[at] for at in unread]
        _check_header(source, schema, named, units, labelled)
        while block := list(itertools.islice(rows, BLOCK)):
            for line, row in block:
                if len(row) != len(header):
                    what = f"{len(row)} cells in place of {len(header)}"
                    faults.add("", what, line, "give every line one cell a column")
            whole = [(line, row) for line, row in block if len(row) == len(header)]
            yield left_out, [line for line, _ in whole], {header[at]: [row[at] for _, row in whole] for at in kept}


def _encode(
    schema: Schema,
    cells: dict[str, list[str]],
    label: str | None,
    coder: Coder | None,
    faults: Faults,
    lines: list[int],
    marked: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features, classes, and all other cells and those of labels as numbers, of some rows."""
    empty, features = frozenset(schema.missing), []
    for column in (column for column in schema.columns if column.features):
        if column.wanted and coder is not None:
            features.append(coder(column, cells[column.name], empty)[:, None])
        else:
            features.append(encoded(column, cells[column.name], empty, faults, lines, marked=marked))
    full = [list(map(number_of, some)) for name, some in cells.items() if name != label]
    told = [] if label is None else cells[label]
    y = np.zeros(len(lines), dtype=np.int64) if label is None else classes_of(schema.label, told, faults, lines)
    numbers = np.array(full, dtype=np.float64).reshape(len(full), len(lines)).T
    return np.concatenate(features, axis=1), y, numbers, np.array(list(map(number_of, told)))


def _check_header(source: Path | Frame, schema: Schema, header: list[str], units: str | None, labelled: bool) -> None:
    """Raise DataError unless a table has the columns of its schema, and the one that says whose each record is."""
    known = {column.name for column in schema.columns}
    spare = set() if labelled else {column.name for column in schema.columns if not column.features}
    lacking = sorted(known - set(header) - spare)
    strange = sorted(set(header) - known - {units})
    twice = sorted({name for name in header if header.count(name) > 1})
    for what, names in (("lacks", lacking), ("has, beside its schema,", strange), ("has twice", twice)):
        if names:
            record = any(as_number(name) is not None for name in header) and names is lacking
            hint = "; or let the schema say header = false, where the first line is a record" if record else ""
            raise DataError(
                f"{source}: {what} the columns {shown(names)}; correct the schema, or the file{hint}{separated(header)}"
            )
    own = next((column for column in schema.columns if column.name == units), None)
    labels = own is not None and own.kind == "label"
    if units is not None and (units not in header or labels) and labelled:
        what = "has its labels in that column" if labels else "has no such column"
        raise DataError(f"`unit_column` {units}: {source} {what}; it has {shown(header)}")
    if own is not None and own.features and not labels:
        raise DataError(f'`unit_column` {units}: is a feature by the schema; give that column kind "ignored"')


def column_names(path: Path, schema: Schema | None = None) -> list[str]:
    """Return the names of the columns of a table."""
    with comma_separated(path, schema or _PLAIN):
        return next(table_rows(path, schema or _PLAIN))[1]


def column_texts(path: Path, name: str, schema: Schema | None = None) -> list[str]:
    """Return the cells of a column, as texts; DataError where a file has no such column, or has no columns."""
    if path.suffix.lower() not in (".csv", ".parquet", ".arrow"):
        raise DataError(f"`id` {name}: {path} is no table and has no columns; leave it out")
    with comma_separated(path, schema or _PLAIN):
        rows = table_rows(path, schema or _PLAIN)
        header = next(rows)[1]
        if header.count(name) != 1:
            what = "has no such column" if name not in header else "has that column more than once"
            raise DataError(f"`id` {name}: {path} {what}; it has {shown(header)}")
        place = header.index(name)
        return [row[place] for _, row in rows]


# drafts of schemas: from names and types of columns alone, or from the values of records declared public

FEW = 64
"""Most different words of a public column that are drafted as categories; others are hashed."""

DRAFTED = """The public schema of {name}: what its columns can hold, and nothing that was read off private records.
kind is number or date, with bounds = [LO, HI]; category, with values = ["A", "B"]; hashed, with buckets = 16 (words are
hashed to so many numbers); label, with classes = ["A", "B"]; or ignored. missing = true where cells may be empty, other =
true where something else may stand in them. What nobody knows stays "?" and "private", for
    dpltm datasets schema {name} --schema THIS --private 0.2 --out FINISHED"""

READ_OFF = "The schema of {name}, read off its records. They were declared public, and cannot be private any more."


def draft(path: Path, known: Schema | None, label: str | None, header: bool, units: str | None = None) -> Schema:
    """Return a schema of all columns of a table, by names and types alone; what nobody says is still to be found.

    Args:
        known: what is known already: of some columns, and of how the table is written.
        header: whether the first line has names.
        units: the column of persons, which is no feature.
    """
    above = _first_known(path, header) if known is None else known
    with comma_separated(path, above):
        names, kinds = _names(path, above), _kinds(path)
    if label is not None and label not in names:
        raise DataError(f"`label` {label}: {path} has no such column; it has {shown(names)}")
    if units is not None and units not in names:
        raise DataError(f"`unit_column` {units}: {path} has no such column; it has {shown(names)}")
    said = {column.name: column for column in above.columns}
    if strange := sorted(set(said) - set(names)):
        raise DataError(f"{path}: lacks the columns {shown(strange)} of the schema; it has {shown(names)}")
    own = next((column.name for column in above.columns if column.kind == "label"), None)
    if label is not None and own not in (None, label):
        raise DataError(f"`label` {label}: the schema says that {own!r} is the label; leave one of them out")

    def column_of(name: str) -> Column:
        if name == label and said.get(name, Column(name, UNKNOWN)).kind != "label":
            return Column(name, "label", wanted=True)
        if name not in said and (name == units or names.index(name) in index_columns(names)):
            return Column(name, "ignored")
        return said.get(name) or Column(name, kinds.get(name, UNKNOWN), wanted=True)

    columns = (replace(column_of(name), decimal=above.decimal, thousands=above.thousands) for name in names)
    return replace(above, columns=tuple(columns), text="")


def _first_known(path: Path, header: bool) -> Schema:
    """Return what a file without a schema is taken for: names, which are public, tell what separates them."""
    above = Schema((), header, MISSING)
    if path.suffix.lower() == ".csv" and header:
        with comma_separated(path):
            first = next(table_rows(path))[1]
        mark = next((each for each in ";\t|" if len(first) == 1 and each in first[0]), ",")
        above = replace(above, separator=mark)
    return above


def read_off(path: Path, schema: Schema) -> Schema:
    """Return a draft with what is still to be found read off records, which were declared public."""
    cells, count = _cells(path, schema)
    columns = (_read_off(one, cells[one.name], count) if one.wanted else one for one in schema.columns)
    return replace(schema, columns=tuple(columns))


def public_records(path: Path, schema: Schema) -> Dataset:
    """Return the records that a schema is read off, so that they are known again."""
    last = next((column.name for column in schema.columns if column.kind == "label"), schema.columns[-1].name)
    classes = tuple((cell,) for cell in _cells(path, schema)[0][last])
    hashed = (Column(one.name, "hashed", buckets=2, missing=True) for one in schema.columns)
    columns = tuple(Column(last, "label", values=classes) if one.name == last else one for one in hashed)
    raw = read_by_schema(path, replace(schema, columns=columns, missing=("",)))
    return settle(path.stem, raw, None, None, ((0.0, 1.0), max(2, len(classes))), ())


def _names(path: Path, schema: Schema) -> list[str]:
    """Return names of columns; of a file without them c1, c2 and so on, where no schema has others."""
    if path.suffix.lower() != ".csv":
        with record_batches(path) as (columns, _, _batches):
            names = list(columns.names)
        lacking = "name of its own for each column"
    else:
        rows = table_rows(path, schema if schema.header else replace(schema, header=True))
        names = next(rows)[1]
        if not schema.header:
            names = [column.name for column in schema.columns] or [f"c{place}" for place in range(1, len(names) + 1)]
        else:
            _check_names(path, names, "say `no_header` where that is a record, or rename those columns")
        lacking = "header with a name for each column; say `no_header`, or name them"
    spare = index_columns(names)
    if not names or len(set(names)) < len(names) or not all(names[at] for at in range(len(names)) if at not in spare):
        raise DataError(f"{path}: has no {lacking}")
    if len(names) == 1:
        raise DataError(f"{path}: has one column alone; records have a label, and something that it is learned from")
    return names


def _kinds(path: Path) -> dict[str, str]:
    """Return kinds by the types of columns, where a file has them: no value is looked at."""
    found: dict[str, str] = {}
    if path.suffix.lower() == ".csv":
        return found
    with record_batches(path) as (schema, _, _batches):
        for name, kind in zip(schema.names, map(str, schema.types), strict=True):
            if kind.startswith(("int", "uint", "float", "double", "half")):
                found[name] = "number"
            elif kind.startswith(("date", "timestamp")):
                found[name] = "date"
            elif kind.startswith(("string", "large_string", "dictionary", "bool")):
                found[name] = "category"
    return found


def _cells(path: Path, schema: Schema) -> tuple[dict[str, list[str]], int]:
    """Return the different cells of each column, and the number of rows."""
    cells: dict[str, dict[str, None]] = {column.name: {} for column in schema.columns}
    count = 0
    with comma_separated(path, schema):
        rows = table_rows(path, schema)
        names = next(rows)[1]
        for line, row in rows:
            if len(row) != len(names):
                raise DataError(f"{path}: line {line} has {len(row)} cells in place of {len(names)}; correct it")
            for name, cell in zip(names, row, strict=True):
                cells[name][cell] = None
            count += 1
    return {name: list(some) for name, some in cells.items()}, count


def _read_off(column: Column, cells: list[str], count: int) -> Column:
    """Return a column with what is still to be found, by its different cells and the number of rows."""
    there = [cell for cell in cells if cell not in MISSING]
    known = replace(column, wanted=False, missing=len(there) < len(cells))
    words = tuple((cell,) for cell in sorted(there))
    if column.kind == "label":
        return replace(column, wanted=False, values=words)
    for kind, each in (("number", [as_number(cell, column) for cell in there]), ("date", list(map(as_days, there)))):
        some = [one for one in each if one is not None and math.isfinite(one)]
        others = len(some) < len(there)
        if some and (column.kind == kind or (column.kind == UNKNOWN and not others)):
            bounds = min(some), max(some) if max(some) > min(some) else min(some) + 1
            return replace(known, kind=kind, bounds=bounds, missing=known.missing or others, other=others)
    if len(there) <= FEW or column.kind == "category":
        return replace(known, kind="category", other=True, values=words)
    if len(there) == count:
        return Column(column.name, "ignored")  # each has its own, as an id
    return replace(known, kind="hashed", buckets=FEW)
