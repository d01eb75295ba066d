"""From a name or a path to a checked ``Dataset``."""

from __future__ import annotations

import functools
import gzip
import importlib.util
import os
import stat
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpltm.errors import DataError, did_you_mean, first_line, whole_number
from dpltm.gone import instead
from dpltm.records.catalogue import Description, cache_home, catalogue, data_home
from dpltm.records.dataset import Dataset, RawSplit
from dpltm.records.files import (
    FOLDER,
    KINDS,
    SUFFIXES,
    TABLES,
    Layout,
    kind_of,
    read_arrays,
    read_new_arrays,
    reading,
    stem_of,
    suffix_of,
)
from dpltm.records.input_parts import check_words
from dpltm.records.schema import Schema, as_schema
from dpltm.records.settle import (
    IN_SCHEMA,
    VALUES,
    Declared,
    check_none,
    checked_features,
    parse_fraction,
    settle,
    take_part,
)
from dpltm.records.tables import Table, read_by_schema, read_table


def load(
    dataset: str,
    *,
    label: str | None = None,
    bounds: tuple[float, float] | None = None,
    classes: int | None = None,
    target_bounds: tuple[float, float] | None = None,
    records: int | None = None,
    subset: str | None = None,
    test: str | None = None,
    words: int | None = None,
    length: int | None = None,
    units: str | None = None,
    schema: str | Path | Schema | None = None,
    rows_coincide: bool = False,
    home: Path | None = None,
    for_training: bool = True,
    cached: bool = False,
) -> Dataset:
    """Read a dataset, check every record and settle its public inputs.

    A public input (bounds, classes, records) is the one declared here, else the one in the description of a known
    dataset, else read off the data: the dtype's range for bytes and booleans, a count for classes and records.

    Args:
        dataset: a name (see ``catalogue``, or ``NAME`` for any ``NAME.npz`` in the data home), or a path: a string
            with a path separator or that ends in ``.npz``, ``.csv``, ``.parquet`` or ``.arrow``.
            Of a folder: ``x_train.npy``, ``y_train.npy`` and perhaps a test split in it.
        label: the label column of a table.
        bounds: finite ``(low, high)`` of every feature; needed unless they are bytes or booleans.
        classes: number of classes, 2 or more; counted on the labels if None, and noted.
        target_bounds: public range of labels that are numbers, in place of ``classes``; those outside count as its ends.
        records: public number of training records, after ``subset``, or of persons; counted if None, and noted.
        subset: the part of the training records to use, see ``parse_subset``.
        test: path of the test split, of the same kind as ``dataset``, where that has none of its own; or the part of
            its records that is held out, such as 0.2 (see ``dpltm.records.settle``).
        words: public size of the table that words are looked up in, see ``records.files``; for a file of features, says
            that they are such positions.
        length: how many words of a text are kept.
        units: the column of a table, or NAME of the array ``NAME_train`` of an archive, that says whose each record is;
            it is no feature. The test split says so too, and holds records of others.
        schema: of a table with words, dates or holes: what its columns hold, or the file that says so. It says which is the
            label, its classes, and the bounds.
        rows_coincide: whether a test record may equal a training record.
        home: the data home, instead of ``data_home()``.
        for_training: whether there must be something to learn; one record will do otherwise.
        cached: take what was read before, unless a file is another, or its size or time has changed. Such datasets share
            their arrays, which are marked read-only.

    Returns:
        The dataset; ``x`` as stored, views where ``subset`` cuts.

    Raises:
        DataError: anything about the arguments or the data is not what it must be.
    """
    table_schema = as_schema(schema)
    declared = Declared(bounds, classes, records, target_bounds, rows_coincide)
    if table_schema is not None:
        check_none(IN_SCHEMA, label=label, bounds=bounds, classes=classes, words=words, length=length)
        check_none(IN_SCHEMA, target_bounds=target_bounds)
    if declared.classes == VALUES:
        raise DataError("`classes` 0: must be 2 or more; pass the number of classes K")
    if not isinstance(dataset, (str, os.PathLike)):
        raise DataError("dataset", dataset, "a name or a path")
    for name, text in {"label": label, "subset": subset, "test": test, "unit_column": units}.items():
        if text is not None and not isinstance(text, str):
            raise DataError(name, text, "a text, as the command line takes it")
    for name, size in {"words": words, "length": length}.items():
        if size is not None:
            whole_number(name, size)
    dataset, home = str(dataset), home or data_home()
    if (reason := instead(f"--dataset {Path(dataset).suffix.lower()}")) is not None:
        raise DataError(f"`dataset` {dataset}{reason}")
    source = _Source(dataset, label, units, table_schema, declared, test, words, length, home)
    everybody = _read_only(source.versions(), source) if cached else source.read()
    return take_part(everybody, subset, declared.records, for_training)


