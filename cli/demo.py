"""``dpltm demo``: the three stages on the digits inside scikit-learn, in seconds."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.cli.console import Console
from dpltm.cli.options import Call
from dpltm.cli.show import show_privacy, show_stages
from dpltm.options.run import DemoRequest
from dpltm.registry import Deferred

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

DEMO = Deferred("dpltm.tickets.workbench.run:demo")


def demo_command(options: DemoRequest, call: Call) -> None:
    """Runs ``dpltm demo`` and prints its answer."""
    console = Console(call.json, call.quiet)
    with console.at_work(), contextlib.ExitStack() as kept:
        kept_for_now = options.out or f"{kept.enter_context(tempfile.TemporaryDirectory(prefix='dpltm-demo-'))}/demo"
        body = DEMO(options, Path(kept_for_now), console)
    console.result(body, lambda rich: _show(rich, body, saved=options.out is not None), options)


def _show(rich: RichConsole, body: dict[str, Any], *, saved: bool) -> None:
    show_stages(rich, body)
    show_privacy(rich, body["privacy"])
    if saved:
        rich.print(f"kept in {body['out']}: tickets/, run/ and the ledger")
