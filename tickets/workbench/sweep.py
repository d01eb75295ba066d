"""A recipe, run: every trial that is not finished is made, by whatever processes there are.

What is finished is known by its digest, and left alone; what several processes want, the first of them makes
(``tickets.sweep_files`` has the locks). So a sweep goes on where it was, and two in the same folder share its trials.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from joblib import Parallel, delayed, parallel_config

from dpltm.errors import InputError, first_line, in_flags
from dpltm.experiments.recipe import Recipe, Trial
from dpltm.experiments.shared import Task, name_of, needs_of
from dpltm.experiments.table import DIED
from dpltm.privacy.events import DatasetRef
from dpltm.stages.progress import SILENT, Progress
from dpltm.tickets.identity import read_ref
from dpltm.tickets.sweep_files import SweepFolder
from dpltm.tickets.workbench.trial import TrialRunner

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
        needed = (name_of(need) for need in needs_of(task))
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
            failures = (folder.failure(name_of(need)) for need in needs_of(task))
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
    return not runner.is_settled(task) and runner.folder.has_begun(name_of(task))


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
