"""The privacy loss of one release, in the two languages that accountants speak: its PLD and its Renyi divergence.

Several mechanisms share one: a training step that takes every record and a Gaussian release, a draw by permute-and-flip and
whatever else is pure epsilon-DP. ``accountant`` says which.

**Profiles.** In every direction the loss ln(P / Q) of a Poisson-subsampled Gaussian step falls with x, so that
delta(epsilon) = P(X <= x) - e^epsilon Q(X <= x) at the last x whose loss reaches epsilon. Each is largest at its x, so what
rounding moves x by hardly shows (docs/privacy-model.md 5.6).

**Distributions.** For neighbours with distributions P and Q of what is released, the loss is ln(P / Q), distributed as
under P (Sommer, Meiser, Mohammadi 2019). A distribution here *dominates*: its delta at every epsilon is at least the true
one, whichever neighbours are compared. So is that of a sum of independent ones at least that of an adaptive composition
(Zhu, Dong, Wang 2022, Theorem 10).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from scipy import fft
from scipy.special import log_ndtr, ndtr, ndtri

from dpltm.privacy import renyi

Way = Literal["removed", "added", "replaced"]
_OUTSIDE = -float(ndtri(0.5 * math.exp(-50)))  # deviations that a normal number is beyond with a chance of e^-50


@dataclass(frozen=True)
class GaussianProfile:
    """Privacy profile of one direction of a Poisson-subsampled Gaussian step.

    Attributes:
        noise_multiplier: s, noise over the sensitivity of the relation.
        sampling_rate: q in (0, 1].
        way: removed is (1-q) N(0) + q N(-1) over N(0); added is N(0) over (1-q) N(0) + q N(1); replaced is
            (1-q) N(0) + q N(-1/2) over (1-q) N(0) + q N(1/2), whose other direction is the same.
    """

    noise_multiplier: float
    sampling_rate: float
    way: Way

    @property
    def range(self) -> tuple[float, float]:
        """Range of losses that holds all but e^-50 of P."""
        shift, far = self._shift, self.noise_multiplier * _OUTSIDE
        least, most = (-far, far + shift) if self.way == "added" else (-far - shift, far)
        return self._loss(most), self._loss(least)

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """Deltas in [0, 1], one for each of ``epsilons``, which may be of either sign."""
        rate, variance = self.sampling_rate, self.noise_multiplier**2
        if self.way == "replaced":
            return self._at(-variance * _apart(epsilons, rate, variance), epsilons)
        removed = self.way == "removed"
        side = -1.0 if removed else 1.0  # of the noise that the record moves sums to
        losses = -side * epsilons
        reached = losses > _log_unsampled(rate)  # no removal loses less, and no addition more than its opposite
        deltas = -np.expm1(np.minimum(epsilons, 0.0)) if removed else np.zeros(len(epsilons))
        unsampled = _unsampled(losses[reached], rate)
        deltas[reached] = self._at(side * (0.5 + unsampled * variance), epsilons[reached])
        return deltas

    @property
    def _shift(self) -> float:
        return 0.5 if self.way == "replaced" else 1.0

    def _at(self, x: np.ndarray, epsilons: np.ndarray) -> np.ndarray:
        """P(X <= x) - e^epsilon Q(X <= x)."""
        rate, shift, deviation = self.sampling_rate, self._shift, self.noise_multiplier
        middle = ndtr(x / deviation)
        lower = log_ndtr(x / deviation)
        nearer = middle if self.way == "added" else ndtr((x + shift) / deviation)
        further = middle if self.way == "removed" else ndtr((x - shift) / deviation)
        upper = middle if self.way == "added" else (1 - rate) * middle + rate * nearer
        if self.way != "removed":
            sampled = math.log(rate) + log_ndtr((x - shift) / deviation)
            lower = np.logaddexp(_log_unsampled(rate) + lower, sampled)
        # P - Q is of the size of q, and so is what rounds it: at a loss near 0, nothing of the size of P is subtracted
        near = rate * (nearer - further) - np.expm1(np.clip(epsilons, -1.0, 1.0)) * np.exp(lower)
        deltas = np.where(np.abs(epsilons) < 1, near, upper - np.exp(epsilons + lower))
        return np.clip(deltas, 0.0, 1.0)

    def _loss(self, x: float) -> float:
        rate, shift = self.sampling_rate, self._shift

        def mixed(x: float) -> float:
            """ln of (1-q) N(0) + q N(-shift) over N(0)."""
            unsampled = -shift * (shift / 2 + x) / self.noise_multiplier**2
            return float(np.logaddexp(_log_unsampled(rate), math.log(rate) + unsampled))

        return (mixed(x) if self.way != "added" else 0.0) - (mixed(-x) if self.way != "removed" else 0.0)


def _log_unsampled(sampling_rate: float) -> float:
    return math.log1p(-sampling_rate) if sampling_rate < 1 else -math.inf


def _unsampled(losses: np.ndarray, sampling_rate: float) -> np.ndarray:
    """ln(1 + (e^l - 1) / q): the loss of a record that is in the sample, from that of one which is at rate q."""
    near = np.clip(losses, -math.log(2), math.log(2))  # beyond these the other form cancels less
    with np.errstate(divide="ignore"):  # at ln(1 - q) itself, rounded
        small = np.log1p(np.maximum(np.expm1(near) / sampling_rate, -1.0))
        large = (
            losses
            - math.log(sampling_rate)
            + np.log1p(np.maximum((sampling_rate - 1) * np.exp(np.minimum(-losses, 700.0)), -1.0))
        )
    return np.where(losses == near, small, large)


def _apart(losses: np.ndarray, sampling_rate: float, variance: float) -> np.ndarray:
    """-x / s^2 where the loss of (1-q) N(0) + q N(-1/2) over (1-q) N(0) + q N(1/2) is l."""
    # with z = -x / (2 s^2) and a = e^(1 / (8 s^2)) (1 - q) / q, e^l = (a + e^z) / (a + e^-z): a sinh(l/2) = sinh(z - l/2)
    half = np.abs(losses) / 2
    with np.errstate(divide="ignore"):  # sinh(0), and q = 1
        log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
        log_a = 1 / (8 * variance) + np.log1p(-sampling_rate) - math.log(sampling_rate)
    y = log_a + log_sinh
    return losses + 2 * np.copysign(np.logaddexp(0.5 * np.logaddexp(0.0, 2 * y), y), losses)


TAILS = 1e-15  # most chance of a sum of like losses that is left out at both ends; ``pld`` adds it to delta
MAX_EXPONENT = 600.0  # largest tilt times a loss, either way: e^600 is far within float64
LARGEST_ORDER = 64.0  # of Chernoff bounds on these tails, for losses that spread over 1: far within float64


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """Distribution of the loss in one direction: ``chances`` of ``first``, ``first + 1``, ... times ``width``, below 0
    at most by rounding, and of an infinite loss.

    It may be tilted: then a loss l has a chance of e^(``log_scale`` - ``tilt`` l) times that in ``chances``.
    """

    width: float
    first: int
    chances: np.ndarray
    infinite: float
    tilt: float = 0.0
    log_scale: float = 0.0

    @property
    def losses(self) -> np.ndarray:
        return (self.first + np.arange(len(self.chances))) * self.width

    def tilted(self, tilt: float) -> LossDistribution:
        """The same distribution, tilted by at most ``MAX_EXPONENT`` over its largest loss; ``chances`` add up to 1."""
        if tilt == 0:
            return self
        grown = np.maximum(self.chances, 0.0) * np.exp(tilt * self.losses)
        total = float(grown.sum())
        return replace(self, chances=grown / total, tilt=tilt, log_scale=math.log(total))

    def plus(self, other: LossDistribution) -> LossDistribution:
        count = len(self.chances) + len(other.chances) - 1
        size = fft.next_fast_len(count, real=True)
        chances = fft.irfft(fft.rfft(self.chances, size) * fft.rfft(other.chances, size), size)[:count]
        infinite = self.infinite + other.infinite - self.infinite * other.infinite
        log_scale = self.log_scale + other.log_scale
        return LossDistribution(self.width, self.first + other.first, chances, infinite, self.tilt, log_scale)

    def times(self, count: int) -> LossDistribution:
        """Distribution of the sum of ``count`` independent losses like this one (Koskela et al. 2020)."""
        if count == 1:
            return self
        low, high = _bulk(self.chances, count)  # a power in Fourier space wraps around: all but ``TAILS`` has to fit
        size = fft.next_fast_len(max(high - low + 1, len(self.chances)), real=True)
        chances = np.roll(fft.irfft(fft.rfft(self.chances, size) ** count, size), -low)[: high - low + 1]
        infinite = -math.expm1(count * math.log1p(-self.infinite)) if self.infinite < 1 else 1.0
        log_scale = count * self.log_scale
        return LossDistribution(self.width, count * self.first + low, chances, infinite, self.tilt, log_scale)


Pair = tuple[LossDistribution, ...]  # both directions, or the one that stands for both
Curve = Callable[[np.ndarray], np.ndarray]  # an upper bound on delta at each epsilon
POINTS = 2001  # at which a bound on a profile is asked before it is made convex


def connected(deltas: Curve, width: float, first: int, last: int) -> LossDistribution:
    """A distribution that dominates a profile: its deltas on a grid, connected (Doroshenko et al. 2022, Algorithm 1).

    Between losses of the grid, ``first`` to ``last`` times ``width``, delta as a function of e^epsilon is the chord, which
    is above whatever is convex. Where rounding lets deltas rise, or bends them the wrong way, those below are raised, and
    chances below 0 left out: both only add.
    """
    falling = np.maximum.accumulate(deltas(np.arange(first, last + 1) * width)[::-1])[::-1]
    falls = -np.diff(falling)  # d_i - d_i+1
    slopes = np.append(falls / math.expm1(width), 0.0)
    # (falls_i-1 e^h - falls_i) / (e^h - 1); so written, what rounds e^h does not add up over the losses
    chances = np.append((1.0 - falling[0]) - slopes[0], (slopes[:-1] - slopes[1:]) + falls)
    return LossDistribution(width, first, np.maximum(chances, 0.0), float(falling[-1]))


def convex(curve: Curve, losses: np.ndarray) -> np.ndarray:
    """The largest function below ``curve`` that is convex in e^loss and 1 at e^loss = 0, at each of ``losses``; the
    true profile is such a function, so it is below."""
    asked = np.linspace(losses[0], losses[-1], POINTS)
    points = np.column_stack([np.append(0.0, np.exp(asked)), np.append(1.0, curve(asked))])
    hull: list[np.ndarray] = []
    for point in points:
        while len(hull) > 1 and _above(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    below = np.array(hull)
    return np.clip(np.interp(np.exp(losses), below[:, 0], below[:, 1]), 0.0, 1.0)


def _above(left: np.ndarray, middle: np.ndarray, right: np.ndarray) -> bool:
    return bool((middle[1] - left[1]) * (right[0] - left[0]) >= (right[1] - left[1]) * (middle[0] - left[0]))


def _bulk(chances: np.ndarray, count: int) -> tuple[int, int]:
    """The first and the last value of the sum of ``count`` draws of 0, 1, ..., but for a chance of ``TAILS``."""
    # for every t > 0, P(S >= s) <= E[e^(t S)] e^(-t s), and likewise below; the s where that is half of TAILS is taken for
    # the best of some t: for a normal sum it is about t = sqrt(2 ln(2 / TAILS) / Var S), for one of rare large losses more
    chances, values, left = np.maximum(chances, 0.0), np.arange(len(chances)), math.log(2 / TAILS)
    low, high, total = 0.0, float((len(chances) - 1) * count), float(chances.sum())
    if total == 0:
        return 0, 0
    variance = float(chances @ np.square(values - chances @ values / total))
    t = min(0.5 * math.sqrt(2 * left / (count * max(variance, 1e-9))), 2 / len(chances))
    above = np.exp(t * values)
    below = 1 / above
    while t <= LARGEST_ORDER / len(chances):
        high = min(high, (count * math.log(chances @ above) + left) / t)
        low = max(low, -(count * math.log(chances @ below) + left) / t)
        above, below, t = above * above, below * below, 2 * t
    return math.floor(low), max(math.floor(low), math.ceil(high))


class PrivacyLoss(ABC):
    """Privacy loss of one release. Losses are values: equal ones cost the same, and are composed together."""

    @property
    @abstractmethod
    def span(self) -> float:
        """Spread of the losses that a grid resolves."""

    @property
    def reach(self) -> float:
        """Spread of all but a negligible part of the losses, at most the span: over grid width, the grid points it takes."""
        return self.span

    @property
    @abstractmethod
    def scale(self) -> float:
        """Deviation of one loss, approximate: discretisation does not show on a grid that is finer."""

    @abstractmethod
    def pld(self, width: float) -> Pair:
        """A dominating privacy loss distribution on multiples of ``width``."""

    @abstractmethod
    def renyi(self, order: float) -> float:
        """Renyi divergence of the given order, the worse direction."""


@dataclass(frozen=True)
class GaussianLoss(PrivacyLoss):
    """N(1, s^2) against N(0, s^2): the same under either relation."""

    noise_multiplier: float

    @property
    def span(self) -> float:
        """Ten deviations and the mean of a whole step's loss, which sampling can only shrink."""
        return 0.5 / self.noise_multiplier**2 + 10 / self.noise_multiplier

    @property
    def scale(self) -> float:
        return 1 / self.noise_multiplier

    def pld(self, width: float) -> Pair:
        return SampledGaussianLoss(self.noise_multiplier, 1.0, False).pld(width)

    def renyi(self, order: float) -> float:
        return order / (2 * self.noise_multiplier**2)


