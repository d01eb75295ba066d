"""The ledger: an append-only list of events, how several are merged, and the budgets that they set."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NoReturn, Protocol

from dpltm.errors import ArtifactError, InputError
from dpltm.privacy.budgets import check_budgets
from dpltm.privacy.events import DatasetRef, Event, NonPrivateEvent, SelectionEvent
from dpltm.privacy.parts import stated_relations, touching
from dpltm.records.registry import SESSION, RecordRegistry


class Account(Protocol):
    """What else its keeper has on record, in whatever ledger: budgets hold for the records, wherever they are used."""

    def look(self, planned: tuple[Event, ...]) -> tuple[Event, ...]:
        """All events on record, this ledger's among them, oldest first; nothing where no budget can be in force.

        Args:
            planned: events that may be entered next.

        Raises:
            ArtifactError: the ledger is not the one that is on record.
        """
        ...

    def reserve(self, planned: tuple[Event, ...]) -> contextlib.AbstractContextManager[tuple[Event, ...]]:
        """The same in a block in which nobody else enters anything, in any ledger. Arguments as :meth:`look`."""
        ...


class _Alone:
    """The account of a ledger that nobody keeps any other beside."""

    def look(self, planned: tuple[Event, ...]) -> tuple[Event, ...]:
        del planned
        return ()

    def reserve(self, planned: tuple[Event, ...]) -> contextlib.AbstractContextManager[tuple[Event, ...]]:
        return contextlib.nullcontext(self.look(planned))


class Ledger:
    """Events in the order in which they were entered; nothing is ever changed or removed.

    Args:
        events: what is already on record.
        persist: called with new events *before* they count as entered; a file ledger writes, flushes and syncs all or
            none here, so that no noisy value is used before the event that pays for it is on disk.
        registry: tells whose records its events are about.
        account: knows of the other ledgers of whoever keeps this one; None where there is none.

    A draw among them that is said to come before every other release from its records, but may not, is read as a later one,
    which costs more (see :func:`after`).

    Guarantees:
        Threads may share one: they enter one after the other. Two that start with the same events would each spend the same
        budget: so a copy is the ledger itself, none is pickled, and a forked process enters nothing in one that no file
        keeps.

    Example:
        >>> from dpltm.privacy.events import UNKNOWN_RECORDS, TrainingEvent
        >>> from dpltm.privacy.mechanisms import NoisySgd
        >>> training = NoisySgd(256 / 60000, steps=14062, noise_multiplier=1.1)
        >>> ledger = Ledger()
        >>> ledger.append(TrainingEvent(UNKNOWN_RECORDS, training, filter="clip", live=1000))
        >>> from dpltm.privacy.parts import total_epsilon
        >>> len(ledger.events), round(total_epsilon(ledger.events, delta=1e-5), 2)
        (1, 2.38)
    """

    def __init__(
        self,
        events: Iterable[Event] = (),
        persist: Callable[[tuple[Event, ...]], None] | None = None,
        registry: RecordRegistry = SESSION,
        account: Account | None = None,
    ) -> None:
        given = tuple(events) if isinstance(events, Iterable) else (events,)
        if not all(isinstance(event, Event) for event in given):
            fix = "dpltm.tickets.ledger_file.open_ledger(path) reads those of a file"
            raise InputError("events", events, "a list of events", fix)
        self.registry = registry
        self._events: list[Event] = []
        for event in given:
            self._events.append(after(event, self._events))
        self._persist, self._lock, self._process = persist, threading.RLock(), os.getpid()
        self._account: Account = _Alone() if account is None else account
        self._admitted: tuple[tuple[Event, ...], tuple[Event, ...]] | None = None
        self._asked: tuple[int, tuple[Event, ...] | None, tuple[Event, ...]] = (0, None, ())

    @property
    def events(self) -> tuple[Event, ...]:
        """All events, oldest first."""
        return tuple(self._events)

    def append(self, event: Event) -> None:
        """Enters ``event``; when this returns, it is on record.

        Raises:
            BudgetError: a budget set on the records would be exceeded; nothing was entered.
            ArtifactError: a draw that is said to come before every other release does not.
            InputError: it is no event.
        """
        self.enter((event,))

    def enter(self, events: Iterable[Event], before: tuple[Event, ...] | None = None) -> None:
        """Enters ``events``, all or none; when this returns, they are on record.

        Args:
            events: in order.
            before: what the ledger held when they were planned; None where that had no say in them.

        Raises:
            InputError: the ledger has grown since, or is another process's; nothing was entered, as with the others.
            BudgetError: a budget set on the records would be exceeded.
            ArtifactError: a draw that is said to come before every other release does not.

        Guarantees:
            No other thread enters anything between the comparison with ``before`` and the last of ``events``. Where there is
            an account, no other process does either, in any of its ledgers: of two that come at once, one sees the other.
        """
        events = tuple(events)
        for event in events:
            if not isinstance(event, Event):
                raise InputError("event", event, "an event of dpltm.privacy.events")
        with self._lock:
            self.check_unchanged(before)
            for number, event in enumerate(events):
                check_first(event, itertools.chain(self._events, events[:number]))
            if not events:
                return
            self.check_budgets(events)  # while nobody waits: of many releases it takes minutes
            with self._account.reserve(events) as on_record:
                self._admit(events, on_record)
                if self._persist is not None:
                    self._persist(events)
            self._events += events

    def check_budgets(self, planned: Iterable[Event]) -> None:
        """Refuses ``planned`` if they exceed a budget on records that they touch, whichever ledger sets it or spent from it.

        Raises:
            BudgetError: with the budget and what everything would come to.
            ArtifactError: the ledger is not the one that is on record.
        """
        planned = tuple(planned)
        with self._lock:
            self._admit(planned, self._account.look(planned))

    def _admit(self, planned: tuple[Event, ...], on_record: tuple[Event, ...]) -> None:
        """Checks budgets, unless the very same was admitted last."""
        held, new, known = self._asked
        if held == len(self._events) and new is planned and known is on_record:  # which are compared in no time
            return
        merged = beside(self._events, planned, on_record)
        if merged != self._admitted:
            check_budgets(*merged)
        self._admitted, self._asked = merged, (len(self._events), planned, on_record)

    def check_unchanged(self, before: tuple[Event, ...] | None) -> None:
        """Raises InputError if something was entered since ``before`` was held, or nobody would see what is entered now.

        Budgets, noise and the order of releases were settled by what was held then. A plan runs once: its events have their
        time already, and the same events twice would count as one release.

        Args:
            before: what was held when a plan was made; None where that had no say.
        """
        if self._persist is None and self._process != os.getpid():
            raise InputError(
                "`ledger`: it was made in another process, which would not see what is entered here; open a ledger file, or"
                " begin one with its events: Ledger(ledger.events, registry=ledger.registry)"
            )
        if before is not None and self.events != before:
            raise InputError("`ledger`: something was entered since this was planned; plan again")

    def __repr__(self) -> str:
        return f"<Ledger of {len(self._events)} events; .events lists them>"

    def __copy__(self) -> Ledger:
        return self

    def __deepcopy__(self, memo: object) -> Ledger:
        return self

    def __reduce__(self) -> NoReturn:
        raise InputError(
            "`ledger`: a Ledger cannot be pickled, since two of them would each spend the same budget; pass the tickets or"
            " the run with `ledger` None, or its events: Ledger(ledger.events, registry=ledger.registry)"
        )

    def touching(self, dataset: DatasetRef) -> tuple[Event, ...]:
        """The events on records that ``dataset`` may share; events on other data are kept apart."""
        return touching(self._events, dataset)


def as_adaptive(event: Event) -> Event:
    """The event, a draw as one that was made after other releases: what it is known by, and never costs less as."""
    if not isinstance(event, SelectionEvent):
        return event
    return replace(event, mechanism=replace(event.mechanism, adaptive=True))


def merge(ledgers: Iterable[Iterable[Event]]) -> tuple[Event, ...]:
    """Everything that several ledgers hold together: each release once, whoever tells of it.

    Args:
        ledgers: the events of each, or of an artifact that carries some.

    Returns:
        The union of multisets, in order of first appearance: an event stands there as often as in the ledger that holds
        it most often.

    Guarantees:
        No release is lost. Two releases differ in their time, so an event that two ledgers hold is one release that was
        entered twice. Equal events in *one* ledger are as many releases: before each had a time of its own, the
        evaluations of a run were equal. A draw that one ledger has as the first release from its records and another as a
        later one is the later one, which costs more.
    """
    most: Counter[Event] = Counter()
    forms: dict[Event, Event] = {}
    for ledger in ledgers:
        events = tuple(ledger)
        most |= Counter(as_adaptive(event) for event in events)
        for event in events:
            known = as_adaptive(event)
            forms[known] = event if forms.get(known, event) == event else known
    return tuple(forms[known] for known in most.elements())


def of_draws(draws: Iterable[Iterable[Event]]) -> tuple[Event, ...]:
    """What several draws entered: each draw as often as it was made, and once what their records come from."""
    told: list[Event] = []
    for event in itertools.chain.from_iterable(draws):
        if isinstance(event, (SelectionEvent, NonPrivateEvent)) or event not in told:
            told.append(event)
    return tuple(told)


def missing(events: Iterable[Event], held: Iterable[Event]) -> tuple[Event, ...]:
    """Those of ``events`` that ``held`` lacks, in order: the difference of multisets that goes with :func:`merge`."""
    left = Counter(as_adaptive(event) for event in held)
    lacking = []
    for event in events:
        known = as_adaptive(event)
        if left[known] > 0:
            left[known] -= 1
        else:
            lacking.append(event)
    return tuple(lacking)


def beside(
    held: Iterable[Event], planned: Iterable[Event], on_record: Iterable[Event]
) -> tuple[tuple[Event, ...], tuple[Event, ...]]:
    """What a ledger holds and what is planned in it, as they compose with what other ledgers of the same keeper hold.

    Args:
        held: by the ledger.
        planned: to be entered in it.
        on_record: in all ledgers, oldest first.

    Returns:
        Everything on record, and ``planned``. Two ledgers do not tell which of their releases came first, so a draw counts
        as a later one, which costs more, if another ledger may hold a release from its records.
    """
    held, planned, on_record = tuple(held), tuple(planned), tuple(on_record)
    others = missing(on_record, held)
    if not others:
        return held, planned
    elsewhere = set(others)

    def later(event: Event) -> Event:
        if not isinstance(event, SelectionEvent) or event.mechanism.adaptive:
            return event
        first = event not in elsewhere and not stated_relations(touching(others, event.dataset))
        return event if first else as_adaptive(event)

    return tuple(map(later, merge((on_record, held)))), tuple(map(later, planned))


def after(event: Event, earlier: Iterable[Event]) -> Event:
    """The event as it composes with what is on record before it.

    A draw was the first release from its records where it was made. Elsewhere its records may be those of an earlier event,
    since nobody can tell them apart there: then it counts as a later one, which costs more.
    """
    try:
        check_first(event, earlier)
    except ArtifactError:
        return as_adaptive(event)
    return event


def check_first(event: Event, earlier: Iterable[Event]) -> None:
    """Refuses a draw that is said to come before every other release from its records, but does not.

    Raises:
        ArtifactError: it would be composed for less than it may cost.
    """
    if (
        isinstance(event, SelectionEvent)
        and not event.mechanism.adaptive
        and stated_relations(touching(earlier, event.dataset))
    ):
        raise ArtifactError(
            "selection event: earlier releases from these records are on record, so Expected adaptive=True"
        )
