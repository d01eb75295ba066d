"""How far a share of test records may be from that of all records like them: Wilson's interval (Wilson 1927)."""

from __future__ import annotations

import math

CONFIDENCE, QUANTILE = 0.95, 1.959963984540054
"""Of the intervals, and the standard normal quantile at (1 + 0.95) / 2."""


def interval(share: object, records: object) -> dict[str, float] | None:
    """Wilson's 95 % interval of a share of test records, as ``low`` and ``high``.

    It speaks of this one network on other records of the same kind. What another training would have given, with other
    noise, it does not cover: several seeds do (``dpltm.experiments.replicates``).

    Args:
        share: of the test records, such as accuracy.
        records: how many there are, a public number.

    Returns:
        None where either is not known.
    """
    if not isinstance(share, (int, float)) or isinstance(share, bool) or not 0 <= share <= 1:
        return None
    if not isinstance(records, int) or isinstance(records, bool) or records < 1:
        return None
    square = QUANTILE**2 / records
    middle = (share + square / 2) / (1 + square)
    half = math.sqrt(square * (share * (1 - share) + square / 4)) / (1 + square)
    return {"low": max(0.0, middle - half), "high": min(1.0, middle + half)}
