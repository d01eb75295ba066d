"""Recipes: an experiment of several arms and seeds in one TOML file, read and checked as a whole.

    [recipe]                     title, source, seeds, measure, notes
    [train]  [select]  [tune]    options of those commands that all arms share
    [tickets.NAME]               dpltm generate, once a seed; with from = "OTHER", dpltm tickets transfer of that set
    [[arm]]                      name, paper, tickets, round, against, vary, and tables train, select, tune
    [figure]                     over = "steps" or "values"
    [quick]                      with --quick: seeds, round, and tables train, select, tune and tickets that go over all of
                                 those; of values that vary, the first alone is taken
    [latent.scheme|encode|train] options of dpltm latent, for an arm that has a table latent rather than train

An arm with a table ``select`` draws its ticket; one with ``round`` takes that one (with ``round = "random"``, one of all, by
the seed); one without tickets trains the whole network. With a table ``tune`` its settings are searched first; on public
records of another shape, with another set (``tickets`` in that table) and network (``model``).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.cli import generate, latent_encode, latent_train, select, tickets_make
from dpltm.cli.common import DataOptions, load_dataset
from dpltm.cli.options import read_toml, resolve, section_problems
from dpltm.errors import InputError
from dpltm.options.train import TrainRequest
from dpltm.options.tune import TuneRequest
from dpltm.pruning import DP_CRITERIA

if TYPE_CHECKING:
    from dpltm.data import Dataset

MOST_SEEDS, MOST_ARMS = 1000, 1000
"""More is taken for a slip of the finger."""

MEASURES = ("accuracy", "rmse")

Section = Mapping[str, Any]

COMMANDS: dict[str, type] = {
    "train": TrainRequest,
    "select": select.SelectOptions,
    "tune": TuneRequest,
    "generate": generate.GenerateOptions,
    "transfer": tickets_make.TransferOptions,
    "scheme": latent_encode.SchemeOptions,
    "encode": latent_encode.EncodeOptions,
    "latent train": latent_train.TrainOptions,
}

OF_TRAINING = ("model", "features", "public", "components", "epsilon", "delta", "optimizer", "schedule", "average",
               "accountant")  # fmt: skip
"""What a search has in common with the training that it is for."""

DECIDED: dict[str, frozenset[str]] = {
    "train": frozenset({"ticket", "dense", "out", "ledger", "seed", "dry-run", "tuned-on"}),
    "select": frozenset({"set", "ledger", "dry-run"}),
    "tune": frozenset({"set", "out", *OF_TRAINING}) - {"model"},
    "generate": frozenset({"out", "ledger", "dry-run", "name", "threads"}),
    "transfer": frozenset({"set", "out", "name", "seed"}),
    "scheme": frozenset({"out"}),
    "encode": frozenset({"scheme", "out", "ledger", "dry-run"}),
    "latent train": frozenset({"scheme", "messages", "out", "seed", "threads"}),
}  # fmt: skip
"""Keys that a recipe decides itself: by its arms, by its seeds, or since an arm's search is for its own training."""

REMEMBERED = ("model", "features", "public", "components")
"""What ticket sets remember, so that tables which all arms share say it to the others alone."""

OF_TRAINED = ("iterations", "batch-size", "lr", "rewind")
"""What only sets have that something is trained for."""

EXCLUSIVE = (("epochs", "steps"), ("epsilon", "noise-multiplier"))
"""One of each: where a table goes over another, the one it names takes the other's place."""

_RECIPE = {"title": str, "source": str, "seeds": int, "measure": str, "notes": list}
_ARM = {
    "name": str, "paper": (int, float, list), "tickets": str, "round": (int, str), "against": str, "vary": dict,
    "train": dict, "select": dict, "tune": dict, "latent": dict, "note": str,
}  # fmt: skip
_FIGURE = {"over": str, "x": str, "log": bool}
_QUICK = {"seeds": int, "round": int, "train": dict, "select": dict, "tune": dict, "tickets": dict, "latent": dict}
_TABLES = ("recipe", "train", "select", "tune", "tickets", "arm", "figure", "quick", "latent")
_TUNED_SET = ("tune", "tickets")
_LATENT = ("scheme", "encode", "train")


