"""Statistics of experiments over seeds: means with Student's intervals, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

CONFIDENCE = 0.95
"""Of the intervals."""


@dataclass(frozen=True)
class Summary:
    """Several measurements of one figure, each with its own seed.

    Attributes:
        sd: sample standard deviation (n - 1); nan of fewer than two.
        half: half width of the 95 % confidence interval of the mean, t sd / sqrt(n) with Student's t of n - 1 degrees of
            freedom; nan of fewer than two.
    """

    count: int
    mean: float
    sd: float
    half: float

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON, which has no nan."""
        values = {name: None if math.isnan(value) else value for name, value in asdict(self).items()}
        return {"interval" if name == "half" else name: value for name, value in values.items()}


def summary(values: Sequence[float]) -> Summary:
    """Return mean, standard deviation and 95 % interval of finite ``values``."""
    from scipy import stats

    count = len(values)
    mean = math.fsum(values) / count if count else math.nan
    if count < 2:
        return Summary(count, mean, math.nan, math.nan)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return Summary(count, mean, sd, float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) * sd / math.sqrt(count))


def paired(left: Mapping[Any, float], right: Mapping[Any, float]) -> Summary:
    """Return the differences ``one - other`` over the seeds that both have: what they share by a seed cancels."""
    return summary([left[seed] - right[seed] for seed in sorted(left.keys() & right.keys())])
