"""Tensors on disk: safetensors files read with every name, shape and dtype checked, packed masks, content ids."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save_file
from safetensors.torch import load as load_tensors
from torch import Tensor

from dpltm.errors import ArtifactError
from dpltm.networks import Network
from dpltm.networks.kind import Shapes
from dpltm.networks.masks import Mask
from dpltm.networks.own_network import OwnNetwork
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
    path: Path, shapes: Shapes, dtype: str, others: Mapping[str, tuple[tuple[int, ...], str]] | None = None
) -> dict[str, np.ndarray]:
    """Return the tensors of a safetensors file, which must be exactly those of ``shapes``, all of ``dtype``, and ``others``.

    Raises:
        ArtifactError: a missing, oversized or malformed file, or any tensor missing, added, or of another shape or
            dtype; nothing larger than the expected size is read.
    """
    wanted = {name: (tuple(shape), dtype) for name, shape in shapes.items()}
    wanted |= others or {}
    expected = sum(math.prod(shape) * np.dtype(kind).itemsize for shape, kind in wanted.values())
    return _read(path, load_arrays, wanted, expected, expected, lambda value: (value.shape, value.dtype.name))


def read_any(path: Path, shapes: Shapes, metadata: int = 0) -> dict[str, Tensor]:
    """Return the tensors of somebody else's safetensors file, which must be exactly those of ``shapes``, of any dtype.

    It may have so many bytes of ``metadata``. Errors as :func:`read_tensors`.
    """
    most = 8 * sum(math.prod(shape) for shape in shapes.values())
    return _read(path, load_tensors, dict(shapes), 0, most + metadata, lambda value: tuple(value.shape))


def _read(
    path: Path,
    parse: Callable[[bytes], dict[str, Any]],
    wanted: Mapping[str, object],
    least: int,
    most: int,
    kind: Callable[[Any], object],
) -> dict[str, Any]:
    """Return the tensors in a file, beside whose header there are so many bytes; ``wanted`` is the kind of each."""
    data = read_bytes(path, most + _HEADER * (len(wanted) + 1), least)
    try:
        tensors = parse(data)
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, MemoryError):
        raise ArtifactError(f"{path}: not a valid safetensors file") from None
    actual = {name: kind(value) for name, value in tensors.items()}
    if actual != wanted:
        wrong = next(name for name in sorted({*actual, *wanted}) if actual.get(name) != wanted.get(name))
        raise ArtifactError(
            f"{path}: tensor {wrong!r:.80}: found {actual.get(wrong, 'none')!s:.80}, expected {wanted.get(wrong, 'none')}"
        )
    return {name: tensors[name] for name in wanted}


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


def read_weights(path: Path, network: Network) -> dict[str, Tensor]:
    """Return parameters and buffers of a network, from a file that holds them and nothing else."""
    buffers = network.buffers if isinstance(network, OwnNetwork) else None
    values = read_tensors(path, network.shapes(), "float32", others=buffers)
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
    assert network.outputs is not None
    values = read_tensors(folder / OUTPUTS, {"outputs": tuple(network.outputs.shape)}, "float32")
    return network.with_outputs(str(folder / OUTPUTS), body, torch.from_numpy(values["outputs"]))


def join(prefix: str, name: str) -> str:
    """``PREFIX/NAME``, or the name alone."""
    return f"{prefix}/{name}" if prefix else name
