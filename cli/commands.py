"""Commands of typer's made of options: one field is a flag, a key of the configuration file, and a setting on record.

Each value comes from the command line, else from ``--config``, else from the field's default, so that what a run records is
complete. A command is imported when it is called: the help of a group costs no more than its names and sentences.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Optional, TypeVar

import typer
import typer.main
from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.highlighter import RegexHighlighter
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.theme import Theme
from typer import Context
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.exceptions import TyperException

from dpltm.cli.console import Console
from dpltm.errors import InputError, did_you_mean, in_flags
from dpltm.gone import instead
from dpltm.options import Options, name_of, resolve, section_of, value_type
from dpltm.registry import Deferred
from dpltm.training.launcher import check_alone

T = TypeVar("T", bound=Options)

EXAMPLES = "\nExamples:\n"
"""Line that precedes the examples in a docstring."""

_SECTION = Deferred("dpltm.tickets.files:read_section")
_BESIDE = Deferred("dpltm.options.network:beside")


class Command(TyperCommand):
    """A command with its options.

    Attributes:
        of_files: flags that there would be for options that only files and Python have.
    """

    of_files: Sequence[str] = ()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print its help, rather than leave it with the formatter, as typer does."""
        del formatter
        show_page(self, ctx)


HOMES = dict.fromkeys(("generate", "run", "select", "train", "tune"), "stages") | {"audit": "lab", "latent": "lab"}
"""Modules of ``dpltm.cli`` whose options lie in one of another name."""

OPTIONS = {"latent": "dpltm.local"}
"""Packages of options outside ``dpltm.options``."""


class Later(TyperCommand):
    """A command of which only the name and a sentence are known, until it is called or its own help is asked for.

    Args:
        name: of the command, and of its table in a configuration file. NAMERequest is the dataclass whose fields are its
            options, and NAME_command does something with them.
        home: the module that its options are in, of ``dpltm.options`` or by ``OPTIONS``; and of ``dpltm.cli``, by ``HOMES``
            where it has another name.
    """

    def __init__(self, name: str, summary: str, home: str) -> None:
        super().__init__(name, short_help=in_flags(summary))
        self.summary = summary
        self.options = Deferred(f"{OPTIONS.get(home, 'dpltm.options')}.{home}:{name.title()}Request")
        self.run = Deferred(f"dpltm.cli.{HOMES.get(home, home)}:{name}_command")

    @cached_property
    def command(self) -> Command:
        """The command itself."""
        options: Any = self.options.resolve()  # a class
        return command_of(str(self.name), options, self.run, self.summary)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """See :meth:`TyperCommand.make_context`."""
        command = f"{parent.command_path if parent else 'dpltm'} {self.name}"
        if command != "dpltm train":  # the one that several processes share
            check_alone(command)
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


def command_of(name: str, cls: type[T], run: Callable[[T, Call], None], summary: str = "") -> Command:
    """Return the command whose options are the fields of ``cls``, and which ``run(options, call)`` runs.

    The help text of the command is the docstring of ``cls``, or ``summary`` where Python has stripped it.
    """

    def command(**values: Any) -> None:
        call = Call(Console(values.pop("json"), values.pop("quiet")), values.pop("config"))
        values.pop("help_all")
        section = {} if call.config is None else _BESIDE(_SECTION(Path(call.config), name), Path(call.config))
        options = resolve(cls, values, section, call.config)
        with call.console.at_work():  # what the command needs is imported now
            run(options, call)

    parameters = [_parameter(cls, item) for item in fields(cls) if not item.metadata["hidden"]]
    parameters += _common()
    parameters.sort(key=lambda parameter: not _is_argument(parameter))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(add_completion=False)
    help = in_flags("\n\n".join(paragraphs_of(cls)) or summary)
    examples = "\n".join(examples_of(cls))
    app.command(name, cls=Command, help=help, epilog=examples)(command)
    click_command = typer.main.get_command(app)
    assert isinstance(click_command, Command)
    click_command.of_files = [in_flags(name_of(item)) for item in fields(cls) if item.metadata["hidden"]]
    return click_command


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
    meta = item.metadata
    wanted = value_type(item)
    annotation: Any = Optional[list[str] if wanted is tuple else wanted]  # noqa: UP045 - built at run time
    if meta["argument"]:
        info: Any = typer.Argument(help=in_flags(meta["help"]), metavar=meta["metavar"])
    else:
        silent = item.default is None or item.default is MISSING or isinstance(item.default, bool)
        text = meta["shown"] or ("" if silent else _shown(item.default))
        help = in_flags(meta["help"] + (f" Default: {text}." if text else ""))
        flags = [flag for flag in (in_flags(name_of(item)), meta["short"]) if flag]
        panel = section_of(cls, item.name)
        info = typer.Option(*flags, help=help, metavar=meta["metavar"], rich_help_panel=panel)
    return _keyword(item.name, Annotated[annotation, info])


