"""Opening of what requests name: maps in front of networks, and features from the cache."""

from __future__ import annotations

from pathlib import Path

from dpltm.features.inputs import Services
from dpltm.features.setup import take_over_map, with_feature_map
from dpltm.progress import Progress
from dpltm.records import Dataset
from dpltm.tickets.feature_files import FeatureCache
from dpltm.training.artifacts import TicketSet


def open_features(dataset: Dataset, features: str | None, tickets: TicketSet | None = None) -> Dataset:
    """Return the records behind the map that is named; refused beside a set, which remembers its own."""
    if tickets is not None:
        return take_over_map(dataset, None, features, tickets.label)
    return with_feature_map(dataset, features)


def services(progress: Progress) -> Services:
    """Services of a stage: features from the user's cache."""
    return Services(progress, FeatureCache())


def free_name(stem: str, suffix: str) -> Path:
    """``STEMSUFFIX``, or ``STEM-2SUFFIX`` and so on: the first that does not exist yet."""
    path, number = Path(stem + suffix), 1
    while path.exists():
        number += 1
        path = Path(f"{stem}-{number}{suffix}")
    return path


def stem_of(dataset: str | None, tickets: TicketSet | None) -> str:
    """Stem of names of results: of the ticket set, or else of the records."""
    return Path(dataset or "data").stem if tickets is None else Path(tickets.label).name.removesuffix(".tickets")
