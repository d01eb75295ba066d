"""Networks made from the layers that a kind names. This is where torch comes in; ``dpltm.networks`` goes without it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

import torch
from torch import nn

from dpltm.networks import layers as own
from dpltm.networks.kind import LayerSpec


def make(layers: Iterable[LayerSpec], tanh: bool, seed: int | None) -> nn.Sequential:
    """The network of these layers.

    Args:
        layers: in order.
        tanh: whether tanh stands in for ReLU.
        seed: of Glorot normal weights; None for whatever weights.
    """
    # torch initialises what it makes, from its global state; skip_init would not, but imports for half a second
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        modules = OrderedDict((one.name, _class(one)(*one.arguments, **one.options)) for one in layers)
    if tanh:
        modules = OrderedDict(
            (name.replace("relu", "tanh"), nn.Tanh() if isinstance(module, nn.ReLU) else module)
            for name, module in modules.items()
        )
    model = nn.Sequential(modules)
    if seed is not None:
        _initialise(model, torch.Generator().manual_seed(seed))
    return model


def _class(layer: LayerSpec) -> Callable[..., nn.Module]:
    if not isinstance(layer.module, str):
        return layer.module
    module_class: type[nn.Module] = getattr(own if hasattr(own, layer.module) else nn, layer.module)
    return module_class


def _initialise(model: nn.Module, generator: torch.Generator) -> None:
    """Glorot normal weights and zero biases; a single layer starts at zero."""
    linear = sum(parameter.ndim >= 2 for parameter in model.parameters()) == 1
    for parameter in model.parameters():
        if parameter.ndim >= 2 and not linear:
            nn.init.xavier_normal_(parameter, generator=generator)
        else:
            nn.init.zeros_(parameter)
