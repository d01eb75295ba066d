"""Ticket sets, winners and what they say of where they come from: values. ``dpltm.tickets`` keeps them on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpltm.errors import ArtifactError
from dpltm.networks.content import content_id, pack
from dpltm.networks.masks import Mask
from dpltm.privacy.behind import FOUND
from dpltm.privacy.event_json import to_json
from dpltm.privacy.events import DatasetRef, Event, ProvenanceKind
from dpltm.privacy.old_ledger import of_draws
from dpltm.pruning.generation import Ticket, Tickets

if TYPE_CHECKING:
    from dpltm.features.feature_map import FeatureMap
    from dpltm.privacy.old_ledger import Ledger
    from dpltm.privacy.statement import PrivacyReport


@dataclass(frozen=True)
class Parent:
    """The set that another was made from.

    Attributes:
        id, name: of that set.
        round: the ticket that was taken; None for all of them.
        how: what was done with it, in a few words.
    """

    id: str
    name: str
    round: int | None
    how: str


@dataclass(frozen=True, kw_only=True, repr=False)
class TicketSet:
    """A ticket set and what it says about itself.

    Of provenance ``private`` its tickets hold accuracies on private records, and predictors that were trained on them. Its
    text (``repr``) tells neither.

    Attributes:
        body: spec, theta0 and tickets.
        name: label.
        criterion: how weights were chosen.
        provenance: what masks, theta0 and predictors depend on.
        source: the records they were made from; None for no records at all.
        events: what making them spent on those records; not empty for provenance ``dp`` alone.
        draws: of winners that these tickets are, or were made of, on whatever records.
        parent: the set it was made from, if any.
        config: settings of generation, transfer or compaction.
        feature_map: what stands in front of the network; None where it takes records as they are.
        label: what messages call it: its name, or where it was read from.
        path: its folder; None for a set in memory.
        ledger: where draws and trainings are entered if no other ledger is named; None where that is a file of the folder.
        privacy: the report on the records that it was made from; None of a set that was read.
    """

    body: Tickets
    name: str
    criterion: str
    provenance: ProvenanceKind
    source: DatasetRef | None
    config: Mapping[str, Any]
    events: tuple[Event, ...] = ()
    draws: tuple[Event, ...] = ()
    parent: Parent | None = None
    feature_map: FeatureMap | None = None
    label: str = field(default="", compare=False)
    path: Path | None = field(default=None, compare=False)
    ledger: Ledger | None = field(default=None, compare=False)
    privacy: PrivacyReport | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.name)

    def __repr__(self) -> str:
        return (
            f"TicketSet({self.label!r}: {len(self.body.tickets)} tickets of {self.body.spec.text} by {self.criterion},"
            f" provenance {self.provenance}, id {self.id[:12]})"
        )

    @cached_property
    def id(self) -> str:
        """Content id (hex) over theta0 and masks."""
        theta0 = {name: value.numpy() for name, value in self.body.theta0.items()}
        return set_id(theta0, {str(ticket.round): ticket.mask for ticket in self.body.tickets})

    def ticket(self, number: int) -> Ticket:
        """The ticket of round ``number``.

        Raises:
            ArtifactError: there is no such round.
        """
        if not 0 <= number < len(self.body.tickets):
            raise ArtifactError(
                f"{self.label}@{number}: no such round; it has rounds 0 to {len(self.body.tickets) - 1}"
            )
        return self.body.tickets[number]

    @property
    def is_scored(self) -> bool:
        """Whether its tickets have predictors, which a selection scores."""
        return all(ticket.predictor is not None for ticket in self.body.tickets)


Draw = tuple[int, tuple[Event, ...]]
"""The round that won, and what the draw entered in a ledger."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What a draw reveals of a ticket where that is asked for, and entered as a release without protection.

    Attributes:
        round, density: of the ticket.
        accuracy, score: on the private records.
        probability: that it would win.
    """

    round: int
    density: float
    accuracy: float
    score: float
    probability: float


@dataclass(frozen=True)
class Winner:
    """The round that won last, and the events that its draw entered; none where it was chosen on public data.

    Attributes:
        round, events: of the last draw; with what bounds and categories of the records were found by, or these come from.
        earlier: draws before it that entered any.
        tickets: the set that was drawn from; None where it is known from elsewhere.
        privacy: the report on the private records; None of a winner that was read.
        revealed: all candidates, where that was asked for.
    """

    round: int
    events: tuple[Event, ...]
    earlier: tuple[Draw, ...] = ()
    tickets: TicketSet | None = field(default=None, compare=False)
    privacy: PrivacyReport | None = field(default=None, compare=False)
    revealed: tuple[Candidate, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        of = "" if self.tickets is None else f" of {self.tickets.label!r}"
        return f"Winner(round {self.round}{of}{'' if self.privacy is None else f', {self.privacy.certified}'})"

    @property
    def ticket(self) -> Ticket:
        """The ticket that won.

        Raises:
            ArtifactError: the set that it was drawn from is not at hand.
        """
        if self.tickets is None:
            raise ArtifactError(f"round {self.round} won, but the set that it was drawn from is not at hand")
        return self.tickets.ticket(self.round)

    def behind(self, number: int) -> tuple[Event, ...]:
        """What taking round ``number`` depends on: every draw so far if it ever won, since later ones were seen as well."""
        draws = (*self.earlier, (self.round, self.events))
        if number not in (round for round, _ in draws):
            return ()
        return of_draws(events for _, events in draws)


def found_setting(found: Iterable[Event]) -> dict[str, Any]:
    """What bounds and categories of records were found by, as a setting of a set; none where nothing was found."""
    said = [to_json(event) for event in found]
    return {FOUND: said} if said else {}


def schema_of(tickets: TicketSet) -> dict[str, Any]:
    """The settings of a set that go on to whatever is made from it: the schema of the table, and what finding it cost."""
    return {name: value for name, value in tickets.config.items() if name in ("table_schema", FOUND)}


def set_id(theta0: Mapping[str, np.ndarray], masks: Mapping[str, Mask]) -> str:
    """Content id (hex) of a ticket set: over starting weights, and masks by round."""
    tensors = {f"theta0/{name}": value for name, value in theta0.items()}
    tensors |= {
        f"masks/{number}/{name}": pack(value) for number, mask in masks.items() for name, value in mask.items()
    }
    return content_id(tensors)
