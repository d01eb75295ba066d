"""Choice of a rule for each part of a network, made once on a batch of made-up records, and checked there.

A network is anything that PyTorch can express, so its source is not relied upon: whether records stay apart, and whether
the rules account for every use of every parameter, is tried out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from dpltm.errors import InputError
from dpltm.gradients import rules
from dpltm.gradients.draws import REMEDY, Axis, Draws
from dpltm.gradients.explicit_layer import EmbeddingLayer, ExplicitLayer
from dpltm.gradients.layer import Call, Layer, Recorder
from dpltm.gradients.linear_layer import LinearLayer
from dpltm.gradients.probe import FEW, Loss, MadeUp, Probe, hooks_of, losses_of, undisturbed
from dpltm.networks.layers import check_batch_norm
from dpltm.networks.state import check_whole
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
    for name, module in model.named_modules():
        what = f"model: {name}" if name else "model:"
        if isinstance(module, torch.jit.ScriptModule):
            raise InputError(f"{what} is compiled by torch.jit, which hides its layers; give the module itself")
        if hasattr(module, "_orig_mod"):
            raise InputError(
                f"{what} is compiled by torch.compile, which hides its layers; give the module itself (its _orig_mod), and"
                " compile=True for element-wise filters"
            )
    if any(isinstance(value, UninitializedParameter) for value in model.parameters()):
        raise InputError("model: has lazy layers without a shape; run one batch of made-up records through it first")
    if torch.is_inference_mode_enabled():
        raise InputError("torch.inference_mode: no gradient can be had in it; train outside")
    check_batch_norm(model)
    for name, module in model.named_modules():
        where = f"model: {name or type(module).__name__}"
        if isinstance(module, nn.RNNBase) and module.training and module.dropout > 0 and module.num_layers > 1:
            raise InputError(
                f"{where} ({type(module).__name__}) drops out between its layers, in one kernel that keeps the draws to"
                f" itself; use modules of one layer with nn.Dropout between them, or {REMEDY}"
            )
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            if module.scale_grad_by_freq:
                raise InputError(
                    f"{where} scales gradients by frequency in the batch, which mixes records; leave it out"
                )
            if module.max_norm is not None:
                raise InputError(
                    f"{where} has max_norm, which changes weights by the records outside the ledger; leave it out"
                )
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, (prune.BasePruningMethod, WeightNorm, SpectralNorm)):
                raise InputError(
                    f"{where} is reparametrised by {type(hook).__name__}; make that permanent (prune.remove, or"
                    " remove_weight_norm) and give its zeros as a mask"
                )
    for name, value in model.named_parameters():
        if value.device.type not in ("cpu", "cuda"):  # Apple's (mps) has no float64, which sums are taken in
            raise InputError(
                f"model parameter {name}: is on {value.device.type}; use the processor (cpu) or a GPU (cuda)"
            )
        if value.requires_grad and hooks_of(value):
            raise InputError(
                f"model parameter {name}: has a hook on its gradient, which no record's gradient goes through; remove()"
                " it by its handle, and change `grad` behind backward, or give a mask"
            )
        if any(step == 0 and size > 1 for step, size in zip(value.stride(), value.shape, strict=True)):
            raise InputError(f"model parameter {name}: its coordinates share memory (expand); use clone()")
        if value.dtype not in (torch.float32, torch.float64):
            raise InputError(
                f"model parameter {name}: dtype {value.dtype}; the bound is proven for float32 and float64 only"
            )
    if len({value.dtype for value in model.parameters()}) > 1:
        raise InputError("model: parameters of several dtypes; use one, float32 or float64")
    check_whole(model)
    if not any(value.requires_grad for value in model.parameters()):
        raise InputError("model: every parameter is frozen (requires_grad=False), so there is nothing to train")


def make_plan(
    model: nn.Module,
    live_mask: Mapping[str, Tensor],
    loss: Loss,
    like: MadeUp,
    compile: bool,
    kernels: str,
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
        try:
            plan = _assign(probe, units, live_mask, compile, kernels, written)
            if plan is not None and _right(probe, plan, live_mask):
                return plan
        except InputError as error:
            refusal = error
        layer = _one_layer(model, live_mask)
        one_by_one = Plan((), (), ((layer, ()),), 0, sum(layer.sizes), probe.made_up.alone(), probe.axes or ())
        try:
            if _right(probe, one_by_one, live_mask):
                return one_by_one
        except InputError as error:
            refusal = refusal or error
        probe.check_apart(FEW)  # which says why, if records are mixed
    raise refusal or InputError(
        "model: per-record gradients do not add up to the gradient of the batch, even one record at a time; does a module"
        " compute something else when it is called again?"
    )


def _units(model: nn.Module) -> dict[str, nn.Module]:
    """Modules whose calls are kept: those with a rule, and whole subtrees under any other that owns a parameter."""
    units: dict[str, nn.Module] = {}

    def walk(name: str, module: nn.Module) -> None:
        if not any(value.requires_grad for value in module.parameters()):
            return
        if rules.has_rule(module) or any(True for _ in module.parameters(recurse=False)):
            if not any(module is other for other in units.values()):
                units[name] = module
            return
        for child, part in module.named_children():
            walk(f"{name}.{child}" if name else child, part)

    walk("", model)
    return units


def _assign(
    probe: Probe,
    units: Mapping[str, nn.Module],
    live_mask: Mapping[str, Tensor],
    compile: bool,
    kernels: str,
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
        once = len(group) == len(calls) == 1 and rules.has_rule(module) and not everything
        layer: Layer
        if once and type(module) is nn.Linear and calls[0].inputs[0].shape[:-1] == (len(x),):
            layer = LinearLayer(name, module, live_mask, compile, kernels)
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


def _one_layer(model: nn.Module, live_mask: Mapping[str, Tensor]) -> ExplicitLayer:
    return ExplicitLayer({"": model}, live_mask, {id(value): name for name, value in model.named_parameters()})


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
    for (
        layer,
        modules,
    ) in plan.layers:  # one after the other: all gradients of all records together may be more than fits
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
            layer.hold(rows, rules.whole_model(model, loss, x, y, None if draws is None else draws.keys))
        else:
            mine = {id(module) for module in modules}
            layer.take([call for call in recorder.calls if id(call.module) in mine], rows)