@dataclass(frozen=True)
class Arm:
    """One row of the table that a recipe makes: what is trained, on what, from which tickets.

    Attributes:
        name: of the row.
        group: the name before what varies was put behind it; rows of a group are one line of the figure.
        varied: the value that varies, of its first key, if any.
        paper: what the paper reports, in percent (or as RMSE); None if nothing.
        tickets: name of the set it trains from; None for the whole network.
        round: of the ticket, ``random`` for one of all, ``tuned`` for the one a search found, None where it is drawn.
        against: name of the arm that it is compared with, seed by seed.
        train, select, tune: options; the last two None where nothing is drawn or searched.
        latent: options of the three commands of ``dpltm latent``, where these make up the arm.
        note: a sentence for the table.
    """

    name: str
    group: str
    varied: float | str | None
    paper: float | None
    tickets: str | None
    round: int | str | None
    against: str | None
    train: Section
    select: Section | None
    tune: Section | None
    latent: Mapping[str, Section] | None
    note: str | None = None


@dataclass(frozen=True)
class Recipe:
    """An experiment.

    Attributes:
        path: of its file.
        title, source, notes: for people.
        seeds: 0 to this, less one.
        measure: what rows are compared by: ``accuracy`` or ``rmse``.
        tickets: sets by name, as options of ``dpltm generate``, or with ``from`` of ``dpltm tickets transfer``.
        arms: rows.
        figure: ``over`` steps or values, ``x``: what to write along it, ``log``: whether that is logarithmic; or None.
        quick: whether it is the quick version.
    """

    path: Path
    title: str
    source: str
    notes: tuple[str, ...]
    seeds: int
    measure: str
    tickets: Mapping[str, Section]
    arms: tuple[Arm, ...]
    figure: Section | None
    quick: bool

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """Every arm with every seed; seeds last, so that all rows come to one figure each first."""
        return tuple(Member(self, arm, seed) for seed in range(self.seeds) for arm in self.arms)


@dataclass(frozen=True)
class Member:
    """One arm with one seed: one release, with a ledger of its own."""

    recipe: Recipe = field(repr=False)
    arm: Arm
    seed: int

    @property
    def label(self) -> str:
        return f"{slug(self.arm.name)}-s{self.seed}-{self.digest[:8]}"

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) over all that the recipe says of it: another one is another experiment, and run anew."""
        arm = self.arm
        parts = [arm.name, arm.train, arm.select, arm.tune, arm.round, arm.latent, self.recipe.quick, self.seed]
        sets = (arm.tickets, (arm.tune or {}).get("tickets"))
        return digest([*parts, *(None if name is None else chain(self.recipe.tickets, name) for name in sets)])


def chain(sets: Mapping[str, Section], name: str) -> list[Section]:
    """The options of a set, and of those it is made from."""
    found = [sets[name]]
    while found[-1].get("from") in sets:
        found.append(sets[found[-1]["from"]])
    return found


def provenance(sets: Mapping[str, Section], name: str) -> str:
    """What a set depends on, as ``dpltm generate`` will have it."""
    root = chain(sets, name)[-1]
    implied = "dp" if root.get("criterion") in DP_CRITERIA else "data-free"
    return str(root.get("provenance", implied))


def searched_with(arm: Arm) -> dict[str, Any]:
    """The options of an arm's search: its own, and those that it has in common with the training."""
    return {key: arm.train[key] for key in OF_TRAINING if key in arm.train} | dict(arm.tune or {})


def data_of(section: Section) -> dict[str, Any]:
    """The options of a section that say which records."""
    return {key: value for key, value in section.items() if key.replace("-", "_") in DataOptions.__dataclass_fields__}


def dataset_of(section: Section, source: Path) -> Dataset:
    """The records that a section of the file ``source`` names.

    Raises:
        DpltmError: with one line about whatever is wrong.
    """
    return load_dataset(resolve(DataOptions, {}, data_of(section), str(source)))


def digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def slug(name: str) -> str:
    """A name of a folder that reads like ``name``."""
    return re.sub("-+", "-", re.sub("[^a-z0-9.]+", "-", name.lower())).strip("-.")[:60] or "arm"


def is_recipe(body: Section) -> bool:
    """Whether a configuration file is a recipe rather than options of a run."""
    return "recipe" in body or "arm" in body


