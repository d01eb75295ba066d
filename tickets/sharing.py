"""Ticket sets that travel: out without what is private, and in only after everything about them was checked."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpltm.errors import ArtifactError, DpltmError
from dpltm.pruning.ticket_set import TicketSet
from dpltm.tickets.export import export_set
from dpltm.tickets.files import MAX_JSON, check_free, new_folder
from dpltm.tickets.remote import Folder, Place
from dpltm.tickets.store import problems
from dpltm.tickets.ticket_set import described, load_ticket_set, lying_in, other_files

DESCRIPTION = "tickets.json"


def push(tickets: TicketSet, place: Place, *, predictors: bool = True) -> str:
    """Puts a copy of a set in a place: what ``export_set`` leaves of it, and nothing else.

    Args:
        tickets: the set; ``check_shareable`` has allowed it.
        place: where to.
        predictors: whether trained networks go with it, where they may.

    Returns:
        The digest of the description, which pins all of the set and of its lineage.

    Raises:
        ArtifactError: there is something already, or the place cannot be written to.

    Guarantees:
        No ledger, winner, checkpoint or accuracy on private records leaves: the files that go are those of a set that was
        written anew. Its lineage, with the draws from it, goes with it.
    """
    if isinstance(place, Folder):
        with _named_dest():
            check_free(place.path)
    with tempfile.TemporaryDirectory(prefix="dpltm-push-") as temporary:
        copy = Path(temporary) / "set"
        export_set(tickets, copy, predictors=predictors)
        found = Path(temporary) / "found.json"
        if not isinstance(place, Folder) and place.fetch(DESCRIPTION, found, MAX_JSON):
            raise ArtifactError(f"{place.name}: holds a ticket set already; choose another name")
        digest: str = described(copy)["digest"]
        with _named_dest():
            place.put(copy)
    return digest


@contextlib.contextmanager
def _named_dest() -> Iterator[None]:
    """A block whose refusals name DEST: a push has no `out`."""
    try:
        yield
    except ArtifactError as error:
        raise ArtifactError(str(error).replace("`out`", "DEST", 1)) from None


def pull(place: Place, out: Path, digest: str | None = None) -> tuple[TicketSet, str]:
    """Takes a set from a place into a new folder, once everything about it was found to be right.

    Args:
        place: where from.
        out: folder to write; there must be none.
        digest: that its description must have; None to take it as it is.

    Returns:
        The set as it lies there, and the digest of its description.

    Raises:
        ArtifactError: no ticket set there, a file that is missing, too large or damaged, or another digest than expected.

    Guarantees:
        Only the files of a set are asked for, by their names, and of each no more than its description allows, which bounds
        itself. Nothing is at ``out`` before all of it was read, checked and compared; then all of it is.
    """
    check_free(out)
    with new_folder(out) as folder:
        if not place.fetch(DESCRIPTION, folder / DESCRIPTION, MAX_JSON):
            raise ArtifactError(f"{place.name}: no ticket set there (no {DESCRIPTION}); name one that was pushed")
        stated = _stated(place, folder)
        if digest is not None and stated["digest"] != digest:
            raise ArtifactError(
                f"{place.name}: its digest is {stated['digest']}, not the one expected; it was changed, or is another set"
            )
        for name, most in other_files(folder).items():
            if not place.fetch(name, folder / name, most):
                raise ArtifactError(f"{place.name}: {name} is missing; the set there is incomplete")
        tickets = _checked(place, folder)
    return lying_in(out, tickets), stated["digest"]


def _stated(place: Place, folder: Path) -> dict[str, Any]:
    """The description, of a known form.

    Raises:
        ArtifactError: it is none.
    """
    try:
        return described(folder)
    except ArtifactError as error:
        raise ArtifactError(_named(str(error), folder, place)) from None


def _checked(place: Place, folder: Path) -> TicketSet:
    """The set, with nothing wrong about it.

    Raises:
        ArtifactError: something is.
    """
    try:
        wrong = problems(folder)
        if wrong:
            raise ArtifactError(wrong[0])
        return load_ticket_set(folder)
    except DpltmError as error:
        raise ArtifactError(_named(str(error), folder, place)) from None


def _named(message: str, folder: Path, place: Place) -> str:
    """A message that names the place where it named the folder."""
    return message.replace(str(folder), place.name)
