"""The winner of a selection, remembered beside the ticket set it was drawn from."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from dpltm.errors import ArtifactError
from dpltm.privacy.event_json import to_json
from dpltm.privacy.events import Event, SelectionEvent, now
from dpltm.pruning.ticket_set import Draw, TicketSet, Winner
from dpltm.tickets.files import digest_of, read_json, write_json
from dpltm.tickets.identity import read_event
from dpltm.tickets.origin import check_draws
from dpltm.tickets.ticket_set import folder_of

FORMAT, SCHEMA = "dpltm-selection", 3


def save_winner(tickets: TicketSet, number: int, how: str, events: Iterable[Event] = ()) -> None:
    """Records that round ``number`` won; the last draw is the one that counts for ``dpltm train SET``.

    Args:
        tickets: the set drawn from.
        number: the round that won.
        how: the mechanism or rule.
        events: what the draw entered in a ledger, so that training can tell whether its own ledger holds it.
    """
    earlier: tuple[Draw, ...] = ()
    if drawn_from(tickets):
        last = load_winner(tickets)
        earlier = (*last.earlier, *([(last.round, last.events)] if last.events else []))
    _write(tickets, Winner(number, tuple(events), earlier), how)


def write_winner(folder: Path, winner: Winner) -> None:
    """Records a winner in the folder of its set, with the draws before it; what was recorded there is among those.

    Args:
        folder: of the set, at its place already or not.
        winner: with its set.

    Raises:
        ArtifactError: a draw is on record there that the winner does not know of.
    """
    assert winner.tickets is not None
    tickets = replace(winner.tickets, path=folder)
    draws = [*winner.earlier, (winner.round, winner.events)]
    if drawn_from(tickets):
        last = load_winner(tickets)
        if any(draw not in draws for draw in (*last.earlier, (last.round, last.events)) if draw[1]):
            raise ArtifactError(
                f"{tickets.label}: another draw is on record there; load the set, and draw from what is loaded"
            )
    draw = next((event for event in winner.events if isinstance(event, SelectionEvent)), None)
    _write(tickets, winner, "smallest-within" if draw is None else draw.mechanism.draw)


def _write(tickets: TicketSet, winner: Winner, how: str) -> None:
    body = {
        "format": FORMAT,
        "schema": SCHEMA,
        "ticket_set": tickets.id,
        "round": winner.round,
        "how": how,
        "events": [to_json(event) for event in winner.events],
        "earlier": [
            {"round": number, "events": [to_json(event) for event in entered]} for number, entered in winner.earlier
        ],
        "time": now(),
    }
    body["digest"] = digest_of(body)
    write_json(selection_path(tickets), body)


def selection_path(tickets: TicketSet) -> Path:
    """Where draws are remembered: in the folder of the set."""
    return folder_of(tickets) / "selection.json"


def drawn_from(tickets: TicketSet) -> bool:
    """Whether there is a record of draws, be it damaged."""
    return tickets.path is not None and os.path.lexists(selection_path(tickets))


def last_winner(tickets: TicketSet) -> Winner | None:
    """The winner of the last draw; None where there is no record of any.

    Raises:
        ArtifactError: the record is damaged, or belongs to another set.
    """
    return load_winner(tickets) if drawn_from(tickets) else None


def load_winner(tickets: TicketSet) -> Winner:
    """The winner of the last draw.

    Raises:
        ArtifactError: nothing was drawn yet, or the record belongs to another set.
    """
    path = selection_path(tickets)
    if not drawn_from(tickets):
        raise ArtifactError(
            f"{tickets.label}: no winner was drawn yet; run dpltm select {tickets.label}, or name a round as"
            f" {tickets.label}@ROUND"
        )
    body = read_json(path, FORMAT, SCHEMA)
    if (body["schema"] > 1 or "digest" in body) and body.get("digest") != digest_of(body):  # schema 1 had none
        raise ArtifactError(
            f"{path}: the digest does not match; damaged or changed; restore it, or remove it if no winner of this set is"
            " in use"
        )
    earlier = body.get("earlier", [])
    if body.get("ticket_set") != tickets.id or not isinstance(earlier, list):
        raise ArtifactError(f"{path}: does not belong to this ticket set; run dpltm select {tickets.label} again")
    try:
        return Winner(*_draw(tickets, body), tuple(_draw(tickets, draw) for draw in earlier), tickets)
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}") from None


def _draw(tickets: TicketSet, body: object) -> Draw:
    number, events = (body.get("round"), body.get("events")) if isinstance(body, dict) else (None, None)
    if not isinstance(number, int) or isinstance(number, bool) or not isinstance(events, list):
        raise ArtifactError(f"does not belong to this ticket set; run dpltm select {tickets.label} again")
    entered = tuple(read_event(event) for event in events)
    check_draws(entered)
    return tickets.ticket(number).round, entered
