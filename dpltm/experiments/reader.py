"""Reads a recipe from a TOML document: first what its tables and options are, then what they mean together.

All that is wrong is told at once, in either round.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpltm.errors import DpltmError, InputError
from dpltm.experiments.recipe import (
    LATENT_STAGES,
    MAX_ARMS,
    MAX_SEEDS,
    MEASURES,
    SHARED,
    Arm,
    Recipe,
    Section,
    chain,
    draw_options,
    override,
    provenance,
    reads_no_records,
    search_options,
)
from dpltm.options import latent as latent_options
from dpltm.options import resolve, section_problems
from dpltm.options.generate import GenerateRequest
from dpltm.options.select import SelectRequest
from dpltm.options.tickets import TransferRequest
from dpltm.options.train import TrainRequest
from dpltm.options.tune import TuneRequest
from dpltm.privacy.checks import check_delta_alone
from dpltm.training.least_squares import NEEDS_FEATURES
from dpltm.verbs import generate, latent, select, train, transfer, tune


@dataclass(frozen=True)
class Command:
    """One command whose options a recipe holds.

    Attributes:
        request: the dataclass of its options.
        check: refuses options that contradict each other.
        decided: keys that a recipe decides itself: by its arms, by its seeds, or since an arm's search is for its own
            training.
        given: stands for what the recipe itself will give it.
    """

    request: type
    check: Callable[[Any], object]
    decided: frozenset[str]
    given: Mapping[str, str]


def _check_generation(request: GenerateRequest) -> None:
    generate.check_options(request)
    check_delta_alone(request.delta)


def _check_training(request: TrainRequest) -> None:
    train.check_options(request)
    check_delta_alone(request.delta)
    if request.lr is not None and not request.lr > 0:
        raise InputError("lr", request.lr, "a positive number")
    if request.ticket is not None and request.model is not None:
        raise InputError("`model`: the ticket set decides the network; leave `model` out")


def _check_delta(request: latent_options.EncodeRequest) -> None:
    check_delta_alone(request.delta)


LEDGER = frozenset({"ledger", "population"})

COMMANDS: Mapping[str, Command] = {
    "train": Command(
        TrainRequest, _check_training, LEDGER | {"ticket", "dense", "out", "seed", "dry-run", "lineage"}, {}
    ),
    "select": Command(SelectRequest, select.check_options, LEDGER | {"set", "dry-run"}, {"set": "SET"}),
    "tune": Command(
        TuneRequest,
        tune.check_request,
        LEDGER | {"set", "out", "features", "public", "components", "epsilon", "delta", "optimizer", "schedule", "average",
                  "accountant", "private"},
        {},
    ),
    "generate": Command(
        GenerateRequest, _check_generation, LEDGER | {"out", "dry-run", "name", "threads"}, {}
    ),
    "transfer": Command(
        TransferRequest, transfer.check_options, frozenset({"set", "out", "name", "seed"}), {"set": "SET", "out": "DIR"}
    ),
    "scheme": Command(
        latent_options.SchemeRequest, latent.check_scheme_options, LEDGER | {"out"}, {"out": "DIR"}
    ),
    "encode": Command(
        latent_options.EncodeRequest, _check_delta, LEDGER | {"scheme", "out", "dry-run"}, {"scheme": "DIR", "out": "FILE"}
    ),
    "latent train": Command(
        latent_options.TrainRequest,
        latent.check_server_options,
        frozenset({"scheme", "messages", "out", "seed", "threads"}),
        {"scheme": "DIR", "messages": "F", "out": "DIR"},
    ),
}  # fmt: skip
"""By name."""


def latent_command(stage: str) -> str:
    """Return the command of a stage of ``dpltm latent``."""
    return "latent train" if stage == "train" else stage


REMEMBERED = ("model", "features", "public", "components")
"""What ticket sets remember: where a table that all arms share says it, it is for arms without a set."""

TRAINING_KEYS = ("iterations", "batch-size", "lr", "rewind")
"""What --quick sets only on ticket sets that something is trained for."""

_TABLES: Mapping[str, Mapping[str, Any]] = {
    "recipe": {"title": str, "source": str, "seeds": int, "measure": str, "notes": list},
    "figure": {"over": str, "x": str, "log": bool},
    "quick": {"seeds": int, "round": int, "train": dict, "select": dict, "tune": dict, "tickets": dict, "latent": dict},
    "arm": {"name": str, "paper": (int, float, list), "tickets": str, "round": (int, str), "against": str, "vary": dict,
            "train": dict, "select": dict, "tune": dict, "latent": dict, "note": str},
}  # fmt: skip
"""Keys of the tables that are no options of a command, with their types."""

_KNOWN = ("recipe", "train", "select", "tune", "tickets", "arm", "figure", "quick", "latent")
_PLAIN = ", with nothing in it but finite numbers, texts, booleans, lists and tables"


def read_recipe(document: Section, path: Path, *, seeds: int | None = None, quick: bool = False) -> Recipe:
    """Return the recipe in a parsed TOML document.

    Args:
        document: its tables.
        path: of its file, for messages.
        seeds: how many, in place of its own number.
        quick: whether to take its quick version.

    Raises:
        InputError: tables, keys and values that are wrong by themselves, all of them; or else all that contradicts itself.
    """
    form = _Form()
    form.document(document)
    check_no_problems(path, form.problems)
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


class _Form:
    """Whether tables, keys and values of a recipe are what they must be; notes what is not."""

    def __init__(self) -> None:
        self.problems = list[str]()

    def document(self, document: Section) -> None:
        """All tables of a recipe."""
        self._keys("", document, _KNOWN)
        arms = document.get("arm", [])
        tables = {key: value for key, value in document.items() if key != "arm" and self._is_table(key, value)}
        for name in ("recipe", "figure", "quick"):
            self._typed(f"[{name}]", tables.get(name, {}), _TABLES[name])
        quick = tables.get("quick", {})
        self._shared("", tables)
        self._shared("quick.", quick if isinstance(quick, dict) else {})
        self._options("[quick.tickets]", "generate", quick.get("tickets", {}))
        for name, section in tables.get("tickets", {}).items():
            self._set(f"[tickets.{name}]", section, tables["tickets"])
        if not (isinstance(arms, list) and arms and all(isinstance(arm, dict) for arm in arms)):
            self.problems.append('[[arm]]: missing; say what is trained, as in [[arm]] name = "dense"')
            return
        for number, body in enumerate(arms, 1):
            self._arm(f"[[arm]] {body.get('name', number)!r}", body)

    def _shared(self, prefix: str, tables: Section) -> None:
        for command in SHARED:
            self._options(f"[{prefix}{command}]", command, tables.get(command, {}))
        self._latent(f"[{prefix}latent.{{}}]", tables.get("latent", {}))

    def _latent(self, where: str, stages: object) -> None:
        for stage, section in stages.items() if isinstance(stages, dict) else ():
            if stage in LATENT_STAGES:
                self._options(where.format(stage), latent_command(stage), section)
            else:
                self.problems.append(f"{where.format(stage)}: unknown; known: {', '.join(LATENT_STAGES)}")

    def _set(self, where: str, section: Any, sets: Section) -> None:
        if not self._is_table(where, section):
            return
        source = section.get("from")
        if source is not None and not (isinstance(source, str) and source in sets):
            self.problems.append(f"{where} from: {source!r:.80} is not the name of a set; known: {', '.join(sets)}")
        plain = {key: value for key, value in section.items() if key != "from"}
        self._options(where, "generate" if source is None else "transfer", plain)

    def _arm(self, where: str, body: Section) -> None:
        self._typed(where, body, _TABLES["arm"])
        if "name" not in body:
            self.problems.append(f"{where}: has no name")
        for command in SHARED:
            own = body.get(command, {})
            if command == "tune" and isinstance(own, dict):  # the set that a search is made with is no option of it
                if not isinstance(own.get("tickets", ""), str):
                    self.problems.append(f"{where} tune tickets: {own['tickets']!r:.80} is not the name of a set")
                own = {key: value for key, value in own.items() if key != "tickets"}
            self._options(f"{where} {command}", command, own)
        self._latent(f"{where} latent.{{}}", body.get("latent", {}))

    def _options(self, where: str, command: str, section: Any) -> None:
        """Unknown keys, values of the wrong type, and what the recipe decides."""
        if not self._is_table(where, section):
            return
        decided = {key for key in section if key.replace("_", "-") in COMMANDS[command].decided}
        odd = {key for key, value in section.items() if not _is_plain(value)}
        self.problems += [f"{where} {key}: decided by the recipe; leave it out" for key in section if key in decided]
        self.problems += [f"{where} {key}: {section[key]!r:.80} is not allowed here{_PLAIN}" for key in odd]
        rest = {key: value for key, value in section.items() if key not in decided | odd}
        self.problems += [f"{where} {problem}" for problem in section_problems(COMMANDS[command].request, rest)]

    def _typed(self, where: str, section: Section, known: Mapping[str, Any]) -> None:
        self._keys(where, section, known)
        for key in (key for key in section if key in known):
            value, wanted = section[key], known[key] if isinstance(known[key], tuple) else (known[key],)
            if type(value) not in wanted or (type(value) is not dict and not _is_plain(value)):
                names = " or ".join(kind.__name__ for kind in wanted)
                self.problems.append(f"{where} {key}: {value!r:.80} must be of type {names}{_PLAIN}")

    def _keys(self, where: str, section: Section, known: Iterable[str]) -> None:
        self.problems += [
            f"{where} {key!r}: unknown; known: {', '.join(known)}".strip() for key in section if key not in known
        ]

    def _is_table(self, where: str, value: object) -> bool:
        if not isinstance(value, dict):
            self.problems.append(f"{where}: must be a table")
        return isinstance(value, dict)


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
            self.problems += [f"[tickets.{name}] {problem}" for problem in _of_set(section)]
        for arm in arms:
            self.problems += [f"[[arm]] {arm.name!r} {problem}" for problem in _of_arm(arm, sets)]
        return Recipe(
            self.path, head.get("title", ""), head.get("source", ""), tuple(head.get("notes", ())), count, measure, sets,
            arms, self._figure(arms), self.quick,
        )  # fmt: skip

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
            each = _varied(where, body, self.problems)
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
        if self.quick:  # which leaves rows out
            return replace(arm, against=None)
        self.problems.append(f"[[arm]] {arm.name!r} against: no arm {arm.against!r}")
        return arm

    def _arm(self, where: str, body: dict[str, Any], sets: Mapping[str, Section]) -> Arm:
        options = {command: self._options_of(command, body) for command in SHARED}
        tickets, number = body.get("tickets"), body.get("round")
        for place, name in (("tickets", tickets), ("tune tickets", body.get("tune", {}).get("tickets"))):
            if name is not None and name not in sets:
                self.problems.append(f"{where} {place}: no set {name!r:.80}; known: {', '.join(sets) or 'none'}")
        if tickets is None and (number is not None or "select" in body):
            self.problems.append(f"{where}: a round, or a draw, is of tickets; name a set, or leave it out")
        if tickets is not None and (number is None) == ("select" not in body) and not _tunes_round(body):
            self.problems.append(f"{where}: give one of round and select: which ticket of {tickets} is trained")
        if isinstance(number, int) and "round" in self.over:
            number = self.over["round"]
        if isinstance(number, int) and tickets in sets and not _has_round(sets, str(tickets), number):
            self.problems.append(f"{where} round: {number} is none of the rounds of {tickets}")
        if isinstance(number, str) and number != "random":
            self.problems.append(f"{where} round: {number!r} is neither a number nor random")
        if "latent" in body and {"train", "select", "tune", "tickets", "round"} & body.keys():
            self.problems.append(f"{where}: an arm is of dpltm latent, or of dpltm train; not of both")
        return Arm(
            name=body["name"],
            group=body.get("group", body["name"]),
            varied=body.get("varied"),
            paper=body.get("paper"),
            tickets=tickets,
            round="tuned" if number is None and "select" not in body and tickets is not None else number,
            against=body.get("against"),
            train=options["train"] or {},
            select=options["select"],
            tune=options["tune"],
            latent=self._latent_of(body) if "latent" in body else None,
            note=body.get("note"),
        )

    def _options_of(self, command: str, body: Section) -> Section | None:
        """An arm's options of a command: those of all arms, its own, those of --quick; None where it has no such table."""
        if command != "train" and command not in body:
            return None
        shared, quick = self.document.get(command, {}), self.over.get(command, {})
        if "tickets" in body:
            shared, quick = ({k: v for k, v in part.items() if k not in REMEMBERED} for part in (shared, quick))
        else:
            quick = {key: quick[key] for key in quick if (command, key) != ("tune", "rounds")}
        return override(override(shared, body.get(command, {})), quick)

    def _latent_of(self, body: Section) -> Mapping[str, Section]:
        layers = [tables.get("latent", {}) for tables in (self.document, body, self.over)]
        stages = {}
        for stage in LATENT_STAGES:
            shared, own, quick = (layer.get(stage, {}) for layer in layers)
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
        return {"over": over, **self.document["figure"]}