@dataclass(frozen=True)
class SampledGaussianLoss(GaussianLoss):
    """A Poisson-subsampled Gaussian step; ``noise_multiplier`` is the noise over the sensitivity of the relation.

    Under add/remove the pair is (1-q) N(0) + q N(1) against N(0) (Zhu, Dong, Wang 2022, Theorem 11). Under replace-one
    the sensitivity counts both records, so each alone reaches half of it, and the pair is
    (1-q) N(0) + q N(-1/2) against (1-q) N(0) + q N(1/2): by advanced joint convexity (Balle, Barthe, Gaboardi 2018,
    Theorem 2) the comparison is N(g) against a mixture of N(0) and N(g'), at distances of at most 1/2 and 1 from g, and
    such a mixture is dominated by the one whose centres lie on one side of g at just these distances (Choquette-Choo,
    Ganesh, Steinke, Thakurta 2024, mixtures of Gaussians with vector sensitivities).
    """

    sampling_rate: float
    replace_one: bool

    @property
    def reach(self) -> float:
        way: Way = "replaced" if self.replace_one else "removed"
        low, high = GaussianProfile(self.noise_multiplier, self.sampling_rate, way).range
        return min(self.span, high - low)

    @property
    def scale(self) -> float:
        chi_square = math.expm1(min(self.noise_multiplier**-2, 500.0))
        return min(self.sampling_rate * math.sqrt(chi_square), 1 / self.noise_multiplier)

    def pld(self, width: float) -> Pair:
        def of(way: Way) -> LossDistribution:
            profile = GaussianProfile(self.noise_multiplier, self.sampling_rate, way)
            low, high = profile.range
            return connected(profile.deltas, width, math.floor(low / width), math.ceil(high / width))

        if self.replace_one:
            return (of("replaced"),)
        return (of("removed"), of("added")) if self.sampling_rate < 1 else (of("removed"),)

    def renyi(self, order: float) -> float:
        return renyi.sampled_gaussian(self.noise_multiplier, self.sampling_rate, order, replace_one=self.replace_one)


