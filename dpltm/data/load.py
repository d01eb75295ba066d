"""From a name or a path to a checked ``Dataset``."""

from __future__ import annotations

import contextlib
import difflib
import math
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from dpltm.data import checks, openml
from dpltm.data.catalogue import Description, catalogue
from dpltm.data.checks import EMPTY
from dpltm.data.dataset import Dataset, Origin, Split
from dpltm.data.files import SUFFIXES, RawSplit, read_file, read_records, read_test
from dpltm.data.rating_sets import find_ratings, is_ratings
from dpltm.data.ratings import STARS, held_out
from dpltm.data.rows import Rows, count_shared
from dpltm.data.scaling import affine
from dpltm.data.subset import WHOLE, Part, parse_subset
from dpltm.data.tokens import Layout, check_positions, texts_of
from dpltm.errors import DataError

_DIGITS_TEST_EVERY = 5

KEPT = 3
"""How many datasets are kept in a block of ``kept``."""


def load(
    dataset: str,
    *,
    label: str | None = None,
    bounds: tuple[float, float] | None = None,
    classes: int | None = None,
    records: int | None = None,
    subset: str | None = None,
    test: str | None = None,
    words: int | None = None,
    length: int | None = None,
    users: int | None = None,
    items: int | None = None,
    home: Path | None = None,
    for_training: bool = True,
) -> Dataset:
    """Read a dataset, check every record and settle its public inputs.

    A public input (bounds, classes, records) is the one declared here, else the one in the description of a known
    dataset, else read off the data: the dtype's range for bytes and booleans, a count for classes and records.

    Args:
        dataset: a name (see ``catalogue``, or ``NAME`` for any ``NAME.npz`` in the data home), or a path: a string
            with a path separator or that ends in ``.npz``, ``.csv``, ``.parquet`` or, of ratings, ``.dat``.
        label: the label column of a ``.csv`` or ``.parquet`` file.
        bounds: finite ``(low, high)`` of every feature.
        classes: number of classes, 2 or more.
        records: public number of training records, after ``subset``; 1 or more.
        subset: the part of the training records to use, see ``parse_subset``.
        test: path of the test split, of the same kind as ``dataset``, where that has none of its own.
        words: public size of the table that words are looked up in, see ``dpltm.data.tokens``; for a file of features, says
            that they are such positions.
        length: how many words of a text are kept.
        users, items: public sizes of the tables of a file of ratings.
        home: the data home, instead of ``data_home()``.
        for_training: whether there must be something to learn; one record will do otherwise.

    Returns:
        The dataset; ``x`` as stored, views where ``subset`` cuts.

    Raises:
        DataError: anything about the arguments or the data is not what it must be.
    """
    _check_declared(bounds, classes, records)
    if is_ratings(dataset):
        flags = {"label": label, "bounds": bounds, "classes": classes, "test": test, "words": words, "length": length}
        whole = _rated(dataset, home or data_home(), users, items, flags)
        return _part(whole, subset, records, for_training)
    if users is not None or items is not None:
        raise DataError(f"`users`, `items`: are for ratings (.dat), and {dataset} is none; drop them")
    home, keeper = home or data_home(), _keeper.get()
    asked = (dataset, label, bounds, classes, test, words, length, home)
    if keeper is None:
        return _part(_whole(*asked), subset, records, for_training)
    stamps = tuple(_stamp(path) for path in (Path(dataset), home / f"{dataset}.npz", Path(test or "")))
    return _part(keeper(stamps, *asked), subset, records, for_training)


_keeper: ContextVar[Callable[..., Dataset] | None] = ContextVar("keeper", default=None)
"""What reads in a block of ``kept``: as ``_read_only``."""


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """In this block a file is read and checked once, for stages and members that come back to the same records.

    What is loaded shares its arrays, which are marked read-only. The last ``KEPT`` datasets stay in memory; one is read
    again when the size or the time of its file changes, and ratings are read every time.
    """
    token = _keeper.set(lru_cache(maxsize=KEPT)(_read_only))
    try:
        yield
    finally:
        _keeper.reset(token)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Time and size of a file; None where there is none."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return (found.st_mtime_ns, found.st_size) if stat.S_ISREG(found.st_mode) else None


def _read_only(_stamps: object, *asked: Any) -> Dataset:
    """As :func:`_whole`, in arrays that are marked read-only; ``_stamps`` tell versions of a file apart."""
    found = _whole(*asked)
    for split in (found.train, found.test):
        if split is not None:
            split.x.flags.writeable = split.y.flags.writeable = False
    return found


