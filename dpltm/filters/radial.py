"""Filters that rescale gradients, as clipping does (Abadi et al. 2016). Certified bound: C; of ``dpsr-cg`` max(C, 8)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from dpltm.filters.descriptor import CLIP_NORM, TANH_RANGE

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


@dataclass(frozen=True)
class RadialTanh(NormBounded):
    """Radial filter g -> C tanh(norm(g) / k) g / norm(g), C and k > 0; small gradients are multiplied by C / k."""

    tanh_range: float
    kind: ClassVar[Literal["radial"]] = "radial"

    def __post_init__(self) -> None:
        super().__post_init__()
        TANH_RANGE.check(self.tanh_range)

    def factor(self, norm: Tensor) -> Tensor:
        """Factor of a gradient of each norm; tanh(x) / x is 1 - x^2/3 near 0, to 1e-13 below 1e-3."""
        x = norm / self.tanh_range
        near = 1 - x.clamp_max(1e-3) ** 2 / 3
        return self.clip_norm / self.tanh_range * near.where(x < 1e-3, x.tanh() / x.clamp_min(1e-3))

    def __str__(self) -> str:
        return f"radial-tanh(C={self.clip_norm:g}, k={self.tanh_range:g})"


NO_DIRECTION = 1e-30
"""A gradient of a smaller norm counts as zero where it would be divided by its norm: it has no direction to speak of."""

GAMMA = 0.01
"""The paper's stability constant."""


@dataclass(frozen=True)
class Automatic(NormBounded):
    """Radial filter g -> C g / (norm(g) + gamma), C > 0: AUTO-S, whose gamma keeps small gradients small.

    Gamma 0 normalises, but norms below 1e-30 count as zero: AUTO-V, here ``normalize``.
    """

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


@dataclass(frozen=True)
class PerLayerClip(NormBounded):
    """Layer-wise radial filter: the gradient in layer l is clipped to C / sqrt(L); C from 1e-6 to its inverse."""

    kind: ClassVar[Literal["layer-wise"]] = "layer-wise"

    def factor(self, norms: Tensor) -> Tensor:
        return clip_factor(self.clip_norm / math.sqrt(len(norms)), norms)

    def __str__(self) -> str:
        return f"per-layer(C={self.clip_norm:g})"


LONG = 8.0
"""``soft_c`` for MNIST: norm from which on a gradient counts as long, and with which it comes out then."""


@dataclass(frozen=True)
class DpsrCg:
    """Radial filter g -> g C / 8 for norms up to 8, else 8 g / norm(g); C, from 1e-6 to its inverse, is what is claimed.

    Read from its repository, FangXieLab/DPSR-CG: ``microbatch_step_SEGA`` of ``utils/dp_optimizer.py`` (commit 225572b), and
    its README's commands (commit 5f70811): ``C_t`` is 1, and ``soft_c`` 8 for MNIST, as here. The noise is 1.07 sigma C, for
    a claim at sigma: the code takes C for the sensitivity, and adds the 1.07 for a second release, which is not made here.
    """

    clip_norm: float
    kind: ClassVar[Literal["radial"]] = "radial"

    def __post_init__(self) -> None:
        CLIP_NORM.check(self.clip_norm)

    @property
    def nominal_bound(self) -> float:
        """C, which the code scales its noise by."""
        return self.clip_norm

    def certified_bound(self, live: int) -> float:
        """max(C, 8): either branch, at its longest."""
        del live
        return max(self.clip_norm, LONG)

    def factor(self, norm: Tensor) -> Tensor:
        return (LONG / norm.clamp_min(LONG)).where(norm > LONG, norm.new_full((), self.clip_norm / LONG))

    def __str__(self) -> str:
        return f"dpsr-cg(C={self.clip_norm:g})"
