"""``dpltm report``, ``dpltm compare`` and recipes of ``dpltm run``, for people."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from rich.console import Console as RichConsole
from rich.table import Table

from dpltm.cli.console import answering
from dpltm.cli.show import show_notes, show_privacy, show_verdict
from dpltm.privacy.describe import figure, guarantee
from dpltm.registry import Deferred
from dpltm.reports.sweep_table import cells, columns
from dpltm.tickets.workbench.compare import as_table, costs

NARROW = 110
"""Characters of a line below which a table leaves out columns that its files have as well."""

WIDE = 160
"""Characters of a line where nobody's terminal says how many there are."""

LATER = ("live", "parameters", "trained", "filter", "sd")
"""Columns that a narrow terminal has no room for."""


def show_report(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show what was written, and the guarantee in it."""
    for problem in body["problems"]:
        rich.print(f"not complete: {problem}", style="bold")
    show_privacy(rich, body["privacy"])
    for name in ("report", "plot"):
        if body[name]:
            rich.print(f"wrote {body[name]}")
    if body["decision"]:
        rich.print(body["decision"], style="bold")
    else:
        show_verdict(rich, body)


def show_comparison(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the table, what all of it costs, and notes."""
    table = as_table(body)
    _show_table(rich, table.head, table.rows, table.title or None)
    for line in costs(body):
        rich.print(line, style="bold")
    show_notes(rich, body)
    for name in ("csv", "md", "plot"):
        if body.get(name):
            rich.print(f"wrote {body[name]}")


def show_recipe(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show a plan or an outcome: first what all of it costs, then a row for each arm."""
    if body.get("dry_run"):
        head = ("arm", "paper", "tickets", "dataset", "epsilon asked for", "noise multiplier", "certified epsilon")
        keys = ("name", "paper", "tickets", "dataset", "epsilon", "noise_multiplier")
        rows = [
            (
                *("-" if row[key] is None else str(row[key]) for key in keys),
                row["at_most"] if row["privacy"] is None else figure(row["privacy"]["certified"]["epsilon"]),
            )
            for row in body["arms"]
        ]
        _show_table(rich, head, rows, f"would run {body['recipe']} in {body['out']}")
        rich.print(f"{body['members']} trainings: {len(body['arms'])} arms, {len(body['seeds'])} seeds")
        return
    rich.print(f"all together: {guarantee(body['privacy']['certified'])}", style="bold")
    quick = " (quick version: says that it works, and no more)" if body["quick"] else ""
    _show_table(rich, columns(body), [cells(row, body) for row in body["arms"]], f"{body['recipe']}{quick}")
    for row in body["arms"]:
        for hole in row["missing"]:
            rich.print(f"hole: {row['name']}, seed {hole['seed']}: {hole['why']}", style="bold")
        if row["note"]:
            rich.print(f"- {row['name']}: {row['note']}", style="dim")
    show_notes(rich, body)
    show_notes(rich, body["privacy"])
    rich.print(f"wrote {body['out']}/results.json, results.md" + (", figure.png" if body.get("figure") else ""))


def _show_table(rich: RichConsole, head: Sequence[str], rows: Collection[Sequence[str]], title: str | None) -> None:
    """Show a table; columns of which nothing is known are left out, and on a narrow terminal some more."""
    if not rich.is_terminal:
        rich.width = WIDE
    table = Table(title=title, title_justify="left")
    shown = [
        at for at, name in enumerate(head)
        if at == 0 or (any(row[at] not in ("", "-") for row in rows) and (rich.width >= NARROW or name not in LATER))
    ]  # fmt: skip
    for at in shown:
        table.add_column(head[at], overflow="fold")
    for row in rows:
        table.add_row(*(row[at] for at in shown))
    rich.print(table)


def _is_wanting(body: dict[str, Any]) -> bool:
    return any(row["state"] == "damaged" for row in body["rows"])


report_command = answering(
    Deferred("dpltm.tickets.workbench.report:report"), show_report, lambda body: body["state"] == "damaged"
)
compare_command = answering(Deferred("dpltm.tickets.workbench.compare:compare_runs"), show_comparison, _is_wanting)
