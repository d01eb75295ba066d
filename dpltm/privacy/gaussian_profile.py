"""The privacy profile of a Poisson-subsampled Gaussian step, in closed form and at many epsilons at once.

In every direction the loss ln(P / Q) falls with x, so that delta(epsilon) = P(X <= x) - e^epsilon Q(X <= x) at the last x
whose loss reaches epsilon. Each is largest at its x, so what rounding moves x by hardly shows: these are off by at most
4e-16 (1 + |epsilon|) from 60 digits (docs/privacy-model.md section 5.6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

Way = Literal["removed", "added", "replaced"]

_OUTSIDE = -float(ndtri(0.5 * math.exp(-50)))
"""Deviations beyond which a normal number is with a chance of e^-50, either way."""


@dataclass(frozen=True)
class GaussianProfile:
    """Of one direction.

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
        """Losses that all but e^-50 of P are between."""
        shift, far = self._shift, self.noise_multiplier * _OUTSIDE
        least, most = (-far, far + shift) if self.way == "added" else (-far - shift, far)
        return self._loss(most), self._loss(least)

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """In [0, 1], one for each of ``epsilons``, which may be of either sign."""
        rate, variance = self.sampling_rate, self.noise_multiplier**2
        if self.way == "replaced":
            return self._at(-variance * _apart(epsilons, rate, variance), epsilons)
        removed = self.way == "removed"
        side = -1.0 if removed else 1.0  # of the noise that the record moves sums to
        losses = -side * epsilons
        reached = losses > _log_unsampled(rate)  # no removal loses less, and no addition more than its opposite
        deltas = -np.expm1(np.minimum(epsilons, 0.0)) if removed else np.zeros(len(epsilons))
        whole = _unsampled(losses[reached], rate)
        deltas[reached] = self._at(side * (0.5 + whole * variance), epsilons[reached])
        return deltas

    @property
    def _shift(self) -> float:
        return 0.5 if self.way == "replaced" else 1.0

    def _at(self, x: np.ndarray, epsilons: np.ndarray) -> np.ndarray:
        """P(X <= x) - e^epsilon Q(X <= x)."""
        rate, shift, deviation = self.sampling_rate, self._shift, self.noise_multiplier
        upper, lower = ndtr(x / deviation), log_ndtr(x / deviation)
        if self.way != "added":
            upper = (1 - rate) * upper + rate * ndtr((x + shift) / deviation)
        if self.way != "removed":
            sampled = math.log(rate) + log_ndtr((x - shift) / deviation)
            lower = np.logaddexp(_log_unsampled(rate) + lower, sampled)
        return np.clip(upper - np.exp(epsilons + lower), 0.0, 1.0)

    def _loss(self, x: float) -> float:
        """ln(P / Q) at x."""
        rate, shift = self.sampling_rate, self._shift

        def mixed(x: float) -> float:
            """ln of (1-q) N(0) + q N(-shift) over N(0)."""
            whole = -shift * (shift / 2 + x) / self.noise_multiplier**2
            return float(np.logaddexp(_log_unsampled(rate), math.log(rate) + whole))

        return (mixed(x) if self.way != "added" else 0.0) - (mixed(-x) if self.way != "removed" else 0.0)


def _log_unsampled(sampling_rate: float) -> float:
    return math.log1p(-sampling_rate) if sampling_rate < 1 else -math.inf


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
