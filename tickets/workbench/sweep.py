"""A recipe, run: every trial that is not finished is made, by whatever processes there are.

What is finished is known by its digest, and left alone; what several processes want, the first of them makes
(``tickets.sweep_files`` has the locks). So a sweep goes on where it was, and two in the same folder share its trials.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor
from functools import partial

from dpltm.errors import InputError, in_flags
from dpltm.experiments.recipe import Recipe, Trial
from dpltm.experiments.shared import Task, name_of, needs_of
from dpltm.experiments.table import DIED
from dpltm.privacy.events import DatasetRef
from dpltm.stages.progress import SILENT, Progress
from dpltm.tickets.identity import read_ref
from dpltm.tickets.sweep_files import SweepFolder
from dpltm.tickets.workbench.engines import Engine, Processes
from dpltm.tickets.workbench.trial import TrialRunner


def new_session() -> str:
    """A name for this attempt, and for no other."""
    return f"{os.getpid()}-{secrets.token_hex(8)}"  # no time: a clock may jump back


def processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def local_engine(recipe: Recipe, folder: SweepFolder, jobs: int | None) -> Processes:
    """Processes of this machine: so many, or one a processor; no more than there are trials to be made.

    Args:
        recipe: with its trials.
        folder: of the sweep, with those that are finished.
        jobs: how many processes; None for one a processor.
    """
    wanted = sum(folder.result(trial.label) is None for trial in recipe.trials)
    return Processes(min(jobs or processors(), max(1, wanted)), folder.session)


def sweep(recipe: Recipe, runner: TrialRunner, engine: Engine, progress: Progress = SILENT) -> None:
    """Makes every trial that is not finished. Those that fail are noted in the folder; the others go on.

    Args:
        recipe: the experiment.
        runner: makes its trials, in the folder of the sweep.
        engine: where it makes them.
        progress: told of trials that are finished.
    """
    folder, total = runner.folder, len(recipe.trials)
    with progress.progress(recipe.title, total) as step:

        def look() -> None:
            left = [trial.label for trial in recipe.trials if folder.result(trial.label) is None]
            failed = sum(folder.failure(label) is not None for label in left)
            step(total - len(left), ", ".join(([f"{failed} failed"] if failed else []) + _under_way(recipe, runner)))

        look()
        for wait in (False, True):  # first what nobody is at; then what somebody else has not finished either
            _make_all(recipe, runner, engine, look, wait)
        for name, task in runner.unsettled(recipe).items():
            failures = (folder.failure(name_of(need)) for need in needs_of(task))
            folder.fail(name, next((why for why in failures if why is not None), in_flags(DIED)))
        look()


def _make_all(recipe: Recipe, runner: TrialRunner, engine: Engine, look: Callable[[], None], wait: bool) -> None:
    """Attempts all that is not settled.

    Where a process dies, the others are ended: nobody knows over which task it was. So each that may have been is made
    again, alone: one that takes its process along once more has failed.
    """
    while left := runner.unsettled(recipe):
        try:
            for _ in engine.run(partial(runner.attempt, wait=wait), left):
                look()
            return
        except BrokenExecutor:
            suspects = {name: task for name, task in left.items() if _may_have_begun(runner, task)}
        for name, task in suspects.items() or left.items():
            try:
                for _ in engine.run(partial(runner.attempt, wait=True, again=True), {name: task}):
                    look()
            except BrokenExecutor:
                runner.folder.fail(name, in_flags(DIED))


def _under_way(recipe: Recipe, runner: TrialRunner) -> list[str]:
    """What is being made, as far as it can be told: trials that were begun here, or else what comes first."""
    tasks = runner.unsettled(recipe)
    begun = [name for name, task in tasks.items() if isinstance(task, Trial) and runner.folder.has_begun(name)]
    names = begun or list(tasks)[:1]
    return [f"at {', '.join(names[:2])}" + (f" and {len(names) - 2} more" if len(names) > 2 else "")] if names else []


def _may_have_begun(runner: TrialRunner, task: Task) -> bool:
    """Whether a process of this session may have died over a task."""
    if runner.is_settled(task) or not all(runner.is_settled(need) for need in needs_of(task)):
        return False
    return not isinstance(task, Trial) or runner.folder.has_begun(task.label)


def check_ledgers(recipe: Recipe, folder: SweepFolder) -> None:
    """Opens the ledgers of all trials that nobody is at: what is missing in them is noticed before anything is spent.

    Raises:
        ArtifactError: one is damaged, gone, or holds less than when it was last used.
    """
    for label in (trial.label for trial in recipe.trials):
        with folder.lock(label) as mine:
            if mine:
                folder.check_ledgers(label)


def check_same_records(recipe: Recipe, folder: SweepFolder, records: Mapping[str, DatasetRef]) -> None:
    """Raises InputError where a finished trial was trained on other records than those at hand: rows would mix them.

    Args:
        recipe: with its trials.
        folder: of the sweep, with those that are finished.
        records: at hand, by arm.
    """
    for trial in recipe.trials:
        had = (folder.result(trial.label) or {}).get("records")
        now = records.get(trial.arm.name)
        if had and now and (old := read_ref(had)).content and old.content != now.content:
            raise InputError(
                f"`out`: {folder.trial(trial.label)} was trained on other records than those of {now.name} at hand; take"
                " another `out`, or remove its result.json (not its ledger), to have it run again"
            )
