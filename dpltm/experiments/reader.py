"""Reads a recipe from a TOML document, and reports everything that is wrong with it at once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpltm.errors import InputError
from dpltm.experiments import checks
from dpltm.experiments.commands import COMMANDS, latent_command
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
    override,
)
from dpltm.experiments.vary import varied
from dpltm.options.generate import GenerateRequest
from dpltm.options.sections import section_problems

REMEMBERED = ("model", "features", "public", "components")
"""What ticket sets remember: where a table that all arms share says it, it is for arms without a set."""

TRAINING_KEYS = ("iterations", "batch-size", "lr", "rewind")
"""What --quick sets only on ticket sets that something is trained for."""

_RECIPE = {"title": str, "source": str, "seeds": int, "measure": str, "notes": list}
_ARM = {
    "name": str, "paper": (int, float, list), "tickets": str, "round": (int, str), "against": str, "vary": dict,
    "train": dict, "select": dict, "tune": dict, "latent": dict, "note": str,
}  # fmt: skip
_FIGURE = {"over": str, "x": str, "log": bool}
_QUICK = {"seeds": int, "round": int, "train": dict, "select": dict, "tune": dict, "tickets": dict, "latent": dict}
_TABLES = ("recipe", "train", "select", "tune", "tickets", "arm", "figure", "quick", "latent")
_SEARCHED_SET = ("tune", "tickets")
"""The one key of an arm's table that is no option of its command: the set that its search is made with."""

_PLAIN = ", with nothing in it but finite numbers, texts, booleans, lists and tables"


def read_recipe(document: Section, path: Path, *, seeds: int | None = None, quick: bool = False) -> Recipe:
    """The recipe in a parsed TOML document.

    Args:
        document: its tables.
        path: of its file, for messages.
        seeds: how many, in place of its own number.
        quick: whether to take its quick version.

    Raises:
        InputError: whatever is wrong with it, all of it in one message.
    """
    recipe, problems = recipe_and_problems(document, path, seeds=seeds, quick=quick)
    if problems:
        raise problems_error(path, problems)
    return recipe


def recipe_and_problems(
    document: Section, path: Path, *, seeds: int | None = None, quick: bool = False
) -> tuple[Recipe, list[str]]:
    """The recipe as far as it can be read, and whatever is wrong with it. Arguments as :func:`read_recipe`."""
    reader = _Reader(path, document, quick)
    recipe = reader.recipe(seeds)
    return recipe, reader.problems


def problems_error(path: Path, problems: list[str]) -> InputError:
    """One message about all of them."""
    distinct = list(dict.fromkeys(problems))
    if len(distinct) == 1:
        return InputError(f"`config` {path}: {distinct[0]}")
    listed = "; ".join(f"({number}) {problem}" for number, problem in enumerate(distinct, 1))
    return InputError(f"`config` {path}: {len(distinct)} problems: {listed}")


