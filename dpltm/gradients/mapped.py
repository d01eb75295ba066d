"""Passes that cannot mix records: the network is run by ``torch.func.vmap``, which shows it one record at a time.

Modules of PyTorch's own that have parameters, and take records row by row by their definition, are given all of them at
once, as in a batch: kernels, and what rules are given, are those of a batch. All else, a user's own code and loss among it,
sees a batch of one record. It can neither look at another nor ask for a value to decide by: ``vmap`` refuses that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.nn import functional
from torch.nn.modules import module as every_module
from torch.utils._pytree import tree_flatten, tree_unflatten

from dpltm.gradients.draws import Axis
from dpltm.gradients.layer import Call, Recorder, inputs_first, tensors_in
from dpltm.records.made_up import CannotFollow, mapped_over, of_all_rows

Loss = Callable[[Tensor, Tensor], Tensor]

_ROW_BY_ROW = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.LayerNorm,
    nn.Embedding, nn.RNN, nn.GRU, nn.LSTM, nn.RNNCell, nn.GRUCell, nn.LSTMCell, nn.PReLU,
)  # fmt: skip

AT_ONCE: dict[type[nn.Module], Any] = {kind: kind.forward for kind in _ROW_BY_ROW}
"""Modules that take records row by row, whatever these hold, by the forward that they have now, not by another that somebody
puts in its place; and so do those that are kept in parts, by our own code."""

ATTENDS = (
    "query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal",
)  # fmt: skip
"""Arguments of attention by place, the first four of which have records in dimension 0."""

FIRST: Axis = (0, 1)

_LOSSES = list[Loss]()


def row_wise(loss: Loss) -> Loss:
    """Mark a loss of our own, which takes outputs and labels row by row, ``(batch, ...)`` each, to be given all at once."""
    _LOSSES.append(loss)
    return loss


def hooks_on_all_modules() -> list[dict[int, Any]]:
    """Return PyTorch's collections of hooks that are called for every module."""
    return [
        hooks for name, hooks in vars(every_module).items() if name.startswith("_global_") and isinstance(hooks, dict)
    ]


def at_once(loss: Loss) -> Loss | None:
    """What a loss of ours, or PyTorch's cross-entropy, is computed by for all records; None for others, of a user's code."""
    if type(loss) is nn.CrossEntropyLoss and loss.reduction == "none":
        own = (loss._forward_hooks, loss._forward_pre_hooks, loss._backward_hooks, loss._backward_pre_hooks)
        hooks = (*own, *hooks_on_all_modules())
        if type(loss).forward is _CROSS_ENTROPY and not {"forward", "_call_impl"} & {*vars(loss)} and not any(hooks):
            named: Any = {"ignore_index": loss.ignore_index, "label_smoothing": loss.label_smoothing}
            return partial(functional.cross_entropy, weight=loss.weight, reduction="none", **named)
    return next((ours for ours in _LOSSES if loss is ours), None)


_CROSS_ENTROPY = nn.CrossEntropyLoss.forward


@dataclass(frozen=True)
class Form:
    """Where records are in a call of a batch: by tensor of its inputs, and by place of its outputs; None for nowhere."""

    module: nn.Module
    inputs: tuple[Axis | None, ...]
    outputs: dict[int, Axis | None]

    @cached_property
    def simple(self) -> bool:
        """Whether it is of one tensor to one, both with records first."""
        return self.inputs == (FIRST,) and self.outputs == {0: FIRST}


def forms_of(few: Sequence[Call], more: Sequence[Call], grown: Callable[..., Axis | None]) -> tuple[Form, ...]:
    """Return the forms of the ``few`` calls of a batch, from those of one with a record ``more``; none where they differ."""
    if [call.module for call in few] != [call.module for call in more]:
        return ()

    def axes(short: Sequence[Tensor], long: Sequence[Tensor]) -> list[Axis | None]:
        return [grown(value.shape, other.shape) for value, other in zip(short, long, strict=True)]

    forms = []
    for short, long in zip(few, more, strict=True):
        inputs = axes(*(tensors_in((call.inputs, call.keywords)) for call in (short, long)))
        outputs = zip(short.places, axes(short.outputs, long.outputs), strict=True)
        forms.append(Form(short.module, tuple(inputs), dict(outputs)))
    return tuple(forms)


def _in_batch(records: int, value: Any, axis: Axis | None) -> Any:
    """What a tensor of one record, while these are mapped over, is in a batch of all of them."""
    if axis is None or not isinstance(value, Tensor):
        return value
    value, (along, rows) = of_all_rows(records, value), axis
    return value.flatten(0, 1) if rows > 1 else value.squeeze(1 + along).movedim(0, along)


def _of_record(records: int, value: Any, axis: Axis | None) -> Any:
    """Undo :func:`_in_batch`."""
    if axis is None or not isinstance(value, Tensor):
        return value
    along, rows = axis
    own = value.unflatten(0, (records, rows)) if rows > 1 else value.movedim(along, 0).unsqueeze(1 + along)
    return mapped_over(own)


