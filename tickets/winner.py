"""The winner of a selection, remembered beside the ticket set it was drawn from."""

from __future__ import annotations

import os
from pathlib import Path

from dpltm.errors import ArtifactError
from dpltm.privacy.entry import lineage_from_json, to_json, today
from dpltm.pruning.ticket_set import TicketSet, Winner
from dpltm.tickets.files import MAX_LINEAGE, digest_of, read_json, write_json
from dpltm.tickets.ticket_set import folder_of

FORMAT, SCHEMA = "dpltm-winner", 1


def save_winner(folder: Path, winner: Winner) -> None:
    """Record who won in the folder of its set; the last draw is the one that counts for ``dpltm train SET``.

    Args:
        folder: of the set, at its place already or not.
        winner: with its set.
    """
    assert winner.tickets is not None
    body = {
        "format": FORMAT,
        "schema": SCHEMA,
        "ticket_set": winner.tickets.id,
        "round": winner.round,
        "facts": dict(winner.facts),
        "lineage": to_json(winner.lineage),
        "day": today(),
    }
    write_json(folder / "winner.json", {**body, "digest": digest_of(body)})


def winner_path(tickets: TicketSet) -> Path:
    """Where the winner is remembered: in the folder of the set."""
    return folder_of(tickets) / "winner.json"


def last_winner(tickets: TicketSet) -> Winner | None:
    """The winner of the last draw; None where there is no record of any.

    Raises:
        ArtifactError: the record is damaged, or belongs to another set.
    """
    there = tickets.path is not None and os.path.lexists(winner_path(tickets))
    return load_winner(tickets) if there else None


def load_winner(tickets: TicketSet) -> Winner:
    """The winner of the last draw.

    Raises:
        ArtifactError: nothing was drawn yet, or the record is damaged or belongs to another set.
    """
    path = winner_path(tickets)
    if not os.path.lexists(path):
        raise ArtifactError(
            f"{tickets.label}: no winner was drawn yet; run dpltm select {tickets.label}, or name a round as"
            f" {tickets.label}@ROUND"
        )
    body = read_json(path, FORMAT, SCHEMA, MAX_LINEAGE)
    if body.get("digest") != digest_of(body):
        raise ArtifactError(
            f"{path}: the digest does not match; damaged or changed; restore it, or remove it if no winner of this set is"
            " in use"
        )
    number, facts = body.get("round"), body.get("facts")
    plain = isinstance(number, int) and not isinstance(number, bool) and isinstance(facts, dict)
    if body.get("ticket_set") != tickets.id or not plain:
        raise ArtifactError(f"{path}: does not belong to this ticket set; run dpltm select {tickets.label} again")
    try:
        lineage = lineage_from_json(body.get("lineage"))
        return Winner(tickets.ticket(int(number or 0)).round, lineage | tickets.lineage, tickets, facts or {})
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}") from None
