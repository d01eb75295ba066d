"""Interruptions: commands that end in the middle of their work, by whatever stops them, and go on with other keys."""

import contextlib
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dpltm.privacy import release
from dpltm.randomness import noise
from dpltm.tickets import checkpoint_files
from dpltm.training.descent import Descent


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


def die(*_: object, **__: object) -> None:
    """As a process that is killed."""
    raise Killed


def interrupt(*_: object, **__: object) -> None:
    """As Ctrl-C, once the signal has come."""
    raise KeyboardInterrupt


def ctrl_c() -> None:
    """As somebody at the terminal."""
    os.kill(os.getpid(), signal.SIGINT)


def run_until(descent: Descent, stop: int) -> None:
    """Run a training to the end of a step, counted from 1, where its process is gone; of 0, not at all."""

    def between() -> None:
        if descent.step == stop:
            die()

    if stop:
        with pytest.raises(Killed):
            descent.run(lambda _: None, between)


@contextlib.contextmanager
def ending(owner: Any, name: str, number: int, how: Callable[[], object]) -> Iterator[None]:
    """Within the block, ``how`` comes before the nth call of a function."""
    inner, left = getattr(owner, name), itertools.count(1)

    def called(*arguments: Any, **named: Any) -> Any:
        if next(left) == number:
            how()
        return inner(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, called)
        yield


def seeded_keys(monkeypatch: pytest.MonkeyPatch, number: int, rank: int = 0) -> None:
    """The next release draws its keys from a seed, each rank others."""
    counter = itertools.count(number * 1000 + 100 * rank)
    drawn = SimpleNamespace(token_bytes=lambda count: next(counter).to_bytes(count, "little"))
    monkeypatch.setattr(release, "secrets", drawn)
    monkeypatch.setattr(noise, "fresh_key", lambda: next(counter).to_bytes(32, "little"))
