"""What kernels of a linear layer compute with: its live coordinates, and what the last pass left behind."""

from __future__ import annotations

import warnings
from functools import cached_property

import torch
from torch import Tensor, nn

from dpltm.gradients.workspace import Workspace

BLOCK = 2**17
"""Numbers at a time in products whose operands are made for them, so that these stay in the caches of a processor."""


class Operands:
    """One weight under a mask, with the inputs and output gradients of a batch.

    Args:
        module: the layer.
        live: mask of its weight, ``(out, in)`` bool.

    Attributes:
        mask: ``live`` in the layer's dtype.
        index: of live coordinates in the flattened weight; ``rows`` and ``columns`` say the same.
        full: whether every coordinate is live.
        input: what the layer saw, ``(batch, in)``.
        gradient: of the loss at what it gave, ``(batch, out)``.
        space: memory that outlives a step.
    """

    def __init__(self, module: nn.Linear, live: Tensor) -> None:
        self.module, self._live = module, live
        self.mask = live.to(module.weight.dtype)
        self.rows, self.columns = live.nonzero(as_tuple=True)
        self.index = live.flatten().nonzero().squeeze(1)
        self.full = len(self.index) == live.numel()
        self.space = Workspace()
        self._patterns: dict[torch.dtype, Tensor] = {}
        self._inputs: Tensor | None = None
        self._gradients: Tensor | None = None
        self._aligned: Tensor | None = None
        self._norms: tuple[Tensor, Tensor] | None = None
        self.release()

    def release(self) -> None:
        """Frees what the last pass left; buffers keep their memory for the next batch to overwrite."""
        self.input = self.gradient = torch.empty(0)
        self._forget()

    def zero_records(self, bad: Tensor) -> None:
        """Makes what these records left, ``(batch,)`` bool, exactly zero."""
        self.input = self.input.masked_fill(bad[:, None], 0.0)
        self.gradient = self.gradient.masked_fill(bad[:, None], 0.0)
        self._forget()

    def _forget(self) -> None:
        self._inputs = self._gradients = self._aligned = self._norms = None

    @property
    def inputs(self) -> Tensor:
        """The transpose of ``input``, ``(in, batch)``: records side by side, as sparse products want them."""
        return self.turned(self.input) if self._inputs is None else self._inputs

    def turned(self, input: Tensor) -> Tensor:
        """The same of an input that is about to become that of the pass."""
        self._inputs = self.space.turn("inputs", input)
        return self._inputs

    @property
    def gradients(self) -> Tensor:
        """The transpose of ``gradient``, ``(out, batch)``."""
        if self._gradients is None:
            self._gradients = self.space.turn("gradients", self.gradient)
        return self._gradients

    @property
    def aligned(self) -> Tensor:
        """``input``, or a copy of it, in which every row begins as ``Workspace.rows`` has them."""
        if self._aligned is None:
            self._aligned = self.space.aligned("aligned", self.input)
        return self._aligned

    def scaled(self, factor: Tensor, turned: bool) -> Tensor:
        """Factor times output gradient, ``(batch, out)``, to be overwritten.

        Args:
            factor: ``(batch,)``, in the precision of the product.
            turned: whether the records of an output coordinate come one after the other in memory, and not the
                coordinates of a record.
        """
        if turned:
            return self.space.fill("turned", self.gradients, factor.dtype).mul_(factor).T
        records, width = self.gradient.shape
        rows = self.space.rows("scaled", records, width, factor.dtype, factor.device)
        return rows.copy_(self.gradient).mul_(factor[:, None])

    @property
    def norms(self) -> tuple[Tensor, Tensor]:
        """Of each record's input and output gradient, ``(batch,)`` each, in the layer's precision."""
        if self._norms is None:
            self._norms = (torch.linalg.vector_norm(self.input, dim=1), torch.linalg.vector_norm(self.gradient, dim=1))
        return self._norms

    @cached_property
    def bags(self) -> tuple[Tensor, Tensor]:
        """Live columns, row after row, and where each row begins."""
        return self._bags(self._live)

    @cached_property
    def bags_of_columns(self) -> tuple[Tensor, Tensor]:
        """Live rows, column after column, and where each column begins."""
        return self._bags(self._live.T)

    @staticmethod
    def _bags(live: Tensor) -> tuple[Tensor, Tensor]:
        counts = live.sum(1)
        return live.nonzero(as_tuple=True)[1], counts.cumsum(0) - counts

    def pattern(self, dtype: torch.dtype) -> Tensor:
        """The mask as a sparse matrix, whose values are anybody's to overwrite."""
        if dtype not in self._patterns:
            with warnings.catch_warnings():  # torch calls the layout beta; what is used is tested here
                warnings.simplefilter("ignore", UserWarning)
                self._patterns[dtype] = self.mask.to(dtype).to_sparse_csr()
        return self._patterns[dtype]
