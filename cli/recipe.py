"""``dpltm run`` of a recipe: flags, progress, and its table."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dpltm.cli.console import Console
from dpltm.cli.show import show_notes
from dpltm.errors import InputError
from dpltm.experiments.markdown import cells, columns, notes_of_total, total
from dpltm.experiments.reader import recipe_and_problems
from dpltm.experiments.ready import check_ready
from dpltm.privacy.figures import figure
from dpltm.records import DatasetCache
from dpltm.tickets.files import read_toml
from dpltm.tickets.identity import UserRegistry
from dpltm.tickets.sweep_files import SweepFolder
from dpltm.tickets.workbench.records import open_dataset
from dpltm.tickets.workbench.results import finish, plan
from dpltm.tickets.workbench.sweep import (
    check_jobs,
    check_ledgers,
    check_same_records,
    dask_workers,
    local_workers,
    new_session,
    sweep,
)
from dpltm.tickets.workbench.trial import TrialRunner

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from dpltm.options.run import RunRequest

NARROW = 110
"""Characters of a line below which a table leaves out what results.md has as well."""

WIDE = 160
"""Characters of a line where nobody's terminal says how many there are."""


def run_recipe(path: Path, options: RunRequest, console: Console) -> None:
    """Runs a recipe and prints its table.

    Args:
        path: a TOML file.
        options: folder, seeds, jobs and scheduler; what a recipe says for each arm must be left out.
        console: where the table goes.

    Raises:
        InputError: whatever is wrong with it, before anything starts.
        typer.Exit: the table has holes; with exit code 1.
    """
    for flag, given, usual in (("--epsilon", options.epsilon, 1.0), ("--delta", options.delta, 1e-5),
                               ("--split", options.split, 0.9), ("--seed", options.seed, None)):  # fmt: skip
        if given != usual:
            raise InputError(f"{flag}: a recipe says it for each of its arms; leave {flag} out")
    check_jobs(options.jobs)
    document = read_toml(path)
    recipe, problems = recipe_and_problems(document, path, seeds=options.seeds, quick=options.quick)
    dataset_cache = DatasetCache()
    load = partial(open_dataset, dataset_cache=dataset_cache)
    records = check_ready(recipe, load, UserRegistry(remember=False), problems)
    root = Path(options.out or f"{path.stem}{'-quick' if recipe.quick else ''}.sweep")
    if options.dry_run:
        body = plan(recipe, root, dataset_cache, console)
        console.result(body, lambda rich: _show_plan(rich, body))
        return
    session = new_session()
    with contextlib.ExitStack() as opened:
        cluster = None if options.scheduler is None else opened.enter_context(dask_workers(options.scheduler, session))
        folder = SweepFolder(root, recipe.title, session)
        check_same_records(recipe, folder, records)
        check_ledgers(recipe, folder)
        workers = cluster or local_workers(recipe, folder, options.jobs)
        sweep(recipe, TrialRunner(folder, dataset_cache), workers, console)
    body = finish(recipe, folder)
    console.result(body, lambda rich: _show(rich, body))
    if any(row["missing"] for row in body["arms"]):
        raise typer.Exit(1)


def _show_plan(rich: RichConsole, body: dict[str, Any]) -> None:
    """What would be done, for people."""
    from rich.table import Table

    head = ("arm", "paper", "tickets", "dataset", "epsilon asked for", "noise multiplier", "certified epsilon")
    table = Table(*head, title=f"would run {body['recipe']} in {body['out']}", title_justify="left")
    for row in body["arms"]:
        keys = ("name", "paper", "tickets", "dataset", "epsilon", "noise_multiplier")
        certified = row["at_most"] if row["privacy"] is None else figure(row["privacy"]["certified"]["epsilon"])
        table.add_row(*("-" if row[key] is None else str(row[key]) for key in keys), certified)
    rich.print(table)
    rich.print(f"{body['members']} trainings: {len(body['arms'])} arms, {len(body['seeds'])} seeds")


def _show(rich: RichConsole, body: dict[str, Any]) -> None:
    """The table on the terminal."""
    from rich.table import Table

    quick = " (quick version: says that it works, and no more)" if body["quick"] else ""
    if not rich.is_terminal:
        rich.width = WIDE
    table = Table(title=f"{body['recipe']}{quick}", title_justify="left")
    rows = [cells(row, body) for row in body["arms"]]
    head = columns(body)
    shown = [at for at in range(len(head)) if at == 0 or any(row[at] not in ("", "-") for row in rows)]
    if rich.width < NARROW:
        shown = [at for at in shown if head[at] not in ("sd", "live", "min")]
    for at in shown:
        table.add_column(head[at], overflow="fold", min_width=10 if at == 0 else None)
    for row in rows:
        table.add_row(*(row[at] for at in shown))
    rich.print(table)
    for row in body["arms"]:
        for hole in row["missing"]:
            rich.print(f"hole: {row['name']}, seed {hole['seed']}: {hole['why']}", style="bold")
        if row["note"]:
            rich.print(f"- {row['name']}: {row['note']}", style="dim")
    show_notes(rich, body)
    for note in notes_of_total(body):
        rich.print(f"- {note}", style="dim")
    rich.print(f"all together: certified epsilon = {total(body)}", style="bold")
    rich.print(f"wrote {body['out']}/results.json, results.md" + (", figure.png" if body.get("figure") else ""))
