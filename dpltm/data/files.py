"""Reading ``.npz``, ``.csv`` and ``.parquet`` files into arrays; nothing in them is ever unpickled."""

from __future__ import annotations

import contextlib
import csv
import zipfile
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from dpltm.data.tokens import Layout, check_ragged, padded
from dpltm.errors import DataError

SUFFIXES = (".npz", ".csv", ".parquet")


@dataclass(frozen=True)
class RawSplit:
    """One split as read, before any check, with what messages need to name its parts.

    Attributes:
        x: features as stored.
        y: labels as stored; None where only records were asked for.
        source: file or dataset.
        x_name, y_name: what the source calls the two arrays.
        columns: names of the feature columns, where the source has them.
        label: name of the column of labels, where the source has it.
        ragged: of texts, the words and where each record's begin, which ``x`` was made from; they are what identifies it.
    """

    x: np.ndarray
    y: np.ndarray | None
    source: str
    x_name: str = "x_train"
    y_name: str = "y_train"
    columns: tuple[str, ...] | None = None
    label: str | None = None
    ragged: tuple[np.ndarray, np.ndarray] | None = None


def read_file(
    path: Path, label: str | None, option: str = "`dataset`", layout: Layout | None = None
) -> tuple[RawSplit, RawSplit | None]:
    """The training split of a file and, where the file has one, its test split.

    Args:
        path: an ``.npz``, ``.csv`` or ``.parquet`` file.
        label: the label column of a ``.csv`` or ``.parquet`` file; None for an ``.npz`` file.
        option: where ``path`` comes from, for messages.
        layout: what texts become; the usual one if None.

    Raises:
        DataError: the file is missing or is not what it claims to be, or ``label`` does not fit it.
    """
    with _reading(path, option) as suffix:
        if suffix == ".npz" and label is not None:
            raise DataError(f"`label` {label}: {path} is .npz and names its labels y_train; drop `label`")
        if suffix == ".npz":
            return _read_npz(path, layout or Layout())
        return (_read_csv if suffix == ".csv" else _read_parquet)(path, label), None


def read_records(path: Path, label: str | None, option: str = "`input`", layout: Layout | None = None) -> RawSplit:
    """The records of a file that needs no labels: ``x`` or ``x_test`` of an ``.npz``, else every column but ``label``.

    Texts of an ``.npz`` are ``values`` and ``offsets``, or ``values_test`` and ``offsets_test``.

    Args:
        path: an ``.npz``, ``.csv`` or ``.parquet`` file.
        label: a column of a ``.csv`` or ``.parquet`` file to leave out unread, or None.
        option: where ``path`` comes from, for messages.
        layout: what texts become; None where only quantities will do.

    Raises:
        DataError: as for ``read_file``.
    """
    with _reading(path, option) as suffix:
        if suffix == ".npz" and label is not None:
            raise DataError(f"`label` {label}: {path} is .npz and has no columns; drop `label`")
        if suffix == ".npz":
            return _read_npz_records(path, layout)
        return (_read_csv if suffix == ".csv" else _read_parquet)(path, label, labelled=False)


@contextlib.contextmanager
def _reading(path: Path, option: str) -> Iterator[str]:
    """The kind of a file that is there, by its suffix; a block in which the system's errors become one line."""
    suffix = path.suffix.lower()
    if path.is_dir():
        raise DataError(f"{option} {path}: is a folder; give a file in it that ends in .npz, .csv or .parquet")
    if suffix not in SUFFIXES:
        raise DataError(f"{option} {path}: unknown kind of file; give one that ends in .npz, .csv or .parquet")
    if not path.is_file():
        raise DataError(f"{option} {path}: no such file; correct the path")
    try:
        yield suffix
    except OSError as error:
        raise DataError(f"{option} {path}: cannot be read ({first_line(error)}); correct the file") from error


