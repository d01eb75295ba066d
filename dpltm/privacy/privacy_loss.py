"""The privacy loss of one release, in the two languages that accountants speak: its PLD and its Renyi divergence.

A mechanism (``mechanisms``) says what was done; a loss here says what one release of it may tell two neighbours apart by.
Several mechanisms share one: a training step that takes every record and a Gaussian release, a draw by permute-and-flip and
whatever else is pure epsilon-DP. ``composition`` turns the one into the other.

A privacy loss distribution (PLD) here always dominates the mechanism: for every epsilon its delta is at least the true
one, whichever neighbours are compared. Losses of the classical mechanisms are dp-accounting's; deltas of Gaussian steps, of
bounded range and of searches, and what connects them on a grid, are our own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from dp_accounting.pld import common, privacy_loss_distribution
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

from dpltm.privacy import renyi


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

    def pld(self, width: float) -> PrivacyLossDistribution:
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

    def pld(self, width: float) -> PrivacyLossDistribution:
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

    def pld(self, width: float) -> PrivacyLossDistribution:
        return _gaussian_pld(self.noise_multiplier, 1.0, False, width)

    def renyi(self, order: float) -> float:
        return order / (2 * self.noise_multiplier**2)


def _gaussian_span(noise_multiplier: float) -> float:
    """Ten deviations and the mean of a whole step's loss, which sampling can only shrink."""
    return 0.5 / noise_multiplier**2 + 10 / noise_multiplier


@functools.lru_cache(maxsize=32)
def _gaussian_pld(
    noise_multiplier: float, sampling_rate: float, replace_one: bool, width: float
) -> PrivacyLossDistribution:
    if replace_one:
        ways: tuple[AdjacencyType, ...] = (AdjacencyType.REPLACE,)
    else:
        ways = (AdjacencyType.REMOVE, AdjacencyType.ADD) if sampling_rate < 1 else (AdjacencyType.REMOVE,)
    return PrivacyLossDistribution(*(_Gaussian(noise_multiplier, sampling_rate, way).pmf(width) for way in ways))


class _Gaussian(GaussianPrivacyLoss):
    """dp-accounting's loss with deltas of our own, all at once (docs/privacy-model.md section 5.6).

    Args:
        noise_multiplier: noise over the sensitivity of the relation.
        sampling_rate: in (0, 1].
        way: REMOVE is (1-q) N(0) + q N(-1) over N(0); ADD is N(0) over (1-q) N(0) + q N(1); REPLACE is
            (1-q) N(0) + q N(-1/2) over (1-q) N(0) + q N(1/2), whose other direction is the same.
    """

    def __init__(self, noise_multiplier: float, sampling_rate: float, way: AdjacencyType) -> None:
        shift = 0.5 if way == AdjacencyType.REPLACE else 1.0
        super().__init__(noise_multiplier, shift, sampling_prob=sampling_rate, adjacency_type=way)

    def pmf(self, width: float) -> DensePLDPmf:
        """Of one direction, on multiples of ``width``."""
        bounds = self.connect_dots_bounds()
        first, last = math.floor(bounds.epsilon_lower / width), math.ceil(bounds.epsilon_upper / width)
        return connected(self.deltas, width, first, last)

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """The hockey-stick divergences P(X <= x) - e^epsilon Q(X <= x); x is the last point whose loss reaches epsilon.

        Each is largest at its x, so what rounding moves x by hardly shows.
        """
        variance = self._standard_deviation**2
        if self.adjacency_type == AdjacencyType.REPLACE:
            return self._at(-variance * _apart(epsilons, self.sampling_prob, variance), epsilons)
        removed = self.adjacency_type == AdjacencyType.REMOVE
        side = -1.0 if removed else 1.0  # of the noise that the record moves sums to
        losses = -side * epsilons
        least = math.log1p(-self.sampling_prob) if self.sampling_prob < 1 else -math.inf
        reached = losses > least  # no loss of a removal is beneath ln(1 - q), none of an addition above -ln(1 - q)
        deltas = -np.expm1(np.minimum(epsilons, 0.0)) if removed else np.zeros(len(epsilons))
        whole = _unsampled(losses[reached], self.sampling_prob)
        deltas[reached] = self._at(side * (0.5 + whole * variance), epsilons[reached])
        return deltas

    def _at(self, x: np.ndarray, epsilons: np.ndarray) -> np.ndarray:
        return np.clip(self.mu_upper_cdf(x) - np.exp(epsilons + self.mu_lower_log_cdf(x)), 0.0, 1.0)


def _apart(losses: np.ndarray, sampling_rate: float, variance: float) -> np.ndarray:
    """-x / s^2 where the loss of (1-q) N(0) + q N(-1/2) over (1-q) N(0) + q N(1/2) is l.

    With z = -x / (2 s^2), a = e^(1 / (8 s^2)) (1 - q) / q and the common factor left out, e^l is (a + e^z) / (a + e^-z).
    So a sinh(l / 2) = sinh(z - l / 2), which gives z.

    Args:
        losses: l.
        sampling_rate: q in (0, 1].
        variance: s^2.
    """
    half = np.abs(losses) / 2
    with np.errstate(divide="ignore"):  # sinh(0), and q = 1
        log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
        log_a = 1 / (8 * variance) + np.log1p(-sampling_rate) - math.log(sampling_rate)
    y = log_a + log_sinh
    return losses + 2 * np.copysign(np.logaddexp(0.5 * np.logaddexp(0.0, 2 * y), y), losses)


