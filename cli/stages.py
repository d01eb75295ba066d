"""``dpltm generate``, ``select``, ``train``, ``tune``, ``run`` and ``demo``: what the stages did, in tables."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console as RichConsole

from dpltm.cli.commands import Call
from dpltm.cli.console import answering
from dpltm.cli.show import (
    Cell,
    show_answer,
    show_notes,
    show_plan,
    show_privacy,
    show_stages,
    show_table,
    show_tickets,
    show_verdict,
    show_wrote,
)
from dpltm.errors import InputError
from dpltm.options.run import DemoRequest, RunRequest
from dpltm.privacy.describe import percent
from dpltm.registry import Deferred

train_command = answering(Deferred("dpltm.tickets.workbench.stages:train"), partial(show_answer, "trained {run}"))


def show_generation(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the tickets, and what is certified."""
    show_tickets(rich, body)
    if body["provenance"] in ("private", "dp"):
        show_privacy(rich, body["privacy"])
    else:
        show_notes(rich, body["privacy"])


generate_command = answering(Deferred("dpltm.tickets.workbench.stages:generate"), show_generation)


def show_draw(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the winner, whatever is revealed, and what is certified."""
    winner = f"round {body['winner']['round']}, density {percent(body['winner']['density'])}"
    rich.print(f"winner of {body['ticket_set']}: {winner}", style="bold")
    if "revealed" in body:
        columns: dict[str, Cell] = {name: name for name in ("round", "density", "accuracy", "score")}
        show_table(rich, body["revealed"], columns | {"probability": lambda row: percent(row["probability"])})
    show_privacy(rich, body["privacy"])


select_command = answering(Deferred("dpltm.tickets.workbench.stages:select"), show_draw)


MAX_ROWS = 10
"""Settings in the table."""

COLUMNS = ("round", "density", "lr", "clip_norm", "epochs", "batch_size", "noise_multiplier", "score", "accuracy")
"""Of the table, where any setting has such a thing."""


def show_search(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the best settings."""
    rows = [{**dict.fromkeys(COLUMNS), **row} for row in body["trials"]]
    # a score by accuracy is the accuracy, in whose place it then stands
    heads = {body["metric"] if name == "score" else name.replace("_", " "): name for name in COLUMNS}
    show_table(rich, rows[:MAX_ROWS], heads, f"best of {len(rows)} settings on {body['dataset']}")
    show_wrote(rich, body, "config")
    show_notes(rich, body["privacy"])


tune_command = answering(Deferred("dpltm.tickets.workbench.stages:tune"), show_search)


RUN_FILE, DEMO = Deferred("dpltm.tickets.workbench.run:run_file"), Deferred("dpltm.tickets.workbench.run:demo")
SHOW_RECIPE = Deferred("dpltm.cli.evaluate:show_recipe")


def run_command(options: RunRequest, call: Call) -> None:
    """Run ``dpltm run`` and print its answer; the exit code is 1 where the table of a recipe has holes."""
    if call.config is None:
        raise InputError(
            "--config is missing: name a TOML file with [generate], [select] and [train]; see examples/digits.toml"
        )
    body = RUN_FILE(Path(call.config), options, call.console)
    show = SHOW_RECIPE if "arms" in body else show_plan if body.get("dry_run") else _show
    call.console.result(body, lambda rich: show(rich, body))
    if any(row.get("missing") for row in body.get("arms", ())):
        raise typer.Exit(1)


def demo_command(options: DemoRequest, call: Call) -> None:
    """Run ``dpltm demo`` and print its answer."""
    with tempfile.TemporaryDirectory(prefix="dpltm-demo-") as folder:
        body = DEMO(options, Path(options.out or f"{folder}/demo"), call.console)
    call.console.result(body, lambda rich: _show(rich, body))


def _show(rich: RichConsole, body: dict[str, Any]) -> None:
    show_stages(rich, body)
    show_privacy(rich, body["privacy"])
    show_verdict(rich, body["train"]["skill"])
