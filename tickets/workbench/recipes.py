"""Recipes, read from TOML (docs/recipes.md has the form): arms and seeds, their trials, and what trials share.

What is wrong is told in three rounds, the first of each: the form, contradictions, and what the records say.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    model_validator,
)

from dpltm.criteria import DP_CRITERIA
from dpltm.errors import DpltmError, InputError
from dpltm.gone import instead
from dpltm.local import latent as latent_options
from dpltm.networks import Network, check_takes, model_spec
from dpltm.networks.evaluation import check_no_target
from dpltm.options import Options, resolve
from dpltm.options.data import DataOptions, data_options
from dpltm.options.generate import GenerateRequest
from dpltm.options.select import SelectRequest, reads_no_records
from dpltm.options.tickets import TransferRequest
from dpltm.options.train import TrainRequest
from dpltm.options.tune import TuneRequest
from dpltm.privacy.entry import Part
from dpltm.privacy.ledger import Ledger
from dpltm.records.dataset import Dataset
from dpltm.records.units import at_unit
from dpltm.tickets.files import read_toml
from dpltm.tickets.workbench import latent
from dpltm.training.artifacts import DEFAULT_NETWORK
from dpltm.training.least_squares import NEEDS_FEATURES
from dpltm.verbs import generate, select, train, transfer, tune

Section = Mapping[str, Any]
"""A table of options, as TOML has it."""

if TYPE_CHECKING:
    Values = dict[str, Any]
else:
    Values = dict[str, JsonValue]

SEARCHED = ("lr", "clip-norm", "epochs", "batch-size", "lineage")  # settings of a training that a search decides
SHARED_WITH_SEARCH = ("model", "features", "epsilon", "delta", "optimizer", "schedule", "average", "accountant")
REMEMBERED = ("model", "features")  # by ticket sets: a table that all arms share says them for arms without a set
EXCLUSIVE = (("epochs", "steps"), ("epsilon", "noise-multiplier"))  # one takes the place of the other
OF_TRAINING = ("iterations", "batch-size", "lr", "rewind")  # that --quick sets only on sets with a training
SHARED = ("train", "select", "tune")  # commands whose options all arms can share
LATENT_STAGES = ("scheme", "encode", "train")
VARIED = (*SHARED, *(f"latent.{stage}" for stage in LATENT_STAGES))
VALUE_TYPES = {"int", "float", "str", "bool"}  # of keys that take several
MOST = 1000  # seeds, and values of one arm: more is taken for a slip of the finger


def _check_training(request: TrainRequest) -> None:
    train.check_options(request)
    if request.ticket is not None and request.model is not None:
        raise InputError("`model`: the ticket set decides the network; leave `model` out")


COMMANDS: Mapping[str, tuple[type[Options], Callable[[Any], object]]] = {
    "train": (TrainRequest, _check_training),
    "select": (SelectRequest, select.check_options),
    "tune": (TuneRequest, tune.check_request),
    "generate": (GenerateRequest, generate.check_options),
    "transfer": (TransferRequest, str),  # whose options say all by themselves
    "latent scheme": (latent_options.SchemeRequest, latent.answer_of),
    "latent encode": (latent_options.EncodeRequest, str),
    "latent train": (latent_options.TrainRequest, str),
}
"""Of each command its options, and what refuses them together."""

DECIDED = frozenset({"ledger", "population", "out", "dry-run", "name", "threads", "set", "ticket", "dense", "lineage",
                     "scheme", "messages"})  # fmt: skip
"""Keys that a recipe decides itself, by its arms; and beside these by seeds, or by the training of a search."""

DECIDED_OF: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("train", "transfer", "latent train"), frozenset({"seed"})),
    "tune": frozenset(SHARED_WITH_SEARCH) - {"model"},
}
NAMES_SET = {"tune": "tickets", "transfer": "from"}  # key of a table that is no option


# --- the form of the file ---------------------------------------------------------------------------------------------


class Table(BaseModel):
    """A table of the file: no other keys, no value of another type, no number that is not finite."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Latent(Table):
    """Options of the three commands of ``dpltm latent``."""

    scheme: Values = {}
    encode: Values = {}
    train: Values = {}


