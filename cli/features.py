"""What stands in front of a network, at the terminal: public records by name, runs by folder, features from the cache."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from dpltm.cli.console import Console
    from dpltm.data import Augmentation, Dataset, Split
    from dpltm.options.features import FeatureOptions
    from dpltm.stages.front import TrainedNetwork


def with_features(dataset: Dataset, options: FeatureOptions, console: Console) -> Dataset:
    """The dataset with the map that the options ask for, if any (see ``dpltm.stages.front.with_feature_map``)."""
    from dpltm.stages.front import FeatureSources, with_feature_map
    from dpltm.tickets.identity import UserRegistry

    registry = UserRegistry(remember=not getattr(options, "dry_run", False))
    return with_feature_map(dataset, options, FeatureSources(registry=registry, network=_trained_network), console)


def _trained_network(name: str) -> TrainedNetwork:
    """What the run in a folder is as the front of another network."""
    from dpltm.errors import ArtifactError
    from dpltm.stages.front import TrainedNetwork
    from dpltm.tickets.identity import read_ref
    from dpltm.tickets.ledger_file import open_ledger
    from dpltm.tickets.run import load_run

    run = load_run(Path(name))
    try:
        records = read_ref(run.config["records"])
    except (KeyError, ArtifactError):
        records = None
    return TrainedNetwork(
        name=name,
        spec=run.spec,
        parameters={key: value.detach().clone() for key, value in run.model.named_parameters()},
        bounds=run.bounds,
        feature_map=run.feature_map,
        ticket_set=run.config.get("ticket_set_id"),
        records=records,
        events=open_ledger(Path(name) / "ledger.jsonl").events,
    )


def inputs(
    split: Split, dataset: Dataset, console: Console | None = None, augment: Augmentation = "none"
) -> np.ndarray:
    """What the network gets of a split before scaling or centring (see ``dpltm.stages.front.network_inputs``)."""
    from dpltm.stages.front import network_inputs
    from dpltm.stages.progress import SILENT
    from dpltm.stages.services import Services
    from dpltm.tickets.feature_cache import FeatureCache

    return network_inputs(split, dataset, Services(console or SILENT, FeatureCache()), augment)
