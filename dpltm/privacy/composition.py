"""Composition: many mechanisms, in whatever order, as the privacy losses that accountants add up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from dpltm.errors import InputError
from dpltm.privacy.mechanisms import (
    GaussianRelease,
    Guarantee,
    LaplaceRelease,
    Mechanism,
    NoisySgd,
    PrivateSearch,
    RandomizedResponse,
    Selection,
    Unprotected,
)
from dpltm.privacy.privacy_loss import (
    BoundedLoss,
    BoundedRangeLoss,
    GaussianLoss,
    GuaranteeLoss,
    LaplaceLoss,
    PrivacyLoss,
    RandomizedResponseLoss,
    SampledGaussianLoss,
)
from dpltm.privacy.search_loss import SearchLoss

MIN_NOISE = 1e-3
"""Below this noise multiplier one step costs an epsilon of half a million; it is reported as infinite."""

MAX_NOISE, MIN_RATE, MIN_PURE = 1e6, 1e-12, 1e-9
"""More noise, a lower rate or a smaller epsilon than these counts as these: a little more than it costs."""

MAX_PURE = 500.0
"""Beyond this a pure epsilon is added as it is, since e^epsilon would soon leave float64."""


@dataclass(frozen=True)
class Composition:
    """What mechanisms amount to: like losses are counted together, so that their order is forgotten.

    Attributes:
        losses: how often each occurs.
        draw: epsilon of the one exponential mechanism that came before every other release; 0 for none.
        plain: epsilon that is added as it is, because it is too large for anything better.
        delta: chance with which (epsilon, delta) guarantees may fail, all together.
        private: False if something was released with no mechanism; the rest then says nothing.
    """

    losses: Counter[PrivacyLoss]
    draw: float
    plain: float
    delta: float
    private: bool

    @property
    def empty(self) -> bool:
        """Whether there is no loss but what is added as it is."""
        return not self.losses and not self.draw

    @property
    def pure_epsilon(self) -> float:
        """Epsilon of the losses and the draw at delta 0, infinite where they have none: basic composition."""
        return sum(_pure_epsilon(loss) * count for loss, count in self.losses.items()) + self.draw


NOT_PRIVATE = Composition(Counter(), 0.0, 0.0, 0.0, False)
"""Of whatever holds a release with no mechanism."""


def compose(mechanisms: Iterable[Mechanism]) -> Composition:
    """Return what mechanisms that all ran on the same records amount to.

    Args:
        mechanisms: in whatever order.

    Raises:
        InputError: a mechanism that no accountant knows, or some that are stated for different relations.
    """
    mechanisms = tuple(mechanisms)
    _check_common_relation(mechanisms)
    losses: Counter[PrivacyLoss] = Counter()
    draws: list[float] = []
    precision = plain = failing = 0.0  # precision of Gaussians: together they are one, of noise precision^(-1/2)
    for mechanism in mechanisms:
        if is_unprotected(mechanism):
            return NOT_PRIVATE
        match mechanism:
            case NoisySgd(sampling_rate=1):
                precision += mechanism.steps / min(mechanism.noise_multiplier, MAX_NOISE) ** 2
            case NoisySgd():
                losses[_sampled(mechanism)] += mechanism.steps
            case GaussianRelease():
                precision += min(mechanism.noise_multiplier, MAX_NOISE) ** -2
            case PrivateSearch():
                tries = Counter(_losses_of_try(training, mechanism.score_noise) for training in mechanism.trainings)
                losses[SearchLoss(tuple(tries.items()), mechanism.gamma)] += 1
            case Selection() if mechanism.certified_epsilon > MAX_PURE:
                plain += mechanism.certified_epsilon
            case Selection(draw="exponential", adaptive=False):
                draws.append(max(mechanism.certified_epsilon, MIN_PURE))
            case Selection(draw="exponential"):
                losses[BoundedRangeLoss(max(mechanism.certified_epsilon, MIN_PURE))] += 1
            case Selection():
                losses[GuaranteeLoss(max(mechanism.certified_epsilon, MIN_PURE))] += 1
            case LaplaceRelease() if mechanism.sensitivity / mechanism.scale > MAX_PURE:
                plain += mechanism.sensitivity / mechanism.scale
            case LaplaceRelease():
                losses[LaplaceLoss(max(mechanism.sensitivity / mechanism.scale, MIN_PURE))] += 1
            case RandomizedResponse() if mechanism.epsilon > MAX_PURE:
                plain += mechanism.epsilon
            case RandomizedResponse():
                losses[RandomizedResponseLoss(max(mechanism.epsilon, MIN_PURE), mechanism.categories)] += 1
            case Guarantee():
                large = mechanism.epsilon > MAX_PURE
                plain += mechanism.epsilon if large else 0.0
                failing += mechanism.delta
                if mechanism.delta or not large:
                    remaining = MIN_PURE if large else max(mechanism.epsilon, MIN_PURE)
                    losses[GuaranteeLoss(remaining, mechanism.delta)] += 1
    if precision:
        losses[GaussianLoss(precision**-0.5)] += 1
    draws.sort()
    for extra in draws[:-1]:  # only one can have come before everything else
        losses[BoundedRangeLoss(extra)] += 1
    return Composition(losses, draws[-1] if draws else 0.0, plain, failing, True)


def is_unprotected(mechanism: Mechanism) -> bool:
    """Whether nothing can be certified of it: there is no mechanism, no noise, or no proof.

    Raises:
        InputError: a mechanism that no accountant knows.
    """
    match mechanism:
        case Unprotected():
            return True
        case Selection():
            return math.isinf(mechanism.certified_epsilon)
        case NoisySgd() | GaussianRelease():
            return mechanism.noise_multiplier < MIN_NOISE
        case PrivateSearch():
            return mechanism.score_noise < MIN_NOISE or any(map(is_unprotected, mechanism.trainings))
        case LaplaceRelease() | RandomizedResponse() | Guarantee():
            return False
    raise InputError(f"the accountant does not know the mechanism {type(mechanism).__name__}")


def _check_common_relation(mechanisms: tuple[Mechanism, ...]) -> None:
    """Raises InputError for mechanisms that have no relation between neighbours in common; an account gives them one."""
    relations = {mechanism.adjacency for mechanism in mechanisms if not isinstance(mechanism, Unprotected)}
    if len(relations) > 1 and not any(map(is_unprotected, mechanisms)):
        raise InputError("adjacency: mechanisms under add-remove and under replace-one have no common guarantee")


def _losses_of_try(training: NoisySgd, score_noise: float) -> tuple[tuple[PrivacyLoss, int], ...]:
    """What one try of a search releases: its training, and its score."""
    score = GaussianRelease(score_noise, adjacency=training.adjacency)
    return tuple(compose([training, score]).losses.items())


def _sampled(mechanism: NoisySgd) -> SampledGaussianLoss:
    noise, rate = min(mechanism.noise_multiplier, MAX_NOISE), max(mechanism.sampling_rate, MIN_RATE)
    return SampledGaussianLoss(noise, rate, mechanism.adjacency == "replace-one")


def _pure_epsilon(loss: PrivacyLoss) -> float:
    """Epsilon at delta 0, infinite for what has none."""
    return math.inf if isinstance(loss, GuaranteeLoss) and loss.delta else bounded_epsilon(loss)


def bounded_epsilon(loss: PrivacyLoss) -> float:
    """Epsilon at the delta that the mechanism itself may fail with, infinite for Gaussians."""
    return loss.epsilon if isinstance(loss, BoundedLoss) else math.inf
