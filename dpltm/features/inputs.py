"""Records as a network gets them: scaled by public bounds, or their features, computed or kept from before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dpltm.features.feature_map import FeatureMap
from dpltm.networks.evaluation import Inputs
from dpltm.progress import SILENT, Progress, watched_by
from dpltm.records import Augmentation, Dataset, Split, copies_of, prepare
from dpltm.records.batches import Records
from dpltm.records.mapped import LARGE, let_go, pieces, room_for
from dpltm.records.units import ABSENT

ROWS = 512
"""Records between two words of progress."""


class FeatureStore:
    """Source of features: computed once for a split and a map, and kept for as long as this lives."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str, Augmentation], tuple[Split, np.ndarray]] = {}

    def features(
        self,
        dataset: Dataset,
        split: Split,
        feature_map: FeatureMap,
        augment: Augmentation = "none",
        progress: Progress = SILENT,
    ) -> np.ndarray:
        """Return features of a split, ``(n, features)`` float16; of copies, or users, ``(n, copies, features)``."""
        key = (id(split), feature_map.id, augment)
        if key not in self._known:
            with progress.progress(features_title(dataset, split), len(split)) as step:
                copies, done = copies_in(split, augment), 0
                values = room_for((len(split), copies * feature_map.features), "<f2")
                for rows in feature_rows(split, feature_map, augment, step):
                    values[done : done + len(rows)] = rows
                    done += len(rows)
                    let_go(values)
            # the split is kept, so that its id stays its own
            self._known[key] = split, as_copies(values, split, augment, copies)
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


def feature_rows(
    split: Split, feature_map: FeatureMap, augment: Augmentation, step: Callable[[int], None]
) -> Iterator[np.ndarray]:
    """Yield features of a split some at a time, ``(rows, copies * features)`` float16, little-endian."""
    done = 0
    for x in pieces(split.x, ROWS):
        rows = features_of_copies(x, split.y[done : done + len(x)], feature_map, augment)
        yield rows.half().numpy().astype("<f2", copy=False)
        done += len(x)
        step(done)


def copies_in(split: Split, augment: Augmentation) -> int:
    """Return the number of copies of each record, or of slots of each user."""
    return copies_of(split.x[:1], augment).shape[1] if split.slots is None else split.slots


def as_copies(values: np.ndarray, split: Split, augment: Augmentation, copies: int) -> np.ndarray:
    """Return features ``(n, copies * features)`` in the shape that a store gives them."""
    alone = augment == "none" and split.slots is None
    return values if alone else values.reshape(len(split), copies, -1)


def features_of_copies(x: np.ndarray, y: np.ndarray, feature_map: FeatureMap, augment: Augmentation) -> Tensor:
    """Return features ``(n, copies * features)``, float32, of all copies of a record, or slots of a user, in one row."""
    if y.ndim == 1:
        return feature_map(copies_of(x, augment).reshape(-1, *x.shape[1:])).view(len(x), -1)
    features, there = torch.zeros(*y.shape, feature_map.features), y != ABSENT
    features[torch.from_numpy(there)] = feature_map(x[there])
    return features.flatten(1)


def network_inputs(
    split: Split, dataset: Dataset, services: Services | None = None, augment: Augmentation = "none"
) -> np.ndarray:
    """Return records of a split as stored, or their features, which are not centred yet; or those of copies."""
    if dataset.feature_map is None:
        return split.x if augment == "none" else copies_of(split.x, augment)
    services = services or Services()
    return services.features.features(dataset, split, dataset.feature_map.uncentred, augment, services.progress)


def tensors(split: Split, dataset: Dataset, services: Services, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Return all records of a split, ``(n, features)`` float32, and their labels."""
    x = network_inputs(split, dataset, services)
    if dataset.feature_map is None:
        ready = torch.from_numpy(prepare(x, dataset.bounds, dataset.tables))
    else:
        ready = dataset.feature_map.centred(torch.from_numpy(x.astype("f4")))
    return ready.to(device), torch.tensor(split.y, device=device)


class _Ready:
    """Records that are made ready as they are read."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        places = np.arange(*index.indices(len(self))) if isinstance(index, slice) else index.numpy()
        return self._records.take(places)[0]


def inputs(split: Split, dataset: Dataset, services: Services, device: str = "cpu") -> tuple[Inputs, Tensor]:
    """Return the same as :func:`tensors`; but records that would take much memory are made ready as they are read."""
    if split.slots is not None or 4 * len(split) * dataset.features < LARGE:
        return tensors(split, dataset, services, device)
    return _Ready(batched_records(split, dataset, services, device)), torch.tensor(split.y, device=device)


def batched_records(
    split: Split, dataset: Dataset, services: Services, device: str = "cpu", augment: Augmentation = "none"
) -> Records:
    """Return the same a batch at a time, made ready as it is read.

    Returns:
        Records ``(n, features)`` float32; ``(n, copies, features)`` if they are augmented, and ``(n, slots, features)`` if
        they are users.
    """
    x, feature_map = network_inputs(split, dataset, services, augment), dataset.feature_map
    copies = () if augment == "none" and split.slots is None else (x.shape[1],)

    def make_ready(rows: Tensor) -> Tensor:
        each = rows.flatten(0, 1) if copies else rows
        if feature_map is None:
            ready = torch.from_numpy(prepare(each.numpy(), dataset.bounds, dataset.tables))
        else:
            ready = feature_map.centred(each.float())
        return ready.view(len(rows), *copies, -1)

    return Records(x, split.y, device=device, prepare=make_ready)
