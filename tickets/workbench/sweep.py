"""A recipe, run in a folder of its own (docs/recipes.md has its layout), all paid by one ledger.

Ticket sets, searches and trials are made by whatever processes there are, each whole or not at all; what is there is
finished, known by its digest, and left alone: that is the one way in which a sweep or a run goes on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from joblib import Parallel, cpu_count, delayed, parallel_config

from dpltm.errors import ArtifactError, DpltmError, InputError, as_flags, first_line, in_flags
from dpltm.experiments import paired, summary
from dpltm.local.latent import EncodeRequest
from dpltm.options import resolve
from dpltm.options.run import RunRequest
from dpltm.options.select import reads_no_records
from dpltm.privacy.account import Account
from dpltm.privacy.describe import figure
from dpltm.privacy.entry import Lineage, Part, lineage_of, value_from_json
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.release import price
from dpltm.privacy.statement import statement
from dpltm.progress import SILENT, Progress
from dpltm.reports.wording import all_terms, markdown
from dpltm.tickets import files
from dpltm.tickets.charts import ACCURACY, Chart, Series, accuracy_over_steps, read_metrics, write_charts
from dpltm.tickets.checkpoint_files import remove_ended
from dpltm.tickets.ledger_file import BESIDE, open_ledger
from dpltm.tickets.run import read_config
from dpltm.tickets.store import find_set, split_round
from dpltm.tickets.ticket_set import load_winner
from dpltm.tickets.workbench import latent, recipes, stages
from dpltm.tickets.workbench.records import open_dataset
from dpltm.training.release import TrainingPlan
from dpltm.verbs import train

FORMAT, SCHEMA = "dpltm-sweep", 3
PARTS = ("members", "tickets", "tune", "draws", "schemes", "messages", "attempts")

AGAIN = (
    "what is finished stays; a stage that was interrupted goes on from its checkpoint or begins anew, and what it paid stays"
    " in the ledger"
)
"""Said where a folder was begun before."""

CONNECT_SECONDS = 10  # for a Dask scheduler to answer, and for its first worker
IDLE_SECONDS = 10  # after which a process with nothing to do ends: none outlives its sweep by more

STAGES: Mapping[str, Callable[..., Any]] = {
    "train": partial(stages.train, own=True),
    "select": stages.select,
    "tune": partial(stages.tune, portable=True),
    "generate": partial(stages.generate, own=True),
    "transfer": stages.transfer,
    "latent scheme": latent.agree,
    "latent encode": partial(latent.send, own=True),
    "latent train": latent.receive,
}
"""On files, by the name of their command; the epsilon that a trial asks for is that of its own lineage."""

_ONE_AT_A_TIME = threading.Lock()
"""Torch's random state and number of threads are the process's, and a Dask worker may have several threads."""


# --- the folder -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def opened(root: Path, title: str, parts: tuple[str, ...] = PARTS) -> Iterator[bool]:
    """A block that has the folder of a recipe to itself, and whether it was begun before; ArtifactError for another's.

    It may come from others: one with links in it is refused.
    """
    place = root / "recipe.json"
    begun = place.is_file()
    if not (begun or files.only_being_written(place)):
        files.check_free(root)
    for path in (*root.glob("*"), *root.glob("*/*")):
        if path.is_symlink():  # what is written or removed there would be elsewhere
            raise ArtifactError(f"{path}: is a link, which is not followed; remove it, or choose another `out`")
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not begun:
            files.write_json(place, {"format": FORMAT, "schema": SCHEMA, "title": title})
        elif (other := files.read_json(place, FORMAT, SCHEMA).get("title")) != title:
            raise ArtifactError(f"`out`: {root} is of another recipe, {other!r}; choose another name")
        for part in parts:
            (root / part).mkdir(exist_ok=True)
    except OSError as error:
        raise ArtifactError(f"`out`: cannot write to {root}: {error.strerror}; choose another place") from None
    if (descriptor := files.lock(root)) is None:
        raise files.taken(root)
    try:
        yield begun
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all in it, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# --- trials -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskRunner:
    """Maker of trials, and of what they need, in the folder of a sweep."""

    root: Path
    stages: Mapping[str, Callable[..., Any]] = field(default_factory=lambda: STAGES)
    ledger: str | None = None
    population: str | None = None
    progress: Progress = SILENT

    def attempt(self, task: recipes.Task) -> tuple[recipes.Task, str | None]:
        """Make something unless it is there; return it, and why it cannot be made, or None."""
        why = None
        with _ONE_AT_A_TIME:
            try:
                if not self._path(task).exists():
                    begun = self.root / "attempts" / task.place.replace("/", "-")
                    if begun.exists():  # Dask sends a call again whose worker died; joblib would wait for it for ever
                        raise DpltmError("its process died, of too little memory perhaps")
                    begun.touch()
                    self.make(task)
                self.tidy(task)
            except DpltmError as error:
                why = in_flags(str(error))
            except Exception as error:  # one trial's fault is not the others'
                if os.environ.get("DPLTM_DEBUG"):
                    raise
                # what it says may tell of a record
                why = f"internal error: {type(error).__name__}; set DPLTM_DEBUG=1 and run it again"
        return task, why

    def _path(self, task: recipes.Task) -> Path:
        return self.root / task.place

    def make(self, task: recipes.Task) -> None:
        """Make a set, a search or a trial; an interrupted attempt goes on with what it has."""
        out, options = self._path(task), task.options
        out.parent.mkdir(exist_ok=True)
        for stage in task.own.values():
            if not (self._path(stage) / ("winner.json" if stage.command == "select" else "")).exists():
                remove(self._path(stage))
                self.make(stage)
        paths = {role: str(self._path(need)) for role, need in {**task.needs, **task.own}.items()}
        if task.command == "train":
            paths, options = self._start(task, paths)
        if task.command == "select":  # a draw is remembered with the set, and others draw from it as well
            shutil.copytree(paths["set"], out)
            self._call(task.command, {"set": str(out)}, options)
        else:
            self._call(task.command, {**paths, "out": str(out)}, options)

    def _start(self, task: recipes.Task, paths: Mapping[str, str]) -> tuple[dict[str, Any], recipes.Section]:
        """Return what a training starts from, and its options with those that were searched."""
        settings = files.read_section(Path(paths["settings"]), "train") if "settings" in paths else {}
        options = recipes.override(task.options, {key: settings[key] for key in recipes.SEARCHED if key in settings})
        if "ticket" not in paths:
            return {"dense": True}, options
        source, number = paths["ticket"], task.round
        if "draw" in paths:
            number = load_winner(find_set(paths["draw"])).round
            if not reads_no_records(task.own["draw"].options):
                source = paths["draw"]  # which carries the draw, whatever its round
        elif number is None:
            number = split_round(settings["ticket"])[1]
        return {"ticket": f"{source}@{number}"}, options

    def tidy(self, task: recipes.Task) -> None:
        """Remove what a finished task has left, also where a process died before it could."""
        remove_ended(self._path(task))
        for stage in task.own.values():
            remove(self._path(stage))

    def _call(self, name: str, decided: Mapping[str, Any], section: recipes.Section) -> None:
        request_class, _ = recipes.COMMANDS[name]
        if "ledger" in request_class.__dataclass_fields__ and not (name == "select" and reads_no_records(section)):
            decided = {**decided, "ledger": self.ledger, "population": self.population}
        self.stages[name](resolve(request_class, decided, section), self.progress)


@dataclass(frozen=True)
class Member:
    """What a finished trial came to: its answer, its lineage, and the part of the records that it was trained on."""

    answer: Mapping[str, Any]
    lineage: Lineage
    part: Part | None


def members(recipe: recipes.Recipe, root: Path) -> dict[str, Member]:
    """Return the finished trials, by their places; ArtifactError for one that is damaged."""
    return {
        trial.task.place: _member(trial, root / trial.task.place)
        for trial in recipe.trials if (root / trial.task.place).exists()
    }  # fmt: skip


def _member(trial: recipes.Trial, path: Path) -> Member:
    try:
        answer: Any = files.parse_json(path / "result.json", files.read_bytes(path / "result.json", files.MAX_JSON))
        lineage, part = files.read_lineage(path, answer["weights"]), None
        if trial.arm.latent is None:
            part = value_from_json(Part, read_config(path / "config.json")["part"], "part")
        else:
            delta = trial.arm.latent["encode"].get("delta", EncodeRequest.delta)
            answer["privacy"] = statement(Account.alone(lineage), delta, notes=answer["notes"]).to_json()
            if answer["randomised"] is not None:  # as those it learned from, and as the source tests
                answer["accuracy"] = answer["randomised"]
        if not float(answer["privacy"]["certified"]["epsilon"]) >= 0:
            raise ValueError("no figure")
    except (KeyError, TypeError, ValueError):
        raise ArtifactError(f"{path}: damaged, or not of this trial; remove it, and it is run again") from None
    return Member(answer, lineage, part)


# --- who makes them ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def local_workers(jobs: int) -> Iterator[None]:
    """A block whose sweeps run in processes of this machine; in this one where there is one job."""
    begin = {"initializer": _leave_interrupts, "initargs": (str(Path.cwd()),)}
    try:
        with parallel_config("loky", n_jobs=jobs, idle_worker_timeout=IDLE_SECONDS, **begin):
            yield
    except BrokenExecutor:
        raise DpltmError(f"a process died, of too little memory perhaps: take fewer `jobs`; {AGAIN}") from None


def _leave_interrupts(folder: str) -> None:
    """Ignore Ctrl-C, which all of a terminal get; joblib starts other processes for another working ``folder``."""
    del folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def dask_workers(address: str) -> Iterator[None]:
    """A block whose sweeps run on workers of a Dask scheduler of your own: they get calls by pickle, which runs anything."""
    try:
        import distributed
    except ImportError:
        raise InputError("`scheduler`: needs Dask, which is not installed; pip install 'dpltm[dask]'") from None
    why = ""
    with contextlib.ExitStack() as stack:
        try:
            client = distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
            stack.enter_context(client).wait_for_workers(1, timeout=CONNECT_SECONDS)
            client.run(in_flags, "")  # joblib would wait for ever for a call that a worker cannot unpickle
        except Exception as error:
            why = f"{type(error).__name__}: {first_line(error)}"
        if why:  # not within the except clause: its error would keep half a client alive
            raise InputError(
                f"`scheduler`: {address}: no Dask scheduler answers, or none of its workers can run what it is sent ({why});"
                f" start dask scheduler, and dask worker {address} of this version where this folder is"
            )
        stack.enter_context(parallel_config("dask", client=client, wait_for_workers_timeout=CONNECT_SECONDS))
        yield


def sweep(recipe: recipes.Recipe, runner: TaskRunner, progress: Progress = SILENT) -> dict[str, str]:
    """Make every trial that is not finished; return why those that cannot be made fail, by place. The others go on."""
    failures = dict[str, str]()
    for path in (runner.root / "attempts").iterdir():
        path.unlink()
    places = {trial.task.place for trial in recipe.trials}
    with progress.progress(recipe.head.title, len(places)) as step, warnings.catch_warnings():
        # joblib warns of processes that it replaces, and of work that an interrupt takes from it
        warnings.filterwarnings("ignore", category=UserWarning, module="joblib")
        unfinished = list[recipes.Task]()
        for trial in recipe.trials:
            if (runner.root / trial.task.place).exists():
                runner.tidy(trial.task)
            else:
                unfinished.append(trial.task)
        done = len(places) - len(unfinished)
        for level in recipes.levels(unfinished):
            lacking = {
                task.place: need.place for task in level for need in task.needs.values() if need.place in failures
            }
            failures |= {place: f"{need}: {failures[need]}" for place, need in lacking.items()}
            calls = (delayed(runner.attempt)(task) for task in level if task.place not in lacking)
            with contextlib.closing(Parallel(return_as="generator_unordered", batch_size=1)(calls)) as attempts:
                for task, why in attempts:
                    if why is not None:
                        failures[task.place] = why
                    done += task.place in places and why is None
                    step(done, f"{len(failures)} failed" if failures else "")
    return failures


def run_recipe(document: recipes.Section, path: Path, options: RunRequest, progress: Progress) -> dict[str, Any]:
    """Run a recipe, or price it with ``dry_run``; return the answer. All is checked first."""
    recipe = recipes.read_recipe(document, path, seeds=options.seeds, quick=options.quick)
    root = Path(options.out or f"{path.stem}{'-quick' if recipe.quick else ''}.sweep")
    place = options.ledger or str(root / BESIDE)
    ledger = open_ledger(place, population=options.population)
    plans = recipes.check_ready(recipe, open_dataset, ledger)
    if options.dry_run:
        return as_flags({"dry_run": True, "out": str(root), "ledger": place, **_priced(recipe, plans)})
    jobs = min(options.jobs or cpu_count(), len(recipe.trials))
    workers = local_workers(jobs) if options.scheduler is None else dask_workers(options.scheduler)
    with workers, opened(root, recipe.head.title):
        finished = members(recipe, root)
        if len(finished) < len(recipe.trials):
            ledger.begin()  # or several trials would, each by a key of its own
        for trial in recipe.trials:  # rows would mix them
            member, plan = finished.get(trial.task.place), plans.get(trial.arm.name)
            if member and member.part and plan and member.part.snapshot != plan.part.snapshot:
                raise InputError(
                    f"`out`: {root / trial.task.place} was trained on other records than those of {plan.part.name} at hand;"
                    " take another `out`, or remove it, to have it run again"
                )
        total(recipe, finished, ledger)  # a ledger that is behind is noticed before anything is spent
        failures = sweep(recipe, TaskRunner(root, STAGES, place, options.population), progress)
        return {"ledger": place, **finish(recipe, root, ledger, failures)}


def _priced(recipe: recipes.Recipe, plans: Mapping[str, TrainingPlan]) -> dict[str, Any]:
    """Return every arm, with the price of a trial unless that waits for its tickets or settings."""
    arms = []
    for arm in recipe.arms:
        spent, options = None, arm.train if arm.latent is None else arm.latent["encode"] | arm.latent["scheme"]
        if arm.latent is None and arm.tickets is None and arm.tune is None:
            settled = plans[arm.name]
            book = replace(settled.ledger.book, asked=settled.dataset.unit)
            plan = train.plan(settled, book, own=True)
            price(plan, book)
            plan.rehearse()
            spent = train.stated(plan).to_json()
        row = {key.replace("-", "_"): options.get(key) for key in ("dataset", "epsilon", "noise-multiplier")}
        certified = None if spent is None else spent["certified"]["epsilon"]
        about = {"name": arm.name, "paper": arm.paper, "tickets": arm.tickets}
        arms.append({**about, **row, "certified": certified, "privacy": spent})
    counted = {"seeds": list(range(recipe.head.seeds)), "members": len(recipe.trials)}
    about = {"recipe": recipe.head.title, "source": recipe.head.source, "quick": recipe.quick}
    return {**about, **counted, "tickets": sorted(recipe.tickets), "arms": arms}


# --- what it came to --------------------------------------------------------------------------------------------------


def total(recipe: recipes.Recipe, finished: Mapping[str, Member], ledger: Ledger) -> dict[str, Any]:
    """Return the statement on everything in the ledger, and behind finished trials, at the recipe's delta and adjacency.

    So attempts that failed, trials of an earlier version of the recipe and those of more seeds count as well.
    """
    account = ledger.account(lineage_of(*(member.lineage for member in finished.values())))
    delta = min(float(arm.train.get("delta", 1e-5)) for arm in recipe.arms)
    replaced = any(arm.train.get("adjacency") == "replace-one" for arm in recipe.arms)
    notes = ["of all trials together: of everything that their ledger holds"]
    body = statement(account, delta, adjacency="replace-one" if replaced else "add-remove", notes=notes).to_json()
    return as_flags({**body, "nominal": None})


def table(
    recipe: recipes.Recipe, finished: Mapping[str, Member], failures: Mapping[str, str], privacy: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the answer of a sweep, but for where it lies."""
    rows = [_row(recipe, arm, finished, failures) for arm in recipe.arms]
    values = {row["name"]: row["values"] for row in rows}
    for arm, row in zip(recipe.arms, rows, strict=True):
        if arm.against is not None:
            row["difference"] = {"to": arm.against, **paired(values[arm.name], values[arm.against]).to_json()}
    notes = Counter(note for row in rows if row["privacy"] for note in dict.fromkeys(row["privacy"]["notes"]))
    stated = all_terms(rows)
    seeds = recipe.head.seeds  # where rows agree on it, it is said once; else in each
    over = f"means over {seeds} seeds with 95 % intervals (Student's t)" if seeds > 1 else "one seed"
    return {
        "recipe": recipe.head.title,
        "source": recipe.head.source,
        "quick": recipe.quick,
        "privacy": dict(privacy),
        "seeds": list(range(seeds)),
        "finished": len(finished),
        "members": len(recipe.trials),
        "arms": rows,
        "notes": [
            *(["quick version: says that it works, and no more"] if recipe.quick else []),
            *recipe.head.notes,
            f"{over}, given what was searched once for all; the epsilon of a row is that of one of its trials, with all that"
            " it is made of; what they cost together is said above",
            "settings that the recipe fixes were chosen by people who had seen results on these datasets; what dpltm tune"
            " searched, it searched on public records; choosing among the rows by their accuracy is a search as well",
            *((f"certified epsilon: {stated[0]}",) if len(stated) == 1 else ()),
            *(
                note if count == len(rows) else f"{count} of {len(rows)} rows: {note}"
                for note, count in notes.items() if note not in privacy["notes"]
            ),
        ],
    }  # fmt: skip


