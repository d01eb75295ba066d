"""A recipe, run: ticket sets, searches and trials are made by whatever processes there are, all paid by one ledger.

What is finished is known by its digest, and left alone, so that a sweep goes on where it was.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import secrets
import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from joblib import Parallel, cpu_count, delayed, parallel_config

from dpltm.errors import DpltmError, InputError, as_flags, first_line, in_flags
from dpltm.experiments import (
    SEARCHED,
    Arm,
    Recipe,
    Section,
    Shared,
    Task,
    Trial,
    planned,
    provenance,
    table,
    tasks,
)
from dpltm.options import resolve
from dpltm.options.run import RunRequest
from dpltm.options.select import reads_no_records
from dpltm.options.train import TrainRequest
from dpltm.privacy.checkpoint import begun_again_by
from dpltm.privacy.describe import figure
from dpltm.privacy.entry import Part, lineage_from_json, lineage_of, to_json, value_from_json
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Adjacency
from dpltm.privacy.statement import statement
from dpltm.progress import SILENT, Progress
from dpltm.reports.wording import markdown
from dpltm.tickets import files
from dpltm.tickets.charts import ACCURACY, Chart, Metrics, Series, accuracy_over_steps, read_metrics, write_charts
from dpltm.tickets.checkpoint_files import checkpoint_path, remove_ended
from dpltm.tickets.ledger_file import BESIDE, open_ledger
from dpltm.tickets.run import load_run
from dpltm.tickets.store import find_set, split_round
from dpltm.tickets.sweep_files import RESULT_FORMAT, RESULT_SCHEMA, SweepFolder
from dpltm.tickets.workbench import latent
from dpltm.tickets.workbench.recipes import COMMANDS, check_ready, override, read_recipe
from dpltm.tickets.workbench.records import open_dataset
from dpltm.tickets.workbench.stages import generate, select, train, transfer, tune

MAX_JOBS = 1024

CONNECT_SECONDS = 10
"""Time for a Dask scheduler to answer, and for its first worker."""

IDLE_SECONDS = 10
"""Time after which a process with nothing to do ends: none outlives its sweep by more."""

Stage = Callable[..., dict[str, Any]]
"""A stage on files: takes a request and who watches, and datasets that were read already; gives the answer."""

STAGES: Mapping[str, Stage] = {
    "train": partial(train, own=True),
    "select": select,
    "tune": partial(tune, portable=True),
    "generate": partial(generate, own=True),
    "transfer": transfer,
    "latent scheme": latent.agree,
    "latent encode": partial(latent.send, own=True),
    "latent train": latent.receive,
}
"""By the name of their command. The epsilon that a trial asks for is that of its own lineage; the ledger has the total."""

DIED = "its process died; of too little memory, perhaps: take fewer `jobs`"

_ONE_AT_A_TIME = threading.Lock()
"""Torch's random state and number of threads are the process's, and a Dask worker may have several threads."""


# --- trials -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrialRunner:
    """Maker of trials, and of what they share, in the folder of a sweep."""

    folder: SweepFolder
    stages: Mapping[str, Stage] = field(default_factory=lambda: STAGES)
    ledger: str | None = None
    population: str | None = None
    session: str = field(default_factory=lambda: secrets.token_hex(8))

    def is_made(self, task: Task) -> bool:
        """Return whether something is there."""
        return self.folder.result(task.name) is not None if isinstance(task, Trial) else self.path(task).exists()

    def path(self, shared: Shared) -> Path:
        """Return where something that trials share has its place."""
        return self.folder.root / shared.place

    def attempt(self, task: Task) -> tuple[str, str | None]:
        """Make something; return its name, and why it cannot be made, or None."""
        why = None
        with _ONE_AT_A_TIME:
            try:
                if not self.folder.begin(task.name, self.session):
                    raise InputError(DIED)  # Dask sends a call again whose worker died
                if isinstance(task, Trial):
                    self._make_trial(task)
                else:
                    self._make_shared(task)
            except DpltmError as error:
                why = str(error)
            except Exception as error:  # one trial's fault is not the others'
                if os.environ.get("DPLTM_DEBUG"):
                    raise
                # what it says may tell of a record
                why = f"internal error: {type(error).__name__}; set DPLTM_DEBUG=1 and run it again"
        if why is not None and isinstance(task, Shared):
            why = f"{task.place}: {why}"  # it is read where a trial has its row
        return task.name, None if why is None else in_flags(why)

    def _make_shared(self, shared: Shared) -> None:
        source = None if shared.tickets is None else str(self._set(shared.tickets))
        name = None if shared.command == "tune" else shared.title
        given = {"out": str(self.path(shared)), "seed": shared.seed, "set": source, "name": name}
        self._run(shared.command, given, shared.options)

    def _make_trial(self, trial: Trial) -> None:
        """Make a trial by its stages, each of which is paid for once: what an interrupted attempt has is taken over."""
        settings = {} if trial.search is None else files.read_section(self.path(trial.search), "train")
        decided = _decided(settings)
        for other in trial.recipe.trials:
            if settings and other.arm is trial.arm and other.search == trial.search:
                had = (self.folder.result(other.name) or {}).get("settings", decided)
                if had != decided:
                    raise InputError(
                        f"{other.name} was trained with what another search found, {had}, and that is gone from tune/; put"
                        " it back, or take another `out`"
                    )
        home = self.folder.make(trial.name)
        head = {"arm": trial.arm.name, "seed": trial.seed, "digest": trial.digest}
        body = self._train(trial, home, settings) if trial.arm.latent is None else self._learn(trial, home)
        self.folder.finish(trial.name, {**head, **body, **({"settings": decided} if settings else {})})
        for name in ("tickets", "owners.msg", "draw.json", "encode.json"):
            _remove(home / name)

    def _train(self, trial: Trial, home: Path, settings: Section) -> dict[str, Any]:
        arm, out = trial.arm, home / "run"
        source = None if trial.tickets is None else self._set(trial.tickets)
        given: dict[str, Any] = {"out": str(out), "seed": trial.seed}
        body: dict[str, Any] = {}
        if source is None:
            given["dense"] = True
        elif arm.select is None:
            given["ticket"] = f"{source}@{_round(trial, source, settings)}"
        else:
            copy = home / "tickets"  # a draw is remembered with the set, and others draw from it as well
            by_rule = reads_no_records(arm.draw)  # but by public accuracies, which a set that is carried over has not
            scored = self._set(trial.tickets.root) if by_rule and trial.tickets is not None else source
            body["select"] = _once(home / "draw.json", lambda: self._draw(trial, scored, copy))
            given["ticket"] = f"{source}@{body['select']['winner']['round']}" if by_rule else str(copy)
        if out.exists():  # a process died when all was done
            remove_ended(out)
            answer: Any = files.parse_json(out / "result.json", files.read_bytes(out / "result.json", files.MAX_JSON))
        else:
            searched = {key: value for key, value in settings.items() if key in SEARCHED}
            answer = self._run("train", given, override(arm.train, searched))
        if (out / "config.json").exists():
            run = load_run(out)
            body |= {"records": run.config.get("part"), "lineage": to_json(run.lineage)}
        return {**body, "train": files.published(answer)}

    def _draw(self, trial: Trial, source: Path, copy: Path) -> dict[str, Any]:
        _remove(copy)
        shutil.copytree(source, copy)
        return self._run("select", {"set": str(copy)}, trial.arm.draw)

    def _learn(self, trial: Trial, home: Path) -> dict[str, Any]:
        stages = trial.arm.latent or {}
        scheme, messages, out = home / "scheme", home / "owners.msg", home / "run"

        def encode() -> dict[str, Any]:
            _remove(scheme)
            _remove(messages)
            self._run("latent scheme", {"out": str(scheme)}, stages["scheme"])
            return self._run("latent encode", {"scheme": str(scheme), "out": str(messages)}, stages["encode"])

        encoded = _once(home / "encode.json", encode)
        _remove(out)
        given = {"scheme": str(scheme), "messages": str(messages), "out": str(out), "seed": trial.seed}
        learned = files.published(self._run("latent train", given, stages["train"]))
        lineage = latent.read_messages(messages, latent.load_scheme(scheme)).lineage
        if learned["randomised"] is not None:  # as those it learned from, and as the source tests
            learned["accuracy"] = learned["randomised"]
        return {"lineage": to_json(lineage), "train": {**learned, "privacy": encoded["privacy"]}}

    def _run(self, name: str, given: Mapping[str, Any], section: Section) -> dict[str, Any]:
        command = COMMANDS[name]
        if "ledger" in command.request.__dataclass_fields__ and not (name == "select" and reads_no_records(section)):
            given = {**given, "ledger": self.ledger, "population": self.population}
        request: Any = resolve(command.request, given, section)
        with begun_again_by(f"remove {checkpoint_path(Path(given.get('out', '')))} to begin again"):
            return self.stages[name](request, SILENT)

    def _set(self, shared: Shared) -> Path:
        """Return the folder of a set; refused where it is not what the recipe asks for: that decides what is certified."""
        path = self.path(shared)
        there = find_set(str(path)).provenance
        if there != (asked := provenance(shared.root.options)):
            raise InputError(
                f"{path}: its provenance is {there}, and that of [tickets.{shared.title}] is {asked}; remove it, and it is"
                " made"
            )
        return path


def _once(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the answer of a stage that is made once: an interrupted trial goes on with it."""
    if not path.exists():
        files.write_json(path, {"format": RESULT_FORMAT, "schema": RESULT_SCHEMA, "answer": files.published(make())})
    answer: dict[str, Any] = files.read_json(path, RESULT_FORMAT, RESULT_SCHEMA)["answer"]
    return answer


