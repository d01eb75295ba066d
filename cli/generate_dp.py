"""The two ways of ``dpltm generate`` that read private records through a mechanism: what they spend, and how they run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dpltm.cli.common import check_not_public, records, tensors
from dpltm.cli.console import Console
from dpltm.cli.features import check_quantities
from dpltm.errors import InputError
from dpltm.privacy.mechanisms import GaussianRelease, NoisySgd

if TYPE_CHECKING:
    from dpltm.cli.generate import GenerateOptions, Plan
    from dpltm.data import Dataset
    from dpltm.generation import GenerationConfig, Tickets
    from dpltm.models import ModelSpec
    from dpltm.privacy.events import DatasetRef, Event
    from dpltm.privacy.ledger import Ledger

CLIP_NORM = 1.0
"""Of the training behind ``dp-train``."""

MOST_FEATURES = 8_192
"""Of records whose second moments are released: half a gigabyte of them, several times over."""

SYNTHETIC = 20_000
"""Synthetic records that ``dp-synthetic`` prunes on, at least."""


def plan_event(
    options: GenerateOptions,
    config: GenerationConfig,
    dataset: Dataset,
    source: DatasetRef,
    spec: ModelSpec,
    before: tuple[Event, ...],
    console: Console,
) -> Event:
    """The release that the tickets will be post-processing of, with as much noise as the budget asks for.

    Raises:
        BudgetError: the ledger leaves too little of it, or an unprotected release leaves nothing to certify.
        InputError: the ledger has these records down as public.
    """
    from dpltm.filters import make_filter
    from dpltm.privacy.calibration import calibrate_noise
    from dpltm.privacy.events import GaussianEvent, TrainingEvent
    from dpltm.privacy.parts import OnRecord
    from dpltm.synthetic import SENSITIVITY

    check_not_public(before, source)
    if options.criterion == "dp-synthetic":
        check_quantities(dataset, "--criterion dp-synthetic", "take dp-train")
    if options.criterion == "dp-synthetic" and dataset.features > MOST_FEATURES:
        raise InputError(
            f"--criterion: dp-synthetic takes at most {MOST_FEATURES} features, since it releases their number squared;"
            f" {dataset.name} has {dataset.features}: use dp-train"
        )
    if options.criterion == "dp-train":
        from dpltm.training import sensitivity

        filter = make_filter("clip", clip_norm=CLIP_NORM)
        live = spec.parameters
        bound = sensitivity(filter, live, "add-remove")
        draft = NoisySgd(config.batch_size / dataset.records, config.iterations, 1.0, bound)
    else:
        draft = NoisySgd(1.0, 1, 1.0, SENSITIVITY)
    touching = tuple(event for event in before if event.dataset.may_overlap(source))
    console.say(f"calibrating noise to epsilon {options.epsilon:g} at delta {options.delta:g}")
    before_it = OnRecord(source, touching)
    calibrated = calibrate_noise(options.epsilon or 0.0, options.delta, draft, before_it)
    if options.criterion == "dp-train":
        return TrainingEvent(source, calibrated, str(filter), live)
    what = "counts, sums and second moments of norm-bounded records, for synthetic ones"
    return GaussianEvent(source, GaussianRelease(calibrated.noise_multiplier, SENSITIVITY), what)


def make_tickets(plan: Plan, criterion: str, ledger: Ledger, console: Console) -> Tickets:
    """Enters the event, makes the release, and makes the tickets from that alone."""
    return _from_training(plan, ledger, console) if criterion == "dp-train" else _from_synthetic(plan, ledger, console)


def _from_training(plan: Plan, ledger: Ledger, console: Console) -> Tickets:
    """Tickets by magnitude of a network trained under DP; predictors are that network under each mask."""
    from dpltm.filters import make_filter
    from dpltm.generation import accuracy, prune_once, threads, weights_of
    from dpltm.masks import Mask
    from dpltm.models import build
    from dpltm.noise import SecureSource
    from dpltm.privacy.events import TrainingEvent
    from dpltm.training import NoisyGradients, TrainingConfig, cross_entropy, descend

    event, config = plan.event, plan.config
    assert isinstance(event, TrainingEvent)
    model = build(plan.spec, config.seed)
    theta0 = weights_of(model)
    settings = TrainingConfig(
        make_filter("clip", clip_norm=CLIP_NORM),
        event.mechanism.sampling_rate,
        event.mechanism.steps,
        float(config.batch_size),
        event.mechanism.noise_std,
        config.lr,
    )
    source = records(plan.dataset.train, plan.dataset, "cpu", console)
    prepared = NoisyGradients(
        model, Mask.dense(model), cross_entropy, source, settings, sampling=SecureSource(), noise=SecureSource()
    )
    ledger.append(event)
    with console.progress("training under DP", event.mechanism.steps) as step:

        def progress(done: int) -> None:
            nonlocal theta0
            step(done)
            if done == config.rewind:
                theta0 = weights_of(model)

        with threads(config.threads):
            descend(prepared, progress)
    tickets = prune_once(plan.spec, theta0, weights_of(model), config)
    if plan.dataset.test is None:
        return tickets
    test, scored = tensors(plan.dataset.test, plan.dataset, console=console), []
    for ticket in tickets.tickets:
        model.load_state_dict(ticket.predictor or {})
        scored.append(replace(ticket, accuracy=accuracy(model, *test)))
    return replace(tickets, tickets=tuple(scored))


def _from_synthetic(plan: Plan, ledger: Ledger, console: Console) -> Tickets:
    """Iterative pruning on records drawn from noisy moments; accuracies are those on the test split, if there is one."""
    from dpltm.cli.generate import by_round
    from dpltm.data import unit_range
    from dpltm.features import NORM
    from dpltm.generation import generate
    from dpltm.noise import SecureSource
    from dpltm.privacy.events import GaussianEvent
    from dpltm.synthetic import release_moments, synthetic_records

    assert isinstance(plan.event, GaussianEvent)
    x, y = tensors(plan.dataset.train, plan.dataset, console=console)
    ledger.append(plan.event)
    moments = release_moments(
        x, y, plan.spec.classes, noise_multiplier=plan.event.mechanism.noise_multiplier, noise=SecureSource()
    )
    count = max(SYNTHETIC, plan.config.batch_size)
    value_range = unit_range(plan.dataset.bounds) if plan.dataset.feature_map is None else (-NORM, NORM)
    made = synthetic_records(moments, count, plan.config.seed, value_range=value_range)
    test = None if plan.dataset.test is None else tensors(plan.dataset.test, plan.dataset, console=console)
    with console.progress(
        f"generating {plan.config.rounds} tickets from synthetic records", plan.config.steps
    ) as step:
        return generate(plan.spec, *made, plan.config, test, by_round(plan.config, step))
