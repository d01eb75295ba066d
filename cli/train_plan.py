"""What a training run is before it starts: its options checked, its network, noise and event settled."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dpltm.cli.common import (
    LARGEST_NOISE,
    MOST_STEPS,
    check_delta,
    check_epsilon,
    check_never_private,
    check_not_public,
    check_same_network,
    check_test_apart,
    draws_to_enter,
    load_dataset,
    model_spec,
    not_held,
    origin_events,
    provenance_notes,
    public_input_notes,
    records_of,
    relation_notes,
    steps_of,
    unit_notes,
)
from dpltm.cli.console import Console
from dpltm.cli.features import carried, check_quantities, feature_events, feature_notes, with_features
from dpltm.errors import BudgetError, InputError
from dpltm.privacy.accountants import check_certifies
from dpltm.privacy.mechanisms import Adjacency, GaussianRelease, Guarantee, NoisySgd

if TYPE_CHECKING:
    from torch import nn

    from dpltm.cli.train import TrainOptions
    from dpltm.data import Dataset
    from dpltm.masks import Mask
    from dpltm.models import ModelSpec
    from dpltm.privacy.events import DatasetRef, Event, GaussianEvent, GuaranteeEvent, TrainingEvent
    from dpltm.privacy.parts import OnRecord
    from dpltm.tickets.ticket_set import TicketSet
    from dpltm.training import TrainingConfig

LEARNING_RATES = {"sgd": 1.0, "momentum": 0.1, "adam": 0.002, "adagrad": 0.05}
"""Default step sizes, for clip norm 1."""

NO_FEATURES = "--centre: needs features of a fixed norm; add --features unit, or a map that suits the records"


@dataclass(frozen=True)
class Start:
    """What training starts from.

    Attributes:
        spec: the network.
        model: holding its starting weights.
        mask: live coordinates.
        tickets, round: where it comes from; None for a dense network of no set.
        drawn: what the draw of this very round entered, if it was drawn.
        dataset: the records, where the network's shape had to be read off them; None if not read yet.
    """

    spec: ModelSpec
    model: nn.Sequential
    mask: Mask
    tickets: TicketSet | None
    round: int | None
    drawn: tuple[Event, ...] = ()
    dataset: Dataset | None = None


@dataclass(frozen=True)
class Plan:
    """A training run, settled before any budget is spent.

    Attributes:
        start: network, weights, mask.
        dataset, records: what is trained on.
        lineage: what is entered before the training: events behind the ticket that the ledger does not hold yet (its
            provenance, its draw), and evaluations on the records themselves.
        event: the training.
        config: its settings.
        notes: sentences for the report.
        evaluations: the evaluations on the records that are paid for, in the order in which they are made; they are in
            ``lineage``.
        centre: the release of the mean that features are centred at, if they are; it is in ``lineage``.
        augment: copies of a record that its gradient is averaged over.
        sources: other records that the run depends on: those that its ticket, its draw or its features came from.
    """

    start: Start
    dataset: Dataset
    records: DatasetRef
    lineage: tuple[Event, ...]
    event: TrainingEvent
    config: TrainingConfig
    notes: tuple[str, ...]
    evaluations: tuple[GuaranteeEvent, ...] = ()
    centre: GaussianEvent | None = None
    augment: str = "none"
    sources: tuple[DatasetRef, ...] = ()


def check_options(options: TrainOptions) -> None:
    """Raises InputError for options out of range, that contradict each other, or that lack their other half."""
    if options.budget_stop and (options.epsilon is None or options.noise_multiplier is None):
        raise InputError("--budget-stop: needs --epsilon, where to stop, and --noise-multiplier, how fast it is spent")
    if not options.budget_stop and (options.epsilon is None) == (options.noise_multiplier is None):
        raise InputError("--epsilon or --noise-multiplier: give one of them; --epsilon is the whole budget, such as 1")
    if options.budget_stop and options.noise == "nominal":
        raise InputError("--budget-stop: holds for certified noise only; leave --noise nominal out")
    if options.epsilon is not None:
        check_certifies(options.accountant)
    check_epsilon("--eval-private", options.eval_private)
    if options.stop_at is not None and not 0 < options.stop_at <= 1:
        raise InputError(f"--stop-at: {options.stop_at:g} is not an accuracy above 0 and at most 1")
    check_epsilon("--epsilon", options.epsilon)
    if options.noise_multiplier is not None and not 0 <= options.noise_multiplier <= LARGEST_NOISE:
        raise InputError(
            f"--noise-multiplier: {options.noise_multiplier:g} is not a number from 0 to {LARGEST_NOISE:g}"
        )
    check_device(options)
    if not 0 <= options.seed < 2**63:
        raise InputError(f"--seed: {options.seed} is not between 0 and 2^63 - 1")
    if options.epochs is not None and options.steps is not None:
        raise InputError("--epochs, --steps: give one of them")
    if options.epochs is not None and not (options.epochs > 0 and math.isfinite(options.epochs)):
        raise InputError(f"--epochs: {options.epochs:g} is not a positive number")
    if options.steps is not None and options.steps < 1:
        raise InputError(f"--steps: {options.steps} is not a positive whole number")
    if options.filter != "tanh" and options.no_pre_clip:
        raise InputError(f"--no-pre-clip: only for --filter tanh, not {options.filter}")
    if options.filter not in ("tanh", "sigmoid") and options.noise == "nominal":
        raise InputError(
            f"--noise: nominal is the tanh paper's calibration, only for --filter tanh or sigmoid, not {options.filter}"
        )
    if options.ticket is None and not options.dense:
        raise InputError(
            "SET is missing: name a ticket set (SET or SET@ROUND), or train the whole network with --dense"
        )
    if options.centre is not None:
        _check_centre(options)
    if options.per_user is not None and options.unit == "record":
        raise InputError(
            "--per-user: bounds what a user gives, so it goes with --unit user; leave it out, or add that"
        )
    if options.ticket is not None and options.model is not None:
        raise InputError("--model: the ticket set decides the network; leave --model out")


def _check_centre(options: TrainOptions) -> None:
    """Raises InputError for a centre out of range, or without the budget that it is a part of."""
    if not 0 < (options.centre or 0.0) < 1:
        raise InputError(f"--centre: {options.centre:g} is not a part between 0 and 1, such as 0.05")
    if options.epsilon is None:
        raise InputError("--centre: a part of a budget, so it needs --epsilon; --noise-multiplier states no budget")


def check_device(options: TrainOptions) -> None:
    """Raises InputError for a device, or a compiler, that is not there."""
    if options.compile and options.filter not in ("tanh", "tanh-clip", "sigmoid"):
        raise InputError(
            f"--compile: only for element-wise filters (tanh, tanh-clip, sigmoid); {options.filter} has nothing to compile"
        )
    if options.compile:
        from dpltm.gradients.fused import check_compiler

        check_compiler()
    if options.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise InputError("--device: cuda is not there (no such device, or torch was built without it); use cpu")


def find_start(options: TrainOptions, console: Console) -> Start:
    """Network, starting weights and mask: of a ticket set, or of a fresh dense network once the data is known."""
    from dpltm.models import build
    from dpltm.tickets.store import find_set, split_round
    from dpltm.tickets.winner import drawn_from, load_winner

    if options.ticket is None:
        dataset = with_features(load_dataset(options), options, console)
        spec = model_spec(options.model or "mlp:300,100", dataset)
        return replace(fresh_start(spec, options.seed), dataset=dataset)
    name, number = split_round(options.ticket)
    tickets = find_set(name)
    drawn: tuple[Event, ...] = ()
    if options.dense:
        chosen = 0
    elif number is not None and not drawn_from(tickets):
        chosen = number
    else:
        winner = load_winner(tickets)
        chosen = winner.round if number is None else number
        drawn = winner.behind(chosen)
    ticket = tickets.ticket(chosen)
    model = build(tickets.body.spec)
    model.load_state_dict(tickets.body.theta0)
    return Start(tickets.body.spec, model, ticket.mask, tickets, chosen, drawn)


def fresh_start(spec: ModelSpec, seed: int) -> Start:
    """A dense network with weights drawn from ``seed`` alone."""
    from dpltm.masks import Mask
    from dpltm.models import build

    model = build(spec, seed)
    return Start(spec, model, Mask.dense(model), None, None)


def make_plan(options: TrainOptions, start: Start, before: tuple[Event, ...], console: Console) -> Plan:
    """Everything about the run that is settled, and refused, before budget is spent."""
    from dpltm.filters import make_filter
    from dpltm.privacy.events import TrainingEvent
    from dpltm.privacy.ledger import check_budgets
    from dpltm.privacy.parts import OnRecord, total_epsilon
    from dpltm.training import TrainingConfig, nominal_sensitivity, sensitivity

    dataset = start.dataset or _records_of(options, start, console)
    start = _without_held_out(start, dataset)
    rate, steps, batch = check_records(options, dataset)
    records = records_of(dataset, options.adjacency, not options.dry_run)
    lineage, notes = _lineage(options, start, dataset, records, before)
    notes += relation_notes(dataset, options.adjacency)
    if options.eval_private is None:
        check_test_apart(dataset, (*before, *lineage))
    check_not_public(before, records)
    filter = make_filter(
        options.filter,
        clip_norm=options.clip_norm,
        tanh_scale=options.tanh_scale,
        tanh_range=options.tanh_range,
        pre_clip=not options.no_pre_clip,
    )
    _check_augmented(options, start, dataset)
    delta_two = sensitivity(filter, start.mask.live, options.adjacency)  # type: ignore[arg-type]
    nominal = nominal_sensitivity(filter, options.adjacency, options.noise == "nominal")  # type: ignore[arg-type]
    adjacency: Adjacency = options.adjacency  # type: ignore[assignment]
    draft = NoisySgd(rate, steps, 1.0, delta_two, nominal, adjacency=adjacency, unit=dataset.unit)
    lr = options.lr if options.lr is not None else LEARNING_RATES[options.optimizer]
    settings = TrainingConfig(
        filter,
        rate,
        steps,
        batch,
        0.0,
        lr,
        options.optimizer,  # type: ignore[arg-type]
        options.physical_batch,
        options.compile,
        options.precision,  # type: ignore[arg-type]
        options.schedule,  # type: ignore[arg-type]
        options.average,  # type: ignore[arg-type]
    )
    touching = tuple(event for event in (*lineage, *before) if event.dataset.may_overlap(records))
    centre = _centre(options, dataset, draft, OnRecord(records, touching))
    lineage, touching = (*lineage, *centre), (*touching, *centre)
    evaluations = _evaluations(options, dataset, draft, records)
    _check_unit(options, dataset, touching)
    mechanism = _with_noise(options, draft, OnRecord(records, (*touching, *evaluations)), console)
    if mechanism.steps < steps:
        notes.append(
            f"--budget-stop ends training after {mechanism.steps} of {steps} steps, before the one that would exceed"
        )
    event = TrainingEvent(records, mechanism, str(filter), start.mask.live)
    planned = (*lineage, *evaluations, event)
    total_epsilon(
        (*touching, *evaluations, event), options.delta, unit=dataset.unit
    )  # refuses what the accountant cannot take, before it is spent
    check_never_private(before, planned)
    check_budgets(before, planned)
    config = replace(settings, noise_std=mechanism.noise_std, steps=mechanism.steps)
    return Plan(
        start,
        dataset,
        records,
        (*lineage, *evaluations),
        event,
        config,
        tuple(notes),
        evaluations,
        next(iter(centre), None),
        options.augment,
        _sources(start, dataset),
    )


def _sources(start: Start, dataset: Dataset) -> tuple[DatasetRef, ...]:
    """The records that the ticket, its draws, and what stands in front of its network came from."""
    tickets, found = start.tickets, dataset.feature_map
    behind = [] if tickets is None else [tickets.source, *(event.dataset for event in (*tickets.draws, *start.drawn))]
    behind += [] if found is None or found.network is None else [found.source]
    return tuple(ref for ref in behind if ref is not None)


def _records_of(options: TrainOptions, start: Start, console: Console) -> Dataset:
    """The records, with whatever stands in front of the ticket's network, or is asked for."""
    dataset = load_dataset(options)
    if start.tickets is None:
        return with_features(dataset, options, console)
    return carried(dataset, start.tickets.feature_map, options, start.tickets.label)


