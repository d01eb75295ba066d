"""A recipe, run: every trial that is not finished is made, by whatever processes there are; and what came of them.

What is finished is known by its digest, and left alone; what several processes want, the first of them makes
(``tickets.sweep_files`` has the locks). So a sweep goes on where it was, and two in the same folder share its trials.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed, parallel_config

from dpltm.errors import InputError, as_flags, first_line, in_flags
from dpltm.experiments.reader import read_recipe
from dpltm.experiments.ready import check_ready
from dpltm.experiments.recipe import Arm, Recipe, Task, Trial, grouped
from dpltm.experiments.table import Outcome, markdown, planned, table, trains_at_once
from dpltm.options import resolve
from dpltm.options.run import RunRequest
from dpltm.options.train import TrainRequest
from dpltm.privacy.account import Account
from dpltm.privacy.entry import Entry, Part, lineage_from_json, lineage_of, part_from_json
from dpltm.privacy.figures import figure
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Adjacency
from dpltm.privacy.statement import statement
from dpltm.progress import SILENT, Progress
from dpltm.records import DatasetCache
from dpltm.tickets.files import published, read_toml
from dpltm.tickets.ledger_file import BESIDE, open_ledger
from dpltm.tickets.sweep_files import SweepFolder
from dpltm.tickets.sweep_plot import Line, draw, over_steps
from dpltm.tickets.workbench.records import open_dataset
from dpltm.tickets.workbench.train import train
from dpltm.tickets.workbench.trial import DIED, TrialRunner

MAX_JOBS = 1024

CONNECT_SECONDS = 10
"""Time for a Dask scheduler to answer, and for its first worker."""

IDLE_SECONDS = 10
"""Time after which a process with nothing to do ends: none outlives its sweep by more."""


def new_session() -> str:
    """Name of this attempt, and of no other."""
    return f"{os.getpid()}-{secrets.token_hex(8)}"  # no time: a clock may jump back


def check_jobs(jobs: int | None) -> None:
    """Raises InputError for a number of processes that cannot be meant."""
    if jobs is not None and not 1 <= jobs <= MAX_JOBS:
        raise InputError(f"`jobs`: {jobs} is not from 1 to {MAX_JOBS}")


def processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Workers:
    """Where trials run: on processes of this machine (this one alone where there is one job), or on a Dask cluster.

    joblib sends them calls by pickle, which runs what it is sent: connect to a scheduler that is your own. On a cluster, a
    task whose worker dies goes to another one; what was begun is not begun again.

    Attributes:
        jobs: how many processes.
        session: names the sweep: processes of an earlier one, with its datasets, are not used again.
        client: connected to a Dask scheduler; None for processes of this machine.
    """

    jobs: int
    session: str
    client: Any = None

    def run(self, attempt: Callable[[Task], None], ordered: Mapping[str, Task]) -> Iterator[None]:
        """Calls ``attempt`` for every task, each after what it needs; yields when one has come back.

        Raises:
            BrokenExecutor: a process died over one of them; the others may not have come back.
        """
        for wave in [list(ordered.values())] if self.jobs == 1 else _waves(ordered):
            with warnings.catch_warnings(), self._backend():
                # joblib warns of processes that it replaces, and of work that an interrupt takes from it
                warnings.filterwarnings("ignore", category=UserWarning, module="joblib")
                parallel = Parallel(n_jobs=self.jobs, return_as="generator_unordered", batch_size=1)
                with contextlib.closing(parallel(delayed(attempt)(task) for task in wave)) as finished:
                    for _ in finished:
                        yield

    def _backend(self) -> parallel_config:
        if self.client is not None:
            return parallel_config(backend="dask", client=self.client, wait_for_workers_timeout=CONNECT_SECONDS)
        begin = {"initializer": _leave_interrupts, "initargs": (self.session,)}
        return parallel_config(backend="loky", idle_worker_timeout=IDLE_SECONDS, **begin)


def local_workers(recipe: Recipe, folder: SweepFolder, jobs: int | None) -> Workers:
    """Processes of this machine: so many, or one a processor; no more than there are trials to be made.

    Args:
        recipe: with its trials.
        folder: of the sweep, with those that are finished.
        jobs: how many processes; None for one a processor.
    """
    wanted = sum(folder.result(trial.label) is None for trial in recipe.trials)
    return Workers(min(jobs or processors(), max(1, wanted)), folder.session)


@contextlib.contextmanager
def dask_workers(address: str, session: str) -> Iterator[Workers]:
    """The workers of a Dask scheduler, for as long as the block lasts.

    Raises:
        InputError: Dask is not installed, no scheduler or worker answers, or a worker cannot run what it is sent.
    """
    try:
        import distributed
    except ImportError:
        raise InputError("`scheduler`: needs Dask, which is not installed; pip install 'dpltm[dask]'") from None
    client, why = None, ""
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        why = first_line(error)
    if client is None:  # not within the except clause: its error would keep half a client alive
        raise InputError(f"`scheduler`: {address}: no Dask scheduler answers ({why}); start one with dask scheduler")
    with client:
        try:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError:
            raise InputError(f"`scheduler`: {address}: has no worker; start one with dask worker {address}") from None
        try:
            client.run(check_jobs, 1)  # joblib would wait for ever for a call that a worker cannot unpickle
        except Exception as error:
            raise InputError(
                f"`scheduler`: {address}: a worker cannot run what it is sent ({type(error).__name__}: {first_line(error)});"
                " start it with this version of dpltm, where this folder is"
            ) from None
        yield Workers(-1, session, client)


def _waves(ordered: Mapping[str, Task]) -> list[list[Task]]:
    """Tasks by how many others come before them, one after the other: those of a wave need nothing of each other."""
    depth: dict[str, int] = {}
    waves: list[list[Task]] = []
    for name, task in ordered.items():
        needed = (need.name for need in task.needs)
        depth[name] = max((depth[need] + 1 for need in needed if need in depth), default=0)
        waves += [[]] * (depth[name] == len(waves))
        waves[depth[name]] = [*waves[depth[name]], task]
    return waves


def _leave_interrupts(session: str) -> None:
    """Ignore Ctrl-C, which reaches every process of a terminal; the one that started the others ends them."""
    del session
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def sweep(recipe: Recipe, runner: TrialRunner, workers: Workers, progress: Progress = SILENT) -> None:
    """Makes every trial that is not finished. Those that fail are noted in the folder; the others go on.

    Args:
        recipe: the experiment.
        runner: makes its trials, in the folder of the sweep.
        workers: where it makes them.
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
            _make_all(recipe, runner, workers, look, wait)
        for name, task in runner.unsettled(recipe).items():
            failures = (folder.failure(need.name) for need in task.needs)
            folder.fail(name, next((why for why in failures if why is not None), in_flags(DIED)))
        look()


