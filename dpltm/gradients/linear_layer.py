"""One Linear layer under a mask: what a pass leaves behind, and the norms and sums that come from it.

With inputs A ``(batch, in)``, output gradients B ``(batch, out)`` and mask M ``(out, in)``, the gradient of record b is the
outer product of B_b and A_b on M. It is never written out. Three kernels compute norms and sums from A, B and M, and each is
right everywhere: ``dense`` takes products of whole matrices, and throws away what is not live; ``sparse`` goes over live
coordinates alone; ``float64`` is dense with every sum in float64. ``kernel_for`` says which.
"""

from __future__ import annotations

import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache

import torch
from torch import Tensor, nn

from dpltm.gradients.layer import CHUNK, Call, Map, Workspace, only_call, pieces
from dpltm.networks.full_precision import aligned
from dpltm.randomness.sampling import HIGHEST, LIMIT, held_in_float32, others

BLOCK = 2**17
"""Numbers at a time in products whose operands are made for them, so that these stay in the caches of a processor."""

SPARSE, NARROW, SMALL = 0.3, 32, 1024
"""Share of live weights up to which ``sparse`` is quicker, unless a side of the layer is narrower than ``NARROW``. Measured
on layers from 100 to 4,096 wide: at half of the weights dense products win, at a tenth they take two to four times as
long. A layer of up to ``SMALL`` weights takes no longer in float64."""

WORTH_COMPILING = 1000
"""Live weights of a layer from which on a compiled filter is worth its while."""


