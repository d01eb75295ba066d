"""Phase 1: what tickets are made from, what that costs, and the set that comes of it (docs/privacy-model.md section 2).

Tickets of no data cost nothing. Of public records the ledger gets a declaration, of private ones with no mechanism a release
without protection, each before a record is looked at. ``dp-train`` is a release that comes through the door; its tickets are
post-processing of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from dpltm.errors import InputError
from dpltm.features.inputs import Services, inputs, network_inputs, tensors
from dpltm.filters import make_filter
from dpltm.networks import Network, model_spec
from dpltm.networks.evaluation import accuracy, check_score
from dpltm.networks.own import OwnModel
from dpltm.networks.own_network import check_labels, network_notes, source_facts, started_at
from dpltm.networks.plain import threads
from dpltm.networks.state import put, weights_of
from dpltm.options import parse_numbers
from dpltm.options.generate import GenerateOptions
from dpltm.options.train import TrainOptions
from dpltm.privacy.account import Account, Planned, check_declared, check_private, check_unprotected
from dpltm.privacy.calibration import Odometer, calibrate_noise
from dpltm.privacy.checkpoint import AGAIN, NOT_KEPT, Checkpoint, Checkpoints, PartOf, reading
from dpltm.privacy.describe import figure
from dpltm.privacy.entry import RECORD, TICKETS, Entry, Lineage, lineage_of
from dpltm.privacy.ledger import Book, Ledger, facts_digest
from dpltm.privacy.mechanisms import NoisySgd, Unprotected
from dpltm.privacy.release import Secret, pay, price
from dpltm.privacy.statement import statement
from dpltm.pruning import CRITERIA, DATA_FREE, DP_CRITERIA, generation
from dpltm.pruning.generation import (
    GenerationConfig,
    Tickets,
    by_round,
    check_without_data,
    make_schedule,
    prune_once,
    pruning_rates,
    try_criterion,
    without_data,
)
from dpltm.pruning.unstructured import input_groups
from dpltm.records import Arrays, Dataset, Split, at_unit
from dpltm.records.notes import feature_notes, public_input_notes, test_notes, unit_notes
from dpltm.records.settle import check_delta
from dpltm.registry import listed
from dpltm.training.artifacts import ProvenanceKind, TicketSet, with_start
from dpltm.training.descent import Descent
from dpltm.training.plan import NoisySteps, noisy_steps
from dpltm.training.release import Sources, noisy_gradients, resume_steps, steps_so_far
from dpltm.training.start import fresh, in_front
from dpltm.verbs.train import check_takes_persons

IN_MEMORY = "the ticket set in memory, which is not to be shown"
"""Place of accuracies on private records where nobody writes them to a file of their own."""

CLIPPED = make_filter("clip", clip_norm=1.0)
"""Filter of every record's gradient in ``dp-train``."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A generation as settled before it starts; nothing is spent yet.

    Under DP it is a release (:class:`dpltm.privacy.release.Release`), of which tickets are post-processing.

    Attributes:
        beside: drafts of what is declared before records are used, and of looks at them with no mechanism.
        own: whether the epsilon that is asked for, and reported, is that of the set's lineage alone, as in a sweep.
    """

    options: GenerateOptions
    dataset: Dataset
    spec: Network
    config: GenerationConfig
    provenance: ProvenanceKind
    lineage: Lineage
    ledger: Ledger
    beside: tuple[Entry, ...]
    services: Services
    own: bool = False
    drafts: tuple[Entry, ...] = ()
    checkpoints: Checkpoints = NOT_KEPT

    @property
    def under_dp(self) -> bool:
        """Tell whether a mechanism is run, rather than none needed or none there."""
        return self.options.criterion in DP_CRITERIA

    @property
    def steps(self) -> int:
        """Training steps in all."""
        if self.under_dp:
            return self.config.iterations
        return 0 if self.provenance == "data-free" else self.config.steps

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Drafts of all that would be entered and has a say in a figure."""
        return (*(draft for draft in self.beside if draft.kind != "excluded"), *self.drafts)

    @property
    def entry(self) -> Entry:
        """Return the draft or entry that pays for the mechanism."""
        (entry,) = self.drafts
        return entry

    def account(self, book: Book, lineage: Lineage | None = None) -> Account:
        """Return the account of a value's lineage; None for what the generation is made of."""
        lineage = self.lineage if lineage is None else lineage
        return book.own_account(lineage) if self.own else book.account(lineage)

    @property
    def shown(self) -> dict[str, Any]:
        """Facts of a mechanism's work for its checkpoints."""
        feature_map = self.dataset.feature_map
        features = None if feature_map is None else feature_map.id
        return {"model": self.spec.identity, "features": features, **source_facts(self.spec)}

    @property
    def facts(self) -> str:
        """Digest of the records and settings, by which interrupted work is known."""
        part, feature_map, slots = self.ledger.part(self.dataset), self.dataset.feature_map, self.dataset.train.slots
        body = [
            [part.snapshot, part.cut, part.start, part.stop],
            self.spec.identity,
            None if feature_map is None else feature_map.id,
            repr(self.config),
            self.options.criterion,
            self.options.epsilon,
            dict(source_facts(self.spec)),
            *([] if slots is None else [slots]),
        ]
        return TICKETS + facts_digest(body)

    def priced(self) -> dict[str, Any]:
        """Return what would be made, and what it would cost; refuse what cannot be trained."""
        if self.under_dp:
            self.rehearse()
        account = self.account(self.ledger.book) + self.entries
        return {
            "provenance": self.provenance,
            "criterion": self.options.criterion,
            "dataset": self.dataset.name,
            "records": self.dataset.records,
            "model": self.spec.text,
            "steps": self.steps,
            "privacy": statement(account, self.options.delta, notes=_input_notes(self)).to_json(),
        }

    def on_record(self, book: Book) -> Generation:
        """Return the same with the lineage of what was declared beside it."""
        return replace(self, lineage=self.lineage | book.public(self.beside))

    def planned(self, book: Book, known: Entry | None = None) -> Generation:
        """Return the same with its entry: as noisy as what a ledger holds makes it, or as it is on record."""
        plan, part, options, config = self.on_record(book), self.ledger.part(self.dataset), self.options, self.config
        if known is None:
            rate, before = config.batch_size / self.dataset.records, plan.account(book)
            draft = noisy_steps(CLIPPED, self.spec.parameters, rate, config.iterations, TrainOptions())
            mechanism = calibrate_noise(options.epsilon or 0.0, options.delta, draft, Planned(before, part))
        else:
            (mechanism,) = known.of(NoisySgd)
        words = f"tickets by {options.criterion}, {self.spec.parameters:,} weights"
        entry = Entry("release", part, (mechanism,), words, self.facts, unit=self.dataset.unit)
        return replace(plan, drafts=(entry,))

    def rehearse(self) -> None:
        """Refuse what cannot be trained, here or later by its tickets."""
        check_labels(self.spec, self.dataset)
        unused = Sources.unused(TrainOptions())
        self._inputs.check(lambda records: self._training(unused, records))

    def draw(self, secret: Secret, at: Checkpoint | None) -> Iterator[Tickets]:
        """Yield the tickets."""
        yield replace(self, drafts=(secret.entry,))._trained(Sources.begin(secret, at, self._steps), at, secret)

    @property
    def _steps(self) -> NoisySteps:
        (mechanism,) = self.entry.of(NoisySgd)
        return NoisySteps(CLIPPED, mechanism, float(self.config.batch_size), self.config.lr)

    @property
    def _inputs(self) -> Split:
        return network_inputs(self.dataset.train, self.dataset, self.services)

    def _test(self) -> Arrays | None:
        """The test split, once it is declared; None where there is none."""
        dataset = self.dataset
        if dataset.test is None:
            return None
        return network_inputs(dataset.test, dataset, self.services).open(self.ledger.declared_test(dataset))

    def _training(self, sources: Sources, opened: Arrays) -> tuple[torch.nn.Module, Descent]:
        start = fresh(self.spec, self.config.seed)
        return start.model, Descent(noisy_gradients(self._steps, start, self.dataset, sources, opened))

    def _trained(self, sources: Sources, at: Checkpoint | None, secret: Secret) -> Tickets:
        """Tickets of a network trained under DP; predictors are that network under each mask."""
        config, spec, dataset, services = self.config, self.spec, self.dataset, self.services
        (mechanism,) = self.entry.of(NoisySgd)
        model, descent = self._training(sources, self._inputs.open(secret))
        theta0 = weights_of(model)
        if at is not None:
            resume_steps(descent, at)
            with reading():
                theta0 = {name: torch.from_numpy(at.tensors[f"theta0/{name}"].copy()) for name in theta0}
        others = self.account(self.ledger.book).without(self.entry)
        odometer = Odometer(Planned(others, self.entry.part), mechanism, self.options.delta)
        with services.progress.progress("training under DP", mechanism.steps) as step:

            def checkpoint() -> Checkpoint:
                rewound = {f"theta0/{name}": value for name, value in theta0.items()}
                return steps_so_far(self.shown, self.entry, descent, sources, rewound)

            def between() -> None:
                nonlocal theta0
                if descent.step == config.rewind:
                    theta0 = weights_of(model)
                self.checkpoints.offer(checkpoint)
                step(descent.step, f"epsilon so far {figure(odometer.after(descent.step))}")

            with threads(config.threads):
                descent.run(between=between)
        tickets = prune_once(spec, theta0, weights_of(model), config)
        opened = self._test()
        if opened is None:
            return tickets
        test, scored = tensors(opened, dataset), []
        for ticket in tickets.tickets:
            put(model, ticket.predictor or {})
            scored.append(replace(ticket, accuracy=accuracy(model, *test, score=spec.score)))
        return replace(tickets, tickets=tuple(scored))


