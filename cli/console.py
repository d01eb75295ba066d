"""The one place that prints: results to standard output, messages and progress to a terminal on standard error."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from dpltm.errors import as_flags, in_flags
from dpltm.progress import Step
from dpltm.registry import Deferred

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

_PROGRESS = Deferred("dpltm.cli.progress:progress")
_SHOW_ANSWER = Deferred("dpltm.cli.show:show_answer")

WIDE = 160  # characters of a line where no terminal says how many there are


class Console:
    """Output of a command."""

    def __init__(self, as_json: bool = False, quiet: bool = False) -> None:
        self._json, self._quiet = as_json, quiet

    def say(self, text: str) -> None:
        """A message for the person at the terminal; nothing elsewhere."""
        if self._talks:
            print(in_flags(text), file=sys.stderr, flush=True)

    def result(self, body: dict[str, Any], show: Callable[[RichConsole, dict[str, Any]], None]) -> None:
        """Print a command's answer: as JSON, or for people."""
        if self._json:
            print(json.dumps(body, allow_nan=False))
        elif not self._quiet:
            from rich.console import Console as RichConsole

            at_terminal = sys.stdout.isatty()
            width = None if at_terminal else WIDE
            show(RichConsole(highlight=False, markup=False, soft_wrap=not at_terminal, width=width), body)
            sys.stdout.flush()

    def progress(self, title: str, total: int) -> contextlib.AbstractContextManager[Step]:
        """A progress bar over ``total`` steps, on a terminal only."""
        return _PROGRESS(title, total) if self._talks else contextlib.nullcontext(lambda *_: None)

    @property
    def _talks(self) -> bool:
        return not self._quiet and sys.stderr.isatty()


def answering(
    work: Callable[[Any, Console], dict[str, Any] | None],
    show: Callable[[RichConsole, dict[str, Any]], None],
    wanting: Callable[[dict[str, Any]], bool] | None = None,
) -> Callable[[Any, Console, str | None], None]:
    """Make a command that prints the answer of some work, by ``show`` unless nothing was done."""

    def command(request: Any, console: Console, _: str | None) -> None:
        answer = work(request, console)
        if answer is None:
            return
        body = as_flags(answer)
        console.result(body, partial(_SHOW_ANSWER, "would do") if body.get("dry_run") else show)
        if wanting is not None and wanting(body):
            raise typer.Exit(1)

    return command
