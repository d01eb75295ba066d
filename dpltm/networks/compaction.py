"""Compaction: units that a mask leaves without use are removed for good, so that sparsity becomes a smaller network.

A unit (a neuron, or a channel of a convolution) all of whose outgoing weights are pruned changes no output, gets no
gradient, and yet costs noise on its live incoming weights. One without live inputs is a constant, trainable while its bias
lives: it stays, unless training is over, when the constant can be folded into biases behind it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpltm.errors import InputError, first_line
from dpltm.networks import ModelSpec, renamed
from dpltm.networks.masks import Mask
from dpltm.networks.state import layer_at
from dpltm.networks.unit_groups import NORMS, Coordinates, UnitGroup, Use, positions, unit_groups


@dataclass(frozen=True)
class Compact:
    """A smaller network that computes what a masked one does, and the ``places`` of its values in the original."""

    model: nn.Module
    mask: Mask
    places: Mapping[str, Tensor]


def compact(model: nn.Module, mask: Mask, example: Tensor, fold: bool = False) -> Compact:
    """Remove every unit that the mask leaves without use; ``model`` itself stays as it is.

    Its pruned weights count as zero, whatever they hold. The compact one is on its device, the mask on the CPU. Of
    ``example`` only shape and dtype matter. With ``fold`` units without live inputs go too: their constants are added
    to the biases of the layers that use them, and can be trained no more. Such a unit stays where a layer that uses it
    has no bias or pads with zeros, and where what lies between does not leave it a constant, by a try-out in
    evaluation mode.

    Guarantees:
        Outputs equal the masked network's up to the rounding of shorter sums. So do gradients at the coordinates that
        remain, unless units were folded; those that were removed had gradient zero. Biases that took a constant in are
        live, and no longer what they were at their places.

    Raises:
        InputError: a normalisation layer, whose statistics would change, a network that cannot be traced, or one in which
            something else looks at all units of a layer at once (it is tried out).
    """
    for name, module in model.named_modules():
        if isinstance(module, NORMS):
            raise InputError(
                f"model: {name} is a normalisation layer; with units removed its statistics would change, so it cannot be"
                " compacted"
            )
    masked, mask = copy.deepcopy(model).cpu(), Mask({name: mask[name].cpu() for name in mask})
    mask.apply(masked)
    try:
        if fold:
            masked, mask = _folded(masked, mask, example)
        smaller = _compacted(masked, mask, example)
        same = _same(masked, mask, smaller, example)
    except InputError:
        raise
    except Exception as error:  # the model's own code, or torch-pruning's on what it does not know
        raise InputError(f"model: cannot be compacted: {first_line(error)}") from error
    if not same:
        raise InputError(
            "model: cannot be compacted: with units removed it gives something else: something between its layers looks at"
            " all of them at once (a softmax, a norm, a mean)"
        )
    modes = {name: module.training for name, module in model.named_modules()}  # tracing leaves evaluation mode behind
    for name, module in smaller.model.named_modules():
        module.training = modes[name]
    smaller.model.to(next(model.parameters()).device)
    return smaller


def compact_spec(spec: ModelSpec, compacted: Compact) -> ModelSpec:
    """The network by name whose ``shapes()`` are those that ``compact`` made of the network of ``spec``."""
    return renamed(spec, {name: tuple(value.shape) for name, value in compacted.model.named_parameters()})


def _compacted(masked: nn.Module, mask: Mask, example: Tensor) -> Compact:
    places = positions(masked)
    while (unused := next(_without_use(places, mask, example), None)) is not None:
        group, units = unused
        group.remove(units)
    old_places = {name: value.detach().long().flatten() for name, value in places.named_parameters()}
    originals = dict(masked.named_parameters())
    smaller = copy.deepcopy(places).to(next(masked.parameters()).dtype)
    new_mask: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, value in smaller.named_parameters():
            value.copy_(originals[name].flatten()[old_places[name]].view(value.shape))
            new_mask[name] = mask[name].flatten()[old_places[name]].view(value.shape)
            value.requires_grad_(originals[name].requires_grad)
    return Compact(smaller, Mask(new_mask), old_places)


def _without_use(places: nn.Module, mask: Mask, example: Tensor) -> Iterator[tuple[UnitGroup, list[int]]]:
    """Units without a live outgoing weight; one unit of every layer stays, so that there is a network."""
    for group in unit_groups(places, example):
        unused = (_live(group.outgoing, mask, group.count) == 0).nonzero().squeeze(1).tolist()
        unused = unused[1:] if len(unused) == group.count else unused
        if unused:
            yield group, unused


def _live(side: Mapping[str, Coordinates], mask: Mask, count: int) -> Tensor:
    """Number of live weights of each unit on one side, ``(count,)``; biases do not count."""
    live_counts = torch.zeros(count, dtype=torch.long)
    for name, coordinates in side.items():
        if mask[name].ndim > 1:
            live_counts.index_add_(0, coordinates.units, mask[name].flatten()[coordinates.positions].long())
    return live_counts


@torch.no_grad()
def _same(masked: nn.Module, mask: Mask, smaller: Compact, example: Tensor) -> bool:
    """True if both give the same for made-up records, with made-up weights at live coordinates, in float64."""
    generator = torch.Generator().manual_seed(0)
    first, second = copy.deepcopy(masked).double().eval(), copy.deepcopy(smaller.model).double().eval()
    values = dict(second.named_parameters())
    for name, value in first.named_parameters():
        value.copy_(torch.randn(value.shape, generator=generator, dtype=torch.float64) * mask[name])
        values[name].copy_(value.flatten()[smaller.places[name]].view(values[name].shape))
    return _agree(first, second, _records(example, generator))


def _records(example: Tensor, generator: torch.Generator) -> Tensor:
    """Made-up records, in float64 unless they are whole numbers, such as indices: then zeros."""
    shape = (4, *example.shape[1:])
    if example.is_floating_point():
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    return torch.zeros(shape, dtype=example.dtype)


def _agree(first: nn.Module, second: nn.Module, x: Tensor) -> bool:
    one, other = first(x), second(x)
    if one.shape != other.shape or not bool(one.isfinite().all()):
        return False
    return torch.allclose(one, other, rtol=1e-9, atol=1e-9 * float(one.abs().max()))


# Folding: once what comes through a constant unit is in the biases behind it, its outgoing weights are pruned, and it is
# without use.


@torch.no_grad()
def _folded(masked: nn.Module, mask: Mask, example: Tensor) -> tuple[nn.Module, Mask]:
    """A network that computes the same, with its mask, in which units without live inputs are without use."""
    network = copy.deepcopy(masked).double().eval()
    groups = list(unit_groups(positions(masked), example))
    before = None
    while before is not network:  # what is folded can leave units behind it without live inputs
        before = network
        for group in groups:
            network, mask = _fold(network, mask, group, example)
    result = copy.deepcopy(masked)
    for value, new in zip(result.parameters(), network.parameters(), strict=True):
        value.copy_(new)
    return result, mask


def _fold(network: nn.Module, mask: Mask, group: UnitGroup, example: Tensor) -> tuple[nn.Module, Mask]:
    """The network with a layer's constants folded, as far as a try-out finds it the same; itself if there are none."""
    units = (_live(group.incoming, mask, group.count) == 0) & (_live(group.outgoing, mask, group.count) > 0)
    if not bool(units.any()) or not all(_takes_constants(layer_at(network, use.layer)) for use in group.uses):
        return network, mask
    tries = _tries(network, mask, example)
    constants = []
    for use in group.uses:
        low, high = _seen_range(tries, use)
        units[use.units[~(high - low <= 1e-12 * high.abs())]] = False  # NaN as well
        constants.append(high)
    if not bool(units.any()):
        return network, mask
    for tried, x in tries:
        if not _agree(tried, _with_constants(tried, group, units, constants), x):
            return network, mask
    folded = _with_constants(network, group, units, constants)
    return folded, _mask_of(network, folded, mask, group, units)


