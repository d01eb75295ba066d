"""``dpltm compare``: runs in folders, beside each other, and beside baselines that are trained where they are missing.

A dense network is trained as the run was, with all weights live. A random mask has the density of the run's ticket. Trained
without noise, the dense network shows what privacy costs; nothing is certified for it, so it is made only if it is named.
Baselines are the trials of a sweep: what they cost is said before; the ledger of the records pays; the epsilon that each
asks for is that of its own lineage.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from dpltm.errors import DpltmError, InputError, as_flags
from dpltm.experiments.recipe import REMEMBERED, Arm, Recipe, Section, Trial, data_options, digest
from dpltm.features.feature_map import FeatureMap
from dpltm.networks import ModelSpec, Network
from dpltm.networks.masks import Mask
from dpltm.options import resolve, section_problems
from dpltm.options.generate import GenerateRequest
from dpltm.options.report import BASELINES, BaselineOptions, CompareRequest
from dpltm.options.train import TrainRequest
from dpltm.privacy.account import Account
from dpltm.privacy.entry import NO_LINEAGE, Entry, Lineage
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Selection
from dpltm.privacy.statement import json_figure
from dpltm.progress import SILENT, Progress
from dpltm.pruning.generation import GenerationConfig, pruning_rates
from dpltm.records import DatasetCache
from dpltm.registry import listed
from dpltm.reports.subjects import number, section
from dpltm.tickets.charts import against_epsilon, new_picture, write_charts
from dpltm.tickets.checkpoint_files import progress_of
from dpltm.tickets.comparison import compare, costs, markdown, table_csv, unlike
from dpltm.tickets.files import check_free, check_writable, new_file
from dpltm.tickets.run import FoundRun, find_run
from dpltm.tickets.store import find_set, split_round
from dpltm.tickets.sweep_files import SweepFolder, is_sweep
from dpltm.tickets.workbench.generate import generate
from dpltm.tickets.workbench.opening import services
from dpltm.tickets.workbench.records import open_dataset
from dpltm.tickets.workbench.sweep import (
    STAGES,
    Stage,
    TrialRunner,
    check_jobs,
    finish,
    local_workers,
    new_session,
    sweep,
    total,
)
from dpltm.tickets.workbench.train import check_request, open_start, opened_ledger
from dpltm.verbs import train as training

OUT = "baselines.sweep"

TITLE = "Baselines"
"""Of the recipe: one folder holds those of any runs."""

NAMES = {"dense": "dense", "random": "random mask", "non-private": "dense without noise"}
"""Names of the kinds in the table."""

UNPROTECTED = "it was trained without noise, so nothing is certified for it, nor for all of these together"
CHANGED = "its records, or what is measured on them, are not what RUN was trained on: {}; put them back"

OF_A_TRAINING = {"ticket", "dense", "seed", *(name.replace("_", "-") for name in TrainRequest.__annotations__)}
"""Options that say which training it is, and not how it is done."""

DIGITS = 6
"""Of a digest of settings, in the name of an arm: names stay the same whatever is compared."""


def compare_runs(request: CompareRequest, progress: Progress) -> dict[str, Any]:
    """Return the JSON answer of ``dpltm compare``; baselines and files that were asked for are made.

    Guarantees:
        What options, records, the ledger and its budget refuse is refused, for all baselines, before the first is paid for.
    """
    for item in fields(BaselineOptions) if not request.baselines else ():
        if getattr(request, item.name) != item.default:
            raise InputError(
                f"`{item.name}`: only with `baselines`, which trains something; add it, or leave this out"
            )
    paths = _folders(request.runs or ())  # with what the table calls each
    if len(paths) < 2 and not request.baselines:
        raise InputError("RUN: name at least two runs, or a sweep with several; or train some beside it (`baselines`)")
    targets = {name: Path(path) for name in ("csv", "md") if (path := getattr(request, name)) is not None}
    for name, path in targets.items():
        check_free(path, name)
        check_writable(path)
    picture = new_picture(request.plot)
    named = [*targets.values(), *(() if picture is None else (picture,))]
    if len(set(named)) < len(named):
        raise InputError("`csv`, `md`, `plot`: name different files")
    runs: list[FoundRun] = []
    with progress.progress("reading runs", len(paths)) as step:
        for path, label in paths.items():
            runs.append(find_run(path, label))
            step(len(runs))
    more: dict[str, Any] = {}
    if request.baselines:
        beside, notes, more = _Baselines(request, runs).made(progress)
        there = {one.path.resolve() for one in runs}  # which were named
        runs += [one for one in beside if one.path.resolve() not in there]
    body = compare(runs)
    if request.baselines:
        body |= {"notes": [*notes, *body["notes"]], **more}
    body = as_flags(body)
    if request.dry_run:
        return {"dry_run": True, **body}
    drawn = [] if picture is None else _charts(body["rows"])
    if picture is not None and not drawn:
        raise InputError("`plot`: no run has both an accuracy and a finite epsilon")
    for name, path in targets.items():
        with new_file(path) as staging:
            staging.write_text(table_csv(body["rows"]) if name == "csv" else markdown(body), encoding="utf-8")
    if picture is not None:
        write_charts(picture, drawn, "Runs")
    return {**body, "csv": request.csv, "md": request.md, "plot": request.plot}


def _folders(names: Sequence[str]) -> dict[Path, str]:
    """Folders of runs, with what to call them: a sweep stands for all of its."""
    labels: dict[Path, str] = {}
    for name in names:
        path = Path(name)
        inside = sorted((path / "members").iterdir()) if is_sweep(path) else []
        for folder, label in [(one / "run", one.name) for one in inside] or [(path, name)]:
            if folder in labels:
                raise InputError(f"RUN: {folder} is named twice; name each run once")
            labels[folder] = label
    return labels


def _charts(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    measure = "rmse" if any(row["rmse"] is not None for row in rows) else "accuracy"
    points = [
        {"label": row["run"], "value": row[measure], "epsilon": row["certified"], "low": row["low"], "high": row["high"]}
        for row in rows if row["compared"]
    ]  # fmt: skip
    return against_epsilon(points, measure)


# --- which baselines there are ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Base:
    """A run that baselines are trained beside. ``rate`` is the fraction of each layer that one round would drop to leave
    a mask as dense as its ticket (0 for a whole network); the ticket, and so the density, may depend on ``draws``.
    """

    found: FoundRun
    train: Section
    rate: float
    draws: Lineage = NO_LINEAGE


@dataclass(frozen=True)
class Baseline:
    """One training that is compared with the runs beside it, which share its settings; the label names those it is for."""

    kind: str
    beside: tuple[Base, ...]
    trial: Trial
    label: str

    @property
    def run(self) -> Path:
        """Place where it is, or will be."""
        return self.trial.recipe.path / "members" / self.trial.name / "run"


def kinds_of(given: str | None) -> tuple[str, ...]:
    """Return the kinds that an option names, each once; dense and random where it names none."""
    kinds = ("dense", "random") if given is None else tuple(part.strip() for part in given.split(","))
    if wrong := [kind for kind in kinds if kind not in BASELINES]:
        known = listed(BASELINES, "and")
        raise InputError(f"`kinds`: {wrong[0]!r:.80} is not one of {known}; name some of them, with commas")
    if len(set(kinds)) < len(kinds):
        raise InputError("`kinds`: one is named twice; name each once")
    return kinds


def base_of(found: FoundRun) -> Base:
    """Return the base of a run; InputError where its options are unknown, or baselines are useless or tell of records."""
    if found.state != "finished" or found.run is None or found.config is None:
        raise InputError(found.problems[0])
    config, run = found.config, found.run
    options, resolved = config.get("options"), section(config, "resolved")
    if not isinstance(options, Mapping):
        raise InputError("it holds no options of dpltm train; it was trained in Python, or by an older version")
    defaults = {item.name: item.default for item in fields(TrainRequest)}
    given = {name.replace("_", "-"): one for name, one in options.items() if one not in (None, defaults.get(name))}
    train = {name: value for name, value in given.items() if name not in OF_A_TRAINING}
    if problems := section_problems(TrainRequest, train):
        raise InputError(f"its options are not those of dpltm train: {problems[0]}")
    if "dataset" not in train:
        raise InputError("it names no dataset; its records were given in Python")
    if number(resolved.get("noise_multiplier")) == 0:
        raise InputError("it was trained without noise")
    _check_density(found)
    drawn = any(entry.of(Selection) for entry in found.lineage.entries)
    before = tuple(entry for entry in found.lineage.entries if entry != found.entry)  # which the draw may depend on
    train = {name: value for name, value in train.items() if name not in REMEMBERED}
    if not isinstance(run.spec, ModelSpec):
        raise InputError(
            f"it is of {run.spec.text!a:.100}, whose code no file names for it; train a dense run by hand"
        )
    train |= {"model": run.spec.text, **_in_front(run.feature_map)}
    whole = resolved.get("round") in (None, 0)
    rate = 0.0 if whole else random_rate(run.spec, run.mask, by_user=bool(config.get("of_persons")))
    return Base(found, train, rate, replace(found.lineage, entries=before) if drawn else NO_LINEAGE)


def _in_front(feature_map: FeatureMap | None) -> dict[str, Any]:
    if feature_map is None:
        return {}
    if feature_map.statistics is not None or feature_map.projection is not None:
        raise InputError(
            "its features were fitted to public records, which is gone since 0.3; train a dense run by hand"
        )
    return {"features": feature_map.text}


def _check_density(found: FoundRun) -> None:
    """Raise InputError where the network's size or the ticket's density may tell of private records.

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


