"""A recipe, run: ticket sets, searches and trials are made by whatever processes there are, all paid by one ledger.

What is finished is known by its digest, and left alone: that is the one way in which a sweep or a run goes on.
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

import torch
from joblib import Parallel, cpu_count, delayed, parallel_config

from dpltm.errors import DpltmError, InputError, as_flags, first_line, in_flags
from dpltm.experiments import paired, summary
from dpltm.options import resolve
from dpltm.options.run import DemoRequest, RunRequest
from dpltm.options.select import reads_no_records
from dpltm.options.train import TrainRequest
from dpltm.privacy.describe import figure
from dpltm.privacy.entry import Part, lineage_from_json, lineage_of, to_json, value_from_json
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Adjacency
from dpltm.privacy.statement import statement
from dpltm.progress import SILENT, Progress
from dpltm.reports.wording import all_terms, markdown
from dpltm.tickets import files
from dpltm.tickets.charts import ACCURACY, Chart, Metrics, Series, accuracy_over_steps, read_metrics, write_charts
from dpltm.tickets.checkpoint_files import remove_ended
from dpltm.tickets.ledger_file import BESIDE, open_ledger
from dpltm.tickets.run import load_run
from dpltm.tickets.store import find_set, split_round
from dpltm.tickets.sweep_files import SweepFolder, remove
from dpltm.tickets.ticket_set import private_path
from dpltm.tickets.workbench import latent
from dpltm.tickets.workbench.recipes import (
    COMMANDS,
    SEARCHED,
    Arm,
    Figure,
    Recipe,
    Section,
    Shared,
    Task,
    Trial,
    check_ready,
    override,
    read_recipe,
    tasks,
)
from dpltm.tickets.workbench.records import open_dataset
from dpltm.tickets.workbench.run import DEMO, price_stages, read_stages
from dpltm.tickets.workbench.stages import generate, select, train, transfer, tune

CONNECT_SECONDS = 10  # for a Dask scheduler to answer, and for its first worker
IDLE_SECONDS = 10  # after which a process with nothing to do ends: none outlives its sweep by more

Stage = Callable[..., dict[str, Any]]
"""A stage on files: takes a request and who watches; gives the answer."""

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

ALONE: Mapping[str, Stage] = {"train": train, "select": select, "generate": generate}
"""The three stages of ``dpltm run``, whose epsilon includes what the ledger holds already."""

DIED = "its process died; of too little memory, perhaps: take fewer `jobs`"

AGAIN = (
    "what is finished stays; a stage that was interrupted goes on from its checkpoint or begins anew, and what it paid stays"
    " in the ledger"
)
"""Said where a folder was begun before."""

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
    progress: Progress = SILENT
    session: str = field(default_factory=lambda: secrets.token_hex(8))

    def is_made(self, task: Task) -> bool:
        """Return whether something is there."""
        if isinstance(task, Trial):
            return self.folder.result(task.name) is not None
        return self.path(task).exists()

    def path(self, shared: Shared) -> Path:
        """Return where something that trials share has its place."""
        return self.folder.root / shared.name

    def attempt(self, task: Task) -> tuple[str, str | None]:
        """Make something; return its name, and why it cannot be made, or None."""
        why = None
        with _ONE_AT_A_TIME:
            try:
                if not self.is_made(task):  # Dask sends a call again whose worker died: what it paid is not paid again
                    if not self.folder.begin(task.name, self.session):
                        raise InputError(DIED)
                    self.make(task)
            except DpltmError as error:
                why = str(error)
            except Exception as error:  # one trial's fault is not the others'
                if os.environ.get("DPLTM_DEBUG"):
                    raise
                # what it says may tell of a record
                why = f"internal error: {type(error).__name__}; set DPLTM_DEBUG=1 and run it again"
        if why is not None and isinstance(task, Shared):
            why = f"{task.name}: {why}"  # it is read where a trial has its row
        return task.name, None if why is None else in_flags(why)

    def make(self, task: Task, **before: Any) -> dict[str, Any]:
        """Make a set, a search, or a trial by its stages; return what it came to. What an interrupted attempt has stays."""
        if isinstance(task, Shared):
            source = None if task.tickets is None else str(self._set(task.tickets))
            name = None if task.command == "tune" or self.folder.single else task.title
            decided = {"out": str(self.path(task)), "seed": task.seed, "set": source, "name": name}
            return self._call(task.command, decided, task.options)
        settings = {} if task.search is None else files.read_section(self.path(task.search), "train")
        home = self.folder.make(task.name)
        body = self._train(task, home, settings) if task.arm.latent is None else self._learn(task, home)
        body |= {**before, "arm": task.arm.name, "seed": task.seed, "digest": task.digest}
        self.folder.finish(task.name, {**body, **({"settings": _decided(settings)} if settings else {})})
        return body

    def _train(self, trial: Trial, home: Path, settings: Section) -> dict[str, Any]:
        arm, out, body = trial.arm, home / "run", dict[str, Any]()
        decided: dict[str, Any] = {"out": str(out), **({} if self.folder.single else {"seed": trial.seed})}
        if trial.tickets is None:
            decided["dense"] = True
        else:
            source = self._set(trial.tickets)
            remove_ended(source)
            if arm.select is None:
                decided["ticket"] = f"{source}@{_round(trial, source, settings)}"
            else:  # by a rule: by public accuracies, which a set that is carried over has not
                by_rule = reads_no_records(arm.draw) and not self.folder.single
                scored = self._set(trial.tickets.root) if by_rule else source
                draw = partial(self._draw, trial, scored, home / "tickets")
                body["select"] = self.folder.stage(trial.name, "draw.json", draw)
                decided["ticket"] = (
                    f"{source}@{body['select']['winner']['round']}" if by_rule else str(home / "tickets")
                )
        if out.exists():  # a process died when all was done
            remove_ended(out)
            answer: Any = files.parse_json(out / "result.json", files.read_bytes(out / "result.json", files.MAX_JSON))
        else:
            searched = {key: value for key, value in settings.items() if key in SEARCHED}
            answer = self._call("train", decided, override(arm.train, searched))
        if (out / "config.json").exists():
            run = load_run(out)
            body |= {"records": run.config.get("part"), "lineage": to_json(run.lineage)}
        return {**body, "train": answer}

    def _draw(self, trial: Trial, source: Path, copy: Path) -> dict[str, Any]:
        if source != copy:  # a draw is remembered with the set, and others draw from it as well
            remove(copy)
            shutil.copytree(source, copy)
        return self._call("select", {"set": str(copy)}, trial.arm.draw)

    def _learn(self, trial: Trial, home: Path) -> dict[str, Any]:
        stages = dict(trial.arm.latent or {})
        scheme, messages, out = home / "scheme", home / "owners.msg", home / "run"

        def encode() -> dict[str, Any]:
            remove(scheme)
            remove(messages)
            self._call("latent scheme", {"out": str(scheme)}, stages["scheme"])
            return self._call("latent encode", {"scheme": str(scheme), "out": str(messages)}, stages["encode"])

        encoded = self.folder.stage(trial.name, "encode.json", encode)
        remove(out)
        decided = {"scheme": str(scheme), "messages": str(messages), "out": str(out), "seed": trial.seed}
        learned = self._call("latent train", decided, stages["train"])
        lineage = latent.read_messages(messages, latent.load_scheme(scheme)).lineage
        if learned["randomised"] is not None:  # as those it learned from, and as the source tests
            learned["accuracy"] = learned["randomised"]
        return {"lineage": to_json(lineage), "train": {**learned, "privacy": encoded["privacy"]}}

    def _call(self, name: str, decided: Mapping[str, Any], section: Section) -> dict[str, Any]:
        request_class, _ = COMMANDS[name]
        if "ledger" in request_class.__dataclass_fields__ and not (name == "select" and reads_no_records(section)):
            decided = {**decided, "ledger": self.ledger, "population": self.population}
        return self.stages[name](resolve(request_class, decided, section), self.progress)

    def _set(self, shared: Shared) -> Path:
        """Return the folder of a set; refused where it is not what the recipe asks for: that decides what is certified."""
        path = self.path(shared)
        provenance = find_set(str(path)).provenance
        expected = shared.recipe.provenance(shared.title)
        if provenance != expected:
            raise InputError(
                f"{path}: its provenance is {provenance}, and that of [tickets.{shared.title}] is {expected}; remove it, and"
                " it is made"
            )
        return path


def _decided(settings: Section) -> dict[str, Any]:
    """Return the settings that a search decided, without where its tickets are."""
    number = split_round(str(settings["ticket"]))[1] if "ticket" in settings else None
    return {key: settings[key] for key in SEARCHED if key in settings and key != "lineage"} | {"round": number}


def _round(trial: Trial, source: Path, settings: Section) -> int:
    wanted = _decided(settings)["round"] if trial.arm.round == "tuned" else trial.arm.round
    if isinstance(wanted, int):
        return wanted
    rounds = [ticket.round for ticket in find_set(str(source)).body.tickets if ticket.round]
    return random.Random(f"{trial.seed} {trial.arm.tickets}").choice(rounds)


# --- who makes them ---------------------------------------------------------------------------------------------------


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
        """Yield what ``attempt`` says of every task, as it comes back. BrokenExecutor where a process died."""
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
    """Ignore Ctrl-C, which all of a terminal get; joblib starts other processes for another working ``folder``."""
    del folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def dask_workers(address: str) -> Iterator[Workers]:
    """Yield the workers of a Dask scheduler, for as long as the block lasts."""
    try:
        import distributed
    except ImportError:
        raise InputError("`scheduler`: needs Dask, which is not installed; pip install 'dpltm[dask]'") from None
    why = ""
    with contextlib.ExitStack() as opened:
        try:
            client = distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
            opened.enter_context(client).wait_for_workers(1, timeout=CONNECT_SECONDS)
            client.run(in_flags, "")  # joblib would wait for ever for a call that a worker cannot unpickle
        except Exception as error:
            why = f"{type(error).__name__}: {first_line(error)}"
        if why:  # not within the except clause: its error would keep half a client alive
            raise InputError(
                f"`scheduler`: {address}: no Dask scheduler answers, or none of its workers can run what it is sent ({why});"
                f" start dask scheduler, and dask worker {address} of this version where this folder is"
            )
        yield Workers(-1, client)


def sweep(recipe: Recipe, runner: TrialRunner, workers: Workers, progress: Progress = SILENT) -> dict[str, str]:
    """Make every trial that is not finished; return why those that cannot be made fail, by name. The others go on."""
    failures: dict[str, str] = {}
    unfinished = [trial for trial in recipe.trials if not runner.is_made(trial)]
    left = {name: task for name, task in tasks(unfinished).items() if not runner.is_made(task)}
    with progress.progress(recipe.head.title, len(recipe.trials)) as step:

        def note(name: str, why: str | None) -> None:
            del left[name]
            if why is not None:
                failures[name] = why
            failed = sum(trial.name in failures for trial in unfinished)
            unmade = sum(trial.name in left for trial in unfinished) + failed
            texts = [f"{failed} failed"] * bool(failed) + [f"next {name}" for name in [*left][:1]]
            step(len(recipe.trials) - unmade, ", ".join(texts))

        def make(ready: list[Task], runner: TrialRunner) -> None:
            try:
                for name, why in workers.run(runner.attempt, ready):
                    note(name, why)
            except BrokenExecutor:
                if len(ready) == 1:
                    note(ready[0].name, in_flags(DIED))
                else:  # nobody knows over which a process died: each that is left is made again, alone
                    for task in [task for task in ready if task.name in left]:
                        make([task], replace(runner, session=secrets.token_hex(8)))

        while left:
            for name, task in list(left.items()):
                why = next((failures[need.name] for need in task.needs if need.name in failures), None)
                if why is not None:
                    note(name, why)
            make([task for task in left.values() if not any(need.name in left for need in task.needs)], runner)
    return failures


# --- a file -----------------------------------------------------------------------------------------------------------


def run_file(path: Path, options: RunRequest, progress: Progress) -> dict[str, Any]:
    """Run a recipe or three stages, or price it with ``dry_run``; return the answer. All is checked first."""
    document = files.read_toml(path)
    if {"recipe", "arm"} & document.keys():
        return _run_recipe(document, path, options, progress)
    for flag in ("seeds", "quick", "jobs", "scheduler"):
        if getattr(options, flag):
            raise InputError(f"`{flag}`: of a recipe, and {path} is none (it has no table [recipe]); leave it out")
    options = replace(options, out=options.out or "dpltm-run")
    return _run_stages(read_stages(document, path, options), options, progress)


def demo(options: DemoRequest, out: Path, progress: Progress) -> dict[str, Any]:
    """Run the three stages on the digits inside scikit-learn; return the answer of ``dpltm run``."""
    torch.set_num_threads(1)  # networks this small gain nothing from more, and lose much on a machine that is busy
    progress.say("digits: half of the records are the public source of tickets, the other half are the private data")
    run_options = RunRequest(
        epsilon=options.epsilon, delta=options.delta, seed=options.seed, out=str(out), ledger=str(out / BESIDE)
    )
    return _run_stages(read_stages(DEMO, out, run_options), run_options, progress)


def _run_stages(recipe: Recipe, options: RunRequest, progress: Progress) -> dict[str, Any]:
    """Run the stages that an interrupted attempt did not end; what can be refused is, before the first begins."""
    root = Path(options.out or "")
    (trial,) = recipe.trials
    shared = trial.needs[0]
    if options.dry_run or not (root / "recipe.json").exists():
        if not files.only_being_written(root / "recipe.json"):
            files.check_free(root)
        plan = price_stages(recipe, options, open_dataset)
    if options.dry_run:
        return as_flags({"dry_run": True, "out": options.out, **plan})
    folder = SweepFolder(root, recipe.head.title, single=True)
    runner = TrialRunner(folder, ALONE, options.ledger, options.population, progress)
    with folder.alone():
        if folder.begun:
            progress.say(f"{root}: {AGAIN}")
        body = folder.result(trial.name)
        if body is None:
            if not (root / "generate.json").exists():  # or what is there is of an attempt that died, without an answer
                for path in (runner.path(shared), private_path(runner.path(shared))):
                    remove(path)
            generated = folder.stage(trial.name, "generate.json", lambda: runner.make(shared))
            body = runner.make(trial, generate=generated)
        folder.tidy(trial.name)
    places = {"ticket_set": str(root / "tickets"), "run": str(root / "run")}
    answers = {
        name: {key: places.get(key, value) for key, value in body[name].items()}
        for name in ("generate", "select", "train")
    }
    return {"out": options.out, **answers, "privacy": body["train"]["privacy"]}


def _run_recipe(document: Section, path: Path, options: RunRequest, progress: Progress) -> dict[str, Any]:
    for flag in ("epsilon", "delta", "split", "seed"):
        if getattr(options, flag) != getattr(RunRequest, flag):
            raise InputError(f"`{flag}`: a recipe says it for each of its arms; leave `{flag}` out")
    recipe = read_recipe(document, path, seeds=options.seeds, quick=options.quick)
    root = Path(options.out or f"{path.stem}{'-quick' if recipe.quick else ''}.sweep")
    place = options.ledger or str(root / BESIDE)
    ledger = open_ledger(place, population=options.population)
    records = check_ready(recipe, open_dataset, ledger)
    if options.dry_run:
        head = {"dry_run": True, "recipe": recipe.head.title, "source": recipe.head.source, "out": str(root)}
        return {**head, "ledger": place, **_plan(recipe, place, progress)}
    with contextlib.ExitStack() as opened:
        cluster = None if options.scheduler is None else opened.enter_context(dask_workers(options.scheduler))
        folder = SweepFolder(root, recipe.head.title)
        opened.enter_context(folder.alone())
        results = folder.results(trial.name for trial in recipe.trials)
        if len(results) < len(recipe.trials):
            ledger.begin()  # or several trials would, each by a key of its own
        workers = cluster or Workers(min(options.jobs or cpu_count(), max(1, len(recipe.trials) - len(results))))
        for trial in recipe.trials:  # rows would mix them
            trained_on, at_hand = results.get(trial.name, {}).get("records"), records.get(trial.arm.name)
            if (
                trained_on is not None
                and at_hand is not None
                and value_from_json(Part, trained_on, "part").snapshot != at_hand.snapshot
            ):
                raise InputError(
                    f"`out`: {folder.trial(trial.name)} was trained on other records than those of {at_hand.name} at hand;"
                    " take another `out`, or remove its result.json, to have it run again"
                )
        for name in results:
            folder.tidy(name)
        total(recipe, results, ledger)  # a ledger that is behind is noticed before anything is spent
        failures = sweep(recipe, TrialRunner(folder, STAGES, place, options.population), workers, progress)
        return {"ledger": place, **finish(recipe, folder, ledger, failures)}


def _plan(recipe: Recipe, ledger: str, progress: Progress) -> dict[str, Any]:
    """Return every arm, with the price of a trial as far as that does not wait for its tickets or settings."""
    arms = []
    with progress.progress("what it would spend", len(recipe.arms)) as step:
        for number, arm in enumerate(recipe.arms, 1):
            spent = None
            epsilon = arm.train.get("epsilon")
            if arm.latent is None and arm.tickets is None and arm.tune is None:
                decided = {"dense": True, "dry_run": True, "ledger": ledger}
                spent = train(resolve(TrainRequest, decided, arm.train), SILENT, own=True)["privacy"]
            private = arm.tickets is not None and recipe.provenance(arm.tickets) == "private"
            bounded = epsilon is not None and arm.train.get("noise") != "nominal"
            arms.append(
                {
                    "name": arm.name,
                    "paper": arm.paper,
                    "tickets": arm.tickets,
                    "dataset": (arm.train if arm.latent is None else arm.latent.encode).get("dataset"),
                    "epsilon": epsilon if arm.latent is None else arm.latent.scheme.get("epsilon"),
                    "noise_multiplier": arm.train.get("noise-multiplier"),
                    "privacy": spent,
                    "at_most": "inf" if private else f"at most {epsilon:g}" if bounded else "-",
                }
            )
            step(number)
    seeds = [*range(recipe.head.seeds)]
    sets = sorted(recipe.tickets)
    return {"quick": recipe.quick, "seeds": seeds, "members": len(recipe.trials), "tickets": sets, "arms": arms}


# --- what it came to --------------------------------------------------------------------------------------------------


def total(recipe: Recipe, results: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    """Return the statement on all together: on everything in the ledger, and behind finished trials.

    Attempts that failed, trials of an earlier version of the recipe and those of more seeds count as well. ``finite`` is
    what those releases that certify anything cost together, where others certify nothing.

    Delta and adjacency are those of the recipe: the least delta, and replace-one if any arm asks it.
    """
    lineage = lineage_of(*(lineage_from_json(result["lineage"]) for result in results.values() if "lineage" in result))
    account = ledger.account(lineage)
    delta = min(float(arm.train.get("delta", 1e-5)) for arm in recipe.arms)
    replaced = any(arm.train.get("adjacency") == "replace-one" for arm in recipe.arms)
    notes, finite = ["of all trials together: of everything that their ledger holds"], None
    if math.isinf(account.epsilon(delta, "rdp")) and math.isinf(account.epsilon(delta)):
        alone = ((entry, replace(account, entries=(entry,))) for entry in account.entries)
        certified = (entry for entry, own in alone if not entry.paid or math.isfinite(own.epsilon(delta, "rdp")))
        rest = replace(account, entries=tuple(certified))
        paid = len(account.paid)
        finite = {"epsilon": rest.epsilon(delta), "releases": len(rest.paid)}
        notes.append(
            f"{paid - len(rest.paid)} of {paid} releases certify nothing: all together neither; the others together would be"
            f" epsilon {figure(finite['epsilon'])}"
        )
    relation: Adjacency = "replace-one" if replaced else "add-remove"
    body = statement(account, delta, adjacency=relation, notes=notes).to_json()
    return as_flags({**body, "nominal": None, "finite": finite})


MAX_NAMES = 2
"""Rows that a note is about beyond which they are only counted."""


def table(
    recipe: Recipe, results: Mapping[str, Any], failures: Mapping[str, str], privacy: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the answer of a sweep, but for where it lies."""
    rows = [_row(recipe, arm, results, failures) for arm in recipe.arms]
    values = {row["name"]: row["values"] for row in rows}
    for arm, row in zip(recipe.arms, rows, strict=True):
        if arm.against is not None:
            row["difference"] = {"to": arm.against, **paired(values[arm.name], values[arm.against]).to_json()}
    names_of: dict[str, list[str]] = {}  # notes on rows' own guarantees, but for those of all together
    for row in rows:
        for note in () if row["privacy"] is None else dict.fromkeys(row["privacy"]["notes"]):
            if note not in privacy["notes"]:
                names_of.setdefault(note, []).append(repr(row["name"]))
    whose = {
        note: "" if len(names) == len(rows) else " and ".join(names) + ": " if len(names) <= MAX_NAMES
        else f"{len(names)} of {len(rows)} rows: "
        for note, names in names_of.items()
    }  # fmt: skip
    stated = all_terms(rows)
    seeds = recipe.head.seeds  # where rows agree on it, it is said once; else in each
    over = f"means over {seeds} seeds with 95 % intervals (Student's t)" if seeds > 1 else "one seed"
    return {
        "recipe": recipe.head.title,
        "source": recipe.head.source,
        "quick": recipe.quick,
        "privacy": dict(privacy),
        "seeds": list(range(seeds)),
        "finished": sum(trial.name in results for trial in recipe.trials),
        "members": len(recipe.trials),
        "arms": rows,
        "notes": [
            *recipe.head.notes,
            f"{over}, given what was searched once for all; the epsilon of a row is that of one of its trials, with all that"
            " it is made of; what they cost together is said above",
            "settings that the recipe fixes were chosen by people who had seen results on these datasets; what dpltm tune"
            " searched, it searched on public records; choosing among the rows by their accuracy is a search as well",
            *((f"certified epsilon: {stated[0]}",) if len(stated) == 1 else ()),
            *(f"{rows_of}{note}" for note, rows_of in whose.items()),
        ],
    }