def _make_all(recipe: Recipe, runner: TrialRunner, workers: Workers, look: Callable[[], None], wait: bool) -> None:
    """Attempts all that is not settled.

    Where a process dies, the others are ended: nobody knows over which task it was. So each that may have been is made
    again, alone: one that takes its process along once more has failed.
    """
    while left := runner.unsettled(recipe):
        try:
            for _ in workers.run(partial(runner.attempt, wait=wait), left):
                look()
            return
        except BrokenExecutor:
            suspects = {name: task for name, task in left.items() if _may_have_died_over(runner, task)}
        for name, task in suspects.items() or left.items():
            try:
                for _ in workers.run(partial(runner.attempt, wait=True, again=True), {name: task}):
                    look()
            except BrokenExecutor:
                runner.folder.fail(name, in_flags(DIED))


def _under_way(recipe: Recipe, runner: TrialRunner) -> list[str]:
    """What is being made, as far as it can be told: trials that were begun here, or else what comes first."""
    tasks = runner.unsettled(recipe)
    begun = [name for name, task in tasks.items() if isinstance(task, Trial) and runner.folder.has_begun(name)]
    names = begun or list(tasks)[:1]
    return [f"at {', '.join(names[:2])}" + (f" and {len(names) - 2} more" if len(names) > 2 else "")] if names else []


