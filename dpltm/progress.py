"""What work says on the way, to whoever watches."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from dpltm.errors import InputError

Step = Callable[..., None]
"""Progress so far: ``step(done)`` or ``step(done, note)``."""


class Progress(Protocol):
    """Where words on the way go. Nothing that it is told is more than the result may say."""

    def say(self, text: str) -> None:
        """A message."""
        ...

    def progress(self, title: str, total: int) -> AbstractContextManager[Step]:
        """A block of ``total`` steps, told by calls of what it yields."""
        ...


class Silent:
    """Nobody watches."""

    def say(self, text: str) -> None:
        """Drops it."""
        del text

    def progress(self, title: str, total: int) -> AbstractContextManager[Step]:
        """Drops its steps."""
        del title, total
        return contextlib.nullcontext(_ignore)


def _ignore(done: int, note: str = "") -> None:
    del done, note


SILENT = Silent()


class Watched:
    """Somebody who watches. What they hand out is not asked before a stage is paid for, so it may be no block of steps.

    Args:
        watcher: who is told.
    """

    def __init__(self, watcher: Progress) -> None:
        self._watcher = watcher

    def say(self, text: str) -> None:
        """A message."""
        self._watcher.say(text)

    @contextlib.contextmanager
    def progress(self, title: str, total: int) -> Iterator[Step]:
        """A block of steps; they are dropped where the watcher has nothing to be told them by."""
        block = self._watcher.progress(title, total)
        with block if hasattr(block, "__enter__") else contextlib.nullcontext(_ignore) as step:
            yield step if callable(step) else _ignore


def watched_by(progress: Progress | None) -> Progress:
    """Who watches: nobody if None.

    Raises:
        InputError: somebody who cannot be told what a stage says on the way, which would end it there.
    """
    if progress is None or isinstance(progress, (Silent, Watched)):
        return progress or SILENT
    for name, arguments in (("say", ("",)), ("progress", ("", 1))):
        try:
            inspect.signature(getattr(progress, name)).bind(*arguments)
        except (AttributeError, TypeError, ValueError):
            raise InputError(
                "progress",
                progress,
                "a watcher",
                "give None for silence, or an object with say(text) and progress(title, total)",
            ) from None
    return Watched(progress)
