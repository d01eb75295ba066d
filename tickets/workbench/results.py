"""What came of a sweep: the table of its recipe, from what trials left in the folder, written there as well."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpltm.errors import ArtifactError
from dpltm.experiments.markdown import markdown
from dpltm.experiments.recipe import Arm, Recipe, grouped
from dpltm.experiments.table import Outcome, planned, public_part, table, trains_at_once
from dpltm.options.sections import resolve
from dpltm.options.train import TrainRequest
from dpltm.privacy.events import Event
from dpltm.privacy.figures import figure
from dpltm.records import DatasetCache
from dpltm.stages.progress import SILENT, Progress
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.published import published
from dpltm.tickets.sweep_files import SweepFolder
from dpltm.tickets.sweep_plot import Line, draw, over_steps
from dpltm.tickets.workbench.train import train


def plan(recipe: Recipe, root: Path, dataset_cache: DatasetCache, progress: Progress = SILENT) -> dict[str, Any]:
    """What would be done: every arm, with the epsilon that it would spend, as far as that does not wait for its tickets.

    Args:
        recipe: what would be done.
        root: folder of the sweep.
        dataset_cache: datasets that were read already.
        progress: who watches.

    Returns:
        The answer of ``dpltm run --dry-run`` of a recipe.
    """
    spent: list[dict[str, Any] | None] = []
    with progress.progress("what it would spend", len(recipe.arms)) as step:
        for arm in recipe.arms:
            spent.append(_would_spend(recipe, arm, dataset_cache) if trains_at_once(arm) else None)
            step(len(spent))
    body = planned(recipe, spent)
    head = {key: body[key] for key in ("dry_run", "recipe", "source")}
    return {**head, "out": str(root), **body}


def _would_spend(recipe: Recipe, arm: Arm, dataset_cache: DatasetCache) -> dict[str, Any]:
    """Certified and nominal epsilon of one training."""
    section = {**arm.train, "dense": True, "dry-run": True}
    request = resolve(TrainRequest, {}, section, str(recipe.path))
    privacy: dict[str, Any] = train(request, SILENT, dataset_cache=dataset_cache)["privacy"]
    return privacy


def answer(recipe: Recipe, folder: SweepFolder) -> dict[str, Any]:
    """The table of a sweep, from what trials left in its folder.

    Raises:
        ArtifactError: a finished trial has no ledger: nothing could be said of what it cost.
    """
    outcomes = [
        Outcome(trial, folder.result(trial.label), folder.failure(trial.label), folder.work(trial.label))
        for trial in recipe.trials
    ]
    body = table(recipe, outcomes, ledgers(recipe, folder))
    head = {key: body[key] for key in ("recipe", "source")}
    return {**head, "config": str(recipe.path), "out": str(folder.root), **body}


def ledgers(recipe: Recipe, folder: SweepFolder) -> list[tuple[Event, ...]]:
    """The events of every ledger in the folder: of trials, of ticket sets, of failed attempts.

    Raises:
        ArtifactError: a finished trial has none.
    """
    for trial in recipe.trials:
        if folder.result(trial.label) is not None and not (folder.trial(trial.label) / "ledger.jsonl").is_file():
            raise ArtifactError(
                f"{folder.trial(trial.label)}: finished, but its ledger is gone, so nobody can say what it cost; put it"
                " back, or take another `out`"
            )
    return [open_ledger(path, links=False).events for path in folder.all_ledgers()]


def finish(recipe: Recipe, folder: SweepFolder) -> dict[str, Any]:
    """The table, written as ``results.json``, ``results.md`` and, where the recipe asks for one, ``figure.png``.

    The files hold no minutes, no folders, and nothing that trials said when they failed.
    """
    body = answer(recipe, folder)
    lines = _lines(recipe, body, folder)
    body["figure"] = str(folder.root / "figure.png") if lines else None
    shared = published(public_part(body, recipe))
    folder.write_text("results.json", json.dumps(shared, indent=1, allow_nan=False) + "\n")
    folder.write_text("results.md", markdown(shared))
    if lines and recipe.figure is not None:
        steps = recipe.figure["over"] == "steps"
        draw(
            folder.root / "figure.png", lines, title=recipe.title, x=recipe.figure.get("x", "steps" if steps else "value"),
            measure=recipe.measure, steps=steps, log=recipe.figure.get("log", False),
        )  # fmt: skip
    return body


def _lines(recipe: Recipe, body: Mapping[str, Any], folder: SweepFolder) -> list[Line]:
    """The lines of the recipe's figure, from what is finished."""
    if recipe.figure is None:
        return []
    rows = {row["name"]: row for row in body["arms"]}
    if recipe.figure["over"] == "values":
        lines = [_over_values(name, arms, rows) for name, arms in grouped(recipe.arms)]
    else:
        lines = []
        for arm in recipe.arms:
            labels = [trial.label for trial in recipe.trials if trial.arm is arm]
            runs = [folder.trial(label) / "run" for label in labels if folder.result(label) is not None]
            if runs:
                spent = figure(rows[arm.name]["privacy"]["certified"]["epsilon"])
                lines.append(over_steps(arm.name, runs, recipe.measure, spent))
    return [line for line in lines if line is not None]


def _over_values(name: str, arms: list[Arm], rows: Mapping[str, Any]) -> Line | None:
    """The line of a group of arms over what varies between them; None where none is finished."""
    points = [(arm.varied, rows[arm.name]) for arm in arms if isinstance(arm.varied, (int, float))]
    points = [(x, row) for x, row in points if row["mean"] is not None]
    if not points:
        return None
    half = [row["interval"] or 0.0 for _, row in points]
    mean = [row["mean"] for _, row in points]
    low, high = ([m + sign * h for m, h in zip(mean, half, strict=True)] for sign in (-1, 1))
    epsilon = [float(row["privacy"]["certified"]["epsilon"]) for _, row in points]
    ends = dict.fromkeys(figure(pick(epsilon)) for pick in (min, max))
    title = f"{name} (certified epsilon {' to '.join(ends)})"
    return Line(title, [float(x) for x, _ in points], mean, low, high, epsilon)
