"""``dpltm train``: its ticket, its records and its ledger are opened, and the run is kept in a folder."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dpltm.errors import InputError, RankError, as_flags
from dpltm.networks.own import OwnModel
from dpltm.options.network import check_set_decides
from dpltm.options.train import TrainRequest
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.release import price
from dpltm.progress import SILENT, Progress
from dpltm.records import Dataset, DatasetCache
from dpltm.records.units import check_per_unit
from dpltm.tickets.checkpoint_files import CheckpointFolder
from dpltm.tickets.files import new_folder
from dpltm.tickets.ledger_file import ledger_of
from dpltm.tickets.run import answer, save_run
from dpltm.tickets.store import find_set, split_round
from dpltm.tickets.ticket_set import load_winner
from dpltm.tickets.workbench.code import own_of, with_code_of_set
from dpltm.tickets.workbench.opening import free_name, services
from dpltm.tickets.workbench.records import open_dataset
from dpltm.training.artifacts import TicketSet, Winner
from dpltm.training.launcher import Place, check_alone, launched
from dpltm.training.least_squares import NO_TICKET, is_least_squares
from dpltm.training.ranks import Ranks, environment
from dpltm.training.release import Training, follow
from dpltm.training.start import StartingPoint, starting_point
from dpltm.verbs.train import check_options, plan, settle, stated, train_start


def train(
    request: TrainRequest,
    progress: Progress,
    *,
    dataset_cache: DatasetCache | None = None,
    ending: Callable[[dict[str, Any]], None] | None = None,
    ranks: Ranks | None = None,
    own: bool = False,
) -> dict[str, Any]:
    """Train, write the run, and return what ``dpltm train`` prints as JSON.

    Args:
        ranks: this one is rank 0; None for one process. ``ending`` is called with the answer before the run is in place.
        own: whether the epsilon asked for is that of its own lineage alone, as of a trial of a sweep.
    """
    check_request(request)
    start, dataset = open_start(request, dataset_cache)
    ledger = opened_ledger(request, dataset)
    out = Path(request.out) if request.out else _default_out(request, start)
    given = services(progress)
    if request.dry_run:
        planned = plan(settle(start, dataset, request, ledger, given), ledger.book, own=own)
        price(planned, ledger.book)
        planned.rehearse()
        return as_flags({"dry_run": True, **planned.resolved, "privacy": stated(planned).to_json()})
    with CheckpointFolder(out, request, progress) as checkpoints:
        held = None if checkpoints.held is None else checkpoints.held.state
        entered = held is not None and held.get("id") in {entry.id for entry in ledger.book.entries}
        if request.resume and (held is None or ("key" in held and not entered)):
            raise InputError(
                f"`resume`: what was begun at {out} kept no checkpoint; leave `resume` out to begin again"
            )
        run = train_start(start, dataset, request, ledger, given, checkpoints=checkpoints, ranks=ranks, own=own)
        run = replace(run, label=str(out))
        with new_folder(out) as folder:
            save_run(folder, run)
            if ending is not None:
                ending(as_flags(answer(run)))
        checkpoints.forget()
    progress.say(f"wrote {out}")
    return as_flags(answer(run))


def check_request(request: TrainRequest) -> None:
    """Raise InputError for a request that says too little, or contradicts itself, about what is trained."""
    check_options(request)
    if request.unit_column is None and request.unit == "record":
        check_per_unit(request.per_unit)
    if request.ticket is None and not request.dense:
        raise InputError(
            "SET is missing: name a ticket set (SET or SET@ROUND), or train the whole network with `dense`"
        )
    if request.ticket is not None and is_least_squares(request):
        raise InputError(NO_TICKET)
    if request.ticket is not None:
        check_set_decides(request, request.model)


def opened_ledger(request: TrainRequest, dataset: Dataset) -> Ledger:
    """Return the ledger that pays: of whoever the records are of."""
    return ledger_of(request.dataset, request.ledger, request.population, dataset.unit)


def open_start(request: TrainRequest, dataset_cache: DatasetCache | None = None) -> tuple[StartingPoint, Dataset]:
    """Return the start of the training, and the records behind its feature map."""
    ticket: TicketSet | Winner | OwnModel | str | None = None
    number = None
    if request.ticket is not None:
        name, number = split_round(request.ticket)
        ticket = tickets = with_code_of_set(find_set(name), request)
        number = None if request.dense else number
        if number is not None:
            tickets.ticket(number)  # or it would be refused after records are read
        elif not request.dense:
            ticket = load_winner(tickets)
    dataset = open_dataset(request, dataset_cache=dataset_cache)
    if ticket is None:
        opened_ledger(request, dataset)  # or one that cannot pay would be refused after features are made
        ticket = own_of(request.model, request) or request.model
    features, dense, seed = request.features, request.dense, request.seed
    return starting_point(ticket, dataset, features=features, round=number, dense=dense, seed=seed)


def _default_out(request: TrainRequest, start: StartingPoint) -> Path:
    name = "dense" if request.dense else f"round{start.round}"
    tickets = start.tickets
    stem = Path(request.dataset or "").stem if tickets is None else Path(tickets.label).name.removesuffix(".tickets")
    return free_name(f"{stem}-{name}", ".run")


# --- by several processes ---------------------------------------------------------------------------------------------


def train_with_ranks(
    request: TrainRequest, progress: Progress, dataset_cache: DatasetCache | None = None
) -> dict[str, Any] | None:
    """Train by this process, or by all that ``torchrun`` started; return the answer, but None on other ranks than 0."""
    place = launched()
    if place is None:
        return train(request, progress, dataset_cache=dataset_cache)
    check_request(request)
    if is_least_squares(request):
        check_alone("`head` least-squares")
    if request.dry_run:
        return train(request, progress) if place.rank == 0 else None
    ranks = _joined(place, request)
    if ranks.first:
        try:
            return train(request, progress, ranks=ranks)
        except RankError as error:
            raise RankError(f"{error}; the same command goes on") from None

    def settled() -> Training:
        start, dataset = open_start(request)
        return settle(start, dataset, request, Ledger(unit=dataset.unit), services(SILENT))

    follow(ranks, settled)
    return None


def _joined(place: Place, request: TrainRequest) -> Ranks:
    """Return the ranks, if asked for the same. Interrupts are left to rank 0, since it keeps the checkpoint."""
    ranks = Ranks.join(place, request.device)
    if not ranks.first:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    options = {f"`{name}`": repr(value) for name, value in asdict(request).items()}
    ranks.agree(options | environment())
    return ranks