def _decided(settings: Section) -> dict[str, Any]:
    """Return the settings that a search decided, without where its tickets are."""
    number = split_round(str(settings["ticket"]))[1] if "ticket" in settings else None
    return {key: settings[key] for key in SEARCHED if key in settings and key != "lineage"} | {"round": number}


def _round(trial: Trial, source: Path, settings: Section) -> int:
    asked = _decided(settings)["round"] if trial.arm.round == "tuned" else trial.arm.round
    if isinstance(asked, int):
        return asked
    rounds = [ticket.round for ticket in find_set(str(source)).body.tickets if ticket.round]
    return random.Random(f"{trial.seed} {trial.arm.tickets}").choice(rounds)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# --- who makes them ---------------------------------------------------------------------------------------------------


def check_jobs(jobs: int | None) -> None:
    """Raise InputError for a number of processes that cannot be meant."""
    if jobs is not None and not 1 <= jobs <= MAX_JOBS:
        raise InputError(f"`jobs`: {jobs} is not from 1 to {MAX_JOBS}")


@dataclass(frozen=True)
class Workers:
    """Place where trials run: processes of this machine (this one alone where there is one job), or a Dask cluster.

    joblib sends them calls by pickle, which runs what it is sent: connect to a scheduler that is your own.
    """

    jobs: int
    client: Any = None

    def run(
        self, attempt: Callable[[Task], tuple[str, str | None]], tasks: Iterable[Task]
    ) -> Iterator[tuple[str, str | None]]:
        """Yield what ``attempt`` says of every task, as it comes back. BrokenExecutor where a process died over one."""
        if self.client is not None:
            backend = {"backend": "dask", "client": self.client, "wait_for_workers_timeout": CONNECT_SECONDS}
        else:
            begin = {"initializer": _leave_interrupts, "initargs": (str(Path.cwd()),)}
            backend = {"backend": "loky", "idle_worker_timeout": IDLE_SECONDS, **begin}
        with warnings.catch_warnings(), parallel_config(**backend):
            # joblib warns of processes that it replaces, and of work that an interrupt takes from it
            warnings.filterwarnings("ignore", category=UserWarning, module="joblib")
            parallel = Parallel(n_jobs=self.jobs, return_as="generator_unordered", batch_size=1)
            with contextlib.closing(parallel(delayed(attempt)(task) for task in tasks)) as finished:
                yield from finished


