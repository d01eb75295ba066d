"""``dpltm train``: phase 3, trains the winner under differential privacy."""

from __future__ import annotations

from typing import Any

from rich.console import Console as RichConsole

from dpltm.cli.console import Console
from dpltm.cli.options import Call
from dpltm.cli.show import show_pairs, show_privacy
from dpltm.options.train import TrainRequest
from dpltm.tickets.workbench.train import train


def command(request: TrainRequest, call: Call) -> None:
    """Runs ``dpltm train`` and prints its answer."""
    console = Console(call.json, call.quiet)
    body = train(request, console)
    console.result(body, lambda rich: _show(rich, body))


def _show(rich: RichConsole, body: dict[str, Any]) -> None:
    show_pairs(
        rich,
        "would train" if body.get("dry_run") else f"trained {body['run']}",
        {k: round(v) if k == "seconds" else v for k, v in body.items() if k not in ("run", "dry_run")},
    )
    show_privacy(rich, body["privacy"])
