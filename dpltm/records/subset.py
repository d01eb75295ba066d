"""``subset``: a part of the training records that one record more or less changes by that record alone."""

from __future__ import annotations

import re
from fractions import Fraction

from dpltm.errors import DataError
from dpltm.privacy.entry import HASHES, Cut, Part

_RECORD = re.compile(r"[0-9]{1,18}")
_FRACTION = re.compile(r"[0-9]{0,18}\.[0-9]{1,9}|[0-9]{1,18}\.")


def parse_subset(
    text: str, name: str, *, hashed: tuple[Cut, tuple[str, ...]] = ("record", ()), places: int | None = None
) -> Part:
    """The part of the records that ``text`` names.

    Args:
        text: ``FRACTION``, the first part of the records, in (0, 1]; or ``A:B`` in fractions, ends with a decimal point, of
            which a missing one, 0 or 1 may stand beside another; or ``A:B`` in places, whole numbers counted from 0, of
            which a missing one is an end of the file.
        name: the dataset, for messages.
        hashed: the cut that fractions are of, and the columns that its hash is taken by.
        places: how many places the published file fixes; None where nothing fixes them.

    Raises:
        DataError: ``text`` has none of these forms, means nothing, or places that are outside the file or not fixed.

    Guarantees:
        Fractions are of public hashes (``Rows.cut_hashes``), not of the file: a record, or person, more or less
        changes the one part that its hash falls into. ``A:B`` and ``B:C`` are disjoint and together are ``A:C``. Places are
        taken only where the publication says who stands where: the neighbour has one place empty, and nobody moves.
    """
    head, colon, tail = text.partition(":")
    if not colon:
        # Without a colon a whole number can only be the fraction 1: "500" could mean too many things.
        if not _FRACTION.fullmatch(head) and head != "1":
            raise _malformed(text)
        return _of_hashes(text, name, Fraction(0), Fraction(head), hashed)
    for end in (head, tail):
        if end and not _RECORD.fullmatch(end) and not _FRACTION.fullmatch(end):
            raise _malformed(text)
    given = [end for end in (head, tail) if end]
    fractions = [end for end in given if _FRACTION.fullmatch(end)]
    if fractions and all(end in fractions or end in ("0", "1") for end in given):
        return _of_hashes(text, name, Fraction(head or 0), Fraction(tail or 1), hashed)
    if fractions:
        raise _malformed(text)
    if places is None:
        raise DataError(
            f"`subset` {text}: places count only where a published file fixes who stands at which, and nothing fixes them in"
            f" {name}: a record more or less would move all that follow it; give fractions such as 0.0:0.5, which a public"
            " hash of each record decides"
        )
    start, stop = int(head or 0), int(tail or places)
    if not 0 <= start < stop <= places:
        raise DataError(
            f"`subset` {text}: means records {start} to {stop}, but {name} has records 0 to {places}; "
            "give a range inside that is not empty"
        )
    return Part(name, None, (), "place", start, stop)


def _of_hashes(text: str, name: str, start: Fraction, stop: Fraction, hashed: tuple[Cut, tuple[str, ...]]) -> Part:
    if not 0 <= start < stop <= 1:
        raise DataError(
            f"`subset` {text}: means the part from {float(start):g} to {float(stop):g} of {name}; give fractions between 0"
            " and 1, the smaller one first"
        )
    if start == 0 and stop == 1:
        return Part(name)
    cut, columns = hashed
    return Part(name, None, columns, cut, int(start * HASHES), int(stop * HASHES))


def _malformed(text: str) -> DataError:
    return DataError(
        f"`subset` {text!r:.80}: expected FRACTION in (0, 1] such as 0.1, START:STOP in fractions such as 0.5:1.0, or in"
        " places of a named dataset such as 0:5000"
    )
