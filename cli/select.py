"""``dpltm select``: phase 2, draws the winner and enters eps1 in the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.cli.common import (
    DataOptions,
    check_delta,
    check_never_private,
    check_not_public,
    check_same_network,
    draws_to_enter,
    figure,
    load_dataset,
    not_held,
    origin_events,
    provenance_notes,
    public_input_notes,
    records_of,
    relation_notes,
    source_relation,
    tensors,
    unit_notes,
)
from dpltm.cli.console import Console
from dpltm.cli.features import carried, feature_events, feature_notes, inputs
from dpltm.cli.options import Call, option
from dpltm.errors import DpltmError, InputError
from dpltm.privacy.mechanisms import Selection, Unprotected

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console as RichConsole

    from dpltm.data import Dataset
    from dpltm.generation import Ticket
    from dpltm.privacy.events import DatasetRef, Event, NonPrivateEvent, SelectionEvent
    from dpltm.privacy.ledger import Ledger
    from dpltm.selection import SelectionPlan
    from dpltm.tickets.ticket_set import TicketSet


@dataclass(frozen=True)
class SelectOptions(DataOptions):
    """Phase 2: draw the winning ticket on private records under differential privacy.

    Only the winner is released. Scores, probabilities and accuracies on private records stay private unless --reveal.
    Drawing again spends eps1 again.
    """

    set: str | None = option(None, "Folder of the ticket set.", metavar="SET", argument=True, required=True)
    eps1: float | None = option(None, "Epsilon of the draw; DPLTM uses 0.1.", metavar="E")
    score: str = option(
        "product",
        "Product is A(1 - nu C), DPLTM's; additive is A - lambda C, the better choice: with nu 50 the product rewards lower"
        " accuracy for every ticket above 2 % density.",
        choices=("product", "additive"),
    )
    nu: float = option(50.0, "Weight of the density C in the product score.", metavar="X")
    lam: float = option(0.05, "Weight of the density C in the additive score.", flag="--lambda", metavar="X")
    sensitivity: str | None = option(
        None,
        "Exact where it holds (tickets not made from these records); paper is DPLTM's |1 - nu|.",
        choices=("exact", "paper"),
        shown="exact where it holds",
    )
    mechanism: str = option("exponential", "How the winner is drawn.", choices=("exponential", "permute-and-flip"))
    rule: str = option(
        "mechanism",
        "smallest-within is the paper's rule for public data: the sparsest ticket within the tolerance of the dense one.",
        choices=("mechanism", "smallest-within"),
    )
    tolerance: float = option(0.01, "Only with --rule smallest-within: accuracy that may be lost.", metavar="X")
    max_density: float = option(0.1, "Only with --rule smallest-within: density that may be kept.", metavar="X")
    adjacency: str = option("add-remove", "Neighbouring relation.", choices=("add-remove", "replace-one"))
    delta: float = option(1e-5, "Delta of the printed guarantee.", metavar="D")
    reveal: bool = option(False, "Print scores and probabilities; entered in the ledger as non-private.")
    ledger: str | None = option(None, "Ledger file.", metavar="FILE", shown="SET/ledger.jsonl")
    dry_run: bool = option(False, "Check everything and print what would be spent.")


def command(options: SelectOptions, call: Call) -> None:
    """Runs ``dpltm select`` and prints its answer."""
    console = Console(call.json, call.quiet)
    body = run(options, console)
    console.result(body, lambda rich: _show(rich, body))


def run(options: SelectOptions, console: Console) -> dict[str, Any]:
    """Draws a winner and remembers it; returns the JSON answer.

    Raises:
        DpltmError: bad input, before any budget is spent.
    """
    from dpltm.tickets.store import find_set, is_bundled

    tickets = find_set(options.set or "")
    unmeasured = all(ticket.accuracy is None for ticket in tickets.body.tickets)
    if not tickets.scored and (options.rule == "mechanism" or unmeasured):
        raise InputError(
            f"{tickets.label}: its tickets have no predictors to score; train one by its round, as in"
            f" {tickets.label}@{tickets.body.tickets[-1].round}"
        )
    if is_bundled(tickets.path):
        raise InputError(
            f"{options.set}: comes with dpltm, and a selection is remembered with the set; copy it with dpltm tickets export"
            f" {options.set} --out DIR"
        )
    if options.rule == "smallest-within":
        return _smallest_within(options, tickets)
    return _draw(options, tickets, console)


def _draw(options: SelectOptions, tickets: TicketSet, console: Console) -> dict[str, Any]:
    from dpltm.privacy.ledger import check_budgets
    from dpltm.tickets.ledger_file import open_ledger
    from dpltm.tickets.winner import drawn_from, load_winner

    if drawn_from(tickets):
        load_winner(tickets)  # a damaged record of earlier draws is refused before another is paid for
    check_options(options)
    dataset = carried(load_dataset(options), tickets.feature_map, None, tickets.label)
    check_same_network(tickets, dataset)
    check_delta(options.delta, dataset)
    records = records_of(dataset, options.adjacency, not options.dry_run)
    origin = origin_events(tickets, dataset, records)
    candidates = [ticket for ticket in tickets.body.tickets if ticket.round > 0]
    # given what a DP release let out, the predictors made of it are fixed (adaptive composition)
    fixed = tickets.provenance != "private" or source_relation(tickets, dataset, records) == "other"
    plan = make_plan(options, dataset.records, tuple(ticket.mask.density for ticket in candidates), fixed)
    ledger = open_ledger(Path(options.ledger or tickets.ledger_path), links=options.ledger is not None)
    check_not_public(ledger.events, records)
    entered = not_held((*feature_events(dataset, records), *origin), ledger.events)
    entered = (*entered, *draws_to_enter(tickets.draws, (*ledger.events, *entered)))
    theirs = tuple(event for event in entered if event.dataset.may_overlap(records))
    event = make_event(plan, records, tickets.id, (*ledger.touching(records), *theirs))
    check_never_private(ledger.events, entered)
    check_budgets(ledger.events, [*entered, event, *([_reveal_event(event)] if options.reveal else [])])
    _announce(ledger, event, options, console)
    if options.dry_run:
        held = (*ledger.events, *entered, event)
        return _dry_run(options, (*ledger.touching(records), *theirs, event), unit_notes(options, dataset), held)
    inputs(dataset.train, dataset, console)  # features that cannot be had are missed now
    for first in entered:
        ledger.append(first)
    ledger.append(event)
    return _release(options, tickets, candidates, plan, ledger, event, dataset, console)


def check_options(options: SelectOptions) -> None:
    """Raises InputError for options that are out of range or contradict each other, whatever the tickets."""
    if options.rule == "mechanism":
        if options.eps1 is None:
            raise InputError("--eps1 is missing: the epsilon that the draw may spend; DPLTM uses 0.1")
        make_plan(options, records=1, densities=(0.5,), fixed=True)
        return
    if options.eps1 is not None:
        raise InputError("--eps1: smallest-within draws nothing and spends nothing; leave --eps1 out")
    for flag, value in (("--dataset", options.dataset), ("--ledger", options.ledger), ("--reveal", options.reveal)):
        if value:
            raise InputError(
                f"{flag}: smallest-within reads the public accuracies in the set and no records; leave it out"
            )
    if not (0 <= options.tolerance <= 1 and 0 < options.max_density <= 1):
        raise InputError("--tolerance, --max-density: must be between 0 and 1")


def make_plan(options: SelectOptions, records: int, densities: tuple[float, ...], fixed: bool) -> SelectionPlan:
    """The draw as planned: everything public about it, checked."""
    from dpltm.selection import SelectionPlan

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


def make_event(plan: SelectionPlan, records: DatasetRef, set_id: str, before: tuple[Event, ...]) -> SelectionEvent:
    """The event that a draw by ``plan`` enters, after ``before``."""
    from dpltm.privacy.events import SelectionEvent
    from dpltm.privacy.parts import stated_relations

    return SelectionEvent(
        records,
        Selection(
            plan.eps1,
            plan.certified_epsilon,
            plan.mechanism,
            adaptive=bool(stated_relations(before)),
            adjacency=plan.adjacency,
        ),
        plan.score,
        plan.rule,
        plan.sensitivity,
        len(plan.densities),
        set_id,
    )


def _announce(ledger: Ledger, event: SelectionEvent, options: SelectOptions, console: Console) -> None:
    """Says what the draw will bring the total to, before it is entered."""
    from dpltm.privacy.parts import total_epsilon

    before = ledger.touching(event.dataset)
    unit = event.mechanism.unit
    now_at, then_at = (total_epsilon(events, options.delta, unit=unit) for events in (before, (*before, event)))
    console.say(
        f"this draw spends eps1 = {event.mechanism.certified_epsilon:g} on {event.dataset}: certified epsilon goes from"
        f" {figure(now_at)} to {figure(then_at)}"
    )


def _release(
    options: SelectOptions,
    tickets: TicketSet,
    candidates: list[Ticket],
    plan: SelectionPlan,
    ledger: Ledger,
    event: SelectionEvent,
    dataset: Dataset,
    console: Console,
) -> dict[str, Any]:
    """Counts, draws, remembers. The event is on disk already."""
    from dpltm.noise import SecureSource
    from dpltm.privacy.events import SelectionEvent
    from dpltm.privacy.report import report
    from dpltm.selection import draw
    from dpltm.tickets.winner import save_winner

    correct = _count(tickets, candidates, dataset, console)
    winner = candidates[draw(plan, correct, SecureSource())]
    revealed = None
    entered: list[Event] = [event]
    if options.reveal:
        entered.append(_reveal_event(event))
        ledger.append(entered[-1])
        revealed = _revealed(candidates, plan, correct, len(dataset.train))
    save_winner(tickets, winner.round, plan.mechanism, entered)
    touching = ledger.touching(event.dataset)
    notes = [
        *provenance_notes(tickets, dataset),
        *feature_notes(dataset, event.dataset, options.delta),
        *public_input_notes(dataset),
        *unit_notes(options, dataset),
        *relation_notes(dataset, options.adjacency),
    ]
    draws = sum(isinstance(old, SelectionEvent) for old in touching)
    if draws > 1:
        notes.append(f"{draws} draws on these records are in the ledger; each spent its own eps1")
    body = {
        "ticket_set": tickets.label,
        "winner": {"round": winner.round, "density": winner.mask.density},
        "eps1": plan.eps1,
        "mechanism": plan.mechanism,
        "score": plan.score,
        "sensitivity": {"rule": plan.rule, "value": plan.sensitivity},
        "privacy": report(touching, options.delta, plan.adjacency, notes, held=ledger.events).to_json(),
    }
    return body if revealed is None else {**body, "revealed": revealed}


def _count(tickets: TicketSet, candidates: list[Ticket], dataset: Dataset, console: Console) -> np.ndarray:
    """Right answers of each candidate's predictor on the private records: private."""
    import numpy as np

    from dpltm.generation import count_correct
    from dpltm.models import build

    model = build(tickets.body.spec)
    x, y = tensors(dataset.train, dataset, console=console)
    correct = []
    with console.progress(f"scoring {len(candidates)} tickets", len(candidates)) as step:
        for ticket in candidates:
            assert ticket.predictor is not None  # checked at the start
            model.load_state_dict(ticket.predictor)
            correct.append(count_correct(model, x, y))
            step(len(correct))
    return np.array(correct)


