"""Reading ``.npz`` files, folders of ``.npy`` files, and tables into arrays; nothing in them is ever unpickled.

What is large, and stored as it is, is mapped: in memory are the parts that are worked on (``dpltm.records.mapped``).
"""

from __future__ import annotations

import contextlib
import json
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tokenize import TokenError
from typing import Protocol

import numpy as np

from dpltm.errors import ArtifactError, DataError, first_line
from dpltm.privacy.entry import Lineage, lineage_from_text, to_json
from dpltm.records.mapped import AT_ONCE, LARGE
from dpltm.records.raw import RawSplit, shown
from dpltm.records.tables import read_table
from dpltm.records.tokens import Layout, check_ragged, padded

TABLES = (".csv", ".parquet", ".arrow")
SUFFIXES = (".npz", *TABLES)

KINDS = ".npz, .csv, .parquet or .arrow"
"""The same for messages."""

PARTS = ("x_train", "y_train", "x_test", "y_test")
"""Arrays of an archive, or of a folder of ``NAME.npy`` files."""


def read_file(
    path: Path,
    label: str | None,
    option: str = "`dataset`",
    layout: Layout | None = None,
    units: str | None = None,
) -> tuple[RawSplit, RawSplit | None]:
    """The training split of a file and, where the file has one, its test split.

    Args:
        path: an ``.npz`` file, a folder of ``.npy`` files, or a table (``.csv``, ``.parquet``, ``.arrow``).
        label: the label column of a table; None for others.
        option: where ``path`` comes from, for messages.
        layout: what texts become; the usual one if None.
        units: the column, or the array without ``_train``, that says whose each record is; None where nothing is to.

    Raises:
        DataError: the file is missing or is not what it claims to be, or ``label`` does not fit it.
    """
    with reading(path, option) as kind:
        if kind in TABLES:
            return read_table(path, label, units=units), None
        if label is not None:
            raise DataError(f"`label` {label}: {path} is {kind} and names its labels y_train; drop `label`")
        return _read_npz(path, layout or Layout(), units)


def read_records(
    path: Path,
    label: str | None,
    option: str = "`input`",
    layout: Layout | None = None,
    spare: Sequence[str] = (),
) -> RawSplit:
    """The records of a file that needs no labels: ``x`` or ``x_test`` of an archive, else every column but ``label``.

    Texts of an ``.npz`` are ``values`` and ``offsets``, or ``values_test`` and ``offsets_test``.

    Args:
        path: as for ``read_file``.
        label: a column of a table to leave out unread, or None.
        option: where ``path`` comes from, for messages.
        layout: what texts become; None where only quantities will do.
        spare: columns of a table to leave out as well, where they are there.

    Raises:
        DataError: as for ``read_file``.
    """
    with reading(path, option) as kind:
        if kind in TABLES:
            return read_table(path, label, labelled=False, spare=spare)
        if label is not None:
            raise DataError(f"`label` {label}: {path} is {kind} and has no columns; drop `label`")
        return _read_npz_records(path, layout)


FOLDER = "a folder"


def kind_of(path: Path) -> str:
    """The suffix of a file; ``FOLDER`` of a folder of ``.npy`` files, and nothing of any other."""
    if not path.is_dir():
        return path.suffix.lower()
    return FOLDER if any((path / f"{name}.npy").is_file() for name in (*PARTS, "x")) else ""


@contextlib.contextmanager
def reading(path: Path, option: str) -> Iterator[str]:
    """The kind of a file that is there; a block in which the system's errors become one line."""
    kind = kind_of(path)
    if kind == "" and path.is_dir():
        raise DataError(
            f"{option} {path}: is a folder without x_train.npy; give one that has it, or a file in it that ends in {KINDS}"
        )
    if kind not in (FOLDER, *SUFFIXES):
        raise DataError(f"{option} {path}: unknown kind of file; give one that ends in {KINDS}")
    if kind != FOLDER and not path.is_file():
        raise DataError(f"{option} {path}: no such file; correct the path")
    try:
        yield kind
    except OSError as error:
        raise DataError(f"{option} {path}: cannot be read ({first_line(error)}); correct the file") from error


