"""Files as arrays: ``.npz`` archives, texts, and tables; nothing in them is ever unpickled.

A text is word indices. Texts are stored as ``values`` and ``offsets``: record i is ``values[offsets[i]:offsets[i + 1]]``. A
value k from 1 up is the k-th word of a ranking by frequency, 0 a word that the ranking lacks. Which words there are, and in
which order, is a public input (privacy-model.md 1.4). A record becomes positions in a table, as keras has them and Bu et al.
(2020) after it: 0 is padding, 1 the start of a text, 2 a word outside the table, and word k is at k + 3. The last positions
are kept, shorter records are padded in front.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load as load_tensors

from dpltm.errors import DataError, InputError, first_line
from dpltm.records.dataset import RawSplit
from dpltm.records.input_parts import shown
from dpltm.records.split import Rows

if TYPE_CHECKING:
    from torch import Tensor


TABLES = (".csv", ".parquet", ".arrow")
SUFFIXES = (".npz", *TABLES)
"""Kinds of files, by :func:`suffix_of`."""

KINDS = ".npz, .csv (or .tsv, .csv.gz), .parquet or .arrow"
"""The same for messages."""

START, UNKNOWN, FIRST = 1, 2, 3
"""Positions of a text's start and of an unknown word; what is added to the rank of a known one. Padding is at 0."""

MAX_WORDS, LONGEST = 10_000_000, 100_000
"""Largest table and longest record that are taken; float32, which records reach a network in, is exact up to 2^24."""

MAX_POSITIONS = 2**30
"""Most positions of all records of a split together: a guard, for memory."""

POSITIONS = 2**20
"""Positions made at a time."""


@dataclass(frozen=True)
class Layout:
    """The public numbers that decide what a text becomes: the size of the table, and how many of its words are kept."""

    words: int = 10_000
    length: int = 256

    def __post_init__(self) -> None:
        for name, least, most in (("words", FIRST + 2, MAX_WORDS), ("length", 1, LONGEST)):
            if not least <= (value := getattr(self, name)) <= most:
                raise DataError(f"`{name}` {value}: must be {least} to {most:,}")


def suffix_of(path: Path) -> str:
    """Return what a file's name says that it is: ``.csv`` of a ``.tsv`` and a ``.csv.gz`` file as well, else its suffix."""
    return ".csv" if re.search(r"\.[ct]sv(\.gz)?$", path.name.lower()) else path.suffix.lower()


def stem_of(path: Path) -> str:
    """Return the name of a file without what says what it is: ``visits`` of ``visits.csv.gz``."""
    return re.sub(r"\.[ct]sv(\.gz)?$", "", path.name, flags=re.IGNORECASE) if suffix_of(path) == ".csv" else path.stem


@contextlib.contextmanager
def reading(path: Path, option: str) -> Iterator[str]:
    """Yield the kind of a file that is there; in the block the system's errors become one line."""
    kind = suffix_of(path)
    if kind not in SUFFIXES:
        raise DataError(f"{option} {path}: unknown kind of file; give one that ends in {KINDS}")
    if not path.is_file():
        raise DataError(f"{option} {path}: no such file; correct the path")
    try:
        yield kind
    except OSError as error:
        raise DataError(f"{option} {path}: cannot be read ({first_line(error)}); correct the file") from error


# archives

SYNTHETIC = ("lineage", "synthetic_origin")
"""Arrays of files of synthetic records that dpltm made before 0.3: they name the release behind the records."""

_RAGGED = ("values", "offsets")
"""The two arrays of texts."""

