"""Place of this process among those that ``torchrun`` started. Imports no torch: every command looks."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass

from dpltm.errors import InputError

PATIENCE = 2.0
"""Seconds that another rank leaves the first to say why all of them end."""


@dataclass(frozen=True)
class Place:
    """Place of a process: ``rank`` of ``size`` over all machines; ``local`` on this one, the number of its GPU."""

    rank: int
    size: int
    local: int


def launched() -> Place | None:
    """Return the place of this process; None where ``torchrun`` did not start it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    rank, size, local = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    return Place(rank, size, local)


def check_alone(what: str) -> None:
    """Raise InputError where ``torchrun`` started several processes for what works in one."""
    place = launched()
    if place is not None and place.size > 1:
        raise InputError(f"{what} works in one process, and torchrun started {place.size}: run it without torchrun")


def speaks() -> bool:
    """Tell whether it is for this process to say why it ends.

    Of several ranks the first says it. The others leave it the time: torchrun stops all as soon as one has ended.
    """
    place = launched()
    if place is None or place.rank == 0:
        return True
    with contextlib.suppress(KeyboardInterrupt):
        time.sleep(PATIENCE)
    return False
