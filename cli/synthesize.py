"""``dpltm synthesize``: what was made, in a table."""

from __future__ import annotations

from typing import Any

from rich.console import Console as RichConsole

from dpltm.cli.console import answering
from dpltm.cli.show import show_pairs, show_privacy
from dpltm.privacy.describe import percent
from dpltm.registry import Deferred


def show_synthesis(rich: RichConsole, body: dict[str, Any]) -> None:
    """The file and its facts, the score, and what is certified."""
    title = "would synthesize" if body.get("dry_run") else "synthesized"
    show_pairs(rich, title, {name: value for name, value in body.items() if name not in ("dry_run", "score")})
    if body.get("score") is not None:
        score = body["score"]
        rich.print(
            f"trained on synthetic, tested on real: {percent(score['accuracy'])} of {score['records']:,} test records,"
            f" {score['model']}"
        )
    show_privacy(rich, body["privacy"])


synthesize_command = answering(Deferred("dpltm.tickets.workbench.synthesize:synthesize"), show_synthesis)
