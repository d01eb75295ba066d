"""From what a file or arrays hold to a checked ``Dataset``: its public inputs settled, its splits apart, cut to a part."""

from __future__ import annotations

import contextlib
import math
import numbers
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from dpltm.errors import DataError, whole_number
from dpltm.privacy.entry import HASHES, Cut, Part
from dpltm.records import checks
from dpltm.records.catalogue import Description
from dpltm.records.checks import EMPTY
from dpltm.records.dataset import BoundsOrigin, Dataset, Origin, Rows, Split
from dpltm.records.mapped import copied, gathered
from dpltm.records.raw import RawSplit
from dpltm.records.scaling import affine
from dpltm.records.tokens import texts_of
from dpltm.records.units import check_apart, checked_units

MAX_NAME = 200
"""Characters of the name of a dataset, or of a ticket set."""


def from_arrays(
    x: np.ndarray,
    y: np.ndarray,
    *,
    test: tuple[np.ndarray, np.ndarray] | float | None = None,
    bounds: tuple[float, float] | None = None,
    classes: int | None = None,
    records: int | None = None,
    units: np.ndarray | None = None,
    unit: str = "user",
    rows_coincide: bool = False,
    name: str = "records",
    for_training: bool = True,
) -> Dataset:
    """A dataset of arrays: every record checked, its public inputs settled as by :func:`load`.

    The arrays are copied: what is trained on later are the records that a ledger has, whatever becomes of the arrays. A
    memory map that is read-only is not; leave its file as it is until the work is done.

    Args:
        x: features, ``(n, ...)``, bytes, booleans or finite numbers.
        y: labels, ``(n,)``, from 0 to the number of classes - 1.
        test: features and labels of the test split, declared separate; or a part such as 0.2, which a public hash of each
            record, or person, holds out.
        bounds: finite ``(low, high)`` of every feature; needed unless they are bytes or booleans.
        classes: public number of classes; counted on the labels if None, and noted.
        records: public number of records, or of persons; counted if None, and noted.
        units: whose each record is, ``(n,)`` whole numbers or texts: then a training protects all of a person's together.
        unit: noun of whom those are, such as ``patient``.
        rows_coincide: whether a test record may equal a training record: such as where records are a few truth values.
        name: what messages and the ledger call them, printable, at most 200 characters.
        for_training: whether something is learned from them; otherwise one record will do.

    Raises:
        DataError: anything about the arguments or the data is not what it must be.
    """
    bounds, classes, records = declared_facts(bounds, classes, records)
    check_name(name)
    hold_out = Fraction(test).limit_denominator(HASHES) if isinstance(test, float) and 0 < test < 1 else None
    pair = test if isinstance(test, (tuple, list)) and len(test) == 2 else None
    if test is not None and pair is None and hold_out is None:
        raise DataError("`test`: not a pair of features and labels, nor a part between 0 and 1")
    whose = None if units is None else checks.as_array(units, "units")
    x, y = copied(checks.as_array(x, "x")), copied(checks.as_array(y, "y"))
    train = RawSplit(x, y, name, "x", "y", units=whose, units_name=unit)
    part = None
    if pair is not None:
        features, labels = (copied(checks.as_array(each, "test")) for each in pair)
        part = RawSplit(features, labels, name, "x of test", "y of test")
    whole = settle(name, train, part, None, (bounds, classes), (), hold_out=hold_out, rows_coincide=rows_coincide)
    return take_part(whole, None, records, for_training)


