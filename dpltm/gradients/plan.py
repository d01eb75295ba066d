"""Choice of a rule for each part of a network, made once on a batch of made-up records, and checked there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpltm.errors import InputError, first_line
from dpltm.gradients.draws import REMEDY, Draws
from dpltm.gradients.explicit_layer import EmbeddingLayer, ExplicitLayer
from dpltm.gradients.layer import Call, Layer, tensors_in
from dpltm.gradients.linear_layer import LinearLayer
from dpltm.gradients.mapped import Loss
from dpltm.gradients.probe import FEW, MadeUp, Probe, hooks_of, undisturbed
from dpltm.gradients.rules import WholeModel
from dpltm.networks.layers import check_layers
from dpltm.randomness.sampling import LIMIT
from dpltm.records.made_up import KEPT, CannotFollow, Decides, mapped_tensors, outlive

AGREE, FLOOR = 1e-3, 1e-5
"""Largest difference between the sum of per-record gradients and the gradient of the sum: of one parameter's gradient, plus
of the network's largest, since a gradient that is zero by nature comes out as rounding."""


@dataclass(frozen=True)
class Plan:
    """Rules for one network, by its ``layers``. A record takes about ``passing`` numbers during a pass, and ``kept`` until
    the sum is made. Tensors that modules see and give have one of ``widths`` numbers a record. Passes map over records, and
    cannot mix them, or ``unmapped`` says why not."""

    probe: Probe
    layers: tuple[Layer, ...]
    passing: int
    kept: int
    widths: frozenset[int] = frozenset()
    unmapped: str = ""

    @property
    def by_torch_func(self) -> bool:
        """Whether ``torch.func`` takes the whole model, of which the probe watches no units."""
        return not self.probe.units

    def pass_over(self, x: Tensor, y: Tensor, keys: Tensor | None, rows: slice) -> None:
        """Pass over these ``rows`` of the batch that the layers have begun with, and give layers what that leaves."""
        linear = [layer for layer in self.layers if isinstance(layer, LinearLayer) and layer.kernel == "sparse"]
        try:
            calls = self.calls(x, y, keys, [(layer.module, layer.forward) for layer in linear])
        except (CannotFollow, Decides) as error:
            raise InputError(f"model or loss: records cannot be mapped over any more ({error})") from error
        with torch.autocast(x.device.type, enabled=False):
            for layer in self.layers:
                layer.take([call for call in calls if call.module in layer.modules], rows)

    def calls(
        self, x: Tensor, y: Tensor, keys: Tensor | None, instead: Sequence[tuple[nn.Module, Callable[..., Any]]] = ()
    ) -> list[Call]:
        """What a pass leaves with modules."""
        keys = keys if self.probe.axes else None
        if self.by_torch_func:
            ones = torch.ones(len(x), dtype=next(self.probe.model.parameters()).dtype, device=x.device)
            return [Call(self.layers[0].modules[0], (x, y), {}, [], [0], [ones], keys)]
        if not self.unmapped:
            with self.probe.mapped(x, y, keys, instead) as (recorder, losses):
                recorder.backward(losses.sum())
            return recorder.calls
        draws = None if keys is None else Draws(keys, self.probe.axes)
        with torch.enable_grad(), self.probe.recorder(len(x), draws, instead) as recorder:
            recorder.backward(self.probe.losses(x, y, draws).sum())
        return recorder.calls