def plan(
    dataset: Dataset,
    options: GenerateOptions,
    ledger: Ledger,
    services: Services,
    *,
    model: OwnModel | None = None,
    going_on: bool = False,
    own: bool = False,
) -> Generation:
    """Settle everything, and refuse what cannot be, before any training.

    Args:
        model: a network of the user's own, in the place of the one that ``options`` names.
        going_on: whether an interrupted attempt goes on, which may be paid for already.
        own: whether the epsilon that is asked for is that of the set's lineage alone, as of a set in a sweep.
    """
    provenance = check_options(options)
    dataset = in_front(None, dataset, options.features)
    if provenance == "dp":
        dataset = at_unit(dataset, RECORD, options.per_unit)
    if provenance in ("private", "dp"):
        check_delta(options.delta, dataset)
    spec = model_spec(options.model if model is None else model, dataset)
    if provenance in ("public", "private") or (provenance == "dp" and dataset.test is not None):
        check_score(spec, "the accuracy of each ticket")
    settled = Generation(
        options=options,
        dataset=dataset,
        spec=spec,
        config=settle(options, spec, dataset, provenance),
        provenance=provenance,
        lineage=lineage_of(dataset, dataset.feature_map, spec),
        ledger=ledger,
        beside=_beside(options, provenance, ledger, dataset),
        services=services,
        own=own,
    )
    check_takes_persons(spec, dataset)
    book, looks = ledger.book, [draft for draft in settled.beside if draft.paid]
    account = book.account(settled.lineage)
    for draft in settled.beside:
        if draft.kind == "public":
            check_declared(account, draft.part, "public")
        elif draft.paid:
            check_private(account, draft.part)
    book.lacking(settled.beside)
    if going_on:
        return settled
    account.check_budget(looks)
    check_unprotected(ledger.account(), looks, options.unprotected or own)
    if not settled.under_dp:
        return settled
    services.progress.say(f"calibrating noise to epsilon {options.epsilon:g} at delta {options.delta:g}")
    planned = settled.planned(book)
    price(planned, book)
    return planned


