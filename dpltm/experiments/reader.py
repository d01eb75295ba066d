"""Reads a recipe from a TOML document: its tables and options, what they mean together, and what records say of them.

All that is wrong is told at once, in each of the three rounds.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from dpltm.errors import DpltmError, InputError
from dpltm.experiments.recipe import (
    LATENT_STAGES,
    MAX_ARMS,
    MAX_SEEDS,
    MEASURES,
    REMEMBERED,
    SHARED,
    SHARED_WITH_SEARCH,
    Arm,
    Recipe,
    Section,
    chain,
    draw_options,
    override,
    provenance,
    search_options,
)
from dpltm.networks import model_spec
from dpltm.options import latent as latent_options
from dpltm.options import resolve, section_problems
from dpltm.options.data import DataOptions, data_options
from dpltm.options.generate import GenerateRequest
from dpltm.options.select import SelectRequest, reads_no_records
from dpltm.options.tickets import TransferRequest
from dpltm.options.train import TrainRequest
from dpltm.options.tune import TuneRequest
from dpltm.privacy.entry import Part
from dpltm.privacy.ledger import Ledger
from dpltm.records import Dataset, at_unit
from dpltm.training.least_squares import NEEDS_FEATURES
from dpltm.verbs import generate, latent, select, train, tune


@dataclass(frozen=True)
class Command:
    """One command whose options a recipe holds.

    Attributes:
        decided: keys that a recipe decides itself, beside ``DECIDED``: by its seeds, or since an arm's search is for its
            own training.
    """

    request: type[Any]
    check: Callable[[Any], object]
    decided: frozenset[str] = frozenset()


def _check_training(request: TrainRequest) -> None:
    train.check_options(request)
    if request.ticket is not None and request.model is not None:
        raise InputError("`model`: the ticket set decides the network; leave `model` out")


def _nothing_more(request: object) -> None:
    """Its options say all by themselves."""


DECIDED = frozenset({"ledger", "population", "out", "dry-run", "name", "threads", "set", "ticket", "dense", "lineage",
                     "scheme", "messages"})  # fmt: skip
"""Keys that a recipe decides itself: by its arms."""

_SEED = frozenset({"seed"})

COMMANDS: Mapping[str, Command] = {
    "train": Command(TrainRequest, _check_training, _SEED),
    "select": Command(SelectRequest, select.check_options),
    "tune": Command(TuneRequest, tune.check_request, frozenset(SHARED_WITH_SEARCH) - {"model"}),
    "generate": Command(GenerateRequest, generate.check_options),
    "transfer": Command(TransferRequest, _nothing_more, _SEED),
    "latent scheme": Command(latent_options.SchemeRequest, latent.check_scheme_options),
    "latent encode": Command(latent_options.EncodeRequest, _nothing_more),
    "latent train": Command(latent_options.TrainRequest, latent.check_server_options, _SEED),
}
"""By name."""

TRAINING_KEYS = ("iterations", "batch-size", "lr", "rewind")
"""Options that --quick sets only on ticket sets that something is trained for."""

_TABLES: Mapping[str, Mapping[str, Any]] = {
    "recipe": {"title": str, "source": str, "seeds": int, "measure": str, "notes": list},
    "figure": {"over": str, "x": str, "log": bool, "apart": str},
    "quick": {"seeds": int, "round": int, "train": dict, "select": dict, "tune": dict, "tickets": dict, "latent": dict},
    "arm": {"name": str, "paper": (int, float, list), "tickets": str, "round": (int, str), "against": str, "vary": dict,
            "train": dict, "select": dict, "tune": dict, "latent": dict, "note": str},
    "": dict.fromkeys(("recipe", "train", "select", "tune", "tickets", "figure", "quick", "latent"), dict) | {"arm": list},
}  # fmt: skip
"""Keys of the tables that are no options of a command, with their types; ``""`` is the whole document."""

_PLAIN = ", with nothing in it but finite numbers, texts, booleans, lists and tables"


def read_recipe(document: Section, path: Path, *, seeds: int | None = None, quick: bool = False) -> Recipe:
    """Return the recipe in a parsed TOML document. InputError names all that is wrong by itself; or else all contradictions.

    Args:
        seeds: None for its own number.
    """
    check_no_problems(path, list(_wrong_by_itself(document)))
    reader = _Reader(path, document, quick)
    recipe = reader.recipe(seeds)
    check_no_problems(path, reader.problems)
    return recipe


def check_no_problems(path: Path, problems: list[str]) -> None:
    """Raise InputError with all of them, if there are any."""
    distinct = list(dict.fromkeys(problems))
    if len(distinct) == 1:
        raise InputError(f"`config` {path}: {distinct[0]}")
    if distinct:
        listed = "; ".join(f"({number}) {problem}" for number, problem in enumerate(distinct, 1))
        raise InputError(f"`config` {path}: {len(distinct)} problems: {listed}")


# --- what tables, keys and values are ---------------------------------------------------------------------------------


def _wrong_by_itself(document: Section) -> Iterator[str]:
    """Yield what is wrong with the tables, keys and values of a document, each by itself."""
    typed = list(_mistyped("", document, _TABLES[""]))
    yield from typed
    arms, sets = document.get("arm", []), document.get("tickets", {})
    if not (arms and isinstance(arms, list) and all(isinstance(arm, dict) for arm in arms)):
        yield '[[arm]]: missing; say what is trained, as in [[arm]] name = "dense"'
        return
    if typed:  # what is in them cannot be told
        document = {key: one for key, one in document.items() if type(one) is _TABLES[""].get(key)}
        sets = document.get("tickets", {})
    layers = {"": document, "quick.": document.get("quick", {})}
    for name in ("recipe", "figure", "quick"):
        yield from _mistyped(f"[{name}]", document.get(name, {}), _TABLES[name])
    for prefix, layer in layers.items():
        yield from _shared(f"[{prefix}{{}}]", layer)
    yield from _wrong_options("[quick.tickets]", "generate", layers["quick."].get("tickets", {}))
    for name, section in sets.items():
        source = section.get("from") if isinstance(section, dict) else None
        if source is not None and not (isinstance(source, str) and source in sets):
            yield f"[tickets.{name}] from: {source!r:.80} is not the name of a set; known: {', '.join(sets)}"
        yield from _wrong_options(
            f"[tickets.{name}]", "generate" if source is None else "transfer", _without(section, "from")
        )
    for number, body in enumerate(arms, 1):
        where = f"[[arm]] {body.get('name', number)!r}"
        yield from _mistyped(where, body, _TABLES["arm"])
        if "name" not in body:
            yield f"{where}: has no name"
        yield from _shared(f"{where} {{}}", {**body, "tune": _without(body.get("tune", {}), "tickets")})


def _shared(where: str, tables: Section) -> Iterator[str]:
    """Yield what is wrong with the options of commands in a layer of tables: those of all arms, of one, or of --quick."""
    for command in SHARED:
        yield from _wrong_options(where.format(command), command, tables.get(command, {}))
    stages = tables.get("latent", {})
    for stage, section in stages.items() if isinstance(stages, dict) else ():
        place = where.format(f"latent.{stage}")
        if stage in LATENT_STAGES:
            yield from _wrong_options(place, f"latent {stage}", section)
        else:
            yield f"{place}: unknown; known: {', '.join(LATENT_STAGES)}"


def _wrong_options(where: str, command: str, section: Any) -> Iterator[str]:
    if not isinstance(section, dict):
        yield f"{where}: must be a table"
        return
    rest = {}
    for key, value in section.items():
        if key.replace("_", "-") in DECIDED | COMMANDS[command].decided:
            yield f"{where} {key}: decided by the recipe; leave it out"
        elif not _is_plain(value):
            yield f"{where} {key}: {value!r:.80} is not allowed here{_PLAIN}"
        else:
            rest[key] = value
    yield from (f"{where} {problem}" for problem in section_problems(COMMANDS[command].request, rest))


def _mistyped(where: str, section: Section, known: Mapping[str, Any]) -> Iterator[str]:
    for key, value in section.items():
        wanted = known.get(key, ())
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        if key not in known:
            yield f"{where} {key!r}: unknown; known: {', '.join(known)}".strip()
        elif type(value) not in wanted or (type(value) is not dict and where and not _is_plain(value)):
            names = " or ".join(kind.__name__ for kind in wanted)
            yield f"{where} {key}: {value!r:.80} must be of type {names}{_PLAIN}".strip()


def _is_plain(value: object) -> bool:
    """Tell whether a value from TOML can be written as JSON: no date, no nan, no infinity."""
    if isinstance(value, (dict, list)):
        return all(_is_plain(part) for part in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value))


def _without(section: Any, key: str) -> Any:
    return {name: one for name, one in section.items() if name != key} if isinstance(section, dict) else section


# --- what they mean together ------------------------------------------------------------------------------------------


class _Reader:
    """Makes a recipe of a document whose form is right, and notes what is wrong with it rather than stopping at it."""

    def __init__(self, path: Path, document: Section, quick: bool) -> None:
        self.path, self.document, self.quick, self.problems = path, document, quick, list[str]()
        self.over: Section = document.get("quick", {}) if quick else {}

    def recipe(self, seeds: int | None) -> Recipe:
        head = self.document.get("recipe", {})
        if self.quick and not self.over:
            self.problems.append("[quick]: missing; say what `quick` does, such as [quick.train] steps = 20")
        count = seeds if seeds is not None else self.over.get("seeds", head.get("seeds", 5))
        if not 1 <= count <= MAX_SEEDS:
            self.problems.append(f"seeds: {count} is not from 1 to {MAX_SEEDS}")
        if "title" not in head:
            self.problems.append("[recipe] title: missing; say what the experiment is")
        measure = head.get("measure", "accuracy")
        if measure not in MEASURES:
            self.problems.append(f"[recipe] measure: {measure!r} is not one of {', '.join(MEASURES)}")
        sets = self._sets()
        arms = self._arms(sets)
        for name, section in sets.items():
            command = "transfer" if "from" in section else "generate"
            self._note(f"[tickets.{name}]", _refused(command, _without(section, "from")))
        for arm in arms:
            self._note(f"[[arm]] {arm.name!r}", _of_arm(arm, sets))
        notes = tuple(head.get("notes", ()))
        return Recipe(self.path, head.get("title", ""), head.get("source", ""), notes, arms, sets, count, measure,
                      self._figure(arms), self.quick)  # fmt: skip

    def _note(self, where: str, problems: Iterable[str]) -> None:
        self.problems += [f"{where} {problem}" for problem in problems]

    def _sets(self) -> dict[str, Section]:
        over = self.over.get("tickets", {})
        sets = {name: _quick_set(section, over) for name, section in self.document.get("tickets", {}).items()}
        for name in sets:
            seen = [name]
            while (source := sets[seen[-1]].get("from")) is not None:
                if source in seen:
                    self.problems.append(f"[tickets.{name}] from: goes round in a circle")
                    sets[name] = {}
                    break
                seen.append(source)
        return sets

    def _arms(self, sets: Mapping[str, Section]) -> tuple[Arm, ...]:
        arms: list[Arm] = []
        for body in self.document["arm"]:
            where = f"[[arm]] {body['name']!r}"
            each = self._varied(where, body)
            arms += [self._arm(where, one, sets) for one in (each[:1] if self.quick else each)]
        if len(arms) > MAX_ARMS:
            self.problems.append(f"[[arm]]: {len(arms):,} of them, more than {MAX_ARMS:,}")
        counted = Counter(arm.name for arm in arms)
        self.problems += [f"[[arm]] {name!r}: named twice" for name, times in counted.items() if times > 1]
        return tuple(self._compared(arm, arms) for arm in arms)

    def _compared(self, arm: Arm, arms: list[Arm]) -> Arm:
        """With the full name of the arm that it is compared with: of a group, the row with the same value."""
        if arm.against is None:
            return arm
        for other in (other for other in arms if other is not arm):
            if other.name == arm.against or (other.group == arm.against and other.varied == arm.varied):
                return replace(arm, against=other.name)
        if not self.quick:  # which leaves rows out
            self.problems.append(f"[[arm]] {arm.name!r} against: no arm {arm.against!r}")
        return replace(arm, against=None)

    def _varied(self, where: str, body: Section) -> list[Section]:
        """One table for each of the values that vary, whose lists run side by side; named by the first of them."""
        vary, paper = body.get("vary"), body.get("paper")
        if vary is None:
            self._note(where, ["paper: a list needs vary"] if isinstance(paper, list) else [])
            return [body]
        lists = {key: values if isinstance(values, list) else [values] for key, values in vary.items()}
        sizes = {len(values) for values in (*lists.values(), *([paper] if isinstance(paper, list) else []))}
        wrong = ""
        if max(sizes, default=0) > MAX_ARMS:
            wrong = f"vary: more than {MAX_ARMS:,} values"
        elif isinstance(paper, list) and not all(type(part) in (int, float) for part in paper):
            wrong = "paper: must be a list of numbers"
        elif len(sizes) != 1 or 0 in sizes:
            wrong = "vary: lists, and paper if it is one, must be of one length, at least 1"
        if wrong:
            self._note(where, [wrong])
            return []
        rows: list[Section] = []
        first, values = next(iter(lists.items()))
        for at in range(sizes.pop()):
            row: dict[str, Any] = json.loads(json.dumps(_without(body, "vary")))
            for key, each in lists.items():
                table, _, name = key.rpartition(".")
                stage = table.removeprefix("latent.")
                if table in SHARED:
                    row.setdefault(table, {})[name] = each[at]
                elif table != stage and stage in LATENT_STAGES and "latent" in row:
                    row["latent"].setdefault(stage, {})[name] = each[at]
                else:
                    form = "train.KEY, select.KEY, tune.KEY or, where the arm is one of latent, latent.scheme.KEY"
                    self._note(where, [f"vary: {key!r} is not of the form {form}"])
            named = {"group": body["name"], "varied": values[at]}
            named["name"] = f"{body['name']}, {first.rpartition('.')[2]} {values[at]}"
            rows.append({**row, **named, **({"paper": paper[at]} if isinstance(paper, list) else {})})
        return rows

    def _arm(self, where: str, body: Section, sets: Mapping[str, Section]) -> Arm:
        tickets, number, drawn = body.get("tickets"), body.get("round"), "select" in body
        tuned = "tune" in body and number is None and not drawn  # a search says which ticket is trained
        for place, name in (("tickets", tickets), ("tune tickets", body.get("tune", {}).get("tickets"))):
            if name is not None and not (isinstance(name, str) and name in sets):
                self._note(where, [f"{place}: no set {name!r:.80}; known: {', '.join(sets) or 'none'}"])
        if tickets is None and (number is not None or drawn):
            self._note(where, ["a round, or a draw, is of tickets; name a set, or leave it out"])
        if tickets is not None and (number is None) == (not drawn) and not tuned:
            self._note(where, [f"give one of round and select: which ticket of {tickets} is trained"])
        if isinstance(number, int):
            number = self.over.get("round", number)
            self._check_round(where, "round", number, tickets, sets)
        elif number not in (None, "random"):
            self._note(where, [f"round: {number!r} is neither a number nor random"])
        if "latent" in body and {"train", "select", "tune", "tickets", "round"} & body.keys():
            self._note(where, ["an arm is of dpltm latent, or of dpltm train; not of both"])
        options = {command: self._options_of(command, body) for command in SHARED}
        search = options["tune"] or {}
        for tried in str(search.get("rounds", "")).split(","):
            if tried.isdecimal():
                self._check_round(where, "tune rounds", int(tried), search.get("tickets", tickets), sets)
        return Arm(
            name=body["name"],
            train=options["train"] or {},
            group=body.get("group", body["name"]),
            varied=body.get("varied"),
            paper=body.get("paper"),
            tickets=tickets,
            round="tuned" if number is None and not drawn and tickets is not None else number,
            against=body.get("against"),
            select=options["select"],
            tune=options["tune"],
            latent=self._latent_of(body) if "latent" in body else None,
            note=body.get("note"),
        )

    def _check_round(self, where: str, place: str, number: int, name: Any, sets: Mapping[str, Section]) -> None:
        if isinstance(name, str) and name in sets:
            rounds = chain(sets, name)[-1].get("rounds", GenerateRequest().rounds)
            if not 0 <= number <= rounds:
                self._note(where, [f"{place}: {number} is none of the rounds of {name}"])

    def _options_of(self, command: str, body: Section) -> Section | None:
        """An arm's options of a command: those of all arms, its own, those of --quick; None where it has no such table."""
        if command != "train" and command not in body:
            return None
        shared, quick = self.document.get(command, {}), self.over.get(command, {})
        if "tickets" in body:
            shared, quick = ({k: v for k, v in part.items() if k not in REMEMBERED} for part in (shared, quick))
        elif command == "tune":
            quick = _without(quick, "rounds")
        return override(override(shared, body.get(command, {})), quick)

    def _latent_of(self, body: Section) -> Mapping[str, Section]:
        stages = {}
        for stage in LATENT_STAGES:
            layers = (tables.get("latent", {}).get(stage, {}) for tables in (self.document, body, self.over))
            shared, own, quick = layers
            stages[stage] = override(override(shared, own), quick)
        return stages

    def _figure(self, arms: tuple[Arm, ...]) -> Section | None:
        if "figure" not in self.document:
            return None
        over = self.document["figure"].get("over", "steps")
        if over not in ("steps", "values"):
            self.problems.append(f"[figure] over: {over!r} is not one of steps, values")
        if over == "values" and not any(arm.varied is not None for arm in arms):
            self.problems.append("[figure] over: no arm has vary, so there are no values")
        if (apart := self.document["figure"].get("apart")) is not None and (over, apart) != ("steps", "dataset"):
            self.problems.append('[figure] apart: there is "dataset" alone, where the figure is over steps')
        return {"over": over, **self.document["figure"]}