def check_model(model: nn.Module) -> None:
    """Raise InputError for modules that mix records, however they are used."""
    check_layers(model)
    for name, module in model.named_modules():
        where = f"model: {name or type(module).__name__}"
        if isinstance(module, nn.RNNBase) and module.training and module.dropout > 0 and module.num_layers > 1:
            raise InputError(
                f"{where} ({type(module).__name__}) drops out between its layers, in one kernel that keeps the draws to"
                f" itself; use modules of one layer with nn.Dropout between them, or {REMEDY}"
            )
        if getattr(module, "scale_grad_by_freq", False):
            raise InputError(f"{where} scales gradients by frequency in the batch, which mixes records; leave it out")
    dtypes = {value.dtype for value in model.parameters()}
    for name, value in model.named_parameters():
        if value.device.type not in ("cpu", "cuda"):  # Apple's (mps) has no float64, which sums are taken in
            raise InputError(f"model: {name} is on {value.device.type}; use the processor (cpu) or a GPU (cuda)")
        if value.is_inference():
            raise InputError(f"model: {name} was made under torch.inference_mode; make the model outside of it")
        if value.requires_grad and hooks_of(value):
            raise InputError(
                f"model: {name} has a hook on its gradient, unseen by records' own; remove it, or give a mask"
            )
        if value.dtype not in (torch.float32, torch.float64) or len(dtypes) > 1:
            raise InputError(f"model: {name} is of {value.dtype}; use float32 for all parameters, or float64 for all")
    if not any(value.requires_grad for value in model.parameters()):
        raise InputError("model: every parameter is frozen (requires_grad=False), so there is nothing to train")


def make_plan(
    model: nn.Module, live_mask: Mapping[str, Tensor], loss: Loss, like: MadeUp, compile: bool, written: bool = False
) -> Plan:
    """Plan for batches like ``like``; leaves ``model`` as it was. ``written`` asks for every gradient written out. Raises
    InputError where the loss is not one value a record, records are mixed, or no rule gets the gradients right."""
    off = torch.autocast(like.x.device.type, enabled=False)
    with undisturbed(model, loss), off, torch.enable_grad():
        probe = Probe.first(model, _units(model).values(), loss, like)
        probe = probe.apart() if probe.spread else probe
        refusal, kept, before = None, False, mapped_tensors()
        for make in (partial(_assign, compile=compile, written=written), _one_by_one):
            try:
                plan = make(probe, live_mask)
                if plan is not None and plan.probe.units:
                    unmapped = "it gives other gradients for each alone"
                    try:
                        right = _right(plan, live_mask)
                    except Exception as error:  # whatever cannot be mapped over, or is another's then
                        right, unmapped = False, first_line(error)
                    if kept := outlive(before):
                        break
                    if right:
                        return plan
                    plan = replace(plan, unmapped=unmapped)
                if plan is not None and _right(plan, live_mask):
                    return plan
            except InputError as error:
                refusal = refusal or error
        if kept:
            raise InputError(f"model or loss: {KEPT}")
        probe.check_apart(FEW)  # which says why, if records are mixed
    raise refusal or InputError(
        "model: per-record gradients do not add up to the gradient of the batch, even one record at a time; does a module"
        " compute something else when it is called again?"
    )


def _units(model: nn.Module) -> dict[str, nn.Module]:
    """Modules whose calls are kept: those that own a parameter."""
    units: dict[str, nn.Module] = {}
    inside = set[nn.Module]()
    for name, module in model.named_modules():
        owns = any(True for _ in module.parameters(recurse=False))
        if owns and module not in inside and any(value.requires_grad for value in module.parameters()):
            units[name] = module
            inside.update(module.modules())
    return units


