"""Events in words, for the person who reads a ledger."""

from __future__ import annotations

import math

from dpltm.privacy.events import (
    FEATURES,
    SETTINGS,
    BudgetEvent,
    Event,
    GaussianEvent,
    GuaranteeEvent,
    LaplaceEvent,
    NonPrivateEvent,
    ProvenanceEvent,
    RandomizedResponseEvent,
    SelectionEvent,
    TrainingEvent,
)

_PROVENANCE = {
    "data-free": "depend on no data: they cost nothing",
    "public": "were made from these records, declared public: they cost nothing",
    "dp": "were made from these records by a private mechanism, which stands here as its own line",
    "private": "were made from these records with no mechanism: nothing can be certified",
}


def describe(event: Event) -> str:
    """What ``event`` says, in one sentence without its dataset and time."""
    match event:
        case ProvenanceEvent():
            if event.ticket_set.startswith((FEATURES, SETTINGS)):
                return f"{event.ticket_set} {_PROVENANCE[event.provenance]}"
            return f"tickets {event.ticket_set[:8]} {_PROVENANCE[event.provenance]}"
        case SelectionEvent():
            return _selection(event)
        case TrainingEvent():
            return _training(event)
        case LaplaceEvent():
            return f"{event.what}, with Laplace noise of scale {event.scale:g} for the L1 sensitivity {event.sensitivity:g}"
        case GaussianEvent():
            return (
                f"{event.what}, with Gaussian noise of {event.noise_multiplier:g} times the L2 sensitivity"
                f" {event.sensitivity:g}"
            )
        case RandomizedResponseEvent():
            return (
                f"{event.what}, each record by randomised response over {event.categories} categories, the true one"
                f" e^{event.epsilon:g} as likely as any other"
            )
        case GuaranteeEvent():
            failing = f", {event.delta:g}" if event.delta else ""
            return f"{event.what}, known to be ({event.epsilon:g}{failing})-DP"
        case NonPrivateEvent():
            return f"{event.what}, released without protection: nothing can be certified"
        case BudgetEvent():
            return (
                f"a budget was set: epsilon {event.epsilon:g} at delta {event.delta:g} for everything on these records"
            )
    raise AssertionError(type(event).__name__)


def _selection(event: SelectionEvent) -> str:
    words = (
        f"a winner drawn from {event.candidates} tickets {event.ticket_set[:8]} by {event.mechanism}, {event.score} score,"
        f" eps1 {event.eps1:g} at the {event.sensitivity_rule} sensitivity {event.sensitivity:.3g}"
    )
    if math.isinf(event.certified_epsilon):
        words += ", for which nothing is proven"
    elif event.certified_epsilon > event.eps1:
        words += f", certified as {event.certified_epsilon:g}"
    if event.mechanism == "exponential":
        words += ", after other releases" if event.adaptive else ", before any other release"
    return words


def _training(event: TrainingEvent) -> str:
    words = (
        f"{event.steps:,} steps of training, each on {event.unit}s drawn with chance {event.sampling_rate:.4g}, filter"
        f" {event.filter}, Gaussian noise of {event.noise_multiplier:.4g} times the sensitivity {event.sensitivity:.4g} on"
        f" {event.live:,} live coordinates"
    )
    if event.nominal_sensitivity is not None:
        words += f" (its source claims the sensitivity {event.nominal_sensitivity:.4g})"
    return words
