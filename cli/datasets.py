"""``dpltm datasets``, in tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console as RichConsole
from rich.table import Table

from dpltm.cli.console import answering
from dpltm.cli.show import show_noted, show_notes, show_pairs, show_privacy
from dpltm.registry import Deferred


def show_list(rich: RichConsole, body: dict[str, Any]) -> None:
    """The datasets, one line each."""
    table = Table("name", "kind", "at hand", "what", title=f"data home: {body['home']}", title_justify="left")
    for row in body["datasets"]:
        table.add_row(row["name"], row["kind"], row["available"], row["summary"])
    rich.print(table)


def show_schema(rich: RichConsole, body: dict[str, Any]) -> None:
    """A draft, or where it was written; of a finished schema, what finding it cost."""
    written = f"wrote {body['out']}" if body.get("out") else None
    if "privacy" in body:
        facts = {key: value or None for key, value in body.items() if key not in ("schema", "out", "dry_run", "notes")}
        show_pairs(rich, written or "would find", facts)
        show_privacy(rich, body["privacy"])
        show_notes(rich, body)
    else:
        rich.print(written or body["schema"], soft_wrap=True, markup=False)


def show_overlap(rich: RichConsole, body: dict[str, Any]) -> None:
    """Rows that two files share, a line for each two splits."""
    table = Table(body["first"], body["second"], "records", "shared", "rows of the first", "rows of the second")
    for pair in body["splits"]:
        texts = (", ".join(map(str, pair[key])) for key in ("records", "first_rows", "second_rows"))
        records, first, second = texts
        table.add_row(pair["first"], pair["second"], records, f"{pair['shared']:,}", first, second)
    rich.print(table)
    show_notes(rich, body)


overlap_command = answering(Deferred("dpltm.tickets.workbench.datasets:overlap"), show_overlap)
schema_command = answering(
    Deferred("dpltm.tickets.workbench.datasets:schema"), show_schema, lambda body: body.get("features") == 0
)
ls_command = answering(Deferred("dpltm.tickets.workbench.datasets:list_datasets"), show_list)
info_command = answering(
    Deferred("dpltm.tickets.workbench.datasets:dataset_info"), lambda rich, body: show_noted(body["name"], rich, body)
)