# arms that vary


def _varied(where: str, body: dict[str, Any], problems: list[str]) -> list[dict[str, Any]]:
    """One table for each of the values that vary, whose lists run side by side; what is wrong is noted."""
    body = dict(body)
    vary = body.pop("vary", None)
    if vary is None:
        if isinstance(body.get("paper"), list):
            problems.append(f"{where} paper: a list needs vary")
        return [body]
    lists = {key: value if isinstance(value, list) else [value] for key, value in vary.items()}
    paper = body.pop("paper", None)
    papers = paper if isinstance(paper, list) else None
    sizes = {len(values) for values in lists.values()} | ({len(papers)} if papers is not None else set())
    if max(sizes, default=0) > MAX_ARMS:
        problems.append(f"{where} vary: more than {MAX_ARMS:,} values")
        return []
    if papers is not None and not all(type(part) in (int, float) for part in papers):
        problems.append(f"{where} paper: must be a list of numbers")
        return []
    if len(sizes) != 1 or 0 in sizes:
        problems.append(f"{where} vary: lists, and paper if it is one, must be of one length, at least 1")
        return []
    rows = [_row(where, body, lists, at, problems) for at in range(sizes.pop())]
    for at, row in enumerate(rows):
        if paper is not None:
            row["paper"] = paper if papers is None else papers[at]
    return rows


