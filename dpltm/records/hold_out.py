"""A part of the records of a file held out for testing, where nobody names a test file.

Whether a record is held out is decided by a public hash of itself; where a person is the unit, by one of the person. So one
record, or person, more or less changes one of the two parts, and the part that is trained on is a dataset as if somebody had
cut the file in two. Nothing is promised for those that are held out, as for any test records.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from hashlib import blake2b
from pathlib import Path

import numpy as np

from dpltm.errors import DataError
from dpltm.privacy.events import HASHES
from dpltm.records.mapped import gathered
from dpltm.records.raw import RawSplit
from dpltm.records.rows import Rows
from dpltm.records.tokens import texts_of

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
    if rows.units is None:
        hashes = rows.public_hashes()
    else:
        names, codes = np.unique(rows.units, return_inverse=True)
        each = [
            int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") % HASHES
            for name in names.tolist()
        ]
        hashes = np.array(each, dtype=np.int64)[codes]
    return hashes < int(part * HASHES)


def cut_in_two(raw: RawSplit, out: np.ndarray) -> tuple[RawSplit, RawSplit]:
    """The records that are trained on, and those that are held out.

    Args:
        raw: all of them.
        out: which are held out.

    Raises:
        DataError: one of the two would be empty.
    """
    if out.all() or not out.any():
        raise DataError(
            f"`test`: of so few records of {raw.source} that part is nobody, or everybody; name a test file"
        )
    return _picked(raw, np.flatnonzero(~out)), _picked(raw, np.flatnonzero(out))


def _picked(raw: RawSplit, places: np.ndarray) -> RawSplit:
    return replace(
        raw,
        x=gathered(raw.x, places, to_stay=True),
        y=None if raw.y is None else raw.y[places],
        ragged=None if raw.ragged is None else texts_of(*raw.ragged, places),
        units=None if raw.units is None else raw.units[places],
        full=None if raw.full is None else (raw.full[0][places], raw.full[1]),
        label_numbers=None if raw.label_numbers is None else raw.label_numbers[places],
    )
