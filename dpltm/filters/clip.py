"""Clipping (Abadi et al. 2016): g min(1, C / norm). Certified bound: C.

**A norm that follows a quantile** (Andrew, Thakkar, McMahan, Ramaswamy 2021). Beside its filtered gradient f, a record adds
kappa b to one coordinate more of the same sum: b, in [-1/2, 1/2], says whether its norm is below C, and kappa = 2 r C with a
public r. So what it adds is bounded by

    |(f, kappa b)| <= sqrt(C^2 + (2 r C / 2)^2) = C sqrt(1 + r^2),                                                     (1)

and both are released together, by one Gaussian mechanism with that sensitivity: r^2 = ``SHARE`` makes 1 % more noise. C of
the next step is a function of what was released. All steps have one noise multiplier, whatever their C: the pair of
distributions that dominates a step is fixed before the first, as adaptive composition asks for. What is not finite, skipped,
or not there adds 0 to both. Doubled for replace-one, and for groups of records, (1) is doubled as a whole.

b falls along a line from C / ``RAMP`` below C to as much above. The paper's b jumps, and would let rounding decide: float32
norms of records move in their last bits with the number of rows beside them, and a jump could turn each of these into 1. The
line turns 2^-23 of a norm into 2^-23 ``RAMP`` / 2 of a count: of the order of what the engine's rounding leaves over.

What leaves is divided by C, as is its noise. Filters whose C is but a factor (``radial-tanh``, ``auto``, ``normalize``)
would give the same answers at any C, for 1 % more noise: so their C stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from dpltm.filters.descriptor import CLIP_NORM, CLIP_QUANTILE, FilterDescriptor

if TYPE_CHECKING:
    from torch import Tensor

TINY = 2.0**-126
"""Smallest normal number of float32: every C divided by it is above 1."""

SHARE = 0.02
"""r^2 of (1): what the count adds to the squared sensitivity."""

RAMP = 10.0
"""C over half of the width of the line by which norms are counted."""

PULL, ENDS = 0.25, 0.02
"""ln C moves by ``PULL`` times what the log odds of the quantile are above those of the noisy share of norms below C, which
counts as at least ``ENDS``, and as much from 1. (The paper moves it by 0.2 of the difference of the shares themselves, which
takes ten times as long to come down from far above a low quantile, and as long to climb to a high one.)"""


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
    """Radial filter g -> g min(1, C / norm(g)), whose C may follow a quantile.

    Attributes:
        clip_quantile: share of the records whose norm is to be below C, from 0.05 to 0.95; 0 where C stays.
    """

    clip_quantile: float = field(default=0.0, kw_only=True)
    kind: ClassVar[Literal["radial"]] = "radial"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip_quantile != 0:
            CLIP_QUANTILE.check(self.clip_quantile)

    def certified_bound(self, live: int) -> float:
        """C, or (1) of this module, with the count."""
        return super().certified_bound(live) * (math.sqrt(1 + SHARE) if self.clip_quantile else 1.0)

    def factor(self, norm: Tensor) -> Tensor:
        return clip_factor(self.clip_norm, norm)

    def counted(self, norm: Tensor) -> Tensor:
        """kappa b of each norm, ``(batch,)``: from -r C to r C."""
        below = ((1 - norm / self.clip_norm) * RAMP).clamp(-1.0, 1.0)  # 2 b
        return below * (math.sqrt(SHARE) * self.clip_norm)

    def after(self, count: float) -> Self:
        """The filter of the next step.

        Args:
            count: noisy sum of ``counted``, over the expected number of gradients.
        """
        share = min(max(0.5 + count / (2 * math.sqrt(SHARE) * self.clip_norm), ENDS), 1 - ENDS)
        wanted = self.clip_quantile
        odds = wanted / (1 - wanted) * (1 - share) / share
        moved = self.clip_norm * odds**PULL
        return replace(self, clip_norm=min(max(moved, CLIP_NORM.low), CLIP_NORM.high))

    def __str__(self) -> str:
        following = f", quantile={self.clip_quantile:g}" if self.clip_quantile else ""
        return f"clip(C={self.clip_norm:g}{following})"


CLIP = FilterDescriptor(
    "clip", "Every gradient clipped to norm C.", "Abadi et al. 2016", (CLIP_NORM, CLIP_QUANTILE), Clip
)
