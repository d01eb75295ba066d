"""What requests name, opened: runs that stand in front of networks, features from the cache."""

from __future__ import annotations

from pathlib import Path

from dpltm.features.inputs import Services
from dpltm.features.setup import FeatureSources, take_over_map, with_feature_map
from dpltm.options.data import FeatureOptions
from dpltm.progress import Progress
from dpltm.records import Dataset
from dpltm.tickets.feature_files import FeatureCache
from dpltm.tickets.run import load_run
from dpltm.training.artifacts import TicketSet


def open_features(
    dataset: Dataset, request: FeatureOptions, progress: Progress, tickets: TicketSet | None = None
) -> Dataset:
    """The dataset with what stands in front of a network.

    Args:
        dataset: the records.
        request: names the map, if any.
        progress: who watches.
        tickets: the set, which remembers its own; a request that names one is refused then.
    """
    if tickets is not None:
        return take_over_map(dataset, None, request, tickets.label)
    return with_feature_map(dataset, request, feature_sources(), progress)


def feature_sources() -> FeatureSources:
    """Public records by name, networks by the folder of their run."""
    return FeatureSources(network=lambda name: load_run(Path(name)))


def services(progress: Progress) -> Services:
    """What a stage is handed: features from the user's cache."""
    return Services(progress, FeatureCache())


def free_name(stem: str, suffix: str) -> Path:
    """``STEMSUFFIX``, or ``STEM-2SUFFIX`` and so on: the first that does not exist yet."""
    path, number = Path(stem + suffix), 1
    while path.exists():
        number += 1
        path = Path(f"{stem}-{number}{suffix}")
    return path


def stem_of(dataset: str | None, tickets: TicketSet | None) -> str:
    """What is made of a ticket set, or else of records, is called after it."""
    return Path(dataset or "data").stem if tickets is None else Path(tickets.label).name.removesuffix(".tickets")
