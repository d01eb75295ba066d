"""Tickets for other records, in a folder of their own."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpltm.errors import as_flags
from dpltm.options.tickets import TransferRequest
from dpltm.progress import Progress
from dpltm.records import DatasetCache
from dpltm.tickets.files import check_free
from dpltm.tickets.store import find_set, split_round
from dpltm.tickets.ticket_set import save_ticket_set, ticket_rows
from dpltm.tickets.workbench.code import code_named
from dpltm.tickets.workbench.records import open_dataset
from dpltm.verbs import transfer as verb


def transfer(
    request: TransferRequest, progress: Progress, *, dataset_cache: DatasetCache | None = None
) -> dict[str, Any]:
    """Write tickets for other records; return the answer of ``dpltm transfer``."""
    del progress
    out = Path(request.out or "")
    check_free(out)
    name, number = split_round(request.set or "")
    model = None if request.model is None else code_named(request.model, start_provenance=request.start_provenance)
    dataset = open_dataset(request, dataset_cache=dataset_cache)
    made = verb.transfer(find_set(name), dataset, request, round=number, model=model)
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
