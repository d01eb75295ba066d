"""``dpltm tickets transfer``, ``import`` and ``compact``: ticket sets made from ticket sets, and from a pruned model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.options.tickets import CompactRequest, ImportRequest
from dpltm.options.transfer import TransferRequest
from dpltm.records import DatasetCache
from dpltm.records.notes import bounds_notes
from dpltm.stages import transfer as stage
from dpltm.stages.checks import model_spec
from dpltm.stages.progress import Progress
from dpltm.tickets.compact import compact_run, compact_set
from dpltm.tickets.export import import_torch_prune, read_origin
from dpltm.tickets.files import check_free
from dpltm.tickets.identity import UserRegistry
from dpltm.tickets.run import load_run
from dpltm.tickets.store import find_set, split_round
from dpltm.tickets.ticket_set import save_ticket_set, ticket_rows
from dpltm.tickets.winner import last_winner
from dpltm.tickets.workbench.opening import feature_sources
from dpltm.tickets.workbench.records import open_dataset
from dpltm.tickets.workbench.tickets import set_facts


def transfer(
    request: TransferRequest, progress: Progress, *, dataset_cache: DatasetCache | None = None
) -> dict[str, Any]:
    """Writes tickets for other records.

    Args:
        request: what ``dpltm transfer`` was asked for.
        progress: not told anything.
        dataset_cache: datasets that were read already; None to read them anew.

    Returns:
        The answer of ``dpltm transfer``.

    Raises:
        DpltmError: bad input, before anything is written.
    """
    del progress
    out = Path(request.out or "")
    check_free(out)
    name, number = split_round(request.set or "")
    stage.check_options(request)
    tickets = find_set(name)
    dataset, winner = open_dataset(request, dataset_cache=dataset_cache), last_winner(tickets)
    made = stage.transfer(stage.plan_transfer(tickets, dataset, request, round=number, winner=winner))
    saved = save_ticket_set(out, made.tickets)
    return as_flags(
        {
            "ticket_set": str(out),
            "id": saved.id,
            "model": saved.body.spec.text,
            "mode": request.mode,
            "provenance": saved.provenance,
            "layers": [asdict(layer) for layer in made.layers],
            "tickets": ticket_rows(saved.body),
            "notes": list(made.notes),
        }
    )


def import_set(request: ImportRequest, progress: Progress) -> dict[str, Any]:
    """Writes the set of a pruned model."""
    file, out = Path(request.file or ""), Path(request.out or "")
    check_free(out)
    origin, registry = read_origin(file), UserRegistry()
    dataset, notes = stage.front_of_import(
        open_dataset(request), origin, request, feature_sources(registry), file=file.name, progress=progress
    )
    notes = [*bounds_notes(dataset), *notes]
    body = import_torch_prune(file, model_spec(request.model, dataset))
    saved = save_ticket_set(out, stage.imported_set(body, dataset, origin, request, registry, file=str(file)))
    return as_flags({**set_facts(str(out), saved), "tickets": ticket_rows(saved.body), "notes": notes})


def compact(request: CompactRequest, progress: Progress) -> dict[str, Any]:
    """Writes a ticket, or a run, without the units that its mask leaves without use."""
    del progress
    out, text = Path(request.out or ""), request.artifact or ""
    check_free(out)
    if (Path(text) / "config.json").exists():
        shrunk = compact_run(load_run(Path(text)), out)
    else:
        name, number = split_round(text)
        tickets = find_set(name)
        if number is None:
            raise InputError(f"SET@ROUND: a compact network is that of one ticket; write {name}@ROUND")
        shrunk = compact_set(tickets, number, out)
    return {
        "written": str(out),
        "model": {"before": shrunk.before.text, "after": shrunk.after.text},
        "parameters": {"before": shrunk.parameters[0], "after": shrunk.parameters[1]},
        "live": {"before": shrunk.live[0], "after": shrunk.live[1]},
    }