def connected(deltas: Callable[[np.ndarray], np.ndarray], width: float, first: int, last: int) -> DensePLDPmf:
    """A distribution that dominates a profile: its deltas on a grid, connected (Doroshenko et al. 2022, Algorithm 1).

    Between losses of the grid, delta as a function of e^epsilon is the chord, which is above whatever is convex. Where
    rounding lets deltas rise, or bends them the wrong way, those below are raised, and chances below 0 left out: both only
    add.

    Args:
        deltas: the profile, asked for at ascending losses.
        width, first, last: of the grid, whose losses are ``first`` to ``last`` times ``width``.
    """
    known = np.maximum.accumulate(deltas(np.arange(first, last + 1) * width)[::-1])[::-1]
    falls = np.append(-np.diff(known), 0.0) / math.expm1(width)  # (d_i - d_i+1) / (e^h - 1), and none after the last
    before = np.append((1.0 - known[0]) * math.exp(-width), falls[:-1])
    chances = np.maximum(before * math.exp(width) - falls, 0.0)
    return DensePLDPmf(width, first, chances, float(known[-1]), pessimistic_estimate=True)


def _unsampled(losses: np.ndarray, sampling_rate: float) -> np.ndarray:
    """ln(1 + (e^l - 1) / q): the loss of a record that is in the sample, from that of one which is at rate q.

    Args:
        losses: above ln(1 - q).
        sampling_rate: q in (0, 1].
    """
    near = np.clip(losses, -math.log(2), math.log(2))  # beyond these the other form cancels less
    with np.errstate(divide="ignore"):  # at ln(1 - q) itself, rounded
        small = np.log1p(np.maximum(np.expm1(near) / sampling_rate, -1.0))
        large = (
            losses
            - math.log(sampling_rate)
            + np.log1p(np.maximum((sampling_rate - 1) * np.exp(np.minimum(-losses, 700.0)), -1.0))
        )
    return np.where(losses == near, small, large)


@dataclass(frozen=True)
class BoundedLoss:
    """What mechanisms have in common whose losses lie between -epsilon and epsilon, but for a chance of failure."""

    epsilon: float

    @property
    def span(self) -> float:
        return 2 * self.epsilon


@dataclass(frozen=True)
class LaplaceLoss(BoundedLoss):
    """Laplace noise whose scale is the sensitivity over ``epsilon``."""

    @property
    def scale(self) -> float:
        return self.epsilon / 10

    def pld(self, width: float) -> PrivacyLossDistribution:
        return privacy_loss_distribution.from_laplace_mechanism(1 / self.epsilon, value_discretization_interval=width)

    def renyi(self, order: float) -> float:
        return renyi.laplace(self.epsilon, order)


@dataclass(frozen=True)
class RandomizedResponseLoss(BoundedLoss):
    """k-ary randomised response, replace-one: the true answer is e^epsilon as likely as any other."""

    categories: int

    @property
    def scale(self) -> float:
        return self.epsilon / 1000

    def pld(self, width: float) -> PrivacyLossDistribution:
        uniform = self.categories / (math.exp(self.epsilon) + self.categories - 1)  # chance of a uniform answer
        return privacy_loss_distribution.from_randomized_response(
            uniform, self.categories, value_discretization_interval=width
        )

    def renyi(self, order: float) -> float:
        return renyi.randomized_response(self.epsilon, self.categories, order)


@dataclass(frozen=True)
class GuaranteeLoss(BoundedLoss):
    """Anything known to be (epsilon, delta)-DP, and nothing else about it; delta 0 is pure DP."""

    delta: float = 0.0

    @property
    def scale(self) -> float:
        return self.epsilon / 1000

    def pld(self, width: float) -> PrivacyLossDistribution:
        return privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(self.epsilon, self.delta), value_discretization_interval=width
        )

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

    def pld(self, width: float) -> PrivacyLossDistribution:
        last = math.ceil(self.epsilon / width)
        return PrivacyLossDistribution(connected(self.profile, width, -last, last))

    def profile(self, x: np.ndarray) -> np.ndarray:
        """delta(x), rounded up where float64 would cancel."""
        inside = np.expm1((np.clip(x, -self.epsilon, self.epsilon) - self.epsilon) / 2) ** 2 / -math.expm1(
            -self.epsilon
        )
        return np.clip(np.where(x <= -self.epsilon, -np.expm1(x), np.where(x >= self.epsilon, 0.0, inside)), 0, 1)

    def renyi(self, order: float) -> float:
        return renyi.bounded_range(self.epsilon, order)
