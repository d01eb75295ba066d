"""Tables as arrays, of numbers or by a schema: ``.csv``, ``.parquet`` and ``.arrow`` files, and data frames."""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import itertools
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from dpltm.errors import DataError, first_line
from dpltm.records.cells import Cells, Faults, as_column, classes_of, encoded, is_numeric, is_text
from dpltm.records.dataset import Dataset, RawSplit
from dpltm.records.encode import as_days, as_number, rows_of, separator_of
from dpltm.records.files import TABLES, stem_of, suffix_of
from dpltm.records.input_parts import name_faults, shown
from dpltm.records.schema import MISSING, NO_SCHEMA, UNKNOWN, Column, Schema, label_column
from dpltm.records.settle import settle
from dpltm.records.split import AT_ONCE, Rows

BLOCK, BLOCK_BYTES = 10_000, 2**22
"""Records that Python reads at once, and bytes of a file that Arrow reads."""

MOST_FAULTS = 6
"""Faults of columns which one message names."""

Coder = Callable[[Column, Cells, frozenset[str]], np.ndarray]
"""Coder of a column of which something is still to be found: one number a record, float64."""


@dataclass(frozen=True)
class Block:
    """Some records of a table.

    Attributes:
        columns: Arrow arrays of the columns that are read, by their places.
        records: their numbers in the table, from 0.
    """

    columns: dict[int, Any]
    records: range

    def __len__(self) -> int:
        return len(self.records)


def is_frame(values: object) -> bool:
    """Tell whether an argument is a data frame: a table whose columns have names."""
    return hasattr(values, "columns") and hasattr(values, "shape") and not isinstance(values, np.ndarray)


def _as_arrow(column: Any) -> Any:
    plain = np.asarray(column)
    return pa.array(plain, from_pandas=True) if plain.dtype.kind in "biuf" else as_column(column.to_list())


@dataclass(frozen=True)
class Table:
    """A table: its columns, and its records some at a time.

    Attributes:
        source: the path of a file, or a data frame of pandas or polars.
        schema: how a ``.csv`` file is written; cells of a ``.tsv`` file are between tabs where it does not say otherwise.
        name: what messages call a data frame.
    """

    source: Any
    schema: Schema = NO_SCHEMA
    name: str = ""

    def __post_init__(self) -> None:
        if self.path is not None:
            mark = separator_of(self.path, self.schema.separator)
            object.__setattr__(self, "schema", replace(self.schema, separator=mark))

    def __str__(self) -> str:
        return self.name or str(self.source)

    @property
    def is_frame(self) -> bool:
        return not isinstance(self.source, Path)

    @property
    def path(self) -> Path | None:
        """Of a ``.csv`` file; None of other tables."""
        return self.source if not self.is_frame and suffix_of(self.source) == ".csv" else None

    @cached_property
    def names(self) -> list[str]:
        """Names of the columns; a schema may say them, and else a file without a header has c1, c2 and so on."""
        if self.is_frame:
            return list(map(str, self.source.columns))
        if self.path is None:
            with record_batches(self.source) as (columns, _):
                return list(columns.names)
        if not self.schema.header and self.schema.columns:
            return [column.name for column in self.schema.columns]
        with _rows(self.path, self.schema) as rows:
            cells = [cell.strip() for cell in next(rows, [])]
        return cells if self.schema.header else [f"c{place}" for place in range(1, len(cells) + 1)]

    def place(self, name: str, option: str) -> int:
        """Return the place of a column that an option names; DataError where it is not there, or twice."""
        if (count := self.names.count(name)) != 1:
            what = "has that column more than once" if count else "has no such column"
            raise DataError(f"`{option}` {name}: {self} {what}; it has {shown(self.names) or 'none'}")
        return self.names.index(name)

    def blocks(self, read: Sequence[int]) -> Iterator[Block]:
        """Yield the records, some at a time, with the columns at some places.

        A .csv file is read by Arrow, and by Python as soon as the two might differ.
        """
        start = 0
        if self.is_frame:
            keys, count = list(self.source.columns), int(self.source.shape[0])
            for start in range(0, count, BLOCK):
                columns = {at: _as_arrow(self.source[keys[at]][start : start + BLOCK]) for at in read}
                yield Block(columns, range(start, min(start + BLOCK, count)))
        elif self.path is None:
            with record_batches(self.source) as (_, batches):
                for batch in batches:
                    yield Block({at: batch.column(at) for at in read}, range(start, start + len(batch)))
                    start += len(batch)
        else:
            if len(self.names) > 1 and _read_alike(self.path, self.schema):  # of one column, a blank line is no record
                try:
                    for block in _by_arrow(self, self.path, read):
                        yield block
                        start += len(block)
                    return
                except pa.ArrowInvalid:  # lines of another width, or what is no UTF-8
                    pass
            yield from _by_line(self, self.path, read, start)

    def joined(self, read: Sequence[int], arrays: Callable[[Block], Sequence[np.ndarray]]) -> list[np.ndarray]:
        """Return arrays of all records, of those that some have at a time; DataError where there is no record."""
        joined = list[np.ndarray]()
        for block in self.blocks(read):
            parts = arrays(block)
            joined = joined or [np.empty((0, *part.shape[1:]), part.dtype) for part in parts]
            for at, part in enumerate(parts):
                done = len(joined[at])
                dtype = np.promote_types(joined[at].dtype, part.dtype)
                joined[at] = joined[at].astype(dtype, copy=False)
                joined[at].resize((done + len(part), *part.shape[1:]), refcheck=False)  # no piece is there twice
                joined[at][done:] = part
        if not joined:
            raise DataError(f"{self}: holds no records")
        for array in joined:
            array.flags.writeable = False
        return joined


