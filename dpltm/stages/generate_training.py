"""The private training behind ``dp-train``, by one process or by several ranks.

Rank 0 plans, enters the event, keeps checkpoints, prunes and reports, as one process does. The others open the same records,
start from the same weights, and hear the rest: noise, steps, and the state that a checkpoint goes on from. All that could be
refused is refused by all before the event is entered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from dpltm.filters import make_filter
from dpltm.networks import ModelSpec, build
from dpltm.networks.content import content_id
from dpltm.networks.masks import Mask
from dpltm.options.generate import GenerateOptions
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.pruning.generation import GenerationConfig
from dpltm.randomness.keyed_source import KeyedSource
from dpltm.randomness.noise import RandomSource
from dpltm.records import Dataset
from dpltm.stages.checks import model_spec
from dpltm.stages.generate_settings import settle
from dpltm.stages.inputs import batched_records
from dpltm.stages.services import Services
from dpltm.training.descent import Descent, NoisyGradients, TrainingConfig
from dpltm.training.losses import cross_entropy
from dpltm.training.plain import threads
from dpltm.training.ranks import Ranks, in_turn, rows_digest

CLIP_NORM = 1.0
"""Of every record's gradient."""


def training_of(
    spec: ModelSpec,
    config: GenerationConfig,
    dataset: Dataset,
    mechanism: NoisySgd,
    services: Services,
    sources: Mapping[str, RandomSource],
    ranks: Ranks | None = None,
) -> tuple[torch.nn.Module, Descent]:
    """The network and its training before the first draw; what cannot be trained is refused here.

    Args:
        spec: the network; all of it is trained.
        config: the settings of generation.
        dataset: the private records.
        mechanism: of the training.
        services: where features come from.
        sources: ``sampling`` and ``noise``; of several ranks, those of rank 0 count.
        ranks: that share the work, of which this is rank 0; None for one process.
    """
    if ranks is not None:
        ranks.together(lambda: None)
        ranks.agree(*_facts(spec, config, dataset))
        ranks.tell([mechanism.sampling_rate, mechanism.noise_std])
    given = mechanism.sampling_rate, mechanism.noise_std
    return in_turn(ranks, lambda: _made(spec, config, dataset, given, services, sources, ranks))


def begin(ranks: Ranks, descent: Descent) -> None:
    """Has the other ranks take their first step, or the one that a checkpoint goes on with."""
    ranks.tell(descent.step)
    ranks.share(descent.state())


def follow(ranks: Ranks, opened: Callable[[], Dataset], options: GenerateOptions, services: Services) -> None:
    """Does the share of a rank that is not the first, and returns when the last step is done.

    Args:
        ranks: of the training.
        opened: opens the records, with what stands in front of the network.
        options: of the generation.
        services: where features come from.

    Raises:
        DpltmError: what rank 0 raises as well, or what ended it.
    """

    def drafted() -> tuple[Dataset, ModelSpec, GenerationConfig]:
        dataset = opened()
        spec = model_spec(options.model, dataset)
        return dataset, spec, settle(options, spec, dataset, "dp")

    dataset, spec, config = ranks.together(drafted)
    ranks.agree(*_facts(spec, config, dataset))
    given = ranks.tell()
    sources = {"sampling": KeyedSource(), "noise": KeyedSource()}  # of which nothing is drawn
    _, descent = ranks.in_turn(lambda: _made(spec, config, dataset, given, services, sources, ranks))
    descent.resume(ranks.tell(), ranks.share({}))
    with threads(config.threads):
        descent.run()


def _made(
    spec: ModelSpec,
    config: GenerationConfig,
    dataset: Dataset,
    given: tuple[float, float],
    services: Services,
    sources: Mapping[str, RandomSource],
    ranks: Ranks | None,
) -> tuple[torch.nn.Module, Descent]:
    """The same, by sampling rate and noise."""
    model = build(spec, config.seed)
    settings = TrainingConfig(
        make_filter("clip", clip_norm=CLIP_NORM),
        given[0],
        config.iterations,
        float(config.batch_size),
        given[1],
        config.lr,
    )
    records = batched_records(dataset.train, dataset, services)
    gradients = NoisyGradients(model, Mask.dense(model), cross_entropy, records, settings, ranks=ranks, **sources)
    return model, Descent(gradients)


def _facts(spec: ModelSpec, config: GenerationConfig, dataset: Dataset) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """What all ranks must have in common beside their options; and digests, of what no message may show."""
    feature_map = dataset.feature_map
    shown = {
        "network": f"{spec.text} of {spec.features} features and {spec.classes} classes",
        "settings of the training": repr(config),
        "bounds": repr(dataset.bounds),
        "features": "none" if feature_map is None else feature_map.id,
    }
    weights = build(spec, config.seed).state_dict()
    return shown, {
        "records of `dataset`": rows_digest(dataset.train.x, dataset.train.y),
        "starting weights": content_id({name: value.numpy() for name, value in weights.items()}),
    }
