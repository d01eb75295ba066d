"""Texts as word indices: the ragged layout that files hold them in, and records of one length for a network.

Record i is ``values[offsets[i]:offsets[i + 1]]``. A value k from 1 up is the k-th word of a ranking by frequency, 0 a word
that the ranking lacks. Which words there are, and in which order, is a public input (privacy-model.md 1.4).

A record becomes positions in a table, as keras has them and Bu et al. (2020) after it: 0 is padding, 1 the start of a text,
2 a word outside the table, and word k is at k + 3. The last positions are kept, shorter records are padded in front.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpltm.errors import DataError

START, UNKNOWN, FIRST = 1, 2, 3
"""Positions of a text's start and of an unknown word; what is added to the rank of a known one. Padding is at 0."""

MAX_WORDS, LONGEST = 10_000_000, 100_000
"""Largest table and longest record that are taken; float32, which records reach a network in, is exact up to 2^24."""

MAX_POSITIONS = 2**30
"""Most positions of all records of a split together: a guard, for memory."""

AT_ONCE = 2**20
"""Positions made at a time."""


@dataclass(frozen=True)
class Layout:
    """The public numbers that decide what a text becomes.

    Attributes:
        words: size of the table, with the positions that are no words.
        length: of every record.
    """

    words: int = 10_000
    length: int = 256

    def __post_init__(self) -> None:
        if not FIRST + 2 <= self.words <= MAX_WORDS:
            raise DataError(
                f"`words` {self.words}: must be {FIRST + 2} to {MAX_WORDS:,}; pass the public size of the table, which"
                f" has {FIRST + 1} positions that are no words"
            )
        if not 1 <= self.length <= LONGEST:
            raise DataError(f"`length` {self.length}: must be 1 to {LONGEST:,}; pass how many words of a text to keep")


def check_ragged(values: np.ndarray, offsets: np.ndarray, where: str, names: tuple[str, str]) -> None:
    """Raises DataError unless these are word indices and where each record's begin.

    Args:
        values: whole numbers from 0 up, ``(all words,)``.
        offsets: from 0 up to the number of all words, one more than there are records.
        where, names: of the file and its two arrays, for messages.
    """
    for array, name in zip((values, offsets), names, strict=True):
        if array.dtype.kind not in "iu" or array.ndim != 1:
            raise DataError(
                f"{where}: {name} has dtype {array.dtype} and shape {array.shape}; expected integers in one dimension"
            )
    if len(offsets) < 2:
        raise DataError(f"{where}: {names[1]} has {len(offsets)} entries and so no record; give one more than records")
    if offsets[0] != 0 or offsets[-1] != len(values):
        raise DataError(
            f"{where}: {names[1]} goes from {offsets[0]} to {offsets[-1]}; it must go from 0 to the {len(values)} entries of"
            f" {names[0]}"
        )
    falling = offsets[1:] < offsets[:-1]
    if falling.any():
        record = int(np.argmax(falling))
        raise DataError(
            f"{where}: {names[1]} falls from {offsets[record]} to {offsets[record + 1]} at record {record}; a record ends"
            " where the next begins"
        )
    if values.dtype.kind == "i" and len(values) and values.min() < 0:
        raise DataError(
            f"{where}: {names[0]} has {values.min()} at entry {int(np.argmin(values))}; a word is a rank from 1 up, and 0 an"
            " unknown one"
        )


def padded(values: np.ndarray, offsets: np.ndarray, layout: Layout, where: str) -> np.ndarray:
    """Records of one length, ``(records, layout.length)`` int32, from arrays that ``check_ragged`` has seen.

    Args:
        values: word indices, ``(all words,)``, whole numbers from 0 up.
        offsets: where each record begins, ``(records + 1,)``.
        layout: size of the table, and length of a record.
        where: the file, for messages.

    Raises:
        DataError: they would be too many for memory.

    Guarantees:
        Row i depends on record i and on ``layout`` only.
    """
    records = len(offsets) - 1
    if records * layout.length > MAX_POSITIONS:
        raise DataError(
            f"{where}: {records:,} records of {layout.length:,} words are more than the {MAX_POSITIONS:,} positions that"
            " are taken; pass a smaller `length`"
        )
    padded_rows = np.zeros((records, layout.length), dtype=np.int32)
    ends, starts = offsets[1:].astype(np.int64), offsets[:-1].astype(np.int64)
    back = np.arange(-layout.length, 0)
    for first in range(0, records, step := max(1, AT_ONCE // layout.length)):
        rows = slice(first, first + step)
        at = ends[rows, None] + back  # where in values the word of each place is
        held = at >= starts[rows, None]
        words = values[at[held]]
        known = (words >= 1) & (words < layout.words - FIRST)
        padded_rows[rows][held] = np.where(known, words, 0).astype(np.int32) + np.where(known, FIRST, UNKNOWN)
        padded_rows[rows][at == starts[rows, None] - 1] = START
    return padded_rows


def check_positions(x: np.ndarray, words: int, where: str) -> None:
    """Raises DataError unless all values are positions in a table of ``words``.

    Args:
        x: ``(records, positions)``, whole or float numbers.
        words: size of the table.
        where: the file and its array, for messages.
    """
    if x.ndim != 2:
        raise DataError(f"{where} has shape {x.shape}; `words` takes (records, positions)")
    wrong = ~((x >= 0) & (x < words)) | (x != np.floor(x) if x.dtype.kind == "f" else False)
    if wrong.any():
        record, place = np.argwhere(wrong)[0]
        raise DataError(
            f"{where} has {x[record, place]} at record {record}, place {place} (counted from 0); with `words` {words} every"
            f" value must be a position, a whole number from 0 to {words - 1}"
        )


def texts_of(values: np.ndarray, offsets: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Some of the records of ragged arrays, as ragged arrays.

    Args:
        values: word indices, ``(all words,)``.
        offsets: where each record begins, ``(records + 1,)``.
        index: which records, ``(k,)`` whole numbers, in this order.

    Returns:
        Values and offsets of these k records.
    """
    texts = [values[offsets[place] : offsets[place + 1]] for place in index]
    ends = np.cumsum([0, *(len(text) for text in texts)])
    return np.concatenate([values[:0], *texts]), ends
