"""Phase 1: what tickets are made from, what that costs, and the set that comes of it (docs/privacy-model.md section 2).

Tickets of no data cost nothing. Of public records the ledger gets a declaration, of private ones with no mechanism a release
without protection, each before a record is looked at. ``dp-train`` and ``dp-synthetic`` are releases that come through the
door; their tickets are post-processing of those.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from dpltm.errors import ArtifactError, DpltmError, InputError
from dpltm.features.inputs import Services, batched_records, inputs, tensors
from dpltm.filters import make_filter
from dpltm.gradients.choose import choices_made, repeat_choices
from dpltm.networks import ModelSpec, build, model_spec
from dpltm.networks.masks import Mask
from dpltm.options import check_choices, parse_numbers
from dpltm.options.generate import GenerateOptions
from dpltm.privacy.account import Account, Planned, check_declared, check_private, check_unprotected
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.checks import check_count, check_epsilon
from dpltm.privacy.entry import Entry, Id, Lineage, Part, lineage_of
from dpltm.privacy.figures import figure
from dpltm.privacy.ledger import Book, Ledger, canonical
from dpltm.privacy.mechanisms import GaussianRelease, Mechanism, NoisySgd, Unprotected
from dpltm.privacy.odometer import Odometer
from dpltm.privacy.release import Secret, pay
from dpltm.privacy.statement import PrivacyReport, statement
from dpltm.pruning import CRITERIA, DATA_FREE, DP_CRITERIA, generation
from dpltm.pruning.generation import (
    GenerationConfig,
    Tickets,
    by_round,
    check_without_data,
    make_schedule,
    prune_once,
    pruning_rates,
    weights_of,
    without_data,
)
from dpltm.pruning.ticket_set import ProvenanceKind, TicketSet
from dpltm.pruning.unstructured import input_groups
from dpltm.randomness.keyed_source import KeyedSource, ResumableSource, source_of
from dpltm.records import Dataset
from dpltm.records.checks import check_delta
from dpltm.records.notes import feature_notes, public_input_notes, test_notes, unit_notes
from dpltm.records.synthetic import SENSITIVITY, Moments, release_moments
from dpltm.registry import listed
from dpltm.training.checkpoint import AGAIN, NOT_KEPT, Checkpoint, Checkpoints, Kept, PartOf
from dpltm.training.descent import Descent, NoisyGradients, TrainingConfig
from dpltm.training.evaluation import accuracy
from dpltm.training.losses import cross_entropy
from dpltm.training.plain import threads
from dpltm.training.sensitivity import sensitivity
from dpltm.verbs.synthesize import RECORDS, check_moments, draw_records

IN_MEMORY = "the ticket set in memory, which is not to be shown"
"""Where accuracies on private records are, if nobody writes them to a file of their own."""

CLIP_NORM = 1.0
"""Of every record's gradient in ``dp-train``."""


