"""Recipes, read from TOML (docs/recipes.md has the form): arms and seeds, their trials, and what trials share."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from dpltm.criteria import DP_CRITERIA
from dpltm.errors import DpltmError, InputError
from dpltm.features.feature_map import FeatureMap
from dpltm.features.inputs import Services, take_over_map
from dpltm.gone import instead
from dpltm.local import latent as latent_options
from dpltm.networks import Network, check_takes, model_spec
from dpltm.networks.evaluation import check_no_target
from dpltm.options import Options, is_needed, resolve
from dpltm.options.data import DataOptions, data_options
from dpltm.options.generate import GenerateRequest
from dpltm.options.network import beside, check_set_decides
from dpltm.options.select import SelectRequest, reads_no_records
from dpltm.options.tickets import TransferRequest
from dpltm.options.train import TrainRequest
from dpltm.options.tune import TuneRequest
from dpltm.privacy.entry import Part
from dpltm.privacy.ledger import Ledger
from dpltm.progress import SILENT
from dpltm.records.dataset import Dataset
from dpltm.records.units import at_unit
from dpltm.tickets.files import read_toml
from dpltm.tickets.workbench import latent
from dpltm.tickets.workbench.code import code_named, own_of
from dpltm.training.artifacts import default_network, in_front
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
MOST = 1000  # seeds, and values of one arm: more is taken for a slip of the finger


def _check_training(request: TrainRequest) -> None:
    train.check_options(request)
    if request.ticket is not None:
        check_set_decides(request, request.model)


COMMANDS: Mapping[str, tuple[type[Options], Callable[[Any], object] | None]] = {
    "train": (TrainRequest, _check_training),
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

BY_SEED = ("train", "transfer", "latent train")
"""Commands whose seed is that of the trial."""


# --- the form of the file ---------------------------------------------------------------------------------------------


def dashed(section: Section) -> dict[str, Any]:
    """Return a table with dashes in its keys, as flags have them."""
    return {key.replace("_", "-"): value for key, value in section.items()}


Values = Annotated[dict[str, Any], AfterValidator(dashed)]
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

    Attributes:
        group: the name before what varies was put behind it; rows of a group are one line of the figure.
        varied: the value that varies, of its first key, if any.
        paper: what the paper reports, in percent; in the file, the key of that figure in ``sources.toml`` as well.
        tickets: name of the set it trains from; None for the whole network.
        round: of the ticket, ``random`` for one of all, None where it is drawn, or chosen by a search.
    """

    name: str
    group: str = ""
    varied: int | float | str | bool | None = None
    vary: dict[VariedKey, Annotated[list[Any], Field(min_length=1, max_length=MOST)]] = {}
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
        asked = [self.round, self.select]
        if self.tickets is None and asked != [None, None]:
            raise ValueError("a round, or a draw, is of tickets; name a set, or leave it out")
        if self.tickets is not None and (None not in asked or (asked == [None, None] and self.tune is None)):
            raise ValueError(f"give one of round and select: which ticket of {self.tickets} is trained")
        return self

    @property
    def draw(self) -> Section:
        """Options of its draw."""
        return draw_options(self.select or {}, self.train)

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
    seeds: int = Field(5, ge=1, le=MOST)
    notes: list[str] = []


class Figure(Table):
    """Accuracy over steps, a chart for each dataset, or over the values that vary along ``x``."""

    over: Literal["steps", "values"] = "steps"
    x: str = "value"
    log: bool = False


class Quick(Layer):
    """What --quick puts over all arms and sets."""

    seeds: int | None = Field(default=None, ge=1, le=MOST)
    round: int | None = None
    tickets: Values = {}


