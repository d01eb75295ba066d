"""Ledgers on disk: JSON Lines, chained by digests; and what this user's ledgers held when they were last used.

    NAME.jsonl      header, then one entry a line (docs/formats.md)
    NAME.key        by which the ledger knows snapshots of datasets; for its owner alone

Digests show a line that was changed, but not that the last lines are gone, or that all of it is an older copy. So
``dpltm/ledgers.jsonl`` in the user's configuration folder says of each ledger how far it has come. An entry is synced in
its ledger first, then there, and only then is its value drawn. A process that dies between the two leaves a ledger that
is ahead, which is taken over; one that is *behind* is refused. This shows mistakes, not intent: whoever can write that
folder can change both.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from dpltm.errors import ArtifactError, InputError
from dpltm.options.data import LedgerOptions
from dpltm.privacy.entry import MAX_TEXT, RECORD, Entry, Head, Id, entry_from_json, to_json
from dpltm.privacy.ledger import Book, Ledger, Store, canonical, first_digest
from dpltm.records.catalogue import catalogue
from dpltm.records.files import SUFFIXES, suffix_of
from dpltm.tickets.files import as_path, check_schema, parse_json, read_bytes, staged_file, sync

FORMAT, SCHEMA = "dpltm-ledger", 5
RECORD_FORMAT, RECORD_SCHEMA = "dpltm-ledgers", 1

MAX_LEDGER = 2**28  # no ledger comes near this many bytes (10,000 entries take 8 MB); a larger file is none

_LINE = re.compile(rb'\{"entry": (\{.*\}), "digest": "([0-9a-f]{64})"\}')
_ID = re.compile(r"[0-9a-f]{64}")


def _again(head: Head, path: str, **options: Any) -> Ledger:
    """Open a ledger that was pickled; InputError where what lies there does not hold what it held."""
    ledger = open_ledger(path, **options)
    if head.count and not ledger.book.extends(head):
        raise InputError(
            f"`ledger`: {path} holds {ledger.book.head}, and the one that was pickled {head}; put that back"
        )
    return ledger


def open_ledger(path: str | Path, *, population: str | None = None, unit: str | None = None) -> Ledger:
    """Return the ledger in a file; a missing file is an empty ledger and appears with its first entry.

    Args:
        path: the file.
        population: whose account it is, by name; None for whatever the file says.
        unit: the noun of whom it protects; None for whatever the file says, and for single records in a new one.

    Raises:
        ArtifactError: a line is broken, edited, moved, incomplete or not known here; or the ledger had come farther before.
            Nothing is skipped.
        InputError: it is the account of another population, or protects another unit.
    """
    for name, value in (("population", population), ("unit", unit)):
        if value is not None and not (value and value.isprintable() and len(value) <= MAX_TEXT):
            raise InputError(name, value, "a printable name")
    store = FileStore(as_path(path), Book.new(population))
    book = store.read()
    if population is not None and book.population != population:
        people = "people that nobody named" if book.population is None else repr(book.population)
        raise InputError(
            f"`population`: {path} is the account of {people}, not of {population!r}; name another `ledger`"
        )
    if unit is not None and book.settled not in (None, unit):
        raise InputError(f"{path}: this ledger protects one {book.settled}, not one {unit}; name another")
    return Ledger(unit=unit or RECORD, store=store)


@dataclass(frozen=True)
class _Seen:
    """Content of a file when it was read: which version of it, how many of its bytes count, and what they say."""

    stamp: tuple[int, int, int] | None
    size: int
    book: Book


class FileStore(Store):
    """A ledger file; see :class:`dpltm.privacy.ledger.Store`. ``new`` is what it is as long as there is no file.

    Guarantees:
        Threads and processes may share the file: they add one after the other, and read what was added in full or not at
        all. When ``add`` returns, the file, its folder and the user's record are synced; when it raises, they are as before.
    """

    def __init__(self, path: Path, new: Book) -> None:
        self._path = path
        self._file = Path(os.path.abspath(path))  # wherever the process goes: elsewhere it would begin another account
        self._seen = _Seen(None, 0, new)
        self._block: tuple[int, int, int] | None = None  # process, thread and descriptor of a locked block

    @property
    def _key_path(self) -> Path:
        """Path of the key, beside the file itself, wherever a link to it may be."""
        path = Path(os.path.realpath(self._file))
        return path.with_name(path.name.removesuffix(".jsonl") + ".key")

    def read(self) -> Book:
        """See :meth:`dpltm.privacy.ledger.Store.read`."""
        record = read_record()  # before the file, which is written first: so it is never behind by another's doing
        own, stamp = self._mine(), self._stamp()
        if own is not None:
            seen = self._load(own)
        elif stamp is None:
            seen = self._empty(None)
        elif stamp == self._seen.stamp:
            seen = self._seen
        else:
            descriptor = self._locked(writing=False)
            if descriptor is None:
                return self.read()
            try:
                seen = self._load(descriptor)
            finally:
                _unlock(descriptor)
        before = self._seen.book
        if before.entries:  # of this process, whatever a link leads to now
            self._check_not_behind(seen.book, {before.home: Known(os.path.realpath(self._file), before.head)})
        self._check_not_behind(seen.book, record)
        self._seen = seen
        key = self._key()
        return seen.book if key in (None, seen.book.key) else replace(seen.book, key=key)

    def opener(self, unit: str) -> Callable[[], Ledger]:
        """See :meth:`dpltm.privacy.ledger.Store.opener`."""
        book = self._seen.book
        return partial(_again, book.head, str(self._file), population=book.population, unit=unit)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """See :meth:`dpltm.privacy.ledger.Store.locked`."""
        assert self._mine() is None, "a block of a ledger within itself would wait for ever"
        descriptor = None
        while descriptor is None:
            descriptor = self._locked(writing=True)
        process = os.getpid()
        try:
            self._block = process, threading.get_ident(), descriptor
            yield
        finally:
            if os.getpid() != process:  # forked off within the block: the lock is not this process's to give back
                os.close(descriptor)
            else:
                self._block = None
                with contextlib.suppress(OSError):
                    if os.fstat(descriptor).st_size == 0:  # nothing was entered; who waits for it sees that it is gone
                        os.unlink(os.path.realpath(self._file))
                _unlock(descriptor)

    def add(self, before: Book, after: Book) -> None:
        """See :meth:`dpltm.privacy.ledger.Store.add`."""
        descriptor = self._mine()
        assert descriptor is not None, "a store adds in a locked block"
        size = self._load(descriptor).size
        new = self._key() is None
        if new and size:
            raise ArtifactError(
                f"{self._path}: its key, {self._key_path.name}, is not beside it, so nothing tells which records were"
                " declared public or tested on; put it back, or name another `ledger`"
            )
        count = len(before.entries)
        text = "" if size else _header_text(after.home, after.population) + "\n"
        for entry, digest in zip(after.entries[count:], after.digests[count + 1 :], strict=True):
            text += f'{{"entry": {canonical(to_json(entry))}, "digest": "{digest}"}}\n'
        data, written = text.encode(), 0
        place = os.path.realpath(self._file)
        try:
            with _locked_record():
                last_use = read_record().get(before.home)
                if size and (last_use is None or last_use.head != before.head):
                    # whoever wrote that died: were the next entry torn, it could not be told from one that paid
                    _write_record(place, before.head)
                if new:
                    _replace(self._key_path, (after.key.hex() + "\n").encode())
                try:
                    os.ftruncate(descriptor, size)  # what is torn was never paid for
                    while written < len(data):  # a short write says that the disk is full; the next one says why
                        written += os.write(descriptor, data[written:])
                    os.fsync(descriptor)
                    if new or not size:
                        sync(self._key_path.parent)
                    _write_record(place, after.head)
                except (OSError, ArtifactError):
                    os.ftruncate(descriptor, size)
                    raise
        except OSError as error:
            raise self._unwritable(error) from None
        self._seen = _Seen(_stamp_of(os.fstat(descriptor)), size + len(data), after)

    # the file

    def _mine(self) -> int | None:
        own = self._block is not None and self._block[:2] == (os.getpid(), threading.get_ident())
        return self._block[2] if self._block is not None and own else None

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            return _stamp_of(os.stat(self._file))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(error) from None

    def _locked(self, writing: bool) -> int | None:
        """Return a descriptor that locks the file, or shares it with readers; None where it was removed meanwhile."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT if writing else os.O_RDONLY
        try:
            if writing:
                self._file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._file, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
            fcntl.flock(descriptor, fcntl.LOCK_EX if writing else fcntl.LOCK_SH)
            stamp = self._stamp()
            if stamp is not None and stamp[0] == os.fstat(descriptor).st_ino:
                return descriptor
            os.close(descriptor)
            return None
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not writing:
                return None
            raise (self._unwritable(error) if writing else self._unreadable(error)) from None

    def _empty(self, stamp: tuple[int, int, int] | None) -> _Seen:
        book = self._seen.book
        return _Seen(stamp, 0, Book.new(book.population) if book.entries else book)

    def _load(self, descriptor: int) -> _Seen:
        status = os.fstat(descriptor)
        stamp = _stamp_of(status)
        if stamp == self._seen.stamp:
            return self._seen
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_LEDGER:
            raise ArtifactError(f"{self._path}: is not a plain file of at most {MAX_LEDGER} bytes, so it is no ledger")
        data = os.pread(descriptor, status.st_size, 0)
        if not data:
            return self._empty(stamp)
        lines = data.split(b"\n")
        torn = lines.pop()
        size = data.rfind(b"\n") + 1
        if not lines:
            raise self._bad(1, _INCOMPLETE)
        home, population = self._read_header(lines[0])
        digests, entries, ids = [first_digest(home, population)], list[Entry](), set[Id]()
        for number, line in enumerate(lines[1:], start=2):
            entry, digest = self._read_line(number, line, digests[-1])
            if entry.home != home or entry.id in ids:
                raise self._bad(number, "an entry of another ledger" if entry.home != home else "a line stands twice")
            digests.append(digest)
            entries.append(entry)
            ids.add(entry.id)
        book = Book(home, population, RECORD, self._seen.book.key, tuple(entries), tuple(digests))
        if torn:
            last_use = read_record().get(home)
            if last_use is None or last_use.head != book.head:
                raise self._bad(len(lines) + 1, _INCOMPLETE)
        # what is torn was being written when its process died: nothing was drawn for it, and the next entry takes its place
        return _Seen(stamp, size, book)

    def _read_header(self, line: bytes) -> tuple[Id, str | None]:
        where = f"{self._path}: line 1"
        body: Any = parse_json(where, line)
        check_schema(where, body, FORMAT, SCHEMA, "price it with the version that made it, and begin another ledger")
        home, population = body.get("id"), body.get("population")
        is_name = population is None or (isinstance(population, str) and population.isprintable() and population)
        if not (is_name and isinstance(home, str) and _ID.fullmatch(home)):
            raise self._bad(1, "not the header of a ledger")
        if line != _header_text(home, population).encode():
            raise self._bad(1, _CHANGED)
        return home, population

    def _read_line(self, number: int, line: bytes, before: str) -> tuple[Entry, str]:
        match = _LINE.fullmatch(line)
        try:
            if match is None:
                raise ArtifactError("not an entry and its digest")
            body: Any = parse_json("entry", match[1])
            if body.get("sequence") != number - 1:
                raise ArtifactError(
                    f"entry {body.get('sequence')!r:.40}, expected {number - 1}; a line is missing or moved"
                )
            digest = sha256(before.encode() + match[1]).hexdigest()
            if digest != match[2].decode():
                raise ArtifactError(_CHANGED)
            return entry_from_json(body), digest
        except ArtifactError as error:
            raise self._bad(number, str(error)) from None

    # the key

    def _key(self) -> bytes | None:
        path = self._key_path
        if not os.path.lexists(path):
            return None
        text = read_bytes(path, 1024, links=True).decode("ascii", "replace").strip()
        if not _ID.fullmatch(text):
            raise ArtifactError(
                f"{path}: not the key of a ledger (64 hexadecimal digits); put it back, or remove it: parts of datasets that"
                " it named then count as if they overlapped"
            )
        return bytes.fromhex(text)

    # what is said

    def _check_not_behind(self, book: Book, record: Mapping[Id, Known]) -> None:
        place = os.path.realpath(self._file)
        for home, last_use in record.items():
            if not last_use.head.count:  # begun, and nothing paid: nothing is lost with it
                continue
            if home == book.home and not book.extends(last_use.head):
                where = "" if last_use.path == place else f", at {last_use.path}"
                was = f"and held {last_use.head} when it was last used{where}"
            elif home != book.home and last_use.path == place:
                was = f"and the ledger that lay here held {last_use.head}"
            else:
                continue
            raise ArtifactError(
                f"{self._path}: holds {book.head}, {was}: deleted, shortened, replaced, or an older copy; put it back, or"
                f" name the one that goes on (`ledger`); where it is gone for good, remove its line from {record_path()}:"
                " what it paid for is not counted any more then"
            )

    def _bad(self, number: int, what: str) -> ArtifactError:
        return ArtifactError(f"{self._path}: line {number}: {what}")

    def _unreadable(self, error: OSError) -> ArtifactError:
        return ArtifactError(f"{self._path}: the ledger cannot be read: {error.strerror}")

    def _unwritable(self, error: OSError) -> ArtifactError:
        at = "" if error.filename is None else f" ({error.filename})"
        return ArtifactError(
            f"{self._path}: cannot be written: {error.strerror}{at}; nothing was spent; make room, name"
            " another `ledger`, or point XDG_CONFIG_HOME at another folder"
        )


