"""Compaction: units that a mask leaves without use are removed for good, so that sparsity becomes a smaller network.

A unit (a neuron, or a channel of a convolution) all of whose outgoing weights are pruned changes no output, gets no
gradient, and yet costs noise on its live incoming weights. One without live inputs is a constant, trainable while its bias
lives: it stays. A unit feeds inputs of the next layer at its place: as many as a channel has pixels where it is flattened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpltm.networks import ModelSpec, build, resized
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
def compact(spec: ModelSpec, values: Mapping[str, Tensor], mask: Mask) -> Compact:
    """Remove every unit that the mask leaves without use, but for one of every layer; pruned ``values`` count as zero.
    Outputs, and gradients at what remains, equal the masked network's up to the rounding of shorter sums."""
    model = build(spec)
    put(model, values)
    mask.apply(model)
    live = {name: value.cpu() for name, value in mask.items()}
    weights = {name: value.double() for name, value in model.named_parameters()}
    layers = [(name, layer) for name, layer in model.named_children() if isinstance(layer, (nn.Linear, nn.Conv2d))]
    kept_units = {layers[-1][0]: torch.ones(len(layers[-1][1].weight), dtype=torch.bool)}
    for (name, layer), (next_name, _) in zip(layers[-2::-1], layers[:0:-1], strict=True):
        reached = _by_input(live[f"{next_name}.weight"], len(layer.weight))[kept_units[next_name]]
        kept_units[name] = reached.any(2).any(0)
        kept_units[name][0] |= not bool(kept_units[name].any())
    places = {name: torch.arange(value.numel()).view(value.shape) for name, value in weights.items()}
    before = None
    for name, _ in layers:
        weight = places[f"{name}.weight"][kept_units[name]]
        if before is not None:
            used = _by_input(weight, len(kept_units[before]))[:, kept_units[before]]
            weight = used.reshape(len(weight), -1, *weight.shape[2:])
        places |= {f"{name}.weight": weight, f"{name}.bias": places[f"{name}.bias"][kept_units[name]]}
        before = name
    smaller = resized(spec, [int(kept_units[name].sum()) for name, _ in layers[:-1]])
    compacted = build(smaller)
    put(compacted, {name: weights[name].flatten()[at].float() for name, at in places.items()})
    new_mask = Mask({name: live[name].flatten()[at] for name, at in places.items()})
    return Compact(smaller, compacted, new_mask, {name: at.flatten() for name, at in places.items()})


def _by_input(weight: Tensor, units: int) -> Tensor:
    """By the units of the layer before it, ``(outputs, units, inputs of each)``."""
    return weight.reshape(len(weight), units, -1)
