"""Rules for per-record gradients of a module's parameters, from its inputs and the loss's gradient at its outputs.

Whatever has no rule goes through ``torch.func``, and is called again, one record at a time, vectorised. A rule yields a
parameter, the number of a record, and the gradients of that record and those that follow, ``(records, *shape)``, or flat in
another order (``layout``). A record's inputs decide that record's rows, and nothing else does.

With the loss's gradient at every gate, a record's gradient of a recurrent module is the sum over time of outer products, as
for a Linear layer on a sequence. Torch keeps those gradients to itself, so they go back through time once more, by hand,
from the hidden states that the module gave.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only

from dpltm.errors import InputError, first_line
from dpltm.gradients.draws import Draws
from dpltm.gradients.layer import Call, Workspace, pieces, tensors_in
from dpltm.records.made_up import sealed

CHUNK = 4_000_000
"""Most gradient coordinates, live or not, that are made at once."""


class WholeModel(nn.Module):
    """A model and its loss as one module, from a batch of records and labels to losses."""

    def __init__(self, model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self._of = model, (loss,)  # whose own parameters are none of the model's

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self._of[0](self.model(x), y)


class _WithoutHooks(nn.Module):
    """A module whose own hooks are left out: what was kept is what it saw after them, and gave before them."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        return self.module.forward(*inputs, **keywords)


