"""Which rule takes which part of a network, decided once, on a batch of made-up records, and checked there.

A network is anything that PyTorch can express, so what its source says about itself is not relied upon: whether records stay
apart, whether the rules account for every use of every parameter, is tried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpltm.errors import InputError
from dpltm.gradients import functional_rule, rules
from dpltm.gradients.calls import Call, Recorder
from dpltm.gradients.embedding_layer import EmbeddingLayer
from dpltm.gradients.explicit_layer import ExplicitLayer
from dpltm.gradients.layer import Layer
from dpltm.gradients.linear_layer import LinearLayer

Loss = Callable[[Tensor, Tensor], Tensor]

PROBE = 3
"""Records of the made-up batch."""

AGREE = 1e-3
"""Largest relative difference, in float32, between the sum of per-record gradients and the gradient of the sum."""


@dataclass(frozen=True)
class Plan:
    """How per-record gradients of one network are had.

    Attributes:
        modules: those whose calls are kept; none if the whole model goes through ``torch.func``.
        copy: those among them whose outputs are overwritten in place.
        layers: what they leave behind, with the modules of each.
        floats: numbers that a record takes up in passing, about.
    """

    modules: tuple[nn.Module, ...]
    copy: tuple[nn.Module, ...]
    layers: tuple[tuple[Layer, tuple[nn.Module, ...]], ...]
    floats: int

    @property
    def whole(self) -> bool:
        """Whether ``torch.func`` takes the whole model."""
        return not self.modules


def check_model(model: nn.Module) -> None:
    """Raises InputError for modules that mix records, however they are used."""
    for name, module in model.named_modules():
        where = f"model: {name or type(module).__name__}"
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise InputError(
                f"{where} is a batch normalisation: it mixes records, and no bound would hold; use nn.GroupNorm or"
                " nn.LayerNorm"
            )
        if getattr(module, "track_running_stats", False):
            raise InputError(
                f"{where} keeps running statistics of the records outside the ledger; use track_running_stats=False"
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
    for name, value in model.named_parameters():
        if value.dtype not in (torch.float32, torch.float64):
            raise InputError(
                f"model parameter {name}: dtype {value.dtype}; the bound is proven for float32 and float64 only"
            )
    if not any(value.requires_grad for value in model.parameters()):
        raise InputError("model: every parameter is frozen (requires_grad=False), so there is nothing to train")


def make_plan(model: nn.Module, keep: Mapping[str, Tensor], loss: Loss, x: Tensor, y: Tensor, compile: bool) -> Plan:
    """The plan for batches like ``x`` and ``y``, of which only shape, dtype and device are looked at.

    Raises:
        InputError: the loss is not one value a record, records are mixed, or no rule gets the gradients right.
    """
    devices = [x.device.index] if x.is_cuda else []
    with torch.random.fork_rng(devices), torch.enable_grad(), _ordinary_weights(model), _autocast_off(x):
        batch, labels = _made_up(x), _made_up(y)
        units = _units(model)
        overwritten = _overwritten(model, units, loss, batch, labels)
        _check_apart(model, units, overwritten, loss, batch, labels)
        plan = _assign(model, units, overwritten, keep, loss, batch, labels, compile)
        if plan is None or not _right(model, plan, keep, loss, batch, labels):
            plan = Plan((), (), ((_whole(model, keep), ()),), _floats(model, ()))
            if not _right(model, plan, keep, loss, batch, labels):
                raise InputError(
                    "model: per-record gradients do not add up to the gradient of the batch, even one record at a time; is"
                    " something in it random other than nn.Dropout, or does it keep a state?"
                )
    return plan


def _autocast_off(x: Tensor) -> torch.autocast:
    return torch.autocast(x.device.type, enabled=False)


@contextmanager
def _ordinary_weights(model: nn.Module) -> Iterator[None]:
    """Moves parameters a little, and far into range, and puts them back: weights of zero or of 1e30 would hide a mistake."""
    saved = [value.detach().clone() for value in model.parameters()]
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            for value in model.parameters():
                near = value.nan_to_num().clamp_(-1, 1)
                value.copy_(
                    torch.where(near == 0, 0.1 * torch.randn_like(near), near * (0.9 + 0.2 * torch.rand_like(near)))
                )
        yield
    finally:
        with torch.no_grad():
            for value, old in zip(model.parameters(), saved, strict=True):
                value.copy_(old)


def _made_up(like: Tensor) -> Tensor:
    """A batch of records of the same shape and dtype that has nothing to do with them."""
    shape = (PROBE, *like.shape[1:])
    if like.dtype.is_floating_point:
        return torch.rand(shape, dtype=like.dtype, device=like.device)
    return torch.zeros(shape, dtype=like.dtype, device=like.device)


def _units(model: nn.Module) -> dict[str, nn.Module]:
    """The modules whose calls are kept: those with a rule, and whole subtrees under any other that owns a parameter."""
    found: dict[str, nn.Module] = {}

    def walk(name: str, module: nn.Module) -> None:
        if not any(value.requires_grad for value in module.parameters()):
            return
        if rules.has_rule(module) or any(True for _ in module.parameters(recurse=False)):
            if not any(module is other for other in found.values()):
                found[name] = module
            return
        for child, part in module.named_children():
            walk(f"{name}.{child}" if name else child, part)

    walk("", model)
    return found


def _losses(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> Tensor:
    """One loss a record, or a refusal."""
    losses = loss(model(x), y)
    if losses.shape != (len(x),):
        raise InputError(
            f"loss: shape {tuple(losses.shape)}, expected one value for each of {len(x)} records; use reduction='none'"
        )
    if not losses.requires_grad:
        raise InputError("loss: does not depend on any parameter of the model")
    return losses


def _overwritten(
    model: nn.Module, units: Mapping[str, nn.Module], loss: Loss, x: Tensor, y: Tensor
) -> tuple[nn.Module, ...]:
    """Modules whose outputs an in-place operation overwrites; refuses models that fail, or change their own buffers."""
    buffers = [(name, value, value._version) for name, value in model.named_buffers()]
    with Recorder(units.values()) as recorder:
        try:
            _losses(model, loss, x, y)
        except InputError:
            raise
        except Exception as error:  # whatever the user's own code raises
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise InputError(
                f"model or loss: fails on {len(x)} made-up records of shape {tuple(x.shape[1:])}: {reason}"
            ) from error
    for name, value, version in buffers:
        if value._version != version:
            raise InputError(
                f"model buffer {name}: changes with the records it sees, outside the ledger; use a module without state"
            )
    return tuple({id(call.module): call.module for call in recorder.calls if call.overwritten()}.values())


def _check_apart(
    model: nn.Module, units: Mapping[str, nn.Module], copy: tuple[nn.Module, ...], loss: Loss, x: Tensor, y: Tensor
) -> None:
    """Refuses a network in which a record's loss depends on what another one makes any layer give."""
    for record in (0, len(x) - 1):
        with Recorder(units.values(), copy) as recorder:
            losses = _losses(model, loss, x, y)
        recorder.backward(losses[record])
        for call in recorder.calls:
            for gradient in call.gradients:
                if gradient is None or gradient.ndim == 0 or len(gradient) != len(x):
                    continue  # no row a record: whatever takes this call decides
                others = torch.arange(len(x), device=gradient.device) != record
                if bool((gradient[others] != 0).any()):
                    raise InputError(
                        f"model or loss: the loss of one record depends on others (seen at a {type(call.module).__name__}):"
                        " no bound would hold; leave out whatever averages or compares over dimension 0"
                    )


