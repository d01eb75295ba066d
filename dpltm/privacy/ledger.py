"""The ledger: the account of one population, to which entries are added and from which none is ever taken.

It lies in memory, or where another :class:`Store` keeps it (``dpltm.tickets`` keeps files).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dpltm.errors import ArtifactError, InputError
from dpltm.privacy.account import Account, check_declared, check_moves
from dpltm.privacy.entry import NO_LINEAGE, RECORD, Entry, Head, Id, Lineage, Part, entry_from_json, to_json, union

if TYPE_CHECKING:
    from dpltm.records.dataset import Dataset


def canonical(body: object) -> str:
    """Return JSON with sorted keys and no blanks: what digests are taken of."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def facts_digest(facts: object) -> str:
    """Return the digest of what some work is of, by which an entry knows it again; as JSON."""
    return hashlib.sha256(canonical(facts).encode()).hexdigest()


@dataclass(frozen=True)
class Book:
    """Identity and contents of a ledger at one moment.

    Attributes:
        home: its id.
        population: whose account it is, by name; None where nobody named it.
        asked: the noun of whom it is to protect, as long as no entry says.
        key: secret, by which snapshots of datasets are known; it never leaves the owner.
        digests: of the chain: of the header, then up to each entry, oldest first.
    """

    home: Id
    population: str | None
    asked: str
    key: bytes = field(repr=False)
    entries: tuple[Entry, ...]
    digests: tuple[str, ...]

    @classmethod
    def new(cls, population: str | None = None, unit: str = RECORD) -> Book:
        home = secrets.token_hex(32)
        return cls(home, population, unit, secrets.token_bytes(32), (), (first_digest(home, population),))

    @property
    def settled(self) -> str | None:
        """Noun of whom it protects, by its first release, budget or test split; None as long as it holds none of these."""
        settling = (entry for entry in self.entries if entry.paid or entry.kind in ("budget", "excluded"))
        return next((entry.unit for entry in settling), None)

    @property
    def unit(self) -> str:
        return self.settled or self.asked

    @property
    def head(self) -> Head:
        return Head(self.home, len(self.entries), self.digests[-1])

    def extends(self, head: Head) -> bool:
        """Return whether it held, or holds, just what a head of this ledger says."""
        return 0 <= head.count <= len(self.entries) and self.digests[head.count] == head.digest

    def account(self, lineage: Lineage = NO_LINEAGE, *, own: bool = False) -> Account:
        """Return what it holds and what a value depends on; ArtifactError where that knows it longer, or other.

        With ``own``, all else that was paid for here is left out: the value is a trial among several, which all count.
        """
        self._check(lineage)
        entries = [entry for entry in self.entries if not own or entry.kind in ("public", "excluded", "apart")]
        return Account.of(entries, lineage, home=self.home, population=self.population, unit=self.unit)

    def _check(self, lineage: Lineage) -> None:
        """Refuse a lineage by which this ledger was longer, or another, than it is."""
        ids = {entry.id for entry in self.entries}
        for head in lineage.heads:
            if head.ledger == self.home and not self.extends(head):
                raise ArtifactError(
                    f"ledger: it holds {self.head}, and a value that was paid for here knows {head}: entries were removed,"
                    " or it is an older copy; put back the ledger that was written last"
                )
        for entry in lineage.entries:
            if entry.home == self.home and entry.id not in ids:
                raise ArtifactError(f"ledger: it lacks entry {entry.id[:12]}, which it is said to have paid for")

    def entry_of(self, draft: Entry) -> Entry | None:
        """Return the declaration on record of that kind and just that part; None where there is none."""
        return next((entry for entry in self.entries if _alike(entry, draft)), None)

    def lacking(self, drafts: Iterable[Entry]) -> list[Entry]:
        """Return releases among drafts, and declarations that it lacks; InputError if a release stands against it."""
        lacking, account = list[Entry](), self.account()
        for draft in drafts:
            if not draft.paid and any(_alike(draft, entry) for entry in (*self.entries, *lacking)):
                continue
            if not draft.paid:
                check_declared(account, draft.part, draft.kind)
            lacking.append(draft)
        return lacking

    def public(self, drafts: Iterable[Entry]) -> Lineage:
        """Return the lineage of what some drafts declare public, as far as they are on record."""
        declared = (self.entry_of(draft) for draft in drafts if draft.kind == "public")
        entries = union(entry for entry in declared if entry is not None)
        return Lineage(entries, (self.head,)) if entries else NO_LINEAGE

    def adding(self, drafts: Iterable[Entry], ids: Iterable[Id]) -> Book:
        """Return it with drafts added, one of ``ids`` each; ArtifactError for an id on record, or what none could read."""
        entries, digests = list(self.entries), list(self.digests)
        for draft, id in zip(drafts, ids, strict=True):
            population = draft.population if draft.kind == "apart" else self.population
            unit = draft.unit if draft.paid else self.unit
            entry = replace(draft, id=id, home=self.home, population=population, unit=unit, sequence=len(entries) + 1)
            entry = entry_from_json(to_json(entry))  # as it will be read: 1 is 1.0 then, for digests too
            entries.append(entry)
            digests.append(hashlib.sha256((digests[-1] + canonical(to_json(entry))).encode()).hexdigest())
        if len({entry.id for entry in entries}) < len(entries):
            raise ArtifactError("ledger: a release that it holds already cannot be entered again")
        return replace(self, entries=tuple(entries), digests=tuple(digests))


