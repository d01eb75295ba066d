"""Changes: a network as pretrained weights, and what is added to them. A ticket of the change prunes none of the former.

A mask makes pruned weights zero. Of a network that was trained before, that takes away what it knows. Of its change, it only
says which coordinates stay as they were: the sparse update of fine-tuning.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from dpltm.errors import InputError, did_you_mean
from dpltm.networks.state import layer_at

LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding)
"""Layers that are linear in their weights: the layer of a sum of weights is the sum of both layers."""


class Changed(nn.Module):
    """A layer as it was, frozen, and its change, which starts at zero: their outputs are added."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.start, self.change = layer, copy.deepcopy(layer)
        self.start.requires_grad_(False)
        with torch.no_grad():
            for value in self.change.parameters():
                value.zero_()

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.start(x) + self.change(x)
        return total


def changes_of(model: nn.Module, layers: str | Sequence[str] = "*") -> nn.Module:
    """Return a copy in which linear layers are ``Changed``: it computes the same, and what is trained is the change.

    Weights are then called ``NAME.start.weight`` and ``NAME.change.weight``. Other layers stay what they are.

    Args:
        model: as it was trained before.
        layers: patterns of names of layers (``fnmatch``); leave out a new head.

    Raises:
        InputError: a pattern that no linear layer has a name like, or a layer that shares a parameter.
    """
    copied = copy.deepcopy(model)
    found = {name: part for name, part in copied.named_modules() if type(part) in LINEAR}
    chosen = set[str]()
    for pattern in [layers] if isinstance(layers, str) else layers:
        alike = {name for name in found if fnmatchcase(name, pattern)}
        if not alike:
            raise InputError(
                f"`layers`: no linear layer has a name like {pattern!r:.80}{did_you_mean(pattern, found)}"
            )
        chosen |= alike
    names = [(id(value), name) for name, value in copied.named_parameters(remove_duplicate=False)]
    for name in sorted(chosen):
        for value in found[name].parameters():
            tied = [where for key, where in names if key == id(value)]
            if len(tied) > 1:
                raise InputError(f"`layers`: {tied[0]} and {tied[1]} are one parameter; leave {name} out")
    if "" in chosen:
        return Changed(copied)
    for name in chosen:
        place, _, last = name.rpartition(".")
        setattr(layer_at(copied, place), last, Changed(found[name]))
    return copied
