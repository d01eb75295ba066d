"""What entries say of trainings, as rows that the settings of a run are compared with."""

from __future__ import annotations

import math
import re
from typing import Any

from dpltm.privacy.entry import Entry
from dpltm.privacy.mechanisms import NoisySgd, PrivateSearch

SHARED = ("sampling_rate", "steps", "noise_multiplier", "sensitivity", "nominal_sensitivity")
"""Settings of a training that the mechanism of its entry holds as well."""

_CLIP_NORM = re.compile(r"\bC=([0-9][0-9.e+-]*)")


def clip_norm_in(filter: str | None) -> float | None:
    """Return the norm that gradients are clipped to, from the text of a filter; None for one that does not clip."""
    found = _CLIP_NORM.search(filter or "")
    try:
        return float(found[1]) if found else None
    except ValueError:
        return None


def rows_of(entry: Entry) -> list[dict[str, Any]]:
    """Return the trainings that an entry stands for: one, or each that a search may have taken; none of any other."""
    tried = [sgd for search in entry.of(PrivateSearch) for sgd in search.trainings]
    return [_row(entry, sgd) for sgd in dict.fromkeys([*entry.of(NoisySgd), *tried])]


def _row(entry: Entry, mechanism: NoisySgd) -> dict[str, Any]:
    return {
        **{name: getattr(mechanism, name) for name in SHARED},
        "noise_std": mechanism.noise_std,
        "noise_bits": mechanism.bits,
        "dataset": entry.part.name,
        "records": str(entry.part),
    }


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
