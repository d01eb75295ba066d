"""Records as a network gets them: scaled by public bounds, or their features; all at once, or a batch at a time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dpltm.randomness.sampling import Records
from dpltm.records import Augmentation, Dataset, Split, prepare
from dpltm.records.mapped import LARGE
from dpltm.stages.front import network_inputs
from dpltm.stages.services import Services
from dpltm.training.plain import Inputs


def tensors(split: Split, dataset: Dataset, services: Services, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """All records of a split, ``(n, features)`` float32, and their labels.

    Args:
        split: of ``dataset``.
        dataset: with its bounds, tables and feature map.
        services: where features come from.
        device: that the tensors are put on.
    """
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
    """As :func:`tensors`; but records that would take much memory are made ready as they are read.

    Args:
        split, dataset, services, device: as :func:`tensors`.
    """
    if split.slots is not None or 4 * len(split) * dataset.features < LARGE:
        return tensors(split, dataset, services, device)
    return _Ready(batched_records(split, dataset, services, device)), torch.tensor(split.y, device=device)


def batched_records(
    split: Split, dataset: Dataset, services: Services, device: str = "cpu", augment: Augmentation = "none"
) -> Records:
    """The same a batch at a time, made ready as it is read.

    Args:
        split, dataset, services, device: as :func:`tensors`.
        augment: copies of each record.

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
