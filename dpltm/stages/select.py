"""Phase 2 as a stage: one draw on private records, entered before it is made; or the paper's rule on public accuracies."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dpltm.errors import DpltmError, InputError
from dpltm.networks import build
from dpltm.options.sections import check_choices
from dpltm.options.select import SelectOptions
from dpltm.privacy.events import DatasetRef, Event, NonPrivateEvent, SelectionEvent
from dpltm.privacy.figures import figure
from dpltm.privacy.lineage import (
    check_never_private,
    check_not_public,
    draws_to_enter,
    entered_on,
    origin_events,
    provenance_notes,
    registries_of,
    relation_notes,
    source_relation,
    to_enter,
)
from dpltm.privacy.mechanisms import Selection, Unprotected
from dpltm.privacy.old_ledger import Ledger, merge
from dpltm.privacy.parts import stated_relations, total_epsilon, touching
from dpltm.privacy.report import report
from dpltm.privacy.selection import (
    SelectionPlan,
    draw,
    exponential_probabilities,
    permute_and_flip_probabilities,
    smallest_within,
)
from dpltm.privacy.statement import PrivacyReport
from dpltm.pruning.generation import Ticket
from dpltm.pruning.ticket_set import Candidate, Draw, TicketSet, Winner
from dpltm.randomness.noise import SecureSource
from dpltm.records import Dataset
from dpltm.records.notes import bounds_notes, public_input_notes, unit_notes
from dpltm.records.registry import SESSION
from dpltm.stages.checks import LedgerState, check_delta, check_same_network
from dpltm.stages.front import feature_events, feature_notes, network_inputs, take_over_map
from dpltm.stages.inputs import inputs
from dpltm.stages.services import Services
from dpltm.training.evaluation import count_correct


@dataclass(frozen=True, kw_only=True)
class DrawPlan:
    """A draw as settled before it is made; nothing is spent yet.

    Attributes:
        options: as they were given.
        tickets: the set that is drawn from.
        earlier: draws from it before this one.
        dataset: the private records, behind the map that the tickets were made with.
        records: what the draw is entered on.
        draw: everything public about the mechanism.
        origins: what is entered before it: what the tickets, and the map in front, depend on.
        event: what it spends.
        ledger: that all of it is entered in.
        before: the ledger as it was when the plan was made.
    """

    options: SelectOptions
    tickets: TicketSet
    earlier: tuple[Draw, ...]
    dataset: Dataset
    records: DatasetRef
    draw: SelectionPlan
    origins: tuple[Event, ...]
    event: SelectionEvent
    ledger: Ledger
    before: LedgerState

    @property
    def candidates(self) -> tuple[Ticket, ...]:
        """The pruned tickets."""
        return _candidates(self.tickets)

    @property
    def planned(self) -> tuple[Event, ...]:
        """What would be entered."""
        return (*self.origins, self.event, *([_reveal_event(self.event)] if self.options.reveal else []))


def plan(
    tickets: TicketSet,
    dataset: Dataset,
    options: SelectOptions,
    ledger: Ledger,
    services: Services,
    earlier: tuple[Draw, ...] = (),
) -> DrawPlan:
    """Settles and refuses everything before any budget is spent.

    Args:
        tickets: with predictors, which are scored.
        dataset: the private records.
        options: how the winner is drawn.
        ledger: what it holds counts towards a budget on these records.
        services: told what the draw brings the total to.
        earlier: draws from this set before.

    Raises:
        InputError: options out of range, or that contradict each other; records that may not be used like that.
        BudgetError: a budget on these records does not allow the draw.
    """
    check_scored(tickets, options)
    check_options(options)
    dataset = take_over_map(dataset, tickets.feature_map, None, tickets.label)
    check_same_network(tickets, dataset)
    check_delta(options.delta, dataset)
    registry, state, before = ledger.registry, LedgerState(ledger), ledger.events
    records = entered_on(dataset, options.adjacency, registry)
    origin = origin_events(tickets, dataset, records, registry)
    # given what a DP release let out, the predictors made of it are fixed (adaptive composition)
    fixed = tickets.provenance != "private" or source_relation(tickets, records, registry) == "other"
    densities = tuple(ticket.mask.density for ticket in _candidates(tickets))
    settled = settle(options, dataset.records, densities, fixed)
    check_not_public(before, records, registry)
    origins = to_enter(merge((feature_events(dataset, records, registry), origin)), before)
    origins = (*origins, *draws_to_enter(tickets.draws, (*before, *origins)))
    event = make_event(settled, records, tickets.id, touching((*before, *origins), records))
    check_never_private(before, origins)
    made = DrawPlan(
        options=options,
        tickets=tickets,
        earlier=earlier,
        dataset=dataset,
        records=records,
        draw=settled,
        origins=origins,
        event=event,
        ledger=ledger,
        before=state,
    )
    ledger.check_budgets(made.planned)
    _announce(made, services)
    return made


def select(plan: DrawPlan, services: Services) -> Winner:
    """Enters the draw, makes it, and returns the winner: nothing else that the records decided.

    Args:
        plan: as settled.
        services: told how far it is; where features come from.

    Returns:
        The winner with its set and the report; with ``reveal``, scores and probabilities of all candidates as well.

    Raises:
        InputError: the ledger has grown since the plan was made.
    """
    ledger, dataset = plan.ledger, plan.dataset
    plan.before.check(ledger)
    network_inputs(dataset.train, dataset, services)  # features that cannot be had are missed now
    planned = plan.planned
    ledger.enter(planned, plan.before.events)  # before the winner is known
    correct = _count(plan, services)
    winner = plan.candidates[draw(plan.draw, correct, SecureSource())]
    events = (*map(ledger.registry.resolve_event, dataset.behind), *planned[len(plan.origins) :])
    revealed = _revealed(plan, correct) if plan.options.reveal else ()
    for registry in {SESSION, *registries_of(plan.tickets, ledger.registry)}:
        registry.remember_draw(plan.tickets.id, winner.round, events)
    tickets = replace(plan.tickets, ledger=ledger)
    return Winner(winner.round, events, plan.earlier, tickets, _report(plan), revealed)


def planned_report(plan: DrawPlan) -> PrivacyReport:
    """What the report would be, were the plan carried out."""
    held = (*plan.before.events, *plan.origins, plan.event)
    events = touching((*plan.before.events, *plan.planned), plan.records)
    notes = [*bounds_notes(plan.dataset), *unit_notes(plan.dataset)]
    return report(events, plan.options.delta, plan.event.mechanism.adjacency, notes, held=held)


def select_public(tickets: TicketSet, options: SelectOptions, earlier: tuple[Draw, ...] = ()) -> Winner:
    """The paper's rule for public data: the sparsest ticket that loses little, by the accuracies that the set holds.

    No record is read, and nothing is spent.

    Args:
        tickets: of provenance ``public``, with accuracies.
        options: with ``rule`` smallest-within.
        earlier: draws from this set before.

    Raises:
        InputError: the accuracies are not public, or not there.
        DpltmError: no ticket is sparse and good enough.
    """
    check_scored(tickets, options)
    if tickets.provenance != "public":
        raise InputError(
            f"`rule`: smallest-within looks at accuracies unprotected, so it needs public ones, and {tickets.label} has"
            f" provenance {tickets.provenance}; use `rule` mechanism `eps1` 0.1"
        )
    check_options(options)
    dense, *candidates = tickets.body.tickets
    accuracies = [ticket.accuracy for ticket in tickets.body.tickets]
    if any(value is None for value in accuracies):
        raise InputError(f"`rule`: {tickets.label} holds no accuracies to compare; use `rule` mechanism `eps1` 0.1")
    index = smallest_within(
        tuple(ticket.mask.density for ticket in candidates),
        tuple(float(ticket.accuracy or 0) for ticket in candidates),
        float(dense.accuracy or 0),
        options.tolerance,
        options.max_density,
    )
    if index is None:
        raise DpltmError(
            f"`rule`: no ticket of at most {options.max_density:.0%} density is within {options.tolerance:g} of the dense"
            f" accuracy {dense.accuracy:.4f}; raise `tolerance` or `max_density`"
        )
    note = f"chosen on {tickets.source}, declared public: no private record was used"
    privacy = report((), options.delta, "add-remove", [note])
    return Winner(candidates[index].round, (), earlier, tickets, privacy)


def check_scored(tickets: TicketSet, options: SelectOptions) -> None:
    """Raises InputError unless the tickets hold what the rule looks at."""
    unmeasured = all(ticket.accuracy is None for ticket in tickets.body.tickets)
    if not tickets.is_scored and (options.rule == "mechanism" or unmeasured):
        raise InputError(
            f"{tickets.label}: its tickets have no predictors to score; train one by its round, as in"
            f" {tickets.label}@{tickets.body.tickets[-1].round}"
        )


def check_options(options: SelectOptions) -> None:
    """Raises InputError for options that are out of range or contradict each other, whatever the tickets."""
    check_choices(options)
    if options.rule == "mechanism":
        if options.eps1 is None:
            raise InputError("`eps1` is missing: the epsilon that the draw may spend; DPLTM uses 0.1")
        settle(options, records=1, densities=(0.5,), fixed=True)
        return
    if options.eps1 is not None:
        raise InputError("`eps1`: smallest-within draws nothing and spends nothing; leave `eps1` out")
    for name in ("dataset", "ledger", "reveal"):  # the first two are of requests
        if getattr(options, name, None):
            raise InputError(
                f"`{name}`: smallest-within reads the public accuracies in the set and no records; leave it out"
            )
    if not (0 <= options.tolerance <= 1 and 0 < options.max_density <= 1):
        raise InputError("`tolerance`, `max_density`: must be between 0 and 1")


def settle(options: SelectOptions, records: int, densities: tuple[float, ...], fixed: bool) -> SelectionPlan:
    """The draw: everything public about it, checked.

    Args:
        options: as they were given.
        records: public number of private records.
        densities: of the candidates.
        fixed: whether their predictors were fixed without these records.
    """
    return SelectionPlan(
        eps1=options.eps1 or 0.0,
        densities=densities,
        records=records,
        score=options.score,  # type: ignore[arg-type]
        nu=options.nu,
        lam=options.lam,
        rule=options.sensitivity or ("exact" if fixed or options.score == "additive" else "paper"),  # type: ignore[arg-type]
        mechanism=options.mechanism,  # type: ignore[arg-type]
        adjacency=options.adjacency,  # type: ignore[arg-type]
        fixed_predictors=fixed,
    )


def make_event(draw: SelectionPlan, records: DatasetRef, set_id: str, before: tuple[Event, ...]) -> SelectionEvent:
    """The event of a draw, after ``before``.

    Args:
        draw: the plan of it.
        records: that are scored.
        set_id: of the ticket set.
        before: what is on record for these records; a draw after other releases is adaptive.
    """
    return SelectionEvent(
        records,
        Selection(
            draw.eps1,
            draw.certified_epsilon,
            draw=draw.mechanism,
            adaptive=bool(stated_relations(before)),
            adjacency=draw.adjacency,
        ),
        draw.score,
        draw.rule,
        draw.sensitivity,
        len(draw.densities),
        set_id,
    )


def _candidates(tickets: TicketSet) -> tuple[Ticket, ...]:
    return tuple(ticket for ticket in tickets.body.tickets if ticket.round > 0)


def _announce(plan: DrawPlan, services: Services) -> None:
    """Says what the draw will bring the total to, before it is entered."""
    before, event = touching(plan.before.events, plan.records), plan.event
    now_at, then_at = (
        total_epsilon(events, plan.options.delta, unit=event.mechanism.unit) for events in (before, (*before, event))
    )
    services.progress.say(
        f"this draw spends eps1 = {figure(event.mechanism.certified_epsilon)} on {event.dataset}: certified epsilon goes"
        f" from {figure(now_at)} to {figure(then_at)}"
    )


def _count(plan: DrawPlan, services: Services) -> np.ndarray:
    """Right answers of each candidate's predictor on the private records: private."""
    model = build(plan.tickets.body.spec)
    x, y = inputs(plan.dataset.train, plan.dataset, services)
    correct = []
    with services.progress.progress(f"scoring {len(plan.candidates)} tickets", len(plan.candidates)) as step:
        for ticket in plan.candidates:
            assert ticket.predictor is not None  # checked at the start
            model.load_state_dict(ticket.predictor)
            correct.append(count_correct(model, x, y))
            step(len(correct))
    return np.array(correct)


