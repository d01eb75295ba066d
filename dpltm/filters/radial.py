"""What the radial filters share: a range of parameters, and gradients too small to have a direction."""

from __future__ import annotations

import torch
from torch import Tensor

from dpltm.errors import InputError

SMALLEST = 1e-6
"""Smallest parameter of a filter: below it float32 rounding of the products could not be covered by outward rounding."""

NO_DIRECTION = 1e-30
"""A gradient of a smaller norm counts as zero where a filter would divide by the norm: it has no direction to speak of."""


def check_parameter(option: str, value: float) -> None:
    """Raises InputError unless ``value`` lies between ``SMALLEST`` and its inverse."""
    if not SMALLEST <= value <= 1 / SMALLEST:
        raise InputError(f"{option}: {value} is not a number between {SMALLEST:g} and {1 / SMALLEST:g}")


def over_norm(numerator: Tensor, norm: Tensor) -> Tensor:
    """``numerator / norm``, and 0 where the norm is below ``NO_DIRECTION``."""
    return torch.where(norm < NO_DIRECTION, 0.0, numerator / norm.clamp_min(NO_DIRECTION))
