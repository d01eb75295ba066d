"""Recipes, read from TOML (docs/recipes.md has the form): arms and seeds, and the calls that their trials are made of."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from dpltm.criteria import DP_CRITERIA
from dpltm.errors import DpltmError, InputError
from dpltm.features.inputs import Services
from dpltm.gone import instead
from dpltm.local import latent as latent_options
from dpltm.networks.evaluation import check_no_target
from dpltm.options import Options, is_needed, resolve
from dpltm.options.data import DataOptions, data_options
from dpltm.options.generate import GenerateRequest
from dpltm.options.network import beside
from dpltm.options.select import SelectRequest, reads_no_records
from dpltm.options.tickets import TransferRequest
from dpltm.options.train import TrainRequest
from dpltm.options.tune import TuneRequest
from dpltm.privacy.account import check_private
from dpltm.privacy.entry import NO_LINEAGE, Entry, Lineage
from dpltm.privacy.ledger import Ledger
from dpltm.progress import SILENT
from dpltm.pruning.generation import without_data
from dpltm.records.dataset import Dataset
from dpltm.tickets.feature_files import services
from dpltm.tickets.files import read_toml
from dpltm.tickets.workbench import latent
from dpltm.tickets.workbench.code import code_named, own_of
from dpltm.tickets.workbench.stages import check_request
from dpltm.training.artifacts import TicketSet, starting_point, with_start
from dpltm.training.release import TrainingPlan
from dpltm.verbs import generate, select, train, transfer, tune

Section = Mapping[str, Any]
"""A table of options, as TOML has it, with dashes in its keys."""

LatentStage = Literal["scheme", "encode", "train"]

SEARCHED = ("lr", "clip-norm", "epochs", "batch-size", "lineage")  # settings of a training that a search decides
SHARED_WITH_SEARCH = ("model", "features", "epsilon", "delta", "optimizer", "schedule", "average", "accountant")
REMEMBERED = {"model", "features"}  # by ticket sets: a table that all arms share says them for arms without a set
EXCLUSIVE = ({"epochs", "steps"}, {"epsilon", "noise-multiplier"})  # one takes the place of the other
OF_TRAINING = {"iterations", "batch-size", "lr", "rewind"}  # that --quick sets only on sets with a training
SHARED = ("train", "select", "tune")  # commands whose options all arms can share
LATENT_STAGES: tuple[LatentStage, ...] = ("scheme", "encode", "train")

COMMANDS: Mapping[str, tuple[type[Options], Callable[[Any], object] | None]] = {
    "train": (TrainRequest, check_request),
    "select": (SelectRequest, select.check_options),
    "tune": (TuneRequest, tune.check_request),
    "generate": (GenerateRequest, generate.check_options),
    "transfer": (TransferRequest, None),
    "latent scheme": (latent_options.SchemeRequest, latent.answer_of),
    "latent encode": (latent_options.EncodeRequest, None),
    "latent train": (latent_options.TrainRequest, None),
}
"""Of each command its options, and what refuses them together."""

DECIDED = frozenset({"ledger", "population", "out", "dry-run", "set", "ticket", "dense", "lineage", "scheme", "messages",
                     "reveal"})  # fmt: skip
"""Keys that a recipe decides itself, by its arms: no release of a trial is unprotected by choice."""

BY_SEED = ("train", "transfer", "latent train")  # commands whose seed is that of the trial


# --- the form of the file ---------------------------------------------------------------------------------------------


def _dashed(section: Section) -> dict[str, Any]:
    return {key.replace("_", "-"): value for key, value in section.items()}


Values = Annotated[dict[str, Any], AfterValidator(_dashed)]
Figures = int | float | str | None
VariedKey = Annotated[str, Field(pattern=r"^(train|select|tune|latent\.(scheme|encode|train))\.[a-z0-9-]+$")]


class Table(BaseModel):
    """A table of the file: no other keys, and no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Layer(Table):
    """Options that the document, its arms and --quick have alike."""

    train: Values = {}
    select: Values | None = None
    tune: Values | None = None
    latent: dict[LatentStage, Values] | None = None


