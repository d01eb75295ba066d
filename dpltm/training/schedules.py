"""Schedules of a step size along a training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "linear": lambda passed: 1.0 - passed,
    "cosine": lambda passed: (1.0 + math.cos(math.pi * passed)) / 2,
}
"""By what the step size is multiplied once that part of the steps has passed."""
