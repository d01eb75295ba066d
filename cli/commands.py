"""Commands that are imported when they are called: the help of a group costs no more than its names and sentences."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from dpltm.cli.help import show_page
from dpltm.errors import InputError, did_you_mean, in_flags
from dpltm.registry import Deferred
from dpltm.training.launcher import check_shared

_COMMAND = Deferred("dpltm.cli.options:command_of")


class Command(TyperCommand):
    """A command with its options."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Prints its help, rather than leave it with the formatter, as typer does."""
        del formatter
        show_page(self, ctx)


class Later(TyperCommand):
    """A command of which only the name and a sentence are known, until it is called or its own help is asked for.

    Args:
        name: of the command, and of its table in a configuration file.
        summary: the first paragraph of the docstring of ``options``.
        options: the dataclass whose fields are its options, as ``module:Name`` in ``dpltm.options``.
        module: of ``dpltm.cli`` that has NAME_command, which does something with them; of the same name if None.
    """

    def __init__(self, name: str, summary: str, options: str, module: str | None = None) -> None:
        super().__init__(name, short_help=in_flags(summary))
        self.summary = summary
        self.options = Deferred(f"dpltm.options.{options}")
        self.run = Deferred(f"dpltm.cli.{module or options.partition(':')[0]}:{name}_command")

    @cached_property
    def command(self) -> Command:
        """The command itself."""
        command: Command = _COMMAND(self.name, self.options.resolve(), self.run.resolve())
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """See :meth:`TyperCommand.make_context`."""
        check_shared(f"{parent.command_path if parent else 'dpltm'} {self.name}")
        # the context is the command's own, so that the command itself is what runs
        return self.command.make_context(info_name, args, parent, **extra)


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
            raise InputError(f"{name}: {ctx.command_path} has no such command{self._nearest(name, ctx)}")
        return super().resolve_command(ctx, args)

    def _nearest(self, name: str, ctx: Any) -> str:
        groups = [group for group, entry in self.commands.items() if name in getattr(entry, "commands", ())]
        if groups:
            return f"; did you mean {' or '.join(f'{ctx.command_path} {group} {name}' for group in groups)}?"
        return did_you_mean(name, self.commands) or f"; {ctx.command_path} --help lists them"


_KINDS = {"integer": "whole number"}
"""What typer calls a type, and what people do."""


def usage_message(error: TyperException) -> str:
    """What typer has against a command line, in one line that says what to do."""
    if hasattr(error, "possibilities"):  # no such option; typer keeps the class to itself
        name, command = error.option_name, error.ctx.command_path if error.ctx else "dpltm"  # type: ignore[attr-defined]
        hint = did_you_mean(name, error.possibilities or ()) or f"; {command} --help lists them"
        return f"{name}: {command} has no such option{hint}"
    parameter, wanted = getattr(error, "param", None), re.search(r"a valid (\w+)", str(getattr(error, "message", "")))
    if parameter is not None and wanted is not None:
        return f"{parameter.opts[0]}: what was given is no {_KINDS.get(wanted[1], wanted[1])}; give one"
    return error.format_message().rstrip(".")
