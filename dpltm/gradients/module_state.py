"""What modules hold beside their parameters: what a trial must put back, and what would tell that they keep records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]


@contextmanager
def undisturbed(model: nn.Module, loss: Loss) -> Iterator[None]:
    """Leaves parameters, buffers, attributes and random state as they were, of the model and of a loss that is a module.

    Meanwhile parameters are moved a little, and far into range: weights of zero or of 1e30 would hide a mistake.
    """
    parameters = [value.detach().clone() for value in model.parameters()]
    modules = modules_of(model, loss)
    buffers = [(module, dict(module._buffers)) for module in modules]
    attributes = [(module, _attributes(module)) for module in modules]
    held = [value for _, state in (*buffers, *attributes) for value in state.values()]
    tensors = [(value, value.detach().clone()) for value in held if isinstance(value, Tensor)]
    lists = [(value, list(value)) for value in held if isinstance(value, list)]
    with torch.random.fork_rng([value.device.index for value in parameters[:1] if value.is_cuda]):
        for value in parameters[
            :1
        ]:  # by each generator: torch.manual_seed takes milliseconds, and seeds other devices
            torch.default_generator.manual_seed(0)
            if value.is_cuda:
                torch.cuda.default_generators[value.device.index].manual_seed(0)
        try:
            with torch.no_grad():
                for value in model.parameters():
                    near = value.nan_to_num().clamp_(-1, 1)
                    moved = near * (0.9 + 0.2 * torch.rand_like(near))
                    value.copy_(torch.where(near == 0, 0.1 * torch.randn_like(near), moved))
            yield
        finally:
            with torch.no_grad():
                for parameter, old in zip(model.parameters(), parameters, strict=True):
                    parameter.copy_(old)
                for tensor, old in tensors:
                    tensor.copy_(old)
            for module, old_buffers in buffers:
                module._buffers.update(old_buffers)
            for module, state in attributes:
                for name in _attributes(module).keys() - state.keys():
                    delattr(module, name)
                vars(module).update(state)
            for values, old_values in lists:
                values[:] = old_values


def modules_of(model: nn.Module, loss: Loss) -> list[nn.Module]:
    """Every module of a model, and of a loss that is one."""
    return [*model.modules(), *(loss.modules() if isinstance(loss, nn.Module) else ())]


def structure(model: nn.Module, loss: Loss) -> tuple[object, ...]:
    """What decides how records go through a model, beside its tensors: its modules, their hooks and own ``forward``, and
    attributes that are numbers or text, as a mode, a share to drop and a size are.

    It differs where one of these was changed since; what other attributes do to a forward pass is not seen.
    """
    return tuple(
        (
            module,
            vars(module).get("forward"),
            *(tuple(hooks) for hooks in _hooks(module)),
            *((name, value) for name, value in vars(module).items() if isinstance(value, (int, float, str))),
        )
        for module in modules_of(model, loss)
    )


def _hooks(module: nn.Module) -> tuple[dict[int, Any], ...]:
    return (
        module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks,
    )  # fmt: skip


_OWN = {*vars(nn.Module()), "_flat_weights", "_flat_weight_refs"}
"""What PyTorch keeps in a module for itself."""


def _attributes(module: nn.Module) -> dict[str, Any]:
    """What a module holds beside parameters, buffers and other modules, and PyTorch's own."""
    return {name: value for name, value in vars(module).items() if name not in _OWN}


def state_of(module: nn.Module) -> dict[str, object]:
    """What would tell that a module keeps something of the records: tensors, numbers, and lengths of lists."""
    state: dict[str, object] = {}
    for name, value in (*_attributes(module).items(), *module._buffers.items()):
        if isinstance(value, Tensor):
            state[name] = (id(value), value._version)
        elif isinstance(value, (int, float)):
            state[name] = value
        elif isinstance(value, (list, dict, set)):
            state[name] = len(value)
        elif value is None:
            state[name] = None
    return state


@contextmanager
def in_float64(model: nn.Module, loss: Loss) -> Iterator[None]:
    """Copies in float64 in place of parameters and buffers of floating point, which themselves are left alone."""
    modules = modules_of(model, loss)
    held = [(module, {**module._parameters}, {**module._buffers}) for module in modules]
    wide: dict[int, nn.Parameter] = {}  # what is shared stays so

    def widened(value: nn.Parameter) -> nn.Parameter:
        if id(value) not in wide:
            wide[id(value)] = nn.Parameter(value.detach().double(), requires_grad=value.requires_grad)
        return wide[id(value)]

    try:
        for module, parameters, buffers in held:
            for name, value in parameters.items():
                if value is not None and value.is_floating_point():
                    setattr(
                        module, name, widened(value)
                    )  # not by the dictionary: recurrent modules keep a list as well
            for name, buffer in buffers.items():
                if buffer is not None and buffer.is_floating_point():
                    module._buffers[name] = buffer.double()
        yield
    finally:
        for module, parameters, buffers in held:
            for name, value in parameters.items():
                if value is not None:
                    setattr(module, name, value)
            module._buffers.update(buffers)


@contextmanager
def watching_draws(model: nn.Module, like: Tensor) -> Iterator[list[tuple[str, nn.Module]]]:
    """Notes the modules that draw from torch's generators, by name, those inside another before it.

    Args:
        model: its modules are watched while the context is entered.
        like: a tensor on the device of the records.
    """
    drew: list[tuple[str, nn.Module]] = []
    begun: list[list[bytes]] = []

    def begin(_module: nn.Module, _inputs: object) -> None:
        begun.append(generators(like))

    def end(name: str, module: nn.Module) -> None:
        if begun.pop() != generators(like):
            drew.append((name, module))

    hooks = []
    try:
        for name, module in model.named_modules():
            hooks.append(module.register_forward_pre_hook(begin, prepend=True))
            hooks.append(module.register_forward_hook(lambda module, *_, name=name: end(name, module)))
        yield drew
    finally:
        for handle in hooks:
            handle.remove()


def generators(like: Tensor) -> list[bytes]:
    """The states of torch's generators that a pass over such records may draw from."""
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(like.device)] if like.is_cuda else [])]
    return [state.numpy().tobytes() for state in states]
