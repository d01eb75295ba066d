"""Ledgers on disk: JSON Lines, chained by digests, appended and synced one event at a time.

The user's journal (``tickets.journal``) remembers how far each had come. A ledger that has less is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from dpltm.errors import ArtifactError
from dpltm.privacy.budgets import is_paid
from dpltm.privacy.event_json import to_json
from dpltm.privacy.events import BudgetEvent, Event
from dpltm.privacy.old_ledger import Ledger
from dpltm.records.dataset import key_id
from dpltm.tickets import journal
from dpltm.tickets.files import as_path, check_schema, read_bytes, sync
from dpltm.tickets.identity import UserRegistry, event_reader, load_key
from dpltm.tickets.journal import Chain, Journal, Link, Record, extends, head, link

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
        ArtifactError: a line that is broken, edited, out of order, or holds an event this version does not know, and the
            message names the line; or the ledger had come farther before, and it names both heads. Nothing is skipped.
    """
    path = as_path(path)
    record = journal.look()  # before the file, which is written first: so it is never behind by another's doing
    file = _LedgerFile(path, links)
    events = file.read()
    file.check_not_behind(record)
    return Ledger(events, persist=file.write_all, registry=UserRegistry(remember), account=file)


def unnamed_ledger(remember: bool = True) -> Ledger:
    """A ledger that lies in no file, whose events are on record in the journal.

    Args:
        remember: as :func:`open_ledger`.
    """
    kept = _Unnamed()
    return Ledger(persist=kept.write_all, registry=UserRegistry(remember), account=kept)


def write_events(path: Path, events: Iterable[Event]) -> None:
    """Writes a new ledger file with events that another ledger admitted already; budgets are not asked again.

    It goes on record where it is first used, or by :func:`enrol`.
    """
    _LedgerFile(path).append(events)


def enrol(path: Path) -> int:
    """Takes a ledger over as it is: what it holds counts on this machine. Nothing is written if it is on record already.

    Args:
        path: the file.

    Returns:
        How many events it holds.

    Raises:
        ArtifactError: it is damaged, or had come farther before.
    """
    with journal.locked() as kept:
        file = _LedgerFile(path)
        file.read()
        file.check_not_behind(kept.record)
        if file.chain:
            kept.mirror(journal.names_of(path), file.chain)
        return len(file.chain)


def restore(path: Path) -> tuple[int, int]:
    """Gives a ledger back what it held when it was last used; what it holds beside that stays.

    A file that cannot be read is kept beside the new one, as ``NAME.damaged``.

    Args:
        path: the file, which may be gone.

    Returns:
        How many events it holds now, and how many of them were missing.

    Raises:
        ArtifactError: nothing is known of a ledger there, or it cannot be written.
    """
    with journal.locked() as kept:
        known = kept.record.known(journal.names_of(path))
        file = _LedgerFile(path)
        if not known:
            raise ArtifactError(f"{path}: no ledger of that name is on record here, so there is nothing to put back")
        try:
            file.read()
        except ArtifactError:
            if not path.is_file():
                raise
            path.rename(_free(path))
            file = _LedgerFile(path)
        entered = [[each.text for each in kept.record.chains[number]] for number in known]
        most, lost = Counter[str](), list[str]()
        for texts in entered:
            most |= Counter(texts)
        most -= Counter(each.text for each in file.chain)
        for text in itertools.chain(*entered):
            if most[text] > 0:
                most[text] -= 1
                lost.append(text)
        file.append_bodies([json.loads(text) for text in lost])
        kept.mirror(journal.names_of(path), file.chain)
        return len(file.chain), len(lost)


def rename_ledger(path: Path, new: Path) -> None:
    """Gives a ledger another name, by which it is remembered from now on if it was by the former one.

    Args:
        path: of it.
        new: the same folder, a free name; or ``path`` itself, for a process that died before the name was remembered.

    Raises:
        ArtifactError: it is damaged, or had come farther before; it has its former name still.
    """
    with journal.locked() as kept:
        file = _LedgerFile(path, links=False)
        file.read()
        file.check_not_behind(kept.record)
        if new != path:
            path.rename(new)
            sync(new.parent)
        if file.chain and {each.text for each in file.chain} <= kept.record.texts():  # else it is to be declared
            kept.mirror(journal.names_of(new), file.chain)


