"""What an answer leaves out where it becomes part of an artifact: durations, and folders of the machine it was made on.

How long a training on private records takes grows with how many they are, and with the batches that were drawn; a folder's
name tells who its owner is. Both are for the terminal of whoever owns the records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpltm.options import last_part

DURATIONS = ("seconds", "minutes")
PLACES = ("run", "ticket_set", "out", "config", "figure", "messages", "scheme")
"""Keys of answers whose values are durations, and paths."""


def published(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer as an artifact keeps it: no durations, and of paths their last part."""
    return {
        key: last_part(value) if key in PLACES and isinstance(value, str) else value
        for key, value in answer.items()
        if key not in DURATIONS
    }
