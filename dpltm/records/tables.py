"""Tables with named columns: ``.csv``, ``.parquet`` and ``.arrow`` files as arrays, of numbers or by a schema."""

from __future__ import annotations

import codecs
import csv
import itertools
import json
import math
import mmap
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from dpltm.errors import DataError, first_line
from dpltm.records.cells import (
    Cells,
    Faults,
    Lines,
    LineWanted,
    as_days,
    as_number,
    classes_of,
    encoded,
    first_of,
)
from dpltm.records.dataset import Dataset, RawSplit, Rows
from dpltm.records.frames import Frame
from dpltm.records.input_parts import shown
from dpltm.records.mapped import AT_ONCE, filled, let_go, pieces, room_for
from dpltm.records.schema import MISSING, UNKNOWN, Column, Schema
from dpltm.records.settle import settle

BLOCK, BLOCK_BYTES = 10_000, 2**22
"""Records that are read at once line by line, and bytes of a file that Arrow reads."""

MOST_FAULTS = 6
"""Faults of columns which one message names."""

Coder = Callable[[Column, Cells, frozenset[str]], np.ndarray]
"""Coder of a column of which something is still to be found: one number a record, float64."""

T = TypeVar("T")

_PLAIN = Schema(())
"""What is meant of a file where no schema says how it is written."""


@dataclass(frozen=True)
class Block:
    """Some records of a table.

    Attributes:
        lines: on which each stands; None where nobody counted.
        cells: of the columns that are read, by their places.
        ragged: lines that have not a cell a column, and how many they have.
    """

    lines: Lines
    cells: dict[int, Cells]
    ragged: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return max((len(cells) for cells in self.cells.values()), default=0)


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


def header_of(source: Path | Frame, schema: Schema | None = None) -> list[str]:
    """Return the names of the columns of a table; a schema may say them."""
    if isinstance(source, Frame):
        return list(source.names)
    if source.suffix.lower() != ".csv":
        with record_batches(source) as (columns, _, _batches):
            return list(columns.names)
    schema = schema or _PLAIN
    if not schema.header:
        return [column.name for column in schema.columns]
    with comma_separated(source, schema), _rows(source, schema) as rows:
        return [cell.strip() for cell in next(rows, [])]


@contextmanager
def _rows(path: Path, schema: Schema) -> Iterator[Any]:
    """Yield Python's reader of a .csv file: what it takes for rows and cells is what a table holds."""
    encoding = "utf-8-sig" if _is_utf8(schema) else schema.encoding
    with path.open(newline="", encoding=encoding) as stream:
        lines = ("" if schema.skip and line.startswith(schema.skip) else line for line in stream)
        yield csv.reader(lines, strict=True, skipinitialspace=True, delimiter=schema.separator)


def _is_utf8(schema: Schema) -> bool:
    return codecs.lookup(schema.encoding).name == "utf-8"


def from_blocks(
    source: Path | Frame,
    schema: Schema,
    header: Sequence[str],
    read: Sequence[int],
    make: Callable[[Iterator[Block]], T],
) -> T:
    """Return what is made of the records of a table, some at a time.

    A .csv file is read by Arrow, and by Python where the two might differ or a message has to name a line.

    Args:
        read: places of the columns that are read.
        make: called once more if it, or Arrow, raises LineWanted.
    """
    hole = schema.missing[0] if schema.missing else ""
    if isinstance(source, Frame):
        some = source.rows()
        return make(Block(rows, {at: Cells.of_objects(columns[at], hole) for at in read}) for rows, columns in some)
    if source.suffix.lower() != ".csv":
        with record_batches(source) as (_, _, batches):
            return make(_of_batches(batches(), read, hole))
    if len(header) > 1 and _read_alike(source, schema):  # of one column, a blank line is none
        try:
            return make(_by_arrow(source, schema, len(header), read))
        except (pa.ArrowInvalid, LineWanted):
            pass
    with comma_separated(source, schema):
        return make(_by_line(source, schema, len(header), read))


def _of_batches(batches: Iterator[Any], read: Sequence[int], hole: str) -> Iterator[Block]:
    start = 1
    for batch in batches:
        yield Block(range(start, start + batch.num_rows), {at: Cells.of(batch.column(at), hole) for at in read})
        start += batch.num_rows