class Arm(Layer):
    """One row of a recipe's table: a training, its records and its tickets.

    Rows of a ``group``, the name in the file, are one line of the figure, over the value that ``varied``, of the first key.
    """

    name: str
    group: str = ""
    varied: int | float | str | bool | None = None
    vary: dict[VariedKey, Annotated[list[Any], Field(min_length=1)]] = {}
    paper: Figures | list[Figures] = None
    tickets: str | None = None
    round: int | Literal["random"] | None = None
    against: str | None = None
    note: str | None = None

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        if self.latent is not None and {*SHARED, "tickets", "round"} & self.model_fields_set:
            raise ValueError("an arm is of dpltm latent, or of dpltm train; not of both")
        if self.vary:
            return self  # which its rows complete
        ways = [self.round, self.select].count(None)
        if self.tickets is None and ways < 2:
            raise ValueError("a round, or a draw, is of tickets; name a set, or leave it out")
        if self.tickets is not None and ways != 1 and not (ways == 2 and self.tune is not None):
            raise ValueError(f"give one of round and select: which ticket of {self.tickets} is trained")
        return self

    @property
    def search(self) -> tuple[str | None, dict[str, Any]]:
        """The set that its search is with, and the options: its own, and those in common with the training."""
        options = {key: self.train[key] for key in SHARED_WITH_SEARCH if key in self.train} | (self.tune or {})
        name = options.pop("tickets", self.tickets)
        if name is None:
            options.pop("rounds", None)  # which all arms share
        elif isinstance(self.round, int):
            options["rounds"] = str(self.round)
        return name, options


class Head(Table):
    """What the experiment is."""

    title: str = Field(min_length=1)
    source: str = ""
    seeds: int = Field(5, ge=1, le=1000)
    notes: list[str] = []


class Figure(Table):
    """Accuracy over steps, a chart for each dataset, or over the values that vary along ``x``."""

    over: Literal["steps", "values"] = "steps"
    x: str = "value"
    log: bool = False


class Quick(Layer):
    """What --quick puts over all arms and sets."""

    seeds: int | None = Field(default=None, ge=1, le=1000)
    round: int | None = None
    tickets: Values = {}


class Document(Layer):
    """The whole file; each arm is checked by itself."""

    recipe: Head
    arm: list[dict[str, Any]] = Field(min_length=1)
    tickets: dict[str, Values] = {}
    figure: Figure | None = None
    quick: Quick | None = None


class Stages(Table):
    """The file of three stages, whose table ``run`` has the options of the command."""

    run: Values = {}
    generate: Values
    select: Values = {}
    train: Values = {}


