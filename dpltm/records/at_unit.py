"""The records of a training at the unit that it protects: single ones, a person's, or a user's ratings."""

from __future__ import annotations

from dpltm.errors import DataError
from dpltm.records.dataset import Dataset
from dpltm.records.ratings import by_user
from dpltm.records.units import by_unit


def at_unit(dataset: Dataset, unit: str, per_unit: int | None, usual: int) -> Dataset:
    """The records at the unit that is to be protected; they may be at it already.

    Args:
        dataset: the records. Where it says whose they are, a person is the unit, whatever ``unit`` says.
        unit: ``record`` or ``user``, which takes ratings, or records that say whose they are.
        per_unit: most records of one user that count; None for ``usual``.
        usual: the number if nothing is said.

    Raises:
        DataError: nothing says whose the records are; see :func:`by_unit` and :func:`dpltm.records.ratings.by_user`.
    """
    if dataset.of_persons:
        return dataset
    slots = usual if per_unit is None else per_unit
    if dataset.units is not None:
        return by_unit(dataset, slots)
    if unit == "user":
        return by_user(dataset, slots)
    check_per_unit(per_unit)
    return dataset


def check_per_unit(per_unit: int | None) -> None:
    """Raises DataError if it is said how many records of a person count, where single records are the unit."""
    if per_unit is not None:
        raise DataError(
            "`per_unit`: bounds what one person gives, so it goes with `unit_column`, or with `unit` user of ratings; leave"
            " it out, or add one of them"
        )
