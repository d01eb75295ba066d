"""Commands of typer's made of options: one field is a flag, a key of the configuration file, and a setting on record.

Each value comes from the command line, else from ``--config``, else from the field's default, so that what a run records is
complete. A command is imported when it is called: the help of a group costs no more than its names and sentences.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from collections.abc import Iterable
from dataclasses import MISSING, Field, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Optional, cast

import typer
import typer.main
from rich.console import Console as RichConsole
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.exceptions import TyperException

from dpltm.cli.console import Console
from dpltm.errors import InputError, did_you_mean, in_flags
from dpltm.gone import instead
from dpltm.options import name_of, resolve, section_of, type_of
from dpltm.registry import Deferred
from dpltm.training.launcher import check_alone

EXAMPLES = "Examples:\n"  # the line that precedes them in a docstring

_SECTION = Deferred("dpltm.tickets.files:read_section")
_BESIDE = Deferred("dpltm.options.network:beside")


class Command(TyperCommand):
    """A command with its options."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print its help, rather than leave it with the formatter, as typer does."""
        del formatter
        show_page(self, ctx)


HOMES = dict.fromkeys(("generate", "run", "select", "train", "tune"), "stages") | {"audit": "lab", "latent": "lab"}
"""Modules of ``dpltm.cli`` whose options lie in one of another name."""


class Later(TyperCommand):
    """A command that is imported only when it is called, or its own help is asked for.

    Args:
        name: of the command, and of its table in a configuration file. NAMERequest is the dataclass whose fields are its
            options, and NAME_command does something with them.
        home: the module of its options; that of ``dpltm.cli`` has the same name, or that of ``HOMES``.
    """

    def __init__(self, name: str, home: str) -> None:
        super().__init__(name)
        package = "dpltm.local" if home == "latent" else "dpltm.options"
        self.options = Deferred(f"{package}.{home}:{name.title()}Request")
        self.run = Deferred(f"dpltm.cli.{HOMES.get(home, home)}:{name}_command")

    @property
    def summary(self) -> str:
        """The first paragraph of its help, read from the source: to import all options takes longer than to list them."""
        module, _, name = self.options.place.partition(":")
        package, _, file = module.rpartition(".")
        nodes = ast.parse(pkgutil.get_data(package, f"{file}.py") or b"").body
        (cls,) = (node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name)
        return paragraphs_of(ast.get_docstring(cls))[0]

    @cached_property
    def command(self) -> Command:
        """The command itself, with the fields of a class as options and its docstring as help."""
        cls: Any = self.options.resolve()

        def command(**values: Any) -> None:
            config, console = values.pop("config"), Console(values.pop("json"), values.pop("quiet"))
            values.pop("help_all")
            file = Path(config or "")
            section = {} if config is None else _BESIDE(_SECTION(file, str(self.name)), file)
            self.run(resolve(cls, values, section, config), console, config)

        parameters = [_parameter(cls, item) for item in fields(cls) if not item.metadata["hidden"]]
        parameters.sort(key=lambda item: isinstance(item.annotation.__metadata__[0], typer.models.OptionInfo))
        parameters += _common()
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        help = in_flags("\n\n".join(paragraphs_of(cls.__doc__)))
        examples = inspect.cleandoc(
            (cls.__doc__ or "").partition(EXAMPLES)[2]
        ).strip()  # and remarks that begin with #
        app = typer.Typer(add_completion=False)
        app.command(self.name, cls=Command, help=help, epilog=examples)(command)
        return cast(Command, typer.main.get_command(app))

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """See :meth:`TyperCommand.make_context`."""
        command = f"{parent.command_path if parent else 'dpltm'} {self.name}"
        if command != "dpltm train":  # the one that several processes share
            check_alone(command)
        # the context is the command's own, so that the command itself is what runs
        return self.command.make_context(info_name, args, parent, **extra)


