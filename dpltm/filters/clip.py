"""Clipping (Abadi et al. 2016): g min(1, C / norm). Certified bound: C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from dpltm.filters.radial import check_parameter


@dataclass(frozen=True)
class Clip:
    """Radial filter g -> g min(1, C / norm(g)).

    Attributes:
        clip_norm: C, from 1e-6 to its inverse.
    """

    clip_norm: float
    kind: ClassVar[Literal["radial"]] = "radial"
    nominal_bound: ClassVar[None] = None

    def __post_init__(self) -> None:
        check_parameter("--clip-norm", self.clip_norm)

    def factor(self, norm: Tensor) -> Tensor:
        """What a gradient of each norm is multiplied by, ``(batch,)`` to ``(batch,)``; 1 at norm 0."""
        return torch.clamp(self.clip_norm / norm.clamp_min(torch.finfo(norm.dtype).tiny), max=1.0)

    def certified_bound(self, live: int) -> float:
        """C, whatever the number of live coordinates."""
        del live
        return self.clip_norm

    def __str__(self) -> str:
        return f"clip(C={self.clip_norm:g})"