# --- an experiment ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """An experiment."""

    path: Path
    head: Head
    arms: tuple[Arm, ...]
    tickets: Mapping[str, Section]
    figure: Figure | None = None
    quick: bool = False

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """Every arm with every seed; seeds last, so that all rows come to one figure each first."""
        return tuple(Trial(arm, seed, self._task(arm, seed)) for seed in range(self.head.seeds) for arm in self.arms)

    def origin(self, name: str) -> Section:
        """Return the options of the set that a set is, or was carried over from."""
        section = self.tickets[name]
        return self.origin(section["from"]) if "from" in section else section

    def provenance(self, name: str) -> str:
        """Return the provenance of a set as ``dpltm generate`` will state it: public, private, data-free or dp."""
        section = self.origin(name)
        return str(section.get("provenance", "dp" if section.get("criterion") in DP_CRITERIA else "data-free"))

    def _task(self, arm: Arm, seed: int) -> Task:
        name, number = f"{slug(arm.name)}-s{seed}", arm.round
        needs: dict[str, Task] = {}
        own: dict[str, Task] = {}
        if arm.latent is not None:
            needs = {"scheme": Task("latent scheme", f"schemes/{slug(arm.name)}", arm.latent["scheme"])}
            own = {"messages": Task("latent encode", f"messages/{name}", arm.latent["encode"], needs)}
            return Task("latent train", f"members/{name}", {**arm.latent["train"], "seed": seed}, needs, own)
        if arm.tune is not None:
            searched, options = arm.search
            options = {"seed": 0, **options}
            if searched is not None and searched == arm.tickets and self.provenance(searched) in ("dp", "private"):
                options["seed"] = seed  # so that it depends on one release, rather than two
            with_set = {} if searched is None else {"set": self._set(searched, options["seed"])}
            needs["settings"] = Task("tune", f"tune/{slug(str(options.get('dataset')))}", options, with_set)
        if arm.tickets is not None:
            needs["ticket"] = scored = self._set(arm.tickets, seed)
            if number == "random":
                rounds = int(self.origin(arm.tickets).get("rounds", GenerateRequest.rounds))
                number = random.Random(f"{seed} {arm.tickets}").choice(range(1, rounds + 1))
            if arm.select is not None:
                while reads_no_records(arm.select) and scored.needs:
                    scored = scored.needs["set"]  # a set that is carried over has no accuracies
                drawing = draw_options(arm.select, arm.train)
                own["draw"] = Task("select", f"draws/{name}", drawing, {"set": scored})
        return Task("train", f"members/{name}", {**arm.train, "seed": seed}, needs, own, number)

    def _set(self, name: str, seed: int) -> Task:
        options = {"name": name, "seed": seed, **self.tickets[name]}
        source = options.pop("from", None)
        needs = {} if source is None else {"set": self._set(source, options["seed"])}
        command = "transfer" if needs else "generate"
        return Task(command, f"tickets/{slug(name)}-s{options['seed']}", options, needs)


_ENDS = {"tune": ".toml", "train": "/run", "latent train": "/run"}  # of places


@dataclass(frozen=True)
class Task:
    """A call of one command, which trials may share; another of its options, or of what it needs, makes another task."""

    command: str
    stem: str  # of its place in the folder of the sweep
    options: Section
    needs: Mapping[str, Task] = field(default_factory=dict)  # calls before it, by what it takes them for
    own: Mapping[str, Task] = field(default_factory=dict)  # calls for it alone, gone when it is finished
    round: int | str | None = None  # of the ticket that is trained, where that is known beforehand

    @cached_property
    def place(self) -> str:
        """Place in the folder of the sweep."""
        before = {role: task.place for role, task in {**self.needs, **self.own}.items()}
        key = digest([self.command, self.options, self.round, before])[:8]
        return f"{self.stem}-{key}{_ENDS.get(self.command, '')}"


@dataclass(frozen=True)
class Trial:
    """One arm with one seed, and its training."""

    arm: Arm
    seed: int
    task: Task


def levels(tasks: Iterable[Task]) -> list[list[Task]]:
    """Return these and all that they need, each once: first what needs nothing, and each behind what it needs."""
    by_depth: dict[int, dict[str, Task]] = {}

    def place(task: Task) -> int:
        depth = 1 + max(map(place, task.needs.values()), default=-1)
        by_depth.setdefault(depth, {})[task.place] = task
        return depth

    for task in tasks:
        place(task)
    return [[*by_depth[depth].values()] for depth in sorted(by_depth)]


def digest(body: Any) -> str:
    """SHA-256 (hex) of a JSON value."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def slug(name: str) -> str:
    """Return a name of a folder that reads like ``name``."""
    return re.sub("-+", "-", re.sub("[^a-z0-9.]+", "-", name.lower())).strip("-.")[:120] or "arm"


# --- from the document to its arms ------------------------------------------------------------------------------------


@contextlib.contextmanager
def at(where: str) -> Iterator[None]:
    """A block whose refusals, and pydantic's, begin with a place in the document."""
    try:
        yield
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(map(str, problem["loc"]))
        is_extra = problem["type"] == "extra_forbidden"
        words = "no such table or key" if is_extra else problem["msg"].removeprefix("Value error, ")
        reason = f": {words}; docs/recipes.md has the form"
        raise InputError(f"{where} {place}".rstrip() + (instead(place) or reason)) from None
    except DpltmError as error:
        error.args = (f"{where} {error}",)
        raise


