"""Filtered sums of per-record gradients, from one forward and one backward pass. Each layer stands for those of its own
parameters (see ``Layer``), written out only where they must be."""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpltm.errors import InputError, first_line
from dpltm.filters.descriptor import ElementWiseFilter, Filter, LayerWiseFilter, RadialFilter
from dpltm.gradients.explicit_layer import ExplicitLayer
from dpltm.gradients.layer import Layer, tensors_in
from dpltm.gradients.linear_layer import LinearLayer, compiler_at_hand
from dpltm.gradients.mapped import Loss
from dpltm.gradients.plan import Plan, check_model, make_plan
from dpltm.gradients.probe import MadeUp, move, structure, undisturbed
from dpltm.networks.full_precision import TilesMix, aligned, deterministic, flushed_in_part, full_precision, threads
from dpltm.networks.masks import Mask
from dpltm.networks.state import unwritten
from dpltm.randomness.sampling import LIMIT, ROUNDING, check_chunks, scale_of
from dpltm.records.made_up import filled_up, same_numbers

ROWS = 32
"""Made-up records that a network is tried with before passes have a shape."""

REACH = 2.0**60
"""Largest norm of an input or output gradient of a layer: a record beyond it counts as not finite."""

BATCH_BYTES, PASS_BYTES, BOTH_BYTES, LEAST_BYTES, CALL_BYTES = 2**28, 2**27, 7 * 2**27, 2**30, 2**20
"""Memory of a physical batch, that a pass over some of its records may always take, and of both together where there is
room, in bytes, approximate: larger ones would hold more than Opacus does. That in which passes may have ``VECTORS`` rows,
however little the others allow: fewer pass one by one. And what a module costs in a pass however few records that has, as
memory of records that would take as long: 0.2 ms on two threads, in ResNet-20, ViT and others."""

VECTORS, SHARED, SHARED_SOONER = 32, 32_768, 16_384
"""Float32 numbers that element-wise operations on a processor take at once, two of the widest vectors, and twice as many of
bfloat16: a remainder is computed otherwise. Numbers from which on another thread takes part, which may have a remainder as
well; and from which on all of them may."""

SMALLER, GAIN = 4, 0.02
"""Smaller passes that are rehearsed at most, and what each, or larger ones, must save of a step: to try a pass takes as long
as some steps."""

WIDE, NARROW = 2.0**20, 2.0**-30
"""Squares are taken in float64 for records that reach beyond ``WIDE``, and for norms below ``NARROW``: in float32 they could
over- or underflow and the norm be wrong. Between these, each of the squares of a w by w layer loses at most 2^-150 before it
is multiplied by at most 2^40: w^2 2^-50 of the least squared norm, less than half of ``rounding`` up to w = 2^25. (Small
numbers are not flushed to zero, unless torch is asked to.)"""

UNMAPPED = (
    "torch.func.vmap cannot show it one record at a time ({}), and it might mix them: {{}}; docs/own-network.md says what to"
    " write instead"
)
FLUSHED = (
    "some threads set numbers below 1e-38 to zero, and others do not, so that the last bits of a record go by its place:"
    " {}; leave torch.set_flush_denormal out"
)


@dataclass(frozen=True)
class FilteredSum:
    """The ``values`` of a sum, ``(live,)`` float64, parameter by parameter, row-major within each; and how many records, or
    groups, contributed zero, since a gradient was not finite, or beyond ``REACH``: private."""

    values: Tensor
    skipped: int


