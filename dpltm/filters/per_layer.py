"""Per-layer clipping (McMahan et al. 2018) of L layers to C_l = C / sqrt(L). Certified bound: sqrt(sum C_l^2) = C."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from dpltm.filters.clip import NormBounded, clip_factor
from dpltm.filters.descriptor import CLIP_NORM, FilterDescriptor

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PerLayerClip(NormBounded):
    """Layer-wise radial filter: the gradient in layer l is clipped to C / sqrt(L); C from 1e-6 to its inverse."""

    kind: ClassVar[Literal["layer-wise"]] = "layer-wise"

    def factor(self, norms: Tensor) -> Tensor:
        return clip_factor(self.clip_norm / math.sqrt(len(norms)), norms)

    def __str__(self) -> str:
        return f"per-layer(C={self.clip_norm:g})"


PER_LAYER = FilterDescriptor(
    "per-layer",
    "The gradient of each of L layers clipped to C / sqrt(L).",
    "McMahan et al. 2018",
    (CLIP_NORM,),
    PerLayerClip,
)
