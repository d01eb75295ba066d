"""Per-record gradients of a module's parameters from what it saw and the loss's gradient at what it gave.

One rule a kind of module; whatever has none goes through ``torch.func``. A rule yields pairs of a parameter and its
gradients, ``(batch, *shape)``; what it was given for a record decides that record's rows, and nothing else does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpltm.errors import InputError
from dpltm.gradients import functional_rule, recurrent
from dpltm.gradients.calls import Call

Gradients = Iterator[tuple[Tensor, Tensor]]
Rule = Callable[[Call, int], Gradients]

_Conv = nn.Conv1d | nn.Conv2d
_Norm = nn.LayerNorm | nn.GroupNorm | nn.RMSNorm


def linear(call: Call, records: int) -> Gradients:
    """Linear on ``(batch, ..., in)``: the sum over positions of outer products."""
    module, gradient = call.module, call.gradients[0]
    if gradient is None:
        return
    assert isinstance(module, nn.Linear)
    rows = _batch(module, call.inputs[0], records).to(gradient.dtype).reshape(records, -1, module.in_features)
    gradient = gradient.reshape(records, -1, module.out_features)
    yield module.weight, torch.bmm(gradient.transpose(1, 2), rows)
    if module.bias is not None:
        yield module.bias, gradient.sum(1)


def convolution(call: Call, records: int) -> Gradients:
    """Conv1d and Conv2d: the outer products of output gradients and input patches, over positions (im2col)."""
    module, gradient = call.module, call.gradients[0]
    if gradient is None:
        return
    assert isinstance(module, _Conv)
    inputs = _batch(module, call.inputs[0], records).to(gradient.dtype)
    if module.padding_mode != "zeros" or module.padding == "same":
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        inputs = functional.pad(inputs, module._reversed_padding_repeated_twice, mode=mode)
        padding: tuple[int, ...] = (0,) * len(module.kernel_size)
    else:
        padding = (0,) * len(module.kernel_size) if module.padding == "valid" else tuple(module.padding)  # type: ignore[arg-type]
    flat = isinstance(module, nn.Conv1d)  # as an image of height 1
    kernel, dilation, stride = (
        (1, *size) if flat else size for size in (module.kernel_size, module.dilation, module.stride)
    )
    patches = functional.unfold(
        inputs.unsqueeze(2) if flat else inputs,
        kernel,
        dilation=dilation,
        padding=(0, *padding) if flat else padding,
        stride=stride,
    )
    groups, positions = module.groups, patches.shape[2]
    columns = patches.reshape(records * groups, -1, positions)
    gradient = gradient.reshape(records, module.out_channels, -1)
    rows = gradient.reshape(records * groups, -1, positions)
    yield module.weight, torch.bmm(rows, columns.transpose(1, 2)).reshape(records, *module.weight.shape)
    if module.bias is not None:
        yield module.bias, gradient.sum(2)


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
        yield module.weight, (gradient * normal).reshape(shape).sum(over)
    if isinstance(getattr(module, "bias", None), nn.Parameter):
        yield module.bias, gradient.reshape(shape).sum(over)  # type: ignore[misc]


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
    yield module.weight, table.scatter_add_(1, tokens[:, :, None].expand_as(gradient), gradient)


def rule_of(module: nn.Module) -> Rule:
    """The rule for a kind of module: exactly of that class, since a subclass may compute something else."""
    return _RULES.get(type(module), functional_rule.gradients)


def has_rule(module: nn.Module) -> bool:
    """Whether there is a rule that sees no need to call the module again."""
    return type(module) in _RULES


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