def _may_have_died_over(runner: TrialRunner, task: Task) -> bool:
    """Whether a process of this session may have died over a task."""
    return not runner.is_settled(task) and runner.folder.has_begun(task.name)


def check_same_records(recipe: Recipe, folder: SweepFolder, records: Mapping[str, Part]) -> None:
    """Raises InputError where a finished trial was trained on other records than those at hand: rows would mix them.

    Args:
        recipe: with its trials.
        folder: of the sweep, with those that are finished.
        records: at hand, by arm.
    """
    for trial in recipe.trials:
        had, now = (folder.result(trial.label) or {}).get("records"), records.get(trial.arm.name)
        if had is not None and now is not None and part_from_json(had).snapshot != now.snapshot:
            raise InputError(
                f"`out`: {folder.trial(trial.label)} was trained on other records than those of {now.name} at hand; take"
                " another `out`, or remove its result.json, to have it run again"
            )


# --- a recipe -------------------------------------------------------------------------------------------------------


def run_recipe(path: Path, options: RunRequest, progress: Progress) -> dict[str, Any]:
    """Run a recipe, or say what would be done; return the answer of ``dpltm run``.

    Args:
        path: a TOML file.
        options: folder, ledger, seeds, jobs and scheduler; what a recipe says for each arm must be left out.
        progress: who watches.

    Raises:
        InputError: whatever is wrong with it, before anything starts.
    """
    for flag in ("epsilon", "delta", "split", "seed"):
        if getattr(options, flag) != getattr(RunRequest, flag):
            raise InputError(f"`{flag}`: a recipe says it for each of its arms; leave `{flag}` out")
    check_jobs(options.jobs)
    recipe = read_recipe(read_toml(path), path, seeds=options.seeds, quick=options.quick)
    root = Path(options.out or f"{path.stem}{'-quick' if recipe.quick else ''}.sweep")
    place, dataset_cache = options.ledger or str(root / BESIDE), DatasetCache()
    ledger = open_ledger(place, population=options.population)
    records = check_ready(recipe, partial(open_dataset, dataset_cache=dataset_cache), ledger)
    if options.dry_run:
        return plan(recipe, root, place, dataset_cache, progress)
    session = new_session()
    with contextlib.ExitStack() as opened:
        cluster = None if options.scheduler is None else opened.enter_context(dask_workers(options.scheduler, session))
        folder = SweepFolder(root, recipe.title, session)
        check_same_records(recipe, folder, records)
        total(recipe, folder, ledger)  # a ledger that is behind is noticed before anything is spent
        runner = TrialRunner(folder, dataset_cache, ledger=place, population=options.population)
        sweep(recipe, runner, cluster or local_workers(recipe, folder, options.jobs), progress)
    return {"ledger": place, **finish(recipe, folder, ledger)}


def plan(
    recipe: Recipe, root: Path, ledger: str, dataset_cache: DatasetCache, progress: Progress = SILENT
) -> dict[str, Any]:
    """Return what would be done: every arm, with the epsilon of a trial, as far as that does not wait for its tickets.

    Args:
        recipe: what would be done.
        root: folder of the sweep.
        ledger: file of its ledger.
        dataset_cache: datasets that were read already.
        progress: who watches.
    """
    spent: list[dict[str, Any] | None] = []
    with progress.progress("what it would spend", len(recipe.arms)) as step:
        for arm in recipe.arms:
            if trains_at_once(arm):
                given = {"dense": True, "dry_run": True, "ledger": ledger}
                request = resolve(TrainRequest, given, arm.train, str(recipe.path))
                spent.append(train(request, SILENT, dataset_cache=dataset_cache, own=True)["privacy"])
            else:
                spent.append(None)
            step(len(spent))
    body = planned(recipe, spent)
    head = {key: body[key] for key in ("dry_run", "recipe", "source")}
    return {**head, "out": str(root), "ledger": ledger, **body}