class Operands:
    """One weight under a mask ``(out, in)``, with inputs ``(batch, in)`` and output gradients ``(batch, out)``."""

    def __init__(self, module: nn.Linear, live: Tensor) -> None:
        self.module, self._live = module, live
        self.mask = live.to(module.weight.dtype)
        self.rows, self.columns = live.nonzero(as_tuple=True)
        self.index = live.flatten().nonzero().squeeze(1)
        self.full = len(self.index) == live.numel()
        self.space = Workspace()
        self._patterns: dict[torch.dtype, Tensor] = {}
        self.release()

    def release(self) -> None:
        """Free what the last pass left; buffers keep their memory for the next batch."""
        self.input = self.gradient = torch.empty(0)
        self.forget()

    def zero_records(self, bad: Tensor) -> None:
        self.input = self.input.masked_fill(bad[:, None], 0.0)
        self.gradient = self.gradient.masked_fill(bad[:, None], 0.0)
        self.forget()

    def forget(self) -> None:
        self._inputs: Tensor | None = None
        self._gradients: Tensor | None = None
        self._aligned: Tensor | None = None

    def cut(self, records: int) -> None:
        """Keep the first ``records`` rows."""
        self.input, self.gradient, self._aligned = self.input[:records], self.gradient[:records], None
        self._inputs, self._gradients = (
            None if values is None else values[:, :records] for values in (self._inputs, self._gradients)
        )

    @property
    def inputs(self) -> Tensor:
        """The transpose of ``input``, ``(in, batch)``: records side by side, as sparse products want them."""
        return self.turned(self.input) if self._inputs is None else self._inputs

    def turned(self, input: Tensor) -> Tensor:
        self._inputs = self.space.turn("inputs", input)
        return self._inputs

    @property
    def gradients(self) -> Tensor:
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
        """Factor ``(batch,)`` times output gradient, ``(batch, out)``, to be overwritten; records contiguous if
        ``turned``."""
        if turned:
            return self.space.fill("turned", self.gradients, factor.dtype).mul_(factor).T
        records, width = self.gradient.shape
        rows = self.space.rows("scaled", records, width, factor.dtype, factor.device)
        return rows.copy_(self.gradient).mul_(factor[:, None])

    def side_by_side(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Transposes of input and output gradient of the rows of a pass, ``(in, rows)`` and ``(out, rows)``, contiguous."""
        if rows.stop - rows.start == len(self.input):
            return self.inputs, self.gradients
        return self.space.turn("some inputs", self.input[rows]), self.space.turn("some gradients", self.gradient[rows])

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


# Products of whole matrices, of which what is not live is thrown away.


def dense_squared_norms(operands: Operands, rows: slice) -> Tensor:
    """Sum over j of (B^2 M)_j A_j^2, or over i of (A^2 M^T)_i B_i^2: the product is taken where less comes out."""
    input, gradient = operands.input[rows], operands.gradient[rows]
    if gradient.shape[1] < input.shape[1]:
        left, right, mask = input, gradient, operands.mask.T
    else:
        left, right, mask = gradient, input, operands.mask
    space, totals = operands.space, []
    for some in pieces(len(left), max(LIMIT, BLOCK // max(1, right.shape[1])), 16):
        part, other = left[some], right[some]
        squares = space.take("squares", tuple(part.shape), part.dtype, part.device)
        product = space.take("product", tuple(other.shape), other.dtype, other.device)
        torch.mm(torch.mul(part, part, out=squares), mask, out=product)
        totals.append(product.mul_(other).mul_(other).sum(1))
    return torch.cat(totals)


def dense_add(operands: Operands, scaled: Tensor, rows: slice, total: Tensor) -> None:
    """Add the product of ``scaled``, factors times output gradients, and inputs to ``total`` at live coordinates, in
    the precision of ``scaled``; its rows begin as any others (``Workspace``)."""
    space = operands.space
    product = space.take("product", tuple(operands.mask.shape), scaled.dtype, scaled.device)
    if scaled.dtype == operands.input.dtype:
        torch.mm(scaled.T, operands.aligned[rows], out=product)
    else:
        inputs = operands.input[rows]
        for some in _blocks(slice(0, len(scaled)), inputs.shape[1] if scaled.device.type == "cpu" else 0):
            right = space.fill("chunk", inputs[some], scaled.dtype)
            product.addmm_(scaled[some].T, right, beta=float(some.start > 0))
    total += product.view(-1) if operands.full else product.view(-1).index_select(0, operands.index)


def _blocks(rows: slice, width: int) -> Iterator[slice]:
    """Slices of these rows with about ``BLOCK`` numbers each; never fewer rows than a chunk."""
    count = max(LIMIT, BLOCK // width if width else rows.stop - rows.start)
    return (slice(start, min(start + count, rows.stop)) for start in range(rows.start, rows.stop, count))


# Products that go over live coordinates alone. ``torch.embedding_bag`` adds up rows of a table, as listed: a product with a
# sparse matrix, by code that torch generates for the processor at hand. Several times quicker than the sparse matrices of a
# linear algebra library.


def sparse_forward(operands: Operands, input: Tensor) -> Tensor:
    """Output of the module, ``(batch, out)``; pruned weights count as zero."""
    module = operands.module
    values = module.weight.detach().view(-1).index_select(0, operands.index)
    output = _times(operands.bags, operands.turned(input), values)
    if module.bias is not None:
        output += module.bias.detach()[:, None]
    rows = output.new_empty(output.shape[1], len(output))  # what follows goes over one record after the other
    rows.T.copy_(output)
    return rows


def sparse_squared_norms(operands: Operands, rows: slice) -> Tensor:
    """The same as :func:`dense_squared_norms`; records side by side."""
    inputs, gradients = operands.side_by_side(rows)
    if len(gradients) < len(inputs):
        left, right, bags = inputs, gradients, operands.bags
    else:
        left, right, bags = gradients, inputs, operands.bags_of_columns
    squares = operands.space.take("squares", tuple(left.shape), left.dtype, left.device)
    return _times(bags, torch.mul(left, left, out=squares)).mul_(right).mul_(right).sum(0)


def sparse_add(operands: Operands, scaled: Tensor, rows: slice, total: Tensor) -> None:
    """The same as :func:`dense_add` over live coordinates alone."""
    left = operands.space.fill("left", scaled.T)
    right = operands.space.fill("chunk", operands.inputs[:, rows], scaled.dtype)
    pattern = operands.pattern(scaled.dtype)
    products = pattern.values().zero_()  # one dot product each; what is there would be multiplied by beta
    torch.sparse.sampled_addmm(pattern, left, right.T, beta=0.0, out=pattern)
    total += products


def _times(bags: tuple[Tensor, Tensor], dense: Tensor, values: Tensor | None = None) -> Tensor:
    """A sparse matrix times a dense one; its values are ones, or in the order of the bags."""
    return torch.embedding_bag(dense, *bags, False, 0, False, values)[0]


def kernel_for(operands: Operands, asked: str = "auto") -> str:
    """The name of the kernel for a layer: on a GPU, and for a network in float64, all is computed in float64 anyway."""
    weight = operands.module.weight
    if weight.is_cuda or weight.dtype != torch.float32 or not len(operands.index):
        return "float64"
    if asked != "auto":
        return asked
    if weight.numel() <= SMALL:
        return "float64"
    return "sparse" if len(operands.index) <= SPARSE * weight.numel() and min(weight.shape) >= NARROW else "dense"


# Element-wise filters fused with the products they are applied to, by ``torch.compile``: one pass, nothing written out.


def compiler_at_hand() -> bool:
    """True if there is a C++ compiler for torch to call."""
    compiler = os.environ.get("CXX")
    return any(shutil.which(name) for name in ((compiler,) if compiler else ("g++", "clang++", "c++")))


@lru_cache(maxsize=16)
def _fused_sum(map: Map) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]:
    def total(gradient: Tensor, inputs: Tensor, rows: Tensor, columns: Tensor, weight: Tensor) -> Tensor:
        return (map(gradient[rows] * inputs[columns]) * weight).sum(1, dtype=torch.float64)

    return torch.compile(total)


@lru_cache(maxsize=16)
def _fused_squares(map: Map) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    def total(gradient: Tensor, inputs: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        return map(gradient[rows] * inputs[columns]).square().sum(0, dtype=torch.float64)

    return torch.compile(total)


class LinearLayer:
    """One ``nn.Linear`` called once a pass on one row per record, and what the last pass left. See ``Layer``."""

    def __init__(
        self,
        name: str,
        module: nn.Linear,
        live_mask: Mapping[str, Tensor],
        compile: bool = False,
        kernels: str = "auto",
    ) -> None:
        prefix = f"{name}." if name else ""
        self.module = module
        self.operands = Operands(module, live_mask[f"{prefix}weight"])
        self.names: tuple[str, ...] = (f"{prefix}weight",)
        self.sizes: tuple[int, ...] = (len(self.operands.index),)
        self.bias_index = None
        if module.bias is not None:
            self.bias_index = live_mask[f"{prefix}bias"].nonzero().squeeze(1)
            self.names, self.sizes = (*self.names, f"{prefix}bias"), (*self.sizes, len(self.bias_index))
        self.kernel = kernel_for(self.operands, kernels)
        self._compile = compile and len(self.operands.index) >= WORTH_COMPILING

    def release(self) -> None:
        self.operands.release()

    def forward(self, input: Tensor) -> Tensor:
        """Output of the module, by a sparse product if the layer is the first to see the records: behind other layers
        that would have to be differentiated, and gains nothing. Pruned weights count as zero."""
        module = self.module
        plain = input.dtype == module.weight.dtype and not input.requires_grad
        plain = plain and input.ndim == 2 and input.shape[1] == module.in_features
        narrow = torch.is_autocast_enabled(input.device.type)
        if self.kernel != "sparse" or not plain or narrow or not torch.is_grad_enabled():
            return type(module).forward(module, input)
        with torch.no_grad():
            output = sparse_forward(self.operands, input)
        return output.requires_grad_()

    def begin(self, records: int) -> None:
        self._records = records

    def take(self, calls: Sequence[Call], rows: slice) -> None:
        """Take the layer's input and the gradient at its output; InputError unless called once, on one row per record."""
        records = rows.stop - rows.start
        seen, gradient = only_call(calls, self.names[0], records, dimensions=2)
        weight, operands = self.module.weight, self.operands
        if gradient is None:
            gradient = weight.new_zeros(records, len(weight))
        if records == self._records:
            # contiguous, as in a batch of several passes, whose number others decide
            operands.input, operands.gradient = aligned(seen.to(weight.dtype)), aligned(gradient.to(weight.dtype))
            return
        if rows.start == 0:
            operands.input, operands.gradient = (
                operands.space.rows(name, self._records, width, weight.dtype, weight.device)
                for name, width in (("all inputs", seen.shape[1]), ("all gradients", len(weight)))
            )
        operands.forget()  # what was turned was of one pass
        operands.input[rows], operands.gradient[rows] = seen, gradient

    def left(self, rows: slice) -> list[Tensor]:
        return [self.operands.input[rows], self.operands.gradient[rows]]

    def cut(self, records: int) -> None:
        self.operands.cut(records)

    def peak(self, rows: slice) -> Tensor:
        both = (values[rows] for values in (self.operands.input, self.operands.gradient))
        largest = [values.abs().amax(1) if values.shape[1] else values.new_zeros(len(values)) for values in both]
        return torch.maximum(largest[0], largest[1])

    def zero_records(self, bad: Tensor) -> None:
        self.operands.zero_records(bad)

    def measure(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Norms of what was seen and of the gradient at what was given. Where everything is live, their product is that of
        the weight's gradient."""
        operands, gradient = self.operands, self.operands.gradient[rows]
        norms = [torch.linalg.vector_norm(values, dim=1) for values in (operands.input[rows], gradient)]
        brought = torch.maximum(norms[0], norms[1])
        if gradient.is_cuda:  # float32 products may be of less than float32 there (TF32), and float64 is at hand
            return brought, self.wide_squared_norms(rows)
        if self.kernel == "sparse":
            total = sparse_squared_norms(operands, rows)
        elif operands.full:
            total = norms[0].square() * norms[1].square()
        else:
            total = dense_squared_norms(operands, rows)
        return brought, total if self.bias_index is None else total + self._of_bias(gradient.square())

    def wide_squared_norms(self, rows: slice) -> Tensor:
        operands = self.operands
        squares, seen = (values[rows].double().square() for values in (operands.gradient, operands.input))
        full = operands.full
        total = squares.sum(1) * seen.sum(1) if full else (squares @ operands.mask.double() * seen).sum(1)
        return total if self.bias_index is None else total + self._of_bias(squares)

    def _of_bias(self, squares: Tensor) -> Tensor:
        assert self.bias_index is not None
        all_live = len(self.bias_index) == squares.shape[1]
        return (squares if all_live else squares.index_select(1, self.bias_index)).sum(1)

    def add_weighted_sum(self, total: Tensor, factor: Tensor, chunks: Sequence[slice] | None = None) -> None:
        operands, gradient = self.operands, self.operands.gradient
        add, turned = (sparse_add, True) if self.kernel == "sparse" else (dense_add, False)
        of_weight, of_bias = total[: len(operands.index)], total[len(operands.index) :]
        bias = torch.zeros(gradient.shape[1], dtype=torch.float64, device=factor.device)
        most = math.inf
        if chunks is not None:
            most, factor = HIGHEST, held_in_float32(factor)
        narrow = [rows for rows in chunks or () if self.kernel != "float64" and rows.start < rows.stop]
        for dtype, parts in ((gradient.dtype, narrow), (torch.float64, others(narrow, len(factor)))):
            if parts:
                scaled = operands.scaled(factor.to(dtype), turned)
                if most < math.inf:
                    scaled.clamp_(-most, most)
                all_rows = sum(rows.stop - rows.start for rows in parts) == len(gradient)
                for rows in (slice(None),) if all_rows else parts:
                    bias += scaled[rows].sum(0, dtype=torch.float64)
                for rows in parts:  # each in its own precision, whatever that of the others is
                    add(operands, scaled[rows], rows, of_weight)
        if self.bias_index is not None:
            of_bias.add_(bias if len(self.bias_index) == len(bias) else bias.index_select(0, self.bias_index))

    def mapped_squares(self, rows: slice, factor: Tensor, map: Map) -> Tensor:
        total = torch.zeros(len(factor), dtype=torch.float64, device=factor.device)
        inputs, gradient = self._scaled(rows, factor)
        if self._compile:
            total += _fused_squares(map)(gradient, inputs, self.operands.rows, self.operands.columns)
        for part in self._mapped(inputs, gradient, map):
            total += part.square_().sum(0, dtype=torch.float64)
        return total

    def mapped_sum(self, rows: slice, factor: Tensor, map: Map, weight: Tensor | None, count: int) -> Tensor:
        narrow = None if weight is None else weight.to(self.operands.gradient.dtype)
        (inputs, gradient) = self._scaled(rows, factor)
        operands = self.operands
        parts = []
        if self._compile:  # for one shape
            counted = (torch.arange(len(factor), device=factor.device) < count).to(gradient.dtype)
            counted = counted if narrow is None else counted * narrow
            parts = [_fused_sum(map)(gradient, inputs, operands.rows, operands.columns, counted)]
        parts += [
            (part if narrow is None else part.mul_(narrow))[:, :count].sum(1, dtype=torch.float64)
            for part in self._mapped(inputs, gradient, map)
        ]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64, device=factor.device)

    def _scaled(self, rows: slice, factor: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and scaled output gradients of these rows, side by side."""
        inputs, gradient = self.operands.side_by_side(rows)
        scaled = self.operands.space.fill("scaled", gradient, torch.float64).mul_(factor)
        return inputs, self.operands.space.fill("gradient", scaled, gradient.dtype)

    def _mapped(self, inputs: Tensor, gradient: Tensor, map: Map) -> Iterator[Tensor]:
        """``map`` of gradient times input, ``(coordinates, rows)``, some live coordinates at a time; those of the
        weight only where nothing is compiled."""
        operands, count = self.operands, max(1, CHUNK // max(1, gradient.shape[1]))
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
