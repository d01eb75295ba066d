"""Weights of a network as values by name: its parameters and persistent buffers, tied ones once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from dpltm.networks.shards import local


def persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Buffers that belong to the state of a network, in the order of its modules."""
    return {
        f"{place}.{name}" if place else name: value
        for place, module in model.named_modules()
        for name, value in module._buffers.items()
        if value is not None and name not in module._non_persistent_buffers_set
    }


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter and persistent buffer."""
    held = dict(model.named_parameters()) | persistent_buffers(model)
    return {name: local(value).clone() for name, value in held.items()}


@torch.no_grad()
def put(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Give every parameter its value, and buffers those that are there; KeyError for a missing or unknown name."""
    held = dict(model.named_parameters())
    buffers = {name: value for name, value in persistent_buffers(model).items() if name in values}
    if unknown := values.keys() - held.keys() - buffers.keys():
        raise KeyError(min(unknown))
    for name, value in (held | buffers).items():
        if value.shape != values[name].shape:
            raise ValueError(f"{name}: {tuple(values[name].shape)} is not {tuple(value.shape)}")
        value.copy_(values[name])


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A block with every module in evaluation mode; afterwards each is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