def _row(
    recipe: recipes.Recipe, arm: recipes.Arm, finished: Mapping[str, Member], failures: Mapping[str, str]
) -> dict[str, Any]:
    trials = {trial.task.place: str(trial.seed) for trial in recipe.trials if trial.arm is arm}
    trained = {seed: finished[place].answer for place, seed in trials.items() if place in finished}
    values = {seed: body["accuracy"] for seed, body in trained.items() if body.get("accuracy") is not None}
    why = dict.fromkeys(finished, "finished, without an accuracy") | dict(failures)
    holes = [
        {"seed": int(seed), "why": why.get(place, "not run")} for place, seed in trials.items() if seed not in values
    ]
    first: Mapping[str, Any] = next(iter(trained.values()), {})
    live, density, training = (
        [body[key] for body in trained.values() if body.get(key) is not None]
        for key in ("live", "density", "training")
    )
    privacy = [body["privacy"] for body in trained.values()]
    return {
        **{key: getattr(arm, key) for key in ("name", "group", "varied", "note", "paper")},
        "values": values,
        **summary(list(values.values())).to_json(),
        "rounds": {seed: body.get("round") for seed, body in trained.items()},
        "live": [min(live), max(live)] if live else None,
        "density": sum(density) / len(density) if density else None,
        "training": sum(training) / len(training) if training else None,
        **{key: first.get(key) for key in ("steps", "noise_multiplier", "lr")},
        "privacy": max(privacy, key=lambda body: float(body["certified"]["epsilon"]), default=None),
        "difference": None,
        "missing": holes,
    }