def _tuned_on(options: TrainOptions, records: DatasetRef) -> tuple[Event, ...]:
    """That settings were searched on records declared public, which are not these.

    Raises:
        InputError: they are these, or some of them; or the text is not what ``dpltm tune`` writes.
    """
    from dpltm.privacy.events import SETTINGS, ProvenanceEvent
    from dpltm.tickets.identity import ref_from_words

    if options.tuned_on is None:
        return ()
    source = ref_from_words("--tuned-on", options.tuned_on)
    if source.surely_overlaps(records):
        raise InputError(
            f"--tuned-on: settings were searched on {source}, declared public, and {records} shares records with it; the"
            " same records cannot be private here: take other settings, or another --subset or --dataset"
        )
    return (ProvenanceEvent(source, "public", f"{SETTINGS}of dpltm tune"),)


def _lineage(
    options: TrainOptions, start: Start, dataset: Dataset, records: DatasetRef, before: tuple[Event, ...]
) -> tuple[tuple[Event, ...], list[str]]:
    """What the ticket's origin means for these records; a fresh network comes from no data.

    The draw of a winner is an input of the run, so it counts even where another ledger, or none any more, holds it. With
    ``--dense SET`` the mask keeps everything, but theta0 is the set's, so its provenance counts all the same.
    """
    from dpltm.privacy.ledger import merge

    notes = [*public_input_notes(dataset), *unit_notes(options, dataset), *_rating_notes(options, dataset)]
    features = (*feature_events(dataset, records), *_tuned_on(options, records))
    notes += feature_notes(dataset, records, options.delta)
    if start.tickets is None:
        return not_held(features, before), notes
    check_same_network(start.tickets, dataset)
    events = not_held((*features, *origin_events(start.tickets, dataset, records)), before)
    draws = merge((start.tickets.draws, start.drawn))
    for event in draws:
        if not event.dataset.may_overlap(records):
            notes.append(f"the winner was drawn on other records, {event.dataset}, and depends on them")
    events = (*events, *draws_to_enter(draws, (*before, *events)))
    return events, [*notes, *provenance_notes(start.tickets, dataset)]


