"""The search for settings: every one is tried on public records, under the budget and the noise of the private run.

No private record is read, so the search costs nothing; the records that it reads are declared public by it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from dpltm.errors import InputError
from dpltm.filters import make_filter
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.options.sections import check_choices, check_required
from dpltm.options.tune import TuneOptions
from dpltm.privacy.behind import found_behind
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.event_json import searched_to_text
from dpltm.privacy.events import Event, NonPrivateEvent, ProvenanceEvent
from dpltm.privacy.lineage import (
    check_never_private,
    check_test_apart,
    draws_behind,
    held_by,
    measured_on,
    origin_events,
    source_relation,
)
from dpltm.privacy.mechanisms import NoisySgd, Unprotected
from dpltm.privacy.old_ledger import Ledger, merge
from dpltm.privacy.parts import touching
from dpltm.privacy.report import report
from dpltm.privacy.statement import PrivacyReport
from dpltm.pruning.ticket_set import TicketSet
from dpltm.randomness import keyed_source
from dpltm.randomness.noise import FastSource
from dpltm.randomness.sampling import Records
from dpltm.records import Dataset
from dpltm.records.notes import bounds_notes
from dpltm.records.registry import RecordRegistry
from dpltm.stages.checks import MAX_STEPS, check_same_network, steps_of
from dpltm.stages.front import feature_events, take_over_map
from dpltm.stages.going_on import check_same_work, records_of
from dpltm.stages.inputs import tensors
from dpltm.stages.services import Services
from dpltm.stages.synthetic_data import synthetic_notes
from dpltm.stages.tune_settings import Setting, check_for_records, front_of, settings, to_try
from dpltm.training.checkpoint import NOT_KEPT, Checkpoint, Checkpoints
from dpltm.training.descent import TrainingConfig, train
from dpltm.training.evaluation import accuracy

HELD_OUT = 5
"""Where the public dataset has no test split, a fifth of its records, drawn by ``seed``, is held out to score on."""


@dataclass(frozen=True)
class SearchPlan:
    """A search, settled before the first training.

    Attributes:
        options: as they were asked for.
        tickets: whose rounds are tried; None for a whole network.
        fronts: the public records behind what stands in front of the network, and the network, for each number of
            components that is tried; of None alone where features are not projected, or the set remembers it.
        trainings: every setting with the mechanism of the private training, its noise calibrated.
        registry: that tells which records these are.
    """

    options: TuneOptions
    tickets: TicketSet | None
    fronts: Mapping[int | None, tuple[Dataset, ModelSpec]]
    trainings: tuple[tuple[Setting, NoisySgd], ...]
    registry: RecordRegistry = field(compare=False, repr=False)

    @property
    def dataset(self) -> Dataset:
        """The public records."""
        return next(iter(self.fronts.values()))[0]


@dataclass(frozen=True)
class Trial:
    """What one setting came to: its parameters, ``accuracies`` of its trainings and their mean."""

    round: int | None
    density: float
    lr: float
    clip_norm: float
    epochs: float
    batch_size: float
    components: int | None
    steps: int
    noise_multiplier: float
    accuracy: float
    accuracies: list[float]


@dataclass(frozen=True)
class SearchResult:
    """All trials, best first, and what the search cost, which is nothing.

    Attributes:
        plan: of the search.
        trials: best first.
        privacy: the report.
    """

    plan: SearchPlan
    trials: tuple[Trial, ...]
    privacy: PrivacyReport

    @property
    def best(self) -> Trial:
        """The one with the highest mean accuracy."""
        return self.trials[0]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The best setting as options of ``train``, with the records that it was searched on, and what these come from."""
        options, best = self.plan.options, self.best
        searched = {name: getattr(best, name) for name in ("lr", "clip_norm", "epochs", "batch_size")}
        if best.components is not None:
            searched["components"] = best.components
        fixed = {
            name: getattr(options, name)
            for name in ("epsilon", "delta", "optimizer", "schedule", "average", "accountant")
        }
        dataset = self.plan.dataset
        records = self.plan.registry.reference(dataset, public=True)
        return {**searched, **fixed, "tuned_on": searched_to_text(records, self._behind)}

    @property
    def _behind(self) -> tuple[Event, ...]:
        """Releases that records, features and tickets of the search come from: settings may be taken for other ones."""
        dataset, tickets = self.plan.dataset, self.plan.tickets
        front = () if dataset.feature_map is None else dataset.feature_map.events
        scored = measured_on(dataset, self.plan.registry, declared=True)
        behind = merge((dataset.behind, front, scored))
        if tickets is None:
            return behind
        looked_at: tuple[Event, ...] = ()
        if tickets.provenance == "private" and tickets.source is not None:
            looked_at = (
                NonPrivateEvent(tickets.source, Unprotected(), "settings searched with tickets made from them"),
            )
        return merge((behind, found_behind(tickets), tickets.events, tickets.draws, looked_at))


