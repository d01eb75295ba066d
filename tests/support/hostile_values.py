"""What somebody may write into a description in place of a value, and no reader may take for it."""

import math
from typing import Any

MAPS: dict[str, list[Any]] = {
    "id": [None, "", "0" * 64, 7, []],
    "text": [None, 7, [], "", "none", "network:x", "scatter", "scatter:99", "scatter:2,4", "x" * 10_000],
    "shape": [
        *(None, {}, "8x10", 80, [], [8, 10, 3, 1], [0, 10], [-8, 10], [8.0, 10.0], ["8", "10"], [True, 10]),
        *([2**70, 2], [10_001, 8], [[8], 10], [4, 10], [8, 10, 5], [10, 8]),
    ],
    "bounds": [
        *(None, {}, "", 7, [], [0], [0, 1, 2], [1, 0], [0, 0], ["a", "b"], [None, 1], [math.nan, 1], [0, math.inf]),
        *([0, 10**400], [0.0, 254.0]),
    ],
    "lineage": [None, {}, [], "x", 7, {"entries": [], "heads": None}, {"entries": [{}], "heads": []}],
    "statistics": [None, 0, 1, "yes", []],
    "centred": [None, 0, "yes", []],
}
"""Of a feature map, by key: another map than its id says, or none."""

SPECIAL: dict[str, list[Any]] = {
    "schema": [0, 10**30],
    "model": ["mlp:99999,99999", "mlp:0", "mlp:" + "9" * 5000, "cnn:28x28x1", "../x", "mlp:7,5"],
    "features": [0, 2**63, 10**40, 13, 100_000],
    "classes": [0, 2**63, 5],
    "provenance": ["public", "data-free", "private", ""],
    "cut": ["whole", ""],
    "start": [60, 0.5],
    "kind": ["os", "budget", "provenance"],
    "noise_multiplier": ["inf"],
    "certified_epsilon": ["nan"],
    "round": [99],
    "density": [-1, 2, 1e308, 0.123456],
    "accuracy": [-0.1, 1.1, 1e308, "1", True],
}
"""Of a ticket set, by key at whatever depth: values of the right type."""


def wrong_values(key: str, value: Any) -> list[Any]:
    """For one value of a description: of another type, of no meaning, or with more in it than belongs there."""
    special = SPECIAL.get(key, [])
    match value:
        case None:
            return [*special, "x", [1]]
        case bool():
            return [*special, None, "no", 1.5]
        case str() if key in ("id", "predictors_id", "card", "ticket_set"):
            return [*special, None, 7, {}, "x" * 10_000]
        case str():
            return [*special, None, 7, {}, [value], "x" * 10_000, "\x1b[2J", "a\nb", "\u202e"]
        case int() | float():
            return [*special, None, "1", [value], True, *([] if key in ("live", "candidates") else [-1])]
        case list():
            return [*special, None, {}, "x", 7, [7], [*value, None]]
        case _:
            return [*special, None, [], "x", 7]
