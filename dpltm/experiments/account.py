"""What a whole experiment costs, should all of it be published: everything that its ledgers hold, whatever came of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dpltm.errors import DpltmError, InputError
from dpltm.experiments.recipe import Recipe
from dpltm.privacy.events import Event
from dpltm.privacy.figures import figure
from dpltm.privacy.lineage import check_never_private
from dpltm.privacy.mechanisms import Adjacency
from dpltm.privacy.old_ledger import merge
from dpltm.privacy.report import overlap_note, report

Events = tuple[Event, ...]
"""What one ledger holds."""

LEFT_OUT = "{} of {} ledgers certify nothing: all together neither; the others together would be epsilon {}"
NOR_THE_OTHERS = "{} of {} ledgers certify nothing, nor do the others together"
PUBLIC_AND_PRIVATE = "records that one ledger declares public are private in another, so nothing is certified for them"


def total_privacy(recipe: Recipe, ledgers: Sequence[Events]) -> dict[str, Any]:
    """The guarantee of everything that these ledgers hold, on the records that it costs most.

    Attempts that failed, trials of an earlier version of the recipe and those of more seeds count as well: what a ledger
    entered stays entered. ``finite`` is what those that certify anything cost together; None where they certify nothing
    together, or where each does.

    Args:
        recipe: whose delta and adjacency the guarantee is stated at: the least delta, and replace-one if any arm asks it.
        ledgers: events by ledger.
    """
    delta = min((float(arm.train.get("delta", 1e-5)) for arm in recipe.arms), default=1e-5)
    kinds = {str(arm.train.get("adjacency", "add-remove")) for arm in recipe.arms}
    adjacency: Adjacency = "replace-one" if "replace-one" in kinds else "add-remove"
    body = _costliest(ledgers, delta, adjacency)
    body["finite"] = None
    body["notes"] = [
        "of everything that the ledgers of this sweep hold, on the records that it costs most",
        *body["notes"],
    ]
    if math.isinf(float(body["certified"]["epsilon"])):
        finite = [events for events in ledgers if _certifies(events, delta, adjacency)]
        if len(finite) < len(ledgers):  # else each does, and what they say of each other is in the way
            rest = float(_costliest(finite, delta, adjacency)["certified"]["epsilon"])
            counts = len(ledgers) - len(finite), len(ledgers)
            if math.isinf(rest):
                body["notes"].append(NOR_THE_OTHERS.format(*counts))
            else:
                body["finite"] = {"epsilon": rest, "ledgers": len(finite)}
                body["notes"].append(LEFT_OUT.format(*counts, figure(rest)))
    return body


def costliest_events(ledgers: Sequence[Events], delta: float, adjacency: Adjacency) -> Events:
    """The events of these ledgers on the records that they cost most together; a release in two ledgers counts once.

    Args:
        ledgers: events by ledger.
        delta: in (0, 1).
        adjacency: the relation to state where no event fixes one.
    """
    return _on_costliest(ledgers, delta, adjacency)[0]


def _costliest(ledgers: Sequence[Events], delta: float, adjacency: Adjacency) -> dict[str, Any]:
    """The report of all of these together on the records that they cost most."""
    every, (_, costliest) = merge(ledgers), _on_costliest(ledgers, delta, adjacency)
    costliest["nominal"] = None
    costliest["notes"] += overlap_note(every, delta, float(costliest["certified"]["epsilon"]))
    return costliest


def _on_costliest(ledgers: Sequence[Events], delta: float, adjacency: Adjacency) -> tuple[Events, dict[str, Any]]:
    """The events on the records that they cost most, and their report.

    Records that nobody here can tell from others may be any, so their events count everywhere.
    """
    every = merge(ledgers)
    costliest: tuple[Events, dict[str, Any]] = (), report((), delta, adjacency).to_json()
    for name in dict.fromkeys(event.dataset.group for event in every):
        own = [event.dataset.all for event in every if event.dataset.group == name]
        group = tuple(event for event in every if any(event.dataset.may_overlap(ref) for ref in own))
        one = group, _on_same_records(group, delta, adjacency)
        costliest = max(costliest, one, key=lambda pair: float(pair[1]["certified"]["epsilon"]))
    return costliest


def _on_same_records(events: Events, delta: float, adjacency: Adjacency) -> dict[str, Any]:
    """The report of events whose records may be the same."""
    try:
        check_never_private(events, events)
    except InputError:
        why = PUBLIC_AND_PRIVATE
    else:
        try:
            return report(events, delta, adjacency).to_json()
        except DpltmError as error:  # releases of which no rule says what they cost together
            why = f"what all cost together is not known: {error}"
    body = report((), delta, adjacency, [why]).to_json()
    body["certified"]["epsilon"] = "inf"
    return body


def _certifies(events: Events, delta: float, adjacency: Adjacency) -> bool:
    """Whether a ledger by itself has a finite epsilon, whatever the records."""
    return math.isfinite(float(_costliest([events], delta, adjacency)["certified"]["epsilon"]))
