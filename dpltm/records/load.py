"""From a name, a path or arrays to a checked ``Dataset``."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np

from dpltm.errors import DataError, did_you_mean, first_line, shown_value, whole_number
from dpltm.gone import instead
from dpltm.privacy.entry import HASHES
from dpltm.records import files
from dpltm.records.catalogue import Description, cache_home, catalogue, data_home
from dpltm.records.dataset import Dataset, RawSplit
from dpltm.records.input_parts import Parts, Words, check_words, differences, facts_of, side_by_side
from dpltm.records.schema import Schema, as_schema
from dpltm.records.settle import (
    IN_SCHEMA,
    MAX_NAME,
    VALUES,
    Declared,
    check_name,
    check_none,
    checked_features,
    parse_fraction,
    settle,
)
from dpltm.records.tables import Table, is_frame, read_by_schema, read_table

Splits = tuple[RawSplit, RawSplit | None]
"""The training split of a file, and its own test split if any."""


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
    for_training: bool = True,
) -> Dataset:
    """Read a dataset, check every record and settle its public inputs (docs/data.md says more of each).

    A public input (bounds, classes, records) is the one declared here, else the one in the description of a known
    dataset, else read off the data: the dtype's range for bytes and booleans, a count for classes and records.

    Args:
        dataset: a name (see ``catalogue``, or ``NAME`` for any ``NAME.npz`` in the data home), or a path: a string
            with a path separator or that ends in ``.npz``, ``.csv``, ``.parquet`` or ``.arrow``.
        label, units: columns of a table; ``units``, which says whose each record is, may be an array ``NAME_train``.
        bounds: finite ``(low, high)`` of every feature; needed unless they are bytes or booleans.
        classes: number of classes, 2 or more.
        target_bounds: public range of labels that are numbers, in place of ``classes``; those outside count as its ends.
        records: public number of training records, after ``subset``, or of persons.
        subset: the part of the training records to use, see ``parse_subset``.
        test: path of the test split, of the same kind as ``dataset``; or the part of its records that is held out, as "0.2".
        words, length: of texts, see ``records.files``; ``words`` of a file of features says that they are such positions.
        schema: of a table with words, dates or holes, or the file that says it.
        rows_coincide: whether a test record may equal a training record.
        for_training: whether there must be something to learn; one record will do otherwise.

    Raises:
        DataError: anything about the arguments or the data is not what it must be.
    """
    table_schema = as_schema(schema)
    declared = Declared(bounds, classes, records, target_bounds, rows_coincide)
    if table_schema is not None:
        check_none(IN_SCHEMA, label=label, bounds=bounds, classes=classes, words=words, length=length)
        check_none(IN_SCHEMA, target_bounds=target_bounds)
    if declared.classes == VALUES:
        raise DataError("`classes` 0: must be 2 or more; pass the public number of classes")
    dataset = os.fspath(dataset) if isinstance(dataset, os.PathLike) else dataset
    texts = {"dataset": dataset, "label": label, "subset": subset, "test": test, "unit_column": units}
    for name, text in texts.items():
        if not isinstance(text, str) and (text is not None or name == "dataset"):
            raise DataError(name, text, "a text, as the command line takes it")
    if (reason := instead(f"--dataset {Path(dataset).suffix.lower()}")) is not None:
        raise DataError(f"`dataset` {dataset}{reason}")
    sizes = {"words": words, "length": length}
    layout = files.Layout(**{name: whole_number(name, size) for name, size in sizes.items() if size is not None})
    read = functools.partial(_read, label=label, layout=layout, units=units, schema=table_schema)
    description, name, train, tested = _splits(dataset, read, label, units, table_schema)
    hold_out = parse_fraction(test)
    if test is not None and hold_out is None:
        if tested is not None:
            raise DataError(f"`test` {test}: {dataset} has a test split of its own; drop `test`")
        if files.suffix_of(Path(test)) != (kind := files.suffix_of(Path(train.source))):
            raise DataError(f"`test` {test}: is no {kind} file, as {train.source} is, and no fraction such as 0.2")
        of_file, own = read(Path(test), "`test`")
        tested = own or of_file
    _check_positions(train, tested, words, length)
    train = replace(train, tables=(layout.words,) if train.has_texts or words is not None else ())
    return settle(
        name,
        train,
        tested,
        declared,
        description=description,
        hold_out=hold_out,
        subset=subset,
        for_training=for_training,
    )


def _check_positions(train: RawSplit, test: RawSplit | None, words: int | None, length: int | None) -> None:
    """Raise DataError unless both splits are texts, or neither is and their values are positions where ``words`` says so."""
    for split in (train, test or train):
        if split.has_texts != train.has_texts:
            raise DataError(f"{split.source}: {split.x_name} or {train.x_name} holds texts; give both splits the same")
        if words is not None and not split.has_texts:
            check_words(split.x, words, f"{split.source}: {split.x_name}")
    if not train.has_texts:
        check_none(f"{train.source} holds no texts (values_train, offsets_train)", length=length)


def _read(
    path: Path, option: str, label: str | None, layout: files.Layout, units: str | None, schema: Schema | None
) -> Splits:
    with files.reading(path, option) as kind:
        if kind not in files.TABLES:
            return files.read_arrays(path, label, layout, units)
        if schema is not None:
            return read_by_schema(Table(path, schema), units), None
        return read_table(Table(path), label, units=units), None


def _splits(
    dataset: str, read: Callable[[Path, str], Splits], label: str | None, units: str | None, schema: Schema | None
) -> tuple[Description | None, str, RawSplit, RawSplit | None]:
    """Return the description of a dataset if it is known, its name, training split and its own test split if any."""
    path = Path(dataset)
    if files.suffix_of(path) not in files.TABLES:
        check_none(f"is for tables ({', '.join(files.TABLES)}), and {dataset} is none", schema=schema)
    if {os.sep, os.altsep or os.sep} & set(dataset) or files.suffix_of(path) in files.SUFFIXES:
        return None, files.stem_of(path), *read(path, "`dataset`")
    check_none(f"{dataset} is a name, not a table", label=label)
    home, known = data_home(), catalogue()
    description = known.get(dataset)
    if dataset != "digits" and (home / f"{dataset}.npz").is_file():
        return description, dataset, *read(home / f"{dataset}.npz", "`dataset`")
    if description is None:
        unknown = f": no such dataset{did_you_mean(dataset.lower(), known) or ';'} known: {', '.join(known)}"
        own = f"; or put {dataset}.npz into {home}, or give a path that ends in {files.KINDS}"
        raise DataError(f"`dataset` {dataset}{instead(f'dataset {dataset}') or unknown + own}")
    if dataset != "digits" and not description.openml:
        put = f"no {dataset}.npz ({description.summary}) in {home}; put it there, or export DPLTM_DATA=FOLDER"
        raise DataError(f"{dataset}: {put}")
    check_none(f"nothing says whose the records of {dataset} are", unit_column=units)
    return description, dataset, *(_digits() if dataset == "digits" else download(description, home))


def load_records(
    path: str, label: str | None = None, layout: files.Layout | None = None, spare: Sequence[str] = (),
    schema: str | Path | Schema | None = None, columns: Sequence[str] | None = None,
) -> np.ndarray:  # fmt: skip
    """Return records without labels, ``(n, ...)`` as stored, known to be real and finite.

    Texts need a ``layout``. By a schema, numbers outside its bounds are outside of [0, 1]. ``columns`` are features that
    a run was trained on; a table may have them in any order, and ``spare`` ones beside them.
    """
    file = Path(path)
    table_schema = as_schema(schema)
    with files.reading(file, "`input`") as kind:
        if kind not in files.TABLES:
            raw = files.read_new_arrays(file, label, layout)
        elif table_schema is not None:
            return read_by_schema(Table(file, table_schema), labelled=False, spare=spare).x
        else:
            raw = read_table(Table(file), label, labelled=False, spare=spare)
    return checked_features(raw.in_order(columns, "the run"))


@functools.cache
def _digits() -> Splits:
    """Return the digits inside scikit-learn; every fifth record is a test record, a fixed public rule."""
    # the file itself: importing sklearn.datasets, and much of scipy with it, takes longer than training on what is in it
    file = importlib.metadata.distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(str(file), delimiter=",", dtype=np.int64)
    x, y = table[:, :-1].astype(np.uint8).reshape(-1, 8, 8), table[:, -1]
    out = np.arange(len(table)) % 5 == 4
    test = RawSplit(copied(x[out]), copied(y[out]), "digits", "x_test", "y_test")
    return RawSplit(copied(x[~out]), copied(y[~out]), "digits"), test


def download(description: Description, home: Path) -> tuple[RawSplit, RawSplit]:
    """Return both splits of a known dataset from OpenML, downloaded into the cache folder or from an earlier download.

    DataError as :func:`load`, which says that ``home`` may hold them.
    """
    from http.client import HTTPException

    from sklearn.datasets import fetch_openml

    # The parser that is fast needs pandas, which dpltm does not depend on.
    parser = "auto" if importlib.util.find_spec("pandas") else "liac-arff"
    where = f"{description.name}: OpenML dataset {description.openml}"
    remedy = f"put {description.name}.npz (x_train, y_train, x_test, y_test) into {home}"
    options = {"data_home": str(cache_home()), "as_frame": False, "parser": parser, "n_retries": 1}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "A network error occurred")
            bunch = fetch_openml(data_id=description.openml, **options)
    except (OSError, ValueError, HTTPException) as error:
        raise DataError(f"{where} could not be fetched ({first_line(error)}); {remedy}") from error
    if (name := bunch["details"]["name"]).lower() != description.openml_name.lower():  # an id alone says little
        raise DataError(f"{where} is {name!r}, expected {description.openml_name}; {remedy}")
    return convert(bunch, description)


def convert(bunch: Mapping[str, Any], description: Description) -> tuple[RawSplit, RawSplit]:
    """Return the two splits in a table of OpenML: its trailing ``openml_test`` rows are the test split.

    They hold bytes where the described bounds are those of bytes, else float32.
    """
    source, cut = f"OpenML {description.name}", description.records
    coloured = len(description.shape) == 3
    # a row comes plane by plane, a record has its colours last
    shape = (description.shape[-1], *description.shape[:-1]) if coloured else description.shape
    try:
        # ARFF quotes some labels, and the quotes can survive parsing.
        target = np.array([float(str(t).strip("'\"")) for t in bunch["target"]]) - description.first_label
        x: np.ndarray = np.asarray(bunch["data"], dtype=np.float32).reshape(cut + description.openml_test, *shape)
    except ValueError as error:
        fix = f"put {description.name}.npz into the data home instead"
        raise DataError(f"{source}: the table has changed ({first_line(error)}); {fix}") from error
    if description.bounds == (0, 255):
        with np.errstate(invalid="ignore"):
            as_bytes = x.astype(np.uint8)
        x = as_bytes if np.array_equal(x, as_bytes) else x
    x = np.moveaxis(x, 1, -1) if coloured else x
    return RawSplit(x[:cut], target[:cut], source), RawSplit(x[cut:], target[cut:], source, "x_test", "y_test")


# arrays, tensors and data frames


def from_arrays(
    x: Any,
    y: Any = None,
    *,
    test: Any = None,
    bounds: tuple[float, float] | None = None,
    classes: int | None = None,
    target_bounds: tuple[float, float] | None = None,
    records: int | None = None,
    words: Words = None,
    units: np.ndarray | None = None,
    unit: str | None = None,
    schema: str | Path | Schema | None = None,
    rows_coincide: bool = False,
    name: str = "records",
    for_training: bool = True,
) -> Dataset:
    """Return a dataset of arrays: every record checked, its public inputs settled as by :func:`load`.

    The arrays are copied: what is trained on later are the records that a ledger has. Columns of data frames go by name.

    Args:
        x: features, ``(n, ...)``, bytes, booleans or finite numbers; or a data frame of pandas or polars; or a mapping of
            arrays, which reach a network of the user's own by name.
        y: labels, ``(n,)``, from 0 to the number of classes - 1; with a schema, as its classes are spelled, or None where
            the frame has them; with ``classes`` 0 numbers of any shape, ``(n, ...)``, for a network with a ``loss``.
        test: features and labels of the test split; with a schema, a frame with labels will do; or a part such as 0.2.
        words: public number of whole numbers (positions of words), which the values are then; of a mapping by name.
        units: whose each record is, ``(n,)`` whole numbers or texts: then a training protects all of a person's together.
        unit: noun of whom those are, such as ``patient``; by default ``user``.
        name: what messages and the ledger call them, printable, at most 200 characters.
        bounds, classes, target_bounds, records, schema, rows_coincide, for_training: as of :func:`load`.

    Raises:
        DataError: anything about the arguments or the data is not what it must be.
    """
    table_schema = as_schema(schema)
    declared = Declared(bounds, classes, records, target_bounds, rows_coincide)
    if table_schema is not None:
        check_none(IN_SCHEMA, bounds=bounds, classes=classes, words=words, target_bounds=target_bounds)
    check_name(name)
    hold_out = Fraction(test).limit_denominator(HASHES) if isinstance(test, float) and 0 < test < 1 else None
    pair = test if isinstance(test, (tuple, list)) and len(test) == 2 else None
    if pair is None and table_schema is not None and is_frame(test):
        pair = (test, None)
    if test is not None and pair is None and hold_out is None:
        raise DataError("`test`: not a pair of features and labels, nor a part between 0 and 1")
    train = _split(x, y, table_schema, name, "x", "y", words)
    if units is not None:
        train = replace(train, units=as_array(units, "units"), units_name="user" if unit is None else unit)
    elif unit is not None:
        raise DataError("`unit`: says whom `units` names, so it goes with these; leave it out, or add them")
    held_out = None if pair is None else _split(pair[0], pair[1], table_schema, name, "x of test", "y of test", words)
    if declared.classes == VALUES and units is not None:
        raise DataError("`units`: a person's labels are class numbers, and these are none; leave `units` out")
    return settle(name, train, held_out, declared, hold_out=hold_out, for_training=for_training)


def copied(values: np.ndarray) -> np.ndarray:
    """Return a copy in row-major order and native bytes, which nobody writes to."""
    copy = np.array(values, values.dtype.newbyteorder("="), order="C")
    copy.flags.writeable = False
    return copy


def _split(x: Any, y: Any, schema: Schema | None, name: str, x_name: str, y_name: str, words: Words) -> RawSplit:
    """Features and labels of a split as they are given."""
    if schema is not None:
        if not is_frame(x):
            raise DataError(f"`schema`: goes with a data frame, and {x_name} is none; drop it")
        labels = None if y is None else as_array(y, "y")
        if labels is not None and len(labels) != len(x):
            raise DataError(f"{name}: {x_name} has {len(x)} records and {len(labels)} labels; give one label a record")
        return read_by_schema(Table(x, schema, name), labels=labels)
    if y is None:
        raise DataError("`y` is missing: the labels that go with `x`")
    targets = copied(as_array(y, "test" if y_name != "y" else y_name))
    raw = replace(unlabelled(x, words, name, x_name), y=targets, y_name=y_name)
    if words is not None and not raw.parts:
        check_words(raw.x, words, f"{name}: {x_name}")
        raw = replace(raw, tables=(cast(int, words),))
    return raw if raw.parts else replace(raw, x=copied(raw.x))


def unlabelled(x: Any, words: Words, name: str, x_name: str, *, check: bool = True) -> RawSplit:
    """Return records without labels: of an array, of a data frame, or those of a mapping side by side."""
    check_no_loader(x)
    if is_frame(x):
        raw = read_table(Table(x, name=f"`{x_name}`"), None, labelled=False)
        return RawSplit(raw.x, None, name, x_name, columns=raw.columns, left_out=raw.left_out)
    if not isinstance(x, Mapping):
        return RawSplit(as_array(x, "test" if x_name.endswith("of test") else x_name), None, name, x_name)
    if not x or not all(isinstance(key, str) and key.isidentifier() and len(key) <= MAX_NAME for key in x):
        raise DataError(f"`{x_name}`: {list(x)!r:.100} are no names of arguments; call each array as the network does")
    arrays = {key: as_array(x[key], f"x[{key!r}]") for key in sorted(x)}
    side, parts = side_by_side(arrays, words, x_name, check=check)
    side.flags.writeable = False
    return RawSplit(side, None, name, x_name, parts=parts)


def records_of(x: Any, schema: Schema | None, columns: tuple[str, ...] | None, parts: Parts = ()) -> RawSplit:
    """Return records without labels as a run takes them: encoded by its schema, with columns in their order, or parts."""
    if schema is not None and is_frame(x):
        return read_by_schema(Table(x, schema, "x"), labelled=False)
    words = facts_of(parts, x).get("words") if isinstance(x, Mapping) else None
    raw = unlabelled(x, words, "records", "x", check=False)
    if raw.parts and (other := differences(parts, raw.parts)):
        raise DataError(f"`x`: its records {other}; give it records of the same parts as the run's")
    return raw.in_order(columns, "the run")


def as_array(values: object, name: str) -> np.ndarray:
    """Return the array that an argument stands for: itself, the values of a tensor, or those of nested lists.

    DataError where none holds the same: masked entries would count as records, lists are ragged, or a tensor is sparse.
    """
    parts = values if isinstance(values, (list, tuple)) else (values,)
    if any(isinstance(part, np.ma.MaskedArray) for part in parts):
        raise DataError(f"`{name}`: a masked array, whose mask would be lost; fill it, or leave those records out")
    tensor = hasattr(values, "detach")
    try:
        return values.detach().cpu().numpy() if tensor else np.asarray(values)  # type: ignore[attr-defined]
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:
        fix = "pass x.to_dense().float()" if tensor else "pad rows to one public length"
        raise DataError(f"`{name}`: {shown_value(values)} is no array: {first_line(error)}; {fix}") from None


def check_no_loader(x: object) -> None:
    """Raise DataError for a dataset of PyTorch or Hugging Face, or a loader: what one gives may differ each time."""
    from torch.utils import data

    if isinstance(x, (data.Dataset, data.DataLoader)) or (hasattr(x, "column_names") and not is_frame(x)):
        raise DataError(f"`x`: {type(x).__name__}{instead('x of a Dataset')}")
