"""Arrays beyond memory: they lie in files, and in memory are the pages that somebody works on.

A file is mapped, so that an array of it is an array like any other. What its pages take up counts as this process's memory
until it lets go of them. So whoever goes through a large array does it by ``pieces``, or calls ``let_go`` now and then.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import tempfile
from collections.abc import Iterator
from typing import IO

import numpy as np
from numpy.typing import DTypeLike

from dpltm.errors import DataError
from dpltm.records.catalogue import cache_home

LARGE = 2**28
"""Bytes from which on an array stays in a file."""

AT_ONCE = 2**24
"""Bytes of an array that are worked on at once."""

GATHERED = 128
"""Rows that are picked out at once; with each, a system may map 2 MB around it."""


def room_for(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Return an array to be filled: in memory, or, from ``LARGE`` on, in a file of the cache folder that has no name.

    The file goes with the process, however that ends, and nobody else can open it.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size < LARGE:
        return np.empty(shape, dtype)
    with _unnamed_file(size) as file, file:
        if hasattr(os, "posix_fallocate"):  # a full disk says so now; when pages are written, it would kill
            os.posix_fallocate(file.fileno(), 0, size)
        return np.memmap(file, dtype, "w+", shape=shape)


@contextlib.contextmanager
def _unnamed_file(size: int, file: IO[bytes] | None = None) -> Iterator[IO[bytes]]:
    """Yield a file of the cache folder, or one of before, to which so many bytes are written in the block."""
    folder = cache_home()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        yield file or tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
    except OSError as error:
        raise DataError(
            f"{folder}: {size >> 20:,} MB of records cannot be kept there: {error.strerror}; make room, or point"
            " XDG_CACHE_HOME elsewhere"
        ) from None


class Growing:
    """Rows that come some at a time, and at last are an array: in memory, or in a file as that of ``room_for``."""

    def __init__(self, like: np.ndarray) -> None:
        """Begin an array of rows of the shape and the type of others."""
        self._values, self._rows = like[:0], 0
        self._file: IO[bytes] | None = None

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()  # a map of it stays

    def add(self, rows: np.ndarray) -> None:
        """Add some rows."""
        done, self._rows = self._rows, self._rows + len(rows)
        size = self._rows * math.prod(rows.shape[1:]) * rows.itemsize
        if size >= LARGE:
            with _unnamed_file(size, self._file) as self._file:
                for part in (self._values[:done], rows):
                    self._file.write(part.tobytes())
            self._values = rows[:0]
            return
        if self._rows > len(self._values):  # twice as much room, of which what is not used takes no memory
            larger = np.empty((2 * self._rows, *rows.shape[1:]), rows.dtype)
            larger[:done] = self._values[:done]
            self._values = larger
        self._values[done : self._rows] = rows

    def array(self) -> np.ndarray:
        """Return all rows, in an array that nobody writes to."""
        values = self._values[: self._rows]
        if self._file is not None:
            self._file.flush()
            values = np.memmap(self._file, values.dtype, "r", shape=(self._rows, *values.shape[1:]))
        values.flags.writeable = False
        return values


def filled(shape: tuple[int, ...], dtype: DTypeLike, rows: Iterator[np.ndarray]) -> np.ndarray:
    """Return an array of so many rows, taken some at a time: in memory, or in a file where it is large."""
    values, done = room_for(shape, dtype), 0
    for some in rows:
        values[done : done + len(some)] = some.reshape(len(some), *shape[1:])
        done += len(some)
        let_go(values)
    return values


def pieces(values: np.ndarray, rows: int | None = None) -> Iterator[np.ndarray]:
    """Yield views of so many consecutive rows, by default about ``AT_ONCE`` bytes; a mapped array's are let go again."""
    if rows is None:
        rows = max(1, AT_ONCE // max(1, values[:1].nbytes))
    for start in range(0, len(values), rows):
        yield values[start : start + rows]
        let_go(values)


def let_go(values: np.ndarray) -> None:
    """Have the system take back the pages of a mapped array, which it reads again when they are asked for.

    Nothing happens to an array in memory, nor to a map whose changes belong to this process alone: they would be lost.
    """
    shared, behind = False, values
    while isinstance(behind, np.ndarray):
        shared = isinstance(behind, np.memmap) and behind.mode != "c"
        behind = behind.base  # type: ignore[assignment]
    if shared and isinstance(behind, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        with contextlib.suppress(OSError):
            behind.madvise(mmap.MADV_DONTNEED)


def is_settled(values: np.ndarray) -> bool:
    """Return whether an array lies in a file and cannot be written to: it need not be copied to stay as it is."""
    behind: object = values
    while isinstance(behind, np.ndarray):
        behind = behind.base
    return isinstance(behind, mmap.mmap) and not values.flags.writeable


def copied(values: np.ndarray) -> np.ndarray:
    """Return the array in row-major order and native bytes, which nobody writes to; one that is so already stays."""
    plain = values.dtype.newbyteorder("=")
    if is_settled(values) and values.flags.c_contiguous and values.dtype == plain:
        return values
    copy = room_for(values.shape, plain)
    if values.ndim:
        for there, here in zip(pieces(copy), pieces(values), strict=True):
            there[...] = here
    else:
        copy[...] = values
    copy.flags.writeable = False
    return copy


def gathered(values: np.ndarray, index: np.ndarray, *, to_stay: bool = False) -> np.ndarray:
    """Return ``values[index]`` in native bytes; of a mapped array without keeping what lies around.

    Args:
        to_stay: whether what is picked out will be kept: then it lies in a file where it is large.
    """
    plain = values.dtype.newbyteorder("=")
    if values.nbytes < LARGE:
        return np.ascontiguousarray(values[index], plain)
    rows = (room_for if to_stay else np.empty)((len(index), *values.shape[1:]), plain)
    for start in range(0, len(index), GATHERED):
        rows[start : start + GATHERED] = values[index[start : start + GATHERED]]
        let_go(values)
    if to_stay:
        let_go(rows)
    return rows