def _assign(
    model: nn.Module,
    units: Mapping[str, nn.Module],
    copy: tuple[nn.Module, ...],
    keep: Mapping[str, Tensor],
    loss: Loss,
    x: Tensor,
    y: Tensor,
    compile: bool,
) -> Plan | None:
    """A layer for each group of modules that share parameters; None if a parameter belongs to none."""
    with Recorder(units.values(), copy) as recorder:
        _losses(model, loss, x, y)
    names = {id(value): name for name, value in model.named_parameters()}
    groups: list[dict[str, nn.Module]] = []
    for name, module in units.items():
        mine = {id(value) for value in module.parameters()}
        sharing = [
            group for group in groups if any(id(v) in mine for part in group.values() for v in part.parameters())
        ]
        groups = [group for group in groups if group not in sharing]
        groups.append({key: value for group in sharing for key, value in group.items()} | {name: module})
    order = {name: place for place, name in enumerate(units)}
    groups.sort(key=lambda group: min(order[name] for name in group))
    covered = {id(value) for module in units.values() for value in module.parameters()}
    if any(value.requires_grad and id(value) not in covered for value in model.parameters()):
        return None
    layers: list[tuple[Layer, tuple[nn.Module, ...]]] = []
    for group in groups:
        calls = [call for call in recorder.calls if any(call.module is module for module in group.values())]
        name, module = next(iter(group.items()))
        once = len(group) == len(calls) == 1 and calls[0].keywords == {}
        layer: Layer
        if once and type(module) is nn.Linear and calls[0].inputs[0].shape[:-1] == (len(x),):
            layer = LinearLayer(name, module, keep, compile)
        elif once and type(module) is nn.Embedding and len(calls[0].inputs[0]) == len(x):
            layer = EmbeddingLayer(name, module, keep)
        else:
            layer = ExplicitLayer(group, keep, names)
        layers.append((layer, tuple(group.values())))
    written = tuple(module for layer, modules in layers if isinstance(layer, ExplicitLayer) for module in modules)
    return Plan(tuple(units.values()), copy, tuple(layers), _floats(model, recorder.calls, written))


