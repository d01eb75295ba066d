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
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from dpltm.errors import DataError, first_line
from dpltm.records.dataset import Dataset, RawSplit
from dpltm.records.encode import as_days, as_number, bucket_of, rows_of, separator_of
from dpltm.records.files import TABLES, stem_of, suffix_of
from dpltm.records.input_parts import check_columns, shown
from dpltm.records.schema import MISSING, NO_SCHEMA, UNKNOWN, Column, Schema, label_column
from dpltm.records.settle import settle
from dpltm.records.split import AT_ONCE, Rows
from dpltm.records.units import text_of

BLOCK, BLOCK_BYTES = 10_000, 2**22
"""Records that Python reads at once, and bytes of a file that Arrow reads."""

MOST_FAULTS = 6
"""Faults of columns which one message names."""

# cells: most columns repeat themselves, so what a cell means is worked out once for each different one. It depends on
# that cell and on public facts alone.

_PLAIN = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
"""Numbers that Arrow and Python read alike, for Arrow; what else may be one goes to Python."""


def is_numeric(kind: Any) -> bool:
    """Tell whether a column of such an Arrow type holds numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def is_text(kind: Any) -> bool:
    """Tell whether a column of such an Arrow type holds texts, each once or not."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def as_texts(cells: list[Any]) -> Any:
    """Return Python's values as an Arrow array of texts (see :func:`text_of`), each what it would be alone."""
    plain = {*map(type, cells)} <= {str, type(None)}
    try:
        return pa.array(cells if plain else list(map(text_of, cells)), pa.string())
    except UnicodeEncodeError:
        raise DataError("a cell holds half of a surrogate pair, which is no text; write it anew") from None


@dataclass(frozen=True)
class Cells:
    """A column of some records: the place of each one's cell (``codes``, ``(n,)``) among those that differ, in their order.

    These are texts without blanks around them, or numbers. ``nulls`` says which are not there, ``(m,)`` bool: empty texts.
    """

    codes: np.ndarray
    values: Any
    nulls: np.ndarray

    @classmethod
    def of(cls, column: Any) -> Cells:
        """Return the cells of an Arrow array, as texts that a .csv file would have."""
        column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        readable = is_numeric(column.type) or is_text(column.type)
        coded = (column if readable else as_texts(column.to_pylist())).dictionary_encode("encode")
        values = coded.dictionary
        nulls = values.is_null().to_numpy(zero_copy_only=False)
        if not is_numeric(values.type):
            values = pc.fill_null(pc.utf8_trim_whitespace(values), "")
        return cls(coded.indices.to_numpy(), values, nulls)

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def texts(self) -> list[str]:
        """The cells that differ, as texts."""
        return _texts(self.values)

    @cached_property
    def _read(self) -> tuple[np.ndarray, np.ndarray]:
        """What stands for each cell where records are told apart, a number or one made of a word; and which are words."""
        if is_numeric(self.values.type):  # with one zero
            numbers = self.values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False) + 0.0
        else:
            try:
                plain = self.values.cast(pa.float64())
            except pa.ArrowInvalid:
                plain = pc.if_else(pc.match_substring_regex(self.values, _PLAIN), self.values, None).cast(pa.float64())
            numbers = np.array(plain.to_numpy(zero_copy_only=False))  # NaN for what is no plain number
        words = np.zeros(len(numbers), dtype=bool)
        unsure = np.flatnonzero(~np.isfinite(numbers))
        for place, text in zip(unsure.tolist(), _texts(self.values.take(pa.array(unsure))), strict=True):
            number = as_number(text)
            words[place] = number is None
            word = int.from_bytes(blake2b(text.encode(), digest_size=6).digest())
            numbers[place] = word if number is None else number
        return numbers, words

    @property
    def numbers(self) -> np.ndarray:
        """What stands for each record's cell where records are told apart: its number, or one made of a word; float64."""
        return self._read[0][self.codes]

    @property
    def words(self) -> np.ndarray:
        """Which of the cells that differ are no numbers, ``(m,)`` bool."""
        return self._read[1]

    def first(self, differing: np.ndarray) -> tuple[int, str] | None:
        """Return the first record whose cell is among those that differ in some way, ``(m,)`` bool, and that cell."""
        if not differing.any():
            return None
        row = int(np.argmax(differing[self.codes]))
        return row, self.texts[self.codes[row]]

    def parsed(self, column: Column) -> np.ndarray:
        """Return the number, or the day, that each different cell holds, written as a column says; NaN for none."""
        if column.kind == "date":
            return np.array([math.nan if day is None else day for day in map(as_days, self.texts)], dtype=np.float64)
        cells = self
        if column.decimal != "." and not is_numeric(self.values.type):  # of texts: a frame's 1.5 is no 15
            texts = pa.array(self.texts, pa.string())
            texts = pc.if_else(pc.match_substring(texts, "."), "no number", texts)
            cells = Cells(self.codes, pc.replace_substring(texts, column.decimal, "."), self.nulls)
        numbers, words = cells._read
        return np.where(words, math.nan, numbers)

    def among(self, texts: Collection[str]) -> np.ndarray:
        """Return which of the cells that differ are one of these texts, or not there, ``(m,)`` bool."""
        if not is_numeric(self.values.type):
            listed = pc.is_in(self.values, pa.array(list(texts), self.values.type))
            return np.asarray(listed.to_numpy(zero_copy_only=False)) | self.nulls
        numbers, alike = self._read[0], Cells.of(as_texts(list(texts)))._read[0]
        inside = np.isnan(numbers) | np.isin(numbers, alike)  # few, of which texts are made
        for place in np.flatnonzero(inside & ~self.nulls):
            inside[place] = _texts(self.values[int(place) : int(place) + 1])[0] in texts
        return inside | self.nulls

    def records(self) -> list[str]:
        return np.array(self.texts, dtype=object)[self.codes].tolist() if len(self) else []