def finish(recipe: recipes.Recipe, root: Path, ledger: Ledger, failures: Mapping[str, str]) -> dict[str, Any]:
    """Return the table, written as ``results.json``, ``results.md`` and, where the recipe asks for one, ``figure.png``.

    The files hold no folders, and nothing that trials said when they failed.
    """
    finished = members(recipe, root)
    privacy = total(recipe, finished, ledger)
    body = table(recipe, finished, failures, privacy)
    charts = _charts(recipe, body["arms"], root)
    picture = root / "figure.png"
    place = {"config": str(recipe.path), "out": str(root), "figure": str(picture) if charts else None}
    elsewhere = dict.fromkeys(failures, "it failed; the same command says why")  # which may tell of a record
    shared = {**files.published(place), **table(recipe, finished, elsewhere, privacy)}
    files.write_json(root / "results.json", shared)
    with files.replaced(root / "results.md") as staging:
        staging.write_text(markdown(shared), encoding="utf-8")
    if charts:
        write_charts(picture, charts, recipe.head.title)
    return {**place, **body}


def _charts(recipe: recipes.Recipe, rows: Sequence[Mapping[str, Any]], root: Path) -> list[Chart]:
    measured = [(arm, row) for arm, row in zip(recipe.arms, rows, strict=True) if row["mean"] is not None]
    if recipe.figure is None:
        return []
    if recipe.figure.over == "values":
        return _over_values(recipe.figure, measured)
    runs_of: dict[str, dict[str, list[dict[int, float] | None]]] = {}  # by dataset, and by arm
    for arm, row in measured:
        trials = [trial for trial in recipe.trials if trial.arm is arm and str(trial.seed) in row["values"]]
        runs = [read_metrics(root / trial.task.place / "metrics.jsonl") for trial in trials]
        runs_of.setdefault(arm.train.get("dataset", ""), {})[_with_epsilon(arm.name, [row])] = [*runs]
    charts = [(dataset, chart) for dataset, runs in runs_of.items() for chart in accuracy_over_steps(runs)]
    apart = len(runs_of) > 1
    return [replace(chart, title=f"{dataset}: {chart.title}") if apart else chart for dataset, chart in charts]


