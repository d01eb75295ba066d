"""Makes what a recipe asks for in the folder of its sweep: ticket sets, searches, and trials with a ledger of their own."""

from __future__ import annotations

import json
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

from dpltm.errors import ArtifactError, DpltmError, InputError, in_flags
from dpltm.experiments.commands import COMMANDS
from dpltm.experiments.ready import dataset_options
from dpltm.experiments.recipe import Arm, Recipe, Section, Trial, draw_options, override, reads_no_records
from dpltm.experiments.shared import (
    SEARCHED,
    Search,
    SharedSet,
    Task,
    name_of,
    needs_of,
    search_of,
    searched_settings,
    searches_other_set,
    searches_own_release,
    set_of,
    tasks,
)
from dpltm.experiments.table import DIED
from dpltm.options.sections import resolve
from dpltm.privacy.lineage import origin_events
from dpltm.records import DatasetCache
from dpltm.stages.progress import SILENT
from dpltm.tickets.checkpoint_files import checkpoint_path, remove_ended
from dpltm.tickets.files import read_json, read_section, write_json
from dpltm.tickets.identity import UserRegistry
from dpltm.tickets.journal import head
from dpltm.tickets.ledger_file import held_by
from dpltm.tickets.published import published
from dpltm.tickets.store import find_set, split_round
from dpltm.tickets.sweep_files import RESULT_FORMAT, RESULT_SCHEMA, SweepFolder
from dpltm.tickets.workbench import latent
from dpltm.tickets.workbench.generate import generate
from dpltm.tickets.workbench.records import open_dataset
from dpltm.tickets.workbench.select import select
from dpltm.tickets.workbench.train import train
from dpltm.tickets.workbench.transfer import transfer
from dpltm.tickets.workbench.tune import tune
from dpltm.training.checkpoint import begun_again_by

Stage = Callable[..., dict[str, Any]]
"""A stage on files: takes a request and who watches, and datasets that were read already; gives the answer."""

STAGES: Mapping[str, Stage] = {
    "train": train,
    "select": select,
    "tune": partial(tune, portable=True),
    "generate": generate,
    "transfer": transfer,
    "scheme": latent.agree,
    "encode": latent.send,
    "latent train": latent.receive,
}
"""By the name of their command (``dpltm.experiments.commands``)."""

BEFORE = "before-training.json"
"""What a draw, or an encoding, came to, until the trial is finished."""

AFTER = "after-training.json"
"""What a training came to, whose run is there, until the trial is finished."""

_ONE_AT_A_TIME = threading.Lock()
"""Torch's random state and number of threads are the process's, and a Dask worker may have several threads."""


