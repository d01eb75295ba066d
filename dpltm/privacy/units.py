"""Units: one record, or one user with all their records; and what a release for the one says of the other.

At unit ``record`` two datasets are neighbours where they differ in one record; at unit ``user``, under add/remove, where one
has a user more than the other, with whatever records. One ledger may hold releases for both. What they come to together:

- *For a user*, a release for records is worth nothing: a user may have many records, and how many is private. It counts
  as one without a mechanism.
- *For a record*, a release for users under add/remove counts at **twice** its sensitivity, not once. Let D' be D and one
  more rating by user u. No single step between neighbours at unit ``user`` leads from D to D' where u has other ratings: u
  leaves D and comes again with one rating more. A sampled Gaussian step gives s + B g + noise on D and s + B g' + noise on
  D', with what others contribute, s, the same coin B of u, and |g|, |g'| <= C; where the rating is u's only one, g = 0. That
  is what one record replaced by another does, so the pair of the replace-one relation (see ``SampledGaussian``) dominates
  it, at the sensitivity 2 C. Whatever else is known to be (epsilon, delta)-DP for a user is, by two such steps,
  (2 epsilon, (1 + e^epsilon) delta)-DP for a record; a range of losses is twice as wide; an L1 or L2 sensitivity doubles.
- Under replace-one there is no such rule: a rating replaced by one of another user changes two users.

Two steps also lie between neighbours where a release is on a **range of positions** of a file that fixes no places, under
add/remove, as ledgers before 0.2 have them: a record more or less moves all that follow it, so the range loses one record
and gains another. The same rule holds. Every range of the file is so affected, so all add up; and where one of them was
declared public, a private record may have moved into it, so nothing is certified. Under replace-one nobody moves.

For one pair of neighbours D, D' at unit ``record``, every release is so dominated by a pair of distributions of its own, and
these compose adaptively (Zhu, Dong, Wang 2022, Theorem 10), whatever they came from.
"""

from __future__ import annotations

from collections.abc import Iterable

from dpltm.privacy.events import BudgetEvent, Event, NonPrivateEvent, ProvenanceEvent, Unit


def is_release(event: Event) -> bool:
    """Whether an event is one of a mechanism, whose relation and unit a guarantee is stated for."""
    return not isinstance(event, (ProvenanceEvent, NonPrivateEvent, BudgetEvent))


def unit_of(events: Iterable[Event]) -> Unit:
    """The unit that all ``events`` together protect: ``user`` where every release does."""
    stated = [event.unit for event in events if is_release(event)]
    return "user" if stated and all(unit == "user" for unit in stated) else "record"


def bounds_nothing(event: Event, unit: Unit) -> bool:
    """Whether an event is a release that says nothing of this unit."""
    return unit == "user" and event.unit == "record" and is_release(event)


def neighbours_between(event: Event, unit: Unit) -> int:
    """How many steps between the event's own neighbours lead from one neighbour at ``unit`` to the other: 1 or 2."""
    moves = event.dataset.cut == "positions" and event.adjacency == "add-remove"
    return 2 if moves or (unit == "record" and event.unit == "user") else 1


def moves_into_public(event: Event) -> bool:
    """Whether an event declares a range of positions public, into which a private record may move."""
    return isinstance(event, ProvenanceEvent) and event.provenance == "public" and event.dataset.cut == "positions"
