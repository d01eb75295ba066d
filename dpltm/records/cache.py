"""Datasets in memory, for whoever comes back to the same records."""

from __future__ import annotations

import secrets
import stat
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from dpltm.records.dataset import Dataset

MAX_DATASETS = 3
"""Datasets that are held at a time."""


class DatasetCache:
    """Reads and checks a file once, for stages and trials that come back to the same records.

    What is loaded shares its arrays, which are marked read-only. A file is read again when its size or its time changes;
    ratings are read every time.

    Datasets stay in the process that read them. Handed to another process, a cache is one of that process's own, and the
    same one as often as it is handed there.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = name or secrets.token_hex(16)
        self._whole = lru_cache(maxsize=MAX_DATASETS)(_read_only)

    def __reduce__(self) -> tuple[Callable[[str], DatasetCache], tuple[str]]:
        return _in_this_process, (self._name,)

    def whole(self, read: Callable[..., Dataset], files: tuple[Path, ...], *asked: Any) -> Dataset:
        """``read(*asked)``, or what it gave before.

        Args:
            read: reads a dataset with all its records.
            files: that it may read; they need not exist.
            asked: its arguments.
        """
        return self._whole(tuple(_stamp(path) for path in files), read, *asked)


@lru_cache(maxsize=1)
def _in_this_process(name: str) -> DatasetCache:
    """What a cache of another process stands for here."""
    return DatasetCache(name)


def _read_only(_stamps: object, read: Callable[..., Dataset], *asked: Any) -> Dataset:
    """A dataset in arrays that are marked read-only; ``_stamps`` tell versions of its files apart."""
    whole = read(*asked)
    for split in (whole.train, whole.test):
        if split is not None:
            split.x.flags.writeable = split.y.flags.writeable = False
    return whole


def _stamp(path: Path) -> tuple[int, int] | None:
    """Time and size of a file; None where there is none."""
    try:
        state = path.stat()
    except (OSError, ValueError):
        return None
    return (state.st_mtime_ns, state.st_size) if stat.S_ISREG(state.st_mode) else None