class Layer(Table):
    """Options that the document, its arms and --quick have alike."""

    train: Values = {}
    select: Values | None = None
    tune: Values | None = None
    latent: Latent | None = None


class Arm(Layer):
    """One row of a recipe's table: a training, its records and its tickets.

    Attributes:
        group: the name before what varies was put behind it; rows of a group are one line of the figure.
        varied: the value that varies, of its first key, if any.
        paper: what the paper reports, in percent; in the file, the key of that figure in ``sources.toml`` as well.
        tickets: name of the set it trains from; None for the whole network.
        round: of the ticket, ``random`` for one of all, ``tuned`` for the one that a search chose, None where it is drawn.
    """

    name: str
    group: str = ""
    varied: int | float | str | bool | None = None
    paper: int | float | str | None = None
    tickets: str | None = None
    round: int | str | None = None
    against: str | None = None
    note: str | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.latent is not None and {*SHARED, "tickets", "round"} & self.model_fields_set:
            raise ValueError("an arm is of dpltm latent, or of dpltm train; not of both")
        return self

    @property
    def draw(self) -> Section:
        """Options of its draw, which is from the records of its training unless it reads none."""
        section = self.select or {}
        units = {key: value for key, value in self.train.items() if key == "per-unit"}
        return section if reads_no_records(section) else {**data_options(self.train), **units, **section}

    @property
    def search(self) -> tuple[str | None, dict[str, Any]]:
        """The set that its search is with, and the options: its own, and those in common with the training."""
        options = {key: self.train[key] for key in SHARED_WITH_SEARCH if key in self.train} | (self.tune or {})
        return options.pop("tickets", self.tickets), options


class Head(Table):
    """What the experiment is."""

    title: str = Field("", min_length=1, validate_default=True)
    source: str = ""
    seeds: int = Field(5, ge=1, le=MOST)
    notes: list[str] = []


class Figure(Table):
    """Accuracy over steps, or over the values that vary along ``x``; ``apart``: whether each dataset has a chart."""

    over: Literal["steps", "values"] = "steps"
    x: str = "value"
    log: bool = False
    apart: Literal["dataset"] | None = None


class Quick(Layer):
    """What --quick puts over all arms and sets."""

    seeds: int | None = Field(default=None, ge=1, le=MOST)
    round: int | None = None
    tickets: Values = {}


class Document(Layer):
    """The whole file; ``arm`` has a row for each value that varies."""

    recipe: Head
    arm: list[Arm] = Field(min_length=1)
    tickets: dict[str, Values] = {}
    figure: Figure | None = None
    quick: Quick | None = None


# --- an experiment ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """An experiment; ``single``: of one arm with one seed, whose folder is the trial's: the stages of ``dpltm run``."""

    path: Path
    head: Head
    arms: tuple[Arm, ...]
    tickets: Mapping[str, Section]
    figure: Figure | None = None
    quick: bool = False
    single: bool = False

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """Every arm with every seed; seeds last, so that all rows come to one figure each first."""
        return tuple(Trial(self, arm, seed) for seed in range(self.head.seeds) for arm in self.arms)

    def chain(self, name: str) -> list[Section]:
        """Return the options of a set, and of those it is made from: all of them where they go round in a circle."""
        sections = [self.tickets[name]]
        while sections[-1].get("from") in self.tickets and len(sections) <= len(self.tickets):
            sections.append(self.tickets[sections[-1]["from"]])
        return sections

    def provenance(self, name: str) -> str:
        """Return the provenance of a set as ``dpltm generate`` will state it: public, private, data-free or dp."""
        section = self.chain(name)[-1]
        return str(section.get("provenance", "dp" if section.get("criterion") in DP_CRITERIA else "data-free"))

    def ticket_set(self, name: str | None, seed: int) -> Shared | None:
        """Return the set of that name for a trial's seed, behind the seed that the set has itself; None for no name."""
        if name is None:
            return None
        options = dict(self.tickets[name])
        source, seed = options.pop("from", None), options.pop("seed", seed)
        command = "transfer" if source else "generate"
        return Shared(self, command, name, options, seed, self.ticket_set(source, seed))


