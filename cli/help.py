"""Pages of ``--help``: options in panels by subject, and examples to copy.

Typer draws its page with a module that imports rich's Markdown and tracebacks as well, which take longer to import than all
of ``dpltm --help``. No help text here has any markup.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.highlighter import RegexHighlighter
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.theme import Theme
from typer.core import TyperArgument, TyperGroup, TyperOption

if TYPE_CHECKING:
    from typer import Context
    from typer.core import TyperCommand

THEME = Theme({"option": "bold cyan", "switch": "bold green", "usage": "yellow"})

NAMES = 28
"""Characters of the widest flag with what it takes that share a line with its help; longer values go above the help."""

EVERY_COMMAND = "Every command"
"""Heading of the last panel."""

PAGE = 20
"""Options that a first page has at most."""

FIRST = frozenset(
    (
        "dataset", "label", "schema", "test", "dense", "model", "features", "provenance", "rounds",
        "criterion", "eps1", "score", "rule", "filter", "clip_norm", "epsilon", "epochs",
        "lr", "trials", "input", "ledger", "out", "dry_run",
    )
)  # fmt: skip
"""Options that the first page of a command with more than ``PAGE`` shows, beside those of every command."""

EXAMPLES = 3
"""Examples that such a page shows."""


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
    first, _, rest = (command.help or "").partition("\n\n")
    console.print(Padding(flags(Text(first)), (0, 1, 0 if rest else 1, 1)))
    if rest:
        console.print(Padding(flags(Text(rest)), (1, 1, 1, 1)))
    panels: dict[str, list[list[RenderableType]]] = {}
    last = "Options" if isinstance(command, TyperGroup) else EVERY_COMMAND
    parameters = [item for item in command.get_params(ctx) if isinstance(item, TyperArgument | TyperOption)]
    options = [item for item in parameters if isinstance(item, TyperOption)]
    cut = not every and len(options) > PAGE
    for parameter in parameters:
        heading = _heading(parameter, last)
        if not cut or isinstance(parameter, TyperArgument) or heading == last or parameter.name in FIRST:
            panels.setdefault(heading, []).append(_row(parameter))
    if isinstance(command, TyperGroup):
        for name, entry in command.commands.items():
            text = flags(Text((entry.short_help or entry.help or "").partition("\n\n")[0]))
            panels.setdefault("Commands", []).append([Text(name, style="bold cyan"), text])
    for title in sorted(panels, key=lambda title: title == EVERY_COMMAND):  # that one is the last
        _show_panel(console, title, panels[title])
    if cut:
        shown = sum(map(len, panels.values())) - len(parameters) + len(options)
        more = f"{len(options) - shown} more options: {ctx.command_path} --help-all"
        console.print(Padding(flags(Text(more)), (0, 1, 1, 1)))
    if command.epilog:
        _show_examples(console, _first_examples(command.epilog) if cut else command.epilog)


def _heading(parameter: TyperArgument | TyperOption, last: str) -> str:
    if isinstance(parameter, TyperArgument):
        return "Arguments"
    return parameter.rich_help_panel or (last if parameter.name == "help" else "Options")


def _row(parameter: TyperArgument | TyperOption) -> list[RenderableType]:
    """Return the flags with what they take, and what they are for."""
    text = Flags()(Text(parameter.help or ""))
    if isinstance(parameter, TyperArgument):
        return [Text(str(parameter.metavar), style="bold yellow"), text]
    names, takes = Flags()(", ".join(parameter.opts)), parameter.metavar or ""
    if len(names) + 1 + len(takes) <= NAMES:
        return [Text.assemble(names, " " if takes else "", (takes, "bold yellow")), text]
    values = Text(takes.replace("|", " | "), style="bold yellow", overflow="fold")
    return [names, Text("\n").join([values, text])]


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
    return "\n".join(lines.splitlines()[: commands[:EXAMPLES][-1]])


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
