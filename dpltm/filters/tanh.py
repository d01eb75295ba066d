"""The tanh filter (Amian): c tanh(g / k) on each coordinate, as printed or with the norm clipped to R first.

Eq. 4 of the paper prints (1 - e^-x) / (1 + e^-x), which is tanh(x / 2); here tanh is tanh (PRIVACY.md section 4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from dpltm.errors import InputError
from dpltm.filters.clip import SMALLEST, Clip

ROUNDING = 1 + 1e-6
"""Outward rounding of the bound: covers the error of tanh and of two products in float32 (a few 2^-24)."""


@dataclass(frozen=True)
class Tanh:
    """Element-wise filter g_j -> c tanh(g_j / k).

    Attributes:
        scale: vertical range c > 0.
        range: horizontal range k > 0.
        before: radial filter in front; None for the paper's own filter.
    """

    scale: float
    range: float
    before: Clip | None
    kind: ClassVar[Literal["element-wise"]] = "element-wise"
    nominal_bound: ClassVar[float] = 1.0
    """What the tanh paper and thesis account with, whatever c and n."""

    def __post_init__(self) -> None:
        for option, value in (("--tanh-scale", self.scale), ("--tanh-range", self.range)):
            if not SMALLEST <= value <= 1 / SMALLEST:
                raise InputError(f"{option}: {value} is not a number between {SMALLEST:g} and {1 / SMALLEST:g}")

    def map(self, values: Tensor) -> Tensor:
        """c tanh(values / k), any shape."""
        return torch.tanh(values / self.range) * self.scale

    def certified_bound(self, live: int) -> float:
        """As printed: c sqrt(n). After clipping to R: c sqrt(n) tanh(R / (k sqrt(n))), at most c R / k.

        u -> tanh(sqrt(u))^2 is concave, so by Jensen the worst gradient of norm R has n equal coordinates.
        """
        if live == 0:
            return 0.0
        root = math.sqrt(live)
        worst = 1.0 if self.before is None else math.tanh(self.before.clip_norm / (self.range * root))
        return self.scale * root * worst * ROUNDING

    def __str__(self) -> str:
        front = "" if self.before is None else f"{self.before} then "
        return f"{front}tanh(c={self.scale:g}, k={self.range:g})"
