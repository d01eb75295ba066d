"""The gradient filter in the code of DPSR-CG (Huang, Xie 2026), as a negative control. Certified bound: max(C, 8).

Read on 2026-11-25 from its repository, FangXieLab/DPSR-CG: ``microbatch_step_SEGA`` of ``utils/dp_optimizer.py`` (commit
225572b), and the commands of its README (commit 5f70811). These set ``C_t`` 1, and ``soft_c`` 8 for MNIST, 6 for FMNIST, 3
for CIFAR-10 and 1 for IMDB. The filter here is that for MNIST. A gradient of norm up to 8 is multiplied by C / 8, and comes
out with norm C at most. A longer one is multiplied by 8 / norm, and comes out with norm 8. At ``soft_c`` 1, as for IMDB, the
same code is plain clipping, and its claim for the step holds.

The noise is 1.07 sigma C, for a claim at noise multiplier sigma: the code takes C for the sensitivity, and adds the 1.07 for
a second release, which is not made here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from dpltm.filters.descriptor import CLIP_NORM, FilterDescriptor

if TYPE_CHECKING:
    from torch import Tensor

LONG = 8.0
"""``soft_c`` for MNIST: norm from which on a gradient counts as long, and with which it comes out then."""


@dataclass(frozen=True)
class DpsrCg:
    """Radial filter g -> g C / 8 for norms up to 8, else 8 g / norm(g); C, from 1e-6 to its inverse, is what is claimed."""

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


DPSR_CG = FilterDescriptor(
    "dpsr-cg",
    "As the code of DPSR-CG has it for MNIST: norms up to 8 scaled to C at most, longer ones to 8; a negative control.",
    "Huang, Xie 2026, their code",
    (CLIP_NORM,),
    DpsrCg,
)
