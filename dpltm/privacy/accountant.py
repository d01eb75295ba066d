"""The certified accountant: privacy loss distributions over a list of events.

Each event becomes a privacy loss distribution (PLD) that dominates it, the PLDs are composed, and epsilon is read off
at the asked delta. All discretisation is pessimistic (losses rounded up), so the figure is an upper bound. The
arithmetic of PLDs is dp-accounting's; what each event means is said here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpltm.errors import InputError
from dpltm.privacy.events import Adjacency, Event, NonPrivateEvent, ProvenanceEvent, SelectionEvent, TrainingEvent

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

COARSE, FINE = 1e-4, 1e-5
"""Widths of the grid that losses are rounded up to. The finer one is tried where the coarse rounding would show."""

STEP_GRID, TOTAL_GRID = 1e6, 2e7
"""Grid points that the losses of one step, and of all steps together, may take: the grid is widened to keep to them."""


LEAST_NOISE = 1e-3
"""Below this noise multiplier one step costs an epsilon of half a million; it is reported as infinite."""


LARGEST_PURE = 500.0
"""Beyond this a pure epsilon is added as it is, since e^epsilon would soon leave float64."""


def epsilon(events: Iterable[Event], delta: float) -> float:
    """Certified epsilon of all ``events`` together at ``delta``; infinite if any of them is non-private.

    Args:
        events: events on records that may overlap; the caller picks them. Their order does not matter.
        delta: in (0, 1).

    Raises:
        InputError: delta out of range, or events stated for different neighbouring relations.

    Guarantees:
        Upper bound on the true epsilon of the adaptive composition of the events, add/remove or replace-one as they
        state, unit one record, Poisson sampling.
    """
    if not 0 < delta < 1:
        raise InputError(f"delta: {delta} is not between 0 and 1")
    events = tuple(events)
    if any(_is_non_private(event) for event in events):
        return math.inf
    private = [event for event in events if isinstance(event, (SelectionEvent, TrainingEvent))]
    if not private:
        return 0.0
    if len({event.adjacency for event in private}) > 1:
        raise InputError(
            "adjacency: the ledger holds events under add-remove and under replace-one, which have no common guarantee;"
            " use one relation throughout, or separate ledgers"
        )
    pure = sum(event.certified_epsilon for event in private if isinstance(event, SelectionEvent))
    if pure > LARGEST_PURE:
        return pure + epsilon([event for event in private if isinstance(event, TrainingEvent)], delta)
    steps = _count_steps(event for event in private if isinstance(event, TrainingEvent))
    value = _compose(pure, steps, _width(steps, COARSE)).get_epsilon_for_delta(delta)
    if value < 1000 * COARSE and _width(steps, FINE) == FINE:  # both are upper bounds: the smaller one is certified
        value = min(value, _compose(pure, steps, FINE).get_epsilon_for_delta(delta))
    return float(value if steps else min(value, pure))


def _is_non_private(event: Event) -> bool:
    match event:
        case NonPrivateEvent():
            return True
        case ProvenanceEvent():
            return event.provenance == "private"
        case SelectionEvent():
            return math.isinf(event.certified_epsilon)
        case TrainingEvent():
            return event.noise_multiplier < LEAST_NOISE
    raise InputError(f"the accountant does not know the event {type(event).__name__}")


@dataclass(frozen=True)
class _Kind:
    """One kind of step: what it costs depends on nothing else."""

    noise_multiplier: float
    sampling_rate: float
    adjacency: Adjacency


def _count_steps(events: Iterable[TrainingEvent]) -> dict[_Kind, int]:
    """How often each kind of step was taken, so that each is composed once.

    Steps that take every record are plain Gaussian mechanisms: together they are one, of noise (sum 1/s^2)^(-1/2).
    """
    steps: dict[_Kind, int] = {}
    full: dict[Adjacency, float] = {}
    for event in events:
        if event.sampling_rate == 1:
            full[event.adjacency] = full.get(event.adjacency, 0.0) + event.steps / event.noise_multiplier**2
        else:
            kind = _Kind(event.noise_multiplier, event.sampling_rate, event.adjacency)
            steps[kind] = steps.get(kind, 0) + event.steps
    return steps | {_Kind(precision**-0.5, 1.0, adjacency): 1 for adjacency, precision in full.items()}


def _width(steps: dict[_Kind, int], least: float) -> float:
    """``least``, or the power of ten above it that keeps losses on ``STEP_GRID`` and ``TOTAL_GRID``.

    A Gaussian step's losses spread over about 1/(2 s^2) + 10/s, those of T sampled steps over some deviations around
    T q^2 (e^(1/s^2) - 1) / 2. These are guesses of size alone: any width gives an upper bound.
    """
    one = total = 0.0
    for kind, count in steps.items():
        spread = 0.5 / kind.noise_multiplier**2 + 10 / kind.noise_multiplier
        square = count * kind.sampling_rate**2 * math.expm1(min(kind.noise_multiplier**-2, 500.0))
        one, total = max(one, spread), total + min(count * spread, square / 2 + 20 * math.sqrt(square) + spread)
    points = max(one / STEP_GRID, total / TOTAL_GRID, 1e-12)
    return max(least, 10.0 ** math.ceil(math.log10(points)))


def _compose(pure: float, steps: dict[_Kind, int], width: float) -> PrivacyLossDistribution:
    """The PLD of all steps and of pure epsilons that add up to ``pure``."""
    parts = [_gaussian(kind, width).self_compose(count) for kind, count in steps.items()]
    if pure > 0:
        parts.append(_pure(pure, width))
    return functools.reduce(lambda left, right: left.compose(right), parts)


@functools.lru_cache(maxsize=64)
def _gaussian(kind: _Kind, width: float) -> PrivacyLossDistribution:
    """One Poisson-subsampled Gaussian step.

    Under add/remove a neighbour moves the sum by at most the sensitivity. Under replace-one the sensitivity already
    counts both records, so each single record is bounded by half of it and the pair is
    (1-q) N(0) + q N(-s) against (1-q) N(0) + q N(+s), with s half the sensitivity.
    """
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution

    replace = kind.adjacency == "replace-one"
    return privacy_loss_distribution.from_gaussian_mechanism(
        kind.noise_multiplier,
        sensitivity=0.5 if replace else 1.0,
        value_discretization_interval=width,
        sampling_prob=kind.sampling_rate,
        neighboring_relation=(NeighboringRelation.REPLACE_ONE if replace else NeighboringRelation.ADD_OR_REMOVE_ONE),
    )


def _pure(eps: float, width: float) -> PrivacyLossDistribution:
    """The worst case of pure eps-DP: randomised response. Pure epsilons of several draws simply add up."""
    from dp_accounting.pld import common, privacy_loss_distribution

    return privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(eps, 0.0), value_discretization_interval=width
    )