def _shown(default: object) -> str:
    return f"{default:g}" if isinstance(default, float) else str(default)


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
        name = getattr(error, "option_name", "")
        command = error.ctx.command_path if error.ctx else "dpltm"  # type: ignore[attr-defined]
        if (reason := instead(f"{command.removeprefix('dpltm ')} {name}", name)) is not None:
            return name + reason
        hint = did_you_mean(name, error.possibilities or ()) or f"; {command} --help lists them"
        if name in getattr(getattr(getattr(error, "ctx", None), "command", None), "of_files", ()):
            hint = "; write it into a file for --config"
        return f"{name}: {command} has no such option{hint}"
    parameter = getattr(error, "param", None)
    wanted = re.search(r"a valid (\w+)", str(getattr(error, "message", "")))
    if parameter is not None and wanted is not None:
        return f"{parameter.opts[0]}: what was given is no {_KINDS.get(wanted[1], wanted[1])}; give one"
    return error.format_message().rstrip(".")


THEME = Theme({"option": "bold cyan", "switch": "bold green", "usage": "yellow"})

NAMES = 28
"""Characters of the widest flag with what it takes that share a line with its help; longer values go above the help."""

ARGUMENTS, LAST = "Arguments", "Every command"
"""Headings of the first panel, and of the last."""

PAGE = 20
"""Options that a first page has at most."""

FIRST = frozenset((
    "dataset", "label", "schema", "test", "dense", "model", "features", "provenance", "rounds", "criterion", "eps1",
    "score", "rule", "filter", "epsilon", "epochs", "lr", "trials", "input", "unit_column", "metric", "out", "dry_run",
))  # fmt: skip
"""Options that the first page of a command with more than ``PAGE`` shows, beside those of every command."""

FIRST_EXAMPLES = 3
"""Examples that such a page shows."""


LONG = 90
"""Characters of a first sentence that a first page cuts at its colon."""


class Flags(RegexHighlighter):
    """Marks flags and ``Usage:``."""

    highlights = [  # noqa: RUF012 - as rich declares it
        r"(^|\W)(?P<switch>\-\w+)(?![a-zA-Z0-9])",
        r"(^|\W)(?P<option>\-\-[\w\-]+)(?![a-zA-Z0-9])",
        r"(?P<usage>Usage: )",
    ]


def show_page(command: TyperCommand | TyperGroup, ctx: Context, *, every: bool = False) -> None:
    """Print the help of a command or of a group of them: the first page, or every option."""
    flags = Flags()
    console = RichConsole(theme=THEME, highlighter=flags)
    console.print(Padding(flags(command.get_usage(ctx)), 1), style="bold")
    for paragraph in (command.help or "").split("\n\n"):
        console.print(Padding(flags(Text(paragraph)), (0, 1, 1, 1)))
    parameters = [item for item in command.get_params(ctx) if isinstance(item, TyperArgument | TyperOption)]
    options = [item for item in parameters if isinstance(item, TyperOption)]
    cut = not every and len(options) > PAGE
    if command.epilog:
        _show_examples(console, command.epilog if every else _first_examples(command.epilog))
    panels: dict[str, list[list[RenderableType]]] = {}
    if isinstance(command, TyperGroup):
        panels["Options"] = [_row(item) for item in options]
        for name, entry in command.commands.items():
            text = flags(Text((entry.short_help or entry.help or "").partition("\n\n")[0]))
            panels.setdefault("Commands", []).append([Text(name, style="bold cyan"), text])
    elif every:
        for item in parameters:
            panels.setdefault(_heading(item), []).append(_row(item))
    else:
        first = (item for item in parameters if not cut or _heading(item) in (ARGUMENTS, LAST) or item.name in FIRST)
        panels["Options"] = [_row(item, brief=True) for item in first]
    for title in sorted(panels, key=lambda title: title == LAST):
        _show_panel(console, title, panels[title])
    if not every and not isinstance(command, TyperGroup):
        more = f"{ctx.command_path} --help-all explains all {len(options)} options."
        console.print(Padding(flags(Text(more)), (0, 1, 1, 1)))


