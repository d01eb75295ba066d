"""One Linear layer under a mask: what a pass leaves behind, and the norms and sums that come from it.

With inputs A ``(batch, in)``, output gradients B ``(batch, out)`` and mask M ``(out, in)``, the gradient of record b is the
outer product of B_b and A_b on M. It is never written out. Three kernels compute norms and sums from A, B and M, and each is
right everywhere: ``dense`` takes products of whole matrices, and throws away what is not live; ``sparse`` goes over live
coordinates alone; ``float64`` is dense with every sum in float64. ``kernel_for`` says which.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache

import torch
from torch import Tensor, nn

from dpltm.gradients.layer import CHUNK, Call, Layer, Map, Workspace, only_call, pieces
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


def kernel_for(layer: LinearLayer) -> str:
    """The name of the kernel for a layer: on a GPU, and for a network in float64, all is computed in float64 anyway."""
    weight, live = layer.module.weight, len(layer.index)
    if weight.is_cuda or weight.dtype != torch.float32 or not live or weight.numel() <= SMALL:
        return "float64"
    return "sparse" if live <= SPARSE * weight.numel() and min(weight.shape) >= NARROW else "dense"


def compiler_at_hand() -> bool:
    """True if there is a C++ compiler for torch to call."""
    compiler = os.environ.get("CXX")
    return any(shutil.which(name) for name in ((compiler,) if compiler else ("g++", "clang++", "c++")))


# Element-wise filters fused with the products they are applied to, by ``torch.compile``: one pass, nothing written out.


@lru_cache(maxsize=16)
def _fused(map: Map, squares: bool) -> Callable[..., Tensor]:
    """Sum over records of mapped coordinates times a weight; or over coordinates, of their squares."""

    def total(gradient: Tensor, inputs: Tensor, rows: Tensor, columns: Tensor, weight: Tensor) -> Tensor:
        mapped = map(gradient[rows] * inputs[columns])
        values, along = (mapped.square(), 0) if squares else (mapped * weight, 1)
        return values.sum(along, dtype=torch.float64)

    return torch.compile(total)


class LinearLayer(Layer):
    """One ``nn.Linear`` called once a pass on one row per record, and what that left: ``input`` ``(batch, in)`` and the
    loss's ``gradient`` at the output, ``(batch, out)``. See ``Layer``."""

    def __init__(self, name: str, module: nn.Linear, live_mask: Mapping[str, Tensor], compile: bool = False) -> None:
        prefix = f"{name}." if name else ""
        self.module = module
        self.modules: tuple[nn.Module, ...] = (module,)
        self._live = live_mask[f"{prefix}weight"]
        self.mask = self._live.to(module.weight.dtype)
        self.rows, self.columns = self._live.nonzero(as_tuple=True)
        self.index = self._live.flatten().nonzero().squeeze(1)
        self.full = len(self.index) == self._live.numel()
        self.names: tuple[str, ...] = (f"{prefix}weight",)
        self.sizes: tuple[int, ...] = (len(self.index),)
        self.bias_index = None
        if module.bias is not None:
            self.bias_index = live_mask[f"{prefix}bias"].nonzero().squeeze(1)
            self.names, self.sizes = (*self.names, f"{prefix}bias"), (*self.sizes, len(self.bias_index))
        self.kernel = kernel_for(self)
        self._compile = compile and len(self.index) >= WORTH_COMPILING
        self.space = Workspace()
        self._patterns: dict[torch.dtype, Tensor] = {}
        self.release()

    def release(self) -> None:
        self.input = self.gradient = torch.empty(0)
        self._copies: dict[str, Tensor] = {}  # of both, laid out otherwise

    def forward(self, input: Tensor) -> Tensor:
        """Output of the module, by a sparse product if the layer is the first to see the records (behind others that would
        have to be differentiated). Pruned weights count as zero."""
        module = self.module
        plain = input.dtype == module.weight.dtype and not input.requires_grad
        plain = plain and input.ndim == 2 and input.shape[1] == module.in_features
        narrow = torch.is_autocast_enabled(input.device.type)
        if self.kernel != "sparse" or not plain or narrow or not torch.is_grad_enabled():
            return type(module).forward(module, input)
        self._copies = {}
        with torch.no_grad():
            values = module.weight.detach().view(-1).index_select(0, self.index)
            output = _times(self._bags, self._turned("inputs", input), values)
            if module.bias is not None:
                output += module.bias.detach()[:, None]
            rows = output.new_empty(output.shape[1], len(output))  # what follows goes over one record after the other
            rows.T.copy_(output)
        return rows.requires_grad_()

    def begin(self, records: int) -> None:
        self._records = records

    def take(self, calls: Sequence[Call], rows: slice) -> None:
        records = rows.stop - rows.start
        seen, gradient = only_call(calls, self.names[0], records, dimensions=2)
        weight = self.module.weight
        if gradient is None:
            gradient = weight.new_zeros(records, len(weight))
        if records == self._records:
            # contiguous, as in a batch of several passes, whose number others decide
            self.input, self.gradient = aligned(seen.to(weight.dtype)), aligned(gradient.to(weight.dtype))
            return
        if rows.start == 0:
            self.input = self.space.rows("all inputs", (self._records, seen.shape[1]), weight)
            self.gradient = self.space.rows("all gradients", (self._records, len(weight)), weight)
        self._copies = {}  # of one pass
        self.input[rows], self.gradient[rows] = seen, gradient

    def left(self, rows: slice) -> list[Tensor]:
        return [self.input[rows], self.gradient[rows]]

    def cut(self, records: int) -> None:
        self.input, self.gradient = self.input[:records], self.gradient[:records]
        self._copies = {name: copy[:, :records] for name, copy in self._copies.items() if name != "aligned"}

    def zero_records(self, bad: Tensor) -> None:
        self.input, self.gradient = (values.masked_fill(bad[:, None], 0.0) for values in (self.input, self.gradient))
        self._copies = {}

    def measure(self, rows: slice) -> tuple[Tensor, Tensor]:
        """From norms of input and output gradient, whose product is the weight's where everything is live."""
        gradient = self.gradient[rows]
        norms = [torch.linalg.vector_norm(values, dim=1) for values in (self.input[rows], gradient)]
        brought = torch.maximum(norms[0], norms[1])
        if gradient.is_cuda:  # float32 products may be of less than float32 there (TF32), and float64 is at hand
            return brought, self.wide_squared_norms(rows)
        if self.kernel == "sparse":
            total = self._sparse_squared_norms(rows)
        elif self.full:
            total = norms[0].square() * norms[1].square()
        else:
            total = self._dense_squared_norms(rows)
        return brought, self._with_bias(total, gradient.square())

    def wide_squared_norms(self, rows: slice) -> Tensor:
        squares, seen = (values[rows].double().square() for values in (self.gradient, self.input))
        total = squares.sum(1) * seen.sum(1) if self.full else (squares @ self.mask.double() * seen).sum(1)
        return self._with_bias(total, squares)

    def _with_bias(self, total: Tensor, squares: Tensor) -> Tensor:
        if self.bias_index is None:
            return total
        all_live = len(self.bias_index) == squares.shape[1]
        return total + (squares if all_live else squares.index_select(1, self.bias_index)).sum(1)

    def add_weighted_sum(self, total: Tensor, factor: Tensor, chunks: Sequence[slice] | None = None) -> None:
        sparse, gradient = self.kernel == "sparse", self.gradient
        add = self._sparse_add if sparse else self._dense_add
        of_weight, of_bias = total[: len(self.index)], total[len(self.index) :]
        bias = torch.zeros(gradient.shape[1], dtype=torch.float64, device=factor.device)
        if chunks is not None:
            factor = held_in_float32(factor)
        narrow = [rows for rows in chunks or () if self.kernel != "float64" and rows.start < rows.stop]
        for dtype, parts in ((gradient.dtype, narrow), (torch.float64, others(narrow, len(factor)))):
            if parts:
                scaled = self._scaled(factor.to(dtype), sparse)
                if chunks is not None:
                    scaled.clamp_(-HIGHEST, HIGHEST)
                all_rows = sum(rows.stop - rows.start for rows in parts) == len(gradient)
                for rows in (slice(None),) if all_rows else parts:
                    bias += scaled[rows].sum(0, dtype=torch.float64)
                for rows in parts:  # each in its own precision, whatever that of the others is
                    add(scaled[rows], rows, of_weight)
        if self.bias_index is not None:
            of_bias.add_(bias if len(self.bias_index) == len(bias) else bias.index_select(0, self.bias_index))

    def _scaled(self, factor: Tensor, turned: bool) -> Tensor:
        """Factor times output gradient, ``(batch, out)``, to be overwritten; records contiguous if ``turned``."""
        if turned:
            gradients = self._turned("gradients", self.gradient)
            return self.space.fill("turned", gradients, factor.dtype).mul_(factor).T
        rows = self.space.rows("scaled", self.gradient.shape, self.gradient, factor.dtype)
        return rows.copy_(self.gradient).mul_(factor[:, None])

    # Copies of what a pass left, with records side by side: as sparse products and element-wise filters want them.

    def _turned(self, name: str, values: Tensor) -> Tensor:
        if name not in self._copies:
            self._copies[name] = self.space.turn(name, values)
        return self._copies[name]

    def _side_by_side(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Transposes of input and output gradient of the rows of a pass, contiguous."""
        if rows.stop - rows.start == len(self.input):
            return self._turned("inputs", self.input), self._turned("gradients", self.gradient)
        return self.space.turn("some inputs", self.input[rows]), self.space.turn("some gradients", self.gradient[rows])

    # Products of whole matrices, of which what is not live is thrown away.

    def _dense_squared_norms(self, rows: slice) -> Tensor:
        """Sum over j of (B^2 M)_j A_j^2, or over i of (A^2 M^T)_i B_i^2: the product is taken where less comes out."""
        left, right, mask = self.gradient[rows], self.input[rows], self.mask
        if left.shape[1] < right.shape[1]:
            left, right, mask = right, left, mask.T
        totals = []
        for some in pieces(len(left), max(LIMIT, BLOCK // max(1, right.shape[1])), 16):
            part, other = left[some], right[some]
            squares = torch.mul(part, part, out=self.space.take("squares", part.shape, part))
            product = torch.mm(squares, mask, out=self.space.take("product", other.shape, other))
            totals.append(product.mul_(other).mul_(other).sum(1))
        return torch.cat(totals)

    def _dense_add(self, scaled: Tensor, rows: slice, total: Tensor) -> None:
        """Add the product of ``scaled`` and inputs to ``total``, in the precision of ``scaled``."""
        product = self.space.take("product", self.mask.shape, scaled)
        if scaled.dtype == self.input.dtype:
            if "aligned" not in self._copies:
                self._copies["aligned"] = self.space.aligned("aligned", self.input)
            torch.mm(scaled.T, self._copies["aligned"][rows], out=product)
        else:
            inputs = self.input[rows]
            count = max(LIMIT, BLOCK // inputs.shape[1]) if inputs.shape[1] and not inputs.is_cuda else len(scaled)
            for start in range(0, len(scaled), count):  # never fewer rows than a chunk
                right = self.space.fill("chunk", inputs[start : start + count], scaled.dtype)
                product.addmm_(scaled[start : start + count].T, right, beta=float(start > 0))
        total += product.view(-1) if self.full else product.view(-1).index_select(0, self.index)

    # Products that go over live coordinates alone. ``torch.embedding_bag`` adds up rows of a table, as listed: a product
    # with a sparse matrix, by code that torch generates for the processor at hand. Several times quicker than the sparse
    # matrices of a linear algebra library.

    @cached_property
    def _bags(self) -> tuple[Tensor, Tensor]:
        return _bags_of(self._live)

    @cached_property
    def _bags_of_columns(self) -> tuple[Tensor, Tensor]:
        return _bags_of(self._live.T)

    def _sparse_squared_norms(self, rows: slice) -> Tensor:
        left, right = self._side_by_side(rows)
        bags = self._bags
        if len(right) >= len(left):
            left, right, bags = right, left, self._bags_of_columns
        squares = torch.mul(left, left, out=self.space.take("squares", left.shape, left))
        return _times(bags, squares).mul_(right).mul_(right).sum(0)

    def _sparse_add(self, scaled: Tensor, rows: slice, total: Tensor) -> None:
        left = self.space.fill("left", scaled.T)
        right = self.space.fill("chunk", self._turned("inputs", self.input)[:, rows], scaled.dtype)
        if scaled.dtype not in self._patterns:
            with warnings.catch_warnings():  # torch calls the layout beta; what is used is tested here
                warnings.simplefilter("ignore", UserWarning)
                self._patterns[scaled.dtype] = self.mask.to(scaled.dtype).to_sparse_csr()
        pattern = self._patterns[scaled.dtype]
        products = pattern.values().zero_()  # one dot product each; what is there would be multiplied by beta
        torch.sparse.sampled_addmm(pattern, left, right.T, beta=0.0, out=pattern)
        total += products

    # Element-wise filters.

    def mapped_squares(self, rows: slice, factor: Tensor, map: Map) -> Tensor:
        total = torch.zeros(len(factor), dtype=torch.float64, device=factor.device)
        inputs, gradient = self._operands(rows, factor)
        if self._compile:
            total += _fused(map, squares=True)(gradient, inputs, self.rows, self.columns, factor)
        for part in self._mapped(inputs, gradient, map):
            total += part.square_().sum(0, dtype=torch.float64)
        return total

    def mapped_sum(self, rows: slice, factor: Tensor, map: Map, weight: Tensor | None, count: int) -> Tensor:
        narrow = None if weight is None else weight.to(self.gradient.dtype)
        inputs, gradient = self._operands(rows, factor)
        parts = []
        if self._compile:  # for one shape
            counted = (torch.arange(len(factor), device=factor.device) < count).to(gradient.dtype)
            counted = counted if narrow is None else counted * narrow
            parts = [_fused(map, squares=False)(gradient, inputs, self.rows, self.columns, counted)]
        parts += [
            (part if narrow is None else part.mul_(narrow))[:, :count].sum(1, dtype=torch.float64)
            for part in self._mapped(inputs, gradient, map)
        ]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64, device=factor.device)

    def _operands(self, rows: slice, factor: Tensor) -> tuple[Tensor, Tensor]:
        inputs, gradient = self._side_by_side(rows)
        scaled = self.space.fill("scaled", gradient, torch.float64).mul_(factor)
        return inputs, self.space.fill("gradient", scaled, gradient.dtype)

    def _mapped(self, inputs: Tensor, gradient: Tensor, map: Map) -> Iterator[Tensor]:
        """``map`` of some live coordinates at a time; those of the weight only where nothing is compiled."""
        width = gradient.shape[1]
        count = max(1, CHUNK // max(1, width))
        pairs = () if self._compile else zip(self.rows.split(count), self.columns.split(count), strict=True)
        for rows, columns in pairs:
            left, right = (self.space.take(side, (len(rows), width), gradient) for side in ("left", "right"))
            torch.index_select(gradient, 0, rows, out=left)
            yield map(left.mul_(torch.index_select(inputs, 0, columns, out=right)))
        for rows in () if self.bias_index is None else self.bias_index.split(count):
            yield map(gradient.index_select(0, rows))


def _bags_of(live: Tensor) -> tuple[Tensor, Tensor]:
    """Live columns, row after row, and where each row begins."""
    counts = live.sum(1)
    return live.nonzero(as_tuple=True)[1], counts.cumsum(0) - counts


def _times(bags: tuple[Tensor, Tensor], dense: Tensor, values: Tensor | None = None) -> Tensor:
    """A sparse matrix times a dense one; its values are ones, or in the order of the bags."""
    return torch.embedding_bag(dense, *bags, False, 0, False, values)[0]