@dataclass(frozen=True, kw_only=True)
class GenerationPlan:
    """A generation as settled before it starts; nothing is spent yet.

    Attributes:
        options: as they were given.
        dataset: the records; of data-free tickets, what decides the network's shape.
        spec: the network.
        config: the schedule and training.
        provenance: what the tickets will be made from.
        lineage: of the records, and of what stands in front of the network.
        ledger: that all of it is entered in.
        entries: drafts of what is entered first, but for the release of a mechanism and the declaration of a test split.
        own: whether the epsilon that is asked for, and reported, is that of the set's lineage alone, as in a sweep.
    """

    options: GenerateOptions
    dataset: Dataset
    spec: ModelSpec
    config: GenerationConfig
    provenance: ProvenanceKind
    lineage: Lineage
    ledger: Ledger
    entries: tuple[Entry, ...]
    own: bool = False

    def account(self, lineage: Lineage, book: Book | None = None) -> Account:
        """Return what counts with a value.

        Args:
            lineage: of the value.
            book: of the ledger; None for what it holds now.
        """
        book = self.ledger.book if book is None else book
        return book.own_account(lineage) if self.own else book.account(lineage)

    @property
    def under_dp(self) -> bool:
        """Whether a mechanism is run, rather than none needed or none there."""
        return self.options.criterion in DP_CRITERIA

    @property
    def steps(self) -> int:
        """Training steps in all."""
        if CRITERIA[self.options.criterion].mechanism == "training":
            return self.config.iterations
        return 0 if self.provenance == "data-free" else self.config.steps

    def release(self, book: Book, known: Entry | None = None, **more: Any) -> TicketRelease:
        """Return the release of a mechanism, as ``pay`` plans it.

        Args:
            book: of the ledger that pays.
            known: its entry, where it is on record already.
            more: services and checkpoints.
        """
        account, part = self.account(self.lineage, book), self.ledger.part(self.dataset)
        check_private(book.account(self.lineage), part)
        if known is not None:
            account = replace(account, entries=tuple(each for each in account.entries if each.id != known.id))
        (mechanism,) = self._mechanism(Planned(account, part)) if known is None else known.mechanisms
        entry = Entry("release", part, (mechanism,), self._words(), self.facts(part))
        return TicketRelease(entry=entry, lineage=self.lineage, plan=self, account=account, **more)

    def _words(self) -> str:
        return f"tickets by {self.options.criterion}, {self.spec.parameters:,} weights"

    def _mechanism(self, before: Planned) -> tuple[Mechanism]:
        """The mechanism, with as much noise as the budget asks for."""
        options, config = self.options, self.config
        if CRITERIA[options.criterion].mechanism == "moments":
            draft = NoisySgd(1.0, 1, 1.0, SENSITIVITY)
        else:
            bound = sensitivity(make_filter("clip", clip_norm=CLIP_NORM), self.spec.parameters, "add-remove")
            draft = NoisySgd(config.batch_size / self.dataset.records, config.iterations, 1.0, bound)
        fitted = calibrate_noise(options.epsilon or 0.0, options.delta, draft, before)
        if CRITERIA[options.criterion].mechanism == "moments":
            return (GaussianRelease(fitted.noise_multiplier, SENSITIVITY),)
        return (fitted,)

    def facts(self, part: Part) -> str:
        """Digest of the records and settings, by which interrupted work is known."""
        feature_map = self.dataset.feature_map
        body = [
            [part.snapshot, part.cut, part.start, part.stop],
            self.spec.text,
            None if feature_map is None else feature_map.id,
            repr(self.config),
            self.options.criterion,
            self.options.epsilon,
        ]
        return hashlib.sha256(canonical(body).encode()).hexdigest()


def plan(
    dataset: Dataset,
    options: GenerateOptions,
    ledger: Ledger,
    services: Services,
    *,
    going_on: bool = False,
    own: bool = False,
) -> GenerationPlan:
    """Settle everything, and refuse what cannot be, before any training.

    Args:
        dataset: the records, with what stands in front of the network.
        options: how tickets are made.
        ledger: what it holds counts towards the budget.
        services: told how far it is.
        going_on: whether an interrupted attempt goes on, which may be paid for already.
        own: whether the epsilon that is asked for is that of the set's lineage alone, as of a set in a sweep.

    Raises:
        InputError: options out of range, or that contradict each other; records that may not be used like that.
        BudgetError: the ledger leaves too little of the budget.
    """
    provenance = check_options(options)
    if provenance in ("private", "dp") and not dataset.synthetic:
        check_delta(options.delta, dataset)
    spec = model_spec(options.model, dataset)
    config = settle(options, spec, dataset, provenance)
    lineage = lineage_of(dataset, dataset.feature_map)
    if dataset.synthetic:
        provenance = _of_synthetic(options, provenance, dataset)
    settled = GenerationPlan(
        options=options,
        dataset=dataset,
        spec=spec,
        config=config,
        provenance=provenance,
        lineage=lineage,
        ledger=ledger,
        entries=() if dataset.synthetic else _drafts(options, provenance, ledger, dataset),
        own=own,
    )
    account = ledger.account(lineage)
    for draft in settled.entries:
        if draft.kind == "public":
            check_declared(account, draft.part, "public")
        else:
            check_private(account, draft.part)
    if CRITERIA[options.criterion].mechanism == "moments":
        check_moments(dataset, "`criterion` dp-synthetic", "take dp-train")
    if going_on:
        return settled
    account.check_budget(settled.entries)
    check_unprotected(ledger.account(), settled.entries, options.unprotected or own)
    if settled.under_dp:
        services.progress.say(f"calibrating noise to epsilon {options.epsilon:g} at delta {options.delta:g}")
        account.check_budget((settled.release(ledger.book).entry,))
    return settled


