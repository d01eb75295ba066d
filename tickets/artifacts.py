"""Sets, winners and runs: from memory to a folder, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import overload

from dpltm.errors import ArtifactError, InputError, in_python
from dpltm.privacy.old_ledger import Ledger
from dpltm.pruning.ticket_set import TicketSet, Winner
from dpltm.stages.synthesize import SyntheticRecords
from dpltm.tickets.files import as_path, new_folder
from dpltm.tickets.identity import UserRegistry
from dpltm.tickets.journal import begin
from dpltm.tickets.ledger_file import enrol, open_ledger, write_events
from dpltm.tickets.run import load_run, save_run
from dpltm.tickets.store import find_set, is_bundled
from dpltm.tickets.synthetic_files import write_synthetic
from dpltm.tickets.ticket_set import ledger_path, lying_in, new_ticket_set
from dpltm.tickets.winner import drawn_from, load_winner, write_winner
from dpltm.training.run import Run


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
    """Writes a ticket set, a winner with its set, or a run to a folder, whole or not at all; or synthetic records to a file.

    What its ledger holds in memory is copied into the folder; go on with what is returned, whose ledger is that file.
    Records declared public in this process that it depends on are written into the user's configuration folder, as keyed
    hashes of their rows: so they are refused later as private ones. Its references to private records stand for some that
    nobody will know again, and overlap all others. Whoever wants those told apart later hands a ledger of
    ``dpltm.tickets.ledger_file.open_ledger`` to the stages from the start.
    Accuracies of a ``private`` set go to ``PATH.private.json`` beside it.

    Args:
        value: what to keep.
        path: of a folder that does not exist yet; of a winner, also that of the set that it was drawn from; of synthetic
            records, of an ``.npz`` file, which ``dpltm.records.load`` reads with the release behind them.

    Returns:
        The same as it lies there.

    Raises:
        ArtifactError: ``path`` exists, or it or the configuration folder cannot be written.
    """
    path = as_path(path)
    if isinstance(value, SyntheticRecords):
        with in_python(out="path"):
            write_synthetic(path, value)
        return value
    if not isinstance(value, (TicketSet, Winner, Run)):
        raise InputError("value", value, "a ticket set, a winner or a run", "give what a stage returns")
    with in_python(out="path", dataset="value"):
        return _save(value, path)


def _save(value: TicketSet | Winner | Run, path: Path) -> TicketSet | Winner | Run:
    if not isinstance(value, Winner):
        _remember_public(value)
    if isinstance(value, Run):
        return _save_run(value, path)
    if isinstance(value, Winner):
        if value.tickets is None:
            raise InputError("`value`: a winner without its set; save the set")
        if value.tickets.path == path:
            write_winner(path, value)
            return value
        _remember_public(value.tickets)
        return replace(value, tickets=_save_set(value.tickets, path, value))
    return _save_set(value, path)


def _save_set(tickets: TicketSet, path: Path, winner: Winner | None = None) -> TicketSet:
    """Writes a set with its ledger, and with the winner that was drawn from it: all or nothing."""
    events = () if tickets.ledger is None else tickets.ledger.events
    with new_ticket_set(path, tickets) as folder:
        if events:
            write_events(ledger_path(folder), events)
        if winner is not None:
            write_winner(folder, winner)
    if events:
        enrol(ledger_path(path))
    return _with_ledger(lying_in(path, tickets))


def _remember_public(value: TicketSet | Run) -> None:
    """Hands the user's registry the records declared public that a set or a run depends on, as far as they are at hand."""
    ledger = Ledger() if value.ledger is None else value.ledger
    told = [event.dataset for event in (*value.events, *ledger.events)]
    sources = [None if value.feature_map is None else value.feature_map.source]
    if isinstance(value, TicketSet):
        sources.append(value.source)
    for ref in dict.fromkeys((*sources, *told)):
        if ref is not None and (dataset := ledger.registry.declared_public(ref)) is not None:
            UserRegistry().adopt(ref, dataset)


def _save_run(run: Run, path: Path) -> Run:
    named = replace(run, path=path, label=str(path))
    with new_folder(path) as folder:
        save_run(folder, named)
        begin(path)
    enrol(ledger_path(path))
    return named


def load(path: str | Path) -> TicketSet | Winner | Run:
    """What lies in a folder: a run, a ticket set, or the winner that was drawn from it last.

    Its ledger is the file in the folder, so that whatever is spent on it next is entered there.

    Args:
        path: of the folder, or the name of a set that comes with dpltm, ``bundled:NAME``.

    Raises:
        ArtifactError: nothing that dpltm wrote, or damaged.
    """
    folder = as_path(path)
    with in_python(), _named_path():
        if (folder / "config.json").is_file():
            ledger = ledger_path(folder)
            return replace(load_run(folder), ledger=_ledger(folder) if ledger.is_file() else None)
        tickets = _with_ledger(find_set(str(path)))
        if not drawn_from(tickets):
            return tickets
        winner = load_winner(tickets)
        if tickets.ledger is not None:  # a draw may have been entered in another ledger than that of the folder
            for number, events in (*winner.earlier, (winner.round, winner.events)):
                tickets.ledger.registry.remember_draw(tickets.id, number, events)
        return winner


@contextlib.contextmanager
def _named_path() -> Iterator[None]:
    """A block in which what the system says of a path becomes one line."""
    try:
        yield
    except OSError as error:
        raise ArtifactError(f"`path`: {error.strerror}; name another folder") from None


def _with_ledger(tickets: TicketSet) -> TicketSet:
    """A set in a folder with the ledger that goes with it; one that comes with dpltm has none."""
    return (
        tickets if tickets.path is None or is_bundled(tickets.path) else replace(tickets, ledger=_ledger(tickets.path))
    )


def _ledger(folder: Path) -> Ledger:
    return open_ledger(ledger_path(folder), links=False)