@dataclass(frozen=True)
class Trial:
    """One arm with one seed: one release."""

    recipe: Recipe = field(repr=False)
    arm: Arm
    seed: int

    @property
    def name(self) -> str:
        """Name in the sweep, and of its folder."""
        return f"{slug(self.arm.name)}-s{self.seed}-{self.digest[:8]}"

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of all that the recipe says of it: another digest is another experiment, and run anew."""
        arm, sets = self.arm, (self.arm.tickets, (self.arm.tune or {}).get("tickets"))
        messages = None if arm.latent is None else dict(arm.latent)
        parts = [arm.name, arm.train, arm.select, arm.tune, arm.round, messages, self.recipe.quick, self.seed]
        return digest([*parts, *(None if name is None else self.recipe.chain(name) for name in sets)])

    @property
    def tickets(self) -> Shared | None:
        """The set that it trains from; None for the whole network."""
        return self.recipe.ticket_set(self.arm.tickets, self.seed)

    @property
    def search(self) -> Shared | None:
        """The search for its settings, if its arm asks for one."""
        if self.arm.tune is None:
            return None
        name, options = self.arm.search
        seed = options.pop("seed", 0)
        if name is not None and name == self.arm.tickets and self.recipe.provenance(name) in ("dp", "private"):
            seed = self.seed  # so that it depends on one release, rather than two
        if name is not None and isinstance(self.arm.round, int):
            options["rounds"] = str(self.arm.round)
        title = str(options.get("dataset", "records"))
        return Shared(self.recipe, "tune", title, options, seed, self.recipe.ticket_set(name, seed))

    @property
    def needs(self) -> tuple[Shared, ...]:
        """Calls that must be made before it."""
        return tuple(need for need in (self.search, self.tickets) if need is not None)


@dataclass(frozen=True)
class Shared:
    """Call that trials share: a ticket set that is generated, or carried over from another one; or a search for settings."""

    recipe: Recipe = field(repr=False, compare=False)
    command: str
    title: str
    options: Section
    seed: int
    tickets: Shared | None

    @cached_property
    def name(self) -> str:
        """Place in the folder of the sweep; another of its options makes another one."""
        key = digest([self.options, self.seed, None if self.tickets is None else self.tickets.name])[:8]
        if self.command == "tune":
            return f"tune/{slug(self.title)}-{key}.toml"
        return "tickets" if self.recipe.single else f"tickets/{slug(self.title)}-s{self.seed}-{key}"

    @property
    def needs(self) -> tuple[Shared, ...]:
        """Calls that must be made before it."""
        return () if self.tickets is None else (self.tickets,)

    @property
    def root(self) -> Shared:
        """The set that was generated, of one that is carried over; itself of all others."""
        return self if self.tickets is None else self.tickets.root


Task = Trial | Shared
"""Task that can be done by itself, once its needs are there."""


def tasks(trials: Iterable[Task]) -> dict[str, Task]:
    """Return these trials and all that they need, by name, each behind what it needs."""
    ordered: dict[str, Task] = {}
    for trial in trials:
        ordered |= tasks(trial.needs) | {trial.name: trial}
    return ordered


def digest(body: Any) -> str:
    """SHA-256 (hex) of a JSON value."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def slug(name: str) -> str:
    """Return a name of a folder that reads like ``name``."""
    return re.sub("-+", "-", re.sub("[^a-z0-9.]+", "-", name.lower())).strip("-.")[:60] or "arm"


# --- from the document to its arms ------------------------------------------------------------------------------------


@contextlib.contextmanager
def at(where: str) -> Iterator[None]:
    """A block whose refusals begin with a place in the document."""
    try:
        yield
    except DpltmError as error:
        raise InputError(f"{where} {error}") from None