@dataclass(frozen=True)
class _Source:
    """What of the arguments of :func:`load` decides all records of a dataset."""

    dataset: str
    label: str | None
    units: str | None
    schema: Schema | None
    declared: Declared
    test: str | None
    words: int | None
    length: int | None
    home: Path

    def versions(self) -> tuple[tuple[int, ...] | None, ...]:
        """Return what tells versions of the files that may be read apart; None of one that is not there."""
        paths = (Path(self.dataset), self.home / f"{self.dataset}.npz", Path(self.test or ""))
        arrays = (array for path in paths if path.is_dir() for array in sorted(path.glob("*.npy")))
        return tuple(map(_version, (*paths, *arrays)))

    def read(self) -> Dataset:
        sizes = {"words": self.words, "length": self.length}
        layout = Layout(**{name: size for name, size in sizes.items() if size is not None})
        description, name, train, test = self._splits(layout)
        hold_out = parse_fraction(self.test)
        if self.test is not None and hold_out is None:
            test = self._test_split(self.test, train, test, layout)
        if test is not None and test.has_texts != train.has_texts:
            what = "texts" if test.has_texts else "no texts"
            raise DataError(
                f"{test.source}: {test.x_name} holds {what}, unlike {train.x_name}; give both splits the same"
            )
        if not train.has_texts and self.length is not None:
            raise DataError(
                f"`length` {self.length}: {train.source} holds no texts (values_train, offsets_train); drop `length`"
            )
        if not train.has_texts and self.words is not None:
            for split in (split for split in (train, test) if split is not None):
                check_words(split.x, self.words, f"{split.source}: {split.x_name}")
        tables = (layout.words,) if train.has_texts or self.words is not None else ()
        train = replace(train, tables=tables)
        return settle(name, train, test, self.declared, description=description, hold_out=hold_out)

    def _splits(self, layout: Layout) -> tuple[Description | None, str, RawSplit, RawSplit | None]:
        """Description if known, name, training split and its own test split if any."""
        dataset = self.dataset
        path = Path(self.dataset)
        if self.schema is not None and suffix_of(path) not in TABLES:
            raise DataError(f"`schema`: is for tables ({', '.join(TABLES)}), and {dataset} is none; drop `schema`")
        if {os.sep, os.altsep or os.sep} & set(dataset) or suffix_of(path) in SUFFIXES:
            return None, stem_of(path), *self._file(path, "`dataset`", layout)
        if self.label is not None:
            raise DataError(f"`label` {self.label}: {dataset} is a name, not a table; drop `label`")
        description = catalogue().get(dataset)
        file = self.home / f"{dataset}.npz"
        if dataset != "digits" and file.is_file():
            return description, dataset, *self._file(file, "`dataset`", layout)
        if description is None and (reason := instead(f"dataset {dataset}")) is not None:
            raise DataError(f"`dataset` {dataset}{reason}")
        if description is None:
            names = list(catalogue())
            hint = did_you_mean(dataset.lower(), names) or ";"
            raise DataError(
                f"`dataset` {dataset}: no such dataset{hint} known: {', '.join(names)}; or put {dataset}.npz into"
                f" {self.home}, or give a path that ends in {KINDS}"
            )
        if dataset != "digits" and not description.openml:
            raise DataError(
                f"{dataset}: no {dataset}.npz ({description.summary}) in {self.home}; put it there, or export"
                " DPLTM_DATA=FOLDER that has it"
            )
        if self.units is not None:
            raise DataError(
                f"`unit_column` {self.units}: nothing says whose the records of {dataset} are; leave it out"
            )
        splits = _digits() if dataset == "digits" else download(description, self.home)
        return description, dataset, *splits

    def _file(self, path: Path, option: str, layout: Layout) -> tuple[RawSplit, RawSplit | None]:
        """Return the training split of a file and, where it has one, its test split."""
        with reading(path, option) as kind:
            if kind not in TABLES:
                return read_arrays(path, self.label, layout, self.units)
            if self.schema is not None:
                return read_by_schema(Table(path, self.schema), self.units), None
            return read_table(Table(path), self.label, units=self.units), None

    def _test_split(self, test: str, train: RawSplit, own: RawSplit | None, layout: Layout) -> RawSplit:
        """Return the test split in a file of its own: its ``x_test`` if it has one, else all its records."""
        if own is not None:
            raise DataError(f"`test` {test}: {self.dataset} has a test split of its own; drop `test`")
        expected, kind = kind_of(Path(train.source)), kind_of(Path(test))
        if kind != expected:
            wanted = FOLDER if expected == FOLDER else f"a {expected} file"
            raise DataError(f"`test` {test}: must be {wanted} as {train.source} is; convert one of them")
        records, tested = self._file(Path(test), "`test`", layout)
        return tested or records


def load_records(
    path: str,
    label: str | None = None,
    layout: Layout | None = None,
    spare: Sequence[str] = (),
    schema: str | Path | Schema | None = None,
    columns: Sequence[str] | None = None,
) -> np.ndarray:
    """Return records without labels, ``(n, ...)`` as stored, known to be real and finite.

    Args:
        layout: of texts; None where only quantities will do.
        schema: of a table with words, dates or holes, or the file that says it. Numbers outside its bounds are outside of
            [0, 1], as whoever scales them counts them.
        columns: names of the features that a run was trained on; a table may have them in any order.
    """
    file = Path(path)
    table_schema = as_schema(schema)
    with reading(file, "`input`") as kind:
        if kind not in TABLES:
            raw = read_new_arrays(file, label, layout)
        elif table_schema is not None:
            return read_by_schema(Table(file, table_schema), labelled=False, spare=spare).x
        else:
            raw = read_table(Table(file), label, labelled=False, spare=spare)
    return checked_features(raw.in_order(columns, "the run"))


