"""Tensors on disk: safetensors files read with every name, shape and dtype checked, packed masks, content ids."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load as load_bytes
from safetensors.numpy import save_file
from safetensors.torch import load as load_tensors
from torch import Tensor

from dpltm.errors import ArtifactError
from dpltm.networks import Network
from dpltm.networks.kind import Shapes
from dpltm.networks.layout import Buffer
from dpltm.networks.masks import Mask
from dpltm.networks.own_network import OwnNetwork
from dpltm.networks.state import pack
from dpltm.tickets.files import read_bytes

NO_BUFFERS: Mapping[str, Buffer] = {}

_SAID_BY_SAFETENSORS = re.compile(r"^.*I/O error: | \(os error \d+\)$")

_HEADER = 512  # room in a safetensors file for what its header says of one tensor, bytes


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file, readable as any other file of its folder (safetensors itself gives it to its owner)."""
    try:
        save_file({name: np.asarray(value, order="C") for name, value in tensors.items()}, path, metadata=metadata)
        path.chmod(0o644)
    except (SafetensorError, OSError) as error:
        why = _SAID_BY_SAFETENSORS.sub("", str(error))
        raise ArtifactError(f"{path}: cannot be written: {why}; make room, or choose another place") from None


def read_tensors(
    path: Path, shapes: Shapes, dtype: str, metadata: int = 0, others: Mapping[str, Buffer] = NO_BUFFERS
) -> dict[str, np.ndarray]:
    """Return the tensors of a safetensors file, which must be exactly those of ``shapes``, all of ``dtype``, and ``others``.

    Raises:
        ArtifactError: a missing, oversized or malformed file, or any tensor missing, added, or of another shape or
            dtype; nothing larger than the expected size is read.
    """
    wanted = {name: (tuple(shape), dtype) for name, shape in shapes.items()}
    wanted |= {name: (tensor.shape, tensor.dtype) for name, tensor in others.items()}
    expected = sum(math.prod(shape) * np.dtype(kind).itemsize for shape, kind in wanted.values())
    data = read_bytes(path, expected + _HEADER * (len(wanted) + 1) + metadata, expected)
    try:
        tensors = load_bytes(data)
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, MemoryError):
        raise ArtifactError(f"{path}: not a valid safetensors file") from None
    actual = {name: (value.shape, value.dtype.name) for name, value in tensors.items()}
    _check_same(path, actual, wanted)
    return {name: tensors[name] for name in wanted}


def read_any(path: Path, shapes: Shapes, metadata: int = 0) -> dict[str, Tensor]:
    """Return the tensors of somebody else's safetensors file, which must be exactly those of ``shapes``, of any dtype.

    Arguments, and errors, as :func:`read_tensors`.
    """
    most = 8 * sum(math.prod(shape) for shape in shapes.values())
    try:
        tensors = load_tensors(read_bytes(path, most + _HEADER * (len(shapes) + 1) + metadata))
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, MemoryError):
        raise ArtifactError(f"{path}: not a valid safetensors file") from None
    _check_same(path, {name: tuple(value.shape) for name, value in tensors.items()}, dict(shapes))
    return tensors


def _check_same(path: Path, actual: Mapping[str, object], wanted: Mapping[str, object]) -> None:
    if actual != wanted:
        wrong = next(name for name in sorted({*actual, *wanted}) if actual.get(name) != wanted.get(name))
        raise ArtifactError(
            f"{path}: tensor {wrong!r:.80}: found {actual.get(wrong, 'none')!s:.80}, expected {wanted.get(wrong, 'none')}"
        )


def unpack(packed: np.ndarray, shape: tuple[int, ...], path: Path, name: str) -> Tensor:
    """Return the boolean tensor that ``pack`` packed; padding bits must be zero, so that each mask has one form."""
    size = math.prod(shape)
    bits = np.unpackbits(packed)
    if bits[size:].any():
        raise ArtifactError(f"{path}: mask {name!r}: padding bits are set")
    return torch.from_numpy(bits[:size].astype(bool).reshape(shape))


def write_masks(path: Path, masks: Mapping[str, Mask]) -> None:
    """Write several masks into one file, parameter names behind ``PREFIX/`` (nothing before an empty prefix)."""
    write_tensors(
        path, {join(prefix, name): pack(value) for prefix, mask in masks.items() for name, value in mask.items()}
    )


def read_masks(
    path: Path, prefixes: Iterable[str], shapes: Shapes, make: Callable[[Mapping[str, Tensor]], Mask] = Mask
) -> dict[str, Mask]:
    """Return the masks that :func:`write_masks` wrote for parameters of ``shapes``, by their ``prefixes``.

    Args:
        make: makes a mask of its tensors. ArtifactError where it prunes what is frozen.
    """
    prefixes = tuple(prefixes)
    packed = read_tensors(
        path,
        {join(prefix, name): (-(-math.prod(shape) // 8),) for prefix in prefixes for name, shape in shapes.items()},
        "uint8",
    )
    masks = {
        prefix: make(
            {
                name: unpack(packed[join(prefix, name)], shape, path, join(prefix, name))
                for name, shape in shapes.items()
            }
        )
        for prefix in prefixes
    }
    for prefix, mask in masks.items():
        for name in mask.frozen:
            if not bool(mask[name].all()):
                raise ArtifactError(f"{path}: mask {join(prefix, name)!r}: prunes a parameter that is frozen")
    return masks


OUTPUTS = "outputs.safetensors"
"""File of the outputs on made-up records that a network of the user's own is known by."""


def buffers_of(network: Network) -> Mapping[str, Buffer]:
    """Return the buffers of a network, which lie beside its parameters."""
    return network.buffers if isinstance(network, OwnNetwork) else NO_BUFFERS


def read_weights(path: Path, network: Network) -> dict[str, Tensor]:
    """Return parameters and buffers of a network, from a file that holds them and nothing else."""
    values = read_tensors(path, network.shapes(), "float32", others=buffers_of(network))
    return {name: torch.from_numpy(value) for name, value in values.items()}


def write_outputs(folder: Path, network: Network) -> None:
    """Write the outputs of a network of the user's own; nothing for a kind by name."""
    if isinstance(network, OwnNetwork):
        assert network.outputs is not None
        write_tensors(folder / OUTPUTS, {"outputs": network.outputs.numpy()})


def with_outputs(folder: Path, network: Network, body: object) -> Network:
    """Return a network with the outputs that lie in a folder; itself if it is a kind by name."""
    if not isinstance(network, OwnNetwork):
        return network
    assert isinstance(body, dict)
    values = read_tensors(folder / OUTPUTS, {"outputs": network.output_shape}, "float32")
    return network.with_outputs(str(folder / OUTPUTS), body, torch.from_numpy(values["outputs"]))


def join(prefix: str, name: str) -> str:
    """``PREFIX/NAME``, or the name alone."""
    return f"{prefix}/{name}" if prefix else name
