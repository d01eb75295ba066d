"""``dpltm tickets ls``, ``show``, ``verify`` and ``export``: ticket sets as things to look at and to hand on."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.options.tickets import ExportRequest, ListRequest, ShowRequest, VerifyRequest
from dpltm.privacy.event_json import ref_to_json, to_json
from dpltm.privacy.lineage import draws_behind
from dpltm.pruning.generation import Ticket
from dpltm.pruning.ticket_set import TicketSet
from dpltm.stages.columns import columns_read
from dpltm.stages.progress import Progress
from dpltm.tickets import export
from dpltm.tickets.curve_files import new_picture
from dpltm.tickets.feature_files import map_json
from dpltm.tickets.origin import origin_of
from dpltm.tickets.report_charts import against_density, write_charts
from dpltm.tickets.store import find_set, listing, problems, set_path, split_round
from dpltm.tickets.ticket_set import ticket_rows
from dpltm.tickets.winner import last_winner


def list_sets(request: ListRequest, progress: Progress) -> dict[str, Any]:
    """The sets in a folder, and those that come with dpltm."""
    del progress
    rows: list[dict[str, Any]] = []
    for entry in listing(Path(request.folder)):
        row: dict[str, Any] = {"ticket_set": entry.name, "bytes": entry.size, "problem": entry.problem}
        if entry.tickets is not None:
            row |= {
                "id": entry.tickets.id,
                "model": entry.tickets.body.spec.text,
                "criterion": entry.tickets.criterion,
                "provenance": entry.tickets.provenance,
                "rounds": len(entry.tickets.body.tickets) - 1,
                "density": entry.tickets.body.tickets[-1].mask.density,
            }
        rows.append(row)
    return {"folder": request.folder, "tickets": rows}


def show_set(request: ShowRequest, progress: Progress) -> dict[str, Any]:
    """Everything about a set; of one round, its layers."""
    picture = new_picture(request.plot)
    name, number = split_round(request.set or "")
    tickets = find_set(name)
    drawn = [] if picture is None else against_density(tickets)
    if picture is not None and not drawn:
        raise InputError(f"`plot`: {name} says no accuracies, so there is nothing to draw; leave it out")
    body = {**set_facts(name, tickets), "tickets": ticket_rows(tickets.body)}
    for row, ticket in zip(body["tickets"], tickets.body.tickets, strict=True):
        columns = columns_read(tickets.config.get("table_schema"), ticket.mask, tickets.feature_map)
        if columns is not None:
            row["columns"] = columns
    if number is not None:
        body["layers"] = _layers(tickets.ticket(number))
    if picture is not None:
        write_charts(picture, drawn, f"{tickets.name}: {tickets.body.spec.text}")
        progress.say(f"wrote {picture}")
        body["plot"] = str(picture)
    return body


def verify_set(request: VerifyRequest, progress: Progress) -> dict[str, Any]:
    """Everything that is wrong with a set."""
    del progress
    name = request.set or ""
    wrong = problems(set_path(name))
    return {"ticket_set": name, "ok": not wrong, "problems": wrong}


def export_set(request: ExportRequest, progress: Progress) -> dict[str, Any]:
    """Writes a set for somebody else, or one ticket for other tools."""
    del progress
    name, number = split_round(request.set or "")
    path, whole = Path(request.out or ""), request.to == "set"
    _check_form(request, number)
    tickets = find_set(name)
    export.check_shareable(tickets, label=name, whole=whole, predictor=request.predictor, consent=request.yes)
    if number is None:
        export.export_set(tickets, path, predictors=not request.no_predictors)
    else:
        _export_ticket(tickets, number, request, path)
    return as_flags(
        {
            "ticket_set": name,
            "id": tickets.id,
            "round": number,
            "form": request.to,
            "written": str(path),
            "notes": export.sharing_notes(tickets, whole=whole),
        }
    )


def _check_form(request: ExportRequest, number: int | None) -> None:
    """Raises InputError for options that do not go together."""
    whole = request.to == "set"
    if whole != (number is None):
        fix = "takes the whole set; leave @ROUND out" if whole else "takes one round; write SET@ROUND"
        raise InputError(f"SET@ROUND: {request.to} {fix}")
    if request.predictor and whole:
        raise InputError("`predictor`: for one ticket; a set keeps its predictors unless `no_predictors`")
    if request.no_predictors and not whole:
        raise InputError(f"`no_predictors`: only `to` set; {request.to} has starting weights unless `predictor`")


def _export_ticket(tickets: TicketSet, number: int, request: ExportRequest, path: Path) -> None:
    ticket = tickets.ticket(number)
    values = tickets.body.theta0 if not request.predictor else ticket.predictor
    if values is None:
        name = split_round(request.set or "")[0]
        raise InputError(f"`predictor`: {name} has none; leave it out for the starting weights")
    origin = replace(origin_of(tickets), draws=draws_behind(tickets, last_winner(tickets), number))
    if request.to == "onnx":
        export.export_onnx(tickets.body.spec, values, ticket.mask, path, origin)
    else:
        write = export.export_state_dict if request.to == "state-dict" else export.export_torch_prune
        write(values, ticket.mask, path, origin)


def set_facts(name: str, tickets: TicketSet) -> dict[str, Any]:
    """What a set says of itself."""
    return {
        "ticket_set": name,
        "id": tickets.id,
        "name": tickets.name,
        "model": tickets.body.spec.text,
        "features": tickets.body.spec.features,
        "classes": tickets.body.spec.classes,
        "criterion": tickets.criterion,
        "provenance": tickets.provenance,
        "source": None if tickets.source is None else ref_to_json(tickets.source),
        "events": [to_json(event) for event in tickets.events],
        "draws": [to_json(event) for event in tickets.draws],
        "parent": None if tickets.parent is None else asdict(tickets.parent),
        "predictors": tickets.is_scored,
        "feature_map": map_json(tickets.feature_map),
        "config": dict(tickets.config),
    }


def _layers(ticket: Ticket) -> list[dict[str, Any]]:
    return [
        {
            "parameter": name,
            "shape": list(value.shape),
            "live": int(value.sum()),
            "density": float(value.double().mean()),
        }
        for name, value in ticket.mask.items()
    ]
