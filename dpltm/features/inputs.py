"""Records as a network gets them: scaled by public bounds, or their features, computed or kept from before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dpltm.features.feature_map import FeatureMap
from dpltm.networks.evaluation import Inputs
from dpltm.progress import SILENT, Progress, watched_by
from dpltm.records import Arrays, Dataset, Split, prepare
from dpltm.records.batches import Records
from dpltm.records.mapped import LARGE, filled
from dpltm.records.units import ABSENT


class FeatureStore:
    """Source of features: computed once for a split and a map, and kept for as long as this lives."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str, str], tuple[Split, Split]] = {}

    def features(self, dataset: Dataset, split: Split, feature_map: FeatureMap, progress: Progress = SILENT) -> Split:
        """Return the split with features, ``(n, features)``; of users ``(n, slots, features)``."""
        dtype = kept_as(dataset, split)
        key = (id(split), feature_map.id, dtype)
        if key not in self._known:
            shape = len(split), *feature_shape(split, feature_map)
            with progress.progress(features_title(dataset, split), len(split)) as step:
                made = split.map(made_as(dtype, feature_map), partial(filled, shape, dtype), step)
            self._known[key] = split, made  # the split is kept, so that its id stays its own
        return self._known[key][1]


@dataclass(frozen=True)
class Services:
    """Both of them; by default nobody watches, and features are computed in memory."""

    progress: Progress = SILENT
    features: FeatureStore = field(default_factory=FeatureStore)

    def __post_init__(self) -> None:
        object.__setattr__(self, "progress", watched_by(self.progress))


def features_title(dataset: Dataset, split: Split) -> str:
    """Return the title of progress while features of a split are computed."""
    return f"features of the {'test' if split is dataset.test else 'training'} records of {dataset.name}"


def kept_as(dataset: Dataset, split: Split) -> str:
    """Return the dtype that features of a split are kept in: of those to be trained on, the many, float16.

    Those of the test split are float32, as ``predict`` and exported networks have them: its accuracy is theirs.
    """
    return "<f4" if split is dataset.test else "<f2"


def made_as(dtype: str, feature_map: FeatureMap) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return a function that makes features of some records, ``(rows, slots * features)``."""

    def rows(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return features_of_rows(x, y, feature_map).numpy().astype(dtype, copy=False)

    return rows


def feature_shape(split: Split, feature_map: FeatureMap) -> tuple[int, ...]:
    """Return the shape of the features of a record: one row, or one for each of the slots of a user."""
    if len(split.shape) > len(feature_map.shape):
        return split.shape[0], feature_map.features
    return (feature_map.features,)


def features_of_rows(x: np.ndarray, y: np.ndarray, feature_map: FeatureMap) -> Tensor:
    """Return features ``(n, slots * features)``, float32: of a record, or of all slots of a user in one row."""
    if x.ndim == len(feature_map.shape) + 1:
        return feature_map(x).view(len(x), -1)
    features, there = torch.zeros(*y.shape, feature_map.features), y != ABSENT
    features[torch.from_numpy(there)] = feature_map(x[there])
    return features.flatten(1)


def network_inputs(split: Split, dataset: Dataset, services: Services | None = None) -> Split:
    """Return records of a split as stored, or their features, which are not centred yet."""
    if dataset.feature_map is None:
        return split
    services = services or Services()
    return services.features.features(dataset, split, dataset.feature_map.uncentred, services.progress)


def tensors(opened: Arrays, dataset: Dataset, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Return what :func:`network_inputs` gave, as a network takes it, ``(n, features)`` float32; and the labels.

    Of persons: the records that there are, ``(m, features)``, one after the other, and labels ``(n, slots)``.
    """
    x, y = opened
    x = x[y != ABSENT] if y.ndim > 1 and dataset.of_persons else x
    if dataset.feature_map is None:
        ready = torch.from_numpy(prepare(x, dataset.bounds, dataset.tables, dataset.parts))
    else:
        ready = dataset.feature_map.centred(torch.from_numpy(x.astype("f4")))
    return ready.to(device), torch.tensor(y, device=device)


class _Ready:
    """Records that are made ready as they are read."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        places = np.arange(*index.indices(len(self))) if isinstance(index, slice) else index.numpy()
        return self._records.take(places)[0]


def inputs(opened: Arrays, dataset: Dataset, device: str = "cpu") -> tuple[Inputs, Tensor]:
    """Return the same as :func:`tensors`; but records that would take much memory are made ready as they are read."""
    slots = opened.y.ndim > 1 and dataset.of_persons
    there = opened.y != ABSENT if slots else np.ones(len(opened.y), dtype=bool)
    if 4 * int(there.sum()) * dataset.features < LARGE:
        return tensors(opened, dataset, device)
    rows = Arrays(opened.x[there], opened.y[there]) if slots else opened
    return _Ready(batched_records(rows, dataset, device)), torch.tensor(opened.y, device=device)


def batched_records(
    opened: Arrays,
    dataset: Dataset,
    device: str = "cpu",
    *,
    whole: bool = False,
) -> Records:
    """Return the same a batch at a time, made ready as it is read.

    Args:
        whole: give positions in tables as whole numbers, so that a network is tried out on others than 0.

    Returns:
        Records ``(n, features)`` float32; ``(n, slots, features)`` if they are users.
    """
    (x, y), feature_map = opened, dataset.feature_map
    slots = y.ndim > 1 and dataset.of_persons

    def make_ready(rows: Tensor) -> Tensor:
        each = rows.flatten(0, 1) if slots else rows
        if feature_map is None:
            ready = torch.from_numpy(prepare(each.numpy(), dataset.bounds, dataset.tables, dataset.parts))
            ready = ready.long() if whole and dataset.tables else ready
        else:
            ready = feature_map.centred(each.float())
        return ready.view(*rows.shape[: 2 if slots else 1], -1)

    return Records(x, y, device=device, prepare=make_ready, slotted=slots, read=dataset.rows)
