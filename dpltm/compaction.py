"""Compaction: units that a mask leaves without use are removed for good, so that sparsity becomes a smaller network.

A unit (a neuron, or a channel of a convolution) all of whose outgoing weights are pruned changes no output, gets no
gradient, and yet costs noise on its live incoming weights. One without live inputs is a constant, trainable while its bias
lives: it stays.

torch-pruning's dependency graph says what else goes with a unit. It is used on a network whose weights are their own
positions, so that what is left says where every weight came from.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpltm.errors import InputError, first_line
from dpltm.masks import Mask

_NORMS = (
    nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.instancenorm._InstanceNorm,
    nn.LocalResponseNorm,
)  # fmt: skip

_Units = nn.Linear | nn.Conv1d | nn.Conv2d


@dataclass(frozen=True)
class Compact:
    """A smaller network that computes what a masked one does.

    Attributes:
        model: the network, of the same modules with fewer units.
        mask: what is live in it.
        places: for every parameter, the flat positions in the original one that its values came from.
    """

    model: nn.Module
    mask: Mask
    places: Mapping[str, Tensor]


def compact(model: nn.Module, mask: Mask, example: Tensor) -> Compact:
    """Removes every unit that the mask leaves without use; ``model`` itself stays as it is.

    Args:
        model: its pruned weights count as zero, whatever they hold.
        mask: live coordinates.
        example: one batch of any records of the right shape; only shape and dtype matter.

    Returns:
        The compact network. Its outputs equal the masked one's up to the rounding of shorter sums, and so do its gradients
        at the coordinates that remain; those that were removed had gradient zero.

    Raises:
        InputError: a normalisation layer, whose statistics would change, a network that cannot be traced, or one in which
            something else looks at all units of a layer at once (it is tried out).
    """
    for name, module in model.named_modules():
        if isinstance(module, _NORMS):
            raise InputError(
                f"model: {name} is a normalisation layer; with units removed its statistics would change, so it cannot be"
                " compacted"
            )
    masked = copy.deepcopy(model)
    mask.apply(masked)
    try:
        found = _compacted(masked, mask, example)
        same = _same(masked, mask, found, example)
    except InputError:
        raise
    except Exception as error:  # the model's own code, or torch-pruning's on what it does not know
        raise InputError(f"model: cannot be compacted: {first_line(error)}") from error
    if not same:
        raise InputError(
            "model: cannot be compacted: with units removed it gives something else: something between its layers looks at"
            " all of them at once (a softmax, a norm, a mean)"
        )
    return found


def _compacted(masked: nn.Module, mask: Mask, example: Tensor) -> Compact:
    places = _positions(masked)
    while True:
        dead = next(_without_use(places, mask, _trace(places, example)), None)
        if dead is None:
            break
        dead.prune()
    found = {name: value.detach().long().flatten() for name, value in places.named_parameters()}
    originals = dict(masked.named_parameters())
    smaller = copy.deepcopy(places).to(next(masked.parameters()).dtype)
    kept: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, value in smaller.named_parameters():
            value.copy_(originals[name].flatten()[found[name]].view(value.shape))
            kept[name] = mask[name].flatten()[found[name]].view(value.shape)
            value.requires_grad_(originals[name].requires_grad)
    return Compact(smaller, Mask(kept), found)


@torch.no_grad()
def _same(masked: nn.Module, mask: Mask, found: Compact, example: Tensor) -> bool:
    """Whether both give the same for made-up records, with made-up weights at what is live, in float64."""
    generator = torch.Generator().manual_seed(0)
    first, second = copy.deepcopy(masked).double().eval(), copy.deepcopy(found.model).double().eval()
    values = dict(second.named_parameters())
    for name, value in first.named_parameters():
        value.copy_(torch.randn(value.shape, generator=generator, dtype=torch.float64) * mask[name])
        values[name].copy_(value.flatten()[found.places[name]].view(values[name].shape))
    shape = (4, *example.shape[1:])
    if example.is_floating_point():
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
    else:
        x = torch.zeros(shape, dtype=example.dtype)
    one, other = first(x), second(x)
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-9, atol=1e-9 * float(one.abs().max()))


def _positions(model: nn.Module) -> nn.Module:
    """A copy whose weights are their own flat positions, exact in float64."""
    found = copy.deepcopy(model).double()
    with torch.no_grad():
        for value in found.parameters():
            value.copy_(torch.arange(value.numel(), dtype=torch.float64).view(value.shape))
            value.requires_grad_(True)
    return found


def _trace(places: nn.Module, example: Tensor) -> Any:
    import torch_pruning

    inputs = torch.zeros(1, *example.shape[1:], dtype=torch.float64 if example.is_floating_point() else example.dtype)
    try:
        return torch_pruning.DependencyGraph().build_dependency(places, example_inputs=inputs)
    except Exception as error:  # whatever the model's own code raises
        raise InputError(f"model: cannot be traced for compaction: {first_line(error)}") from error


def _groups(places: nn.Module, graph: Any) -> Iterator[tuple[_Units, Any, list[tuple[_Units, Tensor, Tensor]]]]:
    """Every layer with units that others use: the layer, what removes its units, and who uses which unit at which input."""
    import torch_pruning as tp

    for module in places.modules():
        if isinstance(module, nn.Linear):
            remove = tp.prune_linear_out_channels
        elif isinstance(module, (nn.Conv1d, nn.Conv2d)) and module.groups == 1:
            remove = tp.prune_conv_out_channels
        else:
            continue
        count = len(module.weight)
        if count == 1:
            continue
        group = graph.get_pruning_group(module, remove, idxs=list(range(count)))
        users = []
        simple = True
        for item in group.items[1:]:
            target = item.dep.target.module
            if isinstance(target, (nn.Linear, nn.Conv1d, nn.Conv2d)):
                simple &= item.dep.handler in (tp.prune_linear_in_channels, tp.prune_conv_in_channels)
                simple &= getattr(target, "groups", 1) == 1
                users.append((target, torch.tensor(item.idxs), torch.tensor(item.root_idxs)))
            else:
                simple &= not any(True for _ in target.parameters())
        if users and simple:
            yield module, (lambda units, m=module, r=remove: graph.get_pruning_group(m, r, idxs=units)), users


def _live(module: _Units, places: nn.Module, mask: Mask) -> Tensor:
    """The mask of a module's weight as far as it is still there, ``(out, in, ...)``."""
    name = next(name for name, value in places.named_parameters() if value is module.weight)
    return mask[name].flatten()[module.weight.detach().long()]


def _without_use(places: nn.Module, mask: Mask, graph: Any) -> Iterator[Any]:
    """Groups of units without a live outgoing weight; one unit of every layer stays, so that there is a network."""
    for module, group_of, users in _groups(places, graph):
        used = torch.zeros(len(module.weight), dtype=torch.long)
        for user, inputs, units in users:
            alive = _live(user, places, mask).transpose(0, 1).flatten(1).any(1)[inputs]
            used.index_add_(0, units, alive.long())
        unused = (used == 0).nonzero().squeeze(1).tolist()
        unused = unused[1:] if len(unused) == len(used) else unused
        if unused:
            yield group_of(unused)
