"""Clipping (Abadi et al. 2016): g min(1, C / norm). Certified bound: C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from dpltm.filters.descriptor import CLIP_NORM, FilterDescriptor

if TYPE_CHECKING:
    from torch import Tensor

TINY = 2.0**-126
"""Smallest normal number of float32: every C divided by it is above 1."""


@dataclass(frozen=True)
class NormBounded:
    """Base of filters whose output has norm C at most, ``clip_norm`` from 1e-6 to its inverse, whatever the network."""

    clip_norm: float
    nominal_bound: ClassVar[None] = None

    def __post_init__(self) -> None:
        CLIP_NORM.check(self.clip_norm)

    def certified_bound(self, live: int) -> float:
        del live
        return self.clip_norm


def clip_factor(bound: float, norm: Tensor) -> Tensor:
    """min(1, ``bound`` / norm), of any shape; 1 at norm 0."""
    return (bound / norm.clamp_min(TINY)).clamp(max=1.0)


@dataclass(frozen=True)
class Clip(NormBounded):
    """Radial filter g -> g min(1, C / norm(g))."""

    kind: ClassVar[Literal["radial"]] = "radial"

    def factor(self, norm: Tensor) -> Tensor:
        return clip_factor(self.clip_norm, norm)

    def __str__(self) -> str:
        return f"clip(C={self.clip_norm:g})"


CLIP = FilterDescriptor("clip", "Every gradient clipped to norm C.", "Abadi et al. 2016", (CLIP_NORM,), Clip)
