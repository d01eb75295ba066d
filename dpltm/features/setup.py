"""Feature maps in front of a network: made as options ask for them, or taken over from an artifact."""

from __future__ import annotations

import math
from dataclasses import replace

from dpltm.errors import InputError
from dpltm.features import MAPS, Takes, parse
from dpltm.features.feature_map import FeatureMap
from dpltm.records import Dataset, catalogue

FEW_COLUMNS, NARROWEST, WIDEST = 32, 0.5, 8.0
"""GAMMA of ``fourier`` where nobody says it: the square of ``FEW_COLUMNS`` over the number of columns, within these. Few
columns hold interactions that a narrow kernel finds; of many the kernel is better nearly linear. Found on public tables
alone, by ``benchmarks/table_defaults.py`` (docs/results.md)."""


def features_of(dataset: Dataset, features: str | None, network: str | None) -> str | None:
    """Return what stands in front of a network: of a table where nobody names more than one layer, ``fourier``.

    Args:
        features, network: as they are named; None for not.
    """
    table = dataset.is_table and not dataset.tables and network in (None, "mlp")
    return "fourier" if features is None and table else features


def completed(text: str, columns: int) -> str:
    """Return the name of maps with the GAMMA of ``fourier`` that nobody gave, by the public number of columns."""
    kind = MAPS["fourier"]
    gamma = float(f"{min(max((FEW_COLUMNS / columns) ** 2, NARROWEST), WIDEST):.2g}")
    usual = kind.text((kind.parameters[0].default, gamma))
    return "+".join(usual if part == kind.name else part for part in text.split("+"))


def with_feature_map(dataset: Dataset, features: str | None) -> Dataset:
    """Return the dataset with the map that ``features`` names; as it is for None and ``none``."""
    choice = None if features is None else parse(completed(features, math.prod(dataset.row_shape)))
    if choice is None:
        return dataset
    check_quantities(dataset, "`features`")
    check_kind(dataset, choice.takes, "features")
    return replace(dataset, feature_map=FeatureMap(choice, dataset.row_shape, dataset.bounds))


def take_over_map(dataset: Dataset, feature_map: FeatureMap | None, features: str | None, where: str) -> Dataset:
    """Return the dataset with the map that a ticket set or run remembers; InputError where ``features`` names one too."""
    if features is not None:
        raise InputError(f"`features`: {where} remembers what stands in front of its network; leave `features` out")
    if feature_map is None:
        return dataset
    check_quantities(dataset, "`dataset`", "use records like those that the features were made for")
    check_kind(dataset, feature_map.takes, "dataset")
    return replace(dataset, feature_map=feature_map.for_records(dataset.row_shape, dataset.bounds))


def check_quantities(dataset: Dataset, taker: str, fix: str = "leave it out") -> None:
    """Raise InputError for records whose values are positions in tables, which no arithmetic makes sense of, or of parts."""
    if dataset.parts:
        raise InputError(f"{taker}: takes records of one array, and those of {dataset.name} have several; {fix}")
    if dataset.tables:
        raise InputError(f"{taker}: takes quantities, and records of {dataset.name} hold positions in tables; {fix}")


def check_kind(dataset: Dataset, takes: Takes, field: str) -> None:
    """Raise InputError for records that are known to be something else than what is taken."""
    known = catalogue().get(dataset.name)
    if known is None or known.shape != dataset.row_shape or takes in ("any", known.kind):
        return
    suited = next((kind.name for kind in MAPS.values() if kind.takes == known.kind), "unit")
    raise InputError(
        f"`{field}`: {dataset.name} holds {known.kind}s of shape {known.shape}, not {takes}s; take `features` {suited}"
    )