def random_rate(spec: Network, mask: Mask, *, by_user: bool = False) -> float:
    """Return the fraction of each layer that one round drops to leave as many weights as a mask has in all.

    Args:
        by_user: whether users are protected: held-out ones are pruned anyway, so tables of users do not count.
    """
    apart = spec.user_parameters if by_user else ()
    weights = {name: mask[name] for name in mask.prunable if name not in apart}
    dropped = sum(live.numel() - int(live.sum()) for live in weights.values())
    return dropped / sum(weights[name].numel() for name in pruning_rates(spec, GenerationConfig()) if name in weights)


def baselines(bases: Sequence[Base], kinds: Sequence[str], path: Path) -> tuple[Recipe, list[Baseline]]:
    """Return the recipe and arms of baselines that are missing: one of each kind for all runs that share their settings.

    A run of a whole network is a dense baseline by itself, and has no random mask beside it.
    """
    arms: dict[str, tuple[str, Arm, list[Base]]] = {}
    sets: dict[str, Section] = {}
    there = {digest(base.train) for base in bases if not base.rate}
    for kind in kinds:
        for base in bases:
            if (kind == "dense" and digest(base.train) in there) or (kind == "random" and not base.rate):
                continue
            train = trained_as(base, kind)
            tickets: str | None = None
            if kind == "random":
                front = {name: train.pop(name) for name in REMEMBERED if name in train}
                body = {**data_options(base.train), **front, "criterion": "random", "rounds": 1}
                body["prune"] = f"{base.rate:.12g}"
                tickets = f"random {digest(body)[:DIGITS]}"
                sets[tickets] = body
            name = f"{kind} {digest([train, tickets])[:DIGITS]}"
            arm = Arm(name, train, tickets=tickets, round=None if tickets is None else 1)
            arms.setdefault(name, (kind, arm, []))[2].append(base)
    rows, measure = tuple(arm for _, arm, _ in arms.values()), bases[0].found.measure
    recipe = Recipe(path, TITLE, arms=rows, tickets=sets, measure=measure)
    made: list[Baseline] = []
    for (kind, _, beside), trial in zip(arms.values(), recipe.trials, strict=True):
        several = sum(other == kind for other, _, _ in arms.values()) > 1
        of = f" of {', '.join(base.found.label for base in beside)}" if several else ""
        made.append(Baseline(kind, tuple(beside), trial, f"{NAMES[kind]} (baseline{of})"))
    return recipe, made


