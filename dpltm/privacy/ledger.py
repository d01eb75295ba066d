"""The ledger: an append-only list of events, and the two figures that come out of it.

*Certified* is what is proven. *Nominal* is what a source paper would claim for the same events; it is only ever shown
beside the certified figure. Both are computed from the events alone, so a reader of the ledger can recompute them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from dpltm.privacy.accountant import LEAST_NOISE, epsilon
from dpltm.privacy.events import (
    Adjacency,
    DatasetRef,
    Event,
    NonPrivateEvent,
    ProvenanceEvent,
    SelectionEvent,
    TrainingEvent,
)

SEARCH_NOTE = (
    "hyperparameter search, seed picking and early stopping on private scores are not covered unless they are paid for"
)


@dataclass(frozen=True)
class Certified:
    """A proven guarantee: epsilon at delta, with everything it is stated for."""

    epsilon: float
    delta: float
    accountant: str
    adjacency: Adjacency
    unit: str
    sampling: str


@dataclass(frozen=True)
class Nominal:
    """A claimed figure and the source that claims it."""

    epsilon: float
    delta: float
    source: str


@dataclass(frozen=True)
class PrivacyReport:
    """What is printed about privacy: certified, nominal where a source claims something else, and notes."""

    certified: Certified
    nominal: Nominal | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The ``privacy`` object of every command that touches private data."""

        def figure(value: float) -> float | str:
            return "inf" if math.isinf(value) else value

        certified = {**self.certified.__dict__, "epsilon": figure(self.certified.epsilon)}
        nominal = None
        if self.nominal is not None:
            nominal = {**self.nominal.__dict__, "epsilon": figure(self.nominal.epsilon)}
        return {"certified": certified, "nominal": nominal, "notes": list(self.notes)}


class Ledger:
    """Events in the order in which they were entered; nothing is ever changed or removed.

    Args:
        events: what is already on record.
        persist: called with each new event *before* it counts as entered; a file ledger writes, flushes and syncs
            here, so that no noisy value is used before the event that pays for it is on disk.
    """

    def __init__(self, events: Iterable[Event] = (), persist: Callable[[Event], None] | None = None) -> None:
        self._events = list(events)
        self._persist = persist

    @property
    def events(self) -> tuple[Event, ...]:
        """All events, oldest first."""
        return tuple(self._events)

    def append(self, event: Event) -> None:
        """Enters ``event``; when this returns, it is on record."""
        if self._persist is not None:
            self._persist(event)
        self._events.append(event)

    def touching(self, dataset: DatasetRef) -> tuple[Event, ...]:
        """The events on records that ``dataset`` may share; events on other data are kept apart."""
        return tuple(event for event in self._events if event.dataset.may_overlap(dataset))


def report(events: Iterable[Event], delta: float, adjacency: Adjacency, notes: Iterable[str] = ()) -> PrivacyReport:
    """Both figures and the notes for events on one dataset (see :meth:`Ledger.touching`).

    Args:
        events: events on records that may overlap.
        delta: in (0, 1).
        adjacency: the relation to state where no event fixes one.
        notes: sentences to add to those that the events call for.
    """
    events = tuple(events)
    stated: list[Adjacency] = [
        event.adjacency for event in events if isinstance(event, (SelectionEvent, TrainingEvent))
    ]
    relation = stated[0] if stated else adjacency
    certified = Certified(epsilon(events, delta), delta, "pld", relation, "record", "poisson")
    sentences = [*_event_notes(events), *notes]
    if stated:
        sentences.append(SEARCH_NOTE)
    return PrivacyReport(certified, _nominal(events, delta), tuple(dict.fromkeys(sentences)))


def _nominal(events: tuple[Event, ...], delta: float) -> Nominal | None:
    """What the papers would claim, or None where they claim nothing of their own.

    DPLTM's Theorem 3 adds eps1 of the selection and eps2 of the training and takes the candidates as given, whatever
    they were made from. The tanh paper accounts for training with its claimed bound in place of the true one.
    """
    selections = [event for event in events if isinstance(event, SelectionEvent)]
    trainings = [event for event in events if isinstance(event, TrainingEvent)]
    sources = []
    private_ticket = any(isinstance(event, ProvenanceEvent) and event.provenance == "private" for event in events)
    if selections or private_ticket:
        sources.append("DPLTM Theorem 3")
    if any(event.nominal_sensitivity is not None for event in trainings):
        sources.append("tanh paper's sensitivity")
    if not sources:
        return None
    claimed = [replace(event, noise_multiplier=event.nominal_noise_multiplier) for event in trainings]
    eps2 = epsilon(claimed, delta)
    return Nominal(sum(event.eps1 for event in selections) + eps2, delta, "; ".join(sources))


def _event_notes(events: tuple[Event, ...]) -> list[str]:
    notes = []
    for event in events:
        if isinstance(event, ProvenanceEvent) and event.provenance == "private":
            notes.append(
                f"the tickets were made from {event.dataset} with no mechanism (provenance private): their masks may"
                " reveal the records, their predictors even more, so nothing is certified"
            )
        elif isinstance(event, NonPrivateEvent):
            notes.append(f"released without protection from {event.dataset}: {event.what}")
        elif isinstance(event, SelectionEvent) and event.certified_epsilon > event.eps1:
            notes.append(
                f"the {event.sensitivity_rule} sensitivity {event.sensitivity:g} is below the true one: the selection"
                f" at eps1 {event.eps1:g} is certified as {event.certified_epsilon:g}"
            )
        elif isinstance(event, TrainingEvent) and event.noise_multiplier < LEAST_NOISE:
            notes.append(f"training at noise multiplier {event.noise_multiplier:.3g}: nothing is certified")
    return notes