def read_test(path: Path, label: str | None, layout: Layout | None = None) -> RawSplit:
    """The test split that the file of ``test`` holds: ``x_test`` of an ``.npz`` if it has one, else all its records.

    Args:
        path: an ``.npz``, ``.csv`` or ``.parquet`` file.
        label: the column of labels of a ``.csv`` or ``.parquet`` file; None in an ``.npz``.
        layout: what texts become; None for the usual layout.

    Raises:
        DataError: as for ``read_file``.
    """
    whole, part = read_file(path, label, "`test`", layout)
    return part or whole


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def shown(names: Sequence[str], limit: int = 8) -> str:
    """Some names for a message, quoted."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(repr(n) for n in names[:limit]) + more


def _read_npz(path: Path, layout: Layout) -> tuple[RawSplit, RawSplit | None]:
    with _npz(path, "x_train=..., y_train=...") as archive:
        train = _npz_split(archive, path, "train", layout)
        has_test = any(f"{part}_test" in archive.files for part in ("x", "y", *_RAGGED))
        return train, _npz_split(archive, path, "test", layout) if has_test else None


def _read_npz_records(path: Path, layout: Layout | None) -> RawSplit:
    with _npz(path, "x=...") as archive:
        names = [name for name in ("x", "x_test", "values", "values_test") if name in archive.files]
        if len(names) > 1:
            raise DataError(f"{path}: has both {names[0]} and {names[1]}; keep the one with the records")
        if not names:
            raise DataError(
                f"{path}: has neither array x nor x_test, only {shown(archive.files)}; save the records as x"
            )
        if not names[0].startswith("values"):
            return RawSplit(_npz_array(archive, path, names[0]), None, str(path), names[0])
        if layout is None:
            raise DataError(f"{path}: holds texts ({names[0]}), where records of quantities belong; give those, as x")
        return _ragged(archive, path, names[0].removeprefix("values"), layout, None)


@contextlib.contextmanager
def _npz(path: Path, arrays: str) -> Iterator[np.lib.npyio.NpzFile]:
    """The archive, open; ``arrays`` is how to save one."""
    # Opened here, since numpy leaves a file that it opened itself open when the archive turns out to be broken.
    with path.open("rb") as stream:
        try:
            archive = np.load(stream, allow_pickle=False)
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: is not a NumPy archive that can be read; save it with numpy.savez") from error
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(f"{path}: holds a single array; save it with numpy.savez({arrays})")
        yield archive


def _npz_split(archive: np.lib.npyio.NpzFile, path: Path, split: str, layout: Layout) -> RawSplit:
    x_name, y_name = f"x_{split}", f"y_{split}"
    if any(f"{part}_{split}" in archive.files for part in _RAGGED):
        if x_name in archive.files:
            raise DataError(f"{path}: has both {x_name} and {_RAGGED[0]}_{split}; keep the one with the records")
        return _ragged(archive, path, f"_{split}", layout, _npz_array(archive, path, y_name))
    x, y = _npz_array(archive, path, x_name), _npz_array(archive, path, y_name)
    return RawSplit(x, y, str(path), x_name, y_name)


_RAGGED = ("values", "offsets")
"""The two arrays of texts."""


def _ragged(archive: np.lib.npyio.NpzFile, path: Path, suffix: str, layout: Layout, y: np.ndarray | None) -> RawSplit:
    """Texts as records of one length; what they take up is known to fit the file before it is taken."""
    names = _RAGGED[0] + suffix, _RAGGED[1] + suffix
    values, offsets = (_npz_array(archive, path, name) for name in names)
    check_ragged(values, offsets, str(path), names)
    if y is not None and y.shape != (len(offsets) - 1,):
        raise DataError(
            f"{path}: {names[1]} has {len(offsets) - 1} records but y{suffix} has shape {y.shape}; give one label a record"
        )
    x = padded(values, offsets, layout, str(path))
    return RawSplit(x, y, str(path), names[0], f"y{suffix}", ragged=(values, offsets))


def _npz_array(archive: np.lib.npyio.NpzFile, path: Path, name: str) -> np.ndarray:
    if name not in archive.files:
        raise DataError(f"{path}: has no array {name}, only {shown(archive.files)}; save it under that name")
    try:
        # numpy hands a member that is not an array back as bytes.
        return np.asarray(archive[name])
    except (ValueError, EOFError, OSError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        fault = "holds Python objects" if "Object arrays" in str(error) else f"is damaged ({first_line(error)})"
        raise DataError(f"{path}: {name} {fault}; save it again as an array of numbers") from error


def _read_csv(path: Path, label: str | None, labelled: bool = True) -> RawSplit:
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


def _read_parquet(path: Path, label: str | None, labelled: bool = True) -> RawSplit:
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
    position = _label_position(path, header, label, labelled)
    read = [at for at in range(len(header)) if labelled or at != position]
    for name, column in ((header[at], table.columns[at]) for at in read):
        kind = column.type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise DataError(
                f"{path}: column {name!r} has type {kind}; every column must be numeric; encode or drop it"
            )
        if column.null_count:
            raise DataError(f"{path}: column {name!r} has {column.null_count} nulls; fill them or drop the column")
    columns = [table.columns[at].to_numpy() for at in read]
    labels = columns.pop(position) if labelled and position is not None else None
    features = np.column_stack(columns) if columns else np.empty((table.num_rows, 0))
    return _table_split(path, header, position, features, labels)


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
