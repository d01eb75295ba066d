"""Cells of tables: what a column of some records holds, and the features that a schema makes of it.

Most columns repeat themselves. So what a cell means is worked out once for each different one, and records take it from
there. What it means depends on that cell and on public facts alone.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpltm.errors import DataError
from dpltm.records.encode import as_days, as_number, bucket_of
from dpltm.records.schema import Column

_PLAIN = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
"""Numbers that Arrow and Python read alike, for Arrow; what else may be one goes to Python."""


def is_numeric(kind: Any) -> bool:
    """Tell whether a column of such an Arrow type holds numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def is_text(kind: Any) -> bool:
    """Tell whether a column of such an Arrow type holds texts, each once or not."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def text_of(cell: Any) -> str | None:
    """Return a cell as a text: days as YYYY-MM-DD, whole numbers without a point; None for one that holds nothing."""
    if type(cell).__name__ in ("NoneType", "NAType", "NaTType") or cell != cell:  # NaN is not NaN
        return None
    if isinstance(cell, (datetime.date, datetime.datetime)):
        return cell.isoformat()
    if isinstance(cell, (float, np.floating)):  # whole in a column of whole numbers with holes
        return str(int(cell)) if float(cell).is_integer() else str(float(cell))
    return str(cell).strip()


def as_texts(cells: list[Any]) -> Any:
    """Return Python's values as an Arrow array of texts (see :func:`text_of`), each what it would be alone."""
    plain = {*map(type, cells)} <= {str, type(None)}
    try:
        return pa.array(cells if plain else list(map(text_of, cells)), pa.string())
    except UnicodeEncodeError:
        raise DataError("a cell holds half of a surrogate pair, which is no text; write it anew") from None


@dataclass(frozen=True)
class Cells:
    """A column of some records.

    Attributes:
        codes: the place of each record's cell among those that differ, ``(n,)``.
        values: the cells that differ, in the order in which they come: texts without blanks around them, or numbers.
        nulls: which of these are not there, ``(m,)`` bool; as texts they are empty.
    """

    codes: np.ndarray
    values: Any
    nulls: np.ndarray

    @classmethod
    def of(cls, column: Any) -> Cells:
        """Return the cells of an Arrow array, as texts that a .csv file would have."""
        column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        readable = is_numeric(column.type) or is_text(column.type)
        coded = (column if readable else as_texts(column.to_pylist())).dictionary_encode("encode")
        values = coded.dictionary
        nulls = values.is_null().to_numpy(zero_copy_only=False)
        if not is_numeric(values.type):
            values = pc.fill_null(pc.utf8_trim_whitespace(values), "")
        return cls(coded.indices.to_numpy(), values, nulls)

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def texts(self) -> list[str]:
        """The cells that differ, as texts."""
        return _texts(self.values)

    @cached_property
    def _read(self) -> tuple[np.ndarray, np.ndarray]:
        """What stands for each cell where records are told apart, a number or one made of a word; and which are words."""
        numbers = _numbers(self.values)
        words = np.zeros(len(numbers), dtype=bool)
        unsure = np.flatnonzero(~np.isfinite(numbers))
        for place, text in zip(unsure.tolist(), _texts(self.values.take(pa.array(unsure))), strict=True):
            number = as_number(text)
            words[place] = number is None
            word = int.from_bytes(blake2b(text.encode(), digest_size=6).digest())
            numbers[place] = word if number is None else number
        return numbers, words

    @property
    def numbers(self) -> np.ndarray:
        """What stands for each record's cell where records are told apart: its number, or one made of a word; float64."""
        return self._read[0][self.codes]

    @property
    def words(self) -> np.ndarray:
        """Which of the cells that differ are no numbers, ``(m,)`` bool."""
        return self._read[1]

    def first(self, differing: np.ndarray) -> tuple[int, str] | None:
        """Return the first record whose cell is among those that differ in some way, ``(m,)`` bool, and that cell."""
        if not differing.any():
            return None
        row = int(np.argmax(differing[self.codes]))
        return row, self.texts[self.codes[row]]

    def parsed(self, column: Column) -> np.ndarray:
        """Return the number, or the day, that each different cell holds, written as a column says; NaN for none."""
        if column.kind == "date":
            return np.array([math.nan if day is None else day for day in map(as_days, self.texts)], dtype=np.float64)
        cells = self
        if column.decimal != "." and not is_numeric(self.values.type):  # of texts: a frame's 1.5 is no 15
            texts = pa.array(self.texts, pa.string())
            texts = pc.if_else(pc.match_substring(texts, "."), "no number", texts)
            cells = Cells(self.codes, pc.replace_substring(texts, column.decimal, "."), self.nulls)
        numbers, words = cells._read
        return np.where(words, math.nan, numbers)

    def among(self, texts: Collection[str]) -> np.ndarray:
        """Return which of the cells that differ are one of these texts, or not there, ``(m,)`` bool."""
        if not is_numeric(self.values.type):
            listed = pc.is_in(self.values, pa.array(list(texts), self.values.type))
            return np.asarray(listed.to_numpy(zero_copy_only=False)) | self.nulls
        numbers, alike = self._read[0], Cells.of(as_texts(list(texts)))._read[0]
        inside = np.isnan(numbers) | np.isin(numbers, alike)  # few, of which texts are made
        for place in np.flatnonzero(inside & ~self.nulls):
            inside[place] = _texts(self.values[int(place) : int(place) + 1])[0] in texts
        return inside | self.nulls

    def records(self) -> list[str]:
        return np.array(self.texts, dtype=object)[self.codes].tolist() if len(self) else []


