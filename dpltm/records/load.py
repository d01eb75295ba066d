"""From a name or a path to a checked ``Dataset``."""

from __future__ import annotations

import functools
import gzip
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpltm.errors import DataError, did_you_mean, whole_number
from dpltm.records import checks, openml
from dpltm.records.cache import DatasetCache
from dpltm.records.catalogue import Description, catalogue
from dpltm.records.dataset import Dataset, Split
from dpltm.records.files import (
    FOLDER,
    KINDS,
    PARTS,
    SUFFIXES,
    TABLES,
    kind_of,
    read_file,
    read_records,
    read_test,
    reading,
)
from dpltm.records.hold_out import parse_fraction
from dpltm.records.homes import cache_home, data_home
from dpltm.records.rating_sets import find_ratings, is_ratings
from dpltm.records.ratings import STARS, held_out
from dpltm.records.raw import RawSplit
from dpltm.records.rows import Rows
from dpltm.records.schema import Schema, read_schema
from dpltm.records.schema_tables import read_by_schema
from dpltm.records.settle import declared_facts, settle, take_part
from dpltm.records.tokens import Layout, check_positions

_DIGITS_TEST_EVERY = 5


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
    units: str | None = None,
    schema: str | Schema | None = None,
    home: Path | None = None,
    for_training: bool = True,
    dataset_cache: DatasetCache | None = None,
) -> Dataset:
    """Read a dataset, check every record and settle its public inputs.

    A public input (bounds, classes, records) is the one declared here, else the one in the description of a known
    dataset, else read off the data: the dtype's range for bytes and booleans, a count for classes and records.

    Args:
        dataset: a name (see ``catalogue``, or ``NAME`` for any ``NAME.npz`` in the data home), or a path: a string
            with a path separator or that ends in ``.npz``, ``.csv``, ``.parquet``, ``.arrow`` or, of ratings, ``.dat``.
            Of a folder: ``x_train.npy``, ``y_train.npy`` and perhaps a test split in it.
        label: the label column of a table.
        bounds: finite ``(low, high)`` of every feature.
        classes: number of classes, 2 or more.
        records: public number of training records, after ``subset``; 1 or more.
        subset: the part of the training records to use, see ``parse_subset``.
        test: path of the test split, of the same kind as ``dataset``, where that has none of its own; or the part of
            its records that is held out, such as 0.2 (see ``dpltm.records.hold_out``).
        words: public size of the table that words are looked up in, see ``records.tokens``; for a file of features, says
            that they are such positions.
        length: how many words of a text are kept.
        users, items: public sizes of the tables of a file of ratings.
        units: the column of a table, or NAME of the array ``NAME_train`` of an archive, that says whose each record is;
            it is no feature. The test split says so too, and holds records of others.
        schema: of a table with words, dates or holes: what its columns hold, or the file that says so. It says which is the
            label, its classes, and the bounds.
        home: the data home, instead of ``data_home()``.
        for_training: whether there must be something to learn; one record will do otherwise.
        dataset_cache: holds what was read before; None to read it now.

    Returns:
        The dataset; ``x`` as stored, views where ``subset`` cuts.

    Raises:
        DataError: anything about the arguments or the data is not what it must be.
    """
    bounds, classes, records = declared_facts(bounds, classes, records)
    sizes = {"words": words, "length": length, "users": users, "items": items}
    dataset = _checked(dataset, {"label": label, "subset": subset, "test": test, "unit_column": units}, sizes)
    if is_ratings(dataset):
        flags = {"label": label, "bounds": bounds, "classes": classes, "test": test, "words": words, "length": length}
        flags |= {"unit_column": units}
        whole = _rated(dataset, home or data_home(), users, items, flags)
        return take_part(whole, subset, records, for_training)
    if users is not None or items is not None:
        raise DataError(f"`users`, `items`: are for ratings (.dat), and {dataset} is none; drop them")
    home = home or data_home()
    known = read_schema(Path(schema)) if isinstance(schema, str) else schema
    if known is not None:
        told = {"label": label, "bounds": bounds, "classes": classes, "words": words, "length": length}
        for name, value in told.items():
            if value is not None:
                raise DataError(f"`{name}`: the schema says what the columns hold; drop `{name}`")
    asked = (dataset, Columns(label, units, known), bounds, classes, test, words, length, home)
    if dataset_cache is None:
        return take_part(_whole(*asked), subset, records, for_training)
    paths = (Path(dataset), home / f"{dataset}.npz", Path(test or ""))
    files = (*paths, *(each / f"{name}.npy" for each in paths for name in PARTS))
    return take_part(dataset_cache.whole(_whole, files, *asked), subset, records, for_training)


def _checked(dataset: object, texts: Mapping[str, object], sizes: Mapping[str, object]) -> str:
    """A name, or a path, as a text; raises DataError if it is neither, or something else that is to be a text is none."""
    if not isinstance(dataset, (str, os.PathLike)):
        raise DataError("dataset", dataset, "a name or a path")
    for name, value in texts.items():
        if value is not None and not isinstance(value, str):
            raise DataError(name, value, "a text, as the command line takes it")
    for name, size in sizes.items():
        if size is not None:
            whole_number(name, size)
    return str(dataset)


class Columns(NamedTuple):
    """Which columns, or arrays, are no features: those of labels, and of whose each record is; or what all of them hold."""

    label: str | None = None
    units: str | None = None
    schema: Schema | None = None


