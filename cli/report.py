"""``dpltm report`` and ``dpltm compare``, for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console as RichConsole
from rich.table import Table

from dpltm.cli.console import answering
from dpltm.cli.recipe import NARROW, WIDE
from dpltm.cli.show import show_notes, show_privacy
from dpltm.registry import Deferred
from dpltm.tickets.comparison_files import HEAD, baseline_lines, cells, terms, together


def show_report(rich: RichConsole, body: dict[str, Any]) -> None:
    """What was written, and the guarantee in it."""
    for problem in body["problems"]:
        rich.print(f"not complete: {problem}", style="bold")
    show_privacy(rich, body["privacy"])
    for name in ("report", "plot"):
        if body[name]:
            rich.print(f"wrote {body[name]}")


LATER = ("live", "parameters", "trained", "filter")
"""Columns that a narrow terminal has no room for; --md, --csv and --json have them."""


def show_comparison(rich: RichConsole, body: dict[str, Any]) -> None:
    """The table; columns of which nothing is known are left out."""
    rows = [cells(row) for row in body["rows"]]
    shown = [at for at in range(len(HEAD)) if any(row[at] != "-" for row in rows)]
    if rich.is_terminal and rich.width < NARROW:
        shown = [at for at in shown if HEAD[at] not in LATER]
    elif not rich.is_terminal:
        rich.width = WIDE
    stated = terms(body)
    table = Table(title=f"certified epsilon: {stated}" if stated else None, title_justify="left")
    for at in shown:
        table.add_column(HEAD[at], overflow="fold")
    for row in rows:
        table.add_row(*(row[at] for at in shown))
    rich.print(table)
    for line in baseline_lines(body["baselines"]) if "baselines" in body else ():
        rich.print(line, style="bold")
    if said := together(body):
        rich.print(said, style="bold")
    show_notes(rich, body)
    for name in ("csv", "md", "plot"):
        if body.get(name):
            rich.print(f"wrote {body[name]}")


def _is_wanting(body: dict[str, Any]) -> bool:
    """Whether a run is damaged, or a baseline failed."""
    trainings = body.get("baselines", {}).get("trainings", ())
    return any(one["state"] in ("damaged", "failed") for one in (*body["rows"], *trainings))


report_command = answering(
    Deferred("dpltm.tickets.workbench.report:report"), show_report, lambda body: body["state"] == "damaged"
)
compare_command = answering(Deferred("dpltm.tickets.workbench.compare:compare_runs"), show_comparison, _is_wanting)
