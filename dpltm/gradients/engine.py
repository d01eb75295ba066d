"""Filtered sums of per-record gradients, from one forward and one backward pass.

Each layer stands for the per-record gradients of its own parameters (see ``Layer``), written out only where they must be. A
radial filter needs a norm and one weighted sum, an element-wise one every live coordinate of every record, some at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpltm.errors import InputError
from dpltm.filters import ElementWiseFilter, Filter, follows
from dpltm.gradients.explicit_layer import ExplicitLayer
from dpltm.gradients.layer import Layer, Recorder
from dpltm.gradients.linear_layer import LinearLayer, compiler_at_hand
from dpltm.gradients.plan import Plan, check_model, make_plan, record_batch
from dpltm.gradients.probe import Loss, MadeUp, Probe, losses_of, structure, undisturbed
from dpltm.networks.full_precision import full_precision
from dpltm.networks.masks import Mask
from dpltm.randomness.sampling import ROUNDING, check_chunks, scale_of

REACH = 2.0**60
"""Largest input or output gradient of a layer: a record beyond it counts as not finite."""

BATCH_BYTES, PASS_BYTES, BOTH_BYTES = 2**28, 2**27, 7 * 2**26
"""Memory of a physical batch, least memory of a pass over some of its records, and of both together where there is room, in
bytes, approximate. Smaller passes call every operation more often, on too few records to share among threads: at a third of
it, a step of ResNet-20 takes a fifth longer on two threads. Larger ones would hold more than Opacus does."""

WIDE, NARROW = 2.0**20, 2.0**-30
"""Squares are taken in float64 for records that reach beyond ``WIDE``, and for norms below ``NARROW``: in float32 they could
over- or underflow and the norm be wrong. Between these, each of the squares of a w by w layer loses at most 2^-150 before it
is multiplied by at most 2^40: w^2 2^-50 of the least squared norm, less than half of ``rounding`` up to w = 2^25. (Small
numbers are not flushed to zero, unless torch is asked to.)"""


@dataclass(frozen=True)
class FilteredSum:
    """The sum over a batch of filtered per-record gradients.

    Attributes:
        values: live coordinates of the sum, ``(live,)`` float64, parameter by parameter, row-major within each; one more
            for the count of a filter whose clip norm follows a quantile (``length_of``).
        skipped: records, or groups, with a gradient not finite, or beyond ``REACH``, that contributed zero; private.
    """

    values: Tensor
    skipped: int


class RecordGradients:
    """Filtered gradient sums of one network under one mask.

    Frozen parameters (``requires_grad=False``) have no live coordinates, whatever the mask says; unused ones have gradient
    zero; shared ones the sum over their uses.

    Args:
        model: takes a batch, dimension 0 the records, and keeps them apart; what has no rule goes through ``torch.func``.
        mask: live coordinates. Weights that are not must be zero: some kernels take them for zero.
        compile: have ``torch.compile`` fuse element-wise filters, if there is a C++ compiler; slow for every new shape.
        grouped: write every gradient out, so that those of groups of records can be averaged before the filter.

    Attributes:
        pass_rows: rows of every pass, filled up by copies that count for nothing; None for passes of any size. In narrow
            precision what a pass leaves of a record depends on its shape by 2^-8, where float32 does by 2^-24.

    Raises:
        InputError: a module that mixes records, a dtype that the bound does not cover, or a mask that does not fit.
    """

    def __init__(
        self,
        model: nn.Module,
        mask: Mask,
        loss: Loss,
        compile: bool = False,
        kernels: str = "auto",
        *,
        grouped: bool = False,
    ) -> None:
        check_model(model)
        mask.check_fits(model)
        self._model, self._loss, self._kernels, self._grouped = model, loss, kernels, grouped
        self._compile = compile and compiler_at_hand()
        self._live_mask = {
            name: mask[name].to(value.device)
            if value.requires_grad
            else torch.zeros((), dtype=torch.bool, device=value.device).expand(value.shape)
            for name, value in model.named_parameters()
        }
        self._count = sum(int(live.sum()) for live in self._live_mask.values())
        self._plan: Plan | None = None
        self._checked: tuple[object, ...] = ()
        self._fillings: Tensor | None = None
        self.pass_rows: int | None = None
        self._parameters = list(model.parameters())
        self._trained = {name: value.requires_grad for name, value in model.named_parameters()}
        self._order: Tensor | None = None  # of live coordinates as layers give them, if not in that of parameters
        linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
        widest = max((max(module.weight.shape) for module in linear), default=0)
        self._rounding = 1 - 2.0**-23 * (widest + 64)

    @property
    def live(self) -> int:
        """Number of live coordinates, none of frozen parameters: the length of every sum."""
        return self._count

    def length_of(self, filter: Filter) -> int:
        """Length of the sums of a filter: ``live``, and one for the count that its clip norm follows."""
        return self.live + (follows(filter) is not None)

    @property
    def rounding(self) -> float:
        """Factor on radial factors by which the bound holds despite float32 norms.

        A sum of m non-negative products has relative error at most about (m + 2) 2^-24 in any order of summation, and the
        product of two such sums, which is the squared norm where everything is live, twice that; the norm has half of
        it, and the products of the sum add a few more. Twice that is taken. Sums in chunks multiply by ``sampling.ROUNDING``
        as well.
        """
        return self._rounding

    def check(self, x: Tensor, y: Tensor, fillings: Tensor | None = None) -> None:
        """Decide how gradients are computed for batches like these; of ``x`` and ``y`` only shape, dtype and device matter.
        ``fillings`` are public rows of padding, ``(k, ...)``, that records may end in.

        The first batch decides it otherwise, after something may have been spent. It is done anew where a module was
        exchanged, hooked, patched or set to another mode since. Raises InputError where the loss is not one value a
        record, records are mixed, or no rule gets the gradients right.
        """
        self._fillings = self._fillings if fillings is None else fillings
        state = structure(self._model, self._loss)
        if self._plan is None or state != self._checked:
            self._plan = None
            if [id(value) for value in self._model.parameters()] != [id(value) for value in self._parameters]:
                raise InputError(
                    "model: its parameters are not those that it had at first; begin anew with this model"
                )
            for name, value in self._model.named_parameters():
                if value.requires_grad != self._trained[name]:
                    raise InputError(
                        f"model parameter {name}: requires_grad is not {self._trained[name]} any more, as when this began;"
                        " set it back, or begin anew with this model"
                    )
            check_model(self._model)
            with full_precision():
                like = MadeUp(x, y, self._parameters[0].dtype, fillings=self._fillings)
                settings = self._compile, self._kernels, self._grouped
                self._plan = make_plan(self._model, self._live_mask, self._loss, like, *settings)
            self._checked = state
            layers = [layer for layer, _ in self._plan.layers]
            sizes = [size for layer in layers for size in layer.sizes]
            given = torch.arange(sum(sizes), device=x.device)
            place = dict(zip((name for layer in layers for name in layer.names), given.split(sizes), strict=True))
            order = torch.cat([place[name] for name in self._live_mask if name in place])
            self._order = None if torch.equal(order, given) else order

    @property
    def layer_of(self) -> Tensor:
        """Number of the layer that each live coordinate is in, ``(live,)`` int64; all 0 before the first ``check``."""
        if self._plan is None:
            return torch.zeros(self.live, dtype=torch.int64)
        sizes = torch.tensor([sum(layer.sizes) for layer, _ in self._plan.layers])
        given = torch.arange(len(sizes)).repeat_interleave(sizes).to(self._parameters[0].device)
        return given if self._order is None else given[self._order]

    @property
    def comfortable_batch(self) -> int:
        """Number of records that fit ``BATCH_BYTES``; unlimited before the first ``check``."""
        if self._plan is None or not self._plan.kept:
            return 2**31
        return max(1, BATCH_BYTES // (4 * self._plan.kept))

    @property
    def comfortable_pass(self) -> int:
        """Number of records that fit ``PASS_BYTES``; unlimited before the first ``check``."""
        return 2**31 if self._plan is None else max(1, PASS_BYTES // max(1, 4 * self._plan.passing))

    def check_bits(self) -> None:
        """Refuse a device where a record's numbers depend on its place in a pass of ``pass_rows``, or on the other rows.

        After ``check``, and in the precision of the passes to come: made-up rows are replaced and moved, and not a bit may
        change of the others.
        """
        plan = self._plan
        assert plan is not None
        if self.pass_rows is not None and not plan.whole:  # which is computed in float32
            probe = Probe(self._model, plan.modules, self._loss, plan.made_up, plan.copy, plan.axes, plan.spread)
            with undisturbed(self._model, self._loss), torch.enable_grad(), full_precision():
                place = probe.moved(self.pass_rows)
            if place:
                raise InputError(
                    "`precision`: in bfloat16, what a record gives depends on the rows beside it on this device (seen at"
                    f" {place}): no bound would hold; use float32"
                )

    @property
    def draws(self) -> bool:
        """Whether the network draws random numbers; False before the first ``check``."""
        return self._plan is not None and bool(self._plan.axes)

    @property
    def kernels(self) -> dict[str, str]:
        """Kernel of each linear layer, by the name of its weight; none before the first ``check``."""
        layers = [] if self._plan is None else [layer for layer, _ in self._plan.layers]
        return {layer.names[0]: layer.kernel for layer in layers if isinstance(layer, LinearLayer)}

    def filtered_sum(
        self,
        x: Tensor,
        y: Tensor,
        filter: Filter,
        present: Tensor | None = None,
        chunks: Sequence[slice] | None = None,
        out: Tensor | None = None,
        groups: Sequence[int] | None = None,
        keys: Tensor | None = None,
    ) -> FilteredSum:
        """Sum over the batch of ``filter`` applied to each record's gradient on live coordinates.

        Args:
            present: ``(batch,)`` bool; rows that only fill the batch up to a fixed shape are False, and count for nothing.
                Or floating: what each filtered gradient is multiplied by, clamped to [0, 1], which may depend on its own
                record; in front of the filter it would be undone.
            chunks: consecutive rows, at most ``sampling.LIMIT`` each, that may be summed in float32 by radial and layer-wise
                filters. Which record is in which must be decided by coins of their own (``sampling.in_chunks``). None for
                a sum in float64; that is another mechanism, so all batches of a step have chunks, if only none, or no batch.
            out: what the sum is added to, and returned in, ``(length_of(filter),)`` float64; None for zeros.
            groups: how many rows each group has, none without rows; in order, all rows. The filter then takes the mean
                gradient of each, and a group counts wherever a record does above, with a bound of its own
                (``training.plan``), and in ``present``. Only where ``grouped``, without ``chunks``.
            keys: ``(batch,)`` int64, secret (``sampling.record_keys``), needed where the network ``draws``: all that it
                draws for a record follows from that record's key (``gradients.draws``).

        Raises:
            InputError: chunks that overlap, are out of order or too large; keys that are missing; or see :meth:`check`.

        Guarantees:
            One record changes the sum by at most ``filter.certified_bound(live)`` in L2 norm, whatever its values and the
            keys; a record with a gradient that is not finite (see ``REACH``) contributes exactly zero. The sum is taken in
            float64, or in chunks whose rounding is part of the bound (see ``sampling``): in float32 alone it can exceed the
            bound many times. What a record contributes is taken as computed independently of its batch, which linear
            algebra libraries keep only up to the last bits: of float32, since ``full_precision`` keeps them from rounding
            factors to fewer. (In bfloat16 see :meth:`check_bits`.)
        """
        check_chunks(chunks or (), len(x))
        total = torch.zeros(self.length_of(filter), dtype=torch.float64, device=x.device) if out is None else out
        if len(x) == 0:
            return FilteredSum(total, 0)
        self.check(x, y)
        assert self._plan is not None
        if self._plan.axes and (keys is None or keys.shape != (len(x),)):
            raise InputError("`keys`: the network draws random numbers; give one key a record (sampling.record_keys)")
        layers = [layer for layer, _ in self._plan.layers]
        if missing := -len(x) % (self.pass_rows or 1):
            x, y, present, groups, keys = _filled_up(x, y, present, groups, keys, missing)
        weights = None
        if present is not None and present.is_floating_point():  # clamped, or the bound would rest on the caller
            weights = present.double().nan_to_num(0.0).clamp(0.0, 1.0)
            present = weights > 0
        try:
            with full_precision():
                for layer in layers:
                    layer.begin(len(x))
                for rows in self._at_once(len(x)):
                    self._pass(self._plan, x[rows], y[rows], None if keys is None else keys[rows], rows)
                if groups is not None:
                    _average(layers, groups, x.device)
                bad, wide = _unusable(layers, len(x) if groups is None else len(groups), x.device)
                skipped = 0 if bad is None else int((bad if present is None else bad & present).sum())
                out = bad if present is None else (~present if bad is None else bad | ~present)
                if out is not None:
                    for layer in layers:
                        layer.zero_records(out)
                if out is None or not bool(out.all()):
                    weight = None if out is None else (~out).double()
                    if weights is not None:
                        weight = weights if weight is None else weight * weights
                    with torch.autocast(x.device.type, enabled=False):
                        self._add_filtered(layers, wide, weight, filter, chunks, total)
        finally:
            for layer in layers:
                layer.release()
        return FilteredSum(total, skipped)

    def _at_once(self, records: int) -> Iterator[slice]:
        """Rows of each pass, about as many in all of them."""
        assert self._plan is not None
        room = (BOTH_BYTES - 4 * self._plan.kept * records) // max(1, 4 * self._plan.passing)
        passes = math.ceil(records / (self.pass_rows or max(room, self.comfortable_pass)))
        return (slice(records * i // passes, records * (i + 1) // passes) for i in range(passes))

    def _pass(self, plan: Plan, x: Tensor, y: Tensor, keys: Tensor | None, rows: slice) -> None:
        draws = plan.draws(keys)
        recorder = Recorder(plan.modules, plan.copy, plan.instead, draws, plan.spread, len(x))
        with torch.enable_grad(), recorder:
            if not plan.whole:
                recorder.backward(losses_of(self._model, self._loss, x, y, draws).sum())
        with torch.autocast(x.device.type, enabled=False):
            record_batch(plan, recorder, self._model, self._loss, x, y, draws, rows)

    def _add_filtered(
        self,
        layers: list[Layer],
        wide: Tensor,
        weight: Tensor | None,
        filter: Filter,
        chunks: Sequence[slice] | None,
        total: Tensor,
    ) -> None:
        norms = _norms(layers, wide, each=filter.kind == "layer-wise")
        norm = norms.square().sum(0).sqrt()
        if (counting := follows(filter)) is not None:
            counts = counting.counted(norm) * self._rounding
            total[-1] += (counts if weight is None else counts * (weight > 0)).sum()
            total = total[:-1]
        if filter.kind == "element-wise":
            values = self._element_wise_sum(layers, norm, filter, weight)
            total += values if self._order is None else values[self._order]
            return
        factors = filter.factor(norms) if filter.kind == "layer-wise" else filter.factor(norm).expand(len(norms), -1)
        bound = filter.certified_bound(self._count)
        # float32 is short of room for other bounds alone; without a scale sums are written where they are wanted
        scale = 1.0 if chunks is None or 2.0**-10 <= bound <= 2.0**10 else scale_of(bound)
        factors = factors * (self._rounding * (1.0 if chunks is None else ROUNDING) / scale)
        factors = factors if weight is None else factors * weight
        at_once = scale == 1.0 and self._order is None
        values = total if at_once else torch.zeros_like(total)
        parts = values.split([sum(layer.sizes) for layer in layers])
        for layer, part, factor in zip(layers, parts, factors, strict=True):
            layer.add_weighted_sum(part, factor, chunks)
        if not at_once:
            total.add_(values if self._order is None else values[self._order], alpha=scale)

    def _element_wise_sum(
        self, layers: list[Layer], norm: Tensor, filter: ElementWiseFilter, weight: Tensor | None
    ) -> Tensor:
        """Sum of mapped coordinates; those that are clipped after are mapped twice, for the norm and for the sum."""
        before = torch.ones_like(norm) if filter.before is None else filter.before.factor(norm) * self._rounding
        if filter.after is not None:
            squares = torch.stack([layer.mapped_squares(before, filter.map) for layer in layers]).sum(0)
            after = filter.after.factor(squares.sqrt()) * self._rounding
            weight = after if weight is None else after * weight
        return torch.cat([layer.mapped_sum(before, filter.map, weight) for layer in layers])


def _filled_up(
    x: Tensor, y: Tensor, present: Tensor | None, groups: Sequence[int] | None, keys: Tensor | None, missing: int
) -> tuple[Tensor, Tensor, Tensor, Sequence[int] | None, Tensor | None]:
    """A batch with so many copies of its first row more, as a group of their own, that are not present."""
    if present is None:
        present = torch.ones(len(x) if groups is None else len(groups), dtype=torch.bool, device=x.device)
    x, y = (torch.cat([rows, rows[:1].expand(missing, *rows.shape[1:])]) for rows in (x, y))
    present = nn.functional.pad(present, (0, missing if groups is None else 1))
    keys = None if keys is None else nn.functional.pad(keys, (0, missing))
    return x, y, present, None if groups is None else [*groups, missing], keys


def _average(layers: list[Layer], groups: Sequence[int], device: torch.device) -> None:
    sizes = torch.tensor(groups, device=device)
    for layer in layers:
        assert isinstance(layer, ExplicitLayer)  # as plans of ``grouped`` have them
        layer.average(sizes)


def _unusable(layers: list[Layer], records: int, device: torch.device) -> tuple[Tensor | None, Tensor]:
    """Masks of the records beyond ``REACH``, None for none of them; and of the others that reach beyond ``WIDE``."""
    extremes = torch.stack([value for layer in layers for value in layer.extremes()])
    if float(extremes.abs().max()) <= WIDE:  # as nearly always; false for NaN
        return None, torch.zeros(records, dtype=torch.bool, device=device)
    peak = torch.stack([layer.peak() for layer in layers]).amax(0)
    good = peak <= REACH  # false for NaN as well
    return None if bool(good.all()) else ~good, good & (peak > WIDE)


def _norms(layers: list[Layer], wide: Tensor, each: bool) -> Tensor:
    """Norm of each record's gradient in each layer, ``(layers, batch)`` float64, exact for records in ``wide``: the
    precision of one record must not depend on another."""
    squares = torch.stack([layer.squared_norms().double() for layer in layers])
    small = squares[[place for place, layer in enumerate(layers) if sum(layer.sizes)]] < NARROW**2
    again = wide | (small.any(0) if each else squares.sum(0) < NARROW**2)
    if bool(again.any()):
        squares[:, again] = torch.stack([layer.wide_squared_norms(again) for layer in layers])
    return squares.sqrt()
