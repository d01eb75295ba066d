"""``dpltm select``: the winner, in words."""

from __future__ import annotations

from typing import Any

from rich.console import Console as RichConsole
from rich.table import Table

from dpltm.cli.console import answering
from dpltm.cli.show import show_pairs, show_privacy
from dpltm.privacy.describe import percent
from dpltm.registry import Deferred
from dpltm.tickets.workbench.records import table_first


def show_draw(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the winner, whatever is revealed, and what is certified."""
    if body.get("dry_run"):
        show_pairs(rich, "would choose", body)
    else:
        winner = body["winner"]
        rich.print(
            f"winner of {body['ticket_set']}: round {winner['round']}, density {percent(winner['density'])}",
            style="bold",
        )
    if "revealed" in body:
        table = Table("round", "density", "accuracy", "score", "probability")
        for row in body["revealed"]:
            shares = (percent(row[key]) for key in ("density", "accuracy"))
            table.add_row(str(row["round"]), *shares, f"{row['score']:.4g}", percent(row["probability"]))
        rich.print(table)
    show_privacy(rich, body["privacy"])


select_command = answering(table_first(Deferred("dpltm.tickets.workbench.select:select")), show_draw)