def _drafts(
    options: GenerateOptions, provenance: ProvenanceKind, ledger: Ledger, dataset: Dataset
) -> tuple[Entry, ...]:
    """What is entered before records are looked at with no mechanism."""
    if provenance not in ("public", "private"):
        return ()
    part, words = ledger.part(dataset, to_declare=provenance == "public"), f"tickets by {options.criterion}"
    if provenance == "public":
        scored = (
            dataset.test is not None and dataset.published_id() is None
        )  # whoever chooses a ticket sees its accuracy
        parts = (part, *((ledger.part(dataset.tested(), to_declare=True),) if scored else ()))
        return tuple(Entry("public", each, words=words) for each in parts)
    looks = (f"{words}, with no mechanism", *(["accuracies of their predictors"] if options.reveal else []))
    return tuple(Entry("release", part, (Unprotected(),), each, unit=ledger.unit) for each in looks)


def generate(
    plan: GenerationPlan,
    services: Services,
    *,
    kept_in: str = IN_MEMORY,
    checkpoints: Checkpoints = NOT_KEPT,
) -> TicketSet:
    """Make the tickets; what they depend on is on record before a record is looked at.

    Args:
        plan: as settled.
        services: told how far it is; where features come from.
        kept_in: where accuracies on private records will be, for the report.
        checkpoints: where it is kept on the way, and what it goes on from.

    Returns:
        The set, with the report. Of provenance ``private`` it holds accuracies on private records, as the side file of a set
        on disk does: its text (``repr``) leaves them out, and so does the set that is written.

    Raises:
        InputError: a checkpoint of other work; training diverged.
    """
    ledger, options = plan.ledger, plan.options
    if plan.provenance == "data-free":
        body, lineage = without_data(plan.spec, plan.config), plan.lineage
    elif plan.under_dp:
        map_id = None if plan.dataset.feature_map is None else plan.dataset.feature_map.id
        shown = {"model": plan.spec.text, "features": map_id}
        given = {"services": services, "checkpoints": checkpoints, "shown": shown}
        paid = pay(lambda book, known: plan.release(book, known, **given), ledger, Kept(checkpoints, shown))
        body, lineage = next(paid.values), paid.lineage
    else:
        body, lineage = _with_no_mechanism(plan, services, checkpoints)
    made = TicketSet(
        body=body.without_predictors() if options.no_predictors else body,
        name=options.name or plan.dataset.name,
        criterion=options.criterion,
        provenance=plan.provenance,
        made_from=lineage,
        config=_settings(plan),
        feature_map=plan.dataset.feature_map,
    )
    notes = _input_notes(plan)
    if plan.provenance == "private" and not options.reveal:
        notes.append(f"accuracies are private and withheld; they are kept in {kept_in} (`reveal` shows them)")
    notes += [*_provenance_notes(plan), *feature_notes(plan.dataset, options.delta)]
    return replace(made, privacy=statement(plan.account(lineage), options.delta, notes=notes))


