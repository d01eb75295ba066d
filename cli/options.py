"""Options as dataclasses: one field is a command-line option, a key of the configuration file, and a setting on record.

A command takes one frozen dataclass. Each value comes from the command line, else from ``--config``, else from the
field's default, so that what a run records is complete, whichever way it was asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Optional, TypeVar

import typer
import typer.main

from dpltm.cli.commands import Command
from dpltm.cli.help import EVERY_COMMAND
from dpltm.errors import in_flags
from dpltm.options import resolve, section_of, value_type
from dpltm.registry import Deferred
from dpltm.tickets.files import read_section

T = TypeVar("T")

EXAMPLES = "\nExamples:\n"
"""What precedes the examples in a docstring."""

_DATASETS = Deferred("dpltm.records.catalogue:catalogue")


@dataclass(frozen=True)
class Call:
    """How a command was called: what every command accepts beside its own options."""

    json: bool
    quiet: bool
    config: str | None


def flag_of(item: Field[Any]) -> str:
    """``--batch-size`` for the field ``batch_size``; the metavar for a positional argument."""
    if item.metadata["argument"]:
        return str(item.metadata["metavar"])
    return item.metadata["flag"] or "--" + item.name.replace("_", "-")


def command_of(name: str, cls: type[T], run: Callable[[T, Call], None]) -> Command:
    """The command whose options are the fields of ``cls``, and which ``run(options, call)`` runs.

    The help text of the command is the docstring of ``cls``.

    Args:
        name: of the command, and of its table in a configuration file.
        cls: dataclass whose fields are options.
        run: what the command does.
    """

    def command(**values: Any) -> None:
        call = Call(values.pop("json"), values.pop("quiet"), values.pop("config"))
        section = {} if call.config is None else read_section(Path(call.config), name)
        run(resolve(cls, values, section, call.config), call)

    parameters = [_parameter(cls, item) for item in fields(cls)]  # type: ignore[arg-type]
    parameters += _common()
    parameters.sort(key=lambda parameter: not _is_argument(parameter))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(add_completion=False)
    help, examples = in_flags("\n\n".join(paragraphs_of(cls))), "\n".join(examples_of(cls))
    app.command(name, cls=Command, help=help, epilog=examples)(command)
    made = typer.main.get_command(app)
    assert isinstance(made, Command)
    return made


def paragraphs_of(cls: type) -> list[str]:
    """The docstring without its examples, each paragraph on one line."""
    text = inspect.cleandoc(cls.__doc__ or "").partition(EXAMPLES)[0]
    return [" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n")]


def examples_of(cls: type) -> list[str]:
    """The examples of the docstring: commands, one a line, and remarks that begin with #."""
    text = inspect.cleandoc(cls.__doc__ or "").partition(EXAMPLES)[2]
    return [line.strip() for line in text.splitlines()]


def _parameter(cls: type, item: Field[Any]) -> inspect.Parameter:
    """The typer parameter of a field. Its own default is None, so that "not given" can be told from the default."""
    meta, ends, wanted = item.metadata, _endings_of(item), value_type(item)
    annotation: Any = Optional[list[str] if wanted is tuple else wanted]  # noqa: UP045 - built at run time
    if meta["argument"]:
        info: Any = typer.Argument(help=in_flags(meta["help"]), metavar=meta["metavar"], autocompletion=ends)
    else:
        silent = item.default is None or item.default is MISSING or isinstance(item.default, bool)
        text = meta["shown"] or ("" if silent else _shown(item.default))
        help = in_flags(meta["help"] + (f" Default: {text}." if text else ""))
        flags = [flag for flag in (flag_of(item), meta["short"]) if flag]
        panel = section_of(cls, item.name)
        info = typer.Option(*flags, help=help, metavar=meta["metavar"], rich_help_panel=panel, autocompletion=ends)
    return _keyword(item.name, Annotated[annotation, info])


def _endings_of(item: Field[Any]) -> Callable[[str], list[str]]:
    """What a shell may complete a value to; where that is nothing, it takes files."""

    def endings(incomplete: str) -> list[str]:
        known = _DATASETS() if str(item.metadata["metavar"]).startswith("NAME|") else item.metadata["choices"]
        return [name for name in known if name.startswith(incomplete)]

    return endings


def _shown(default: object) -> str:
    return f"{default:g}" if isinstance(default, float) else str(default)


def _common() -> list[inspect.Parameter]:
    """What every command has beside its own options."""
    option = partial(typer.Option, rich_help_panel=EVERY_COMMAND)
    config = option("--config", help="TOML file that fills any option; flags override it.", metavar="FILE.toml")
    return [
        _keyword("config", Annotated[Optional[str], config]),  # noqa: UP045
        _keyword("json", Annotated[bool, option("--json", help="Print one JSON object.")], False),
        _keyword("quiet", Annotated[bool, option("--quiet", help="Print nothing but errors.")], False),
    ]


def _keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _is_argument(parameter: inspect.Parameter) -> bool:
    return isinstance(parameter.annotation.__metadata__[0], typer.models.ArgumentInfo)