def _whole(
    dataset: str,
    label: str | None,
    bounds: tuple[float, float] | None,
    classes: int | None,
    test: str | None,
    words: int | None,
    length: int | None,
    home: Path,
) -> Dataset:
    """A dataset with all its records, read and checked; as :func:`load`."""
    given = {"words": words, "length": length}
    layout = Layout(**{name: value for name, value in given.items() if value is not None})
    description, name, train, part = _read(dataset, label, home, layout)
    part = _test_split(dataset, train, part, test, label, layout)
    tables = _tables(train, part, words, length, layout)
    return _settled(name, train, part, description, (bounds, classes), tables, separate=test is None)


def from_arrays(
    x: np.ndarray,
    y: np.ndarray,
    *,
    test: tuple[np.ndarray, np.ndarray] | None = None,
    bounds: tuple[float, float] | None = None,
    classes: int | None = None,
    records: int | None = None,
    name: str = "records",
    for_training: bool = True,
) -> Dataset:
    """A dataset of arrays: every record checked, its public inputs settled as by :func:`load`.

    Args:
        x: features, ``(n, ...)``, bytes, booleans or finite numbers.
        y: labels, ``(n,)``, from 0 to the number of classes - 1.
        test: features and labels of the test split, declared separate.
        bounds: finite ``(low, high)`` of every feature; needed unless they are bytes or booleans.
        classes: public number of classes; counted on the labels if None, and noted.
        records: public number of records; counted if None, and noted.
        name: what messages and the ledger call them.
        for_training: whether something is learned from them; otherwise one record will do.

    Raises:
        DataError: anything about the arguments or the data is not what it must be.
    """
    _check_declared(bounds, classes, records)
    train = RawSplit(np.asarray(x), np.asarray(y), name, "x", "y")
    part = None if test is None else RawSplit(np.asarray(test[0]), np.asarray(test[1]), name, "x of test", "y of test")
    return _part(_settled(name, train, part, None, (bounds, classes), (), separate=False), None, records, for_training)


def _settled(
    name: str,
    train: RawSplit,
    part: RawSplit | None,
    description: Description | None,
    declared: tuple[tuple[float, float] | None, int | None],
    tables: tuple[int, ...],
    *,
    separate: bool,
) -> Dataset:
    """Splits as they were read, checked, with their public inputs.

    Args:
        name: of the dataset.
        train, part: training and test split.
        description: if it is known.
        declared: bounds and classes.
        tables: that values are positions in.
        separate: whether both splits come from one source, whose publication, if it has one, says that they are separate.
    """
    bounds, classes = declared
    published = description is not None and description.records == len(train.x)
    x, y = checks.checked_features(train), checks.checked_labels(train, empty=published)
    settled_bounds = _positions(bounds, tables) if tables else _bounds(bounds, description, train, part)
    taken = y != EMPTY
    settled_classes, classes_origin = _classes(classes, description, y[taken], train)
    checks.check_range(y, settled_classes, train)
    held_out = None if part is None else _checked_test(train, part, settled_classes)
    rows = _rows(train, x, y)
    test_rows = None if held_out is None or part is None else _rows(part, held_out.x, held_out.y)
    if (
        test_rows is not None and part is not None and not (published and separate)
    ):  # a publication says that its splits are separate
        _check_separate(rows, test_rows, name, train, part)
    return Dataset(
        name=name,
        train=Split(x, y),
        test=held_out,
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
    )


def _rows(raw: RawSplit, x: np.ndarray, y: np.ndarray) -> Rows:
    """What identifies the records of a split; of texts what the file holds, whatever is kept of it."""
    taken, ragged = y != EMPTY, raw.ragged
    if not taken.all():
        x, y = x[taken], y[taken]
        ragged = None if ragged is None else texts_of(*ragged, np.flatnonzero(taken))
    return Rows(x, y, raw.columns, raw.label, ragged)


def _part(whole: Dataset, subset: str | None, records: int | None, for_training: bool) -> Dataset:
    """The part of a dataset that was asked for, and as many records as were declared."""
    places = len(whole.train) if whole.published else None
    part = WHOLE if subset is None else parse_subset(subset, whole.name, hashed=whole.rows.cut, places=places)
    cut = _cut(whole, part)
    if for_training:
        checks.check_trainable(cut.train.y, whole.classes, whole.name, subset)
    return cut if records is None else replace(cut, records=records, records_origin="declared")


