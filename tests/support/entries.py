"""Ledger entries, one of each kind, and how tests vary them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from dpltm.privacy.events import (
    BudgetEvent,
    DatasetRef,
    GaussianEvent,
    GuaranteeEvent,
    LaplaceEvent,
    NonPrivateEvent,
    ProvenanceEvent,
    RandomizedResponseEvent,
    ReleaseEvent,
    SearchEvent,
    SelectionEvent,
    TrainingEvent,
)
from dpltm.privacy.mechanisms import (
    GaussianRelease,
    Guarantee,
    LaplaceRelease,
    NoisySgd,
    PrivateSearch,
    RandomizedResponse,
    Selection,
    Unprotected,
)

E = TypeVar("E", bound=ReleaseEvent)

DATA = DatasetRef("mnist", "f1", "k1", 0, 60000, "places")
TRAINING = TrainingEvent(DATA, NoisySgd(256 / 60000, 3515, 1.1), "clip 1", 10, time="t")
SEARCH = SearchEvent(
    DATA, PrivateSearch((NoisySgd(256 / 60000, 3515, 1.5), NoisySgd(0.5, 20, 8.0)), 50.0, 0.1), "clip 1", 10, time="t"
)
SELECTION = SelectionEvent(DATA, Selection(0.5, 0.5), "product", "exact", 0.005, 15, "set", time="t")
LAPLACE = LaplaceEvent(DATA, LaplaceRelease(4.0, 2.0), "a mean", time="t")
GAUSSIAN = GaussianEvent(DATA, GaussianRelease(4.0, 3.0), "a sum", time="t")
RANDOMIZED = RandomizedResponseEvent(DATA, RandomizedResponse(0.5, 10), "labels", time="t")
GUARANTEE = GuaranteeEvent(DATA, Guarantee(0.5, 1e-7), "a count", time="t")
REVEALED = NonPrivateEvent(DATA, Unprotected(), "every ticket's score", time="t")
PROVENANCE = ProvenanceEvent(DATA, "private", "set", time="t")
BUDGET = BudgetEvent(DATA, 1.2, 1e-5, time="2026-01-02T03:04:05Z")

PRIVATE: tuple[ReleaseEvent, ...] = (TRAINING, SEARCH, SELECTION, LAPLACE, GAUSSIAN, RANDOMIZED, GUARANTEE)
"""A release by each mechanism."""


def having(event: E, **parameters: Any) -> E:
    """The entry with other parameters of its mechanism."""
    if isinstance(event.mechanism, PrivateSearch):  # its trainings are stated for the same
        relation = {name: value for name, value in parameters.items() if name in ("adjacency", "unit")}
        tries = tuple(replace(training, **relation) for training in event.mechanism.trainings)
        parameters = {"trainings": tries, **parameters}
    return replace(event, mechanism=replace(event.mechanism, **parameters))


def pure(epsilon: float, ref: DatasetRef = DATA, **relation: Any) -> GuaranteeEvent:
    """A release of which only epsilon-DP is known: such releases add up exactly."""
    return GuaranteeEvent(ref, Guarantee(epsilon, **relation), "a count", time="t")


FIRST = having(SELECTION, adaptive=False)
"""A draw that came before every other release."""
