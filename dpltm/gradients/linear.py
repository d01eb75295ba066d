"""Book-keeping for networks of Linear layers: filtered gradient sums from one forward and one backward pass.

For a Linear layer with inputs A ``(batch, in)``, output gradients B ``(batch, out)`` and mask M ``(out, in)``, the
gradient of record b is the outer product of B_b and A_b on M. Hence the squared norms of all records are
``(((B * B) @ M) * (A * A)).sum(1)``, and the sum of rescaled gradients is ``((B * factor).T @ A) * M``: a radial filter
needs no per-record gradient at all. An element-wise filter sees the live coordinates of a few records at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpltm.errors import InputError
from dpltm.filters import Clip, Filter, Tanh
from dpltm.masks import Mask

CHUNK = 4_000_000
"""Most per-record coordinates held at once by element-wise filters (16 MB in float32)."""

REACH = 2.0**60
"""A record with an input or output gradient of some layer beyond this counts as not finite."""

WIDE = 2.0**20
"""Beyond this, squares are taken in float64: in float32 they could under- or overflow and the norm be wrong."""


@dataclass(frozen=True)
class FilteredSum:
    """The sum over a batch of filtered per-record gradients.

    Attributes:
        values: live coordinates of the sum, ``(live,)`` float64, parameter by parameter, row-major within each.
        skipped: number of records whose gradient was not finite, or beyond ``REACH``, and contributed zero; private.
    """

    values: Tensor
    skipped: int


class LinearGradients:
    """Filtered gradient sums of one network under one mask.

    Args:
        model: every parameter must belong to an ``nn.Linear`` that sees each record as one row and is used once.
        mask: live coordinates.
        loss: maps outputs ``(batch, classes)`` and labels ``(batch,)`` to one loss per record, ``(batch,)``.

    Raises:
        InputError: a parameter outside a Linear layer, or a mask that does not fit.
    """

    def __init__(self, model: nn.Module, mask: Mask, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        mask.check_fits(model)
        for name, module in model.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                raise InputError(f"model: {name} is a batch normalisation: it mixes records, and no bound would hold")
        layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        covered = {id(value) for module in layers.values() for value in module.parameters()}
        for name, value in model.named_parameters():
            if id(value) not in covered:
                raise InputError(
                    f"model parameter {name}: no per-record gradient rule outside nn.Linear in this version"
                )
            if value.dtype not in (torch.float32, torch.float64):
                raise InputError(
                    f"model parameter {name}: dtype {value.dtype}; the bound is proven for float32 and float64 only"
                )
        self._model, self._loss = model, loss
        self._layers = [_Layer(name, module, mask) for name, module in layers.items()]
        self._rounding = 1 - 2.0**-23 * (max(max(layer.shape) for layer in self._layers) + 64)

    @property
    def rounding(self) -> float:
        """What radial factors are multiplied by, so that the bound holds despite float32 norms.

        A sum of m non-negative products has relative error at most about (m + 2) 2^-24 in any order of summation; the
        norm has half of it, and the products of the sum add a few more. Twice that is taken.
        """
        return self._rounding

    def filtered_sum(self, x: Tensor, y: Tensor, filter: Filter) -> FilteredSum:
        """The sum over the batch of ``filter`` applied to each record's gradient on live coordinates.

        Args:
            x: ``(batch, features)``; the batch may be empty.
            y: ``(batch,)``.
            filter: radial or element-wise.

        Guarantees:
            One record changes the sum by at most ``filter.certified_bound(live)`` in L2 norm, whatever its values; a
            record with a gradient that is not finite (see ``REACH``) contributes exactly zero. The sum is taken in
            float64: in float32 its rounding alone can exceed the bound many times (Casacuberta et al. 2022). What a
            record contributes is taken as computed independently of its batch, which linear algebra libraries keep
            only up to the last bits.
        """
        if len(x) == 0:
            return FilteredSum(torch.zeros(sum(layer.live for layer in self._layers), dtype=torch.float64), 0)
        self._passes(x, y)
        reach = torch.stack([layer.reach() for layer in self._layers]).amax(0)
        good = reach <= REACH  # false for NaN as well
        skipped = len(x) - int(good.sum())
        if skipped:
            for layer in self._layers:
                layer.drop(good)
        norm = self._norms(good & (reach > WIDE), x.dtype)
        match filter:
            case Clip():
                values = self._radial_sum(filter.factor(norm) * self._rounding)
            case Tanh():
                before = (
                    torch.ones_like(norm) if filter.before is None else filter.before.factor(norm) * self._rounding
                )
                values = self._element_wise_sum(before, filter)
        for layer in self._layers:
            layer.forget()
        return FilteredSum(values, skipped)

    def _passes(self, x: Tensor, y: Tensor) -> None:
        """One forward and one backward pass that leave inputs and output gradients with each layer."""
        for layer in self._layers:
            layer.forget()  # whatever a failed pass left
        hooks = [layer.module.register_forward_hook(layer.keep_forward) for layer in self._layers]
        try:
            with torch.enable_grad():
                losses = self._loss(self._model(x), y)
                total = losses.sum()
        finally:
            for hook in hooks:
                hook.remove()
        if losses.shape != (len(x),):
            raise InputError(
                f"loss: shape {tuple(losses.shape)}, expected one value for each of {len(x)} records; use reduction='none'"
            )
        gradients = torch.autograd.grad(total, [layer.output for layer in self._layers])
        for layer, gradient in zip(self._layers, gradients, strict=True):
            layer.check_unchanged()
            layer.keep_backward(gradient)

    def _norms(self, wide: Tensor, precision: torch.dtype) -> Tensor:
        """Norm of each record's gradient, float64. The precision of one record must not depend on another record."""
        squares = torch.stack([layer.squared_norms(precision, slice(None)) for layer in self._layers]).sum(0).double()
        if bool(wide.any()):
            squares[wide] = torch.stack([layer.squared_norms(torch.float64, wide) for layer in self._layers]).sum(0)
        return squares.sqrt()

    def _radial_sum(self, factor: Tensor) -> Tensor:
        return torch.cat([layer.weighted_sum(factor) for layer in self._layers])

    def _element_wise_sum(self, factor: Tensor, filter: Tanh) -> Tensor:
        return torch.cat([layer.mapped_sum(factor, filter.map) for layer in self._layers])


