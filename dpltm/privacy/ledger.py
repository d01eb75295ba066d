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

from dpltm.data.registry import SESSION, RecordRegistry
from dpltm.errors import ArtifactError, BudgetError, InputError
from dpltm.privacy.accountant import LEAST_NOISE, central_limit, certified_by, epsilon, parts, stated_relations
from dpltm.privacy.events import (
    UNKNOWN,
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
        registry: tells whose records its events are about.

    A draw among them that is said to come before every other release from its records, but may not, is read as a later one,
    which costs more (see :func:`after`).
    """

    def __init__(
        self,
        events: Iterable[Event] = (),
        persist: Callable[[Event], None] | None = None,
        registry: RecordRegistry = SESSION,
    ) -> None:
        self.registry = registry
        self._events: list[Event] = []
        for event in events:
            self._events.append(after(event, self._events))
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
        return touching(self._events, dataset)


def touching(events: Iterable[Event], dataset: DatasetRef) -> tuple[Event, ...]:
    """Those of ``events`` on records that ``dataset`` may share."""
    return tuple(event for event in events if event.dataset.may_overlap(dataset))


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
    for budget in budgets_in(before + planned):
        ref = budget.dataset
        new = [event for event in touching(planned, ref) if is_paid(event)]
        both = (*touching(before, ref), *new)
        found = [
            epsilon(part, budget.delta, unit=budget.unit)
            for _, part in parts(both)
            if any(event in part for event in new)
        ]
        total = max(found, default=0.0)
        if total > budget.epsilon:
            raise BudgetError(
                f"budget: this would bring {budget.dataset} to epsilon {total:.4g} at delta {budget.delta:g}, above the"
                f" budget of {budget.epsilon:g} set on {budget.time[:10]}; spend less, or set another (dpltm privacy budget)"
            )


def budgets_in(events: Iterable[Event]) -> list[BudgetEvent]:
    """The budgets in force: of several on the same records, for the same unit, the last."""
    found: dict[tuple[str, str, int, int, Unit], BudgetEvent] = {}
    for event in events:
        if isinstance(event, BudgetEvent):
            ref = event.dataset  # whatever its name, and whatever id it was given that time
            found[ref.group, ref.cut, ref.start, ref.stop, event.unit] = event
    return list(found.values())


def if_overlapping(events: Iterable[Event], delta: float, accountant: str = "pld") -> float:
    """Certified epsilon of all ``events``, were all their datasets the same records.

    Different datasets are told apart by what is in them. That cannot show whether two rows, one here and one there, belong
    to the same person. Parts of one dataset stay parts, since each record is in one of them; beside another dataset, whose
    records may be in any of them, they add up.

    Raises:
        InputError: they are stated for relations, or units, that have no common guarantee.
    """
    apart = [
        replace(event, dataset=replace(event.dataset, id=event.dataset.group, key_id="", content=UNKNOWN))
        for event in events
    ]
    return epsilon(apart, delta, certified_by(accountant))


def overlap_note(events: Iterable[Event], delta: float, certified: float, accountant: str = "pld") -> list[str]:
    """The sentence that a report owes to whoever reads it beside a ledger with several datasets; none where there is one.

    Args:
        events: all that the ledger holds.
        delta: in (0, 1).
        certified: what the report states for the records that it is about.
        accountant: of the figure.
    """
    paid = [event for event in events if is_paid(event)]
    names = dict.fromkeys(event.dataset.group for event in paid)
    if len(names) < 2:
        return []
    try:
        total = if_overlapping(paid, delta, accountant)
    except InputError as error:
        return [
            f"the ledger holds releases from {len(names)} datasets; if these overlap, nothing is certified: {error}"
        ]
    if total <= certified:
        return []
    shown = ", ".join(dict.fromkeys(event.dataset.name for event in paid))
    return [
        f"the ledger holds releases from {len(names)} datasets ({shown}), told apart by what their rows hold; if these"
        f" overlap: epsilon {total:.4g}"
    ]


def is_paid(event: Event) -> bool:
    """Whether an event costs something: it is no budget, and no statement about records that cost nothing."""
    return not isinstance(event, BudgetEvent) and not (
        isinstance(event, ProvenanceEvent) and event.provenance != "private"
    )


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
    if isinstance(event, SelectionEvent) and not event.adaptive and stated_relations(touching(earlier, event.dataset)):
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
    held: Iterable[Event] = (),
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
        held: all that the ledger holds, on whatever records: what it comes to if these overlap is said.
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
    sentences += overlap_note(held, delta, value, accountant)
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
    if any(is_release(event) and event.unit != unit and neighbours_between(event, unit) > 1 for event in events):
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
    notes = _told_apart(events)
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


def _told_apart(events: tuple[Event, ...]) -> list[str]:
    """How the records of the events are told apart, where a reader might think otherwise."""
    notes = []
    old = [event for event in events if event.dataset.cut == "positions"]
    if old:
        notes.append(
            f"{len(old)} entries name ranges by position, as versions before 0.2 did: a record more or less moves all that"
            " follow it, so each counts at twice its sensitivity, and all of them together"
        )
    unknown = dict.fromkeys(event.dataset.name for event in events if event.dataset.content == UNKNOWN)
    if unknown and len({event.dataset.group for event in events}) > 1:
        notes.append(
            f"records under ids that are not known here ({', '.join(unknown)}) may be the same as any others: they add up"
        )
    placed = dict.fromkeys(event.dataset.name for event in events if event.dataset.cut == "places" and is_paid(event))
    notes += [
        f"parts of {name} are cut by its places, which its published file fixes: the neighbour is that file with one place"
        " empty"
        for name in placed
    ]
    return notes