def read_recipe(document: Section, path: Path, *, seeds: int | None = None, quick: bool = False) -> Recipe:
    """Return the recipe in a parsed TOML document, with ``seeds`` in place of its own; InputError for what is wrong."""
    with at(f"`config` {path}:"):
        form = Document.model_validate(document)
        if quick and form.quick is None:
            raise InputError("[quick]: missing; say what `quick` does, such as [quick.train] steps = 20")
        over = (form.quick if quick else None) or Quick()
        head = form.recipe.model_copy(update={"seeds": seeds or over.seeds or form.recipe.seeds})
        arms = list[Arm]()
        for body in form.arm:
            with at(f"[[arm]] {body.get('name')!r}"):
                rows = list(_rows(Arm.model_validate(body), path))
                arms += [_layered(row, form, over, path) for row in (rows[:1] if quick else rows)]
        sets = {name: beside(_quick_set(section, over.tickets), path) for name, section in form.tickets.items()}
        arms = [arm.model_copy(update={"against": _compared(arm, arms, quick)}) for arm in arms]
        (name, times), *_ = Counter(slug(arm.name) for arm in arms).most_common(1)
        if times > 1:
            raise InputError(f"[[arm]] {name!r}: named twice, as names of folders go; take another name")
    return Recipe(path, head, tuple(arms), sets, form.figure, quick)


def draw_options(select: Section, train: Section) -> Section:
    """Return options of a draw, which is from the records of the training unless it reads none."""
    units = {key: value for key, value in train.items() if key == "per-unit"}
    return select if reads_no_records(select) else {**data_options(train), **units, **select}


def _rows(arm: Arm, path: Path) -> Iterator[Arm]:
    """Yield an arm for each of the values that vary, whose lists run side by side; named by the first of them."""
    length = len(next(iter(arm.vary.values()), [None]))
    columns = {**arm.vary, "paper": arm.paper if isinstance(arm.paper, list) else [arm.paper] * length}
    if any(len(values) != length for values in columns.values()):
        raise InputError("vary: lists, and paper if it is one, must be of one length")
    for values in zip(*columns.values(), strict=True):
        body = arm.model_dump(exclude={"vary"}, exclude_unset=True)
        for key, value in zip(columns, values, strict=True):
            *tables, name = key.split(".")
            functools.reduce(lambda table, part: table.setdefault(part, {}), tables, body)[name] = value
        if arm.vary:
            what = next(iter(arm.vary)).rpartition(".")[2]
            body |= {"name": f"{arm.name}, {what} {values[0]}", "varied": values[0]}
        yield Arm.model_validate({**body, "group": arm.name, "paper": _printed(body["paper"], path)})


def _printed(paper: Any, path: Path) -> Any:
    """Return a figure; of a text SOURCE.LINE.FIGURE the one of that name in ``sources.toml`` beside the recipe."""
    if not isinstance(paper, str):
        return paper
    figure: Any = read_toml(path.with_name("sources.toml"))
    for key in paper.split("."):
        figure = figure.get(key) if isinstance(figure, dict) else None
    if type(figure) not in (int, float):
        raise InputError(f"paper: {paper!r:.80} names no figure of sources.toml beside it")
    return figure


def _layered(arm: Arm, form: Document, over: Quick, path: Path) -> Arm:
    """Return an arm with the options of all arms under its own, and those of --quick over them."""
    options = dict[str, Any]()
    for command in SHARED:
        shared, own, quick = (getattr(layer, command) or {} for layer in (form, arm, over))
        if arm.tickets is not None:
            shared, quick = ({key: part[key] for key in part.keys() - REMEMBERED} for part in (shared, quick))
        if command == "train" or getattr(arm, command) is not None:
            options[command] = beside(override(shared, own, quick), path)
    if arm.latent is not None:
        layers = [layer.latent or {} for layer in (form, arm, over)]
        options["latent"] = {
            stage: override(*(layer[stage] for layer in layers if stage in layer)) for stage in LATENT_STAGES
        }
    if isinstance(arm.round, int) and over.round is not None:
        options["round"] = over.round
    return arm.model_copy(update=options)