def laters(*places: str) -> list[TyperCommand]:
    """Return commands by ``NAME``, or ``HOME:NAME`` where their module has another name."""
    return [Later(place.rpartition(":")[2], place.partition(":")[0]) for place in places]


class Group(TyperGroup):
    """Commands under one name."""

    format_help = Command.format_help

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """See :meth:`TyperGroup.resolve_command`; of a name that there is none of, tells the nearest."""
        name = args[0]
        if not (ctx.resilient_parsing or name in self.commands or name.startswith("-")):
            words = f"{ctx.command_path} {name}"
            if (reason := instead(words.removeprefix("dpltm "))) is not None:
                raise InputError(words + reason)
            hint = did_you_mean(name, self.commands) or f"; {ctx.command_path} --help lists them"
            raise InputError(f"{name}: {ctx.command_path} has no such command{hint}")
        return super().resolve_command(ctx, args)


def group(name: str, help: str, members: Iterable[str], *examples: str) -> Group:
    """Return a group of commands by ``NAME`` of its own module, or ``HOME:NAME``."""
    places = (member if ":" in member else f"{name}:{member}" for member in members)
    return Group(name=name, help=help, epilog="\n".join(examples), no_args_is_help=True, commands=laters(*places))


# --- a command of options ---------------------------------------------------------------------------------------------


def paragraphs_of(docstring: str | None) -> list[str]:
    """Return a docstring without its examples, each paragraph on one line."""
    text = inspect.cleandoc(docstring or "").partition(EXAMPLES)[0]
    return [" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n")]


def _parameter(cls: type, item: Field[Any]) -> inspect.Parameter:
    """The typer parameter of a field. Its own default is None, so that "not given" can be told from the default."""
    meta, default = item.metadata, item.default
    wanted, _ = type_of(item)
    annotation: Any = Optional[list[str] if wanted is tuple else wanted]  # noqa: UP045 - built at run time
    if meta["argument"]:
        info: Any = typer.Argument(help=in_flags(meta["help"]), metavar=meta["metavar"])
    else:
        silent = default is None or default is MISSING or isinstance(default, bool)
        text = meta["shown"] or ("" if silent else f"{default:g}" if isinstance(default, float) else default)
        help = in_flags(meta["help"] + (f" Default: {text}." if text != "" else ""))
        flags = [flag for flag in (in_flags(name_of(item)), meta["short"]) if flag]
        info = typer.Option(*flags, help=help, metavar=meta["metavar"], rich_help_panel=section_of(cls, item.name))
    return _keyword(item.name, Annotated[annotation, info])


def _common() -> list[inspect.Parameter]:
    option = partial(typer.Option, rich_help_panel=LAST)
    config = option("--config", help="TOML file that fills any option; flags override it.", metavar="FILE.toml")
    every = option("--help-all", is_eager=True, callback=_every_option, help="Show every option and exit.")
    return [
        _keyword("config", Annotated[Optional[str], config]),  # noqa: UP045
        _keyword("json", Annotated[bool, option("--json", help="Print one JSON object.")], False),
        _keyword("quiet", Annotated[bool, option("--quiet", help="Print nothing but errors.")], False),
        _keyword("help_all", Annotated[bool, every], False),
    ]


def _every_option(ctx: typer.Context, asked: bool) -> bool:
    if asked:
        show_page(ctx.command, ctx, every=True)
        raise typer.Exit
    return asked


def _keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


# --- what is wrong with a line ----------------------------------------------------------------------------------------


def usage_message(error: TyperException) -> str:
    """Return typer's complaint about a command line, in one line that says what to do."""
    if hasattr(error, "possibilities"):  # no such option; typer keeps the class to itself
        name = getattr(error, "option_name", "")
        command = error.ctx.command_path if error.ctx else "dpltm"  # type: ignore[attr-defined]
        if (reason := instead(f"{command.removeprefix('dpltm ')} {name}", name)) is not None:
            return name + reason
        hint = did_you_mean(name, error.possibilities or ()) or f"; {command} --help-all lists them"
        return f"{name}: {command} has no such option{hint}"
    parameter = getattr(error, "param", None)
    wanted = re.search(r"a valid (\w+)", str(getattr(error, "message", "")))
    if parameter is not None and wanted is not None:
        kind = wanted[1].replace("integer", "whole number")
        return f"{parameter.opts[0]}: what was given is no {kind}; give one"
    return error.format_message().rstrip(".")


