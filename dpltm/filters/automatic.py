"""Automatic clipping (Bu, Wang, Zha, Karypis 2023): no threshold to tune. Certified bound: C.

AUTO-V, here ``normalize``, makes every gradient one of norm C; AUTO-S, here ``auto``, adds gamma = 0.01 to the norm, so
that small gradients stay small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from dpltm.filters.clip import NormBounded
from dpltm.filters.descriptor import CLIP_NORM, FilterDescriptor

if TYPE_CHECKING:
    from torch import Tensor

NO_DIRECTION = 1e-30
"""A gradient of a smaller norm counts as zero where it would be divided by its norm: it has no direction to speak of."""

GAMMA = 0.01
"""The paper's stability constant."""


@dataclass(frozen=True)
class Automatic(NormBounded):
    """Radial filter g -> C g / (norm(g) + gamma), C > 0; gamma 0 normalises, but norms below 1e-30 count as zero."""

    gamma: float = GAMMA
    kind: ClassVar[Literal["radial"]] = "radial"

    def factor(self, norm: Tensor) -> Tensor:
        divisor = norm + self.gamma
        factor = norm.new_full(norm.shape, self.clip_norm) / divisor.clamp_min(NO_DIRECTION)
        return factor.masked_fill(divisor < NO_DIRECTION, 0.0)

    def __str__(self) -> str:
        return (
            f"auto(C={self.clip_norm:g}, gamma={self.gamma:g})" if self.gamma else f"normalize(C={self.clip_norm:g})"
        )


def _normalize(clip_norm: float) -> Automatic:
    return Automatic(clip_norm, gamma=0.0)


AUTO = FilterDescriptor(
    "auto",
    "Every gradient divided by its norm and a little more, so that small ones stay small: AUTO-S.",
    "Bu, Wang, Zha, Karypis 2023",
    (CLIP_NORM,),
    Automatic,
)
NORMALIZE = FilterDescriptor(
    "normalize", "Every gradient scaled to norm C: AUTO-V.", "Bu, Wang, Zha, Karypis 2023", (CLIP_NORM,), _normalize
)
