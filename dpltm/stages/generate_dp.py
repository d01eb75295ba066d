"""Tickets from private records through a mechanism: what it spends, and how it runs (docs/privacy-model.md section 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dpltm.errors import ArtifactError, DpltmError
from dpltm.filters import make_filter
from dpltm.gradients.choose import choices_made, repeat_choices
from dpltm.networks import ModelSpec
from dpltm.options.generate import GenerateOptions
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.events import DatasetRef, Event, GaussianEvent, TrainingEvent
from dpltm.privacy.figures import figure
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.privacy.odometer import Odometer
from dpltm.privacy.parts import OnRecord, total_epsilon, touching
from dpltm.pruning import CRITERIA
from dpltm.pruning.generation import GenerationConfig, Tickets, generate, prune_once, weights_of
from dpltm.randomness.keyed_source import KeyedSource, ResumableSource, source_of
from dpltm.records import Dataset
from dpltm.records.synthetic import Moments, release_moments
from dpltm.stages.generate_training import CLIP_NORM, begin, training_of
from dpltm.stages.inputs import tensors
from dpltm.stages.moments import RECORDS, check_moments, draw_records, plan_moments
from dpltm.stages.progress import Progress, by_round
from dpltm.stages.services import Services
from dpltm.training.checkpoint import AGAIN, NOT_KEPT, Checkpoint, Checkpoints, PartOf
from dpltm.training.descent import Descent
from dpltm.training.evaluation import accuracy
from dpltm.training.plain import threads
from dpltm.training.ranks import Ranks
from dpltm.training.sensitivity import sensitivity


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
    progress.say(f"calibrating noise to epsilon {options.epsilon:g} at delta {options.delta:g}")
    if CRITERIA[options.criterion].mechanism == "moments":
        check_moments(dataset, "`criterion` dp-synthetic", "take dp-train")
        return plan_moments(options.epsilon or 0.0, options.delta, "add-remove", source, before)
    filter = make_filter("clip", clip_norm=CLIP_NORM)
    bound = sensitivity(filter, spec.parameters, "add-remove")
    draft = NoisySgd(config.batch_size / dataset.records, config.iterations, 1.0, bound)
    known = OnRecord(source, touching(before, source))
    calibrated = calibrate_noise(options.epsilon or 0.0, options.delta, draft, known)
    return TrainingEvent(source, calibrated, str(filter), spec.parameters)


@dataclass(frozen=True)
class Payment:
    """How a release is paid for, and what it adds to.

    Attributes:
        enter: enters the event.
        earlier: events on the same records before it.
        delta: at which epsilons are told.
    """

    enter: Callable[[], None]
    earlier: tuple[Event, ...]
    delta: float

    def total(self, event: Event) -> float:
        """The certified epsilon with the release."""
        return total_epsilon((*self.earlier, event), self.delta)


def release(
    event: Event,
    spec: ModelSpec,
    config: GenerationConfig,
    dataset: Dataset,
    pay: Payment,
    services: Services,
    checkpoints: Checkpoints = NOT_KEPT,
    ranks: Ranks | None = None,
) -> Tickets:
    """Pays for the event, makes the release, and makes the tickets from that alone.

    Args:
        event: of :func:`plan_release`.
        spec: the network.
        config: the settings of generation.
        dataset: the private records.
        pay: enters the event, before anything is drawn.
        services: where features come from, and who watches.
        checkpoints: where it is kept on the way. Where one is held, it was paid for.
        ranks: that share a training, of which this is rank 0; the others ``generate_training.follow``. None for one process.

    Raises:
        BudgetError: a budget set on the records does not allow it; nothing is entered then.

    Guarantees:
        The event is on record before any noise is drawn. The tickets are post-processing of that one release.
    """
    draws = _Draws(pay, checkpoints)
    if isinstance(event, TrainingEvent):
        return _from_training(event, spec, config, dataset, draws, services, ranks)
    assert isinstance(event, GaussianEvent)
    return _from_synthetic(event, spec, config, dataset, draws, services)


class _Draws:
    """The random numbers of a release, and when they are paid for: once, with their keys on disk before.

    Args:
        pay: enters the event.
        checkpoints: with what was kept of the release before, if it was interrupted.

    Attributes:
        held: that; None of a new one.
    """

    def __init__(self, pay: Payment, checkpoints: Checkpoints) -> None:
        self.payment, self.checkpoints, self.held = pay, checkpoints, checkpoints.held
        if self.held is None:
            self.sampling: ResumableSource = KeyedSource()
            self.noise: ResumableSource = KeyedSource()
        else:
            states = self.held.state["sources"]
            self.sampling, self.noise = source_of(states["sampling"]), source_of(states["noise"])
            repeat_choices(self.held.state["choices"])

    def paid(self) -> None:
        """Pays, if that was not done before."""
        if self.held is not None:
            return
        self.checkpoints.keep(Checkpoint("the beginning", self.state(0)))
        try:
            self.payment.enter()
        except DpltmError:
            self.checkpoints.forget()
            raise

    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint says of them, once so many steps were released."""
        sources = {"sampling": self.sampling.state, "noise": self.noise.state}
        return {"step": step, "sources": sources, "choices": choices_made()}