# .csv files


@contextmanager
def _rows(path: Path, schema: Schema) -> Iterator[Iterator[list[str]]]:
    """Yield the cells of each line of a file that is not blank (see ``encode.rows_of``)."""
    try:
        with rows_of(path, schema.skip, schema.separator, schema.encoding) as rows:
            yield (row for _, row in rows)
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path}: is not text in {schema.encoding.upper()} separated by {schema.separator!r} ({first_line(error)}); save"
            ' it as that, or let its schema say encoding = "latin-1" or separator = ";"'
        ) from error


def _by_line(table: Table, path: Path, read: Sequence[int], start: int) -> Iterator[Block]:
    """Yield the records of a file from one of them on, by Python's reader."""
    width = len(table.names)
    with _rows(path, table.schema) as rows:
        records = itertools.islice(rows, start + table.schema.header, None)
        while block := list(itertools.islice(records, BLOCK)):
            for record, row in enumerate(block, start):
                if len(row) != width:
                    raise DataError(
                        f"{path}: record {record} (from 0) has {len(row)} cells for {width} columns; mend it"
                    )
            columns = {at: pa.array([row[at] for row in block], pa.string()) for at in read}
            yield Block(columns, range(start, start + len(block)))
            start += len(block)


def _by_arrow(table: Table, path: Path, read: Sequence[int]) -> Iterator[Block]:
    """Yield the same by Arrow's; ArrowInvalid where it cannot."""
    names, schema, start = list(map(str, range(len(table.names)))), table.schema, 0
    with arrow_csv.open_csv(
        str(path),
        arrow_csv.ReadOptions(column_names=names, skip_rows_after_names=int(schema.header), block_size=BLOCK_BYTES),
        arrow_csv.ParseOptions(delimiter=schema.separator),
        arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            strings_can_be_null=False,
            include_columns=list(map(str, read)),
        ),
    ) as batches:
        for batch in batches:
            yield Block(dict(zip(read, batch.columns, strict=True)), range(start, start + len(batch)))
            start += len(batch)