def _revealed(plan: DrawPlan, correct: np.ndarray) -> tuple[Candidate, ...]:
    """What a non-private event was entered for."""
    scores = plan.draw.scores(correct)
    by_mechanism = {"exponential": exponential_probabilities, "permute-and-flip": permute_and_flip_probabilities}
    probabilities = by_mechanism[plan.draw.mechanism](scores, plan.draw.exponent)
    return tuple(
        Candidate(
            round=ticket.round,
            density=ticket.mask.density,
            accuracy=float(count / len(plan.dataset.train)),
            score=float(score),
            probability=float(probability),
        )
        for ticket, count, score, probability in zip(plan.candidates, correct, scores, probabilities, strict=True)
    )


def _reveal_event(event: SelectionEvent) -> NonPrivateEvent:
    what = "scores and probabilities of the candidates"
    return NonPrivateEvent(event.dataset, Unprotected(adjacency=event.mechanism.adjacency), what)


def _report(plan: DrawPlan) -> PrivacyReport:
    """What the ledger says of the records, and what a reader should know."""
    ledger, dataset, delta = plan.ledger, plan.dataset, plan.options.delta
    events = ledger.touching(plan.records)
    notes = [
        *provenance_notes(plan.tickets, dataset, ledger.registry),
        *feature_notes(dataset, plan.records, delta, ledger.registry),
        *public_input_notes(dataset),
        *unit_notes(dataset),
        *relation_notes(dataset, plan.event.mechanism.adjacency),
    ]
    draws = sum(isinstance(event, SelectionEvent) for event in events)
    if draws > 1:
        notes.append(f"{draws} draws on these records are in the ledger; each spent its own eps1")
    return report(events, delta, plan.event.mechanism.adjacency, notes, held=ledger.events)
