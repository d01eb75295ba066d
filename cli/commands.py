"""Commands of typer's made of options: one field is a flag, a key of the configuration file, and a setting on record.

Each value comes from the command line, else from ``--config``, else from the field's default, so that what a run records is
complete. A command is imported when it is called: the help of a group costs no more than its names and sentences.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Optional, TypeVar

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from dpltm.cli.console import Console
from dpltm.cli.help import EVERY_COMMAND, show_page
from dpltm.errors import InputError, did_you_mean, in_flags
from dpltm.options import resolve, section_of, value_type
from dpltm.options.gone import instead
from dpltm.registry import Deferred
from dpltm.training.launcher import check_shared

T = TypeVar("T")

EXAMPLES = "\nExamples:\n"
"""Line that precedes the examples in a docstring."""

_DATASETS = Deferred("dpltm.records.catalogue:catalogue")
_SECTION = Deferred("dpltm.tickets.files:read_section")
_BESIDE = Deferred("dpltm.options.network:beside")


class Command(TyperCommand):
    """A command with its options."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print its help, rather than leave it with the formatter, as typer does."""
        del formatter
        show_page(self, ctx)


class Later(TyperCommand):
    """A command of which only the name and a sentence are known, until it is called or its own help is asked for.

    Args:
        name: of the command, and of its table in a configuration file. NAMERequest is the dataclass whose fields are its
            options, and NAME_command does something with them.
        home: the module of ``dpltm.options`` and of ``dpltm.cli`` that they are in.
    """

    def __init__(self, name: str, summary: str, home: str) -> None:
        super().__init__(name, short_help=in_flags(summary))
        self.summary = summary
        self.options = Deferred(f"dpltm.options.{home}:{name.title()}Request")
        self.run = Deferred(f"dpltm.cli.{home}:{name}_command")

    @cached_property
    def command(self) -> Command:
        """The command itself."""
        options: Any = self.options.resolve()  # a class
        return command_of(str(self.name), options, self.run)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """See :meth:`TyperCommand.make_context`."""
        check_shared(f"{parent.command_path if parent else 'dpltm'} {self.name}")
        # the context is the command's own, so that the command itself is what runs
        return self.command.make_context(info_name, args, parent, **extra)


def laters(summaries: Mapping[str, str]) -> list[TyperCommand]:
    """Commands by ``NAME``, or ``HOME:NAME`` where their module has another name, with the first paragraph of their help."""
    return [Later(place.rpartition(":")[2], summary, place.partition(":")[0]) for place, summary in summaries.items()]


class Group(TyperGroup):
    """Commands under one name."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """As that of a command."""
        del formatter
        show_page(self, ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """See :meth:`TyperGroup.resolve_command`; of a name that there is none of, tells the nearest."""
        name = args[0]
        if not (ctx.resilient_parsing or name in self.commands or name.startswith("-")):
            words = f"{ctx.command_path} {name}"
            if (reason := instead(words.removeprefix("dpltm "))) is not None:
                raise InputError(words + reason)
            raise InputError(f"{name}: {ctx.command_path} has no such command{self._nearest(name, ctx)}")
        return super().resolve_command(ctx, args)

    def _nearest(self, name: str, ctx: Any) -> str:
        groups = [group for group, entry in self.commands.items() if name in getattr(entry, "commands", ())]
        if groups:
            return f"; did you mean {' or '.join(f'{ctx.command_path} {group} {name}' for group in groups)}?"
        return did_you_mean(name, self.commands) or f"; {ctx.command_path} --help lists them"


# --- a command of options ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """Options that every command accepts beside its own, as they were given."""

    console: Console
    config: str | None


def flag_of(item: Field[Any]) -> str:
    """``--batch-size`` for the field ``batch_size``; the metavar for a positional argument."""
    if item.metadata["argument"]:
        return str(item.metadata["metavar"])
    return item.metadata["flag"] or "--" + item.name.replace("_", "-")


def command_of(name: str, cls: type[T], run: Callable[[T, Call], None]) -> Command:
    """Return the command whose options are the fields of ``cls``, and which ``run(options, call)`` runs.

    The help text of the command is the docstring of ``cls``.
    """

    def command(**values: Any) -> None:
        call = Call(Console(values.pop("json"), values.pop("quiet")), values.pop("config"))
        values.pop("help_all")
        section = {} if call.config is None else _BESIDE(_SECTION(Path(call.config), name), Path(call.config))
        options = resolve(cls, values, section, call.config)
        with call.console.at_work():  # what the command needs is imported now
            run(options, call)

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
    """Return the docstring without its examples, each paragraph on one line."""
    text = inspect.cleandoc(cls.__doc__ or "").partition(EXAMPLES)[0]
    return [" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n")]


def examples_of(cls: type) -> list[str]:
    """Return the examples of the docstring: commands, one a line, and remarks that begin with #."""
    text = inspect.cleandoc(cls.__doc__ or "").partition(EXAMPLES)[2]
    return [line.strip() for line in text.splitlines()]