def read_recipe(document: Section, path: Path, *, seeds: int | None = None, quick: bool = False) -> Recipe:
    """Return the recipe in a parsed TOML document; InputError with the first thing that is wrong.

    Args:
        seeds: None for its own number.
    """
    with at(f"`config` {path}:"):
        form = _checked_form(document, path, seeds)
        if quick and form.quick is None:
            raise InputError("[quick]: missing; say what `quick` does, such as [quick.train] steps = 20")
        over = (form.quick if quick else None) or Quick()
        less = {} if seeds is not None or over.seeds is None else {"seeds": over.seeds}
        head = Head(**{**dict(form.recipe), **less})
        first = {arm.group or arm.name: arm for arm in reversed(form.arm)}  # of values that vary
        arms = [_layered(arm, form, over) for arm in (reversed(first.values()) if quick else form.arm)]
        sets = {name: _quick_set(section, over.tickets) for name, section in form.tickets.items()}
        recipe = Recipe(path, head, tuple(arms), sets, form.figure, quick)
        _check(recipe)
    compared = (arm.model_copy(update={"against": _compared(arm, arms)}) for arm in arms)
    return replace(recipe, arms=tuple(compared))


def _checked_form(document: Section, path: Path, seeds: int | None) -> Document:
    """Return the tables of a document, each checked by itself; ``paper`` is the figure."""
    bodies = document.get("arm")
    rows = list[dict[str, Any]]()
    for body in (body for body in (bodies if isinstance(bodies, list) else ()) if isinstance(body, dict)):
        with at(f"[[arm]] {body.get('name')!r}"):
            rows += _rows(body, path)
    head = document.get("recipe", {})
    if seeds is not None and isinstance(head, dict):
        head = {**head, "seeds": seeds}
    try:
        return Document.model_validate({**document, "recipe": head, "arm": rows})
    except ValidationError as error:
        raise InputError(_problem(error.errors(include_url=False)[0], rows)) from None


_SAID = {
    **dict.fromkeys(("missing", "too_short", "string_too_short"), "missing"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "must be a table"),
    "extra_forbidden": "no such key; docs/recipes.md has all",
}
"""Instead of pydantic's own words."""


def _problem(item: Any, rows: list[dict[str, Any]]) -> str:
    """Return what is wrong at one place of the document, behind that place: such as ``[[arm]] 'dense' train``."""
    (head, *rest) = [part for part in item["loc"] if part not in VALUE_TYPES]
    types = set(item["loc"]) & VALUE_TYPES
    where = f"[{head}]"
    if head == "arm":
        row = rows[rest.pop(0)] if rest else {}
        where = f"[[arm]] {row.get('group') or row.get('name')!r}" if row else "[[arm]]"
    elif head == "tickets" and rest:
        where = f"[tickets.{rest.pop(0)}]"
    where = " ".join(map(str, (where, *rest)))
    if isinstance(error := item.get("ctx", {}).get("error"), ValueError):
        return f"{where} {error}"
    if item["type"] == "extra_forbidden" and (reason := instead(where)) is not None:
        return f"{where}{reason}"
    words = "must be a finite number or a text" if types else item["msg"]
    value = f"{item['input']!r:.80} " if words.startswith(("must be", "Input should")) else ""
    return f"{where}: {_SAID.get(item['type']) or value + words.replace('Input should', 'must')}"