@dataclass(frozen=True)
class TrialRunner:
    """Makes trials, and what they share, in the folder of a sweep.

    Attributes:
        folder: of the sweep.
        dataset_cache: of whichever process makes them.
        stages: what makes them.
    """

    folder: SweepFolder
    dataset_cache: DatasetCache = field(default_factory=DatasetCache)
    stages: Mapping[str, Stage] = field(default_factory=lambda: STAGES)

    def unsettled(self, recipe: Recipe) -> dict[str, Task]:
        """What is still to be made, by name, each behind what it needs."""
        trials = [trial for trial in recipe.trials if not self.is_settled(trial)]
        return {name: task for name, task in tasks(trials).items() if not self.is_settled(task)}

    def is_settled(self, task: Task) -> bool:
        """Whether something is there, or has failed in this session."""
        name = name_of(task)
        made = self.folder.result(name) is not None if isinstance(task, Trial) else self.path(task).exists()
        return made or self.folder.failure(name) is not None

    def path(self, shared: SharedSet | Search) -> Path:
        """Where something that trials share has its place."""
        if isinstance(shared, SharedSet):
            return self.folder.root / "tickets" / shared.folder
        return self.folder.root / "tune" / f"{shared.file}.toml"

    def attempt(self, task: Task, *, wait: bool = False, again: bool = False) -> None:
        """Makes something, or notes why it cannot be made.

        Nothing is done where it is settled, where another process is at it, or where what it needs is not there yet.

        Args:
            task: what to make.
            wait: until another process is done with it, rather than leave it.
            again: make it although a process died over it in this session.
        """
        name = name_of(task)
        with _ONE_AT_A_TIME, self.folder.lock(name, wait=wait) as mine:
            if not mine or self.is_settled(task) or not all(self.is_settled(need) for need in needs_of(task)):
                return
            try:
                if isinstance(task, Trial):
                    self._make_trial(task, again)
                elif not self.folder.begin_shared(name, again=again):
                    raise InputError(DIED)
                elif isinstance(task, SharedSet):
                    self._make_set(task)
                else:
                    self._make_search(task)
            except DpltmError as error:
                self.folder.fail(name, in_flags(f"{_title(task)}{error}"))
            except Exception as error:  # one trial's fault is not the others'
                if os.environ.get("DPLTM_DEBUG"):
                    raise
                # what it says may tell of a record
                why = f"internal error: {type(error).__name__}; set DPLTM_DEBUG=1 and run it again"
                self.folder.fail(name, f"{_title(task)}{why}")

    # trials

    def _make_trial(self, trial: Trial, again: bool) -> None:
        settings = self._settings(trial)
        self._check_same_search(trial, settings)
        shared = set_of(trial)
        source = None if shared is None else self._made_set(shared)
        home = self.folder.trial(trial.label)
        goes_on = any(self._left(home / name) is not None for name in (BEFORE, AFTER))
        if not self.folder.begin(trial.label, again=again, goes_on=goes_on):
            raise InputError(DIED)
        began = time.perf_counter()
        body = self._latent(trial) if trial.arm.latent is not None else self._trained(trial, source, settings)
        if trial.arm.tune is not None:
            body["settings"] = _decided(settings)
        self.folder.took(trial.label, time.perf_counter() - began, torch.get_num_threads())
        body = {key: published(value) if key in ("select", "train") else value for key, value in body.items()}
        head = {"arm": trial.arm.name, "seed": trial.seed, "digest": trial.digest, "records": self._records(trial)}
        self.folder.finish(trial.label, head | body)
        for name in ("tickets", "owners.msg", BEFORE, AFTER):  # not before: who dies here goes on with them
            _remove(home / name)

    def _records(self, trial: Trial) -> dict[str, Any] | None:
        """Keyed identity of the records that were trained on, so that others are not taken for them later."""
        path = self.folder.trial(trial.label) / "run" / "config.json"
        return json.loads(path.read_text(encoding="utf-8")).get("records") if path.exists() else None

    def _trained(self, trial: Trial, source: Path | None, settings: Section) -> dict[str, Any]:
        arm, home = trial.arm, self.folder.trial(trial.label)
        out, ledger = home / "run", home / "ledger.jsonl"
        before, after = self._left(home / BEFORE), self._left(home / AFTER)
        if after is not None:
            self._check_paid(home / AFTER)
            remove_ended(out)
            return {**({} if before is None else {"select": before}), "train": after}
        _remove(out)
        given: dict[str, Any] = {"out": str(out), "ledger": str(ledger), "seed": trial.seed}
        body: dict[str, Any] = {}
        if source is None:
            given["dense"] = True
        elif arm.select is not None:
            copy = home / "tickets"  # a draw is remembered with the set, and others draw from it as well
            if before is None:
                _remove(copy)
                shutil.copytree(source, copy, ignore=shutil.ignore_patterns("ledger.jsonl"))
                drawn = {"set": str(copy), **({} if reads_no_records(arm.select) else {"ledger": str(ledger)})}
                before = self._run("select", drawn, draw_options(arm), trial.recipe)
                self._remember(home / BEFORE, before)
            body["select"] = before
            given["ticket"] = str(copy)
        else:
            given["ticket"] = f"{source}@{_round(trial, source, settings)}"
        options = override(arm.train, {key: value for key, value in settings.items() if key in SEARCHED})
        ending = partial(self._remember, home / AFTER)
        body["train"] = self._run("train", given, options, trial.recipe, ending=ending)
        return body

    def _latent(self, trial: Trial) -> dict[str, Any]:
        stages, home = trial.arm.latent or {}, self.folder.trial(trial.label)
        scheme, messages, out = home / "scheme", home / "owners.msg", home / "run"
        encoded = self._left(home / BEFORE)
        _remove(out)
        if encoded is None:
            _remove(scheme)
            _remove(messages)
            self._run("scheme", {"out": str(scheme)}, stages["scheme"], trial.recipe)
            sent = {"scheme": str(scheme), "out": str(messages), "ledger": str(home / "ledger.jsonl")}
            encoded = self._run("encode", sent, stages["encode"], trial.recipe)
            self._remember(home / BEFORE, encoded)
        given = {"scheme": str(scheme), "messages": str(messages), "out": str(out), "seed": trial.seed}
        learned = self._run("latent train", given, stages["train"], trial.recipe)
        return {"train": {**learned, "privacy": encoded["privacy"]}}

    def _left(self, path: Path) -> dict[str, Any] | None:
        """The answer of a stage that an interrupted attempt ended and goes on from; None where there is none such.

        A training that ended has its run. A stage before it counts as long as the training goes on or has ended, or has not
        been paid for: whoever removes its checkpoint begins again with all of it.
        """
        if not path.exists():
            return None
        body = read_json(path, RESULT_FORMAT, RESULT_SCHEMA)
        home, answer = path.parent, body.get("answer")
        ended = (home / AFTER).exists() and (home / "run").exists()
        goes_on = checkpoint_path(home / "run").exists() or body.get("ledger") == _head(home / "ledger.jsonl")
        valid = ended or (path.name == BEFORE and goes_on)
        return answer if valid and isinstance(answer, dict) else None

    def _check_paid(self, path: Path) -> None:
        """Raises ArtifactError where the ledger is not the one that was there when a training ended."""
        ledger, then = path.parent / "ledger.jsonl", read_json(path, RESULT_FORMAT, RESULT_SCHEMA).get("ledger")
        if (now := _head(ledger)) != then and isinstance(then, str):  # an older version wrote its size
            raise ArtifactError(
                f"{ledger}: holds {now}, and held {then} when its training ended: deleted, shortened, replaced or an older"
                " copy; put it back, or take another `out`"
            )

    def _remember(self, path: Path, answer: Mapping[str, Any]) -> None:
        """Writes that answer down, without what no artifact holds."""
        held = _head(path.parent / "ledger.jsonl")
        body = {"format": RESULT_FORMAT, "schema": RESULT_SCHEMA, "ledger": held, "answer": published(answer)}
        write_json(path, body)

    def _run(
        self, name: str, given: Mapping[str, Any], section: Section, recipe: Recipe, **more: Any
    ) -> dict[str, Any]:
        """The answer of a stage to the options of a section, and to what the recipe decides."""
        request: Any = resolve(COMMANDS[name].request, given, section, str(recipe.path))
        with begun_again_by(f"remove {checkpoint_path(Path(given.get('out', '')))} to begin again"):
            return self.stages[name](request, SILENT, dataset_cache=self.dataset_cache, **more)

    # what trials share

    def _make_set(self, shared: SharedSet) -> None:
        given: dict[str, Any] = {"out": str(self.path(shared)), "seed": shared.seed, "name": shared.title}
        if shared.origin is None:
            self._run("generate", given, shared.options, shared.recipe)
        else:
            given["set"] = str(self._made_set(shared.origin))
            self._run("transfer", given, shared.options, shared.recipe)

    def _made_set(self, shared: SharedSet) -> Path:
        """The folder of a set.

        Raises:
            InputError: it failed; or what is there is not what the recipe asks for: it decides what is certified.
        """
        path = self._made(shared)
        there = find_set(str(path)).provenance
        if there != shared.provenance:
            raise InputError(
                f"{path}: its provenance is {there}, and that of [tickets.{shared.title}] is {shared.provenance}; remove it,"
                " and it is made"
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

    def _make_search(self, search: Search) -> None:
        arms = {trial.arm.name: trial for trial in search.trials}
        refusals = [self._refusal(trial) for trial in arms.values()]
        if None not in refusals:  # nobody may have its answer
            raise InputError(str(refusals[0]))
        tickets = None if search.tickets is None else str(self._made_set(search.tickets))
        given = {"out": str(self.path(search)), "seed": search.seed, "set": tickets}
        self._run("tune", given, search.options, search.recipe)

    def _settings(self, trial: Trial) -> Section:
        """What a search for the arm decided, as options of ``dpltm train``; nothing where there is none."""
        search = search_of(trial)
        if search is None:
            return {}
        if (refusal := self._refusal(trial)) is not None:
            raise refusal
        return read_section(self._made(search), "train")

    def _check_same_search(self, trial: Trial, settings: Section) -> None:
        """Raises InputError where other trials of the row were trained with what an earlier search decided."""
        if trial.arm.tune is None or searches_own_release(trial):
            return
        decided = _decided(settings)
        for other in (other for other in trial.recipe.trials if other.arm is trial.arm):
            had = (self.folder.result(other.label) or {}).get("settings", decided)
            if had != decided:
                raise InputError(
                    f"{other.label} was trained with what another search found, {had}, and that is gone from tune/; put it"
                    " back, or take another `out`"
                )

    def _refusal(self, trial: Trial) -> InputError | None:
        """Why a trial may not search with its set: it tells of the records that are trained on, and is in no ledger."""
        search = search_of(trial)
        if search is None or search.tickets is None or not searches_other_set(trial):
            return None
        path, registry = self._made_set(search.tickets), UserRegistry()
        dataset = open_dataset(dataset_options(trial.arm.train, trial.recipe.path), dataset_cache=self.dataset_cache)
        records = registry.reference(dataset)
        behind = origin_events(find_set(str(path)), dataset, records, registry)
        if not any(event.dataset.may_overlap(records) for event in behind):
            return None
        return InputError(
            f"tune tickets: {path.name} was made from records that are trained on, and what that cost is not in the ledger"
            " of this training; search with the arm's own tickets, or with a public set"
        )


def _title(task: Task) -> str:
    """What the failure of something that trials share begins with: it is read where one of these has its row."""
    if isinstance(task, Trial):
        return ""
    return f"tickets {task.folder}: " if isinstance(task, SharedSet) else f"tune {task.file}.toml: "


def _decided(settings: Section) -> dict[str, Any]:
    """What a search decided, without where its tickets are."""
    number = split_round(str(settings["ticket"]))[1] if "ticket" in settings else None
    return searched_settings(settings) | {"round": number}


def _round(trial: Trial, source: Path, settings: Section) -> int:
    """Which ticket a trial trains, where none is drawn."""
    arm: Arm = trial.arm
    if isinstance(arm.round, int):
        return arm.round
    if arm.round == "tuned":
        number = split_round(str(settings["ticket"]))[1]
        assert number is not None  # dpltm tune names one
        return number
    rounds = [ticket.round for ticket in find_set(str(source)).body.tickets if ticket.round]
    return random.Random(f"{trial.seed} {arm.tickets}").choice(rounds)


def _head(path: Path) -> str:
    """How a ledger ends: by the digest of its last event, which no other content has."""
    return head(held_by(path))


def _remove(path: Path) -> None:
    """Takes away what an attempt before left."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