def _beside(
    options: GenerateOptions, provenance: ProvenanceKind, ledger: Ledger, dataset: Dataset
) -> tuple[Entry, ...]:
    beside = ledger.apart(dataset) if provenance in ("private", "dp") else ()
    words = f"tickets by {options.criterion}"
    if provenance == "public":
        beside += ledger.public(dataset, words)
        if dataset.test is not None and dataset.published_id() is None:  # whoever chooses a ticket sees its accuracy
            beside += ledger.public(dataset.tested(), words)
    if provenance == "private":
        looks = (f"{words}, with no mechanism", *(["accuracies of their predictors"] if options.reveal else []))
        part, unit = ledger.part(dataset), dataset.noun if dataset.names_units else ledger.unit
        beside += tuple(Entry("release", part, (Unprotected(),), each, unit=unit) for each in looks)
    return beside


def generate(plan: Generation, *, kept_in: str = IN_MEMORY, checkpoints: Checkpoints = NOT_KEPT) -> TicketSet:
    """Make the tickets; what they depend on is on record before a record is looked at.

    Args:
        kept_in: place of accuracies on private records, for people.

    Returns:
        The set, with the report. Of provenance ``private`` it holds accuracies on private records, as the side file of a set
        on disk does: its text (``repr``) leaves them out, and so does the set that is written.
    """
    ledger, options, dataset = plan.ledger, plan.options, plan.dataset
    plan = replace(plan, checkpoints=checkpoints)
    if plan.under_dp:
        paid = pay(plan.planned, ledger, checkpoints, plan.shown)
        body, lineage = next(paid.values), paid.lineage
    elif plan.provenance == "data-free":
        lineage = plan.lineage | ledger.declare_once(*plan.beside)
        body = without_data(plan.spec, plan.config)
    else:
        body, lineage = _with_no_mechanism(plan)
    plan, provenance = plan.on_record(ledger.book), with_start(plan.provenance, plan.spec)
    notes = _input_notes(plan)
    if plan.provenance == "private" and not options.reveal:
        notes.append(f"accuracies are private and withheld; they are kept in {kept_in} (`reveal` shows them)")
    if provenance in _ABOUT:
        notes.append(_ABOUT[provenance].format(dataset.part))
    notes += test_notes(dataset) if provenance == "dp" else ()
    notes += [*network_notes(plan.spec), *feature_notes(dataset)]
    return TicketSet(
        body=replace(
            body.without_predictors() if options.no_predictors else body, spec=started_at(body.spec, body.theta0)
        ),
        name=options.name or dataset.name,
        criterion=options.criterion,
        provenance=provenance,
        made_from=lineage,
        config=_settings(plan),
        feature_map=dataset.feature_map,
        privacy=statement(plan.account(ledger.book, lineage), options.delta, notes=notes),
    )