def planned_report(plan: GenerationPlan) -> PrivacyReport:
    """Return what the report would be, were the plan carried out, but for what the tickets themselves have to say."""
    drafts = (*plan.entries, *((plan.release(plan.ledger.book).entry,) if plan.under_dp else ()))
    return statement(plan.account(plan.lineage) + drafts, plan.options.delta, notes=_input_notes(plan))


def _with_no_mechanism(plan: GenerationPlan, services: Services, checkpoints: Checkpoints) -> tuple[Tickets, Lineage]:
    """Tickets by ordinary training on the records, and their lineage, which is on record before."""
    dataset, config, ledger, held = plan.dataset, plan.config, plan.ledger, checkpoints.held
    facts = plan.facts(ledger.part(dataset))
    if held is not None and held.state.get("facts") != facts:
        raise InputError(f"checkpoint: an interrupted attempt was begun on other records, or otherwise; {AGAIN}")
    lineage, entered = plan.lineage, tuple[Entry, ...]()
    if plan.provenance == "public":
        for each in (dataset,) if len(plan.entries) == 1 else (dataset, dataset.tested()):
            lineage |= ledger.declare_public(each, plan.entries[0].words)
    elif plan.provenance == "private":
        ledger.exclude(dataset)  # before anything is measured on its test split
        before = [] if held is None else [each for each in ledger.entries if each.id in held.state["entries"]]
        entered = tuple(before) if len(before) == len(plan.entries) else ledger.declare(*plan.entries)
        lineage |= ledger.lineage(*entered)
    x, y = inputs(dataset.train, dataset, services)
    evaluation = (x, y) if dataset.test is None else inputs(dataset.test, dataset, services)
    unprotected = "epsilon inf: no mechanism protects the records"
    cost = unprotected if plan.provenance == "private" else "no epsilon is spent"
    state = {"facts": facts, "entries": [entry.id for entry in entered]}
    with services.progress.progress(f"generating {config.rounds} tickets", config.steps) as step:
        told = by_round(config.iterations, config.rewind, step, cost)
        kept = PartOf(checkpoints, state)
        return generation.generate(plan.spec, x, y, config, evaluation, told, checkpoints=kept), lineage


def _of_synthetic(options: GenerateOptions, provenance: ProvenanceKind, dataset: Dataset) -> ProvenanceKind:
    """What tickets from synthetic records come from: the release behind those.

    Raises:
        InputError: the records would pass for private ones, or be paid for once more.
    """
    if provenance == "public":
        return "dp"
    if provenance == "data-free":
        return provenance
    wrong = "`provenance`: private" if provenance == "private" else f"`criterion`: {options.criterion}"
    raise InputError(
        f"{wrong} is for records of people, and those of {dataset.name} are synthetic: take `criterion` magnitude and"
        " `provenance` public, at no cost; the tickets remember the release behind the records"
    )


def _settings(plan: GenerationPlan) -> dict[str, Any]:
    """What the set writes down about how it was made."""
    settings, options = asdict(plan.config), plan.options
    del settings["groups"]  # the schema says it
    if plan.provenance == "data-free":
        settings = {key: settings[key] for key in ("rounds", "prune", "criterion", "scope", "seed")}
    if plan.under_dp:
        settings |= {"criterion": options.criterion, "epsilon": options.epsilon, "delta": options.delta}
    return {**settings, **({"table_schema": plan.dataset.schema} if plan.dataset.schema else {})}


def _input_notes(plan: GenerationPlan) -> list[str]:
    """About public inputs, and whom the guarantee is for, if there is one."""
    guaranteed = plan.provenance in ("private", "dp")
    return [*public_input_notes(plan.dataset), *(unit_notes(plan.dataset) if guaranteed else ())]


def _provenance_notes(plan: GenerationPlan) -> list[str]:
    """What follows from where the tickets come from; of private ones the statement itself tells."""
    match plan.provenance:
        case "data-free":
            return [
                "no record was looked at, so the tickets cost nothing; they have no predictors: train one by its round"
            ]
        case "public":
            return [
                f"{plan.dataset.part} was declared public: no guarantee is claimed for it, and the tickets cost nothing"
            ]
        case "dp":
            return [
                "the tickets are post-processing of one release, which goes along with them and counts with whatever is"
                " made of them",
                *test_notes(plan.dataset),
            ]
        case _:
            return []