def _whole(
    dataset: str,
    columns: Columns,
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
    description, name, train, part = _read(dataset, columns, home, layout)
    hold_out = parse_fraction(test)
    part = _test_split(dataset, train, part, None if hold_out is not None else test, columns, layout)
    tables = _tables(train, part, words, length, layout)
    schema = columns.schema
    declared = (bounds, classes) if schema is None else ((0.0, 1.0), len(schema.label.values))
    origin = train.synthetic
    if origin is not None:
        declared = (bounds or origin.bounds, classes or origin.classes)
    whole = settle(name, train, part, description, declared, tables, separate=test is None, hold_out=hold_out)
    if origin is not None:  # nobody is among them, so that how many there are is public
        whole = replace(
            whole, synthetic=origin, found=origin.found, records_origin="described", classes_origin="described"
        )
    return whole if schema is None else replace(whole, schema=schema.text, found=schema.found)


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


def load_records(
    path: str,
    label: str | None = None,
    layout: Layout | None = None,
    spare: Sequence[str] = (),
    schema: Schema | None = None,
) -> np.ndarray:
    """Records without labels, ``(n, ...)`` as stored, known to be real and finite.

    Args:
        path: an ``.npz`` file, or a folder, with an array ``x`` or ``x_test``, or texts; or a table of features.
        label: a column of such a table that is no feature.
        layout: what texts become; None where only quantities will do.
        spare: other columns that are no features, where they are there.
        schema: of a table, what its columns hold; it says which are no features.

    Raises:
        DataError: the file or a record is not what it must be.
    """
    if schema is not None and Path(path).suffix.lower() in TABLES:
        with reading(Path(path), "`input`"):
            return read_by_schema(Path(path), schema, labelled=False, units=spare[0] if spare else None).x
    return checks.checked_features(read_records(Path(path), label, layout=layout, spare=spare))


def _read(
    dataset: str, columns: Columns, home: Path, layout: Layout
) -> tuple[Description | None, str, RawSplit, RawSplit | None]:
    """Description if known, name, training split and its own test split if any."""
    path, (label, units, schema) = Path(dataset), columns
    if schema is not None and path.suffix.lower() not in TABLES:
        raise DataError(f"`schema`: is for tables ({', '.join(TABLES)}), and {dataset} is none; drop `schema`")
    if schema is not None:
        with reading(path, "`dataset`"):
            return None, path.stem, read_by_schema(path, schema, units), None
    separators = {os.sep, os.altsep or os.sep}
    if separators & set(dataset) or path.suffix.lower() in SUFFIXES:
        return None, path.stem, *read_file(path, label, layout=layout, units=units)
    if label is not None:
        raise DataError(f"`label` {label}: {dataset} is a name, not a table; drop `label`")
    description = catalogue().get(dataset)
    if description is not None and description.refusal is not None:
        raise DataError(f"{dataset}: {description.refusal}")
    if dataset == "digits":
        if units is not None:
            raise DataError(f"`unit_column` {units}: nothing says whose the digits are; leave it out")
        return description, dataset, *_digits()
    file = home / f"{dataset}.npz"
    if file.is_file():
        return description, dataset, *read_file(file, None, layout=layout, units=units)
    if description is None:
        raise _unknown(dataset, home)
    if description.openml is None:
        raise DataError(
            f"{dataset}: no {dataset}.npz ({description.summary}) in {home}; put it there, or export DPLTM_DATA=FOLDER that"
            " has it"
        )
    if units is not None:
        raise DataError(f"`unit_column` {units}: nothing says whose the records of {dataset} are; leave it out")
    return description, dataset, *openml.fetch(description, cache_home(), home)


def _digits() -> tuple[RawSplit, RawSplit]:
    """The digits inside scikit-learn; every fifth record is a test record, a fixed public rule."""
    table = _digits_table()
    x, y = table[:, :-1].astype(np.uint8).reshape(-1, 8, 8), table[:, -1].astype(np.int64)
    held_out = np.arange(len(y)) % _DIGITS_TEST_EVERY == _DIGITS_TEST_EVERY - 1
    return (
        RawSplit(x[~held_out], y[~held_out], "digits"),
        RawSplit(x[held_out], y[held_out], "digits", "x_test", "y_test"),
    )


@functools.cache
def _digits_table() -> np.ndarray:
    """The pixels and the label of each digit, ``(n, 65)``; one array for all, whose parts are copied.

    The file is read where it is installed: importing ``sklearn.datasets``, and much of scipy with it, takes longer than
    training on what is in it.
    """
    installed = importlib.util.find_spec("sklearn")
    if installed is not None and installed.origin is not None:
        file = Path(installed.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            with gzip.open(file, "rt", encoding="utf-8") as rows:
                return np.loadtxt(rows, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])


def _unknown(dataset: str, home: Path) -> DataError:
    names = list(catalogue())
    hint = did_you_mean(dataset.lower(), names) or ";"
    return DataError(
        f"`dataset` {dataset}: no such dataset{hint} known: {', '.join(names)}; or put {dataset}.npz into {home}, "
        f"or give a path that ends in {KINDS}"
    )


def _test_split(
    dataset: str,
    train: RawSplit,
    own: RawSplit | None,
    test: str | None,
    columns: Columns,
    layout: Layout,
) -> RawSplit | None:
    """The dataset's own test split, or the one in the file of ``test``."""
    if test is None:
        return own
    if own is not None:
        raise DataError(f"`test` {test}: {dataset} has a test split of its own; drop `test`")
    expected, given = kind_of(Path(train.source)), kind_of(Path(test))
    if given != expected:
        wanted = FOLDER if expected == FOLDER else f"a {expected} file"
        raise DataError(f"`test` {test}: must be {wanted} as {train.source} is; convert one of them")
    if columns.schema is not None:
        with reading(Path(test), "`test`"):
            return read_by_schema(Path(test), columns.schema, columns.units)
    return read_test(Path(test), columns.label, layout, columns.units)


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
