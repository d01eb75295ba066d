"""What events say of trainings, as rows that the settings of a run are compared with."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from dpltm.privacy.events import Event, SearchEvent, TrainingEvent
from dpltm.privacy.mechanisms import NoisySgd

SHARED = ("sampling_rate", "steps", "noise_multiplier", "sensitivity", "nominal_sensitivity")
"""Settings of a training that the mechanism of its event holds as well."""

TOLERANCE = 1e-6
"""By how much two settings may differ, in parts of themselves, and be the same."""

_CLIP_NORM = re.compile(r"\bC=([0-9][0-9.e+-]*)")


def clip_norm_in(filter: str) -> float | None:
    """The norm that gradients are clipped to, from the text of a filter; None for one that does not clip."""
    found = _CLIP_NORM.search(filter)
    try:
        return float(found[1]) if found else None
    except ValueError:
        return None


def rows_of(event: Event) -> list[dict[str, Any]]:
    """The trainings that an event stands for: one, or each that a search may have taken; none of any other event."""
    if isinstance(event, TrainingEvent):
        return [{**_row(event, event.mechanism, event.filter, event.noise), "live": event.live}]
    if isinstance(event, SearchEvent):  # whose live coordinates are those of the largest of its trainings
        return [
            _row(event, training, filter, "secure")
            for training in dict.fromkeys(event.mechanism.trainings)
            for filter in event.filter.split(" or ")
        ]
    return []


def _row(event: Event, mechanism: NoisySgd, filter: str, noise: str) -> dict[str, Any]:
    return {
        **{name: getattr(mechanism, name) for name in SHARED},
        "noise_std": mechanism.noise_std,
        "filter": filter,
        "clip_norm": clip_norm_in(filter),
        "noise_bits": noise,
        "dataset": event.dataset.name,
        "records": str(event.dataset),
    }


def matching(facts: Mapping[str, Any], events: Iterable[Event]) -> dict[str, Any] | None:
    """The row of the last event that agrees with all that ``facts`` say of it; None where none does.

    Args:
        facts: of a run, as its ``config.json`` has them; further keys are left alone.
        events: of its ledger.
    """
    keys = [name for name in (*SHARED, "filter", "live") if name in facts]
    for event in reversed(tuple(events)):
        for row in rows_of(event):
            if all(name not in row or alike(facts[name], row[name], TOLERANCE) for name in keys):
                return row
    return None


def alike(one: Any, other: Any, tolerance: float) -> bool:
    """Whether two values of JSON are the same.

    Args:
        one, other: values.
        tolerance: by how much numbers may differ, in parts of themselves.
    """
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (one, other))
    return (
        math.isclose(one, other, rel_tol=tolerance, abs_tol=1e-12)
        if numbers
        else type(one) is type(other) and one == other
    )