def override(*layers: Section) -> dict[str, Any]:
    """Return options of all layers, the last first; of those that exclude each other, the ones of the later layer stay."""
    options = dict[str, Any]()
    for layer in layers:
        gone = {key for pair in EXCLUSIVE if pair & layer.keys() for key in pair}
        options = {key: value for key, value in options.items() if key not in gone} | dict(layer)
    return options


def _quick_set(section: Section, over: Section) -> Section:
    """Return a set with what --quick overrides, as far as that means anything for it."""
    untrained = OF_TRAINING if section.get("provenance") == "data-free" else set()
    names = {"dataset", "subset"} if "from" in section else over.keys() - untrained
    return override(section, {key: over[key] for key in over if key in names})


def _compared(arm: Arm, arms: Iterable[Arm], quick: bool) -> str | None:
    """Return the full name of the arm that one is compared with: of a group, the row with the same value."""
    for other in arms:
        if arm.against == other.name or (arm.against == other.group and arm.varied == other.varied):
            return other.name
    if arm.against is not None and not quick:  # which has fewer rows
        raise InputError(f"[[arm]] {arm.name!r} against: no arm {arm.against!r}")
    return None


# --- what its calls say to their options, and the records at hand to all -----------------------------------------------


def check_options(command: str, section: Section, start: Section, decided: Iterable[str] = ()) -> Any:
    """Return a command's request, or refuse what it refuses; what the recipe gives it beside its table is ``start``."""
    with at(f"{command}:"):
        for key in section:
            if key in DECIDED or key in decided or (key == "seed" and command in BY_SEED):
                raise InputError(f"{key}: decided by the recipe, or by [run]; leave it out here")
        request, check = COMMANDS[command]
        needed = {item.name: "X" for item in fields(request) if is_needed(item) and item.name in DECIDED}
        asked = resolve(request, needed | dict(start), section)
        if check is not None:
            check(asked)
    return asked


def stand_in(plan: generate.Generation, made_from: Lineage = NO_LINEAGE) -> TicketSet:
    """Return a set like the one that is planned, untrained: with as many live weights in each round, at random."""
    body = without_data(plan.spec, replace(plan.options, criterion="random", rewind=0))
    if plan.provenance != "data-free":
        body = replace(body, tickets=tuple(replace(ticket, predictor={}) for ticket in body.tickets))
    columns = {"columns": list(plan.dataset.columns)} if plan.dataset.columns else {}
    name, provenance = plan.options.name or plan.dataset.name, with_start(plan.provenance, plan.spec)
    return TicketSet(
        body=body, name=name, criterion=plan.options.criterion, provenance=provenance, config=columns,
        made_from=plan.lineage | made_from, feature_map=plan.dataset.feature_map,
    )  # fmt: skip


def check_ready(recipe: Recipe, load: Callable[[DataOptions], Dataset], ledger: Ledger) -> dict[str, TrainingPlan]:
    """Plan every call, with stand-ins for sets; return the plans of trainings by name of the arm.

    Refuses what a command would refuse, what is missing, what cannot be beside others, and what does not fit: another trial
    may have spent something by the time that a trial refuses it.
    """
    ready = _Rehearsal(recipe, functools.cache(load), ledger)
    with at(f"`config` {recipe.path}:"):
        for name, section in recipe.tickets.items():
            with at(f"[tickets.{name}]"):
                ready.sets[name] = ready.make_set(name, section)
        for plan in (ready.check_before, ready.plan_training):  # trainings behind all that is declared public
            for arm in recipe.arms:
                with at(f"[[arm]] {arm.name!r}"):
                    plan(arm)
    return ready.plans