def _quick_set(section: Section, over: Section) -> Section:
    """Return a set with what --quick overrides, as far as that means anything for it."""
    if "from" in section:
        return override(section, {key: over[key] for key in ("dataset", "subset") if key in over})
    untrained = section.get("provenance") == "data-free"
    return override(section, {key: over[key] for key in over if not (untrained and key in TRAINING_KEYS)})


def _of_arm(arm: Arm, sets: Mapping[str, Section]) -> Iterator[str]:
    """Yield contradictions in the options of an arm, each with the table that it is about."""
    if arm.latent is not None:
        for stage in LATENT_STAGES:
            yield from (f"latent.{stage}: {problem}" for problem in _refused(f"latent {stage}", arm.latent[stage]))
        return
    start: dict[str, Any] = {"dense": True} if arm.tickets is None else {"ticket": "SET@1"}
    yield from (f"train: {problem}" for problem in _refused("train", arm.train, **start))
    if arm.tickets is None and "centre" in arm.train and arm.train.get("features") in (None, "none"):
        yield f"train: `centre`: {NEEDS_FEATURES}"
    if arm.select is not None:
        yield from (f"select: {problem}" for problem in _of_draw(arm, arm.select, sets))
    if arm.tune is None:
        return
    asked = search_options(arm)
    name = asked.pop("tickets", arm.tickets)
    if "epsilon" not in arm.train:
        yield "tune: searches under a budget; give train an epsilon"
    else:
        yield from (f"tune: {problem}" for problem in _refused("tune", asked, **({"set": "SET"} if name else {})))