def _over_values(chart: recipes.Figure, measured: Sequence[tuple[recipes.Arm, Mapping[str, Any]]]) -> list[Chart]:
    groups: dict[str, list[tuple[float, Mapping[str, Any]]]] = {}
    for arm, row in measured:
        if isinstance(arm.varied, (int, float)):
            groups.setdefault(arm.group, []).append((arm.varied, row))
    lines = list[Series]()
    for group, points in groups.items():
        ends = ((100 * row["mean"], 100 * (row["interval"] or 0.0)) for _, row in points)
        spread = [(mean - half, mean + half) for mean, half in ends]
        title = _with_epsilon(group, [row for _, row in points])
        lines.append(Series(title, [(value, 100 * row["mean"]) for value, row in points], "o-", spread))
    title = "one seed" if all(row["interval"] is None for _, row in measured) else "95 % intervals over seeds"
    return [Chart(title, chart.x, ACCURACY, lines, {"xscale": "log"} if chart.log else {})] if lines else []


def _with_epsilon(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a name in a legend, with the certified epsilons that it stands for."""
    epsilon = [float(row["privacy"]["certified"]["epsilon"]) for row in rows]
    ends = dict.fromkeys(figure(pick(epsilon)) for pick in (min, max))
    return f"{name} (certified epsilon {' to '.join(ends)})"