def _row(
    where: str, body: dict[str, Any], lists: Mapping[str, list[Any]], at: int, problems: list[str]
) -> dict[str, Any]:
    """A copy of an arm's table with the values of one place, named by the first of them."""
    row: dict[str, Any] = json.loads(json.dumps(body))
    for key, values in lists.items():
        table, _, name = key.rpartition(".")
        stage = table.removeprefix("latent.")
        if table in SHARED:
            row.setdefault(table, {})[name] = values[at]
        elif table != stage and stage in LATENT_STAGES and "latent" in row:
            row["latent"].setdefault(stage, {})[name] = values[at]
        else:
            problems.append(
                f"{where} vary: {key!r} is not of the form train.KEY, select.KEY, tune.KEY or, where the arm is one"
                " of latent, latent.scheme.KEY"
            )
    first, values = next(iter(lists.items()))
    row["group"] = body.get("name", "")
    row["varied"] = values[at]
    row["name"] = f"{row['group']}, {first.rpartition('.')[2]} {values[at]}"
    return row


# parts


def _quick_set(section: Section, over: Section) -> Section:
    """A set with what --quick overrides, as far as that means anything for it."""
    if "from" in section:
        return override(section, {key: over[key] for key in ("dataset", "subset") if key in over})
    untrained = section.get("provenance") == "data-free"
    return override(section, {key: over[key] for key in over if not (untrained and key in TRAINING_KEYS)})


