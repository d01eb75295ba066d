"""``dpltm tickets push`` and ``pull``: sets that go to others, and sets that come from them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.options.tickets import PullRequest, PushRequest
from dpltm.pruning.ticket_set import TicketSet
from dpltm.stages.progress import Progress
from dpltm.tickets import export
from dpltm.tickets.remote import destination_of, place_of
from dpltm.tickets.sharing import pull, push
from dpltm.tickets.store import find_set, split_round
from dpltm.tickets.ticket_set import ticket_rows
from dpltm.tickets.workbench.tickets import set_facts


def push_set(request: PushRequest, progress: Progress) -> dict[str, Any]:
    """Puts a copy of a set where others can take it."""
    name, number = split_round(request.set or "")
    if number is not None:
        raise InputError("SET@ROUND: push takes the whole set; leave @ROUND out")
    place = destination_of(request.dest or "", public=request.public)
    tickets = find_set(name)
    export.check_shareable(tickets, label=name, whole=True, predictor=False, consent=request.yes)
    progress.say(f"pushing {name} to {place.name}")
    digest = push(tickets, place, predictors=not request.no_predictors)
    return as_flags(
        {
            "ticket_set": name,
            "id": tickets.id,
            "digest": digest,
            "pushed": place.name,
            "notes": export.sharing_notes(tickets, whole=True),
        }
    )


def pull_set(request: PullRequest, progress: Progress) -> dict[str, Any]:
    """Takes a set from elsewhere into a folder."""
    if request.digest is not None and not re.fullmatch("[0-9a-f]{64}", request.digest):
        raise InputError("`digest`: not a SHA-256; give the 64 hexadecimal digits that dpltm tickets push printed")
    source = request.source or ""
    place = place_of(source, "SOURCE")
    out = Path(request.out) if request.out else _named_after(source)
    progress.say(f"pulling {place.name}")
    tickets, digest = pull(place, out, request.digest)
    facts = set_facts(str(out), tickets)
    return as_flags(
        {
            **facts,
            "digest": digest,
            "pulled": place.name,
            "tickets": ticket_rows(tickets.body),
            "notes": _notes(tickets, request.digest),
        }
    )


def _named_after(source: str) -> Path:
    """``NAME.tickets`` in this folder, after the last part of an address.

    Raises:
        InputError: that is no name for a folder.
    """
    last = source.rstrip("/").rpartition("/")[2].partition("@")[0]
    if not re.fullmatch(r"\w[\w.-]{0,99}", last, flags=re.ASCII):
        raise InputError(f"`out` is missing: {source:.100} ends in no name for a folder; give one")
    return Path(last if last.endswith(".tickets") else f"{last}.tickets")


def _notes(tickets: TicketSet, digest: str | None) -> list[str]:
    """What whoever takes a set over should know."""
    notes = []
    if digest is None:
        notes.append(
            "it fits together, and whoever made it could have written anything; `digest` asks for a known set"
        )
    if tickets.provenance == "private":
        notes.append("made from private records with no mechanism: nothing is certified for those")
    return notes