def _check_augmented(options: TrainOptions, start: Start, dataset: Dataset) -> None:
    """Raises InputError for records, or a network, that copies of a record cannot go through."""
    from dpltm.cli.features import check_kind
    from dpltm.data import copies_of
    from dpltm.features import Scale

    copies_of(dataset.train.x[:1], options.augment)  # type: ignore[arg-type]
    if options.augment != "none":
        check_kind(dataset, Scale(), "--augment", "none")
    if options.augment != "none" and not start.spec.text.startswith("mlp"):
        raise InputError(
            f"--augment: {options.augment} goes with an mlp, not with {start.spec.text}; take --augment none"
        )


def _without_held_out(start: Start, dataset: Dataset) -> Start:
    """With users as the unit, what belongs to held-out users is pruned: nobody trains it, and it would be noise alone."""
    import torch

    from dpltm.data import held_out_users
    from dpltm.masks import Mask
    from dpltm.models.ncf import OF_USERS

    if dataset.unit == "record":
        return start
    out = torch.from_numpy(held_out_users(dataset.tables[0]))
    kept = {name: value & ~out[:, None] if name in OF_USERS else value for name, value in start.mask.items()}
    return replace(start, mask=Mask(kept))


def _rating_notes(options: TrainOptions, dataset: Dataset) -> list[str]:
    """What a record is where they are ratings, or users, and whom accuracy is measured on."""
    from dpltm.cli.common import PER_USER

    if not dataset.rated:
        return []
    if dataset.unit == "record":
        return ["about one rating in five is a test rating, by a public hash of user and item; of the same users"]
    slots = PER_USER if options.per_user is None else options.per_user
    return [
        f"a record is one user with at most {slots} ratings, those of the lowest public hashes where there are more",
        "accuracy and rmse are those of held-out users, every fifth id, whose factors are zero: nothing was learnt of them",
    ]


