"""The sigmoid filter (Amian's thesis, as a negative control): c sigmoid(g / k), element by element. Bound: c sqrt(n).

It is not odd: a gradient of zero comes out as c / 2 everywhere, so the sum says how many records there were.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from dpltm.filters.clip import Clip
from dpltm.filters.descriptor import TANH_RANGE, TANH_SCALE, FilterDescriptor
from dpltm.filters.tanh import ROUNDING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sigmoid:
    """Element-wise filter g_j -> c sigmoid(g_j / k): vertical range c > 0, horizontal range k > 0."""

    scale: float
    range: float
    before: ClassVar[Clip | None] = None
    after: ClassVar[Clip | None] = None
    kind: ClassVar[Literal["element-wise"]] = "element-wise"
    nominal_bound: ClassVar[float] = 1.0
    """Bound that the thesis accounts with, whatever c and n."""

    def __post_init__(self) -> None:
        TANH_SCALE.check(self.scale)
        TANH_RANGE.check(self.range)

    def map(self, values: Tensor) -> Tensor:
        return values.mul_(1 / self.range).sigmoid_().mul_(self.scale)

    def certified_bound(self, live: int) -> float:
        """c sqrt(n): every coordinate lies between 0 and c."""
        return self.scale * math.sqrt(live) * ROUNDING

    def __str__(self) -> str:
        return f"sigmoid(c={self.scale:g}, k={self.range:g})"


def _make(tanh_scale: float, tanh_range: float) -> Sigmoid:
    return Sigmoid(tanh_scale, tanh_range)


SIGMOID = FilterDescriptor(
    "sigmoid",
    "c sigmoid(g / k) on each coordinate: a negative control.",
    "Amian, thesis",
    (TANH_SCALE, TANH_RANGE),
    _make,
)
