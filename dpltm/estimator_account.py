"""What an estimator and its clones spend together: one ledger, whoever of them fits, and what all of it comes to.

scikit-learn copies an estimator before each fit of a cross-validation or a grid search, and throws the copies away. Each
of them read the records, so each of them counts: they share an :class:`Account`, which stays where it is when they are
copied, and stays behind when they are pickled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NoReturn, cast

from dpltm.data import Dataset
from dpltm.errors import ArtifactError, InputError, shown_value
from dpltm.privacy.events import DatasetRef, Event, GuaranteeEvent, ReleaseEvent, TrainingEvent
from dpltm.privacy.ledger import Ledger, after
from dpltm.privacy.lineage import check_never_private, check_not_public, entered_on, to_enter
from dpltm.privacy.mechanisms import Adjacency, Guarantee
from dpltm.privacy.report import report
from dpltm.privacy.statement import PrivacyReport

SCORE = "score, of sums with two-sided geometric noise"
"""What a score that is paid for releases."""

TOGETHER = "all records of an estimator"

TRIES = 20
"""Times that an event is offered to a file which other processes write to."""


@dataclass(eq=False)
class Account:
    """The ledger of an estimator and its clones, and which of its entries are theirs.

    Attributes:
        held: the ledger that everything is entered in; None where
        opener: opens it, in each process, whenever it is needed: others may have written to it.
        records: of fits and of paid scores.
        measured: records that accuracy was measured on for free, since they are separate.
        notes: what the fits said of their public inputs, each once.
    """

    held: Ledger | None = None
    opener: Callable[[], Ledger] | None = None
    records: list[DatasetRef] = field(default_factory=list)
    measured: list[DatasetRef] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def __copy__(self) -> Account:
        return self

    def __deepcopy__(self, memo: object) -> Account:
        return self

    def __reduce__(self) -> NoReturn:
        raise InputError("`ledger`: the account of an estimator stays in its process; pickle the estimator without it")

    @property
    def ledger(self) -> Ledger:
        """Where everything is entered, as it is now."""
        if self.held is not None:
            return self.held
        opened = None if self.opener is None else self.opener()
        if not isinstance(opened, Ledger):
            raise InputError(
                f"`ledger`: the function returns {shown_value(opened)}, not a ledger; give one that opens the same file each"
                " time"
            )
        return opened

    def open_fit(self, dataset: Dataset, adjacency: str) -> Ledger:
        """A ledger for one fit, whose budget is its own; all that is entered there is entered here before it counts.

        Args:
            dataset: the private records.
            adjacency: neighbouring relation of the fit.

        Raises:
            InputError: the records are on record as public, or accuracy was measured on some of them for free.

        Guarantees:
            Nothing is released by the fit before it is in ``ledger``, whose budgets hold.
        """
        ledger = self.ledger
        records = entered_on(dataset, adjacency, ledger.registry)
        check_not_public(ledger.events, records, ledger.registry)
        if any(ledger.registry.resolve(ref).surely_overlaps(records) for ref in self.measured):
            raise InputError(
                "`x`: accuracy on some of these records was measured by `score` without noise, as on records kept separate,"
                " so they cannot be private here; to cross-validate on private records give `score_epsilon`, which pays"
                " for each score"
            )

        def persist(events: tuple[Event, ...]) -> None:
            self._enter(events)
            self.records.append(records)

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
        self._enter((GuaranteeEvent(records, guarantee, SCORE),))
        self.records.append(records)

    def note_measured(self, dataset: Dataset) -> None:
        """Remembers that accuracy on the training split of ``dataset`` was measured for free."""
        self.measured.append(self.ledger.registry.reference(dataset))

    def _enter(self, events: Iterable[Event]) -> None:
        """Enters what is not on record yet, as it composes with what is."""
        events = tuple(events)
        for left in reversed(range(1 if self.opener is None else TRIES)):
            try:
                with self._lock:
                    ledger = self.ledger
                    new: list[Event] = []
                    for event in to_enter(events, ledger.events):
                        new.append(after(event, (*ledger.events, *new)))
                    check_never_private(ledger.events, new)
                    ledger.enter(new)
                return
            except ArtifactError:  # another process wrote to the file since it was opened: nothing was entered
                if not left:
                    raise

    def total(self, delta: float, adjacency: str, accountant: str) -> PrivacyReport | None:
        """The report on everything that was spent on the records of the fits; None where there was none.

        A step in front of an estimator may have changed the records from one fit to the next, and then nobody can tell that
        they are the same people. So all of them count as the same records.

        Args:
            delta, accountant: of the report.
            adjacency: stated where no event fixes one.
        """
        ledger = self.ledger
        resolved = [ledger.registry.resolve(ref) for ref in self.records]
        events = [
            event
            for event in ledger.events
            if self.opener is not None or any(event.dataset.may_overlap(ref) for ref in resolved)
        ]
        if not any(isinstance(event, ReleaseEvent) for event in events):
            return None
        alike = [
            replace(event, dataset=replace(event.dataset, id=TOGETHER, key_id="", content=TOGETHER))
            for event in events
        ]
        return report(alike, delta, cast(Adjacency, adjacency), [*self._counted(alike), *self.notes], accountant)

    def _counted(self, events: list[Event]) -> list[str]:
        fits = sum(isinstance(event, TrainingEvent) for event in events)
        scores = sum(isinstance(event, GuaranteeEvent) and event.what == SCORE for event in events)
        notes = []
        if fits + scores > 1:
            notes.append(
                f"{fits} trainings and {scores} paid scores are in the ledger; epsilon covers all of them together, as if"
                " they were on the same records"
            )
        if self.measured:
            notes.append(
                "accuracy was measured by `score` on records kept separate, without noise: nothing is promised for those"
            )
        return notes
