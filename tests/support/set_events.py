"""Records that tickets were made from, and an entry of every kind about them."""

from __future__ import annotations

from dpltm.privacy.events import (
    BudgetEvent,
    DatasetRef,
    GaussianEvent,
    GuaranteeEvent,
    LaplaceEvent,
    NonPrivateEvent,
    ProvenanceEvent,
    RandomizedResponseEvent,
    SelectionEvent,
    TrainingEvent,
)
from dpltm.privacy.mechanisms import (
    GaussianRelease,
    Guarantee,
    LaplaceRelease,
    NoisySgd,
    RandomizedResponse,
    Selection,
    Unprotected,
)

TIME = "2026-01-02T03:04:05Z"
SOURCE = DatasetRef("digits", "ab" * 16, "01234567", 0, 719, "places")
SOURCE_JSON = {"name": "digits", "id": "ab" * 16, "key_id": "01234567", "start": 0, "stop": 719, "cut": "places"}

TRAINED = TrainingEvent(SOURCE, NoisySgd(0.25, 60, 3.5), "clip(C=1)", 610, time=TIME)
MOMENTS = GaussianEvent(SOURCE, GaussianRelease(7.5, 2.0), "moments", time=TIME)
MEAN = LaplaceEvent(SOURCE, LaplaceRelease(4.0, 2.0), "a mean", time=TIME)
COUNT = GuaranteeEvent(SOURCE, Guarantee(0.5, 1e-6), "a count", time=TIME)
"""Releases that tickets could be made from."""

BUDGET = BudgetEvent(SOURCE, 0.1, 1e-5, time=TIME)
SAID = ProvenanceEvent(SOURCE, "public", "12" * 32, time=TIME)
SHOWN = NonPrivateEvent(SOURCE, Unprotected(), "scores", time=TIME)
DRAWN = SelectionEvent(SOURCE, Selection(0.1, 0.1), "product", "exact", 0.5, 3, "12" * 32, time=TIME)
LABELS = RandomizedResponseEvent(SOURCE, RandomizedResponse(1.0, 10), "labels", time=TIME)
"""What no tickets could be made from."""
