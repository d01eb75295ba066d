"""The private part of a training: its network, records, loss and random numbers put together."""

from __future__ import annotations

from typing import cast

from dpltm.options.train import TrainOptions
from dpltm.records import Augmentation, Dataset
from dpltm.stages.inputs import batched_records
from dpltm.stages.services import Services
from dpltm.stages.starting_point import StartingPoint
from dpltm.stages.train_state import Sources
from dpltm.training.descent import NoisyGradients, TrainingConfig
from dpltm.training.losses import cross_entropy, mean_cross_entropy, user_cross_entropy
from dpltm.training.ranks import Ranks


def noisy_gradients(
    start: StartingPoint,
    dataset: Dataset,
    options: TrainOptions,
    config: TrainingConfig,
    services: Services,
    sources: Sources,
    ranks: Ranks | None = None,
) -> NoisyGradients:
    """The training before its first draw: what cannot be trained is refused here, and nothing is spent yet.

    Args:
        start: network, weights, mask.
        dataset: the private records.
        options: as they were asked for.
        config: the settings that follow.
        services: where features come from.
        sources: its random numbers; of several ranks, those of rank 0 count.
        ranks: that share the work; None for one process.
    """
    model, augment = start.model.to(options.device), cast(Augmentation, options.augment)
    source = batched_records(dataset.train, dataset, services, options.device, augment)
    loss = cross_entropy if augment == "none" else mean_cross_entropy
    loss = loss if dataset.unit == "record" else user_cross_entropy
    return NoisyGradients(
        model, start.mask, loss, source, config, sampling=sources.sampling, noise=sources.noise, ranks=ranks
    )
