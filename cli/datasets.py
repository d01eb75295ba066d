"""``dpltm datasets``, in tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console as RichConsole
from rich.table import Table

from dpltm.cli.console import answering
from dpltm.cli.show import show_noted
from dpltm.registry import Deferred


def show_list(rich: RichConsole, body: dict[str, Any]) -> None:
    """The datasets, one line each."""
    table = Table("name", "kind", "at hand", "what", title=f"data home: {body['home']}", title_justify="left")
    for row in body["datasets"]:
        table.add_row(row["name"], row["kind"], row["available"], row["summary"])
    rich.print(table)


def show_info(rich: RichConsole, body: dict[str, Any]) -> None:
    """The facts about one."""
    show_noted(body["name"], rich, body)


schema_command = answering(
    Deferred("dpltm.tickets.workbench.datasets:schema"),
    lambda rich, body: rich.print(
        body["schema"] if body["out"] is None else f"wrote {body['out']}", soft_wrap=True, markup=False
    ),
)
ls_command = answering(Deferred("dpltm.tickets.workbench.datasets:list_datasets"), show_list)
info_command = answering(Deferred("dpltm.tickets.workbench.datasets:dataset_info"), show_info)