_DIGITS_TEST_EVERY = 5


def _digits() -> tuple[RawSplit, RawSplit]:
    """Return the digits inside scikit-learn; every fifth record is a test record, a fixed public rule."""
    table = _digits_table()
    x = table[:, :-1].astype(np.uint8).reshape(-1, 8, 8)
    y = table[:, -1].astype(np.int64)
    out = np.arange(len(y)) % _DIGITS_TEST_EVERY == _DIGITS_TEST_EVERY - 1
    return RawSplit(x[~out], y[~out], "digits"), RawSplit(x[out], y[out], "digits", "x_test", "y_test")


@functools.cache
def _digits_table() -> np.ndarray:
    """Return the pixels and the label of each digit, ``(n, 65)``; one array for all, whose parts are copied.

    The file is read where it is installed: importing ``sklearn.datasets``, and much of scipy with it, takes longer than
    training on what is in it.
    """
    package = importlib.util.find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(file, "rt", encoding="utf-8") as rows:
        return np.loadtxt(rows, delimiter=",")


MAX_DATASETS = 3
"""Datasets that are held at a time, for stages and trials that come back to the same records."""


@functools.lru_cache(maxsize=MAX_DATASETS)
def _read_only(_versions: object, source: _Source) -> Dataset:
    """Return a dataset in arrays that are marked read-only; ``_versions`` tell those of its files apart."""
    dataset = source.read()
    for split in (dataset.train, dataset.test):
        for values in () if split is None else split._closed:
            values.flags.writeable = False
    return dataset


def _version(path: Path) -> tuple[int, ...] | None:
    try:
        state = path.stat()
    except (OSError, ValueError):
        return None
    version = (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_ctime_ns, state.st_size)
    return version if stat.S_ISREG(state.st_mode) else None


def download(description: Description, home: Path) -> tuple[RawSplit, RawSplit]:
    """Return both splits of a known dataset from OpenML, downloaded into the cache folder or from an earlier download.

    DataError as :func:`load`, which says that ``home`` may hold them.
    """
    from http.client import HTTPException

    from sklearn.datasets import fetch_openml

    # The parser that is fast needs pandas, which dpltm does not depend on.
    parser = "auto" if importlib.util.find_spec("pandas") else "liac-arff"
    remedy = f"put {description.name}.npz (x_train, y_train, x_test, y_test) into {home}"
    misnamed = []
    cache = str(cache_home())
    for data_id in description.openml:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "A network error occurred")
                bunch = fetch_openml(data_id=data_id, data_home=cache, as_frame=False, parser=parser, n_retries=1)
        except (OSError, ValueError, HTTPException) as error:
            raise DataError(
                f"{description.name}: not in the data home, and OpenML dataset {data_id} could not be fetched "
                f"({first_line(error)}); {remedy}"
            ) from error
        # an id alone says little
        if bunch["details"]["name"].lower() == description.openml_name.lower():
            return convert(bunch, description)
        misnamed.append(f"{data_id} is {bunch['details']['name']!r}")
    raise DataError(
        f"{description.name}: OpenML dataset {', '.join(misnamed)}, expected {description.openml_name}; {remedy}"
    )


def convert(bunch: Mapping[str, Any], description: Description) -> tuple[RawSplit, RawSplit]:
    """Return the two splits in a table of OpenML: its trailing ``openml_test`` rows are the test split.

    They hold bytes where the described bounds are those of bytes, else float32.
    """
    source = f"OpenML {description.name}"
    remedy = f"the table has changed, put {description.name}.npz into the data home instead"
    rows, features = description.records + description.openml_test, int(np.prod(description.shape))
    if np.shape(bunch["data"]) != (rows, features):
        raise DataError(f"{source}: has shape {np.shape(bunch['data'])}, expected {(rows, features)}; {remedy}")
    try:
        # ARFF quotes some labels, and the quotes can survive parsing.
        target = np.array([float(str(t).strip("'\"")) for t in bunch["target"]]) - description.first_label
        data: np.ndarray = np.asarray(bunch["data"], dtype=np.float32)
    except ValueError as error:
        raise DataError(f"{source}: holds something that is not a number ({first_line(error)}); {remedy}") from error
    if description.bounds == (0, 255):
        with np.errstate(invalid="ignore"):
            as_bytes = data.astype(np.uint8)
        data = as_bytes if np.array_equal(data, as_bytes) else data
    if len(description.shape) == 3:  # a row of a colour image comes plane by plane, a record has channels last
        height, width, channels = description.shape
        x = data.reshape(-1, channels, height, width).transpose(0, 2, 3, 1)
    else:
        x = data.reshape(-1, *description.shape)
    cut = description.records
    return RawSplit(x[:cut], target[:cut], source), RawSplit(x[cut:], target[cut:], source, "x_test", "y_test")
