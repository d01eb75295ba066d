"""What the tickets of a set depend on and what that cost, as JSON, in its description and in the files of single tickets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from dpltm.errors import ArtifactError
from dpltm.privacy.behind import found_behind, is_behind
from dpltm.privacy.event_json import found_from_json, ref_to_json, to_json
from dpltm.privacy.events import (
    DatasetRef,
    Event,
    GaussianEvent,
    GuaranteeEvent,
    LaplaceEvent,
    NonPrivateEvent,
    ProvenanceKind,
    SelectionEvent,
    TrainingEvent,
)
from dpltm.pruning.ticket_set import Parent, TicketSet
from dpltm.tickets.feature_files import Front
from dpltm.tickets.identity import read_event, read_ref

MAX_TEXT = 200
"""Characters of a name."""

PROVENANCES: tuple[ProvenanceKind, ...] = get_args(ProvenanceKind)


@dataclass(frozen=True)
class Origin:
    """What a ticket that left its set says of where it comes from.

    Attributes:
        id, name: of the set.
        provenance, source, events, draws: as in ``TicketSet``.
        front: what stands in front of its network, but for its tensors; None for nothing.
        complete: whether it says so; files that dpltm wrote before did not.
        found: what bounds and categories of its records were found by, or read off; None where it does not say.
    """

    id: str
    name: str
    provenance: ProvenanceKind
    source: DatasetRef | None
    events: tuple[Event, ...]
    draws: tuple[Event, ...] = ()
    front: Front | None = None
    complete: bool = True
    found: tuple[Event, ...] | None = ()

    def to_json(self) -> dict[str, Any]:
        """As one JSON object."""
        return {
            "id": self.id,
            "name": self.name,
            "provenance": self.provenance,
            "source": None if self.source is None else ref_to_json(self.source),
            "events": [to_json(event) for event in self.events],
            "draws": [to_json(event) for event in self.draws],
            "feature_map": None if self.front is None else self.front.to_json(),
            "found": [to_json(event) for event in self.found or ()],
        }

    @classmethod
    def from_json(cls, body: object) -> Origin:
        """What ``to_json`` gave.

        Raises:
            ArtifactError: it is something else.
        """
        keys = {"id", "name", "provenance", "source", "events", "draws"}
        if not isinstance(body, dict) or set(body) - {"feature_map", "found"} != keys:
            raise ArtifactError("not the origin of a ticket")
        for key in ("id", "name"):
            check_text(key, body[key])
        stated = body.get("feature_map")
        front = None if stated is None else Front.from_json(stated)
        found = found_from_json(body["found"]) if "found" in body else None
        return cls(body["id"], body["name"], *read_origin("origin", body), front, "feature_map" in body, found)


def origin_of(tickets: TicketSet) -> Origin:
    """What its tickets take along."""
    front = None if tickets.feature_map is None else Front.of(tickets.feature_map)
    return Origin(
        tickets.id, tickets.name, tickets.provenance, tickets.source, tickets.events, tickets.draws, front,
        found=found_behind(tickets),
    )  # fmt: skip


def read_origin(
    where: Path | str, document: dict[str, Any]
) -> tuple[ProvenanceKind, DatasetRef | None, tuple[Event, ...], tuple[Event, ...]]:
    """What the tickets depend on, and what that cost: the two must agree.

    Returns:
        Provenance, source, events and draws.

    Raises:
        ArtifactError: one is none, or they do not go together.
    """
    provenance, body = document["provenance"], document["source"]
    if provenance not in PROVENANCES:
        raise ArtifactError(f"{where}: provenance {provenance!r:.40} is none of {', '.join(PROVENANCES)}")
    if (body is None) != (provenance == "data-free"):
        raise ArtifactError(f"{where}: provenance {provenance} and source do not go together")
    source = None
    if body is not None:
        try:
            source = read_ref(body)
        except ArtifactError as error:
            raise ArtifactError(f"{where}: source: {error}") from None
        for key in ("name", "id", "key_id"):
            check_text(f"{where}: source: {key}", getattr(source, key))
    events = _events(f"{where}: events", document.get("events", []), lambda e: check_events(e, provenance, source))
    return provenance, source, events, _events(f"{where}: draws", document.get("draws", []), check_draws)


def _events(where: str, rows: object, check: Callable[[tuple[Event, ...]], None]) -> tuple[Event, ...]:
    if not isinstance(rows, list):
        raise ArtifactError(f"{where}: not a list")
    try:
        events = tuple(read_event(row) for row in rows)
        check(events)
    except ArtifactError as error:
        raise ArtifactError(f"{where}: {error}") from None
    return events


def check_draws(events: tuple[Event, ...]) -> None:
    """Raises ArtifactError unless these are what draws of winners enter, or what the records of a draw come from."""
    for event in events:
        if not (isinstance(event, (SelectionEvent, NonPrivateEvent)) or is_behind(event)):
            raise ArtifactError(f"{type(event).__name__} is not what the draw of a winner enters")


def check_events(events: tuple[Event, ...], provenance: ProvenanceKind, source: DatasetRef | None) -> None:
    """Raises ArtifactError unless these are what a set of that provenance spent: releases, on its source.

    Args:
        events: that the set holds.
        provenance: of the set.
        source: what it was made from; None for no records.
    """
    if bool(events) != (provenance == "dp"):
        raise ArtifactError(f"provenance {provenance} and events do not go together: dp alone has any")
    for event in events:
        if not isinstance(event, (TrainingEvent, GaussianEvent, LaplaceEvent, GuaranteeEvent)):
            raise ArtifactError(f"{type(event).__name__} is no DP release that tickets could be made from")
        if event.dataset != source:
            raise ArtifactError("one is on other records than the source")
    if len(set(events)) < len(events):
        raise ArtifactError("one stands there twice; two releases differ at least in their time")


def read_parent(where: Path, body: object) -> Parent | None:
    """The reference to the set that another was made from; None for none.

    Raises:
        ArtifactError: it is something else.
    """
    if body is None:
        return None
    if not isinstance(body, dict) or set(body) != {"id", "name", "round", "how"}:
        raise ArtifactError(f"{where}: parent is not a reference to a ticket set")
    for key in ("id", "name", "how"):
        check_text(f"{where}: parent: {key}", body[key])
    number = body["round"]
    if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
        raise ArtifactError(f"{where}: parent: round {number!r:.40} is not a round")
    return Parent(**body)


def check_text(where: str, text: object) -> None:
    """Raises ArtifactError unless ``text`` can be shown on a terminal as it is."""
    if not isinstance(text, str) or len(text) > MAX_TEXT or not text.isprintable():
        raise ArtifactError(f"{where}: not a printable text of at most {MAX_TEXT} characters")
