"""Reading ``.npz``, ``.csv`` and ``.parquet`` files into arrays; nothing in them is ever unpickled."""

from __future__ import annotations

import csv
import zipfile
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from dpltm.errors import DataError

SUFFIXES = (".npz", ".csv", ".parquet")


@dataclass(frozen=True)
class RawSplit:
    """One split as read, before any check, with what messages need to name its parts.

    Attributes:
        x: features as stored.
        y: labels as stored.
        source: file or dataset.
        x_name, y_name: what the source calls the two arrays.
        columns: names of the feature columns, where the source has them.
    """

    x: np.ndarray
    y: np.ndarray
    source: str
    x_name: str = "x_train"
    y_name: str = "y_train"
    columns: tuple[str, ...] | None = None


def read_file(path: Path, label: str | None, option: str = "--dataset") -> tuple[RawSplit, RawSplit | None]:
    """The training split of a file and, where the file has one, its test split.

    Args:
        path: an ``.npz``, ``.csv`` or ``.parquet`` file.
        label: the label column of a ``.csv`` or ``.parquet`` file; None for an ``.npz`` file.
        option: where ``path`` comes from, for messages.

    Raises:
        DataError: the file is missing or is not what it claims to be, or ``label`` does not fit it.
    """
    suffix = path.suffix.lower()
    if path.is_dir():
        raise DataError(f"{option} {path}: is a folder; give a file in it that ends in .npz, .csv or .parquet")
    if suffix not in SUFFIXES:
        raise DataError(f"{option} {path}: unknown kind of file; give one that ends in .npz, .csv or .parquet")
    if not path.is_file():
        raise DataError(f"{option} {path}: no such file; correct the path")
    if suffix == ".npz" and label is not None:
        raise DataError(f"--label {label}: {path} is .npz and names its labels y_train; drop --label")
    try:
        if suffix == ".npz":
            return _read_npz(path)
        return (_read_csv if suffix == ".csv" else _read_parquet)(path, label), None
    except OSError as error:
        raise DataError(f"{option} {path}: cannot be read ({first_line(error)}); correct the file") from error


def read_test(path: Path, label: str | None) -> RawSplit:
    """The test split that the file of ``--test`` holds: ``x_test`` of an ``.npz`` if it has one, else all its records.

    Raises:
        DataError: as for ``read_file``.
    """
    whole, part = read_file(path, label, "--test")
    return part or whole


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def shown(names: Sequence[str], limit: int = 8) -> str:
    """Some names for a message, quoted."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(repr(n) for n in names[:limit]) + more


def _read_npz(path: Path) -> tuple[RawSplit, RawSplit | None]:
    # Opened here, since numpy leaves a file that it opened itself open when the archive turns out to be broken.
    with path.open("rb") as stream:
        try:
            archive = np.load(stream, allow_pickle=False)
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: is not a NumPy archive that can be read; save it with numpy.savez") from error
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(f"{path}: holds a single array; save it with numpy.savez(x_train=..., y_train=...)")
        train = _npz_split(archive, path, "train")
        has_test = "x_test" in archive.files or "y_test" in archive.files
        return train, _npz_split(archive, path, "test") if has_test else None


def _npz_split(archive: np.lib.npyio.NpzFile, path: Path, split: str) -> RawSplit:
    x_name, y_name = f"x_{split}", f"y_{split}"
    x, y = _npz_array(archive, path, x_name), _npz_array(archive, path, y_name)
    return RawSplit(x, y, str(path), x_name, y_name)


def _npz_array(archive: np.lib.npyio.NpzFile, path: Path, name: str) -> np.ndarray:
    if name not in archive.files:
        raise DataError(f"{path}: has no array {name}, only {shown(archive.files)}; save it under that name")
    try:
        # numpy hands a member that is not an array back as bytes.
        return np.asarray(archive[name])
    except (ValueError, EOFError, OSError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        fault = "holds Python objects" if "Object arrays" in str(error) else f"is damaged ({first_line(error)})"
        raise DataError(f"{path}: {name} {fault}; save it again as an array of numbers") from error


def _read_csv(path: Path, label: str | None) -> RawSplit:
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            header = next(csv.reader(stream, strict=True), [])
            stream.seek(0)
            position = _label_position(path, header, label)
            cells = _csv_cells(path, stream, header)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path}: is not comma-separated text in UTF-8 ({first_line(error)}); save it as that"
        ) from error
    table = np.frombuffer(cells, dtype=np.float64).reshape(-1, len(header))
    return _table_split(path, header, position, np.delete(table, position, axis=1), table[:, position])


def _csv_cells(path: Path, stream: TextIO, header: list[str]) -> array[float]:
    """All cells below the header, row by row, in one flat array of doubles: far smaller than lists of floats."""
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
            cells.extend(map(float, row))
        except ValueError as error:
            column = next(i for i, cell in enumerate(row) if not _is_number(cell))
            raise DataError(
                f"{path}: line {rows.line_num}, column {header[column]!r} holds {row[column]!r}; "
                "every cell must be a number; encode or drop it"
            ) from error
    return cells


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_parquet(path: Path, label: str | None) -> RawSplit:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError(f"{path}: reading .parquet needs pyarrow; pip install 'dpltm[parquet]'") from error
    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
    except pa.ArrowException as error:
        raise DataError(
            f"{path}: is not a parquet file that can be read ({first_line(error)}); write it again"
        ) from error
    header = table.column_names
    position = _label_position(path, header, label)
    for name, column in zip(header, table.columns, strict=True):
        kind = column.type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise DataError(
                f"{path}: column {name!r} has type {kind}; every column must be numeric; encode or drop it"
            )
        if column.null_count:
            raise DataError(f"{path}: column {name!r} has {column.null_count} nulls; fill them or drop the column")
    columns = [column.to_numpy() for column in table.columns]
    labels = columns.pop(position)
    features = np.column_stack(columns) if columns else np.empty((len(labels), 0))
    return _table_split(path, header, position, features, labels)


def _label_position(path: Path, header: list[str], label: str | None) -> int:
    """Which column holds the labels."""
    if not header:
        raise DataError(f"{path}: is empty; expected a header line and records")
    if label is None:
        raise DataError(f"{path}: needs --label COLUMN to name the label column; it has {shown(header)}")
    if header.count(label) != 1:
        what = "has no such column" if label not in header else "has that column more than once"
        raise DataError(f"--label {label}: {path} {what}; it has {shown(header)}")
    return header.index(label)


def _table_split(path: Path, header: list[str], position: int, x: np.ndarray, y: np.ndarray) -> RawSplit:
    columns = tuple(header[:position] + header[position + 1 :])
    return RawSplit(x, y, str(path), "the feature table", f"column {header[position]!r}", columns)
