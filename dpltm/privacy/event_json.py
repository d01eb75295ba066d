"""Events as JSON objects, and back: strict, since an event that is misread would misstate what was spent."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

from dpltm.errors import ArtifactError, InputError
from dpltm.privacy.events import (
    OPEN_END,
    UNKNOWN,
    BudgetEvent,
    Cut,
    DatasetRef,
    Event,
    GaussianEvent,
    GuaranteeEvent,
    LaplaceEvent,
    NoiseBits,
    NonPrivateEvent,
    ProvenanceEvent,
    ProvenanceKind,
    RandomizedResponseEvent,
    ReleaseEvent,
    SearchEvent,
    SelectionEvent,
    TrainingEvent,
)
from dpltm.privacy.mechanisms import (
    Adjacency,
    GaussianRelease,
    Guarantee,
    LaplaceRelease,
    Mechanism,
    NoisySgd,
    PrivateSearch,
    RandomizedResponse,
    Selection,
    Unit,
    Unprotected,
)


@dataclass(frozen=True)
class _Kind:
    """How one kind of event is written.

    Attributes:
        event: its class.
        mechanism: that of its mechanism; None for a statement without one.
        keys: what is written after dataset, time, adjacency and unit, in this order: fields of the event, or of its
            mechanism.
    """

    event: type[Event]
    mechanism: type[Mechanism] | None
    keys: tuple[str, ...]


KINDS: dict[str, _Kind] = {
    "provenance": _Kind(ProvenanceEvent, None, ("provenance", "ticket_set")),
    "selection": _Kind(
        SelectionEvent, Selection,
        ("mechanism", "score", "eps1", "sensitivity_rule", "sensitivity", "certified_epsilon", "candidates", "ticket_set",
         "adaptive"),
    ),
    "training": _Kind(
        TrainingEvent, NoisySgd,
        ("sampling_rate", "steps", "noise_multiplier", "sensitivity", "nominal_sensitivity", "filter", "live", "noise"),
    ),
    "search": _Kind(SearchEvent, PrivateSearch, ("gamma", "score_noise", "trainings", "filter", "live")),
    "laplace": _Kind(LaplaceEvent, LaplaceRelease, ("what", "sensitivity", "scale")),
    "gaussian": _Kind(GaussianEvent, GaussianRelease, ("what", "sensitivity", "noise_multiplier", "noise")),
    "randomized-response": _Kind(RandomizedResponseEvent, RandomizedResponse, ("what", "epsilon", "categories")),
    "guarantee": _Kind(GuaranteeEvent, Guarantee, ("what", "epsilon", "delta")),
    "non-private": _Kind(NonPrivateEvent, Unprotected, ("what",)),
    "budget": _Kind(BudgetEvent, None, ("epsilon", "delta")),
}  # fmt: skip
_NAMES = {kind.event: name for name, kind in KINDS.items()}
_CHOICES: dict[str, Any] = {
    "Adjacency": Adjacency,
    "Cut": Cut,
    "NoiseBits": NoiseBits,
    "ProvenanceKind": ProvenanceKind,
    "Unit": Unit,
}
_TRY = ("sampling_rate", "steps", "noise_multiplier", "sensitivity")
"""What is written of a try of a search; it has the relation of the search."""
_RENAMED = {"mechanism": "draw"}
"""Keys that are called otherwise in the values: how a winner is drawn."""
_COUNTS = {"candidates", "live"}
"""Fields that say how many; those that a mechanism is made of are checked where it is made."""

_ADDED = {"adaptive", "noise"}
"""Keys that were added to a kind later on, and may be missing."""
_UNSAID = {"noise": "secure"}
"""Values that are not written: what an event without the key means."""
_STATED: dict[str, Any] = {"adjacency": "add-remove", "unit": "record"}
"""What is written of the relation where an event has none."""

MAX_TEXT = 1000
"""Most characters of a text in an event."""


def _is_text(value: str) -> bool:
    return len(value) <= MAX_TEXT and value.isprintable()


def to_json(event: Event) -> dict[str, Any]:
    """The event as a JSON object: ``kind`` first, then its fields; an infinite epsilon is the text ``inf``.

    Raises:
        ArtifactError: a text that a terminal could not show as it is; nothing is written then that could not be read.
    """
    name = _NAMES[type(event)]
    values = {**_STATED, **event.__dict__}
    if isinstance(event, ReleaseEvent):
        values |= event.mechanism.__dict__
    body: dict[str, Any] = {"dataset": ref_to_json(event.dataset)}
    for key in ("time", "adjacency", "unit", *KINDS[name].keys):
        value = values[_RENAMED.get(key, key)]
        if key == "trainings":
            value = [{name: getattr(training, name) for name in _TRY} for training in value]
        if key in _UNSAID and value == _UNSAID[key]:
            continue
        body[key] = "inf" if isinstance(value, float) and math.isinf(value) else value
    for key, value in (*body.items(), *body["dataset"].items()):
        if isinstance(value, str) and not _is_text(value):
            raise ArtifactError(
                f"event field {key}: {value!r:.60} is no printable text of at most {MAX_TEXT} characters"
            )
    return {"kind": name, **body}


def canonical(body: object) -> str:
    """An event as the one text that digests are taken of: sorted keys, no blanks (docs/formats.md)."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"))


