"""What an estimator and its clones spend together: whoever of them fits, in whatever ledger, and what all of it comes to.

scikit-learn copies an estimator before each fit of a cross-validation or a grid search, and throws the copies away. Each
of them read the records, so each of them counts: they share an :class:`Account`, which stays where it is when they are
copied, and has a :class:`Book` for each ledger that one of them named. What was spent goes along when they are pickled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NoReturn, cast

from dpltm.errors import ArtifactError, InputError, shown_value
from dpltm.privacy.budgets import budgets_in, check_budgets
from dpltm.privacy.events import BudgetEvent, DatasetRef, Event, GuaranteeEvent, ReleaseEvent, TrainingEvent
from dpltm.privacy.lineage import check_never_private, check_not_public, entered_on, to_enter
from dpltm.privacy.mechanisms import Adjacency, Guarantee
from dpltm.privacy.old_ledger import Ledger, after, as_adaptive, merge
from dpltm.privacy.parts import as_replace_one, other_users, stated_relations, users_of
from dpltm.privacy.report import report
from dpltm.privacy.statement import PrivacyReport
from dpltm.records import Dataset
from dpltm.records.registry import RecordRegistry

SCORE = "score, of sums with two-sided geometric noise"
"""What a score that is paid for releases."""

TOGETHER = "all records of an estimator"

TRIES = 20
"""Times that an event is offered to a file which other processes write to."""

BOTH_RELATIONS = (
    "some releases are for add-remove and some for replace-one; the figure is for replace-one, where one for add-remove"
    " counts as two steps"
)

Opener = Callable[[], Ledger]
"""Opens a ledger, in each process, whenever it is needed: others may have written to it."""


@dataclass(frozen=True)
class Before:
    """What an estimator and its clones spent before it was pickled, beside what a file holds that it opens again.

    Attributes:
        events: as on the same records.
        notes: of their fits.
        measured: whether accuracy was measured for free.
    """

    events: tuple[Event, ...] = ()
    notes: tuple[str, ...] = ()
    measured: bool = False


@dataclass(eq=False)
class Account:
    """The ledgers of an estimator and its clones, and which of their entries are theirs.

    Attributes:
        before: what was spent before it was pickled; None where it never was.
        books: one for each ledger that an estimator named.
        measured: records that accuracy was measured on for free, since they are separate, and who tells them apart.
        notes: what the fits said of their public inputs, each once.
    """

    before: Before | None = None
    books: list[Book] = field(default_factory=list)
    measured: list[tuple[RecordRegistry, DatasetRef]] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    _own: Ledger = field(default_factory=Ledger, repr=False)

    def __post_init__(self) -> None:
        self.notes |= dict.fromkeys(() if self.before is None else self.before.notes)

    def __copy__(self) -> Account:
        return self

    def __deepcopy__(self, memo: object) -> Account:
        return self

    def __reduce__(self) -> NoReturn:
        raise InputError("`ledger`: the account of an estimator stays in its process; pickle the estimator without it")

    def book(self, named: Ledger | Opener | None) -> Book:
        """The entries in one ledger.

        Args:
            named: the ledger, or what opens it; None for one in memory.

        Raises:
            InputError: it stayed in another process, or with what was pickled; or what opens one does not.
        """
        if named is None and self.before is not None:
            raise InputError(
                "`ledger`: this estimator was pickled, and its ledger stayed behind: what it spends here would be entered"
                " nowhere that you see; leave `n_jobs` 1, or run threads (joblib.parallel_backend('threading')), or give"
                " `ledger` as a function that opens a file which processes share:"
                " functools.partial(dpltm.tickets.ledger_file.open_ledger, path)"
            )
        where = self._own if named is None else named
        with self.lock:
            for book in self.books:
                if book.where is where:
                    return book
            book = Book(self, where)
            _ = book.ledger  # or it is none, and stays out
            self.books.append(book)
            return book

    def left_behind(self, here: object) -> Before:
        """What goes along when an estimator is pickled.

        Args:
            here: what the estimator names as its ledger. A file that it opens again is left out.
        """
        events = self._spent([book for book in self.books if isinstance(book.where, Ledger) or book.where is not here])
        return Before(events, tuple(self.notes), self._was_measured)

    @property
    def _was_measured(self) -> bool:
        return bool(self.measured) or (self.before is not None and self.before.measured)

    def total(self, delta: float, adjacency: str, accountant: str) -> PrivacyReport | None:
        """The report on everything that was spent on the records of the fits; None where there was none.

        A step in front of an estimator may have changed the records from one fit to the next, and then nobody can tell that
        they are the same people. So all of them count as the same records, whichever ledger holds them.

        Args:
            delta, accountant: of the report.
            adjacency: stated where no event fixes one.
        """
        events = self._spent(self.books)
        if not any(isinstance(event, ReleaseEvent) for event in events):
            return None
        notes = [*self._counted(events), *self.notes]
        if len(set(stated_relations(events))) > 1:
            events = tuple(map(as_replace_one, events))
            notes.append(BOTH_RELATIONS)
        return report(events, delta, cast(Adjacency, adjacency), notes, accountant)

    def check_budgets(self, planned: Iterable[Event]) -> None:
        """Refuses ``planned`` if they exceed a budget on any records that count here, were all of them the same.

        Raises:
            BudgetError: with the budget and what everything would come to.
        """
        budgets = budgets_in(merge(book.counted() for book in self.books))
        if not budgets:
            return
        spent = tuple(event for event in self._spent(self.books) if not isinstance(event, BudgetEvent))
        new = tuple(map(_together, planned))
        if stated_relations(spent):
            new = tuple(map(as_adaptive, new))
        for budget in budgets:  # one by one: on the same records, the last of them alone would count
            check_budgets((*spent, _together(budget)), new)

    def check_one_kind(self, dataset: Dataset) -> None:
        """Refuses a fit for other persons than those that an earlier one protects: together they would protect nobody.

        Args:
            dataset: the records, and whose each of them is.

        Raises:
            InputError: some of its rows were somebody else's, or the column that says so had another name.
        """
        for book in self.books:
            knows = book.ledger.registry
            mine = replace(knows.reference(dataset), units=dataset.units_name)
            for ref in users_of(book.counted()):
                if other_users(mine, knows.resolve(ref)):
                    raise InputError(
                        "`units`: an earlier fit of this estimator, or of a clone of it, protects persons of another kind"
                        f" (by {ref.units}), and both together would protect neither; give the same units, or fit an"
                        " estimator of its own for these"
                    )

    def _spent(self, books: Iterable[Book]) -> tuple[Event, ...]:
        """What counts in some of the ledgers, and from before, as on the same records: each release once.

        Two ledgers do not tell which of their releases came first, so where several have some, a draw is a later one, which
        costs more.
        """
        ledgers = [tuple(map(_together, book.counted())) for book in books]
        if self.before is not None:
            ledgers.append(self.before.events)
        events = merge(ledgers)
        if sum(bool(stated_relations(each)) for each in ledgers) > 1:
            return tuple(map(as_adaptive, events))
        found: list[Event] = []
        for event in events:
            found.append(after(event, found))
        return tuple(found)

    def _counted(self, events: Iterable[Event]) -> list[str]:
        events = tuple(events)
        fits = sum(isinstance(event, TrainingEvent) for event in events)
        scores = sum(isinstance(event, GuaranteeEvent) and event.what == SCORE for event in events)
        notes = []
        if fits + scores > 1:
            notes.append(
                f"{fits} trainings and {scores} paid scores are on record; epsilon covers all of them together, as if"
                " they were on the same records"
            )
        if self._was_measured:
            notes.append(
                "accuracy was measured by `score` on records kept separate, without noise: nothing is promised for those"
            )
        return notes


@dataclass(eq=False)
class Book:
    """One ledger of an account.

    Attributes:
        account: of all of them.
        where: the ledger, or what opens it.
        records: of fits and of paid scores that are entered there.
    """

    account: Account
    where: Ledger | Opener
    records: list[DatasetRef] = field(default_factory=list)

    @property
    def ledger(self) -> Ledger:
        """Where everything is entered, as it is now."""
        if isinstance(self.where, Ledger):
            return self.where
        opened = self.where()
        if not isinstance(opened, Ledger):
            raise InputError(
                f"`ledger`: the function returns {shown_value(opened)}, not a ledger; give one that opens the same file each"
                " time"
            )
        return opened

    def counted(self) -> tuple[Event, ...]:
        """The entries that count."""
        return self._ours(self.ledger.events)

    def _ours(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """Those on records of the fits; of a file that is opened anew, all, since others write to it."""
        if not isinstance(self.where, Ledger):
            return tuple(events)
        resolved = [self.where.registry.resolve(ref) for ref in self.records]
        return tuple(event for event in events if any(event.dataset.may_overlap(ref) for ref in resolved))

    def open_fit(self, dataset: Dataset, adjacency: str) -> Ledger:
        """A ledger for one fit, whose budget is its own; all that is entered there is entered here before it counts.

        Args:
            dataset: the private records.
            adjacency: neighbouring relation of the fit.

        Raises:
            InputError: the records are on record as public, accuracy was measured on some of them for free, or an earlier
                fit protects persons of another kind.

        Guarantees:
            Nothing is released by the fit before it is in ``ledger``, whose budgets hold.
        """
        ledger = self.ledger
        records = entered_on(dataset, adjacency, ledger.registry)
        check_not_public(ledger.events, records, ledger.registry)
        measured = self.account.measured
        if any(knows.resolve(ref).surely_overlaps(knows.look_at(dataset)) for knows, ref in measured):
            raise InputError(
                "`x`: accuracy on some of these records was measured by `score` without noise, as on records kept separate,"
                " so they cannot be private here; to cross-validate on private records give `score_epsilon`, which pays"
                " for each score"
            )

        if dataset.units is not None:
            self.account.check_one_kind(dataset)

        def persist(events: tuple[Event, ...]) -> None:
            self._enter(events, records)

        return Ledger(persist=persist, registry=ledger.registry)

    def pay_score(self, dataset: Dataset, adjacency: str, epsilon: float) -> None:
        """Enters the release of a score with noise.

        Args:
            dataset: whose training split is scored.
            adjacency: neighbouring relation.
            epsilon: of the release.

        Raises:
            BudgetError: a budget on the records does not allow it; nothing was entered.
        """
        records = entered_on(dataset, adjacency, self.ledger.registry)
        guarantee = Guarantee(epsilon, adjacency=cast(Adjacency, adjacency))
        self._enter((GuaranteeEvent(records, guarantee, SCORE),), records)

    def note_measured(self, dataset: Dataset) -> None:
        """Remembers that accuracy on the training split of ``dataset`` was measured for free."""
        registry = self.ledger.registry
        self.account.measured.append((registry, registry.reference(dataset)))

    def check(self, events: Iterable[Event], dataset: Dataset, adjacency: str) -> None:
        """Refuses what :meth:`open_fit` would, once ``events`` are entered one after the other; enters nothing.

        Args:
            events: that a fit would enter.
            dataset, adjacency: as of :meth:`open_fit`.

        Raises:
            BudgetError: a budget does not allow all of them together.
        """
        with self.account.lock:
            ledger = self.ledger
            self.records.append(entered_on(dataset, adjacency, ledger.registry))
            try:
                ledger.check_budgets(self._allowed(events, ledger))
            finally:
                self.records.pop()

    def _allowed(self, events: Iterable[Event], ledger: Ledger) -> tuple[Event, ...]:
        """Those of ``events`` that are not on record, as they compose with what is.

        Raises:
            BudgetError: a budget in the account does not allow them.
        """
        new: list[Event] = []
        for event in to_enter(events, ledger.events):
            new.append(after(event, (*ledger.events, *new)))
        check_never_private(ledger.events, new)
        self.account.check_budgets(self._ours(new))
        return tuple(new)

    def _enter(self, events: Iterable[Event], records: DatasetRef) -> None:
        """Enters what is not on record yet, as it composes with what is, if every budget in the account allows it."""
        events = tuple(events)
        for left in reversed(range(1 if isinstance(self.where, Ledger) else TRIES)):
            try:
                with self.account.lock:
                    ledger = self.ledger
                    self.records.append(records)
                    try:
                        ledger.enter(self._allowed(events, ledger))
                    except BaseException:
                        self.records.pop()
                        raise
                return
            except ArtifactError:  # another process wrote to the file since it was opened: nothing was entered
                if not left:
                    raise


def _together(event: Event) -> Event:
    """The event as on records that every other is on."""
    ref = event.dataset if event.dataset.cut == "positions" else event.dataset.all
    return replace(event, dataset=replace(ref, id=TOGETHER, key_id="", content=TOGETHER))
