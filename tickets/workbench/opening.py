"""What requests name, opened: runs that stand in front of networks, features from the cache."""

from __future__ import annotations

from pathlib import Path

from dpltm.errors import ArtifactError
from dpltm.options.features import FeatureOptions
from dpltm.records import Dataset
from dpltm.records.registry import RecordRegistry
from dpltm.stages.front import FeatureSources, TrainedNetwork, with_feature_map
from dpltm.stages.progress import Progress
from dpltm.stages.services import Services
from dpltm.tickets.feature_cache import FeatureCache
from dpltm.tickets.identity import read_ref
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.run import load_run
from dpltm.training.run import check_fits


def open_features(dataset: Dataset, request: FeatureOptions, registry: RecordRegistry, progress: Progress) -> Dataset:
    """The dataset with the feature map that a request names, if any.

    Args:
        dataset: the records.
        request: names the map.
        registry: tells records apart.
        progress: who watches.
    """
    return with_feature_map(dataset, request, feature_sources(registry), progress)


def feature_sources(registry: RecordRegistry) -> FeatureSources:
    """Public records by name, networks by the folder of their run."""
    return FeatureSources(registry=registry, network=open_network)


def open_network(name: str) -> TrainedNetwork:
    """What the run in a folder is as the front of another network.

    Raises:
        ArtifactError: no run, or one that its ledger does not fit.
    """
    run = load_run(Path(name))
    try:
        records = read_ref(run.config["records"])
    except (KeyError, ArtifactError):
        records = None
    events = open_ledger(Path(name) / "ledger.jsonl").events
    check_fits(run, events)
    return TrainedNetwork(
        name=name,
        spec=run.spec,
        parameters={key: value.detach().clone() for key, value in run.model.named_parameters()},
        bounds=run.bounds,
        feature_map=run.feature_map,
        ticket_set=run.config.get("ticket_set_id"),
        records=records,
        events=events,
    )


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
