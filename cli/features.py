"""``dpltm features``, in tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console as RichConsole

from dpltm.cli.console import answering
from dpltm.cli.show import show_pairs
from dpltm.registry import Deferred


def show_made(rich: RichConsole, body: dict[str, Any]) -> None:
    """What was made, and whether it is what is bundled."""
    show_pairs(rich, body["file"], {name: body[name] for name in ("bytes", "command", "provenance", "torch")})
    rich.print(f"sha-256 {body['digest']}", soft_wrap=True)
    other = "not the bundled file: other settings, other versions, or other rounding"
    rich.print("the same as the bundled one" if body["bundled"] else other)


make_command = answering(Deferred("dpltm.tickets.workbench.features:make_features"), show_made)