def _texts(values: Any) -> list[str]:
    return values.to_pylist() if is_text(values.type) else [text_of(cell) or "" for cell in values.to_pylist()]


# tables

Coder = Callable[[Column, Cells, frozenset[str]], np.ndarray]
"""Coder of a column of which something is still to be found: one number a record, float64."""

Block = dict[str, Any]
"""Some records of a table: Arrow arrays of the columns that are read, by name."""


def is_frame(values: object) -> bool:
    """Tell whether an argument is a data frame: a table whose columns have names."""
    return hasattr(values, "columns") and hasattr(values, "shape") and not isinstance(values, np.ndarray)


def _as_arrow(column: Any, meaning: Column | None) -> Any:
    plain = np.asarray(column)
    if plain.dtype.kind in "biuf":
        return pa.array(plain, from_pandas=True)
    if getattr(column.dtype, "kind", "") in {*"biuf"}:  # numbers of pandas' own types, which have holes
        return pa.array(column)
    cells = column.to_list() if hasattr(column, "to_list") else list(column)
    if meaning is not None and meaning.decimal != "." and (meaning.kind == "number" or meaning.is_target):
        fraction = next((cell for cell in cells if isinstance(cell, (float, np.floating)) and cell % 1 > 0), None)
        if fraction is not None:  # as a text it would be none, and a hole
            raise DataError(
                f"{meaning.name}: is of objects, among them {fraction}; `decimal` is of texts: take type float"
            )
    return as_texts(cells)


