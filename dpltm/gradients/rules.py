"""Per-record gradients of a module's parameters from what it saw and the loss's gradient at what it gave.

One rule a kind of module; whatever has none goes through ``torch.func``. A rule yields a parameter, the number of a record,
and the gradients of that record and those that follow, ``(records, *shape)``, or flat in another order (``layout``); it goes
through all records in turn. What it was given for a record decides that record's rows, and nothing else does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpltm.errors import InputError
from dpltm.gradients import functional_rule, recurrent
from dpltm.gradients.calls import Call

Gradients = Iterator[tuple[Tensor, int, Tensor]]
Rule = Callable[[Call, int], Gradients]

PATCHES = 2**19
"""Most numbers in patches and gradients of the images that are taken at once: more would leave the cache before use."""

_Conv = nn.Conv1d | nn.Conv2d


def linear(call: Call, records: int) -> Gradients:
    """Linear on ``(batch, ..., in)``: the sum over positions of outer products."""
    module, gradient = call.module, call.gradients[0]
    if gradient is None:
        return
    assert isinstance(module, nn.Linear)
    rows = _batch(module, call.inputs[0], records).to(gradient.dtype).reshape(records, -1, module.in_features)
    gradient = gradient.reshape(records, -1, module.out_features)
    yield module.weight, 0, torch.bmm(gradient.transpose(1, 2), rows)
    if module.bias is not None:
        yield module.bias, 0, gradient.sum(1)


def convolution(call: Call, records: int) -> Gradients:
    """Conv1d and Conv2d: the outer products of output gradients and input patches, over positions (im2col)."""
    module, gradient = call.module, call.gradients[0]
    if gradient is None:
        return
    assert isinstance(module, _Conv)
    inputs = _batch(module, call.inputs[0], records).to(gradient.dtype)
    groups, channels = module.groups, module.in_channels // module.groups
    gradient = gradient.reshape(records * groups, module.out_channels // groups, -1).contiguous()
    patch = module.in_channels * math.prod(module.kernel_size)
    once = max(1, PATCHES // max(1, gradient.shape[-1] * patch + module.weight.numel()))
    start = 0
    for columns in _patches(module, inputs, min(once, records)):
        rows = gradient[start * groups : (start + len(columns)) * groups]
        if groups > 1:
            columns = columns.unflatten(2, (-1, groups, channels)).permute(0, 3, 1, 2, 4).flatten(0, 1).flatten(2)
        yield module.weight, start, torch.bmm(rows, columns).view(-1, module.weight.numel())
        start += once
    if module.bias is not None:
        yield module.bias, 0, gradient.sum(2).view(records, -1)


def layout(module: nn.Module, parameter: Tensor) -> Tensor | None:
    """Where a rule puts each coordinate of a parameter's gradient, in the order of the parameter; None if in that order."""
    if type(module) not in (nn.Conv1d, nn.Conv2d) or parameter.ndim < 3:
        return None
    order = torch.arange(parameter.numel(), device=parameter.device).view(parameter.shape).movedim(1, -1).flatten()
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))


def _patches(module: _Conv, inputs: Tensor, once: int) -> Iterator[Tensor]:
    """What the kernel sees at each position, ``(once, positions, patch)``, channels last within a patch, of some images.

    One dimension is unfolded after the other, the last one first: what is copied then are few long runs of memory. That is
    the same for all images; what is yielded is overwritten by those of the next.
    """
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


def normalisation(call: Call, records: int) -> Gradients:
    """LayerNorm, RMSNorm and GroupNorm: output gradients times what was normalised, summed over positions."""
    module, gradient = call.module, call.gradients[0]
    if gradient is None:
        return
    inputs = _batch(module, call.inputs[0], records).to(gradient.dtype)
    if isinstance(module, nn.GroupNorm):
        normal = functional.group_norm(inputs, module.num_groups, eps=module.eps)
        shape: tuple[int, ...] = (records, module.num_channels, -1)
        over = 2
    else:
        assert isinstance(module, (nn.LayerNorm, nn.RMSNorm))
        size = list(module.normalized_shape)
        if isinstance(module, nn.LayerNorm):
            normal = functional.layer_norm(inputs, size, eps=module.eps)
        else:
            normal = functional.rms_norm(inputs, size, eps=module.eps)
        shape, over = (records, -1, *size), 1
    if isinstance(module.weight, nn.Parameter):
        yield module.weight, 0, (gradient * normal).reshape(shape).sum(over)
    if isinstance(getattr(module, "bias", None), nn.Parameter):
        yield module.bias, 0, gradient.reshape(shape).sum(over)  # type: ignore[misc]


def embedding(call: Call, records: int) -> Gradients:
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
    return _RULES[type(module)] if has_rule(module) else functional_rule.gradients


def has_rule(module: nn.Module) -> bool:
    """Whether there is a rule that sees no need to call the module again."""
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
    nn.RNN: recurrent.gradients,
    nn.GRU: recurrent.gradients,
    nn.LSTM: recurrent.gradients,
    nn.RNNCell: recurrent.gradients,
    nn.GRUCell: recurrent.gradients,
    nn.LSTMCell: recurrent.gradients,
}
