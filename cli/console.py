"""The one place that prints: results to standard output, messages and progress to a terminal on standard error."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from dpltm.cli.options import Call

Step = Callable[..., None]
"""Progress so far: ``step(done)`` or ``step(done, note)``."""


class Console:
    """Where a command's words go.

    Args:
        as_json: print results as one JSON object.
        quiet: print no messages and no tables; JSON is still printed if asked for.
    """

    def __init__(self, as_json: bool = False, quiet: bool = False) -> None:
        self._json, self._quiet = as_json, quiet

    def say(self, text: str) -> None:
        """A message for the person at the terminal; nothing elsewhere."""
        if self._talks:
            print(text, file=sys.stderr, flush=True)

    def result(self, body: dict[str, Any], show: Callable[[RichConsole], None]) -> None:
        """Prints a command's answer: ``body`` as JSON, or whatever ``show`` draws for people."""
        if self._json:
            print(json.dumps(body, allow_nan=False))
        elif not self._quiet:
            from rich.console import Console as RichConsole

            show(RichConsole(highlight=False, markup=False, soft_wrap=not sys.stdout.isatty()))

    @contextlib.contextmanager
    def progress(self, title: str, total: int) -> Iterator[Step]:
        """A progress bar over ``total`` steps, on a terminal only."""
        if not self._talks:
            yield lambda *_: None
            return
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}", markup=False),  # people's words: brackets in them are no markup
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        with Progress(*columns, console=RichConsole(stderr=True), refresh_per_second=5) as bar:
            task = bar.add_task(title, total=total, note="")
            yield lambda done, note="": bar.update(task, completed=done, **({"note": note} if note else {}))

    @property
    def _talks(self) -> bool:
        return not self._quiet and sys.stderr.isatty()


def answering(
    work: Callable[[Any, Console], dict[str, Any] | None],
    show: Callable[[RichConsole, dict[str, Any]], None],
    wanting: Callable[[dict[str, Any]], bool] | None = None,
) -> Callable[[Any, Call], None]:
    """A command that prints what some work answers.

    Args:
        work: takes the request, and somebody to tell how far it is; gives the JSON answer, None where another process does.
        show: draws the answer for people.
        wanting: whether the command ends with 1 after that; None for never.
    """

    def command(request: Any, call: Call) -> None:
        console = Console(call.json, call.quiet)
        body = work(request, console)
        if body is None:
            return
        console.result(body, lambda rich: show(rich, body))
        if wanting is not None and wanting(body):
            raise typer.Exit(1)

    return command