def _from_training(
    event: TrainingEvent,
    spec: ModelSpec,
    config: GenerationConfig,
    dataset: Dataset,
    draws: _Draws,
    services: Services,
    ranks: Ranks | None,
) -> Tickets:
    """Tickets by magnitude of a network trained under DP; predictors are that network under each mask."""
    sources, steps = {"sampling": draws.sampling, "noise": draws.noise}, event.mechanism.steps
    model, descent = training_of(spec, config, dataset, event.mechanism, services, sources, ranks)
    theta0 = weights_of(model)
    draws.paid()  # before the first draw
    if draws.held is not None and draws.held.state["step"]:
        theta0 = _resume(descent, draws.held, theta0)
    if ranks is not None:
        begin(ranks, descent)
    earlier = OnRecord(event.dataset, draws.payment.earlier)
    odometer = Odometer(earlier, event.mechanism, draws.payment.delta)
    with services.progress.progress("training under DP", steps) as step:

        def between() -> None:
            nonlocal theta0
            if descent.step == config.rewind:
                theta0 = weights_of(model)
            draws.checkpoints.offer(lambda: _checkpoint(descent, draws, theta0))
            step(descent.step, f"epsilon so far {figure(odometer.after(descent.step))}")

        with threads(config.threads):
            descent.run(between=between)
    tickets = prune_once(spec, theta0, weights_of(model), config)
    if dataset.test is None:
        return tickets
    test, scored = tensors(dataset.test, dataset, services), []
    for ticket in tickets.tickets:
        model.load_state_dict(ticket.predictor or {})
        scored.append(replace(ticket, accuracy=accuracy(model, *test)))
    return replace(tickets, tickets=tuple(scored))


def _checkpoint(descent: Descent, draws: _Draws, theta0: Mapping[str, Tensor]) -> Checkpoint:
    steps = descent.gradients.config.steps
    tensors = {f"training/{name}": value.numpy() for name, value in descent.state().items()}
    tensors |= {f"theta0/{name}": value.numpy() for name, value in theta0.items()}
    return Checkpoint(f"step {descent.step} of {steps}", draws.state(descent.step), tensors)


def _resume(descent: Descent, held: Checkpoint, theta0: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Takes a training to where it was; returns its theta0."""
    found = {name: torch.from_numpy(value.copy()) for name, value in held.tensors.items()}
    try:
        trained = {name.removeprefix("training/"): value for name, value in found.items() if "training/" in name}
        descent.resume(int(held.state["step"]), trained)
        return {name: found[f"theta0/{name}"] for name in theta0}
    except (KeyError, IndexError, TypeError, ValueError, DpltmError):
        raise ArtifactError(f"checkpoint: damaged, or of another version; {AGAIN}") from None


def _from_synthetic(
    event: GaussianEvent,
    spec: ModelSpec,
    config: GenerationConfig,
    dataset: Dataset,
    draws: _Draws,
    services: Services,
) -> Tickets:
    """Iterative pruning on records drawn from noisy moments; accuracies are those on the test split, if there is one."""
    x, y = tensors(dataset.train, dataset, services)
    draws.paid()  # before the moments are known
    moments, released = _known_moments(draws.held, event), draws.held is not None and draws.held.state["step"] > 0
    if moments is None:
        sigma = event.mechanism.noise_multiplier
        moments = release_moments(x, y, spec.classes, noise_multiplier=sigma, noise=draws.noise)
    made = draw_records(moments, dataset, max(RECORDS, config.batch_size), config.seed)
    test = None if dataset.test is None else tensors(dataset.test, dataset, services)
    title = f"generating {config.rounds} tickets from synthetic records"
    known = {f"moments/{name}": getattr(moments, name).numpy() for name in _MOMENTS}
    kept = PartOf(draws.checkpoints, draws.state(1), known, begun=released)
    with services.progress.progress(title, config.steps) as step:
        cost = f"epsilon so far {figure(draws.payment.total(event))}"
        told = by_round(config.iterations, config.rewind, step, cost)
        return generate(spec, *made, config, test, told, checkpoints=kept)


_MOMENTS = ("counts", "sums", "second")


def _known_moments(held: Checkpoint | None, event: GaussianEvent) -> Moments | None:
    """The moments that were released before an interruption; None if they were not, or it is not known any more."""
    if held is None or not held.state["step"]:
        return None
    try:
        counts, sums, second = (torch.from_numpy(held.tensors[f"moments/{name}"].copy()) for name in _MOMENTS)
    except KeyError:
        raise ArtifactError(f"checkpoint: damaged, or of another version; {AGAIN}") from None
    return Moments(counts, sums, second, event.mechanism.noise_std)
