"""``dpltm tickets ls``, ``show``, ``verify``, ``export`` and ``import``: ticket sets as things to look at and to hand on."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dpltm.cli.common import NETWORKS, figure, load_dataset, model_spec
from dpltm.cli.console import Console
from dpltm.cli.features import FeatureOptions, carried, with_features
from dpltm.cli.options import Call, option
from dpltm.errors import DpltmError, InputError

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from dpltm.data import Dataset
    from dpltm.generation import Ticket
    from dpltm.tickets.ticket_set import Origin, TicketSet

SHARING_PRIVATE = (
    "made from private records with no mechanism: its masks may reveal them, and no epsilon bounds how much"
)


@dataclass(frozen=True)
class ListOptions:
    """The ticket sets in a folder, and those that come with dpltm."""

    folder: str = option(".", "Folder to look in.", metavar="[DIR]", argument=True)


@dataclass(frozen=True)
class ShowOptions:
    """What a ticket set is, where it comes from and what it costs to use; with @ROUND, one ticket layer by layer."""

    set: str | None = option(None, "Ticket set.", metavar="SET[@ROUND]", argument=True, required=True)


@dataclass(frozen=True)
class VerifyOptions:
    """Checks everything about a ticket set: sizes, shapes, counts, nesting, ids, digests, its card and its ledger.

    The exit code is 0 if all is well and 1 if not. A set is no signature: who can rewrite all of it can make it fit.
    """

    set: str | None = option(None, "Ticket set.", metavar="SET", argument=True, required=True)


@dataclass(frozen=True)
class ExportOptions:
    """Writes a ticket set for somebody else, or one ticket for other tools.

    A set leaves its ledger and its selection behind, and so it does predictors and accuracies that private records made
    with no mechanism; masks that they made need --yes. A ticket becomes its masked starting weights (state-dict, onnx) or
    weights and masks (torch-prune).
    """

    set: str | None = option(
        None, "Ticket set; the other forms take a round.", metavar="SET[@ROUND]", argument=True, required=True
    )
    to: str = option("set", "Form.", choices=("set", "state-dict", "torch-prune", "onnx"))
    out: str | None = option(None, "Folder or file to write.", metavar="PATH", required=True)
    predictor: bool = option(False, "The network trained in that round rather than the starting weights.")
    no_predictors: bool = option(False, "A set without the trained networks that select scores.")
    yes: bool = option(False, "Export a set made from private records, knowing what it may reveal.")


@dataclass(frozen=True)
class ImportOptions(FeatureOptions):
    """Makes a ticket set from a model pruned by torch.nn.utils.prune: its state dict as a safetensors file.

    Parameters are named as those of --model (fc1.weight_orig, fc1.weight_mask, fc1.bias, ...). --dataset says what records
    the network is for; if --provenance is public or private, they are also what it was made from. A file that dpltm
    exported says itself where it comes from, and what stands in front of its network; --features names that where the file
    does not hold it.
    """

    file: str | None = option(None, "Safetensors file.", metavar="FILE", argument=True, required=True)
    model: str = option("mlp:300,100", "Network.", metavar=NETWORKS)
    provenance: str | None = option(
        None,
        "What masks and weights depend on; required where the file does not say it.",
        choices=("public", "private", "data-free"),
    )
    name: str | None = option(None, "Label of the set.", metavar="TEXT", shown="the file's name")
    out: str | None = option(None, "Folder to write.", metavar="DIR", required=True)


def list_command(options: ListOptions, call: Call) -> None:
    """Runs ``dpltm tickets ls`` and prints its answer."""
    from dpltm.tickets.store import listing

    rows: list[dict[str, Any]] = []
    for entry in listing(Path(options.folder)):
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
    body = {"folder": options.folder, "tickets": rows}
    Console(call.json, call.quiet).result(body, lambda rich: _show_list(rich, body))


def show_command(options: ShowOptions, call: Call) -> None:
    """Runs ``dpltm tickets show`` and prints its answer."""
    from dpltm.tickets.store import find_set, split_round
    from dpltm.tickets.ticket_set import ticket_rows

    name, number = split_round(options.set or "")
    tickets = find_set(name)
    body = {**_facts(name, tickets), "tickets": ticket_rows(tickets.body)}
    if number is not None:
        body["layers"] = _layers(tickets.ticket(number))
    Console(call.json, call.quiet).result(body, lambda rich: _show_set(rich, body))


def verify_command(options: VerifyOptions, call: Call) -> None:
    """Runs ``dpltm tickets verify``, prints its answer and ends with 1 if anything is wrong."""
    from dpltm.tickets.store import problems, set_path

    name = options.set or ""
    found = problems(set_path(name))
    body = {"ticket_set": name, "ok": not found, "problems": found}
    Console(call.json, call.quiet).result(body, lambda rich: _show_problems(rich, body))
    if found:
        raise typer.Exit(1)


def export_command(options: ExportOptions, call: Call) -> None:
    """Runs ``dpltm tickets export`` and prints its answer."""
    from dpltm.tickets import export
    from dpltm.tickets.store import find_set, split_round
    from dpltm.tickets.winner import draws_behind

    name, number = split_round(options.set or "")
    path = Path(options.out or "")
    if (options.to == "set") != (number is None):
        raise InputError(
            f"SET@ROUND: {options.to} "
            + ("takes the whole set; leave @ROUND out" if options.to == "set" else "takes one round; write SET@ROUND")
        )
    if options.predictor and options.to == "set":
        raise InputError("--predictor: for one ticket; a set keeps its predictors unless --no-predictors")
    if options.no_predictors and options.to != "set":
        raise InputError(f"--no-predictors: only --to set; {options.to} has starting weights unless --predictor")
    tickets = find_set(name)
    _check_shared(name, tickets, options)
    if number is None:
        export.export_set(tickets, path, predictors=not options.no_predictors)
    else:
        ticket = tickets.ticket(number)
        values = tickets.body.theta0 if not options.predictor else ticket.predictor
        if values is None:
            raise InputError(f"--predictor: {name} has none; leave it out for the starting weights")
        origin = replace(tickets.origin, draws=draws_behind(tickets, number))
        if options.to == "onnx":
            export.export_onnx(tickets.body.spec, values, ticket.mask, path, origin)
        else:
            write = export.export_state_dict if options.to == "state-dict" else export.export_torch_prune
            write(values, ticket.mask, path, origin)
    body = {
        "ticket_set": name,
        "id": tickets.id,
        "round": number,
        "form": options.to,
        "written": str(path),
        "notes": _export_notes(tickets, options.to),
    }
    Console(call.json, call.quiet).result(body, lambda rich: _show_written(rich, body))


def _check_shared(name: str, tickets: TicketSet, options: ExportOptions) -> None:
    """Refuses what no epsilon bounds: networks trained on private records, always; masks made from them, without --yes.

    Raises:
        DpltmError: saying what it is.
    """
    from dpltm.privacy.parts import total_epsilon
    from dpltm.tickets.export import ANY_DELTA, UNPROTECTED_FRONT

    front, whole = tickets.feature_map, options.to == "set"
    spent = 0.0 if front is None else total_epsilon(front.events, ANY_DELTA)
    source = None if front is None else front.source
    if whole and math.isinf(spent):
        held = UNPROTECTED_FRONT.format(source)
        raise DpltmError(f"{name}: {held}, which is never handed on; export one ticket alone, as {name}@ROUND")
    through = math.isinf(spent) and tickets.provenance != "data-free"
    if options.predictor and (tickets.provenance == "private" or through):
        raise DpltmError(
            f"--predictor: the predictors of {name} were trained on private records with no mechanism, and are never handed"
            " on; leave it out for the starting weights"
        )
    if tickets.provenance == "private" and not options.yes:
        raise DpltmError(
            f"{name}: {SHARING_PRIVATE}; if you mean to hand them on all the same, without predictors, add --yes"
        )
    if through and not options.yes:
        raise DpltmError(
            f"{name}: made behind a network trained on {source} with no mechanism: its masks may reveal those records, and"
            " no epsilon bounds how much; if you mean to hand them on all the same, add --yes"
        )
    if whole and spent and not options.yes:
        raise DpltmError(
            f"{name}: holds a network trained on {source}; certified for those records is epsilon {figure(spent)} at delta"
            f" {ANY_DELTA:g}; if you mean to hand it on, add --yes"
        )


def _export_notes(tickets: TicketSet, form: str) -> list[str]:
    """What whoever hands tickets on should know."""
    from dpltm.tickets.winner import drawn_from

    notes = []
    if tickets.provenance == "private":
        notes.append(f"{SHARING_PRIVATE}; predictors and accuracies stay here")
    if form == "set" and drawn_from(tickets):
        notes.append(
            "a winner was drawn from this set, and which round that was is a release of its own that the copy does not know"
            f" of: so train the winner from {tickets.label}, where its cost is counted"
        )
    if tickets.feature_map is not None and form != "set":
        notes.append(
            f"the network takes {tickets.feature_map.text} features, not records; what makes them stays in {tickets.label}"
        )
    if tickets.provenance == "dp":
        notes.append(f"made under differential privacy from {tickets.source}: what that spent goes with the copy")
    return notes


def import_command(options: ImportOptions, call: Call) -> None:
    """Runs ``dpltm tickets import`` and prints its answer."""
    from dpltm.tickets.export import import_torch_prune, read_origin
    from dpltm.tickets.files import check_free
    from dpltm.tickets.identity import reference
    from dpltm.tickets.ticket_set import Origin, Parent, save_ticket_set, ticket_rows

    console, file, out = Console(call.json, call.quiet), Path(options.file or ""), Path(options.out or "")
    check_free(out)
    origin, parent = read_origin(file), None
    dataset, notes = _in_front(load_dataset(options), origin, file, options, console)
    spec = model_spec(options.model, dataset)
    tickets = import_torch_prune(file, spec)
    if origin is not None:
        if options.provenance not in (None, origin.provenance):
            raise InputError(f"--provenance: {file} says {origin.provenance} of itself; leave --provenance out")
        parent = Parent(origin.id, origin.name, None, "export and import")
    elif options.provenance is None:
        raise InputError(f"--provenance is missing: {file} does not say what its masks and weights depend on")
    else:
        source = (
            None if options.provenance == "data-free" else reference(dataset, public=options.provenance == "public")
        )
        origin = Origin("", "", options.provenance, source, ())  # type: ignore[arg-type]
    saved = save_ticket_set(
        out,
        tickets,
        name=options.name or file.stem,
        criterion="imported",
        provenance=origin.provenance,
        source=origin.source,
        config={"imported": file.name},
        events=origin.events,
        draws=origin.draws,
        parent=parent,
        feature_map=dataset.feature_map,
    )
    body = {**_facts(str(out), saved), "tickets": ticket_rows(saved.body), "notes": notes}
    console.result(body, lambda rich: _show_set(rich, body))


def _in_front(
    dataset: Dataset, origin: Origin | None, file: Path, options: ImportOptions, console: Console
) -> tuple[Dataset, list[str]]:
    """The records with the map that the file says its network stands behind, or that is named where it does not say.

    Raises:
        InputError: the map has tensors, and is not named; or another is.
    """
    if origin is None or not origin.complete:
        if options.features is not None:
            return with_features(dataset, options, console), []
        return dataset, [
            f"{file.name} does not say what stands in front of its network; records as they are is what is taken: if it is"
            " features, name them with --features, since what they were made from counts as well"
        ]
    front = origin.front
    if front is None:
        if options.features is not None:
            raise InputError(f"--features: the network in {file.name} takes records as they are; leave it out")
        return dataset, []
    if front.has_tensors and options.features is None:
        example = "network:RUN" if front.network is not None else f"{front.text}, with its --public and --components"
        raise InputError(
            f"--features is missing: the network in {file.name} stands behind {front.text} features, made from"
            f" {front.source}, whose tensors the file does not hold; name what they were made by, as --features {example}"
        )
    named = None if options.features is None else with_features(dataset, options, console).feature_map
    found = front.restored(named)
    if found is None:
        raise InputError(
            f"--features: {options.features} is not what the network in {file.name} stands behind ({front}); name the very"
            " same"
        )
    return carried(dataset, found, None, file.name), []


def _facts(name: str, tickets: TicketSet) -> dict[str, Any]:
    from dpltm.privacy.event_json import ref_to_json, to_json
    from dpltm.tickets.feature_files import map_json

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
        "predictors": tickets.scored,
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


def _show_list(rich: RichConsole, body: dict[str, Any]) -> None:
    from rich.table import Column, Table

    if not body["tickets"]:
        rich.print(f"no ticket set in {body['folder']}; make one with dpltm generate")
        return
    table = Table(Column("set", no_wrap=True), "network", "criterion", "provenance", "rounds")
    for row in body["tickets"]:
        if row["problem"] is not None:
            table.add_row(row["ticket_set"], "damaged: see", "dpltm", "tickets", "verify")
        else:
            rounds = f"{row['rounds']} ({row['density']:.2%})"
            table.add_row(row["ticket_set"], row["model"], row["criterion"], row["provenance"], rounds)
    rich.print(table)


def _show_set(rich: RichConsole, body: dict[str, Any]) -> None:
    from rich.table import Table

    from dpltm.cli.show import show_notes, show_pairs, show_tickets
    from dpltm.privacy.describe import describe
    from dpltm.privacy.event_json import from_json, ref_from_json
    from dpltm.tickets.card import MEANING, front

    pairs = {key: body[key] for key in ("name", "model", "features", "classes", "criterion", "provenance")}
    if body["source"] is not None:
        pairs["made from"] = f"{ref_from_json(body['source'])}, id {body['source']['id'][:12]}"
    if body["parent"] is not None:
        pairs["parent"] = f"{body['parent']['name']} ({body['parent']['id'][:12]}), by {body['parent']['how']}"
    if body["feature_map"] is not None:
        pairs["in front"] = front(body["feature_map"])
    show_pairs(rich, body["ticket_set"], pairs)
    rich.print(f"id {body['id']}")
    rich.print(f"{body['provenance']}: {MEANING[body['provenance']]}")
    for event in (*body["events"], *body["draws"]):
        rich.print(f"- spent: {describe(from_json(event))}", style="dim")
    if "layers" in body:
        table = Table("parameter", "shape", "live", "density")
        for row in body["layers"]:
            shape = "x".join(str(size) for size in row["shape"])
            table.add_row(row["parameter"], shape, f"{row['live']:,}", f"{row['density']:.2%}")
        rich.print(table)
    else:
        show_tickets(rich, body)
    if "notes" in body:
        show_notes(rich, body)


def _show_problems(rich: RichConsole, body: dict[str, Any]) -> None:
    if body["ok"]:
        rich.print(f"{body['ticket_set']}: all is well")
    for problem in body["problems"]:
        rich.print(problem)


def _show_written(rich: RichConsole, body: dict[str, Any]) -> None:
    from dpltm.cli.show import show_notes

    rich.print(f"wrote {body['written']}")
    if body["form"] == "torch-prune":
        rich.print('prune.identity(module, "weight") on every module makes a model that loads it', style="dim")
    show_notes(rich, body)
