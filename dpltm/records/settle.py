"""From what a file or arrays hold to a checked ``Dataset``: its public inputs settled, its splits apart, cut to a part."""

from __future__ import annotations

import contextlib
import math
import numbers
import re
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from dpltm.errors import DataError, whole_number
from dpltm.privacy.checks import check_delta_of
from dpltm.privacy.entry import HASHES, Cut, Part
from dpltm.records.catalogue import Description
from dpltm.records.dataset import LEVELS, BoundsOrigin, Dataset, Form, Origin, RawSplit
from dpltm.records.input_parts import differences
from dpltm.records.scaling import affine
from dpltm.records.split import Arrays, Rows, Split
from dpltm.records.units import checked_units

MAX_NAME = 200
"""Characters of the name of a dataset, or of a ticket set."""

EMPTY = -1
"""Label of a place that a published file fixes and that holds no record: whoever stood there was taken out."""

VALUES = 0
"""Number of classes where labels are values of any shape, and no class numbers: quantities, several, those of tokens."""

_LABEL_LIMIT = 2**31


# public inputs


def check_name(name: object) -> None:
    """Raise DataError unless records, or what is made of them, can be called that in a ledger."""
    if not (isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable()):
        raise DataError("name", name, f"a printable text of at most {MAX_NAME} characters")


@dataclass(frozen=True)
class Declared:
    """Public facts about records that somebody declared (see :func:`dpltm.records.load`), as plain numbers, or None.

    DataError for one that is out of range, or no number. ``classes`` is ``VALUES`` where labels are no class numbers.
    """

    bounds: tuple[float, float] | None = None
    classes: int | None = None
    records: int | None = None
    target_bounds: tuple[float, float] | None = None
    rows_coincide: bool = False

    def __post_init__(self) -> None:
        if self.bounds is not None:
            object.__setattr__(self, "bounds", bounds := _pair("bounds", self.bounds))
            affine(bounds)
        if self.target_bounds is not None:
            check_none("`target_bounds` says that labels are numbers", classes=self.classes)
            low, high = target = _pair("target_bounds", self.target_bounds)
            if not (low < high and math.isfinite(high - low)):
                raise DataError(f"`target_bounds`: {target} is not a pair of finite numbers, the lower first")
            object.__setattr__(self, "target_bounds", target)
        for name, least in (("classes", 2), ("records", 1)):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, number := whole_number(name, value))
                if number < least and (name, number) != ("classes", VALUES):
                    raise DataError(f"`{name}` {number}: must be {least} or more; pass the public number of {name}")


def _pair(name: str, value: object) -> tuple[float, float]:
    ends = list(value) if isinstance(value, (tuple, list, np.ndarray)) else []
    with contextlib.suppress(OverflowError):  # of a whole number beyond all floats
        if len(ends) == 2 and all(isinstance(end, numbers.Real) and not isinstance(end, bool) for end in ends):
            return float(ends[0]), float(ends[1])
    raise DataError(name, value, "a pair of numbers", "pass the public range, (low, high)")


IN_SCHEMA = "the schema says what the columns hold"
"""Why nobody else says it."""


def check_none(why: str, **facts: object) -> None:
    """Raise DataError for a fact that was given, with ``why`` nobody says it."""
    for name, value in facts.items():
        if value is not None:
            raise DataError(f"`{name}`: {why}; drop `{name}`")


def check_delta(delta: float, dataset: Dataset) -> None:
    """Raise InputError unless 0 < delta < 1/n: at 1/n, publishing a random record would pass.

    The described number is used as it is: in a part by hash the true one, which is private, differs from it by little.
    """
    described = dataset.records_origin == "described"
    check_delta_of(delta, dataset.records, dataset.records if described else len(dataset.train), dataset.unit)


_BY_TYPE: dict[str, tuple[tuple[float, float], BoundsOrigin]] = {
    "uint8": ((0.0, 255.0), "assumed"),
    "bool": ((0.0, 1.0), "type"),
}
"""Bounds that nobody gave: what a byte can hold, which its values need not use, and what truth values are."""


