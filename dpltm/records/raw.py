"""What a file holds of one split, before any check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dpltm.privacy.entry import Lineage


@dataclass(frozen=True)
class RawSplit:
    """One split as read, before any check, with what messages need to name its parts.

    Attributes:
        x: features as stored.
        y: labels as stored; None where only records were asked for.
        source: file or dataset.
        x_name, y_name: what the source calls the two arrays.
        columns: names of the feature columns, where the source has them.
        label: name of the column of labels, where the source has it.
        ragged: of texts, the words and where each record's begin, which ``x`` was made from; they are what identifies it.
        units: whose each record is, ``(n,)`` numbers or texts, where the source was asked for it; and
        units_name: its column, or array.
        label_numbers: of a table with words, cells of that column as numbers: they identify records, whatever the classes.
        full: features with the column that says whose a record is, where that is one of numbers, and names of its columns:
            what identifies records of a table, so that it is known again where nobody names that column.
        lineage: of synthetic records, the release that they were drawn from; and
        facts: their public bounds and number of classes; None of all others.
    """

    x: np.ndarray
    y: np.ndarray | None
    source: str
    x_name: str = "x_train"
    y_name: str = "y_train"
    columns: tuple[str, ...] | None = None
    label: str | None = None
    ragged: tuple[np.ndarray, np.ndarray] | None = None
    units: np.ndarray | None = None
    units_name: str = "units"
    full: tuple[np.ndarray, tuple[str, ...]] | None = None
    label_numbers: np.ndarray | None = None
    lineage: Lineage = field(default_factory=Lineage)
    facts: tuple[tuple[float, float], int] | None = None


def shown(names: Sequence[str], limit: int = 8) -> str:
    """Some names for a message, quoted."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(repr(n) for n in names[:limit]) + more
