"""Replicates: what several runs of one experiment, each with its own seed, say together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
"""Of the intervals."""


@dataclass(frozen=True)
class Summary:
    """Several measurements of one figure.

    Attributes:
        count: how many, n.
        mean: of them; nan of none.
        sd: sample standard deviation (n - 1); nan of fewer than two.
        half: half width of the 95 % confidence interval of the mean, t sd / sqrt(n) with Student's t of n - 1 degrees of
            freedom; nan of fewer than two.
    """

    count: int
    mean: float
    sd: float
    half: float


def summary(values: Sequence[float]) -> Summary:
    """Mean, standard deviation and 95 % interval of finite ``values``."""
    from scipy import stats

    count = len(values)
    if not count:
        return Summary(0, math.nan, math.nan, math.nan)
    mean = math.fsum(values) / count
    if count == 1:
        return Summary(1, mean, math.nan, math.nan)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1))
    return Summary(count, mean, sd, quantile * sd / math.sqrt(count))


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> Summary:
    """The differences ``one - other`` by seed, over the seeds that both have: what they share by a seed cancels."""
    return summary([one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())])