# --- options --------------------------------------------------------------------------------------------------------


def check_options(options: GenerateOptions) -> ProvenanceKind:
    """Return what the tickets will be made from; options out of range, or that contradict each other, are refused."""
    check_choices(options)
    provenance = _provenance(options)
    if options.epsilon is not None and options.criterion not in DP_CRITERIA:
        raise InputError(
            f"`epsilon`: only for `criterion` {listed(DP_CRITERIA, 'and')}; {options.criterion} spends none"
        )
    if options.epsilon is None and options.criterion in DP_CRITERIA:
        raise InputError(f"`epsilon` is missing: what {options.criterion} may spend on these records, such as 0.1")
    check_epsilon("epsilon", options.epsilon)
    if options.reveal and provenance != "private":
        raise InputError(f"`reveal`: only for private tickets; those of provenance {provenance} withhold nothing")
    unused = [name for name in ("iterations", "batch_size", "lr") if getattr(options, name) is not None]
    if provenance == "data-free" and unused:
        raise InputError(
            f"`{unused[0]}`: nothing is trained for data-free tickets; leave it out, or say `provenance` public"
        )
    if provenance not in ("private", "dp") and not 0 < options.delta < 1:  # of these, the number of records has a say
        raise InputError(f"`delta`: {options.delta:g} is not between 0 and 1")
    config = _draft(options, None)
    if provenance == "data-free":
        check_without_data(config)
    return provenance


def check_schedule(options: GenerateOptions, spec: ModelSpec) -> None:
    """Raises InputError for rounds or rates that this network cannot be pruned by."""
    make_schedule(spec, _draft(options, None))


def _provenance(options: GenerateOptions) -> ProvenanceKind:
    """What the tickets will depend on: as the user says, as far as the criterion leaves it open."""
    said = options.provenance
    if options.criterion in DP_CRITERIA:
        if said not in (None, "dp"):
            raise InputError(f"`provenance`: {options.criterion} makes tickets under DP; say dp, or leave it out")
        return "dp"
    if said == "dp":
        takers = listed(DP_CRITERIA, "and")
        raise InputError(
            f"`provenance`: {options.criterion} spends nothing and is not DP; dp is for `criterion` {takers}"
        )
    if said is None and options.criterion in DATA_FREE:
        return "data-free"
    if said is None:
        raise InputError(
            "`provenance` is missing: say public if these records are public, or private if they are not (then nothing can"
            " be certified for them)"
        )
    if said == "data-free" and options.criterion not in DATA_FREE:
        raise InputError(
            f"`provenance`: {options.criterion} looks at weights trained on the records, so it is not data-free; take"
            f" `criterion` {', '.join(DATA_FREE)}"
        )
    return said  # type: ignore[return-value]


def settle(
    options: GenerateOptions, spec: ModelSpec, dataset: Dataset, provenance: ProvenanceKind
) -> GenerationConfig:
    """The settings of generation, with every default filled in.

    Args:
        options: as they were given.
        spec: the network.
        dataset: the records.
        provenance: what the tickets will depend on.

    Raises:
        InputError: rounds or rates that the network cannot be pruned by, or a batch of more records than there are.
    """
    config = _draft(options, dataset.records)
    batch = config.batch_size
    make_schedule(spec, config)
    # Without a mechanism batches are of exactly so many records, and there may be fewer than the public number.
    most = dataset.records if provenance == "dp" else min(dataset.records, len(dataset.train))
    made_up = CRITERIA[options.criterion].mechanism == "moments"  # as many records as a batch takes
    if provenance in ("public", "private", "dp") and not made_up and batch > most:
        many = f"the {most} records of" if most == dataset.records else "there are records in"
        raise InputError(f"`batch_size`: {batch} is more than {many} {dataset.name}")
    threads = config.threads or torch.get_num_threads()
    return replace(
        config, prune=tuple(pruning_rates(spec, config).values()), threads=threads, groups=input_groups(dataset)
    )


