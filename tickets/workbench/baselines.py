"""The baselines of ``dpltm compare``: what they would cost is said, and what is missing is trained, as a sweep.

A dense network is trained as the run was, with all weights live. A random mask has the density of the run's ticket. Trained
without noise, the dense network shows what privacy costs; nothing is certified for it, so it is made only if it is named.
They are paid by the ledger of the records; the epsilon that each asks for is that of its own lineage, as of a trial.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.errors import DpltmError, InputError
from dpltm.experiments.reader import REMEMBERED
from dpltm.experiments.recipe import Arm, Recipe, Section, Trial, data_options, digest
from dpltm.features.feature_map import FeatureMap
from dpltm.networks import ModelSpec
from dpltm.networks.masks import Mask
from dpltm.options import resolve, section_problems
from dpltm.options.generate import GenerateRequest
from dpltm.options.report import BASELINES, CompareRequest
from dpltm.options.train import TrainRequest
from dpltm.privacy.account import Account
from dpltm.privacy.entry import NO_LINEAGE, Entry, Lineage, Part
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Selection
from dpltm.privacy.statement import json_figure
from dpltm.progress import SILENT, Progress
from dpltm.pruning.generation import GenerationConfig, pruning_rates
from dpltm.records import DatasetCache
from dpltm.registry import listed
from dpltm.reports.comparison import Candidate, compare, unlike
from dpltm.reports.subjects import number, section, text
from dpltm.tickets.checkpoint_files import progress_of
from dpltm.tickets.comparison_files import baseline_lines, together
from dpltm.tickets.run import FoundRun, candidate_of, find_run
from dpltm.tickets.store import find_set, split_round
from dpltm.tickets.sweep_files import SweepFolder
from dpltm.tickets.workbench.generate import generate
from dpltm.tickets.workbench.opening import services
from dpltm.tickets.workbench.records import open_dataset
from dpltm.tickets.workbench.sweep import check_jobs, finish, local_workers, new_session, sweep, total
from dpltm.tickets.workbench.train import check_request, open_start, opened_ledger
from dpltm.tickets.workbench.trial import STAGES, Stage, TrialRunner
from dpltm.training.release import Training
from dpltm.verbs import train as training

if TYPE_CHECKING:
    from torch import Tensor

OUT = "baselines.sweep"

TITLE = "Baselines"
"""Of the recipe: one folder holds those of any runs."""

NAMES = {"dense": "dense", "random": "random mask", "non-private": "dense without noise"}
"""What the table calls each kind."""

UNPROTECTED = "it was trained without noise, so nothing is certified for it, nor for all of these together"
WHERE = "; a run keeps no folders: start the command where its files lie"
CHANGED = "its records, or what is measured on them, are not what RUN was trained on: {}; put them back"

OF_A_TRAINING = frozenset(
    {"ticket", "dense", "seed", *(name.replace("_", "-") for name in TrainRequest.__annotations__)}
)
"""Options that say which training it is, and not how it is done."""

UNREPEATABLE = "its features come from another run, whose folder it does not name; train a dense run by hand"
DIGITS = 6
"""Of a digest of settings, in the name of an arm: names stay the same whatever is compared."""


# --- which trainings that takes -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Base:
    """A run that baselines are trained beside.

    Attributes:
        label: what the table calls it.
        train: its options of ``dpltm train``, as those of a dense network.
        spec: its network.
        rate: fraction of each layer that one round would drop to leave a mask as dense as its ticket; 0 for a whole network.
        draws: that its ticket, and so the density, may depend on.
        measure: ``accuracy`` or ``rmse``.
    """

    label: str
    train: Section
    spec: ModelSpec
    rate: float
    draws: Lineage
    measure: str


@dataclass(frozen=True)
class Baseline:
    """One training that is to be compared with runs.

    Attributes:
        kind: of ``BASELINES``.
        beside: labels of the runs with these settings.
        base: the first of them.
        trial: of the recipe.
        label: what the table calls it: by its kind, and where there are several of that, by the runs that it is for.
    """

    kind: str
    beside: tuple[str, ...]
    base: Base
    trial: Trial
    label: str

    @property
    def run(self) -> Path:
        """Where it is, or will be."""
        return self.trial.recipe.path / "members" / self.trial.label / "run"


def kinds_of(given: str | None) -> tuple[str, ...]:
    """The kinds that an option names; dense and random where it names none.

    Raises:
        InputError: there is no such kind, or one is named twice.
    """
    kinds = ("dense", "random") if given is None else tuple(part.strip() for part in given.split(","))
    wrong = next((kind for kind in kinds if kind not in BASELINES), None)
    if wrong is not None:
        raise InputError(
            f"`kinds`: {wrong!r:.80} is not one of {listed(BASELINES, 'and')}; name some of them, with commas"
        )
    if len(set(kinds)) < len(kinds):
        raise InputError("`kinds`: one is named twice; name each once")
    return kinds


def base_of(
    label: str,
    config: Mapping[str, Any],
    mask: Mapping[str, Tensor],
    feature_map: FeatureMap | None,
    draws: Lineage,
    measure: str,
) -> Base:
    """What baselines of a run are trained with.

    Args:
        label: what the table calls it.
        config: of the run.
        mask: that it was trained with.
        feature_map: in front of its network, as the run keeps it.
        draws: behind it.
        measure: ``accuracy`` or ``rmse``.

    Raises:
        InputError: it does not hold how it was trained, or baselines of it would be of no use.
    """
    options = config.get("options")
    if not isinstance(options, Mapping):
        raise InputError("it holds no options of dpltm train; it was trained in Python, or by an older version")
    defaults = {item.name: item.default for item in fields(TrainRequest)}
    given = {
        name.replace("_", "-"): value
        for name, value in options.items()
        if value is not None and value != defaults.get(name)
    }
    train = {name: value for name, value in given.items() if name not in OF_A_TRAINING}
    if problems := section_problems(TrainRequest, train):
        raise InputError(f"its options are not those of dpltm train: {problems[0]}")
    if "dataset" not in train:
        raise InputError("it names no dataset; its records were given in Python")
    if number(section(config, "resolved").get("noise_multiplier")) == 0:
        raise InputError("it was trained without noise")
    spec = ModelSpec(config["model"], config["features"], config["classes"])  # which the run was read by
    train = {name: value for name, value in train.items() if name not in REMEMBERED}
    whole = section(config, "resolved").get("round") in (None, 0)
    return Base(
        label,
        {**train, "model": spec.text, **_in_front(feature_map, given)},
        spec,
        0.0 if whole else random_rate(spec, mask, by_user=bool(config.get("of_persons"))),
        draws,
        measure,
    )


def _in_front(feature_map: FeatureMap | None, given: Section) -> dict[str, Any]:
    """The options that make the map of a run again."""
    if feature_map is None:
        return {}
    if feature_map.network is not None:
        named = text(given.get("features"))
        if named is None:
            raise InputError(UNREPEATABLE)
        return {"features": named}
    options: dict[str, Any] = {"features": feature_map.text}
    if feature_map.statistics is not None or feature_map.projection is not None:
        declared = (entry.part.name for entry in feature_map.lineage.entries if entry.kind == "public")
        options["public"] = next(declared, "")
    if feature_map.projection is not None:
        options["components"] = len(feature_map.projection.components)
    return options


def baselines(bases: Sequence[Base], kinds: Sequence[str], path: Path) -> tuple[Recipe, list[Baseline]]:
    """The baselines that are missing beside runs: one of each kind for all runs that share their settings.

    A run of a whole network is a dense baseline by itself, and has no random mask beside it.

    Args:
        bases: the runs.
        kinds: what to train.
        path: folder of their sweep, which stands for the file of the recipe.

    Returns:
        The recipe, and what its arms are.
    """
    arms: dict[str, tuple[str, Arm, list[Base]]] = {}
    sets: dict[str, Section] = {}
    there = {digest(base.train) for base in bases if not base.rate}
    for kind in kinds:
        for base in bases:
            if kind == "dense" and digest(base.train) in there:
                continue
            if kind == "random" and not base.rate:
                continue
            if kind == "random" and "unit-column" in base.train:
                raise InputError(
                    f"RUN: {base.label}: no baseline random: a ticket set knows no `unit_column`; take `kinds` dense"
                )
            arm = _random_arm(base, sets) if kind == "random" else _dense_arm(base, kind)
            arms.setdefault(arm.name, (kind, arm, []))[2].append(base)
    rows = tuple(arm for _, arm, _ in arms.values())
    recipe = Recipe(path, TITLE, "", (), 1, bases[0].measure, sets, rows, None, False)
    made = []
    for (kind, _, beside), trial in zip(arms.values(), recipe.trials, strict=True):
        labels = tuple(base.label for base in beside)
        several = sum(other == kind for other, _, _ in arms.values()) > 1
        label = f"{NAMES[kind]} (baseline{' of ' + ', '.join(labels) if several else ''})"
        made.append(Baseline(kind, labels, beside[0], trial, label))
    return recipe, made


def _dense_arm(base: Base, kind: str) -> Arm:
    train = dict(base.train)
    if kind == "non-private":
        for name in ("epsilon", "budget-stop", "audit"):
            train.pop(name, None)
        train["noise-multiplier"] = 0.0
    return _arm(kind, train, None)


def _random_arm(base: Base, sets: dict[str, Section]) -> Arm:
    """One training of a random mask, whose set is noted in ``sets``."""
    front = {name: base.train[name] for name in REMEMBERED if name in base.train}
    section = {
        **data_options(base.train),
        **front,
        "criterion": "random",
        "rounds": 1,
        "prune": f"{base.rate:.12g}",
    }
    name = f"random {digest(section)[:DIGITS]}"
    sets[name] = section
    return _arm("random", {key: value for key, value in base.train.items() if key not in REMEMBERED}, name)


def _arm(kind: str, train: Section, tickets: str | None) -> Arm:
    name = f"{kind} {digest([train, tickets])[:DIGITS]}"
    number_of = None if tickets is None else 1
    return Arm(name, name, None, None, tickets, number_of, None, train, None, None, None)


def random_rate(spec: ModelSpec, mask: Mapping[str, Tensor], *, by_user: bool = False) -> float:
    """The fraction of each layer that one round drops to leave as many weights as a mask has in all.

    Args:
        spec: the network; layers that are never pruned count.
        mask: by parameter.
        by_user: whether users are protected: held-out ones are pruned anyway, so tables of users do not count.
    """
    apart = spec.kind.user_parameters if by_user else ()
    weights = {name: live for name, live in mask.items() if live.ndim >= 2 and name not in apart}
    dropped = sum(live.numel() - int(live.sum()) for live in weights.values())
    return dropped / sum(weights[name].numel() for name in pruning_rates(spec, GenerationConfig()) if name in weights)


# --- what they cost, and their rows ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Baselines:
    """What stands beside runs.

    Attributes:
        body: what the answer says of them, and what everything in the ledger comes to, or would come to.
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
        state: ``planned``, ``unfinished``, ``failed`` or ``finished``.
        candidate: its row.
        new: the draft of what training it would enter, if that is to come.
    """

    baseline: Baseline
    state: str
    candidate: Candidate
    new: Entry | None = None


def with_baselines(
    request: CompareRequest, runs: Sequence[tuple[FoundRun, Candidate]], progress: Progress
) -> Baselines:
    """Say what the baselines cost that are missing beside runs, and train them; with `dry_run` only say so.

    Args:
        request: with `baselines`.
        runs: that were named, with their rows.
        progress: who watches.

    Raises:
        InputError: no run can have any, or what it was trained on is not there as it was; nothing is spent.
        BudgetError: a budget in the ledger does not allow all of them; nothing is spent.

    Guarantees:
        What options, records, the ledger and its budget refuse is refused, for all baselines, before the first is paid for.
    """
    check_jobs(request.jobs)
    kinds, (bases, notes) = kinds_of(request.kinds), _bases(runs)
    root, session, there = Path(request.out or OUT), new_session(), {found.path.resolve() for found, _ in runs}
    recipe, wanted = baselines(bases, kinds, root)
    folder = SweepFolder(root, TITLE, session) if os.path.lexists(root) else None
    ran = {candidate.label: (found, candidate) for found, candidate in runs}
    work = _Work(recipe, wanted, root, folder, bases[0], ran, request)
    shown = work.before(progress)
    new = [one.new for one in shown if one.new is not None]
    work.ledger.account().check_budget(new)
    rows = (*(candidate for _, candidate in runs), *_rows(shown, there))
    privacy = total(recipe, folder, work.ledger, new)
    delta = privacy["certified"]["delta"]
    cost = (Account(unit=work.ledger.unit) + new).epsilon(delta)
    body = {
        "out": str(root),
        "to_train": len(new),
        "cost": {"epsilon": json_figure(cost), "delta": delta},
        "trainings": _answers(shown),
    }
    for line in filter(None, (*baseline_lines(body), together(compare(rows)))):
        progress.say(line)
    if wanted and not request.dry_run:
        shown, privacy = work.train(request.jobs, session, progress)
        body["trainings"] = _answers(shown)
    bare = [one.candidate.label for one in shown if one.baseline.kind == "non-private"]
    said = (*notes, *(f"{label}: {UNPROTECTED}" for label in bare))
    return Baselines({"privacy": privacy, "baselines": body}, _rows(shown, there), said)


def _rows(shown: Sequence[Shown], there: Collection[Path]) -> tuple[Candidate, ...]:
    """The rows of baselines, but for those that were named as runs."""
    return tuple(one.candidate for one in shown if one.baseline.run.resolve() not in there)


def _answers(shown: Sequence[Shown]) -> list[dict[str, Any]]:
    """What the answer says of each."""
    return [
        {
            "kind": one.baseline.kind,
            "beside": list(one.baseline.beside),
            "run": str(one.baseline.run),
            "state": one.state,
            "why": next(iter(one.candidate.problems), None),
            "certified": None if one.candidate.privacy is None else one.candidate.privacy["certified"]["epsilon"],
        }
        for one in shown
    ]


def _generate(
    draws: Mapping[str, Lineage], request: GenerateRequest, progress: Progress, **more: Any
) -> dict[str, Any]:
    """As ``dpltm generate``; the set carries the draws that its density depends on."""
    return generate(request, progress, own=True, lineage=draws[request.name or ""], **more)


def _bases(runs: Sequence[tuple[FoundRun, Candidate]]) -> tuple[list[Base], list[str]]:
    """The runs that can have baselines, and why others have none.

    Raises:
        InputError: none can.
    """
    bases: list[Base] = []
    first: Candidate | None = None
    why: dict[str, str] = {}
    for found, candidate in runs:
        try:
            if found.state != "finished" or found.run is None or found.config is None:
                raise InputError(found.problems[0])
            if first is not None and (reason := unlike(first, candidate)) is not None:
                raise InputError(reason)
            _check_density(found)
            drawn = any(entry.of(Selection) for entry in found.lineage.entries)
            own = found.run.entry
            before = tuple(entry for entry in found.lineage.entries if entry != own)  # which the draw may depend on
            behind = replace(found.lineage, entries=before) if drawn else NO_LINEAGE
            run, label = found.run, candidate.label
            bases.append(base_of(label, found.config, run.mask, run.feature_map, behind, found.measure))
            first = first or candidate
        except DpltmError as error:
            why[candidate.label] = str(error)
    notes = [f"{label}: has no baselines: {reason}" for label, reason in why.items()]
    if not bases:
        raise InputError(f"RUN: {notes[0]}")
    return bases, notes


def _check_density(found: FoundRun) -> None:
    """Raises InputError where the network's size or the ticket's density may tell of private records.

    The schedule of a set fixes both but for the draw of a round, which a random mask carries as well. A set that was
    compacted, carried over or imported has no schedule, and nor has a compacted run: its size may tell of records.
    """
    config = found.config or {}
    if config.get("compacted_from") is not None:
        raise InputError(
            "it was compacted, so the size of its network tells of its ticket; name the run that it was made from"
        )
    own = config.get("ticket_set_id")
    if own is None or config.get("provenance") in ("public", "data-free"):
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


@dataclass
class _Work:
    """Baselines that are wanted, in the folder of their sweep, which may not be there yet."""

    recipe: Recipe
    wanted: Sequence[Baseline]
    root: Path
    folder: SweepFolder | None
    first: Base
    ran: Mapping[str, tuple[FoundRun, Candidate]]
    request: CompareRequest
    cache: DatasetCache = field(default_factory=DatasetCache)

    def __post_init__(self) -> None:
        self.draws = {
            arm: baseline.base.draws for baseline in self.wanted if (arm := baseline.trial.arm.tickets) is not None
        }

    @cached_property
    def ledger(self) -> Ledger:
        """That of the records, or the one that is named."""
        asked = self._request(self.first.train, {"dense": True})
        return opened_ledger(asked, open_dataset(asked, dataset_cache=self.cache))

    def _request(self, section: Section, given: Mapping[str, Any]) -> TrainRequest:
        account = {"ledger": self.request.ledger, "population": self.request.population, "dry_run": True}
        return resolve(TrainRequest, {**account, **given}, section)

    def before(self, progress: Progress) -> list[Shown]:
        """Return all of them as far as they are there; what is not, as it is planned.

        Raises:
            DpltmError: one cannot be trained.
        """
        if not self.wanted:
            return []
        with progress.progress("what baselines would cost", len(self.wanted)) as step:
            shown = []
            for baseline in self.wanted:
                shown.append(self._before(baseline))
                step(len(shown))
        return shown

    def _before(self, baseline: Baseline) -> Shown:
        """A baseline before it is trained: what it would cost, unless it was begun before.

        Raises:
            DpltmError: it cannot be trained.
        """
        path, (found, candidate) = baseline.run, self.ran[baseline.base.label]
        if self.folder is not None and self.folder.result(baseline.trial.label) is not None:
            shown = self._after(baseline, self.folder)
            if shown.state == "finished" and (why := unlike(candidate, shown.candidate)) is not None:
                raise InputError(f"`out`: {path} was trained on {why}; take another `out`")
            return shown
        if path.exists() or progress_of(path) is not None:
            why = "was interrupted; it goes on, and is paid for once"
            return Shown(baseline, "unfinished", Candidate(baseline.label, "unfinished", (why,)))
        try:
            assert found.run is not None  # else nothing stands beside it
            plan = self._plan(baseline, found.run.mask)
            row = self._planned(plan, baseline.label)
            if (why := unlike(candidate, row) or self._changed(found, plan.entry.part)) is not None:
                raise InputError(CHANGED.format(why))
            if _front(plan.dataset.feature_map) != _front(found.run.feature_map):
                raise InputError("the features that its options make are not those that RUN was trained on")
        except DpltmError as error:
            said = str(error).replace("; correct the path", WHERE)
            raise type(error)(f"RUN: {baseline.base.label}: no baseline {baseline.kind}: {said}") from None
        return Shown(baseline, "planned", row, plan.entry)

    def _changed(self, found: FoundRun, part: Part) -> str | None:
        """What is said where records at hand are not those of a run, as far as their ledger knows both."""
        entry = None if found.run is None else found.run.entry
        known = entry is not None and entry.home == self.ledger.book.home and entry.part.snapshot != part.snapshot
        return f"other data: {part.name} was changed" if known else None

    def train(self, jobs: int | None, session: str, progress: Progress) -> tuple[list[Shown], dict[str, Any]]:
        """Train what is not finished.

        Args:
            jobs: how many processes; None for one a processor.
            session: of this attempt.
            progress: who watches.

        Returns:
            All of them, and what everything in the ledger comes to.
        """
        folder = SweepFolder(self.root, TITLE, session)
        stages: dict[str, Stage] = {**STAGES, "generate": partial(_generate, self.draws)}
        runner = TrialRunner(folder, self.cache, stages, self.request.ledger, self.request.population)
        sweep(self.recipe, runner, local_workers(self.recipe, folder, jobs), progress)
        privacy = finish(self.recipe, folder, self.ledger)["privacy"]
        return [self._after(baseline, folder) for baseline in self.wanted], privacy

    def _after(self, baseline: Baseline, folder: SweepFolder) -> Shown:
        """A baseline after the sweep: finished, or why not."""
        name = baseline.trial.label
        if folder.result(name) is None:
            why = folder.failure(name) or "another process is at it"
            return Shown(baseline, "failed", Candidate(baseline.label, "unfinished", (why,)))
        return Shown(baseline, "finished", candidate_of(find_run(baseline.run), baseline.label))

    def _plan(self, baseline: Baseline, mask: Mask) -> Training:
        """The training of a baseline as its trial will plan it; nothing is entered or written.

        A random mask has as many live coordinates as that of the run, which is all that its price depends on.
        """
        base = baseline.base
        section = _dense_arm(base, baseline.kind).train
        request = self._request(section, {"dense": True, "seed": baseline.trial.seed})
        check_request(request)
        _, start, dataset = open_start(request, SILENT, self.cache)
        assert dataset is not None  # without a set, it decides the network's shape
        if baseline.kind == "random":
            start = replace(start, mask=mask, round=1, lineage=base.draws)
        given = services(SILENT)
        return training.plan(training.settle(start, dataset, request, self.ledger, given), self.ledger.book, own=True)

    def _planned(self, plan: Training, label: str) -> Candidate:
        """The row of a training that is planned: all but what will be measured."""
        (entry,) = self.ledger.book.adding([plan.entry], [digest(label)]).entries[-1:]
        return Candidate(
            label, "planned", (), training.config_of(plan, {}), {"rmse" if plan.dataset.rated else "accuracy": None},
            plan.start.spec.parameters, plan.entry.part, plan.lineage | Lineage((entry,)),
            training.planned_statement(plan).to_json(),
        )  # fmt: skip


def _front(feature_map: FeatureMap | None) -> str | None:
    """What stands in front of a network, but for where features are centred: each run releases that anew."""
    return None if feature_map is None else feature_map.uncentred.id
