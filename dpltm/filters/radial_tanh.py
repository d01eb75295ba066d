"""Radial tanh: C tanh(norm / k) g / norm, which keeps the direction that the element-wise one bends. Certified bound: C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from dpltm.filters.clip import NormBounded
from dpltm.filters.descriptor import CLIP_NORM, TANH_RANGE, FilterDescriptor

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class RadialTanh(NormBounded):
    """Radial filter g -> C tanh(norm(g) / k) g / norm(g), C and k > 0; small gradients are multiplied by C / k."""

    range: float
    kind: ClassVar[Literal["radial"]] = "radial"

    def __post_init__(self) -> None:
        super().__post_init__()
        TANH_RANGE.check(self.range)

    def factor(self, norm: Tensor) -> Tensor:
        """Factor of a gradient of each norm; tanh(x) / x is 1 - x^2/3 near 0, to 1e-13 below 1e-3."""
        x = norm / self.range
        near = 1 - x.clamp_max(1e-3) ** 2 / 3
        return self.clip_norm / self.range * near.where(x < 1e-3, x.tanh() / x.clamp_min(1e-3))

    def __str__(self) -> str:
        return f"radial-tanh(C={self.clip_norm:g}, k={self.range:g})"


def _make(clip_norm: float, tanh_range: float) -> RadialTanh:
    return RadialTanh(clip_norm, tanh_range)


RADIAL_TANH = FilterDescriptor(
    "radial-tanh",
    "The norm through C tanh(norm / k), the direction kept.",
    "this project, after Amian",
    (CLIP_NORM, TANH_RANGE),
    _make,
)