def read_recipe(path: Path, seeds: int | None = None, quick: bool = False) -> Recipe:
    """The recipe in a file.

    Args:
        path: of the file.
        seeds: how many, in place of its own number.
        quick: whether to take its quick version.

    Raises:
        InputError: whatever is wrong with it, all of it in one message.
    """
    recipe, problems = recipe_and_problems(path, seeds, quick)
    if problems:
        raise problems_error(path, problems)
    return recipe


def recipe_and_problems(path: Path, seeds: int | None = None, quick: bool = False) -> tuple[Recipe, list[str]]:
    """The recipe as far as it can be read, and whatever is wrong with it. See ``read_recipe``."""
    reader = _Reader(path, read_toml(path), quick)
    recipe = reader.recipe(seeds)
    return recipe, reader.problems


def problems_error(path: Path, problems: list[str]) -> InputError:
    """One message about all of them."""
    distinct = list(dict.fromkeys(problems))
    if len(distinct) == 1:
        return InputError(f"--config {path}: {distinct[0]}")
    listed = "; ".join(f"({number}) {problem}" for number, problem in enumerate(distinct, 1))
    return InputError(f"--config {path}: {len(distinct)} problems: {listed}")


class _Reader:
    """Reads a recipe, and notes what is wrong rather than stopping at it."""

    def __init__(self, path: Path, body: Section, quick: bool) -> None:
        self.path, self.body, self.quick, self.problems = path, body, quick, list[str]()

    def recipe(self, seeds: int | None) -> Recipe:
        self._known_keys("", self.body, dict.fromkeys(_TABLES, (dict, list)))
        head = self._checked("[recipe]", self._table("recipe"), _RECIPE)
        over = self._checked("[quick]", self._table("quick"), _QUICK)
        if self.quick and not over:
            self.problems.append("[quick]: missing; say what --quick does, such as [quick.train] steps = 20")
        self._check_quick(over)
        over = over if self.quick else {}
        count = seeds if seeds is not None else over.get("seeds", head.get("seeds", 5))
        if not 1 <= count <= MOST_SEEDS:
            self.problems.append(f"seeds: {count} is not from 1 to {MOST_SEEDS}")
        if "title" not in head:
            self.problems.append("[recipe] title: missing; say what the experiment is")
        measure = head.get("measure", "accuracy")
        if measure not in MEASURES:
            self.problems.append(f"[recipe] measure: {measure!r} is not one of {', '.join(MEASURES)}")
        sets = self._sets(over.get("tickets", {}))
        arms = self._arms(sets, over)
        recipe = Recipe(
            self.path, head.get("title", ""), head.get("source", ""), tuple(head.get("notes", ())), count, measure, sets,
            arms, self._figure(arms), self.quick,
        )  # fmt: skip
        self._check_together(recipe)
        return recipe

    def _check_quick(self, over: Section) -> None:
        """Its tables are those of commands, whether --quick is given or not."""
        for key in ("train", "select", "tune"):
            self._section(f"[quick.{key}]", key, over.get(key, {}))
        self._section("[quick.tickets]", "generate", over.get("tickets", {}))
        self._known_keys("[quick.latent]", over.get("latent", {}), dict.fromkeys(_LATENT))
        for stage in _LATENT:
            self._section(f"[quick.latent.{stage}]", _latent(stage), over.get("latent", {}).get(stage, {}))

    def _sets(self, over: Section) -> dict[str, Section]:
        found: dict[str, Section] = {}
        tables = self._table("tickets")
        for name, section in tables.items():
            where = f"[tickets.{name}]"
            if not isinstance(section, dict):
                self.problems.append(f"tickets.{name}: must be a table, as in {where}")
                continue
            source = section.get("from")
            if source is not None and not isinstance(source, str):
                self.problems.append(f"{where} from: {source!r:.80} must be the name of a set")
                continue
            plain = {key: value for key, value in section.items() if key != "from"}
            self._section(where, "generate" if source is None else "transfer", plain)
            if source is not None and source not in tables:
                self.problems.append(f"{where} from: no set {source!r}; known: {', '.join(tables)}")
            found[name] = (
                self._quickened(section, over) if over else {key.replace("_", "-"): section[key] for key in section}
            )
        for name in found:
            seen = [name]
            while (source := found.get(seen[-1], {}).get("from")) is not None and source in found:
                if source in seen:
                    self.problems.append(f"[tickets.{name}] from: goes round in a circle")
                    found[name] = {}
                    break
                seen.append(source)
        return found

    @staticmethod
    def _quickened(section: Section, over: Section) -> Section:
        """A set with what --quick lays over it, as far as that means anything for it."""
        if "from" in section:
            return laid(section, {key: over[key] for key in ("dataset", "subset") if key in over})
        untrained = section.get("provenance") == "data-free"
        return laid(section, {key: over[key] for key in over if not (untrained and key in OF_TRAINED)})

    def _arms(self, sets: Mapping[str, Section], over: Section) -> tuple[Arm, ...]:
        given = self.body.get("arm", [])
        if not isinstance(given, list) or not given or not all(isinstance(arm, dict) for arm in given):
            self.problems.append('[[arm]]: missing; say what is trained, as in [[arm]] name = "dense"')
            return ()
        for command in ("train", "select", "tune"):
            self._section(f"[{command}]", command, self._table(command))
        for stage, section in self._table("latent").items():
            if stage not in _LATENT:
                self.problems.append(f"[latent.{stage}]: unknown; known: {', '.join(_LATENT)}")
            else:
                self._section(f"[latent.{stage}]", _latent(stage), section)
        found: list[Arm] = []
        for number, body in enumerate(given, 1):
            where = f"[[arm]] {body.get('name', number)!r}"
            body = self._checked(where, body, _ARM)
            if "name" not in body:
                self.problems.append(f"{where}: has no name")
            each = self._varied(where, body)
            found += [self._arm(where, one, sets, over) for one in (each[:1] if self.quick else each)]
        if len(found) > MOST_ARMS:
            self.problems.append(f"[[arm]]: {len(found):,} of them, more than {MOST_ARMS:,}")
        counted = Counter(arm.name for arm in found)
        self.problems += [f"[[arm]] {name!r}: named twice" for name, times in counted.items() if times > 1]
        return tuple(self._compared(arm, found) for arm in found)

    def _check_together(self, recipe: Recipe) -> None:
        """Notes options that contradict each other."""
        from dpltm.cli import recipe_checks

        for name, section in recipe.tickets.items():
            self.problems += [f"[tickets.{name}] {problem}" for problem in recipe_checks.of_set(section)]
        for arm in recipe.arms:
            self.problems += [
                f"[[arm]] {arm.name!r} {problem}" for problem in recipe_checks.of_arm(arm, recipe.tickets)
            ]

    def _compared(self, arm: Arm, arms: list[Arm]) -> Arm:
        """With the full name of the arm that it is compared with: of a group, the row with the same value."""
        if arm.against is None:
            return arm
        for other in (other for other in arms if other is not arm):
            if other.name == arm.against or (other.group == arm.against and other.varied == arm.varied):
                return replace(arm, against=other.name)
        if self.quick:  # which leaves rows out
            return replace(arm, against=None)
        self.problems.append(f"[[arm]] {arm.name!r} against: no arm {arm.against!r}")
        return arm

    def _varied(self, where: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """One table for each of the values that vary; the lists run side by side."""
        vary = body.pop("vary", None)
        if vary is None:
            if isinstance(body.get("paper"), list):
                self.problems.append(f"{where} paper: a list needs vary")
            return [body]
        lists = {key: value if isinstance(value, list) else [value] for key, value in vary.items()}
        paper = body.pop("paper", None)
        papers = paper if isinstance(paper, list) else None
        sizes = {len(values) for values in lists.values()} | ({len(papers)} if papers is not None else set())
        if max(sizes, default=0) > MOST_ARMS:
            self.problems.append(f"{where} vary: more than {MOST_ARMS:,} values")
            return []
        if papers is not None and not all(type(part) in (int, float) for part in papers):
            self.problems.append(f"{where} paper: must be a list of numbers")
            return []
        if len(sizes) != 1 or 0 in sizes:
            self.problems.append(f"{where} vary: lists, and paper if it is one, must be of one length, at least 1")
            return []
        found = []
        for at in range(sizes.pop()):
            one: dict[str, Any] = json.loads(json.dumps(body))
            for key, values in lists.items():
                table, _, name = key.rpartition(".")
                stage = table.removeprefix("latent.")
                if table in ("train", "select", "tune"):
                    one.setdefault(table, {})[name] = values[at]
                elif table != stage and stage in _LATENT and isinstance(one.get("latent"), dict):
                    _dict(one["latent"].setdefault(stage, {}))[name] = values[at]
                else:
                    self.problems.append(
                        f"{where} vary: {key!r} is not of the form train.KEY, select.KEY, tune.KEY or, where the arm is one"
                        " of latent, latent.scheme.KEY"
                    )
            first, values = next(iter(lists.items()))
            one["group"] = body.get("name", "")
            one["varied"] = values[at]
            one["name"] = f"{one['group']}, {first.rpartition('.')[2]} {values[at]}"
            if papers is not None:
                one["paper"] = papers[at]
            elif paper is not None:
                one["paper"] = paper
            found.append(one)
        return found

    def _arm(self, where: str, body: dict[str, Any], sets: Mapping[str, Section], over: Section) -> Arm:
        options: dict[str, Section | None] = {}
        for command in ("train", "select", "tune"):
            wanted = command == "train" or command in body
            own = body.get(command, {})
            self._section(f"{where} {command}", command, {k: v for k, v in own.items() if (command, k) != _TUNED_SET})
            shared, quick = self._table(command), over.get(command, {})
            if "tickets" in body:  # what a set remembers is for the arms without one
                shared, quick = ({k: v for k, v in part.items() if k not in REMEMBERED} for part in (shared, quick))
            if "tickets" not in body:
                quick = {key: quick[key] for key in quick if (command, key) != ("tune", "rounds")}
            options[command] = laid(laid(shared, own), quick) if wanted else None
        tickets, number = body.get("tickets"), body.get("round")
        for place, name in (("tickets", tickets), ("tune tickets", body.get("tune", {}).get("tickets"))):
            if name is not None and not (isinstance(name, str) and name in sets):
                self.problems.append(f"{where} {place}: no set {name!r:.80}; known: {', '.join(sets) or 'none'}")
        if tickets is None and (number is not None or "select" in body):
            self.problems.append(f"{where}: a round, or a draw, is of tickets; name a set, or leave it out")
        if tickets is not None and (number is None) == ("select" not in body) and not self._tunes_round(body):
            self.problems.append(f"{where}: give one of round and select: which ticket of {tickets} is trained")
        if isinstance(number, int) and "round" in over:
            number = over["round"]
        if isinstance(number, int) and tickets is not None and not self._has_round(sets, tickets, number):
            self.problems.append(f"{where} round: {number} is none of the rounds of {tickets}")
        if isinstance(number, str) and number != "random":
            self.problems.append(f"{where} round: {number!r} is neither a number nor random")
        latent = self._latent_of(where, body, over)
        return Arm(
            name=str(body.get("name", "")),
            group=str(body.get("group", body.get("name", ""))),
            varied=body.get("varied"),
            paper=body.get("paper"),
            tickets=tickets,
            round="tuned" if number is None and "select" not in body and tickets is not None else number,
            against=body.get("against"),
            train=options["train"] or {},
            select=options["select"],
            tune=options["tune"],
            latent=latent,
            note=body.get("note"),
        )

    @staticmethod
    def _has_round(sets: Mapping[str, Section], name: str, number: int) -> bool:
        root = chain(sets, name)[-1] if name in sets else {}
        rounds = root.get("rounds", generate.GenerateOptions().rounds)
        return not isinstance(rounds, int) or 0 <= number <= rounds

    @staticmethod
    def _tunes_round(body: Section) -> bool:
        """Whether a search says which ticket is trained."""
        return "tune" in body and "round" not in body and "select" not in body

    def _latent_of(self, where: str, body: Section, over: Section) -> Mapping[str, Section] | None:
        if "latent" not in body:
            return None
        unknown = set(body["latent"]) - set(_LATENT)
        if unknown:
            self.problems.append(f"{where} latent: unknown {min(unknown)!r}; known: {', '.join(_LATENT)}")
        if {"train", "select", "tune", "tickets", "round"} & body.keys():
            self.problems.append(f"{where}: an arm is of dpltm latent, or of dpltm train; not of both")
        shared, quick = self._table("latent"), over.get("latent", {})
        found = {}
        for stage in _LATENT:
            own = body["latent"].get(stage, {})
            self._section(f"{where} latent.{stage}", _latent(stage), own)
            found[stage] = laid(laid(_dict(shared.get(stage)), _dict(own)), _dict(quick.get(stage)))
        return found

    def _figure(self, arms: tuple[Arm, ...]) -> Section | None:
        if "figure" not in self.body:
            return None
        found = self._checked("[figure]", self._table("figure"), _FIGURE)
        over = found.get("over", "steps")
        if over not in ("steps", "values"):
            self.problems.append(f"[figure] over: {over!r} is not one of steps, values")
        if over == "values" and not any(arm.varied is not None for arm in arms):
            self.problems.append("[figure] over: no arm has vary, so there are no values")
        return {"over": over, **found}

    def _section(self, where: str, command: str, section: object) -> None:
        """Notes unknown keys, values of the wrong type, and what the recipe decides."""
        if not isinstance(section, dict):
            self.problems.append(f"{where}: must be a table")
            return
        odd = [key for key, value in section.items() if not _plain(value)]
        self.problems += [f"{where} {key}: {section[key]!r:.80} is not allowed here{_PLAIN}" for key in odd]
        section = {key: value for key, value in section.items() if key not in odd}
        for key in section:
            if key.replace("_", "-") in DECIDED[command]:
                self.problems.append(f"{where} {key}: decided by the recipe; leave it out")
        rest = {key: value for key, value in section.items() if key.replace("_", "-") not in DECIDED[command]}
        self.problems += [f"{where} {problem}" for problem in section_problems(COMMANDS[command], rest)]

    def _table(self, name: str) -> dict[str, Any]:
        found = self.body.get(name, {})
        if isinstance(found, dict):
            return found
        self.problems.append(f"{name}: must be a table, as in [{name}]")
        return {}

    def _checked(self, where: str, section: Section, known: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of a table that are known and of the right type; the others are noted."""
        self._known_keys(where, section, known)
        found = {}
        for key, value in section.items():
            if key not in known:
                continue
            wanted = known[key] if isinstance(known[key], tuple) else (known[key],)
            if type(value) not in wanted or not _plain(value):
                names = " or ".join(kind.__name__ for kind in wanted)
                self.problems.append(f"{where} {key}: {value!r:.80} must be of type {names}{_PLAIN}")
            else:
                found[key] = value
        return found

    def _known_keys(self, where: str, section: Section, known: Mapping[str, Any]) -> None:
        self.problems += [
            f"{where} {key!r}: unknown; known: {', '.join(known)}".strip() for key in section if key not in known
        ]


_PLAIN = ", with nothing in it but finite numbers, texts, booleans, lists and tables"


def _plain(value: object) -> bool:
    """Whether a value from TOML can be kept as JSON: no date, no nan, no infinity."""
    if isinstance(value, dict):
        return all(_plain(part) for part in value.values())
    if isinstance(value, list):
        return all(_plain(part) for part in value)
    return isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value))


def _dict(value: object) -> dict[str, Any]:
    """A table; none in place of anything else, which was noted."""
    return value if isinstance(value, dict) else {}


def _latent(stage: str) -> str:
    return "latent train" if stage == "train" else stage


def laid(under: Section, over: Section) -> dict[str, Any]:
    """One table over another; of options that exclude each other, the one above takes the other's place."""
    found = {key.replace("_", "-"): value for key, value in under.items()}
    for key, value in over.items():
        name = key.replace("_", "-")
        for pair in EXCLUSIVE:
            if name in pair:
                other = pair[1 - pair.index(name)]
                if other not in {key.replace("_", "-") for key in over}:
                    found.pop(other, None)
        found[name] = value
    return found


def train_options(section: Section, source: str) -> TrainRequest:
    """A training's options, of which the recipe has decided some."""
    return resolve(TrainRequest, {}, section, source)


def grouped(arms: tuple[Arm, ...]) -> list[tuple[str, list[Arm]]]:
    """Arms by group, in order."""
    return [(name, list(found)) for name, found in itertools.groupby(arms, lambda arm: arm.group)]