def _parameter(cls: type, item: Field[Any]) -> inspect.Parameter:
    """Return the typer parameter of a field. Its own default is None, so that "not given" can be told from the default."""
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


_A_PATH = re.compile(r"(?:^|\|)(?:FILE|RUN|SET|DIR)")
_WORDS = re.compile(r"(?:^|\|)([a-z][a-z-]*(?::(?=[A-Z]))?)(?=\[|\||$|(?<=:))")
"""In a metavar: ``poisson`` and ``allocation:`` of ``poisson|allocation:K``."""


def _endings_of(item: Field[Any]) -> Callable[[str], list[str]]:
    """Return the possible values for a shell to complete to; where there are none, it takes files."""

    def endings(incomplete: str) -> list[str]:
        metavar = str(item.metadata["metavar"])
        known = _DATASETS() if metavar.startswith("NAME|") else item.metadata["choices"]
        if not known and "|" in metavar and not _A_PATH.search(metavar):
            known = _WORDS.findall(metavar)
        return [name for name in known if name.startswith(incomplete)]

    return endings


def _shown(default: object) -> str:
    return f"{default:g}" if isinstance(default, float) else str(default)


def _common() -> list[inspect.Parameter]:
    option = partial(typer.Option, rich_help_panel=EVERY_COMMAND)
    config = option("--config", help="TOML file that fills any option; flags override it.", metavar="FILE.toml")
    return [
        _keyword("config", Annotated[Optional[str], config]),  # noqa: UP045
        _keyword("json", Annotated[bool, option("--json", help="Print one JSON object.")], False),
        _keyword("quiet", Annotated[bool, option("--quiet", help="Print nothing but errors.")], False),
        _keyword(
            "help_all",
            Annotated[
                bool,
                option(
                    "--help-all",
                    is_eager=True,
                    callback=_every_option,
                    help="Show every option and exit.",
                ),
            ],
            False,
        ),
    ]


def _every_option(ctx: typer.Context, asked: bool) -> bool:
    if asked:
        show_page(ctx.command, ctx, every=True)  # type: ignore[arg-type]
        raise typer.Exit
    return asked


def _keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _is_argument(parameter: inspect.Parameter) -> bool:
    return isinstance(parameter.annotation.__metadata__[0], typer.models.ArgumentInfo)


# --- what is wrong with a line ----------------------------------------------------------------------------------------

_KINDS = {"integer": "whole number"}
"""Names of typer's types for people."""


def usage_message(error: TyperException) -> str:
    """Return typer's complaint about a command line, in one line that says what to do."""
    if hasattr(error, "possibilities"):  # no such option; typer keeps the class to itself
        name, command = error.option_name, error.ctx.command_path if error.ctx else "dpltm"  # type: ignore[attr-defined]
        if (reason := instead(f"{command.removeprefix('dpltm ')} {name}")) is not None:
            return name + reason
        hint = did_you_mean(name, error.possibilities or ()) or f"; {command} --help lists them"
        return f"{name}: {command} has no such option{hint}"
    parameter, wanted = getattr(error, "param", None), re.search(r"a valid (\w+)", str(getattr(error, "message", "")))
    if parameter is not None and wanted is not None:
        return f"{parameter.opts[0]}: what was given is no {_KINDS.get(wanted[1], wanted[1])}; give one"
    return error.format_message().rstrip(".")
