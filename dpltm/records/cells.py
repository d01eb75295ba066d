"""Cells of tables as numbers."""

from __future__ import annotations

import datetime
from hashlib import blake2b


def number_of(cell: str) -> float:
    """What stands for a cell where records are told apart: itself, or of a word a number made of it."""
    value = as_number(cell)
    return float(int.from_bytes(blake2b(cell.encode(), digest_size=6).digest())) if value is None else value


def as_number(cell: str) -> float | None:
    """The number that a cell holds; None where it holds none."""
    try:
        return float(cell)
    except ValueError:
        return None


def as_days(cell: str) -> float | None:
    """The days from the year 1 to a date, YYYY-MM-DD and perhaps a time; None where a cell holds none."""
    try:
        return float(datetime.date.fromisoformat(cell[:10]).toordinal())
    except ValueError:
        return None
