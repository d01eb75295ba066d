"""The journal: everything that this user's ledgers hold, and how far each of them had come, in the configuration folder.

A ledger's digests show a line that was changed. They cannot show that its last lines are gone, or that all of it is an older
copy: that takes somebody who remembers. The journal lies beside the key (``key.journal``) and is only ever added to. It
mirrors each ledger line by line, so it is a backup as well, and it is where budgets are summed up over all ledgers.

The order of writes is what makes it hold: an event is synced in its ledger first, then here, and only then is the release
made. A process that dies between the two leaves a ledger that is ahead of the journal, with an event that paid for nothing
yet: that is taken over. A ledger *behind* the journal was never left by a crash.

It shows mistakes: a careless restore, an older copy, a file deleted. Whoever can write the folder can change both.
docs/formats.md has the format.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType

from dpltm.errors import ArtifactError
from dpltm.privacy.event_json import canonical
from dpltm.privacy.events import Event
from dpltm.tickets.files import check_schema, read_bytes, sync
from dpltm.tickets.identity import event_reader, key_path

FORMAT, SCHEMA = "dpltm-journal", 1
_HEADER = json.dumps({"format": FORMAT, "schema": SCHEMA}) + "\n"
_ENTRY = re.compile(r'\{"ledger": (\d{1,9}), "digest": "([0-9a-f]{64})", "event": (\{.*\})\}')
_BUDGET = '"kind":"budget"'

MAX_JOURNAL = 2**30
"""A hundred thousand events take 50 MB."""


@dataclass(frozen=True)
class Link:
    """One event of a ledger.

    Attributes:
        text: the event as JSON with sorted keys and no blanks.
        digest: of all that the ledger holds up to here.
    """

    text: str
    digest: str


Chain = Sequence[Link]
"""What a ledger holds, oldest first."""


def link(before: Chain, body: object) -> Link:
    """The link that an event becomes behind others (docs/formats.md)."""
    text = canonical(body)
    previous = before[-1].digest if before else ""
    return Link(text, hashlib.sha256((previous + text).encode()).hexdigest())


def head(chain: Chain) -> str:
    """How a chain ends, as messages have it."""
    return f"{len(chain)} event{'s' * (len(chain) != 1)} (head {chain[-1].digest[:12] if chain else 'none'})"


def extends(chain: Chain, other: Chain) -> bool:
    """Whether ``chain`` begins with all of ``other``."""
    return not other or (len(chain) >= len(other) and chain[len(other) - 1].digest == other[-1].digest)


@dataclass(frozen=True)
class Record:
    """What the journal holds.

    Attributes:
        chains: of each ledger, by its number, which counts from 1.
        names: paths, and the number of the ledger that was used under each.
        order: every event with the number of its ledger, oldest first.
    """

    chains: Mapping[int, Chain] = field(default_factory=dict)
    names: Mapping[str, int] = field(default_factory=dict)
    order: Sequence[tuple[int, str]] = ()

    def known(self, names: Iterable[str]) -> list[int]:
        """The numbers of the ledgers that were used under these names."""
        return list(dict.fromkeys(self.names[name] for name in names if name in self.names))

    def texts(self) -> frozenset[str]:
        """All events."""
        return frozenset(text for _, text in self.order)

    @cached_property
    def sets_budgets(self) -> bool:
        """Whether a budget is among the events."""
        return any(_BUDGET in text for _, text in self.order)

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """All events, oldest first, each as often as in the ledger that holds it most often.

        Raises:
            ArtifactError: one that this version does not know.
        """
        given, counts = Counter[str](), Counter[tuple[int, str]]()
        read, events = event_reader(), []
        for number, text in self.order:
            counts[number, text] += 1
            if counts[number, text] > given[text]:
                given[text] += 1
                try:
                    events.append(read(text))
                except ArtifactError as error:
                    raise ArtifactError(f"{journal_path()}: {error}") from None
        return tuple(events)


class Journal:
    """The journal while this process has it to itself; see :func:`locked`."""

    def __init__(self, descriptor: int, record: Record) -> None:
        self._descriptor, self.record = descriptor, record

    def mirror(self, names: Iterable[str], chain: Chain) -> None:
        """Brings the journal up to what a ledger holds, which the caller has checked; on disk when this returns.

        Args:
            names: of the ledger; none for one that lies in no file yet.
            chain: all of it.

        Raises:
            ArtifactError: it cannot be written; nothing is.
        """
        names, chains = tuple(names), self.record.chains
        number = next((each for each in self.record.known(names) if extends(chain, chains[each])), None)
        lines = []
        if number is None and chain:
            number = next((each for each in self._left() if chains[each] and extends(chain, chains[each])), None)
            gone = sorted(name for name, each in self.record.names.items() if each == number)
            lines += [json.dumps({"begun": name}) for name in gone]  # it was moved, and its old place is free
        number = len(chains) + 1 if number is None else number
        mine = [name for name in names if self.record.names.get(name) != number]
        lines += [json.dumps({"ledger": number, "name": name}) for name in mine]
        for each in chain[len(chains.get(number, ())) :]:
            lines.append(f'{{"ledger": {number}, "digest": "{each.digest}", "event": {each.text}}}')
        self._write(lines)

    def begin(self, path: str) -> None:
        """Forgets which ledgers lay at a path or below it; what they held stays on record."""
        self._write([json.dumps({"begun": path})])

    def _left(self) -> list[int]:
        """Ledgers that lie nowhere any more, the longest first."""
        there = {number for name, number in self.record.names.items() if os.path.lexists(name)}
        chains = self.record.chains
        return sorted((each for each in chains if each not in there), key=lambda each: -len(chains[each]))

    def _write(self, lines: list[str]) -> None:
        size = os.lseek(self._descriptor, 0, os.SEEK_END)
        data = "".join(line + "\n" for line in lines).encode()
        if size == 0 and data:
            data = _HEADER.encode() + data
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, size)
            raise _unwritable(error) from None


def journal_path() -> Path:
    """Where it lies: beside the key."""
    path = key_path()
    return path.with_name(f"{path.name}.journal")


def names_of(path: Path) -> tuple[str, ...]:
    """What a ledger is remembered by: its path as it was named, and where links lead."""
    return tuple(dict.fromkeys((os.path.abspath(path), os.path.realpath(path))))


def look() -> Record:
    """What the journal holds now.

    Raises:
        ArtifactError: it cannot be read, or is damaged.
    """
    path = journal_path()
    try:
        status = path.stat()
    except FileNotFoundError:
        return Record()
    except OSError as error:
        raise _unreadable(error.strerror) from None
    return _read(path, status.st_ino, status.st_mtime_ns, status.st_size)


@contextlib.contextmanager
def locked() -> Iterator[Journal]:
    """A block in which no other process writes the journal.

    Raises:
        ArtifactError: it cannot be read or written, or is damaged.
    """
    path = journal_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise _unwritable(error) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _unreadable("not a plain file")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_size == 0:
                sync(path.parent)
            else:
                _drop_torn_line(descriptor)
        except OSError as error:  # such as a folder on a network that knows no locks
            raise _unwritable(error) from None
        yield Journal(descriptor, look())
    finally:
        unlock(descriptor)


def unlock(descriptor: int) -> None:
    """Closes a file and gives its lock back, which a process forked meanwhile would else hold as long as it lives."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def begin(path: Path) -> None:
    """Says that what is at ``path`` from now on is new: ledgers that lay there, or below it, are another's.

    For folders that dpltm makes, and for ledgers that it takes away itself. What those ledgers held stays on record.

    Raises:
        ArtifactError: the journal cannot be read or written.
    """
    for name in names_of(path):
        if any(_below(each, name) for each in look().names):
            with locked() as journal:
                journal.begin(name)


