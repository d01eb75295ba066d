"""``dpltm tickets``: ticket sets, in tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console as RichConsole
from rich.table import Column, Table

from dpltm.cli.console import answering
from dpltm.cli.show import show_notes, show_pairs, show_tickets
from dpltm.privacy.describe import describe, percent
from dpltm.privacy.entry import lineage_from_json
from dpltm.registry import Deferred
from dpltm.tickets.card import MEANING, front


def show_list(rich: RichConsole, body: dict[str, Any]) -> None:
    """The sets of a folder, one line each."""
    if not body["tickets"]:
        rich.print(f"no ticket set in {body['folder']}; make one with dpltm generate")
        return
    table = Table(Column("set", no_wrap=True), "network", "criterion", "provenance", "rounds")
    for row in body["tickets"]:
        if row["problem"] is not None:
            table.add_row(row["ticket_set"], "damaged: see", "dpltm", "tickets", "verify")
        else:
            rounds = f"{row['rounds']} ({percent(row['density'])})"
            table.add_row(row["ticket_set"], row["model"], row["criterion"], row["provenance"], rounds)
    rich.print(table)


def show_set(rich: RichConsole, body: dict[str, Any]) -> None:
    """What a set says of itself, and its tickets or the layers of one."""
    pairs = {key: body[key] for key in ("name", "model", "features", "classes", "criterion", "provenance")}
    if body["made_from"]:
        pairs["depends on"] = ", ".join(body["made_from"])
    if body["parent"] is not None:
        pairs["parent"] = f"{body['parent']['name']} ({body['parent']['id'][:12]}), by {body['parent']['how']}"
    if body["feature_map"] is not None:
        pairs["in front"] = front(body["feature_map"])
    show_pairs(rich, body["ticket_set"], pairs)
    rich.print(f"id {body['id']}")
    rich.print(f"{body['provenance']}: {MEANING[body['provenance']]}")
    for entry in lineage_from_json(body["lineage"]).entries:
        rich.print(f"- {describe(entry)}", style="dim")
    if "layers" in body:
        table = Table("parameter", "shape", "live", "density")
        for row in body["layers"]:
            shape = "x".join(str(size) for size in row["shape"])
            table.add_row(row["parameter"], shape, f"{row['live']:,}", percent(row["density"]))
        rich.print(table)
    else:
        show_tickets(rich, body)
    show_notes(rich, body)


def _show_problems(rich: RichConsole, body: dict[str, Any]) -> None:
    if body["ok"]:
        rich.print(f"{body['ticket_set']}: all is well")
    for problem in body["problems"]:
        rich.print(problem)


def show_written(rich: RichConsole, body: dict[str, Any]) -> None:
    """What was exported, and what to know of it."""
    rich.print(f"wrote {body['written']}")
    if body["form"] == "torch-prune":
        rich.print('prune.identity(module, "weight") on every module makes a model that loads it', style="dim")
    show_notes(rich, body)


def show_pushed(rich: RichConsole, body: dict[str, Any]) -> None:
    """Where the set is, and how to ask for the very same."""
    rich.print(f"pushed {body['ticket_set']} to {body['pushed']}")
    rich.print(f"digest {body['digest']}")
    show_notes(rich, body)


def show_transfer(rich: RichConsole, body: dict[str, Any]) -> None:
    """Where each layer comes from, and the tickets."""
    title = f"{body['model']}, {body['mode']}"
    table = Table("layer", "from", "to", "mask", "weights", "density", title=title, title_justify="left")
    for row in body["layers"]:
        before, after = ("x".join(str(size) for size in row[key]) or "-" for key in ("before", "after"))
        table.add_row(row["layer"], before, after, row["mask"], row["weights"], percent(row["density"]))
    rich.print(table)
    show_tickets(rich, body)
    show_notes(rich, body)


def show_compact(rich: RichConsole, body: dict[str, Any]) -> None:
    """Before and after."""
    table = Table("", "before", "after", title=f"wrote {body['written']}", title_justify="left")
    table.add_row("network", body["model"]["before"], body["model"]["after"])
    for key in ("parameters", "live"):
        table.add_row(key, *(f"{body[key][side]:,}" for side in ("before", "after")))
    rich.print(table)


ls_command = answering(Deferred("dpltm.tickets.workbench.tickets:list_sets"), show_list)
show_command = answering(Deferred("dpltm.tickets.workbench.tickets:show_set"), show_set)
verify_command = answering(
    Deferred("dpltm.tickets.workbench.tickets:verify_set"), _show_problems, lambda body: not body["ok"]
)
export_command = answering(Deferred("dpltm.tickets.workbench.tickets:export_set"), show_written)
push_command = answering(Deferred("dpltm.tickets.workbench.tickets:push_set"), show_pushed)
pull_command = answering(Deferred("dpltm.tickets.workbench.tickets:pull_set"), show_set)
import_command = answering(Deferred("dpltm.tickets.workbench.tickets:import_set"), show_set)
compact_command = answering(Deferred("dpltm.tickets.workbench.tickets:compact"), show_compact)
transfer_command = answering(Deferred("dpltm.tickets.workbench.tickets:transfer"), show_transfer)