def _bounds(
    declared: tuple[float, float] | None, description: Description | None, train: RawSplit, test: RawSplit | None
) -> tuple[tuple[float, float], BoundsOrigin]:
    quantities = {part.dtype for part in train.parts if not part.words}
    if train.schema.columns:
        return (0.0, 1.0), "declared"
    if train.tables or (train.parts and not quantities):
        check_none("is for quantities, and these records hold positions in a table", bounds=declared)
        return (0.0, float(train.tables[0] - 1) if train.tables else 1.0), "declared"
    octets = [part.name for part in train.parts if part.dtype == "uint8" and not part.words]
    if octets and len(quantities) > 1:
        where = f"{train.source}: {train.x_name}[{octets[0]!r}]"
        raise DataError(f"{where} holds bytes beside quantities of another type; give floats of one range")
    if declared is not None:
        return declared, "declared"
    if description is not None:
        return description.bounds, "described"
    dtype = train.x.dtype if len(quantities) != 1 else np.dtype(quantities.pop())
    if test is not None and not train.parts and test.x.dtype != dtype:
        raise DataError(f"{test.source}: {test.x_name} is {test.x.dtype}; store it as {dtype}, or pass `bounds`")
    if dtype.name not in _BY_TYPE:
        raise DataError(f"{train.source}: {train.x_name} is {dtype}, which has no public range; pass `bounds` LO,HI")
    return _BY_TYPE[dtype.name]


def _classes(
    declared: int | None, description: Description | None, y: np.ndarray, raw: RawSplit
) -> tuple[int, Origin]:
    """Return the number of classes; counted on the labels, each number below the largest must occur."""
    if raw.schema.columns:
        return max(2, len(raw.schema.label.values)), "declared"  # fewer where they are to be found yet
    if declared is not None:
        return declared, "declared"
    if description is not None:
        return description.classes, "described"
    seen = np.unique(y)
    if seen[-1] != len(seen) - 1:
        gap = int(np.argmax(seen != np.arange(len(seen))))
        raise DataError(
            f"{raw.source}: {raw.y_name} goes up to {seen[-1]}, but no record has label {gap}; number the classes without"
            f" gaps or pass `classes` {seen[-1] + 1}{OTHER_LABELS}"
        )
    return len(seen), "counted"


# checked splits


def settle(
    name: str,
    train: RawSplit,
    test: RawSplit | None = None,
    declared: Declared = Declared(),  # frozen
    *,
    description: Description | None = None,
    hold_out: Fraction | None = None,
    subset: str | None = None,
    for_training: bool = False,
) -> Dataset:
    """Return splits as they were read as a dataset: checked, with their public inputs, cut to a part.

    ``hold_out`` is the part of the training records that becomes the test split, where there is none. Others: see ``load``.
    """
    if hold_out is not None and (test is not None or description is not None):
        raise DataError(f"`test` {float(hold_out):g}: is for a file of yours that has no test split; drop `test`")
    published = description is not None and description.records == len(train.x)
    target = train.schema.target if train.schema.columns else declared.target_bounds
    valued = declared.classes == VALUES
    split, places = _checked(train, Part(name), target, valued, empty=published)
    bounds, bounds_origin = _bounds(declared.bounds, description, train, test)
    known_classes = declared.classes if target is None else 2
    classes, classes_origin = _classes(known_classes, description, split._closed.y, train)
    if target is None:
        _check_range(split, classes, train)
    tested = None
    if test is not None:
        test = test.in_order(train.columns, train.source)
        tested, _ = _checked(test, Part(f"{name} (test)"), target, valued)
        if other := differences(train.parts, test.parts):
            raise DataError(f"{test.source}: records of {test.x_name} {other}; give both splits the same parts")
        for name_of, form, expected in (
            (test.x_name, f"records of shape {tested.shape}", f"records of shape {split.shape}"),
            (test.y_name, str(tested.labels), str(split.labels)),
        ):
            if form != expected:
                raise DataError(f"{test.source}: {name_of} has {form}; give {expected}, as in training")
        if target is None:
            _check_range(tested, classes, test)
        apart = published and test.source == train.source  # a publication says that its splits are separate
        tested = replace(tested, nobodys=apart)
        _check_separate(name, split.rows, tested.rows, train, test, apart or declared.rows_coincide)
    dataset = Dataset(
        name=name,
        train=split,
        test=tested,
        classes=classes,
        bounds=bounds,
        records=len(train.x) if published else len(split),
        classes_origin=classes_origin,
        records_origin="described" if published else "counted",
        lineage=train.schema.lineage,
        catalogued=description is not None,
        _places=places if published else None,
        bounds_origin=bounds_origin,
        target=target,
        **{name: getattr(train, name) for name in Form.__dataclass_fields__},
    )
    dataset = _cut(dataset, hold_out, subset, declared.records)
    if for_training:
        _check_trainable(dataset.train._closed.y, dataset, subset)
    return dataset