def _leave_interrupts(folder: str) -> None:
    """Ignore Ctrl-C, which reaches every process of a terminal; the one that started the others ends them.

    joblib starts other processes for another working ``folder``.
    """
    del folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def dask_workers(address: str) -> Iterator[Workers]:
    """Yield the workers of a Dask scheduler, for as long as the block lasts."""
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
            client.run(check_jobs, 1)  # joblib would wait for ever for a call that a worker cannot unpickle
        except Exception as error:
            why = f"{type(error).__name__}: {first_line(error)}"
        if why:
            raise InputError(
                f"`scheduler`: {address}: no worker can run what it is sent ({why}); start one of this version, where this"
                f" folder is, with dask worker {address}"
            )
        yield Workers(-1, client)


def sweep(recipe: Recipe, runner: TrialRunner, workers: Workers, progress: Progress = SILENT) -> dict[str, str]:
    """Make every trial that is not finished; return why those that cannot be made fail, by name. The others go on."""
    failures: dict[str, str] = {}
    unfinished = [trial for trial in recipe.trials if not runner.is_made(trial)]
    left = {name: task for name, task in tasks(unfinished).items() if not runner.is_made(task)}
    with progress.progress(recipe.title, len(recipe.trials)) as step:

        def note(name: str, why: str | None) -> None:
            del left[name]
            if why is not None:
                failures[name] = why
            failed = sum(trial.name in failures for trial in unfinished)
            unmade = sum(trial.name in left for trial in unfinished) + failed
            told = [f"{failed} failed"] * bool(failed) + [f"next {name}" for name in [*left][:1]]
            step(len(recipe.trials) - unmade, ", ".join(told))

        while left:
            for name, task in list(left.items()):
                why = next((failures[need.name] for need in task.needs if need.name in failures), None)
                if why is not None:
                    note(name, why)
            ready = [task for task in left.values() if not any(need.name in left for need in task.needs)]
            try:
                for name, why in workers.run(runner.attempt, ready):
                    note(name, why)
            except BrokenExecutor:  # nobody knows over which a process died: each that is left is made again, alone
                again = replace(runner, session=secrets.token_hex(8))
                for task in (task for task in ready if task.name in left):
                    try:
                        for name, why in workers.run(again.attempt, [task]):
                            note(name, why)
                    except BrokenExecutor:
                        note(task.name, in_flags(DIED))
    return failures