def trained_as(base: Base, kind: str) -> dict[str, Any]:
    """Return the options of a dense training as that of a run; without noise if it is to have none."""
    if kind != "non-private":
        return dict(base.train)
    kept = {key: one for key, one in base.train.items() if key not in ("epsilon", "budget-stop", "audit")}
    return {**kept, "noise-multiplier": 0.0}


# --- what they cost, and their rows -----------------------------------------------------------------------------------


class _Baselines:
    """Baselines that are wanted beside runs, in the folder of their sweep, which may not be there yet."""

    def __init__(self, request: CompareRequest, runs: Sequence[FoundRun]) -> None:
        check_jobs(request.jobs)
        self.request, self.root, self.cache = request, Path(request.out or OUT), DatasetCache()
        kinds, bases, why = kinds_of(request.kinds), list[Base](), dict[str, str]()
        for found in runs:
            try:
                base = base_of(found)
                if bases and (reason := unlike(bases[0].found, found)) is not None:
                    raise InputError(reason)
                bases.append(base)
            except DpltmError as error:
                why[found.label] = str(error)
        self.notes = [f"{label}: has no baselines: {reason}" for label, reason in why.items()]
        if not bases:
            raise InputError(f"RUN: {self.notes[0]}")
        self.first, self.runs = bases[0], runs
        self.recipe, self.wanted = baselines(bases, kinds, self.root)

    def made(self, progress: Progress) -> tuple[list[FoundRun], list[str], dict[str, Any]]:
        """Say what baselines cost, and train them; return them, notes, and what the answer has beside the table."""
        session = new_session()
        folder = SweepFolder(self.root, TITLE, session) if os.path.lexists(self.root) else None
        shown, new = list[FoundRun](), list[Entry]()
        with progress.progress("what baselines would cost", len(self.wanted)) as step:
            for baseline in self.wanted:
                shown.append(self._before(baseline, folder, new))
                step(len(shown))
        self.ledger.account().check_budget(new)
        privacy = total(self.recipe, folder, self.ledger, new)
        delta = privacy["certified"]["delta"]
        cost = {"epsilon": json_figure((Account(unit=self.ledger.unit) + new).epsilon(delta)), "delta": delta}
        body = {"out": str(self.root), "to_train": len(new), "cost": cost, "trainings": self._answers(shown)}
        for line in costs({"baselines": body, "together": compare([*self.runs, *shown])["together"]}):
            progress.say(line)
        if self.wanted and not self.request.dry_run:
            folder = SweepFolder(self.root, TITLE, session)
            draws = {baseline.trial.arm.tickets: baseline.beside[0].draws for baseline in self.wanted}
            stages: dict[str, Stage] = {**STAGES, "generate": partial(_generate, draws)}
            runner = TrialRunner(folder, self.cache, stages, self.request.ledger, self.request.population)
            sweep(self.recipe, runner, local_workers(self.recipe, folder, self.request.jobs), progress)
            privacy = finish(self.recipe, folder, self.ledger)["privacy"]
            shown = [self._after(baseline, folder) for baseline in self.wanted]
            body["trainings"] = self._answers(shown)
        bare = [f"{one.label}: {UNPROTECTED}" for one in self.wanted if one.kind == "non-private"]
        return shown, [*self.notes, *bare], {"privacy": privacy, "baselines": body}

    def _answers(self, shown: Sequence[FoundRun]) -> list[dict[str, Any]]:
        return [
            {
                "kind": baseline.kind,
                "beside": [base.found.label for base in baseline.beside],
                "run": str(baseline.run),
                "state": one.state,
                "why": next(iter(one.problems), None),
                "certified": section(one.privacy or {}, "certified").get("epsilon") if one.entry is not None else None,
            }
            for baseline, one in zip(self.wanted, shown, strict=True)
        ]

    @cached_property
    def ledger(self) -> Ledger:
        """Ledger of the records, or the one that is named."""
        asked = self._request(self.first.train)
        return opened_ledger(asked, open_dataset(asked, dataset_cache=self.cache))

    def _request(self, section: Section, **given: Any) -> TrainRequest:
        account = {"ledger": self.request.ledger, "population": self.request.population}
        return resolve(TrainRequest, {**account, "dense": True, "dry_run": True, **given}, section)

    def _before(self, baseline: Baseline, folder: SweepFolder | None, new: list[Entry]) -> FoundRun:
        """Return a baseline before it is trained; what it would enter is added to ``new``, unless it was begun before."""
        found, path = baseline.beside[0].found, baseline.run
        if folder is not None and folder.result(baseline.trial.name) is not None:
            shown = self._after(baseline, folder)
            if shown.state == "finished" and (why := unlike(found, shown)) is not None:
                raise InputError(f"`out`: {path} was trained on {why}; take another `out`")
            return shown
        if path.exists() or progress_of(path) is not None:
            return FoundRun(path, "unfinished", ("was interrupted; it goes on, and is paid for once",), baseline.label)
        try:
            return self._planned(baseline, found, new)
        except DpltmError as error:
            elsewhere = "; a run keeps no folders: start the command where its files lie"
            said = str(error).replace("; correct the path", elsewhere)
            raise type(error)(f"RUN: {found.label}: no baseline {baseline.kind}: {said}") from None

    def _planned(self, baseline: Baseline, found: FoundRun, new: list[Entry]) -> FoundRun:
        """Return a baseline as its trial will plan it; nothing is entered or written.

        A random mask has as many live coordinates as that of the run, which is all that its price depends on.
        """
        base, run = baseline.beside[0], found.run
        assert run is not None  # else nothing stands beside it
        request = self._request(trained_as(base, baseline.kind), seed=baseline.trial.seed)
        check_request(request)
        start, dataset = open_start(request, self.cache)
        if baseline.kind == "random":
            start = replace(start, mask=run.mask, round=1, lineage=base.draws)
        settled = training.settle(start, dataset, request, self.ledger, services(SILENT))
        plan = training.plan(settled, self.ledger.book, own=True)
        (entry,) = self.ledger.book.adding([plan.entry], [digest(baseline.label)]).entries[-1:]
        planned = FoundRun(
            baseline.run, "planned", (), baseline.label, training.config_of(plan, {}),
            {"rmse" if plan.dataset.rated else "accuracy": None}, lineage=plan.lineage | Lineage((entry,)), entry=entry,
        )  # fmt: skip
        why, part = unlike(found, planned), entry.part
        if found.entry is not None and found.entry.home == entry.home and found.entry.part.snapshot != part.snapshot:
            why = why or f"other data: {part.name} was changed"
        if why is not None:
            raise InputError(CHANGED.format(why))
        if _front(plan.dataset.feature_map) != _front(run.feature_map):
            raise InputError("the features that its options make are not those that RUN was trained on")
        new.append(plan.entry)
        return planned

    def _after(self, baseline: Baseline, folder: SweepFolder) -> FoundRun:
        name = baseline.trial.name
        if folder.result(name) is None:
            why = folder.failure(name) or "another process is at it"
            return FoundRun(baseline.run, "failed", (why,), baseline.label)
        return find_run(baseline.run, baseline.label)


def _generate(
    draws: Mapping[str | None, Lineage], request: GenerateRequest, progress: Progress, **more: Any
) -> dict[str, Any]:
    """As ``dpltm generate``; the set carries the draws that its density depends on."""
    return generate(request, progress, own=True, lineage=draws[request.name], **more)


def _front(feature_map: FeatureMap | None) -> str | None:
    """Describe the feature map, but for where features are centred: each run releases that anew."""
    return None if feature_map is None else feature_map.uncentred.id