def settle(
    name: str,
    train: RawSplit,
    part: RawSplit | None,
    description: Description | None,
    declared: tuple[tuple[float, float] | None, int | None],
    tables: tuple[int, ...],
    *,
    hold_out: Fraction | None = None,
    rows_coincide: bool = False,
) -> Dataset:
    """Splits as they were read, checked, with their public inputs.

    Args:
        name: of the dataset.
        train, part: training and test split.
        description: if it is known.
        declared: bounds and classes.
        tables: that values are positions in.
        hold_out: part of the training records that becomes the test split, where there is none; None for no part.
        rows_coincide: whether records of both splits may be equal; those of a publication, or of other persons, may.
    """
    bounds, classes = declared
    if hold_out is not None and (part is not None or description is not None):
        raise DataError(
            f"`test` {float(hold_out):g}: holds out a part of a file of yours that has no test split; drop `test`"
        )
    published = description is not None and description.records == len(train.x)
    x, y = checks.checked_features(train), checks.checked_labels(train, empty=published)
    settled_bounds, bounds_origin = _positions(bounds, tables) if tables else _bounds(bounds, description, train, part)
    taken = y != EMPTY
    settled_classes, classes_origin = _classes(classes, description, y[taken], train)
    checks.check_range(y, settled_classes, train)
    test = None if part is None else _checked_test(train, part, settled_classes)
    units = None if train.units is None else checked_units(train, y != EMPTY)
    test_units = None if part is None or part.units is None else checked_units(part)
    if units is not None and test_units is not None and part is not None:
        check_apart(units, test_units, part)
    rows = replace(_rows(train, x, y, units), coincide=rows_coincide)
    test_rows = None
    if test is not None and part is not None:
        test_rows = replace(_rows(part, test.x, test.y, test_units), coincide=rows_coincide)
    if test_rows is not None and part is not None:
        said = published and part.source == train.source  # a publication says that its splits are separate
        if not (said or rows_coincide or (units is not None and test_units is not None)):
            _check_separate(rows, test_rows, name, train, part)
    whole = Dataset(
        name=name,
        train=Split(x, y),
        test=test,
        classes=settled_classes,
        bounds=settled_bounds,
        records=len(y),
        classes_origin=classes_origin,
        records_origin="described" if published else "counted",
        rows=rows,
        test_rows=test_rows,
        known=description is not None,
        published=published,
        tables=tables,
        tables_origin="counted" if description is not None and tables else "declared",
        bounds_origin=bounds_origin,
        units=None if units is None else _codes(units, y),
        units_name="" if train.units is None else train.units_name,
        part=Part(name),
        test_part=Part(f"{name} (test)"),
    )
    return whole if hold_out is None else _with_test(whole, hold_out)


def _with_test(whole: Dataset, hold_out: Fraction) -> Dataset:
    """Both splits of a file that is cut in two by a public hash of each record, or person.

    So one record, or person, more or less changes one of the two parts, and the part that is trained on is a dataset as if
    somebody had cut the file in two. Nothing is promised for those that are held out, as for any test records.
    """
    out = held_out(whole.rows, hold_out)
    if out.all() or not out.any():
        raise DataError(
            f"`test`: of so few records of {whole.name} that part is nobody, or everybody; name a test file"
        )
    train, test = (_some(whole, np.flatnonzero(which)) for which in (~out, out))
    (cut, columns), at = whole.rows.cut, int(hold_out * HASHES)
    return replace(
        train,
        test=test.train,
        test_rows=test.rows,
        part=Part(whole.name, None, columns, cut, at, HASHES),
        test_part=Part(whole.name, None, columns, cut, 0, at),
        records=len(train.train),
        hold_out=float(hold_out),
    )


def _some(whole: Dataset, index: np.ndarray, rows: np.ndarray | None = None) -> Dataset:
    """The records at some places, and of ``rows`` those at the same places unless they stand at others there."""
    kept = whole.rows.taken(index if rows is None else rows)
    x = kept.x if whole.rows.x is whole.train.x else gathered(whole.train.x, index, to_stay=True)
    return replace(
        whole,
        train=Split(x, whole.train.y[index]),
        units=None if whole.units is None else whole.units[index],
        rows=kept,
        file=whole.rows if whole.file is None else whole.file,
    )


