"""Rules for per-record gradients of a module's parameters, from its inputs and the loss's gradient at its outputs.

Each kind of module has one rule; whatever has none goes through ``torch.func``, and is called again, one record at a time,
vectorised. A rule yields a parameter, the number of a record, and the gradients of that record and those that follow,
``(records, *shape)``, or flat in another order (``layout``); it goes through all records in turn. A record's inputs decide
that record's rows, and nothing else does.

Recurrent modules are unrolled once more, since torch keeps the gradients at their gates to itself. All that such a module
multiplies by a weight is an input or a state, and the products go into a gate. With the loss's gradient at every gate, a
record's gradient is the sum over time of outer products, as for a Linear layer on a sequence.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_map

from dpltm.errors import InputError, first_line
from dpltm.gradients.draws import Draws
from dpltm.gradients.layer import Call

CHUNK = 4_000_000
"""Most gradient coordinates, live or not, that are made at once."""


def by_torch_func(call: Call, records: int, _room: Room) -> Gradients:
    """Rule for a module without one of its own: its vector-Jacobian product at each record."""
    parameters = {name: value for name, value in call.module.named_parameters() if value.requires_grad}
    known = [
        (place, output.detach(), gradient)
        for place, output, gradient in zip(call.places, call.outputs, call.gradients, strict=True)
        if gradient is not None
    ]
    if not known:
        return
    if any(output.ndim == 0 or len(output) != records for _, output, _ in known):
        raise _not_by_record(call.module)

    def one(arguments: tuple[Any, dict[str, Any]], cotangents: list[Tensor]) -> dict[str, Tensor]:
        def forward(values: dict[str, Tensor]) -> list[Tensor]:
            inputs, keywords = tree_map(_as_batch, arguments)
            flat, _ = tree_flatten(functional_call(call.module, values, inputs, keywords))
            return [flat[place] for place, _, _ in known]

        backward = vjp(forward, parameters)[1]
        return backward([cotangent.unsqueeze(0) for cotangent in cotangents])[0]

    dtype = next(iter(parameters.values())).dtype
    arguments = tree_map(lambda value: _in_precision(value, dtype), (call.inputs, call.keywords))
    known = [(place, output, _in_precision(gradient, dtype)) for place, output, gradient in known]
    leaves, _ = tree_flatten(arguments)
    if any(isinstance(value, Tensor) and (value.ndim == 0 or len(value) != records) for value in leaves):
        raise _not_by_record(call.module)
    axes = tree_map(lambda value: 0 if isinstance(value, Tensor) else None, arguments)
    per_record = _vectorised(
        one,
        (axes, 0),
        (arguments, [gradient for _, _, gradient in known]),
        parameters,
        call.module,
        None if call.keys is None else (call.keys, call.first),
    )
    for name, value in per_record.items():
        yield parameters[name], 0, value


def whole_model(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, keys: Tensor | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Per-record gradients ``(batch, *shape)`` of every parameter that is not frozen, one after the other, by name."""
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}

    def one(values: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        return loss(functional_call(model, values, (record.unsqueeze(0),)), label.unsqueeze(0)).sum()

    drawn = None if keys is None else (keys, 0)
    per_record = _vectorised(grad(one), (None, 0, 0), (parameters, x, y), parameters, model, drawn)
    yield from per_record.items()


def _vectorised(
    function: Callable[..., dict[str, Tensor]],
    axes: tuple[Any, ...],
    arguments: tuple[Any, ...],
    parameters: dict[str, nn.Parameter],
    module: nn.Module,
    drawn: tuple[Tensor, int] | None,
) -> dict[str, Tensor]:
    """Map over records, some at a time; what they ``drawn`` before, by keys and number of the first draw, is drawn again."""
    size = sum(value.numel() for value in parameters.values())
    chunk = max(1, CHUNK // size)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # slow is what this path is
            if drawn is None:
                found = vmap(function, in_dims=axes, chunk_size=chunk)(*arguments)
            else:
                keys, first = drawn
                mapped = vmap(function, in_dims=axes, randomness="different")
                parts = []
                for start in range(0, len(keys), chunk):
                    rows = slice(start, start + chunk)
                    with Draws(keys[rows], first=first, mapped=True):
                        parts.append(mapped(*_rows(arguments, axes, rows)))
                found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
            return {name: value.detach() for name, value in found.items()}
    except Exception as error:  # whatever the module's own code raises
        raise InputError(
            f"model: torch.func cannot take a {type(module).__name__} one record at a time ({first_line(error)}); use"
            " modules with a rule of their own"
        ) from error


def _rows(arguments: tuple[Any, ...], axes: tuple[Any, ...], rows: slice) -> list[Any]:
    return [
        value if axis is None else tree_map(lambda part: part[rows] if isinstance(part, Tensor) else part, value)
        for value, axis in zip(arguments, axes, strict=True)
    ]


def _in_precision(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def _as_batch(value: Any) -> Any:
    return value.unsqueeze(0) if isinstance(value, Tensor) else value


def _not_by_record(module: nn.Module) -> InputError:
    return InputError(
        f"model: a {type(module).__name__} saw or gave a tensor without one row a record; dimension 0 must be the record"
    )


_Sequence = nn.RNN | nn.GRU | nn.LSTM
_State = tuple[Tensor, ...]


@dataclass
class _Product:
    """Every use of one weight and its bias: what was multiplied, ``(batch, in)``, and what came out, ``(batch, out)``; or
    one use on a whole sequence, ``(batch, time, ...)``. What is only ever added to what comes out ``beside`` has the same
    gradients."""

    weight: Tensor
    bias: Tensor | None
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    beside: _Product | None = None

    def __call__(self, inputs: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.detach()
        output = functional.linear(inputs, self.weight.detach(), bias)
        self.inputs.append(inputs)
        if self.beside is None:
            if not output.requires_grad:
                output.requires_grad_()
            self.outputs.append(output)
        return output

    def seen(self) -> Tensor:
        """Inputs ``(batch, time, in)``."""
        return _over_time([value.detach() for value in self.inputs])


def recurrent(call: Call, records: int, room: Room) -> Gradients:
    """Rule for RNN, GRU and LSTM, and for their cells."""
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
    found: dict[int, Tensor] = {}
    for product in products:
        beside = product if product.beside is None else product.beside
        over_time = found.get(id(beside))
        if over_time is None:
            over_time = found[id(product)] = _over_time([next(each) for _ in product.outputs])
        yield from _products(product.weight, over_time, product.seen(), room)
        if product.bias is not None:
            yield product.bias, 0, over_time.sum(1)


def _over_time(values: list[Tensor]) -> Tensor:
    """Matrices of one time each, or of one sequence, as ``(batch, time, ...)``."""
    return torch.stack(values, 1) if values[0].ndim == 2 else values[0]


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
    sequence = inputs if module.batch_first else inputs.transpose(0, 1)
    products: list[_Product] = []
    last: list[_State] = []
    for layer in range(module.num_layers):
        by_direction: list[Tensor] = []
        for direction in range(directions):
            suffix = f"l{layer}" + ("_reverse" if direction else "")
            first, second = (
                _Product(getattr(module, f"weight_{part}_{suffix}"), getattr(module, f"bias_{part}_{suffix}", None))
                for part in ("ih", "hh")
            )
            second.beside = None if kind == "GRU" else first  # which takes them apart
            products += [first, second]
            now = tuple(value[layer * directions + direction] for value in states)
            along: list[Tensor] = []
            steps = first(sequence).unbind(1)
            for step in reversed(steps) if direction else steps:
                now = _step(kind, step, second(now[0]), now)
                along.append(now[0])
            for list_of_times in (along, second.inputs, second.outputs) if direction else ():
                list_of_times.reverse()
            by_direction.append(torch.stack(along, 1))
            last.append(now)
        sequence = torch.cat(by_direction, 2) if directions > 1 else by_direction[0]
    outputs = sequence if module.batch_first else sequence.transpose(0, 1)
    return products, [outputs, *(torch.stack(parts) for parts in zip(*last, strict=True))]


def _arguments(call: Call) -> tuple[Tensor, Tensor | tuple[Tensor, ...] | None]:
    inputs, state = call.inputs if len(call.inputs) > 1 else (call.inputs[0], call.keywords.get("hx"))
    dtype = next(call.module.parameters()).dtype  # what comes in may be narrower, under autocast
    if isinstance(inputs, Tensor):
        inputs = inputs.to(dtype)
    if isinstance(state, tuple):
        return inputs, tuple(value.to(dtype) for value in state)
    return inputs, None if state is None else state.to(dtype)


Gradients = Iterator[tuple[Tensor, int, Tensor]]
Room = Callable[[Tensor, int, int], Tensor]
"""Memory for the gradients of a parameter, of so many records from the first on, ``(count, numel)``, contiguous: perhaps
where they are wanted. To be yielded before more is asked for."""
Rule = Callable[[Call, int, Room], Gradients]

PATCHES = 2**21
"""Most numbers in patches, or inputs, and gradients of images that are taken at once: more would leave the cache before
use."""

PRODUCTS = 2**20
"""Most coordinates of gradients that one batched product makes on a processor: more would leave the cache before use."""

GROUPED = 40_000
"""Most weights of a group of channels up to which a convolution of one group a record is quicker than products."""

_Conv = nn.Conv1d | nn.Conv2d


def linear(call: Call, records: int, room: Room) -> Gradients:
    """Linear on ``(batch, ..., in)``: the sum over positions of outer products."""
    module, gradient = call.module, call.gradients[0]
    if gradient is None:
        return
    assert isinstance(module, nn.Linear)
    dtype = module.weight.dtype  # what the pass left may be narrower, under autocast
    rows = _batch(module, call.inputs[0], records).to(dtype).reshape(records, -1, module.in_features)
    gradient = gradient.to(dtype).reshape(records, -1, module.out_features)
    yield from _products(module.weight, gradient, rows, room)
    if module.bias is not None:
        yield module.bias, 0, gradient.sum(1)


def _products(weight: Tensor, gradient: Tensor, inputs: Tensor, room: Room) -> Gradients:
    """Sums over positions of the outer products of ``(batch, positions, out)`` and ``(batch, positions, in)``."""
    once = max(1, len(gradient) if weight.is_cuda else PRODUCTS // max(1, weight.numel()))
    for first in range(0, len(gradient), once):
        left, right = gradient[first : first + once], inputs[first : first + once]
        found = room(weight, first, len(left)).view(-1, *weight.shape)
        yield weight, first, torch.bmm(left.transpose(1, 2), right, out=found)


def convolution(call: Call, records: int, room: Room) -> Gradients:
    """Conv1d and Conv2d: the outer products of output gradients and input patches, over positions."""
    module, gradient = call.module, call.gradients[0]
    if gradient is None:
        return
    assert isinstance(module, _Conv)
    inputs, gradient = (value.to(module.weight.dtype) for value in (_batch(module, call.inputs[0], records), gradient))
    if in_groups(module):
        yield from _grouped(module, inputs, gradient)
    else:
        yield from _unfolded(module, inputs, gradient, room)
    if module.bias is not None:
        yield module.bias, 0, gradient.flatten(2).sum(2)


def in_groups(module: nn.Module) -> bool:
    """True where a convolution with a group for each record has a quick kernel (oneDNN's): whole blocks of eight channels,
    no large kernel that is moved by more than one, few weights. Measured within steps, at 8 to 256 channels; a rule, since
    what is timed anew in each process would not give the same bits after resuming."""
    if not isinstance(module, nn.Conv2d) or module.weight.dtype != torch.float32 or module.weight.is_cuda:
        return False
    weight, groups = module.weight, module.groups
    inner, outer = module.in_channels // groups, module.out_channels // groups
    whole = inner % 8 == outer % 8 == 0 or inner == outer == 1
    small = weight.numel() // groups <= GROUPED and (max(module.stride) == 1 or max(module.kernel_size) <= 3)
    return whole and small and torch.backends.mkldnn.is_available()


def _grouped(module: _Conv, inputs: Tensor, gradient: Tensor) -> Gradients:
    """Gradients of the weight of one convolution of some records, side by side as channels."""
    inputs, padding = _padded(module, inputs)
    shape = module.weight.shape
    once = max(1, PATCHES // max(1, inputs[0].numel() + gradient[0].numel() + module.weight.numel()))
    start = 0
    for seen, given in zip(inputs.split(once), gradient.split(once), strict=True):
        one = (
            module.weight.detach().new_empty(1).expand(len(seen) * shape[0], *shape[1:])
        )  # only its shape is looked at
        found = torch.ops.aten.convolution_backward(
            given.reshape(1, -1, *given.shape[2:]), seen.reshape(1, -1, *seen.shape[2:]), one, None, module.stride,
            padding, module.dilation, False, [0] * len(padding), len(seen) * module.groups, [False, True, False],
        )  # fmt: skip
        yield module.weight, start, found[1].view(len(seen), -1)
        start += once


def _unfolded(module: _Conv, inputs: Tensor, gradient: Tensor, room: Room) -> Gradients:
    """Products of output gradients and patches (im2col), some images at a time."""
    records = len(inputs)
    groups, channels = module.groups, module.in_channels // module.groups
    gradient = gradient.reshape(records * groups, module.out_channels // groups, -1).contiguous()
    patch = module.in_channels * math.prod(module.kernel_size)
    once = max(1, PATCHES // max(1, gradient.shape[-1] * patch + module.weight.numel()))
    start = 0
    for columns in _patches(module, inputs, min(once, records)):
        rows = gradient[start * groups : (start + len(columns)) * groups]
        found = room(module.weight, start, len(columns))
        if groups > 1:
            columns = columns.unflatten(2, (-1, groups, channels)).permute(0, 3, 1, 2, 4).flatten(0, 1).flatten(2)
        torch.bmm(rows, columns, out=found.view(len(rows), rows.shape[1], -1))
        yield module.weight, start, found
        start += once


def layout(module: nn.Module, parameter: Tensor) -> Tensor | None:
    """Place of each coordinate of a parameter's gradient as a rule orders them; None if in the parameter's order."""
    if type(module) not in (nn.Conv1d, nn.Conv2d) or parameter.ndim < 3 or in_groups(module):
        return None
    order = torch.arange(parameter.numel(), device=parameter.device).view(parameter.shape).movedim(1, -1).flatten()
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))


def _padded(module: _Conv, inputs: Tensor) -> tuple[Tensor, Sequence[int]]:
    """Inputs, and the zeros that are still to be padded on both sides of each dimension."""
    if module.padding_mode == "zeros" and not isinstance(module.padding, str):
        return inputs, module.padding
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return functional.pad(inputs, module._reversed_padding_repeated_twice, mode=mode), [0] * len(module.kernel_size)


def _patches(module: _Conv, inputs: Tensor, once: int) -> Iterator[Tensor]:
    """Patches of some images at each position, ``(once, positions, patch)``, channels last; overwritten by the next.
    One dimension is unfolded after the other, the last one first: that copies few long runs of memory."""
    padding = module._reversed_padding_repeated_twice
    if module.padding_mode != "zeros":
        inputs, padding = functional.pad(inputs, padding, mode=module.padding_mode), [0] * len(padding)
    sizes = inputs.shape[2:]
    before, after = padding[-2::-2], padding[::-2]
    padded = [sum(each) for each in zip(before, sizes, after, strict=True)]
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
    for some in inputs.movedim(1, -1).split(once):
        inside[: len(some)].copy_(some)
        for target, windows in copies:
            target[: len(some)].copy_(windows[: len(some)])
        yield patches[: len(some)]


def normalisation(call: Call, records: int, _room: Room) -> Gradients:
    """LayerNorm, RMSNorm and GroupNorm: output gradients times what was normalised, summed over positions."""
    module, gradient = call.module, call.gradients[0]
    if gradient is None:
        return
    inputs = _batch(module, call.inputs[0], records).to(gradient.dtype)
    if isinstance(module, nn.GroupNorm):
        yield from _by_group(module, inputs, gradient)
        return
    assert isinstance(module, (nn.LayerNorm, nn.RMSNorm))
    size = list(module.normalized_shape)
    if isinstance(module.weight, nn.Parameter):
        if isinstance(module, nn.LayerNorm):
            normal = functional.layer_norm(inputs, size, eps=module.eps)
        else:
            normal = functional.rms_norm(inputs, size, eps=module.eps)
        yield module.weight, 0, normal.mul_(gradient).reshape(records, -1, *size).sum(1)
    if isinstance(getattr(module, "bias", None), nn.Parameter):
        yield module.bias, 0, gradient.reshape(records, -1, *size).sum(1)  # type: ignore[misc]


def _by_group(module: nn.GroupNorm, inputs: Tensor, gradient: Tensor) -> Gradients:
    """GroupNorm of one record whose channels are those of all: what PyTorch sums over records is then each one's own."""
    if module.affine:
        records, channels = inputs.shape[:2]
        positions, groups = inputs[0, 0].numel(), records * module.num_groups
        inputs, gradient = (value.reshape(1, records * channels, positions) for value in (inputs, gradient))
        _, mean, scale = torch.native_group_norm(
            inputs, None, None, 1, records * channels, positions, groups, module.eps
        )
        ones = inputs.new_ones(records * channels)  # what the weights are makes no difference to their gradients
        sums = torch.ops.aten.native_group_norm_backward(
            gradient, inputs, mean, scale, ones, 1, records * channels, positions, groups, [False, True, True]
        )
        yield module.weight, 0, sums[1].view(records, channels)
        yield module.bias, 0, sums[2].view(records, channels)


def embedding(call: Call, records: int, _room: Room) -> Gradients:
    """Embedding whose table is used elsewhere too: every record's gradient of the whole table."""
    module, gradient = call.module, call.gradients[0]
    if gradient is None:
        return
    assert isinstance(module, nn.Embedding)
    tokens = _batch(module, call.inputs[0], records).reshape(records, -1)
    gradient = gradient.reshape(records, -1, module.embedding_dim)
    if module.padding_idx is not None:
        gradient = gradient.masked_fill((tokens == module.padding_idx)[:, :, None], 0.0)
    table = gradient.new_zeros(records, *module.weight.shape)
    yield module.weight, 0, table.scatter_add_(1, tokens[:, :, None].expand_as(gradient), gradient)


def rule_of(module: nn.Module) -> Rule:
    """The rule for a kind of module: exactly of that class, since a subclass may compute something else."""
    return _RULES[type(module)] if has_rule(module) else by_torch_func


def has_rule(module: nn.Module) -> bool:
    """True if a rule exists that need not call the module again."""
    return type(module) in _RULES and "forward" not in vars(module)


def _batch(module: nn.Module, inputs: Tensor, records: int) -> Tensor:
    if len(inputs) != records:
        raise InputError(
            f"model: a {type(module).__name__} saw {len(inputs)} rows for {records} records; dimension 0 must be the record"
        )
    return inputs


_RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    nn.Conv1d: convolution,
    nn.Conv2d: convolution,
    nn.LayerNorm: normalisation,
    nn.GroupNorm: normalisation,
    nn.RMSNorm: normalisation,
    nn.Embedding: embedding,
    nn.RNN: recurrent,
    nn.GRU: recurrent,
    nn.LSTM: recurrent,
    nn.RNNCell: recurrent,
    nn.GRUCell: recurrent,
    nn.LSTMCell: recurrent,
}
