"""Which columns of a table a network reads: those that it has a live weight for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpltm.errors import DataError
from dpltm.pruning.criteria import Groups
from dpltm.records.schema import Column, Schema, parse_schema

if TYPE_CHECKING:
    from dpltm.features.feature_map import FeatureMap
    from dpltm.networks.masks import Mask
    from dpltm.records import Dataset


UNIFORM = 1 / 12
"""Variance of a number that is uniform between its bounds; that a cell is empty is taken to vary as much."""


def input_groups(dataset: Dataset) -> Groups:
    """The inputs that each column became, by their variances if everything that the schema allows is equally likely.

    None where records have no schema, or a map stands in front, which mixes columns.
    """
    schema = _schema(dataset.schema)
    if schema is None or dataset.feature_map is not None:
        return ()
    return tuple((_variance(column),) * len(column.features) for column in schema.columns if column.features)


def _variance(column: Column) -> float:
    """Of each of its features; of one category in m, 1/m (1 - 1/m)."""
    if column.kind in ("number", "date"):
        return UNIFORM
    chance = 1 / (len(column.features) + column.other)
    return chance * (1 - chance)


def columns_read(text: object, mask: Mask, feature_map: FeatureMap | None) -> list[str] | None:
    """Columns that a network has a live weight for; None where that is not known.

    Args:
        text: of the schema.
        mask: of the network.
        feature_map: in front of it, which reads all columns.

    Guarantees:
        What the network answers depends on no other column: the weights of their features are zero.
    """
    schema = _schema(text)
    first = next((value for value in mask.values() if value.ndim >= 2), None)
    if schema is None or feature_map is not None or first is None or first.shape[1:] != (len(schema.features),):
        return None
    alive, names = first.any(0), []
    for column in schema.columns:
        if bool(alive[: len(column.features)].any()):
            names.append(column.name)
        alive = alive[len(column.features) :]
    return names


def _schema(text: object) -> Schema | None:
    """The schema; None where there is none, or none that can be read: then nothing is said of columns."""
    if not isinstance(text, str) or not text:
        return None
    try:
        return parse_schema(text, "schema")
    except DataError:
        return None
