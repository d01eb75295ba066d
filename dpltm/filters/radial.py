"""What the radial filters share: a range of parameters, and gradients too small to have a direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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


@dataclass(frozen=True)
class NormBounded:
    """What filters have in common whose output has norm C at most, whatever the number of live coordinates.

    Attributes:
        clip_norm: C, from ``SMALLEST`` to its inverse.
    """

    clip_norm: float
    nominal_bound: ClassVar[None] = None

    def __post_init__(self) -> None:
        check_parameter("`clip_norm`", self.clip_norm)

    def certified_bound(self, live: int) -> float:
        """C."""
        del live
        return self.clip_norm


def clip_factor(bound: float, norm: Tensor) -> Tensor:
    """min(1, ``bound`` / norm), of any shape; 1 at norm 0."""
    return torch.clamp(bound / norm.clamp_min(torch.finfo(norm.dtype).tiny), max=1.0)


def over_norm(numerator: Tensor, norm: Tensor) -> Tensor:
    """``numerator / norm``, and 0 where the norm is below ``NO_DIRECTION``."""
    return torch.where(norm < NO_DIRECTION, 0.0, numerator / norm.clamp_min(NO_DIRECTION))