_ABOUT = {
    "data-free": "no record was looked at, so the tickets cost nothing; they have no predictors: train one by its round",
    "public": "{} was declared public: no guarantee is claimed for it, and the tickets cost nothing",
    "dp": "the tickets are post-processing of one release, which goes along with them and counts with whatever is made of"
    " them",
}
"""Notes that follow from where the tickets come from; of private ones the statement itself tells."""


def _input_notes(plan: Generation) -> list[str]:
    """About public inputs, and whom the guarantee is for, if there is one."""
    guaranteed = plan.provenance in ("private", "dp")
    return [*public_input_notes(plan.dataset), *(unit_notes(plan.dataset) if guaranteed else ())]


def _with_no_mechanism(plan: Generation) -> tuple[Tickets, Lineage]:
    """Make tickets by ordinary training on the records; their lineage is on record before."""
    config, ledger, services, held = plan.config, plan.ledger, plan.services, plan.checkpoints.held
    facts, looks = plan.facts, [draft for draft in plan.beside if draft.paid]
    if held is not None and held.state.get("facts") != facts:
        raise InputError(f"checkpoint: an interrupted attempt was begun on other records, or otherwise; {AGAIN}")
    before = [] if held is None else [entry for entry in ledger.entries if entry.id in held.state["entries"]]
    known = looks and len(before) == len(looks)
    entered = ledger.declare_once(*(draft for draft in plan.beside if not (known and draft.paid)))
    entered = entered | ledger.lineage(*before) if known else entered
    dataset = plan.dataset
    x, y = inputs(plan._inputs.open(ledger.declared(dataset)), dataset)
    test = plan._test()
    evaluation = (x, y) if test is None else inputs(test, dataset)
    unprotected = "epsilon inf: no mechanism protects the records"
    cost = unprotected if plan.provenance == "private" else "no epsilon is spent"
    state = {"facts": facts, "entries": [entry.id for entry in entered.entries if entry.paid]}
    with services.progress.progress(f"generating {config.rounds} tickets", config.steps) as step:
        told = by_round(config.iterations, config.rewind, step, cost)
        kept = PartOf(plan.checkpoints, state)
        tickets = generation.generate(plan.spec, x, y, config, evaluation, told, checkpoints=kept)
        return tickets, plan.on_record(ledger.book).lineage | entered


