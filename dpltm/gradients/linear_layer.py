"""One Linear layer under a mask: what a pass leaves behind, and the norms and sums that come from it.

With inputs A ``(batch, in)``, output gradients B ``(batch, out)`` and mask M ``(out, in)``, the gradient of record b is the
outer product of B_b and A_b on M. It is never written out: a kernel computes norms and sums from A, B and M.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from dpltm.gradients import fused
from dpltm.gradients.calls import Call, only_call
from dpltm.gradients.kernels import FLOAT64, KERNELS
from dpltm.gradients.kernels.choice import AUTO, kernel_for
from dpltm.gradients.kernels.operands import Operands
from dpltm.gradients.kernels.sums import add_weighted_sum
from dpltm.gradients.layer import Map
from dpltm.gradients.workspace import CHUNK

WORTH_COMPILING = 1000
"""Live weights of a layer from which on a compiled filter is worth its while."""


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
        self.module = module
        self.operands = Operands(module, live_mask[f"{prefix}weight"])
        self.names: tuple[str, ...] = (f"{prefix}weight",)
        self.sizes: tuple[int, ...] = (len(self.operands.index),)
        self.bias_index = None
        if module.bias is not None:
            self.bias_index = live_mask[f"{prefix}bias"].nonzero().squeeze(1)
            self.names, self.sizes = (*self.names, f"{prefix}bias"), (*self.sizes, len(self.bias_index))
        self.kernel = FLOAT64
        self._compile = compile and len(self.operands.index) >= WORTH_COMPILING

    def choose(self, first: bool, asked: str = AUTO) -> None:
        """Settles the kernel. See ``kernel_for``."""
        self.kernel = kernel_for(self.operands, first, asked)

    def release(self) -> None:
        self.operands.release()

    def forward(self, input: Tensor) -> Tensor:
        """What the module gives for ``input``, by the kernel's product if the layer is the first to see the records.

        Behind other layers the product would have to be differentiated, and gains nothing. Pruned weights count as zero.
        """
        module, forward = self.module, KERNELS[self.kernel].forward
        plain = input.dtype == module.weight.dtype and not input.requires_grad
        plain = plain and input.ndim == 2 and input.shape[1] == module.in_features
        narrow = torch.is_autocast_enabled(input.device.type)
        if forward is None or not plain or narrow or not torch.is_grad_enabled():
            return type(module).forward(module, input)
        with torch.no_grad():
            output = forward(self.operands, input)
        return output.requires_grad_()

    def take(self, calls: Sequence[Call], records: int) -> None:
        """Takes what the layer saw and the loss's gradient at what it gave.

        Raises:
            InputError: it was not called once, on one row per record.
        """
        seen, gradient = only_call(calls, self.names[0], records, dimensions=2)
        dtype, operands = self.module.weight.dtype, self.operands
        operands.input = seen.to(dtype)
        shape = (records, len(self.module.weight))
        operands.gradient = operands.input.new_zeros(shape) if gradient is None else gradient.to(dtype)

    def extremes(self) -> list[Tensor]:
        return [norms.max() for norms in self.operands.norms]  # no magnitude is above the norm; NaN if one of them is

    def peak(self) -> Tensor:
        both = (self.operands.input, self.operands.gradient)
        largest = [rows.abs().amax(1) if rows.shape[1] else rows.new_zeros(len(rows)) for rows in both]
        return torch.maximum(largest[0], largest[1])

    def zero_records(self, bad: Tensor) -> None:
        self.operands.zero_records(bad)

    def squared_norms(self) -> Tensor:
        gradient = self.operands.gradient
        if gradient.is_cuda:  # float32 products may be of less than float32 there (TF32), and float64 is at hand
            return self._wide(gradient, self.operands.input)
        total = KERNELS[self.kernel].squared_norms(self.operands)
        return total if self.bias_index is None else total + self._of_bias(gradient.square())

    def wide_squared_norms(self, rows: Tensor) -> Tensor:
        return self._wide(self.operands.gradient[rows], self.operands.input[rows])

    def _wide(self, gradient: Tensor, input: Tensor) -> Tensor:
        squares, seen, operands = gradient.double().square(), input.double().square(), self.operands
        whole = operands.full
        total = squares.sum(1) * seen.sum(1) if whole else (squares @ operands.mask.double() * seen).sum(1)
        return total if self.bias_index is None else total + self._of_bias(squares)

    def _of_bias(self, squares: Tensor) -> Tensor:
        assert self.bias_index is not None
        whole = len(self.bias_index) == squares.shape[1]
        return (squares if whole else squares.index_select(1, self.bias_index)).sum(1)

    def add_weighted_sum(self, total: Tensor, factor: Tensor, chunks: Sequence[slice] | None = None) -> None:
        """See :meth:`Layer.add_weighted_sum`."""
        count = len(self.operands.index)
        bias = add_weighted_sum(KERNELS[self.kernel], self.operands, total[:count], factor, chunks)
        if self.bias_index is not None:
            total[count:].add_(bias if len(self.bias_index) == len(bias) else bias.index_select(0, self.bias_index))

    def mapped_squares(self, factor: Tensor, map: Map) -> Tensor:
        total = torch.zeros(len(factor), dtype=torch.float64, device=factor.device)
        gradient, operands = self._scaled(factor), self.operands
        if self._compile:
            total += fused.mapped_squares(map)(gradient, operands.inputs, operands.rows, operands.columns, None)
        for part in self._mapped(gradient, map):
            total += part.square_().sum(0, dtype=torch.float64)
        return total

    def mapped_sum(self, factor: Tensor, map: Map, weight: Tensor | None) -> Tensor:
        """See :meth:`Layer.mapped_sum`."""
        narrow = None if weight is None else weight.to(self.operands.gradient.dtype)
        gradient, operands, parts = self._scaled(factor), self.operands, []
        if self._compile:
            parts = [fused.mapped_sum(map)(gradient, operands.inputs, operands.rows, operands.columns, narrow)]
        parts += [
            (part if narrow is None else part.mul_(narrow)).sum(1, dtype=torch.float64)
            for part in self._mapped(gradient, map)
        ]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64, device=factor.device)

    def _scaled(self, factor: Tensor) -> Tensor:
        """Factor times output gradient, ``(out, batch)``."""
        gradient, space = self.operands.gradient, self.operands.space
        scaled = space.fill("scaled", gradient.T, torch.float64).mul_(factor)
        return space.fill("gradient", scaled, gradient.dtype)

    def _mapped(self, gradient: Tensor, map: Map) -> Iterator[Tensor]:
        """``map`` of gradient times input, ``(coordinates, batch)``, some live coordinates at a time; those of the weight
        only where nothing is compiled."""
        operands, count = self.operands, max(1, CHUNK // max(1, gradient.shape[1]))
        inputs = operands.inputs
        pairs = () if self._compile else zip(operands.rows.split(count), operands.columns.split(count), strict=True)
        for rows, columns in pairs:
            shape = (len(rows), gradient.shape[1])
            left, right = (
                operands.space.take(side, shape, gradient.dtype, gradient.device) for side in ("left", "right")
            )
            torch.index_select(gradient, 0, rows, out=left)
            yield map(left.mul_(torch.index_select(inputs, 0, columns, out=right)))
        for rows in () if self.bias_index is None else self.bias_index.split(count):
            yield map(gradient.index_select(0, rows))
