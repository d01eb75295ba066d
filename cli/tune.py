"""``dpltm tune``: the best settings, in a table."""

from __future__ import annotations

from typing import Any

from rich.console import Console as RichConsole
from rich.table import Table

from dpltm.cli.console import answering
from dpltm.cli.show import show_notes
from dpltm.registry import Deferred

MAX_ROWS = 10
"""Settings in the table."""


def show_search(rich: RichConsole, body: dict[str, Any]) -> None:
    """The best settings."""
    projected = ("components",) if body["best"]["components"] is not None else ()
    columns = (
        "round", "density", *projected, "lr", "clip_norm", "epochs", "batch_size", "noise_multiplier", "accuracy",
    )  # fmt: skip
    table = Table(
        *(column.replace("_", " ") for column in columns),
        title=f"best settings on {body['dataset']}",
        title_justify="left",
    )
    for row in body["trials"][:MAX_ROWS]:
        table.add_row(*(_cell(row[column]) for column in columns))
    rich.print(table)
    if len(body["trials"]) > MAX_ROWS:
        rich.print(f"{len(body['trials']) - MAX_ROWS} more with --json")
    if body["config"]:
        rich.print(f"wrote {body['config']}")
    show_notes(rich, body["privacy"])


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


command = answering(Deferred("dpltm.tickets.workbench.tune:tune"), show_search)