def _takes_constants(layer: nn.Module) -> bool:
    if not isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d)) or layer.bias is None:
        return False
    padding = getattr(layer, "padding", ())
    return padding == "valid" if isinstance(padding, str) else not any(padding)


def _tries(network: nn.Module, mask: Mask, example: Tensor) -> list[tuple[nn.Module, Tensor]]:
    """The network, and twice with made-up weights but biases of its own, each with records small and large."""
    generator = torch.Generator().manual_seed(0)
    tries = []
    for made_up in (False, True, True):
        tried = copy.deepcopy(network)
        for name, value in tried.named_parameters():
            if made_up and value.ndim > 1:
                value.copy_(torch.randn(value.shape, generator=generator, dtype=torch.float64) * mask[name])
        x = _records(example, generator)
        if x.is_floating_point():
            x *= torch.tensor([0.1, 1.0, 10.0, 100.0], dtype=x.dtype).view(-1, *[1] * (x.ndim - 1))
        tries.append((tried, x))
    return tries


def _seen_range(tries: list[tuple[nn.Module, Tensor]], use: Use) -> tuple[Tensor, Tensor]:
    """Least and largest value at each input of a use, over records, places and networks."""
    seen: list[Tensor] = []
    for tried, x in tries:
        layer = layer_at(tried, use.layer)
        channels = 1 if isinstance(layer, (nn.Conv1d, nn.Conv2d)) else -1
        hook = layer.register_forward_pre_hook(
            lambda _, inputs, c=channels: seen.append(inputs[0].movedim(c, -1).flatten(0, -2)[:, use.inputs])
        )
        tried(x)
        hook.remove()
    values = torch.cat(seen)
    return values.amin(0), values.amax(0)


def _with_constants(network: nn.Module, group: UnitGroup, units: Tensor, constants: list[Tensor]) -> nn.Module:
    """A copy with the constants of ``units`` added to the biases behind them, and the units pruned."""
    folded = copy.deepcopy(network)
    for use, values in zip(group.uses, constants, strict=True):
        layer = layer_at(folded, use.layer)
        assert isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d))
        assert layer.bias is not None
        chosen = units[use.units]
        inputs = use.inputs[chosen]
        layer.bias += layer.weight[:, inputs].reshape(len(layer.bias), len(inputs), -1).sum(2) @ values[chosen]
        layer.weight[:, inputs] = 0.0
    return folded


def _mask_of(before: nn.Module, after: nn.Module, mask: Mask, group: UnitGroup, units: Tensor) -> Mask:
    """The mask once ``units`` are folded: no weights behind them, and no bias pruned that took a constant in."""
    new_mask = dict(mask)
    for name, coordinates in group.outgoing.items():
        flat = new_mask[name].flatten()
        flat[coordinates.positions[units[coordinates.units]]] = False
        new_mask[name] = flat.view_as(new_mask[name])
    for (name, old), new in zip(before.named_parameters(), after.parameters(), strict=True):
        if old.ndim == 1:
            new_mask[name] |= old != new
    return Mask(new_mask)
