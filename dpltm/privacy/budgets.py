"""Budgets: a limit on what all releases from some records come to, whichever ledger holds them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from dpltm.errors import BudgetError, InputError
from dpltm.privacy.events import BudgetEvent, Event, ProvenanceEvent
from dpltm.privacy.figures import figure
from dpltm.privacy.mechanisms import Unit
from dpltm.privacy.parts import as_replace_one, parts, stated_relations, total_epsilon, touching

QUICK_FIRST = "rdp", "pld"
"""Accountants that budgets ask: what the one admits is admitted. Either may be the tighter one."""

MINUTE = len("2026-01-01T00:00")
"""As far as two times can be told apart (see ``events.now``)."""


def check_budgets(before: Iterable[Event], planned: Iterable[Event]) -> None:
    """Refuses ``planned`` if they exceed a budget that is set on records they touch.

    Args:
        before: what is on record.
        planned: what would be entered, in order.

    Raises:
        BudgetError: with the budget and what everything would come to.
    """
    before, planned = tuple(before), tuple(planned)
    in_force = budgets_in(before + planned)
    for late in budgets_in(planned):
        if late not in in_force:
            raise BudgetError(
                f"budget: one on record was set after {late.time[:16]}; set the clock right, or give a later time"
            )
    for budget in in_force:
        new = [event for event in touching(planned, budget.dataset) if is_paid(event)]
        both = (*touching(before, budget.dataset), *new)
        total = math.inf
        for accountant in QUICK_FIRST:
            total = min(total, spent_of(budget, both, new, accountant))
            if total <= budget.epsilon:
                break
        else:
            why = (
                "where something on record or planned has no finite guarantee, so no budget can be kept; use other records"
                if math.isinf(total)
                else "spend less, or set another (dpltm privacy budget)"
            )
            raise BudgetError(
                f"budget: this would bring {budget.dataset} to epsilon {figure(total)} at delta {budget.delta:g}, above the"
                f" budget of {budget.epsilon:g} set on {budget.time[:10]}; {why}"
            )


def spent_of(
    budget: BudgetEvent, events: Iterable[Event], among: Iterable[Event] | None = None, accountant: str = "pld"
) -> float:
    """Certified epsilon of events at a budget's delta and for its unit.

    Args:
        budget: the limit.
        events: on records that it is set on.
        among: only parts of the records that some of these touched; all where it is None.
        accountant: a certified one.

    Returns:
        For the relation that all of them are stated for; where some are stated for add/remove and some for replace-one, for
        replace-one, which a release for add/remove says less of. Infinite where they have no common guarantee.
    """
    events = tuple(events)
    new = None if among is None else tuple(among)
    if len(set(stated_relations(events))) > 1:
        events = tuple(map(as_replace_one, events))
        new = None if new is None else tuple(map(as_replace_one, new))
    pieces = [part for _, part in parts(events) if new is None or any(event in part for event in new)]
    try:
        found = (total_epsilon((*part, budget), budget.delta, accountant, unit=budget.unit) for part in pieces)
        return max(found, default=0.0)  # the budget is among them, since it says which users are meant
    except InputError:  # releases for users under replace-one beside others: nothing is known of both
        return math.inf


def budgets_in(events: Iterable[Event]) -> list[BudgetEvent]:
    """The budgets in force: of several on the same records, for the same unit, the last.

    That is the one with the latest minute: a ledger may come on record after it was written. In one minute, the later entry.
    """
    last: dict[tuple[str, str, int, int, Unit, str], BudgetEvent] = {}
    for event in events:
        if isinstance(event, BudgetEvent):
            ref = event.dataset  # whatever its name, and whatever id it was given that time
            key = (ref.group, ref.cut, ref.start, ref.stop, event.unit, ref.units)
            if key not in last or event.time[:MINUTE] >= last[key].time[:MINUTE]:
                last[key] = event
    return list(last.values())


def is_paid(event: Event) -> bool:
    """Whether an event costs something: it is no budget, and no statement about records that cost nothing."""
    return not isinstance(event, BudgetEvent) and not (
        isinstance(event, ProvenanceEvent) and event.provenance != "private"
    )
