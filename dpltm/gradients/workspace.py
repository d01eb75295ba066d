"""Memory that outlives a step."""

from __future__ import annotations

import math

import torch
from torch import Tensor

CHUNK = 400_000
"""Most per-record coordinates that element-wise filters hold at once (1.6 MB in float32: what fits a cache is quickest)."""


class Workspace:
    """Buffers that outlive a step: fresh memory costs more than what is computed in it. Batches may differ in size."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}
        self._taken: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}  # to look at a buffer anew takes time

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A contiguous tensor of this shape, holding whatever it holds, until ``name`` is taken again.

        Args:
            name: whose memory it is; a later shape of it may lie in the same memory.
            shape: of the tensor.
            dtype: of the tensor; each has memory of its own.
            device: that it lies on.
        """
        key = (name, dtype, device)
        taken = self._taken.get(key)
        if taken is None or taken.shape != shape:
            count = math.prod(shape)
            buffer = self._buffers.get(key)
            if buffer is None or len(buffer) < count:
                buffer = torch.empty(count + count // 4, dtype=dtype, device=device)
                self._buffers[key] = buffer
            taken = self._taken[key] = buffer[:count].view(shape)
        return taken

    def rows(self, name: str, rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The same for ``(rows, width)``, where every row begins at a multiple of 64 bytes.

        How a linear algebra library rounds may depend on where its operands begin; so these all begin alike.

        Args:
            name: see :meth:`take`.
            rows: how many.
            width: of each.
            dtype: of the tensor.
            device: that it lies on.
        """
        step = 64 // dtype.itemsize
        return self.take(name, (rows, -(-width // step) * step), dtype, device)[:, :width]

    def aligned(self, name: str, values: Tensor) -> Tensor:
        """``values`` if its rows begin as those of :meth:`rows` do, else a copy.

        Args:
            name: see :meth:`take`.
            values: ``(rows, width)``.
        """
        size = values.element_size()
        if values.stride(1) == 1 and values.stride(0) * size % 64 == values.data_ptr() % 64 == 0:
            return values
        return self.rows(name, len(values), values.shape[1], values.dtype, values.device).copy_(values)

    def turn(self, name: str, values: Tensor) -> Tensor:
        """A contiguous copy of the transpose of ``values``, a matrix; written so that torch takes all its threads.

        Args:
            name: see :meth:`take`.
            values: what is copied.
        """
        turned = self.take(name, (values.shape[1], values.shape[0]), values.dtype, values.device)
        turned.T.copy_(values)
        return turned

    def fill(self, name: str, values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """A contiguous copy of ``values``.

        Args:
            name: see :meth:`take`.
            values: what is copied.
            dtype: of the copy; None for that of ``values``.
        """
        return self.take(name, tuple(values.shape), dtype or values.dtype, values.device).copy_(values)
