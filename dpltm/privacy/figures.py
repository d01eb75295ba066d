"""Figures as people read them."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal


def figure(value: float | str, digits: int = 4) -> str:
    """An epsilon for people: so many digits, rounded up so that it is never printed too small; or inf, as a text too."""
    if isinstance(value, str):
        return value
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    exact = Decimal(repr(float(value)))
    return f"{exact.quantize(Decimal(1).scaleb(exact.adjusted() + 1 - digits), rounding=ROUND_CEILING).normalize():f}"


def percent(value: float) -> str:
    """A share for people: ``91.92 %``."""
    return f"{100 * value:.2f} %"
