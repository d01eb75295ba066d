"""Tables with named columns: ``.csv``, ``.parquet`` and ``.arrow`` files as arrays, of numbers or by a schema."""

from __future__ import annotations

import codecs
import csv
import functools
import itertools
import json
import math
import mmap
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from dpltm.errors import DataError, first_line
from dpltm.records.cells import Cells, Faults, Line, as_days, as_number, classes_of, encoded, is_numeric, is_text
from dpltm.records.dataset import Dataset, RawSplit
from dpltm.records.frames import Frame
from dpltm.records.input_parts import shown
from dpltm.records.mapped import AT_ONCE, Growing, filled, pieces
from dpltm.records.schema import MISSING, UNKNOWN, Column, Schema
from dpltm.records.settle import settle
from dpltm.records.split import Rows

BLOCK, BLOCK_BYTES = 10_000, 2**22
"""Records that Python reads at once, and bytes of a file that Arrow reads."""

MOST_FAULTS = 6
"""Faults of columns which one message names."""

Coder = Callable[[Column, Cells, frozenset[str]], np.ndarray]
"""Coder of a column of which something is still to be found: one number a record, float64."""

_PLAIN = Schema(())
"""What is meant of a file where no schema says how it is written."""


@dataclass(frozen=True)
class Block:
    """Some records of a table.

    Attributes:
        columns: Arrow arrays of the columns that are read, by their places.
        line: of a record, by its place among these.
        ragged: lines that have not a cell a column, and how many they have.
    """

    columns: dict[int, Any]
    line: Line
    ragged: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return max(map(len, self.columns.values()), default=0)


def header_of(source: Path | Frame, schema: Schema | None = None) -> list[str]:
    """Return the names of the columns of a table; a schema may say them."""
    if isinstance(source, Frame):
        return list(source.names)
    if source.suffix.lower() != ".csv":
        with record_batches(source) as (columns, _):
            return list(columns.names)
    schema = schema or _PLAIN
    if not schema.header:
        return [column.name for column in schema.columns]
    with _rows(source, schema) as rows:
        return [cell.strip() for cell in next(rows, [])]


def blocks(source: Path | Frame, schema: Schema, width: int, read: Sequence[int]) -> Iterator[Block]:
    """Yield the records of a table, some at a time.

    A .csv file is read by Arrow, and by Python as soon as the two might differ.

    Args:
        width: number of all columns; and
        read: places of those that are read.
    """
    start = 0
    if isinstance(source, Frame):
        for rows, columns in source.rows():
            yield Block({at: columns[at] for at in read}, rows.__getitem__)
    elif source.suffix.lower() != ".csv":
        with record_batches(source) as (_, batches):
            for batch in batches:
                lines = range(start + 1, start + 1 + len(batch))
                yield Block({at: batch.column(at) for at in read}, lines.__getitem__)
                start += len(batch)
    else:
        if width > 1 and _read_alike(source, schema):  # of one column, a blank line is no record
            try:
                for block in _by_arrow(source, schema, width, read):
                    yield block
                    start += len(block)
                return
            except pa.ArrowInvalid:  # lines of another width, or what is no UTF-8
                pass
        yield from _by_line(source, schema, width, read, start)


# .csv files


@contextmanager
def _rows(path: Path, schema: Schema) -> Iterator[Any]:
    """Yield Python's reader of a file: what it takes for rows and cells is what a table holds."""
    encoding = "utf-8-sig" if _is_utf8(schema) else schema.encoding
    with path.open(newline="", encoding=encoding) as stream:
        lines = ("" if schema.skip and line.startswith(schema.skip) else line for line in stream)
        try:
            yield csv.reader(lines, strict=True, skipinitialspace=True, delimiter=schema.separator)
        except (UnicodeDecodeError, csv.Error) as error:
            mark = "comma-separated text" if schema.separator == "," else f"text separated by {schema.separator!r}"
            raise DataError(
                f"{path}: is not {mark} in {schema.encoding.upper()} ({first_line(error)}); save it as that, or let its"
                ' schema say encoding = "latin-1" or separator = ";"'
            ) from error