# --- a recipe -------------------------------------------------------------------------------------------------------


def run_recipe(path: Path, options: RunRequest, progress: Progress) -> dict[str, Any]:
    """Run a recipe, or price it with ``dry_run``; return the answer of ``dpltm run``. All is checked first."""
    for flag in ("epsilon", "delta", "split", "seed"):
        if getattr(options, flag) != getattr(RunRequest, flag):
            raise InputError(f"`{flag}`: a recipe says it for each of its arms; leave `{flag}` out")
    check_jobs(options.jobs)
    recipe = read_recipe(files.read_toml(path), path, seeds=options.seeds, quick=options.quick)
    root = Path(options.out or f"{path.stem}{'-quick' if recipe.quick else ''}.sweep")
    place = options.ledger or str(root / BESIDE)
    ledger = open_ledger(place, population=options.population)
    records = check_ready(recipe, open_dataset, ledger)
    if options.dry_run:
        head = {"dry_run": True, "recipe": recipe.title, "source": recipe.source, "out": str(root), "ledger": place}
        return {**head, **planned(recipe, _prices(recipe, place, progress))}
    with contextlib.ExitStack() as opened:
        cluster = None if options.scheduler is None else opened.enter_context(dask_workers(options.scheduler))
        folder = SweepFolder(root, recipe.title)
        opened.enter_context(folder.alone())
        results = folder.results(trial.name for trial in recipe.trials)
        workers = cluster or Workers(min(options.jobs or cpu_count(), max(1, len(recipe.trials) - len(results))))
        _check_same_records(recipe, folder, results, records)
        total(recipe, results, ledger)  # a ledger that is behind is noticed before anything is spent
        runner = TrialRunner(folder, ledger=place, population=options.population)
        failures = sweep(recipe, runner, workers, progress)
        return {"ledger": place, **finish(recipe, folder, ledger, failures)}


def _prices(recipe: Recipe, ledger: str, progress: Progress) -> dict[str, dict[str, Any]]:
    """Return what a trial of each arm costs, by name, as far as that does not wait for its tickets or settings."""
    spent = {}
    with progress.progress("what it would spend", len(recipe.arms)) as step:
        for number, arm in enumerate(recipe.arms, 1):
            if arm.latent is None and arm.tickets is None and arm.tune is None:
                given = {"dense": True, "dry_run": True, "ledger": ledger}
                request = resolve(TrainRequest, given, arm.train, str(recipe.path))
                spent[arm.name] = train(request, SILENT, own=True)["privacy"]
            step(number)
    return spent


def _check_same_records(
    recipe: Recipe, folder: SweepFolder, results: Mapping[str, Any], records: Mapping[str, Part]
) -> None:
    """Refuse where a finished trial was trained on other records than those at hand, by arm: rows would mix them."""
    for trial in recipe.trials:
        had, now = results.get(trial.name, {}).get("records"), records.get(trial.arm.name)
        if had is not None and now is not None and value_from_json(Part, had, "part").snapshot != now.snapshot:
            raise InputError(
                f"`out`: {folder.trial(trial.name)} was trained on other records than those of {now.name} at hand; take"
                " another `out`, or remove its result.json, to have it run again"
            )


