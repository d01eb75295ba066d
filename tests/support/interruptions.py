"""Interruptions: commands that end in the middle of their work, by whatever stops them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from dpltm.tickets import checkpoint_files


class Killed(BaseException):
    """The process is gone: nothing of ours handles this."""


def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint after every step."""
    monkeypatch.setattr(checkpoint_files, "EVERY", 0.0)
    monkeypatch.setattr(checkpoint_files, "SHARE", 1e9)


@contextlib.contextmanager
def signals() -> Iterator[None]:
    """Ctrl-C interrupts, though a shell that starts a suite in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def die() -> None:
    """As a process that is killed."""
    raise Killed


def ctrl_c() -> None:
    """As somebody at the terminal."""
    os.kill(os.getpid(), signal.SIGINT)
