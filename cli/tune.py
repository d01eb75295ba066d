"""``dpltm tune``: the best settings, in a table."""

from __future__ import annotations

from typing import Any

from rich.console import Console as RichConsole
from rich.table import Table

from dpltm.cli.console import answering
from dpltm.cli.show import show_notes, shown
from dpltm.registry import Deferred

MAX_ROWS = 10
"""Settings in the table."""

COLUMNS = (
    "round", "density", "lr", "clip_norm", "epochs", "batch_size", "noise_multiplier", "accuracy",
    "score",
)  # fmt: skip
"""Of the table, where any setting has such a thing."""


def show_search(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the best settings."""
    rows = body["trials"]
    columns = [column for column in COLUMNS if any(row.get(column) is not None for row in rows)]
    if "accuracy" in columns:
        columns.remove("score")  # which is the same
    names = [body["metric"] if column == "score" else column.replace("_", " ") for column in columns]
    table = Table(*names, title=f"best settings on {body['dataset']}", title_justify="left")
    for row in rows[:MAX_ROWS]:
        table.add_row(*("-" if row[column] is None else shown(column, row[column]) for column in columns))
    rich.print(table)
    if len(rows) > MAX_ROWS:
        rich.print(f"{len(rows) - MAX_ROWS} more with --json")
    if body["config"]:
        rich.print(f"wrote {body['config']}")
    show_notes(rich, body["privacy"])


tune_command = answering(Deferred("dpltm.tickets.workbench.tune:tune"), show_search)
