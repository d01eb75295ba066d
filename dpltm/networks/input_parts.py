"""What a module gets of records of several parts: each as it was given, whole numbers exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from dpltm.records.input_parts import InputPart, Parts


def apart(x: Tensor, parts: Parts) -> dict[str, Tensor] | tuple[Tensor, ...]:
    """Return the parts of scaled records ``(batch, values)``: by name, or, of a tuple, by place.

    Returns:
        Quantities as they are scaled, float32; whole numbers in the type that they were given in, for any values at all from
        0 to ``words`` - 1.
    """
    made = {part.name: _part(values, part) for part, values in zip(parts, pieces(x, parts), strict=True)}
    return tuple(made.values()) if parts[0].name.isdecimal() else made


def pieces(x: Tensor, parts: Parts) -> tuple[Tensor, ...]:
    """Return the values of each part in its shape, ``(batch, ...)``, scaled."""
    return tuple(
        values.unflatten(1, part.shape) if part.shape else values[:, 0]
        for part, values in zip(parts, x.split([part.size for part in parts], 1), strict=True)
    )


def _part(values: Tensor, part: InputPart) -> Tensor:
    if not part.words:
        return values
    whole = (values.double().nan_to_num() * (part.words - 1)).round().clamp(0, part.words - 1)
    return whole.to(_TYPES.get(part.dtype, torch.int64))


_TYPES = {name: getattr(torch, name) for name in ("bool", "uint8", "int8", "int16", "int32")} | dict.fromkeys(
    ("float16", "float32", "float64"), torch.float32
)
"""Types in which whole numbers reach a module; int64 for all others."""
