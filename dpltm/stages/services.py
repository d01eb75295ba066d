"""What a stage is handed beside its inputs: somebody to tell how far it is, and somewhere to take features from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dpltm.features.feature_map import FeatureMap
from dpltm.records import Augmentation, Dataset, Split, copies_of
from dpltm.records.mapped import let_go, pieces, room_for
from dpltm.records.units import ABSENT
from dpltm.stages.progress import SILENT, Progress, watched_by

ROWS = 512
"""Records between two words of progress."""


class FeatureStore(Protocol):
    """Where features of records come from: computed, or kept from before."""

    def features(
        self,
        dataset: Dataset,
        split: Split,
        feature_map: FeatureMap,
        augment: Augmentation = "none",
        progress: Progress = SILENT,
    ) -> np.ndarray:
        """Features of all records of a split, ``(n, features)`` float16; of copies, or users, ``(n, copies, features)``.

        Args:
            dataset: it belongs to.
            split: ``dataset.train`` or ``dataset.test``.
            feature_map: without a centre.
            augment: copies of each record (see ``copies_of``).
            progress: told of them as they are computed, if they are.
        """
        ...


class MemoryFeatures:
    """Features in memory: computed once for a split and a map, for as long as this lives."""

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
        """See :meth:`FeatureStore.features`."""
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
    features: FeatureStore = field(default_factory=MemoryFeatures)

    def __post_init__(self) -> None:
        object.__setattr__(self, "progress", watched_by(self.progress))


def features_title(dataset: Dataset, split: Split) -> str:
    """What computing the features of a split is called."""
    return f"features of the {'test' if split is dataset.test else 'training'} records of {dataset.name}"


def feature_rows(
    split: Split, feature_map: FeatureMap, augment: Augmentation, step: Callable[[int], None] | None = None
) -> Iterator[np.ndarray]:
    """Features of the records of a split some at a time, ``(rows, copies * features)`` float16, little-endian.

    Args:
        split: the records.
        feature_map: without a centre.
        augment: copies of each record.
        step: called with the records done, every ``ROWS`` and at the end.
    """
    done = 0
    for x in pieces(split.x, ROWS):
        rows = features_of_copies(x, split.y[done : done + len(x)], feature_map, augment)
        yield rows.half().numpy().astype("<f2", copy=False)
        done += len(x)
        if step is not None:
            step(done)


def copies_in(split: Split, augment: Augmentation) -> int:
    """How many copies there are of each record, or slots of each user."""
    return copies_of(split.x[:1], augment).shape[1] if split.slots is None else split.slots


def as_copies(values: np.ndarray, split: Split, augment: Augmentation, copies: int) -> np.ndarray:
    """Features in the shape that a store gives them.

    Args:
        values: ``(n, copies * features)``.
        split: of the records.
        augment: copies of each record.
        copies: their number, or that of the slots of a user.
    """
    alone = augment == "none" and split.slots is None
    return values if alone else values.reshape(len(split), copies, -1)


def features_of_copies(x: np.ndarray, y: np.ndarray, feature_map: FeatureMap, augment: Augmentation) -> Tensor:
    """Features of records as stored, those of all copies of a record, or slots of a user, in one row.

    Args:
        x: records as stored, ``(n, ...)``.
        y: their labels, which tell the empty slots of users; features of those are zeros.
        feature_map: of ``features`` numbers a copy.
        augment: copies of each record.

    Returns:
        ``(n, copies * features)`` float32.
    """
    if y.ndim == 1:
        copies = copies_of(x, augment)
        return feature_map(copies.reshape(-1, *x.shape[1:])).view(len(x), -1)
    there = y != ABSENT
    features = torch.zeros(*y.shape, feature_map.features)
    features[torch.from_numpy(there)] = feature_map(x[there])
    return features.flatten(1)
