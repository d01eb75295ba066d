"""``dpltm generate``, ``select``, ``train``, ``tune``, ``run`` and ``demo``: what the stages did, in tables."""

from __future__ import annotations

import contextlib
import tempfile
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
    show_pairs,
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


def show_training(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the facts of a run, or of what would be one, and its privacy."""
    show_answer("would train" if body.get("dry_run") else "trained {run}", rich, body)


train_command = answering(Deferred("dpltm.tickets.workbench.stages:train"), show_training)


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


generate_command = answering(Deferred("dpltm.tickets.workbench.stages:generate"), show_generation)


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
        columns: dict[str, Cell] = {name: name for name in ("round", "density", "accuracy", "score")}
        show_table(rich, body["revealed"], columns | {"probability": lambda row: percent(row["probability"])})
    show_privacy(rich, body["privacy"])


select_command = answering(Deferred("dpltm.tickets.workbench.stages:select"), show_draw)


MAX_ROWS = 10
"""Settings in the table."""

COLUMNS = (
    "round", "density", "lr", "clip_norm", "epochs", "batch_size", "noise_multiplier", "accuracy",
    "score",
)  # fmt: skip
"""Of the table, where any setting has such a thing."""


def show_search(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the best settings."""
    rows = body["trials"]
    columns = [column for column in COLUMNS if any(row.get(column) is not None for row in rows)]
    if "accuracy" in columns:
        columns.remove("score")  # which is the same
    heads = {body["metric"] if column == "score" else column.replace("_", " "): column for column in columns}
    show_table(rich, rows[:MAX_ROWS], heads, f"best settings on {body['dataset']}")
    if len(rows) > MAX_ROWS:
        rich.print(f"{len(rows) - MAX_ROWS} more with --json")
    show_wrote(rich, body, "config")
    show_notes(rich, body["privacy"])


tune_command = answering(Deferred("dpltm.tickets.workbench.stages:tune"), show_search)


RUN_FILE, DEMO = Deferred("dpltm.tickets.workbench.sweep:run_file"), Deferred("dpltm.tickets.workbench.run:demo")
SHOW_RECIPE = Deferred("dpltm.cli.evaluate:show_recipe")


def run_command(options: RunRequest, call: Call) -> None:
    """Run ``dpltm run`` and print its answer; the exit code is 1 where the table of a recipe has holes."""
    if call.config is None:
        raise InputError(
            "--config is missing: name a TOML file with [generate], [select] and [train]; see examples/digits.toml"
        )
    body = RUN_FILE(Path(call.config), options, call.console)
    call.console.result(body, lambda rich: (SHOW_RECIPE if "arms" in body else _show)(rich, body))
    if any(row.get("missing") for row in body.get("arms", ())):
        raise typer.Exit(1)


def demo_command(options: DemoRequest, call: Call) -> None:
    """Run ``dpltm demo`` and print its answer."""
    console = call.console
    with contextlib.ExitStack() as kept:
        out = options.out or f"{kept.enter_context(tempfile.TemporaryDirectory(prefix='dpltm-demo-'))}/demo"
        body = DEMO(options, Path(out), console)
    console.result(body, lambda rich: _show(rich, body))


def _show(rich: RichConsole, body: dict[str, Any]) -> None:
    if body.get("dry_run"):
        show_answer("would run", rich, body)
        return
    show_stages(rich, body)
    show_privacy(rich, body["privacy"])
    show_verdict(rich, body["train"]["skill"])