class SymmetricLoss(PrivacyLoss):
    """Base of losses between -``most`` and ``most``, but for a negligible part; with one ``profile`` for both directions."""

    @property
    @abstractmethod
    def most(self) -> float: ...

    @property
    def span(self) -> float:
        return 2 * self.most

    def profile(self, x: np.ndarray) -> np.ndarray:
        """delta(x), of either sign, of those whose distribution is made from it."""
        raise NotImplementedError

    def pld(self, width: float) -> Pair:
        last = math.ceil(self.most / width)
        return (connected(self.profile, width, -last, last),)


@dataclass(frozen=True)
class BoundedLoss(SymmetricLoss):
    """Base of mechanisms whose losses lie between -epsilon and epsilon, but for a chance of failure."""

    epsilon: float
    scales: ClassVar[float] = 1000.0  # of the grid, in epsilon

    @property
    def most(self) -> float:
        return self.epsilon

    @property
    def scale(self) -> float:
        return self.epsilon / self.scales


@dataclass(frozen=True)
class LaplaceLoss(BoundedLoss):
    """Laplace noise whose scale is the sensitivity over ``epsilon``."""

    scales = 10.0

    def profile(self, x: np.ndarray) -> np.ndarray:
        """delta(x) = 1 - e^((x - epsilon) / 2) for -epsilon <= x <= epsilon (Balle et al. 2018, Theorem 3)."""
        near = np.clip(x, -self.epsilon, self.epsilon)
        return np.where(np.abs(x) < self.epsilon, -np.expm1((near - self.epsilon) / 2), -np.expm1(np.minimum(x, 0.0)))

    def renyi(self, order: float) -> float:
        return renyi.laplace(self.epsilon, order)


