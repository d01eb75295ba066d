"""Book-keeping for networks of Linear layers: filtered gradient sums from one forward and one backward pass.

For a Linear layer with inputs A ``(batch, in)``, output gradients B ``(batch, out)`` and mask M ``(out, in)``, the
gradient of record b is the outer product of B_b and A_b on M. Hence the squared norms of all records are
``(((B * B) @ M) * (A * A)).sum(1)``, and the sum of rescaled gradients is ``((B * factor).T @ A) * M``: a radial filter
needs no per-record gradient at all. An element-wise filter sees some live coordinates of all records at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpltm.errors import InputError
from dpltm.filters import ElementWiseFilter, Filter
from dpltm.gradients.linear_layer import LinearLayer
from dpltm.masks import Mask

REACH = 2.0**60
"""A record with an input or output gradient of some layer beyond this counts as not finite."""

WIDE, NARROW = 2.0**20, 1e-6
"""Squares are taken in float64 for records that reach beyond ``WIDE``, and for norms below ``NARROW``: in float32 they could
over- or underflow and the norm be wrong."""


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
        self._layers = [LinearLayer(name, module, mask) for name, module in layers.items()]
        self._rounding = 1 - 2.0**-23 * (max(max(layer.shape) for layer in self._layers) + 64)

    @property
    def rounding(self) -> float:
        """What radial factors are multiplied by, so that the bound holds despite float32 norms.

        A sum of m non-negative products has relative error at most about (m + 2) 2^-24 in any order of summation, and the
        product of two such sums, which is the squared norm where everything is live, twice that; the norm has half of
        it, and the products of the sum add a few more. Twice that is taken.
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
            return FilteredSum(self._zeros(), 0)
        self._passes(x, y)
        skipped, wide = self._skip_unusable(len(x))
        if skipped == len(x):
            for layer in self._layers:
                layer.forget()
            return FilteredSum(self._zeros(), skipped)
        norms = self._norms(wide)
        if filter.kind == "element-wise":
            values = self._element_wise_sum(norms.square().sum(0).sqrt(), filter)
        elif filter.kind == "layer-wise":
            values = self._radial_sum(filter.factor(norms))
        else:
            values = self._radial_sum(filter.factor(norms.square().sum(0).sqrt()).expand(len(norms), -1))
        for layer in self._layers:
            layer.forget()
        return FilteredSum(values, skipped)

    def _skip_unusable(self, records: int) -> tuple[int, Tensor]:
        """Drops records beyond ``REACH``; returns how many, and which of the others reach beyond ``WIDE``."""
        extremes = torch.stack([value for layer in self._layers for value in layer.extremes()])
        if float(extremes.abs().max()) <= WIDE:  # as nearly always; false for NaN
            return 0, torch.zeros(records, dtype=torch.bool)
        reach = torch.stack([layer.reach() for layer in self._layers]).amax(0)
        good = reach <= REACH  # false for NaN as well
        if not bool(good.all()):
            for layer in self._layers:
                layer.drop(good)
        return records - int(good.sum()), reach[good] > WIDE

    def _zeros(self) -> Tensor:
        return torch.zeros(sum(layer.live for layer in self._layers), dtype=torch.float64)

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
            layer.keep_backward(gradient)

    def _norms(self, wide: Tensor) -> Tensor:
        """Norm of each record's gradient in each layer, ``(layers, batch)`` float64.

        The precision of one record must not depend on another record.
        """
        squares = torch.stack([layer.squared_norms() for layer in self._layers]).double()
        again = wide | (squares.sum(0) < NARROW**2)
        if bool(again.any()):
            squares[:, again] = torch.stack([layer.wide_squared_norms(again) for layer in self._layers])
        return squares.sqrt()

    def _radial_sum(self, factors: Tensor) -> Tensor:
        return torch.cat(
            [layer.weighted_sum(factor * self._rounding) for layer, factor in zip(self._layers, factors, strict=True)]
        )

    def _element_wise_sum(self, norm: Tensor, filter: ElementWiseFilter) -> Tensor:
        """The sum of mapped coordinates; those that are clipped after are mapped twice, for the norm and for the sum."""
        before = torch.ones_like(norm) if filter.before is None else filter.before.factor(norm) * self._rounding
        if filter.after is None:
            return self._mapped(before, filter, lambda values: values.sum(1, dtype=torch.float64))
        squares = torch.zeros_like(norm)

        def count(values: Tensor) -> Tensor:
            squares.add_(values.square_().sum(0, dtype=torch.float64))
            return values.new_zeros(0)

        self._mapped(before, filter, count)
        after = filter.after.factor(squares.sqrt()) * self._rounding
        narrow = after.to(self._layers[0].module.weight.dtype)
        return self._mapped(before, filter, lambda values: values.mul_(narrow).sum(1, dtype=torch.float64))

    def _mapped(self, factor: Tensor, filter: ElementWiseFilter, use: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.cat([layer.mapped(factor, filter.map, use) for layer in self._layers])