class Document(Layer):
    """The whole file; each arm is checked by itself."""

    recipe: Head
    arm: list[dict[str, Any]] = Field(min_length=1)
    tickets: dict[str, Values] = {}
    figure: Figure | None = None
    quick: Quick | None = None


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

    def chain(self, name: str) -> list[Section]:
        """Return the options of a set, and of those it is made from."""
        section = self.tickets[name]
        return [section, *(self.chain(section["from"]) if "from" in section else ())]

    def provenance(self, name: str) -> str:
        """Return the provenance of a set as ``dpltm generate`` will state it: public, private, data-free or dp."""
        section = self.chain(name)[-1]
        return str(section.get("provenance", "dp" if section.get("criterion") in DP_CRITERIA else "data-free"))

    def rounds(self, name: str) -> int:
        """Return the rounds that a set has."""
        return int(self.chain(name)[-1].get("rounds", GenerateRequest.rounds))

    def _task(self, arm: Arm, seed: int) -> Task:
        name, needs, own = f"{slug(arm.name)}-s{seed}", dict[str, Task](), dict[str, Task]()
        if arm.latent is not None:
            needs = {"scheme": Task("latent scheme", f"schemes/{slug(arm.name)}", arm.latent["scheme"])}
            own = {"messages": Task("latent encode", f"messages/{name}", arm.latent["encode"], needs)}
            return Task("latent train", f"members/{name}", {**arm.latent["train"], "seed": seed}, needs, own)
        number = arm.round
        if arm.tune is not None:
            needs["settings"] = self._search(arm, seed)
        if arm.tickets is not None:
            needs["ticket"] = self._set(arm.tickets, seed)
        if arm.tickets is not None and arm.select is not None:
            scored = needs["ticket"]
            while reads_no_records(arm.select) and scored.needs:
                scored = scored.needs["set"]  # a set that is carried over has no accuracies
            own["draw"] = Task("select", f"draws/{name}", arm.draw, {"set": scored})
        if arm.tickets is not None and number == "random":
            number = random.Random(f"{seed} {arm.tickets}").choice(range(1, self.rounds(arm.tickets) + 1))
        return Task("train", f"members/{name}", {**arm.train, "seed": seed}, needs, own, number)

    def _set(self, name: str, seed: int) -> Task:
        """Return how a set is made for a trial's seed, behind the seed that the set has itself."""
        options = {"name": name, "seed": seed, **self.tickets[name]}
        source = options.pop("from", None)
        needs = {} if source is None else {"set": self._set(source, options["seed"])}
        command = "transfer" if needs else "generate"
        return Task(command, f"tickets/{slug(name)}-s{options['seed']}", options, needs)

    def _search(self, arm: Arm, seed: int) -> Task:
        name, searched = arm.search
        options = {"seed": 0, **searched}
        if name is not None and name == arm.tickets and self.provenance(name) in ("dp", "private"):
            options["seed"] = seed  # so that it depends on one release, rather than two
        needs = {} if name is None else {"set": self._set(name, options["seed"])}
        return Task("tune", f"tune/{slug(str(options.get('dataset')))}", options, needs)


_ENDS = {"tune": ".toml", "train": "/run", "latent train": "/run"}  # of places


@dataclass(frozen=True)
class Task:
    """A call of one command, which trials may share; another of its options, or of what it needs, makes another task.

    Attributes:
        stem: its place in the folder of the sweep, before what tells it from others.
        needs: calls that must be made before it, by what it takes them for; others may need them too.
        own: calls that belong to it alone: they are made first, and gone when it is finished.
        round: of the ticket that is trained, where that is known beforehand.
    """

    command: str
    stem: str
    options: Section
    needs: Mapping[str, Task] = field(default_factory=dict)
    own: Mapping[str, Task] = field(default_factory=dict)
    round: int | str | None = None

    @cached_property
    def place(self) -> str:
        """Place in the folder of the sweep."""
        before = {role: task.place for role, task in {**self.needs, **self.own}.items()}
        key = digest([self.command, self.options, self.round, before])[:8]
        return f"{self.stem}-{key}{_ENDS.get(self.command, '')}"


@dataclass(frozen=True)
class Trial:
    """One arm with one seed, and its training: one release."""

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
        reason = f": {problem['msg'].removeprefix('Value error, ')}; docs/recipes.md has the form"
        raise InputError(f"{where} {place}".rstrip() + (instead(place) or reason)) from None
    except DpltmError as error:
        raise InputError(f"{where} {error}") from None


def read_recipe(document: Section, path: Path, *, seeds: int | None = None, quick: bool = False) -> Recipe:
    """Return the recipe in a parsed TOML document; InputError with the first thing that is wrong.

    Args:
        seeds: None for its own number.
    """
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
        recipe = Recipe(path, head, tuple(arms), sets, form.figure, quick)
        _check(recipe)
    return recipe


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


# --- what they mean together ------------------------------------------------------------------------------------------


def _check(recipe: Recipe) -> None:
    """Refuse what contradicts another table, and what a command refuses of its options."""
    (name, times), *_ = Counter(slug(arm.name) for arm in recipe.arms).most_common(1)
    if times > 1:
        raise InputError(f"[[arm]] {name!r}: named twice, as names of folders go; take another name")
    above = list[str]()
    for name, section in recipe.tickets.items():
        with at(f"[tickets.{name}]"):
            _check_set("from", section.get("from"), above)
            options = {key: value for key, value in section.items() if key != "from"}
            check_options("transfer" if "from" in section else "generate", options, {})
        above.append(name)
    for arm in recipe.arms:
        with at(f"[[arm]] {arm.name!r}"):
            _check_arm(arm, recipe)


def _check_set(place: str, name: object, known: list[str]) -> None:
    if name is not None and name not in known:
        raise InputError(f"{place}: {name!r:.80} is not the name of a set above; known: {', '.join(known) or 'none'}")