def _checked(
    raw: RawSplit, part: Part, target: tuple[float, float] | None, valued: bool, empty: bool = False
) -> tuple[Split, np.ndarray]:
    """Return the records of a split, with what identifies them, and the place of each; those that are there alone."""
    x = checked_features(raw)
    y = _labels(raw, target, valued, empty)
    rows = Rows(x, y if target is None else np.asarray(raw.y)) if raw.rows is None else raw.rows
    if rows._cells is raw.x:  # one array for both where they are the same
        rows = rows.known_by(x)
    split = Split(Arrays(x, y), rows, part, valued=valued)
    places = np.arange(len(y)) if valued else np.flatnonzero(y != EMPTY)
    if len(places) < len(y):
        split = replace(split.taken(places), file=None)
    if raw.units is not None:
        split = replace(split, rows=split.rows.owned(checked_units(raw, places), raw.units_name))
    return split, places


def checked_features(raw: RawSplit) -> np.ndarray:
    """Return features in native byte order, contiguous, known to be real and finite, and as many as their labels."""
    x = raw.x
    where = f"{raw.source}: {raw.x_name}"
    if x.dtype.kind not in "biuf" or x.dtype.itemsize > 8:
        raise DataError(f"{where} has dtype {x.dtype}; give numbers of 64 bits or fewer, and rows of one length")
    if x.ndim < 2 or x.size == 0:
        raise DataError(f"{where} has shape {x.shape}; expected (records, features...), of both at least one")
    if raw.y is not None and len(x) != (labels := len(np.atleast_1d(raw.y))):
        raise DataError(f"{where} has {len(x)} records but {raw.y_name} has {labels} labels; give one label a record")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        flat = x.reshape(len(x), -1)
        record, feature = np.argwhere(~np.isfinite(flat))[0]
        column = f"column {raw.columns[feature]!r}" if raw.columns else f"feature {feature}"
        raise DataError(
            f"{where} has {flat[record, feature]} at record {record}, {column} (counted from 0); features must be finite"
        )
    return np.ascontiguousarray(x, x.dtype.newbyteorder("="))


OTHER_LABELS = (
    "; declare the public range of a number to be predicted by `target_bounds` LO,HI; in Python, a network of your own takes"
    " other labels with `loss=`, one value each (integers: `classes=0`)"
)
"""What to do with labels that are no class numbers."""


def _labels(raw: RawSplit, target: tuple[float, float] | None, valued: bool, empty: bool) -> np.ndarray:
    """Return class numbers, or ``EMPTY``; levels of a target's range; or values of any shape, int64 or finite float32."""
    y, where = np.asarray(raw.y), f"{raw.source}: {raw.y_name}"
    if y.dtype.kind not in "biuf" or y.dtype.itemsize > 8 or y.ndim == 0 or (not valued and y.ndim > 1):
        what = "numbers of 64 bits or fewer, a row a record" if valued else f"one number a record{OTHER_LABELS}"
        raise DataError(f"{where} has dtype {y.dtype} and shape {y.shape}; give {what}")
    # half-precision numbers cannot be compared with the limit
    values = y.astype(np.float64) if y.dtype.kind == "f" else y
    if valued:
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(y, "f4" if y.dtype.kind == "f" else "i8")
        right, fix = np.isfinite(values).reshape(len(y), -1).all(1), "a label must be finite in float32"
    elif target is not None:
        right, fix = np.isfinite(values), "a target must be finite"
        low, high = target
        values = np.rint((np.clip(values.astype(np.float64), low, high) - low) / (high - low) * LEVELS)
    else:  # NaN fails every comparison: so ask for what is right
        right = (values >= 0) & (values < _LABEL_LIMIT) & (np.floor(values) == values) | (empty & (values == EMPTY))
        fix = f"number classes 0 to K-1{OTHER_LABELS}"
    if not right.all():
        record = int(np.argmin(right))
        raise DataError(f"{where} has label {y[record]!s:.60} at record {record} (counted from 0); {fix}")
    return values if valued else values.astype(np.int64)