_DAMAGED = (
    *(ValueError, EOFError, OSError, MemoryError, RuntimeError, SyntaxError, TokenError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)
"""Errors of reading an array."""


def read_arrays(
    path: Path, label: str | None, layout: Layout, units: str | None = None
) -> tuple[RawSplit, RawSplit | None]:
    """Return the training split of an archive and, where it has one, its test split.

    ``label`` must be None: an archive has no columns. ``NAME_train`` of ``units`` NAME says whose each record is.
    """
    with _opened(path, label, "x_train=..., y_train=...") as arrays:
        train = arrays.split("train", layout, units)
        if any(name in arrays.names for name in SYNTHETIC):
            raise DataError(f"{path}: synthetic records that dpltm made before 0.3 are not read; make others")
        if not any(f"{part}_test" in arrays.names for part in ("x", "y", *_RAGGED)):
            return train, None
        return train, arrays.split("test", layout, units if f"{units}_test" in arrays.names else None)


def read_new_arrays(path: Path, label: str | None, layout: Layout | None) -> RawSplit:
    """Return records without labels: ``x`` or ``x_test``, or ``values`` and ``offsets`` (``_test``) of texts."""
    with _opened(path, label, "x=...") as arrays:
        names = [name for name in ("x", "x_test", "values", "values_test") if name in arrays.names]
        if len(names) != 1:
            raise DataError(f"{path}: has the arrays {shown(arrays.names)}; save the records as x, and no others")
        if not names[0].startswith("values"):
            return RawSplit(arrays[names[0]], None, str(path), names[0])
        if layout is None:
            raise DataError(f"{path}: holds texts ({names[0]}), where records of quantities belong; give those, as x")
        return arrays.texts(names[0].removeprefix("values"), layout, None)


@contextlib.contextmanager
def _opened(path: Path, label: str | None, arrays: str) -> Iterator[_Arrays]:
    """The archive, open; ``arrays`` is how to save one."""
    if label is not None:
        raise DataError(f"`label` {label}: {path} is an archive and has no columns; drop `label`")
    # Opened here, since numpy leaves a file that it opened itself open when the archive turns out to be broken.
    with path.open("rb") as stream:
        try:
            archive = np.load(stream, allow_pickle=False)
        except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: is not a NumPy archive that can be read; save it with numpy.savez") from error
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(f"{path}: holds a single array; save it with numpy.savez({arrays})")
        yield _Arrays(path, archive)


@dataclass(frozen=True)
class _Arrays:
    """Arrays of an archive, by name."""

    path: Path
    archive: np.lib.npyio.NpzFile

    @property
    def names(self) -> list[str]:
        return list(self.archive.files)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.names:
            raise DataError(f"{self.path}: has no array {name}, only {shown(self.names)}; save it under that name")
        try:
            return np.asarray(self.archive[name])  # numpy hands a member that is not an array back as bytes
        except _DAMAGED as error:
            raise DataError(f"{self.path}: {name} cannot be read ({first_line(error)}); save it as numbers") from error

    def split(self, split: str, layout: Layout, units: str | None) -> RawSplit:
        x_name, y_name = f"x_{split}", f"y_{split}"
        if not any(f"{part}_{split}" in self.names for part in _RAGGED):
            raw = RawSplit(self[x_name], self[y_name], str(self.path), x_name, y_name)
        elif x_name not in self.names:
            raw = self.texts(f"_{split}", layout, self[y_name])
        else:
            raise DataError(f"{self.path}: has both {x_name} and {_RAGGED[0]}_{split}; keep the one with the records")
        if units is None:
            return raw
        name = f"{units}_{split}"
        if name not in self.names or name in (raw.x_name, raw.y_name):
            beside = f"no array {name} beside its records, only {shown(self.names)}"
            raise DataError(f"`unit_column` {units}: {self.path} has {beside}")
        return replace(raw, units=self[name], units_name=units)

    def texts(self, suffix: str, layout: Layout, y: np.ndarray | None) -> RawSplit:
        """Texts as records of one length; what they take up is known to fit the file before it is taken."""
        names, path = tuple(name + suffix for name in _RAGGED), str(self.path)
        values, offsets = (self[name] for name in names)
        right = all(array.dtype.kind in "iu" and array.ndim == 1 for array in (values, offsets)) and len(offsets) > 1
        right = right and (offsets[0], offsets[-1], values.min(initial=0) >= 0) == (0, len(values), True)
        if not right or (offsets[1:] < offsets[:-1]).any():
            ranks = f"{names[0]} must be one row of ranks of words, whole numbers from 0 up"
            raise DataError(
                f"{path}: {ranks}, and {names[1]} rise from 0 to their number, one entry more than records"
            )
        x = padded(values, offsets, layout, path)
        rows = Rows(x, np.empty(0) if y is None else y, _ragged=(values, offsets))
        return RawSplit(x, y, path, names[0], f"y{suffix}", rows=rows)


# texts


def padded(values: np.ndarray, offsets: np.ndarray, layout: Layout, where: str) -> np.ndarray:
    """Return texts as records of one length, ``(records, layout.length)`` int32, each by itself."""
    records = len(offsets) - 1
    if records * layout.length > MAX_POSITIONS:
        raise DataError(f"{where}: {records:,} texts of {layout.length:,} words are too many; lower `length`")
    padded_rows = np.zeros((records, layout.length), dtype=np.int32)
    ends, starts = offsets[1:].astype(np.int64), offsets[:-1].astype(np.int64)
    back = np.arange(-layout.length, 0)
    for first in range(0, records, step := max(1, POSITIONS // layout.length)):
        rows = slice(first, first + step)
        at = ends[rows, None] + back  # where in values the word of each place is
        in_row = at >= starts[rows, None]
        words = values[at[in_row]]
        in_table = (words >= 1) & (words < layout.words - FIRST)
        padded_rows[rows][in_row] = np.where(in_table, words, 0).astype(np.int32) + np.where(in_table, FIRST, UNKNOWN)
        padded_rows[rows][at == starts[rows, None] - 1] = START
    return padded_rows


def bundled_tensors(name: str, digest: str) -> dict[str, np.ndarray]:
    """Return the tensors of a file that comes with the package; DataError if its SHA-256 (hex) is not ``digest``."""
    try:
        body = resources.files("dpltm.features").joinpath(name).read_bytes()
    except OSError:
        body = b""
    if hashlib.sha256(body).hexdigest() != digest:
        raise DataError(f"{name}, which comes with dpltm, is not what was bundled; install dpltm again")
    tensors: dict[str, np.ndarray] = load_tensors(body)
    return tensors


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name; InputError if it cannot be read, or is none."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise InputError(f"`start`: {path} cannot be read ({first_line(error)}); write it by safetensors") from None


def file_digest(path: str | Path) -> str:
    """Return the SHA-256 (hex) of a file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
