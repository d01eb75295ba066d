"""The records of a step, read by index, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dpltm.errors import InputError
from dpltm.randomness.sampling import LIMIT
from dpltm.records.made_up import filled_up
from dpltm.records.split import Rows


@dataclass(frozen=True)
class Batch:
    """Some of the records that entered a step, with ``keys`` ``(rows,)`` int64 of what a network draws for each, if it does.

    Attributes:
        chunks: rows of one chunk each that has few enough records for a float32 sum; None where there are no chunks.
        groups: number of rows of each group, whose mean gradient is filtered; None where every row is by itself.
    """

    x: Tensor
    y: Tensor
    chunks: tuple[slice, ...] | None = None
    groups: tuple[int, ...] | None = None
    keys: Tensor | None = None


class Records:
    """Records, read by index a batch at a time and converted on the way.

    Args:
        x: features ``(n, ...)`` of any dtype, a tensor or an array.
        dtype: what features become that are neither 32- nor 64-bit whole numbers (those are tokens, and stay).
        prepare: scales rows as stored, or maps them to features, in place of ``dtype``: each row alone. It is given
            ``PREPARED`` rows at a time, filled up by zeros.
        persons: the places of each person's records, where a person is the unit (``units.places_of_persons``).
        read: the same records as they were read, which have a public hash; None where there are none.
    """

    def __init__(
        self,
        x: Tensor | np.ndarray,
        y: Tensor | np.ndarray,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        prepare: Callable[[Tensor], Tensor] | None = None,
        persons: Sequence[np.ndarray] | None = None,
        read: Rows | None = None,
    ) -> None:
        x, y = (values if isinstance(values, (Tensor, np.ndarray)) else np.asarray(values) for values in (x, y))
        if len(x) != len(y):
            raise InputError(f"x, y: {len(x)} records and {len(y)} labels; give one label a record")
        self._x = x
        self._y = y
        self._dtype = dtype
        self._device = torch.device(device)
        self._prepare = prepare
        self.persons, self.rows, self._read = persons, len(x), read

    def __len__(self) -> int:
        return self.rows if self.persons is None else len(self.persons)

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        """Return the features of the records at some places, ready for the model."""
        return self.take(np.arange(*index.indices(self.rows)) if isinstance(index, slice) else index.numpy())[0]

    def parts(self, count: int) -> np.ndarray:
        """Return which of so many parts each record is in, ``(n,)``; InputError where one is empty, or there is no hash."""
        if self._read is None or len(self._read) != len(self) or self.persons is not None:
            raise InputError("`noise`: banded takes single records that have a public hash; take `noise` secure")
        parts = self._read.public_hashes() % count
        if len(np.unique(parts)) < count:
            raise InputError(f"`noise`: a part of {count}, one for each band, has no records; ask for fewer bands")
        return parts

    def take(self, index: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the records at ``index``, ready for the model."""
        return self._ready(_rows(self._x, index), _rows(self._y, index))

    def _ready(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = _in_shape(self._prepare, x) if self._prepare is not None else _plain(x, self._dtype)
        y = _plain(y, self._dtype) if y.is_floating_point() else y.long()
        return x.to(self._device), y.to(self._device)

    def batches(
        self, index: np.ndarray, rows: int, chunks: Sequence[int] | None = None, keys: np.ndarray | None = None
    ) -> Iterator[Batch]:
        """Yield the records at ``index``, at most ``rows`` at a time; none for no index. A chunk is cut by its size alone.

        ``keys`` are those of the records at ``index``, for what a network draws.
        """
        for start, stop, parts in _packed([len(index)] if chunks is None else chunks, rows):
            x, y = self.take(index[start:stop])
            yield Batch(x, y, None if chunks is None else parts, keys=self._keys(keys, start, stop))

    def groups(
        self, index: np.ndarray, rows: int, sizes: Sequence[int], keys: np.ndarray | None = None
    ) -> Iterator[Batch]:
        """Yield the records at ``index`` in whole groups: at most ``rows`` at a time, or one group that has more."""
        start, group = 0, list[int]()
        for size in (*(size for size in sizes if size), 0):  # the 0 ends the last batch
            if group and (size == 0 or sum(group) + size > rows):
                stop = start + sum(group)
                yield Batch(*self.take(index[start:stop]), None, tuple(group), self._keys(keys, start, stop))
                start, group = stop, []
            group.append(size)

    def _keys(self, keys: np.ndarray | None, start: int, stop: int) -> Tensor | None:
        return None if keys is None else torch.from_numpy(keys[start:stop]).to(self._device)


class ByIndex(Protocol):
    """Inputs that are prepared as they are read."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor | slice) -> Tensor: ...


Inputs = Tensor | ByIndex
"""``(n, features)``, in memory or a batch at a time."""


def _packed(chunks: Sequence[int], rows: int) -> Iterator[tuple[int, int, tuple[slice, ...]]]:
    """Chunks in batches of at most ``rows``: where each batch begins and ends, and its rows that float32 may sum."""
    start = stop = 0
    pieces: list[slice] = []
    for size in chunks:
        for done in range(0, size, rows):
            length = min(rows, size - done)
            if stop + length > start + rows:
                yield start, stop, tuple(pieces)
                start, pieces = stop, []
            if size <= LIMIT:
                pieces.append(slice(stop - start, stop - start + length))
            stop += length
    if stop > start:
        yield start, stop, tuple(pieces)


def _rows(values: Tensor | np.ndarray, index: np.ndarray) -> Tensor:
    if isinstance(values, Tensor):
        return values[torch.from_numpy(index).to(values.device)]
    return torch.from_numpy(np.ascontiguousarray(values[index], values.dtype.newbyteorder("=")))


def _plain(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.long() if values.dtype in (torch.int32, torch.int64) else values.to(dtype)


PREPARED = 128
"""Rows that ``prepare`` is given, always: how many there are, and where, may decide how a library rounds."""


def _in_shape(prepare: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    pieces_prepared = []
    for piece in rows.split(PREPARED) if len(rows) else (rows,):
        pieces_prepared.append(prepare(filled_up(piece, PREPARED))[: len(piece)])
    if len(pieces_prepared) == 1:
        return pieces_prepared[0]
    with torch.autocast(rows.device.type, enabled=False):  # in which float16 cannot be joined
        return torch.cat(pieces_prepared)