class RecordGradients:
    """Filtered gradient sums of one network under one mask, where pruned weights are zero: some kernels take them for it.

    Frozen parameters (``requires_grad=False``) have no live coordinates, whatever the mask says; unused ones have gradient
    zero; shared ones the sum over their uses. To ``compile`` fuses element-wise filters, if there is a C++ compiler; that is
    slow for every new shape. ``grouped`` writes every gradient out, so that groups can be averaged before the filter.

    Attributes:
        live: number of live coordinates: the length of every sum.
        rounding: factor on radial factors by which the bound holds despite float32 norms.
        kernels_digest: of what the rehearsal left: equal where kernels give the same bits.
        one_by_one: why records pass so; nothing if they pass together.
    """

    def __init__(
        self, model: nn.Module, mask: Mask, loss: Loss, compile: bool = False, *, grouped: bool = False
    ) -> None:
        check_model(model)
        mask.check_fits(model)
        self._model, self._loss, self._grouped = model, loss, grouped
        self._compile = compile and compiler_at_hand()
        self._live_mask = {
            name: mask[name].to(value.device)
            if value.requires_grad
            else torch.zeros((), dtype=torch.bool, device=value.device).expand(value.shape)
            for name, value in model.named_parameters()
        }
        self.live = sum(int(live.sum()) for live in self._live_mask.values())
        self._plan: Plan | None = None
        self._checked: tuple[object, ...] = ()
        self._filler: Sequence[Tensor] = ()  # a made-up record and its label
        self._rehearsed: dict[tuple[object, ...], tuple[int, ...]] = {}  # the shapes, of each kind of kernels
        self._wanted = self._shapes = tuple[int, ...]()
        self._tried, self._long, self.one_by_one = 0, False, ""
        self.kernels_digest = ""
        self._parameters = list(model.parameters())
        self._trained = [(id(value), value.requires_grad) for value in self._parameters]
        self._order: Tensor | None = None  # of live coordinates as layers give them, if not in that of parameters
        # A sum of m non-negative products has relative error at most about (m + 2) 2^-24 in any order of summation, and the
        # product of two such sums, which is the squared norm where everything is live, twice that; the norm has half of it,
        # and the products of the sum add a few more. Twice that is taken. Sums in chunks multiply by ``sampling.ROUNDING``.
        linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
        widest = max((max(module.weight.shape) for module in linear), default=0)
        self.rounding = 1 - 2.0**-23 * (widest + 64)

    @property
    def pass_rows(self) -> int:
        """Rows of every pass but the last of a batch, which may have fewer, filled up; 0 until :meth:`settle`."""
        return max(self._shapes, default=0)

    @pass_rows.setter
    def pass_rows(self, rows: int) -> None:
        self._shapes = (rows,)

    def check(self, x: Tensor, y: Tensor, *, apart: bool = True) -> None:
        """Decide how gradients are computed for batches like these, of which only shape, dtype and device matter; anew where
        a module was exchanged, hooked, patched or set to another mode since.

        Without ``apart`` it is left to :meth:`rehearse` to try whether records are mixed. Raises InputError where the loss
        is not one value a record, where records are mixed, or no rule gets the gradients right.
        """
        if torch.is_inference_mode_enabled():
            raise InputError("model: there are no gradients under torch.inference_mode; train outside of it")
        state = structure(self._model, self._loss)
        if self._plan is None or state != self._checked:
            self._plan = None
            if [(id(value), value.requires_grad) for value in self._model.parameters()] != self._trained:
                raise InputError(
                    "model: its parameters, or which are trained (requires_grad), changed; begin anew with it"
                )
            check_model(self._model)
            began = time.process_time()
            with full_precision(), threads(1):  # beside other processes, those of small passes wait for each other
                x, y = (values.new_empty(0, *values.shape[1:]) for values in (x, y))  # which holds no records
                like = MadeUp(x, y, self._parameters[0].dtype)
                self._plan = make_plan(self._model, self._live_mask, self._loss, like, self._compile, self._grouped)
            self._long = time.process_time() - began > 5.0  # seconds, of a network that is better tried on all threads
            self._checked = state
            self._rehearsed.clear()
            self._tried = 0
            sizes = {name: size for layer in self._layers for name, size in zip(layer.names, layer.sizes, strict=True)}
            places = torch.arange(sum(sizes.values()), device=x.device)
            place = dict(zip(sizes, places.split([*sizes.values()]), strict=True))
            order = torch.cat([place[name] for name in self._live_mask if name in place])
            self._order = None if torch.equal(order, places) else order
        if apart:
            self._try(self.pass_rows or ROWS)

    def _try(self, rows: int) -> None:
        """Refuse a network that mixes records in passes of so many."""
        assert self._plan is not None
        if rows > self._tried:
            off = torch.autocast(self._parameters[0].device.type, enabled=False)
            at_once = threads(None if self._long else 1)
            with undisturbed(self._model, self._loss), off, torch.enable_grad(), full_precision(), at_once:
                move(self._model)
                self._plan.probe.check_apart(rows)
            self._tried = rows

    @property
    def layer_of(self) -> Tensor:
        """Number of the layer that each live coordinate is in, ``(live,)`` int64; all 0 before the first ``check``."""
        if self._plan is None:
            return torch.zeros(self.live, dtype=torch.int64)
        sizes = torch.tensor([sum(layer.sizes) for layer in self._layers])
        layers = torch.arange(len(sizes)).repeat_interleave(sizes).to(self._parameters[0].device)
        return layers if self._order is None else layers[self._order]

    def settle(
        self, expected_batch: float, physical_batch: int | None = None, any_width: bool = True, narrow: bool = False
    ) -> int:
        """Choose the rows of every pass from public numbers, after :meth:`check`, and return how many to hold at once.

        ``expected_batch`` records are in a step on average; ``physical_batch`` are held at most, else what memory allows.
        Tensors of ``any_width`` may be mapped: by element-wise filters, and wherever a rehearsal has failed. Passes in
        bfloat16 are ``narrow``."""
        if self._plan is None:  # nor are there records
            return 1
        kept, passing = max(1, 4 * self._plan.kept), max(1, 4 * self._plan.passing)
        vectors = 2 * VECTORS if narrow else VECTORS
        least = 1 if physical_batch or vectors * (kept + passing) > LEAST_BYTES else vectors
        most = physical_batch or max(least, BATCH_BYTES // kept)
        usual = min(most, expected_batch + 4 * math.sqrt(expected_batch))  # nearly every sample fits
        fits = int(max(PASS_BYTES, BOTH_BYTES - usual * kept) // passing)
        fixed = CALL_BYTES * len(self._plan.probe.units) / passing
        widths = () if any_width else self._plan.widths
        fitting = max(least, min(most, fits))
        self._wanted = shapes_of(expected_batch, fitting, fixed, widths, self._smaller, vectors)
        self.pass_rows = self._wanted[-1]
        full = max(1, most // self.pass_rows) * self.pass_rows
        return full + max((rows for rows in self._wanted[:-1] if rows <= most - full), default=0)

    @property
    def _smaller(self) -> int:
        """How many smaller shapes there may be; float64 on several threads is rounded otherwise in small passes."""
        double = self._parameters[0].dtype == torch.float64 and torch.get_num_threads() > 1
        return 0 if self._compile or self._grouped or double else SMALLER

    @property
    def draws(self) -> bool:
        """Whether the network draws random numbers; False before the first ``check``."""
        return self._plan is not None and bool(self._plan.probe.axes)

    @property
    def kernels(self) -> dict[str, str]:
        """Kernel of each linear layer, by the name of its weight; none before the first ``check``."""
        return {layer.names[0]: layer.kernel for layer in self._layers if isinstance(layer, LinearLayer)}

    def filtered_sum(
        self,
        x: Tensor,
        y: Tensor,
        filter: Filter,
        weights: Tensor | None = None,
        chunks: Sequence[slice] | None = None,
        out: Tensor | None = None,
        groups: Sequence[int] | None = None,
        keys: Tensor | None = None,
    ) -> FilteredSum:
        """Sum over the batch of ``filter`` applied to each record's gradient on live coordinates.

        Args:
            weights: ``(batch,)``; what each filtered gradient is multiplied by, clamped to [0, 1], which may depend on its
                own record; in front of the filter it would be undone.
            chunks: consecutive rows, at most ``sampling.LIMIT`` each, that may be summed in float32 by radial and layer-wise
                filters, as coins of each record decide (``sampling.in_chunks``). None for a sum in float64; that is another
                mechanism, so all batches of a step have chunks, if only none, or no batch.
            out: what the sum is added to, and returned in, ``(live,)`` float64; None for zeros.
            groups: how many rows each group has; in order, all rows. The filter then takes the mean gradient of each, and a
                group counts wherever a record does, with a bound of its own (``training.plan``). Only where ``grouped``.
            keys: ``(batch,)`` int64, secret (``sampling.record_keys``), needed where the network ``draws``.

        Guarantees:
            One record changes the sum by at most ``filter.certified_bound(live)`` in L2 norm, whatever its values and the
            keys; a record with a gradient that is not finite (see ``REACH``) contributes exactly zero. What it contributes
            has the same bits whatever else is in the batch (docs/privacy-model.md 4.4), as :meth:`rehearse` shows before.
        """
        check_chunks(chunks or (), len(x))
        total = torch.zeros(self.live, dtype=torch.float64, device=x.device) if out is None else out
        if len(x) == 0:
            return FilteredSum(total, 0)
        self.check(x, y, apart=False)
        if place := self.rehearse(filter):
            raise InputError(moved_text(place, torch.is_autocast_enabled(x.device.type)))
        if self.draws and (keys is None or keys.shape != (len(x),)):
            raise InputError("`keys`: the network draws random numbers; give one key a record (sampling.record_keys)")
        if weights is not None:  # clamped, or the bound would rest on the caller
            weights = weights.double().nan_to_num(0.0).clamp(0.0, 1.0)
        try:
            with full_precision(), deterministic(x.device, self.pass_rows > 1):
                self._take(x, y, keys)
                count = len(x) if groups is None else len(groups)
                if groups is not None:
                    sizes = torch.tensor(groups, device=x.device)
                    for layer in self._layers:
                        assert isinstance(layer, ExplicitLayer)  # as plans of ``grouped`` have them
                        layer.average(sizes, self._filled(count))
                with torch.autocast(x.device.type, enabled=False):
                    return FilteredSum(total, self._add_filtered(count, filter, weights, chunks, total))
        finally:
            self._release()

    @property
    def _layers(self) -> list[Layer]:
        return [] if self._plan is None else [*self._plan.layers]

    def _release(self) -> None:
        for layer in self._layers:
            layer.release()

    def _filled(self, count: int) -> int:
        """Rows of so many records in passes, the last of which has the least of the shapes that holds what is left."""
        full = (count - 1) // self.pass_rows * self.pass_rows
        return full + next(size for size in self._shapes if size >= count - full)

    def _blocks(self, count: int) -> list[slice]:
        """Rows of each pass."""
        filled = self._filled(count)
        return [slice(start, min(start + self.pass_rows, filled)) for start in range(0, count, self.pass_rows)]

    def _take(self, x: Tensor, y: Tensor, keys: Tensor | None) -> None:
        """Pass over a batch, and leave its layers what they need. Made-up rows fill the last pass up."""
        assert self._plan is not None
        for layer in self._layers:
            layer.begin(self._filled(len(x)))
        for rows in self._blocks(len(x)):
            inputs, labels = x[rows], y[rows]
            own = None if keys is None else keys[rows]
            if missing := rows.stop - rows.start - len(inputs):
                inputs, labels = (
                    filled_up(part, rows.stop - rows.start, row)
                    for part, row in zip((inputs, labels), self._filler, strict=True)
                )
                own = None if own is None else nn.functional.pad(own, (0, missing))
            with unwritten(self._model):
                self._plan.pass_over(aligned(inputs), aligned(labels), own, rows)

    def _add_filtered(
        self, count: int, filter: Filter, weights: Tensor | None, chunks: Sequence[slice] | None, total: Tensor
    ) -> int:
        """Add the filtered gradients of the first ``count`` rows to ``total``; how many were skipped."""
        layers = self._layers
        measured = [_measured(layers, rows, filter.kind == "layer-wise") for rows in self._blocks(count)]
        bad = torch.cat([bad for _, bad in measured])[:count]
        norms = [norms for norms, _ in measured]
        out = bad if weights is None else bad | (weights == 0)
        skipped = int((bad if weights is None else bad & (weights > 0)).sum())
        if bool(out.any()):
            weights = (~out).double() if weights is None else weights.masked_fill(out, 0.0)
        if filter.kind == "element-wise":
            _zero(layers, nn.functional.pad(out, (0, self._filled(count) - count), value=self._compile))
            values = self._element_wise_sum(norms, filter, weights, count)
            total += values if self._order is None else values[self._order]
            return skipped
        for layer in layers:
            layer.cut(count)
        _zero(layers, out)
        bound = filter.certified_bound(self.live)
        factors = torch.cat([_factors(filter, norm, bound) for norm in norms], 1)[:, :count]
        # float32 is short of room for other bounds alone; without a scale sums are written where they are wanted
        scale = 1.0 if chunks is None or 2.0**-10 <= bound <= 2.0**10 else scale_of(bound)
        factors = factors * (self.rounding * (1.0 if chunks is None else ROUNDING) / scale)
        factors = factors if weights is None else factors * weights
        at_once = scale == 1.0 and self._order is None
        values = total if at_once else torch.zeros_like(total)
        self._add_weighted(values, factors, chunks)
        if not at_once:
            total.add_(values if self._order is None else values[self._order], alpha=scale)
        return skipped

    def _add_weighted(self, values: Tensor, factors: Tensor, chunks: Sequence[slice] | None) -> None:
        parts = values.split([sum(layer.sizes) for layer in self._layers])
        for layer, part, factor in zip(self._layers, parts, factors, strict=True):
            layer.add_weighted_sum(part, factor, chunks)

    def _element_wise_sum(
        self, norms: list[Tensor], filter: ElementWiseFilter, weight: Tensor | None, count: int
    ) -> Tensor:
        """Sum of mapped coordinates; those that are clipped after are mapped twice, for the norm and for the sum."""
        total = torch.zeros(self.live, dtype=torch.float64, device=norms[0].device)
        for rows, norm in zip(self._blocks(count), norms, strict=True):
            before, after = self._mapping(rows, norm, filter)
            here = min(count - rows.start, len(before))
            if weight is not None:
                own = nn.functional.pad(weight[rows], (0, len(before) - here))
                after = own if after is None else own * after
            total += torch.cat([layer.mapped_sum(rows, before, filter.map, after, here) for layer in self._layers])
        return total

    def _mapping(self, rows: slice, norm: Tensor, filter: ElementWiseFilter) -> tuple[Tensor, Tensor | None]:
        """Factors of these records before and after an element-wise map, ``(rows,)``; None for no factor after it."""
        norm = _total(norm)
        before = torch.ones_like(norm) if filter.before is None else filter.before.factor(norm) * self.rounding
        if filter.after is None:
            return before, None
        squares = torch.stack([layer.mapped_squares(rows, before, filter.map) for layer in self._layers]).sum(0)
        after = _factors(filter.after, squares.sqrt()[None], filter.certified_bound(self.live))[0]
        return before, after * self.rounding

    def rehearse(self, filter: Filter) -> str | None:
        """Show on made-up records that no bit of what a record contributes depends on others, in passes as they will be
        (docs/privacy-model.md 4.4); after :meth:`check`, once, and anew where kernels may have changed: with other threads,
        precision, or plan. Returns the name of a layer where a bit changed, or why records may not pass together, if so."""
        if not self.pass_rows:
            self.settle(1.0)
        self._try(self.pass_rows)
        assert self._plan is not None
        if self.pass_rows > 1 and self._plan.unmapped:
            return UNMAPPED.format(self._plan.unmapped.replace("{", "(").replace("}", ")"))
        if self.pass_rows > 1 and torch.get_num_threads() > 1 and flushed_in_part():
            return FLUSHED
        narrow = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
        kernels = (self.pass_rows, type(filter), *narrow, torch.get_num_threads(), torch.backends.mkldnn.enabled)
        if kernels in self._rehearsed:
            self._shapes = self._rehearsed[kernels]
            return None
        rehearsal = _Rehearsal(self, filter)
        device = self._parameters[0].device
        with undisturbed(self._model, self._loss), full_precision(), deterministic(device, self.pass_rows > 1):
            move(self._model)
            try:
                place = rehearsal.moved()
            except RuntimeError as error:
                if "deterministic" not in str(error):
                    raise
                place = f"an operation without a fixed order: {first_line(error)}"
        if place is None:
            self._rehearsed[kernels] = self._shapes
            self.kernels_digest = rehearsal.digest.hexdigest()
        return place

    def _contributed(self, rows: slice, filter: Filter, start: int | None) -> list[tuple[str, Tensor]]:
        """By layer, all that decides what records of a pass contribute; and the sum of a chunk that begins at ``start``."""
        layers = self._layers
        contributed = [
            (layer.names[0].rpartition(".")[0] or layer.names[0], values)
            for layer in layers
            for values in (*layer.left(rows), *layer.measure(rows), layer.wide_squared_norms(rows))
        ]
        norms, bad = _measured(layers, rows, filter.kind == "layer-wise")
        if filter.kind == "element-wise":
            _zero(layers, bad)
            before, after = self._mapping(rows, norms, filter)
            squares = [layer.mapped_squares(rows, before, filter.map) for layer in layers]
            contributed += [("the filter", value) for value in (before, after, *squares) if value is not None]
            if self._compile:
                self._element_wise_sum([norms], filter, None, rows.stop)
            return contributed
        contributed.append(("the filter", _factors(filter, norms, filter.certified_bound(self.live)).T))
        if start is not None and rows.stop > 1:
            chunk = slice(start, start + min(LIMIT, rows.stop - 1))
            factors = torch.zeros_like(norms)
            total = norms.new_zeros(1, self.live)
            factors[:, chunk] = 1.0
            self._add_weighted(total[0], factors, [chunk])
            contributed.append(("a sum", total))
        return contributed


class _Rehearsal:
    """Passes over made-up records, of which others are replaced and all are moved; a digest of what the first one leaves."""

    def __init__(self, gradients: RecordGradients, filter: Filter) -> None:
        assert gradients._plan is not None
        self._gradients, self._filter, self._rows = gradients, filter, gradients.pass_rows
        made_up = gradients._plan.probe.made_up
        self._x, self._y = made_up.batch(2 * self._rows)
        self._keys = made_up.keys(self._x)
        self._alone: list[object] = []  # operations of two records alone
        self._base: list[tuple[str, Tensor]] = []
        self.digest: Any = hashlib.blake2b(digest_size=8)
        gradients._filler = (self._x[:1], self._y[:1])

    def moved(self) -> str | None:
        """Name of a layer where another row, or its place, changes a bit of a row; finds the shapes where none does."""
        gradients, rows, x = self._gradients, self._rows, self._x
        few = min(2, rows)
        gradients._shapes = (few, rows)
        self._alone, _, _ = self._pass(x[:few], self._y[:few], self._keys[:few], None)
        gradients._shapes = (rows,)
        with TilesMix() as tiles:
            _, seen, _ = self._pass(x[:rows], self._y[:rows], self._keys[:rows], 0)
        if tiles.mix and rows > 1:
            return "products of bfloat16"
        self._base = [(place, values.clone()) for place, values in seen]
        for _, values in self._base:
            self.digest.update(values.contiguous().cpu().flatten().view(torch.uint8).numpy())
        if place := self._moved_in(rows):
            return place
        # what is zero is zero in any shape, and shows nothing; but tokens and positions may be
        numbers = [values for _, values in self._base if values.is_floating_point() and values.ndim > 1 < len(values)]
        if gradients._smaller and all((values != 0).flatten(1).any(1).sum() * 2 > rows for values in numbers):
            for size in (size for size in gradients._wanted[::-1] if size < rows):
                larger, gradients._shapes = gradients._shapes, (size, *gradients._shapes)
                if self._moved_in(size):
                    gradients._shapes = larger
        return None

    def _moved_in(self, rows: int) -> str | None:
        """Name of a layer where, in a pass of so many rows, some row does not give what it gave at first."""
        places = torch.arange(rows, device=self._x.device)
        never = places < 0
        odd = (places % 2 == 1) & (rows > 1)
        large = torch.tensor([1.0, 1e3, 1e30, 1e-30], device=self._x.device)[places // 2 % 4]
        drawn = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).to(self._x.device)
        return (
            self._differs(places.roll(1), never, torch.ones_like(large), first=True)
            or self._differs(places.flip(0), odd, large)
            or self._differs(drawn, ~odd & (rows > 1), large * math.nan)
        )

    def _differs(self, order: Tensor, others: Tensor, factor: Tensor, first: bool = False) -> str | None:
        """The same for rows in this ``order``, of which ``others`` are replaced."""
        rows, replaced = len(order), bool(others.any())
        moved_order = torch.where(others, torch.arange(rows, device=order.device) + self._rows, order)
        x, y = self._x[moved_order], self._y[moved_order]
        for values in (x, y):
            if values.is_floating_point():
                values[others] *= factor[others].view(-1, *[1] * (values.ndim - 1)).to(values.dtype)
        try:
            start = 1 if first and rows == self._rows else None
            _, seen, remainder = self._pass(x, y, self._keys[moved_order], start)
        except Exception:  # values that a model will not take
            if bool((factor == 1.0).all()):
                raise
            return self._differs(order, others, torch.ones_like(factor))
        if remainder and rows > 1:
            return remainder
        for (place, values), (_, again) in zip(self._base, seen, strict=False):
            if len(values) != self._rows:  # what float64 rounds is part of the bound
                same = float((values - again).norm()) <= 2.0**-40 * float(values.norm())
            else:
                same = same_numbers(values[order[~others]], again[~others] if replaced else again)
            if not same:
                return place
        return None

    def _pass(
        self, x: Tensor, y: Tensor, keys: Tensor, start: int | None
    ) -> tuple[list[object], list[tuple[str, Tensor]], str]:
        """The operations of one pass, what its records contribute, and one that is ``ROUGH`` and had a remainder."""
        gradients = self._gradients
        passing, measuring = _Operations(len(x)), _Operations(len(x))
        try:
            with passing:
                gradients._take(x, y, keys)
            # (what is compiled cannot be watched)
            with torch.autocast(x.device.type, enabled=False), nullcontext() if gradients._compile else measuring:
                contributed = gradients._contributed(slice(0, len(x)), self._filter, start)
            # what is of a record alone, in the engine's own maps, has its own vectors and remainder; what two records alone
            # took in the same shape is of parameters
            own = [name for _, name, numbers in measuring.rough if numbers % len(x) == 0]
            rough = [name for done, name, _ in passing.rough if passing.done.count(done) > self._alone.count(done)]
            return passing.done, contributed, next(iter(rough + own), "")
        finally:
            gradients._release()


ROUGH = re.compile(
    r"exp(?!and)|log(?!ical|_softmax)|sig(?!n)|(?<![a-z])a?(?:sin|cos|tan)|softplus|(?<!r)elu|silu|mish|pow|erf|gamma|rsqrt"
    r"|entropy|glu|huber|smooth_l1|\bi0|_i[01]|hypot|polar|rsub"
)
"""Names of operations whose remainder (``VECTORS``) may be rounded otherwise than the rest, by other code. Sums, products,
quotients and roots are rounded correctly by any, one at a time: not with a factor (``alpha``), nor of complex numbers. (With
torch 2.13 on an AMD EPYC: sigmoid, softplus, elu, pow, gelu, atan2, logaddexp and what is made from them, for one number in
ten to a hundred; on an Intel Xeon the losses and those of bfloat16 as well.)"""


class _Operations(TorchDispatchMode):
    """Notes operations on tensors, with the shapes of what they give; and those that are ``ROUGH``, with a remainder."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows = rows
        self.done: list[object] = []
        self.rough: list[tuple[object, str, int]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or a second of imports for nothing; see ``draws``

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        outputs = tensors_in(result)
        done, name = (function, [value.shape for value in outputs]), function.__name__
        self.done.append(done)
        squared = "pow" in name and isinstance(args[1], int | float) and args[1] == 2  # a product
        seen = tensors_in((args, kwargs))
        joint = (kwargs or {}).get("alpha", 1) != 1 or any(value.is_complex() for value in (*outputs, *seen))
        if joint or (ROUGH.search(name) and not squared):
            numbers = max((value.numel() for value in outputs), default=0)
            alike = all(self._regular(value) for value in (*outputs, *seen) if value.numel() == numbers)
            if numbers >= self._rows and not alike:
                text = f"{name.partition('.')[0]}, of {' x '.join(map(str, outputs[0].shape))} numbers"
                self.rough.append((done, text, numbers))
        return result

    def _regular(self, values: Tensor) -> bool:
        """Whether vectors, and threads, begin at the same places of each record."""
        numbers = values.numel()
        vectors = 128 // values.element_size()
        run = 1
        shared = False
        for stride, size in sorted(zip(values.stride(), values.shape, strict=True)):
            if size > 1 and stride == run:
                run, shared = run * size, shared or size % self._rows == 0
        if run == numbers:
            return _even(numbers, vectors)
        # runs that are of one record each, or leave no remainder, as many for every thread
        alike = numbers <= SHARED_SOONER or numbers // run % torch.get_num_threads() == 0
        return alike and (not shared or run % vectors == 0)


def _even(numbers: int, vectors: int = VECTORS) -> bool:
    """Whether no thread has a remainder of so many, however many take part."""
    team = torch.get_num_threads()
    teams = {min(team, max(1, math.ceil(numbers / SHARED))), team if numbers > SHARED_SOONER else 1}
    return all(numbers % (vectors * threads) == 0 for threads in teams)


def shapes_of(
    expected: float,
    most: int,
    fixed: float,
    widths: Collection[int],
    smaller: int = 0,
    vectors: int = VECTORS,
) -> tuple[int, ...]:
    """Rows that passes may have, at most ``most``, ascending, the largest and ``smaller`` others, for the last of a batch.

    Steps of ``expected`` records cost least, a pass as much as ``fixed`` rows before its own. Where it can be, no thread has
    a remainder (``VECTORS``) in tensors of any of ``widths``, numbers a record, nor one thread in records side by side, or
    of any width if none are known; one row where not even a single thread can."""
    team = torch.get_num_threads()
    spread = 8 * math.sqrt(expected)
    drawn = np.arange(max(1, int(expected - spread)), math.ceil(expected + spread) + 1)
    chance = np.exp(-((drawn - expected) ** 2) / (2 * expected))
    chance /= chance.sum()

    def cost(shapes: Sequence[int]) -> float:
        full = (drawn - 1) // shapes[-1]
        last = np.array(shapes)[np.searchsorted(shapes, drawn - full * shapes[-1])]
        return float(chance @ (full * (shapes[-1] + fixed) + last + fixed))

    unit = next(unit for unit in (vectors * team, vectors, VECTORS, 1) if unit <= most)
    end = min(most, int(drawn[-1]) + unit) + 1
    every = range(vectors, end, vectors) if widths else ()
    even = [rows for rows in every if all(_even(rows * width, vectors) for width in widths)]
    sizes = even or (list(range(unit, end, unit)) if unit > 1 else [1])
    sizes = sizes[:: math.ceil(len(sizes) / 64)]
    costs = [cost(sizes[: at + 1] if smaller else [rows]) for at, rows in enumerate(sizes)]
    largest = next(at for at, least in enumerate(costs) if (1 - GAIN) * least <= min(costs))
    shapes = [sizes[largest]]
    for _ in range(smaller):
        more = min((sorted({*shapes, size}) for size in sizes[: largest + 1]), key=cost)
        if cost(more) > (1 - GAIN) * cost(shapes):
            break
        shapes = more
    return tuple(shapes)


def moved_text(place: str, narrow: bool, so: str = "no bound would hold") -> str:
    """Return why a training is refused where bits of a record depend on others; ``narrow`` if passes are in bfloat16."""
    if "{}" in place:
        return f"model: {place.format(so)}"
    remedy = "import dpltm before anything is computed with torch, or set MKL_CBWR=AUTO,STRICT and MKL_DYNAMIC=FALSE"
    if narrow:  # tiles of AMX multiply by zero what lies behind a row whose length is no multiple of theirs: NaN stays
        remedy = "leave `precision` out, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
    return (
        "model: what a record gives depends, in its last bits, on the rows beside it on this machine (seen at"
        f" {place}): {so}; {remedy} before Python starts"
    )


def _zero(layers: list[Layer], out: Tensor) -> None:
    if bool(out.any()):
        for layer in layers:
            layer.zero_records(out)


def _total(norms: Tensor) -> Tensor:
    """Norm of each record's gradient, ``(rows,)``, from those in each layer."""
    return norms.square().sum(0).sqrt()


def _factors(filter: RadialFilter | LayerWiseFilter, norms: Tensor, bound: float) -> Tensor:
    """Factor of each record's gradient in each layer, ``(layers, rows)``; whatever the filter says, within ``bound``."""
    own = filter.factor(norms) if filter.kind == "layer-wise" else filter.factor(_total(norms)).expand(len(norms), -1)
    own = own.nan_to_num(0.0, 0.0, 0.0)
    most = bound * (1 + 1e-12)
    return own * (most / _total(own * norms).clamp_min(most))


def _measured(layers: list[Layer], rows: slice, any_row: bool) -> tuple[Tensor, Tensor]:
    """Norm of each record's gradient in each layer, ``(layers, rows)`` float64; and the records beyond ``REACH``."""
    measured = [layer.measure(rows) for layer in layers]
    squares = torch.stack([squares.double() for _, squares in measured])
    small = squares[[place for place, layer in enumerate(layers) if sum(layer.sizes)]] < NARROW**2
    brought = torch.stack([brought for brought, _ in measured]).amax(0)
    again = ~(brought <= WIDE) | (small.any(0) if any_row else squares.sum(0) < NARROW**2)  # true for NaN
    if not bool(again.any()):
        return squares.sqrt(), again
    bad = ~(brought <= REACH)
    # for all, and selected: neither the precision of a record nor the shape in which it is computed may depend on another
    exact = torch.stack([layer.wide_squared_norms(rows) for layer in layers])
    return torch.where(again, exact, squares).masked_fill(bad, 0.0).sqrt(), bad