def _revealed(
    candidates: list[Ticket], plan: SelectionPlan, correct: np.ndarray, records: int
) -> list[dict[str, Any]]:
    from dpltm.selection import exponential_probabilities, permute_and_flip_probabilities

    scores = plan.scores(correct)
    exact = exponential_probabilities if plan.mechanism == "exponential" else permute_and_flip_probabilities
    return [
        {
            "round": ticket.round,
            "density": ticket.mask.density,
            "accuracy": float(count / records),
            "score": float(score),
            "probability": float(probability),
        }
        for ticket, count, score, probability in zip(
            candidates, correct, scores, exact(scores, plan.exponent), strict=True
        )
    ]


def _smallest_within(options: SelectOptions, tickets: TicketSet) -> dict[str, Any]:
    """The paper's rule, on accuracies that are public already: those in the set."""
    from dpltm.privacy.report import report
    from dpltm.selection import smallest_within
    from dpltm.tickets.winner import save_winner

    if tickets.provenance != "public":
        raise InputError(
            f"--rule: smallest-within looks at accuracies unprotected, so it needs public ones, and {tickets.label} has"
            f" provenance {tickets.provenance}; use --rule mechanism --eps1 0.1"
        )
    check_options(options)
    dense, *candidates = tickets.body.tickets
    accuracies = [ticket.accuracy for ticket in tickets.body.tickets]
    if any(value is None for value in accuracies):
        raise InputError(f"--rule: {tickets.label} holds no accuracies to compare; use --rule mechanism --eps1 0.1")
    index = smallest_within(
        tuple(ticket.mask.density for ticket in candidates),
        tuple(float(ticket.accuracy or 0) for ticket in candidates),
        float(dense.accuracy or 0),
        options.tolerance,
        options.max_density,
    )
    if index is None:
        raise DpltmError(
            f"--rule: no ticket of at most {options.max_density:.0%} density is within {options.tolerance:g} of the dense"
            f" accuracy {dense.accuracy:.4f}; raise --tolerance or --max-density"
        )
    winner = candidates[index]
    if not options.dry_run:
        save_winner(tickets, winner.round, "smallest-within")
    privacy = report(
        (), options.delta, "add-remove", [f"chosen on {tickets.source}, declared public: no private record was used"]
    )
    return {
        **({"dry_run": True} if options.dry_run else {}),
        "ticket_set": tickets.label,
        "winner": {"round": winner.round, "density": winner.mask.density},
        "eps1": 0.0,
        "mechanism": "smallest-within",
        "score": None,
        "sensitivity": None,
        "privacy": privacy.to_json(),
    }


