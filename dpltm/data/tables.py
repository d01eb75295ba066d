"""Tables with named columns: ``.csv``, ``.parquet`` and ``.arrow`` files as arrays."""

from __future__ import annotations

import csv
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from dpltm.data.mapped import AT_ONCE, let_go, room_for
from dpltm.data.raw import RawSplit, shown
from dpltm.errors import DataError, first_line


def read_table(path: Path, label: str | None, labelled: bool = True) -> RawSplit:
    """The records of a table.

    Args:
        path: a ``.csv``, ``.parquet`` or ``.arrow`` file.
        label: the column of labels.
        labelled: whether labels are read; otherwise that column, if one is named, is left out.

    Raises:
        DataError: the file is not what it claims to be, or ``label`` does not fit it.
    """
    return (_read_csv if path.suffix.lower() == ".csv" else _read_columns)(path, label, labelled)


def _read_csv(path: Path, label: str | None, labelled: bool) -> RawSplit:
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            header = next(csv.reader(stream, strict=True), [])
            stream.seek(0)
            position = _label_position(path, header, label, labelled)
            if not labelled:
                _check_names(path, header)
            read = [at for at in range(len(header)) if labelled or at != position]
            cells = _csv_cells(path, stream, header, read)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path}: is not comma-separated text in UTF-8 ({first_line(error)}); save it as that"
        ) from error
    table = np.frombuffer(cells, dtype=np.float64).reshape(-1, len(read))
    if not labelled or position is None:
        return _table_split(path, header, position, table, None)
    return _table_split(path, header, position, np.delete(table, position, axis=1), table[:, position])


def _csv_cells(path: Path, stream: TextIO, header: list[str], read: list[int]) -> array[float]:
    """The cells of those columns below the header, row by row, in one flat array of doubles: far smaller than lists."""
    cells = array("d")
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
        try:
            cells.extend([float(row[at]) for at in read])
        except ValueError as error:
            column = next(at for at in read if not _is_number(row[at]))
            raise DataError(
                f"{path}: line {rows.line_num}, column {header[column]!r} holds {row[column]!r}; "
                "every cell must be a number; encode or drop it"
            ) from error
    return cells


def _check_names(path: Path, header: list[str]) -> None:
    """Raises DataError for a first line that is a record: it would be lost. Distinct whole numbers may be names."""
    if all(_is_number(cell) for cell in header) and not (
        all(cell.strip().isdecimal() for cell in header) and len(set(header)) == len(header)
    ):
        raise DataError(f"{path}: its first line holds numbers where names of columns belong; add a header line")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_columns(path: Path, label: str | None, labelled: bool) -> RawSplit:
    """A ``.parquet`` or ``.arrow`` file, some rows at a time."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise DataError(
            f"{path}: reading {path.suffix.lower()} needs pyarrow; pip install 'dpltm[parquet]'"
        ) from error
    with ExitStack() as opened:
        try:
            schema, count, batches = (_parquet if path.suffix.lower() == ".parquet" else _arrow)(path, opened)
            position = _label_position(path, schema.names, label, labelled)
            return _filled(path, schema, count, batches, position, labelled)
        except pa.ArrowException as error:
            raise DataError(
                f"{path}: is not a {path.suffix.lower()[1:]} file that can be read ({first_line(error)}); write it again"
            ) from error


Opened = tuple[Any, int, Callable[[], Iterator[Any]]]
"""The schema of a file, its number of rows, and its record batches."""


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


def _filled(
    path: Path,
    schema: Any,
    count: int,
    batches: Callable[[], Iterator[Any]],
    position: int | None,
    labelled: bool,
) -> RawSplit:
    """The columns of a file as arrays: features in the narrowest type that holds all of them."""
    import pyarrow as pa

    header = schema.names
    features = [at for at in range(len(header)) if at != position]
    taken = range(len(header)) if labelled else features
    for at in taken:
        kind = schema.types[at]
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise DataError(
                f"{path}: column {header[at]!r} has type {kind}; every column must be numeric; encode or drop it"
            )
    types = [np.dtype(schema.types[at].to_pandas_dtype()) for at in features]
    x = room_for((count, len(features)), np.result_type(*types) if types else np.float64)
    y = np.empty(count, schema.types[position].to_pandas_dtype()) if labelled and position is not None else None
    done, nulls = 0, Counter[int]()
    for batch in batches():
        rows = slice(done, done + batch.num_rows)
        nulls.update({at: batch.column(at).null_count for at in taken})
        if not nulls.total():  # a null is no number
            for place, at in enumerate(features):
                x[rows, place] = batch.column(at).to_numpy(zero_copy_only=False)
            if y is not None:
                y[rows] = batch.column(position).to_numpy(zero_copy_only=False)
        done = rows.stop
        let_go(x)
    for at in taken:
        if nulls[at]:
            raise DataError(f"{path}: column {header[at]!r} has {nulls[at]} nulls; fill them or drop the column")
    x.flags.writeable = False
    return _table_split(path, header, position, x, y)


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


def _table_split(path: Path, header: list[str], position: int | None, x: np.ndarray, y: np.ndarray | None) -> RawSplit:
    columns = tuple(name for at, name in enumerate(header) if at != position)
    y_name = "no column" if position is None else f"column {header[position]!r}"
    label = None if position is None else header[position]
    return RawSplit(x, y, str(path), "the feature table", y_name, columns, label)
