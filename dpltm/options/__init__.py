"""Options: dataclass fields that are keyword arguments in Python, flags at the terminal and keys of a configuration file.

The options of a verb are one frozen dataclass. Where a command needs more, such as the files that it reads and writes, its
class is a subclass, so that what a command was asked for goes to the verb as it is. Help texts name other options in
backticks, as errors do (``dpltm.errors``).
"""

from __future__ import annotations

import contextlib
import inspect
import numbers
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import Field, field, fields
from pathlib import PurePath
from typing import Any, Literal, TypeVar

from dpltm.errors import InputError, did_you_mean, shown_value, whole_number
from dpltm.gone import instead

T = TypeVar("T")

_TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool, "tuple[str, ...]": tuple}
"""Types by annotation; a tuple of texts is several values of one positional argument."""

_PATHS = {"FILE", "DIR", "PATH", "SET", "SCHEME", "RUN"}
"""Words of a metavar that say that the value is, or may be, a path."""


Affects = Literal["plan", "mechanism", "records", "files", "display"]
"""What an option decides: how steps are computed; what is paid; of whom; what is read and written; what is told."""

METRICS = ("accuracy", "balanced-accuracy", "auc", "rmse")
"""By which networks are judged on records that are not protected; the last is of ratings alone."""


def option(
    default: Any,
    help: str,
    metavar: str | None = None,
    *,
    section: str | None = None,
    flag: str | None = None,
    short: str | None = None,
    choices: Collection[str] = (),
    argument: bool = False,
    required: bool = False,
    shown: str | None = None,
    affects: Affects | None = None,
) -> Any:
    """A dataclass field that is an option of a verb, and a flag (or positional argument) of its command.

    Args:
        section: the heading in help over this option and those that follow it in its class, a word or two; empty for none.
        flag: of the command line, if it is not the field's name.
        short: a second flag of one letter.
        choices: the texts that are allowed; those of a registry are read when they are needed.
        argument: whether it is positional.
        shown: what help shows as the default, if not the default itself.
        affects: where another value shows; `tests/cli/test_option_effects.py` looks there for each option of a training.
    """
    extra = {
        "help": help,
        "section": section,
        "flag": flag,
        "short": short,
        "choices": choices,
        "metavar": metavar or "|".join(choices) or None,
        "argument": argument,
        "required": required,
        "shown": shown,
        "affects": affects,
    }
    return field(default=default, metadata=extra)


# --- from Python ------------------------------------------------------------------------------------------------------


def arguments(cls: type[T], given: Mapping[str, Any], beside: Iterable[str] = ()) -> T:
    """Options from Python's keyword arguments; None stands for the default.

    A sequence of numbers stands for a text with commas, a number for a text, and a number of numpy's for one of Python's.
    Raises InputError for an unknown name, with the nearest that there is (also ``beside``, names that the caller takes
    itself), a value of the wrong type, or a text that is not among the choices.
    """
    known = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]
    values = {}
    for name, value in given.items():
        if name not in known:
            if (reason := _gone(cls, name)) is not None:
                raise InputError(f"`{name}`{reason}")
            near = did_you_mean(name, [*known, *beside], "`")
            names = ", ".join(f"`{each}`" for each in sorted({*known, *beside}))
            raise InputError(f"`{name}`: no such option{near or f'; there are {names}'}")
        if value is None:
            continue
        values[name] = _converted(known[name], value)
        wanted = value_type(known[name])
        if type(values[name]) is not wanted:
            shown, kind = shown_value(value), f"of type {type(value).__name__}"
            raise InputError(
                f"`{name}`: {shown if shown.endswith(kind) else f'{shown} is {kind}'}, not {wanted.__name__}"
            )
        check_choice(known[name], values[name])
    return cls(**values)


# --- from the command line and configuration files --------------------------------------------------------------------


def resolve(cls: type[T], given: Mapping[str, Any], section: Mapping[str, Any], source: str | None = None) -> T:
    """Options from the command line (None: not given), then a configuration section, then defaults.

    Keys of the section are as the file ``source`` spells them. Raises InputError for an unknown key, a value of the
    wrong type, a text that is not among the choices, or nothing for an option that is needed.
    """
    known = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]
    values, problems = _read(cls, section)
    if problems:
        raise InputError(f"`config` {source}: {problems[0]}")
    typed = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    values |= {name: value for name, value in typed.items() if value is not None and value != ()}
    for name, value in values.items():
        if value == "":
            raise InputError(f"{name_of(known[name])}: is empty; give a value, or leave it out")
        check_choice(known[name], value)
    options = cls(**values)
    check_required(options)
    return options


