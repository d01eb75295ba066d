"""Ticket sets by name: folders, the public ones that come with the package, and one round of either."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dpltm.errors import ArtifactError, InputError, first_line
from dpltm.pruning.ticket_set import TicketSet
from dpltm.tickets.files import is_being_written
from dpltm.tickets.ticket_set import BUNDLED, BUNDLED_HOME, card_is_as_written, load_ticket_set
from dpltm.tickets.winner import last_winner

T = TypeVar("T")


@dataclass(frozen=True)
class Listed:
    """One line of a listing: a set, or why it is none."""

    name: str
    tickets: TicketSet | None
    problem: str | None
    size: int


def split_round(text: str) -> tuple[str, int | None]:
    """``SET@10`` is round 10 of SET; a folder that has an @ in its name is that folder.

    Raises:
        InputError: what stands behind the @ is no round.
    """
    name, at, number = text.rpartition("@")
    if not at or os.path.isdir(text):
        return text, None
    if not (number.isdecimal() and len(number) <= 9):
        raise InputError(f"SET@ROUND: {number[:40]!r} is not a round; write a whole number after @, such as {name}@10")
    return name, int(number)


def find_set(name: str) -> TicketSet:
    """The set in a folder, or the bundled one of that name.

    Raises:
        ArtifactError: there is none, or it is damaged.
    """
    return load_ticket_set(set_path(name))


def set_path(name: str) -> Path:
    """The folder that ``name`` stands for."""
    if not name.startswith(BUNDLED):
        return Path(name)
    if name not in bundled_names():
        raise ArtifactError(
            f"{name}: no such ticket set comes with dpltm; there are {', '.join(bundled_names()) or 'none'}"
        )
    return BUNDLED_HOME / name.removeprefix(BUNDLED)


def bundled_names() -> tuple[str, ...]:
    """What can be trained at once, without a set of one's own: ``bundled:NAME``."""
    if not BUNDLED_HOME.is_dir():
        return ()
    return tuple(
        sorted(f"{BUNDLED}{path.name}" for path in BUNDLED_HOME.iterdir() if (path / "tickets.json").is_file())
    )


def listing(folder: Path) -> Iterator[Listed]:
    """The ticket sets directly in ``folder``, and those that come with the package, with what is wrong where one is damaged.

    Raises:
        ArtifactError: ``folder`` cannot be read.
    """
    try:
        paths = [path for path in sorted(folder.iterdir()) if not is_being_written(path)]
        folders = [(str(path), path) for path in paths if os.path.lexists(path / "tickets.json")]
    except OSError as error:
        raise ArtifactError(f"{folder}: cannot be read: {error.strerror}; name a folder of ticket sets") from None
    for name, path in (*folders, *((name, set_path(name)) for name in bundled_names())):
        shown = name if name.isprintable() else repr(name)
        try:
            size = sum(file.lstat().st_size for file in path.iterdir())
            yield Listed(shown, load_ticket_set(path), None, size)
        except (ArtifactError, OSError) as error:
            yield Listed(shown, None, first_line(error), 0)


def problems(path: Path) -> list[str]:
    """Everything that is wrong with a set, its card and what lies with it; empty if nothing is.

    Raises:
        ArtifactError: there is no set at all.
    """
    if not path.is_dir() or not (path / "tickets.json").exists():
        raise ArtifactError(f"{path}: no ticket set there; name a folder made by dpltm generate")

    messages: list[str] = []

    def attempt(check: Callable[[], T]) -> T | None:
        try:
            return check()
        except ArtifactError as error:
            if str(error) not in messages:
                messages.append(str(error))
            return None

    tickets = attempt(lambda: load_ticket_set(path))
    if attempt(lambda: card_is_as_written(path)) is False:
        messages.append(f"{path / 'README.md'}: not the card that was written with the set; edited or damaged")
    if tickets is not None:
        attempt(lambda: last_winner(tickets))
    return messages