def _check_unit(options: TrainOptions, dataset: Dataset, before: tuple[Event, ...]) -> None:
    """Raises InputError for a budget for users where releases for single records are on record already."""
    from dpltm.privacy.events import ReleaseEvent
    from dpltm.privacy.privacy_unit import bounds_nothing

    if options.epsilon is None:
        return
    releases = [event for event in before if isinstance(event, ReleaseEvent)]
    worthless = next((event for event in releases if bounds_nothing(event.mechanism, dataset.unit)), None)
    if worthless is not None:
        raise InputError(
            f"--unit: the ledger, or what the ticket was made by, holds a release for single records of {worthless.dataset},"
            " which certifies nothing for a user, so no budget for users can hold; take --unit record, or other records"
        )


def _centre(options: TrainOptions, dataset: Dataset, draft: NoisySgd, before: OnRecord) -> tuple[GaussianEvent, ...]:
    """The release of the mean of features: as noisy as one that spends all the budget, over the root of its share.

    The noise of several Gaussian mechanisms adds up by its inverse square, so the rest is left for training.
    """
    from dpltm.features.centre import SENSITIVITY
    from dpltm.privacy.calibration import calibrate_noise
    from dpltm.privacy.events import GaussianEvent
    from dpltm.privacy.parts import total_epsilon

    if options.centre is None or options.epsilon is None:
        return ()
    check_quantities(dataset, "--centre")
    if dataset.feature_map is None:
        raise InputError(NO_FEATURES)
    if math.isinf(total_epsilon(before.events, options.delta)):
        raise InputError(
            "--centre: nothing can be certified for these records any more, so there is no budget to take a part of; leave"
            " it out"
        )
    alone = replace(draft, sampling_rate=1.0, steps=1)
    calibrated = calibrate_noise(options.epsilon, options.delta, alone, before, options.accountant)
    sensitivity = SENSITIVITY * (2.0 if draft.adjacency == "replace-one" else 1.0)
    noise = calibrated.noise_multiplier / math.sqrt(options.centre)
    release = GaussianRelease(noise, sensitivity, adjacency=draft.adjacency)
    return (GaussianEvent(before.dataset, release, "mean of features"),)