def _alike(left: Entry, right: Entry) -> bool:
    return (left.kind, left.part) == (right.kind, right.part)


def first_digest(home: Id, population: str | None) -> str:
    """Return the digest that the chain of a ledger begins with."""
    return hashlib.sha256(canonical([home, population]).encode()).hexdigest()


class Store:
    """Storage of a ledger: here the memory of this process alone."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._process = os.getpid()
        self._lock = threading.Lock()

    def read(self) -> Book:
        """Return what lies there now; ArtifactError if it is damaged, or shorter than it is known to have been."""
        return self._book

    def locked(self) -> contextlib.AbstractContextManager[object]:
        """Return a block in which no other thread or process adds anything there; not to be entered twice."""
        if self._process != os.getpid():
            raise InputError(
                "`ledger`: it lies in the memory of another process, which would not see what is entered here; keep it in a"
                " file (dpltm.tickets.open_ledger)"
            )
        return self._lock

    def opener(self, unit: str) -> Callable[[], Ledger] | None:
        """Return what opens the ledger in another process; None where nothing does."""
        del unit
        return None

    def add(self, before: Book, after: Book) -> None:
        """Write, flush and sync what ``after`` has more than ``before``, all or nothing; called in a locked block."""
        del before
        self._book = after


class Ledger:
    """The account of one population.

    Args:
        population: whose account it is, by name; a name separates nothing by itself.
        unit: the noun of whom it is to protect, such as ``record`` or ``patient``, until its first release, budget or test
            split decides.
        store: where it lies; memory by default.

    Guarantees:
        Threads may share one. It is never copied: two of it would each spend the same budget. One on disk is pickled as its
        path, and opened again; one in memory refuses pickles and other processes.

    Example:
        >>> from dpltm.privacy.mechanisms import NoisySgd
        >>> ledger = Ledger()
        >>> training = NoisySgd(256 / 60000, steps=14062, noise_multiplier=1.1)
        >>> _ = ledger.declare(Entry("release", mechanisms=(training,), words="a training"))
        >>> len(ledger.entries), round(ledger.account().epsilon(delta=1e-5), 2)
        (1, 2.38)
    """

    def __init__(self, population: str | None = None, unit: str = RECORD, store: Store | None = None) -> None:
        self._store = Store(Book.new(population, unit)) if store is None else store
        self._unit = unit
        self._hashed_by: bytes | None = None  # the key of all snapshots that it gave out

    @property
    def book(self) -> Book:
        """Identity and contents now. Raises Begun if another process began it since snapshots were taken."""
        book = replace(self._store.read(), asked=self._unit)
        if self._hashed_by not in (None, book.key):
            self._hashed_by = None
            raise Begun(
                "`ledger`: another command began it while this one was getting ready, and nothing was entered; repeat this"
                " one"
            )
        return book

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, oldest first."""
        return self.book.entries

    @property
    def unit(self) -> str:
        """Noun of whom it protects."""
        return self.book.unit

    @property
    def population(self) -> str | None:
        """Name of the people whose account it is."""
        return self.book.population

    def account(self, lineage: Lineage = NO_LINEAGE) -> Account:
        """Return what it holds, together with what a value depends on. Raises as :meth:`Book.account`."""
        return self.book.account(lineage)

    def lineage(self, *entries: Entry) -> Lineage:
        """Return a lineage of these of its entries, with its head."""
        return Lineage(entries, (self.book.head,))

    def snapshot(self, digest: bytes) -> Id:
        """Return the id of a dataset by the digest of its content: equal for equal content, meaningless without the key."""
        self._hashed_by = self.book.key
        return hmac.new(self._hashed_by, digest, hashlib.sha256).hexdigest()

    def part(self, dataset: Dataset) -> Part:
        """Return the part of a dataset, with its snapshot: published records have one name everywhere, others one here."""
        published = dataset.published_id()
        snapshot = self.snapshot(dataset.content_digest()) if published is None else published
        part = replace(dataset.part, name=dataset.name, snapshot=snapshot)
        return self.owned(part, dataset.noun, dataset.owners_digest())

    def owned(self, part: Part, noun: str, owners: bytes | None) -> Part:
        """Return a part with whose its records are.

        Args:
            part: what the records are.
            noun: whom they are of.
            owners: digest of whose each record is; None where nothing says so.
        """
        return part if owners is None else replace(part, columns=(noun, self.snapshot(owners)))

    def public(self, dataset: Dataset, words: str) -> tuple[Entry, ...]:
        """Return the draft that declares ``dataset`` public, with ``words`` on what is read."""
        return (Entry("public", self.part(dataset), words=words, unit=self.unit),)

    def apart(self, dataset: Dataset) -> tuple[Entry, ...]:
        """Return the draft that declares the test split of a dataset, measured exactly, apart from the population;
        none where a publication says so, or without a test split."""
        if dataset.test is None or dataset.test.nobodys:
            return ()
        return (Entry("excluded", self.part(dataset.tested()), words="a test split", unit=self.unit),)

    def declared(self, dataset: Dataset) -> Entry | None:
        """Return what is on record of a dataset's records, just those, by which they are read as they are: the declaration
        that they are public or excluded, or a release with no mechanism; None where there is none."""
        part = self.part(dataset)
        return next((entry for entry in self.entries if entry.exposes and entry.part == part), None)

    def declared_test(self, dataset: Dataset) -> Entry | None:
        """Return the same of the test split; None where a publication says that it is apart."""
        apart = dataset.test is None or dataset.test.nobodys
        return None if apart else self.declared(dataset.tested())

    def declare_once(self, *drafts: Entry) -> Lineage:
        """Enter ``drafts``, except declarations on record; return the lineage of releases and public records.

        Raises:
            InputError: a release on record protects some of these records.
            BudgetError: a budget would be exceeded.
        """
        paid: list[Entry] = []
        if self.book.lacking(drafts):
            with self.adding() as book:  # what others entered meanwhile counts
                paid = [entry for entry in self._declare(book, *book.lacking(drafts)) if entry.paid]
        public = self.book.public(drafts)
        return public | self.lineage(*paid) if paid else public

    def declare(self, *drafts: Entry) -> tuple[Entry, ...]:
        """Enter declarations, or releases that were made elsewhere, all or none; return them as they are on record.

        BudgetError where a budget would be exceeded. Of a release made here see ``release.pay``.
        """
        with self.adding() as book:
            return self._declare(book, *drafts)

    def _declare(self, book: Book, *drafts: Entry) -> tuple[Entry, ...]:
        check_moves(book.account() + drafts)
        book.account().check_budget(drafts)
        return self._add(book, drafts, [secrets.token_hex(32) for _ in drafts])

    def enter(self, draft: Entry, id: Id, planned_on: Head) -> Entry:
        """Enter a release, and return it as it is on record. Raises Moved or BudgetError, and enters nothing.

        Args:
            draft: of the release.
            id: SHA-256 of its secret key.
            planned_on: head of the ledger at planning; if something was entered since (Moved), plan again.
        """
        with self.adding() as book:
            if book.head != planned_on:
                raise Moved
            book.account().check_budget((draft,))
            (entry,) = self._add(book, (draft,), (id,))
            return entry

    @contextlib.contextmanager
    def adding(self) -> Iterator[Book]:
        """Begin a block in which nobody else adds anything, with what the ledger holds."""
        with self._store.locked():
            yield self.book

    def begin(self) -> None:
        """Make its file and its key where there are none, so that all who open it take snapshots by one key."""
        with self.adding() as book:
            self._store.add(book, book)

    def _add(self, book: Book, drafts: Iterable[Entry], ids: Iterable[Id]) -> tuple[Entry, ...]:
        drafts = tuple(drafts)
        for draft in drafts:
            if draft.paid and draft.unit != book.unit:
                raise InputError(
                    f"`unit`: this ledger protects one {book.unit}, and the release one {draft.unit}; name another `ledger`"
                )
            if draft.paid and draft.population not in (None, book.population):
                raise InputError(
                    f"`population`: this ledger is the account of {book.population or 'people whom nobody named'}, and the"
                    f" release is from {draft.population}; name another `ledger`"
                )
        after = book.adding(drafts, ids)
        self._store.add(book, after)
        return after.entries[len(book.entries) :]

    def __repr__(self) -> str:
        return f"<Ledger of {len(self.entries)} entries; .entries lists them>"

    def __copy__(self) -> Ledger:
        return self

    def __deepcopy__(self, memo: object) -> Ledger:
        return self

    def __reduce__(self) -> tuple[Callable[[], Ledger], tuple[()]]:
        opener = self._store.opener(self.unit)
        if opener is None:
            raise InputError(
                "`ledger`: one in memory cannot be pickled, since two of it would each spend the same budget; keep it in a"
                " file (dpltm.tickets.open_ledger)"
            )
        return opener, ()


class Begun(InputError):
    """Another process began a ledger after something was hashed for it; whoever settles anew goes on."""


class Moved(Exception):
    """Something was entered since a release was planned."""


_of_process: list[Ledger] = []
_making = threading.Lock()  # two threads would make two ledgers, each with a part of one account


def of_process(unit: str = RECORD) -> Ledger:
    """Return the ledger of arrays where none is named: one a process. Raises InputError if it protects another unit:
    two ledgers would let what concerns the same people stand apart."""
    with _making:
        if not _of_process:
            _of_process.append(Ledger(unit=unit))
        (ledger,) = _of_process
        if ledger.book.settled is None:
            ledger._unit = unit
        protected = ledger.unit
    if protected != unit:
        raise InputError(
            f"`ledger`: that of this process protects one {protected}, not one {unit}, and figures for the two do not add"
            f" up; for other people pass one of their own, Ledger(unit={unit!r})"
        )
    return ledger
