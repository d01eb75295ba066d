"""What an answer leaves out where it becomes part of an artifact: durations, and folders of the machine it was made on.

How long a training on private records takes grows with how many they are, and with the batches that were drawn; a folder's
name tells who its owner is. Both are for the terminal of whoever owns the records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import PurePath
from typing import Any

DURATIONS = ("seconds", "minutes")
PLACES = ("run", "ticket_set", "out", "config", "figure", "messages", "scheme")
"""Keys of answers whose values are durations, and paths."""

PATHS = {"FILE", "DIR", "PATH", "SET", "SCHEME", "RUN"}
"""Words of a metavar that say that the value is, or may be, a path."""


def last_part(path: str) -> str:
    """The last part of a path, which says which file it was and not where; the text itself where that is nothing."""
    return PurePath(path).name or path


def recorded(options: Any) -> dict[str, Any]:
    """Options as an artifact keeps them: all of them, paths by their last part, since folders tell whose they are."""
    values = {}
    for item in fields(options):
        value, metavar = getattr(options, item.name), item.metadata["metavar"] or ""
        if isinstance(value, str) and PATHS & set(re.findall("[A-Z]+", metavar)):
            kind, colon, rest = value.partition(":") if ":RUN" in metavar else ("", "", value)
            parts = rest.split(",") if metavar.endswith(",...") else [rest]
            value = kind + colon + ",".join(last_part(part) for part in parts)
        values[item.name] = value
    return values


def published(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer as an artifact keeps it: no durations, and of paths their last part."""
    return {
        key: last_part(value) if key in PLACES and isinstance(value, str) else value
        for key, value in answer.items()
        if key not in DURATIONS
    }
