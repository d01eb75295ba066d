"""The releases behind a table's columns, a network in front and a draw.

Whoever uses such a thing uses these releases. They go along with it, and are entered on the records that they were made from
(privacy-model.md 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dpltm.errors import ArtifactError, DataError, InputError
from dpltm.privacy.event_json import found_from_json
from dpltm.privacy.events import (
    HELD_OUT,
    SETTINGS,
    DatasetRef,
    Event,
    NonPrivateEvent,
    ProvenanceEvent,
    ReleaseEvent,
    SearchEvent,
    SelectionEvent,
    TrainingEvent,
)
from dpltm.privacy.old_ledger import merge
from dpltm.records.schema import parse_schema

if TYPE_CHECKING:
    from dpltm.pruning.ticket_set import TicketSet
    from dpltm.records.registry import RecordRegistry

FOUND = "found"
"""Setting of a ticket set: events, as JSON, that bounds and categories of its records were found by (``Dataset.found``)."""

READ_OFF = f"{SETTINGS}of a schema"
"""What the ``ticket_set`` of a provenance event is if it tells which public records a schema was read off."""


def found_behind(tickets: TicketSet) -> tuple[Event, ...]:
    """What bounds and categories of the records of tickets were found by, or read off; masks tell of them.

    Raises:
        ArtifactError: the set says that there is something, and it cannot be read.
    """
    text = tickets.config.get("table_schema")
    try:
        stated = found_from_json(tickets.config.get(FOUND, []))
        schema = () if text is None else parse_schema(str(text), f"{tickets.label}: table_schema").found
    except DataError as error:
        raise ArtifactError(str(error)) from None
    except ArtifactError as error:
        raise ArtifactError(f"{tickets.label}: {FOUND}: {error}") from None
    return merge((stated, schema))


def check_not_read_off(found: Iterable[Event], records: DatasetRef, registry: RecordRegistry) -> None:
    """Raises InputError if a schema was read off, or settings searched on, records, declared public, that are to be private.

    Or if accuracy of public tickets, or of settings, was measured on them.

    Args:
        found: events of the schema.
        records: that are to be private.
        registry: tells records apart.
    """
    for event in found:
        source = registry.resolve_event(event).dataset
        if isinstance(event, ProvenanceEvent) and source.surely_overlaps(records):
            if event.ticket_set.startswith(HELD_OUT):
                raise InputError(
                    f"`dataset`: accuracy that tickets or settings were chosen by was measured, exactly, on {source}, and"
                    f" {records} shares records with it; the same records cannot be private here: take others"
                )
            name, what = "schema", "was read off"
            if event.ticket_set != READ_OFF:
                name, what = "features", "settings of the network in front were searched on"
            raise InputError(
                f"`{name}`: {what} {source}, declared public, and {records} shares records with it; the same records"
                f" cannot be private here: take another `{name}`, `subset` or `dataset`"
            )


def is_behind(event: Event) -> bool:
    """Whether the network of a dense run may depend on an event of the run's ledger, on whatever records.

    It depends on its training, on evaluations that may have ended it, on what its schema was found by or read off, and on
    what its synthetic records or settings come from. It depends on no draw; what else a draw entered counts all the same,
    since nobody can tell.
    """
    if isinstance(event, ProvenanceEvent):
        return event.provenance == "public" and event.ticket_set.startswith(SETTINGS)
    return isinstance(event, ReleaseEvent) and not isinstance(event, (SelectionEvent, NonPrivateEvent))


def drawn_with(held: Sequence[Event]) -> tuple[Event, ...]:
    """The draws that a ledger holds, after what their records may come from: what was on record before the last draw."""
    drawn = [place for place, event in enumerate(held) if isinstance(event, SelectionEvent)]
    before = (event for event in held[: max(drawn, default=0)] if is_behind(event))
    others = (event for event in before if not isinstance(event, (TrainingEvent, SearchEvent)))
    return (*others, *(held[place] for place in drawn))
