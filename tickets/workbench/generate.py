"""Phase 1 on files: a ticket set in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpltm.errors import as_flags
from dpltm.features.setup import with_feature_map
from dpltm.options.generate import GenerateRequest
from dpltm.privacy.entry import RECORD
from dpltm.progress import Progress
from dpltm.records import DatasetCache
from dpltm.tickets.checkpoint_files import CheckpointFolder
from dpltm.tickets.files import check_free
from dpltm.tickets.ledger_file import ledger_of
from dpltm.tickets.ticket_set import check_size, check_text, new_ticket_set, private_path, ticket_rows
from dpltm.tickets.workbench.code import own_of
from dpltm.tickets.workbench.opening import free_name, services
from dpltm.tickets.workbench.records import open_dataset
from dpltm.verbs.generate import Generation, check_options, plan, planned_report
from dpltm.verbs.generate import generate as make_tickets


def generate(
    request: GenerateRequest,
    progress: Progress,
    *,
    dataset_cache: DatasetCache | None = None,
    ending: Callable[[dict[str, Any]], None] | None = None,
    own: bool = False,
) -> dict[str, Any]:
    """Make and write the ticket set; return the answer of ``dpltm generate``.

    Args:
        ending: called with the answer once all is written, before it is in its place. ``dataset_cache`` None reads anew.
        own: whether the epsilon asked for is that of the set's lineage alone, as in a sweep.
    """
    provenance = check_options(request)
    unit = request.unit_column if provenance in ("dp", "private") else None
    unit = RECORD if provenance == "dp" and unit is None else unit
    model = own_of(request.model, request)
    ledger = ledger_of(request.dataset, request.ledger, request.population, unit)
    dataset = open_dataset(request, dataset_cache=dataset_cache)
    dataset = with_feature_map(dataset, request.features)
    out = Path(request.out) if request.out else free_name(request.name or dataset.name, ".tickets")
    given = services(progress)
    with CheckpointFolder(out, request, progress) as checkpoints:
        if checkpoints.held is not None:
            progress.say(f"going on from {checkpoints.held.place}")
        going_on = checkpoints.held is not None
        settled = plan(dataset, request, ledger, given, model=model, going_on=going_on, own=own)
        _check_place(settled, out, again=checkpoints.interrupted)
        if request.dry_run:
            return as_flags(_dry_run(settled, out))
        made = make_tickets(settled, kept_in=private_path(out).name, checkpoints=checkpoints)
        assert made.privacy is not None  # the verb made it
        answer = as_flags(
            {
                "ticket_set": str(out),
                "id": made.id,
                "provenance": made.provenance,
                "tickets": ticket_rows(made.body, measured=made.provenance != "private" or request.reveal),
                "privacy": made.privacy.to_json(),
            }
        )
        with new_ticket_set(out, made, again=checkpoints.interrupted):
            if ending is not None:
                ending(answer)
        checkpoints.forget()
    progress.say(f"wrote {out}")
    return answer


def _check_place(plan: Generation, out: Path, *, again: bool) -> None:
    """Refuse a set that could not be written, or not be read again; arguments as ``new_ticket_set``."""
    check_size("`rounds`", plan.spec, plan.config.rounds + 1)
    check_text("`name`", plan.options.name or "")
    check_text("`dataset`: its name", plan.dataset.name)
    check_free(out)
    if plan.provenance == "private" and not again:
        check_free(private_path(out))


def _dry_run(plan: Generation, out: Path) -> dict[str, Any]:
    if plan.under_dp:
        plan.rehearse()
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
