"""Checkpoints: the state of interrupted work, so that the same command resumes it and nothing is paid for twice.

What a private training promises across interruptions, and why it holds:

- **One event.** All steps of a training are entered in the ledger before its first draw. Whoever goes on enters nothing, and
  must find those very events there. A checkpoint after the first step whose events are missing is refused.
- **One noisy sum a step.** Coins and noise come from keyed generators (``randomness.noise``), whose first keys are on
  disk *before* the events are entered. A step that is computed again, because the process died after the last checkpoint,
  gets the same records and the same noise: no second draw exists that could be averaged with the first. So an interrupted
  run ends with the bits of one that was not (same machine, libraries and number of threads).
- **Nothing is told early.** No figure that depends on a step leaves the process (progress, files) before a checkpoint holds
  that step. So even where the bits differ (a GPU, another number of threads), what is computed again was seen by nobody.
- **Keys forget.** A generator's key is replaced at every call. A checkpoint tells the noise of the steps that follow it, and
  of none before.

Weights, optimizer, average, measurements and a released centre in a checkpoint are post-processing of noisy sums: the
guarantee covers them. **The keys are not covered.** Whoever has a checkpoint *and* later weights of the same run can
subtract the noise of the steps in between, and for those steps nothing is guaranteed. Of work that has no guarantee (tickets
of provenance ``private``) all of a checkpoint is as private as the records. So a checkpoint lies in a folder that its owner
alone may open, beside the result and never in it; no command exports or copies it; when the work is done, it is overwritten
and removed. (File systems and disks may keep former blocks. Encrypt the disk where that matters.) Two processes never go on
from one checkpoint: it is locked. A copied one leads to the same bits again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dpltm.errors import ArtifactError, DpltmError, InputError
from dpltm.privacy.entry import Entry

AGAIN = "say `fresh` to begin again"
"""Answer to a refused checkpoint where a command has that option; see :func:`begun_again_by`."""

OTHERWISE = f"repeat the same command to go on, choose another `out`, or {AGAIN} (what was spent stays spent)"
"""Answer to other work than was begun."""


@dataclass(frozen=True)
class Checkpoint:
    """State of some work, as JSON, and its ``place`` in words, such as "step 30 of 100"."""

    place: str
    state: Mapping[str, Any] = field(repr=False)
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)


class Checkpoints:
    """Storage for the checkpoints of one piece of work, for one process: here none, since the work ends with its process.

    Attributes:
        held: checkpoint to resume from; None to begin.
    """

    def __init__(self, held: Checkpoint | None = None) -> None:
        self.held = held

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


class PartOf(Checkpoints):
    """Checkpoints of a part of some work, each with the ``state`` of the whole."""

    def __init__(self, whole: Checkpoints, state: Mapping[str, Any]) -> None:
        super().__init__(whole.held)
        self._whole, self._state = whole, dict(state)

    def offer(self, make: Callable[[], Checkpoint]) -> bool:
        def joined() -> Checkpoint:
            made = make()
            return replace(made, state={**made.state, **self._state})

        return self._whole.offer(joined)


@contextlib.contextmanager
def begun_again_by(how: str) -> Iterator[None]:
    """A block of a command without that option, whose refusals say ``how`` to begin again."""
    try:
        yield
    except DpltmError as error:
        error.args = (str(error).replace(AGAIN, how),)
        raise


def standing(facts: Mapping[str, Any], entry: Entry, step: int) -> dict[str, Any]:
    """Return what every checkpoint of a release says once something was drawn; ``step`` counts the steps done."""
    return {"of": dict(facts), "id": entry.id, "step": step}


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """A block that reads a checkpoint: whatever goes wrong in it is an ArtifactError, since the checkpoint is damaged."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError, DpltmError):
        raise ArtifactError(f"checkpoint: damaged, or of another version; {AGAIN}") from None


def check_same(had: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise InputError, with every difference named, unless work goes on as it was begun."""
    differences = [
        f"`{name}` was {_shown(had.get(name))} and is {_shown(now.get(name))}"
        for name in {**had, **now}
        if had.get(name) != now.get(name)
    ]
    if differences:
        raise InputError(
            f"checkpoint: an interrupted attempt was begun otherwise: {', '.join(differences)}; {OTHERWISE}"
        )


def _shown(value: object) -> str:
    text = repr(value)
    return "not given" if value is None else text if len(text) <= 60 else f"{text[:57]}..."
