"""Tensors on disk: safetensors files read with every name, shape and dtype checked, packed masks, content ids."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import save_file
from safetensors.torch import load as load_tensors
from torch import Tensor

from dpltm.errors import ArtifactError
from dpltm.networks import Network
from dpltm.networks.kind import Shapes
from dpltm.networks.masks import Mask
from dpltm.networks.own_network import OwnNetwork, with_kind
from dpltm.networks.state import pack, unpack
from dpltm.tickets.files import read_bytes

_HEADER = 512  # room in a safetensors file for what its header says of one tensor, bytes


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file, readable as any other file of its folder (safetensors itself gives it to its owner)."""
    try:
        save_file({name: np.asarray(value, order="C") for name, value in tensors.items()}, path, metadata=metadata)
        path.chmod(0o644)
    except (SafetensorError, OSError) as error:
        raise ArtifactError(f"{path}: cannot be written: {error}; make room, or choose another place") from None


def read_tensors(
    path: Path,
    shapes: Shapes,
    dtype: str | None = None,
    others: Mapping[str, tuple[tuple[int, ...], str]] | None = None,
    metadata: int = 0,
) -> dict[str, np.ndarray]:
    """Return the tensors of a safetensors file, which must be exactly those of ``shapes``, all of ``dtype``, and ``others``.

    Args:
        dtype: None for a file of somebody else's, of any dtypes, whose values are returned as float32.
        metadata: bytes that its header may have for more than tensors.

    Raises:
        ArtifactError: a missing, oversized or malformed file, or any tensor missing, added, or of another shape or
            dtype; nothing larger than the expected size is read.
    """
    kind = dtype or "any dtype"
    wanted = {name: (tuple(shape), kind) for name, shape in shapes.items()}
    wanted |= others or {}
    expected = sum(math.prod(shape) * (np.dtype(kind).itemsize if dtype else 8) for shape, kind in wanted.values())
    data = read_bytes(path, expected + metadata + _HEADER * (len(wanted) + 1), expected if dtype else 0)
    try:
        tensors = load_tensors(data)
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, MemoryError, RuntimeError):
        raise ArtifactError(f"{path}: not a valid safetensors file") from None
    actual = {
        name: (tuple(value.shape), str(value.dtype).removeprefix("torch.") if dtype else kind)
        for name, value in tensors.items()
    }
    if actual != wanted:
        wrong = next(name for name in sorted({*actual, *wanted}) if actual.get(name) != wanted.get(name))
        raise ArtifactError(
            f"{path}: tensor {wrong!r:.80}: found {actual.get(wrong, 'none')!s:.80}, expected {wanted.get(wrong, 'none')}"
        )
    return {name: (tensors[name] if dtype else tensors[name].float()).numpy() for name in wanted}


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
    forms = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    places = {prefix: {name: join(prefix, name) for name in shapes} for prefix in prefixes}
    sizes = {place: (-(-forms[name].numel() // 8),) for names in places.values() for name, place in names.items()}
    packed = read_tensors(path, sizes, "uint8")
    masks = {}
    for prefix, names in places.items():
        mask = make({name: unpack(packed[place], forms[name]) for name, place in names.items()})
        for name, place in names.items():
            if not np.array_equal(pack(mask[name]), packed[place]):  # each mask has one form
                raise ArtifactError(f"{path}: mask {place!r}: padding bits are set")
            if name in mask.frozen and not bool(mask[name].all()):
                raise ArtifactError(f"{path}: mask {place!r}: prunes a parameter that is frozen")
        masks[prefix] = mask
    return masks


OUTPUTS = "outputs.safetensors"
"""File of the outputs on made-up records that a network of the user's own is known by."""


def read_weights(path: Path, network: Network, body: Any) -> tuple[Network, dict[str, Tensor]]:
    """Return a network as it was written, and its parameters and buffers, from a file that holds nothing else.

    Args:
        body: description of a network of the user's own, whose outputs lie beside the file.
    """
    buffers = None
    if isinstance(network, OwnNetwork):
        buffers, place = network.buffers, path.with_name(OUTPUTS)
        assert network.outputs is not None
        outputs = read_tensors(place, {"outputs": tuple(network.outputs.shape)}, "float32")["outputs"]
        network = network.with_outputs(str(place), body, torch.from_numpy(outputs))
    arrays = read_tensors(path, network.shapes(), "float32", others=buffers)
    values = {name: torch.from_numpy(value) for name, value in arrays.items()}
    return with_kind(network, values), values


def write_outputs(folder: Path, network: Network) -> None:
    """Write the outputs of a network of the user's own; nothing for a kind by name."""
    if isinstance(network, OwnNetwork):
        assert network.outputs is not None
        write_tensors(folder / OUTPUTS, {"outputs": network.outputs.numpy()})


def join(prefix: str, name: str) -> str:
    """``PREFIX/NAME``, or the name alone."""
    return f"{prefix}/{name}" if prefix else name
