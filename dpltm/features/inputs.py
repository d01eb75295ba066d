"""Records as a network gets them: scaled by public bounds, or their features, computed or kept from before."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dpltm.errors import InputError
from dpltm.features import MAPS, parse
from dpltm.features.feature_map import SPLINES, FeatureMap, map_of
from dpltm.progress import SILENT, Progress
from dpltm.records.batches import Inputs, Records
from dpltm.records.dataset import Dataset
from dpltm.records.scaling import prepare
from dpltm.records.split import Arrays, Split, filled
from dpltm.records.units import ABSENT

Keep = Callable[[Iterator[np.ndarray]], np.ndarray]  # gives the array that features lie in, of some rows at a time


class FeatureStore:
    """Source of features: computed once for a split and a map, and kept in memory for as long as this lives."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str, str], tuple[Split, Split]] = {}

    def features(self, dataset: Dataset, split: Split, feature_map: FeatureMap, progress: Progress = SILENT) -> Split:
        """Return the split with features, ``(n, features)``, of users ``(n, slots, features)``: float16, and float32 of the
        test split, as ``predict`` and exported networks have them."""
        dtype = "<f4" if split is dataset.test else "<f2"
        key = (id(split), feature_map.id, dtype)
        if key not in self._known:
            # the split is kept, so that its id stays its own
            self._known[key] = split, self.kept(split, feature_map, dtype, progress)
        return self._known[key][1]

    def kept(
        self, split: Split, feature_map: FeatureMap, dtype: str, progress: Progress, keep: Keep | None = None
    ) -> Split:
        """Compute features that are not in memory yet, in the array that ``keep`` gives; in memory by default."""
        keep = keep or partial(filled, (len(split), *feature_shape(split, feature_map)), dtype)
        with progress.progress(f"features of {len(split):,} records", len(split)) as step:
            return split.map(partial(features_of_rows, dtype, feature_map), keep, step)


@dataclass(frozen=True)
class Services:
    """Both of them; by default nobody watches, and features are computed in memory."""

    progress: Progress = SILENT
    features: FeatureStore = field(default_factory=FeatureStore)


def feature_shape(split: Split, feature_map: FeatureMap) -> tuple[int, ...]:
    """Return the shape of the features of a record: one row, or one for each of the slots of a user."""
    slots = split.shape[:1] if len(split.shape) > len(feature_map.shape) else ()
    return *slots, feature_map.stored_features


