"""Recurrent modules: unrolled once more, so that the gradients at their gates can be had (torch keeps them to itself).

Everything a recurrent module multiplies by a weight is an input or a state, and what comes out goes into a gate. With the
loss's gradient at every gate, a record's gradient is the sum over time of outer products, as for a Linear layer on a
sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpltm.errors import InputError
from dpltm.gradients.calls import Call

_Sequence = nn.RNN | nn.GRU | nn.LSTM
_State = tuple[Tensor, ...]


@dataclass
class _Product:
    """Every use of one weight and its bias: what was multiplied, ``(batch, in)``, and what came out, ``(batch, out)``."""

    weight: Tensor
    bias: Tensor | None
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    def __call__(self, inputs: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.detach()
        output = functional.linear(inputs, self.weight.detach(), bias)
        if not output.requires_grad:
            output.requires_grad_()
        self.inputs.append(inputs)
        self.outputs.append(output)
        return output


def gradients(call: Call, records: int) -> Iterator[tuple[Tensor, int, Tensor]]:
    """Rule for RNN, GRU and LSTM, and for their cells.

    Raises:
        InputError: packed sequences or projections.
    """
    known = [
        (place, gradient) for place, gradient in zip(call.places, call.gradients, strict=True) if gradient is not None
    ]
    if not known:
        return
    module = call.module
    with torch.enable_grad():
        if isinstance(module, _Sequence):
            products, outputs = _sequence(module, call)
        else:
            products, outputs = _cell(module, call)
    if any(len(state) != records for product in products for state in product.inputs):
        raise InputError(
            f"model: a {type(module).__name__} saw other than one row a record; dimension 0 of what the model is given must"
            " be the record"
        )
    gates = [gate for product in products for gate in product.outputs]
    gate_gradients = torch.autograd.grad(
        [outputs[place] for place, _ in known],
        gates,
        [value.to(outputs[place].dtype) for place, value in known],
        allow_unused=True,
    )
    each = iter(
        torch.zeros_like(gate) if value is None else value for gate, value in zip(gates, gate_gradients, strict=True)
    )
    for product in products:
        over_time = torch.stack([next(each) for _ in product.outputs], 1)  # (batch, time, out)
        inputs = torch.stack([value.detach() for value in product.inputs], 1)
        yield product.weight, 0, torch.bmm(over_time.transpose(1, 2), inputs)
        if product.bias is not None:
            yield product.bias, 0, over_time.sum(1)


def _step(kind: str, inputs: Tensor, hidden: Tensor, state: _State) -> _State:
    """One time step: from the products of input and of hidden state to the new state (torch's gate order)."""
    if kind == "LSTM":
        enter, forget, cell, leave = (inputs + hidden).chunk(4, 1)
        memory = forget.sigmoid() * state[1] + enter.sigmoid() * cell.tanh()
        return leave.sigmoid() * memory.tanh(), memory
    if kind == "GRU":
        (reset, update, new), (from_reset, from_update, from_new) = inputs.chunk(3, 1), hidden.chunk(3, 1)
        gate = (update + from_update).sigmoid()
        candidate = (new + (reset + from_reset).sigmoid() * from_new).tanh()
        return ((1 - gate) * candidate + gate * state[0],)
    total = inputs + hidden
    return (total.tanh() if kind == "tanh" else total.relu(),)


def _kind(module: nn.Module) -> str:
    name = type(module).__name__.removesuffix("Cell")
    return str(module.nonlinearity) if name == "RNN" else name


def _cell(module: nn.Module, call: Call) -> tuple[list[_Product], list[Tensor]]:
    assert isinstance(module, nn.RNNCellBase)
    inputs, state = _arguments(call)
    if state is None:
        zeros = inputs.new_zeros(len(inputs), module.hidden_size)
        state = (zeros, zeros) if isinstance(module, nn.LSTMCell) else zeros
    states = state if isinstance(state, tuple) else (state,)
    first = _Product(module.weight_ih, module.bias_ih)
    second = _Product(module.weight_hh, module.bias_hh)
    after = _step(_kind(module), first(inputs), second(states[0]), states)
    return [first, second], list(after)


def _sequence(module: _Sequence, call: Call) -> tuple[list[_Product], list[Tensor]]:
    """All layers and directions; outputs in the order of the module's own: the sequence, then its last states."""
    inputs, state = _arguments(call)
    if not isinstance(inputs, Tensor) or inputs.ndim != 3:
        raise InputError(f"model: a {type(module).__name__} saw other than a batch of sequences of one length")
    if module.proj_size:
        raise InputError(f"model: {type(module).__name__} with proj_size has no per-record rule; use proj_size=0")
    directions, kind = 2 if module.bidirectional else 1, _kind(module)
    if state is None:
        batch = inputs.shape[0] if module.batch_first else inputs.shape[1]
        zeros = inputs.new_zeros(module.num_layers * directions, batch, module.hidden_size)
        state = (zeros, zeros) if kind == "LSTM" else zeros
    states = state if isinstance(state, tuple) else (state,)
    sequence = list(inputs.unbind(1 if module.batch_first else 0))
    products: list[_Product] = []
    last: list[_State] = []
    for layer in range(module.num_layers):
        by_direction: list[list[Tensor]] = []
        for direction in range(directions):
            suffix = f"l{layer}" + ("_reverse" if direction else "")
            first, second = (
                _Product(getattr(module, f"weight_{part}_{suffix}"), getattr(module, f"bias_{part}_{suffix}", None))
                for part in ("ih", "hh")
            )
            products += [first, second]
            now = tuple(value[layer * directions + direction] for value in states)
            along: list[Tensor] = []
            for step in reversed(sequence) if direction else sequence:
                now = _step(kind, first(step), second(now[0]), now)
                along.append(now[0])
            by_direction.append(along[::-1] if direction else along)
            last.append(now)
        sequence = (
            [torch.cat(parts, 1) for parts in zip(*by_direction, strict=True)] if directions > 1 else by_direction[0]
        )
    outputs = torch.stack(sequence, 1 if module.batch_first else 0)
    return products, [outputs, *(torch.stack(parts) for parts in zip(*last, strict=True))]


def _arguments(call: Call) -> tuple[Tensor, Tensor | tuple[Tensor, ...] | None]:
    """Input and starting state, however they were passed."""
    inputs, state = call.inputs if len(call.inputs) > 1 else (call.inputs[0], call.keywords.get("hx"))
    dtype = next(call.module.parameters()).dtype  # what comes in may be narrower, under autocast
    if isinstance(inputs, Tensor):
        inputs = inputs.to(dtype)
    if isinstance(state, tuple):
        return inputs, tuple(value.to(dtype) for value in state)
    return inputs, None if state is None else state.to(dtype)
