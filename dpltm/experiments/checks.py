"""What the options of a recipe's arms and sets say against each other: all of it, before anything starts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, replace
from typing import Any

from dpltm.errors import InputError
from dpltm.experiments.commands import COMMANDS, Command, latent_command
from dpltm.experiments.recipe import (
    LATENT_STAGES,
    Arm,
    Section,
    draw_options,
    provenance,
    reads_no_records,
    search_options,
)
from dpltm.options.sections import name_of, resolve, right_keys
from dpltm.stages.budget import NO_FEATURES

_NAMED = re.compile(r"`([a-z][a-z0-9_]*)`")

_LATENT_GIVEN = {
    "scheme": {"out": "DIR"},
    "encode": {"scheme": "DIR", "out": "FILE"},
    "train": {"scheme": "DIR", "messages": "F", "out": "DIR"},
}
"""What the recipe itself will give each stage of ``dpltm latent``."""


def of_set(section: Section) -> list[str]:
    """What a ticket set's options say against each other."""
    plain = {key: value for key, value in section.items() if key != "from"}
    if "from" in section:
        return _refused(COMMANDS["transfer"], {"set": "SET", "out": "DIR"}, plain)
    return _refused(COMMANDS["generate"], {}, plain)


def of_arm(arm: Arm, sets: Mapping[str, Section]) -> Iterator[str]:
    """What an arm's options say against each other, each with the table that it is about."""
    if arm.latent is not None:
        for stage in LATENT_STAGES:
            refusals = _refused(COMMANDS[latent_command(stage)], _LATENT_GIVEN[stage], arm.latent[stage])
            yield from (f"latent.{stage}: {problem}" for problem in refusals)
        return
    start: dict[str, Any] = {"dense": True} if arm.tickets is None else {"ticket": "SET@1"}
    yield from (f"train: {problem}" for problem in _refused(COMMANDS["train"], start, arm.train))
    if arm.tickets is None and "centre" in arm.train and arm.train.get("features") in (None, "none"):
        yield f"train: {NO_FEATURES}"
    if arm.select is not None:
        yield from (f"select: {problem}" for problem in _of_draw(arm, sets))
    if arm.tune is not None:
        yield from (f"tune: {problem}" for problem in _of_search(arm, arm.tune))


def _of_draw(arm: Arm, sets: Mapping[str, Section]) -> Iterator[str]:
    """What the options of a draw say against each other, and against the training's."""
    select = arm.select or {}
    public = reads_no_records(select)
    yield from _refused(COMMANDS["select"], {"set": "SET"}, draw_options(arm))
    spent, budget = select.get("eps1"), arm.train.get("epsilon")
    if select.get("reveal") and budget is not None:
        yield "`reveal`: releases scores with no protection, so no budget holds; leave it out"
    if not public and isinstance(spent, (int, float)) and isinstance(budget, (int, float)) and 0 < budget <= spent:
        yield f"`eps1`: {spent:g} leaves nothing of the budget {budget:g}"
    if public and arm.tickets is not None and arm.tickets in sets and provenance(sets, arm.tickets) != "public":
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
        yield from _refused(COMMANDS["tune"], {} if name is None else {"set": "SET"}, asked)


def _refused(command: Command, given: Mapping[str, Any], section: Section) -> list[str]:
    """Everything that a command refuses of the options in ``section``.

    Its check stops at the first; so what that names is set back to its default, and the check is asked again. Values that
    are wrong by themselves were noted elsewhere, and are left out.

    Args:
        command: whose options they are.
        given: what the recipe itself will give it.
        section: the options.
    """
    items = {item.name: item for item in fields(command.request)}
    right = {key.replace("-", "_"): value for key, value in right_keys(command.request, section).items()}
    blamed = {key.replace("-", "_") for key in section} - set(right)
    missing = {name for name, item in items.items() if item.metadata["required"] and name not in {*right, *given}}
    refusals = [
        f"{name_of(items[name])} is missing: {items[name].metadata['help']}" for name in sorted(missing - blamed)
    ]
    filled = {name: _any_value(items[name]) for name in missing}
    options: Any = resolve(command.request, filled | dict(given), right)
    blamed, made_up = blamed | missing, set(missing)
    for _ in items:
        try:
            command.check(options)
        except InputError as error:
            text = str(error)
        else:
            break
        names = {name for name in _NAMED.findall(text.partition(":")[0]) if name in items}
        again = names & blamed
        if not again:
            refusals.append(text)
        elif again <= made_up:
            break
        if not names:
            break
        for name in names:  # one that is missing only since it was set back may be anything
            value = _any_value(items[name]) if name in again else items[name].default
            options = replace(options, **{name: value})
        blamed, made_up = blamed | names, made_up | again
    return refusals


def _any_value(item: Field[Any]) -> Any:
    """Some value of an option's type."""
    kind = str(item.type)
    return 1.0 if "float" in kind else 1 if "int" in kind else "x"