def held_by(path: Path) -> Chain:
    """What a ledger holds, whatever it held before; nothing where there is none. Links are not followed.

    Raises:
        ArtifactError: it is damaged.
    """
    file = _LedgerFile(path, links=False)
    file.read()
    return file.chain


def remove_ledger(path: Path) -> None:
    """Takes away a ledger file whose events another one holds; they stay on record."""
    journal.begin(path)
    path.unlink()


def _free(path: Path) -> Path:
    number, name = 1, path.with_name(f"{path.name}.damaged")
    while os.path.lexists(name):
        number += 1
        name = path.with_name(f"{path.name}.damaged-{number}")
    return name


def _on_record(record: Record, sets_budget: bool) -> tuple[Event, ...]:
    """All events, where a budget may be among them: without one there is nothing to sum up."""
    return record.events if sets_budget or record.sets_budgets else ()


class _Unnamed:
    """Keeps the events of a ledger without a file; an account, as ``dpltm.privacy.old_ledger`` has it."""

    def __init__(self) -> None:
        self._chain: list[Link] = []
        self._kept: Journal | None = None

    def look(self, planned: tuple[Event, ...]) -> tuple[Event, ...]:
        return _on_record(journal.look(), _has_budget(planned))

    @contextlib.contextmanager
    def reserve(self, planned: tuple[Event, ...]) -> Iterator[tuple[Event, ...]]:
        with journal.locked() as self._kept:
            yield _on_record(self._kept.record, _has_budget(planned))

    def write_all(self, events: Iterable[Event]) -> None:
        assert self._kept is not None  # a ledger reserves before it persists
        chain = list(self._chain)
        for event in events:
            chain.append(link(chain, to_json(event)))
        self._kept.mirror((), chain)
        self._chain = chain