# --- help -------------------------------------------------------------------------------------------------------------

NAMES = 28  # characters of a flag and what it takes that share a line with its help; longer values go above the help
ARGUMENTS, LAST = "Arguments", "Every command"  # the first panel, and the last
PAGE, FIRST_EXAMPLES = 20, 3  # options and examples that a first page has at most

FIRST = frozenset((
    "dataset", "label", "schema", "test", "dense", "model", "features", "provenance", "rounds", "criterion", "eps1",
    "score", "rule", "filter", "epsilon", "epochs", "lr", "trials", "input", "unit_column", "metric", "out", "dry_run",
))  # fmt: skip
"""Options that the first page of a command with more than ``PAGE`` shows, beside those of every command."""


def show_page(command: Any, ctx: typer.Context, *, every: bool = False) -> None:
    """Print the help of a command or of a group: the first page, or every option."""
    console = RichConsole(highlight=False)
    for paragraph in (command.get_usage(ctx), *(command.help or "").split("\n\n")):
        console.print(Padding(Text(paragraph), (0, 1, 1, 1)))
    lines = (command.epilog or "").splitlines()
    commands = [number for number, line in enumerate(lines, 1) if not line.startswith("#")]
    console.print(" Examples", style="bold")
    for line in lines if every else lines[: commands[:FIRST_EXAMPLES][-1]]:
        console.print(Text(f"  {line}"), soft_wrap=True, style="dim" if line.startswith("#") else "")
    console.print()
    for title, rows in _panels(command, ctx, every).items():
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(no_wrap=True, style="bold cyan")
        table.add_column(ratio=1)
        for row in rows:
            table.add_row(*row)
        console.print(Panel(table, border_style="dim", title=title, title_align="left"))
    if not every and not isinstance(command, TyperGroup):
        console.print(f" {ctx.command_path} --help-all explains all options.")


def _panels(command: Any, ctx: typer.Context, every: bool) -> dict[str, list[tuple[Text, Text]]]:
    """The rows of each panel of a page by its heading."""
    parameters = [item for item in command.get_params(ctx) if isinstance(item, TyperArgument | TyperOption)]
    cut = not every and sum(isinstance(item, TyperOption) for item in parameters) > PAGE
    panels: dict[str, list[tuple[Text, Text]]] = {}
    for item in sorted(parameters, key=lambda item: _heading(item) == LAST):
        if not cut or _heading(item) in (ARGUMENTS, LAST) or item.name in FIRST:
            panels.setdefault(_heading(item) if every else "Options", []).append(_row(item))
    for name, entry in getattr(command, "commands", {}).items():
        help = in_flags(entry.summary) if isinstance(entry, Later) else entry.help
        panels.setdefault("Commands", []).append((Text(name), Text(help)))
    return panels


def _heading(item: TyperArgument | TyperOption) -> str:
    if isinstance(item, TyperArgument):
        return ARGUMENTS
    return item.rich_help_panel or (LAST if item.name == "help" else "Options")


def _row(parameter: TyperArgument | TyperOption) -> tuple[Text, Text]:
    """Return the flags with what they take, and what they are for."""
    help, takes = Text(parameter.help or ""), parameter.metavar or ""
    if isinstance(parameter, TyperArgument):
        return Text(takes), help
    names = ", ".join(parameter.opts)
    if len(names) + 1 + len(takes) <= NAMES:
        return Text(f"{names} {takes}"), help
    return Text(names), Text("\n").join([Text(takes.replace("|", " | "), overflow="fold"), help])
