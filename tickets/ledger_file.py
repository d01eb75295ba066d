"""Ledgers on disk: JSON Lines, chained by digests, appended and synced one event at a time."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dpltm.errors import ArtifactError
from dpltm.privacy.event_json import to_json
from dpltm.privacy.events import Event
from dpltm.privacy.ledger import Ledger
from dpltm.tickets.files import as_path, check_schema, read_bytes, sync
from dpltm.tickets.identity import UserRegistry, read_event

FORMAT, SCHEMA = "dpltm-ledger", 3
_HEADER = json.dumps({"format": FORMAT, "schema": SCHEMA}) + "\n"


MAX_LEDGER = 2**26
"""No ledger comes near this many bytes (10,000 events take 5 MB); a larger file is none."""


def open_ledger(path: str | Path, *, links: bool = True, remember: bool = True) -> Ledger:
    """The ledger in ``path``; a missing file is an empty ledger and appears with its first event.

    Args:
        path: the file.
        links: follow a link, as for a file that the user named; not for one inside a folder that may be somebody else's.
        remember: whether its registry writes down whose records are met; not in a dry run.

    Raises:
        ArtifactError: a line that is broken, edited, out of order, or holds an event this version does not know. The
            message names the line; nothing is skipped.
    """
    file = _LedgerFile(as_path(path), links)
    return Ledger(file.read(), persist=file.write_all, registry=UserRegistry(remember))


def copy_events(path: Path, events: Iterable[Event]) -> None:
    """Writes a new ledger file with events that another ledger admitted already; budgets are not asked again."""
    file = _LedgerFile(path)
    file.write_all(events)


class _LedgerFile:
    """One ledger file, and how far it has been read: appending after somebody else has is refused."""

    def __init__(self, path: Path, links: bool = True) -> None:
        self._path, self._links = path, links
        self._digest, self._count, self._size = "", 0, 0

    def read(self) -> list[Event]:
        try:
            os.stat(self._path, follow_symlinks=self._links)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ArtifactError(f"{self._path}: the ledger cannot be read: {error.strerror}") from None
        data = read_bytes(self._path, MAX_LEDGER, links=self._links)
        self._size = len(data)
        if not data:
            return []
        if not data.endswith(b"\n"):
            number = data.count(b"\n") + 1
            raise self._bad(number, "the last line is incomplete; remove it only if you know what it paid for")
        lines = data.split(b"\n")[:-1]
        check_schema(f"{self._path}: line 1", self._parse(1, lines[0]), FORMAT, SCHEMA)
        return [self._event(number, line) for number, line in enumerate(lines[1:], start=2)]

    def write_all(self, events: Iterable[Event]) -> None:
        """Writes, flushes and syncs ``events``, all or none; returns only when they are on disk."""
        text, digest, count = "" if self._size else _HEADER, self._digest, self._count
        for event in events:
            body = to_json(event)
            digest, count = _digest(digest, body), count + 1
            text += json.dumps({"sequence": count, "event": body, "digest": digest}) + "\n"
        data, follow = text.encode(), 0 if self._links else os.O_NOFOLLOW
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | follow, 0o644)
            try:
                self._write(descriptor, data)
            finally:
                os.close(descriptor)
            if not self._size:
                sync(self._path.parent)
        except OSError as error:
            raise ArtifactError(
                f"{self._path}: the ledger cannot be written: {error.strerror}; nothing was spent"
            ) from None
        self._digest, self._count, self._size = digest, count, self._size + len(data)

    def _write(self, descriptor: int, data: bytes) -> None:
        """Appends all of ``data`` and syncs, or leaves the file as it was."""
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_size != self._size:
            raise ArtifactError(f"{self._path}: another process has written to the ledger meanwhile; run again")
        try:
            while data:  # a short write says that the disk is full; the next one says why
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, self._size)
            raise

    def _event(self, number: int, line: bytes) -> Event:
        entry = self._parse(number, line)
        if not isinstance(entry, dict) or set(entry) != {"sequence", "event", "digest"}:
            raise self._bad(number, "expected sequence, event and digest")
        if entry["sequence"] != self._count + 1:
            raise self._bad(
                number, f"sequence {entry['sequence']!r:.40}, expected {self._count + 1}; a line is missing or moved"
            )
        if entry["digest"] != _digest(self._digest, entry["event"]):
            raise self._bad(
                number, "the digest does not match: this line, or one before it, was changed after the fact"
            )
        self._digest, self._count = entry["digest"], self._count + 1
        try:
            return read_event(entry["event"])
        except ArtifactError as error:
            raise self._bad(number, str(error)) from None

    def _parse(self, number: int, line: bytes) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            raise self._bad(number, "not valid JSON") from None

    def _bad(self, number: int, what: str) -> ArtifactError:
        return ArtifactError(f"{self._path}: line {number}: {what}")


def _digest(previous: str, event: object) -> str:
    text = previous + json.dumps(event, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