def features_of_rows(dtype: str, feature_map: FeatureMap, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return features of some records, ``(n, slots * features)``: of a record, or of all slots of a user in one row."""
    if x.ndim == len(feature_map.shape) + 1:
        return feature_map.stored(x).view(len(x), -1).numpy().astype(dtype, copy=False)
    features = torch.zeros(*y.shape, feature_map.stored_features)
    present = y != ABSENT
    features[torch.from_numpy(present)] = feature_map.stored(x[present])
    return features.flatten(1).numpy().astype(dtype, copy=False)


def network_inputs(split: Split, dataset: Dataset, services: Services | None = None) -> Split:
    """Return records of a split as stored, or their features, which are not centred yet."""
    if dataset.feature_map is None:
        return split
    services = services or Services()
    return services.features.features(dataset, split, dataset.feature_map.uncentred, services.progress)


def _ready(x: np.ndarray, dataset: Dataset) -> Tensor:
    if dataset.feature_map is None:
        return torch.from_numpy(prepare(x, dataset.bounds, dataset.tables, dataset.parts))
    return dataset.feature_map.centred(torch.from_numpy(x.astype("f4")))


def tensors(opened: Arrays, dataset: Dataset, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Return what :func:`network_inputs` gave, as a network takes it, ``(n, features)`` float32; and the labels.

    Of persons: the records that there are, ``(m, features)``, one after the other, and labels ``(n, slots)``.
    """
    return _ready(_present(opened, dataset).x, dataset).to(device), torch.tensor(opened.y, device=device)


def _present(opened: Arrays, dataset: Dataset) -> Arrays:
    """Return the records that there are of persons, one after the other; others as they are."""
    x, y = opened
    return Arrays(x[y != ABSENT], y[y != ABSENT]) if y.ndim > 1 and dataset.of_persons else opened


LARGE = 2**28  # bytes of records, ready for a network, from which on they are made ready a batch at a time


def inputs(opened: Arrays, dataset: Dataset, device: str = "cpu") -> tuple[Inputs, Tensor]:
    """Return the same as :func:`tensors`; but records that would take much memory are made ready as they are read."""
    count = int((opened.y != ABSENT).sum()) if opened.y.ndim > 1 and dataset.of_persons else len(opened.y)
    if 4 * count * dataset.features < LARGE:
        return tensors(opened, dataset, device)
    return batched_records(_present(opened, dataset), dataset, device), torch.tensor(opened.y, device=device)


def batched_records(opened: Arrays, dataset: Dataset, device: str = "cpu", *, of_own_network: bool = False) -> Records:
    """Return the same a batch at a time, made ready as it is read: ``(n, features)``, of users ``(n, slots, features)``.

    ``of_own_network`` gives positions in tables as whole numbers, so that a network is tried out on others than 0.
    """
    x, y = opened
    slots = y.ndim > 1 and dataset.of_persons

    def make_ready(rows: Tensor) -> Tensor:
        ready = _ready((rows.flatten(0, 1) if slots else rows).numpy(), dataset)
        ready = ready.long() if of_own_network and dataset.input_tables else ready
        return ready.view(*rows.shape[: 2 if slots else 1], -1)

    return Records(x, y, device=device, prepare=make_ready, read=dataset.rows)


FEW_COLUMNS, NARROWEST, WIDEST = 32, 0.5, 8.0
"""GAMMA of ``fourier`` where nobody says it: the square of ``FEW_COLUMNS`` over the number of columns, within these. Found
on public tables alone, by ``benchmarks/table_defaults.py`` (docs/results.md)."""


def features_of(dataset: Dataset, features: str | None, network: str | None) -> str | None:
    """Return what stands in front of a network, None for nothing named: ``splines`` of a table, before one layer."""
    table = dataset.is_table and not dataset.tables and network in (None, "mlp")
    return SPLINES if features is None and table else features


def with_feature_map(dataset: Dataset, features: str | None) -> Dataset:
    """Return the dataset with the map that ``features`` names; as it is for None and ``none``."""
    if features is None:
        return dataset
    kind = MAPS["fourier"]
    gamma = float(f"{min(max((FEW_COLUMNS / math.prod(dataset.row_shape)) ** 2, NARROWEST), WIDEST):.2g}")
    usual = kind.text((kind.parameters[0].default, gamma))
    choice = parse("+".join(usual if part == kind.name else part for part in features.split("+")))
    if choice is None:
        return dataset
    check_quantities(dataset, "`features`")
    numbers = dataset.schema.number_places if dataset.schema.columns else None
    return replace(dataset, feature_map=map_of(choice, dataset.row_shape, dataset.bounds, numbers))


def take_over_map(dataset: Dataset, feature_map: FeatureMap | None, features: str | None, where: str) -> Dataset:
    """Return the dataset with the map that a ticket set or run remembers; InputError where ``features`` names one too."""
    if features is not None:
        raise InputError(f"`features`: {where} remembers what stands in front of its network; leave `features` out")
    if feature_map is None:
        return dataset
    check_quantities(dataset, "`dataset`", "use records like those that the features were made for")
    return replace(dataset, feature_map=feature_map.for_records(dataset.row_shape, dataset.bounds))


def check_quantities(dataset: Dataset, taker: str, fix: str = "leave it out") -> None:
    """Raise InputError for records whose values are positions in tables, which no arithmetic makes sense of, or of parts."""
    if dataset.parts:
        raise InputError(f"{taker}: takes records of one array, and those of {dataset.name} have several; {fix}")
    if dataset.tables:
        raise InputError(f"{taker}: takes quantities, and records of {dataset.name} hold positions in tables; {fix}")