def event_id(event: Event) -> str:
    """What a run names the event by that paid for it: the digest of its text, wherever in whatever ledger it stands.

    An event that was read has the id that it was written with.
    """
    return hashlib.sha256(canonical(to_json(event)).encode()).hexdigest()


def from_json(body: object) -> Event:
    """The event that :func:`to_json` wrote.

    Raises:
        ArtifactError: an unknown kind, a missing or unknown field, or a value of the wrong type or range. An event
            that cannot be understood is never skipped: skipping would understate the cost.
    """
    if not isinstance(body, dict):
        raise ArtifactError("an event must be a JSON object")
    name = body.get("kind")
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ArtifactError(
            f"unknown event {name!r:.40}: known are {', '.join(KINDS)}; a newer dpltm may have written it"
        )
    values = {key: value for key, value in body.items() if key != "kind"}
    values["dataset"] = ref_from_json(values.get("dataset"))
    parameters = {} if kind.mechanism is None else _types(kind.mechanism)
    types = {"adjacency": "Adjacency", "unit": "Unit", **_types(kind.event), **parameters}
    known = {key: types[_RENAMED.get(key, key)] for key in ("dataset", "time", "adjacency", "unit", *kind.keys)}
    read = {_RENAMED.get(key, key): value for key, value in _checked(f"{name} event", known, values).items()}
    try:
        if "trainings" in read:
            stated = {name: read[name] for name in _STATED}
            read["trainings"] = tuple(NoisySgd(**each, **stated) for each in read["trainings"])
        if kind.mechanism is not None:
            read["mechanism"] = kind.mechanism(**{key: value for key, value in read.items() if key in parameters})
        return kind.event(**{item.name: read[item.name] for item in fields(kind.event) if item.name in read})
    except ArtifactError:
        raise
    except InputError as error:
        raise ArtifactError(str(error)) from None


def _types(cls: type) -> dict[str, str]:
    """The annotations of a dataclass's fields."""
    return {item.name: str(item.type) for item in fields(cls)}


_WRITTEN = ("name", "id", "key_id", "start", "stop", "cut")
"""Fields of a reference that are written; what its id stands for is not."""

_BEFORE = {"name": "name", "fingerprint": "id", "key_id": "key_id", "start": "start", "stop": "stop"}
"""Fields of a reference as versions before 0.2 wrote it, and what they are now."""


_REFERENCE = "reference to records"
"""What messages call one."""


def ref_to_json(ref: DatasetRef) -> dict[str, Any]:
    """A reference to records as it is written: without what is known about them here."""
    said = {"units": ref.units} if ref.units else {}
    return {name: getattr(ref, name) for name in _WRITTEN} | said


def ref_from_json(body: object) -> DatasetRef:
    """The reference that :func:`ref_to_json` wrote; what its id stands for is unknown until somebody looks it up.

    One written before 0.2 is read as the costlier case: its fingerprint depended on the label column, the order of the
    records and their type, so it tells nobody apart, and its range was one of positions, which moved with every record more
    or less. A range that starts at 0 and has an open end was the whole dataset.

    Raises:
        ArtifactError: it is no reference.
    """
    if isinstance(body, dict) and set(body) == set(_BEFORE):
        whole = body["start"] == 0 and body["stop"] == OPEN_END
        said = {_BEFORE[name]: value for name, value in body.items()}
        _decode_ref({**said, "cut": "positions"}, "dataset")  # a range after all
        # where it was has no say any more, and its end may have been the true number of records
        body = {**said, "start": 0, "stop": OPEN_END, "cut": "whole" if whole else "positions"}
    if isinstance(body, dict) and set(body) - {"units"} != set(_WRITTEN):
        wrong = min((set(body) - {"units"}) ^ set(_WRITTEN), key=str)
        raise ArtifactError(f"{_REFERENCE}: unknown or missing field {wrong!r:.40}")
    return replace(_decode_ref(body, _REFERENCE), content=UNKNOWN)


