"""References as the user's registry has them, in one call."""

from __future__ import annotations

import numpy as np

from dpltm.privacy.events import DatasetRef, Event
from dpltm.records.dataset import Dataset
from dpltm.tickets.identity import UserRegistry


def reference(dataset: Dataset, *, public: bool = False, make_key: bool = True) -> DatasetRef:
    return UserRegistry(make_key).reference(dataset, public=public)


def resolve(ref: DatasetRef, public: bool = True) -> DatasetRef:
    return UserRegistry(remember=False).resolve(ref, public)


def resolved(event: Event) -> Event:
    return UserRegistry(remember=False).resolve_event(event)


def rows_of(ref: DatasetRef) -> np.ndarray | None:
    return UserRegistry(remember=False).rows_of(ref)
