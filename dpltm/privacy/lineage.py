"""Lineage: what a release owes to where things come from, and which records may be used for what.

A ticket, a draw, a map in front of the network and settings all come from records. Whatever is made of them is entered on
*those* records, whichever are used now; records that were declared public cannot become private, nor private ones public;
and accuracy on a test split is told only where no release was made from its records (privacy-model.md 2).

These are functions of events and references. A registry (``dpltm.records.registry``) says what references stand for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from dpltm.errors import InputError
from dpltm.privacy.behind import check_not_read_off, found_behind
from dpltm.privacy.budgets import is_paid
from dpltm.privacy.events import (
    HASHED,
    HELD_OUT,
    TEST_SPLIT,
    BudgetEvent,
    DatasetRef,
    Event,
    ProvenanceEvent,
    SelectionEvent,
)
from dpltm.privacy.old_ledger import Ledger, as_adaptive, merge, missing, of_draws
from dpltm.privacy.parts import stated_relations, touching
from dpltm.records.registry import registry_of
from dpltm.records.rows import Rows, count_shared
from dpltm.records.subset import WHOLE

if TYPE_CHECKING:
    from dpltm.pruning.ticket_set import TicketSet, Winner
    from dpltm.records import Dataset
    from dpltm.records.registry import RecordRegistry
    from dpltm.training.run import Run


def source_relation(
    tickets: TicketSet, records: DatasetRef, registry: RecordRegistry
) -> Literal["same", "other", "unknown"]:
    """Whether the tickets come from records that ``records`` shares; ``other`` if they come from none.

    Args:
        tickets: made from their ``source``, if any.
        records: that they are used on.
        registry: tells records apart.

    Returns:
        ``same`` if some records are surely shared, ``unknown`` if that cannot be told, else ``other``.
    """
    if tickets.source is None:
        return "other"
    source = registry.resolve(tickets.source, tickets.provenance == "public")  # now that these records are known
    if source.surely_overlaps(records):
        return "same"
    return "unknown" if source.may_overlap(records) else "other"


def origin_events(
    tickets: TicketSet, dataset: Dataset, records: DatasetRef, registry: RecordRegistry
) -> tuple[Event, ...]:
    """What using these tickets calls for, on whatever records they came from (privacy-model.md 2).

    Nothing where they came from public records or from none; the DP releases that they were made by; or that there was no
    mechanism. Before that, the releases that bounds and categories in their schema were found by. All of it is entered on
    *their* records, be they those that are used now or not: a mask that goes out tells of the records that it was made from.

    Args:
        tickets: that are used.
        dataset: that they are used on.
        records: what a release is entered on, of that dataset.
        registry: tells records apart.

    Raises:
        InputError: records declared public for the tickets would now be treated as private.
    """
    relation = source_relation(tickets, records, registry)
    behind = tuple(map(registry.resolve_event, found_behind(tickets)))
    check_not_read_off(behind, records, registry)
    if tickets.provenance == "public":
        if relation == "same":
            why = "the same records cannot be private here: take"
            if dataset.part.cut != records.cut:  # entered on the whole
                why = "under replace-one a record may leave one part by hash for another: take places for both, or"
            raise InputError(
                f"{tickets.label}: its tickets were made from {tickets.source}, declared public, and {records} shares"
                f" records with it; {why} another `subset` or `dataset`, or generate with `provenance` private"
            )
        return behind
    if tickets.source is None:
        return behind
    said = ProvenanceEvent(tickets.source, tickets.provenance, tickets.id)
    return (*behind, *tickets.events, said)


def entered_on(dataset: Dataset, adjacency: str, registry: RecordRegistry) -> DatasetRef:
    """The records that a release under that relation is entered on (see ``relation_notes``).

    Args:
        dataset: the records.
        adjacency: ``add-remove`` or ``replace-one``.
        registry: tells records apart.

    Guarantees:
        Under replace-one a part that hashes cut out becomes the whole dataset: a record may leave it when it is replaced.
    """
    ref = registry.reference(dataset)
    if dataset.unit == "user":
        ref = replace(ref, units=dataset.units_name)
    return ref if adjacency == "add-remove" else ref.widened


def relation_notes(dataset: Dataset, adjacency: str) -> list[str]:
    """Where a release under replace-one from a part by hash is entered, and why."""
    if adjacency == "add-remove" or dataset.part.cut not in HASHED:
        return []
    return [
        f"under replace-one a record may leave this part of {dataset.name} and enter another, so the release is entered on"
        " the whole of it; parts by places stay apart"
    ]


def check_test_apart(dataset: Dataset, events: Iterable[Event], registry: RecordRegistry) -> None:
    """Raises InputError if the test split holds records that a release was made from: accuracy there would be another one.

    What is trained on is looked through when it is loaded. This looks through all else that a ledger protects.

    Args:
        dataset: with its test split.
        events: of the ledger, and of what the network depends on.
        registry: that knows their records.
    """
    if dataset.test_rows is None:
        return
    others = {event.dataset.group: event.dataset for event in events if is_paid(event)}
    for ref in others.values():
        knows = registry_of(ref, registry)
        trained = knows.rows_of(ref)
        if trained is None or knows.resolve(ref).group == knows.look_at(dataset).group:
            continue
        shared = count_shared(trained, dataset.test_rows.value_hashes(knows.key))
        if shared:
            raise InputError(
                f"`dataset`, `test`: {shared} of the {len(dataset.test_rows)} test records of {dataset.name} are records of"
                f" {ref.name}, which the ledger protects, so accuracy there would show them; take them out"
            )


def measured_on(dataset: Dataset, registry: RecordRegistry, *, declared: bool = False) -> tuple[Event, ...]:
    """That accuracy is measured on records that were held out of a file: they cannot be private in a later release.

    The event costs nothing, as one of public records does; it holds a random id, and no fingerprint that everybody could
    compute.

    Args:
        dataset: with its test split.
        registry: tells records apart.
        declared: whether that holds for a test split that was declared separate as well, unless it was published.
    """
    if dataset.test is None or dataset.test_rows is None:
        return ()
    if not dataset.hold_out and (not declared or dataset.known):
        return ()
    out = replace(
        dataset, train=dataset.test, rows=dataset.test_rows, test=None, test_rows=None, hold_out=0.0, part=WHOLE
    )
    part = f"{dataset.hold_out:g}" if dataset.hold_out else TEST_SPLIT
    return (ProvenanceEvent(registry.reference(out), "public", f"{HELD_OUT}{part}"),)


def held_by(ledger: Ledger, used: TicketSet | Run | None) -> tuple[Event, ...]:
    """What is on record where tickets or a run are used: in the ledger that is named, and in the one that they have."""
    own = None if used is None else used.ledger
    return ledger.events if own is None else merge((ledger.events, own.events))


def to_enter(events: Iterable[Event], before: tuple[Event, ...]) -> tuple[Event, ...]:
    """Those of ``events`` that a ledger holding ``before`` does not know yet.

    A release is entered as often as it was made. Where tickets come from is said once, whenever that was.
    """
    return tuple(
        event
        for event in missing(events, before)
        if not (isinstance(event, ProvenanceEvent) and holds_provenance(before, event))
    )


def check_not_public(events: tuple[Event, ...], records: DatasetRef, registry: RecordRegistry) -> None:
    """Raises InputError if the ledger has these records, or some of them, down as public.

    Args:
        events: of the ledger.
        records: that are to be private.
        registry: tells records apart.
    """
    for event in events:
        if (
            isinstance(event, ProvenanceEvent)
            and event.provenance == "public"
            # they may have been met since the ledger was read
            and registry.resolve_event(event).dataset.surely_overlaps(records)
        ):
            if event.ticket_set.startswith(HELD_OUT):
                part = event.ticket_set.removeprefix(HELD_OUT)
                fix = "take others" if part == TEST_SPLIT else f"give the same `test`, {part}"
                raise InputError(
                    f"`dataset`: accuracy was measured, exactly, on held-out records of {event.dataset.name}, and {records}"
                    f" shares records with those; nothing can be promised for them any more: {fix}"
                )
            raise InputError(
                f"`dataset`: the ledger has {event.dataset} down as public, and {records} shares records with it; the same"
                " records cannot be private here: take another `subset` or `dataset`"
            )


def check_rows_not_public(events: tuple[Event, ...], rows: Rows, registry: RecordRegistry) -> None:
    """The same of records that have no reference: they are looked for among those that the ledger has down as public.

    Args:
        events: of the ledger.
        rows: that are to be private.
        registry: tells records apart.

    Raises:
        InputError: some are among them.
    """
    said = [event for event in events if isinstance(event, ProvenanceEvent) and event.provenance == "public"]
    for ref in {event.dataset.group: event.dataset for event in said}.values():
        public = registry.rows_of(ref)
        if public is not None and count_shared(public, rows.value_hashes(registry.key)):
            raise InputError(
                f"`x`: shares records with {ref.name}, which the ledger has down as public; the same records cannot be"
                " private here: take others, or another `ledger`"
            )


def check_never_private(before: Iterable[Event], planned: Iterable[Event]) -> None:
    """Raises InputError if records that a ledger has releases from would now be entered as public."""
    said = [event for event in planned if isinstance(event, ProvenanceEvent) and event.provenance == "public"]
    for event in before:
        release = not isinstance(event, (BudgetEvent, ProvenanceEvent))
        if release or (isinstance(event, ProvenanceEvent) and event.provenance in ("private", "dp")):
            for public in said:
                if event.dataset.surely_overlaps(public.dataset):
                    raise InputError(
                        f"`dataset`, `public`: the ledger holds what was spent on {event.dataset}, so they are private, and"
                        f" {public.dataset} would be declared public; take other records, or another `ledger`"
                    )


def holds_provenance(events: tuple[Event, ...], event: ProvenanceEvent) -> bool:
    """Whether a ledger with ``events`` knows already where these tickets come from."""
    return any(
        isinstance(old, ProvenanceEvent)
        and (old.ticket_set, old.provenance) == (event.ticket_set, event.provenance)
        and old.dataset.may_overlap(event.dataset)
        for old in events
    )


def draws_to_enter(draws: Iterable[Event], before: tuple[Event, ...]) -> tuple[Event, ...]:
    """Draws behind a ticket that a ledger holding ``before`` does not know yet, as it should enter them.

    They are entered on the records that they were made on, whatever is being trained on. One that enters a ledger with
    earlier releases may depend on them, wherever it was made.
    """
    entered: list[Event] = []
    for event in missing(draws, before):
        known = (*before, *entered)
        earlier = stated_relations(touching(known, event.dataset))
        entered.append(as_adaptive(event) if earlier else event)
    return tuple(entered)


def draws_behind(tickets: TicketSet, winner: Winner | None, number: int | None) -> tuple[Event, ...]:
    """What making something of one round of a set depends on, or of all of them: the set's own draws, and those from it.

    Args:
        tickets: the set.
        winner: of the draws from it; None where none is at hand.
        number: the round that is taken, None for all: whoever then takes the one that won has no record of it.
    """
    return merge((tickets.draws, draws_from(tickets, winner, number)))


def draws_from(
    tickets: TicketSet, winner: Winner | None, number: int | None, registry: RecordRegistry | None = None
) -> tuple[Event, ...]:
    """Draws from a set that taking a round of it depends on, whatever ledger they were entered in.

    Without a winner they are all that the set's ledger holds, or that were made in this process: which round won is not
    on record in a ledger, so each may be behind any choice.

    Args:
        tickets: the set.
        winner: of the draws from it; None where none is at hand.
        number: the round that is taken; None for the one that won.
        registry: that remembers draws as well as that of the set's ledger; None for no other.
    """
    remembering = registries_of(tickets, registry)
    if winner is None:
        held = () if tickets.ledger is None else tickets.ledger.events
        own = (event for event in held if isinstance(event, SelectionEvent) and event.ticket_set == tickets.id)
        return merge((own, *(of_draws(each.draws_behind(tickets.id)) for each in remembering)))
    chosen = winner.round if number is None else number
    if chosen in (winner.round, *(round for round, _ in winner.earlier)):
        return winner.behind(chosen)
    # of which the winner does not know
    return merge(of_draws(each.draws_behind(tickets.id, chosen)) for each in remembering)


def registries_of(tickets: TicketSet, registry: RecordRegistry | None) -> list[RecordRegistry]:
    """Who remembers draws from a set: the registry of its ledger, and the one that is given; each once."""
    both = (registry, None if tickets.ledger is None else tickets.ledger.registry)
    return list(dict.fromkeys(each for each in both if each is not None))


def provenance_notes(tickets: TicketSet, dataset: Dataset, registry: RecordRegistry) -> list[str]:
    """What a reader should know about where the tickets come from.

    Args:
        tickets: that are used.
        dataset: that they are used on.
        registry: tells records apart; nothing is written down.

    Returns:
        Sentences; none where there is nothing to say.
    """
    relation = source_relation(tickets, registry.look_at(dataset), registry)
    if tickets.provenance == "dp" and relation == "other":
        return [f"the tickets were made under differential privacy from {tickets.source}, other records than these"]
    if tickets.provenance == "private" and relation == "other":
        return [
            f"the tickets were made from {tickets.source} with no mechanism: nothing is certified for those records"
        ]
    if tickets.provenance == "public" and relation == "other" and tickets.source is not None:
        if registry.resolve(tickets.source, public=False).content:
            return []
        return [
            f"the tickets were made from {tickets.source}, declared public elsewhere: nobody here has met those records, so"
            f" whether some of {dataset.name} are among them cannot be told"
        ]
    if relation == "unknown":
        return [
            f"whether the tickets come from records of {dataset.name} cannot be told here ({tickets.source}: made elsewhere,"
            f" or with rows in common by coincidence); their provenance, {tickets.provenance}, is taken as declared"
        ]
    return []