def _read_alike(path: Path, schema: Schema) -> bool:
    """Return whether Arrow finds the cells in a file that Python finds, if it finds as many in each line.

    They differ on quotes that stand behind a blank, or close before a cell ends, or never. Arrow reads one-byte separators,
    and drops no lines.
    """
    mark = schema.separator
    if schema.skip or not _is_utf8(schema) or not mark.isascii() or mark == " ":
        return False
    with path.open("rb") as stream:
        quoted, start = False, stream.read(4)
        if start == codecs.BOM_UTF8 + b'"':
            return False
        stream.seek(0)
        while not quoted and (piece := stream.read(AT_ONCE)):
            quoted = b'"' in piece
        if not quoted:
            return True
        ends = rb"[^\r\n" + re.escape(mark.encode())
        cells = rb'[^"]++|(?<!%b])"(?:[^"]++|"")*+"(?!%b])|(?<=%b "])"' % (ends, ends, ends)
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as body:
            return re.fullmatch(rb"(?:%b)*+" % cells, body) is not None


def _by_arrow(path: Path, schema: Schema, width: int, read: Sequence[int]) -> Iterator[Block]:
    """Yield the records of a .csv file; ArrowInvalid for lines of another width, or what is no UTF-8."""
    names, wanted = list(map(str, range(width))), list(map(str, read))
    with arrow_csv.open_csv(
        str(path),
        arrow_csv.ReadOptions(column_names=names, skip_rows_after_names=int(schema.header), block_size=BLOCK_BYTES),
        arrow_csv.ParseOptions(delimiter=schema.separator, newlines_in_values=True),
        arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False, include_columns=wanted
        ),
    ) as batches:
        for batch in batches:
            yield Block(None, {at: Cells.of(column) for at, column in zip(read, batch.columns, strict=True)})


def _by_line(path: Path, schema: Schema, width: int, read: Sequence[int]) -> Iterator[Block]:
    """Yield the same by Python's reader, and the lines."""
    with _rows(path, schema) as rows:
        if schema.header:
            next(rows, None)
        numbered = ((rows.line_num, row) for row in rows if len(row) > 1 or (row and row[0].strip()))
        while block := list(itertools.islice(numbered, BLOCK)):
            full = [(line, row) for line, row in block if len(row) == width]
            cells = {at: Cells.of(pa.array([row[at] for _, row in full], pa.string())) for at in read}
            ragged = tuple((line, len(row)) for line, row in block if len(row) != width)
            yield Block([line for line, _ in full], cells, ragged)


# files of columns

Opened = tuple[Any, int, Callable[[], Iterator[Any]]]
"""The schema of a file, its number of rows, and its record batches."""


@contextmanager
def record_batches(path: Path) -> Iterator[Opened]:
    """Yield the schema of a ``.parquet`` or ``.arrow`` file, its number of rows, and what iterates over its batches."""
    with ExitStack() as opened:
        try:
            yield (_parquet if path.suffix.lower() == ".parquet" else _arrow)(path, opened)
        except (pa.ArrowException, UnicodeDecodeError) as error:  # names that are no text
            raise DataError(
                f"{path}: is not a {path.suffix.lower()[1:]} file that can be read ({first_line(error)}); write it again"
            ) from error


