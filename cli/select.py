"""``dpltm select``: phase 2, draws the winner and enters eps1 in the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from dpltm.cli.console import Console
from dpltm.cli.options import Call
from dpltm.cli.show import show_pairs, show_privacy
from dpltm.options.select import SelectRequest

if TYPE_CHECKING:
    from rich.console import Console as RichConsole


def command(request: SelectRequest, call: Call) -> None:
    """Runs ``dpltm select`` and prints its answer."""
    from dpltm.tickets.workbench.select import select  # torch, which help does without

    console = Console(call.json, call.quiet)
    body = select(request, console)
    console.result(body, lambda rich: _show(rich, body))


def _show(rich: RichConsole, body: dict[str, Any]) -> None:
    if body.get("dry_run"):
        show_pairs(rich, "would choose", body)
    else:
        winner = body["winner"]
        rich.print(
            f"winner of {body['ticket_set']}: round {winner['round']}, density {winner['density']:.2%}", style="bold"
        )
    if "revealed" in body:
        table = Table("round", "density", "accuracy", "score", "probability")
        for row in body["revealed"]:
            table.add_row(
                str(row["round"]), *(f"{row[key]:.4f}" for key in ("density", "accuracy", "score", "probability"))
            )
        rich.print(table)
    show_privacy(rich, body["privacy"])
