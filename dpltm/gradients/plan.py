"""Choice of a rule for each part of a network, made once on a batch of made-up records, and checked there.

A network is anything that PyTorch can express, so its source is not relied upon: whether records stay apart, and whether
the rules account for every use of every parameter, is tried out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from dpltm.errors import InputError
from dpltm.gradients import rules
from dpltm.gradients.draws import REMEDY, Axis, Draws
from dpltm.gradients.explicit_layer import EmbeddingLayer, ExplicitLayer
from dpltm.gradients.layer import Call, Layer, Recorder
from dpltm.gradients.linear_layer import LinearLayer
from dpltm.gradients.probe import FEW, Loss, MadeUp, Probe, hooks_of, losses_of, undisturbed
from dpltm.networks.layers import check_layers
from dpltm.randomness.sampling import LIMIT

AGREE, FLOOR = 1e-3, 1e-5
"""Largest difference between the sum of per-record gradients and the gradient of the sum: of one parameter's gradient, plus
of the network's largest, since a gradient that is zero by nature comes out as rounding."""


@dataclass(frozen=True)
class Plan:
    """Rules for one network: ``layers``, with their modules.

    Calls of ``modules`` are kept, and outputs of ``copy`` overwritten in place; without ``modules``, ``torch.func``
    takes the whole model. What ``spread`` give for all records becomes a row of each. A record takes about ``passing``
    numbers during a pass, and ``kept`` until the sum is made. ``made_up`` are batches like those to come. A network that
    draws has ``axes``, one for each draw. Tensors that modules see and give have one of ``widths`` numbers a record.
    """

    modules: tuple[nn.Module, ...]
    copy: tuple[nn.Module, ...]
    layers: tuple[tuple[Layer, tuple[nn.Module, ...]], ...]
    passing: int
    kept: int
    made_up: MadeUp
    axes: tuple[Axis, ...] = ()
    spread: tuple[nn.Module, ...] = ()
    widths: frozenset[int] = frozenset()

    def draws(self, keys: Tensor | None) -> Draws | None:
        """Answers to what a pass draws, by the keys of its records; None where the network does not draw."""
        return Draws(keys, self.axes) if self.axes and keys is not None else None

    @property
    def instead(self) -> list[tuple[nn.Linear, Callable[[Tensor], Tensor]]]:
        """Modules whose forward pass is a sparse product, with that product."""
        linear = [layer for layer, _ in self.layers if isinstance(layer, LinearLayer)]
        return [(layer.module, layer.forward) for layer in linear if layer.kernel == "sparse"]

    @property
    def by_torch_func(self) -> bool:
        return not self.modules


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
        if value.requires_grad and hooks_of(value):
            raise InputError(
                f"model: {name} has a hook on its gradient, which no record's gradient goes through; remove() it by its"
                " handle, and change `grad` behind backward, or give a mask"
            )
        if value.dtype not in (torch.float32, torch.float64) or len(dtypes) > 1:
            raise InputError(
                f"model: {name} is of {value.dtype}; the bound is proven for float32 alone, or float64 alone"
            )
    if not any(value.requires_grad for value in model.parameters()):
        raise InputError("model: every parameter is frozen (requires_grad=False), so there is nothing to train")


def make_plan(
    model: nn.Module,
    live_mask: Mapping[str, Tensor],
    loss: Loss,
    like: MadeUp,
    compile: bool,
    written: bool = False,
) -> Plan:
    """Plan for batches like ``like``; leaves ``model`` as it was.

    ``written`` asks for every gradient written out. Raises InputError where the loss is not one value a record, records are
    mixed, or no rule gets the gradients right.
    """
    off = torch.autocast(like.x.device.type, enabled=False)
    with undisturbed(model, loss, moving=False), off, torch.enable_grad():
        units = _units(model)
        probe = Probe.first(model, units.values(), loss, like)
        probe = probe.apart() if probe.spread else probe
        refusal: InputError | None = None
        for make in (
            partial(_assign, probe, units, live_mask, compile, written),
            partial(_one_by_one, probe, live_mask),
        ):
            try:
                plan = make()
                if plan is not None and _right(probe, plan, live_mask):
                    return plan
            except InputError as error:
                refusal = refusal or error
        probe.check_apart(FEW)  # which says why, if records are mixed
    raise refusal or InputError(
        "model: per-record gradients do not add up to the gradient of the batch, even one record at a time; does a module"
        " compute something else when it is called again?"
    )


def _units(model: nn.Module) -> dict[str, nn.Module]:
    """Modules whose calls are kept: those that own a parameter, with all that is in them."""
    units: dict[str, nn.Module] = {}
    inside = set[nn.Module]()
    for name, module in model.named_modules():
        owns = any(True for _ in module.parameters(recurse=False))
        if owns and module not in inside and any(value.requires_grad for value in module.parameters()):
            units[name] = module
            inside.update(module.modules())
    return units


