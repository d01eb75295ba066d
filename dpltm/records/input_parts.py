"""Records of several arrays, such as ``input_ids`` and ``attention_mask``: side by side in one, and how they are told apart.

Everything from the ledger to the gradients knows one array of records. So the values of all parts stand in one row a record,
in the order of their names, and public facts about each part go along. A network scales every part by public bounds of its
own; whole numbers, which ``words`` bounds, come back from that exactly.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpltm.errors import DataError, whole_number

MAX_WORDS = 2**22
"""Most whole numbers of a part: each comes back from its place in [0, 1], in float32, exactly."""

MAX_TABLE = 10_000_000
"""Most of records in one array, which are held in float32 as they are."""

DTYPES = tuple(np.dtype(name).name for name in "?bBhHiIlLqQefd")
"""Of a part as it is given."""

Words = int | Mapping[str, int] | None
"""How many whole numbers there are: of records in one array, or of parts by name."""


@dataclass(frozen=True)
class InputPart:
    """Public facts about one of the arrays that records consist of, by its key and the shape of one record.

    Its values are whole numbers below ``words``, which reach the network in ``dtype``; or quantities where that is 0.
    """

    name: str
    shape: tuple[int, ...]
    words: int
    dtype: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def bounds(self, bounds: tuple[float, float]) -> tuple[float, float]:
        """Return the public range of its values, where that of quantities is ``bounds``."""
        return (0.0, float(max(self.words - 1, 1))) if self.words else bounds

    def __str__(self) -> str:
        holds = f"whole numbers below {self.words:,}" if self.words else "quantities"
        return f"{holds} of shape {self.shape}"


Parts = tuple[InputPart, ...]


def shown(names: Sequence[str], limit: int = 8) -> str:
    """Return some names for a message, quoted."""
    return ", ".join(map(repr, names[:limit])) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def check_columns(
    wanted: Collection[str], present: Sequence[str], source: str, whose: str, spare: Collection[str] = ()
) -> None:
    """Raise DataError for columns of ``source`` that are lacking but for ``spare`` ones, too many, or twice there."""
    faults = (
        ("lacks", set(wanted) - set(present) - set(spare)),
        ("has, beside those,", set(present) - set(wanted)),
        ("has twice", {name for name in present if present.count(name) > 1}),
    )
    if told := [f"it {what} {shown(sorted(names))}" for what, names in faults if names]:
        raise DataError(f"{source}: its columns are not those of {whose}: {'; '.join(told)}; give the same")


def split(x: np.ndarray, parts: Parts) -> list[np.ndarray]:
    """Return the values of each part, ``(n, size)``, of records that hold them side by side."""
    ends = np.cumsum([part.size for part in parts])[:-1]
    return np.split(x.reshape(len(x), -1), ends, axis=1)


def differences(mine: Parts, theirs: Parts) -> str:
    """Return how the parts of some records differ from those that are expected, in words; nothing where they do not."""
    expected, present = ({part.name: str(part) for part in parts} for parts in (mine, theirs))
    return "; ".join(
        f"have {present.get(name, 'nothing')} in {name!r} in the place of {expected.get(name, 'nothing')}"
        for name in sorted({*expected, *present})
        if expected.get(name) != present.get(name)
    )


def facts_of(parts: Parts, x: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``words`` by which records become such parts, of those parts that they have."""
    words = {part.name: part.words for part in parts if part.words and part.name in x}
    return {"words": words} if words else {}


def side_by_side(
    arrays: Mapping[str, np.ndarray], words: Words, where: str, *, check: bool = True
) -> tuple[np.ndarray, Parts]:
    """Return records in one array, ``(n, values)``, and the parts that they consist of, in order; record by record.

    Args:
        words: see :data:`Words`; truth values are whole numbers below 2 by their type.
        where: what messages call the records.
        check: whether whole numbers out of range are refused; else they saturate as other values do.
    """
    if words is not None and not (isinstance(words, Mapping) and set(words) <= set(arrays)):
        raise DataError(f"`words` {words!s:.100}: {where} has the parts {shown(list(arrays))}; say it of each by name")
    for number in (words or {}).values():
        if not 1 <= whole_number("words", number) <= MAX_WORDS:
            raise DataError(f"`words` {number}: must be 1 to {MAX_WORDS:,}; pass the public number of whole numbers")
    parts = []
    for name, value in arrays.items():
        if value.ndim == 0 or value.dtype.kind not in "biuf" or value.dtype.itemsize > 8:
            raise DataError(f"{where}[{name!r}] is {value.dtype} of shape {value.shape}; give numbers, a row a record")
        most = int((words or {}).get(name, 2 if value.dtype == bool else 0))
        if check and not most and value.dtype.name in _WHOLE:
            raise DataError(
                f"`words` is missing: {where}[{name!r}] holds whole numbers; say how many there are, words={{{name!r}: N}},"
                " or give quantities as floats, with `bounds`"
            )
        if most and check:
            _check_whole(value, most, f"{where}[{name!r}]")
        parts.append(InputPart(name, value.shape[1:], most, value.dtype.name))
    values = list(arrays.values())
    counts = {part.name: len(value) for part, value in zip(parts, values, strict=True)}
    if len({*counts.values()}) > 1:
        raise DataError(f"`{where}`: its parts have different numbers of records, {counts}; give each a row a record")
    flat = [value.reshape(len(value), part.size) for part, value in zip(parts, values, strict=True)]
    return np.concatenate(flat, 1), tuple(parts)


_WHOLE = tuple(name for name in DTYPES if "int" in name and name != "uint8")


def check_words(x: np.ndarray, words: Words, where: str) -> None:
    """Raise DataError unless all values of records in one array are positions in a table of ``words``."""
    if not isinstance(words, int) or isinstance(words, bool) or not 1 <= words <= MAX_TABLE or x.ndim != 2:
        shape = f"{where} has shape {x.shape}"
        raise DataError(f"`words` {words}: give 1 to {MAX_TABLE:,}, and records as (records, positions); {shape}")
    _check_whole(x, words, where)


def _check_whole(values: np.ndarray, words: int, where: str) -> None:
    """Raise DataError unless all values are positions, whole numbers from 0 to ``words`` - 1."""
    flat = values.reshape(len(values), -1)
    wrong = ~((flat >= 0) & (flat < words)) | (flat != np.floor(flat) if flat.dtype.kind == "f" else False)
    if wrong.any():
        record, place = np.argwhere(wrong)[0]
        raise DataError(
            f"{where} has {flat[record, place]} at record {record}, place {place} (counted from 0); with `words` {words}"
            f" give whole numbers from 0 to {words - 1}"
        )