def _read_alike(path: Path, schema: Schema) -> bool:
    """Return whether Arrow finds the cells in a file that Python finds, if it finds as many in each line.

    They may differ on quotes, and on blank lines above the header. Arrow reads one-byte separators, and drops no lines.
    """
    mark = schema.separator
    utf8 = codecs.lookup(schema.encoding).name == "utf-8"
    if schema.skip or not utf8 or not mark.isascii() or mark == " " or path.suffix.lower() == ".gz":
        return False
    with path.open("rb") as stream:
        begin = stream.read(AT_ONCE)
        rest = iter(lambda: stream.read(AT_ONCE), b"")
        blank = begin.decode(errors="replace").removeprefix("\ufeff")[:1].isspace()
        return not blank and not any(b'"' in piece for piece in itertools.chain([begin], rest))


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
            raise DataError(f"{path}: is not a {kind} file that can be read ({first_line(error)})") from error


# tables of numbers


def read_table(
    table: Table, label: str | None, labelled: bool = True, units: str | None = None, spare: Sequence[str] = ()
) -> RawSplit:
    """Return the records of a table of numbers, in the narrowest type that holds all of them.

    Args:
        labelled: otherwise the column of labels, if one is named, is left out.
        units: the column of persons, in numbers or words; it is no feature.
        spare: columns that may be there, and are no features.
    """
    names, whose = table.names, list[str]()
    left_out, columns = _features(table, label, labelled, units, spare)
    _check_names(table, "add a line of names, or rename those columns")
    at_label = names.index(label) if label is not None and labelled else None

    def arrays(block: Block) -> list[np.ndarray]:
        if units is not None:
            whose.extend(Cells.of(block.columns[names.index(units)]).records())
        x = np.column_stack([_numbers(table, block, at, names[at] == units) for at in columns])
        return [x, np.empty(len(block)) if at_label is None else _numbers(table, block, at_label)]

    x, y = table.joined(columns if at_label is None else [*columns, at_label], arrays)
    features = [place for place, at in enumerate(columns) if names[at] != units]
    cells = x
    if len(features) < len(columns):
        x = np.ascontiguousarray(x[:, features])
        x.flags.writeable = False
    read = tuple(names[at] for at in columns)
    return RawSplit(
        x,
        y if labelled else None,
        str(table),
        "the feature table",
        "no column" if label is None else f"column {label!r}",
        tuple(read[place] for place in features),
        Rows(cells, y if labelled else np.empty(0), read, label),
        None if units is None else np.array(whose),
        units or "units",
        left_out=tuple(names[at] for at in left_out),
    )


def _numbers(table: Table, block: Block, at: int, of_persons: bool = False) -> np.ndarray:
    """Return the numbers in a column of some records, as they are stored; of persons also numbers made of words."""
    column, name = block.columns[at], table.names[at]
    if column.null_count:
        raise DataError(f"{table}: column {name!r} has nulls; fill them or drop the column")
    if is_numeric(column.type) or pa.types.is_boolean(column.type):
        # a column of objects may hold numbers of several types
        mixed = table.is_frame and getattr(table.source[table.source.columns[at]].dtype, "kind", "") == "O"
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64 if mixed else None)
    cells = Cells.of(column)
    text = table.path is not None or (of_persons and is_text(column.type))
    wrong = () if of_persons and text else cells.rows_of(cells.words) if text else range(len(block))
    for row in wrong[:1]:
        raise DataError(
            f"{table}: record {block.records[row]} (from 0), column {name!r} holds {cells.text(row)!r}, which is no number;"
            " say by `schema` what the columns hold (dpltm datasets schema drafts one)"
        )
    return cells.numbers


