"""What the options of a recipe's arms and sets say against each other: all of it, before anything starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, fields, replace
from typing import Any

from dpltm.cli import generate, latent_encode, latent_train, select, tickets_make
from dpltm.cli.common import check_delta_alone
from dpltm.cli.options import flag_of, in_flags
from dpltm.cli.recipe import Arm, Section, data_of, provenance, searched_with
from dpltm.errors import InputError
from dpltm.options.sections import resolve
from dpltm.options.sections import right_keys as sound
from dpltm.options.train import TrainRequest
from dpltm.options.tune import TuneRequest


def of_set(section: Section) -> list[str]:
    """What a ticket set's options say against each other."""
    plain = {key: value for key, value in section.items() if key != "from"}
    if "from" in section:
        return _refused(tickets_make.TransferOptions, {"set": "SET", "out": "DIR"}, plain, tickets_make.check_options)
    return _refused(generate.GenerateOptions, {}, plain, _check_generation)


def of_arm(arm: Arm, sets: Mapping[str, Section]) -> Iterator[str]:
    """What an arm's options say against each other, each with the table that it is about."""
    if arm.latent is not None:
        for stage, cls, given, check in (
            ("scheme", latent_encode.SchemeOptions, {"out": "DIR"}, latent_encode.check_options),
            ("encode", latent_encode.EncodeOptions, {"scheme": "DIR", "out": "FILE"}, _check_delta),
            ("train", latent_train.TrainOptions, {"scheme": "DIR", "messages": "F", "out": "DIR"},
             latent_train.check_options),
        ):  # fmt: skip
            yield from (f"latent.{stage}: {problem}" for problem in _refused(cls, given, arm.latent[stage], check))
        return
    start: dict[str, Any] = {"dense": True} if arm.tickets is None else {"ticket": "SET@1"}
    yield from (f"train: {problem}" for problem in _refused(TrainRequest, start, arm.train, _check_training))
    if arm.tickets is None and "centre" in arm.train and arm.train.get("features") in (None, "none"):
        from dpltm.stages.budget import NO_FEATURES

        yield f"train: {in_flags(NO_FEATURES)}"
    if arm.select is not None:
        public = arm.select.get("rule") == "smallest-within"
        section = arm.select if public else {**data_of(arm.train), **arm.select}
        drawn = _refused(select.SelectOptions, {"set": "SET"}, section, select.check_options)
        yield from (f"select: {problem}" for problem in drawn)
        spent, budget = arm.select.get("eps1"), arm.train.get("epsilon")
        if arm.select.get("reveal") and budget is not None:
            yield "select: --reveal: releases scores with no protection, so no budget holds; leave it out"
        if not public and isinstance(spent, (int, float)) and isinstance(budget, (int, float)) and 0 < budget <= spent:
            yield f"select: --eps1: {spent:g} leaves nothing of the budget {budget:g}"
        if public and arm.tickets is not None and arm.tickets in sets and provenance(sets, arm.tickets) != "public":
            yield f"select: --rule: smallest-within needs public accuracies, and {arm.tickets} is no public set"
    if arm.tune is not None:
        asked = searched_with(arm)
        name = asked.pop("tickets", arm.tickets)
        if "epsilon" not in arm.train:
            yield "tune: searches under a budget; give train an epsilon"
        elif "for-records" not in arm.tune:
            yield "tune: for-records is missing: the public number of private records"
        else:
            given = {} if name is None else {"set": "SET"}
            yield from (f"tune: {problem}" for problem in _refused(TuneRequest, given, asked, _check_search))


def _refused(cls: type, given: Mapping[str, Any], section: Section, check: Callable[[Any], Any]) -> list[str]:
    """Everything that ``check`` refuses of the options in ``section``.

    It stops at the first; so what it names is set back to its default, and asked again. Values that are wrong by themselves
    were noted elsewhere, and are left out.
    """
    names = {flag_of(item).removeprefix("--"): item for item in fields(cls)}
    right = {key.replace("_", "-"): value for key, value in sound(cls, section).items()}
    named = {key.replace("_", "-") for key in section} - set(right)
    needed = {
        flag for flag, item in names.items() if item.metadata["required"] and not {flag, item.name} & {*right, *given}
    }
    found = [f"--{flag} is missing: {names[flag].metadata['help']}" for flag in sorted(needed - named)]
    options: Any = resolve(cls, {names[flag].name: _some(names[flag]) for flag in needed} | dict(given), right)
    named, filled = named | needed, set(needed)
    for _ in names:
        try:
            check(options)
        except InputError as error:
            text = in_flags(str(error))
        else:
            break
        flags = {flag for flag in re.findall(r"--([a-z0-9-]+)", text.partition(":")[0]) if flag in names}
        again = flags & named
        if not again:
            found.append(text)
        elif again <= filled:
            break
        if not flags:
            break
        for flag in flags:  # one that is missing only since it was set back may be anything
            value = _some(names[flag]) if flag in again else names[flag].default
            options = replace(options, **{names[flag].name: value})
        named, filled = named | flags, filled | again
    return found


def _some(item: Field[Any]) -> Any:
    """Some value for an option."""
    kind = str(item.type)
    return 1.0 if "float" in kind else 1 if "int" in kind else "x"


def _check_generation(options: generate.GenerateOptions) -> None:
    generate.check_options(options)
    check_delta_alone(options.delta)


def _check_search(request: TuneRequest) -> None:
    from dpltm.stages.tune import check_request

    check_request(request)


def _check_training(options: TrainRequest) -> None:
    from dpltm.stages.train_checks import check_request

    check_request(options)
    check_delta_alone(options.delta)
    if options.lr is not None and not options.lr > 0:
        raise InputError(f"--lr: {options.lr:g} is not a positive number")


def _check_delta(options: latent_encode.EncodeOptions) -> None:
    check_delta_alone(options.delta)
