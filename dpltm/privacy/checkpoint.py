"""Checkpoints: the state of interrupted work, so that the same command resumes it and nothing is paid for twice.

What holds across interruptions, and why, is in docs/privacy-model.md 4.5: one event, entered before the first draw; a step
that is computed again gets the same records and noise; no figure of a step is told before a checkpoint holds it.

The guarantee covers all in a checkpoint, as post-processing of noisy sums, **but the keys**, which tell the noise of the
steps that follow it. So it lies in a folder that its owner alone may open, beside the result and never in it; no command
exports or copies it, and it is overwritten and removed when the work is done. Two processes never resume from one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpltm.errors import ArtifactError, DpltmError, InputError

AGAIN = "begin again without it: `fresh`, or remove it"
OTHERWISE = f"repeat the same command to go on, choose another `out`, or {AGAIN} (what was spent stays spent)"


@dataclass(frozen=True)
class Checkpoint:
    """State of some work, as JSON, and its ``place`` in words, such as "step 30 of 100"."""

    place: str
    state: Mapping[str, Any] = field(repr=False)
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)


class Checkpoints:
    """Storage for the checkpoints of one piece of work, here none; ``latest`` is that to resume from, None to begin."""

    def __init__(self, latest: Checkpoint | None = None) -> None:
        self.latest = latest

    def keep(self, checkpoint: Checkpoint) -> None:
        """Replace the last checkpoint; on return it is on disk. ArtifactError if it cannot be: nothing may be spent."""

    def offer(self, make: Callable[[], Checkpoint]) -> bool:
        """Keep a checkpoint if it is time to, or if the work was told to stop, which raises Interrupted. Returns True
        if what was computed so far may be told: it is on disk, or nobody will ever compute it again."""
        del make
        return True

    def forget(self) -> None:
        """Remove what is held: nothing will go on from it."""


NOT_KEPT = Checkpoints()


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """A block that reads a checkpoint: whatever goes wrong in it is an ArtifactError, since the checkpoint is damaged."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError, DpltmError):
        raise ArtifactError(f"checkpoint: damaged, or of another version; {AGAIN}") from None


def check_same(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Raise InputError, with every difference named, unless work goes on as it was begun."""
    differences = ", ".join(_differences(before, after))
    if differences:
        raise InputError(f"checkpoint: an interrupted attempt was begun otherwise: {differences}; {OTHERWISE}")


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in {**before, **after}:
        was, now = before.get(name), after.get(name)
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            yield from _differences(was, now)
        elif was != now and all(isinstance(value, str) and len(value) == 64 for value in (was, now)):  # digests
            yield f"`{name}` is another by now, or gives other numbers on this machine"
        elif was != now:
            yield f"`{name}` was {was!r:.60} and is {now!r:.60}"