def _features(
    table: Table, label: str | None, labelled: bool, units: str | None, spare: Sequence[str]
) -> tuple[list[int], list[int]]:
    """Return the places of row numbers that are left out, and of the columns that are read, but for the label's."""
    names = table.names
    if label is None and labelled:
        raise DataError(f"{table}: needs `label` COLUMN to name the label column; it has {shown(names)}")
    for option, name in (("label", label), ("unit_column", units)):
        if name is not None:
            table.place(name, option)
    if units is not None and units == label:
        raise DataError(f"`unit_column` {units}: {table} has its labels in that column; it has {shown(names)}")
    left_out = [at for at in index_columns(names) if names[at] not in (label, units)]
    read = [at for at, name in enumerate(names) if at not in left_out and name != label and name not in spare]
    if not any(names[at] != units for at in read):
        raise DataError(f"{table}: has no column of features; it has {shown(names)}")
    return left_out, read


def index_columns(header: Sequence[str]) -> list[int]:
    """Return the places of columns that are row numbers by their names, as pandas writes them; no cell is looked at."""
    return [
        at for at, name in enumerate(header)
        if re.fullmatch(r"Unnamed: 0(\.\d+)?|__index_level_\d+__", name) or (at == 0 and not name.strip())
    ]  # fmt: skip


def _check_names(table: Table, fix: str) -> None:
    """Raise DataError for a first line that may be a record, which would be lost, and for two columns of one name."""
    names = table.names
    if table.path is not None and table.schema.header:
        numbers = [name for name in names if as_number(name) is not None or as_days(name) is not None]
        start = int(numbers[0]) if numbers and numbers[0].isdecimal() and len(numbers[0]) < 10 else 0
        counts = len(names) > 2 and len(numbers) > 1 and numbers == [str(start + at) for at in range(len(numbers))]
        if numbers and not counts:  # names may be numbers that count
            raise DataError(f"{table}: its first line holds {shown(numbers, 2)} where names of columns belong; {fix}")
    if twice := sorted({name for name in names if names.count(name) > 1}):  # whatever goes by names later would fail
        raise DataError(f"{table}: has twice the columns {shown(twice)}; rename one of them")


# tables with a schema


def read_by_schema(
    table: Table,
    units: str | None = None,
    labelled: bool = True,
    coder: Coder | None = None,
    labels: Sequence[Any] | None = None,
    spare: Sequence[str] = (),
) -> RawSplit:
    """Return the records of a table, encoded (see :func:`encoded`): features ``(n, schema.features)`` float32, and classes.

    Args:
        table: with its schema.
        units: the column of persons, whatever the schema says of it; it is no feature.
        coder: of columns of which something is still to be found; None where that is refused.
        labels: of each record, in the place of the column of labels.
        spare: columns that may be there beside those of the schema.
    """
    schema = table.schema
    if coder is None:
        schema.check_finished()
    label = schema.label.name if labelled else None
    named = {units, *(column.name for column in schema.columns)}
    passed = {*index_columns(table.names), *(at for at, name in enumerate(table.names) if name in spare)}
    read = {at: name for at, name in enumerate(table.names) if name in named or at not in passed}
    _check_header(table, list(read.values()), units, labelled and labels is None)
    own = None if schema.labels is None else schema.labels.name
    columns = [name for name in read.values() if name != own]
    faults, whose, empty = Faults(), list[str](), frozenset(schema.missing)

    def arrays(block: Block) -> list[np.ndarray]:
        """Return features, classes, and all other cells and those of labels as numbers, of some records."""
        cells = {name: Cells.of(block.columns[at]) for at, name in read.items()}
        features = [
            coder(column, cells[column.name], empty)[:, None]
            if column.wanted and coder is not None
            else encoded(column, cells[column.name], empty, faults, block.records)
            for column in schema.columns
            if column.features
        ]
        y, targets = np.zeros(len(block), dtype=np.int64), np.empty(0)
        if label is not None and labels is None:
            y, targets = classes_of(schema.label, cells[label], faults, block.records), cells[label].numbers
        if units is not None and units in cells:
            whose.extend(cells[units].records())
        numbers = [np.empty((len(block), 0)), *(cells[name].numbers[:, None] for name in columns)]
        return [np.concatenate(features, axis=1), y, np.concatenate(numbers, axis=1), targets]

    x, y, cells, targets = table.joined(list(read), arrays)
    if labels is not None:
        label_cells = Cells.of_objects(list(labels))
        y, targets = classes_of(schema.label, label_cells, faults, range(len(label_cells))), label_cells.numbers
    if faults:
        raise DataError(f"{table}: does not fit its schema: {'; '.join([*faults.values()][:MOST_FAULTS])}")
    return RawSplit(
        x,
        y if labelled else None,
        str(table),
        "the feature table",
        f"column {label!r}",
        rows=Rows(cells, targets, tuple(columns), label),  # known under any schema
        units=np.array(whose) if units is not None and labelled else None,
        units_name=units or "",
        left_out=tuple(name for at, name in enumerate(table.names) if at not in read),
        schema=schema,
    )


