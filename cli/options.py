"""Options as dataclasses: one field is a command-line option, a key of the configuration file, and a setting on record.

A command takes one frozen dataclass. Each value comes from the command line, else from ``--config``, else from the
field's default, so that what a run records is complete, whichever way it was asked for.
"""

from __future__ import annotations

import difflib
import inspect
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Optional, TypeVar

import typer

from dpltm.errors import InputError, named

T = TypeVar("T")

_TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool}


@dataclass(frozen=True)
class Call:
    """How a command was called: what every command accepts beside its own options."""

    json: bool
    quiet: bool
    config: str | None


def option(
    default: Any,
    help: str,
    *,
    flag: str | None = None,
    short: str | None = None,
    choices: Collection[str] = (),
    metavar: str | None = None,
    argument: bool = False,
    required: bool = False,
    shown: str | None = None,
) -> Any:
    """A dataclass field that is an option (or positional argument) of a command.

    Args:
        default: value if neither the command line nor the configuration file gives one.
        help: one sentence for ``--help``.
        flag: the flag, if it is not the field's name.
        short: a second flag of one letter, such as ``-o``.
        choices: the texts that are allowed; a view of a registry allows what is added to it later, too.
        metavar: what ``--help`` shows as the value.
        argument: whether it is positional.
        required: whether the command cannot do without it.
        shown: what ``--help`` shows as the default, if not the default itself.
    """
    extra = {
        "help": help,
        "flag": flag,
        "short": short,
        "choices": choices,
        "metavar": metavar or "|".join(choices) or None,
        "argument": argument,
        "required": required,
        "shown": shown,
    }
    return field(default=default, metadata=extra)


PATHS = {"FILE", "DIR", "PATH", "SET", "SCHEME", "RUN"}
"""Words of a metavar that say that the value is, or may be, a path."""


def recorded(options: Any) -> dict[str, Any]:
    """The options as an artifact keeps them: all of them, paths by their last part, since folders tell whose they are."""
    from dpltm.tickets.published import last_part

    kept = {}
    for item in fields(options):
        value, metavar = getattr(options, item.name), item.metadata["metavar"] or ""
        if isinstance(value, str) and PATHS & set(re.findall("[A-Z]+", metavar)):
            kind, colon, rest = value.partition(":") if ":RUN" in metavar else ("", "", value)
            parts = rest.split(",") if metavar.endswith(",...") else [rest]
            value = kind + colon + ",".join(last_part(part) for part in parts)
        kept[item.name] = value
    return kept


def in_flags(text: str) -> str:
    """A message of the library in the words of the command line: flags in the place of arguments."""
    return named(text, lambda name: "--" + _RENAMED.get(name, name).replace("_", "-"))


_RENAMED = {"lam": "lambda"}
"""Flags that are not the names of their fields: those are words of Python."""


def flag_of(item: Field[Any]) -> str:
    """``--batch-size`` for the field ``batch_size``; the metavar for a positional argument."""
    if item.metadata["argument"]:
        return str(item.metadata["metavar"])
    return item.metadata["flag"] or "--" + item.name.replace("_", "-")


def register(app: typer.Typer, name: str, cls: type[T], run: Callable[[T, Call], None]) -> None:
    """Adds command ``name`` to ``app``: its options are the fields of ``cls``, and ``run(options, call)`` runs it.

    The help text of the command is the docstring of ``cls``.
    """

    def command(**values: Any) -> None:
        call = Call(values.pop("json"), values.pop("quiet"), values.pop("config"))
        section = {} if call.config is None else read_section(Path(call.config), name)
        run(resolve(cls, values, section, call.config), call)

    parameters = [_parameter(item) for item in fields(cls)]  # type: ignore[arg-type]
    parameters += _common()
    parameters.sort(key=lambda parameter: not _is_argument(parameter))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    paragraphs = inspect.cleandoc(cls.__doc__ or "").split("\n\n")
    app.command(name, help="\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs))(command)


def resolve(cls: type[T], given: Mapping[str, Any], section: Mapping[str, Any], source: str | None = None) -> T:
    """The options from what was given on the command line (None: not given), a configuration section, and defaults.

    Raises:
        InputError: an unknown key in the section, a value of the wrong type, or a text that is not among the choices.
    """
    known = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]
    values, problems = _read(cls, section)
    if problems:
        raise InputError(f"--config {source}: {problems[0]}")
    values |= {name: value for name, value in given.items() if value is not None}
    for name, value in values.items():
        if (problem := _not_a_choice(known[name], value)) is not None:
            raise InputError(problem)
    for name, item in known.items():
        if item.metadata["required"] and values.get(name, item.default) is None:
            raise InputError(f"{flag_of(item)} is missing: {item.metadata['help']}")
    return cls(**values)