def _cut(whole: Dataset, part: Part) -> Dataset:
    """Some of the records, with the public size that this part has.

    Of a described dataset that follows from the description alone: how many hashes fall into a part is private. Of others it
    is counted on the part, so that no record outside of it has a say.
    """
    x, y = whole.train.x, whole.train.y
    described = whole.records_origin == "described"
    if part.cut == "places":
        x, y = x[part.start : part.stop], y[part.start : part.stop]
        records = len(y)
    elif part.cut != "whole":
        hashes = whole.rows.public_hashes()
        inside = np.flatnonzero(y != EMPTY)[(hashes >= part.start) & (hashes < part.stop)]
        x, y = x[inside], y[inside]
        records = max(1, math.floor(part.share * whole.records)) if described else len(y)
    else:
        records = whole.records
    taken = y != EMPTY  # an empty place moves nobody: it was counted above, and is never drawn
    if not taken.all():
        x, y = x[taken], y[taken]
    if not len(y):
        raise DataError(f"`subset`: no record of {whole.name} falls into that part; take a wider one")
    return replace(whole, train=Split(x, y), part=part, records=records)


def _rated(
    dataset: str, home: Path, users: int | None, items: int | None, flags: Mapping[str, object | None]
) -> Dataset:
    """A dataset of ratings, one a record; about one in five is a test rating, by a public hash of its user and item.

    How many that leaves to train on is private. Of a known dataset the public number is four fifths of the published one of
    all ratings, whatever there are; of a file it is counted, unless declared.

    Raises:
        DataError: an option that ratings do not have, or bad ones.
    """
    for flag, value in flags.items():
        if value is not None:
            raise DataError(f"`{flag}`: {dataset} holds ratings, which have none of that to say; drop `{flag}`")
    description, name, ratings, origin = find_ratings(dataset, home, users, items)
    out = held_out(ratings.places)
    train, test = (Split(ratings.places[part], ratings.stars[part] - 1) for part in (~out, out))
    published = description.records if description else None
    kin = name if description and description.made_up else ""
    return Dataset(
        name=name,
        train=train,
        test=test if len(test) else None,
        classes=STARS,
        bounds=(0.0, float(max(ratings.tables) - 1)),
        records=published or len(train),
        classes_origin="described",
        records_origin="described" if published else "counted",
        rows=Rows(train.x, train.y, kin=kin),
        test_rows=Rows(test.x, test.y, kin=kin) if len(test) else None,
        tables=ratings.tables,
        tables_origin=origin,
    )


def load_records(path: str, label: str | None = None, layout: Layout | None = None) -> np.ndarray:
    """Records without labels, ``(n, ...)`` as stored, known to be real and finite.

    Args:
        path: an ``.npz`` file with an array ``x`` or ``x_test``, or texts; or a ``.csv`` or ``.parquet`` file of features.
        label: a column of such a table that is no feature.
        layout: what texts become; None where only quantities will do.

    Raises:
        DataError: the file or a record is not what it must be.
    """
    return checks.checked_features(read_records(Path(path), label, layout=layout))


def data_home() -> Path:
    """The folder of dataset files: environment variable ``DPLTM_DATA``, else ``dpltm`` in the user cache folder."""
    declared = os.environ.get("DPLTM_DATA")
    return Path(declared).expanduser() if declared else cache_home()


def cache_home() -> Path:
    """The folder for what can be had again: ``dpltm`` in the user cache folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dpltm"


def _check_declared(bounds: tuple[float, float] | None, classes: int | None, records: int | None) -> None:
    if bounds is not None:
        affine(bounds)
    if classes is not None and classes < 2:
        raise DataError(f"`classes` {classes}: must be 2 or more; pass the number of classes K")
    if records is not None and records < 1:
        raise DataError(f"`records` {records}: must be 1 or more; pass the public number of training records")


def _read(
    dataset: str, label: str | None, home: Path, layout: Layout
) -> tuple[Description | None, str, RawSplit, RawSplit | None]:
    """Description if known, name, training split and its own test split if any."""
    path = Path(dataset)
    separators = {os.sep, os.altsep or os.sep}
    if separators & set(dataset) or path.suffix.lower() in SUFFIXES:
        return None, path.stem, *read_file(path, label, layout=layout)
    if label is not None:
        raise DataError(f"`label` {label}: {dataset} is a name, not a .csv or .parquet file; drop `label`")
    description = catalogue().get(dataset)
    if description is not None and description.refusal is not None:
        raise DataError(f"{dataset}: {description.refusal}")
    if dataset == "digits":
        return description, dataset, *_digits()
    file = home / f"{dataset}.npz"
    if file.is_file():
        return description, dataset, *read_file(file, None, layout=layout)
    if description is None:
        raise _unknown(dataset, home)
    if description.openml is None:
        raise DataError(
            f"{dataset}: no {dataset}.npz ({description.summary}) in {home}; put it there, or export DPLTM_DATA=FOLDER that"
            " has it"
        )
    return description, dataset, *openml.fetch(description, cache_home(), home)


def _digits() -> tuple[RawSplit, RawSplit]:
    """The digits inside scikit-learn; every fifth record is a test record, a fixed public rule."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x, y = bunch.images.astype(np.uint8), bunch.target
    held_out = np.arange(len(y)) % _DIGITS_TEST_EVERY == _DIGITS_TEST_EVERY - 1
    return (
        RawSplit(x[~held_out], y[~held_out], "digits"),
        RawSplit(x[held_out], y[held_out], "digits", "x_test", "y_test"),
    )


