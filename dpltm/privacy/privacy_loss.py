"""The privacy loss of one release, in the two languages that accountants speak: its PLD and its Renyi divergence.

A mechanism (``mechanisms``) says what was done; a loss here says what one release of it may tell two neighbours apart by.
Several mechanisms share one: a training step that takes every record and a Gaussian release, a draw by permute-and-flip and
whatever else is pure epsilon-DP. ``composition`` turns the one into the other.

A privacy loss distribution (PLD) here always dominates the mechanism: for every epsilon its delta is at least the true
one, whichever neighbours are compared. Those of Laplace noise, of randomised response and of (epsilon, delta) itself are
dp-accounting's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dpltm.privacy import renyi
from dpltm.privacy.gaussian_profile import GaussianProfile, Way
from dpltm.privacy.loss_distribution import LossDistribution, Pair, connected

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


class PrivacyLoss(Hashable, Protocol):
    """Of one release. Losses are values: equal ones cost the same, and are composed together."""

    @property
    def span(self) -> float:
        """How far the losses spread: span over grid width is the number of grid points it takes."""
        ...

    @property
    def scale(self) -> float:
        """The deviation of one loss, about: discretisation does not show on a grid that is finer."""
        ...

    def pld(self, width: float) -> Pair:
        """A dominating privacy loss distribution on multiples of ``width``."""
        ...

    def renyi(self, order: float) -> float:
        """Renyi divergence of the given order, the worse direction."""
        ...


@dataclass(frozen=True)
class SampledGaussianLoss:
    """A Poisson-subsampled Gaussian step; ``noise_multiplier`` is the noise over the sensitivity of the relation.

    Under add/remove the pair is (1-q) N(0) + q N(1) against N(0) (Zhu, Dong, Wang 2022, Theorem 11). Under replace-one
    the sensitivity counts both records, so each alone reaches half of it, and the pair is
    (1-q) N(0) + q N(-1/2) against (1-q) N(0) + q N(1/2): by advanced joint convexity (Balle, Barthe, Gaboardi 2018,
    Theorem 2) the comparison is N(g) against a mixture of N(0) and N(g'), at distances of at most 1/2 and 1 from g, and
    such a mixture is dominated by the one whose centres lie on one side of g at just these distances (Choquette-Choo,
    Ganesh, Steinke, Thakurta 2024, mixtures of Gaussians with vector sensitivities).
    """

    noise_multiplier: float
    sampling_rate: float
    replace_one: bool

    @property
    def span(self) -> float:
        return _gaussian_span(self.noise_multiplier)

    @property
    def scale(self) -> float:
        # The deviation of one step's loss: rounding to a grid of width h adds about h^2/4 to its variance.
        chi_square = math.expm1(min(self.noise_multiplier**-2, 500.0))
        return min(self.sampling_rate * math.sqrt(chi_square), 1 / self.noise_multiplier)

    def pld(self, width: float) -> Pair:
        return _gaussian_pld(self.noise_multiplier, self.sampling_rate, self.replace_one, width)

    def renyi(self, order: float) -> float:
        return renyi.sampled_gaussian(self.noise_multiplier, self.sampling_rate, order, replace_one=self.replace_one)


@dataclass(frozen=True)
class GaussianLoss:
    """N(1, s^2) against N(0, s^2): the same under either relation."""

    noise_multiplier: float

    @property
    def span(self) -> float:
        return _gaussian_span(self.noise_multiplier)

    @property
    def scale(self) -> float:
        return 1 / self.noise_multiplier

    def pld(self, width: float) -> Pair:
        return _gaussian_pld(self.noise_multiplier, 1.0, False, width)

    def renyi(self, order: float) -> float:
        return order / (2 * self.noise_multiplier**2)


def _gaussian_span(noise_multiplier: float) -> float:
    """Ten deviations and the mean of a whole step's loss, which sampling can only shrink."""
    return 0.5 / noise_multiplier**2 + 10 / noise_multiplier


@functools.lru_cache(maxsize=32)
def _gaussian_pld(noise_multiplier: float, sampling_rate: float, replace_one: bool, width: float) -> Pair:
    def of(way: Way) -> LossDistribution:
        profile = GaussianProfile(noise_multiplier, sampling_rate, way)
        low, high = profile.range
        return connected(profile.deltas, width, math.floor(low / width), math.ceil(high / width))

    if replace_one:
        return (of("replaced"),)
    return (of("removed"), of("added")) if sampling_rate < 1 else (of("removed"),)


@dataclass(frozen=True)
class BoundedLoss:
    """What mechanisms have in common whose losses lie between -epsilon and epsilon, but for a chance of failure."""

    epsilon: float

    @property
    def span(self) -> float:
        return 2 * self.epsilon


def _theirs() -> ModuleType:
    """dp-accounting's loss distributions, whose import takes a second."""
    from dp_accounting import pld

    return pld


def _pair(theirs: PrivacyLossDistribution) -> Pair:
    """A distribution of dp-accounting 0.6, as ours."""
    pmfs = [theirs._pmf_remove] if theirs._symmetric else [theirs._pmf_remove, theirs._pmf_add]
    return tuple(
        LossDistribution(pmf._discretization, pmf._lower_loss, np.asarray(pmf._probs), float(pmf._infinity_mass))
        for pmf in (each.to_dense_pmf() for each in pmfs)
    )


@dataclass(frozen=True)
class LaplaceLoss(BoundedLoss):
    """Laplace noise whose scale is the sensitivity over ``epsilon``."""

    @property
    def scale(self) -> float:
        return self.epsilon / 10

    def pld(self, width: float) -> Pair:
        last = math.ceil(self.epsilon / width)
        return (connected(self.profile, width, -last, last),)

    def profile(self, x: np.ndarray) -> np.ndarray:
        """delta(x) = 1 - e^((x - epsilon) / 2) for -epsilon <= x <= epsilon (Balle et al. 2018, Theorem 3)."""
        near = np.clip(x, -self.epsilon, self.epsilon)
        return np.where(np.abs(x) < self.epsilon, -np.expm1((near - self.epsilon) / 2), -np.expm1(np.minimum(x, 0.0)))

    def renyi(self, order: float) -> float:
        return renyi.laplace(self.epsilon, order)


@dataclass(frozen=True)
class RandomizedResponseLoss(BoundedLoss):
    """k-ary randomised response, replace-one: the true answer is e^epsilon as likely as any other."""

    categories: int

    @property
    def scale(self) -> float:
        return self.epsilon / 1000

    def pld(self, width: float) -> Pair:
        uniform = self.categories / (math.exp(self.epsilon) + self.categories - 1)  # chance of a uniform answer
        known = _theirs().privacy_loss_distribution.from_randomized_response
        return _pair(known(uniform, self.categories, value_discretization_interval=width))

    def renyi(self, order: float) -> float:
        return renyi.randomized_response(self.epsilon, self.categories, order)


@dataclass(frozen=True)
class GuaranteeLoss(BoundedLoss):
    """Anything known to be (epsilon, delta)-DP, and nothing else about it; delta 0 is pure DP."""

    delta: float = 0.0

    @property
    def scale(self) -> float:
        return self.epsilon / 1000

    def pld(self, width: float) -> Pair:
        guarantee = _theirs().common.DifferentialPrivacyParameters(self.epsilon, self.delta)
        known = _theirs().privacy_loss_distribution.from_privacy_parameters
        return _pair(known(guarantee, value_discretization_interval=width))

    def renyi(self, order: float) -> float:
        """Of what happens outside a chance of ``delta``, which the accountant subtracts from the asked delta."""
        return renyi.pure(self.epsilon, order)


@dataclass(frozen=True)
class BoundedRangeLoss(BoundedLoss):
    """An epsilon-bounded-range mechanism, such as the exponential mechanism, whose inputs may depend on earlier releases.

    Such a mechanism is dominated by one of the two-outcome pairs with losses t and t - epsilon (Dong, Durfee, Rogers
    2019). An analyst who picks its candidates after seeing other releases picks t with them, so no single t is safe in
    an adaptive composition. The pair here dominates all of them at once: its profile is the largest of theirs,

        delta(x) = (1 - e^((x - epsilon) / 2))^2 / (1 - e^-epsilon)    for -epsilon <= x <= epsilon,

    reached at t = (x + epsilon) / 2; a largest of convex profiles is the profile of some pair (Zhu, Dong, Wang 2022).
    It lies well below randomised response, the worst case of pure epsilon-DP.
    """

    @property
    def scale(self) -> float:
        return self.epsilon / 10

    def pld(self, width: float) -> Pair:
        last = math.ceil(self.epsilon / width)
        return (connected(self.profile, width, -last, last),)

    def profile(self, x: np.ndarray) -> np.ndarray:
        """delta(x), rounded up where float64 would cancel."""
        near = np.clip(x, -self.epsilon, self.epsilon)
        inside = np.expm1((near - self.epsilon) / 2) ** 2 / -math.expm1(-self.epsilon)
        outside = -np.expm1(np.minimum(x, 0.0))
        return np.clip(np.where(np.abs(x) < self.epsilon, inside, outside), 0.0, 1.0)

    def renyi(self, order: float) -> float:
        return renyi.bounded_range(self.epsilon, order)