def _rows(body: Section, path: Path) -> list[dict[str, Any]]:
    """Return one table for each of the values that vary, whose lists run side by side; named by the first of them."""
    plain = {key: value for key, value in body.items() if key != "vary"}
    if reserved := {"group", "varied"} & body.keys():
        raise InputError(f"{min(reserved)}: vary makes it; leave it out")
    if "vary" not in body or not isinstance(body.get("name"), str):
        return [plain | {"paper": _printed(body.get("paper"), path)}]
    vary = body["vary"] if isinstance(body["vary"], dict) else {}
    lists = {key: values if isinstance(values, list) else [values] for key, values in vary.items()}
    if wrong := [key for key in lists if key.rpartition(".")[0] not in VARIED]:
        raise InputError(f"vary: {wrong[0]!r} is not of the form {'.KEY, '.join(VARIED)}.KEY")
    if isinstance(body.get("paper"), list):
        lists["paper"] = body["paper"]
    sizes = {len(values) for values in lists.values()}
    if len(sizes) != 1 or not 1 <= max(sizes) <= MOST:
        raise InputError(f"vary: lists, and paper if it is one, must be of one length, from 1 to {MOST:,}")
    what, rows = next(iter(lists)).rpartition(".")[2], []
    for values in zip(*lists.values(), strict=True):
        row = copy.deepcopy(plain)
        for key, value in zip(lists, values, strict=True):
            *tables, name = key.split(".")
            inner = row
            for part in tables:
                inner = inner.setdefault(part, {})
                if not isinstance(inner, dict):
                    raise InputError(f"{part}: must be a table")
            inner[name] = value
        title = f"{body['name']}, {what} {values[0]}"
        paper = _printed(row.get("paper"), path)
        rows.append({**row, "name": title, "group": body["name"], "varied": values[0], "paper": paper})
    return rows


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


def _layered(arm: Arm, form: Document, over: Quick) -> Arm:
    """Return an arm with the options of all arms under its own, and those of --quick over them."""
    options: dict[str, Any] = {"group": arm.group or arm.name}
    for command in SHARED:
        shared, own, quick = (getattr(layer, command) or {} for layer in (form, arm, over))
        if arm.tickets is not None:
            shared, quick = ({k: v for k, v in part.items() if k not in REMEMBERED} for part in (shared, quick))
        elif command == "tune":
            quick = {key: value for key, value in quick.items() if key != "rounds"}
        if command == "train" or getattr(arm, command) is not None:
            options[command] = override(override(shared, own), quick)
    if arm.latent is not None:
        shared, own, quick = (dict(layer.latent or Latent()) for layer in (form, arm, over))
        stages = {name: override(override(shared[name], own[name]), quick[name]) for name in LATENT_STAGES}
        options["latent"] = arm.latent.model_copy(update=stages)
    if isinstance(arm.round, int) and over.round is not None:
        options["round"] = over.round
    elif arm.round is None and arm.tickets is not None and arm.select is None:
        options["round"] = "tuned"
    return arm.model_copy(update=options)


def override(under: Section, over: Section) -> dict[str, Any]:
    """``under`` with the options of ``over`` in place; of options that exclude each other, the one in ``over`` stays."""
    by_flag = {key.replace("_", "-"): value for key, value in over.items()}
    gone = {key for pair in EXCLUSIVE for key in pair if any(other in by_flag for other in pair)}
    rest = {name: value for key, value in under.items() if (name := key.replace("_", "-")) not in gone}
    return rest | by_flag


def _quick_set(section: Section, over: Section) -> Section:
    """Return a set with what --quick overrides, as far as that means anything for it."""
    if "from" in section:
        return override(section, {key: over[key] for key in ("dataset", "subset") if key in over})
    untrained = section.get("provenance") == "data-free"
    return override(section, {key: over[key] for key in over if not (untrained and key in OF_TRAINING)})


def _compared(arm: Arm, arms: Iterable[Arm]) -> str | None:
    """Return the full name of the arm that one is compared with: of a group, the row with the same value."""
    others = (other for other in arms if other is not arm and arm.against in (other.name, other.group))
    return next((other.name for other in others if arm.against == other.name or arm.varied == other.varied), None)


# --- what they mean together ------------------------------------------------------------------------------------------