def _draft(options: GenerateOptions, records: int | None) -> GenerationConfig:
    """The settings, with every default that goes by the number of records; by any number where that is not known."""
    criterion = CRITERIA[options.criterion]
    training = criterion.training
    if records is None:
        batch, iterations = options.batch_size or training.batch_size, options.iterations or training.iterations
        if training.epochs is not None:  # no rewind is too late yet
            iterations = options.iterations or max(iterations, options.rewind + 1)
    else:
        batch = options.batch_size or training.batch_of(records)
        iterations = options.iterations or training.iterations_of(records, batch)
    check_count("batch_size", options.batch_size)
    check_count("iterations", options.iterations)
    return GenerationConfig(
        rounds=options.rounds,
        prune=None if options.prune is None else parse_numbers("prune", options.prune),
        iterations=iterations,
        batch_size=batch,
        lr=options.lr if options.lr is not None else training.lr,
        seed=options.seed,
        threads=options.threads,
        criterion=criterion.name if criterion.mechanism is None else "magnitude",
        scope=options.scope or criterion.scope,  # type: ignore[arg-type]
        rewind=options.rewind,
    )


# --- tickets under DP -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TicketRelease:
    """A release that tickets are post-processing of. See :class:`dpltm.privacy.release.Release`.

    Attributes:
        entry, lineage: of the release, and of what it is made of.
        plan: of the generation.
        account: what counts beside it.
        services, checkpoints: as :func:`generate`.
        shown: what checkpoints say that the work is of.
    """

    entry: Entry
    lineage: Lineage
    plan: GenerationPlan
    account: Account
    services: Services = field(default_factory=Services)
    checkpoints: Checkpoints = NOT_KEPT
    shown: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse what cannot be trained; then declare the test split apart, before anything is measured on it."""
        if self.entry.of(NoisySgd):
            self._training({name: KeyedSource(bytes(32)) for name in ("sampling", "noise")})
        self.plan.ledger.exclude(self.plan.dataset)  # once; the release is planned again then

    def draw(self, secret: Secret, at: Checkpoint | None) -> Iterator[Tickets]:
        """Yield the tickets.

        Args:
            secret: of the release.
            at: the checkpoint to go on from.
        """
        if at is None:
            sources: dict[str, ResumableSource] = {
                name: KeyedSource(secret.child(name)) for name in ("sampling", "noise")
            }
        else:
            sources = {name: source_of(state) for name, state in at.state["sources"].items()}
            repeat_choices(at.state["choices"])
        run = self._trained if self.entry.of(NoisySgd) else self._synthesized
        yield run(secret.entry.id, sources, at)

    def _state(self, id: Id, sources: Mapping[str, ResumableSource], step: int) -> dict[str, Any]:
        """What a checkpoint says once so many steps were released."""
        states = {name: source.state for name, source in sources.items()}
        return {"of": dict(self.shown), "id": id, "step": step, "sources": states, "choices": choices_made()}

    def _training(self, sources: Mapping[str, ResumableSource]) -> tuple[torch.nn.Module, Descent]:
        """The network and its training before the first draw."""
        (mechanism,) = self.entry.of(NoisySgd)
        config, dataset = self.plan.config, self.plan.dataset
        model, bounded = build(self.plan.spec, config.seed), make_filter("clip", clip_norm=CLIP_NORM)
        settings = TrainingConfig(
            bounded,
            mechanism.sampling_rate,
            config.iterations,
            float(config.batch_size),
            mechanism.noise_std,
            config.lr,
        )
        records = batched_records(dataset.train, dataset, self.services)
        mask, drawn = Mask.dense(model), (sources["sampling"], sources["noise"])
        gradients = NoisyGradients(model, mask, cross_entropy, records, settings, sampling=drawn[0], noise=drawn[1])
        return model, Descent(gradients)

    def _trained(self, id: Id, sources: Mapping[str, ResumableSource], at: Checkpoint | None) -> Tickets:
        """Tickets by magnitude of a network trained under DP; predictors are that network under each mask."""
        plan, services = self.plan, self.services
        config, spec, dataset = plan.config, plan.spec, plan.dataset
        (mechanism,) = self.entry.of(NoisySgd)
        model, descent = self._training(sources)
        theta0 = weights_of(model)
        if at is not None:
            theta0 = _resumed(descent, at, theta0)
        odometer = Odometer(Planned(self.account, self.entry.part), mechanism, plan.options.delta)
        with services.progress.progress("training under DP", mechanism.steps) as step:

            def checkpoint() -> Checkpoint:
                kept = {f"training/{name}": value.numpy() for name, value in descent.state().items()}
                kept |= {f"theta0/{name}": value.numpy() for name, value in theta0.items()}
                state = self._state(id, sources, descent.step)
                return Checkpoint(f"step {descent.step} of {mechanism.steps}", state, kept)

            def between() -> None:
                nonlocal theta0
                if descent.step == config.rewind:
                    theta0 = weights_of(model)
                self.checkpoints.offer(checkpoint)
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

    def _synthesized(self, id: Id, sources: Mapping[str, ResumableSource], at: Checkpoint | None) -> Tickets:
        """Iterative pruning on records drawn from noisy moments; accuracies are those on the test split, if there is one."""
        plan, services = self.plan, self.services
        config, dataset = plan.config, plan.dataset
        (mechanism,) = self.entry.of(GaussianRelease)
        if at is None:
            x, y = tensors(dataset.train, dataset, services)
            sigma = mechanism.noise_multiplier
            moments = release_moments(x, y, plan.spec.classes, noise_multiplier=sigma, noise=sources["noise"])
        else:
            moments = _known_moments(at, mechanism)
        made = draw_records(moments, dataset, max(RECORDS, config.batch_size), config.seed)
        test = None if dataset.test is None else tensors(dataset.test, dataset, services)
        known = {f"moments/{name}": getattr(moments, name).numpy() for name in _MOMENTS}
        kept = PartOf(self.checkpoints, self._state(id, sources, 1), known, begun=at is not None)
        drafts = [self.entry]
        after = self.account + drafts
        cost = f"epsilon so far {figure(after.epsilon(plan.options.delta))}"
        title = f"generating {config.rounds} tickets from synthetic records"
        with services.progress.progress(title, config.steps) as step:
            told = by_round(config.iterations, config.rewind, step, cost)
            return generation.generate(plan.spec, *made, config, test, told, checkpoints=kept)


_MOMENTS = ("counts", "sums", "second")


def _damaged() -> ArtifactError:
    return ArtifactError(f"checkpoint: damaged, or of another version; {AGAIN}")


def _known_moments(held: Checkpoint, mechanism: GaussianRelease) -> Moments:
    """The moments that were released before an interruption."""
    try:
        counts, sums, second = (torch.from_numpy(held.tensors[f"moments/{name}"].copy()) for name in _MOMENTS)
    except KeyError:
        raise _damaged() from None
    return Moments(counts, sums, second, mechanism.noise_std)


def _resumed(descent: Descent, held: Checkpoint, theta0: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Take a training to where it was; return its theta0."""
    found = {name: torch.from_numpy(value.copy()) for name, value in held.tensors.items()}
    try:
        trained = {name.removeprefix("training/"): value for name, value in found.items() if "training/" in name}
        descent.resume(int(held.state["step"]), trained)
        return {name: found[f"theta0/{name}"] for name in theta0}
    except (KeyError, IndexError, TypeError, ValueError, DpltmError):
        raise _damaged() from None
