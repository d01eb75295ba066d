"""Phase 1 as a stage: what tickets are made from, what that costs, and the set that comes of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from dpltm.errors import InputError
from dpltm.networks import ModelSpec
from dpltm.options.generate import GenerateOptions
from dpltm.privacy.event_json import to_json
from dpltm.privacy.events import DatasetRef, Event, NonPrivateEvent, ProvenanceEvent, ProvenanceKind
from dpltm.privacy.lineage import check_never_private, check_not_public, check_test_apart, measured_on, to_enter
from dpltm.privacy.mechanisms import Unprotected
from dpltm.privacy.old_ledger import Ledger
from dpltm.privacy.parts import touching
from dpltm.privacy.report import report
from dpltm.privacy.statement import PrivacyReport
from dpltm.pruning import CRITERIA, DP_CRITERIA, generation
from dpltm.pruning.generation import GenerationConfig, Tickets, without_data
from dpltm.pruning.ticket_set import TicketSet, found_setting
from dpltm.records import Dataset
from dpltm.records.notes import public_input_notes, test_notes, unit_notes
from dpltm.stages.checks import LedgerState, check_delta, model_spec
from dpltm.stages.front import feature_events, feature_notes
from dpltm.stages.generate_dp import Payment, plan_release, release
from dpltm.stages.generate_settings import check_options, settle
from dpltm.stages.going_on import check_same_work, entered_for, records_of
from dpltm.stages.inputs import inputs
from dpltm.stages.progress import by_round
from dpltm.stages.services import Services
from dpltm.training.checkpoint import NOT_KEPT, Checkpoint, Checkpoints, PartOf
from dpltm.training.ranks import Ranks

IN_MEMORY = "the ticket set in memory, which is not to be shown"
"""Where accuracies on private records are, if nobody writes them to a file of their own."""


@dataclass(frozen=True, kw_only=True)
class GenerationPlan:
    """A generation as settled before it starts; nothing is spent yet.

    Attributes:
        options: as they were given.
        dataset: the records; of data-free tickets, what decides the network's shape.
        spec: the network.
        config: the schedule and training.
        provenance: what the tickets will depend on.
        source: the records they are made from; None for none.
        origins: what is entered of the map in front of the network: where it comes from, and what it cost.
        event: what a criterion with a mechanism spends; None for the others, and where synthetic records are pruned on.
        ledger: that all of it is entered in.
        before: the ledger as it was when the plan was made.
    """

    options: GenerateOptions
    dataset: Dataset
    spec: ModelSpec
    config: GenerationConfig
    provenance: ProvenanceKind
    source: DatasetRef | None
    origins: tuple[Event, ...]
    event: Event | None
    ledger: Ledger
    before: LedgerState

    @property
    def steps(self) -> int:
        """Training steps in all."""
        if CRITERIA[self.options.criterion].mechanism == "training":
            return self.config.iterations
        return 0 if self.provenance == "data-free" else self.config.steps

    @property
    def events(self) -> tuple[Event, ...]:
        """What the tickets will be post-processing of: the release of a mechanism, or the one behind synthetic records."""
        if self.event is not None:
            return (self.event,)
        made = self.dataset.synthetic
        return () if made is None or self.provenance != "dp" else (made.event,)

    @property
    def planned(self) -> tuple[Event, ...]:
        """What would be entered."""
        spent = () if self.event is None else (self.event,)
        said = () if self.source is None else (_provenance_event(self.source, self.provenance, "planned"),)
        return (*self.origins, *spent, *said)


def plan(dataset: Dataset, options: GenerateOptions, ledger: Ledger, services: Services) -> GenerationPlan:
    """Settles and refuses everything before any training.

    Args:
        dataset: the records, with what stands in front of the network.
        options: how tickets are made.
        ledger: what it holds counts towards the budget.
        services: told how far it is.

    Raises:
        InputError: options out of range, or that contradict each other; records that may not be used like that.
        BudgetError: the ledger leaves too little of the budget.
    """
    provenance = check_options(options)
    if provenance in ("private", "dp") and dataset.synthetic is None:
        check_delta(options.delta, dataset)
    spec = model_spec(options.model, dataset)
    config = settle(options, spec, dataset, provenance)
    if dataset.synthetic is not None:
        provenance = _of_synthetic(options, provenance, dataset)
    state, before, registry = LedgerState(ledger), ledger.events, ledger.registry
    source = None if provenance == "data-free" else registry.reference(dataset, public=provenance == "public")
    private = provenance in ("private", "dp")
    front = feature_events(dataset, source or registry.look_at(dataset), registry, private=private)
    if dataset.synthetic is not None:  # whose records the tickets tell of; data-free ones tell of their columns alone
        source = registry.resolve(dataset.synthetic.source) if private else None
        front = front if private else tuple(map(registry.resolve_event, dataset.found))
    measured = measured_on(dataset, registry) if private and source is not None else ()
    origins = to_enter((*front, *measured), before)
    event = None
    if source is not None and options.criterion in DP_CRITERIA:
        known = (*before, *origins)
        check_not_public(known, source, registry)
        event = plan_release(options, config, spec, dataset, source, known, services.progress)
    settled = GenerationPlan(
        options=options,
        dataset=dataset,
        spec=spec,
        config=config,
        provenance=provenance,
        source=source,
        origins=origins,
        event=event,
        ledger=ledger,
        before=state,
    )
    planned = settled.planned
    check_never_private(before, planned)
    check_test_apart(dataset, (*before, *planned), registry)
    ledger.check_budgets(planned)  # what the ledger would refuse is refused before the work, not after it
    return settled


def resumed(plan: GenerationPlan, held: Checkpoint, ledger: Ledger) -> GenerationPlan:
    """The plan of an interrupted generation, with the events that it entered, if it paid for any.

    Args:
        plan: the same planned anew, on what the ledger held then (``going_on.planned_on``).
        held: its checkpoint.
        ledger: as it is now.

    Raises:
        InputError: it is another one; what differs is named.
    """
    check_same_work(held, plan.dataset, _facts(plan))
    if plan.event is None:
        return plan
    *origins, event = entered_for((*plan.origins, plan.event), held, plan.before.events, ledger)
    return replace(plan, origins=tuple(origins), event=event, source=event.dataset, ledger=ledger)


def _facts(plan: GenerationPlan) -> dict[str, Any]:
    """What a generation is of, beside its options."""
    feature_map = plan.dataset.feature_map
    return {
        "records": records_of(plan.source, plan.dataset, plan.ledger.registry.key),
        "model": plan.spec.text,
        "features": None if feature_map is None else feature_map.id,
    }


def generate(
    plan: GenerationPlan,
    services: Services,
    *,
    kept_in: str = IN_MEMORY,
    checkpoints: Checkpoints = NOT_KEPT,
    ranks: Ranks | None = None,
) -> TicketSet:
    """Makes the tickets, and enters what they depend on.

    What a mechanism spends is entered before it is spent; where the tickets come from, before they are returned.

    Args:
        plan: as settled.
        services: told how far it is; where features come from.
        kept_in: where accuracies on private records will be, for the report.
        checkpoints: where it is kept on the way, and what it goes on from; then the plan is that of ``resumed``.
        ranks: that share the training of ``dp-train``, of which this is rank 0; None for one process.

    Returns:
        The set, with the ledger and the report. Of provenance ``private`` it holds accuracies on private records, as the
        side file of a set on disk does: its text (``repr``) leaves them out, and so does the set that is written.

    Raises:
        InputError: the ledger has grown since the plan was made, or while public tickets were made; training diverged.
    """
    ledger, options = plan.ledger, plan.options
    if plan.event is None or checkpoints.held is None:
        plan.before.check(ledger)
    body = _make_tickets(plan, services, checkpoints, ranks)
    made = TicketSet(
        body=body.without_predictors() if options.no_predictors else body,
        name=options.name or plan.dataset.name,
        criterion=options.criterion,
        provenance=plan.provenance,
        source=plan.source,
        config=_settings(plan),
        events=plan.events,
        feature_map=plan.dataset.feature_map,
        ledger=ledger,
    )
    said: list[Event] = [] if plan.source is None else [_provenance_event(plan.source, plan.provenance, made.id)]
    if plan.source is not None and plan.provenance == "private" and options.reveal:
        said.append(NonPrivateEvent(plan.source, Unprotected(), "accuracies of the tickets' predictors"))
    if plan.event is None:
        ledger.enter((*plan.origins, *said), plan.before.events)
    else:  # which was entered before the work
        ledger.enter(said)
    return replace(made, privacy=_report(plan, kept_in))


def planned_report(plan: GenerationPlan) -> PrivacyReport:
    """What the report would be, were the plan carried out, but for what the tickets themselves have to say."""
    held = (*plan.before.events, *plan.planned)
    events = () if plan.source is None else touching(held, plan.source)
    return report(events, plan.options.delta, "add-remove", _input_notes(plan), held=held)


def _make_tickets(plan: GenerationPlan, services: Services, checkpoints: Checkpoints, ranks: Ranks | None) -> Tickets:
    """The tickets, with whatever a mechanism spends entered in the ledger before it is spent."""
    dataset, config = plan.dataset, plan.config
    if plan.provenance == "data-free":
        return without_data(plan.spec, config)
    if plan.event is not None:
        # what the network in front cost comes before what is released through it
        events = (*plan.origins, plan.event)
        earlier = () if plan.source is None else touching((*plan.before.events, *plan.origins), plan.source)
        pay = Payment(partial(plan.ledger.enter, events, plan.before.events), earlier, plan.options.delta)
        kept = PartOf(checkpoints, {"of": _facts(plan), "events": [to_json(event) for event in events]})
        return release(plan.event, plan.spec, config, dataset, pay, services, kept, ranks)
    x, y = inputs(dataset.train, dataset, services)
    evaluation = (x, y) if dataset.test is None else inputs(dataset.test, dataset, services)
    cost = "no epsilon is spent" if plan.provenance == "public" else "epsilon inf: no mechanism protects the records"
    with services.progress.progress(f"generating {config.rounds} tickets", config.steps) as step:
        return generation.generate(
            plan.spec,
            x,
            y,
            config,
            evaluation,
            by_round(config.iterations, config.rewind, step, cost),
            checkpoints=PartOf(checkpoints, {"of": _facts(plan), "events": [], "step": 0}),
        )


def _of_synthetic(options: GenerateOptions, provenance: ProvenanceKind, dataset: Dataset) -> ProvenanceKind:
    """What tickets from synthetic records depend on: the release behind them, which stays their provenance.

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


