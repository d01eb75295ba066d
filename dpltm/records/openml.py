"""Known datasets from OpenML, through scikit-learn."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpltm.errors import DataError, first_line
from dpltm.records.catalogue import Description
from dpltm.records.raw import RawSplit


def fetch(description: Description, cache: Path, home: Path) -> tuple[RawSplit, RawSplit]:
    """Both splits of a known dataset, downloaded or from an earlier download.

    Args:
        description: a dataset with OpenML ids.
        cache: folder that scikit-learn keeps downloads in.
        home: the data home that has no file of it, for the message.

    Raises:
        DataError: OpenML cannot be reached, or what it has under the ids is something else.
    """
    from http.client import HTTPException

    from sklearn.datasets import fetch_openml

    # The parser that is fast needs pandas, which dpltm does not depend on.
    parser = "auto" if importlib.util.find_spec("pandas") else "liac-arff"
    remedy = f"put {description.name}.npz (x_train, y_train, x_test, y_test) into {home}"
    misnamed = []
    for data_id in description.openml or ():
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "A network error occurred")
                bunch = fetch_openml(data_id=data_id, data_home=str(cache), as_frame=False, parser=parser, n_retries=1)
        except (OSError, ValueError, HTTPException) as error:
            raise DataError(
                f"{description.name}: not in the data home, and OpenML dataset {data_id} could not be fetched "
                f"({first_line(error)}); {remedy}"
            ) from error
        if is_named_right(bunch, description):
            return convert(bunch, description)
        misnamed.append(f"{data_id} is {bunch['details']['name']!r}")
    expected = " or ".join(description.openml_names)
    raise DataError(f"{description.name}: OpenML dataset {', '.join(misnamed)}, expected {expected}; {remedy}")


def is_named_right(bunch: Mapping[str, Any], description: Description) -> bool:
    """Whether a fetched table carries one of the expected names: an id alone says little."""
    return bunch["details"]["name"].lower() in (name.lower() for name in description.openml_names)


def convert(bunch: Mapping[str, Any], description: Description) -> tuple[RawSplit, RawSplit]:
    """The two splits in a table of OpenML: its trailing ``openml_test`` rows are the test split.

    Args:
        bunch: ``data`` (rows, features) and ``target`` (rows,), numbers or numbers as text.
        description: what the table should be.

    Returns:
        Training and test split; bytes where the described bounds are those of bytes, else float32.

    Raises:
        DataError: another number of rows or features than described, or values that are not numbers.
    """
    source = f"OpenML {description.name}"
    rows, features = (description.records or 0) + description.openml_test, int(np.prod(description.shape))
    if np.shape(bunch["data"]) != (rows, features):
        raise DataError(
            f"{source}: has shape {np.shape(bunch['data'])}, expected {(rows, features)}; the table has changed, "
            f"put {description.name}.npz into the data home instead"
        )
    try:
        # ARFF quotes some labels, and the quotes can survive parsing.
        target = np.array([float(str(t).strip("'\"")) for t in bunch["target"]]) - description.first_label
        data: np.ndarray = np.asarray(bunch["data"], dtype=np.float32)
    except ValueError as error:
        raise DataError(
            f"{source}: holds something that is not a number ({first_line(error)}); the table has changed, "
            f"put {description.name}.npz into the data home instead"
        ) from error
    if description.bounds == (0, 255):
        with np.errstate(invalid="ignore"):
            as_bytes = data.astype(np.uint8)
        data = as_bytes if np.array_equal(data, as_bytes) else data
    x = _records(data, description.shape)
    cut = description.records
    return RawSplit(x[:cut], target[:cut], source), RawSplit(x[cut:], target[cut:], source, "x_test", "y_test")


def _records(data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Rows in the shape of records; a row of a colour image comes plane by plane, a record has channels last."""
    if len(shape) == 3:
        height, width, channels = shape
        return data.reshape(-1, channels, height, width).transpose(0, 2, 3, 1)
    return data.reshape(-1, *shape)