_CHANGED = "this line, or one before it, was changed after the fact"
_INCOMPLETE = "the line is incomplete; remove it only if you know that it paid for nothing"


def _header_text(home: Id, population: str | None) -> str:
    return json.dumps({"format": FORMAT, "schema": SCHEMA, "id": home, "population": population})


def _stamp_of(status: os.stat_result) -> tuple[int, int, int]:
    """Return numbers that tell one version of a file from another."""
    return status.st_ino, status.st_size, status.st_mtime_ns


def _unlock(descriptor: int) -> None:
    """Close a file and give its lock back, which a process forked meanwhile would else hold as long as it lives."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _replace(path: Path, data: bytes) -> None:
    """Put a file in place of itself: whole, on disk, for its owner alone."""
    with staged_file(path) as staging:
        staging.write_bytes(data)
        sync(staging)
        os.replace(staging, path)


# --- what this user's ledgers held ---


@dataclass(frozen=True)
class Known:
    """Place where a ledger was used last, and how far it had come."""

    path: str
    head: Head


def record_path() -> Path:
    """Return the file that remembers how far this user's ledgers have come."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(home if os.path.isabs(home) else os.path.expanduser("~/.config")) / "dpltm" / "ledgers.jsonl"


def read_record() -> Mapping[Id, Known]:
    """Return what is known of this user's ledgers, by id."""
    path = record_path()
    if not os.path.lexists(path):
        return {}
    last_uses = dict[Id, Known]()
    header, *lines = read_bytes(path, MAX_LEDGER).splitlines() or [b""]
    check_schema(f"{path}: line 1", parse_json(f"{path}: line 1", header), RECORD_FORMAT, RECORD_SCHEMA)
    for number, line in enumerate(lines, start=2):
        try:
            body: Any = parse_json(path, line)
            place = str(body["path"])
            head = Head(str(body["id"]), int(body["count"]), str(body["digest"]))
        except (ArtifactError, KeyError, TypeError, ValueError):
            raise ArtifactError(
                f"{path}: line {number} is damaged; put this file back from a backup, or move it away: ledgers are then"
                " known again as they are used"
            ) from None
        last_uses[head.ledger] = Known(place, head)
    return last_uses