def _parquet(path: Path, opened: ExitStack) -> Opened:
    file = opened.enter_context(parquet.ParquetFile(path))
    rows = max(1, AT_ONCE // (8 * max(1, len(file.schema_arrow.names))))
    return file.schema_arrow, file.metadata.num_rows, lambda: file.iter_batches(batch_size=rows)


def _arrow(path: Path, opened: ExitStack) -> Opened:
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
    header, csv_file = header_of(path), path.suffix.lower() == ".csv"
    position, whose, read = _positions(path, header, label, labelled, units, spare)
    columns = [at for at in read if at != position]
    if csv_file:
        _check_names(path, header, "add a line of names, or rename those columns")
        x, y, names = _numbers(path, header, read, columns, whose)
    else:
        with record_batches(path) as (schema, count, batches):
            x, y, names = _filled(path, schema, count, batches, position, whose, read)
    y = y if labelled else None
    all_names = tuple(header[at] for at in columns)
    label_name = None if position is None else header[position]
    kept = [place for place, at in enumerate(columns) if at != whose]
    return RawSplit(
        x if len(kept) == len(columns) else _picked(x, kept),
        y,
        str(path),
        "the feature table",
        "no column" if label_name is None else f"column {label_name!r}",
        tuple(all_names[place] for place in kept),
        Rows(x, np.empty(0) if y is None else y, all_names, label_name),
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


def _numbers(
    path: Path, header: list[str], read: list[int], columns: list[int], units: int | None
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return columns as doubles, that of the labels apart; and whose the records are."""
    label = [at for at in read if at not in columns]

    def make(blocks: Iterator[Block]) -> tuple[list[np.ndarray], list[np.ndarray], list[str]]:
        features, labels, whose = list[np.ndarray](), list[np.ndarray](), list[str]()
        for block in blocks:
            _check_numbers(path, header, block, units)
            features.append(np.column_stack([block.cells[at].numbers for at in columns]))
            labels += [block.cells[at].numbers for at in label]
            whose += [] if units is None else block.cells[units].records()
        return features, labels, whose

    features, labels, whose = from_blocks(path, _PLAIN, header, read, make)
    x = _joined(features, (len(columns),), np.float64)
    return x, _joined(labels, (), np.float64), whose


def _check_numbers(path: Path, header: list[str], block: Block, units: int | None) -> None:
    """Raise DataError for the first line that has not one number a column."""
    wrong = {
        line: f"has {count} cells but the header has {len(header)}; give every line one cell a column"
        for line, count in block.ragged[:1]
    }
    for at, cells in block.cells.items():
        if at != units and len(words := cells.words()):
            line, cell = first_of(cells, words, block.lines)
            wrong.setdefault(
                line,
                f"column {header[at]!r} holds {cell!r}; every cell must be a number, or say by `schema` what the columns"
                " hold (dpltm datasets schema drafts one)",
            )
    if wrong:
        line = min(wrong)
        raise DataError(f"{path}: line {line}{' ' if wrong[line].startswith('has') else ', '}{wrong[line]}")


def _joined(parts: list[np.ndarray], shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Return parts as one array, ``(n, *shape)``, and let go of each in turn."""
    parts.reverse()
    return filled((sum(map(len, parts)), *shape), dtype, (parts.pop() for _ in range(len(parts))))


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
            cells = Cells.of(batch.column(at)) if at == units else None
            whose += [] if cells is None else map(str, batch.column(at).to_pylist())
            x[rows, place] = batch.column(at).to_numpy(zero_copy_only=False) if cells is None else cells.numbers
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
    names, read, left_out = _columns(source, schema, units, labelled and labels is None, spare)
    label = schema.label.name if labelled else None
    columns = [name for name in read.values() if name != label]
    told = None if labels is None else Cells.of_objects(list(labels))

    def make(blocks: Iterator[Block]) -> tuple[list[list[np.ndarray]], list[str]]:
        faults = Faults("record" if isinstance(source, Frame) else "line")
        parts, whose, done = [list[np.ndarray]() for _ in range(4)], list[str](), 0
        for block in blocks:
            cells = _by_name(block, names, read, faults)
            if told is not None and label is not None:
                cells[label] = replace(told, codes=told.codes[done : done + len(block)])
            done += len(block)
            x = _features(schema, cells, coder, faults, block.lines, marked)
            full = np.column_stack([np.empty((len(block), 0)), *(cells[name].numbers for name in columns)])
            y = np.zeros(len(block), dtype=np.int64), np.empty(0)
            if label is not None:
                y = classes_of(schema.label, cells[label], faults, block.lines), cells[label].numbers
            for part, some in zip(parts, (x, y[0], full, y[1]), strict=True):
                part.append(some)
            whose += [] if units is None or not labelled else cells[units].records()
        _refuse(source, faults)
        return parts, whose

    parts, whose = from_blocks(source, schema, names, list(read), make)
    if not parts[0]:
        raise DataError(f"{source}: holds no records")
    shapes = ((schema.features,), np.float32), ((), np.int64), ((len(columns),), np.float64), ((), np.float64)
    x, y, full, targets = (_joined(part, *shape) for part, shape in zip(parts, shapes, strict=True))
    return RawSplit(
        x,
        y if labelled else None,
        str(source),
        "the feature table",
        f"column {label!r}",
        None,
        Rows(full, targets, tuple(columns), label),  # known under any schema
        np.array(whose) if units is not None and labelled else None,
        units or "",
        left_out=left_out,
    )


def _refuse(source: Path | Frame, faults: Faults) -> None:
    """Raise DataError if something of a table does not fit its schema."""
    some = [f"{column or 'whole lines'}: {fault}, {fix}" for column, fault, fix in faults.rows()]
    more = f"; and {len(some) - MOST_FAULTS:,} more" if len(some) > MOST_FAULTS else ""
    if some:
        raise DataError(
            f"{source}: does not fit its schema: {'; '.join(some[:MOST_FAULTS])}{more} (dpltm datasets schema FILE"
            " `schema` THIS shows all)"
        )


def faults_of(source: Path, schema: Schema, units: str | None = None) -> list[tuple[str, str, str]]:
    """Return what of a table does not fit a schema, as rows of column, fault and fix; columns still to be found are free."""
    names, read, _ = _columns(source, schema, units, True)

    def make(blocks: Iterator[Block]) -> list[tuple[str, str, str]]:
        faults = Faults()
        for block in blocks:
            cells = _by_name(block, names, read, faults)
            _features(schema, cells, lambda _column, cells, _empty: np.zeros(len(cells)), faults, block.lines)
            for column in (column for column in schema.columns if column.kind == "label"):
                classes_of(column, cells[column.name], faults, block.lines)
        return faults.rows()

    return from_blocks(source, schema, names, list(read), make)


def _columns(
    source: Path | Frame, schema: Schema, units: str | None, labelled: bool, spare: Sequence[str] = ()
) -> tuple[list[str], dict[int, str], tuple[str, ...]]:
    """Return all names of columns, those that are read by their places, and those that are left out; they fit the schema."""
    header = header_of(source, schema)
    known = {units, *(column.name for column in schema.columns)}
    unread = [*index_columns(header), *(at for at, name in enumerate(header) if name in spare)]
    unread = [at for at in unread if header[at] not in known]
    read = {at: name for at, name in enumerate(header) if at not in unread}
    _check_header(source, schema, list(read.values()), units, labelled)
    return header, read, tuple(header[at] for at in unread)


def _by_name(block: Block, header: list[str], read: dict[int, str], faults: Faults) -> dict[str, Cells]:
    """Return the cells of a block by column; what is ragged is at fault."""
    for line, count in block.ragged:
        what = f"{count} cells in place of {len(header)}"
        faults.add("", what, line, "give every line one cell a column")
    return {name: block.cells[at] for at, name in read.items()}


def _features(
    schema: Schema, cells: dict[str, Cells], coder: Coder | None, faults: Faults, lines: Lines, marked: bool = False
) -> np.ndarray:
    """Return the features of some records, ``(n, schema.features)``."""
    empty, features = frozenset(schema.missing), []
    for column in (column for column in schema.columns if column.features):
        if column.wanted and coder is not None:
            features.append(coder(column, cells[column.name], empty)[:, None])
        else:
            features.append(encoded(column, cells[column.name], empty, faults, lines, marked=marked))
    return np.concatenate(features, axis=1)


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


def column_texts(path: Path, name: str, schema: Schema | None = None) -> list[str]:
    """Return the cells of a column, as texts; DataError where a file has no such column, or has no columns."""
    if path.suffix.lower() not in (".csv", ".parquet", ".arrow"):
        raise DataError(f"`id` {name}: {path} is no table and has no columns; leave it out")
    known = schema or _PLAIN
    header = header_of(path, known)
    if header.count(name) != 1:
        what = "has no such column" if name not in header else "has that column more than once"
        raise DataError(f"`id` {name}: {path} {what}; it has {shown(header)}")
    place = header.index(name)

    def make(blocks: Iterator[Block]) -> list[str]:
        return [text for block in blocks for text in block.cells[place].records()]

    return from_blocks(path, known, header, [place], make)


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
        first = header_of(path)
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
    names = header_of(path, replace(schema, header=True))
    if path.suffix.lower() != ".csv":
        lacking = "name of its own for each column"
    else:
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
    names = header_of(path, schema)

    def make(blocks: Iterator[Block]) -> tuple[dict[str, list[str]], int]:
        cells: dict[str, dict[str, None]] = {name: {} for name in names}
        count = 0
        for block in blocks:
            for line, width in block.ragged:
                raise DataError(f"{path}: line {line} has {width} cells in place of {len(names)}; correct it")
            for at, some in block.cells.items():
                cells[names[at]].update(dict.fromkeys(some.texts))
            count += len(block)
        return {name: list(some) for name, some in cells.items()}, count

    return from_blocks(path, schema, names, list(range(len(names))), make)


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