def _codes(units: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Whose each training record is, as numbers; ``EMPTY`` of places without one."""
    codes = np.full(len(y), EMPTY, dtype=np.int64)
    codes[y != EMPTY] = np.unique(units, return_inverse=True)[1]
    return codes


def take_part(whole: Dataset, subset: str | None, records: int | None, for_training: bool) -> Dataset:
    """The part of a dataset that was asked for, and as many records as were declared.

    Args:
        whole: the dataset.
        subset: the part, such as ``0:1000``; None for the whole.
        records: public number of training records; None for what the dataset says itself.
        for_training: whether there must be something to learn.

    Raises:
        DataError: a part that there is not, or, for training, fewer records than classes or a single class.
    """
    cut = _cut(whole, subset)
    if for_training:
        checks.check_trainable(cut.train.y, whole.classes, whole.name, subset)
    return cut if records is None else replace(cut, records=records, records_origin="declared")


def _cut(whole: Dataset, subset: str | None) -> Dataset:
    """Some of the records, with the public size that this part has.

    Of a described dataset that follows from the description alone: how many hashes fall into a part is private. Of others it
    is counted on the part, so that no record outside of it has a say.
    """
    y, part, records = whole.train.y, whole.part, whole.records
    taken = y != EMPTY  # an empty place moves nobody: it counts, and is never drawn
    inside = taken
    if subset is not None:
        asked = parse_subset(
            subset, whole.name, hashed=whole.rows.cut, places=len(whole.train) if whole.published else None
        )
        if asked.stop <= part.start:
            raise DataError(f"`subset` {subset}: that part of {whole.name} is held out (`test`); take another")
        if asked.cut != "whole":
            part = replace(asked, start=max(part.start, asked.start))
        if part.cut == "place":
            inside = np.zeros_like(taken)
            inside[part.start : part.stop] = taken[part.start : part.stop]
            records = part.stop - part.start
        elif part.cut != "whole":
            hashes = whole.rows.cut_hashes()
            inside = taken.copy()
            inside[taken] = (hashes >= part.start) & (hashes < part.stop)
            described = whole.records_origin == "described"
            share = (part.stop - part.start) / HASHES
            records = max(1, math.floor(share * records)) if described else int(inside.sum())
    if not inside.any():
        raise DataError(f"`subset`: no record of {whole.name} falls into that part; take a wider one")
    if inside.all():
        return replace(whole, part=part, records=records)
    return replace(_some(whole, np.flatnonzero(inside), (np.cumsum(taken) - 1)[inside]), part=part, records=records)


def _rows(raw: RawSplit, x: np.ndarray, y: np.ndarray, units: np.ndarray | None) -> Rows:
    """What identifies the records of a split: what the file holds, whatever is made of it, and whose it says they are."""
    taken, ragged, columns = y != EMPTY, raw.ragged, raw.columns
    if raw.full is not None:
        x, columns = raw.full
        y = y if raw.label_numbers is None else raw.label_numbers
    if not taken.all():
        x, y = x[taken], y[taken]
        ragged = None if ragged is None else texts_of(*ragged, np.flatnonzero(taken))
    places = None if taken.all() else np.flatnonzero(taken)
    name = "" if units is None else raw.units_name
    return Rows(x, y, columns, raw.label, ragged, units=units, units_name=name, places=places)


def check_name(name: object) -> None:
    """Raises DataError unless records, or what is made of them, can be called that in a ledger."""
    if not (isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable()):
        raise DataError("name", name, f"a printable text of at most {MAX_NAME} characters")


Declared = tuple[tuple[float, float] | None, int | None, int | None]
"""Bounds, classes and records; None is what was not declared."""


def declared_facts(bounds: tuple[float, float] | None, classes: int | None, records: int | None) -> Declared:
    """Facts about the records as plain numbers.

    Args:
        bounds: public range of the features, low and high.
        classes: number of classes, 2 or more.
        records: public number of training records, 1 or more.

    Raises:
        DataError: one is out of range, or no number.
    """
    if bounds is not None:
        bounds = _pair(bounds)
        affine(bounds)
    classes = None if classes is None else whole_number("classes", classes)
    records = None if records is None else whole_number("records", records)
    if classes is not None and classes < 2:
        raise DataError(f"`classes` {classes}: must be 2 or more; pass the number of classes K")
    if records is not None and records < 1:
        raise DataError(f"`records` {records}: must be 1 or more; pass the public number of training records")
    return bounds, classes, records


def _pair(bounds: Any) -> tuple[float, float]:
    ends = list(bounds) if isinstance(bounds, (tuple, list, np.ndarray)) else []
    if len(ends) == 2 and all(isinstance(end, numbers.Real) and not isinstance(end, bool) for end in ends):
        with contextlib.suppress(OverflowError):  # a whole number beyond all others
            return float(ends[0]), float(ends[1])
    raise DataError("bounds", bounds, "a pair of numbers", "pass the public range of the features, (low, high)")


def _checked_test(train: RawSplit, test: RawSplit, classes: int) -> Split:
    x, y = checks.checked_features(test), checks.checked_labels(test)
    checks.check_same_features(train, test)
    checks.check_range(y, classes, test)
    return Split(x, y)


_BY_TYPE: dict[str, tuple[tuple[float, float], BoundsOrigin]] = {
    "uint8": ((0.0, 255.0), "assumed"),
    "bool": ((0.0, 1.0), "type"),
}
"""Bounds that nobody gave: what a byte can hold, which its values need not use, and what truth values are."""


def _positions(
    declared: tuple[float, float] | None, tables: tuple[int, ...]
) -> tuple[tuple[float, float], BoundsOrigin]:
    if declared is not None:
        raise DataError("`bounds`: is for quantities, and these records hold positions in a table; drop `bounds`")
    return (0.0, float(tables[0] - 1)), "declared"


def _bounds(
    declared: tuple[float, float] | None, description: Description | None, train: RawSplit, test: RawSplit | None
) -> tuple[tuple[float, float], BoundsOrigin]:
    if declared is not None:
        return (float(declared[0]), float(declared[1])), "declared"
    if description is not None and description.bounds is not None:
        return description.bounds, "described"
    dtype = train.x.dtype
    if test is not None and test.x.dtype != dtype:
        raise DataError(
            f"{test.source}: {test.x_name} is {test.x.dtype} but {train.x_name} is {dtype}; "
            "store both alike or pass `bounds` LO,HI"
        )
    if dtype.name not in _BY_TYPE:
        raise DataError(
            f"{train.source}: {train.x_name} is {dtype}, which has no public range; pass `bounds` LO,HI, "
            "since scaling by the data's own minimum and maximum would leak them"
        )
    return _BY_TYPE[dtype.name]


def _classes(
    declared: int | None, description: Description | None, y: np.ndarray, train: RawSplit
) -> tuple[int, Origin]:
    if declared is not None:
        return declared, "declared"
    if description is not None and description.classes is not None:
        return description.classes, "described"
    return checks.count_classes(y, train), "counted"


def _check_separate(rows: Rows, test_rows: Rows, name: str, train: RawSplit, test: RawSplit) -> None:
    """Raises DataError if training records are in the test split: accuracy there would be a free look at private records."""
    shared = len(test_rows.shared(rows))
    if shared:
        raise DataError(
            f"`test`: {name}: {shared} of the {len(test_rows)} records of {test.source} are training records of"
            f" {train.source}, so accuracy there would show private records; take them out, measure with `eval_private`, or"
            " say `rows_coincide` where records of different people may well be equal"
        )


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


_HELD_OUT = re.compile(r"0?\.[0-9]{1,9}")
_NUMBER = re.compile(r"[-+0-9.,eE/]*[0-9][-+0-9.,eE/]*%?")


def parse_fraction(test: str | None) -> Fraction | None:
    """The part of the records that ``test`` holds out; None where it names a file, or nothing.

    Raises:
        DataError: it is no part.
    """
    if test is None or not _HELD_OUT.fullmatch(test):
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