def _check_arm(arm: Arm, recipe: Recipe) -> None:
    if arm.latent is not None:
        scheme, _, training = (check_options(f"latent {stage}", section, {}) for stage, section in arm.latent.items())
        latent.network(latent.answer_of(scheme), training)
        return
    searched, search = arm.search
    for name in (arm.tickets, searched):
        _check_set("tickets", name, [*recipe.tickets])
    if isinstance(arm.round, int) and not 0 <= arm.round <= recipe.rounds(str(arm.tickets)):
        raise InputError(f"round: {arm.round} is none of the rounds of {arm.tickets}")
    check_options("train", arm.train, {"dense": True} if arm.tickets is None else {"ticket": "SET@1"})
    if arm.tune is not None:
        check_options("tune", search, {"set": searched})
    if arm.select is not None:
        check_options("select", arm.draw, {})
        spent, budget = arm.select.get("eps1", 0), arm.train.get("epsilon")
        if budget is not None and budget <= spent:
            raise InputError(f"`eps1`: {spent:g} leaves nothing of the budget {budget:g}")
        if reads_no_records(arm.select) and recipe.provenance(str(arm.tickets)) != "public":
            raise InputError(f"`rule`: smallest-within needs public accuracies, and {arm.tickets} is no public set")


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


# --- what the records at hand say of them -----------------------------------------------------------------------------


def check_ready(recipe: Recipe, load: Callable[[DataOptions], Dataset], ledger: Ledger) -> dict[str, Part]:
    """Read every dataset; return the part of each arm by name. Refuse what is missing, cannot be beside others, or does not
    fit: another trial may have spent something by the time that a trial refuses it."""
    public, private, units = dict[str, Part](), dict[str, Part](), set[str]()
    made = dict[str, tuple[Network, FeatureMap | None]]()
    load = functools.cache(load)

    def read(section: Section) -> Dataset:
        return load(resolve(DataOptions, {}, data_options(section)))

    def plan_set(name: str, section: Section) -> tuple[Network, FeatureMap | None]:
        options, dataset = {key: value for key, value in section.items() if key != "from"}, read(section)
        if "from" in section:
            spec, feature_map = made[section["from"]]
            request = resolve(TransferRequest, {"set": name, "out": name}, options)
            dataset = take_over_map(dataset, feature_map, None, section["from"])
            own = request.model and code_named(request.model, start_provenance=request.start_provenance)
            return transfer.target_of(spec, dataset, request.mode, own or None, section["from"]), feature_map
        if recipe.provenance(name) == "public":
            public[f"[tickets.{name}]"] = ledger.part(dataset)
        making = resolve(GenerateRequest, {}, options)
        planned = generate.plan(
            dataset, making, ledger, Services(SILENT), model=own_of(making.model, making), own=True
        )
        return planned.spec, planned.dataset.feature_map

    def plan_arm(arm: Arm) -> Part:
        dataset = read(arm.train)
        check_no_target(dataset, "a row of a recipe")
        if dataset.test is None:
            raise InputError(f"`dataset`: {dataset.name} has no test records, by which its row is measured")
        request = resolve(TrainRequest, {"dense": True}, arm.train)
        dataset = at_unit(dataset, request.per_unit)
        units.add(dataset.unit)
        if len(units) > 1:
            raise InputError(f"`unit`: one ledger protects one {' or one '.join(sorted(units))}; make two recipes")
        train.sampling_of(request, dataset)
        if arm.tickets is None:
            network = own_of(request.model, request) or request.model
            behind = in_front(network, dataset, request.features)
            model_spec(network or default_network(behind), behind)
        else:
            spec, feature_map = made[arm.tickets]
            behind = take_over_map(dataset, feature_map, request.features, arm.tickets)
            check_takes(spec, behind, arm.tickets)
        if request.centre is not None:
            train.check_centre(behind)
        return ledger.part(dataset)

    with at(f"`config` {recipe.path}:"):
        for name, section in recipe.tickets.items():
            with at(f"[tickets.{name}]"):
                made[name] = plan_set(name, section)
        for arm in recipe.arms:
            with at(f"[[arm]] {arm.name!r}"):
                if arm.latent is not None:
                    read(arm.latent["encode"])
                    continue
                if arm.tune is not None:
                    public[f"[[arm]] {arm.name!r} tune"] = ledger.part(read(arm.tune))
                private[arm.name] = plan_arm(arm)
        for where, part in public.items():  # all have one ledger
            for name, other in private.items():
                if part.overlaps(other):
                    raise InputError(
                        f"{where} `dataset`: {part} is declared public and shares records with {other}, which [[arm]]"
                        f" {name!r} trains on; give them different `subset` or `dataset`, or make two recipes of it"
                    )
    return private
