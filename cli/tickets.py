"""``dpltm tickets``: ticket sets as things to look at, to hand on, and to make others of."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole

from dpltm.cli.console import answering
from dpltm.cli.show import show_answer, show_tickets
from dpltm.errors import InputError
from dpltm.networks import model_spec
from dpltm.options.tickets import CompactRequest, ExportRequest, ImportRequest, LsRequest, ShowRequest, VerifyRequest
from dpltm.privacy.describe import describe
from dpltm.privacy.entry import lineage_from_json, to_json
from dpltm.progress import Progress
from dpltm.pruning.unstructured import columns_read
from dpltm.records.notes import bounds_notes
from dpltm.records.schema import stored_schema
from dpltm.reports.statement import PROVENANCE
from dpltm.tickets import export
from dpltm.tickets.feature_files import map_json
from dpltm.tickets.files import check_free
from dpltm.tickets.ledger_file import ledger_of
from dpltm.tickets.model_card import sources
from dpltm.tickets.run import load_run
from dpltm.tickets.store import find_set, listing, problems, split_round
from dpltm.tickets.ticket_set import save_ticket_set, ticket_rows
from dpltm.tickets.workbench.records import open_dataset
from dpltm.tickets.workbench.stages import front_of_import, imported_set, transfer
from dpltm.training.artifacts import TicketSet


def list_sets(request: LsRequest, _: Progress) -> dict[str, Any]:
    """Return the sets in a folder."""
    rows: list[dict[str, Any]] = []
    for entry in listing(Path(request.folder)):
        rows.append({"ticket_set": entry.name, "bytes": entry.size, "problem": entry.problem})
        if (tickets := entry.tickets) is not None:
            rows[-1] |= {
                "id": tickets.id, "model": tickets.body.spec.text, "criterion": tickets.criterion,
                "provenance": tickets.provenance, "rounds": len(tickets.body.tickets) - 1,
                "density": tickets.body.tickets[-1].mask.density,
            }  # fmt: skip
    return {"folder": request.folder, "tickets": rows}


def describe_set(request: ShowRequest, _: Progress) -> dict[str, Any]:
    """Return everything about a set; of one round, its layers."""
    name, number = split_round(request.set)
    tickets = find_set(name)
    body = {**set_facts(name, tickets), "tickets": ticket_rows(tickets.body)}
    for row, ticket in zip(body["tickets"], tickets.body.tickets, strict=True):
        columns = columns_read(stored_schema(tickets.config), ticket.mask, tickets.feature_map)
        if columns is not None:
            row["columns"] = columns
    if number is not None:
        body["layers"] = [
            {
                "parameter": name,
                "shape": [*mask.shape],
                "live": int(mask.sum()),
                "density": float(mask.double().mean()),
            }
            for name, mask in tickets.ticket(number).mask.items()
        ]
    return body


def verify_set(request: VerifyRequest, _: Progress) -> dict[str, Any]:
    """Return everything that is wrong with a set."""
    name = request.set
    wrong = problems(Path(name))
    return {"ticket_set": name, "ok": not wrong, "problems": wrong}


def export_set(request: ExportRequest, _: Progress) -> dict[str, Any]:
    """Write a set for somebody else, or one ticket for other tools."""
    name, number = split_round(request.set)
    path = Path(request.out)
    tickets = find_set(name)
    export.check_shareable(tickets, label=name, consent=request.yes)
    if number is None:
        export.export_set(tickets, path)
    else:
        export.export_torch_prune(tickets.body.theta0, tickets.ticket(number).mask, path, export.Origin.of(tickets))
    facts = {"ticket_set": name, "id": tickets.id, "round": number, "form": "set" if number is None else "torch-prune"}
    return {**facts, "written": str(path), "notes": export.sharing_notes(tickets, of_set=number is None)}


def set_facts(name: str, tickets: TicketSet) -> dict[str, Any]:
    """Facts that a set states on itself."""
    spec = tickets.body.spec
    return {
        "ticket_set": name, "id": tickets.id, "name": tickets.name, "model": spec.text, "features": spec.features,
        "classes": spec.classes, "criterion": tickets.criterion, "provenance": tickets.provenance,
        "metric": tickets.config.get("metric", "accuracy"), "made_from": sources(tickets.lineage),
        "lineage": to_json(tickets.lineage), "parent": None if tickets.parent is None else asdict(tickets.parent),
        "predictors": tickets.is_scored, "feature_map": map_json(tickets.feature_map), "config": dict(tickets.config),
    }  # fmt: skip


def import_set(request: ImportRequest, _: Progress) -> dict[str, Any]:
    """Write the set of a pruned model."""
    file, out = Path(request.file), Path(request.out)
    check_free(out)
    origin = export.read_origin(file)
    ledger = ledger_of(request.dataset, request, None)
    dataset, notes = front_of_import(open_dataset(request), origin, request.features, file=file.name)
    notes = [*bounds_notes(dataset), *notes]
    body = export.import_torch_prune(file, model_spec(request.model, dataset))
    saved = save_ticket_set(out, imported_set(body, dataset, origin, request, ledger, file=str(file)))
    return {**set_facts(str(out), saved), "tickets": ticket_rows(saved.body), "notes": notes}


def compact(request: CompactRequest, _: Progress) -> dict[str, Any]:
    """Write a ticket, or a run, without the units that its mask leaves without use."""
    out = Path(request.out)
    text = request.artifact
    check_free(out)
    if (Path(text) / "config.json").exists():
        sizes = export.compact_run(load_run(Path(text)), out)
    else:
        name, number = split_round(text)
        tickets = find_set(name)
        if number is None:
            raise InputError(f"SET@ROUND: a compact network is that of one ticket; write {name}@ROUND")
        sizes = export.compact_set(tickets, number, out)
    return {"written": str(out), **sizes}


def _show_problems(rich: RichConsole, body: dict[str, Any]) -> None:
    for line in body["problems"] or [f"{body['ticket_set']}: all is well"]:
        rich.print(line)


def show_set(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the facts of a set, what it depends on, and its tickets."""
    show_answer("{ticket_set}", rich, {name: value for name, value in body.items() if name != "tickets"})
    rich.print(PROVENANCE[body["provenance"]], style="bold")
    if "lineage" in body:
        for entry in lineage_from_json(body["lineage"]).entries:
            rich.print(f"- {describe(entry)}", style="dim")
    if "layers" not in body or "mode" in body:  # not of one ticket
        show_tickets(rich, body)


ls_command = answering(list_sets, partial(show_answer, "ticket sets"))
show_command = answering(describe_set, show_set)
verify_command = answering(verify_set, _show_problems, lambda body: not body["ok"])
export_command = answering(export_set, partial(show_answer, "wrote {written}"))
import_command = answering(import_set, show_set)
compact_command = answering(compact, partial(show_answer, "wrote {written}"))
transfer_command = answering(transfer, show_set)