class _LedgerFile:
    """One ledger file, and how far it has been read: appending after somebody else has is refused.

    It is the account of its ledger as well (``dpltm.privacy.old_ledger``).
    """

    def __init__(self, path: Path, links: bool = True) -> None:
        self._path, self._links = path, links
        self.chain: list[Link] = []
        self._size = 0
        self._kept: Journal | None = None

    def look(self, planned: tuple[Event, ...]) -> tuple[Event, ...]:
        """See :meth:`dpltm.privacy.old_ledger.Account.look`."""
        return self._others(journal.look(), planned)

    @contextlib.contextmanager
    def reserve(self, planned: tuple[Event, ...]) -> Iterator[tuple[Event, ...]]:
        """See :meth:`dpltm.privacy.old_ledger.Account.reserve`."""
        with journal.locked() as self._kept:
            yield self._others(self._kept.record, planned)

    def _others(self, record: Record, planned: tuple[Event, ...]) -> tuple[Event, ...]:
        """What is on record elsewhere, as the journal had it before this was called."""
        if (self._path.stat().st_size if self._path.exists() else 0) != self._size:
            raise self._grown()
        self.check_not_behind(record)
        self._check_declared(record)
        own = any('"kind":"budget"' in each.text for each in self.chain)
        return _on_record(record, own or _has_budget(planned))

    def check_not_behind(self, record: Record) -> None:
        """Raises ArtifactError if the ledger held something else, or more, when it was last used."""
        for number in record.known(journal.names_of(self._path)):
            before = record.chains[number]
            if not extends(self.chain, before):
                raise ArtifactError(
                    f"{self._path}: holds {head(self.chain)}, and held {head(before)} when it was last used: deleted,"
                    f" shortened, replaced or an older copy; dpltm privacy restore {self._path} puts back what is missing"
                )

    def _check_declared(self, record: Record) -> None:
        """Raises ArtifactError for a ledger of which nothing is known here, and whose records are named elsewhere."""
        if record.known(journal.names_of(self._path)):
            return
        texts = record.texts()
        read = event_reader()
        unknown = [read(each.text) for each in self.chain if each.text not in texts]
        ours = key_id(load_key(make=False))
        if any(map(is_paid, unknown)) and not any(event.dataset.key_id == ours for event in unknown):
            raise ArtifactError(
                f"{self._path}: holds {head(self.chain)}, entered elsewhere, and nothing is known of them here; declare it"
                f" once with dpltm privacy adopt {self._path}, and they count here too"
            )

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
        read = event_reader()
        return [self._event(number, line, read) for number, line in enumerate(lines[1:], start=2)]

    def write_all(self, events: Iterable[Event]) -> None:
        """Writes and syncs ``events`` here and in the journal, all or none; returns only when they are on disk."""
        assert self._kept is not None  # a ledger reserves before it persists
        self.append(events, self._kept)

    def append(self, events: Iterable[Event], kept: Journal | None = None) -> None:
        """Writes and syncs ``events``, all or none.

        Args:
            events: to be written behind what is there.
            kept: the journal, which gets them as soon as they are here; None where it does not, or not yet.
        """
        self.append_bodies([to_json(event) for event in events], kept)

    def append_bodies(self, bodies: Iterable[object], kept: Journal | None = None) -> None:
        """The same of events as JSON. Arguments as :meth:`append`."""
        text, chain = "" if self._size else _HEADER, list(self.chain)
        for body in bodies:
            chain.append(link(chain, body))
            text += json.dumps({"sequence": len(chain), "event": body, "digest": chain[-1].digest}) + "\n"
        data, follow = text.encode(), 0 if self._links else os.O_NOFOLLOW
        made = not os.path.lexists(self._path)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | follow, 0o644)
            try:
                self._write(descriptor, data)
                if not self._size:
                    sync(self._path.parent)
                if kept is not None:
                    self._mirror(descriptor, kept, chain)
            except BaseException:
                if made and os.fstat(descriptor).st_size == 0:  # under its lock: who waits for it sees that it is gone
                    self._path.unlink(missing_ok=True)
                raise
            finally:
                journal.unlock(descriptor)
        except OSError as error:
            raise ArtifactError(
                f"{self._path}: the ledger cannot be written: {error.strerror}; nothing was spent"
            ) from None
        self.chain, self._size = chain, self._size + len(data)

    def _write(self, descriptor: int, data: bytes) -> None:
        """Appends all of ``data`` and syncs, or leaves the file as it was."""
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        status = os.fstat(descriptor)
        if status.st_size != self._size or not status.st_nlink:
            raise self._grown()
        try:
            while data:  # a short write says that the disk is full; the next one says why
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, self._size)
            raise

    def _mirror(self, descriptor: int, kept: Journal, chain: list[Link]) -> None:
        """The second of the two writes; without it the first is taken back, since nothing may be released."""
        try:
            kept.mirror(journal.names_of(self._path), chain)
        except ArtifactError:
            os.ftruncate(descriptor, self._size)
            raise

    def _grown(self) -> ArtifactError:
        return ArtifactError(f"{self._path}: another process has written to the ledger meanwhile; run again")

    def _event(self, number: int, line: bytes, read: Callable[[str], Event]) -> Event:
        entry = self._parse(number, line)
        if not isinstance(entry, dict) or set(entry) != {"sequence", "event", "digest"}:
            raise self._bad(number, "expected sequence, event and digest")
        if entry["sequence"] != len(self.chain) + 1:
            raise self._bad(
                number,
                f"sequence {entry['sequence']!r:.40}, expected {len(self.chain) + 1}; a line is missing or moved",
            )
        found = link(self.chain, entry["event"])
        if entry["digest"] != found.digest:
            raise self._bad(
                number, "the digest does not match: this line, or one before it, was changed after the fact"
            )
        self.chain.append(found)
        try:
            return read(found.text)
        except ArtifactError as error:
            raise self._bad(number, str(error)) from None

    def _parse(self, number: int, line: bytes) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            raise self._bad(number, "not valid JSON") from None

    def _bad(self, number: int, what: str) -> ArtifactError:
        return ArtifactError(f"{self._path}: line {number}: {what}")


def _has_budget(events: Iterable[Event]) -> bool:
    return any(isinstance(event, BudgetEvent) for event in events)