def _settings(plan: Generation) -> dict[str, Any]:
    settings, options = asdict(plan.config), plan.options
    del settings["groups"]  # the schema says it
    if plan.provenance == "data-free":
        settings = {key: settings[key] for key in ("rounds", "prune", "criterion", "scope", "seed")}
    if plan.under_dp:
        settings |= {"criterion": options.criterion, "epsilon": options.epsilon, "delta": options.delta}
    dataset = plan.dataset
    named = {"columns": list(dataset.columns)} if dataset.columns else {}
    return {**settings, **named, **({"table_schema": dataset.schema} if dataset.schema else {})}


# --- options --------------------------------------------------------------------------------------------------------


def check_options(options: GenerateOptions) -> ProvenanceKind:
    """Return what the tickets will be made from; options out of range, or that contradict each other, are refused."""
    provenance = _provenance(options)
    if options.epsilon is not None and options.criterion not in DP_CRITERIA:
        raise InputError(
            f"`epsilon`: only for `criterion` {listed(DP_CRITERIA, 'and')}; {options.criterion} spends none"
        )
    if options.epsilon is None and options.criterion in DP_CRITERIA:
        raise InputError(f"`epsilon` is missing: what {options.criterion} may spend on these records, such as 0.1")
    if options.per_unit is not None and options.criterion not in DP_CRITERIA:
        raise InputError(
            f"`per_unit`: only for `criterion` {listed(DP_CRITERIA, 'and')}; {options.criterion} bounds nothing"
        )
    if options.reveal and provenance != "private":
        raise InputError(f"`reveal`: only for private tickets; those of provenance {provenance} withhold nothing")
    unused = [name for name in ("iterations", "batch_size", "lr") if getattr(options, name) is not None]
    if provenance == "data-free" and unused:
        raise InputError(
            f"`{unused[0]}`: nothing is trained for data-free tickets; leave it out, or say `provenance` public"
        )
    config = _draft(options)
    if provenance == "data-free":
        check_without_data(config)
    return provenance


def check_schedule(options: GenerateOptions, spec: Network) -> None:
    """Raise InputError for rounds or rates that this network cannot be pruned by."""
    make_schedule(spec, _draft(options))


def _provenance(options: GenerateOptions) -> ProvenanceKind:
    """Return the provenance of the tickets: as the user says, as far as the criterion leaves it open."""
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
            f"`provenance`: {options.criterion} trains on the records, so it is not data-free; take"
            f" `criterion` {', '.join(DATA_FREE)}"
        )
    return said  # type: ignore[return-value]


def settle(options: GenerateOptions, spec: Network, dataset: Dataset, provenance: ProvenanceKind) -> GenerationConfig:
    """Return the settings of generation, with every default filled in."""
    config = _draft(options, dataset.records)
    batch = config.batch_size
    make_schedule(spec, config)
    # Without a mechanism batches are of exactly so many records, and there may be fewer than the public number.
    most = dataset.records if provenance == "dp" else min(dataset.records, len(dataset.train))
    if provenance in ("public", "private", "dp") and batch > most:
        many = f"the {most} records of" if most == dataset.records else "there are records in"
        raise InputError(f"`batch_size`: {batch} is more than {many} {dataset.name}")
    threads = config.threads or torch.get_num_threads()
    config = replace(
        config, prune=tuple(pruning_rates(spec, config).values()), threads=threads, groups=input_groups(dataset)
    )
    try_criterion(spec, config)
    return config


MANY = 10**12
"""Records of which no default runs short: by them options are refused that are wrong whatever the records."""


def _draft(options: GenerateOptions, records: int = MANY) -> GenerationConfig:
    """Return the settings, with every default that goes by the number of records."""
    criterion = CRITERIA[options.criterion]
    training = criterion.training
    batch = options.batch_size or training.batch_of(records)
    iterations = options.iterations or training.iterations_of(records, batch)
    return GenerationConfig(
        rounds=options.rounds,
        prune=None if options.prune is None else parse_numbers("prune", options.prune),
        iterations=iterations,
        batch_size=batch,
        lr=options.lr if options.lr is not None else training.lr,
        seed=options.seed,
        threads=options.threads,
        criterion=criterion.by or criterion.name,
        scope=options.scope or criterion.scope,  # type: ignore[arg-type]
        rewind=options.rewind,
    )
