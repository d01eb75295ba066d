"""What is behind things that are used: what bounds and categories were found by, and what the network of a run depends on.

Whoever uses them uses these releases, so they go along wherever the things go, and are entered on the records that they are
of (privacy-model.md 2).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dpltm.data.schema import parse_schema
from dpltm.errors import ArtifactError, DataError, InputError
from dpltm.privacy.event_json import found_from_json
from dpltm.privacy.events import (
    SETTINGS,
    DatasetRef,
    Event,
    NonPrivateEvent,
    ProvenanceEvent,
    ReleaseEvent,
    SelectionEvent,
)
from dpltm.privacy.ledger import merge

if TYPE_CHECKING:
    from dpltm.data.registry import RecordRegistry
    from dpltm.ticket_set import TicketSet

FOUND = "found"
"""Setting of a ticket set: events, as JSON, that bounds and categories of its records were found by (``Dataset.found``)."""

READ_OFF = f"{SETTINGS}of a schema"
"""What the ``ticket_set`` of a provenance event is if it tells which public records a schema was read off."""


def schema_releases(tickets: TicketSet, registry: RecordRegistry) -> tuple[Event, ...]:
    """What bounds and categories of the records of tickets were found by, or read off; masks tell of them.

    Raises:
        ArtifactError: the set says that there is something, and it cannot be read.
    """
    return tuple(registry.resolve_event(event) for event in found_behind(tickets))


def found_behind(tickets: TicketSet) -> tuple[Event, ...]:
    """The same as the set says it; what is known here of the records is not filled in.

    Raises:
        ArtifactError: as :func:`schema_releases`.
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
    """Raises InputError if a schema was read off records, declared public, that are to be private.

    Args:
        found: events of the schema.
        records: that are to be private.
        registry: tells records apart.
    """
    for event in found:
        source = registry.resolve_event(event).dataset
        if isinstance(event, ProvenanceEvent) and source.surely_overlaps(records):
            raise InputError(
                f"`schema`: was read off {source}, declared public, and {records} shares records with it; the same records"
                " cannot be private here: take another `schema`, `subset` or `dataset`"
            )


def is_behind(event: Event) -> bool:
    """Whether the network of a dense run may depend on an event of the run's ledger, on whatever records.

    It depends on its training, on evaluations that may have ended it, on what its schema was found by or read off, and on
    the release that synthetic records, or settings, come from. It depends on no draw or ticket, and so on no release that
    a draw enters.
    """
    if isinstance(event, ProvenanceEvent):
        return event.ticket_set == READ_OFF
    return isinstance(event, ReleaseEvent) and not isinstance(event, (SelectionEvent, NonPrivateEvent))