@dataclass(frozen=True)
class Table:
    """A table: its columns, and its records some at a time. Its source is the path of a file, or a data frame of pandas or
    polars, which messages call by ``name``; the schema says how a ``.csv`` file is written."""

    source: Any
    schema: Schema = NO_SCHEMA
    name: str = ""

    def __str__(self) -> str:
        return self.name or str(self.source)

    @property
    def is_csv(self) -> bool:
        return isinstance(self.source, Path) and suffix_of(self.source) == ".csv"

    @cached_property
    def names(self) -> list[str]:
        """Names of the columns; a schema says those of a file without a header."""
        if is_frame(self.source):
            return list(map(str, self.source.columns))
        if not self.is_csv:
            with record_batches(self.source) as (columns, _):
                return list(columns.names)
        if not self.schema.header:
            return [column.name for column in self.schema.columns]
        with _rows(self.source, self.schema) as rows:
            return [cell.strip() for cell in next(rows, [])]

    def check(self, name: str, option: str) -> None:
        """Raise DataError where a column that an option names is not there, or twice."""
        if (count := self.names.count(name)) != 1:
            what = "has that column more than once" if count else "has no such column"
            raise DataError(f"`{option}` {name}: {self} {what}; it has {shown(self.names) or 'none'}")

    def blocks(self, read: Sequence[str]) -> Iterator[Block]:
        """Yield the records, some at a time, with these columns.

        A .csv file is read by Arrow, and by Python as soon as the two might differ.
        """
        if is_frame(self.source):
            keys = dict(zip(self.names, self.source.columns, strict=True))
            meant = {column.name: column for column in self.schema.columns}
            for start in range(0, len(self.source), BLOCK):
                yield {
                    name: _as_arrow(self.source[keys[name]][start : start + BLOCK], meant.get(name)) for name in read
                }
        elif not self.is_csv:
            with record_batches(self.source) as (_, batches):
                for batch in batches:
                    yield {name: batch.column(self.names.index(name)) for name in read}
        else:
            done = 0
            if len(self.names) > 1 and _read_alike(self.source, self.schema):  # of one, a blank line is no record
                try:
                    for block in _by_arrow(self, read):
                        yield block
                        done += len(block[read[0]])
                    return
                except pa.ArrowInvalid:  # lines of another width, or what is no UTF-8
                    pass
            yield from _by_line(self, read, done)

    def joined(self, read: Sequence[str], arrays: Callable[[Block, int], Sequence[np.ndarray]]) -> list[np.ndarray]:
        """Return arrays of all records, of those of blocks, by the number of their first record; DataError for none."""
        start, joined = 0, list[np.ndarray]()
        for block in self.blocks(read):
            parts = arrays(block, start)
            joined = joined or [np.empty((0, *part.shape[1:]), part.dtype) for part in parts]
            for at, part in enumerate(parts):
                done = len(joined[at])
                joined[at] = joined[at].astype(np.promote_types(joined[at].dtype, part.dtype), copy=False)
                joined[at].resize((done + len(part), *part.shape[1:]), refcheck=False)  # no piece is there twice
                joined[at][done:] = part
            start += len(block[read[0]])
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


def _by_line(table: Table, read: Sequence[str], start: int) -> Iterator[Block]:
    """Yield the records of a file from one of them on, by Python's reader."""
    places = {name: table.names.index(name) for name in read}
    with _rows(table.source, table.schema) as rows:
        records = itertools.islice(rows, start + table.schema.header, None)
        while block := list(itertools.islice(records, BLOCK)):
            for record, row in enumerate(block, start):
                if len(row) != len(table.names):
                    raise DataError(
                        f"{table}: record {record} (from 0) has {len(row)} cells for {len(table.names)} columns; mend it"
                    )
            yield {name: pa.array([row[at] for row in block], pa.string()) for name, at in places.items()}
            start += len(block)


def _by_arrow(table: Table, read: Sequence[str]) -> Iterator[Block]:
    """Yield the same by Arrow's; ArrowInvalid where it cannot."""
    names, schema = list(map(str, range(len(table.names)))), table.schema
    with arrow_csv.open_csv(
        str(table.source),
        arrow_csv.ReadOptions(column_names=names, skip_rows_after_names=int(schema.header), block_size=BLOCK_BYTES),
        arrow_csv.ParseOptions(delimiter=separator_of(table.source, schema.separator)),
        arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            strings_can_be_null=False,
            include_columns=[str(table.names.index(name)) for name in read],
        ),
    ) as batches:
        for batch in batches:
            yield dict(zip(read, batch.columns, strict=True))


def _read_alike(path: Path, schema: Schema) -> bool:
    """Return whether Arrow finds the cells in a file that Python finds, if it finds as many in each line.

    They may differ on quotes, and on blank lines above the header. Arrow reads one-byte separators, and drops no lines.
    """
    mark = separator_of(path, schema.separator)
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
            file = opened.enter_context(pa.ipc.open_file(opened.enter_context(pa.OSFile(str(path)))))
            yield file.schema, map(file.get_batch, range(file.num_record_batches))
        except (pa.ArrowException, UnicodeDecodeError) as error:  # names that are no text
            kind = path.suffix.lower()[1:]
            raise DataError(f"{path}: is not a {kind} file that can be read ({first_line(error)})") from error


# tables of numbers