def _write_record(place: str, head: Head) -> None:
    """Say where a ledger is, and how far it has come; while the record is locked."""
    path = record_path()
    lines: list[dict[str, Any]] = [{"format": RECORD_FORMAT, "schema": RECORD_SCHEMA}]
    for home, last_use in {**read_record(), head.ledger: Known(place, head)}.items():
        lines.append({"path": last_use.path, "id": home, "count": last_use.head.count, "digest": last_use.head.digest})
    _replace(path, "".join(json.dumps(body) + "\n" for body in lines).encode())
    with contextlib.suppress(OSError):  # the ledger is ahead then, which is taken over
        sync(path.parent)


@contextlib.contextmanager
def _locked_record() -> Iterator[None]:
    """A block in which no other process writes the record."""
    path = record_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        _unlock(descriptor)


# --- where the account of a dataset lies: one rule for all verbs ---

BESIDE = "dpltm.ledger.jsonl"
"""The ledger of all files of one folder: whose records lie side by side are likely the same people."""


def ledger_path(dataset: str | None, ledger: str | None = None) -> Path:
    """Return the file of the ledger that pays for releases from a dataset."""
    if ledger is not None or dataset is None:
        return Path(ledger or BESIDE)
    path = Path(dataset)
    separators = {os.sep, os.altsep or os.sep}
    if separators & set(dataset) or suffix_of(path) in SUFFIXES:
        folder = path.resolve().parent  # where it really lies: a link to it is of the same people
        return (path.parent if path.parent.resolve() == folder else folder) / BESIDE
    catalogued = catalogue()
    if dataset in catalogued:  # a part, or another form, of one is of the same people
        dataset = next((name for name in catalogued if dataset.startswith(f"{name}-")), dataset)
    return Path(f"{dataset}.ledger.jsonl")


def ledger_of(dataset: str | None, options: LedgerOptions, unit: str | None) -> Ledger:
    """Return the ledger that pays for releases from a dataset; its file appears with its first entry."""
    return open_ledger(ledger_path(dataset, options.ledger), population=options.population, unit=unit)
