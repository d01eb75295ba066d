"""Per-layer clipping (McMahan et al. 2018): each layer to C_l. Certified bound: sqrt(sum C_l^2), here C.

Every one of L layers gets C_l = C / sqrt(L), so that the bound is C whatever the network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from dpltm.filters.radial import check_parameter


@dataclass(frozen=True)
class PerLayerClip:
    """Layer-wise radial filter: the part of the gradient in layer l is clipped to C / sqrt(L).

    Attributes:
        clip_norm: C, from 1e-6 to its inverse.
    """

    clip_norm: float
    kind: ClassVar[Literal["layer-wise"]] = "layer-wise"
    nominal_bound: ClassVar[None] = None

    def __post_init__(self) -> None:
        check_parameter("--clip-norm", self.clip_norm)

    def factor(self, norms: Tensor) -> Tensor:
        """What each layer's part is multiplied by, ``(layers, batch)`` to ``(layers, batch)``; 1 at norm 0."""
        bound = self.clip_norm / math.sqrt(len(norms))
        return torch.clamp(bound / norms.clamp_min(torch.finfo(norms.dtype).tiny), max=1.0)

    def certified_bound(self, live: int) -> float:
        """C: the root of L times (C / sqrt(L))^2."""
        del live
        return self.clip_norm

    def __str__(self) -> str:
        return f"per-layer(C={self.clip_norm:g})"