@dataclass(frozen=True)
class GuaranteeLoss(BoundedLoss):
    """Anything known to be (epsilon, delta)-DP, and nothing else about it: at worst everything shows with chance delta, and
    else randomised response of two categories (Kairouz, Oh, Viswanath 2015)."""

    delta: float = 0.0
    categories: ClassVar[int] = 2

    def pld(self, width: float) -> Pair:
        """Of an answer that is e^epsilon as likely, one that is as much less, and all others, which are as likely."""
        last, first = (math.ceil(end * self.epsilon / width) for end in (1, -1))
        chances = np.zeros(last - first + 1)
        rare, others = math.exp(-self.epsilon), self.categories - 2
        np.add.at(chances, [last - first, -first, 0], [1.0, others * rare, rare])
        return (LossDistribution(width, first, chances * (1 - self.delta) / (1 + (others + 1) * rare), self.delta),)

    def renyi(self, order: float) -> float:
        """Divergence outside a chance of ``delta``, which the accountant subtracts from the asked delta."""
        return renyi.randomized_response(self.epsilon, self.categories, order)


@dataclass(frozen=True)
class RandomizedResponseLoss(GuaranteeLoss):
    """k-ary randomised response, replace-one: the true answer is e^epsilon as likely as any other."""

    categories: int = field(kw_only=True)  # type: ignore[misc]


