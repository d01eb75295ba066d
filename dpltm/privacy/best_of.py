"""What keeping the best of several trainings costs, where a ledger holds some that may differ in settings alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from dpltm.privacy.accountant import epsilon
from dpltm.privacy.accountants import FINE, QUICK
from dpltm.privacy.events import DatasetRef, Event, TrainingEvent
from dpltm.privacy.figures import figure
from dpltm.privacy.mechanisms import PrivateSearch
from dpltm.privacy.parts import total_epsilon
from dpltm.privacy.private_search import SCORE_NOISE, gamma_for

MAX_PRICED = 20
"""Trainings with up to this many different mechanisms are compared with a search; more would take long."""


def best_of_notes(
    events: Iterable[Event], delta: float, accountant: str, where: str = "", *, priced: bool = True
) -> list[str]:
    """What the best of some trainings costs: two sentences for each group of trainings that may differ in settings alone.

    These are trainings on the same records of equally many live weights. A ledger has no step sizes or seeds, so it cannot
    tell a search from one training that was begun twice: the sentences say what *keeping the best* costs.

    Args:
        events: of a ledger, or of several.
        delta: in (0, 1).
        accountant: a certified one.
        where: what to say of where the trainings are on record.
        priced: whether to say what a private search would have cost, the second sentence; pricing one takes a second.

    Returns:
        None where no two trainings are alike, or where they have no finite guarantee.
    """
    groups: dict[tuple[object, ...], list[TrainingEvent]] = {}
    for event in events:
        if isinstance(event, TrainingEvent):
            groups.setdefault(_of(event), []).append(event)
    told = [_notes(group, delta, accountant, where, priced) for group in groups.values() if len(group) > 1]
    return [note for notes in told for note in notes]


def alike(events: Iterable[Event], training: TrainingEvent) -> tuple[TrainingEvent, ...]:
    """Those of ``events`` that may differ from a training in settings alone."""
    return tuple(event for event in events if isinstance(event, TrainingEvent) and _of(event) == _of(training))


def _of(event: TrainingEvent) -> tuple[object, ...]:
    """What trainings have in common that may differ in settings alone: records, neighbours, and the size of a network."""
    ref, mechanism = event.dataset, event.mechanism
    return ref.group, ref.cut, ref.start, ref.stop, ref.units, mechanism.adjacency, mechanism.unit, event.live


def _notes(group: list[TrainingEvent], delta: float, accountant: str, where: str, priced: bool) -> list[str]:
    every = total_epsilon(group, delta, accountant)
    if math.isinf(every):
        return []
    count, ref = len(group), group[0].dataset
    notes = [
        f"{count} trainings on {ref}{where}, each of {group[0].live:,} live weights, may differ in settings alone: whoever"
        f" keeps the best of them pays for all, epsilon {figure(every)} together, and for scores on private records on top"
        " (`eval_private`)"
    ]
    if priced and (price := _price(group, every, delta, accountant, ref)) is not None:
        notes.append(
            f"a search that is paid for (dpltm tune `private` `tries` {count}) would have cost epsilon {figure(price)},"
            " scores included, for as many tries in the mean, each as noisy as the costliest of these"
        )
    return notes


def _price(group: list[TrainingEvent], every: float, delta: float, accountant: str, ref: DatasetRef) -> float | None:
    """The epsilon of a search; None where no search is made, for users or under replace-one, or where pricing takes long."""
    mechanisms = {replace(event.mechanism, nominal_sensitivity=None) for event in group}
    like = group[0].mechanism
    made = like.unit == "record" and like.adjacency == "add-remove" and ref.cut != "positions"
    if not made or len(mechanisms) > MAX_PRICED:
        return None
    costliest = max(mechanisms, key=lambda mechanism: epsilon((mechanism,), delta, "rdp"))  # quick: it only ranks them
    price = every
    # The noise of scores follows from the price; a third time would change it by one percent.
    for resolution in (QUICK, FINE):
        search = PrivateSearch((costliest,), SCORE_NOISE / price, gamma_for(len(group)))
        price = epsilon((search,), delta, accountant, resolution=resolution)
        if math.isinf(price):
            return None
    return price
