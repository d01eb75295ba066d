"""``dpltm generate``, ``select``, ``train``, ``tune``, ``run`` and ``demo``: what the stages did, in tables."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console as RichConsole

from dpltm.cli.console import Console, answering
from dpltm.cli.show import named, show_answer, show_notes, show_privacy, show_table, show_tickets, show_wrote
from dpltm.errors import InputError
from dpltm.options.run import DemoRequest, RunRequest
from dpltm.registry import Deferred

show_run = partial(show_answer, "trained {run}")
show_draw = partial(show_answer, "winner of {ticket_set}: round {winner[round]}")


def show_generation(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the tickets, and what is certified."""
    show_tickets(rich, body)
    if body["provenance"] in ("private", "dp"):
        show_privacy(rich, body["privacy"])
    else:
        show_notes(rich, body["privacy"])


def show_search(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the ten best settings."""
    title = f"best of {len(body['trials'])} settings on {body['dataset']} by {body['metric']}"
    judged = "accuracy" if body["metric"] == "accuracy" else "score"
    settings = named("round", "density", "lr", "clip_norm", "epochs", "batch_size", "noise_multiplier", judged)
    show_table(rich, body["trials"][:10], settings, title)
    show_wrote(rich, body, "config")
    show_notes(rich, body["privacy"])


def show_stages(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the three stages; the privacy of the last is that of all."""
    show_generation(rich, body["generate"])
    show_draw(rich, body["select"])
    show_run(rich, body["train"])


generate_command = answering(Deferred("dpltm.tickets.workbench.stages:generate"), show_generation)
select_command = answering(Deferred("dpltm.tickets.workbench.stages:select"), show_draw)
train_command = answering(Deferred("dpltm.tickets.workbench.stages:train"), show_run)
tune_command = answering(Deferred("dpltm.tickets.workbench.stages:tune"), show_search)

RUN_FILE, DEMO = Deferred("dpltm.tickets.workbench.run:run_file"), Deferred("dpltm.tickets.workbench.run:demo")
SHOW_RECIPE = Deferred("dpltm.cli.evaluate:show_recipe")


def run_command(options: RunRequest, console: Console, config: str | None) -> None:
    """Run ``dpltm run`` and print its answer; the exit code is 1 where the table of a recipe has holes."""
    if config is None:
        raise InputError(
            "--config is missing: name a TOML file with [generate], [select] and [train]; see examples/digits.toml"
        )
    body = RUN_FILE(Path(config), options, console)
    plan = partial(show_answer, "would do")
    console.result(body, SHOW_RECIPE if "arms" in body else plan if body.get("dry_run") else show_stages)
    if any(row.get("missing") for row in body.get("arms", ())):
        raise typer.Exit(1)


def demo_command(options: DemoRequest, console: Console, _: str | None) -> None:
    """Run ``dpltm demo`` and print its answer."""
    with tempfile.TemporaryDirectory(prefix="dpltm-demo-") as folder:
        body = DEMO(options, Path(options.out or f"{folder}/demo"), console)
    console.result(body, show_stages)
