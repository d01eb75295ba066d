"""Statements computed again: what in one does not follow from its own events."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from dpltm.errors import ArtifactError, InputError, in_flags
from dpltm.privacy.accountants import certified_by
from dpltm.privacy.events import Event, ProvenanceEvent
from dpltm.privacy.parts import parts
from dpltm.privacy.report import called_for, if_overlapping, report
from dpltm.privacy.statement import PrivacyReport, json_figure
from dpltm.reports.fields import PROVENANCE
from dpltm.reports.intervals import interval
from dpltm.reports.statement import LIBRARIES, events_of, odds_of, pieces_curves, pieces_of
from dpltm.reports.trainings import alike, rows_of

SAME, NEAR = 1e-6, 1e-3
"""By how much a figure computed again may differ, in parts of itself: another processor; another version of a library."""

_OF_KIND = {"run": "sampling_rate", "tickets": "rounds", "sweep": "members"}
"""A setting that statements of a kind have, and those of no other kind."""


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
    found += _compared("odds", body["odds"], odds_of(pieces_curves(pieces, certified["unit"])), tolerance)
    outcome = body["outcome"]
    ends = interval(outcome.get("accuracy"), outcome.get("test_records")) or {}
    for name in ("low", "high"):
        found += _compared(f"outcome.{name}", outcome.get(name), ends.get(name), SAME)
    if body["state"] == "finished":
        found += _unlike_settings(body, events)
    else:
        found.append(f"state: {body['state']}: what it tells of is not complete, so its settings cannot be compared")
    return [*found, *_split(body, events), *_missing_notes(body, events)]


def _costliest(reports: Sequence[PrivacyReport]) -> PrivacyReport:
    return max(reports, key=lambda one: one.certified.epsilon)


def _unlike_settings(body: Mapping[str, Any], events: Sequence[Event]) -> list[str]:
    """Settings of a training that no event in the statement has, that are missing, or that do not fit each other."""
    settings, kind = body["settings"], body["kind"]
    found = [
        f"kind: {kind}, but its settings are those of a {other}"
        for other, name in _OF_KIND.items() if other != kind and settings.get(name) is not None
    ]  # fmt: skip
    rows = [row for event in events for row in rows_of(event)]
    if kind == "run" or settings.get(_OF_KIND["run"]) is not None:
        found += _of_run(settings, rows)
    return found + _unlike_provenance(settings, events)


def _of_run(settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return ["events: none is that of a training, and the statement is of one"]
    unlike = [
        [name for name, value in row.items() if name not in settings or not alike(settings[name], value, SAME)]
        for row in rows
    ]
    place = min(range(len(rows)), key=lambda at: len(unlike[at]))  # the training that fits best
    found = [
        f"settings.{name}: {_text(settings[name]) if name in settings else 'missing'}, but its event says"
        f" {_text(rows[place][name])}"
        for name in unlike[place]
    ]
    return found + _unlike_batch(settings, rows[place]["sampling_rate"])


def _unlike_batch(settings: Mapping[str, Any], rate: float) -> list[str]:
    """What the noisy sum is divided by, beside the rate and the public number of records."""
    batch, records = settings.get("expected_batch"), settings.get("public_records")
    groups, divisor = settings.get("groups"), settings.get("divisor")
    found = []
    if batch is not None or records is not None:
        size, whole = _number(batch), _number(records)
        if size is None or whole is None or abs(size / rate - whole) > 0.5 + SAME * abs(whole):
            gives = None if whole is None else rate * whole
            found.append(
                f"settings.expected_batch: {_text(batch)}, but the rate {_text(rate)} of {_text(records)} records gives"
                f" {_text(gives)}"
            )
    expected = batch if groups is None else groups
    if not alike(divisor, expected, SAME) and (divisor is not None or expected is not None):
        found.append(f"settings.divisor: {_text(divisor)}, but groups and expected batch give {_text(expected)}")
    return found


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _unlike_provenance(settings: Mapping[str, Any], events: Sequence[Event]) -> list[str]:
    """Where the statement says that its tickets come from elsewhere than its events say."""
    kind, ticket_set = settings.get("provenance"), settings.get("ticket_set")
    if kind is not None and kind not in PROVENANCE:
        return [f"settings.provenance: {_text(kind)} is not one of {', '.join(PROVENANCE)}"]
    if kind is not None and ticket_set is None:
        return [f"settings.provenance: {_text(kind)}, but no ticket set is named"]
    told = [
        event.provenance for event in events if isinstance(event, ProvenanceEvent) and event.ticket_set == ticket_set
    ]
    if not told or (kind in told and (kind == "private" or "private" not in told)):
        return []
    says = "private" if "private" in told else told[0]
    return [f"settings.provenance: {_text(kind)}, but its event says {says}"]


def _split(body: Mapping[str, Any], events: Sequence[Event]) -> list[str]:
    """Events that the parts keep apart, though their ids show that they touched the same records."""
    place = {id(event): number for number, event in enumerate(events)}
    alike_ids: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        alike_ids.setdefault((event.dataset.key_id, event.dataset.id), []).append(event)
    stated = [set(part["events"]) for part in body["parts"]]
    found = []
    for group in alike_ids.values():
        for _, piece in parts(group):
            together = {place[id(event)] for event in piece}
            if not any(together <= part for part in stated):
                numbers = ", ".join(str(number + 1) for number in sorted(together))
                found.append(
                    f"parts: events {numbers} touched the same records by their ids, and no part holds them all"
                )
    return list(dict.fromkeys(found))


def kept_apart(body: Mapping[str, Any], events: Sequence[Event]) -> str | None:
    """What the statement would cost if the records that it keeps apart were the same, in a sentence; None if it keeps none.

    Only the machine that events were made on can tell their records apart.
    """
    if len(body["parts"]) < 2:
        return None
    certified = body["certified"]
    try:
        total = json_figure(if_overlapping(events, certified["delta"], certified_by(body["accountant"])))
    except InputError:
        total = "inf"
    return (
        f"the events are counted in {len(body['parts'])} parts of records that the statement keeps apart, by its own word:"
        " only the machine they were made on can tell; were datasets of other ids the same records: epsilon"
        f" {total if isinstance(total, str) else format(total, '.4g')}"
    )


_FIGURES = re.compile(r"\d[\d.,]*(?:e[+-]?\d+)?|\binf\b")


def _missing_notes(body: Mapping[str, Any], events: Sequence[Event]) -> list[str]:
    """Notes that the events call for and the statement lacks; figures in them may be those of another version."""
    certified = body["certified"]
    told = [replace(event, dataset=replace(event.dataset, content=None)) for event in events]  # as if known by its id
    due = called_for(told, certified["delta"], certified["unit"], certified_by(body["accountant"]))
    stated = {_FIGURES.sub("#", note) for note in body["notes"]}
    several = any(note.startswith("releases protect users of several kinds") for note in body["notes"])
    return [
        f"notes: its events call for one that is missing: {note:.120}"
        for note in map(in_flags, due)
        if _FIGURES.sub("#", note) not in stated and not (several and note.startswith("there are releases for"))
    ]


def _compared(name: str, stated: Any, again: Any, tolerance: float) -> list[str]:
    """Where two values of JSON differ, each with its place."""
    if isinstance(stated, Mapping) and isinstance(again, Mapping) and stated.keys() == again.keys():
        return [line for key in again for line in _compared(f"{name}.{key}", stated[key], again[key], tolerance)]
    if isinstance(stated, list) and isinstance(again, list) and len(stated) == len(again):
        pairs = enumerate(zip(stated, again, strict=True), start=1)
        return [line for at, (one, two) in pairs for line in _compared(f"{name}.{at}", one, two, tolerance)]
    if alike(stated, again, tolerance):
        return []
    return [f"{name}: {_text(stated)}, but its events give {_text(again)}"]


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "nothing" if value is None else f"{value!s:.80}"