def _floats(model: nn.Module, calls: Sequence[Call], written: Sequence[nn.Module] | None = None) -> int:
    """Inputs and outputs of every call, three times over; patches of convolutions; gradients that are written out, twice."""
    passing = 0
    for call in calls:
        tensors = [value for value in (*call.inputs, *call.outputs) if isinstance(value, Tensor)]
        passing += 3 * sum(value.numel() for value in tensors) // PROBE
        if isinstance(call.module, (nn.Conv1d, nn.Conv2d)) and call.outputs:
            positions = call.outputs[0].numel() // PROBE // call.module.out_channels
            passing += positions * call.module.weight[0].numel() * call.module.groups
    modules = (model,) if written is None else written
    return passing + 2 * sum(value.numel() for module in modules for value in module.parameters())


def _whole(model: nn.Module, keep: Mapping[str, Tensor]) -> ExplicitLayer:
    return ExplicitLayer({"": model}, keep, {id(value): name for name, value in model.named_parameters()})


def _right(model: nn.Module, plan: Plan, keep: Mapping[str, Tensor], loss: Loss, x: Tensor, y: Tensor) -> bool:
    """Whether per-record gradients add up to the gradient of the batch at every live coordinate."""
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    ones = torch.ones(len(x), dtype=torch.float64, device=x.device)
    try:
        with Recorder(plan.modules, plan.copy) as recorder:
            total = _losses(model, loss, x, y).sum()
        whole = torch.autograd.grad(total, list(parameters.values()), retain_graph=True, allow_unused=True)
        recorder.backward(total)
        hand_out(plan, recorder, model, loss, x, y)
    except InputError:
        if plan.whole:
            raise
        return False
    expected = dict(zip(parameters, whole, strict=True))
    for layer, _ in plan.layers:
        found = dict(zip(layer.names, layer.weighted_sum(ones).split(list(layer.sizes)), strict=True))
        layer.forget()
        for name, values in found.items():
            gradient = expected.get(name)
            wanted = torch.zeros_like(values) if gradient is None else gradient.double()[keep[name]]
            size = max(float(wanted.abs().max()) if len(wanted) else 0.0, 1e-6)
            if len(wanted) and not float((values - wanted).abs().max()) <= AGREE * size:
                return False
    return True


def hand_out(plan: Plan, recorder: Recorder, model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> None:
    """Gives every layer of the plan what the pass left with its modules."""
    for layer, modules in plan.layers:
        if plan.whole:
            assert isinstance(layer, ExplicitLayer)
            layer.hold(len(x), functional_rule.whole_model(model, loss, x, y))
        else:
            mine = {id(module) for module in modules}
            layer.take([call for call in recorder.calls if id(call.module) in mine], len(x))
