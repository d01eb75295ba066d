"""The public face: the stages as functions of arrays and keyword arguments (``dpltm.generate`` and so on).

Each takes its records as arrays or as a ``Dataset``, and its options by name: the fields of the stage's options, and the
public facts about arrays that ``dpltm.data.from_arrays`` takes. What a stage does with them, ``dpltm.stages`` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from dpltm.data import Dataset, from_arrays
from dpltm.errors import InputError
from dpltm.options.arguments import Arguments
from dpltm.privacy.ledger import Ledger
from dpltm.private_loop import PrivateLoop

__all__ = ["Ledger", "PrivateLoop"]

FACTS = ("test", "bounds", "classes", "records")
"""Public facts about records that come as arrays."""

Records = np.ndarray | Tensor | Dataset
"""Features ``(n, ...)`` as an array, a tensor or a memory map; or a dataset, which has its labels."""


def as_dataset(x: Records, y: np.ndarray | Tensor | None, facts: Mapping[str, Any]) -> Dataset:
    """The dataset that a caller means.

    Args:
        x: features, or a dataset.
        y: labels; None with a dataset.
        facts: of ``FACTS``, those that were given.

    Raises:
        InputError: labels or facts beside a dataset; arrays that are not what they must be.
    """
    if isinstance(x, Dataset):
        beside = [*(["y"] if y is not None else []), *(name for name in FACTS if facts.get(name) is not None)]
        if beside:
            raise InputError(f"`{beside[0]}`: {x.name} is a dataset, which says so itself; leave `{beside[0]}` out")
        return x
    if y is None:
        raise InputError("`y` is missing: the labels that go with `x`")
    test = facts.get("test")
    if test is not None and len(test) != 2:
        raise InputError("`test`: not a pair of features and labels")
    held_out = None if test is None else (_array(test[0]), _array(test[1]))
    rest = {name: facts.get(name) for name in FACTS if name != "test"}
    return from_arrays(_array(x), _array(y), test=held_out, **rest)


def _array(values: object) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def records_and_options(
    x: Records, y: np.ndarray | Tensor | None, given: Mapping[str, Any], *classes: type
) -> tuple[Dataset, Arguments]:
    """The records and the options that a caller means by keyword arguments.

    Args:
        x, y: as :func:`as_dataset` takes them.
        given: keyword arguments: facts about the records, and fields of ``classes``.
        classes: of options.

    Returns:
        The dataset, and options by class: ``arguments.take(TrainOptions)``.

    Raises:
        InputError: an option that none of them has, with the nearest that there is; a value of the wrong type.
    """
    facts = {name: given[name] for name in FACTS if name in given}
    rest = {name: value for name, value in given.items() if name not in facts}
    options = Arguments(rest, classes, FACTS)
    return as_dataset(x, y, facts), options
