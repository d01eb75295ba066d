"""A statement: what was done to which records, what that guarantees, and what came of it, as one JSON object.

It is what cards carry and reports show (docs/formats.md, *Statements*). The guarantee follows from the events in it, so
whoever has it can compute it again (:func:`differences`), without the records and without torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from dpltm.errors import ArtifactError, DpltmError, InputError
from dpltm.privacy.accountant import profile
from dpltm.privacy.accountants import ACCOUNTANTS
from dpltm.privacy.event_json import from_json, to_json
from dpltm.privacy.events import Event, TrainingEvent
from dpltm.privacy.mechanisms import Adjacency, Unit
from dpltm.privacy.parts import mechanisms_of, parts
from dpltm.privacy.report import report
from dpltm.privacy.statement import PrivacyReport, json_figure
from dpltm.privacy.trade_off import Curves, curves_of_profiles
from dpltm.reports.attacker import odds
from dpltm.reports.intervals import interval

FORMAT, SCHEMA = "dpltm-statement", 1

SAME, NEAR = 1e-6, 1e-3
"""By how much a figure computed again may differ, in parts of itself: another processor; another version of a library."""

LIBRARIES = ("dpltm", "dp-accounting")
"""Those that figures are computed with."""

MAX_EVENTS = 2000
"""Of a statement; more are too many to read."""

SHARED = ("sampling_rate", "steps", "noise_multiplier", "sensitivity", "nominal_sensitivity")
"""Settings of a training that the mechanism of its event holds as well."""


@dataclass(frozen=True)
class Terms:
    """What a guarantee is stated at.

    Attributes:
        delta: in (0, 1).
        accountant: that was asked for.
        adjacency: where no event fixes one.
        unit: whom it protects; None for that of the events.
    """

    delta: float = 1e-5
    accountant: str = "pld"
    adjacency: Adjacency = "add-remove"
    unit: Unit | None = None


@dataclass(frozen=True)
class Subject:
    """What a statement is about.

    Attributes:
        kind: ``run``, ``tickets`` or ``sweep``.
        name: of its folder.
        settings: public settings, by name: texts, numbers, truth values or None.
        outcome: what came of it, likewise.
        notes: sentences, beside those that the events call for.
        versions: of the libraries that made it.
    """

    kind: str
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    outcome: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


def statement(subject: Subject, events: Sequence[Event], terms: Terms, held: Iterable[Event] = ()) -> dict[str, Any]:
    """The statement on ``events``, which touched records that may overlap.

    Args:
        subject: what it is about.
        events: that the guarantee covers.
        terms: what the guarantee is stated at.
        held: all that the ledger holds, on whatever records.

    Raises:
        InputError: more events than a statement may hold.
    """
    events = tuple(events)
    if len(events) > MAX_EVENTS:
        raise InputError(f"{subject.name}: {len(events):,} events, more than the {MAX_EVENTS:,} of a statement")
    said = report(events, terms.delta, terms.adjacency, subject.notes, terms.accountant, terms.unit, held)
    pieces = parts(events)
    place = {id(event): number for number, event in enumerate(events)}
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "kind": subject.kind,
        "name": subject.name,
        **said.to_json(),
        "accountant": terms.accountant,
        "odds": _odds(pieces_curves([part for _, part in pieces], said.certified.unit)),
        "events": [to_json(event) for event in events],
        "parts": [{"records": str(ref), "events": [place[id(each)] for each in part]} for ref, part in pieces],
        "settings": dict(subject.settings),
        "outcome": dict(subject.outcome),
        "computed_with": {name: version(name) for name in LIBRARIES},
        "versions": dict(subject.versions),
    }


def pieces_curves(pieces: Sequence[Sequence[Event]], unit: Unit) -> Curves | None:
    """The certified curves over parts of the records; None where nothing, or no curve, can be certified."""
    try:
        return curves_of_profiles([profile(mechanisms_of(part), unit=unit) for part in pieces])
    except InputError:
        return None


def _odds(curves: Curves | None) -> dict[str, Any] | None:
    return None if curves is None else odds(curves).to_json()


def events_of(body: Mapping[str, Any]) -> tuple[Event, ...]:
    """The events in a statement, in their order.

    Raises:
        ArtifactError: one that cannot be read.
    """
    events = []
    for number, one in enumerate(body["events"], start=1):
        try:
            events.append(from_json(one))
        except DpltmError as error:
            raise ArtifactError(f"event {number}: {error}") from None
    return tuple(events)


def pieces_of(body: Mapping[str, Any], events: Sequence[Event]) -> list[tuple[Event, ...]]:
    """The events by part of the records, as the statement divides them.

    Raises:
        ArtifactError: a part names an event that is not there, or an event is in no part.
    """
    known = range(len(events))
    pieces = [part["events"] for part in body["parts"]]
    if any(
        isinstance(place, bool) or not isinstance(place, int) or place not in known
        for part in pieces
        for place in part
    ):
        raise ArtifactError("parts: one names an event that is not there")
    if missing := set(known) - {place for part in pieces for place in part}:
        raise ArtifactError(f"parts: event {min(missing) + 1} is in none of them, so it would count for nothing")
    return [tuple(events[place] for place in part) for part in pieces]


def differences(body: Mapping[str, Any]) -> list[str]:
    """What in a statement does not follow from its own events; nothing where all of it does.

    Args:
        body: a statement whose shape was checked (:func:`check_shape`).

    Raises:
        ArtifactError: events that cannot be read, or whose parts make no sense.
    """
    events = events_of(body)
    pieces = pieces_of(body, events)
    certified = body["certified"]
    try:
        again = [
            report(part, certified["delta"], certified["adjacency"], (), body["accountant"], certified["unit"])
            for part in pieces or [()]
        ]
    except InputError as error:
        raise ArtifactError(f"its events have no figure: {error}") from None
    tolerance = SAME if body["computed_with"] == {name: version(name) for name in LIBRARIES} else NEAR
    found = _compared("certified", certified, _costliest(again).to_json()["certified"], tolerance)
    claims = [one.nominal for one in again if one.nominal is not None]
    nominal = None if not claims else max(claims, key=lambda claim: claim.epsilon)
    expected = None if nominal is None else {**nominal.__dict__, "epsilon": json_figure(nominal.epsilon)}
    found += _compared("nominal", body["nominal"], expected, tolerance)
    found += _compared("odds", body["odds"], _odds(pieces_curves(pieces, certified["unit"])), tolerance)
    outcome = body["outcome"]
    for name, value in (interval(outcome.get("accuracy"), outcome.get("test_records")) or {}).items():
        found += _compared(f"outcome.{name}", outcome.get(name), value, SAME)
    return found + _unlike_event(body, events)


def _costliest(reports: Sequence[PrivacyReport]) -> PrivacyReport:
    return max(reports, key=lambda one: one.certified.epsilon)


def _unlike_event(body: Mapping[str, Any], events: Sequence[Event]) -> list[str]:
    """Settings of a training that no event in the statement has."""
    settings = body["settings"]
    rows = [_of_training(event) for event in events if isinstance(event, TrainingEvent)]
    if body["kind"] != "run" or not rows:
        return []
    unlike = [
        [name for name in row if name in settings and not _alike(settings[name], row[name], SAME)] for row in rows
    ]
    place = min(range(len(rows)), key=lambda at: len(unlike[at]))  # the training that fits best
    return [
        f"settings.{name}: {_text(settings[name])}, but its event says {_text(rows[place][name])}"
        for name in unlike[place]
    ]


def _of_training(event: TrainingEvent) -> dict[str, Any]:
    mechanism = event.mechanism
    own = {"filter": event.filter, "live": event.live, "noise_bits": event.noise, "noise_std": mechanism.noise_std}
    return {name: getattr(mechanism, name) for name in SHARED} | own


def _compared(name: str, stated: Any, again: Any, tolerance: float) -> list[str]:
    """Where two values of JSON differ, each with its place."""
    if isinstance(stated, Mapping) and isinstance(again, Mapping) and stated.keys() == again.keys():
        return [line for key in again for line in _compared(f"{name}.{key}", stated[key], again[key], tolerance)]
    if isinstance(stated, list) and isinstance(again, list) and len(stated) == len(again):
        pairs = enumerate(zip(stated, again, strict=True), start=1)
        return [line for at, (one, two) in pairs for line in _compared(f"{name}.{at}", one, two, tolerance)]
    if _alike(stated, again, tolerance):
        return []
    return [f"{name}: {_text(stated)}, but its events give {_text(again)}"]


def _alike(one: Any, other: Any, tolerance: float) -> bool:
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (one, other))
    return (
        math.isclose(one, other, rel_tol=tolerance, abs_tol=1e-12)
        if numbers
        else type(one) is type(other) and one == other
    )


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "nothing" if value is None else f"{value!s:.80}"


_SCALAR = (str, int, float, bool, type(None))
_CERTIFIED = {"epsilon": (int, float, str), "delta": (int, float), "accountant": str, "adjacency": str, "unit": str,
              "sampling": str}  # fmt: skip
_NOMINAL = {"epsilon": (int, float, str), "delta": (int, float), "source": str}
_SHAPE: dict[str, Any] = {
    "format": str, "schema": int, "kind": str, "name": str, "certified": dict, "nominal": (dict, type(None)), "notes": list,
    "accountant": str, "odds": (dict, type(None)), "events": list, "parts": list, "settings": dict, "outcome": dict,
    "computed_with": dict, "versions": dict,
}  # fmt: skip
_CHOICES = {"adjacency": ("add-remove", "replace-one"), "unit": ("record", "user")}


def check_shape(body: Mapping[str, Any]) -> None:
    """Raises ArtifactError unless ``body`` has the keys of a statement, each with values of its type."""
    _keys("the statement", body, _SHAPE)
    _keys("certified", body["certified"], _CERTIFIED)
    if body["nominal"] is not None:
        _keys("nominal", body["nominal"], _NOMINAL)
    for name, known in _CHOICES.items():
        if body["certified"][name] not in known:
            raise ArtifactError(f"certified.{name}: {body['certified'][name]!r:.40} is not one of {', '.join(known)}")
    if body["accountant"] not in ACCOUNTANTS:
        raise ArtifactError(f"accountant: {body['accountant']!r:.40} is not one of {', '.join(ACCOUNTANTS)}")
    for claim in filter(None, (body["certified"], body["nominal"])):
        epsilon, delta = claim["epsilon"], claim["delta"]
        if (isinstance(epsilon, str) and epsilon != "inf") or (
            not isinstance(epsilon, str) and not 0 <= epsilon < math.inf
        ):
            raise ArtifactError(f"epsilon: {epsilon!r:.40} is no epsilon")
        if not 0 < delta < 1:
            raise ArtifactError(f"delta: {delta!r:.40} is not between 0 and 1")
    if body["kind"] not in ("run", "tickets", "sweep"):
        raise ArtifactError(f"kind: {body['kind']!r:.40} is not one of run, tickets, sweep")
    if not 0 <= len(body["events"]) <= MAX_EVENTS:
        raise ArtifactError(f"events: {len(body['events']):,}, more than the {MAX_EVENTS:,} of a statement")
    for part in body["parts"]:
        _keys("parts", part, {"records": str, "events": list})
    if not all(isinstance(note, str) for note in body["notes"]):
        raise ArtifactError("notes: one is no text")
    if body["odds"] is not None:
        _keys("odds", body["odds"], {"right": list, "found": list})
        for name, key in (("right", "prior"), ("found", "false_alarms")):
            for row in body["odds"][name]:
                _keys(f"odds.{name}", row, {key: (int, float), "at_most": (int, float)})
    for name in ("settings", "outcome", "versions", "computed_with"):
        if wrong := [key for key, value in body[name].items() if not isinstance(value, _SCALAR)]:
            raise ArtifactError(f"{name}.{wrong[0]!s:.40}: neither a text nor a number")


def _keys(name: str, body: Any, known: Mapping[str, Any]) -> None:
    if not isinstance(body, Mapping):
        raise ArtifactError(f"{name}: expected an object")
    if wrong := sorted(set(body) ^ set(known)):
        raise ArtifactError(f"{name}: unknown or missing field {wrong[0]!r:.40}")
    for key, types in known.items():
        if not isinstance(body[key], types) or (isinstance(body[key], bool) and bool not in _as_tuple(types)):
            raise ArtifactError(f"{name}: field {key}: bad value {body[key]!r:.60}")


def _as_tuple(types: Any) -> tuple[type, ...]:
    return types if isinstance(types, tuple) else (types,)
