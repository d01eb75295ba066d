"""What a person is told about privacy: the certified figure, the nominal one where a source claims it, and notes.

*Certified* is what is proven. *Nominal* is what a source paper would claim for the same events; it is only ever shown
beside the certified figure. Both are computed from the events alone, so a reader of the ledger can recompute them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from dpltm.errors import InputError
from dpltm.privacy.accountant import approximate, epsilon
from dpltm.privacy.accountants import ACCOUNTANTS, certified_by
from dpltm.privacy.budgets import is_paid
from dpltm.privacy.composition import MIN_NOISE
from dpltm.privacy.events import (
    UNKNOWN,
    BudgetEvent,
    Event,
    GaussianEvent,
    NonPrivateEvent,
    ProvenanceEvent,
    ReleaseEvent,
    SelectionEvent,
    TrainingEvent,
    is_release,
)
from dpltm.privacy.figures import figure
from dpltm.privacy.mechanisms import Adjacency, Unit, sampling_of
from dpltm.privacy.parts import mechanisms_of, parts, protect_several, stated_relations, total_epsilon, users_of
from dpltm.privacy.privacy_unit import bounds_nothing, neighbours_between, unit_of
from dpltm.privacy.statement import SEARCH_NOTE, Certified, Nominal, PrivacyReport, json_figure


def if_overlapping(events: Iterable[Event], delta: float, accountant: str = "pld") -> float:
    """Certified epsilon of all ``events``, were all their datasets the same records.

    Different datasets are told apart by what is in them. That cannot show whether two rows, one here and one there, belong
    to the same person. Parts of one dataset stay parts, since each record is in one of them; beside another dataset, whose
    records may be in any of them, they add up.

    Args:
        events: of a ledger.
        delta: in (0, 1).
        accountant: of the report; one that certifies nothing is replaced by one that does (see ``certified_by``).

    Raises:
        InputError: they are stated for relations, or units, that have no common guarantee.
    """
    apart = [
        replace(event, dataset=replace(event.dataset, id=event.dataset.group, key_id="", content=UNKNOWN))
        for event in events
    ]
    return total_epsilon(apart, delta, certified_by(accountant))


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
        f" overlap: epsilon {figure(total)}"
    ]


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
    unit = unit_of(mechanisms_of(events)) if unit is None else unit
    method, certifies = certified_by(accountant), ACCOUNTANTS.find(accountant).certifies
    pieces = [part for _, part in parts(events)] or [()]
    value, place = max((total_epsilon(part, delta, method, unit=unit), -place) for place, part in enumerate(pieces))
    stated = stated_relations(events)
    relation = next(iter(stated_relations(pieces[-place])), adjacency)
    certified = Certified(value, delta, method, relation, unit, sampling_of(mechanisms_of(pieces[-place])))
    claims = [
        _nominal(part, delta, unit) if certifies else _approximated(part, delta, unit, accountant) for part in pieces
    ]
    nominal = max((claim for claim in claims if claim is not None), key=lambda claim: claim.epsilon, default=None)
    sentences = [*_event_notes(events), *_unit_notes(events, unit, delta, method), *notes]
    if len(set(stated)) > 1:
        sentences.append(f"other records have releases under another relation; the figure is that of {relation} ones")
    if not certifies and nominal is not None:
        sentences.append(compare_central_limit(nominal.epsilon, certified.epsilon))
    sentences += [SEARCH_NOTE] if stated else []
    sentences += overlap_note(held, delta, value, accountant)
    return PrivacyReport(certified, nominal, tuple(dict.fromkeys(sentences)))


def called_for(events: Iterable[Event], delta: float, unit: Unit, method: str) -> list[str]:
    """Notes that events call for by themselves, whatever else a report on them says.

    Args:
        events: of a statement.
        delta, unit: of its figure.
        method: accountant that certifies.
    """
    events = tuple(events)
    closing = [SEARCH_NOTE] if stated_relations(events) else []
    return [*_event_notes(events), *_unit_notes(events, unit, delta, method), *closing]


MAX_FIGURES = 20
"""Up to this many different events, each is also accounted on its own."""


def costs_alone(events: tuple[Event, ...], delta: float, accountant: str) -> list[float | str | None]:
    """What each event costs by itself; None where it costs nothing of its own, or where they are too many.

    Args:
        events: of a ledger.
        delta: in (0, 1).
        accountant: one that certifies.
    """
    mechanisms = [mechanisms_of([event]) for event in events]
    if len(set(mechanisms)) > MAX_FIGURES:
        return [None] * len(events)
    costs = {alone: json_figure(epsilon(alone, delta, accountant)) for alone in set(mechanisms)}
    return [
        None if isinstance(event, BudgetEvent) else costs[alone]
        for event, alone in zip(events, mechanisms, strict=True)
    ]


def compare_central_limit(approximate: float, certified: float) -> str:
    """By how much the central limit figure misses the certified one, in words."""
    if math.isinf(certified) or math.isinf(approximate) or certified == 0:
        return "the central limit figure is an approximation and promises nothing"
    side = "below" if approximate < certified else "above"
    gap = abs(approximate - certified)
    return (
        f"the central limit figure {figure(approximate)} is {gap:.2g} ({gap / certified:.1%}) {side} the certified one: it"
        " is an approximation and promises nothing"
    )


def _unit_notes(events: tuple[Event, ...], unit: Unit, delta: float, method: str) -> list[str]:
    """What a reader should know where some of the events are for another unit than the figure."""
    mechanisms = [event.mechanism for event in events if isinstance(event, ReleaseEvent) and is_release(event)]
    if protect_several(events):
        shown = ", ".join(sorted({ref.units or "users of ratings" for ref in users_of(events)}))
        alone = total_epsilon(events, delta, method, unit="record")
        return [
            f"releases protect users of several kinds (by {shown}), so nothing is certified for any of them; for one"
            f" record everything together is certified at epsilon {figure(alone)}"
        ]
    if any(bounds_nothing(mechanism, unit) for mechanism in mechanisms):
        alone = total_epsilon(events, delta, method, unit="record")
        return [
            "there are releases for single records, which certify nothing for a user, who may have many; for one record"
            f" everything together is certified at epsilon {figure(alone)}"
        ]
    if any(mechanism.unit != unit and neighbours_between(mechanism, unit) > 1 for mechanism in mechanisms):
        return [
            "there are releases for users, which count at twice their sensitivity here: one record more or less changes what"
            " its user contributes from one bounded value to another; nothing is certified for a user"
        ]
    if unit == "user" and mechanisms and all(mechanism.adjacency == "add-remove" for mechanism in mechanisms):
        alone = total_epsilon(events, delta, method, unit="record")
        return [
            "one record more or less of a user who has others replaces what that user contributes by something else: for a"
            f" single record epsilon {figure(alone)} is certified"
        ]
    return []


def _approximated(events: tuple[Event, ...], delta: float, unit: Unit, accountant: str) -> Nominal:
    claimed = _all_claimed(events)
    sources = [f"{ACCOUNTANTS.find(accountant).source}, an approximation"]
    if claimed != events:
        sources += _claims(events)
    return Nominal(approximate(mechanisms_of(claimed), delta, accountant, unit=unit), delta, "; ".join(sources))


def _all_claimed(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """The events as their sources account for them: tickets taken as given, claimed bounds in place of true ones."""
    return tuple(
        as_claimed(event)
        for event in events
        if not (isinstance(event, ProvenanceEvent) and event.provenance == "private")
    )


def as_claimed(event: Event) -> Event:
    """One event as its source accounts for it."""
    match event:
        case TrainingEvent(mechanism=sgd):
            return replace(event, mechanism=replace(sgd, noise_multiplier=sgd.nominal_noise_multiplier))
        case SelectionEvent(mechanism=drawn):
            return replace(event, mechanism=replace(drawn, certified_epsilon=drawn.eps1))
    return event


def _claims(events: tuple[Event, ...]) -> list[str]:
    """Whose sensitivities trainings have beside the certified ones, each once; none where they claim what is certified."""
    claimed = [
        event.filter
        for event in events
        if isinstance(event, TrainingEvent)
        and event.mechanism.nominal_sensitivity not in (None, event.mechanism.sensitivity)
    ]
    named = [
        name
        for filter in claimed
        for name in [claim for part, claim in _CLAIMS if part in filter] or ["tanh paper's sensitivity"]
    ]
    return list(dict.fromkeys(named))


_CLAIMS = (
    (" of groups of ", "tanh paper's sensitivity for microbatches"),
    ("dpsr-cg(", "sensitivity in the code of DPSR-CG"),
)
"""By what an event says of its filter. Where both apply, the claim takes a part from each source."""


def _nominal(events: tuple[Event, ...], delta: float, unit: Unit) -> Nominal | None:
    """What the papers would claim, or None where they claim nothing of their own.

    DPLTM's Theorem 3 adds eps1 of the selection and eps2 of the training and takes the candidates as given, whatever
    they were made from. The tanh paper accounts for training with its claimed bound in place of the true one.
    """
    selections = [event for event in events if isinstance(event, SelectionEvent)]
    sources = []
    private_ticket = any(isinstance(event, ProvenanceEvent) and event.provenance == "private" for event in events)
    if selections or private_ticket:
        sources.append("DPLTM Theorem 3")
    sources += _claims(events)
    if not sources:
        return None
    rest = [event for event in _all_claimed(events) if not isinstance(event, (SelectionEvent, NonPrivateEvent))]
    eps2 = total_epsilon(rest, delta, unit=unit)
    return Nominal(sum(event.mechanism.eps1 for event in selections) + eps2, delta, "; ".join(sources))


def _event_notes(events: tuple[Event, ...]) -> list[str]:
    notes = _told_apart(events)
    fast = sum(isinstance(event, (GaussianEvent, TrainingEvent)) and event.noise == "fast" for event in events)
    if fast:
        notes.append(
            f"noise of {fast} {'release' if fast == 1 else 'releases'} (`noise` fast) comes from a generator that is not"
            " cryptographic: whoever predicts its bits can take the noise away, and no figure counts that"
        )
    for event in events:
        if isinstance(event, ProvenanceEvent) and event.provenance == "private":
            notes.append(
                f"the tickets were made from {event.dataset} with no mechanism (provenance private): their masks may"
                " reveal the records, their predictors even more, so nothing is certified"
            )
        elif isinstance(event, NonPrivateEvent):
            notes.append(f"released without protection from {event.dataset}: {event.what}")
        elif isinstance(event, SelectionEvent) and event.mechanism.certified_epsilon > event.mechanism.eps1:
            notes.append(
                f"the {event.sensitivity_rule} sensitivity {event.sensitivity:g} is below the true one: the selection"
                f" at eps1 {event.mechanism.eps1:g} is certified as {figure(event.mechanism.certified_epsilon)}"
            )
        elif isinstance(event, TrainingEvent) and event.mechanism.noise_multiplier < MIN_NOISE:
            notes.append(f"training at noise multiplier {event.mechanism.noise_multiplier:.3g}: nothing is certified")
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