def _of_draw(arm: Arm, select: Section, sets: Mapping[str, Section]) -> Iterator[str]:
    """Yield contradictions in the options of a draw, and with the training's."""
    yield from _refused("select", draw_options(arm))
    spent, budget = select.get("eps1"), arm.train.get("epsilon")
    if select.get("reveal") and budget is not None:
        yield "`reveal`: releases scores with no protection, so no budget holds; leave it out"
    if spent is not None and budget is not None and 0 < budget <= spent:
        yield f"`eps1`: {spent:g} leaves nothing of the budget {budget:g}"
    if reads_no_records(select) and arm.tickets in sets and provenance(sets, str(arm.tickets)) != "public":
        yield f"`rule`: smallest-within needs public accuracies, and {arm.tickets} is no public set"


def _refused(name: str, section: Section, **given: Any) -> list[str]:
    """Return the first thing that a command refuses of its options, if any; what the recipe will give it is there."""
    command = COMMANDS[name]
    needed = {item.name: "X" for item in fields(command.request) if item.metadata["required"] and item.name in DECIDED}
    try:
        command.check(resolve(command.request, {**needed, **given}, section))
    except DpltmError as error:
        return [str(error)]
    return []


# --- what the records at hand say of them -----------------------------------------------------------------------------

Load = Callable[[DataOptions], Dataset]
"""Reads the records that options name."""