def section_problems(cls: type, section: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with a configuration section by itself: keys, types, choices; nothing if right."""
    known = {item.name: item for item in fields(cls)}
    values, problems = _read(cls, section)
    wrong = (_not_a_choice(known[name], value) for name, value in values.items())
    return [*problems, *(problem for problem in wrong if problem is not None)]


def _read(cls: type, section: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Values of a section by name of the field, and what is wrong with the others."""
    known = {item.name: item for item in fields(cls)}
    values: dict[str, Any] = {}
    problems = []
    for key, value in section.items():
        name = key.replace("-", "_")
        if name not in known:
            if (reason := _gone(cls, name)) is not None:
                problems.append(f"{key}{reason}")
                continue
            keys = [each.replace("_", "-") for each in known]
            command = _command(cls)
            problems.append(f"unknown key {key!r} for {command}{did_you_mean(key, keys)}")
            continue
        wanted = value_type(known[name])
        try:
            values[name] = _converted(known[name], value)
        except InputError as error:
            problems.append(str(error))
            continue
        if type(values[name]) is not wanted:
            del values[name]
            problems.append(f"{name.replace('_', '-')} = {value!r} must be of type {wanted.__name__}")
    return values, problems


def _command(cls: type) -> str:
    """Last word of the command that a class of options is of."""
    return cls.__name__.removesuffix("Options").removesuffix("Request").lower()


def _gone(cls: type, name: str) -> str | None:
    flag = f"--{name.replace('_', '-')}"
    group = cls.__module__.rpartition(".")[2]  # commands of a group have their options in a module of its name
    return instead(f"{group} {_command(cls)} {flag}", f"{_command(cls)} {flag}", flag)


def table(path: object, body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The table ``[name]`` of a TOML document; empty if it has none, InputError if that name is no table."""
    section = body.get(name, {})
    if not isinstance(section, dict):
        raise InputError(f"`config` {path}: {name} must be a table, as in [{name}]")
    return section


# --- values -----------------------------------------------------------------------------------------------------------


def value_type(item: Field[Any]) -> type:
    """The type of an option's value, whether or not it may be missing."""
    return _TYPES[str(item.type).removesuffix(" | None")]


def _converted(item: Field[Any], value: Any) -> Any:
    """A value as the field's type, where it stands for one of that type; else as it is."""
    wanted = value_type(item)
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if isinstance(value, (list, tuple)):
        if wanted is tuple and all(isinstance(part, str) for part in value):
            return tuple(value)
        return ",".join(str(part) for part in value) if wanted is str else value
    if number and wanted is int and isinstance(value, numbers.Integral):
        return whole_number(item.name, value)
    with contextlib.suppress(OverflowError, ValueError):  # a whole number beyond all others
        if number and wanted in (float, str):
            return wanted(value)
        if wanted is bool and str(getattr(value, "dtype", "")) == "bool":  # of numpy, which help does not import
            return bool(value)
    return value


def check_required(options: object) -> None:
    """Raise InputError where an option that a verb cannot do without was not given."""
    for item in fields(options):  # type: ignore[arg-type]
        if item.metadata["required"] and getattr(options, item.name) is None:
            raise InputError(f"{name_of(item)} is missing: {item.metadata['help']}")


def check_choices(options: object) -> None:
    """Raise InputError for a text that is not among the choices of its option; one that was not given may be None."""
    for item in fields(options):  # type: ignore[arg-type]
        if getattr(options, item.name) is not None:
            check_choice(item, getattr(options, item.name))


def check_choice(item: Field[Any], value: Any) -> None:
    """Raise InputError for a text that is not among the choices of a field."""
    if (problem := _not_a_choice(item, value)) is not None:
        raise InputError(problem)


def _not_a_choice(item: Field[Any], value: Any) -> str | None:
    if (reason := instead(f"--{item.name.replace('_', '-')} {str(value).partition(':')[0]}")) is not None:
        return f"{name_of(item)} {value}{reason}"
    choices = item.metadata["choices"]
    if not choices or value in choices:
        return None
    return f"{name_of(item)}: {value!r} is not one of {', '.join(choices)}{did_you_mean(value, choices)}"


def parse_numbers(name: str, text: str) -> tuple[float, ...]:
    """Numbers separated by commas, of the argument ``name``."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"`{name}`: {text!r} is not a list of numbers separated by commas") from None


def parse_pair(name: str, text: str) -> tuple[float, float]:
    """Two numbers from ``LO,HI``."""
    values = parse_numbers(name, text)
    if len(values) != 2:
        raise InputError(f"`{name}`: {text!r} is not of the form LO,HI, such as 0,255")
    return values[0], values[1]


# --- what is said of options ------------------------------------------------------------------------------------------


def name_of(item: Field[Any]) -> str:
    """Name of a field in messages: in backticks; the placeholder of a positional argument."""
    return str(item.metadata["metavar"]) if item.metadata["argument"] else f"`{item.name}`"


def section_of(cls: type, name: str) -> str | None:
    """Heading over a field in help: that of the most general class with such a field; None for options of no section."""
    owner: Any = next(base for base in reversed(cls.__mro__) if name in inspect.get_annotations(base))
    title = None
    for each in inspect.get_annotations(owner):
        begun = owner.__dataclass_fields__[each].metadata["section"]
        title = title if begun is None else begun or None
        if each == name:
            break
    return title


def last_part(path: str) -> str:
    """Last part of a path, which says which file it was and not where; the text itself where that is nothing."""
    return PurePath(path).name or path


def recorded(options: Any) -> dict[str, Any]:
    """Options as an artifact keeps them: all of them, paths by their last part, since folders tell whose they are."""
    values = {}
    for item in fields(options):
        value, metavar = getattr(options, item.name), item.metadata["metavar"] or ""
        if isinstance(value, str) and _PATHS & set(re.findall("[A-Z]+", metavar)):
            parts = value.split(",") if metavar.endswith(",...") else [value]
            value = ",".join(last_part(part) for part in parts)
        values[item.name] = value
    return values
