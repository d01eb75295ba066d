"""Progress on a terminal: a bar where lines can be redrawn, else a line now and then."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta

from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

NARROW = 100
"""Characters of a line below which the bar is half as long."""

PAUSE = 10.0
"""Seconds between two lines where none can be redrawn."""

STARTING = "starting"
"""The note until there is another: nothing stands still without a word."""


@contextlib.contextmanager
def waiting(title: str) -> Iterator[None]:
    """A line that moves as long as the block takes, and is gone afterwards; a line that stays where none can be redrawn."""
    terminal = RichConsole(stderr=True)
    if terminal.is_dumb_terminal:
        terminal.print(title)
    with contextlib.nullcontext() if terminal.is_dumb_terminal else terminal.status(title):
        yield


@contextlib.contextmanager
def progress(title: str, total: int, say: Callable[[str], None]) -> Iterator[Callable[..., None]]:
    """A block of steps, shown on a terminal."""
    terminal = RichConsole(stderr=True)
    if terminal.is_dumb_terminal:
        yield in_lines(title, total, say)
        return
    with Bar(terminal) as bar:
        task = bar.add_task(title, total=total, note=STARTING)
        yield lambda done, note="": bar.update(task, completed=done, **({"note": note} if note else {}))


class _Clock(ProgressColumn):
    """The time that is left; until that can be told, the time that has passed."""

    def render(self, task: Task) -> Text:
        """See :meth:`ProgressColumn.render`."""
        return Text(clock(task.elapsed or 0.0, task.time_remaining, done=task.finished))


def clock(elapsed: float, left: float | None, *, done: bool = False) -> str:
    """Return ``0:00:12 left``, or ``0:00:03 so far`` where nobody knows yet, or ``in 0:01:30`` at the end."""
    if done or left is None:
        passed = timedelta(seconds=int(elapsed))
        return f"in {passed}" if done else f"{passed} so far"
    return f"{timedelta(seconds=int(left))} left"


class Bar(Progress):
    """One bar, with its note below."""

    def __init__(self, console: RichConsole) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),  # people's words: brackets in them are no markup
            BarColumn(bar_width=20 if console.width >= NARROW else 10),
            TextColumn("{task.completed:,}/{task.total:,}"),
            _Clock(Column(no_wrap=True)),
            console=console,
            refresh_per_second=5,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        """See :meth:`Progress.get_renderables`."""
        yield from super().get_renderables()
        for task in self.tasks:
            yield Text(f"  {task.fields['note']}", no_wrap=True, overflow="ellipsis")


def in_lines(title: str, total: int, say: Callable[[str], None]) -> Callable[..., None]:
    """Show progress on a terminal that only takes lines: one at the start, one at the end, and one every ten seconds."""
    began = last_line = time.monotonic()
    last = ""
    say(f"{title}: {STARTING}, {total:,} to do")

    def step(done: int, note: str = "") -> None:
        nonlocal last_line, last
        now, last = time.monotonic(), note or last
        if done < total and now - last_line < PAUSE:
            return
        last_line = now
        left = (now - began) / done * (total - done) if done else None
        when = clock(now - began, left, done=done >= total)
        say(", ".join(part for part in (f"{title} {done:,}/{total:,}", when, last) if part))

    return step