def _evaluations(
    options: TrainOptions, dataset: Dataset, draft: NoisySgd, records: DatasetRef
) -> tuple[GuaranteeEvent, ...]:
    """What measuring accuracy on the records themselves costs: one release a checkpoint if it may stop the run, else one.

    Each has a time of its own: two releases are never equal, so that ledgers that tell of them can be merged.

    Raises:
        InputError: the run is to stop on a score that is private, and nothing pays for it.
    """
    from dpltm.noise import LEAST_EPSILON
    from dpltm.privacy.events import GuaranteeEvent
    from dpltm.privacy.odometer import POINTS

    if options.eval_private is None:
        if options.stop_at is not None and dataset.test is None:
            raise InputError(
                f"--stop-at: {dataset.name} has no test split, and stopping on the private records is a release that nothing"
                " pays for; put its cost into the plan with --eval-private E, or name a --test file"
            )
        return ()
    if dataset.unit == "user":
        raise InputError("--eval-private: counts right answers one a record, and a user has many; leave it out")
    count = 1 if options.stop_at is None else min(POINTS, draft.steps)
    what = "count of right answers on the training records, with two-sided geometric noise"
    each = options.eval_private / count
    if each < LEAST_EPSILON:
        raise InputError(
            f"--eval-private: {options.eval_private:g} over {count} evaluations is nothing but noise; give at least"
            f" {count * LEAST_EPSILON:g}"
        )
    return tuple(GuaranteeEvent(records, Guarantee(each, adjacency=draft.adjacency), what) for _ in range(count))


