"""Figures as people read them."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal


def figure(value: float | str, digits: int = 4, *, down: bool = False) -> str:
    """An epsilon for people, rounded up so that it is never printed too small; or inf, as a text too.

    Args:
        value: the epsilon, or any other figure that is to err on the safe side.
        digits: that it is printed with.
        down: round down instead, as for a lower bound.
    """
    if isinstance(value, str):
        return value
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    exact = Decimal(repr(float(value)))
    last = Decimal(1).scaleb(exact.adjusted() + 1 - digits)
    return f"{exact.quantize(last, rounding=ROUND_FLOOR if down else ROUND_CEILING).normalize():f}"


def percent(value: float) -> str:
    """A share for people: ``91.92 %``."""
    return f"{100 * value:.2f} %"