def read_test(path: Path, label: str | None, layout: Layout | None = None, units: str | None = None) -> RawSplit:
    """The test split that the file of ``test`` holds: ``x_test`` of an ``.npz`` if it has one, else all its records.

    Args:
        path: as for ``read_file``.
        label: the column of labels of a table; None for others.
        layout: what texts become; None for the usual layout.
        units: as for ``read_file``.

    Raises:
        DataError: as for ``read_file``.
    """
    whole, part = read_file(path, label, "`test`", layout, units)
    return part or whole


def _read_npz(path: Path, layout: Layout, units: str | None) -> tuple[RawSplit, RawSplit | None]:
    with _npz(path, "x_train=..., y_train=...") as archive:
        train = _with_units(_npz_split(archive, path, "train", layout), archive, path, "train", units)
        if OLD_ORIGIN in archive.files:
            raise DataError(f"{path}: written by dpltm before 0.3; make it again with dpltm synthesize")
        if LINEAGE in archive.files:
            train = _synthetic(train, *(_npz_array(archive, path, name) for name in (LINEAGE, "bounds", "classes")))
        has_test = any(f"{part}_test" in archive.files for part in ("x", "y", *_RAGGED))
        if not has_test:
            return train, None
        test = _npz_split(archive, path, "test", layout)
        return train, test if f"{units}_test" not in archive.files else _with_units(test, archive, path, "test", units)


LINEAGE, OLD_ORIGIN = "lineage", "synthetic_origin"
"""Array of a file of synthetic records that tells where they come from; and the one that did before 0.3."""

MAX_LINEAGE = 2**24
"""Bytes of a lineage."""


def lineage_array(lineage: Lineage) -> np.ndarray:
    """Return a lineage as an array of bytes, ``(n,)`` uint8: JSON."""
    return np.frombuffer(json.dumps(to_json(lineage)).encode(), dtype=np.uint8)


def read_lineage(stored: np.ndarray, where: str) -> Lineage:
    """Return what :func:`lineage_array` made.

    Args:
        stored: the array.
        where: what messages call the file.

    Raises:
        DataError: it is something else. It is never passed over: that would hide a release.
    """
    if stored.dtype != np.uint8 or stored.ndim != 1 or len(stored) > MAX_LINEAGE:
        raise DataError(f"{where}: its lineage is not JSON in bytes; make the file again")
    try:
        return lineage_from_text(stored.tobytes().decode())
    except (ArtifactError, UnicodeDecodeError) as error:
        raise DataError(f"{where}: its lineage is damaged ({first_line(error)}); make the file again") from None


def _synthetic(raw: RawSplit, lineage: np.ndarray, bounds: np.ndarray, classes: np.ndarray) -> RawSplit:
    """Synthetic records, with their lineage and public facts."""
    numbers = bounds.dtype.kind == "f" and bounds.shape == (2,) and np.isfinite(bounds).all()
    if not (numbers and bounds[0] < bounds[1] and classes.dtype.kind in "iu" and classes.shape == () and classes >= 2):
        raise DataError(f"{raw.source}: bounds and classes of synthetic records are damaged; make the file again")
    known = read_lineage(lineage, raw.source)
    if not known.paid:
        raise DataError(
            f"{raw.source}: synthetic records without the release that they come from; make the file again"
        )
    return replace(raw, lineage=known, facts=((float(bounds[0]), float(bounds[1])), int(classes)))


def _with_units(raw: RawSplit, archive: _Arrays, path: Path, split: str, units: str | None) -> RawSplit:
    """The split with what says whose its records are."""
    if units is None:
        return raw
    name = f"{units}_{split}"
    if name in (raw.x_name, raw.y_name) or name not in archive.files:
        others = [
            each for each in archive.files if each not in (raw.x_name, raw.y_name) and each.endswith(f"_{split}")
        ]
        there = f"only {shown(others)}; name one of them" if others else "nor any other; add it to the file"
        raise DataError(f"`unit_column` {units}: {path} has no array {name} beside its records, {there}")
    return replace(raw, units=_npz_array(archive, path, name), units_name=units)


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