@dataclass(frozen=True)
class BoundedRangeLoss(BoundedLoss):
    """An epsilon-bounded-range mechanism, such as the exponential mechanism, whose inputs may depend on earlier releases.

    It is dominated by one of the two-outcome pairs with losses t and t - epsilon (Dong, Durfee, Rogers 2019). An analyst who
    picks its candidates after seeing other releases picks t with them, so no single t is safe in an adaptive composition.
    The pair here dominates all of them at once: its profile is the largest of theirs,

        delta(x) = (1 - e^((x - epsilon) / 2))^2 / (1 - e^-epsilon)    for -epsilon <= x <= epsilon,

    reached at t = (x + epsilon) / 2; a largest of convex profiles is the profile of some pair (Zhu, Dong, Wang 2022).
    """

    scales = 10.0

    def profile(self, x: np.ndarray) -> np.ndarray:
        """delta(x), rounded up where float64 would cancel."""
        near = np.clip(x, -self.epsilon, self.epsilon)
        inside = np.expm1((near - self.epsilon) / 2) ** 2 / -math.expm1(-self.epsilon)
        outside = -np.expm1(np.minimum(x, 0.0))
        return np.clip(np.where(np.abs(x) < self.epsilon, inside, outside), 0.0, 1.0)

    def renyi(self, order: float) -> float:
        return renyi.bounded_range(self.epsilon, order)