def total(recipe: Recipe, results: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    """Return the statement on all together: on everything in the ledger, and behind finished trials.

    Attempts that failed, trials of an earlier version of the recipe and those of more seeds count as well. ``finite`` is
    what those releases that certify anything cost together, where others certify nothing.

    Delta and adjacency are those of the recipe: the least delta, and replace-one if any arm asks it.
    """
    behind = lineage_of(*(lineage_from_json(result["lineage"]) for result in results.values() if "lineage" in result))
    account = ledger.account(behind)
    delta = min((float(arm.train.get("delta", 1e-5)) for arm in recipe.arms), default=1e-5)
    replaced = any(arm.train.get("adjacency") == "replace-one" for arm in recipe.arms)
    notes, finite = ["of all trials together: of everything that their ledger holds"], None
    if math.isinf(account.epsilon(delta, "rdp")) and math.isinf(account.epsilon(delta)):
        alone = ((entry, replace(account, entries=(entry,))) for entry in account.entries)
        certified = (entry for entry, own in alone if not entry.paid or math.isfinite(own.epsilon(delta, "rdp")))
        rest, paid = replace(account, entries=tuple(certified)), len(account.paid)
        finite = {"epsilon": rest.epsilon(delta), "releases": len(rest.paid)}
        notes.append(
            f"{paid - len(rest.paid)} of {paid} releases certify nothing: all together neither; the others together would be"
            f" epsilon {figure(finite['epsilon'])}"
        )
    relation: Adjacency = "replace-one" if replaced else "add-remove"
    body = statement(account, delta, adjacency=relation, notes=notes).to_json()
    return as_flags({**body, "nominal": None, "finite": finite})


def finish(recipe: Recipe, folder: SweepFolder, ledger: Ledger, failures: Mapping[str, str]) -> dict[str, Any]:
    """Return the table, written as ``results.json``, ``results.md`` and, where the recipe asks for one, ``figure.png``.

    The files hold no folders, and nothing that trials said when they failed.
    """
    results = folder.results(trial.name for trial in recipe.trials)
    privacy = total(recipe, results, ledger)
    body = table(recipe, results, failures, privacy)
    charts, picture = _charts(recipe, body, folder, results), folder.root / "figure.png"
    place = {"config": str(recipe.path), "out": str(folder.root), "figure": str(picture) if charts else None}
    elsewhere = dict.fromkeys(failures, "it failed; the same command says why")  # which may tell of a record
    shared = {**files.published(place), **table(recipe, results, elsewhere, privacy)}
    folder.write_text("results.json", json.dumps(shared, indent=1, allow_nan=False) + "\n")
    folder.write_text("results.md", markdown(shared))
    if charts:
        write_charts(picture, charts, recipe.title)
    return {**{key: body[key] for key in ("recipe", "source")}, **place, **body}


def _charts(recipe: Recipe, body: Mapping[str, Any], folder: SweepFolder, results: Mapping[str, Any]) -> list[Chart]:
    if recipe.figure is None:
        return []
    measured = [(arm, row) for arm, row in zip(recipe.arms, body["arms"], strict=True) if row["mean"] is not None]
    if recipe.figure["over"] == "values":
        return _over_values(recipe, measured)
    runs_of: dict[str, dict[str, list[Metrics | None]]] = {}
    for arm, row in measured:
        dataset = arm.train.get("dataset", "") if "apart" in recipe.figure else ""
        finished = (trial for trial in recipe.trials if trial.arm is arm and trial.name in results)
        runs: list[Metrics | None] = [
            read_metrics(folder.trial(trial.name) / "run" / "metrics.jsonl") for trial in finished
        ]
        runs_of.setdefault(dataset, {})[_with_epsilon(arm.name, [row])] = runs
    charts = ((dataset, accuracy_over_steps(runs)) for dataset, runs in runs_of.items())
    return [
        replace(chart, title=f"{dataset}: {chart.title}".removeprefix(": "))
        for dataset, some in charts
        for chart in some
    ]


def _over_values(recipe: Recipe, measured: Sequence[tuple[Arm, Mapping[str, Any]]]) -> list[Chart]:
    groups: dict[str, list[tuple[float, Mapping[str, Any]]]] = {}
    for arm, row in measured:
        if isinstance(arm.varied, (int, float)):
            groups.setdefault(arm.group, []).append((float(arm.varied), row))
    lines = []
    for name, points in groups.items():
        ends = ((row["mean"], row["interval"] or 0.0) for _, row in points)
        spread = [(100 * (mean - half), 100 * (mean + half)) for mean, half in ends]
        title = _with_epsilon(name, [row for _, row in points])
        lines.append(Series(title, [(x, 100 * row["mean"]) for x, row in points], "o-", spread))
    several = any(row["interval"] is not None for points in groups.values() for _, row in points)
    title = "95 % intervals over seeds" if several else "one seed"
    asked = recipe.figure or {}
    axes = {"xscale": "log"} if asked.get("log", False) else {}
    return [Chart(title, asked.get("x", "value"), ACCURACY, lines, axes)] if lines else []


def _with_epsilon(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a name in a legend, with the certified epsilons that it stands for."""
    epsilon = [float(row["privacy"]["certified"]["epsilon"]) for row in rows]
    ends = dict.fromkeys(figure(pick(epsilon)) for pick in (min, max))
    return f"{name} (certified epsilon {' to '.join(ends)})"
