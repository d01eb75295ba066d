"""Records that a ``torch.utils.data.Dataset`` gives by place, as arrays: read once, in order, and kept.

What is trained on is then what was identified, whatever the dataset gives when it is asked again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset, IterableDataset

from dpltm.errors import DataError, DpltmError
from dpltm.records.checks import as_array
from dpltm.records.mapped import AT_ONCE, let_go, room_for


def gives_items(x: object) -> bool:
    """Whether ``x`` gives records one by one; :func:`read_items` refuses those that cannot be asked for by place."""
    return isinstance(x, (Dataset, DataLoader))


def read_items(x: Any, y: object = None) -> tuple[np.ndarray, np.ndarray]:
    """All records of a dataset, features ``(n, ...)`` and labels ``(n, ...)``, which nobody writes to.

    Args:
        x: a map-style dataset: ``x[i]`` is the pair of features and label of record i, of one shape and type for all.
        y: labels beside it, which there must not be.

    Raises:
        DataError: it is none, or the disk has no room.
    """
    if y is not None:
        raise DataError("`y`: `x` is a dataset, whose items hold their labels; leave `y` out")
    if isinstance(x, DataLoader):
        raise DataError("`x`: a DataLoader, which draws batches of its own; give its dataset, loader.dataset")
    if isinstance(x, IterableDataset) or not hasattr(x, "__len__"):
        raise DataError(
            f"`x`: {type(x).__name__} has no records by place; give a dataset with __getitem__ and __len__"
        )
    count = len(x)
    if not count:
        raise DataError(f"`x`: {type(x).__name__} holds no records")
    first = _item(x, 0)
    parts = [room_for((count, *value.shape), value.dtype) for value in first]
    every = max(1, AT_ONCE // max(1, sum(value.nbytes for value in first)))
    for place in range(count):
        for part, value, like in zip(parts, _item(x, place) if place else first, first, strict=True):
            if value.shape != like.shape or value.dtype != like.dtype:
                raise DataError(
                    f"`x`: item {place} is {value.dtype} of shape {value.shape}, and the first {like.dtype} of shape"
                    f" {like.shape}; give all records one shape and type"
                )
            part[place] = value
        if place % every == 0:
            for part in parts:
                let_go(part)
    for part in parts:
        part.flags.writeable = False
    return parts[0], parts[1]


def _item(x: Any, place: int) -> tuple[np.ndarray, np.ndarray]:
    """One record; what its dataset says when it fails may tell of it, so it is not passed on."""
    failure = ""
    try:
        item = x[place]
        if not (isinstance(item, (tuple, list)) and len(item) == 2):
            raise DataError(f"`x`: item {place} is no pair of features and label; give a dataset of such pairs")
        return as_array(item[0], "x"), as_array(item[1], "x")
    except DpltmError:
        raise
    except Exception as error:
        failure = type(error).__name__
    raise DataError(f"`x`: item {place} of {type(x).__name__} cannot be read ({failure}); correct the dataset")