@dataclass(frozen=True)
class _Rehearsal:
    """What is planned so far: stand-ins of ``sets``, what is ``declared`` beside them, and trainings of arms."""

    recipe: Recipe
    load: Callable[[DataOptions], Dataset]
    ledger: Ledger
    declared: list[Entry] = field(default_factory=list)
    sets: dict[str, TicketSet] = field(default_factory=dict)
    plans: dict[str, TrainingPlan] = field(default_factory=dict)
    services: Services = field(default_factory=lambda: services(SILENT))

    def make_set(self, name: str, section: Section) -> TicketSet:
        options = {"name": name} | {key: value for key, value in section.items() if key != "from"}
        if "from" in section:
            source, moving = self._set_above(section["from"], "from"), check_options("transfer", options, {})
            code = moving.model and code_named(moving.model, start_provenance=moving.start_provenance)
            return transfer.transfer(source, self._read(section), moving, model=code or None)[0]
        making = check_options("generate", options, {})
        model = own_of(making.model, making)
        plan = generate.plan(self._read(section), making, self.ledger, self.services, model=model, own=True)
        self.declared.extend(draft for draft in plan.beside if not draft.paid)
        return stand_in(plan)

    def check_before(self, arm: Arm) -> None:
        """Plan what an arm's training needs beside its tickets, or an arm of LATENT."""
        if arm.latent is not None:
            scheme, _, training = (
                check_options(f"latent {stage}", section, {}) for stage, section in arm.latent.items()
            )
            latent.network(latent.answer_of(scheme), training)
            self._read(arm.latent["encode"])
        if arm.tune is not None:
            name, options = arm.search
            if name is not None:
                self._set_above(name)
            check_options("tune", options, {"set": name})
            public = self.ledger.public(self._read(options), "settings are searched on them")
            self.declared.extend(self.ledger.book.lacking(public))

    def plan_training(self, arm: Arm) -> None:
        if arm.latent is not None:
            return
        request = check_options("train", arm.train, {"dense": True} if arm.tickets is None else {"ticket": "SET@1"})
        ticket: Any = own_of(request.model, request) or request.model
        number = None
        if arm.tickets is not None:
            ticket = self._set_above(arm.tickets)
            number = arm.round if isinstance(arm.round, int) else len(ticket.body.tickets) - 1
        if arm.select is not None:
            self._check_draw(arm, request)
        dataset = self._read(arm.train)
        check_no_target(dataset, "a row of a recipe")
        if dataset.test is None:
            raise InputError(f"`dataset`: {dataset.name} has no test records, by which its row is measured")
        start, dataset = starting_point(ticket, dataset, request, round=number)
        plan = train.settle(start, dataset, request, self.ledger, self.services)
        units = {plan.dataset.unit, *(other.dataset.unit for other in self.plans.values())}
        if len(units) > 1:
            raise InputError(f"`unit`: one ledger protects one {' or one '.join(sorted(units))}; make two recipes")
        if plan.options.centre is not None:
            train.check_centre(plan.dataset)
        check_private(self.ledger.account() + self.declared, plan.part)
        self.plans[arm.name] = plan

    def _check_draw(self, arm: Arm, request: TrainRequest) -> None:
        draw = check_options("select", draw_options(arm.select or {}, arm.train), {})
        select.check_options(draw, self._set_above(arm.tickets))
        if request.epsilon is not None and request.epsilon <= (draw.eps1 or 0):
            raise InputError(f"`eps1`: {draw.eps1:g} leaves nothing of the budget {request.epsilon:g}")
        if draw.rule != "mechanism" and self.recipe.provenance(str(arm.tickets)) != "public":
            raise InputError(f"`rule`: {draw.rule} needs public accuracies, and {arm.tickets} is no public set")

    def _read(self, section: Section) -> Dataset:
        return self.load(resolve(DataOptions, {}, data_options(section)))

    def _set_above(self, name: Any, key: str = "tickets") -> TicketSet:
        if not (isinstance(name, str) and name in self.sets):
            known = ", ".join(self.sets) or "none"
            raise InputError(f"{key}: {name!r:.80} is not the name of a set above; known: {known}")
        return self.sets[name]