class _Reader:
    """Reads a recipe, and notes what is wrong rather than stopping at it."""

    def __init__(self, path: Path, document: Section, quick: bool) -> None:
        self.path, self.document, self.quick, self.problems = path, document, quick, list[str]()

    def recipe(self, seeds: int | None) -> Recipe:
        self._check_keys("", self.document, dict.fromkeys(_TABLES, (dict, list)))
        head = self._right_keys("[recipe]", self._table("recipe"), _RECIPE)
        over = self._right_keys("[quick]", self._table("quick"), _QUICK)
        if self.quick and not over:
            self.problems.append("[quick]: missing; say what `quick` does, such as [quick.train] steps = 20")
        self._check_quick(over)
        over = over if self.quick else {}
        count = seeds if seeds is not None else over.get("seeds", head.get("seeds", 5))
        if not 1 <= count <= MAX_SEEDS:
            self.problems.append(f"seeds: {count} is not from 1 to {MAX_SEEDS}")
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
        self._check_contradictions(recipe)
        return recipe

    def _check_quick(self, over: Section) -> None:
        """Its tables are those of commands, whether --quick is given or not."""
        for key in SHARED:
            self._check_section(f"[quick.{key}]", key, over.get(key, {}))
        self._check_section("[quick.tickets]", "generate", over.get("tickets", {}))
        self._check_keys("[quick.latent]", over.get("latent", {}), dict.fromkeys(LATENT_STAGES))
        for stage in LATENT_STAGES:
            self._check_section(
                f"[quick.latent.{stage}]", latent_command(stage), over.get("latent", {}).get(stage, {})
            )

    def _check_contradictions(self, recipe: Recipe) -> None:
        """Notes options that contradict each other."""
        for name, section in recipe.tickets.items():
            self.problems += [f"[tickets.{name}] {problem}" for problem in checks.of_set(section)]
        for arm in recipe.arms:
            self.problems += [f"[[arm]] {arm.name!r} {problem}" for problem in checks.of_arm(arm, recipe.tickets)]

    # ticket sets

    def _sets(self, over: Section) -> dict[str, Section]:
        sets: dict[str, Section] = {}
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
            self._check_section(where, "generate" if source is None else "transfer", plain)
            if source is not None and source not in tables:
                self.problems.append(f"{where} from: no set {source!r}; known: {', '.join(tables)}")
            sets[name] = (
                _quick_set(section, over) if over else {key.replace("_", "-"): section[key] for key in section}
            )
        self._break_circles(sets)
        return sets

    def _break_circles(self, sets: dict[str, Section]) -> None:
        for name in sets:
            seen = [name]
            while (source := sets.get(seen[-1], {}).get("from")) is not None and source in sets:
                if source in seen:
                    self.problems.append(f"[tickets.{name}] from: goes round in a circle")
                    sets[name] = {}
                    break
                seen.append(source)

    # arms

    def _arms(self, sets: Mapping[str, Section], over: Section) -> tuple[Arm, ...]:
        given = self.document.get("arm", [])
        if not isinstance(given, list) or not given or not all(isinstance(arm, dict) for arm in given):
            self.problems.append('[[arm]]: missing; say what is trained, as in [[arm]] name = "dense"')
            return ()
        for command in SHARED:
            self._check_section(f"[{command}]", command, self._table(command))
        for stage, section in self._table("latent").items():
            if stage not in LATENT_STAGES:
                self.problems.append(f"[latent.{stage}]: unknown; known: {', '.join(LATENT_STAGES)}")
            else:
                self._check_section(f"[latent.{stage}]", latent_command(stage), section)
        arms: list[Arm] = []
        for number, body in enumerate(given, 1):
            where = f"[[arm]] {body.get('name', number)!r}"
            body = self._right_keys(where, body, _ARM)
            if "name" not in body:
                self.problems.append(f"{where}: has no name")
            each = varied(where, body, self.problems)
            arms += [self._arm(where, one, sets, over) for one in (each[:1] if self.quick else each)]
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

    def _arm(self, where: str, body: dict[str, Any], sets: Mapping[str, Section], over: Section) -> Arm:
        options = {command: self._options_of(where, command, body, over) for command in SHARED}
        tickets, number = body.get("tickets"), body.get("round")
        for place, name in (("tickets", tickets), ("tune tickets", body.get("tune", {}).get("tickets"))):
            if name is not None and not (isinstance(name, str) and name in sets):
                self.problems.append(f"{where} {place}: no set {name!r:.80}; known: {', '.join(sets) or 'none'}")
        if tickets is None and (number is not None or "select" in body):
            self.problems.append(f"{where}: a round, or a draw, is of tickets; name a set, or leave it out")
        if tickets is not None and (number is None) == ("select" not in body) and not _tunes_round(body):
            self.problems.append(f"{where}: give one of round and select: which ticket of {tickets} is trained")
        if isinstance(number, int) and "round" in over:
            number = over["round"]
        if isinstance(number, int) and tickets is not None and not _has_round(sets, tickets, number):
            self.problems.append(f"{where} round: {number} is none of the rounds of {tickets}")
        if isinstance(number, str) and number != "random":
            self.problems.append(f"{where} round: {number!r} is neither a number nor random")
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
            latent=self._latent_of(where, body, over),
            note=body.get("note"),
        )

    def _options_of(self, where: str, command: str, body: Section, over: Section) -> Section | None:
        """An arm's options of a command: those of all arms, its own, those of --quick; None where it has no such table."""
        own = body.get(command, {})
        plain = {key: value for key, value in own.items() if (command, key) != _SEARCHED_SET}
        self._check_section(f"{where} {command}", command, plain)
        if command != "train" and command not in body:
            return None
        shared, quick = self._table(command), over.get(command, {})
        if "tickets" in body:
            shared, quick = ({k: v for k, v in part.items() if k not in REMEMBERED} for part in (shared, quick))
        else:
            quick = {key: quick[key] for key in quick if (command, key) != ("tune", "rounds")}
        return override(override(shared, own), quick)

    def _latent_of(self, where: str, body: Section, over: Section) -> Mapping[str, Section] | None:
        if "latent" not in body:
            return None
        unknown = set(body["latent"]) - set(LATENT_STAGES)
        if unknown:
            self.problems.append(f"{where} latent: unknown {min(unknown)!r}; known: {', '.join(LATENT_STAGES)}")
        if {"train", "select", "tune", "tickets", "round"} & body.keys():
            self.problems.append(f"{where}: an arm is of dpltm latent, or of dpltm train; not of both")
        shared, quick = self._table("latent"), over.get("latent", {})
        stages = {}
        for stage in LATENT_STAGES:
            own = body["latent"].get(stage, {})
            self._check_section(f"{where} latent.{stage}", latent_command(stage), own)
            stages[stage] = override(override(_dict(shared.get(stage)), _dict(own)), _dict(quick.get(stage)))
        return stages

    def _figure(self, arms: tuple[Arm, ...]) -> Section | None:
        if "figure" not in self.document:
            return None
        figure = self._right_keys("[figure]", self._table("figure"), _FIGURE)
        over = figure.get("over", "steps")
        if over not in ("steps", "values"):
            self.problems.append(f"[figure] over: {over!r} is not one of steps, values")
        if over == "values" and not any(arm.varied is not None for arm in arms):
            self.problems.append("[figure] over: no arm has vary, so there are no values")
        return {"over": over, **figure}

    # tables

    def _check_section(self, where: str, command: str, section: object) -> None:
        """Notes unknown keys, values of the wrong type, and what the recipe decides."""
        if not isinstance(section, dict):
            self.problems.append(f"{where}: must be a table")
            return
        odd = [key for key, value in section.items() if not _is_plain(value)]
        self.problems += [f"{where} {key}: {section[key]!r:.80} is not allowed here{_PLAIN}" for key in odd]
        section = {key: value for key, value in section.items() if key not in odd}
        decided = [key for key in section if key.replace("_", "-") in COMMANDS[command].decided]
        self.problems += [f"{where} {key}: decided by the recipe; leave it out" for key in decided]
        rest = {key: value for key, value in section.items() if key not in decided}
        self.problems += [f"{where} {problem}" for problem in section_problems(COMMANDS[command].request, rest)]

    def _table(self, name: str) -> dict[str, Any]:
        table = self.document.get(name, {})
        if isinstance(table, dict):
            return table
        self.problems.append(f"{name}: must be a table, as in [{name}]")
        return {}

    def _right_keys(self, where: str, section: Section, known: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of a table that are known and of the right type; the others are noted."""
        self._check_keys(where, section, known)
        right = {}
        for key, value in section.items():
            if key not in known:
                continue
            wanted = known[key] if isinstance(known[key], tuple) else (known[key],)
            if type(value) not in wanted or not _is_plain(value):
                names = " or ".join(kind.__name__ for kind in wanted)
                self.problems.append(f"{where} {key}: {value!r:.80} must be of type {names}{_PLAIN}")
            else:
                right[key] = value
        return right

    def _check_keys(self, where: str, section: Section, known: Mapping[str, Any]) -> None:
        self.problems += [
            f"{where} {key!r}: unknown; known: {', '.join(known)}".strip() for key in section if key not in known
        ]


def _quick_set(section: Section, over: Section) -> Section:
    """A set with what --quick overrides, as far as that means anything for it."""
    if "from" in section:
        return override(section, {key: over[key] for key in ("dataset", "subset") if key in over})
    untrained = section.get("provenance") == "data-free"
    return override(section, {key: over[key] for key in over if not (untrained and key in TRAINING_KEYS)})


def _has_round(sets: Mapping[str, Section], name: str, number: int) -> bool:
    root = chain(sets, name)[-1] if name in sets else {}
    rounds = root.get("rounds", GenerateRequest().rounds)
    return not isinstance(rounds, int) or 0 <= number <= rounds


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


def _dict(value: object) -> dict[str, Any]:
    """A table; none in place of anything else, which was noted."""
    return value if isinstance(value, dict) else {}