class _Layer:
    """One Linear layer: its live coordinates, and what the last pass left behind."""

    def __init__(self, name: str, module: nn.Linear, mask: Mask) -> None:
        prefix = f"{name}." if name else ""
        weight_mask = mask[f"{prefix}weight"]
        self.module = module
        self.shape = tuple(weight_mask.shape)
        self.weight_mask = weight_mask.to(module.weight.dtype)
        self.rows, self.columns = weight_mask.nonzero(as_tuple=True)
        self.index = weight_mask.flatten().nonzero().squeeze(1)
        self.bias_index = None if module.bias is None else mask[f"{prefix}bias"].nonzero().squeeze(1)
        self.live = len(self.rows) + (0 if self.bias_index is None else len(self.bias_index))
        self.input = self.output = self.gradient = torch.empty(0)
        self.versions = (0, 0)

    def keep_forward(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        used = self.output.numel() > 0
        if inputs[0].ndim != 2 or used:
            raise InputError("model: each Linear layer must see one row per record and be used once in this version")
        if output.dtype != module.weight.dtype:
            raise InputError(f"model: a Linear layer computes in {output.dtype}; leave torch.autocast")
        self.input, self.output = inputs[0].detach(), output
        self.versions = (self.input._version, output._version)

    def keep_backward(self, gradient: Tensor) -> None:
        self.gradient = gradient

    def check_unchanged(self) -> None:
        """In-place operations on what a layer saw or gave (``nn.ReLU(inplace=True)``) would make gradients wrong."""
        if (self.input._version, self.output._version) != self.versions:
            raise InputError(
                "model: an in-place operation overwrites what a Linear layer saw or gave; use inplace=False"
            )

    def forget(self) -> None:
        """Frees what the last pass left, so that no batch outlives its step."""
        self.input = self.output = self.gradient = torch.empty(0)

    def reach(self) -> Tensor:
        """Largest magnitude among each record's inputs and output gradients, ``(batch,)``; NaN if one is NaN."""
        return torch.maximum(self.input.abs().amax(1), self.gradient.abs().amax(1))

    def squared_norms(self, precision: torch.dtype, rows: Tensor | slice) -> Tensor:
        """Squared norm of each record's gradient on the live coordinates of this layer, ``(batch,)``."""
        squares = self.gradient[rows].to(precision).square()
        total = ((squares @ self.weight_mask.to(precision)) * self.input[rows].to(precision).square()).sum(1)
        if self.bias_index is not None:
            total = total + squares[:, self.bias_index].sum(1)
        return total

    def drop(self, keep: Tensor) -> None:
        """Makes the gradient of every record outside ``keep`` exactly zero, whatever it holds."""
        self.input = torch.where(keep[:, None], self.input, 0.0)
        self.gradient = torch.where(keep[:, None], self.gradient, 0.0)

    def scaled(self, factor: Tensor) -> Tensor:
        """Output gradients of each record times its factor; the product is taken in the factor's precision."""
        return (self.gradient * factor[:, None]).to(self.gradient.dtype)

    def weighted_sum(self, factor: Tensor) -> Tensor:
        """Sum over records of factor times gradient, at the live coordinates."""
        scaled = self.scaled(factor).double()
        weight = (scaled.T @ self.input.double()).flatten()[self.index]
        if self.bias_index is None:
            return weight
        return torch.cat([weight, scaled.sum(0)[self.bias_index]])

    def mapped_sum(self, factor: Tensor, map: Callable[[Tensor], Tensor]) -> Tensor:
        """Sum over records of ``map`` of each live coordinate, a bounded number of records at a time."""
        scaled = self.scaled(factor)
        weight = torch.zeros(len(self.rows), dtype=torch.float64)
        records = max(1, CHUNK // max(1, len(self.rows)))
        for start in range(0, len(scaled), records):
            chunk = slice(start, start + records)
            weight += map(scaled[chunk][:, self.rows] * self.input[chunk][:, self.columns]).sum(0, dtype=torch.float64)
        if self.bias_index is None:
            return weight
        return torch.cat([weight, map(scaled[:, self.bias_index]).sum(0, dtype=torch.float64)])