def _assign(probe: Probe, live_mask: Mapping[str, Tensor], compile: bool, written: bool) -> Plan | None:
    """A layer for each group of modules that share parameters; None if a parameter belongs to no unit."""
    model, units = probe.model, _units(probe.model)
    calls = probe.calls(FEW)
    covered = {id(value) for module in units.values() for value in module.parameters()}
    if any(value.requires_grad and id(value) not in covered for value in model.parameters()):
        return None
    layers: list[Layer] = []
    for group in _sharing(units):
        called = [call for call in calls if call.module in group.values()]
        name, module = next(iter(group.items()))
        once = len(group) == len(called) == 1 and "forward" not in vars(module) and not written
        if once and type(module) is nn.Linear and called[0].inputs[0].shape[:-1] == (FEW,):
            layers.append(LinearLayer(name, module, live_mask, compile))
        elif once and type(module) is nn.Embedding and len(called[0].inputs[0]) == FEW:
            layers.append(EmbeddingLayer(name, module, live_mask))
        else:
            layers.append(ExplicitLayer(model, tuple(group.values()), live_mask))
    explicit = [layer for layer in layers if isinstance(layer, ExplicitLayer)]
    others = [call for call in calls if not any(call.module in layer.modules for layer in explicit)]
    kept = _floats(others) + sum(sum(layer.sizes) for layer in explicit)
    normalised = [call for call in calls if isinstance(call.module, nn.GroupNorm)]
    passing = 3 * (_floats(calls) + sum(call.inputs[0].numel() for call in normalised) // FEW)
    tensors = (value for call in calls for value in tensors_in((call.inputs, call.outputs)))
    widths = frozenset(value.numel() // FEW for value in tensors)
    return Plan(probe, tuple(layers), passing, kept, widths)


def _one_by_one(probe: Probe, live_mask: Mapping[str, Tensor]) -> Plan:
    """``torch.func`` takes the whole model, one record at a time."""
    layer = ExplicitLayer(probe.model, (WholeModel(probe.model, probe.loss),), live_mask)
    return Plan(replace(probe, units=(), copy=(), spread=()), (layer,), 0, sum(layer.sizes))


def _sharing(units: Mapping[str, nn.Module]) -> list[dict[str, nn.Module]]:
    """Groups of units that have no parameter in common, in the order of their first members."""
    groups: list[dict[str, nn.Module]] = []
    for name, module in units.items():
        mine = {id(value) for value in module.parameters()}
        joined = [
            group for group in groups if any(id(v) in mine for part in group.values() for v in part.parameters())
        ]
        groups = [group for group in groups if group not in joined]
        groups.append({key: value for group in joined for key, value in group.items()} | {name: module})
    order = {name: place for place, name in enumerate(units)}
    return sorted(groups, key=lambda group: min(order[name] for name in group))


def _floats(calls: Sequence[Call]) -> int:
    """Numbers in what these calls saw and gave, for each record."""
    return sum(value.numel() for call in calls for value in tensors_in((call.inputs, call.outputs))) // FEW


def _right(plan: Plan, live_mask: Mapping[str, Tensor]) -> bool:
    """Whether per-record gradients add up to the gradient of the batch at every live coordinate."""
    probe = plan.probe
    x, y = probe.made_up.batch()
    parameters = {name: value for name, value in probe.model.named_parameters() if value.requires_grad}
    ones = torch.ones(len(x), dtype=torch.float64, device=x.device)
    total = probe.losses(x, y, probe.draws(x) if probe.axes else None).sum()  # of the model as it is
    of_batch = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    calls = plan.calls(x, y, probe.made_up.keys(x))
    wanted = {
        name: torch.zeros_like(value, dtype=torch.float64) if gradient is None else gradient.to_dense().double()
        for (name, value), gradient in zip(parameters.items(), of_batch, strict=True)
    }
    for name, value in wanted.items():
        if not bool(value.isfinite().all()):
            raise InputError(
                f"model or loss: the gradient of {name} is not finite on made-up records of numbers from 0 to 1; keep logs,"
                " roots and quotients away from 0"
            )
    floor = FLOOR * max(float(value.abs().max()) for value in wanted.values() if value.numel())
    # one after the other: all gradients of all records together may be more than fits
    for layer in plan.layers:
        layer.begin(len(x))
        layer.take([call for call in calls if call.module in layer.modules], slice(0, len(x)))
        total = torch.zeros(sum(layer.sizes), dtype=torch.float64, device=x.device)
        layer.add_weighted_sum(total, ones, [slice(0, len(x) // 2)] if len(x) <= LIMIT else None)
        layer.release()
        if isinstance(layer, ExplicitLayer):
            layer.shrink()
        for name, values in zip(layer.names, total.split(list(layer.sizes)), strict=True):
            if len(values):  # none of frozen ones
                expected = wanted[name][live_mask[name]]
                if not float((values - expected).abs().max()) <= AGREE * float(expected.abs().max()) + floor:
                    return False
    return True