def _row(recipe: Recipe, arm: Arm, results: Mapping[str, Any], failures: Mapping[str, str]) -> dict[str, Any]:
    trials = [trial for trial in recipe.trials if trial.arm is arm]
    trained = {trial.seed: results[trial.name]["train"] for trial in trials if trial.name in results}
    measured = {seed: body.get("accuracy") for seed, body in trained.items()}
    values = {str(seed): float(value) for seed, value in measured.items() if value is not None}
    why = dict.fromkeys(trained, "finished, without an accuracy")
    holes = [
        {"seed": trial.seed, "why": failures.get(trial.name, why.get(trial.seed, "not run"))}
        for trial in trials if str(trial.seed) not in values
    ]  # fmt: skip
    live, density, training = (
        [body[key] for body in trained.values() if body.get(key) is not None]
        for key in ("live", "density", "training")
    )
    first: Mapping[str, Any] = next(iter(trained.values()), {})
    privacy = [body["privacy"] for body in trained.values()]
    return {
        **{key: getattr(arm, key) for key in ("name", "group", "varied", "note", "paper")},
        "values": values,
        **summary(list(values.values())).to_json(),
        "rounds": {str(seed): body.get("round") for seed, body in trained.items()},
        "live": [min(live), max(live)] if live else None,
        "density": sum(density) / len(density) if density else None,
        "training": sum(training) / len(training) if training else None,
        **{key: first.get(key) for key in ("steps", "noise_multiplier", "lr")},
        "privacy": max(privacy, key=lambda body: float(body["certified"]["epsilon"]), default=None),
        "difference": None,
        "missing": holes,
    }


