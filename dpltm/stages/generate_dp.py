"""Tickets from private records through a mechanism: what it spends, and how it runs (docs/privacy-model.md section 2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dpltm.data import Dataset, unit_range
from dpltm.errors import InputError
from dpltm.evaluation import accuracy
from dpltm.features.conventions import NORM
from dpltm.filters import make_filter
from dpltm.generation import GenerationConfig, Tickets, generate, prune_once, weights_of
from dpltm.losses import cross_entropy
from dpltm.masks import Mask
from dpltm.models import ModelSpec, build
from dpltm.noise import SecureSource
from dpltm.options.generate import GenerateOptions
from dpltm.plain_training import threads
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.events import DatasetRef, Event, GaussianEvent, TrainingEvent
from dpltm.privacy.ledger import touching
from dpltm.privacy.mechanisms import GaussianRelease, NoisySgd
from dpltm.privacy.parts import OnRecord
from dpltm.pruning import CRITERIA
from dpltm.stages.front import check_quantities
from dpltm.stages.inputs import batched_records, tensors
from dpltm.stages.progress import Progress, by_round
from dpltm.stages.services import Services
from dpltm.synthetic import SENSITIVITY, release_moments, synthetic_records
from dpltm.training import Descent, NoisyGradients, TrainingConfig, sensitivity

CLIP_NORM = 1.0
"""Of the training behind ``dp-train``."""

MAX_FEATURES = 8_192
"""Of records whose second moments are released: half a gigabyte of them, several times over."""

SYNTHETIC = 20_000
"""Synthetic records that ``dp-synthetic`` prunes on, at least."""


def plan_release(
    options: GenerateOptions,
    config: GenerationConfig,
    spec: ModelSpec,
    dataset: Dataset,
    source: DatasetRef,
    before: tuple[Event, ...],
    progress: Progress,
) -> Event:
    """The release that the tickets will be post-processing of, with as much noise as the budget asks for.

    Args:
        options: with the budget.
        config, spec: the training, and its network.
        dataset: the records.
        source: what the release is entered on.
        before: what a ledger holds, with what will be entered first.
        progress: told that noise is calibrated.

    Raises:
        BudgetError: the ledger leaves too little of it, or an unprotected release leaves nothing to certify.
        InputError: records that the mechanism cannot take.
    """
    mechanism = CRITERIA[options.criterion].mechanism
    if mechanism == "moments":
        check_quantities(dataset, "`criterion` dp-synthetic", "take dp-train")
    if mechanism == "moments" and dataset.features > MAX_FEATURES:
        raise InputError(
            f"`criterion`: dp-synthetic takes at most {MAX_FEATURES} features, since it releases their number squared;"
            f" {dataset.name} has {dataset.features}: use dp-train"
        )
    if mechanism == "training":
        filter = make_filter("clip", clip_norm=CLIP_NORM)
        bound = sensitivity(filter, spec.parameters, "add-remove")
        draft = NoisySgd(config.batch_size / dataset.records, config.iterations, 1.0, bound)
    else:
        draft = NoisySgd(1.0, 1, 1.0, SENSITIVITY)
    progress.say(f"calibrating noise to epsilon {options.epsilon:g} at delta {options.delta:g}")
    known = OnRecord(source, touching(before, source))
    calibrated = calibrate_noise(options.epsilon or 0.0, options.delta, draft, known)
    if mechanism == "training":
        return TrainingEvent(source, calibrated, str(filter), spec.parameters)
    what = "counts, sums and second moments of norm-bounded records, for synthetic ones"
    return GaussianEvent(source, GaussianRelease(calibrated.noise_multiplier, SENSITIVITY), what)


def release(
    event: Event,
    spec: ModelSpec,
    config: GenerationConfig,
    dataset: Dataset,
    pay: Callable[[], None],
    services: Services,
) -> Tickets:
    """Pays for the event, makes the release, and makes the tickets from that alone.

    Args:
        event: of :func:`plan_release`.
        spec: the network.
        config: the settings of generation.
        dataset: the private records.
        pay: enters the event; called before anything is drawn.
        services: where features come from, and who watches.

    Raises:
        BudgetError: a budget set on the records does not allow it; nothing is entered then.

    Guarantees:
        The event is on record before any noise is drawn. The tickets are post-processing of that one release.
    """
    if isinstance(event, TrainingEvent):
        return _from_training(event, spec, config, dataset, pay, services)
    assert isinstance(event, GaussianEvent)
    return _from_synthetic(event, spec, config, dataset, pay, services)


def _from_training(
    event: TrainingEvent,
    spec: ModelSpec,
    config: GenerationConfig,
    dataset: Dataset,
    pay: Callable[[], None],
    services: Services,
) -> Tickets:
    """Tickets by magnitude of a network trained under DP; predictors are that network under each mask."""
    model = build(spec, config.seed)
    theta0 = weights_of(model)
    settings = TrainingConfig(
        make_filter("clip", clip_norm=CLIP_NORM),
        event.mechanism.sampling_rate,
        event.mechanism.steps,
        float(config.batch_size),
        event.mechanism.noise_std,
        config.lr,
    )
    records = batched_records(dataset.train, dataset, services)
    prepared = NoisyGradients(
        model, Mask.dense(model), cross_entropy, records, settings, sampling=SecureSource(), noise=SecureSource()
    )
    pay()  # before the first draw
    with services.progress.progress("training under DP", event.mechanism.steps) as step:

        def progress(done: int) -> None:
            nonlocal theta0
            step(done)
            if done == config.rewind:
                theta0 = weights_of(model)

        with threads(config.threads):
            Descent(prepared).run(progress)
    tickets = prune_once(spec, theta0, weights_of(model), config)
    if dataset.test is None:
        return tickets
    test, scored = tensors(dataset.test, dataset, services), []
    for ticket in tickets.tickets:
        model.load_state_dict(ticket.predictor or {})
        scored.append(replace(ticket, accuracy=accuracy(model, *test)))
    return replace(tickets, tickets=tuple(scored))


def _from_synthetic(
    event: GaussianEvent,
    spec: ModelSpec,
    config: GenerationConfig,
    dataset: Dataset,
    pay: Callable[[], None],
    services: Services,
) -> Tickets:
    """Iterative pruning on records drawn from noisy moments; accuracies are those on the test split, if there is one."""
    x, y = tensors(dataset.train, dataset, services)
    pay()  # before the moments are known
    sigma = event.mechanism.noise_multiplier
    moments = release_moments(x, y, spec.classes, noise_multiplier=sigma, noise=SecureSource())
    count = max(SYNTHETIC, config.batch_size)
    value_range = unit_range(dataset.bounds) if dataset.feature_map is None else (-NORM, NORM)
    made = synthetic_records(moments, count, config.seed, value_range=value_range)
    test = None if dataset.test is None else tensors(dataset.test, dataset, services)
    title = f"generating {config.rounds} tickets from synthetic records"
    with services.progress.progress(title, config.steps) as step:
        return generate(spec, *made, config, test, by_round(config.iterations, config.rewind, step))
