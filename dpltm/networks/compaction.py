"""Compaction: units that a mask leaves without use are removed for good, so that sparsity becomes a smaller network.

A unit (a neuron, or a channel of a convolution) all of whose outgoing weights are pruned changes no output, gets no
gradient, and yet costs noise on its live incoming weights. One without live inputs is a constant, trainable while its bias
lives: it stays, unless training is over, when the constant can be folded into biases behind it.

A network of a kind is a chain of layers: a unit feeds the inputs of the next layer at its place, one, or as many as a
channel has pixels where it is flattened. Activations and maxima in between leave a constant one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpltm.networks import ModelSpec, build, renamed
from dpltm.networks.masks import Mask
from dpltm.networks.state import put


@dataclass(frozen=True)
class Compact:
    """A smaller network that computes what a masked one does, and the ``places`` of its values in the original."""

    spec: ModelSpec
    model: nn.Module
    mask: Mask
    places: Mapping[str, Tensor]


@torch.no_grad()
def compact(spec: ModelSpec, values: Mapping[str, Tensor], mask: Mask, fold: bool = False) -> Compact:
    """Remove every unit that the mask leaves without use; one of every layer stays, so that there is a network.

    Args:
        values: weights of the network, by parameter; pruned ones count as zero, whatever they hold.
        fold: whether units without live inputs go too: their constants are added to the biases of the layer behind, and can
            be trained no more. Such a unit stays in front of a layer that pads with zeros, and where its constant, or what
            it adds, is not finite.

    Guarantees:
        Outputs equal the masked network's up to the rounding of shorter sums. So do gradients at the coordinates that
        remain, unless units were folded; those that were removed had gradient zero. Biases that took a constant in are
        live, and no longer what they were at their places.
    """
    model = build(spec)
    put(model, values)
    mask.apply(model)
    live = {name: value.cpu() for name, value in mask.items()}
    weights = {name: value.double() for name, value in model.named_parameters()}
    layers = [(name, layer) for name, layer in model.named_children() if isinstance(layer, (nn.Linear, nn.Conv2d))]
    if fold:
        for (name, layer), (next_name, next_layer) in itertools.pairwise(layers):
            if not any(getattr(next_layer, "padding", ())):
                constants = _constants(model, name, weights[f"{name}.bias"])
                _fold(constants, live, weights, name, next_name, len(layer.weight))
    kept = {layers[-1][0]: torch.ones(len(layers[-1][1].weight), dtype=torch.bool)}
    for (name, layer), (next_name, _) in zip(layers[-2::-1], layers[:0:-1], strict=True):
        behind = _by_input(live[f"{next_name}.weight"], len(layer.weight))[kept[next_name]]
        kept[name] = behind.any(2).any(0)
        kept[name][0] |= not bool(kept[name].any())
    places = {name: torch.arange(value.numel()).view(value.shape) for name, value in weights.items()}
    before = None
    for name, _ in layers:
        weight = places[f"{name}.weight"][kept[name]]
        if before is not None:
            used = _by_input(weight, len(kept[before]))[:, kept[before]]
            weight = used.reshape(len(weight), -1, *weight.shape[2:])
        places |= {f"{name}.weight": weight, f"{name}.bias": places[f"{name}.bias"][kept[name]]}
        before = name
    smaller = renamed(spec, {name: tuple(at.shape) for name, at in places.items()})
    compacted = build(smaller)
    put(compacted, {name: weights[name].flatten()[at].float() for name, at in places.items()})
    new_mask = Mask({name: live[name].flatten()[at] for name, at in places.items()})
    return Compact(smaller, compacted, new_mask, {name: at.flatten() for name, at in places.items()})


def _by_input(weight: Tensor, units: int) -> Tensor:
    """A layer's weight, or its mask, by the units of the layer before it, ``(outputs, units, inputs of each)``."""
    return weight.reshape(len(weight), units, -1)


def _constants(model: nn.Module, name: str, bias: Tensor) -> Tensor:
    """What comes through the units of a layer where they have no live inputs, ``(units,)``."""
    children = list(model.named_children())
    start = [child for child, _ in children].index(name)
    for _, layer in children[start + 1 :]:
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            return bias
        if isinstance(layer, (nn.ReLU, nn.Tanh)):
            bias = layer(bias)
    return bias


def _fold(
    constants: Tensor, live: dict[str, Tensor], weights: dict[str, Tensor], name: str, next_name: str, units: int
) -> None:
    """Add the constants of units without live inputs to the biases behind, and prune what they feed; in place."""
    behind = f"{next_name}.weight"
    outgoing = _by_input(weights[behind], units)
    shifts = outgoing.sum(2) * constants
    folded = ~live[f"{name}.weight"].flatten(1).any(1) & _by_input(live[behind], units).any(2).any(0)
    folded &= shifts.isfinite().all(0)
    shift = shifts[:, folded].sum(1)
    weights[f"{next_name}.bias"] = weights[f"{next_name}.bias"] + shift
    live[f"{next_name}.bias"] = live[f"{next_name}.bias"] | (shift != 0)
    fed = folded[:, None].expand(outgoing.shape).reshape(weights[behind].shape)
    live[behind] = live[behind] & ~fed
    weights[behind] = weights[behind].masked_fill(fed, 0.0)