def found_from_json(bodies: object) -> tuple[Event, ...]:
    """Releases by which bounds and categories were found, and public records that they were read off, from a list.

    Raises:
        ArtifactError: it is something else.
    """
    if not isinstance(bodies, list):
        raise ArtifactError("what bounds were found by is no list")
    events = tuple(from_json(body) for body in bodies)
    for event in events:
        read_off = isinstance(event, ProvenanceEvent) and event.provenance == "public"
        if not (isinstance(event, ReleaseEvent) or read_off):
            raise ArtifactError(f"{type(event).__name__} is not what bounds were found by")
    return events


def ref_to_text(ref: DatasetRef) -> str:
    """A reference in a line, as ``dpltm tune`` writes it into a file of settings: NAME ID KEY CUT START STOP."""
    return f"{ref.name} {ref.id} {ref.key_id} {ref.cut} {ref.start} {ref.stop}"


def ref_from_text(name: str, text: str) -> DatasetRef:
    """The reference that :func:`ref_to_text` wrote, or a version before 0.2: NAME FINGERPRINT KEY START STOP.

    Args:
        name: the argument that holds it.
        text: the line.

    Raises:
        InputError: it is none.
    """
    try:
        *head, start, stop = text.rsplit(" ", 5)
        if len(head) == 4 and head[3] in get_args(Cut):
            body = dict(zip(("name", "id", "key_id", "cut"), head, strict=True))
        else:
            label, fingerprint, key = text.rsplit(" ", 4)[:3]
            body = {"name": label, "fingerprint": fingerprint, "key_id": key}
        return ref_from_json({**body, "start": int(start), "stop": int(stop)})
    except (ValueError, ArtifactError):
        raise InputError(f"`{name}`: not as dpltm tune writes it: NAME ID KEY CUT START STOP") from None


def searched_to_text(ref: DatasetRef, behind: Iterable[Event]) -> str:
    """What settings were searched on: a reference in a line, and below it, one a line, the events that it comes from."""
    return "\n".join([ref_to_text(ref), *(json.dumps(to_json(event)) for event in behind)])


def searched_from_text(name: str, text: str) -> tuple[DatasetRef, tuple[Event, ...]]:
    """What :func:`searched_to_text` wrote.

    Args:
        name: the argument that holds it.
        text: the lines.

    Raises:
        InputError: it is something else.
    """
    first, *lines = text.split("\n")
    ref = ref_from_text(name, first)
    try:
        return ref, found_from_json([json.loads(line) for line in lines])
    except (ArtifactError, ValueError, RecursionError):
        raise InputError(f"`{name}`: not as dpltm tune writes it: an event below its first line is none") from None


def _decode_ref(values: object, where: str) -> DatasetRef:
    """A reference from a JSON object with the names that are written, checking types."""
    if not isinstance(values, dict):
        raise ArtifactError(f"{where}: expected an object")
    types, names = _types(DatasetRef), [*_WRITTEN, *(["units"] if "units" in values else [])]
    return DatasetRef(**_checked(where, {key: types[key] for key in names}, values))


def _checked(where: str, known: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with every name and type as ``known`` has it."""
    wrong = sorted((set(values) ^ set(known)) - (_ADDED & set(known)))
    if wrong:
        raise ArtifactError(f"{where}: unknown or missing field {wrong[0]!r:.40}")
    return {name: _value(where, name, known[name], value) for name, value in values.items()}


def _value(where: str, name: str, annotation: str, value: object) -> Any:
    """Checks one field against its annotation; the annotations used in this module are the only ones handled."""
    if annotation == "float | None":
        if value is None:
            return None
        annotation = "float"
    if (
        annotation == "tuple[NoisySgd, ...]"
        and isinstance(value, list)
        and all(isinstance(one, dict) for one in value)
    ):
        types = _types(NoisySgd)
        return [_checked(where, {key: types[key] for key in _TRY}, one) for one in value]
    choices = get_args(_CHOICES.get(annotation))
    if annotation.startswith("Literal["):
        choices = tuple(part.strip().strip("\"'") for part in annotation[len("Literal[") : -1].split(","))
    if choices:
        good = isinstance(value, str) and value in choices
    elif annotation == "int":
        good = isinstance(value, int) and not isinstance(value, bool)
        if name in _COUNTS:
            annotation, good = f"int from 1 to {OPEN_END}", good and 1 <= value <= OPEN_END  # type: ignore[operator]
    elif annotation == "bool":
        good = isinstance(value, bool)
    elif annotation == "float":
        value = math.inf if value == "inf" else value
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        good = good or value == math.inf
    elif annotation == "str":
        good = isinstance(value, str) and _is_text(value)
    else:
        good = isinstance(value, DatasetRef)
    if not good:
        raise ArtifactError(f"{where}: field {name}: bad value {value!r:.60}, expected {annotation}")
    return value
