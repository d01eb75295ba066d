"""What is said of privacy: a certified figure, the nominal one where a source claims it, and notes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dpltm.privacy.mechanisms import Adjacency, Sampling, Unit

SEARCH_NOTE = (
    "hyperparameter search, seed picking and early stopping on private scores are not covered unless they are paid for"
)
"""Of every figure that speaks of releases."""


@dataclass(frozen=True)
class Certified:
    """A proven guarantee: epsilon at delta, with everything it is stated for."""

    epsilon: float
    delta: float
    accountant: str
    adjacency: Adjacency
    unit: Unit
    sampling: Sampling


@dataclass(frozen=True)
class Nominal:
    """A claimed figure and the source that claims it."""

    epsilon: float
    delta: float
    source: str


@dataclass(frozen=True)
class PrivacyReport:
    """What is printed about privacy: certified, nominal where a source claims something else, and notes."""

    certified: Certified
    nominal: Nominal | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The ``privacy`` object of every command that touches private data."""
        certified = {**self.certified.__dict__, "epsilon": json_figure(self.certified.epsilon)}
        nominal = None
        if self.nominal is not None:
            nominal = {**self.nominal.__dict__, "epsilon": json_figure(self.nominal.epsilon)}
        return {"certified": certified, "nominal": nominal, "notes": list(self.notes)}


def json_figure(value: float) -> float | str:
    """A figure as JSON has it: the text ``inf`` where it is infinite."""
    return "inf" if math.isinf(value) else value
