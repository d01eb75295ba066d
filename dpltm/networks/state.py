"""Weights of a network as values by name, tied ones once; and what else its modules could keep something of records in."""

from __future__ import annotations

import contextlib
import hashlib
import random
import struct
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpltm.errors import InputError
from dpltm.networks.full_precision import full_precision


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
    tensors = dict(model.named_parameters()) | persistent_buffers(model)
    return {name: value.detach().clone() for name, value in tensors.items()}


@torch.no_grad()
def put(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Give every parameter its value, and buffers those that are there; KeyError for a missing or unknown name."""
    parameters = dict(model.named_parameters())
    buffers = {name: value for name, value in persistent_buffers(model).items() if name in values}
    if unknown := values.keys() - parameters.keys() - buffers.keys():
        raise KeyError(min(unknown))
    for name, value in (parameters | buffers).items():
        if value.shape != values[name].shape:
            raise ValueError(f"{name}: {tuple(values[name].shape)} is not {tuple(value.shape)}")
        value.copy_(values[name])


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A block of full precision with every module in evaluation mode; afterwards each is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with full_precision():
            yield
    finally:
        for module, training in modes:
            module.training = training


OF_PYTORCH = frozenset(vars(nn.Module()))
"""Attributes that PyTorch keeps in every module for itself, which none works without."""

HIDDEN = OF_PYTORCH | {*dir(nn.Module)}
"""Those, and names of methods: as attributes, by which PyTorch's own functions look layers up, these hide a layer."""


def check_names(model: nn.Module, where: str) -> None:
    """Raise InputError for a layer with the name of what every module of PyTorch has."""
    modules = vars(model).get("_modules", {"_modules": None})
    if reserved := sorted(HIDDEN & set(modules.keys())):  # of scripted modules a list
        raise InputError(f"{where} has a layer named `{reserved[0]}`, which PyTorch needs for itself; rename it")
    for child in modules.values():
        if child is not None:
            check_names(child, where)


_OWN = {*OF_PYTORCH, "_flat_weights", "_flat_weight_refs"}


def attributes_of(holder: object) -> dict[str, Any]:
    """Attributes of a module, a function or another object, beside parameters, buffers, modules, and PyTorch's own."""
    return {name: value for name, value in getattr(holder, "__dict__", {}).items() if name not in _OWN}


def state_of(holder: object) -> dict[str, object]:
    """State in which it could keep something of the records: tensors, weights among them, arrays, numbers, collections."""
    tensors = {**holder._buffers, **holder._parameters} if isinstance(holder, nn.Module) else {}
    return {name: _content(value, {}) for name, value in (*attributes_of(holder).items(), *tensors.items())}


@contextlib.contextmanager
def unwritten(model: nn.Module) -> Iterator[None]:
    """A block of passes over private records; InputError where they write into weights or buffers, which would leave with
    the network. What is written through ``data``, in its place, only a trial sees."""

    def versions() -> list[tuple[int, int, int]]:
        tensors = [value for value in (*model.parameters(), *model.buffers()) if value.layout == torch.strided]
        return [(id(value), value.data_ptr(), value._version) for value in tensors]

    before = versions()
    yield
    if versions() != before:
        raise InputError("model: a pass wrote into weights or buffers, past the ledger; use a module without state")


def states_of(holder: object) -> dict[str, object]:
    """The same of all modules of one, by their names in it."""
    parts = holder.named_modules() if isinstance(holder, nn.Module) else (("", holder),)
    return {
        f"{place}.{name}".removeprefix("."): value for place, part in parts for name, value in state_of(part).items()
    }


def _content(value: object, met: dict[int, object]) -> object:
    """A value by which it is seen that something changed; ``met`` are the objects that it was found in."""
    if id(value) in met:
        return None
    met = {**met, id(value): value}
    if isinstance(value, Tensor):  # a version tells nothing of what is written through ``data``
        if value.layout != torch.strided:
            return id(value), value._version
        return id(value), value._version, _bytes(value.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    if isinstance(value, np.ndarray):
        return id(value), repr(value.tolist()) if value.dtype.hasobject else _bytes(value)
    if isinstance(value, (int, float, str, bytes)) or value is None:
        return repr(value)
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, (np.random.Generator, np.random.RandomState)):
        bits = value.bit_generator if isinstance(value, np.random.Generator) else value._bit_generator
        return _content(bits.state, met)
    if isinstance(value, Mapping):
        return [(repr(key), _content(part, met)) for key, part in value.items()]
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return [_content(part, met) for part in value]
    # an object of a library, such as a trainer, is not entered: it may hold all records, and counts its calls
    entered = isinstance(value, (SimpleNamespace, nn.Module)) or (is_dataclass(value) and hasattr(value, "__dict__"))
    return id(value), _content(vars(value), met) if entered else None


def _bytes(values: np.ndarray) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).digest()


def pack(mask: Tensor) -> np.ndarray:
    """Bits of a boolean tensor in row-major order, eight to a byte, most significant first."""
    return np.packbits(mask.numpy().reshape(-1))


def unpack(bits: np.ndarray, like: Tensor) -> Tensor:
    """Undo :func:`pack`, to the shape of ``like``."""
    return torch.from_numpy(np.unpackbits(bits, count=like.numel()).astype(bool)).view_as(like)


def content_id(tensors: Mapping[str, np.ndarray]) -> str:
    """SHA-256 (hex) over names, shapes and little-endian bytes, in order of name."""
    digest = hashlib.sha256()
    for name in sorted(tensors, key=str.encode):
        value = tensors[name]
        data = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<")).tobytes()
        text = name.encode()
        digest.update(struct.pack("<Q", len(text)) + text)
        digest.update(struct.pack(f"<{value.ndim + 1}Q", value.ndim, *value.shape))
        digest.update(struct.pack("<Q", len(data)) + data)
    return digest.hexdigest()