@dataclass(frozen=True)
class DiscreteGaussianLoss(SymmetricLoss):
    """Discrete Gaussian noise of a deviation on a whole number that moves by at most ``sensitivity``: log-concave, so the
    losses of a shift fall along the line, and a larger shift loses more."""

    deviation: float
    sensitivity: int

    @property
    def most(self) -> float:
        return GaussianLoss(self.deviation / self.sensitivity).span

    @property
    def scale(self) -> float:
        return self.sensitivity / self.deviation

    def profile(self, x: np.ndarray) -> np.ndarray:
        """P(K <= k) - e^x P(K <= k - s) at the last k whose loss (s^2 - 2 s k) / (2 deviation^2) exceeds x."""
        shift, far = self.sensitivity, math.ceil(_OUTSIDE * self.deviation) + self.sensitivity + 1
        chances = np.exp(-0.5 * (np.arange(-far, far + 1) / self.deviation) ** 2)
        below = np.append(0.0, np.cumsum(chances / chances.sum()))  # of all k < place - far
        last = np.ceil(shift / 2 - x * self.deviation**2 / shift).astype(np.int64) - 1
        place, moved = (np.clip(last + far + 1 - by, 0, len(below) - 1) for by in (0, shift))
        return np.clip(below[place] - np.exp(np.minimum(x, MAX_EXPONENT)) * below[moved], 0.0, 1.0)

    def renyi(self, order: float) -> float:
        """That of continuous noise at most (Canonne, Kamath, Steinke 2020, Proposition 5)."""
        return GaussianLoss(self.deviation / self.sensitivity).renyi(order)


@dataclass(frozen=True)
class ZcdpLoss(SymmetricLoss):
    """All that is known to be rho-zCDP, together: the profile that Renyi divergences of rho times each order allow."""

    rho: float

    @property
    def most(self) -> float:
        """Where the profile is below e^-50, at the order 1 + sqrt(50 / rho); beyond floats the accountant takes orders."""
        return min(self.rho + 2 * math.sqrt(50 * self.rho), MAX_EXPONENT / 2)

    @property
    def scale(self) -> float:
        return math.sqrt(2 * self.rho)

    def profile(self, x: np.ndarray) -> np.ndarray:
        """The least over orders (Canonne, Kamath, Steinke 2020, Proposition 12), and by it at -x the other way; convex."""

        def least(x: np.ndarray) -> np.ndarray:
            orders = 1 + np.geomspace(1e-3, 1e5, 800)[:, None]
            logs = (orders - 1) * (self.rho * orders - np.abs(x)) + orders * np.log1p(-1 / orders) - np.log(orders - 1)
            below = np.minimum(x, 0.0)
            return np.exp(np.minimum(logs.min(0), 0.0) + below) - np.expm1(below)

        return convex(least, x)

    def renyi(self, order: float) -> float:
        return self.rho * order
