"""Clipping (Abadi et al. 2016): g min(1, C / norm). Certified bound: C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from dpltm.filters.descriptor import CLIP_NORM, FilterDescriptor
from dpltm.filters.radial import NormBounded, clip_factor

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Clip(NormBounded):
    """Radial filter g -> g min(1, C / norm(g)).

    Attributes:
        clip_norm: C, from 1e-6 to its inverse.
    """

    kind: ClassVar[Literal["radial"]] = "radial"

    def factor(self, norm: Tensor) -> Tensor:
        """What a gradient of each norm is multiplied by, ``(batch,)`` to ``(batch,)``; 1 at norm 0."""
        return clip_factor(self.clip_norm, norm)

    def __str__(self) -> str:
        return f"clip(C={self.clip_norm:g})"


CLIP = FilterDescriptor("clip", "Every gradient clipped to norm C.", "Abadi et al. 2016", (CLIP_NORM,), Clip)