@dataclass(frozen=True)
class _Rows:
    """Public records that trials train on, and those that they are scored on."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def plan(target: TicketSet | str, dataset: Dataset, options: TuneOptions, ledger: Ledger) -> SearchPlan:
    """Everything about a search that is settled, and refused, before the first training.

    Args:
        target: the ticket set, or the name of a network, whose settings are searched.
        dataset: public records; behind the map that the set remembers, if it has any.
        options: of the search.
        ledger: that tells which records are private; nothing is entered.

    Raises:
        InputError: bad input, or records that are known to be private.
        CalibrationError: no noise reaches the budget.
    """
    check_required(options)
    check_choices(options)
    tickets = None if isinstance(target, str) else target
    check_for_records(options)
    settings(options)
    if tickets is not None:
        dataset = take_over_map(dataset, tickets.feature_map, None, tickets.label)
        check_same_network(tickets, dataset)
    _check_public(tickets, dataset, ledger)
    tried = to_try(options, tickets)
    counts = {setting.components for setting in tried}
    fronts = {count: front_of(target, dataset, count) for count in sorted(counts, key=lambda count: count or 0)}
    trainings = tuple((setting, _private_training(options, setting)) for setting in tried)
    return SearchPlan(options, tickets, fronts, trainings, ledger.registry)


def tune(plan: SearchPlan, services: Services, checkpoints: Checkpoints = NOT_KEPT) -> SearchResult:
    """Tries every setting of a plan.

    Args:
        plan: of the search.
        services: where features come from, and who watches.
        checkpoints: where the search is kept on the way, and what it goes on from: trainings that ended are not repeated.

    Raises:
        InputError: too few records to hold some out, before the first training; or a checkpoint is held of another search.
    """
    options, held = plan.options, checkpoints.held
    rows = {count: _public_rows(dataset, options.seed, services) for count, (dataset, _) in plan.fronts.items()}
    facts = {
        "records": records_of(plan.registry.reference(plan.dataset, public=True), plan.dataset, plan.registry.key),
        "set": plan.tickets and plan.tickets.id,
    }
    if held is not None:
        check_same_work(held, plan.dataset, facts)
    key = (
        keyed_source.fresh_key() if held is None else bytes.fromhex(held.state["key"])
    )  # of the training that comes next
    scores: list[float] = [] if held is None else list(held.state["scores"])
    repeats, total = options.repeats, len(plan.trainings) * options.repeats
    with services.progress.progress(f"tuning on {plan.dataset.name}", total) as step:
        for done in range(len(scores), total):
            state = {"of": facts, "key": key.hex(), "scores": tuple(scores), "events": [], "step": 0}
            offer = partial(checkpoints.offer, partial(Checkpoint, f"training {done + 1} of {total}", state))
            setting, mechanism = plan.trainings[done // repeats]
            part, seed = rows[setting.components], options.seed + done % repeats
            step(done, f"{_describe(setting)}, no epsilon is spent")
            scores.append(_try(plan, setting, mechanism, part, seed, key, offer))
            key = hashlib.sha256(key).digest()
            step(done + 1)
    each = [scores[start : start + repeats] for start in range(0, total, repeats)]
    trials = [_trial(plan, *pair, found) for pair, found in zip(plan.trainings, each, strict=True)]
    trials.sort(key=lambda trial: -trial.accuracy)
    return SearchResult(plan, tuple(trials), report((), options.delta, "add-remove", _notes(plan)))


def _describe(setting: Setting) -> str:
    """What is tried, for who watches."""
    values = {name.replace("_", " "): value for name, value in vars(setting).items() if value is not None}
    return ", ".join(f"{name} {value:g}" for name, value in values.items())


def _check_public(tickets: TicketSet | None, dataset: Dataset, ledger: Ledger) -> None:
    """Raises InputError if records that would be declared public, or are scored on, are known to be private."""
    registry, held = ledger.registry, held_by(ledger, tickets)
    records = registry.look_at(dataset)
    private = [
        event
        for event in touching(held, records)
        if not (isinstance(event, ProvenanceEvent) and event.provenance == "public")
    ]
    made = (
        tickets is not None
        and tickets.provenance in ("private", "dp")
        and source_relation(tickets, records, registry) == "same"
    )
    if made or private:
        whose = "the ledger" if tickets is None else f"{tickets.label} (its ledger or its provenance says so)"
        raise InputError(
            f"`dataset`: {records} is private to {whose}, and a search declares its records public; take others"
        )
    behind = feature_events(dataset, records, registry, private=False)
    check_never_private(held, behind)
    if tickets is not None and tickets.provenance != "public":
        behind = (*behind, *origin_events(tickets, dataset, records, registry))
    if tickets is not None:
        behind = (*behind, *draws_behind(tickets, None, None))
    check_test_apart(dataset, (*held, *behind), registry)


def _private_training(options: TuneOptions, setting: Setting) -> NoisySgd:
    """The mechanism of the private training, with its noise calibrated."""
    rate = setting.batch_size / (options.for_records or 1)
    steps = steps_of(setting.epochs, rate)
    if steps > MAX_STEPS:
        raise InputError(f"`epochs`: {setting.epochs:g} are {steps:,} steps, more than {MAX_STEPS:,}; ask for fewer")
    draft = NoisySgd(rate, steps, noise_multiplier=1.0)
    return calibrate_noise(options.epsilon or 0.0, options.delta, draft, (), options.accountant)


def _public_rows(dataset: Dataset, seed: int, services: Services) -> _Rows:
    x, y = tensors(dataset.train, dataset, services)
    if dataset.test is not None:
        return _Rows((x, y), tensors(dataset.test, dataset, services))
    count = len(y) // HELD_OUT
    if not count:
        raise InputError(
            f"`dataset`: {dataset.name} has no test split and {len(y)} records, too few to hold some out; name a `test` file"
        )
    out = torch.zeros(len(y), dtype=torch.bool)
    out[torch.randperm(len(out), generator=torch.Generator().manual_seed(seed))[:count]] = True
    return _Rows((x[~out], y[~out]), (x[out], y[out]))


def _try(
    plan: SearchPlan,
    setting: Setting,
    mechanism: NoisySgd,
    rows: _Rows,
    seed: int,
    key: bytes,
    offer: Callable[[], bool],
) -> float:
    """Accuracy of one training on the public records, each step as noisy as the private one.

    The sum over a batch is divided by its expected size; where the public records are fewer than that, all of them take
    part and the noise shrinks along, so that the mean gradient is as noisy all the same.
    """
    options, count = plan.options, len(rows.train[1])
    batch = min(setting.batch_size, float(count))
    filter = make_filter("clip", clip_norm=setting.clip_norm)
    model, mask = _network(plan, setting, seed)
    config = TrainingConfig(
        filter,
        batch / count,
        mechanism.steps,
        batch,
        mechanism.noise_multiplier * filter.certified_bound(mask.live) * batch / setting.batch_size,
        setting.lr,
        options.optimizer,  # type: ignore[arg-type]
        schedule=options.schedule,  # type: ignore[arg-type]
        average=options.average,  # type: ignore[arg-type]
    )
    sampling, noise = (FastSource.of(hashlib.sha256(key + name).digest()) for name in (b"sampling", b"noise"))
    source, told = Records(*rows.train), lambda _: offer() and None  # kept or not, the training goes on
    train(model, mask, source, config, sampling=sampling, noise=noise, progress=told)
    return accuracy(model, *rows.test)


def _network(plan: SearchPlan, setting: Setting, seed: int) -> tuple[nn.Sequential, Mask]:
    spec = plan.fronts[setting.components][1]
    if plan.tickets is None or setting.round is None:
        model = build(spec, seed)
        return model, Mask.dense(model)
    model = build(spec)
    model.load_state_dict(plan.tickets.body.theta0)
    return model, plan.tickets.ticket(setting.round).mask


def _trial(plan: SearchPlan, setting: Setting, mechanism: NoisySgd, scores: list[float]) -> Trial:
    tickets, density = plan.tickets, 1.0
    if tickets is not None and setting.round is not None:
        density = tickets.ticket(setting.round).mask.density
    steps, noise, mean = mechanism.steps, mechanism.noise_multiplier, sum(scores) / len(scores)
    return Trial(
        **vars(setting), density=density, steps=steps, noise_multiplier=noise, accuracy=mean, accuracies=scores
    )


def _notes(plan: SearchPlan) -> list[str]:
    notes = [
        f"searched on {plan.dataset.name}, declared public: no private record was read, so the search costs nothing; its"
        " scores say which setting is best, not how good it will be elsewhere"
    ]
    if plan.tickets is not None and plan.tickets.source is not None and plan.tickets.source.name == plan.dataset.name:
        notes.append(f"the tickets were made from {plan.tickets.source.name} as well, which flatters them here")
    return [*notes, *synthetic_notes(plan.dataset, plan.options.delta), *bounds_notes(plan.dataset)]
