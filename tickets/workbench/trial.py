"""Makes what a recipe asks for in the folder of its sweep: ticket sets, searches and trials, all paid by one ledger."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dpltm.errors import DpltmError, InputError, in_flags
from dpltm.experiments.reader import COMMANDS
from dpltm.experiments.recipe import (
    SEARCHED,
    Recipe,
    Search,
    Section,
    SharedSet,
    Task,
    Trial,
    draw_options,
    override,
    provenance,
    reads_no_records,
    tasks,
)
from dpltm.options import resolve
from dpltm.privacy.entry import to_json
from dpltm.progress import SILENT
from dpltm.records import DatasetCache
from dpltm.tickets.checkpoint_files import checkpoint_path, remove_ended
from dpltm.tickets.files import MAX_JSON, parse_json, published, read_bytes, read_json, read_section, write_json
from dpltm.tickets.run import load_run
from dpltm.tickets.scheme_files import load_scheme, read_messages
from dpltm.tickets.store import find_set, split_round
from dpltm.tickets.sweep_files import RESULT_FORMAT, RESULT_SCHEMA, SweepFolder
from dpltm.tickets.workbench import latent
from dpltm.tickets.workbench.generate import generate
from dpltm.tickets.workbench.select import select
from dpltm.tickets.workbench.tickets import transfer
from dpltm.tickets.workbench.train import train
from dpltm.tickets.workbench.tune import tune
from dpltm.training.checkpoint import begun_again_by

Stage = Callable[..., dict[str, Any]]
"""A stage on files: takes a request and who watches, and datasets that were read already; gives the answer."""

STAGES: Mapping[str, Stage] = {
    "train": partial(train, own=True),
    "select": select,
    "tune": partial(tune, portable=True),
    "generate": partial(generate, own=True),
    "transfer": transfer,
    "scheme": latent.agree,
    "encode": partial(latent.send, own=True),
    "latent train": latent.receive,
}
"""By the name of their command. The epsilon that a trial asks for is that of its own lineage; the ledger has the total."""

DIED = "its process died; of too little memory, perhaps: take fewer `jobs`"
"""Of what was begun in this session, by a process that is no more."""

_ONE_AT_A_TIME = threading.Lock()
"""Torch's random state and number of threads are the process's, and a Dask worker may have several threads."""


@dataclass(frozen=True)
class TrialRunner:
    """Makes trials, and what they share, in the folder of a sweep.

    Attributes:
        folder: of the sweep.
        dataset_cache: of whichever process makes them.
        stages: what makes them.
        ledger: that pays for all of it; None for those of the datasets.
        population: whose account that is.
    """

    folder: SweepFolder
    dataset_cache: DatasetCache = field(default_factory=DatasetCache)
    stages: Mapping[str, Stage] = field(default_factory=lambda: STAGES)
    ledger: str | None = None
    population: str | None = None

    def unsettled(self, recipe: Recipe) -> dict[str, Task]:
        """Return what is still to be made, by name, each behind what it needs."""
        trials = [trial for trial in recipe.trials if not self.is_settled(trial)]
        return {name: task for name, task in tasks(trials).items() if not self.is_settled(task)}

    def is_settled(self, task: Task) -> bool:
        """Return whether something is there, or has failed in this session."""
        made = self.folder.result(task.name) is not None if isinstance(task, Trial) else self.path(task).exists()
        return made or self.folder.failure(task.name) is not None

    def path(self, shared: SharedSet | Search) -> Path:
        """Return where something that trials share has its place."""
        return self.folder.root / shared.place

    def attempt(self, task: Task, *, wait: bool = False, again: bool = False) -> None:
        """Make something, or note why it cannot be made.

        Nothing is done where it is settled, where another process is at it, or where what it needs is not there yet.

        Args:
            task: what to make.
            wait: until another process is done with it, rather than leave it.
            again: make it although a process died over it in this session.
        """
        with _ONE_AT_A_TIME, self.folder.lock(task.name, wait=wait) as mine:
            if not mine or self.is_settled(task) or not all(self.is_settled(need) for need in task.needs):
                return
            title = "" if isinstance(task, Trial) else f"{task.place}: "  # it is read where a trial has its row
            try:
                if not self.folder.begin(task.name, again=again):
                    raise InputError(DIED)
                self._make(task)
            except DpltmError as error:
                self.folder.fail(task.name, in_flags(f"{title}{error}"))
            except Exception as error:  # one trial's fault is not the others'
                if os.environ.get("DPLTM_DEBUG"):
                    raise
                # what it says may tell of a record
                why = f"internal error: {type(error).__name__}; set DPLTM_DEBUG=1 and run it again"
                self.folder.fail(task.name, f"{title}{why}")

    def _make(self, task: Task) -> None:
        if isinstance(task, Trial):
            self._make_trial(task)
            return
        given: dict[str, Any] = {"out": str(self.path(task)), "seed": task.seed}
        if isinstance(task, Search):
            tickets = None if task.tickets is None else str(self._made_set(task.tickets))
            self._run("tune", {**given, "set": tickets}, task.options, task.recipe)
        elif task.origin is None:
            self._run("generate", {**given, "name": task.title}, task.options, task.recipe)
        else:
            given |= {"name": task.title, "set": str(self._made_set(task.origin))}
            self._run("transfer", given, task.options, task.recipe)

    # trials

    def _make_trial(self, trial: Trial) -> None:
        settings = self._settings(trial)
        home = self.folder.make(trial.label)
        began = time.perf_counter()
        body = self._learned(trial, home) if trial.arm.latent is not None else self._trained(trial, home, settings)
        if trial.arm.tune is not None:
            body["settings"] = _decided(settings)
        self.folder.took(trial.label, time.perf_counter() - began, torch.get_num_threads())
        self.folder.finish(trial.label, {"arm": trial.arm.name, "seed": trial.seed, "digest": trial.digest, **body})
        for name in (
            "tickets",
            "owners.msg",
            "draw.json",
            "encode.json",
        ):  # not before: who dies here goes on with them
            _remove(home / name)

    def _trained(self, trial: Trial, home: Path, settings: Section) -> dict[str, Any]:
        arm, out = trial.arm, home / "run"
        source = None if trial.tickets is None else self._made_set(trial.tickets)
        given: dict[str, Any] = {"out": str(out), "seed": trial.seed}
        body: dict[str, Any] = {}
        if source is None:
            given["dense"] = True
        elif arm.select is not None:
            copy = home / "tickets"  # a draw is remembered with the set, and others draw from it as well
            body["select"] = self._once(home / "draw.json", partial(self._draw, trial, source, copy))
            given["ticket"] = str(copy)
        else:
            given["ticket"] = f"{source}@{_round(trial, source, settings)}"
        if out.exists():  # a process died when all was done
            remove_ended(out)
            answer: Any = parse_json(out / "result.json", read_bytes(out / "result.json", MAX_JSON))
        else:
            options = override(arm.train, {key: value for key, value in settings.items() if key in SEARCHED})
            answer = self._run("train", given, options, trial.recipe)
        if (out / "config.json").exists():
            run = load_run(out)
            body |= {"records": run.config.get("part"), "lineage": to_json(run.lineage)}
        return {**body, "train": published(answer)}

    def _draw(self, trial: Trial, source: Path, copy: Path) -> dict[str, Any]:
        _remove(copy)
        shutil.copytree(source, copy)
        return self._run("select", {"set": str(copy)}, draw_options(trial.arm), trial.recipe)

    def _learned(self, trial: Trial, home: Path) -> dict[str, Any]:
        stages = trial.arm.latent or {}
        scheme, messages, out = home / "scheme", home / "owners.msg", home / "run"

        def encode() -> dict[str, Any]:
            _remove(scheme)
            _remove(messages)
            self._run("scheme", {"out": str(scheme)}, stages["scheme"], trial.recipe)
            return self._run("encode", {"scheme": str(scheme), "out": str(messages)}, stages["encode"], trial.recipe)

        encoded = self._once(home / "encode.json", encode)
        _remove(out)
        given = {"scheme": str(scheme), "messages": str(messages), "out": str(out), "seed": trial.seed}
        learned = published(self._run("latent train", given, stages["train"], trial.recipe))
        lineage = read_messages(messages, load_scheme(scheme)).lineage
        return {"lineage": to_json(lineage), "train": {**learned, "privacy": encoded["privacy"]}}

    def _once(self, path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The answer of a stage that is made once: an interrupted trial goes on with it."""
        head = {"format": RESULT_FORMAT, "schema": RESULT_SCHEMA}
        if not path.exists():
            write_json(path, {**head, "answer": published(make())})
        answer: dict[str, Any] = read_json(path, RESULT_FORMAT, RESULT_SCHEMA)["answer"]
        return answer

    def _run(self, name: str, given: Mapping[str, Any], section: Section, recipe: Recipe) -> dict[str, Any]:
        """The answer of a stage to the options of a section, and to what the recipe decides."""
        command = COMMANDS[name]
        if "ledger" in command.decided and not (name == "select" and reads_no_records(section)):
            given = {**given, "ledger": self.ledger, "population": self.population}
        request: Any = resolve(command.request, given, section, str(recipe.path))
        with begun_again_by(f"remove {checkpoint_path(Path(given.get('out', '')))} to begin again"):
            return self.stages[name](request, SILENT, dataset_cache=self.dataset_cache)

    # what trials share

    def _made_set(self, shared: SharedSet) -> Path:
        """The folder of a set.

        Raises:
            InputError: it failed; or what is there is not what the recipe asks for: it decides what is certified.
        """
        path, there = self._made(shared), find_set(str(self.path(shared))).provenance
        asked = provenance(shared.recipe.tickets, shared.title)
        if there != asked:
            raise InputError(
                f"{path}: its provenance is {there}, and that of [tickets.{shared.title}] is {asked}; remove it, and it is"
                " made"
            )
        return path

    def _made(self, shared: SharedSet | Search) -> Path:
        """The place of something that trials share.

        Raises:
            InputError: why it is not there.
        """
        path = self.path(shared)
        if not path.exists():
            raise InputError(self.folder.failure(shared.name) or f"{path}: is gone; run the same command again")
        return path

    def _settings(self, trial: Trial) -> Section:
        """What a search for the arm decided, as options of ``dpltm train``; nothing where there is none.

        Raises:
            InputError: other trials of the row were trained with what an earlier search decided.
        """
        search = trial.search
        if search is None:
            return {}
        settings = read_section(self._made(search), "train")
        decided = _decided(settings)
        for other in (other for other in trial.recipe.trials if other.arm is trial.arm):
            if other.search is None or other.search.place != search.place:
                continue
            had = (self.folder.result(other.label) or {}).get("settings", decided)
            if had != decided:
                raise InputError(
                    f"{other.label} was trained with what another search found, {had}, and that is gone from tune/; put it"
                    " back, or take another `out`"
                )
        return settings


def _decided(settings: Section) -> dict[str, Any]:
    """What a search decided, without where its tickets are."""
    number = split_round(str(settings["ticket"]))[1] if "ticket" in settings else None
    return {key: settings[key] for key in SEARCHED if key in settings and key != "lineage"} | {"round": number}


def _round(trial: Trial, source: Path, settings: Section) -> int:
    """Which ticket a trial trains, where none is drawn."""
    asked = trial.arm.round
    if isinstance(asked, int):
        return asked
    if asked == "tuned":
        number = split_round(str(settings["ticket"]))[1]
        assert number is not None  # dpltm tune names one
        return number
    rounds = [ticket.round for ticket in find_set(str(source)).body.tickets if ticket.round]
    return random.Random(f"{trial.seed} {trial.arm.tickets}").choice(rounds)


def _remove(path: Path) -> None:
    """Take away what an attempt before left."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