def _is_utf8(schema: Schema) -> bool:
    return codecs.lookup(schema.encoding).name == "utf-8"


@contextmanager
def _numbered(path: Path, schema: Schema, start: int) -> Iterator[Iterator[tuple[int, list[str]]]]:
    """Yield the lines of records, from one of them on, and their cells."""
    with _rows(path, schema) as rows:
        if schema.header:
            next(rows, None)
        records = ((rows.line_num, row) for row in rows if len(row) > 1 or (row and row[0].strip()))
        yield itertools.islice(records, start, None)


def _by_line(path: Path, schema: Schema, width: int, read: Sequence[int], start: int) -> Iterator[Block]:
    """Yield the records of a file from one of them on, by Python's reader."""
    with _numbered(path, schema, start) as records:
        while block := list(itertools.islice(records, BLOCK)):
            full = [row for _, row in block if len(row) == width]
            columns = {at: pa.array([row[at] for row in full], pa.string()) for at in read}
            ragged = tuple((line, len(row)) for line, row in block if len(row) != width)
            yield Block(columns, [line for line, row in block if len(row) == width].__getitem__, ragged)


def _by_arrow(path: Path, schema: Schema, width: int, read: Sequence[int]) -> Iterator[Block]:
    """Yield the same by Arrow's; ArrowInvalid where it cannot."""
    names, start = list(map(str, range(width))), 0

    @functools.lru_cache(maxsize=1)
    def lines(start: int, count: int) -> list[int]:
        with _numbered(path, schema, start) as records:
            return [line for line, _ in itertools.islice(records, count)]

    def line_of(start: int, count: int, row: int) -> int:
        return lines(start, count)[row]

    with arrow_csv.open_csv(
        str(path),
        arrow_csv.ReadOptions(column_names=names, skip_rows_after_names=int(schema.header), block_size=BLOCK_BYTES),
        arrow_csv.ParseOptions(delimiter=schema.separator, newlines_in_values=True),
        arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            strings_can_be_null=False,
            include_columns=list(map(str, read)),
        ),
    ) as batches:
        for batch in batches:
            columns, count = dict(zip(read, batch.columns, strict=True)), len(batch)
            yield Block(columns, functools.partial(line_of, start, count))
            start += len(batch)


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


# files of columns