def _check_range(split: Split, classes: int, raw: RawSplit) -> None:
    y = split._closed.y
    if classes != VALUES and (outside := y >= classes).any():
        record = int(np.argmax(outside))
        where = f"{raw.source}: {raw.y_name} has label {y[record]} at record {record}"
        raise DataError(f"{where}, but there are {classes} classes, numbered from 0; correct it or `classes`")


def _check_separate(
    name: str, rows: Rows, test_rows: Rows, train: RawSplit, test: RawSplit, may_coincide: bool
) -> None:
    """Raise DataError if training records, or their persons, are in the test split: a free look at private records."""
    of_persons = rows._units is not None and test_rows._units is not None
    if not of_persons and may_coincide:
        return
    trained, tested = (split_rows.identities(of_persons=of_persons) for split_rows in (rows, test_rows))
    if of_persons and len(shared := np.intersect1d(trained, tested)):
        raise DataError(
            f"{test.source}: {len(shared)} of the {len(np.unique(tested))} values of {test.units_name!r} are in the training"
            " split too, so accuracy there would show what is protected; keep all records of one on one side"
        )
    if not of_persons and (count := int(np.isin(tested, trained).sum())):
        raise DataError(
            f"`test`: {name}: {count} of the {len(test_rows)} records of {test.source} are training records of"
            f" {train.source}, so accuracy there would show private records; take them out, measure with `eval_private`, or"
            " say `rows_coincide` where records of different people may well be equal"
        )


# parts


MOST_EQUAL = 0.2
"""Part of a table's records that may equal another, label and all: of few values, labels would decide who is in a part."""


def _cut_hashes(dataset: Dataset, option: str) -> np.ndarray:
    """Return the public hashes that records are cut by; DataError for a table many of whose records are equal."""
    hashes, rows = dataset.rows.cut_hashes(), dataset.rows
    if rows.columns is None or rows.units_name:  # arrays, which are long to sort, and persons
        return hashes
    times = np.unique(hashes, return_counts=True)[1]
    if times[times > 1].sum() > MOST_EQUAL * len(hashes):
        raise DataError(
            f"{option}: many records of {dataset.name} are equal, label and all, and equal ones are in one part, so labels"
            " would differ between parts; add a column 'id' that numbers them, of kind \"ignored\" in a schema,"
            " or name a test file"
        )
    return hashes


