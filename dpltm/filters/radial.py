"""What the radial filters share: a range of parameters, and gradients too small to have a direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpltm.filters.descriptor import CLIP_NORM

if TYPE_CHECKING:
    from torch import Tensor

NO_DIRECTION = 1e-30
"""A gradient of a smaller norm counts as zero where a filter would divide by the norm: it has no direction to speak of."""

TINY = 2.0**-126
"""Smallest normal number of float32: every C divided by it is above 1."""


@dataclass(frozen=True)
class NormBounded:
    """What filters have in common whose output has norm C at most, whatever the number of live coordinates.

    Attributes:
        clip_norm: C, from 1e-6 to its inverse.
    """

    clip_norm: float
    nominal_bound: ClassVar[None] = None

    def __post_init__(self) -> None:
        CLIP_NORM.check(self.clip_norm)

    def certified_bound(self, live: int) -> float:
        """C."""
        del live
        return self.clip_norm


def clip_factor(bound: float, norm: Tensor) -> Tensor:
    """min(1, ``bound`` / norm), of any shape; 1 at norm 0."""
    return (bound / norm.clamp_min(TINY)).clamp(max=1.0)


def over_norm(numerator: Tensor, norm: Tensor) -> Tensor:
    """``numerator / norm``, and 0 where the norm is below ``NO_DIRECTION``."""
    return (numerator / norm.clamp_min(NO_DIRECTION)).masked_fill(norm < NO_DIRECTION, 0.0)