@contextmanager
def record_batches(path: Path) -> Iterator[tuple[Any, Iterator[Any]]]:
    """Yield the schema of a ``.parquet`` or ``.arrow`` file, and its record batches."""
    with ExitStack() as opened:
        try:
            if path.suffix.lower() == ".parquet":
                table = opened.enter_context(parquet.ParquetFile(path))
                rows = max(1, AT_ONCE // (8 * max(1, len(table.schema_arrow.names))))
                yield table.schema_arrow, table.iter_batches(batch_size=rows)
                return
            file = opened.enter_context(pa.OSFile(str(path)))
            try:
                reader: Any = opened.enter_context(pa.ipc.open_file(file))
                batches: Iterator[Any] = map(reader.get_batch, range(reader.num_record_batches))
            except pa.ArrowInvalid:
                file.seek(0)
                batches = reader = opened.enter_context(pa.ipc.open_stream(file))
            yield reader.schema, batches
        except (pa.ArrowException, UnicodeDecodeError) as error:  # names that are no text
            kind = path.suffix.lower()[1:]
            raise DataError(
                f"{path}: is not a {kind} file that can be read ({first_line(error)}); write it again"
            ) from error


# tables of numbers


def read_table(
    path: Path,
    label: str | None,
    labelled: bool = True,
    units: str | None = None,
    spare: Sequence[str] = (),
) -> RawSplit:
    """Return the records of a table of numbers, in the narrowest type that holds all of them.

    Args:
        labelled: otherwise the column of labels, if one is named, is left out.
        units: the column of persons, in numbers or words; it is no feature.
    """
    header = header_of(path)
    read = _places(path, header, label, labelled, units, spare)
    if path.suffix.lower() == ".csv":
        _check_names(path, header, "add a line of names, or rename those columns")
    columns = [at for at in read if header[at] != label]
    kept = [place for place, at in enumerate(columns) if header[at] != units]
    whose = list[str]()

    def arrays(block: Block) -> list[np.ndarray]:
        for line, count in block.ragged:
            raise DataError(
                f"{path}: line {line} has {count} cells but the header has {len(header)}; give every line one cell a column"
            )
        values = {at: _numbers(path, header[at], block, at, header[at] == units) for at in read}
        if units is not None:
            whose.extend(Cells.of(block.columns[header.index(units)]).records())
        y = values[header.index(label)] if label is not None and labelled else np.empty(len(block))
        return [np.column_stack([values[at] for at in columns]), y]

    x, y = _joined(path, blocks(path, _PLAIN, len(header), read), arrays)
    names = tuple(header[at] for at in columns)
    features = x
    if len(kept) < len(columns):
        features = filled((len(x), len(kept)), x.dtype, (rows[:, kept] for rows in pieces(x)))
        features.flags.writeable = False
    return RawSplit(
        features,
        y if labelled else None,
        str(path),
        "the feature table",
        "no column" if label is None else f"column {label!r}",
        tuple(names[place] for place in kept),
        Rows(x, y if labelled else np.empty(0), names, label),
        None if units is None else np.array(whose),
        units or "units",
        left_out=tuple(header[at] for at in index_columns(header) if at not in read),
    )


def _joined(
    source: Path | Frame, records: Iterator[Block], arrays: Callable[[Block], Sequence[np.ndarray]]
) -> list[np.ndarray]:
    """Return arrays of all records, of those that some have at a time; DataError where there is no record."""
    joined = list[Growing]()
    for block in records:
        some = arrays(block)
        joined = joined or list(map(Growing, some))
        for array, rows in zip(joined, some, strict=True):
            array.add(rows)
    if not joined:
        raise DataError(f"{source}: holds no records")
    return [array.array() for array in joined]


def _numbers(path: Path, name: str, block: Block, at: int, of_persons: bool) -> np.ndarray:
    """Return the numbers in a column of some records, as they are stored; of persons also numbers made of words."""
    column = block.columns[at]
    if column.null_count:
        raise DataError(f"{path}: column {name!r} has nulls; fill them or drop the column")
    if is_numeric(column.type) or pa.types.is_boolean(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    cells = Cells.of(column)
    if not of_persons and path.suffix.lower() == ".csv":
        for row in cells.rows_of(cells.words)[:1]:
            raise DataError(
                f"{path}: line {block.line(row)}, column {name!r} holds {cells.text(row)!r}; every cell must be a number, or"
                " say by `schema` what the columns hold (dpltm datasets schema drafts one)"
            )
    elif not of_persons or not is_text(column.type):
        raise DataError(
            f"{path}: column {name!r} has type {column.type}; every column must be numeric; encode or drop it"
        )
    return cells.numbers


def _places(
    path: Path, header: list[str], label: str | None, labelled: bool, units: str | None, spare: Sequence[str]
) -> list[int]:
    """Return the places of the columns that are read."""
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
    return read


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
    table = _Encoder(source, schema, units, schema.label.name if labelled else None, labels, spare, coder, marked)
    x, y, cells, targets = _joined(source, table.blocks(), table.arrays)
    faults = [f"{column or 'whole lines'}: {fault}, {fix}" for column, fault, fix in table.faults.rows()]
    more = f"; and {len(faults) - MOST_FAULTS:,} more" if len(faults) > MOST_FAULTS else ""
    if faults:
        raise DataError(
            f"{source}: does not fit its schema: {'; '.join(faults[:MOST_FAULTS])}{more} (dpltm datasets schema FILE"
            " `schema` THIS shows all)"
        )
    return RawSplit(
        x,
        y if labelled else None,
        str(source),
        "the feature table",
        f"column {table.label!r}",
        None,
        Rows(cells, targets, tuple(table.columns), table.label),  # known under any schema
        np.array(table.whose) if units is not None and labelled else None,
        units or "",
        left_out=table.left_out,
        schema=schema,
    )


def faults_of(source: Path, schema: Schema, units: str | None = None) -> list[tuple[str, str, str]]:
    """Return what of a table does not fit a schema, as rows of column, fault and fix; columns still to be found are free."""
    label = next((column.name for column in schema.columns if column.kind == "label"), None)
    table = _Encoder(source, schema, units, label, coder=lambda _column, cells, _empty: np.zeros(len(cells)))
    for block in table.blocks():
        table.arrays(block)
    return table.faults.rows()


class _Encoder:
    """Makes arrays of a table by its schema. Arguments as :func:`read_by_schema`; ``label`` None for records without.

    Attributes:
        faults: what did not fit so far; and
        whose: whose the records are.
        columns: names of those that are read, but for the label's.
    """

    def __init__(
        self,
        source: Path | Frame,
        schema: Schema,
        units: str | None,
        label: str | None,
        labels: Sequence[Any] | None = None,
        spare: Sequence[str] = (),
        coder: Coder | None = None,
        marked: bool = False,
    ) -> None:
        self.source, self.schema, self.units, self.label = source, schema, units, label
        self._coder, self._marked, self._done = coder, marked, 0
        self._labels = None if labels is None else Cells.of_objects(list(labels))
        self.faults, self.whose = Faults("record" if isinstance(source, Frame) else "line"), list[str]()
        header = header_of(source, schema)
        known = {units, *(column.name for column in schema.columns)}
        unread = {*index_columns(header), *(at for at, name in enumerate(header) if name in spare)}
        unread -= {at for at in unread if header[at] in known}
        self._width, self._read = len(header), {at: name for at, name in enumerate(header) if at not in unread}
        _check_header(source, schema, list(self._read.values()), units, label is not None and labels is None)
        self.columns = [name for name in self._read.values() if name != label]
        self.left_out = tuple(header[at] for at in sorted(unread))

    def blocks(self) -> Iterator[Block]:
        """Yield the records, some at a time."""
        return blocks(self.source, self.schema, self._width, list(self._read))

    def arrays(self, block: Block) -> list[np.ndarray]:
        """Return features, classes, and all other cells and those of labels as numbers, of some records."""
        schema, hole, empty = self.schema, self.schema.missing[:1], frozenset(self.schema.missing)
        for line, count in block.ragged:
            what = f"{count} cells in place of {self._width}"
            self.faults.add("", what, "give every line one cell a column", int, line)
        cells = {name: Cells.of(block.columns[at], *hole) for at, name in self._read.items()}
        if self._labels is not None and self.label is not None:
            some = slice(self._done, self._done + len(block))
            cells[self.label] = replace(self._labels, codes=self._labels.codes[some])
        self._done += len(block)
        features = [
            self._coder(column, cells[column.name], empty)[:, None]
            if column.wanted and self._coder is not None
            else encoded(column, cells[column.name], empty, self.faults, block.line, marked=self._marked)
            for column in schema.columns
            if column.features
        ]
        y, targets = np.zeros(len(block), dtype=np.int64), np.empty(0)
        if self.label is not None:
            y = classes_of(schema.label, cells[self.label], self.faults, block.line)
            targets = cells[self.label].numbers
        if self.units is not None and self.units in cells:
            self.whose += cells[self.units].records()
        numbers = [np.empty((len(block), 0)), *(cells[name].numbers[:, None] for name in self.columns)]
        return [np.concatenate(features, axis=1), y, np.concatenate(numbers, axis=1), targets]


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
    header = header_of(path, schema)
    if header.count(name) != 1:
        what = "has no such column" if name not in header else "has that column more than once"
        raise DataError(f"`id` {name}: {path} {what}; it has {shown(header)}")
    at = header.index(name)
    records = blocks(path, schema or _PLAIN, len(header), [at])
    return [text for block in records for text in Cells.of(block.columns[at]).records()]


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
    above = Schema((), header, MISSING) if known is None else known
    if known is None and header and path.suffix.lower() == ".csv" and len(first := header_of(path)) == 1:
        above = replace(above, separator=next((mark for mark in ";\t|" if mark in first[0]), ","))  # names are public
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
    return settle(path.stem, raw)


def _names(path: Path, schema: Schema) -> list[str]:
    """Return names of columns; of a file without them c1, c2 and so on, where no schema has others."""
    names, lacking = header_of(path, replace(schema, header=True)), "name of its own for each column"
    if path.suffix.lower() == ".csv":
        lacking = "header with a name for each column; say `no_header`, or name them"
        if schema.header:
            _check_names(path, names, "say `no_header` where that is a record, or rename those columns")
        else:
            names = [column.name for column in schema.columns] or [f"c{place}" for place in range(1, len(names) + 1)]
    spare = index_columns(names)
    if not names or len(set(names)) < len(names) or not all(names[at] for at in range(len(names)) if at not in spare):
        raise DataError(f"{path}: has no {lacking}")
    if len(names) == 1:
        raise DataError(f"{path}: has one column alone; records have a label, and something that it is learned from")
    return names


def _kinds(path: Path) -> dict[str, str]:
    """Return kinds by the types of columns, where a file has them: no value is looked at."""
    if path.suffix.lower() == ".csv":
        return {}
    kinds = {"number": is_numeric, "category": lambda kind: is_text(kind) or pa.types.is_boolean(kind)}
    kinds["date"] = lambda kind: pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    with record_batches(path) as (schema, _):
        types = zip(schema.names, schema.types, strict=True)
        return {name: kind for name, type_ in types for kind, is_kind in kinds.items() if is_kind(type_)}


def _cells(path: Path, schema: Schema) -> tuple[dict[str, list[str]], int]:
    """Return the different cells of each column, and the number of rows."""
    names, count = header_of(path, schema), 0
    cells: dict[str, dict[str, None]] = {name: {} for name in names}
    for block in blocks(path, schema, len(names), range(len(names))):
        for line, width in block.ragged:
            raise DataError(f"{path}: line {line} has {width} cells in place of {len(names)}; correct it")
        for at, column in block.columns.items():
            cells[names[at]].update(dict.fromkeys(Cells.of(column, *schema.missing[:1]).texts))
        count += len(block)
    return {name: list(some) for name, some in cells.items()}, count


def _read_off(column: Column, cells: list[str], count: int) -> Column:
    """Return a column with what is still to be found, by its different cells and the number of rows."""
    there = [cell for cell in cells if cell not in MISSING]
    known = replace(column, wanted=False, missing=len(there) < len(cells))
    words = tuple((cell,) for cell in sorted(there))
    if column.kind == "label":
        return replace(column, wanted=False, values=words)
    for kind, parse in (("number", lambda cell: as_number(cell, column)), ("date", as_days)):
        some = [value for value in map(parse, there) if value is not None and math.isfinite(value)]
        others = len(some) < len(there)
        if some and (column.kind == kind or (column.kind == UNKNOWN and not others)):
            bounds = min(some), max(some) if max(some) > min(some) else min(some) + 1
            return replace(known, kind=kind, bounds=bounds, missing=known.missing or others, other=others)
    if len(there) <= FEW or column.kind == "category":
        return replace(known, kind="category", other=True, values=words)
    if len(there) == count:
        return Column(column.name, "ignored")  # each has its own, as an id
    return replace(known, kind="hashed", buckets=FEW)
