"""Sets, winners and runs: from memory to a folder, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import overload

from dpltm.errors import ArtifactError, InputError, in_python
from dpltm.pruning.ticket_set import TicketSet, Winner
from dpltm.tickets.files import as_path, new_folder
from dpltm.tickets.run import load_run, save_run
from dpltm.tickets.store import find_set
from dpltm.tickets.synthetic_files import write_synthetic
from dpltm.tickets.ticket_set import lying_in, new_ticket_set
from dpltm.tickets.winner import last_winner, save_winner
from dpltm.training.run import Run
from dpltm.verbs.synthesize import SyntheticRecords


@overload
def save(value: TicketSet, path: str | Path) -> TicketSet: ...
@overload
def save(value: Winner, path: str | Path) -> Winner: ...
@overload
def save(value: Run, path: str | Path) -> Run: ...
@overload
def save(value: SyntheticRecords, path: str | Path) -> SyntheticRecords: ...
def save(
    value: TicketSet | Winner | Run | SyntheticRecords, path: str | Path
) -> TicketSet | Winner | Run | SyntheticRecords:
    """Write a ticket set, a winner with its set, or a run to a folder, whole or not at all; or synthetic records to a file.

    The lineage goes with each. A ledger in memory does not: whoever goes on in another process keeps one in a file
    (``dpltm.tickets.open_ledger``) from the start. Accuracies of a ``private`` set go to ``PATH.private.json`` beside it.

    Args:
        value: what to keep.
        path: of a folder that does not exist yet; of a winner, also that of the set that it was drawn from; of synthetic
            records, of an ``.npz`` file, which ``dpltm.records.load`` reads with the release behind them.

    Returns:
        The same as it lies there.

    Raises:
        ArtifactError: ``path`` exists, or cannot be written.
    """
    path = as_path(path)
    if isinstance(value, SyntheticRecords):
        with in_python(out="path"):
            write_synthetic(path, value)
        return value
    if not isinstance(value, (TicketSet, Winner, Run)):
        raise InputError("value", value, "a ticket set, a winner or a run", "give what a stage returns")
    with in_python(out="path", dataset="value"):
        if isinstance(value, Run):
            named = replace(value, path=path, label=str(path))
            with new_folder(path) as folder:
                save_run(folder, named)
            return named
        if isinstance(value, TicketSet):
            return _save_set(value, path)
        if value.tickets is None:
            raise InputError("`value`: a winner without its set; save the set")
        if value.tickets.path == path:
            save_winner(path, value)
            return value
        return replace(value, tickets=_save_set(value.tickets, path, value))


def _save_set(tickets: TicketSet, path: Path, winner: Winner | None = None) -> TicketSet:
    """Write a set with the winner that was drawn from it: all or nothing."""
    with new_ticket_set(path, tickets) as folder:
        if winner is not None:
            save_winner(folder, winner)
    return lying_in(path, tickets)


def load(path: str | Path) -> TicketSet | Winner | Run:
    """Return what lies in a folder: a run, a ticket set, or the winner that was drawn from it last.

    Draws from a set that was loaded are marked in its folder.

    Args:
        path: of the folder, or the name of a set that comes with dpltm, ``bundled:NAME``.

    Raises:
        ArtifactError: nothing that dpltm wrote, or damaged.
    """
    folder = as_path(path)
    with in_python(), _named_path():
        if (folder / "config.json").is_file():
            return load_run(folder)
        tickets = find_set(str(path))
        return last_winner(tickets) or tickets


@contextlib.contextmanager
def _named_path() -> Iterator[None]:
    """A block in which what the system says of a path becomes one line."""
    try:
        yield
    except OSError as error:
        raise ArtifactError(f"`path`: {error.strerror}; name another folder") from None