def _heading(parameter: TyperArgument | TyperOption) -> str:
    if isinstance(parameter, TyperArgument):
        return ARGUMENTS
    return parameter.rich_help_panel or (LAST if parameter.name == "help" else "Options")


def _row(parameter: TyperArgument | TyperOption, *, brief: bool = False) -> list[RenderableType]:
    """Return the flags with what they take, and what they are for: where it is to be brief, in a sentence."""
    help = parameter.help or ""
    text = Flags()(Text(_in_brief(help) if brief else help))
    if isinstance(parameter, TyperArgument):
        return [Text(str(parameter.metavar), style="bold yellow"), text]
    names = Flags()(", ".join(parameter.opts))
    takes = parameter.metavar or ""
    if len(names) + 1 + len(takes) <= NAMES:
        return [Text.assemble(names, " " if takes else "", (takes, "bold yellow")), text]
    values = Text(takes.replace("|", " | "), style="bold yellow", overflow="fold")
    return [names, Text("\n").join([values, text])]


def _in_brief(help: str) -> str:
    """Return the first sentence, to its colon where it is long, and the default, if that is a word."""
    sentence = re.split(r"[.;](?: |$)", help, maxsplit=1)[0]
    sentence = sentence.partition(": ")[0] if len(sentence) > LONG else sentence
    default = re.search(r" Default: [^ ]{1,20}\.$", help)
    return f"{sentence}." + (default[0] if default else "")


def _show_panel(console: RichConsole, title: str, rows: list[list[RenderableType]]) -> None:
    table = Table(show_header=False, expand=True, box=None, pad_edge=False, padding=(0, 1))
    widest = max(len(row[0]) for row in rows if isinstance(row[0], Text))
    table.add_column(no_wrap=True, width=widest if title == "Commands" else NAMES)
    table.add_column(ratio=1)
    for row in rows:
        table.add_row(*row)
    console.print(Panel(table, border_style="dim", title=title, title_align="left"))


def _first_examples(lines: str) -> str:
    """Return the first examples, each a command behind its remarks."""
    commands = [number for number, line in enumerate(lines.splitlines(), 1) if not line.startswith("#")]
    return "\n".join(lines.splitlines()[: commands[:FIRST_EXAMPLES][-1]])


def _show_examples(console: RichConsole, lines: str) -> None:
    """Commands as they can be copied, whatever the width; remarks above them."""
    console.print(Text(" Examples", style="bold"))
    for line in lines.splitlines():
        remark = line.startswith("#")
        for part in [line] if remark else folded(line, console.width - 2):
            console.print(Text("  " + part, style="dim" if remark else ""), soft_wrap=True)
    console.print()


def folded(command: str, width: int) -> list[str]:
    """Break a command into lines that a shell takes as one: before flags, with a backslash at the end."""
    lines: list[str] = []
    words = [shlex.quote(word) for word in shlex.split(command)]
    pieces: list[str] = []
    for word in words:  # a flag keeps its value
        if pieces and not word.startswith("-") and pieces[-1].startswith("-") and " " not in pieces[-1]:
            pieces[-1] += f" {word}"
        else:
            pieces.append(word)
    for piece in pieces:
        if lines and len(lines[-1]) + len(piece) + 3 <= width:
            lines[-1] += f" {piece}"
        else:
            lines.append(f"    {piece}" if lines else piece)
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]