def _has_round(sets: Mapping[str, Section], name: str, number: int) -> bool:
    return bool(0 <= number <= chain(sets, name)[-1].get("rounds", GenerateRequest().rounds))


def _tunes_round(body: Section) -> bool:
    """Whether a search says which ticket is trained."""
    return "tune" in body and "round" not in body and "select" not in body


def _is_plain(value: object) -> bool:
    """Whether a value from TOML can be written as JSON: no date, no nan, no infinity."""
    if isinstance(value, dict):
        return all(_is_plain(part) for part in value.values())
    if isinstance(value, list):
        return all(_is_plain(part) for part in value)
    return isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value))


# what options say against each other


def _of_set(section: Section) -> list[str]:
    """What the options of a ticket set say against each other."""
    plain = {key: value for key, value in section.items() if key != "from"}
    return _refused("transfer" if "from" in section else "generate", plain)


def _of_arm(arm: Arm, sets: Mapping[str, Section]) -> Iterator[str]:
    """What the options of an arm say against each other, each with the table that it is about."""
    if arm.latent is not None:
        for stage in LATENT_STAGES:
            refusals = _refused(latent_command(stage), arm.latent[stage])
            yield from (f"latent.{stage}: {problem}" for problem in refusals)
        return
    start: dict[str, Any] = {"dense": True} if arm.tickets is None else {"ticket": "SET@1"}
    yield from (f"train: {problem}" for problem in _refused("train", arm.train, **start))
    if arm.tickets is None and "centre" in arm.train and arm.train.get("features") in (None, "none"):
        yield f"train: `centre`: {NEEDS_FEATURES}"
    if arm.select is not None:
        yield from (f"select: {problem}" for problem in _of_draw(arm, arm.select, sets))
    if arm.tune is not None:
        yield from (f"tune: {problem}" for problem in _of_search(arm, arm.tune))


