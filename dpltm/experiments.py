"""Statistics of experiments over seeds: means with Student's intervals, and paired differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Summary:
    """Measurements of one figure by seed: sample deviation, and half the width of the mean's 95 % interval by Student's t.

    Both are nan of fewer than two.
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
    if count < 2:
        return Summary(count, values[0] if values else math.nan, math.nan, math.nan)
    sd = statistics.stdev(values)
    half = float(stats.t.ppf(0.975, count - 1)) * sd / math.sqrt(count)
    return Summary(count, statistics.fmean(values), sd, half)


def paired(left: Mapping[Any, float], right: Mapping[Any, float]) -> Summary:
    """Return the differences ``left - right`` over the seeds that both have: what they share by a seed cancels."""
    return summary([left[seed] - right[seed] for seed in left.keys() & right.keys()])