def by_torch_func(call: Call, records: int, _room: Room, _space: Workspace) -> Gradients:
    """A module's vector-Jacobian product at each record, some at a time; those that have keys draw again what they drew."""
    bare = _WithoutHooks(call.module)
    parameters = {name: value for name, value in bare.named_parameters() if value.requires_grad}
    dtype = next(iter(parameters.values())).dtype
    in_precision = partial(_in_precision, dtype=dtype)  # what is complex stays so
    arguments, arrived = (call.inputs, call.keywords), call.arrived
    kind = type(call.module.model if isinstance(call.module, WholeModel) else call.module).__name__
    if not isinstance(call.module, WholeModel):  # whose inputs are the records and labels themselves
        arguments, arrived = tree_map_only(Tensor, in_precision, (arguments, arrived))
    if any(value.ndim == 0 or len(value) != records for value in tensors_in((arguments, arrived))):
        raise InputError(f"model: a {kind} saw or gave a tensor without one row a record in dimension 0; give it one")

    def of_record(arguments: tuple[Any, dict[str, Any]], cotangents: list[Tensor]) -> dict[str, Tensor]:
        def forward(values: dict[str, Tensor]) -> list[Tensor]:
            inputs, keywords = tree_map_only(Tensor, lambda value: value.unsqueeze(0), arguments)
            flat, _ = tree_flatten(functional_call(bare, values, tuple(inputs), keywords))
            return [flat[place] for place in arrived]

        return vjp(forward, parameters)[1]([cotangent.unsqueeze(0) for cotangent in cotangents])[0]

    operands = (arguments, list(arrived.values()))
    axes = tree_map(lambda value: 0 if isinstance(value, Tensor) else None, operands)
    mapped = vmap(of_record, in_dims=axes, randomness="error" if call.keys is None else "different")
    own = [(part, dict(part._parameters)) for part in call.module.modules()]
    parts = []
    try:
        with warnings.catch_warnings(), sealed():
            warnings.filterwarnings("ignore", "There is a performance drop")  # slow is what this path is
            for rows in pieces(records, CHUNK // sum(value.numel() for value in parameters.values())):
                with nullcontext() if call.keys is None else Draws(call.keys[rows], first=call.first, mapped=True):
                    parts.append(mapped(*tree_map_only(Tensor, itemgetter(rows), operands)))
    except Exception as error:  # whatever the module's own code raises
        what = f"a {kind} one record at a time ({first_line(error)})"
        raise InputError(f"model: torch.func cannot take {what}; use modules with a rule of their own") from error
    finally:
        for part, values in own:  # in which torch leaves a record's, where a module has two names
            part._parameters.update(values)
    for name, value in parameters.items():
        yield value, 0, torch.cat([part[name] for part in parts]).detach()


def _in_precision(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) if value.is_floating_point() else value


def recurrent(call: Call, records: int, room: Room, space: Workspace) -> Gradients:
    """Rule for RNN, GRU and LSTM, and for their cells: a layer of one step. Tensors are ``(time, batch, ...)`` within it."""
    module = call.module
    sequence = isinstance(module, nn.RNNBase)
    dtype = next(module.parameters()).dtype  # what comes in may be narrower, under autocast
    arrived = call.arrived
    inputs, state = call.inputs if len(call.inputs) > 1 else (call.inputs[0], call.keywords.get("hx"))

    def time_first(values: Tensor) -> Tensor:
        values = values.detach().to(dtype) if sequence else values.detach().to(dtype)[None]
        return values.transpose(0, 1) if getattr(module, "batch_first", False) else values

    # inputs of the first layer, and outputs of each
    along = [time_first(inputs)] if isinstance(inputs, Tensor) else []
    if not along or along[0].ndim != 3 or along[0].shape[1] != records or getattr(module, "proj_size", False):
        raise InputError(
            f"model: a {type(module).__name__} has proj_size, or saw other than one row, or one sequence of one length, a"
            " record; leave proj_size and packing out, and let dimension 0 of what the model is given be the record"
        )
    states = [value.to(dtype) for value in ([state] if isinstance(state, Tensor) else state or ())]
    kind = type(module).__name__.removesuffix("Cell").lower()  # as the function of torch is called
    kind = f"rnn_{module.nonlinearity}" if kind == "rnn" else kind
    layers = _layers(module)
    zero = along[0].new_zeros(())
    shape = (len(layers), len(layers[0]), records, layers[0][0][1].shape[1])
    starts = [value.reshape(shape) for value in states] or [zero.expand(shape)] * 2
    for layer, directions in enumerate(layers):
        if layer == len(layers) - 1 and 0 in call.places:
            along.append(time_first(call.outputs[call.places.index(0)]))
        else:
            along.append(_forward(kind, along[-1], [start[layer] for start in starts], directions))
    wanted = time_first(arrived[0]) if 0 in arrived else zero.expand(along[-1].shape)
    none = zero.expand(shape)
    ends = [arrived[place].to(dtype).reshape(shape) if place in arrived else none for place in (1, 2)]
    if not sequence:  # a cell gives no last hidden state beside its only one
        ends.reverse()
    for layer in reversed(range(len(layers))):
        below = []
        for direction, weights in enumerate(layers[layer]):
            gave, gradient = (value.chunk(len(layers[layer]), 2)[direction] for value in (along[layer + 1], wanted))
            seen, gave, gradient = (value.flip(0) if direction else value for value in (along[layer], gave, gradient))
            start, end = ([value[layer, direction] for value in states] for states in (starts, ends))
            earlier, of_inputs, of_hidden = _through_time(kind, weights, seen, gave, gradient, start, end, space)
            sums = of_hidden.sum(1)
            for number, (before, gates) in enumerate(((seen, of_inputs), (earlier, of_hidden))):
                yield from _products(weights[number], [gates], [before.transpose(0, 1)], room)
                if len(weights) > 2:
                    yield weights[2 + number], 0, sums if gates is of_hidden else gates.sum(1)
            if layer:
                of_below = (of_inputs @ weights[0].detach()).transpose(0, 1)
                below.append(of_below.flip(0) if direction else of_below)
        wanted = sum(below, zero)


def _layers(module: Any) -> list[list[list[nn.Parameter]]]:
    """Of each direction of each layer: weights of inputs and of the hidden state, and any biases of both."""
    if isinstance(module, nn.RNNBase):
        weights, directions = module.all_weights, 1 + module.bidirectional
        return [weights[start : start + directions] for start in range(0, len(weights), directions)]
    return [[[module.weight_ih, module.weight_hh, *((module.bias_ih, module.bias_hh) if module.bias else ())]]]


def _forward(kind: str, inputs: Tensor, start: list[Tensor], weights: list[list[nn.Parameter]]) -> Tensor:
    flat = [value.detach() for of_direction in weights for value in of_direction]
    start = [value.contiguous() for value in start]
    state = start if kind == "lstm" else start[0]
    return getattr(torch, kind)(inputs, state, flat, len(weights[0]) > 2, 1, 0.0, False, len(weights) > 1, False)[0]


def _through_time(
    kind: str,
    parameters: Sequence[Tensor],
    seen: Tensor,
    gave: Tensor,
    wanted: Tensor,
    start: list[Tensor],
    end: list[Tensor],
    space: Workspace,
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states before each step; and gradients at products of inputs, and of those states, ``(batch, time, gates)``."""
    weights = [value.detach() for value in parameters]
    (time, batch, width) = gave.shape
    inner = seen.shape[2]
    both = space.take("both", (time, batch, inner + width), gave)
    both[:, :, :inner], both[0, :, inner:], both[1:, :, inner:] = seen, start[0], gave[:-1]
    earlier, back = both[:, :, inner:], weights[1]
    gates = space.take("slopes", (time, batch, 1 if kind.startswith("rnn") else 4, width), gave)
    if kind == "rnn_tanh":
        torch.sub(1, gave.square(), out=gates[:, :, 0])
    elif kind == "rnn_relu":
        gates[:, :, 0] = gave > 0
    elif kind == "gru":
        keep = _slopes_of_gru(weights, both, gates, space).unbind(0)
    else:
        keep, into = (slopes.unbind(0) for slopes in _slopes_of_lstm(weights, both, start[1], gates, space))
    by_state, by_memory = gates[:, :, 3 * (kind == "lstm") :].unbind(0), gates[:, :, :3].unbind(0)
    through = gates.flatten(2)[:, :, : len(back)].unbind(0)
    now = wanted[-1] + end[0]
    memory = end[1].clone()
    for step in reversed(range(time)):
        if kind == "lstm":
            memory.addcmul_(now, into[step])
            by_memory[step].mul_(memory[:, None])
            memory.mul_(keep[step])
        by_state[step].mul_(now[:, None])
        if step:
            before = torch.addmm(wanted[step - 1], through[step], back)
            now = before.addcmul_(now, keep[step]) if kind == "gru" else before
    turned = space.fill("gates", gates.transpose(0, 1))
    at_hidden = turned.flatten(2)[:, :, : len(back)]
    if kind != "gru":
        return earlier, at_hidden, at_hidden
    place = space.take("slopes", (batch, time, 3, width), gave)
    return earlier, torch.cat([turned[:, :, :2], turned[:, :, 3:]], 2, out=place).flatten(2), at_hidden


_sigmoid, _tanh = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
"""Of a gradient and what the function gave."""


def _slopes_of_lstm(
    weights: list[Tensor], both: Tensor, start: Tensor, slopes: Tensor, space: Workspace
) -> tuple[Tensor, Tensor]:
    """Write ``slopes`` from memory, or state, to each gate; return those to the memory before, and from the state."""
    gates = _gates(weights, both, space)
    cell = space.fill("state", gates[:, :, 2]).tanh_()
    enter, forget, _, leave = gates.sigmoid_().unbind(2)  # of all at once: on parts it takes four times as long
    memory = space.take("memory", (len(both) + 1, *start.shape), start)
    memory[0] = start
    torch.mul(enter, cell, out=memory[1:])
    for before, now, kept in zip(memory, memory[1:], forget, strict=False):
        now.addcmul_(before, kept)
    bent = space.fill("bent", memory[1:]).tanh_()
    _sigmoid.grad_input(cell, enter, grad_input=slopes[:, :, 0])
    _sigmoid.grad_input(memory[:-1], forget, grad_input=slopes[:, :, 1])
    _tanh.grad_input(enter, cell, grad_input=slopes[:, :, 2])
    _sigmoid.grad_input(bent, leave, grad_input=slopes[:, :, 3])
    return forget, _tanh.grad_input(leave, bent, grad_input=cell)


def _slopes_of_gru(weights: list[Tensor], both: Tensor, slopes: Tensor, space: Workspace) -> Tensor:
    """The same for a GRU, whose gates all hang on the hidden state."""
    width = slopes.shape[3]
    apart = zip(weights, (2 * width, 3 * width) * 2, strict=False)
    gates = _gates([torch.cat([v[:at], torch.zeros_like(v[:width]), v[at:]]) for v, at in apart], both, space)
    reset, update = gates[:, :, :2].sigmoid_().unbind(2)
    taken, by_reset, by_update, slope = gates[:, :, 2], slopes[:, :, 0], slopes[:, :, 1], slopes[:, :, 3]
    new = space.fill("state", gates[:, :, 3]).addcmul_(reset, taken).tanh_()
    _tanh.grad_input(torch.sub(1, update, out=slope), new, grad_input=slope)
    torch.mul(slope, reset, out=slopes[:, :, 2])
    _sigmoid.grad_input(torch.mul(slope, taken, out=by_reset), reset, grad_input=by_reset)
    _sigmoid.grad_input(torch.sub(both[:, :, -width:], new, out=by_update), update, grad_input=by_update)
    return update


def _gates(weights: list[Tensor], both: Tensor, space: Workspace) -> Tensor:
    """Products of inputs and hidden states that go into four gates at all times, ``(time, batch, 4, width)``."""
    weight = torch.cat(weights[:2], 1)
    bias = sum(weights[2:], weights[0].new_zeros(1))
    gates = space.take("gates", (both.shape[0] * both.shape[1], len(weight)), weight)
    return torch.addmm(bias, both.flatten(0, 1), weight.T, out=gates).view(*both.shape[:2], 4, -1)


Gradients = Iterator[tuple[Tensor, int, Tensor]]
Room = Callable[[Tensor, int, int], Tensor]
"""Memory for the gradients of a parameter, of so many records from the first on, ``(count, numel)``, contiguous: perhaps
where they are wanted. To be yielded before more is asked for."""
Rule = Callable[[Call, int, Room, Workspace], Gradients]
"""The workspace is for what a rule needs within a call."""

PATCHES, PRODUCTS = 2**21, 2**20
"""Most numbers in patches, or inputs, and gradients of images that are taken at once; and most coordinates of gradients that
one batched product makes on a processor: more would leave the cache before use."""

NARROW = 16
"""Columns of a weight below which its products are made as those of its transpose: up to ten times as quick in MKL."""

GROUPED = 40_000
"""Most weights of a group of channels up to which a convolution of one group a record is quicker than products."""

_Conv = nn.Conv1d | nn.Conv2d


def linear(call: Call, records: int, room: Room, _space: Workspace) -> Gradients:
    """Linear on ``(batch, ..., in)``: the sum over positions of outer products."""
    return _linear(call, call.module.weight, call.module.bias, records, room)


def attention(call: Call, records: int, room: Room, space: Workspace) -> Gradients:
    """MultiheadAttention, of which the products by weights were kept; what was kept whole goes through ``torch.func``."""
    module, part = call.module, call.keywords.get("weight")
    if part == "in_proj":
        return _linear(call, module.in_proj_weight, module.in_proj_bias, records, room)
    if part == "out_proj":
        return _linear(call, module.out_proj.weight, module.out_proj.bias, records, room)
    return by_torch_func(call, records, room, space)


def _linear(call: Call, weight: Tensor, bias: Tensor | None, records: int, room: Room) -> Gradients:
    """Every input has its part of ``weight`` if there are several."""
    inputs, gradients = [], []
    for place in range(len(call.inputs)):  # what the pass left may be narrower, under autocast
        gradient = call.arrived.get(place)
        inputs.append(_batch(call, records, place).to(weight.dtype).reshape(records, -1, weight.shape[1]))
        if gradient is None:
            gradient = weight.new_zeros(records, inputs[-1].shape[1], len(weight) // len(call.inputs))
        gradients.append(gradient.to(weight.dtype).reshape(records, inputs[-1].shape[1], -1))
    yield from _products(weight, gradients, inputs, room)
    if bias is not None:
        yield bias, 0, torch.cat([gradient.sum(1) for gradient in gradients], 1)


def _products(weight: Tensor, gradients: Sequence[Tensor], inputs: Sequence[Tensor], room: Room) -> Gradients:
    """Sums over positions of outer products of ``(batch, positions, out)`` and ``(batch, positions, in)``, side by side."""
    records = len(gradients[0])
    for rows in pieces(records, records if weight.is_cuda else PRODUCTS // max(1, weight.numel())):
        written = room(weight, rows.start, rows.stop - rows.start).view(-1, *weight.shape)
        for place, left, right in zip(written.chunk(len(inputs), 1), gradients, inputs, strict=True):
            if weight.shape[1] < NARROW:
                place.copy_(torch.bmm(right[rows].transpose(1, 2), left[rows]).transpose(1, 2))
            else:
                torch.bmm(left[rows].transpose(1, 2), right[rows], out=place)
        yield weight, rows.start, written


def convolution(call: Call, records: int, room: Room, _space: Workspace) -> Gradients:
    """Conv1d and Conv2d: the outer products of output gradients and input patches, over positions."""
    module = call.module
    inputs, gradient = (value.to(module.weight.dtype) for value in (_batch(call, records), call.arrived[0]))
    if in_groups(module):
        yield from _grouped(module, inputs, gradient)
    else:
        yield from _unfolded(module, inputs, gradient, room)
    if module.bias is not None:
        yield module.bias, 0, gradient.flatten(2).sum(2)


def in_groups(module: nn.Module) -> bool:
    """True where a convolution with a group for each record has a quick kernel (oneDNN's), as measured at 8 to 256 channels;
    a rule, since what is timed anew in each process would not give the same bits after resuming."""
    if not isinstance(module, nn.Conv2d) or module.weight.dtype != torch.float32 or module.weight.is_cuda:
        return False
    weight, groups = module.weight, module.groups
    inner, outer = module.in_channels // groups, module.out_channels // groups
    aligned = inner % 8 == outer % 8 == 0 or inner == outer == 1
    small = weight.numel() // groups <= GROUPED and (max(module.stride) == 1 or max(module.kernel_size) <= 3)
    return aligned and small and torch.backends.mkldnn.is_available()


def _grouped(module: _Conv, inputs: Tensor, gradient: Tensor) -> Gradients:
    """Gradients of the weight of one convolution of some records, side by side as channels."""
    inputs, padding = _padded(module, inputs)
    shape = module.weight.shape
    once = PATCHES // max(1, inputs[0].numel() + gradient[0].numel() + module.weight.numel())
    for rows in pieces(len(inputs), once):
        seen, arriving = inputs[rows], gradient[rows]
        # only its shape is looked at
        weight = module.weight.detach().new_empty(1).expand(len(seen) * shape[0], *shape[1:])
        gradients = torch.ops.aten.convolution_backward(
            arriving.reshape(1, -1, *arriving.shape[2:]), seen.reshape(1, -1, *seen.shape[2:]), weight, None,
            module.stride, padding, module.dilation, False, [0] * len(padding), len(seen) * module.groups,
            [False, True, False],
        )  # fmt: skip
        yield module.weight, rows.start, gradients[1].view(len(seen), -1)


def _unfolded(module: _Conv, inputs: Tensor, gradient: Tensor, room: Room) -> Gradients:
    """Products of output gradients and patches (im2col)."""
    records = len(inputs)
    groups, channels = module.groups, module.in_channels // module.groups
    gradient = gradient.reshape(records * groups, module.out_channels // groups, -1).contiguous()
    patch = module.in_channels * math.prod(module.kernel_size)
    once = next(pieces(records, PATCHES // max(1, gradient.shape[-1] * patch + module.weight.numel()))).stop
    start = 0
    for columns in _patches(module, inputs, once):
        rows = gradient[start * groups : (start + len(columns)) * groups]
        written = room(module.weight, start, len(columns))
        if groups > 1:
            columns = columns.unflatten(2, (-1, groups, channels)).permute(0, 3, 1, 2, 4).flatten(0, 1).flatten(2)
        torch.bmm(rows, columns, out=written.view(len(rows), rows.shape[1], -1))
        yield module.weight, start, written
        start += once


def layout(module: nn.Module, parameter: Tensor) -> Tensor | None:
    """Place of each coordinate of a parameter's gradient as a rule orders them; None if in the parameter's order."""
    if type(module) not in (nn.Conv1d, nn.Conv2d) or parameter.ndim < 3 or in_groups(module):
        return None
    order = torch.arange(parameter.numel(), device=parameter.device).view(parameter.shape).movedim(1, -1).flatten()
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))


def _padded(module: _Conv, inputs: Tensor) -> tuple[Tensor, Sequence[int]]:
    """Inputs, and the zeros still to be padded on both sides."""
    if module.padding_mode == "zeros" and not isinstance(module.padding, str):
        return inputs, module.padding
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return functional.pad(inputs, module._reversed_padding_repeated_twice, mode=mode), [0] * len(module.kernel_size)


def _patches(module: _Conv, inputs: Tensor, once: int) -> Iterator[Tensor]:
    """Patches ``(once, positions, patch)``, channels last; the last dimension is unfolded first: that copies long runs."""
    padding = module._reversed_padding_repeated_twice
    if module.padding_mode != "zeros":
        inputs, padding = functional.pad(inputs, padding, mode=module.padding_mode), [0] * len(padding)
    sizes = inputs.shape[2:]
    before, after = padding[-2::-2], padding[::-2]
    padded = [sum(sides) for sides in zip(before, sizes, after, strict=True)]
    patches = inside = inputs.new_zeros(once, *padded, inputs.shape[1])
    for axis, (first, size) in enumerate(zip(before, sizes, strict=True), 1):
        inside = inside.narrow(axis, first, size)
    copies = []
    ways = [*zip(module.kernel_size, module.stride, module.dilation, strict=True)]
    for size, step, apart in reversed(ways if max(*module.kernel_size, *module.stride) > 1 else []):
        windows = patches.unfold(-2, (size - 1) * apart + 1, step)[..., ::apart]  # (..., positions, run, size)
        windows = windows.movedim(-3, 1).transpose(-1, -2)
        copies.append((torch.empty_like(windows, memory_format=torch.contiguous_format), windows))
        patches = copies[-1][0].flatten(-2)
    patches = patches.flatten(1, -2)
    for images in inputs.movedim(1, -1).split(once):
        inside[: len(images)].copy_(images)
        for target, windows in copies:
            target[: len(images)].copy_(windows[: len(images)])
        yield patches[: len(images)]


def normalisation(call: Call, records: int, _room: Room, _space: Workspace) -> Gradients:
    """LayerNorm and RMSNorm: output gradients times what was normalised, summed over positions."""
    module, gradient = call.module, call.arrived[0]
    inputs = _batch(call, records).to(gradient.dtype)
    size = list(module.normalized_shape)
    if isinstance(module.weight, nn.Parameter):
        if isinstance(module, nn.LayerNorm):
            normal = functional.layer_norm(inputs, size, eps=module.eps)
        else:
            normal = functional.rms_norm(inputs, size, eps=module.eps)
        yield module.weight, 0, normal.mul_(gradient).reshape(records, -1, *size).sum(1)
    if isinstance(getattr(module, "bias", None), nn.Parameter):
        yield module.bias, 0, gradient.reshape(records, -1, *size).sum(1)


def group_normalisation(call: Call, records: int, _room: Room, _space: Workspace) -> Gradients:
    """GroupNorm, whose scales and shifts are each record's own in the pass (``Recorder``)."""
    module = call.module
    _batch(call, records)
    for place, gradient in call.arrived.items():
        yield (module.weight, module.bias)[place], 0, gradient


def embedding(call: Call, records: int, _room: Room, _space: Workspace) -> Gradients:
    """Embedding whose table is used elsewhere too: every record's gradient of the whole table."""
    module = call.module
    tokens = _batch(call, records).reshape(records, -1)
    gradient = call.arrived[0].reshape(records, -1, module.embedding_dim)
    if module.padding_idx is not None:
        gradient = gradient.masked_fill((tokens == module.padding_idx)[:, :, None], 0.0)
    table = gradient.new_zeros(records, *module.weight.shape)
    yield module.weight, 0, table.scatter_add_(1, tokens[:, :, None].expand_as(gradient), gradient)


def rule_of(module: nn.Module) -> Rule:
    """The rule for a kind of module: exactly of that class, since a subclass may compute something else."""
    return by_torch_func if "forward" in vars(module) else _RULES.get(type(module), by_torch_func)


def _batch(call: Call, records: int, place: int = 0) -> Tensor:
    inputs: Tensor = call.inputs[place]
    if len(inputs) != records:
        kind = type(call.module).__name__
        raise InputError(f"model: a {kind} saw {len(inputs)} rows, not {records}; give it all records, in dimension 0")
    return inputs


_RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    nn.MultiheadAttention: attention,
    nn.Conv1d: convolution,
    nn.Conv2d: convolution,
    nn.LayerNorm: normalisation,
    nn.GroupNorm: group_normalisation,
    nn.RMSNorm: normalisation,
    nn.Embedding: embedding,
    nn.RNN: recurrent,
    nn.GRU: recurrent,
    nn.LSTM: recurrent,
    nn.RNNCell: recurrent,
    nn.GRUCell: recurrent,
    nn.LSTMCell: recurrent,
}