class _Arrays(Protocol):
    """An archive: arrays by name."""

    @property
    def files(self) -> Sequence[str]: ...

    def __getitem__(self, name: str) -> np.ndarray: ...


class _Folder:
    """Files ``NAME.npy`` in a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.files = sorted(each.stem for each in path.glob("*.npy") if each.is_file())

    def __getitem__(self, name: str) -> np.ndarray:
        path = self._path / f"{name}.npy"
        found = np.load(path, mmap_mode="r" if path.stat().st_size >= LARGE else None, allow_pickle=False)
        if not isinstance(found, np.ndarray):
            found.close()
            raise ValueError("an archive of arrays, where one array belongs")
        return found


class _Archive:
    """An ``.npz`` file. Members that are large, and not compressed, are mapped."""

    def __init__(self, path: Path, members: np.lib.npyio.NpzFile) -> None:
        self._path, self._members, self.files = path, members, list(members.files)

    def __getitem__(self, name: str) -> np.ndarray:
        found = self._mapped(name)
        # numpy hands a member that is not an array back as bytes
        return np.asarray(self._members[name]) if found is None else found

    def _mapped(self, name: str) -> np.ndarray | None:
        archive = self._members.zip
        if archive is None or f"{name}.npy" not in archive.namelist():
            return None
        info = archive.getinfo(f"{name}.npy")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size < LARGE:
            return None
        with archive.open(info) as member:
            version = np.lib.format.read_magic(member)
            if version not in _HEADERS:
                return None
            shape, by_column, dtype = _HEADERS[version](member)
            start = member.tell()
            if dtype.hasobject:
                raise ValueError("Object arrays cannot be mapped")
            while member.read(AT_ONCE):  # to its end, where the checksum is compared
                pass
        with self._path.open("rb") as file:
            file.seek(info.header_offset)
            name_length, extra_length = struct.unpack("<26xHH", file.read(30))
        start += info.header_offset + 30 + name_length + extra_length
        return np.memmap(self._path, dtype, "r", start, shape, "F" if by_column else "C")


_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@contextlib.contextmanager
def _npz(path: Path, arrays: str) -> Iterator[_Arrays]:
    """The archive, or the folder, open; ``arrays`` is how to save one."""
    if path.is_dir():
        yield _Folder(path)
        return
    # Opened here, since numpy leaves a file that it opened itself open when the archive turns out to be broken.
    with path.open("rb") as stream:
        try:
            archive = np.load(stream, allow_pickle=False)
        except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: is not a NumPy archive that can be read; save it with numpy.savez") from error
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(f"{path}: holds a single array; save it with numpy.savez({arrays})")
        yield _Archive(path, archive)


def _npz_split(archive: _Arrays, path: Path, split: str, layout: Layout) -> RawSplit:
    x_name, y_name = f"x_{split}", f"y_{split}"
    if any(f"{part}_{split}" in archive.files for part in _RAGGED):
        if x_name in archive.files:
            raise DataError(f"{path}: has both {x_name} and {_RAGGED[0]}_{split}; keep the one with the records")
        return _ragged(archive, path, f"_{split}", layout, _npz_array(archive, path, y_name))
    x, y = _npz_array(archive, path, x_name), _npz_array(archive, path, y_name)
    return RawSplit(x, y, str(path), x_name, y_name)


_RAGGED = ("values", "offsets")
"""The two arrays of texts."""


def _ragged(archive: _Arrays, path: Path, suffix: str, layout: Layout, y: np.ndarray | None) -> RawSplit:
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


def _npz_array(archive: _Arrays, path: Path, name: str) -> np.ndarray:
    if name not in archive.files:
        raise DataError(f"{path}: has no array {name}, only {shown(archive.files)}; save it under that name")
    try:
        return archive[name]
    except _DAMAGED as error:
        fault = "holds Python objects" if "Object arrays" in str(error) else f"is damaged ({first_line(error)})"
        raise DataError(f"{path}: {name} {fault}; save it again as an array of numbers") from error


_DAMAGED = (
    *(ValueError, EOFError, OSError, MemoryError, RuntimeError, SyntaxError, TokenError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)
"""What reading an array may raise."""
