"""Phase 1 on files: a ticket set in a folder of its own, and its ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpltm.errors import as_flags
from dpltm.options.generate import GenerateRequest
from dpltm.privacy.events import Event
from dpltm.privacy.old_ledger import Ledger
from dpltm.pruning import DP_CRITERIA
from dpltm.pruning.ticket_set import TicketSet
from dpltm.records import DatasetCache
from dpltm.stages.generate import GenerationPlan, plan, planned_report, resumed
from dpltm.stages.generate import generate as generate_set
from dpltm.stages.generate_settings import check_options
from dpltm.stages.going_on import planned_on
from dpltm.stages.progress import Progress
from dpltm.tickets.checkpoint_files import CheckpointFolder
from dpltm.tickets.files import check_free
from dpltm.tickets.ledger_file import enrol, open_ledger, remove_ledger, unnamed_ledger, write_events
from dpltm.tickets.origin import check_text
from dpltm.tickets.room import check_room
from dpltm.tickets.ticket_set import check_size, ledger_path, new_ticket_set, private_path, ticket_rows
from dpltm.tickets.workbench.opening import free_name, open_features, services
from dpltm.tickets.workbench.records import open_dataset
from dpltm.training.ranks import Ranks


def generate(
    request: GenerateRequest,
    progress: Progress,
    *,
    dataset_cache: DatasetCache | None = None,
    ending: Callable[[dict[str, Any]], None] | None = None,
    ranks: Ranks | None = None,
    draws: tuple[Event, ...] = (),
) -> dict[str, Any]:
    """Makes and writes the ticket set; returns the answer of ``dpltm generate``.

    Args:
        request: what ``dpltm generate`` was asked for.
        progress: who watches.
        dataset_cache: datasets that were read already; None to read them anew.
        ending: called with the answer once all is written, and before it is in its place.
        ranks: that share the work, of which this is rank 0; None for one process.
        draws: of winners that the request itself depends on, such as by its density; the set remembers them.

    Raises:
        DpltmError: bad input, before any training and before budget is spent.
    """
    check_options(request)
    ledger = _open(request, None if request.out is None else _own(request, Path(request.out)))
    dataset = open_features(open_dataset(request, dataset_cache=dataset_cache), request, ledger.registry, progress)
    out = Path(request.out) if request.out else free_name(request.name or dataset.name, ".tickets")
    own = _own(request, out)
    if request.out is None and own is not None:
        ledger = _open(request, own)
    given = services(progress)
    with CheckpointFolder(out, request, progress) as checkpoints:
        if checkpoints.held is not None:
            progress.say(f"going on from {checkpoints.held.place}")
        elif own is not None and ledger.events:  # of a run that was interrupted: what it spent is spent
            progress.say(f"going on with {own}, which holds what an interrupted run spent")
        settled = plan(dataset, request, planned_on(checkpoints, ledger), given)
        _check_place(settled, out, again=checkpoints.interrupted)
        if checkpoints.held is not None:
            settled = resumed(settled, checkpoints.held, ledger)
        if request.dry_run:
            return as_flags(_dry_run(settled, out))
        check_room(out, _room(settled), ledger_path(out) if request.ledger is None else Path(request.ledger))
        checkpoints.begin(_room(settled))
        made = generate_set(settled, given, kept_in=private_path(out).name, checkpoints=checkpoints, ranks=ranks)
        made = replace(made, draws=draws)
        checkpoints.give_room()
        answer = as_flags(_answer(made, str(out), reveal=request.reveal))
        copied = ledger.events if request.ledger is None else ()
        with new_ticket_set(out, made, again=checkpoints.interrupted) as folder:
            if copied:
                write_events(ledger_path(folder), copied)
            if ending is not None:
                ending(answer)
        if copied:
            enrol(ledger_path(out))
        checkpoints.forget()
    if own is not None:  # in sight from the start: whatever ended the work, what was spent stayed on record
        remove_ledger(own)
    progress.say(f"wrote {out}")
    return answer


def _own(request: GenerateRequest, out: Path) -> Path | None:
    """The ledger of this run alone; None where another is named, or nothing is spent before there is a folder with one."""
    spends_alone = request.ledger is None and request.criterion in DP_CRITERIA
    return Path(f"{out}.ledger.jsonl") if spends_alone else None


def _room(plan: GenerationPlan) -> int:
    """Bytes that the set will take, and some more."""
    weights, feature_map = plan.spec.parameters, plan.dataset.feature_map
    front = 0 if feature_map is None else sum(value.numel() for value in feature_map.tensors.values())
    kept = 0 if plan.options.no_predictors or plan.provenance == "data-free" else plan.config.rounds + 1
    return (4 * (1 + kept) + plan.config.rounds) * weights + 4 * front + 2**20


def _open(request: GenerateRequest, own: Path | None) -> Ledger:
    """The ledger that is named, or that of this run alone; without a file where nothing is spent before the folder is."""
    remember = not request.dry_run
    path = own if request.ledger is None else Path(request.ledger)
    return unnamed_ledger(remember) if path is None else open_ledger(path, remember=remember)


def _check_place(plan: GenerationPlan, out: Path, *, again: bool) -> None:
    """Refuses a set that could not be written, or not be read again; arguments as ``new_ticket_set``."""
    check_size("`rounds`", plan.spec, plan.config.rounds + 1)
    check_text("`name`", plan.options.name or "")
    check_text("`dataset`: its name", plan.dataset.name)
    check_free(out)
    if plan.provenance == "private" and not again:
        check_free(private_path(out))


def _answer(made: TicketSet, label: str, *, reveal: bool) -> dict[str, Any]:
    assert made.privacy is not None  # the stage made it
    return {
        "ticket_set": label,
        "id": made.id,
        "provenance": made.provenance,
        "tickets": ticket_rows(made.body, measured=made.provenance != "private" or reveal),
        "privacy": made.privacy.to_json(),
    }


def _dry_run(plan: GenerationPlan, out: Path) -> dict[str, Any]:
    return {
        "dry_run": True,
        "ticket_set": str(out),
        "provenance": plan.provenance,
        "criterion": plan.options.criterion,
        "dataset": plan.dataset.name,
        "records": plan.dataset.records,
        "model": plan.spec.text,
        "steps": plan.steps,
        "privacy": planned_report(plan).to_json(),
    }
