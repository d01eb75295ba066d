"""A private search on files: its records, ticket set and ledger are opened, and the winner's run is kept in a folder."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from dpltm.errors import as_flags
from dpltm.features.setup import take_over_map
from dpltm.options.tune import TuneRequest
from dpltm.privacy.release import price
from dpltm.progress import Progress
from dpltm.records import Dataset, DatasetCache
from dpltm.tickets.checkpoint_files import CheckpointFolder
from dpltm.tickets.files import new_folder
from dpltm.tickets.ledger_file import ledger_of
from dpltm.tickets.run import answer, save_run
from dpltm.tickets.store import find_set
from dpltm.tickets.ticket_set import last_winner
from dpltm.tickets.workbench.opening import free_name, open_features, services
from dpltm.tickets.workbench.records import open_dataset
from dpltm.training.artifacts import TicketSet, Winner
from dpltm.training.start import default_network
from dpltm.verbs import search as verb
from dpltm.verbs.tune import widest_front


def search(request: TuneRequest, progress: Progress, *, dataset_cache: DatasetCache | None = None) -> dict[str, Any]:
    """Search, write the winner's run, and return what ``dpltm tune --private`` prints as JSON.

    Args:
        request: what ``dpltm tune`` was asked for, with ``private``.
        progress: who watches.
        dataset_cache: datasets that were read already; None to read them anew.

    Raises:
        DpltmError: bad input or too small a budget, before any budget is spent.
    """
    tickets, target, dataset = _open(request, progress, dataset_cache)
    stem = (
        Path(request.dataset or "data").stem if tickets is None else Path(tickets.label).name.removesuffix(".tickets")
    )
    out = Path(request.out) if request.out else free_name(f"{stem}-search", ".run")
    given, ledger = services(progress), ledger_of(request.dataset, request.ledger, request.population, dataset.unit)
    if request.dry_run:
        planned = verb.plan(verb.settle(target, dataset, request, ledger, given), ledger.book)
        price(planned, ledger.book)
        planned.rehearse()
        statement = verb.planned_statement(planned)
        return as_flags({"dry_run": True, **verb.planned_facts(planned), "privacy": statement.to_json()})
    with CheckpointFolder(out, request, progress) as checkpoints:
        run = verb.search(target, dataset, request, ledger, given, checkpoints)
        run = replace(run, label=str(out))
        with new_folder(out) as folder:
            save_run(folder, run)
            assert run.entry is not None
            _date_back(folder, run.entry.day)
        checkpoints.forget()
    progress.say(f"wrote {out}")
    return as_flags(answer(run))


def _date_back(folder: Path, day: str) -> None:
    """Gives all files the day on which the search began: how long it took would tell how many tries there were."""
    at = datetime.fromisoformat(day).timestamp()
    for path in (*folder.iterdir(), folder):
        os.utime(path, (at, at))


def _open(
    request: TuneRequest, progress: Progress, dataset_cache: DatasetCache | None
) -> tuple[TicketSet | None, TicketSet | Winner | str, Dataset]:
    """The set that is named, what is searched, and the private records."""
    front = widest_front(request)
    dataset = open_dataset(request, dataset_cache=dataset_cache)
    if request.set is None:
        ledger_of(
            request.dataset, request.ledger, request.population, dataset.unit
        )  # refused before features are made
        dataset = open_features(dataset, front, progress)
        return None, request.model or default_network(dataset), dataset
    tickets = find_set(request.set)
    target = last_winner(tickets) or tickets
    return tickets, target, take_over_map(dataset, None, front, tickets.label)
