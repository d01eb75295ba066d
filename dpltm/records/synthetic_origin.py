"""What a file of synthetic records says of itself: the release that they are post-processing of, and their public facts.

The records of such a file are nobody's, but whoever uses them uses that release. So it travels with the file, as an array
of bytes beside the records, and is entered in the ledger of whatever is made of them (docs/formats.md).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpltm.errors import ArtifactError, DataError, first_line
from dpltm.privacy.event_json import found_from_json, from_json, ref_from_json, ref_to_json, to_json
from dpltm.privacy.events import DatasetRef, Event, GaussianEvent
from dpltm.records.scaling import affine

ARRAY = "synthetic_origin"
"""Name of the array of bytes."""

FORMAT, SCHEMA = "dpltm-synthetic", 2

MAX_BYTES = 2**16
"""No origin is longer."""

MAX_CLASSES = 2**20
"""No more classes are believed of a file."""

_KEYS_1 = {"format", "schema", "id", "source", "event", "bounds", "classes"}
_KEYS = {1: _KEYS_1, SCHEMA: {*_KEYS_1, "found"}}
_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class SyntheticOrigin:
    """Where synthetic records come from.

    Attributes:
        id: SHA-256 (hex) of the records as they were made; what is left of them after a cut comes from there too.
        event: the release that they are post-processing of, on the private records.
        bounds: public ``(low, high)`` of every feature.
        classes: public number of classes.
        found: what bounds and categories of the private records were found by, or read off (``Dataset.found``): the
            columns of synthetic records are those.
    """

    id: str
    event: GaussianEvent
    bounds: tuple[float, float]
    classes: int
    found: tuple[Event, ...] = ()

    @property
    def source(self) -> DatasetRef:
        """The private records."""
        return self.event.dataset

    def to_array(self) -> np.ndarray:
        """As one array of bytes, ``(n,)`` uint8: a JSON object in UTF-8."""
        body = {
            "format": FORMAT,
            "schema": SCHEMA,
            "id": self.id,
            "source": ref_to_json(self.source),
            "event": to_json(self.event),
            "bounds": list(self.bounds),
            "classes": self.classes,
            "found": [to_json(event) for event in self.found],
        }
        return np.frombuffer(json.dumps(body).encode(), dtype=np.uint8)


def read_origin(stored: np.ndarray, where: str) -> SyntheticOrigin:
    """What :meth:`SyntheticOrigin.to_array` gave.

    Args:
        stored: the array.
        where: what messages call the file.

    Raises:
        DataError: it is something else. An origin that cannot be read is never passed over: that would hide a release.
    """
    if stored.dtype != np.uint8 or stored.ndim != 1 or len(stored) > MAX_BYTES:
        raise DataError(f"{where}: {ARRAY} is not the bytes of an origin; make the file again with dpltm synthesize")
    try:
        body = json.loads(stored.tobytes().decode())
    except (ValueError, RecursionError):
        raise DataError(f"{where}: {ARRAY} is damaged (no JSON); make the file again with dpltm synthesize") from None
    if isinstance(body, dict) and body.get("format") == FORMAT and _newer(body.get("schema")):
        raise DataError(f"{where}: {ARRAY} has schema {body['schema']}, and this dpltm reads {SCHEMA}; upgrade dpltm")
    try:
        return _decoded(body)
    except (ArtifactError, DataError) as error:
        raise DataError(
            f"{where}: {ARRAY} is damaged ({first_line(error)}); make the file again with dpltm synthesize"
        ) from None


def _newer(schema: object) -> bool:
    return isinstance(schema, int) and not isinstance(schema, bool) and schema > SCHEMA


def _is_number(end: object) -> bool:
    """Whether an end of a range is a number that single precision can hold."""
    return type(end) in (int, float) and abs(end) < 1e38  # type: ignore[arg-type]


def _decoded(body: Any) -> SyntheticOrigin:
    schema = body.get("schema") if isinstance(body, dict) else None
    if type(schema) is not int or set(body) != _KEYS.get(schema) or body["format"] != FORMAT:
        raise DataError("not an origin of synthetic records")
    event, source = from_json(body["event"]), ref_from_json(body["source"])
    if not isinstance(event, GaussianEvent) or event.dataset != source:
        raise DataError("its event is no Gaussian release from its source")
    if not isinstance(body["id"], str) or not _ID.fullmatch(body["id"]):
        raise DataError("id is not 64 hexadecimal digits")
    bounds, classes = body["bounds"], body["classes"]
    if not (isinstance(bounds, list) and len(bounds) == 2 and all(map(_is_number, bounds))):
        raise DataError("bounds are not two numbers")
    if type(classes) is not int or not 2 <= classes <= MAX_CLASSES:
        raise DataError("classes is not a number of classes")
    low, high = float(bounds[0]), float(bounds[1])
    affine((low, high))
    return SyntheticOrigin(body["id"], event, (low, high), classes, found_from_json(body.get("found", [])))
