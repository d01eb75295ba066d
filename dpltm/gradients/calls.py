"""What modules see and give during a forward pass, kept until the backward pass has been through them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from dpltm.errors import InputError


@dataclass
class Call:
    """One call of one module.

    Attributes:
        module: what was called.
        inputs: its positional arguments, tensors detached.
        keywords: its keyword arguments, tensors detached.
        outputs: the tensors it gave that a loss can depend on, in the order of flattening.
        places: where in the flattened output they stand.
        gradients: the loss's gradient at each of them, once known; None where the loss does not depend on one.
    """

    module: nn.Module
    inputs: tuple[Any, ...]
    keywords: dict[str, Any]
    outputs: list[Tensor]
    places: list[int]
    gradients: list[Tensor | None] = field(default_factory=list)
    _versions: list[tuple[Tensor, int]] = field(default_factory=list)

    def overwritten(self) -> bool:
        """Whether an in-place operation has changed an input or an output since."""
        return any(tensor._version != version for tensor, version in self._versions)


def only_call(
    calls: Sequence[Call], name: str, records: int, dimensions: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """What a module saw that is called once a pass, and the loss's gradient at what it gave.

    Args:
        calls: those of the last pass.
        name: of its parameter.
        records: rows that it must have seen.
        dimensions: that these must have, if it matters.

    Raises:
        InputError: it was used otherwise.
    """
    seen = calls[0].inputs[0] if len(calls) == 1 else None
    if seen is None or len(seen) != records or dimensions not in (None, seen.ndim):
        raise InputError(f"model: {name} is used otherwise than in the passes before, once on {records} rows")
    return seen, calls[0].gradients[0] if calls[0].gradients else None


class Recorder:
    """Keeps the calls of some modules while it is entered.

    Args:
        modules: those to watch.
        copy: those among them whose output is handed on as a copy, since in-place operations overwrite it.
        instead: what computes the output of some of them.
    """

    def __init__(
        self,
        modules: Iterable[nn.Module],
        copy: Iterable[nn.Module] = (),
        instead: Sequence[tuple[nn.Module, Callable[[Tensor], Tensor]]] = (),
    ) -> None:
        self._instead = instead
        self._modules = tuple(modules)
        self._copy = {id(module) for module in copy}
        self.calls: list[Call] = []
        self._over = False

    def __enter__(self) -> Recorder:
        for module, forward in self._instead:
            module.forward = forward
        self._hooks = [module.register_forward_hook(self._keep, with_kwargs=True) for module in self._modules]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        for module, _ in self._instead:
            del module.forward

    def _keep(self, module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> Any:
        if self._over:  # checkpointing calls modules again during the backward pass
            return output
        if "input" in keywords:
            inputs = (keywords["input"], *inputs)
            keywords = {name: value for name, value in keywords.items() if name != "input"}
        if isinstance(output, Tensor):  # as nearly always
            places, outputs = ([0], [output]) if output.requires_grad else ([], [])
        else:
            flat, form = tree_flatten(output)
            places = [place for place, value in enumerate(flat) if isinstance(value, Tensor) and value.requires_grad]
            if len(places) > 1:  # one may have been made from another: what is kept must be what the loss sees of each
                flat = [value.view_as(value) if place in places else value for place, value in enumerate(flat)]
                output = tree_unflatten(flat, form)
            outputs = [flat[place] for place in places]
        if len(inputs) == 1 and isinstance(inputs[0], Tensor) and not keywords:
            inputs = (inputs[0].detach(),)
            seen: Sequence[Any] = inputs
        else:
            inputs, keywords = tree_map(_detached, inputs), tree_map(_detached, keywords)
            seen, _ = tree_flatten((inputs, keywords))
        call = Call(module, inputs, keywords, outputs, places)
        call._versions = [(value, value._version) for value in (*seen, *outputs) if isinstance(value, Tensor)]
        self.calls.append(call)
        return tree_map(_copied, output) if id(module) in self._copy else output

    def backward(self, total: Tensor) -> None:
        """Fills in the gradients of ``total``, a scalar, at every output.

        Raises:
            InputError: an in-place operation would make them wrong.
        """
        self._over = True
        outputs = [output for call in self.calls for output in call.outputs]
        gradients = iter(torch.autograd.grad(total, outputs, allow_unused=True) if outputs else ())
        for call in self.calls:
            if call.overwritten():
                raise InputError(
                    f"model: an in-place operation overwrites what a {type(call.module).__name__} saw or gave;"
                    " leave inplace=True out"
                )
            call.gradients = [next(gradients) for _ in call.outputs]


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
