"""Whether what a command is to write has room where it goes: asked before anything is spent."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from pathlib import Path

from dpltm.errors import ArtifactError
from dpltm.tickets.files import check_writable
from dpltm.tickets.journal import journal_path

LEDGER = 2**17
"""Bytes that what a command enters takes in a ledger, and in the journal, at most: an event takes one or two thousand."""

SMALL = 2**17
"""Bytes of a small file: a record of a draw, a configuration, what a run was asked for."""


def check_room(out: Path, size: int, ledger: Path | None = None) -> None:
    """Raises ArtifactError unless there is room for a result, and for what its ledger and the journal will hold.

    Nothing is made, not even missing folders.

    Args:
        out: what will be written.
        size: its bytes, and some more.
        ledger: the file that events are entered in; None where none are.
    """
    places = [(str(out), out, size)]
    if ledger is not None:
        places += [(str(ledger), ledger, LEDGER), (f"{journal_path()} (what ledgers hold)", journal_path(), LEDGER)]
    wanted = Counter[int]()
    for name, path, more in places:
        home = next(parent for parent in path.absolute().parents if parent.exists())
        check_writable(path, name)
        if path.exists() and not os.access(path, os.W_OK):
            raise ArtifactError(f"{name}: cannot be written: {os.strerror(errno.EACCES)}; choose another place")
        device = home.stat().st_dev
        wanted[device] += more
        free = shutil.disk_usage(home).free
        if free < wanted[device]:
            raise ArtifactError(
                f"{name}: cannot be written: {_size(wanted[device])} are needed on that disk, and {_size(free)} are free;"
                " make room, or choose another place"
            )


def _size(count: int) -> str:
    return f"{-(-count // 2**20)} MB" if count >= 2**20 else f"{count // 2**10} KB"
