"""``dpltm run``: the three stages from one file, or a recipe; and ``dpltm demo``, the three stages on digits."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dpltm.cli.commands import Call
from dpltm.cli.show import show_pairs, show_privacy, show_stages, show_verdict
from dpltm.errors import InputError
from dpltm.options.run import DemoRequest, RunRequest
from dpltm.registry import Deferred
from dpltm.tickets.files import read_toml

if TYPE_CHECKING:
    from rich.console import Console as RichConsole


RUN_FILE, DEMO = Deferred("dpltm.tickets.workbench.run:run_file"), Deferred("dpltm.tickets.workbench.run:demo")
RUN_RECIPE, SHOW_RECIPE = (
    Deferred("dpltm.tickets.workbench.sweep:run_recipe"),
    Deferred("dpltm.cli.report:show_recipe"),
)


def run_command(options: RunRequest, call: Call) -> None:
    """Run ``dpltm run`` and print its answer; the exit code is 1 where the table of a recipe has holes."""
    if call.config is None:
        raise InputError(
            "--config is missing: name a TOML file with [generate], [select] and [train]; see examples/digits.toml"
        )
    console, path = call.console, Path(call.config)
    if {"recipe", "arm"} & read_toml(path).keys():
        body = RUN_RECIPE(path, options, console)
        console.result(body, lambda rich: SHOW_RECIPE(rich, body))
        if any(row.get("missing") for row in body["arms"]):
            raise typer.Exit(1)
        return
    of_recipes = ("--seeds", options.seeds), ("--quick", options.quick), ("--jobs", options.jobs)
    for flag, given in (*of_recipes, ("--scheduler", options.scheduler)):
        if given:
            raise InputError(f"{flag}: of a recipe, and {path} is none (it has no table [recipe]); leave it out")
    options = replace(options, out=options.out or "dpltm-run")

    body = RUN_FILE(path, options, console)
    console.result(body, lambda rich: _show(rich, body))


def demo_command(options: DemoRequest, call: Call) -> None:
    """Run ``dpltm demo`` and print its answer."""
    console = call.console
    with contextlib.ExitStack() as kept:
        out = options.out or f"{kept.enter_context(tempfile.TemporaryDirectory(prefix='dpltm-demo-'))}/demo"
        body = DEMO(options, Path(out), console)
    console.result(body, lambda rich: _show(rich, body))


def _show(rich: RichConsole, body: dict[str, Any]) -> None:
    if body.get("dry_run"):
        show_pairs(rich, "would run", body)
        show_privacy(rich, body["privacy"])
        return
    show_stages(rich, body)
    show_privacy(rich, body["privacy"])
    show_verdict(rich, body["train"]["skill"])