def _unknown(dataset: str, home: Path) -> DataError:
    names = list(catalogue())
    close = difflib.get_close_matches(dataset.lower(), names, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return DataError(
        f"`dataset` {dataset}: no such dataset; {hint}known: {', '.join(names)}; or put {dataset}.npz into {home}, "
        "or give a path that ends in .npz, .csv or .parquet"
    )


def _test_split(
    dataset: str, train: RawSplit, own: RawSplit | None, test: str | None, label: str | None, layout: Layout
) -> RawSplit | None:
    """The dataset's own test split, or the one in the file of ``test``."""
    if test is None:
        return own
    if own is not None:
        raise DataError(f"`test` {test}: {dataset} has a test split of its own; drop `test`")
    expected, given = Path(train.source).suffix.lower(), Path(test).suffix.lower()
    if given != expected:
        raise DataError(f"`test` {test}: must be a {expected} file as {train.source} is; convert one of them")
    return read_test(Path(test), label, layout)


def _checked_test(train: RawSplit, test: RawSplit, classes: int) -> Split:
    x, y = checks.checked_features(test), checks.checked_labels(test)
    checks.check_same_features(train, test)
    checks.check_range(y, classes, test)
    return Split(x, y)


def _tables(
    train: RawSplit, test: RawSplit | None, words: int | None, length: int | None, layout: Layout
) -> tuple[int, ...]:
    """The table that values are positions in; none where they are quantities."""
    if test is not None and (test.ragged is None) != (train.ragged is None):
        what = "texts" if test.ragged else "no texts"
        raise DataError(f"{test.source}: {test.x_name} holds {what}, unlike {train.x_name}; give both splits the same")
    if train.ragged is None and length is not None:
        raise DataError(
            f"`length` {length}: {train.source} holds no texts (values_train, offsets_train); drop `length`"
        )
    if train.ragged is None and words is not None:
        for split in (train, test):
            if split is not None:
                check_positions(split.x, words, f"{split.source}: {split.x_name}")
    return (layout.words,) if train.ragged is not None or words is not None else ()


def _positions(declared: tuple[float, float] | None, tables: tuple[int, ...]) -> tuple[float, float]:
    if declared is not None:
        raise DataError("`bounds`: is for quantities, and these records hold positions in a table; drop `bounds`")
    return 0.0, float(tables[0] - 1)


def _bounds(
    declared: tuple[float, float] | None, description: Description | None, train: RawSplit, test: RawSplit | None
) -> tuple[float, float]:
    if declared is not None:
        return float(declared[0]), float(declared[1])
    if description is not None and description.bounds is not None:
        return description.bounds
    dtype = train.x.dtype
    if test is not None and test.x.dtype != dtype:
        raise DataError(
            f"{test.source}: {test.x_name} is {test.x.dtype} but {train.x_name} is {dtype}; "
            "store both alike or pass `bounds` LO,HI"
        )
    by_dtype = {"uint8": (0.0, 255.0), "bool": (0.0, 1.0)}
    if dtype.name not in by_dtype:
        raise DataError(
            f"{train.source}: {train.x_name} is {dtype}, which has no public range; pass `bounds` LO,HI, "
            "since scaling by the data's own minimum and maximum would leak them"
        )
    return by_dtype[dtype.name]


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
    key = secrets.token_bytes(32)
    shared = count_shared(rows.value_hashes(key), test_rows.value_hashes(key))
    if shared:
        raise DataError(
            f"`test`: {name}: {shared} of the {len(test_rows)} records of {test.source} are training records of"
            f" {train.source}, so accuracy there would show private records; take them out, or measure with `eval_private`"
        )
