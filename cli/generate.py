"""``dpltm generate``: a ticket set, in a table."""

from __future__ import annotations

from typing import Any

from rich.console import Console as RichConsole

from dpltm.cli.console import answering
from dpltm.cli.show import show_notes, show_pairs, show_privacy, show_tickets
from dpltm.registry import Deferred
from dpltm.tickets.workbench.records import table_first


def show_generation(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the tickets, or what would be made, and what is certified."""
    if body.get("dry_run"):
        show_pairs(rich, "would generate", body)
    else:
        show_tickets(rich, body)
    if body["provenance"] in ("private", "dp"):
        show_privacy(rich, body["privacy"])
    else:
        show_notes(rich, body["privacy"])


generate_command = answering(table_first(Deferred("dpltm.tickets.workbench.generate:generate")), show_generation)