def total(recipe: Recipe, folder: SweepFolder | None, ledger: Ledger, new: Sequence[Entry] = ()) -> dict[str, Any]:
    """Return what is said of all together: of everything in the ledger, and behind what is finished.

    Attempts that failed, trials of an earlier version of the recipe and those of more seeds count as well. ``finite`` is
    what those releases that certify anything cost together, where others certify nothing.

    Args:
        recipe: whose delta and adjacency it is stated at: the least delta, and replace-one if any arm asks it.
        folder: of the sweep; None where it is not there yet.
        ledger: that pays.
        new: drafts of what is to be entered.

    Raises:
        ArtifactError: the ledger holds less than what a finished trial knows of it.
    """
    results = [] if folder is None else [folder.result(trial.label) or {} for trial in recipe.trials]
    behind = lineage_of(*(lineage_from_json(one["lineage"]) for one in results if "lineage" in one))
    account = ledger.account(behind) + new
    delta = min((float(arm.train.get("delta", 1e-5)) for arm in recipe.arms), default=1e-5)
    kinds = {str(arm.train.get("adjacency", "add-remove")) for arm in recipe.arms}
    adjacency: Adjacency = "replace-one" if "replace-one" in kinds else "add-remove"
    notes, finite = ["of all trials together: of everything that their ledger holds"], None
    if math.isinf(account.epsilon(delta, "rdp")) and math.isinf(account.epsilon(delta)):
        rest = finite_part(account, delta)
        finite = {"epsilon": rest.epsilon(delta), "releases": len(rest.paid)}
        notes.append(
            f"{len(account.paid) - len(rest.paid)} of {len(account.paid)} releases certify nothing: all together neither;"
            f" the others together would be epsilon {figure(finite['epsilon'])}"
        )
    body = statement(account, delta, adjacency=adjacency, notes=notes).to_json()
    return as_flags({**body, "nominal": None, "finite": finite})


def finite_part(account: Account, delta: float) -> Account:
    """Return an account without releases for which, each by itself, nothing is certified.

    Args:
        account: of everything.
        delta: in (0, 1).
    """
    alone = ((entry, replace(account, entries=(entry,))) for entry in account.entries)
    kept = (entry for entry, one in alone if not entry.paid or math.isfinite(one.epsilon(delta, "rdp")))
    return replace(account, entries=tuple(kept))


def finish(recipe: Recipe, folder: SweepFolder, ledger: Ledger) -> dict[str, Any]:
    """Return the table, written as ``results.json``, ``results.md`` and, where the recipe asks for one, ``figure.png``.

    The files hold no minutes, no folders, and nothing that trials said when they failed.

    Args:
        recipe: the experiment.
        folder: of the sweep.
        ledger: that paid.
    """
    outcomes = [
        Outcome(trial, folder.result(trial.label), folder.failure(trial.label), folder.work(trial.label))
        for trial in recipe.trials
    ]
    privacy = total(recipe, folder, ledger)
    body = table(recipe, outcomes, privacy)
    place = {"config": str(recipe.path), "out": str(folder.root)}
    lines = _lines(recipe, body, folder)
    place["figure"] = str(folder.root / "figure.png") if lines else None  # type: ignore[assignment]
    shared = {**published(place), **table(recipe, outcomes, privacy, shared=True)}
    folder.write_text("results.json", json.dumps(shared, indent=1, allow_nan=False) + "\n")
    folder.write_text("results.md", markdown(shared))
    if lines and recipe.figure is not None:
        steps = recipe.figure["over"] == "steps"
        draw(
            folder.root / "figure.png", lines, title=recipe.title, x=recipe.figure.get("x", "steps" if steps else "value"),
            measure=recipe.measure, steps=steps, log=recipe.figure.get("log", False),
        )  # fmt: skip
    return {**{key: body[key] for key in ("recipe", "source")}, **place, **body}


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
