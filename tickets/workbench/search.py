"""A private search on files: its records, ticket set and ledger are opened, and the winner's run is kept in a folder."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from dpltm.errors import as_flags
from dpltm.options.tune import PrivateTuneOptions, TuneRequest
from dpltm.pruning.ticket_set import TicketSet, Winner
from dpltm.records import Dataset, DatasetCache
from dpltm.stages import search as stage
from dpltm.stages.front import take_over_map
from dpltm.stages.going_on import planned_on
from dpltm.stages.progress import Progress
from dpltm.stages.starting_point import default_network
from dpltm.stages.tune_settings import widest_front
from dpltm.tickets.checkpoint_files import CheckpointFolder
from dpltm.tickets.files import new_folder
from dpltm.tickets.identity import UserRegistry
from dpltm.tickets.journal import begin
from dpltm.tickets.ledger_file import enrol, open_ledger, remove_ledger
from dpltm.tickets.published import recorded
from dpltm.tickets.room import check_room
from dpltm.tickets.run import answer, save_run
from dpltm.tickets.store import find_set
from dpltm.tickets.ticket_set import ledger_path
from dpltm.tickets.winner import drawn_from, load_winner
from dpltm.tickets.workbench.opening import free_name, open_features, services
from dpltm.tickets.workbench.records import open_dataset
from dpltm.tickets.workbench.train import room_for, shared_ledger


def search(request: TuneRequest, progress: Progress, *, dataset_cache: DatasetCache | None = None) -> dict[str, Any]:
    """Plans, enters the event, searches, writes the winner's run; returns what ``dpltm tune --private`` prints as JSON.

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
    shared, own = shared_ledger(request.ledger, tickets), Path(f"{out}.ledger.jsonl")
    options = PrivateTuneOptions(**{item.name: getattr(request, item.name) for item in fields(PrivateTuneOptions)})
    given = services(progress)
    with CheckpointFolder(out, request, progress) as checkpoints:
        ledger = open_ledger(
            own if shared is None else shared,
            links=shared is None or request.ledger is not None,
            remember=not request.dry_run,
        )
        known, named = planned_on(checkpoints, ledger), request.ledger is not None
        plan = stage.plan(target, dataset, options, known, given, names_ledger=named)
        if checkpoints.held is not None:
            plan = stage.resumed(plan, checkpoints.held, ledger)
        if request.dry_run:
            report = stage.planned_report(plan)
            return as_flags({"dry_run": True, **stage.planned_facts(plan), "privacy": report.to_json()})
        check_room(out, room_for(*plan.trainings), own if shared is None else shared)
        checkpoints.begin(room_for(*plan.trainings))
        run = stage.search(plan, given, checkpoints)
        run = replace(run, label=str(out), config={**run.config, "options": recorded(request)})
        checkpoints.give_room()
        with new_folder(out) as folder:
            save_run(folder, run)
            _date_back(folder, plan.event.time)
            begin(out)
        checkpoints.forget()
    if shared is None:
        remove_ledger(own)  # the run holds its copy now
        enrol(ledger_path(out))
    progress.say(f"wrote {out}")
    return as_flags(answer(run))


def _date_back(folder: Path, begun: str) -> None:
    """Gives all files the time at which the search began: how long it took would tell how many tries there were."""
    at = datetime.fromisoformat(begun).timestamp()
    for path in (*folder.iterdir(), folder):
        os.utime(path, (at, at))


def _open(
    request: TuneRequest, progress: Progress, dataset_cache: DatasetCache | None
) -> tuple[TicketSet | None, TicketSet | Winner | str, Dataset]:
    """The set that is named, what is searched, and the private records."""
    registry, front = UserRegistry(remember=not request.dry_run), widest_front(request, request)
    dataset = open_dataset(request, dataset_cache=dataset_cache)
    if request.set is None:
        dataset = open_features(dataset, front, registry, progress)
        return None, request.model or default_network(dataset), dataset
    tickets = find_set(request.set)
    target = load_winner(tickets) if drawn_from(tickets) else tickets
    return tickets, target, take_over_map(dataset, None, front, tickets.label)
