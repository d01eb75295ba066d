"""Radial tanh: C tanh(norm / k) g / norm, which keeps the direction that the element-wise one bends. Certified bound: C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from dpltm.filters.radial import NormBounded, check_parameter


@dataclass(frozen=True)
class RadialTanh(NormBounded):
    """Radial filter g -> C tanh(norm(g) / k) g / norm(g).

    Attributes:
        clip_norm: C > 0.
        range: k > 0, the norm at which the filter begins to bend; small gradients are multiplied by C / k.
    """

    range: float
    kind: ClassVar[Literal["radial"]] = "radial"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_parameter("`tanh_range`", self.range)

    def factor(self, norm: Tensor) -> Tensor:
        """What a gradient of each norm is multiplied by; tanh(x) / x is 1 - x^2/3 near 0, to 1e-13 below 1e-3."""
        x = norm / self.range
        near = 1 - x.clamp_max(1e-3) ** 2 / 3
        return self.clip_norm / self.range * torch.where(x < 1e-3, near, torch.tanh(x) / x.clamp_min(1e-3))

    def __str__(self) -> str:
        return f"radial-tanh(C={self.clip_norm:g}, k={self.range:g})"