def section_problems(cls: type, section: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with a configuration section by itself: keys, types, choices; nothing where it is right."""
    known = {item.name: item for item in fields(cls)}
    values, problems = _read(cls, section)
    found = (_not_a_choice(known[name], value) for name, value in values.items())
    return [*problems, *(problem for problem in found if problem is not None)]


def sound(cls: type, section: Mapping[str, Any]) -> dict[str, Any]:
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
            near = difflib.get_close_matches(name, list(known), n=1)
            hint = f"; did you mean {near[0].replace('_', '-')}?" if near else ""
            problems.append(f"unknown key {key!r} for {cls.__name__.removesuffix('Options').lower()}{hint}")
            continue
        try:
            values[name] = _typed(known[name], value)
        except InputError as error:
            problems.append(str(error))
    return values, problems


def _not_a_choice(item: Field[Any], value: Any) -> str | None:
    choices = item.metadata["choices"]
    if not choices or value in choices:
        return None
    return f"{flag_of(item)}: {value!r} is not one of {', '.join(choices)}"


def read_section(path: Path, name: str) -> dict[str, Any]:
    """The table ``[name]`` of a TOML file, or the whole file where it has no tables.

    Raises:
        InputError: the file is missing or not TOML.
    """
    body = read_toml(path)
    if any(isinstance(value, dict) for value in body.values()):
        return table(path, body, name)
    return body


def table(path: Path, body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The table ``[name]`` of a TOML document; empty if it has none."""
    section = body.get(name, {})
    if not isinstance(section, dict):
        raise InputError(f"--config {path}: {name} must be a table, as in [{name}]")
    return section


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config {path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"--config {path}: not valid TOML: {error}") from None


def _typed(item: Field[Any], value: Any) -> Any:
    """A value from TOML as the field's type; lists stand for comma-separated texts."""
    wanted = _value_type(item)
    if wanted is str and isinstance(value, list):
        value = ",".join(str(part) for part in value)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if wanted is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if type(value) is not wanted:
        raise InputError(f"{item.name.replace('_', '-')} = {value!r} must be of type {wanted.__name__}")
    return value


def _value_type(item: Field[Any]) -> type:
    return _TYPES[str(item.type).removesuffix(" | None")]


def _parameter(item: Field[Any]) -> inspect.Parameter:
    """The typer parameter of a field. Its own default is None, so that "not given" can be told from the default."""
    meta = item.metadata
    annotation: Any = Optional[_value_type(item)]  # noqa: UP045 - built at run time
    if meta["argument"]:
        info: Any = typer.Argument(help=meta["help"], metavar=meta["metavar"], show_default=False)
    else:
        silent = item.default is None or item.default is MISSING or isinstance(item.default, bool)
        text = meta["shown"] or ("" if silent else str(item.default))
        help = meta["help"] + (f" Default: {text}." if text else "")
        flags = [flag for flag in (flag_of(item), meta["short"]) if flag]
        info = typer.Option(*flags, help=help, metavar=meta["metavar"], show_default=False)
    return _keyword(item.name, Annotated[annotation, info])


def _common() -> list[inspect.Parameter]:
    config = typer.Option("--config", help="TOML file that fills any option; flags override it.", metavar="FILE.toml")
    return [
        _keyword("config", Annotated[Optional[str], config]),  # noqa: UP045
        _keyword("json", Annotated[bool, typer.Option("--json", help="Print one JSON object.")], False),
        _keyword("quiet", Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")], False),
    ]


def _keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _is_argument(parameter: inspect.Parameter) -> bool:
    return isinstance(parameter.annotation.__metadata__[0], typer.models.ArgumentInfo)
