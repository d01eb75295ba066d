"""One Linear layer under a mask: what a pass leaves behind, and the norms and sums that come from it.

With inputs A ``(batch, in)``, output gradients B ``(batch, out)`` and mask M ``(out, in)``, the gradient of record b is the
outer product of B_b and A_b on M. Where M is sparse and the layer large, the products below run over its live coordinates
alone: sparse matrix products for a first layer's forward pass and for the norms, a sampled dense product for the sum.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from dpltm.gradients import fused
from dpltm.gradients.calls import Call, only_call
from dpltm.gradients.layer import Map
from dpltm.gradients.workspace import CHUNK, Workspace

WORTH_COMPILING = 1000
"""Live weights of a layer from which on a compiled filter is worth its while."""

SPARSE_DENSITY, SPARSE_SIZE = 0.15, 20_000
"""Sparse kernels are quicker for layers at most this dense and at least this large."""

BLOCK = 128
"""Records at a time in products whose operands are made for them, so that these stay in the caches of a processor."""


class LinearLayer:
    """One ``nn.Linear`` called once a pass on one row per record, and what the last pass left. See ``Layer``.

    Args:
        name: of the module within the model.
        module: the layer.
        live_mask: live coordinates of every parameter of the model, none of frozen ones.
        compile: fuse element-wise filters.
    """

    def __init__(self, name: str, module: nn.Linear, live_mask: Mapping[str, Tensor], compile: bool = False) -> None:
        prefix = f"{name}." if name else ""
        weight_mask = live_mask[f"{prefix}weight"]
        self.module = module
        self.names: tuple[str, ...] = (f"{prefix}weight",)
        self.rows, self.columns = weight_mask.nonzero(as_tuple=True)
        self.sizes: tuple[int, ...] = (len(self.rows),)
        self.index = weight_mask.flatten().nonzero().squeeze(1)
        self.bias_index = None
        if module.bias is not None:
            self.bias_index = live_mask[f"{prefix}bias"].nonzero().squeeze(1)
            self.names, self.sizes = (*self.names, f"{prefix}bias"), (*self.sizes, len(self.bias_index))
        small = weight_mask.numel() < SPARSE_SIZE or len(self.rows) > SPARSE_DENSITY * weight_mask.numel()
        sparse = not small and len(self.rows) > 0 and (weight_mask.is_cuda or torch.backends.mkl.is_available())
        self.weight_mask = weight_mask.to(module.weight.dtype)
        self._pattern = _Pattern(weight_mask) if sparse else None
        self._compile = compile and len(self.rows) >= WORTH_COMPILING
        self._full = len(self.rows) == weight_mask.numel()
        self._space = Workspace()
        self.release()

    @property
    def sparse(self) -> bool:
        """Whether its products are sparse ones, the forward pass included."""
        return self._pattern is not None

    def release(self) -> None:
        """Frees what the last pass left; buffers keep their memory for the next batch to overwrite."""
        self.input = self.gradient = torch.empty(0)
        self._inputs: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        """What the module gives for ``input``, by a product as sparse as its weight if it is the first to see the records.

        Behind other layers the product would have to be differentiated, and gains nothing. Pruned weights count as zero.
        """
        module = self.module
        plain = input.dtype == module.weight.dtype and input.ndim == 2 and not input.requires_grad
        narrow = torch.is_autocast_enabled(input.device.type)
        if self._pattern is None or not plain or narrow or not torch.is_grad_enabled():
            return type(module).forward(module, input)
        with torch.no_grad():
            self._inputs = self._space.fill("inputs", input.T)  # which the norms and the sum go on from
            values = module.weight.flatten().index_select(0, self.index)
            output = self._pattern.times(values, self._inputs)
            if module.bias is not None:
                output += module.bias[:, None]
        return output.T.requires_grad_()

    def take(self, calls: Sequence[Call], records: int) -> None:
        """Takes what the layer saw and the loss's gradient at what it gave.

        Raises:
            InputError: it was not called once, on one row per record.
        """
        seen, gradient = only_call(calls, self.names[0], records, dimensions=2)
        dtype = self.module.weight.dtype
        self.input = seen.to(dtype)
        shape = (records, len(self.module.weight))
        self.gradient = self.input.new_zeros(shape) if gradient is None else gradient.to(dtype)

    def extremes(self) -> list[Tensor]:
        # no magnitude is above the root of the sum of squares, which is infinite or NaN where one of them is
        return [torch.dot(flat, flat).sqrt() for flat in (self.input.flatten(), self.gradient.flatten())]

    def peak(self) -> Tensor:
        return torch.maximum(self.input.abs().amax(1), self.gradient.abs().amax(1))

    def zero_records(self, bad: Tensor) -> None:
        self.input, self._inputs = self.input.masked_fill(bad[:, None], 0.0), None
        self.gradient = self.gradient.masked_fill(bad[:, None], 0.0)

    @property
    def inputs(self) -> Tensor:
        """The transpose of ``input``, ``(in, batch)``, laid out as the sparse products want it."""
        if self._inputs is None:
            self._inputs = self._space.fill("inputs", self.input.T)
        return self._inputs

    def squared_norms(self) -> Tensor:
        if self.gradient.is_cuda:  # float32 products may be of less than float32 there (TF32), and float64 is at hand
            return self.wide_squared_norms(
                torch.ones(len(self.gradient), dtype=torch.bool, device=self.gradient.device)
            )
        if self._full:  # the norm of an outer product
            squares = self.gradient.square()
            total = squares.sum(1) * torch.linalg.vector_norm(self.input, dim=1).square()
        elif self._pattern is None:
            squares = self.gradient.square()
            total = torch.cat([self._masked(squares[rows], self.input[rows]) for rows in _blocks(len(squares))])
        else:
            squares = self._space.fill("gradient", self.gradient.T).square_().T
            inputs = self._space.take("squares", tuple(self.inputs.shape), self.inputs.dtype, self.inputs.device)
            torch.mul(self.inputs, self.inputs, out=inputs)
            total = self._pattern.product(inputs, self._space).mul_(squares.T).sum(0)
        if self.bias_index is None:
            return total
        whole = len(self.bias_index) == squares.shape[1]
        return total + (squares if whole else squares.index_select(1, self.bias_index)).sum(1)

    def _masked(self, squares: Tensor, input: Tensor) -> Tensor:
        """The same of some records under a dense mask: the product is taken on the side where less comes out."""
        if squares.shape[1] < input.shape[1]:
            return ((input.square() @ self.weight_mask.T) * squares).sum(1)
        return ((squares @ self.weight_mask) * input.square()).sum(1)

    def wide_squared_norms(self, rows: Tensor) -> Tensor:
        squares = self.gradient[rows].double().square()
        total = ((squares @ self.weight_mask.double()) * self.input[rows].double().square()).sum(1)
        if self.bias_index is not None:
            total = total + squares[:, self.bias_index].sum(1)
        return total

    def weighted_sum(self, factor: Tensor) -> Tensor:
        scaled = self._space.fill("scaled", self.gradient.T, torch.float64).mul_(factor)  # (out, batch)
        if self._pattern is None:
            total = torch.zeros(self.weight_mask.shape, dtype=torch.float64, device=factor.device)
            for rows in [slice(None)] if factor.is_cuda else _blocks(len(factor)):
                total.addmm_(scaled[:, rows], self.input[rows].double())
            weight = total.flatten() if self._full else total.flatten().index_select(0, self.index)
        else:
            inputs = self._space.fill("wide", self.inputs, torch.float64).T
            weight = self._pattern.sampled(scaled, inputs)
        if self.bias_index is None:
            return weight
        return torch.cat([weight, scaled.sum(1)[self.bias_index]])

    def mapped_squares(self, factor: Tensor, map: Map) -> Tensor:
        total = torch.zeros(len(factor), dtype=torch.float64, device=factor.device)
        gradient = self._scaled(factor)
        if self._compile:
            total += fused.mapped_squares(map)(gradient, self.inputs, self.rows, self.columns, None)
        for part in self._mapped(gradient, map):
            total += part.square_().sum(0, dtype=torch.float64)
        return total

    def mapped_sum(self, factor: Tensor, map: Map, weight: Tensor | None) -> Tensor:
        """See :meth:`Layer.mapped_sum`."""
        narrow = None if weight is None else weight.to(self.gradient.dtype)
        gradient, parts = self._scaled(factor), []
        if self._compile:
            parts = [fused.mapped_sum(map)(gradient, self.inputs, self.rows, self.columns, narrow)]
        parts += [
            (part if narrow is None else part.mul_(narrow)).sum(1, dtype=torch.float64)
            for part in self._mapped(gradient, map)
        ]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64, device=factor.device)

    def _scaled(self, factor: Tensor) -> Tensor:
        """Factor times output gradient, ``(out, batch)``."""
        scaled = self._space.fill("scaled", self.gradient.T, torch.float64).mul_(factor)
        return self._space.fill("gradient", scaled, self.gradient.dtype)

    def _mapped(self, gradient: Tensor, map: Map) -> Iterator[Tensor]:
        """``map`` of gradient times input, ``(coordinates, batch)``, some live coordinates at a time; those of the weight
        only where nothing is compiled."""
        inputs, count = self.inputs, max(1, CHUNK // max(1, gradient.shape[1]))
        pairs = () if self._compile else zip(self.rows.split(count), self.columns.split(count), strict=True)
        for rows, columns in pairs:
            shape = (len(rows), gradient.shape[1])
            left, right = (
                self._space.take(side, shape, gradient.dtype, gradient.device) for side in ("left", "right")
            )
            torch.index_select(gradient, 0, rows, out=left)
            yield map(left.mul_(torch.index_select(inputs, 0, columns, out=right)))
        for rows in () if self.bias_index is None else self.bias_index.split(count):
            yield map(gradient.index_select(0, rows))


def _blocks(records: int) -> list[slice]:
    """Some records at a time."""
    return [slice(start, start + BLOCK) for start in range(0, max(records, 1), BLOCK)]


class _Pattern:
    """The live coordinates of a weight as compressed sparse rows."""

    def __init__(self, mask: Tensor) -> None:
        self._shape = tuple(mask.shape)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch calls the layout beta; what is used is tested here
            sparse = mask.to_sparse_csr()
        self._place = sparse.crow_indices().int(), sparse.col_indices().int()
        self._count = int(mask.sum())
        self._ones: dict[torch.dtype, Tensor] = {}

    def ones(self, dtype: torch.dtype) -> Tensor:
        """The mask itself."""
        if dtype not in self._ones:
            ones = torch.ones(self._count, dtype=dtype, device=self._place[0].device)
            self._ones[dtype] = torch.sparse_csr_tensor(*self._place, ones, self._shape, check_invariants=False)
        return self._ones[dtype]

    def times(self, values: Tensor, dense: Tensor) -> Tensor:
        """``weight @ dense`` for a weight with these values at its live coordinates."""
        weight = torch.sparse_csr_tensor(*self._place, values, self._shape, check_invariants=False)
        return weight @ dense

    def product(self, dense: Tensor, space: Workspace) -> Tensor:
        """``mask @ dense``."""
        out = space.take("product", (self._shape[0], dense.shape[1]), dense.dtype, dense.device)
        return torch.addmm(out, self.ones(dense.dtype), dense, beta=0.0, out=out)

    def sampled(self, left: Tensor, right: Tensor) -> Tensor:
        """``(left @ right)`` at the live coordinates alone."""
        return torch.sparse.sampled_addmm(self.ones(left.dtype), left, right, beta=0.0).values()
