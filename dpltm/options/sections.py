"""Options from configuration: tables of TOML read into the dataclasses of options, with every fault told."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any, TypeVar

from dpltm.errors import InputError, did_you_mean

T = TypeVar("T")

_TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool, "tuple[str, ...]": tuple}
"""By annotation; a tuple of texts is several values of one positional argument."""


def resolve(cls: type[T], given: Mapping[str, Any], section: Mapping[str, Any], source: str | None = None) -> T:
    """The options from what was given on the command line (None: not given), a configuration section, and defaults.

    Args:
        cls: dataclass of the options.
        given: values by field name; they come before the section.
        section: values by key, as the file spells them.
        source: the file of the section, for messages.

    Raises:
        InputError: an unknown key in the section, a value of the wrong type, a text that is not among the choices, or
            nothing for an option that is needed.
    """
    known = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]
    values, problems = _read(cls, section)
    if problems:
        raise InputError(f"`config` {source}: {problems[0]}")
    values |= {name: tuple(value) if isinstance(value, list) else value for name, value in given.items() if value}
    values |= {name: value for name, value in given.items() if value is not None and not isinstance(value, list)}
    for name, value in values.items():
        if value == "":
            raise InputError(f"{name_of(known[name])}: is empty; give a value, or leave it out")
        check_choice(known[name], value)
    options = cls(**values)
    check_required(options)
    return options


def check_required(options: object) -> None:
    """Raises InputError where an option that a stage cannot do without was not given."""
    for item in fields(options):  # type: ignore[arg-type]
        if item.metadata["required"] and getattr(options, item.name) is None:
            raise InputError(f"{name_of(item)} is missing: {item.metadata['help']}")


def check_choices(options: object) -> None:
    """Raises InputError for a text that is not among the choices of its option; one that was not given may be None."""
    for item in fields(options):  # type: ignore[arg-type]
        if getattr(options, item.name) is not None:
            check_choice(item, getattr(options, item.name))


def section_problems(cls: type, section: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with a configuration section by itself: keys, types, choices; nothing where it is right."""
    known = {item.name: item for item in fields(cls)}
    values, problems = _read(cls, section)
    wrong = (_not_a_choice(known[name], value) for name, value in values.items())
    return [*problems, *(problem for problem in wrong if problem is not None)]


def right_keys(cls: type, section: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a configuration section that are right by themselves, with their values."""
    return {key: value for key, value in section.items() if not section_problems(cls, {key: value})}


def _read(cls: type, section: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The values of a section by name of the field, and what is wrong with the others."""
    known = {item.name: item for item in fields(cls)}
    values: dict[str, Any] = {}
    problems = []
    for key, value in section.items():
        name = key.replace("-", "_")
        if name not in known:
            keys = [each.replace("_", "-") for each in known]
            problems.append(f"unknown key {key!r} for {_section_of(cls)}{did_you_mean(key, keys)}")
            continue
        try:
            values[name] = _typed(known[name], value)
        except InputError as error:
            problems.append(str(error))
    return values, problems


def check_choice(item: Field[Any], value: Any) -> None:
    """Raises InputError for a text that is not among the choices of a field."""
    if (problem := _not_a_choice(item, value)) is not None:
        raise InputError(problem)


def _section_of(cls: type) -> str:
    """What a section for the class is called."""
    return cls.__name__.removesuffix("Options").removesuffix("Request").lower()


def _not_a_choice(item: Field[Any], value: Any) -> str | None:
    choices = item.metadata["choices"]
    if not choices or value in choices:
        return None
    return f"{name_of(item)}: {value!r} is not one of {', '.join(choices)}{did_you_mean(value, choices)}"


def table(path: object, body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The table ``[name]`` of a TOML document; empty if it has none.

    Args:
        path: of the document, for the message.
        body: its tables.
        name: of the table.

    Raises:
        InputError: something of that name that is no table.
    """
    section = body.get(name, {})
    if not isinstance(section, dict):
        raise InputError(f"`config` {path}: {name} must be a table, as in [{name}]")
    return section


def _typed(item: Field[Any], value: Any) -> Any:
    """A value from TOML as the field's type; lists stand for comma-separated texts."""
    wanted = value_type(item)
    if wanted is tuple and isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = tuple(value)
    if wanted is str and isinstance(value, list):
        value = ",".join(str(part) for part in value)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if wanted is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if type(value) is not wanted:
        raise InputError(f"{item.name.replace('_', '-')} = {value!r} must be of type {wanted.__name__}")
    return value


def value_type(item: Field[Any]) -> type:
    """The type of an option's value, whether or not it may be missing."""
    return _TYPES[str(item.type).removesuffix(" | None")]


def section_title(cls: type, name: str) -> str | None:
    """The heading over an option in the help of a command: a word or two, of the class of options that it belongs to.

    That is the most general class with such a field; one that is more special may give it another default. The heading is
    what the docstring of the class says before its first colon.

    Args:
        cls: options of the command.
        name: of the field.

    Returns:
        The heading; None for a field of ``cls`` itself, whose docstring is the help of the command.
    """
    owner = next(base for base in reversed(cls.__mro__) if name in inspect.get_annotations(base))
    return None if owner is cls else (owner.__doc__ or "").partition(":")[0]


def name_of(item: Field[Any]) -> str:
    """What messages call a field: its name, in backticks; the placeholder of a positional argument."""
    return str(item.metadata["metavar"]) if item.metadata["argument"] else f"`{item.name}`"
