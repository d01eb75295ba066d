"""A part of the records of a file held out for testing, where nobody names a test file.

Whether a record is held out is decided by a public hash of itself; where a person is the unit, by one of the person. So one
record, or person, more or less changes one of the two parts, and the part that is trained on is a dataset as if somebody had
cut the file in two. Nothing is promised for those that are held out, as for any test records.
"""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import numpy as np

from dpltm.errors import DataError
from dpltm.privacy.entry import HASHES
from dpltm.records.rows import Rows

_FRACTION = re.compile(r"0?\.[0-9]{1,9}")
_NUMBER = re.compile(r"[-+0-9.,eE/]*[0-9][-+0-9.,eE/]*%?")


def parse_fraction(test: str | None) -> Fraction | None:
    """The part of the records that ``test`` holds out; None where it names a file, or nothing.

    Raises:
        DataError: it is no part.
    """
    if test is None or not _FRACTION.fullmatch(test):
        if test is not None and _NUMBER.fullmatch(test) and not Path(test).exists():
            raise DataError(
                f"`test` {test}: is neither a file nor a fraction between 0 and 1; give one such as 0.2, which holds a fifth"
                " of the records out"
            )
        return None
    part = Fraction(test)
    if not part:
        raise DataError(f"`test` {test}: holds nobody out; give a fraction such as 0.2, or a file")
    return part


def held_out(rows: Rows, part: Fraction) -> np.ndarray:
    """Which records are held out, ``(n,)`` bool.

    Args:
        rows: all records; where they say whose each is, all of one person are on one side.
        part: in (0, 1), of the range of hashes.

    Guarantees:
        Depends on the record alone, or on its person alone.
    """
    return rows.cut_hashes() < int(part * HASHES)