def _of_draw(arm: Arm, select: Section, sets: Mapping[str, Section]) -> Iterator[str]:
    """What the options of a draw say against each other, and against the training's."""
    yield from _refused("select", draw_options(arm))
    spent, budget = select.get("eps1"), arm.train.get("epsilon")
    if select.get("reveal") and budget is not None:
        yield "`reveal`: releases scores with no protection, so no budget holds; leave it out"
    if spent is not None and budget is not None and 0 < budget <= spent:
        yield f"`eps1`: {spent:g} leaves nothing of the budget {budget:g}"
    if reads_no_records(select) and arm.tickets in sets and provenance(sets, str(arm.tickets)) != "public":
        yield f"`rule`: smallest-within needs public accuracies, and {arm.tickets} is no public set"


def _of_search(arm: Arm, tune: Section) -> Iterator[str]:
    """What the options of a search say against each other, and against the training's."""
    if "epsilon" not in arm.train:
        yield "searches under a budget; give train an epsilon"
    elif "for-records" not in tune:
        yield "for-records is missing: the public number of private records"
    else:
        asked = search_options(arm)
        name = asked.pop("tickets", arm.tickets)
        yield from _refused("tune", asked, **({} if name is None else {"set": "SET"}))


def _refused(name: str, section: Section, **given: Any) -> list[str]:
    """The first thing that a command refuses of its options, if any."""
    command = COMMANDS[name]
    try:
        command.check(resolve(command.request, {**command.given, **given}, section))
    except DpltmError as error:
        return [str(error)]
    return []
