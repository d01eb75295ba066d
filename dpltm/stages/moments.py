"""The query for moments of private records, as stages ask it, and records drawn from the answer (``records.synthetic``)."""

from __future__ import annotations

from torch import Tensor

from dpltm.errors import InputError
from dpltm.features.conventions import NORM
from dpltm.records import Dataset, unit_range
from dpltm.records.synthetic import Moments, synthetic_records
from dpltm.stages.front import check_quantities

MAX_FEATURES = 8_192
"""Of records whose second moments are released: half a gigabyte of them, several times over."""

RECORDS = 20_000
"""Synthetic records where nobody says how many."""


def check_moments(dataset: Dataset, taker: str, fix: str) -> None:
    """Raises InputError for records whose moments are not released.

    Args:
        dataset: the records.
        taker: what messages begin with, such as "`criterion` dp-synthetic".
        fix: what to do about it.
    """
    check_quantities(dataset, taker, fix)
    if dataset.features > MAX_FEATURES:
        raise InputError(
            f"{taker}: takes at most {MAX_FEATURES} features, since it releases their number squared; {dataset.name} has"
            f" {dataset.features}: {fix}"
        )


def draw_records(moments: Moments, dataset: Dataset, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Synthetic records as a network gets them: post-processing of ``moments``.

    Args:
        moments: of ``dataset``, released.
        dataset: says the public range of its features.
        count: how many.
        seed: decides the draws.
    """
    value_range = unit_range(dataset.bounds) if dataset.feature_map is None else (-NORM, NORM)
    return synthetic_records(moments, count, seed, value_range=value_range)