def _texts(values: Any) -> list[str]:
    return values.to_pylist() if is_text(values.type) else [text_of(cell) or "" for cell in values.to_pylist()]


def _numbers(values: Any) -> np.ndarray:
    """Return values as float64, with one zero of numbers; NaN for a text that is not plainly one, or for nothing."""
    if is_numeric(values.type):
        return values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False) + 0.0
    try:
        numbers = values.cast(pa.float64())
    except pa.ArrowInvalid:
        numbers = pc.if_else(pc.match_substring_regex(values, _PLAIN), values, None).cast(pa.float64())
    return np.array(numbers.to_numpy(zero_copy_only=False))


# by a schema


Faults = dict[tuple[str, str], str]
"""What of a table does not fit its schema, by column and fault: once each, with the first record and what to do.

How often is not counted: of private records that would be one more thing to know.
"""


def _note(faults: Faults, column: Column, cells: Cells, strange: np.ndarray, what: str, fix: str, start: int) -> None:
    if (first := cells.first(strange)) is not None:
        shown = f"{column.name}: {first[1]!r:.40} {what} (record {start + first[0]} from 0), {fix}"
        faults.setdefault((column.name, what), shown)


_HOLES = "missing = true and other = true take holes"
_STRANGE = {
    "category": ("is none of its values", "other = true, or add it to values"),
    "number": (
        "is no number",
        f'write numbers as 1234.5, or say decimal; kind = "category" takes words; {_HOLES}',
    ),
    "date": ("is no date (YYYY-MM-DD)", f"write dates as 2024-12-31; {_HOLES}"),
}
"""What is said of a cell that a kind of column does not take, and what to do about it."""


def encoded(column: Column, cells: Cells, empty: frozenset[str], faults: Faults, start: int) -> np.ndarray:
    """Return the features of one column, ``(n, column.features)`` float32 in [0, 1]; -1 and 2 of numbers beyond their
    bounds, which saturate when they are scaled (``records.scaling``): until then they can be told.

    Texts that are ``empty`` count as nothing; ``start`` is the number of the first of these records in the table.

    Guarantees:
        Row i depends on cell i and on the schema alone.
    """
    features = np.zeros((len(cells.values), column.features), dtype=np.float32)
    holes = cells.among(empty)
    strange = np.zeros(len(holes), dtype=bool)
    if column.missing:
        features[holes, -1] = 1.0
    else:
        _note(faults, column, cells, holes, "is empty", "missing = true", start)
    if column.kind == "category":
        places = _places(column, cells)
        filled_rows = np.flatnonzero((places >= 0) & ~holes)
        features[filled_rows, places[filled_rows]] = 1.0
        strange = (places < 0) & ~holes
    elif column.kind == "hashed":
        filled_rows = np.flatnonzero(~holes)
        features[filled_rows, [bucket_of(cells.texts[place], column.buckets) for place in filled_rows]] = 1.0
    else:
        values = np.where(holes, math.nan, cells.parsed(column))
        features[:, 0] = np.nan_to_num(_scaled(column, values))
        strange = np.isnan(values) & ~holes
        if column.other:
            features[strange, -1] = 1.0
    if not column.other and strange.any():
        _note(faults, column, cells, strange, *_STRANGE[column.kind], start)
    return features[cells.codes]


def _scaled(column: Column, values: np.ndarray) -> np.ndarray:
    """Numbers or days in [0, 1] by the bounds of a column, -1 and 2 beyond them; NaN stays."""
    low, high = column.bounds
    inside = np.where(low > values, low, values)  # as Python's max and min have it, of zeros too
    inside = np.where(high < inside, high, inside) - low
    if column.log:  # not NumPy's, whose last bit differs between processors
        parts = np.array([math.log1p(number) for number in inside.tolist()]) / math.log1p(high - low)
    else:
        parts = inside / (high - low)
    return parts + ((values > high).astype(float) - (values < low))


def _places(column: Column, cells: Cells) -> np.ndarray:
    """Return which of the values of a column each different cell is; -1 for none."""
    places = {spelling: place for place, spellings in enumerate(column.values) for spelling in spellings}
    return np.array([places.get(text, -1) for text in cells.texts], dtype=np.int64)


def classes_of(column: Column, cells: Cells, faults: Faults, start: int) -> np.ndarray:
    """Return the class of each record, ``(n,)`` int64, 0 where classes are to be found yet; of targets the number, float64.

    Arguments as :func:`encoded`.
    """
    if column.is_target:
        values = cells.parsed(column)
        fix = "write numbers as 1234.5, or say decimal; or leave those records out"
        _note(faults, column, cells, np.isnan(values), "is no number", fix, start)
        return np.nan_to_num(values)[cells.codes]
    places = _places(column, cells)
    if not column.wanted:
        fix = "add it to classes, or leave those records out"
        _note(faults, column, cells, places < 0, "is none of its classes", fix, start)
    return np.maximum(places, 0)[cells.codes]