def check_records(options: TrainOptions, dataset: Dataset) -> tuple[float, int, float]:
    """Sampling rate, steps, expected batch size, from public inputs only.

    Raises:
        InputError: they, or delta, do not suit so many records.
    """
    check_delta(options.delta, dataset)
    batch = options.batch_size if options.batch_size is not None else float(min(1600, max(1, dataset.records // 4)))
    if not 0 < batch <= dataset.records:
        raise InputError(
            f"--batch-size: {batch:g} is not between 0 and the {dataset.records} records of {dataset.name}"
        )
    rate = batch / dataset.records
    epochs = 15.0 if options.epochs is None else options.epochs
    steps = options.steps if options.steps is not None else steps_of(epochs, rate)
    if steps > MOST_STEPS:
        raise InputError(f"--epochs, --steps: more than {MOST_STEPS:,} steps; ask for fewer")
    return rate, steps, batch


def _with_noise(options: TrainOptions, draft: NoisySgd, before: OnRecord, console: Console) -> NoisySgd:
    """The mechanism with its noise multiplier: as stated, or calibrated to what the budget leaves."""
    from dpltm.privacy.calibration import calibrate_noise, calibrate_steps
    from dpltm.privacy.parts import total_epsilon

    nominal = options.noise == "nominal"
    claimed = (draft.nominal_sensitivity or draft.sensitivity) / draft.sensitivity if nominal else 1.0
    if options.noise_multiplier is not None and not options.budget_stop:
        return replace(draft, noise_multiplier=options.noise_multiplier * claimed)
    budget = options.epsilon or 0.0
    if nominal or (_unprotected_ticket(before.events) and not options.budget_stop):
        budget, before = _nominal_remainder(budget, before, options.delta)
    elif math.isinf(total_epsilon(before.events, options.delta, unit=draft.unit)):
        raise BudgetError(
            "budget: the ledger holds an unprotected release from these records, so no epsilon can be certified any more;"
            " state the noise with --noise-multiplier instead of --epsilon"
        )
    if options.budget_stop:
        stated = replace(draft, noise_multiplier=options.noise_multiplier or 0.0)
        return calibrate_steps(budget, options.delta, stated, before, options.accountant, most=draft.steps)
    console.say(f"calibrating noise to epsilon {budget:g} at delta {options.delta:g}")
    calibrated = calibrate_noise(budget, options.delta, draft, before, options.accountant)
    return replace(calibrated, noise_multiplier=calibrated.noise_multiplier * claimed)


def _unprotected_ticket(before: tuple[Event, ...]) -> bool:
    """Whether nothing can be certified because the tickets were made from these records: DPLTM's own setting."""
    from dpltm.privacy.events import ProvenanceEvent

    return any(isinstance(event, ProvenanceEvent) and event.provenance == "private" for event in before)


def _nominal_remainder(budget: float, before: OnRecord, delta: float) -> tuple[float, OnRecord]:
    """What the papers would leave for training: the budget less each eps1, with earlier training as they account it.

    Used where nothing can be certified (tickets made from these records unprotected) or the user asked for the paper's
    noise: the certified epsilon is then above the budget, and is printed.
    """
    from dpltm.privacy.calibration import check_share
    from dpltm.privacy.events import SelectionEvent, TrainingEvent
    from dpltm.privacy.report import as_claimed

    claimed = [(event, as_claimed(event)) for event in before.events]
    drawn = [event for event, _ in claimed if isinstance(event, SelectionEvent)]
    spent = sum(event.mechanism.eps1 for event in drawn)
    nominal = tuple(event for old, event in claimed if isinstance(old, SelectionEvent))
    check_share(budget, spent, replace(before, events=nominal), delta, "record", "nominal epsilon")
    trained = tuple(event for old, event in claimed if isinstance(old, TrainingEvent))
    return budget - spent, replace(before, events=trained)
