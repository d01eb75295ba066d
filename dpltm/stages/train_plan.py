"""What a training is before it starts: its network, records, noise and events settled, and everything refused."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import torch

from dpltm.audit.canaries import check_canaries
from dpltm.errors import InputError
from dpltm.filters import Filter
from dpltm.gradients.fused import compiler_at_hand
from dpltm.networks import for_inputs
from dpltm.networks.masks import Mask
from dpltm.options.sections import check_choices
from dpltm.options.train import PER_UNIT, TrainOptions
from dpltm.privacy.events import (
    DatasetRef,
    Event,
    GaussianEvent,
    GuaranteeEvent,
    TrainingEvent,
)
from dpltm.privacy.lineage import (
    check_never_private,
    check_not_public,
    check_test_apart,
    entered_on,
    held_by,
    relation_notes,
)
from dpltm.privacy.mechanisms import Adjacency, NoisySgd
from dpltm.privacy.old_ledger import Ledger
from dpltm.privacy.parts import OnRecord, touching
from dpltm.privacy.report import report
from dpltm.records import Augmentation, Dataset, at_unit, copies_of, held_out_users
from dpltm.registry import listed
from dpltm.stages.budget import check_unit, evaluation_releases, noise_bits, with_noise
from dpltm.stages.checks import MAX_STEPS, LedgerState, check_delta, default_batch, steps_of
from dpltm.stages.front import check_kind, take_over_map
from dpltm.stages.head import for_steps, is_least_squares, releases, settled, step_size
from dpltm.stages.services import Services
from dpltm.stages.starting_point import StartingPoint
from dpltm.stages.train_checks import check_filter, check_options
from dpltm.stages.train_lineage import lineage_of, sources_of
from dpltm.training.descent import TrainingConfig
from dpltm.training.optimizers import DECAY
from dpltm.training.sensitivity import nominal_sensitivity, sensitivity

LEARNING_RATES = {"sgd": 1.0, "momentum": 0.1, "adam": 0.002, "adagrad": 0.05}
"""Default step sizes, for clip norm 1."""

SPREAD = 0.25
"""Of one layer behind features of a fixed norm: what the noise of all steps adds up to in each weight, by default (standard
deviation); where there is hardly any noise, as if it were that of 2-Gaussian-DP. Found on kmnist-7k at epsilon 0.2 to 8: it
was the best for any clip norm, number of steps and schedule."""


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A training, settled before any budget is spent.

    Attributes:
        options: as they were asked for.
        start: network, weights, mask.
        dataset, records: what is trained on.
        lineage: what is entered before the training: events behind the ticket that the ledger does not hold yet (its
            provenance, its draw), the release of a centre, and evaluations on the records themselves.
        event: the training.
        config: its settings.
        notes: sentences for the report.
        evaluations: the evaluations on the records that are paid for, in the order in which they are made; they are in
            ``lineage``.
        centre: the release of the mean that features are centred at, if they are; it is in ``lineage``.
        second: that of the second moments that steps divide by, if they do; it is in ``lineage``.
        sources: other records that the run depends on: those that its ticket, its draw or its features came from.
        ledger: that all of it is entered in.
        before: the ledger as it was when the plan was made.
        names_ledger: whether the caller named it.
    """

    options: TrainOptions
    start: StartingPoint
    dataset: Dataset
    records: DatasetRef
    lineage: tuple[Event, ...]
    event: TrainingEvent
    config: TrainingConfig
    notes: tuple[str, ...]
    evaluations: tuple[GuaranteeEvent, ...]
    centre: GaussianEvent | None
    second: GaussianEvent | None
    sources: tuple[DatasetRef, ...]
    ledger: Ledger
    before: LedgerState
    names_ledger: bool


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A training that is settled but for its noise.

    Attributes:
        start, dataset, records, config, notes, lineage: as in ``TrainingPlan``; of the lineage, what comes from elsewhere.
        mechanism: with any noise.
        known: what counts for the records, with ``lineage``.
    """

    start: StartingPoint
    dataset: Dataset
    records: DatasetRef
    config: TrainingConfig
    notes: tuple[str, ...]
    lineage: tuple[Event, ...]
    mechanism: NoisySgd
    known: tuple[Event, ...]


def draft(start: StartingPoint, dataset: Dataset, options: TrainOptions, ledger: Ledger) -> Draft:
    """What is settled, and refused, about a training whatever its noise. Arguments as :func:`plan`.

    Args:
        start: what is trained.
        dataset: the private records.
        options: of the training.
        ledger: that it will be entered in.
    """
    before = ledger.events
    dataset = protected_units(_in_front(start, dataset), options)
    start = _without_held_out(start, dataset)
    config, mechanism = _draft(start, dataset, settled(options, start, dataset))
    records = entered_on(dataset, mechanism.adjacency, ledger.registry)
    lineage, notes = lineage_of(options, start, dataset, records, ledger)
    notes += relation_notes(dataset, options.adjacency)
    if options.compile and not compiler_at_hand():
        notes.append("`compile`: no C++ compiler is at hand (g++ or clang++), so the filter is not compiled")
    if options.eval_private is None:
        check_test_apart(dataset, (*held_by(ledger, start.tickets), *lineage), ledger.registry)
    check_not_public(before, records, ledger.registry)
    _check_augmented(options, start, dataset)
    return Draft(
        start=start,
        dataset=dataset,
        records=records,
        config=config,
        notes=tuple(notes),
        lineage=lineage,
        mechanism=mechanism,
        known=touching((*lineage, *before), records),
    )


def plan(
    start: StartingPoint,
    dataset: Dataset,
    options: TrainOptions,
    ledger: Ledger,
    services: Services,
    *,
    names_ledger: bool = True,
) -> TrainingPlan:
    """Everything about a training that is settled, and refused, before budget is spent.

    Args:
        start: what is trained; behind the map that its tickets remember, if it has any.
        dataset: the private records.
        options: of the training.
        ledger: that it will be entered in. What it holds now counts; nothing is entered here.
        services: told that noise is being calibrated.
        names_ledger: whether the caller named the ledger. If not, the report says that other releases add up.

    Raises:
        DpltmError: bad input, records that may not be used so, or too small a budget.
    """
    check_choices(options)
    check_options(options)
    state, drafted = LedgerState(ledger), draft(start, dataset, options, ledger)
    start, dataset, records, notes = drafted.start, drafted.dataset, drafted.records, list(drafted.notes)
    made = releases(options, dataset, drafted.mechanism, OnRecord(records, drafted.known))
    lineage, known = (*drafted.lineage, *made.events), (*drafted.known, *made.events)
    evaluations = evaluation_releases(options, dataset, drafted.mechanism, records)
    check_unit(options, dataset, known, records)
    others, asked = OnRecord(records, (*known, *evaluations)), for_steps(options, made)
    mechanism = with_noise(asked, drafted.mechanism, others, services.progress)
    check_canaries(options.audit, start.mask.live, mechanism.noise_multiplier)
    if mechanism.steps < drafted.mechanism.steps:
        notes.append(
            f"`budget_stop` ends training after {mechanism.steps} of {drafted.mechanism.steps} steps, before the one that"
            " would exceed"
        )
    config = replace(drafted.config, steps=mechanism.steps, noise_std=mechanism.noise_std)
    lr = _step_size(options, start, dataset, config)
    if lr is not None:
        config = replace(config, lr=lr)
    if lr is not None and not is_least_squares(options):
        notes.append(f"`lr` is {lr:.3g}, so that the noise of all steps adds up to {SPREAD} in each weight")
    event = TrainingEvent(records, mechanism, config.filtered, start.mask.live, noise_bits(options))
    lineage = (*lineage, *evaluations)
    # refuses what the accountants of the report cannot take, or give, before it is paid for
    report((*known, *evaluations, event), options.delta, adjacency=mechanism.adjacency, accountant=options.accountant)
    check_never_private(state.events, (*lineage, event))
    ledger.check_budgets((*lineage, event))
    return TrainingPlan(
        options=options,
        start=start,
        dataset=dataset,
        records=records,
        lineage=lineage,
        event=event,
        config=config,
        notes=tuple(notes),
        evaluations=evaluations,
        centre=made.mean,
        second=made.second,
        sources=sources_of(start, dataset, options.tuned_on),
        ledger=ledger,
        before=state,
        names_ledger=names_ledger,
    )


def sampling_of(options: TrainOptions, dataset: Dataset) -> tuple[float, int, float]:
    """Sampling rate, steps, expected batch size, from public inputs only.

    Raises:
        InputError: they, or delta, do not suit so many records.
    """
    check_delta(options.delta, dataset)
    batch = options.batch_size if options.batch_size is not None else default_batch(dataset.records)
    if not 0 < batch <= dataset.records:
        raise InputError(
            f"`batch_size`: {batch:g} is not between 0 and the {dataset.records} records of {dataset.name}"
        )
    rate = batch / dataset.records
    epochs = 15.0 if options.epochs is None else options.epochs
    steps = options.steps if options.steps is not None else steps_of(epochs, rate)
    if steps > MAX_STEPS:
        raise InputError(f"`epochs`, `steps`: more than {MAX_STEPS:,} steps; ask for fewer")
    return rate, steps, batch


def _in_front(start: StartingPoint, dataset: Dataset) -> Dataset:
    """The records behind the map that the tickets remember; of a network of no set, behind the one that they have."""
    if start.tickets is None:
        return dataset
    return take_over_map(dataset, start.tickets.feature_map, None, start.tickets.label)


def protected_units(dataset: Dataset, options: TrainOptions) -> Dataset:
    """The records at the unit that is asked for; users may have been made of them already."""
    return at_unit(dataset, options.unit, options.per_unit, PER_UNIT)


def _without_held_out(start: StartingPoint, dataset: Dataset) -> StartingPoint:
    """With users of ratings, what belongs to held-out ones is pruned: nobody trains it, and it would be noise alone."""
    if dataset.unit == "record" or not dataset.rated:
        return start
    out, owned = torch.from_numpy(held_out_users(dataset.tables[0])), start.spec.kind.user_parameters
    live = {name: value & ~out[:, None] if name in owned else value for name, value in start.mask.items()}
    return replace(start, mask=Mask(live))


def _draft(start: StartingPoint, dataset: Dataset, options: TrainOptions) -> tuple[TrainingConfig, NoisySgd]:
    """The training but for its noise, which is not settled yet."""
    rate, steps, batch = sampling_of(options, dataset)
    adjacency, live = cast(Adjacency, options.adjacency), start.mask.live
    filter = check_filter(options)
    mechanism = NoisySgd(
        rate,
        steps,
        1.0,
        sensitivity(filter, live, adjacency, options.microbatch),
        nominal_sensitivity(filter, live, adjacency, options.noise == "nominal", options.microbatch),
        adjacency=adjacency,
        unit=dataset.unit,
    )
    return _config(options, filter, rate, steps, batch), mechanism


def _step_size(options: TrainOptions, start: StartingPoint, dataset: Dataset, config: TrainingConfig) -> float | None:
    """Of one layer behind features, where nobody chose one: by the noise, and other public numbers; None elsewhere."""
    if is_least_squares(options):
        return step_size(config)
    one_layer = dataset.feature_map is not None and len(start.spec.shapes()) == 2
    if options.lr is not None or not one_layer or config.optimizer not in ("sgd", "momentum"):
        return None
    bound, root = config.filter.certified_bound(start.mask.live), math.sqrt(config.steps)
    if not 0 < bound < math.inf:
        return None
    spread = max(config.noise_std, config.sampling_rate * root * bound / 2) * root
    farther = 1 / (1 - DECAY) if config.optimizer == "momentum" else 1.0
    if config.schedule != "constant":
        farther /= 2  # the mean of either schedule that falls to zero
    return SPREAD * config.divisor / (spread * farther)


def _config(options: TrainOptions, filter: Filter, rate: float, steps: int, batch: float) -> TrainingConfig:
    """Its settings; there is no noise yet."""
    return TrainingConfig(
        filter,
        rate,
        steps,
        batch,
        0.0,
        options.lr if options.lr is not None else LEARNING_RATES[options.optimizer],
        options.optimizer,  # type: ignore[arg-type]
        options.physical_batch,
        options.compile,
        options.precision,  # type: ignore[arg-type]
        options.schedule,  # type: ignore[arg-type]
        options.average,  # type: ignore[arg-type]
        options.kernels,
        options.microbatch,
    )


def _check_augmented(options: TrainOptions, start: StartingPoint, dataset: Dataset) -> None:
    """Raises InputError for records, or a network, that copies of a record, or a person's records, cannot go through."""
    takers = listed(for_inputs("vectors"))
    if dataset.unit == "user" and not dataset.rated:
        if options.augment != "none":
            raise InputError("`augment`: copies are of single records; leave it out where a person is the unit")
        if "vectors" not in start.spec.kind.inputs:
            raise InputError(
                f"`unit_column`: a person's records go through an {takers}, behind features too, not through"
                f" {start.spec.text}; take such a network"
            )
    copies_of(dataset.train.x[:1], cast(Augmentation, options.augment))
    if options.augment == "none":
        return
    check_kind(dataset, "image", "augment", "none")
    if "vectors" not in start.spec.kind.inputs:
        raise InputError(
            f"`augment`: {options.augment} goes with an {takers}, not with {start.spec.text}; take `augment` none"
        )