def _is_mapped(value: Any) -> bool:
    """Whether a tensor is of one record, while these are mapped over."""
    functorch: Any = torch._C._functorch
    return isinstance(value, Tensor) and functorch.is_batchedtensor(value)


@dataclass(eq=False)
class MappedRecorder(Recorder):
    """Keeps calls of modules while records are mapped over, in the ``forms`` of a batch, as a :class:`Recorder` keeps those.

    Raises CannotFollow where a call has another form, or one that a batch cannot be made of.
    """

    forms: Sequence[Form] = ()
    _kept: bool = field(default=False, init=False)

    def __enter__(self) -> MappedRecorder:
        given = {module for module, _ in self.instead}
        super().__enter__()
        ours = {module for module, _ in self.instead}
        for module in self.modules:
            forward: Any = module.forward
            if module in ours - given:  # in parts
                takes = self._take_attention if type(module) is nn.MultiheadAttention else self._take_input
                module.forward = partial(takes, forward)
            elif type(module).forward is AT_ONCE.get(type(module)) and (
                module in given or "forward" not in vars(module)
            ):
                module.forward = partial(self._take, module, forward)
                if module not in given:
                    self.instead = [*self.instead, (module, module.forward)]
        return self

    def _take(self, module: nn.Module, forward: Callable[..., Any], *inputs: Any, **keywords: Any) -> Any:
        """Give a module all records at once, and keep the call."""
        inputs, keywords = inputs_first(inputs, keywords)
        form = self._form(module) if _is_mapped(inputs[0]) else None
        if form is None or not form.outputs:  # positions, perhaps, or without gradients
            return forward(*inputs, **keywords)
        simple = form.simple and len(inputs) == 1 and not keywords  # and quicker
        if simple:
            inputs = (of_all_rows(self.records, inputs[0]).squeeze(1),)
        else:
            inputs, keywords = self._of_all(form, inputs, keywords)
        with temporarily_clear_interpreter_stack():
            output = super()._keep(module, inputs, keywords, forward(*inputs, **keywords))
        output = mapped_over(output.unsqueeze(1)) if simple else self._of_each(form, output, known=False)
        self._kept = True
        return output

    def _take_input(self, forward: Callable[[Tensor], Tensor], input: Tensor) -> Tensor:
        input = _in_batch(self.records, input, FIRST)
        with temporarily_clear_interpreter_stack():
            output = forward(input)
        return _of_record(self.records, output, FIRST)

    def _take_attention(self, forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        named = {**dict(zip(ATTENDS, inputs, strict=False)), **named}
        alike = named["query"] is named["key"] is named["value"]
        mask = named.get("attn_mask")
        if not _is_mapped(mask) and isinstance(mask, Tensor) and mask.ndim > 2:
            raise CannotFollow("a mask for each head that is no record's own")
        for name in ATTENDS[:4]:
            named[name] = _in_batch(self.records, named.get(name), FIRST)
        if alike:
            named["key"] = named["value"] = named["query"]
        if _is_mapped(mask):
            named["attn_mask"] = of_all_rows(self.records, mask).flatten(0, 1)
        with temporarily_clear_interpreter_stack():
            outputs = forward(**named)
        return tuple(_of_record(self.records, output, FIRST) for output in outputs)

    def _keep(self, module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> Any:
        functorch: Any = torch._C._functorch
        if self._over or functorch.peek_interpreter_stack() is None:  # of all records at once
            return super()._keep(module, inputs, keywords, output)
        if self._kept:
            self._kept = False
            return output
        form = self._form(module)
        inputs, keywords = self._of_all(form, *inputs_first(inputs, keywords))
        flat, tree = tree_flatten(output)
        flat = [_in_batch(self.records, value, form.outputs.get(place)) for place, value in enumerate(flat)]
        return self._of_each(form, super()._keep(module, inputs, keywords, tree_unflatten(flat, tree)))

    def _form(self, module: nn.Module) -> Form:
        at = len(self.calls)
        if at == len(self.forms) or self.forms[at].module is not module:
            raise CannotFollow(f"a {type(module).__name__} is called otherwise than in the trial")
        return self.forms[at]

    def _of_all(self, form: Form, *arguments: Any) -> Any:
        flat, tree = tree_flatten(arguments)
        axes = iter(form.inputs)
        flat = [_in_batch(self.records, value, next(axes)) if isinstance(value, Tensor) else value for value in flat]
        if any(map(_is_mapped, flat)):
            raise CannotFollow(f"what a {type(form.module).__name__} sees is not of one record each")
        return tree_unflatten(flat, tree)

    def _of_each(self, form: Form, output: Any, known: bool = True) -> Any:
        flat, tree = tree_flatten(output)
        axes = [form.outputs.get(place) for place in range(len(flat))]
        if not known and any(
            isinstance(value, Tensor) and axis is None for value, axis in zip(flat, axes, strict=True)
        ):
            raise CannotFollow(f"what a {type(form.module).__name__} gives is not of one record each")
        pairs = zip(flat, axes, strict=True)
        return tree_unflatten([_of_record(self.records, value, axis) for value, axis in pairs], tree)