def _check_header(table: Table, names: list[str], units: str | None, labelled: bool) -> None:
    """Raise DataError unless a table has the columns of its schema, and the one that says whose each record is."""
    columns = {column.name: column for column in table.schema.columns}
    spare = set() if labelled else {name for name, column in columns.items() if not column.features}
    wanted = {*columns, *([units] if units in names else [])}
    for what, faulty in name_faults(wanted, names, spare):
        what = what.replace("those", "its schema")
        raise DataError(f"{table}: {what} the columns {shown(faulty)}; correct the schema, or the file")
    if units is not None and labelled:
        table.place(units, "unit_column")
    if units in columns and columns[units].kind != "ignored":
        raise DataError(f'`unit_column` {units}: has another use by the schema; give that column kind "ignored"')


def column_texts(path: Path, name: str, schema: Schema | None = None) -> list[str]:
    """Return the cells of a column, as texts; DataError where a file has no such column, or has no columns."""
    if suffix_of(path) not in TABLES:
        raise DataError(f"`id` {name}: {path} is no table and has no columns; leave it out")
    table = Table(path, schema or NO_SCHEMA)
    at = table.place(name, "id")
    return [text for block in table.blocks([at]) for text in Cells.of(block.columns[at]).records()]


# drafts of schemas: from names and types of columns alone, or from the values of records declared public

FEW = 64
"""Most different words of a public column that are drafted as categories; others are hashed."""

DRAFTED = """The public schema of {name}: what its columns can hold, and nothing that was read off private records.
kind is number or date, with bounds = [LO, HI]; category, with values = ["A", "B"]; hashed, with buckets = 16 (words are
hashed to so many numbers); label, with classes = ["A", "B"], or bounds of a number to predict; or ignored. missing = true
where cells may be empty, other = true where something else may stand in them. What nobody knows stays "?" and "private":
    dpltm datasets schema {name} --schema THIS --private 0.2 --out FINISHED"""

ROW_IDS = ("id", "uuid", "guid")
"""Names of columns that are drafted as ignored, beside row numbers."""

READ_OFF = "The schema of {name}, read off its records. They were declared public, and cannot be private any more."