def check_ready(recipe: Recipe, load: Load, ledger: Ledger) -> dict[str, Part]:
    """Read every dataset, check that networks fit, and return each arm's part by name; refuse with all that is missing."""
    look = _Look(recipe, load, ledger)
    for name, section in recipe.tickets.items():
        look.at_set(name, section, f"[tickets.{name}]")
    for arm in recipe.arms:
        look.at_arm(arm, f"[[arm]] {arm.name!r}")
    for where, public in look.public.items():  # all have one ledger
        shared = next(((name, one) for name, one in look.private.items() if public.overlaps(one)), None)
        if shared is not None:
            look.problems.append(
                f"{where} `dataset`: {public} is declared public and shares records with {shared[1]}, which [[arm]]"
                f" {shared[0]!r} trains on; give them different `subset` or `dataset`, or make two recipes of it"
            )
    check_no_problems(recipe.path, look.problems)
    return look.private


class _Look:
    """One look at a recipe's records: all that is wrong, what arms train on, and what each table declares public."""

    def __init__(self, recipe: Recipe, load: Load, ledger: Ledger) -> None:
        self.recipe, self.load, self.ledger = recipe, load, ledger
        self.problems, self.private, self.public = list[str](), dict[str, Part](), dict[str, Part]()
        self.loaded: dict[str, Dataset | None] = {}
        self.absent, self.units = set[str](), dict[str, None]()

    def at_set(self, name: str, section: Section, where: str) -> None:
        """The records of a ticket set, against its network and its schedule."""
        made = "from" not in section
        section = {"dataset": "digits", **section} if made else section
        dataset = self._read(section, where, public=made and provenance(self.recipe.tickets, name) == "public")
        if made:
            self._check_fit(section, dataset, where, resolve(GenerateRequest, {}, section, str(self.recipe.path)))

    def at_arm(self, arm: Arm, where: str) -> None:
        """The records of an arm, against its options and its network."""
        if arm.latent is not None:
            self._read(arm.latent["encode"], f"{where} latent.encode")
            return
        dataset = self._read(arm.train, f"{where} train")
        if dataset is not None:
            self._check_suitable(arm, dataset, f"{where} train")
        if arm.tickets is None:
            self._check_fit(arm.train, dataset, f"{where} train")
        if arm.tune is not None:
            self._read(arm.tune, f"{where} tune", public=True)

    def _read(self, section: Section, where: str, *, public: bool = False) -> Dataset | None:
        """Return the dataset that a section names; None, noted once, where it cannot be had."""
        options = data_options(section)
        name, source = repr(sorted(options.items())), str(section.get("dataset"))
        if name not in self.loaded:
            self.loaded[name] = None
            if source in self.absent:  # noted before
                return None
            try:
                self.loaded[name] = self.load(resolve(DataOptions, {}, options, str(self.recipe.path)))
            except DpltmError as error:
                self.problems.append(f"{where} {error}")
                if not (isinstance(error, InputError) and error.field):  # it is not the options: nothing can be had
                    self.absent.add(source)
        dataset = self.loaded[name]
        if dataset is not None and public:
            self.public[where] = self.ledger.part(dataset)
        return dataset

    def _check_suitable(self, arm: Arm, dataset: Dataset, where: str) -> None:
        try:
            request = resolve(TrainRequest, {"dense": True}, arm.train, str(self.recipe.path))
            dataset = at_unit(dataset, request.unit, request.per_unit)
            train.sampling_of(request, dataset)
        except DpltmError as error:
            self.problems.append(f"{where} {error}")
        self.private[arm.name] = self.ledger.part(dataset)
        self.units[dataset.unit] = None
        wrong = {
            f"`unit`: one ledger protects one {' or one '.join(sorted(self.units))}; make two recipes": len(self.units) > 1,
            f"`dataset`: {dataset.name} has no test records, by which its row is measured": dataset.test is None,
            f"`dataset`: {dataset.name} holds no ratings, so it has no rmse, [recipe] measure":
                self.recipe.measure == "rmse" and not dataset.rated,
        }  # fmt: skip
        self.problems += [f"{where} {problem}" for problem, holds in wrong.items() if holds]

    def _check_fit(
        self, section: Section, dataset: Dataset | None, where: str, request: GenerateRequest | None = None
    ) -> None:
        if dataset is None or section.get("features") not in (None, "none"):
            return
        try:
            spec = model_spec(section.get("model", "mlp:300,100"), dataset)
            if request is not None:
                generate.check_schedule(request, spec)
        except DpltmError as error:
            self.problems.append(f"{where} {error}")
