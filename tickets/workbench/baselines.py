"""The baselines of ``dpltm compare``: what they would cost is said, and what is missing is trained, as a sweep."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dpltm.errors import DpltmError, InputError
from dpltm.experiments.account import total_privacy
from dpltm.experiments.baselines import TITLE, Base, Baseline, base_of, baselines, kinds_of
from dpltm.experiments.recipe import Recipe
from dpltm.features.feature_map import FeatureMap
from dpltm.options.generate import GenerateRequest
from dpltm.options.report import CompareRequest
from dpltm.options.sections import resolve
from dpltm.options.train import TrainRequest
from dpltm.privacy.behind import drawn_with
from dpltm.privacy.events import Event, SelectionEvent, TrainingEvent
from dpltm.privacy.old_ledger import Ledger, merge
from dpltm.privacy.parts import touching
from dpltm.pruning.ticket_set import TicketSet
from dpltm.records import DatasetCache
from dpltm.reports.comparison import Candidate, compare, unlike
from dpltm.reports.subjects import section
from dpltm.stages import generate as generation
from dpltm.stages import train as training
from dpltm.stages.generate_settings import check_options
from dpltm.stages.progress import SILENT, Progress
from dpltm.stages.starting_point import from_round
from dpltm.stages.train_checks import check_request
from dpltm.stages.train_plan import TrainingPlan
from dpltm.tickets.checkpoint_files import progress_of
from dpltm.tickets.comparison_files import baseline_lines, together
from dpltm.tickets.found import FoundRun, candidate_of, find_run, privacy_of
from dpltm.tickets.identity import UserRegistry
from dpltm.tickets.ledger_file import open_ledger, unnamed_ledger
from dpltm.tickets.store import find_set, split_round
from dpltm.tickets.sweep_files import SweepFolder
from dpltm.tickets.workbench.generate import generate
from dpltm.tickets.workbench.opening import open_features, services
from dpltm.tickets.workbench.records import open_dataset
from dpltm.tickets.workbench.results import finish, ledgers
from dpltm.tickets.workbench.sweep import check_jobs, check_ledgers, local_workers, new_session, sweep
from dpltm.tickets.workbench.train import open_records, open_start
from dpltm.tickets.workbench.trial import STAGES, Stage, TrialRunner

OUT = "baselines.sweep"

NAMES = {"dense": "dense", "random": "random mask", "non-private": "dense without noise"}
"""What the table calls each kind."""

UNPROTECTED = "it was trained without noise, so nothing is certified for it, nor for all of these together"
UNSEEN = (
    "{}: its ledgers hold more on these records than the rows above, and for all of it together nothing is certified"
)
WHERE = "; a run keeps no folders: start the command where its files lie"
CHANGED = "its records, or what is measured on them, are not what RUN was trained on: {}; put them back"


@dataclass(frozen=True)
class Baselines:
    """What stands beside runs.

    Attributes:
        body: what the answer says of them, and what everything costs that their ledgers hold, or would hold.
        rows: of the table.
        notes: under it.
    """

    body: dict[str, Any]
    rows: tuple[Candidate, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Shown:
    """A baseline as far as it is there, and its row.

    Attributes:
        baseline: which.
        path: of its run.
        state: ``planned``, ``unfinished`` (paid for already), ``failed`` or ``finished``.
        candidate: its row.
        new: what training it would enter.
    """

    baseline: Baseline
    path: Path
    state: str
    candidate: Candidate
    new: tuple[Event, ...] = ()


@dataclass(frozen=True)
class Beside:
    """A run that baselines are trained beside: as it was found, its row, and its settings."""

    found: FoundRun
    candidate: Candidate
    base: Base


def with_baselines(
    request: CompareRequest, runs: Sequence[tuple[FoundRun, Candidate]], progress: Progress
) -> Baselines:
    """Says what the baselines cost that are missing beside runs, and trains them; with `dry_run` it only says so.

    Args:
        request: with `baselines`.
        runs: that were named, with their rows.
        progress: who watches.

    Raises:
        InputError: no run can have any, or what it was trained on is not there as it was; nothing is spent.
        BudgetError: a budget set on the records does not allow all of them; nothing is spent.

    Guarantees:
        What options, records, ledgers and budgets refuse is refused, for all baselines, before the first is paid for.
    """
    check_jobs(request.jobs)
    kinds, (beside, notes) = kinds_of(request.kinds), _beside(runs)
    root, session, there = Path(request.out or OUT), new_session(), {found.path.resolve() for found, _ in runs}
    recipe, wanted = baselines([one.base for one in beside], kinds, root)
    folder = SweepFolder(root, TITLE, session) if os.path.lexists(root) else None
    work = _Work(recipe, wanted, root, folder, {one.base.label: one for one in beside})
    shown = work.before(progress)
    new = [one.new for one in shown if one.new]
    unnamed_ledger(remember=False).check_budgets(event for events in new for event in events)
    rows = (*(candidate for _, candidate in runs), *_rows(shown, there))
    cost, held = total_privacy(recipe, new)["certified"], [] if folder is None else ledgers(recipe, folder)
    body = {
        "out": str(root),
        "to_train": len(new),
        "cost": {"epsilon": cost["epsilon"], "delta": cost["delta"]},
        "trainings": _answers(shown),
    }
    privacy = total_privacy(recipe, [*held, *new])
    for line in filter(None, (*baseline_lines(body), together(compare(rows)))):
        progress.say(line)
    if wanted and not request.dry_run:
        shown, privacy = work.train(request.jobs, session, progress)
        body["trainings"] = _answers(shown)
    bare = [one.candidate.label for one in shown if one.baseline.kind == "non-private"]
    said = (*notes, *(f"{label}: {UNPROTECTED}" for label in bare), *_unseen(root, held, rows))
    return Baselines({"privacy": privacy, "baselines": body}, _rows(shown, there), said)


def _rows(shown: Sequence[Shown], there: Collection[Path]) -> tuple[Candidate, ...]:
    """The rows of baselines, but for those that were named as runs."""
    return tuple(one.candidate for one in shown if one.path.resolve() not in there)


def _unseen(root: Path, held: Sequence[tuple[Event, ...]], rows: Sequence[Candidate]) -> list[str]:
    """A note where no row says that the ledgers of the folder certify nothing for these records: of other kinds, or runs."""
    records = next(row.records for row in rows if row.records is not None)
    every = [privacy_of(touching(merge(held), records), {}), *(row.privacy for row in rows)]
    bare = [privacy is not None and privacy["certified"]["epsilon"] == "inf" for privacy in every]
    return [UNSEEN.format(root)] if bare[0] and not any(bare[1:]) else []


def _answers(shown: Sequence[Shown]) -> list[dict[str, Any]]:
    """What the answer says of each."""
    return [
        {
            "kind": one.baseline.kind,
            "beside": list(one.baseline.beside),
            "run": str(one.path),
            "state": one.state,
            "why": next(iter(one.candidate.problems), None),
            "certified": None if one.candidate.privacy is None else one.candidate.privacy["certified"]["epsilon"],
        }
        for one in shown
    ]


def _generate(
    request: GenerateRequest, progress: Progress, *, draws: Mapping[str, tuple[Event, ...]], **more: Any
) -> dict[str, Any]:
    """As ``dpltm generate``; the set remembers the draws that its density depends on."""
    return generate(request, progress, draws=draws[request.name or ""], **more)


def _beside(runs: Sequence[tuple[FoundRun, Candidate]]) -> tuple[list[Beside], list[str]]:
    """The runs that can have baselines, and why others have none.

    Raises:
        InputError: none can.
    """
    beside: list[Beside] = []
    why: dict[str, str] = {}
    for found, candidate in runs:
        try:
            if found.state != "finished" or found.run is None or found.config is None:
                raise InputError(found.problems[0])
            if beside and (reason := unlike(beside[0].candidate, candidate)) is not None:
                raise InputError(reason)
            _check_density(found)
            draws = drawn_with(found.held)
            base = base_of(candidate.label, found.config, found.run.mask, found.run.feature_map, draws, found.measure)
            beside.append(Beside(found, candidate, base))
        except DpltmError as error:
            why[candidate.label] = str(error)
    notes = [f"{label}: has no baselines: {reason}" for label, reason in why.items()]
    if not beside:
        raise InputError(f"RUN: {notes[0]}")
    return beside, notes


def _check_density(found: FoundRun) -> None:
    """Raises InputError where the network's size or the ticket's density may tell of private records.

    The schedule of a set fixes both but for the draw of a round, which the ledger of a random mask enters as well. A set
    that was compacted, carried over or imported has no schedule, and nor has a compacted run: its size may tell of records,
    or of a draw.
    """
    config = found.config or {}
    if config.get("compacted_from") is not None:
        raise InputError(
            "it was compacted, so the size of its network tells of its ticket; name the run that it was made from"
        )
    own = config.get("ticket_set_id")
    elsewhere = any(isinstance(event, SelectionEvent) and event.ticket_set != own for event in found.held)
    if own is None or (config.get("provenance") in ("public", "data-free") and not elsewhere):
        return
    name = split_round(str(section(config, "options").get("ticket")))[0]
    for path in (Path(name), found.path.parent / name):
        if path.is_dir():
            tickets = find_set(str(path))
            if tickets.id == own and tickets.parent is None and tickets.criterion != "imported":
                return
    raise InputError(
        f"its ticket may come from private records, or a draw from them, and without its set, {name}, as dpltm generate made"
        " it, nobody can tell whether its density tells of them; put that set beside the run"
    )


class _Work:
    """Looks at baselines, before they are trained and after.

    Args:
        recipe: of all of them.
        wanted: all of them.
        root: folder of their sweep.
        folder: the same, if it is there.
        beside: the runs that they are trained beside, by label.
    """

    def __init__(
        self,
        recipe: Recipe,
        wanted: Sequence[Baseline],
        root: Path,
        folder: SweepFolder | None,
        beside: Mapping[str, Beside],
    ) -> None:
        self._recipe, self._root, self._folder, self._beside = recipe, root, folder, beside
        self._wanted, self._kinds = wanted, [baseline.kind for baseline in wanted]
        self._cache = DatasetCache()
        self._draws = {
            baseline.trial.arm.tickets: merge(beside[label].base.draws for label in baseline.beside)
            for baseline in wanted if baseline.trial.arm.tickets is not None
        }  # fmt: skip

    def before(self, progress: Progress) -> list[Shown]:
        """All of them before they are trained.

        Raises:
            DpltmError: one cannot be trained.
        """
        if not self._wanted:
            return []
        with progress.progress("what baselines would cost", len(self._wanted)) as step:
            shown = []
            for baseline in self._wanted:
                shown.append(self._before(baseline))
                step(len(shown))
        return shown

    def _before(self, baseline: Baseline) -> Shown:
        """A baseline before it is trained: what it would cost, unless that was paid before.

        Raises:
            DpltmError: it cannot be trained.
        """
        path, base = self._path(baseline), self._beside[baseline.base.label]
        if self._folder is not None and self._folder.result(baseline.trial.label) is not None:
            shown = self._after(baseline, self._folder)
            if shown.state == "finished" and (why := unlike(base.candidate, shown.candidate)) is not None:
                raise InputError(f"`out`: {path} was trained on {why}; take another `out`")
            return shown
        ledger = path.parent / "ledger.jsonl"
        begun = path.exists() or progress_of(path) is not None
        if begun and any(isinstance(event, TrainingEvent) for event in open_ledger(ledger, links=False).events):
            return self._unfinished(baseline, "unfinished", "was interrupted; it goes on, and is paid for")
        label = self._label(baseline)
        try:
            plan = self._plan(baseline)
            row = _planned(plan, label)
            if (why := unlike(base.candidate, row)) is not None:
                raise InputError(CHANGED.format(why))
            if _front(plan.dataset.feature_map) != _front(
                None if base.found.run is None else base.found.run.feature_map
            ):
                raise InputError("the features that its options make are not those that RUN was trained on")
        except DpltmError as error:
            said = str(error).replace("; correct the path", WHERE)
            raise type(error)(f"RUN: {baseline.base.label}: no baseline {baseline.kind}: {said}") from None
        return Shown(baseline, path, "planned", row, (*plan.lineage, plan.event))

    def train(self, jobs: int | None, session: str, progress: Progress) -> tuple[list[Shown], dict[str, Any]]:
        """Trains what is not finished.

        Args:
            jobs: how many processes; None for one a processor.
            session: of this attempt.
            progress: who watches.

        Returns:
            All of them, and what everything costs that the ledgers of the folder hold.
        """
        folder = SweepFolder(self._root, TITLE, session)
        check_ledgers(self._recipe, folder)
        stages: dict[str, Stage] = {**STAGES, "generate": partial(_generate, draws=self._draws)}
        sweep(
            self._recipe, TrialRunner(folder, self._cache, stages), local_workers(self._recipe, folder, jobs), progress
        )
        spent = finish(self._recipe, folder)["privacy"]
        return [self._after(baseline, folder) for baseline in self._wanted], spent

    def _after(self, baseline: Baseline, folder: SweepFolder) -> Shown:
        """A baseline after the sweep: finished, or why not."""
        path, name = self._path(baseline), baseline.trial.label
        if folder.result(name) is None:
            return self._unfinished(baseline, "failed", folder.failure(name) or "another process is at it")
        return Shown(baseline, path, "finished", candidate_of(find_run(path), self._label(baseline)))

    def _unfinished(self, baseline: Baseline, state: str, why: str) -> Shown:
        """One that is not there yet: what its ledgers hold counts."""
        path = self._path(baseline)
        ledgers = sorted(path.parent.glob("ledger*.jsonl"))
        events = merge(open_ledger(one, links=False, remember=False).events for one in ledgers)
        label = self._label(baseline)
        row = Candidate(label, "unfinished", (why,), events=events, privacy=privacy_of(events, {}))
        return Shown(baseline, path, state, row)

    def _path(self, baseline: Baseline) -> Path:
        return self._root / "members" / baseline.trial.label / "run"

    def _label(self, baseline: Baseline) -> str:
        """What the table calls it: by its kind, and where there are several of that, by the runs that it is for."""
        of = f" of {', '.join(baseline.beside)}" if self._kinds.count(baseline.kind) > 1 else ""
        return f"{NAMES[baseline.kind]} (baseline{of})"

    def _plan(self, baseline: Baseline) -> TrainingPlan:
        """The training of a baseline as its trial will plan it; nothing is entered or written."""
        arm, registry = baseline.trial.arm, UserRegistry(remember=False)
        given = {"dense": True} if arm.tickets is None else {"ticket": f"{arm.tickets}@1"}
        request = resolve(TrainRequest, {**given, "seed": baseline.trial.seed}, arm.train)
        check_request(request)
        if arm.tickets is None:
            _, start, dataset = open_start(request, registry, SILENT, self._cache)
        else:
            start, dataset = from_round(self._mask(arm.tickets, baseline.trial.seed, registry), 1), None
        if dataset is None:
            dataset = open_records(request, start, self._cache)
        return training.plan(start, dataset, request, Ledger(registry=registry), services(SILENT))

    def _mask(self, title: str, seed: int, registry: UserRegistry) -> TicketSet:
        """The set of a random mask, in memory; no record has a say in it but for the draws behind its density."""
        request = resolve(GenerateRequest, {"name": title, "seed": seed}, self._recipe.tickets[title])
        check_options(request)
        dataset = open_dataset(request, dataset_cache=self._cache)
        dataset = open_features(dataset, request, registry, SILENT)
        plan = generation.plan(dataset, request, Ledger(registry=registry), services(SILENT))
        return replace(generation.generate(plan, services(SILENT)), draws=self._draws[title])


def _front(feature_map: FeatureMap | None) -> str | None:
    """What stands in front of a network, but for where features are centred: each run releases that anew."""
    return None if feature_map is None else feature_map.uncentred.id


def _planned(plan: TrainingPlan, label: str) -> Candidate:
    """The row of a training that is planned: all but what will be measured."""
    events = (*plan.lineage, plan.event)
    return Candidate(
        label, "planned", (), training.config_of(plan, {}), {"rmse" if plan.dataset.rated else "accuracy": None},
        plan.start.spec.parameters, plan.records, touching(events, plan.records),
        training.planned_report(plan).to_json(),
    )  # fmt: skip