def _assign(
    probe: Probe,
    units: Mapping[str, nn.Module],
    live_mask: Mapping[str, Tensor],
    compile: bool,
    everything: bool,
) -> Plan | None:
    """Plan with a layer for each group of modules that share parameters; None if a parameter belongs to no unit, so
    that ``torch.func`` should take the whole model."""
    model = probe.model
    (x, y) = probe.made_up.batch()
    with Recorder(probe.units, probe.copy, spread=probe.spread, records=len(x)) as recorder:
        losses_of(model, probe.loss, x, y, probe.draws(x))
    covered = {id(value) for module in units.values() for value in module.parameters()}
    if any(value.requires_grad and id(value) not in covered for value in model.parameters()):
        return None
    names = {id(value): name for name, value in model.named_parameters()}
    layers: list[tuple[Layer, tuple[nn.Module, ...]]] = []
    for group in _sharing(units):
        calls = [call for call in recorder.calls if any(call.module is module for module in group.values())]
        name, module = next(iter(group.items()))
        once = len(group) == len(calls) == 1 and "forward" not in vars(module) and not everything
        layer: Layer
        if once and type(module) is nn.Linear and calls[0].inputs[0].shape[:-1] == (len(x),):
            layer = LinearLayer(name, module, live_mask, compile)
        elif once and type(module) is nn.Embedding and len(calls[0].inputs[0]) == len(x):
            layer = EmbeddingLayer(name, module, live_mask)
        else:
            layer = ExplicitLayer(group, live_mask, names)
        layers.append((layer, tuple(group.values())))
    written = {id(module) for layer, modules in layers if isinstance(layer, ExplicitLayer) for module in modules}
    normalised = [call for call in recorder.calls if isinstance(call.module, nn.GroupNorm)]
    passing = 3 * (_floats(recorder.calls) + sum(call.inputs[0].numel() for call in normalised) // FEW)
    floats = _floats([call for call in recorder.calls if id(call.module) not in written])
    floats += sum(sum(layer.sizes) for layer, _ in layers if isinstance(layer, ExplicitLayer))
    made_up = probe.made_up.alone()
    widths = frozenset(value.numel() // len(x) for value in _tensors(recorder.calls))
    return Plan(
        probe.units, probe.copy, tuple(layers), passing, floats, made_up, probe.axes or (), probe.spread, widths
    )


def _sharing(units: Mapping[str, nn.Module]) -> list[dict[str, nn.Module]]:
    """The units in groups, so that no two groups have a parameter in common; in the order of their first members."""
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
    return sum(value.numel() for value in _tensors(calls)) // FEW


def _tensors(calls: Sequence[Call]) -> list[Tensor]:
    return [value for call in calls for value in (*call.inputs, *call.outputs) if isinstance(value, Tensor)]


def _one_by_one(probe: Probe, live_mask: Mapping[str, Tensor]) -> Plan:
    """Plan by which ``torch.func`` takes the whole model, one record at a time."""
    names = {id(value): name for name, value in probe.model.named_parameters()}
    model = nn.ModuleList([probe.model])  # whose gradients are in the order of parameters, whatever its rule has
    layer = ExplicitLayer({"": model}, live_mask, names)
    return Plan((), (), ((layer, (model,)),), 0, sum(layer.sizes), probe.made_up.alone(), probe.axes or ())


def _right(probe: Probe, plan: Plan, live_mask: Mapping[str, Tensor]) -> bool:
    """True if per-record gradients add up to the gradient of the batch at every live coordinate."""
    model = probe.model
    (x, y) = probe.made_up.batch()
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    ones = torch.ones(len(x), dtype=torch.float64, device=x.device)
    draws = plan.draws(probe.made_up.keys(x))
    total = losses_of(model, probe.loss, x, y, plan.draws(probe.made_up.keys(x))).sum()  # of the model as it is
    of_batch = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    with Recorder(plan.modules, plan.copy, draws=draws, spread=plan.spread, records=len(x)) as recorder:
        recorder.backward(losses_of(model, probe.loss, x, y, draws).sum())
    wanted = {
        name: torch.zeros_like(value, dtype=torch.float64) if gradient is None else gradient.to_dense().double()
        for (name, value), gradient in zip(parameters.items(), of_batch, strict=True)
    }
    floor = FLOOR * max(float(value.abs().max()) for value in wanted.values() if value.numel())
    # one after the other: all gradients of all records together may be more than fits
    for layer, modules in plan.layers:
        layer.begin(len(x))
        alone = replace(plan, layers=((layer, modules),))
        record_batch(alone, recorder, model, probe.loss, x, y, draws, slice(0, len(x)))
        total = torch.zeros(sum(layer.sizes), dtype=torch.float64, device=x.device)
        layer.add_weighted_sum(total, ones, [slice(0, len(x) // 2)] if len(x) <= LIMIT else None)
        layer_sums = dict(zip(layer.names, total.split(list(layer.sizes)), strict=True))
        layer.release()
        if isinstance(layer, ExplicitLayer):
            layer.shrink()
        for name, values in layer_sums.items():
            if len(values):  # none of frozen ones
                expected = wanted[name][live_mask[name]]
                if not float((values - expected).abs().max()) <= AGREE * float(expected.abs().max()) + floor:
                    return False
    return True


def record_batch(
    plan: Plan,
    recorder: Recorder,
    model: nn.Module,
    loss: Loss,
    x: Tensor,
    y: Tensor,
    draws: Draws | None,
    rows: slice,
) -> None:
    """Give every layer of the plan what the pass left with its modules; ``recorder`` has the calls of the pass, over
    ``rows`` of the batch that the layers have begun with: ``x`` and ``y``."""
    for layer, modules in plan.layers:
        if plan.by_torch_func:
            assert isinstance(layer, ExplicitLayer)
            keys = None if draws is None else draws.keys
            layer.hold(modules[0], rules.whole_model(model, loss, x, y, keys), rows)
        else:
            mine = {id(module) for module in modules}
            layer.take([call for call in recorder.calls if id(call.module) in mine], rows)
