"""The door: a value computed from private records is drawn only after the entry that pays for it is on record.

Every verb comes here with a :class:`Release`, which can be priced without a secret; :func:`pay` checks it, mints the secret
key, keeps that in the checkpoint, enters the entry under the ledger's lock, synced, and only then lets the release draw. All
randomness follows from the key, and it opens the records (``dpltm.records.Split.open``).

What holds, whenever the process is killed: a value that was drawn has its entry; an entry without a value costs, and is
found again by its id; no key is ever paid twice, so no two noisy values share one noise.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from dpltm.errors import DpltmError, InputError
from dpltm.privacy.account import Account, check_moves, check_private
from dpltm.privacy.checkpoint import AGAIN, NOT_KEPT, OTHERWISE, Checkpoint, Checkpoints, check_same
from dpltm.privacy.entry import Entry, Lineage, Secret, release_id
from dpltm.privacy.ledger import Book, Ledger, Moved

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
ATTEMPTS = 100  # number of attempts to plan a release while others enter theirs
BUSY = "`ledger`: others enter their releases all the time; try again when they have ended"


class Release(Protocol[T_co]):
    """A computation from private records: what it costs, and how it is drawn.

    ``entry`` is a draft, complete before anything is drawn; ``lineage`` covers everything that it is made of; ``beside`` are
    drafts that declare what else is read, entered before it: a test split (excluded), or public records.
    """

    @property
    def entry(self) -> Entry: ...
    @property
    def lineage(self) -> Lineage: ...
    @property
    def beside(self) -> tuple[Entry, ...]: ...

    def rehearse(self) -> None:
        """Try the work once before the first entry, and refuse what fails, such as a network that mixes records."""

    def draw(self, secret: Secret, at: Checkpoint | None) -> Iterator[T_co]:
        """Yield the values that the entry pays for, from where a checkpoint was taken; None to begin."""


@dataclass(frozen=True)
class Once(Generic[T]):
    """A :class:`Release` of one ``value`` of its secret."""

    entry: Entry
    lineage: Lineage
    value: Callable[[Secret], T] = field(repr=False)
    beside: tuple[Entry, ...] = ()

    def rehearse(self) -> None:
        """See :class:`Release`."""

    def draw(self, secret: Secret, at: Checkpoint | None) -> Iterator[T]:
        del at
        yield self.value(secret)


class Values(Iterator[T]):
    """The values of a release, as they are drawn by one thread at a time, and by the process that paid: one that was forked
    off would add the same noise to what may be another sum by then."""

    def __init__(self, drawn: Iterator[T]) -> None:
        self._drawn = drawn
        self._process = os.getpid()
        self._lock = threading.Lock()

    def __next__(self) -> T:
        if self._process != os.getpid():
            raise InputError("values: another process paid for them and draws them; pay in the process that draws")
        with self._lock:
            return next(self._drawn)

    def __reduce__(self) -> NoReturn:
        raise InputError("values: are drawn once, and never pickled or copied")


@dataclass(frozen=True)
class Paid(Generic[T]):
    """A release that was paid for, with its ``entry`` on record; ``lineage`` and ``account`` include it."""

    release: Release[T]
    entry: Entry
    lineage: Lineage
    account: Account
    values: Values[T] = field(repr=False)


def price(release: Release[Any], book: Book) -> Account:
    """Return what a release would bring its population to, by the ledger that would pay; nothing is spent.

    Raises:
        BudgetError: a budget does not allow it.
        InputError: it cannot be done, or a declaration on record stands against it, or it against one of its own.
        ArtifactError: what it is made of knows more of the ledger than that holds.
    """
    account, drafts = book.account(release.lineage), (release.entry,)
    check_private(account, release.entry.part)
    beside = book.lacking(release.beside)  # which refuses declarations that a release on record stands against
    check_moves(account + drafts + beside)
    account.check_budget(drafts)
    return account + drafts


def pay(
    plan: Callable[[Book, Entry | None], Release[T]],
    ledger: Ledger,
    checkpoints: Checkpoints = NOT_KEPT,
    facts: Mapping[str, Any] | None = None,
) -> Paid[T]:
    """Plan, price, rehearse, enter and begin a release, or go on with one that was paid for.

    Args:
        plan: gives the release from what the ledger holds, to which it may calibrate; and from its entry, if it is on record
            already: then mechanisms are read from that, and nothing is calibrated. It refuses what shows without trying.
        ledger: that pays.
        checkpoints: where its checkpoint lies. Until the first draw it holds the key: after a kill, what was drawn is drawn
            again, with the same noise, and nobody was told. Later it must not: keys are erased as they are used.
        facts: by which interrupted work is known again, as JSON; differences are named.

    Raises:
        BudgetError: a budget does not allow it. Nothing is spent.
        InputError: it cannot be done, or the checkpoint is of a release that this ledger does not hold.

    Guarantees:
        When ``values`` can be drawn from, what is read beside the records is on record, and the key and then the entry are
        on disk. Two calls never share a key. Of a killed process that left no entry nothing was drawn: its key is dropped.
    """
    shown = dict(facts or {})
    if checkpoints.latest is not None:
        resumed = _go_on(plan, ledger, checkpoints.latest, shown)
        if resumed is not None:
            return resumed
    for attempt in range(ATTEMPTS):
        book = ledger.book
        release = plan(book, None)
        price(release, book)
        if attempt == 0:
            release.rehearse()  # not again: planning again changes noise and lineage alone
        ledger.declare_once(*release.beside)
        if ledger.book.head != book.head:
            continue  # planned again, with what was declared in its lineage; that stays on record whatever refuses now
        key = secrets.token_bytes(32)
        state = {"of": shown, "id": release_id(key), "key": key.hex()}
        checkpoints.keep(Checkpoint("before its first draw", state))
        try:
            entry = ledger.enter(release.entry, release_id(key), book.head)
        except Moved:
            continue  # another key takes the place of this one, which no ledger knows
        except DpltmError:  # nothing was entered; whatever else ends this call may come after that, so the key stays
            checkpoints.forget()
            raise
        return _begun(release, ledger, Secret(entry, key), None)
    checkpoints.forget()
    raise InputError(BUSY)


def _go_on(
    plan: Callable[[Book, Entry | None], Release[T]], ledger: Ledger, latest: Checkpoint, shown: Mapping[str, Any]
) -> Paid[T] | None:
    """The release that a checkpoint is of; None where no ledger paid for the key: it is dropped, and nothing was told."""
    book = ledger.book
    key = latest.state.get("key")
    entered = next((entry for entry in book.entries if entry.id == latest.state["id"]), None)
    if entered is None and key is not None:
        return None  # a key that nobody paid for, whatever work it was of
    check_same(latest.state["of"], shown)
    if entered is None:
        raise InputError(
            "`ledger`: it does not hold the release that the checkpoint goes on with, and values were drawn; put back"
            f" the ledger that it was entered in, or {AGAIN}"
        )
    release = plan(book, entered)
    # the draft, with what the ledger alone decides, is compared: one noise with two values would take the noise away
    settled = {name: getattr(entered, name) for name in ("id", "home", "sequence", "population", "day", "words")}
    draft = replace(release.entry, part=replace(release.entry.part, name=entered.part.name), **settled)
    if entered.part.snapshot is None or draft != entered:  # without a snapshot nothing says whose records these are
        raise InputError(f"checkpoint: an interrupted attempt was begun with other settings or records; {OTHERWISE}")
    ledger.declare_once(*release.beside)  # a test split may be another by now
    if ledger.book.head != book.head:
        release = plan(ledger.book, entered)
    secret = Secret(entered, None if key is None else bytes.fromhex(key))
    return _begun(release, ledger, secret, latest if key is None else None)


def hand_out(ledger: Ledger, entry: Entry, blocks: int, words: str) -> int | None:
    """Hand out the next block of a release's steps, to this caller alone; None where none is left.

    Args:
        ledger, entry: the release, which that ledger has on record.
        blocks: how many there are; they are handed out in order, from 0.
        words: what a block is, for people.

    Guarantees:
        On return it is on record, synced: no two callers have one block, in whatever processes, whenever they are killed.
    """
    for _ in range(ATTEMPTS):
        done = len(handed_out(book := ledger.book, entry))
        if done >= blocks:
            return None
        with contextlib.suppress(Moved):
            block = Entry("drawn", entry.part, words=words, facts=f"{entry.id}:{done}")
            ledger.enter(block, secrets.token_hex(32), book.head)
            return done
    raise InputError(BUSY)


def handed_out(book: Book, entry: Entry) -> tuple[Entry, ...]:
    """Return the blocks of a release's steps that were handed out."""
    return tuple(drawn for drawn in book.entries if drawn.kind == "drawn" and drawn.facts.startswith(f"{entry.id}:"))


def _begun(release: Release[T], ledger: Ledger, secret: Secret, at: Checkpoint | None) -> Paid[T]:
    lineage = release.lineage | ledger.lineage(secret.entry)
    account = ledger.account(release.lineage)
    return Paid(release, secret.entry, lineage, account, Values(release.draw(secret, at)))
