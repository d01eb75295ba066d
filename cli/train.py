"""``dpltm train``: what a training was, in tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console as RichConsole

from dpltm.cli.console import answering
from dpltm.cli.show import show_pairs, show_privacy, show_verdict, with_skill
from dpltm.registry import Deferred
from dpltm.tickets.workbench.records import table_first


def show_training(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the facts of a run, or of what would be one, and its privacy."""
    show_pairs(
        rich,
        "would train" if body.get("dry_run") else f"trained {body['run']}",
        with_skill({k: round(v) if k == "seconds" else v for k, v in body.items() if k not in ("run", "dry_run")}),
    )
    show_privacy(rich, body["privacy"])
    show_verdict(rich, body.get("skill"))


train_command = answering(table_first(Deferred("dpltm.tickets.workbench.train:train_with_ranks")), show_training)