def finish(recipe: Recipe, folder: SweepFolder, ledger: Ledger, failures: Mapping[str, str]) -> dict[str, Any]:
    """Return the table, written as ``results.json``, ``results.md`` and, where the recipe asks for one, ``figure.png``.

    The files hold no folders, and nothing that trials said when they failed.
    """
    results = folder.results(trial.name for trial in recipe.trials)
    privacy = total(recipe, results, ledger)
    body = table(recipe, results, failures, privacy)
    charts = _charts(recipe, body, folder, results)
    picture = folder.root / "figure.png"
    place = {"config": str(recipe.path), "out": str(folder.root), "figure": str(picture) if charts else None}
    elsewhere = dict.fromkeys(failures, "it failed; the same command says why")  # which may tell of a record
    shared = {**files.published(place), **table(recipe, results, elsewhere, privacy)}
    folder.write_text("results.json", json.dumps(shared, indent=1, allow_nan=False) + "\n")
    folder.write_text("results.md", markdown(shared))
    if charts:
        write_charts(picture, charts, recipe.head.title)
    return {**{key: body[key] for key in ("recipe", "source")}, **place, **body}


def _charts(recipe: Recipe, body: Mapping[str, Any], folder: SweepFolder, results: Mapping[str, Any]) -> list[Chart]:
    if recipe.figure is None:
        return []
    measured = [(arm, row) for arm, row in zip(recipe.arms, body["arms"], strict=True) if row["mean"] is not None]
    if recipe.figure.over == "values":
        return _over_values(recipe.figure, measured)
    runs_of: dict[str, dict[str, list[Metrics | None]]] = {}
    for arm, row in measured:
        dataset = arm.train.get("dataset", "") if recipe.figure.apart else ""
        finished = (trial for trial in recipe.trials if trial.arm is arm and trial.name in results)
        runs: list[Metrics | None] = [
            read_metrics(folder.trial(trial.name) / "run" / "metrics.jsonl") for trial in finished
        ]
        runs_of.setdefault(dataset, {})[_with_epsilon(arm.name, [row])] = runs
    charts = ((dataset, accuracy_over_steps(runs)) for dataset, runs in runs_of.items())
    return [
        replace(chart, title=f"{dataset}: {chart.title}".removeprefix(": "))
        for dataset, panels in charts
        for chart in panels
    ]


def _over_values(figure_of: Figure, measured: Sequence[tuple[Arm, Mapping[str, Any]]]) -> list[Chart]:
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
    axes = {"xscale": "log"} if figure_of.log else {}
    return [Chart(title, figure_of.x, ACCURACY, lines, axes)] if lines else []


def _with_epsilon(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a name in a legend, with the certified epsilons that it stands for."""
    epsilon = [float(row["privacy"]["certified"]["epsilon"]) for row in rows]
    ends = dict.fromkeys(figure(pick(epsilon)) for pick in (min, max))
    return f"{name} (certified epsilon {' to '.join(ends)})"