def _reveal_event(event: SelectionEvent) -> NonPrivateEvent:
    from dpltm.privacy.events import NonPrivateEvent

    what = "scores and probabilities of the candidates"
    return NonPrivateEvent(event.dataset, Unprotected(adjacency=event.mechanism.adjacency), what)


def _dry_run(
    options: SelectOptions, events: tuple[Event, ...], notes: list[str], held: tuple[Event, ...]
) -> dict[str, Any]:
    from dpltm.privacy.events import SelectionEvent
    from dpltm.privacy.report import report

    event = events[-1]
    assert isinstance(event, SelectionEvent)
    if options.reveal:
        events = (*events, _reveal_event(event))
    privacy = report(events, options.delta, event.mechanism.adjacency, notes, held=held)
    return {
        "dry_run": True,
        "ticket_set": options.set,
        "eps1": event.mechanism.eps1,
        "mechanism": event.mechanism.draw,
        "score": event.score,
        "sensitivity": {"rule": event.sensitivity_rule, "value": event.sensitivity},
        "privacy": privacy.to_json(),
    }


def _show(rich: RichConsole, body: dict[str, Any]) -> None:
    from rich.table import Table

    from dpltm.cli.show import show_pairs, show_privacy

    if body.get("dry_run"):
        show_pairs(rich, "would choose", body)
    else:
        winner = body["winner"]
        rich.print(
            f"winner of {body['ticket_set']}: round {winner['round']}, density {winner['density']:.2%}", style="bold"
        )
    if "revealed" in body:
        table = Table("round", "density", "accuracy", "score", "probability")
        for row in body["revealed"]:
            table.add_row(
                str(row["round"]), *(f"{row[key]:.4f}" for key in ("density", "accuracy", "score", "probability"))
            )
        rich.print(table)
    show_privacy(rich, body["privacy"])
