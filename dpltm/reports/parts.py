"""Parts that pages and cards are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Field:
    """One line: a field as the literature names it, its value, and a sentence on it; empty for none."""

    name: str
    value: str
    meaning: str = ""


@dataclass(frozen=True)
class Table:
    """A table of texts; the first of a row names it. If ``stacked``, a narrow screen shows its cells below each other."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    stacked: bool = False


@dataclass(frozen=True)
class Section:
    """A part of a page or a card; what is empty is left out. Charts and pictures are of pages alone."""

    title: str
    words: Sequence[str] = ()
    fields: Sequence[Field] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[Any] = ()
    pictures: Sequence[Any] = ()
    notes: Sequence[str] = ()

    def __bool__(self) -> bool:
        """Return whether there is anything in it."""
        return bool(self.words or self.fields or self.tables or self.charts or self.pictures or self.notes)


def percent_up(share: float) -> str:
    """Return a share in percent to one digit, rounded up: a bound that is shown is never below what was computed."""
    return f"{math.ceil(share * 1000 - 1e-9) / 10:g} %"
