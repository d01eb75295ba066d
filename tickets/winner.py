"""The winner of a selection, remembered beside the ticket set it was drawn from."""

from __future__ import annotations

from dataclasses import asdict

from dpltm.errors import ArtifactError
from dpltm.privacy.events import DatasetRef, now
from dpltm.tickets.files import read_json, write_json
from dpltm.tickets.ticket_set import TicketSet

FORMAT, SCHEMA = "dpltm-selection", 1


def save_winner(tickets: TicketSet, number: int, how: str, dataset: DatasetRef) -> None:
    """Records that round ``number`` won; the last draw is the one that counts for ``dpltm train SET``.

    Args:
        tickets: the set drawn from.
        number: the round that won.
        how: the mechanism or rule.
        dataset: the records that were scored.
    """
    body = {
        "format": FORMAT,
        "schema": SCHEMA,
        "ticket_set": tickets.id,
        "round": number,
        "how": how,
        "dataset": asdict(dataset),
        "time": now(),
    }
    write_json(tickets.path / "selection.json", body)


def load_winner(tickets: TicketSet) -> int:
    """The round that won last.

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
    number = body.get("round")
    if body.get("ticket_set") != tickets.id or isinstance(number, bool) or not isinstance(number, int):
        raise ArtifactError(f"{path}: does not belong to this ticket set; run dpltm select {tickets.path} again")
    return tickets.ticket(number).round
