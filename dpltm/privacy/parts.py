"""What the entries of a ledger come to: those that touched the same records compose, disjoint parts stand side by side.

The accountant prices mechanisms; here it is settled which of them ran on the same records, and what the way in which a part
was cut out of its dataset adds to each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dpltm.errors import InputError
from dpltm.privacy.accountants import FINE, Resolution
from dpltm.privacy.events import (
    HASHES,
    OPEN_END,
    BudgetEvent,
    Cut,
    DatasetRef,
    Event,
    NonPrivateEvent,
    ProvenanceEvent,
    ReleaseEvent,
    is_release,
)
from dpltm.privacy.mechanisms import Adjacency, Mechanism, TwoSteps, Unit, Unprotected
from dpltm.privacy.privacy_unit import over_two_steps, unit_of
from dpltm.registry import Deferred

if TYPE_CHECKING:
    from dpltm.privacy.pld import Profile

_EPSILON, _PROFILE = Deferred("dpltm.privacy.accountant:epsilon"), Deferred("dpltm.privacy.accountant:profile")
"""The accountant, which takes libraries that entering an event does not."""


def total_epsilon(
    events: Iterable[Event],
    delta: float,
    accountant: str = "pld",
    *,
    resolution: Resolution = FINE,
    unit: Unit | None = None,
) -> float:
    """Certified epsilon of all ``events`` together at ``delta``, for any one record or user.

    Args:
        events: what was done, in any order, on whatever records. Those that may overlap add up; see :func:`parts`.
        delta, accountant, resolution: as ``accountant.epsilon``.
        unit: what the figure is for; that of the events if None, ``record`` where they have both (see ``privacy_unit``).

    Raises:
        InputError: as ``accountant.epsilon``.

    Guarantees:
        Upper bound on the true epsilon of the adaptive composition of what the events state.
    """
    events = tuple(events)
    unit = unit_of(mechanisms_of(events)) if unit is None else unit
    pieces = [part for _, part in parts(events)] or [()]  # of nothing too, the arguments are checked
    return max(
        float(_EPSILON(mechanisms_of(part), delta, accountant, resolution=resolution, unit=unit)) for part in pieces
    )


def mechanisms_of(events: Iterable[Event]) -> tuple[Mechanism, ...]:
    """What ``events`` on the same records are to an accountant.

    Releases for users of several columns protect several kinds of users, and so none: for a record, users of either kind
    are replaced.

    Statements that cost nothing are left out. Masks that were made from the records with no mechanism are unprotected. A
    range of positions under add/remove is two steps away (see ``privacy_unit``), and where one was declared public, a
    private record may have moved into it: beside a release, that is unprotected too.

    Raises:
        InputError: an event of which nothing is known. A kind without a cost must never pass as free.
    """
    events = tuple(events)
    released, several = any(is_release(event) for event in events), protect_several(events)
    mechanisms: list[Mechanism] = []
    for event in events:
        moves = event.dataset.cut == "positions"
        if isinstance(event, ReleaseEvent):
            two = moves and event.mechanism.adjacency == "add-remove" and is_release(event)
            mechanism = _of_one_record(event.mechanism) if several else event.mechanism
            mechanisms.append(TwoSteps(mechanism) if two else mechanism)
        elif isinstance(event, ProvenanceEvent):
            exposed = moves and released and event.provenance == "public"
            mechanisms += [Unprotected()] if exposed or event.provenance == "private" else []
        elif not isinstance(event, BudgetEvent):
            raise InputError(f"the accountant does not know the event {type(event).__name__}")
    return tuple(mechanisms)


def users_of(events: Iterable[Event]) -> dict[DatasetRef, None]:
    """The records on which releases, or budgets, protect users; they say by which column."""
    return dict.fromkeys(event.dataset for event in events if _unit_of(event) == "user")


def other_users(one: DatasetRef, other: DatasetRef) -> bool:
    """Whether releases that protect users of both mean users of several kinds: by other columns, or by other values."""
    return one.units != other.units or one.content in other.regrouped or other.content in one.regrouped


def protect_several(events: Iterable[Event]) -> bool:
    """Whether releases, or budgets, protect users of several kinds."""
    kinds: list[DatasetRef] = []
    for ref in users_of(events):
        if any(other_users(ref, known) for known in kinds):
            return True
        if not any((ref.content, ref.units) == (known.content, known.units) for known in kinds):
            kinds.append(ref)
    return False


def _unit_of(event: Event) -> Unit:
    if isinstance(event, BudgetEvent):
        return event.unit
    return event.mechanism.unit if isinstance(event, ReleaseEvent) and is_release(event) else "record"


def _of_one_record(mechanism: Mechanism) -> Mechanism:
    """A release for users, said of a record alone: two steps under add/remove, and nothing under replace-one."""
    if mechanism.unit == "record":
        return mechanism
    return TwoSteps(replace(mechanism, unit="record")) if mechanism.adjacency == "add-remove" else Unprotected()


def profiles(events: Iterable[Event]) -> list[Profile]:
    """The certified delta at every epsilon, a profile for each of the :func:`parts` of ``events``.

    Raises:
        InputError: a part for which nothing, or no curve, can be certified.
    """
    events = tuple(events)
    unit = unit_of(mechanisms_of(events))
    return [_PROFILE(mechanisms_of(part), unit=unit, records=str(ref)) for ref, part in parts(events)]


def stated_relations(events: Iterable[Event]) -> list[Adjacency]:
    """The relations that private events are stated for, one an event."""
    return [event.mechanism.adjacency for event in events if isinstance(event, ReleaseEvent) and is_release(event)]


def parts(events: Iterable[Event]) -> list[tuple[DatasetRef, tuple[Event, ...]]]:
    """Records that were treated alike, with the events that touched them.

    Parts of one dataset that a public hash of each record cuts out, or places that a published file fixes, are disjoint: a
    neighbour differs in one of them alone, so they compose in parallel, and the largest epsilon of any part is that of the
    whole. Hashes and places cut across each other: what is known by the one counts in every part by the other. Datasets
    without a common record are kept apart; what cannot be told apart counts everywhere.

    Args:
        events: of one or several datasets.
    """
    events = tuple(events)
    if len({event.dataset for event in events}) == 1:
        return [(events[0].dataset, events)]
    groups: dict[str, list[DatasetRef]] = {}
    for event in events:
        groups.setdefault(event.dataset.group, []).append(event.dataset)
    pieces: list[tuple[DatasetRef, tuple[Event, ...]]] = []
    for refs in groups.values():
        last: tuple[DatasetRef, tuple[Event, ...]] | None = None
        for ref in _cells(refs):
            touching = tuple(event for event in events if event.dataset.may_overlap(ref))
            if not any(event.dataset.group == ref.group for event in touching):
                continue  # a gap between two ranges
            if last and last[0].cut == ref.cut and last[0].stop == ref.start and last[1] == touching:
                pieces[-1] = last = (replace(last[0], stop=ref.stop), touching)
            else:
                last = (ref, touching)
                pieces.append(last)
    return pieces


def _cells(refs: list[DatasetRef]) -> Iterator[DatasetRef]:
    """The smallest parts of one dataset that some of ``refs`` cut out of it; the whole where none does."""
    whole = refs[0].all
    cuts: dict[Cut, int] = {"values": HASHES, "columns": HASHES, "places": OPEN_END}
    present = [cut for cut in cuts if any(ref.cut == cut for ref in refs)]
    if not present:
        yield whole
    for cut in present:
        edges = {edge for ref in refs if ref.cut == cut for edge in (ref.start, ref.stop)}
        if any(ref.cut != cut for ref in refs):
            edges |= {0, cuts[cut]}
        for start, stop in itertools.pairwise(sorted(edges)):
            yield replace(whole, cut=cut, start=start, stop=stop)


def as_replace_one(event: Event) -> Event:
    """A release stated for add/remove as one for replace-one: two steps between its neighbours, on the whole dataset."""
    if not isinstance(event, ReleaseEvent) or not is_release(event) or event.mechanism.adjacency == "replace-one":
        return event
    mechanism = replace(over_two_steps(event.mechanism), adjacency="replace-one")
    if isinstance(mechanism, Unprotected):
        return NonPrivateEvent(event.dataset.widened, mechanism, getattr(event, "what", ""), time=event.time)
    return replace(event, dataset=event.dataset.widened, mechanism=mechanism)


@dataclass(frozen=True)
class OnRecord:
    """What a ledger holds where a plan would be entered.

    Attributes:
        dataset: the records that the plan is for.
        events: those on record that may have touched some of them.
    """

    dataset: DatasetRef
    events: tuple[Event, ...] = ()


Before = Iterable[Mechanism] | OnRecord
"""What comes before a plan: mechanisms that ran on the same records, or what a ledger holds."""


def epsilon_with(
    before: Before,
    plan: Mechanism | None,
    delta: float,
    accountant: str = "pld",
    *,
    resolution: Resolution = FINE,
    unit: Unit | None = None,
) -> float:
    """Certified epsilon of ``before`` and of ``plan``, if there is one, after it.

    Args:
        before: mechanisms that ran on the same records, or what a ledger holds.
        plan: what is to run after them; None for nothing.
        delta: in (0, 1).
        accountant: one of ``CERTIFIED``.
        resolution: of ``pld``; coarser is quicker, looser, and certified all the same.
        unit: what the figure is for; that of the mechanisms if None.

    Raises:
        InputError: as :func:`dpltm.privacy.accountant.epsilon`.

    Guarantees:
        An upper bound, as :func:`dpltm.privacy.accountant.epsilon`; of a ledger, the worst over its records.
    """
    if isinstance(before, OnRecord):
        planned = () if plan is None else (ReleaseEvent(before.dataset, plan, time=""),)
        return total_epsilon((*before.events, *planned), delta, accountant, resolution=resolution, unit=unit)
    mechanisms = (*before, *(() if plan is None else (plan,)))
    return float(_EPSILON(mechanisms, delta, accountant, resolution=resolution, unit=unit))


def touching(events: Iterable[Event], dataset: DatasetRef) -> tuple[Event, ...]:
    """Those of ``events`` on records that ``dataset`` may share."""
    return tuple(event for event in events if event.dataset.may_overlap(dataset))
