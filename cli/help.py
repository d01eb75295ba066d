"""What ``--help`` prints: the page of typer, drawn with no more of rich than it shows.

Typer draws its page with a module that imports rich's Markdown and tracebacks as well, which take longer to import than all
of ``dpltm --help``. No help text here has any markup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.columns import Columns
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

THEME = Theme({"option": "bold cyan", "switch": "bold green", "sep": "dim", "types": "bold yellow", "usage": "yellow"})


class Flags(RegexHighlighter):
    """Marks flags, types and ``Usage:``."""

    highlights = [  # noqa: RUF012 - as rich declares it
        r"(^|\W)(?P<switch>\-\w+)(?![a-zA-Z0-9])",
        r"(^|\W)(?P<option>\-\-[\w\-]+)(?![a-zA-Z0-9])",
        r"(?P<types>\<[^\>]+\>)",
        r"(?P<usage>Usage: )",
    ]


class Separators(RegexHighlighter):
    """Marks what stands between the choices of a value, and around them."""

    highlights = [r"^(?P<sep>(\[|<))", r"(?P<sep>\|)", r"(?P<sep>(\]|>))(\.\.\.)?$"]  # noqa: RUF012


def show_page(command: TyperCommand | TyperGroup, ctx: Context) -> None:
    """Prints the help of a command or of a group of them."""
    flags = Flags()
    console = RichConsole(theme=THEME, highlighter=flags)
    console.print(Padding(flags(command.get_usage(ctx)), 1), style="bold")
    first, _, rest = (command.help or "").partition("\n\n")
    console.print(Padding(flags(Text(first)), (0, 1, 0 if rest else 1, 1)))
    if rest:
        console.print(Padding(flags(Text(rest, style="dim")), (1, 1, 1, 1)))
    parameters = command.get_params(ctx)
    for title, kind in (("Arguments", TyperArgument), ("Options", TyperOption)):
        rows = [_row(parameter) for parameter in parameters if isinstance(parameter, kind)]
        if rows:
            _show_panel(console, title, _table(rows))
    if isinstance(command, TyperGroup):
        width = max(map(len, command.commands))
        table = _table([])
        table.add_column(style="bold cyan", no_wrap=True, width=width)
        table.add_column(ratio=10)
        for name, entry in command.commands.items():
            table.add_row(name, flags(Text((entry.short_help or entry.help or "").partition("\n\n")[0])))
        _show_panel(console, "Commands", table)


def _row(parameter: TyperArgument | TyperOption) -> list[RenderableType]:
    """The flags, what they take, and what they are for."""
    flags = Flags()
    if isinstance(parameter, TyperArgument):
        names, takes = str(parameter.metavar), "<str>"
    else:
        names, takes = " ".join(parameter.opts), parameter.metavar or "<bool>"
    kind = Separators()(Text(takes, style="bold yellow", overflow="fold"))
    text = Columns([flags(Text(parameter.help or ""))])  # takes the width that the others leave
    return [flags(names), kind, text]


def _table(rows: list[list[RenderableType]]) -> Table:
    table = Table(show_header=False, expand=True, box=None, pad_edge=False, padding=(0, 1))
    for row in rows:
        table.add_row(*row)
    return table


def _show_panel(console: RichConsole, title: str, table: Table) -> None:
    console.print(Panel(table, border_style="dim", title=title, title_align="left"))