def read_table(
    table: Table, label: str | None, labelled: bool = True, units: str | None = None, spare: Sequence[str] = ()
) -> RawSplit:
    """Return the records of a table of numbers, in the narrowest type that holds all of them.

    Columns of persons (``units``, in numbers or words), of labels, and those that are ``spare`` are no features.
    """
    whose = list[str]()
    left_out, columns = _features(table, label, labelled, units, spare)
    _check_names(table, "add a line of names, or rename those columns")
    target = label if labelled else None

    def arrays(block: Block, start: int) -> list[np.ndarray]:
        numbers = {name: _numbers(table, name, column, start) for name, column in block.items() if name != units}
        if units is not None:
            persons = Cells.of(block[units])
            numbers[units] = persons.numbers
            whose.extend(persons.records())
        x = np.column_stack([numbers[name] for name in columns])
        return [x, np.empty(len(x)) if target is None else numbers[target]]

    x, y = table.joined(columns if target is None else [*columns, target], arrays)
    features = [place for place, name in enumerate(columns) if name != units]
    cells = x
    if len(features) < len(columns):
        x = np.ascontiguousarray(x[:, features])
        x.flags.writeable = False
    return RawSplit(
        x,
        y if labelled else None,
        str(table),
        "the feature table",
        "no column" if label is None else f"column {label!r}",
        Rows(cells, y if labelled else np.empty(0), tuple(columns), label),
        None if units is None else np.array(whose),
        units or "units",
        columns=tuple(columns[place] for place in features),
        left_out=tuple(left_out),
    )