def draft(
    path: Path, header_schema: Schema | None, label: str | None, header: bool, units: str | None = None,
    classes: Sequence[str] = (), target: tuple[float, float] | None = None,
) -> Schema:  # fmt: skip
    """Return a schema of all columns of a table, by names and types alone; what nobody says is still to be found.

    Args:
        header_schema: what is known already: of some columns, and of how the table is written.
        header: whether the first line has names.
        units: the column of persons, which is no feature.
        classes, target: names of the classes of ``label``, or the range of its numbers.
    """
    above = Schema((), header, MISSING) if header_schema is None else header_schema
    if header_schema is None and header and suffix_of(path) == ".csv":
        separator = _separator(path)
        above = replace(above, separator=separator, decimal="," if separator == ";" else ".")
    table = Table(path, above)
    names, kinds = table.names, _kinds(path)
    _check_names(table, "say `no_header` where that is a record, or rename those columns")
    row_numbers = index_columns(names)
    if len(names) < 2 or not all(name or at in row_numbers for at, name in enumerate(names)):
        raise DataError(f"{table}: has {shown(names) or 'nothing'} for a header; name each of two columns or more")
    for name, option in ((label, "label"), (units, "unit_column")):
        if name is not None:
            table.place(name, option)
    columns = {column.name: column for column in above.columns}
    if strange := sorted(set(columns) - set(names)):
        raise DataError(f"{path}: lacks the columns {shown(strange)} of the schema; it has {shown(names)}")
    if label is not None and above.labels is not None and above.labels.name != label:
        raise DataError(f"`label` {label}: the schema says that {above.labels.name!r} is the label; leave one out")
    for at, name in enumerate(names):
        if name == label and above.labels is None:
            columns[name] = label_column(name, classes, target)
        elif name not in columns and (name == units or at in row_numbers or name.lower() in ROW_IDS):
            columns[name] = Column(name, "ignored")
        columns.setdefault(name, Column(name, kinds.get(name, UNKNOWN), wanted=True))
    return replace(above, columns=tuple(replace(columns[name], decimal=above.decimal) for name in names), text="")


_SPELLED = r"^[+-]?([€$£]?\s*\d[\d.,]*\s*[%€$]?|\d{1,2}[./-]\d{1,2}[./-](\d{2}|\d{4}))$"
"""Numbers and dates, also as a draft does not read them."""


def check_spelling(path: Path, schema: Schema) -> None:
    """Raise DataError where most cells of a column are numbers or dates, but not as a draft has them: they would be words.

    It looks at records, as refusals may; more than half of them must speak for it. A column of known words is left alone.
    """
    table, records, read, unread = Table(path, schema), 0, Counter[str](), Counter[str]()
    likely = (UNKNOWN, "number", "date") if suffix_of(path) == ".csv" else ()  # elsewhere types say what is a number
    wanted = {at: column for at, column in enumerate(schema.columns) if column.wanted and column.kind in likely}
    for block in table.blocks(list(wanted)) if wanted else ():
        records += len(block)
        for at, column in wanted.items():
            cells = Cells.of(block.columns[at])
            numbers = ~np.isnan(cells.parsed(replace(column, kind="number")))
            spelled = pc.match_substring_regex(cells.values, _SPELLED).to_numpy(zero_copy_only=False)
            times = np.bincount(cells.codes, minlength=len(numbers))
            read[column.name] += int(times[numbers].sum())
            unread[column.name] += int(times[spelled & ~numbers].sum())
    for name, count in unread.items():
        if count > max(read[name], records / 2):
            raise DataError(
                f"{path}: column {name!r} holds numbers or dates in a form that is not read; write 1{schema.decimal}5 and"
                ' 2024-12-31, or say separator and decimal, or kind "ignored" or "category", in a `schema`'
            )


def read_off(path: Path, schema: Schema, declared: Sequence[str] = ()) -> Schema:
    """Return a draft with what is still to be found read off records, which were declared public.

    Args:
        declared: columns of which somebody said what they hold, so that they are no identifiers.
    """
    table = Table(path, schema)
    names = table.names
    times: dict[str, Counter[str]] = {name: Counter() for name in names}
    for block in table.blocks(range(len(names))):
        for at, column in block.columns.items():
            cells = Cells.of(column)
            counts = np.bincount(cells.codes, minlength=len(cells.texts)).tolist()
            for text, number in zip(cells.texts, counts, strict=True):
                times[names[at]][text] += number
    columns = (
        _label_read_off(column, times[column.name])
        if column.kind == "label"
        else _read_off(column, times[column.name], column.name in declared)
        for column in schema.columns
    )
    return replace(schema, columns=tuple(columns))


