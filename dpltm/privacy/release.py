"""The door: a value computed from private records is drawn only after the entry that pays for it is on record.

Every verb comes here. It makes a :class:`Release` from its options, which can be priced without a secret; :func:`pay` checks
it, mints the secret, keeps that in the checkpoint, enters the entry under the ledger's lock, synced, and only then lets the
release draw. Private arrays are opened by :class:`Secret` values alone, and only ``pay`` makes one that a ledger knows.

What holds, whenever the process is killed: a value that was drawn has its entry; an entry without a value costs, and is
found again by its id; no secret is ever paid twice, so no two noisy values share one noise.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from dpltm.errors import InputError
from dpltm.privacy.account import Account
from dpltm.privacy.entry import Entry, Id, Lineage
from dpltm.privacy.ledger import Book, Ledger, Moved

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

ATTEMPTS = 100
"""How often a release is planned anew because others enter theirs meanwhile."""


@dataclass(frozen=True)
class Secret:
    """256 random bits that everything random of one release follows from; they never leave its process and checkpoint.

    Attributes:
        key: the bits. Whoever has them can take the noise away.
    """

    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    @property
    def id(self) -> Id:
        """What the release is known by: tells nothing of the key."""
        return hashlib.sha256(b"dpltm release" + self.key).hexdigest()

    def child(self, name: str) -> bytes:
        """Return 32 bytes for one purpose of the release, independent of those for any other.

        Args:
            name: of the purpose, such as ``noise``.
        """
        return hmac.new(self.key, name.encode(), hashlib.sha256).digest()


class Release(Protocol[T_co]):
    """Something that is to be computed from private records: what it costs, and how it is drawn.

    Attributes:
        entry: its draft, without id; complete before anything is drawn.
        lineage: of everything that it is made of.
    """

    @property
    def entry(self) -> Entry: ...
    @property
    def lineage(self) -> Lineage: ...

    def check(self) -> None:
        """Refuse what cannot be done, before anything is spent. May look at records; gives nothing of them away."""
        ...

    def draw(self, secret: Secret, at: Any) -> Iterator[T_co]:
        """Yield the values that the entry pays for.

        Args:
            secret: of the release; opens its records.
            at: the state of a checkpoint to go on from; None to begin.
        """
        ...


class Keeper(Protocol):
    """Where the checkpoint of a release lies."""

    def held(self) -> tuple[Id, Any] | None:
        """Return the id, and the state, of a release to go on with; None to begin."""
        ...

    def keep_secret(self, secret: Secret, facts: str) -> None:
        """Put a secret on disk before its entry is; when this returns, it is there.

        Args:
            secret: of a release that is not entered yet.
            facts: of its entry.
        """
        ...

    def secret(self) -> Secret:
        """Return the secret that was kept."""
        ...

    def forget(self) -> None:
        """Remove what is kept."""
        ...


class InMemory:
    """Nothing is kept: a release ends with its process."""

    def held(self) -> tuple[Id, Any] | None:
        """See :class:`Keeper`."""
        return None

    def keep_secret(self, secret: Secret, facts: str) -> None:
        """See :class:`Keeper`."""

    def secret(self) -> Secret:
        """See :class:`Keeper`."""
        raise AssertionError("nothing is held")

    def forget(self) -> None:
        """See :class:`Keeper`."""


@dataclass(frozen=True)
class Paid(Generic[T]):
    """A release that was paid for.

    Attributes:
        release: what was planned.
        entry: as it is on record.
        lineage: of the values: what they are made of, and the release itself.
        account: everything that counts with it.
        values: what it yields as it is drawn.
    """

    release: Release[T]
    entry: Entry
    lineage: Lineage
    account: Account
    values: Iterator[T] = field(repr=False)


def price(release: Release[Any], book: Book) -> Account:
    """Return what a release would bring its population to, as ``--dry-run`` shows it: no secret is made, nothing is spent.

    Args:
        release: that is planned.
        book: of the ledger that would pay.
    """
    drafts = (release.entry,)
    return book.account(release.lineage) + drafts


def pay(plan: Callable[[Book, Entry | None], Release[T]], ledger: Ledger, keeper: Keeper | None = None) -> Paid[T]:
    """Plan, check, price, enter and begin a release, or go on with one that was paid for.

    Args:
        plan: gives the release from what the ledger holds, to which it may calibrate; and from its entry, if it is on record
            already: then mechanisms are read from that, and nothing is calibrated.
        ledger: that pays.
        keeper: where its checkpoint lies.

    Raises:
        BudgetError: a budget does not allow it. Nothing is spent.
        InputError: it cannot be done, or the checkpoint is of a release that this ledger does not hold.

    Guarantees:
        When ``values`` can be drawn from, the secret and then the entry are on disk. Two calls never share a secret. What a
        killed process left is found again: without an entry nothing was drawn, and the secret is dropped.
    """
    keeper = InMemory() if keeper is None else keeper
    held = keeper.held()
    if held is not None:
        resumed = _go_on(plan, ledger, keeper, *held)
        if resumed is not None:
            return resumed
    for _ in range(ATTEMPTS):
        book = ledger.book
        release = plan(book, None)
        release.check()
        (book.account(release.lineage)).check_budget((release.entry,))
        secret = Secret()
        keeper.keep_secret(secret, release.entry.facts)
        try:
            entry = ledger.enter(release.entry, secret.id, book.head)
        except Moved:
            keeper.forget()
            continue
        except BaseException:
            keeper.forget()
            raise
        return _begun(release, entry, ledger, release.draw(secret, None))
    raise InputError("`ledger`: others enter their releases all the time; try again when they have ended")


def _go_on(
    plan: Callable[[Book, Entry | None], Release[T]], ledger: Ledger, keeper: Keeper, id: Id, state: Any
) -> Paid[T] | None:
    """The release that a checkpoint is of; None where it was never entered and drew nothing."""
    known = next((entry for entry in ledger.entries if entry.id == id), None)
    if known is None:
        if state is not None:
            raise InputError(
                "`ledger`: it does not hold the release that the checkpoint goes on with, and values were drawn; put back"
                " the ledger that it was entered in, or say `fresh` to begin again"
            )
        keeper.forget()
        return None
    release = plan(ledger.book, known)
    release.check()
    if release.entry.facts != known.facts:
        raise InputError(
            "checkpoint: an interrupted attempt was begun with other settings or records; repeat the same command to go on,"
            " choose another `out`, or say `fresh` to begin again (what was spent stays spent)"
        )
    return _begun(release, known, ledger, release.draw(keeper.secret(), state))


def _begun(release: Release[T], entry: Entry, ledger: Ledger, values: Iterator[T]) -> Paid[T]:
    lineage = release.lineage | ledger.lineage(entry)
    return Paid(release, entry, lineage, ledger.account(release.lineage), values)