def _cut(dataset: Dataset, hold_out: Fraction | None, subset: str | None, records: int | None) -> Dataset:
    """Return a part of a dataset, such as ``0.5:1.0``, without what a public hash of each record, or person, holds out.

    The size of a part of a described dataset follows from the description: how many hashes fall into it is private. It
    is counted on parts of others. From declared ``records`` the share that is held out for the test is taken off.
    """
    name, split, places = dataset.name, dataset.train, dataset._places
    size = dataset.records
    cut, columns = split.rows.cut
    part = Part(name)
    begin = int((hold_out or 0) * HASHES)
    inside = np.ones(len(split), dtype=bool)
    if subset is not None:
        part = parse_subset(subset, name, hashed=(cut, columns), places=None if places is None else size)
        if part.stop <= begin:
            raise DataError(f"`subset` {subset}: that part of {name} is held out (`test`); take another")
    if part.cut == "place":
        assert places is not None
        inside = (places >= part.start) & (places < part.stop)
        size = part.stop - part.start  # an empty place is never drawn, but counts
    elif hold_out is not None or part.cut != "whole":
        hashes = _cut_hashes(dataset, f"`subset` {subset}" if hold_out is None else f"`test` {float(hold_out):g}")
        first, stop = (0, HASHES) if part.cut == "whole" else (part.start, part.stop)
        part = Part(name, None, columns, cut, max(begin, first), stop)
        if hold_out is not None:
            out = hashes < begin
            if out.all() or not out.any():
                raise DataError(f"`test`: that part of {name} is nobody, or everybody; take another, or name a file")
            test = replace(split.taken(np.flatnonzero(out)), part=Part(name, None, columns, cut, 0, begin))
            dataset = replace(dataset, test=test)
        inside = (hashes >= part.start) & (hashes < part.stop)
        described = dataset.records_origin == "described"
        size = max(1, math.floor((part.stop - part.start) / HASHES * size)) if described else int(inside.sum())
        records = None if records is None else max(1, records * (part.stop - part.start) // (stop - first))
    if not inside.any():
        raise DataError(f"`subset`: no record of {name} falls into that part; take a wider one")
    return replace(
        dataset,
        train=replace(split if inside.all() else split.taken(np.flatnonzero(inside)), part=part),
        records=size if records is None else records,
        records_origin=dataset.records_origin if records is None else "declared",
        _places=None if places is None else places[inside],
    )


def _check_trainable(y: np.ndarray, dataset: Dataset, subset: str | None) -> None:
    """Raise DataError unless there are as many records as classes, of two classes or more, or several targets."""
    where = dataset.name if subset is None else f"`subset` {subset}: {dataset.name}"
    if dataset.classes == VALUES:
        return
    if len(y) < dataset.classes:
        raise DataError(f"{where} has fewer records than its {dataset.classes} classes; give as many or more")
    if (y == y[0]).all():
        fix = "of two classes or more" if dataset.target is None else "of several targets inside of `target_bounds`"
        raise DataError(f"{where} has one label in all of its records; give records {fix}, or a wider `subset`")


_PLACE = re.compile(r"[0-9]{1,18}")
_FRACTION = re.compile(r"[0-9]{0,18}\.[0-9]{1,9}|[0-9]{1,18}\.|[01]")


def parse_subset(
    text: str, name: str, *, hashed: tuple[Cut, tuple[str, ...]] = ("record", ()), places: int | None = None
) -> Part:
    """Return the part of the records that ``text`` names.

    Args:
        text: ``FRACTION`` in (0, 1]; ``A:B`` in fractions, of which one has a decimal point; or ``A:B`` in places, from 0.
            A missing end is that of the file.
        hashed: the cut that fractions are of, and the columns that its hash is taken by.
        places: how many places the published file fixes; None where nothing fixes them.

    Guarantees:
        Fractions are of public hashes (``Rows.cut_hashes``): a record, or person, more or less changes the one part that its
        hash falls into. ``A:B`` and ``B:C`` are disjoint and together are ``A:C``. Places are taken only where a publication
        says who stands where: the neighbour has one place empty, and nobody moves.
    """
    head, colon, tail = text.partition(":") if ":" in text else ("0", "", text)
    of_hashes = not colon or "." in text  # without a colon "500" could mean too many things
    form = _FRACTION if of_hashes else _PLACE
    if not text or not all(form.fullmatch(end) for end in (head, tail) if end):
        raise DataError(
            f"`subset` {text!r:.80}: expected FRACTION in (0, 1] such as 0.1, START:STOP in fractions such as 0.5:1.0, or in"
            " places of a named dataset such as 0:5000"
        )
    if of_hashes:
        first, last = Fraction(head or 0), Fraction(tail or 1)
        if not 0 <= first < last <= 1:
            raise DataError(f"`subset` {text}: give fractions between 0 and 1, the smaller one first")
        if first == 0 and last == 1:
            return Part(name)
        cut, columns = hashed
        return Part(name, None, columns, cut, int(first * HASHES), int(last * HASHES))
    if places is None:
        raise DataError(
            f"`subset` {text}: places count only where a published file fixes them, and nothing does in {name}; give"
            " fractions such as 0.0:0.5, which a public hash of each record decides"
        )
    start, stop = int(head or 0), int(tail or places)
    if not 0 <= start < stop <= places:
        raise DataError(f"`subset` {text}: {name} has records 0 to {places}; give a range inside that is not empty")
    return Part(name, None, (), "place", start, stop)


def parse_fraction(test: str | None) -> Fraction | None:
    """Return the part of the records that ``test`` holds out; None where it names a file, or nothing."""
    return Fraction(test) if test is not None and re.fullmatch(r"0?\.[0-9]{1,9}", test) else None