def _numbers(table: Table, name: str, column: Any, start: int) -> np.ndarray:
    """Return the numbers in a column of some records, as they are stored."""
    if column.null_count:
        raise DataError(f"{table}: column {name!r} has nulls; fill them or drop the column")
    if is_numeric(column.type) or pa.types.is_boolean(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    cells = Cells.of(column)
    if (word := cells.first(cells.words)) is not None:
        raise DataError(
            f"{table}: record {start + word[0]} (from 0), column {name!r} holds {word[1]!r}, which is no number;"
            " say by `schema` what the columns hold (dpltm datasets schema drafts one)"
        )
    return cells.numbers


def _features(
    table: Table, label: str | None, labelled: bool, units: str | None, spare: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the row numbers that are left out, and the columns that are read, but for the label's."""
    names = table.names
    if label is None and labelled:
        raise DataError(f"{table}: needs `label` COLUMN to name the label column; it has {shown(names)}")
    for option, name in (("label", label), ("unit_column", units)):
        if name is not None:
            table.check(name, option)
    if units is not None and units == label:
        raise DataError(f"`unit_column` {units}: {table} has its labels in that column; it has {shown(names)}")
    left_out = [name for name in row_numbers(names) if name not in (label, units)]
    read = [name for name in names if name not in (*left_out, label, *spare)]
    if not set(read) - {units}:
        raise DataError(f"{table}: has no column of features; it has {shown(names)}")
    return left_out, read


def row_numbers(header: Sequence[str]) -> list[str]:
    """Return the columns that are row numbers by their names, as pandas writes them; no cell is looked at."""
    return [
        name for at, name in enumerate(header)
        if re.fullmatch(r"Unnamed: 0(\.\d+)?|__index_level_\d+__", name)
        or (at == 0 and not name.strip() and header.count(name) == 1)
    ]  # fmt: skip


def _check_names(table: Table, fix: str) -> None:
    """Raise DataError for a first line that may be a record, which would be lost, and for two columns of one name."""
    names = table.names
    if table.is_csv and table.schema.header:
        numbers = [name for name in names if as_number(name) is not None or as_days(name) is not None]
        start = int(numbers[0]) if numbers and numbers[0].isdecimal() and len(numbers[0]) < 10 else 0
        counts = len(names) > 2 and len(numbers) > 1 and numbers == [str(start + at) for at in range(len(numbers))]
        if numbers and not counts:  # names may be numbers that count
            raise DataError(f"{table}: its first line holds {shown(numbers, 2)} where names of columns belong; {fix}")
    if twice := sorted({name for name in names if names.count(name) > 1}):  # whatever goes by names later would fail
        raise DataError(f"{table}: has twice the columns {shown(twice)}; rename one of them")


# tables with a schema

Faults = dict[tuple[str, str], str]
"""What of a table does not fit its schema, by column and fault: once each, with the first record.

How often is not counted: of private records that would be one more thing to know.
"""

FIX = (
    "correct those cells, or say in the schema what they are: numbers are 1234.5, but for its decimal, and dates 2024-12-31;"
    " add values and classes; missing = true takes holes, other = true other values, and holes too of numbers and dates"
)
"""What to do about all of them."""

_STRANGE = {"category": "is none of its values", "number": "is no number", "date": "is no date (YYYY-MM-DD)"}
"""What is said of a cell that a kind of column does not take."""


def _note(faults: Faults, column: Column, cells: Cells, strange: np.ndarray, what: str, start: int) -> None:
    if (first := cells.first(strange)) is not None:
        shown = f"{column.name}: {first[1]!r:.40} {what} (record {start + first[0]} from 0)"
        faults.setdefault((column.name, what), shown)


def encoded(column: Column, cells: Cells, empty: frozenset[str], faults: Faults, start: int) -> np.ndarray:
    """Return the features of one column, ``(n, column.features)`` float32 in [0, 1]; -1 and 2 of numbers beyond their
    bounds, which saturate when they are scaled (``records.scaling``): until then they can be told.

    Texts that are ``empty`` count as nothing; ``start`` is the number of the first of these records in the table.

    Guarantees:
        Row i depends on cell i and on the schema alone.
    """
    features = np.zeros((len(cells.values), column.features), dtype=np.float32)
    holes = cells.among(empty)
    strange = np.zeros(len(holes), dtype=bool)
    if column.missing:
        features[holes, -1] = 1.0
    else:
        _note(faults, column, cells, holes, "is empty", start)
    if column.kind == "category":
        places = _places(column, cells)
        filled_rows = np.flatnonzero((places >= 0) & ~holes)
        features[filled_rows, places[filled_rows]] = 1.0
        strange = (places < 0) & ~holes
    elif column.kind == "hashed":
        filled_rows = np.flatnonzero(~holes)
        features[filled_rows, [bucket_of(cells.texts[place], column.buckets) for place in filled_rows]] = 1.0
    else:
        values = np.where(holes, math.nan, cells.parsed(column))
        features[:, 0] = np.nan_to_num(_scaled(column, values))
        strange = np.isnan(values) & ~holes
        if column.other:
            features[strange, -1] = 1.0
    if not column.other:
        _note(faults, column, cells, strange, _STRANGE.get(column.kind, ""), start)
    return features[cells.codes]


def _scaled(column: Column, values: np.ndarray) -> np.ndarray:
    """Numbers or days in [0, 1] by the bounds of a column, -1 and 2 beyond them; NaN stays."""
    low, high = column.bounds
    inside = np.where(low > values, low, values)  # as Python's max and min have it, of zeros too
    inside = np.where(high < inside, high, inside) - low
    if column.log:  # not NumPy's, whose last bit differs between processors
        parts = np.array([math.log1p(number) for number in inside.tolist()]) / math.log1p(high - low)
    else:
        parts = inside / (high - low)
    return parts + ((values > high).astype(float) - (values < low))


def _places(column: Column, cells: Cells) -> np.ndarray:
    """Return which of the values of a column each different cell is; -1 for none."""
    places = {spelling: place for place, spellings in enumerate(column.values) for spelling in spellings}
    return np.array([places.get(text, -1) for text in cells.texts], dtype=np.int64)


def classes_of(column: Column, cells: Cells, faults: Faults, start: int) -> np.ndarray:
    """Return the class of each record, ``(n,)`` int64, 0 where classes are to be found yet; of targets numbers, float64."""
    if column.is_target:
        values = cells.parsed(column)
        _note(faults, column, cells, np.isnan(values), _STRANGE["number"], start)
        return np.nan_to_num(values)[cells.codes]
    places = _places(column, cells)
    if not column.wanted:
        _note(faults, column, cells, places < 0, "is none of its classes", start)
    return np.maximum(places, 0)[cells.codes]


def read_by_schema(
    table: Table,
    units: str | None = None,
    labelled: bool = True,
    coder: Coder | None = None,
    labels: np.ndarray | None = None,
    spare: Sequence[str] = (),
) -> RawSplit:
    """Return the records of a table, encoded (see :func:`encoded`): features ``(n, schema.features)`` float32, and classes.

    Args:
        units: the column of persons, whatever the schema says of it; it is no feature. Nor are ``spare`` ones.
        coder: of columns of which something is still to be found; None where that is refused.
        labels: of each record, in the place of the column of labels.
    """
    schema = table.schema
    if schema.wanted and coder is None:
        wanted = shown([column.name for column in schema.wanted])
        raise DataError(f"`schema`: kind, bounds or values of {wanted} are private; write or find them (`private`)")
    label = schema.label.name if labelled else None
    named = {units, *(column.name for column in schema.columns)}
    passed = {*row_numbers(table.names), *spare} - named
    read = [name for name in table.names if name not in passed]
    _check_header(table, read, units, labelled and labels is None)
    columns = [name for name in read if schema.labels is None or name != schema.labels.name]
    faults, whose, empty = Faults(), list[str](), frozenset(schema.missing)

    def arrays(block: Block, start: int) -> list[np.ndarray]:
        """Return features, classes, and all other cells and those of labels as numbers, of some records."""
        cells = {name: Cells.of(column) for name, column in block.items()}
        features = [
            coder(column, cells[column.name], empty)[:, None]
            if column.wanted and coder is not None
            else encoded(column, cells[column.name], empty, faults, start)
            for column in schema.columns
            if column.features
        ]
        y, targets = np.zeros(len(features[0]), dtype=np.int64), np.empty(0)
        if label is not None and labels is None:
            y, targets = classes_of(schema.label, cells[label], faults, start), cells[label].numbers
        if units is not None and units in cells:
            whose.extend(cells[units].records())
        numbers = [np.empty((len(y), 0)), *(cells[name].numbers[:, None] for name in columns)]
        return [np.concatenate(features, axis=1), y, np.concatenate(numbers, axis=1), targets]

    x, y, cells, targets = table.joined(read, arrays)
    if labels is not None:
        label_cells = Cells.of(_as_arrow(labels, schema.label))
        y, targets = classes_of(schema.label, label_cells, faults, 0), label_cells.numbers
    if faults:
        raise DataError(f"{table}: does not fit its schema: {'; '.join([*faults.values()][:MOST_FAULTS])}; {FIX}")
    return RawSplit(
        x,
        y if labelled else None,
        str(table),
        "the feature table",
        f"column {label!r}",
        rows=Rows(cells, targets, tuple(columns), label),  # known under any schema
        units=np.array(whose) if units is not None and labelled else None,
        units_name=units or "",
        left_out=tuple(name for name in table.names if name not in read),
        schema=schema,
    )


def _check_header(table: Table, names: list[str], units: str | None, labelled: bool) -> None:
    """Raise DataError unless a table has the columns of its schema, and the one that says whose each record is."""
    columns = {column.name: column for column in table.schema.columns}
    spare = set() if labelled else {name for name, column in columns.items() if not column.features}
    wanted = {*columns, *([units] if units in names else [])}
    mark = separator_of(table.source, table.schema.separator) if table.is_csv and len(names) == 1 else ""
    check_columns(wanted, names, str(table), f"its schema{mark and f', whose separator is {mark!r}'}", spare)
    if units is not None and labelled:
        table.check(units, "unit_column")
    if units in columns and columns[units].kind != "ignored":
        raise DataError(f'`unit_column` {units}: has another use by the schema; give that column kind "ignored"')


def column_texts(path: Path, name: str, schema: Schema | None = None) -> list[str]:
    """Return the cells of a column, as texts; DataError where a file has no such column, or has no columns."""
    if suffix_of(path) not in TABLES:
        raise DataError(f"`id` {name}: {path} is no table and has no columns; leave it out")
    table = Table(path, schema or NO_SCHEMA)
    table.check(name, "id")
    return [text for block in table.blocks([name]) for text in Cells.of(block[name]).records()]


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
    path: Path, header_schema: Schema | None, label: str | None, units: str | None = None,
    classes: Sequence[str] = (), target: tuple[float, float] | None = None,
) -> Schema:  # fmt: skip
    """Return a schema of all columns of a table, by names and types alone; what nobody says is still to be found.

    ``header_schema`` has what is known already, of some columns and of how the table is written; ``classes`` and ``target``
    are names of the classes of ``label``, or the range of its numbers.
    """
    above = header_schema
    if above is None:
        mark = _separator(path)
        above = Schema((), missing=MISSING, separator=mark, decimal="," if mark == ";" else ".")
    table = Table(path, above)
    names, kinds = table.names, dict[str, str]()
    if not table.is_csv:
        with record_batches(path) as (typed, _):
            kinds = dict(zip(names, map(_kind_of, typed.types), strict=True))
    _check_names(table, "rename those columns, or name them in a `schema` with header = false")
    left_out = row_numbers(names)
    if len(names) < 2 or "" in names[1:]:
        fix = "name each of two columns or more, or say separator in a `schema`"
        raise DataError(f"{table}: has {shown(names) or 'nothing'} for a header; {fix}")
    for name, option in ((label, "label"), (units, "unit_column")):
        if name is not None:
            table.check(name, option)
    columns = {column.name: column for column in above.columns}
    if strange := sorted(set(columns) - set(names)):
        raise DataError(f"{path}: lacks the columns {shown(strange)} of the schema; it has {shown(names)}")
    if label is not None and above.labels is not None and above.labels.name != label:
        raise DataError(f"`label` {label}: the schema says that {above.labels.name!r} is the label; leave one out")
    for name in names:
        if name == label and above.labels is None:
            columns[name] = label_column(name, classes, target)
        elif name not in columns and (name == units or name in left_out or name.lower() in ROW_IDS):
            columns[name] = Column(name, "ignored")
        columns.setdefault(name, Column(name, kinds.get(name, UNKNOWN), wanted=True))
    return replace(above, columns=tuple(replace(columns[name], decimal=above.decimal) for name in names), text="")


_SPELLED = r"^[+-]?([€$£]?\s*\d[\d.,]*\s*[%€$]?|\d{1,2}[./-]\d{1,2}[./-](\d{2}|\d{4}))$"
"""Numbers and dates, also as a draft does not read them."""


def check_spelling(path: Path, schema: Schema) -> None:
    """Raise DataError where most cells of a column are numbers or dates in a form that is not read: they would be words."""
    table, records, read, unread = Table(path, schema), 0, Counter[str](), Counter[str]()
    likely = (UNKNOWN, "number", "date") if table.is_csv else ()  # elsewhere types say what is a number
    wanted = {column.name: column for column in schema.columns if column.wanted and column.kind in likely}
    for block in table.blocks(list(wanted)) if wanted else ():
        for name, column in wanted.items():
            cells = Cells.of(block[name])
            numbers = ~np.isnan(cells.parsed(replace(column, kind="number")))
            spelled = pc.match_substring_regex(cells.values, _SPELLED).to_numpy(zero_copy_only=False)
            read[name] += int(numbers[cells.codes].sum())
            unread[name] += int((spelled & ~numbers)[cells.codes].sum())
        records += len(cells)
    for name, count in unread.items():
        if count > max(read[name], records / 2):
            raise DataError(
                f"{path}: column {name!r} holds numbers or dates in a form that is not read; write 1{schema.decimal}5 and"
                ' 2024-12-31, or say separator and decimal, or kind "ignored" or "category", in a `schema`'
            )


def read_off(path: Path, schema: Schema, declared: Sequence[str] = ()) -> Schema:
    """Return a draft with what is still to be found read off public records; columns that are ``declared`` are no
    identifiers."""
    table = Table(path, schema)
    times: dict[str, Counter[str]] = {name: Counter() for name in table.names}
    for block in table.blocks(table.names):
        for name, column in block.items():
            cells = Cells.of(column)
            for text, number in zip(cells.texts, np.bincount(cells.codes).tolist(), strict=True):
                times[name][text] += number
    read = (
        _label_read_off(column, times[column.name])
        if column.kind == "label"
        else _read_off(column, times[column.name], column.name in declared)
        for column in schema.columns
    )
    return replace(schema, columns=tuple(read))


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

    return "," if suffix_of(path) != ".csv" or count(",") > 1 else max(",;\t|", key=count)


def _kind_of(kind: Any) -> str:
    """Return the kind of a column by its type, without a look at its values."""
    if is_numeric(kind):
        return "number"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "date"
    return "category" if is_text(kind) or pa.types.is_boolean(kind) else UNKNOWN


NEARLY = 0.95
"""Part of its cells that are different in a column of identifiers, or more."""

_IDENTIFIER = re.compile(r"(?i)(.*[\W_])?(id|uuid|guid)|index|.*[a-z]Id|patient|customer|client|person|user|member")


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
    return Column(column.name, "ignored") if distinct else replace(base, kind="hashed", buckets=FEW)


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
