"""``dpltm generate``: phase 1, writes a ticket set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpltm.cli.console import Console
from dpltm.cli.options import Call
from dpltm.cli.show import show_notes, show_pairs, show_privacy, show_tickets
from dpltm.options.generate import GenerateRequest

if TYPE_CHECKING:
    from rich.console import Console as RichConsole


def command(request: GenerateRequest, call: Call) -> None:
    """Runs ``dpltm generate`` and prints its answer."""
    from dpltm.tickets.workbench.generate import generate  # torch, which help does without

    console = Console(call.json, call.quiet)
    body = generate(request, console)
    console.result(body, lambda rich: _show(rich, body))


def _show(rich: RichConsole, body: dict[str, Any]) -> None:
    if body.get("dry_run"):
        show_pairs(rich, "would generate", body)
    else:
        show_tickets(rich, body)
    if body["provenance"] in ("private", "dp"):
        show_privacy(rich, body["privacy"])
    else:
        show_notes(rich, body["privacy"])