def _below(name: str, path: str) -> bool:
    return name == path or name.startswith(path.rstrip(os.sep) + os.sep)


@lru_cache(maxsize=2)
def _read(path: Path, _inode: int, _modified: int, _size: int) -> Record:
    text = read_bytes(path, MAX_JOURNAL).decode("utf-8", "replace")
    lines = text.split("\n")[:-1]  # what follows the last line's end was never acted on
    if not lines:
        return Record()
    try:
        check_schema(f"{path}: line 1", json.loads(lines[0]), FORMAT, SCHEMA)
    except ArtifactError:
        raise
    except (ValueError, RecursionError):
        raise _unreadable("line 1 is damaged") from None
    chains: dict[int, list[Link]] = {}
    names: dict[str, int] = {}
    order: list[tuple[int, str]] = []
    for place, line in enumerate(lines[1:], start=2):
        entry = _ENTRY.fullmatch(line)
        try:
            if entry is None:
                _read_name(json.loads(line), names, chains)
                continue
            chain = chains.setdefault(int(entry[1]), [])
            found = (chain[-1].digest if chain else "") + entry[3]
            if hashlib.sha256(found.encode()).hexdigest() != entry[2]:
                raise ValueError(line)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise _unreadable(f"line {place} is damaged") from None
        chain.append(Link(entry[3], entry[2]))
        order.append((int(entry[1]), entry[3]))
    return Record(MappingProxyType(chains), MappingProxyType(names), tuple(order))


def _read_name(body: dict[str, object], names: dict[str, int], chains: dict[int, list[Link]]) -> None:
    """Follows a line that says under which name a ledger was used, or that a place was begun anew."""
    if set(body) == {"begun"}:
        for name in [name for name in names if _below(name, str(body["begun"]))]:
            del names[name]
        return
    number, path = body["ledger"], body["name"]
    if set(body) != {"ledger", "name"} or not isinstance(number, int) or not isinstance(path, str):
        raise ValueError(body)
    names[path] = number
    chains.setdefault(number, [])


def _drop_torn_line(descriptor: int) -> None:
    """Takes away what a process that died in the middle of a write left: nothing was released for it."""
    size = os.fstat(descriptor).st_size
    data = os.pread(descriptor, min(size, 2**20), max(0, size - 2**20))
    if not data.endswith(b"\n"):
        os.ftruncate(descriptor, size - len(data) + data.rfind(b"\n") + 1)


def _unreadable(why: str | None) -> ArtifactError:
    return ArtifactError(
        f"{journal_path()}: what ledgers held cannot be read ({why}); put this file back from a backup, or move it away:"
        " ledgers are then known again as they are used"
    )


def _unwritable(error: OSError) -> ArtifactError:
    return ArtifactError(
        f"{journal_path()}: what ledgers hold cannot be kept ({error.strerror}), so nothing was spent; make room, or point"
        " DPLTM_KEY at a file in another folder"
    )
