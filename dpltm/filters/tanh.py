"""The tanh filter (Amian): c tanh(g / k) on each coordinate, as printed, with the norm clipped before or after; and sigmoid.

Eq. 4 of the paper prints (1 - e^-x) / (1 + e^-x), which is tanh(x / 2); here tanh is tanh (privacy-model.md 4.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, ClassVar, Literal

from dpltm.filters.descriptor import TANH_RANGE, TANH_SCALE
from dpltm.filters.radial import Clip

if TYPE_CHECKING:
    from torch import Tensor


ROUNDING = 1 + 1e-6
"""Outward rounding of the bound: covers the error of tanh and of two products in float32 (a few 2^-24)."""

SHRINKING = 2.0**-19
"""Share by which ``fraction`` comes out smaller. It is cut off with an error of 4.8e-7, and computed by 26 roundings
of at most 2^-24: less than 2.1e-6 together. So it is above tanh by less than 2.5e-7, which ``ROUNDING`` covers."""

SATURATED = 9.1
"""From here on tanh is 1 in float32."""


def _lambert(depth: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Coefficients of P and Q in y, highest first: x P(x^2) / Q(x^2) is the continued fraction
    tanh x = x / (1 + x^2 / (3 + x^2 / (5 + ...))) (Lambert 1768), cut off at ``depth``. All are positive."""
    upper, lower = [1], [2 * depth - 1]  # lowest first
    for number in range(2 * depth - 3, 0, -2):
        upper, lower = lower, [number * low + high for low, high in zip_longest(lower, [0, *upper], fillvalue=0)]
    first, second = (tuple(number / lower[0] for number in reversed(numbers)) for numbers in (upper, lower))
    return first, second


UPPER, LOWER = _lambert(11)
UPPER = tuple(coefficient * (1 - SHRINKING) for coefficient in UPPER)


def fraction(values: Tensor) -> Tensor:
    """tanh within [-1, 1], any shape, float32: from 4e-6 of its value below it to 2.5e-7 above, whatever it is.

    Made of products, sums and a quotient alone: fused by a compiler, it takes less than half of the time of torch's own,
    which is exact to the last bits. Sums of positive terms lose nothing, so small values keep their relative error.
    """
    values = values.clamp(-SATURATED, SATURATED)
    squares = values * values
    upper, lower = squares * UPPER[0] + UPPER[1], squares * LOWER[0] + LOWER[1]
    for coefficient in UPPER[2:]:
        upper = upper * squares + coefficient
    for coefficient in LOWER[2:]:
        lower = lower * squares + coefficient
    return (values * (upper / lower)).clamp(-1.0, 1.0)


@dataclass(frozen=True)
class Scaled:
    """Base of element-wise filters with a vertical range c > 0 and a horizontal range k > 0."""

    tanh_scale: float
    tanh_range: float
    kind: ClassVar[Literal["element-wise"]] = "element-wise"

    def __post_init__(self) -> None:
        TANH_SCALE.check(self.tanh_scale)
        TANH_RANGE.check(self.tanh_range)


@dataclass(frozen=True)
class Tanh(Scaled):
    """Element-wise filter g_j -> c tanh(g_j / k).

    Attributes:
        before: clips the norm first; None for the paper's own filter.
        after: clips the norm of what comes out (thesis 6.4).
    """

    before: Clip | None = None
    after: Clip | None = None

    @property
    def nominal_bound(self) -> float | None:
        """Bound that the tanh paper and thesis account with, whatever c and n; clipped after, they claim what is true."""
        return None if self.after else 1.0

    def map(self, values: Tensor) -> Tensor:
        import torch

        if torch.compiler.is_compiling():
            return fraction(values * (1 / self.tanh_range)) * self.tanh_scale
        return values.mul_(1 / self.tanh_range).tanh_().mul_(self.tanh_scale)

    def certified_bound(self, live: int) -> float:
        """As printed: c sqrt(n). Clipped to R before: c sqrt(n) tanh(R / (k sqrt(n))), at most c R / k. To C after: C.

        u -> tanh(sqrt(u))^2 is concave, so by Jensen the worst gradient of norm R has n equal coordinates.
        """
        if live == 0:
            return 0.0
        root = math.sqrt(live)
        worst = 1.0 if self.before is None else math.tanh(self.before.clip_norm / (self.tanh_range * root))
        bound = self.tanh_scale * root * worst * ROUNDING
        return bound if self.after is None else min(bound, self.after.clip_norm)

    def __str__(self) -> str:
        front = "" if self.before is None else f"{self.before} then "
        back = "" if self.after is None else f" then {self.after}"
        return f"{front}tanh(c={self.tanh_scale:g}, k={self.tanh_range:g}){back}"


@dataclass(frozen=True)
class Sigmoid(Scaled):
    """Element-wise filter g_j -> c sigmoid(g_j / k), the thesis's negative control.

    It is not odd: a gradient of zero comes out as c / 2 everywhere, so the sum says how many records there were.
    """

    before: ClassVar[Clip | None] = None
    after: ClassVar[Clip | None] = None
    nominal_bound: ClassVar[float] = 1.0  # which the thesis accounts with, whatever c and n

    def map(self, values: Tensor) -> Tensor:
        return values.mul_(1 / self.tanh_range).sigmoid_().mul_(self.tanh_scale)

    def certified_bound(self, live: int) -> float:
        """c sqrt(n): every coordinate lies between 0 and c."""
        return self.tanh_scale * math.sqrt(live) * ROUNDING

    def __str__(self) -> str:
        return f"sigmoid(c={self.tanh_scale:g}, k={self.tanh_range:g})"
