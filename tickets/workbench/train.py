"""A training on files: its ticket, its records and its ledger are opened, and the run is kept in a folder."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.options.train import TrainRequest
from dpltm.privacy.events import Event
from dpltm.pruning.ticket_set import TicketSet
from dpltm.records import Dataset, DatasetCache
from dpltm.records.registry import RecordRegistry
from dpltm.stages import train as stage
from dpltm.stages.checks import model_spec
from dpltm.stages.front import take_over_map
from dpltm.stages.going_on import planned_on
from dpltm.stages.progress import Progress
from dpltm.stages.starting_point import StartingPoint, default_network, fresh, from_round
from dpltm.stages.train_checks import check_request
from dpltm.stages.train_plan import TrainingPlan
from dpltm.stages.train_state import resumed
from dpltm.tickets.audit_files import BYTES
from dpltm.tickets.checkpoint_files import CheckpointFolder
from dpltm.tickets.curve_files import new_picture
from dpltm.tickets.files import new_folder
from dpltm.tickets.identity import UserRegistry
from dpltm.tickets.journal import begin
from dpltm.tickets.ledger_file import enrol, open_ledger, remove_ledger
from dpltm.tickets.published import recorded
from dpltm.tickets.report_charts import over_steps, write_charts
from dpltm.tickets.room import check_room
from dpltm.tickets.run import answer, save_run
from dpltm.tickets.store import find_set, is_bundled, split_round
from dpltm.tickets.ticket_set import folder_of, ledger_path
from dpltm.tickets.winner import drawn_from, load_winner
from dpltm.tickets.workbench.ledgers import note_all_ledgers
from dpltm.tickets.workbench.opening import free_name, open_features, services
from dpltm.tickets.workbench.records import open_dataset
from dpltm.training.ranks import Ranks
from dpltm.training.run import Run


def train(
    request: TrainRequest,
    progress: Progress,
    *,
    dataset_cache: DatasetCache | None = None,
    ending: Callable[[dict[str, Any]], None] | None = None,
    ranks: Ranks | None = None,
) -> dict[str, Any]:
    """Plans, enters the event, trains, writes the run; returns what ``dpltm train`` prints as JSON.

    Args:
        request: what ``dpltm train`` was asked for.
        progress: who watches.
        dataset_cache: datasets that were read already; None to read them anew.
        ending: as :func:`dpltm.tickets.workbench.generate.generate`.
        ranks: that share the work, of which this is rank 0; None for one process.

    Raises:
        DpltmError: bad input or too small a budget, before any budget is spent.
    """
    check_request(request)
    picture = picture_of(request)
    tickets, start, dataset = open_start(request, UserRegistry(remember=not request.dry_run), progress, dataset_cache)
    out = Path(request.out) if request.out else _default_out(request, tickets, start)
    shared = shared_ledger(request.ledger, None if request.dense else tickets)
    own = Path(f"{out}.ledger.jsonl")  # in sight from the start: whatever ends the run, what it entered stays
    given = services(progress)
    with CheckpointFolder(out, request, progress) as checkpoints:
        # read once: what it holds now is what is planned on
        ledger = open_ledger(
            own if shared is None else shared,
            links=shared is None or request.ledger is not None,
            remember=not request.dry_run,
        )
        dataset = open_records(request, start, dataset_cache) if dataset is None else dataset
        known = planned_on(checkpoints, ledger)
        if request.resume and checkpoints.held is None:
            raise InputError(
                f"`resume`: what was begun at {out} kept no checkpoint; leave `resume` out to begin again"
            )
        plan = stage.plan(start, dataset, request, known, given, names_ledger=request.ledger is not None)
        if checkpoints.held is not None:
            plan = resumed(plan, checkpoints.held, ledger)
        elif shared is None and ledger.events:
            progress.say(f"{own} holds what an earlier attempt spent, and counts")
        if request.dry_run:
            report = stage.planned_report(plan)
            return as_flags({"dry_run": True, **stage.facts(plan), "privacy": report.to_json()})
        check_room(out, room_for(plan), own if shared is None else shared)
        checkpoints.begin(room_for(plan))
        run = stage.train(plan, given, checkpoints, ranks)
        run = replace(run, label=str(out), config={**run.config, "options": recorded(request)})
        checkpoints.give_room()
        with new_folder(out) as folder:
            save_run(folder, run)
            begin(out)
            if ending is not None:
                ending(as_flags(answer(run)))
        checkpoints.forget()
    if shared is None:
        remove_ledger(own)  # the run holds its copy now
        enrol(ledger_path(out))
    progress.say(f"wrote {out}")
    said = answer(run)
    if picture is not None:
        said["plot"] = drawn_over_steps(picture, run, progress)
    if ending is None:  # else it is a stage, or a trial, of something that says what all of it costs
        said = note_all_ledgers(ledger_path(out) if shared is None else shared, plan.event, said)
    return as_flags(said)


def picture_of(request: TrainRequest) -> Path | None:
    """The file that `plot` names; None for none.

    Raises:
        InputError: what else is written goes there, or what is written there would be in the run.
    """
    picture = new_picture(request.plot)
    if picture is not None:
        for name, other in (("out", request.out), ("ledger", request.ledger)):
            if other and Path(other).absolute() in (picture.absolute(), *picture.absolute().parents):
                raise InputError(f"`plot`: {picture} is where `{name}` goes; name another file")
    return picture


def drawn_over_steps(picture: Path, run: Run, progress: Progress) -> str | None:
    """Draws what a run noted over its steps; None where that is nothing.

    Args:
        picture: file to write.
        run: that has ended.
        progress: who watches.
    """
    measure = "rmse" if "rmse" in run.metrics[-1] else "accuracy"
    noted = {
        one["step"]: (None if one[measure] in (None, "inf") else one[measure], float(one["epsilon"]))
        for one in run.metrics
    }
    drawn = over_steps(noted, measure)
    if not drawn:
        progress.say(f"{picture}: not written, since neither accuracy nor a finite epsilon was noted")
        return None
    write_charts(picture, drawn, Path(run.label).name)
    progress.say(f"wrote {picture}")
    return str(picture)


def room_for(*plans: TrainingPlan) -> int:
    """Bytes that the run of any of these plans will take, and some more."""
    rooms = []
    for plan in plans:
        shapes, feature_map = plan.start.spec.shapes(), plan.dataset.feature_map
        weights = sum(math.prod(shape) for shape in shapes.values())
        front = 0 if feature_map is None else sum(value.numel() for value in feature_map.tensors.values())
        rooms.append(5 * weights + 4 * front + BYTES * (plan.options.audit or 0) + 2**20)
    return max(rooms)


def open_start(
    request: TrainRequest, registry: RecordRegistry, progress: Progress, dataset_cache: DatasetCache | None
) -> tuple[TicketSet | None, StartingPoint, Dataset | None]:
    """The set that is named, what is trained, and the records where the network's shape had to be read off them.

    Args:
        request: what ``dpltm train`` was asked for.
        registry: that tells records apart.
        progress: who watches.
        dataset_cache: datasets that were read already.
    """
    if request.ticket is None:
        dataset = open_features(open_dataset(request, dataset_cache=dataset_cache), request, registry, progress)
        return None, fresh(model_spec(request.model or default_network(dataset), dataset), request.seed), dataset
    name, number = split_round(request.ticket)
    tickets = find_set(name)
    if request.dense:
        return tickets, from_round(tickets, 0), None
    drawn: tuple[Event, ...] = ()
    if number is None or drawn_from(tickets):
        winner = load_winner(tickets)
        number = winner.round if number is None else number
        drawn = winner.behind(number)
    return tickets, from_round(tickets, number, drawn), None


def open_records(request: TrainRequest, start: StartingPoint, dataset_cache: DatasetCache | None) -> Dataset:
    """The records of a ticket, which remembers what stands in front of its network. Arguments as :func:`open_start`."""
    assert start.tickets is not None
    return take_over_map(open_dataset(request, dataset_cache=dataset_cache), None, request, start.tickets.label)


def shared_ledger(named: str | None, tickets: TicketSet | None) -> Path | None:
    """The ledger that outlives the run: the one that was named, or that of the tickets; None for the run's own."""
    if named is not None:
        return Path(named)
    if tickets is None or is_bundled(folder_of(tickets)):
        return None
    return ledger_path(folder_of(tickets))


def _default_out(request: TrainRequest, tickets: TicketSet | None, start: StartingPoint) -> Path:
    name = "dense" if request.dense else f"round{start.round}"
    stem = Path(request.dataset or "data").stem
    if tickets is not None:
        stem = Path(tickets.label).name.removesuffix(".tickets")
    return free_name(f"{stem}-{name}", ".run")
