"""Progress on a terminal, by rich: a bar, and its note below."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

NARROW = 100  # characters of a line below which the bar is half as long
STARTING = "starting"  # the note until there is another: nothing stands still without a word


@contextlib.contextmanager
def progress(title: str, total: int) -> Iterator[Callable[..., None]]:
    """A block of steps, shown on a terminal."""
    terminal = RichConsole(stderr=True)
    with Bar(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),  # people's words: brackets in them are no markup
        BarColumn(bar_width=20 if terminal.width >= NARROW else 10),
        TextColumn("{task.completed:,}/{task.total:,}"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=terminal,
        refresh_per_second=5,
    ) as bar:
        task = bar.add_task(title, total=total, note=STARTING)
        yield lambda done, note="": bar.update(task, completed=done, **({"note": note} if note else {}))


class Bar(Progress):
    """One bar, with its note below."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """See :meth:`Progress.get_renderables`."""
        yield from super().get_renderables()
        for task in self.tasks:
            yield Text(f"  {task.fields['note']}", no_wrap=True, overflow="ellipsis")
