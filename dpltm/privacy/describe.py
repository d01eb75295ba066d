"""Events in words, for the person who reads a ledger."""

from __future__ import annotations

import math

from dpltm.privacy.events import (
    FEATURES,
    HELD_OUT,
    SETTINGS,
    SYNTHETIC,
    TEST_SPLIT,
    BudgetEvent,
    Event,
    GaussianEvent,
    GuaranteeEvent,
    LaplaceEvent,
    NonPrivateEvent,
    ProvenanceEvent,
    RandomizedResponseEvent,
    SearchEvent,
    SelectionEvent,
    TrainingEvent,
)
from dpltm.privacy.figures import figure
from dpltm.privacy.mechanisms import mean_tries

_FAST = {"secure": "", "fast": ", of bits that are not cryptographic"}
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
            if event.ticket_set.startswith(SYNTHETIC):
                return f"{event.ticket_set[: len(SYNTHETIC) + 8]} {_PROVENANCE[event.provenance]}"
            if event.ticket_set.startswith(HELD_OUT):
                part = event.ticket_set.removeprefix(HELD_OUT)
                what = "a test split" if part == TEST_SPLIT else f"{part} of a file, held out"
                return f"accuracy was measured on these records, {what}: nothing is promised for them"
            return f"tickets {event.ticket_set[:8]} {_PROVENANCE[event.provenance]}"
        case SelectionEvent():
            return _selection(event)
        case TrainingEvent():
            return _training(event)
        case SearchEvent():
            return _search(event)
        case LaplaceEvent(mechanism=noise):
            return f"{event.what}, with Laplace noise of scale {noise.scale:g} for the L1 sensitivity {noise.sensitivity:g}"
        case GaussianEvent(mechanism=noise):
            return (
                f"{event.what}, with Gaussian noise of {noise.noise_multiplier:g} times the L2 sensitivity"
                f" {noise.sensitivity:g}{_FAST[event.noise]}"
            )
        case RandomizedResponseEvent(mechanism=response):
            return (
                f"{event.what}, each record by randomised response over {response.categories} categories, the true one"
                f" e^{response.epsilon:g} as likely as any other"
            )
        case GuaranteeEvent(mechanism=known):
            failing = f", {known.delta:g}" if known.delta else ""
            return f"{event.what}, known to be ({figure(known.epsilon)}{failing})-DP"
        case NonPrivateEvent():
            return f"{event.what}, released without protection: nothing can be certified"
        case BudgetEvent():
            return (
                f"a budget was set: epsilon {event.epsilon:g} at delta {event.delta:g} for everything on these records"
            )
    raise AssertionError(type(event).__name__)


def _selection(event: SelectionEvent) -> str:
    drawn = event.mechanism
    said = (
        f"a winner drawn from {event.candidates} tickets {event.ticket_set[:8]} by {drawn.draw}, {event.score} score,"
        f" eps1 {drawn.eps1:g} at the {event.sensitivity_rule} sensitivity {event.sensitivity:.3g}"
    )
    if math.isinf(drawn.certified_epsilon):
        said += ", for which nothing is proven"
    elif drawn.certified_epsilon > drawn.eps1:
        said += f", certified as {figure(drawn.certified_epsilon)}"
    if drawn.draw == "exponential":
        said += ", after other releases" if drawn.adaptive else ", before any other release"
    return said


def _search(event: SearchEvent) -> str:
    search = event.mechanism
    noise = [f"{pick(one.noise_multiplier for one in search.trainings):.4g}" for pick in (min, max)]
    return (
        f"the best of a secret number of trainings, {mean_tries(search.gamma):.3g} in the mean, each at one of"
        f" {len(search.trainings)} settings, filter {event.filter}, Gaussian noise of {' to '.join(dict.fromkeys(noise))}"
        f" times the sensitivity on {event.live:,} live coordinates, scored by a count with noise of {search.score_noise:g}"
    )


def _training(event: TrainingEvent) -> str:
    sgd, by = event.mechanism, f" (by {event.dataset.units})" if event.dataset.units else ""
    said = (
        f"{sgd.steps:,} steps of training, each on {sgd.unit}s{by} drawn with chance {sgd.sampling_rate:.4g}, filter"
        f" {event.filter}, Gaussian noise of {sgd.noise_multiplier:.4g} times the sensitivity {sgd.sensitivity:.4g} on"
        f" {event.live:,} live coordinates{_FAST[event.noise]}"
    )
    if sgd.nominal_sensitivity is not None:
        said += f" (its source claims the sensitivity {sgd.nominal_sensitivity:.4g})"
    return said
