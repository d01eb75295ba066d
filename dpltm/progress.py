"""What work says on the way, to whoever watches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from dpltm.errors import InputError

Step = Callable[..., None]
"""Progress so far: ``step(done)`` or ``step(done, note)``."""


class Progress(Protocol):
    """Where words on the way go. Nothing that it is told is more than the result may say."""

    def say(self, text: str) -> None: ...

    def progress(self, title: str, total: int) -> AbstractContextManager[Step]:
        """A block of ``total`` steps, told by calls of what it yields."""
        ...


class Silent:
    """Nobody watches."""

    def say(self, text: str) -> None:
        pass

    def progress(self, title: str, total: int) -> AbstractContextManager[Step]:
        del title, total
        return contextlib.nullcontext(lambda *_: None)


SILENT = Silent()


def watched_by(progress: Progress | None) -> Progress:
    """Who watches: nobody if None; InputError for somebody who cannot be told anything, which would end a stage."""
    if progress is None:
        return SILENT
    if isinstance(progress, type) or not all(callable(getattr(progress, name, None)) for name in ("say", "progress")):
        fix = "give None for silence, or an object with say(text) and progress(title, total)"
        raise InputError("progress", progress, "a watcher", fix)
    return progress