def _check(recipe: Recipe) -> None:
    """Refuse what contradicts another table, and what a command refuses of its options."""
    figure, sets = recipe.figure or Figure(), recipe.tickets
    names = Counter(arm.name for arm in recipe.arms)
    if twice := [name for name, times in names.items() if times > 1]:
        raise InputError(f"[[arm]] {twice[0]!r}: named twice")
    if figure.over == "values" and all(arm.varied is None for arm in recipe.arms):
        raise InputError("[figure] over: no arm has vary, so there are no values")
    if figure.over == "values" and figure.apart is not None:
        raise InputError('[figure] apart: there is "dataset" alone, where the figure is over steps')
    for name, section in sets.items():
        source = section.get("from", name)
        if not (isinstance(source, str) and source in sets):
            raise InputError(
                f"[tickets.{name}] from: {source!r:.80} is not the name of a set; known: {', '.join(sets)}"
            )
    for name, section in sets.items():
        with at(f"[tickets.{name}]"):
            if len(recipe.chain(name)) > len(sets):
                raise InputError("from: goes round in a circle")
            _check_options("transfer" if "from" in section else "generate", section)
    for arm in recipe.arms:
        with at(f"[[arm]] {arm.name!r}"):
            _check_arm(arm, recipe)
            if arm.against is not None and _compared(arm, recipe.arms) is None and not recipe.quick:  # has fewer rows
                raise InputError(f"against: no arm {arm.against!r}")


def _check_arm(arm: Arm, recipe: Recipe) -> None:
    sets = recipe.tickets
    if arm.latent is not None:
        asked = {}
        for stage, section in arm.latent:
            with at(f"latent.{stage}:"):
                asked[stage] = _check_options(f"latent {stage}", section)
        with at("latent.train:"):
            latent.network(latent.answer_of(asked["scheme"]), asked["train"])
        return
    for place, name in {"tickets": arm.tickets, "tune tickets": (arm.tune or {}).get("tickets")}.items():
        if name is not None and not (isinstance(name, str) and name in sets):
            raise InputError(f"{place}: no set {name!r:.80}; known: {', '.join(sets) or 'none'}")
    if arm.tickets is None and not (arm.round is None and arm.select is None):
        raise InputError("a round, or a draw, is of tickets; name a set, or leave it out")
    if (arm.round is not None and arm.select is not None) or (arm.round == "tuned" and arm.tune is None):
        raise InputError(f"give one of round and select: which ticket of {arm.tickets} is trained")
    if isinstance(arm.round, str) and arm.round not in ("random", "tuned"):
        raise InputError(f"round: {arm.round!r} is neither a number nor random")
    if isinstance(arm.round, int):
        last = recipe.chain(str(arm.tickets))[-1].get("rounds", GenerateRequest().rounds)
        if not 0 <= arm.round <= last:
            raise InputError(f"round: {arm.round} is none of the rounds of {arm.tickets}")
    with at("train:"):
        _check_options("train", arm.train, **({"dense": True} if arm.tickets is None else {"ticket": "SET@1"}))
        if arm.tickets is None and "centre" in arm.train and arm.train.get("features") in (None, "none"):
            raise InputError(f"`centre`: {NEEDS_FEATURES}")
    if arm.select is not None:
        with at("select:"):
            _check_draw(arm, arm.select, recipe)
    if arm.tune is not None:
        with at("tune:"):
            if "epsilon" not in arm.train:
                raise InputError("searches under a budget; give train an epsilon")
            searched, search = arm.search
            _check_options("tune", search, arm.tune, **({} if searched is None else {"set": "SET"}))


def _check_draw(arm: Arm, section: Section, recipe: Recipe) -> None:
    _check_options("select", arm.draw, section)
    spent, budget = section.get("eps1"), arm.train.get("epsilon")
    if section.get("reveal") and budget is not None:
        raise InputError("`reveal`: releases scores with no protection, so no budget holds; leave it out")
    if spent is not None and budget is not None and 0 < budget <= spent:
        raise InputError(f"`eps1`: {spent:g} leaves nothing of the budget {budget:g}")
    if reads_no_records(section) and recipe.provenance(str(arm.tickets)) != "public":
        raise InputError(f"`rule`: smallest-within needs public accuracies, and {arm.tickets} is no public set")


