"""Ticket sets for tests, written from a body and what is said about it."""

from pathlib import Path
from typing import Any

from dpltm.pruning.generation import Tickets
from dpltm.tickets.ticket_set import save_ticket_set
from dpltm.training.artifacts import TicketSet
from set_entries import LINEAGES


def store_set(path: Path, body: Tickets, **said: Any) -> TicketSet:
    """The set in ``path``, from its tickets and the fields of ``TicketSet``; its lineage is one of its provenance."""
    said = {"made_from": LINEAGES[said["provenance"]], **said}
    return save_ticket_set(path, TicketSet(body=body, **said))
