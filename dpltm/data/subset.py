"""``--subset``: a contiguous range of the training records, in the order of the file."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from dpltm.errors import DataError

_RECORD = re.compile(r"[0-9]{1,18}")
_FRACTION = re.compile(r"[0-9]{0,18}\.[0-9]{1,18}|[0-9]{1,18}\.")


def parse_subset(text: str, records: int, name: str) -> tuple[int, int]:
    """The half-open range of records that ``text`` names.

    Args:
        text: ``FRACTION``, the first part of the records, in (0, 1]; or ``START:STOP`` where an end with a decimal
            point is a fraction, one without is a record index counted from 0, and an empty one is the file's end.
        records: number of training records in the file.
        name: the dataset, for messages.

    Returns:
        ``(start, stop)`` with ``0 <= start < stop <= records``.

    Raises:
        DataError: ``text`` has none of these forms, or no record or records outside the file are meant.

    Guarantees:
        An end means the same record on either side of the colon (fractions are exact decimals, rounded down), so
        ``A:B`` and ``B:C`` are disjoint and together are ``A:C``.
    """
    head, colon, tail = text.partition(":")
    if colon:
        start = _end(text, head, records) if head else 0
        stop = _end(text, tail, records) if tail else records
    else:
        # Without a colon a whole number can only be the fraction 1: "500" could mean too many things.
        start, stop = 0, _end(text, "1.0" if head == "1" else head, records)
        if not _FRACTION.fullmatch(head) and head != "1":
            raise _malformed(text)
    if not 0 <= start < stop <= records:
        raise DataError(
            f"--subset {text}: means records {start} to {stop}, but {name} has records 0 to {records}; "
            "give a range inside that is not empty"
        )
    return start, stop


def _end(text: str, end: str, records: int) -> int:
    """The record index of one end."""
    if _RECORD.fullmatch(end):
        return int(end)
    if not _FRACTION.fullmatch(end) or Fraction(end) > 1:
        raise _malformed(text)
    return math.floor(Fraction(end) * records)


def _malformed(text: str) -> DataError:
    return DataError(
        f"--subset {text!r}: expected FRACTION in (0, 1] such as 0.1, or START:STOP in records such as 0:5000 "
        "or in fractions such as 0.5:1.0"
    )
