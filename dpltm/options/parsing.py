"""Numbers in texts."""

from __future__ import annotations

from dpltm.errors import InputError


def parse_numbers(field: str, text: str) -> tuple[float, ...]:
    """Numbers separated by commas, of the argument ``field``."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"`{field}`: {text!r} is not a list of numbers separated by commas") from None


def parse_pair(field: str, text: str) -> tuple[float, float]:
    """Two numbers from ``LO,HI``."""
    values = parse_numbers(field, text)
    if len(values) != 2:
        raise InputError(f"`{field}`: {text!r} is not of the form LO,HI, such as 0,255")
    return values[0], values[1]
