"""What the engine asks of a part of a network after a pass: norms and sums of its per-record gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from dpltm.gradients.calls import Call

Map = Callable[[Tensor], Tensor]
"""An element-wise filter's map; may overwrite what it is given."""


class Layer(Protocol):
    """A part of a network that owns some parameters, under a mask.

    Between ``take`` and ``release`` it stands for the gradients of a batch, one for each record, at its live coordinates.

    Attributes:
        names: the parameters it owns.
        sizes: live coordinates of each of them; all values come in this order, row-major within each.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def take(self, calls: Sequence[Call], records: int) -> None:
        """Takes what the last pass left with this layer."""
        ...

    def release(self) -> None:
        """Frees it."""
        ...

    def extremes(self) -> list[Tensor]:
        """Some scalars, NaN or no smaller in magnitude than whatever the records bring."""
        ...

    def peak(self) -> Tensor:
        """Largest magnitude that a record brings, ``(batch,)``; NaN if anything is."""
        ...

    def zero_records(self, bad: Tensor) -> None:
        """Makes the gradients of these records, ``(batch,)`` bool, exactly zero, whatever they hold."""
        ...

    def squared_norms(self) -> Tensor:
        """Squared norm of each record's gradient, ``(batch,)``, in the layer's precision or better."""
        ...

    def wide_squared_norms(self, rows: Tensor) -> Tensor:
        """The same in float64, for the records in ``rows``, a mask over the batch, alone."""
        ...

    def add_weighted_sum(self, total: Tensor, factor: Tensor, chunks: Sequence[slice] | None = None) -> None:
        """Adds the sum over records of factor times gradient.

        Args:
            total: to which it is added, ``(live,)`` float64.
            factor: of each record, ``(batch,)`` float64.
            chunks: rows that may be summed in float32 together (see ``chunks``); None for a sum in float64.
        """
        ...

    def mapped_squares(self, factor: Tensor, map: Map) -> Tensor:
        """Squared norm of each record's mapped factor times gradient, ``(batch,)`` float64."""
        ...

    def mapped_sum(self, factor: Tensor, map: Map, weight: Tensor | None) -> Tensor:
        """Sum over records of ``weight (batch,)``, or 1, times mapped factor times gradient, ``(live,)`` float64.

        Args:
            factor: of each record's gradient, before the map, ``(batch,)``.
            map: of an element-wise filter.
            weight: of each record's mapped gradient, ``(batch,)``; None for 1.
        """
        ...


class ExplicitGradients:
    """What layers have in common whose gradients are written out: the squared norms of those very numbers are at hand.

    Attributes:
        _squares: squared norm of each record's gradient, ``(batch,)`` float64.
        _dtype: of the gradients.
    """

    _squares: Tensor
    _dtype: torch.dtype

    def extremes(self) -> list[Tensor]:
        return [self.peak().max()]

    def peak(self) -> Tensor:
        return self._squares.sqrt().to(self._dtype)  # infinite where the dtype cannot hold it

    def squared_norms(self) -> Tensor:
        return self._squares

    def wide_squared_norms(self, rows: Tensor) -> Tensor:
        return self._squares[rows]