def _provenance_event(source: DatasetRef, provenance: ProvenanceKind, set_id: str) -> ProvenanceEvent:
    """The event that tells a ledger where a ticket set comes from."""
    return ProvenanceEvent(source, provenance, set_id)


def _settings(plan: GenerationPlan) -> dict[str, Any]:
    """What the set writes down about how it was made."""
    settings, options = asdict(plan.config), plan.options
    del settings["groups"]  # the schema says it
    if plan.provenance == "data-free":
        settings = {key: settings[key] for key in ("rounds", "prune", "criterion", "scope", "seed")}
    if options.criterion in DP_CRITERIA:
        settings |= {"criterion": options.criterion, "epsilon": options.epsilon, "delta": options.delta}
    dataset, scored = plan.dataset, ()
    if plan.provenance == "public":  # accuracies stand in the set, and a rule may choose by them
        scored = measured_on(dataset, plan.ledger.registry, declared=True)
    if dataset.schema:  # which holds what was found
        return {**settings, "table_schema": dataset.schema, **found_setting(scored)}
    return {**settings, **found_setting((*dataset.found, *scored))}


def _report(plan: GenerationPlan, kept_in: str) -> PrivacyReport:
    """What the ledger says of the records that the tickets come from, and what a reader should know."""
    source, ledger, delta = plan.source, plan.ledger, plan.options.delta
    notes = _input_notes(plan)
    if plan.provenance == "private" and not plan.options.reveal:
        notes.append(f"accuracies are private and withheld; they are kept in {kept_in} (`reveal` shows them)")
    notes += _origin_notes(plan)
    if source is not None:
        notes += feature_notes(plan.dataset, source, delta, ledger.registry)
    if plan.provenance == "dp":
        notes += test_notes(plan.dataset)
    events = () if source is None else ledger.touching(source)
    return report(events, delta, "add-remove", notes, held=ledger.events)


def _input_notes(plan: GenerationPlan) -> list[str]:
    """About public inputs, and whom the guarantee is for, if there is one."""
    guaranteed = plan.provenance in ("private", "dp")
    return [*public_input_notes(plan.dataset), *(unit_notes(plan.dataset) if guaranteed else ())]


def _origin_notes(plan: GenerationPlan) -> list[str]:
    """What follows from where the tickets come from; of private ones the report itself tells."""
    match plan.provenance:
        case "data-free":
            return [
                "no record was looked at, so the tickets cost nothing; they have no predictors: train one by its round"
            ]
        case "public":
            return [
                f"{plan.source} was declared public: no guarantee is claimed for it, and the tickets cost nothing elsewhere"
            ]
        case "dp":
            return ["the tickets are post-processing of what was spent; training one on these records adds to it"]
        case "private":
            return []
