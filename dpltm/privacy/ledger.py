"""The ledger: an append-only list of events, and the two figures that come out of it.

*Certified* is what is proven. *Nominal* is what a source paper would claim for the same events; it is only ever shown
beside the certified figure. Both are computed from the events alone, so a reader of the ledger can recompute them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from dpltm.errors import ArtifactError, BudgetError
from dpltm.privacy.accountant import LEAST_NOISE, central_limit, certified_by, epsilon, parts, stated_relations
from dpltm.privacy.events import (
    Adjacency,
    BudgetEvent,
    DatasetRef,
    Event,
    NonPrivateEvent,
    ProvenanceEvent,
    SelectionEvent,
    TrainingEvent,
    Unit,
)
from dpltm.privacy.units import bounds_nothing, neighbours_between, unit_of

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
    unit: Unit
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

        certified = {**self.certified.__dict__, "epsilon": json_figure(self.certified.epsilon)}
        nominal = None
        if self.nominal is not None:
            nominal = {**self.nominal.__dict__, "epsilon": json_figure(self.nominal.epsilon)}
        return {"certified": certified, "nominal": nominal, "notes": list(self.notes)}


def json_figure(value: float) -> float | str:
    """A figure as JSON has it: the text ``inf`` where it is infinite."""
    return "inf" if math.isinf(value) else value


class Ledger:
    """Events in the order in which they were entered; nothing is ever changed or removed.

    Args:
        events: what is already on record.
        persist: called with each new event *before* it counts as entered; a file ledger writes, flushes and syncs
            here, so that no noisy value is used before the event that pays for it is on disk.

    Raises:
        ArtifactError: a draw that is said to come before every other release from its records does not.
    """

    def __init__(self, events: Iterable[Event] = (), persist: Callable[[Event], None] | None = None) -> None:
        self._events: list[Event] = []
        for event in events:
            check_first(event, self._events)
            self._events.append(event)
        self._persist = persist
        self._budgeted = any(isinstance(event, BudgetEvent) for event in self._events)

    @property
    def events(self) -> tuple[Event, ...]:
        """All events, oldest first."""
        return tuple(self._events)

    def append(self, event: Event) -> None:
        """Enters ``event``; when this returns, it is on record.

        Raises:
            BudgetError: a budget set on the records would be exceeded; nothing was entered.
            ArtifactError: a draw that is said to come before every other release does not.
        """
        check_first(event, self._events)
        if self._budgeted:
            check_budgets(self._events, (event,))
        if self._persist is not None:
            self._persist(event)
        self._events.append(event)
        self._budgeted |= isinstance(event, BudgetEvent)

    def touching(self, dataset: DatasetRef) -> tuple[Event, ...]:
        """The events on records that ``dataset`` may share; events on other data are kept apart."""
        return tuple(event for event in self._events if event.dataset.may_overlap(dataset))


def as_adaptive(event: Event) -> Event:
    """The event, a draw as one that was made after other releases: what it is known by, and never costs less as."""
    return replace(event, adaptive=True) if isinstance(event, SelectionEvent) else event


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


def missing(events: Iterable[Event], held: Iterable[Event]) -> tuple[Event, ...]:
    """Those of ``events`` that ``held`` lacks, in order: the difference of multisets that goes with :func:`merge`."""
    left = Counter(as_adaptive(event) for event in held)
    found = []
    for event in events:
        known = as_adaptive(event)
        if left[known] > 0:
            left[known] -= 1
        else:
            found.append(event)
    return tuple(found)


def check_budgets(before: Iterable[Event], planned: Iterable[Event]) -> None:
    """Refuses ``planned`` if they exceed a budget that is set on records they touch.

    Args:
        before: what is on record.
        planned: what would be entered, in order.

    Raises:
        BudgetError: with the budget and what everything would come to.
    """
    before, planned = tuple(before), tuple(planned)
    budgets: dict[tuple[DatasetRef, Unit], BudgetEvent] = {}
    for event in (*before, *planned):
        if isinstance(event, BudgetEvent):
            budgets[replace(event.dataset, name=""), event.unit] = event  # the same records under another name
    for (ref, _), budget in budgets.items():
        new = [event for event in planned if event.dataset.may_overlap(ref) and _costs(event)]
        touching = (*(event for event in before if event.dataset.may_overlap(ref)), *new)
        found = [
            epsilon(part, budget.delta, unit=budget.unit)
            for _, part in parts(touching)
            if any(event in part for event in new)
        ]
        total = max(found, default=0.0)
        if total > budget.epsilon:
            raise BudgetError(
                f"budget: this would bring {budget.dataset} to epsilon {total:.4g} at delta {budget.delta:g}, above the"
                f" budget of {budget.epsilon:g} set on {budget.time[:10]}; spend less, or set another (dpltm privacy budget)"
            )


def _costs(event: Event) -> bool:
    return not isinstance(event, BudgetEvent) and not (
        isinstance(event, ProvenanceEvent) and event.provenance != "private"
    )


def check_first(event: Event, earlier: Iterable[Event]) -> None:
    """Refuses a draw that is said to come before every other release from its records, but does not.

    Raises:
        ArtifactError: it would be composed for less than it may cost.
    """
    if isinstance(event, SelectionEvent) and not event.adaptive:
        touching = [old for old in earlier if old.dataset.may_overlap(event.dataset)]
        if stated_relations(touching):
            raise ArtifactError(
                "selection event: earlier releases from these records are on record, so Expected adaptive=True"
            )


def report(
    events: Iterable[Event],
    delta: float,
    adjacency: Adjacency,
    notes: Iterable[str] = (),
    accountant: str = "pld",
    unit: Unit | None = None,
) -> PrivacyReport:
    """Both figures and the notes for events on one dataset (see :meth:`Ledger.touching`).

    Args:
        events: events on records that may overlap.
        delta: in (0, 1).
        adjacency: the relation to state where no event fixes one.
        notes: sentences to add to those that the events call for.
        accountant: of the certified figure; ``clt`` certifies nothing, so that its figure is the nominal one and the
            certified one is ``pld``'s.
        unit: what both figures are for; that of the events if None, ``record`` where they have both.
    """
    events = tuple(events)
    unit = unit_of(events) if unit is None else unit
    method = certified_by(accountant)
    pieces = [part for _, part in parts(events)] or [()]
    value, place = max((epsilon(part, delta, method, unit=unit), -place) for place, part in enumerate(pieces))
    stated = stated_relations(events)
    relation = next(iter(stated_relations(pieces[-place])), adjacency)
    certified = Certified(value, delta, method, relation, unit, "poisson")
    claims = [
        _central_limit(part, delta, unit) if accountant == "clt" else _nominal(part, delta, unit) for part in pieces
    ]
    nominal = max((claim for claim in claims if claim is not None), key=lambda claim: claim.epsilon, default=None)
    sentences = [*_event_notes(events), *_unit_notes(events, unit, delta, method), *notes]
    if len(set(stated)) > 1:
        sentences.append(f"other records have releases under another relation; the figure is that of {relation} ones")
    if accountant == "clt" and nominal is not None:
        sentences.append(compare_central_limit(nominal.epsilon, certified.epsilon))
    if stated:
        sentences.append(SEARCH_NOTE)
    return PrivacyReport(certified, nominal, tuple(dict.fromkeys(sentences)))


def compare_central_limit(approximate: float, certified: float) -> str:
    """By how much the central limit figure misses the certified one, in words."""
    if math.isinf(certified) or math.isinf(approximate) or certified == 0:
        return "the central limit figure is an approximation and promises nothing"
    side = "below" if approximate < certified else "above"
    gap = abs(approximate - certified)
    return (
        f"the central limit figure {approximate:.4g} is {gap:.2g} ({gap / certified:.1%}) {side} the certified one: it is an"
        " approximation and promises nothing"
    )


def _unit_notes(events: tuple[Event, ...], unit: Unit, delta: float, method: str) -> list[str]:
    """What a reader should know where some of the events are for another unit than the figure."""
    from dpltm.privacy.units import is_release

    if any(bounds_nothing(event, unit) for event in events):
        alone = epsilon(events, delta, method, unit="record")
        return [
            "there are releases for single records, which certify nothing for a user, who may have many; for one record"
            f" everything together is certified at epsilon {alone:.4g}"
        ]
    if any(is_release(event) and neighbours_between(event, unit) > 1 for event in events):
        return [
            "there are releases for users, which count at twice their sensitivity here: one record more or less changes what"
            " its user contributes from one bounded value to another; nothing is certified for a user"
        ]
    return []


def _central_limit(events: tuple[Event, ...], delta: float, unit: Unit) -> Nominal:
    claimed = _as_claimed(events)
    sources = ["GDP central limit theorem, an approximation"]
    if claimed != events:
        sources.append("tanh paper's sensitivity")
    return Nominal(central_limit(claimed, delta, unit), delta, "; ".join(sources))


def _as_claimed(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """The events as their sources account for them: tickets taken as given, claimed bounds in place of true ones."""
    return tuple(
        replace(event, noise_multiplier=event.nominal_noise_multiplier)
        if isinstance(event, TrainingEvent) and event.nominal_sensitivity is not None
        else replace(event, certified_epsilon=event.eps1)
        if isinstance(event, SelectionEvent)
        else event
        for event in events
        if not (isinstance(event, ProvenanceEvent) and event.provenance == "private")
    )


def _nominal(events: tuple[Event, ...], delta: float, unit: Unit) -> Nominal | None:
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
    rest = [event for event in _as_claimed(events) if not isinstance(event, (SelectionEvent, NonPrivateEvent))]
    eps2 = epsilon(rest, delta, unit=unit)
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
