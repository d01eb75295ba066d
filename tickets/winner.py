"""The winner of a selection, remembered beside the ticket set it was drawn from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dpltm.errors import ArtifactError
from dpltm.privacy.event_json import from_json, to_json
from dpltm.privacy.events import Event, now
from dpltm.tickets.files import read_json, write_json
from dpltm.tickets.ticket_set import TicketSet

FORMAT, SCHEMA = "dpltm-selection", 1


@dataclass(frozen=True)
class Winner:
    """The round that won last, and the events that its draw entered; none where it was chosen on public data."""

    round: int
    events: tuple[Event, ...]


def save_winner(tickets: TicketSet, number: int, how: str, events: Iterable[Event] = ()) -> None:
    """Records that round ``number`` won; the last draw is the one that counts for ``dpltm train SET``.

    Args:
        tickets: the set drawn from.
        number: the round that won.
        how: the mechanism or rule.
        events: what the draw entered in a ledger, so that training can tell whether its own ledger holds it.
    """
    body = {
        "format": FORMAT,
        "schema": SCHEMA,
        "ticket_set": tickets.id,
        "round": number,
        "how": how,
        "events": [to_json(event) for event in events],
        "time": now(),
    }
    write_json(tickets.path / "selection.json", body)


def load_winner(tickets: TicketSet) -> Winner:
    """The winner of the last draw.

    Raises:
        ArtifactError: nothing was drawn yet, or the record belongs to another set.
    """
    path = tickets.path / "selection.json"
    if not path.is_file():
        raise ArtifactError(
            f"{tickets.path}: no winner was drawn yet; run dpltm select {tickets.path}, or name a round as"
            f" {tickets.path}@ROUND"
        )
    body = read_json(path, FORMAT, SCHEMA)
    number, events = body.get("round"), body.get("events")
    if (
        body.get("ticket_set") != tickets.id
        or not isinstance(number, int)
        or isinstance(number, bool)
        or not isinstance(events, list)
    ):
        raise ArtifactError(f"{path}: does not belong to this ticket set; run dpltm select {tickets.path} again")
    try:
        return Winner(tickets.ticket(number).round, tuple(from_json(event) for event in events))
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}") from None