def _check_options(command: str, section: Section, written: Section | None = None, **start: Any) -> Any:
    """Return a command's request, or refuse what it refuses; what the recipe will give it is there, and not ``written``."""
    decided = DECIDED | DECIDED_OF.get(command, frozenset())
    for key in section if written is None else written:
        if key.replace("_", "-") in decided:
            raise InputError(f"{key}: decided by the recipe; leave it out")
    request, check = COMMANDS[command]
    needed = {item.name: "X" for item in fields(request) if item.metadata["required"] and item.name in DECIDED}
    options = {key: value for key, value in section.items() if key != NAMES_SET.get(command)}
    asked = resolve(request, {**needed, **start}, options)
    check(asked)
    return asked


# --- what the records at hand say of them -----------------------------------------------------------------------------


def _network(request: GenerateRequest | TrainRequest, dataset: Dataset) -> Network | None:
    """Return the network, None behind features; refuse one that does not take the records, or too small for its rounds."""
    if request.features not in (None, "none"):
        return None
    spec = model_spec(request.model or DEFAULT_NETWORK, dataset)
    if isinstance(request, GenerateRequest):
        generate.check_schedule(request, spec)
    return spec


def check_ready(recipe: Recipe, load: Callable[[DataOptions], Dataset], ledger: Ledger) -> dict[str, Part]:
    """Read every dataset; return the part of each arm by name. Refuse one that is missing, or cannot be beside others."""
    loaded, networks = dict[str, Dataset](), dict[str, Network | None]()
    public, private, units = dict[str, Part](), dict[str, Part](), dict[str, None]()

    def read(section: Section) -> Dataset:
        options = data_options(section)
        key = repr(sorted(options.items()))
        if key not in loaded:
            loaded[key] = load(resolve(DataOptions, {}, options))
        return loaded[key]

    def network(name: str) -> Network | None:
        if name in networks:
            return networks[name]
        section, where = dict(recipe.tickets[name]), f"[tickets.{name}]"
        source = section.pop("from", None)
        before = None if source is None else network(source)
        with at(where):
            if source is None:
                dataset = read({"dataset": "digits", **section})
                if recipe.provenance(name) == "public":
                    public[where] = ledger.part(dataset)
                networks[name] = _network(resolve(GenerateRequest, {}, section), dataset)
            else:
                dataset, mode = read(section), section.get("mode", TransferRequest.mode)
                networks[name] = None if before is None else transfer.target_of(before, dataset, mode, None, source)
        return networks[name]

    with at(f"`config` {recipe.path}:"):
        for name in recipe.tickets:
            network(name)
        for arm in recipe.arms:
            where = f"[[arm]] {arm.name!r}"
            if arm.tune is not None:
                with at(f"{where} tune"):
                    public[f"{where} tune"] = ledger.part(read(arm.tune))
            with at(f"{where} train"):
                if arm.latent is not None:
                    read(arm.latent.encode)
                    continue
                dataset = read(arm.train)
                check_no_target(dataset, "a row of a recipe")
                request = resolve(TrainRequest, {"dense": True}, arm.train)
                dataset = at_unit(dataset, request.per_unit)
                private[arm.name] = ledger.part(dataset)
                units[dataset.unit] = None
                train.sampling_of(request, dataset)
                if arm.tickets is None:
                    _network(request, dataset)
                elif (spec := network(arm.tickets)) is not None:
                    check_takes(spec, dataset, arm.tickets)
                if len(units) > 1:
                    raise InputError(
                        f"`unit`: one ledger protects one {' or one '.join(sorted(units))}; make two recipes"
                    )
                if dataset.test is None:
                    raise InputError(f"`dataset`: {dataset.name} has no test records, by which its row is measured")
        for where, part in public.items():  # all have one ledger
            for name, other in private.items():
                if part.overlaps(other):
                    raise InputError(
                        f"{where} `dataset`: {part} is declared public and shares records with {other}, which [[arm]]"
                        f" {name!r} trains on; give them different `subset` or `dataset`, or make two recipes of it"
                    )
    return private
