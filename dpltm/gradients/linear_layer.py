"""One Linear layer under a mask: what a pass leaves behind, and the norms and sums that come from it.

With inputs A ``(batch, in)``, output gradients B ``(batch, out)`` and mask M ``(out, in)``, the gradient of record b is the
outer product of B_b and A_b on M. Where M is sparse and the layer large, the products below run over its live coordinates
alone: a sparse matrix product for the norms, a sampled dense product for the sum. (A sparse forward pass was tried: what it
saves, its transposed copies cost.)
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from dpltm.errors import InputError
from dpltm.masks import Mask

CHUNK = 400_000
"""Most per-record coordinates held at once by element-wise filters (1.6 MB in float32: what fits a cache is quickest)."""

SPARSE_DENSITY, SPARSE_SIZE = 0.25, 20_000
"""Sparse kernels are quicker for layers at most this dense and at least this large."""


class LinearLayer:
    """One ``nn.Linear``: its live coordinates, and what the last pass left.

    Args:
        name: of the module within the model.
        module: the layer.
        mask: of the whole model.

    Attributes:
        live: number of live coordinates, bias included.
        input, gradient: what the layer saw, and the loss's gradient at its output, ``(batch, in)`` and ``(batch, out)``.
    """

    def __init__(self, name: str, module: nn.Linear, mask: Mask) -> None:
        prefix = f"{name}." if name else ""
        weight_mask = mask[f"{prefix}weight"]
        self.module = module
        self.shape = tuple(weight_mask.shape)
        self.rows, self.columns = weight_mask.nonzero(as_tuple=True)
        self.index = weight_mask.flatten().nonzero().squeeze(1)
        self.bias_index = None if module.bias is None else mask[f"{prefix}bias"].nonzero().squeeze(1)
        self.live = len(self.rows) + (0 if self.bias_index is None else len(self.bias_index))
        small = weight_mask.numel() < SPARSE_SIZE or len(self.rows) > SPARSE_DENSITY * weight_mask.numel()
        sparse = not small and torch.backends.mkl.is_available() and len(self.rows) > 0
        self.weight_mask = weight_mask.to(module.weight.dtype)
        self._pattern = _Pattern(weight_mask) if sparse else None
        self._full = len(self.rows) == weight_mask.numel()
        self._space = _Workspace()
        self.forget()

    def forget(self) -> None:
        """Frees what the last pass left; buffers keep their memory for the next batch to overwrite."""
        self.input = self.output = self.gradient = torch.empty(0)
        self._inputs: Tensor | None = None
        self._versions = (0, 0)

    def keep_forward(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Hook: remembers what the layer saw and gave."""
        if inputs[0].ndim != 2 or self.output.numel() > 0:
            raise InputError("model: each Linear layer must see one row per record and be used once in this version")
        if output.dtype != module.weight.dtype:
            raise InputError(f"model: a Linear layer computes in {output.dtype}; leave torch.autocast")
        self.input, self.output = inputs[0].detach(), output
        self._versions = (self.input._version, output._version)

    def keep_backward(self, gradient: Tensor) -> None:
        """Remembers the loss's gradient at the output, if nothing was overwritten in between.

        Raises:
            InputError: an in-place operation (``nn.ReLU(inplace=True)``) would make gradients wrong.
        """
        if (self.input._version, self.output._version) != self._versions:
            raise InputError(
                "model: an in-place operation overwrites what a Linear layer saw or gave; use inplace=False"
            )
        self.gradient = gradient

    def extremes(self) -> list[Tensor]:
        """Least and largest of all inputs and output gradients; NaN if one is NaN."""
        return [*self.input.aminmax(), *self.gradient.aminmax()]

    def reach(self) -> Tensor:
        """Largest magnitude among each record's inputs and output gradients, ``(batch,)``; NaN if one is NaN."""
        return torch.maximum(self.input.abs().amax(1), self.gradient.abs().amax(1))

    def drop(self, keep: Tensor) -> None:
        """Forgets every record outside ``keep``, whatever it holds."""
        self.input, self.gradient, self._inputs = self.input[keep], self.gradient[keep], None

    @property
    def inputs(self) -> Tensor:
        """The transpose of ``input``, ``(in, batch)``, laid out as the sparse products want it."""
        if self._inputs is None:
            self._inputs = self._space.fill("inputs", self.input.T)
        return self._inputs

    def squared_norms(self) -> Tensor:
        """Squared norm of each record's gradient on the live coordinates, ``(batch,)``, in the layer's precision."""
        if self._full:  # the norm of an outer product
            squares = self.gradient.square()
            total = squares.sum(1) * self.input.square().sum(1)
        elif self._pattern is None:
            squares = self.gradient.square()
            total = ((squares @ self.weight_mask) * self.input.square()).sum(1)
        else:
            squares = self._space.fill("gradient", self.gradient.T).square_().T
            inputs = self._space.fill("squares", self.inputs).square_()
            total = self._pattern.product(inputs, self._space).mul_(squares.T).sum(0)
        if self.bias_index is None:
            return total
        whole = len(self.bias_index) == squares.shape[1]
        return total + (squares if whole else squares.index_select(1, self.bias_index)).sum(1)

    def wide_squared_norms(self, rows: Tensor) -> Tensor:
        """The same in float64, for the records in ``rows`` alone."""
        squares = self.gradient[rows].double().square()
        total = ((squares @ self.weight_mask.double()) * self.input[rows].double().square()).sum(1)
        if self.bias_index is not None:
            total = total + squares[:, self.bias_index].sum(1)
        return total

    def weighted_sum(self, factor: Tensor) -> Tensor:
        """Sum over records of factor times gradient, at the live coordinates, in float64."""
        scaled = self._space.fill("scaled", self.gradient.T, torch.float64).mul_(factor)  # (out, batch)
        inputs = self._space.fill("wide", self.inputs, torch.float64).T
        if self._pattern is None:
            weight = (scaled @ inputs).flatten().index_select(0, self.index)
        else:
            weight = self._pattern.sampled(scaled, inputs)
        if self.bias_index is None:
            return weight
        return torch.cat([weight, scaled.sum(1)[self.bias_index]])

    def mapped(self, factor: Tensor, map: Callable[[Tensor], Tensor], use: Callable[[Tensor], Tensor]) -> Tensor:
        """``use`` of ``map`` of each live coordinate of factor times gradient, some coordinates at a time.

        Args:
            factor: ``(batch,)``.
            map: the filter's map; may overwrite what it is given.
            use: from ``(coordinates, batch)`` to one value a coordinate; may look and return whatever it likes.
        """
        scaled = self._space.fill("scaled", self.gradient.T, torch.float64).mul_(factor)
        gradient, inputs = self._space.fill("gradient", scaled, self.gradient.dtype), self.inputs
        count = max(1, CHUNK // max(1, gradient.shape[1]))

        def chunk(rows: Tensor, columns: Tensor) -> Tensor:
            shape = (len(rows), gradient.shape[1])
            left = torch.index_select(gradient, 0, rows, out=self._space.take("left", shape, gradient.dtype))
            right = torch.index_select(inputs, 0, columns, out=self._space.take("right", shape, gradient.dtype))
            return left.mul_(right)

        parts = [
            use(map(chunk(rows, columns)))
            for rows, columns in zip(self.rows.split(count), self.columns.split(count), strict=True)
        ]
        biases = () if self.bias_index is None else self.bias_index.split(count)
        parts += [use(map(gradient.index_select(0, rows))) for rows in biases]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


class _Workspace:
    """Buffers that outlive a step: fresh memory costs more than what is computed in it. Batches may differ in size."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor of this shape, holding whatever it holds, until ``name`` is taken again."""
        count = math.prod(shape)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or len(buffer) < count:
            buffer = self._buffers[name, dtype] = torch.empty(count + count // 4, dtype=dtype)
        return buffer[:count].view(shape)

    def fill(self, name: str, values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """A contiguous copy of ``values``."""
        return self.take(name, tuple(values.shape), dtype or values.dtype).copy_(values)


class _Pattern:
    """The live coordinates of a weight as compressed sparse rows."""

    def __init__(self, mask: Tensor) -> None:
        self._shape = tuple(mask.shape)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch calls the layout beta; what is used is tested here
            sparse = mask.to_sparse_csr()
        self._place = sparse.crow_indices(), sparse.col_indices()
        self._count = int(mask.sum())
        self._ones: dict[torch.dtype, Tensor] = {}

    def ones(self, dtype: torch.dtype) -> Tensor:
        """The mask itself."""
        if dtype not in self._ones:
            ones = torch.ones(self._count, dtype=dtype)
            self._ones[dtype] = torch.sparse_csr_tensor(*self._place, ones, self._shape, check_invariants=False)
        return self._ones[dtype]

    def product(self, dense: Tensor, space: _Workspace) -> Tensor:
        """``mask @ dense``."""
        out = space.take("product", (self._shape[0], dense.shape[1]), dense.dtype)
        return torch.addmm(out, self.ones(dense.dtype), dense, beta=0.0, out=out)

    def sampled(self, left: Tensor, right: Tensor) -> Tensor:
        """``(left @ right)`` at the live coordinates alone."""
        return torch.sparse.sampled_addmm(self.ones(left.dtype), left, right, beta=0.0).values()