def public_records(path: Path, schema: Schema) -> Dataset:
    """Return the records that a schema is read off, so that they are known again."""
    free = (
        Column(column.name, "label" if column.kind == "label" else UNKNOWN, wanted=True) for column in schema.columns
    )
    table = Table(path, replace(schema, columns=tuple(free)))
    return settle(stem_of(path), read_by_schema(table, coder=lambda _, cells, __: np.zeros(len(cells))))


def _separator(path: Path) -> str:
    """Return what stands between the names of columns, which are public: a comma, or else what makes most names."""

    def count(mark: str) -> int:
        with contextlib.suppress(DataError):  # names in quotes, by another mark
            return len(Table(path, replace(NO_SCHEMA, separator=mark)).names)
        return 0

    return "," if count(",") > 1 else max(",;\t|", key=count)


def _kinds(path: Path) -> dict[str, str]:
    """Return kinds by the types of columns, where a file has them: no value is looked at."""
    if suffix_of(path) == ".csv":
        return {}
    kinds = {"number": is_numeric, "category": lambda kind: is_text(kind) or pa.types.is_boolean(kind)}
    kinds["date"] = lambda kind: pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    with record_batches(path) as (schema, _):
        types = zip(schema.names, schema.types, strict=True)
        return {name: kind for name, type_ in types for kind, is_kind in kinds.items() if is_kind(type_)}


NEARLY = 0.95
"""Part of its cells that are different in a column of identifiers, or more."""

_IDENTIFIER = re.compile(r"(.*[\W_])?(id|uuid|guid)|index|.*[a-z]Id", re.IGNORECASE)


def _read_off(column: Column, times: Counter[str], declared: bool) -> Column:
    """Return a column with what is still to be found, by how often each cell is there."""
    if not column.wanted:
        return column
    cells = sorted(cell for cell in times if cell not in MISSING)
    distinct = len(cells) >= NEARLY * sum(times[cell] for cell in cells)
    numbered = distinct and all(cell.isdecimal() for cell in cells)
    if not declared and len(cells) > FEW and (numbered or _IDENTIFIER.fullmatch(column.name)):
        return Column(column.name, "ignored")
    base = replace(column, wanted=False, missing=len(cells) < len(times))
    for kind, parse in (("number", lambda cell: as_number(cell, column.decimal)), ("date", as_days)):
        values = [value for value in map(parse, cells) if value is not None and math.isfinite(value)]
        has_others = len(values) < len(cells)
        if values and (column.kind == kind or (column.kind == UNKNOWN and not has_others)):
            bounds = min(values), max(values) if max(values) > min(values) else min(values) + 1
            return replace(base, kind=kind, bounds=bounds, missing=base.missing or has_others, other=has_others)
    if len(cells) <= FEW or column.kind == "category":
        return replace(base, kind="category", other=True, values=tuple((cell,) for cell in cells))
    if distinct:
        return Column(column.name, "ignored")  # each has its own, as an id
    return replace(base, kind="hashed", buckets=FEW)


def _label_read_off(column: Column, times: Counter[str]) -> Column:
    """Return the column of labels with its classes and their shares, which nobody else may have said."""
    if column.is_target or column.shares:
        return column
    cells = sorted(cell for cell in times if cell not in MISSING)
    if not column.values and len(cells) > FEW and all(as_number(cell, column.decimal) is not None for cell in cells):
        raise DataError(f"`label` {column.name}: holds {len(cells):,} numbers; say `classes`, or `target_bounds`")
    values = column.values or tuple((cell,) for cell in cells)
    counts = [sum(times[cell] for cell in spellings) for spellings in values]
    if len(values) < 2 or not all(counts):
        lacking = shown([spellings[0] for spellings, count in zip(values, counts, strict=True) if not count])
        raise DataError(f"`label` {column.name}: has no record of {lacking or 'a second class'}; take some of each")
    shares = tuple(max(round(count / sum(counts), 6), 1e-6) for count in counts)
    return replace(column, wanted=False, values=values, shares=shares)
