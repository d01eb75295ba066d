"""Gaussian differential privacy and its central limit theorem (GDP = Bu, Dong, Long, Su 2020; Dong, Roth, Su 2022).

The central limit figures are approximations, and lie now above, now below the true ones: they are printed as nominal,
never promised, and no noise is calibrated by them.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

MIN_MU, MAX_MU, LARGE_MU = 1e-8, 1e8, 1e6


def clt_mu(noise_multiplier: float, sampling_rate: float, steps: float, *, replace_one: bool = False) -> float:
    """mu = q sqrt(T (e^(1/sigma^2) - 1)) (GDP, Section 3.2, Equation 6); infinite where that overflows.

    Under replace-one the pair is (1-q) N(0) + q N(-1/2) against (1-q) N(0) + q N(1/2), whose chi-square distance for small q
    is q^2 4 sinh(1/(4 sigma^2)); that stands in place of q^2 (e^(1/sigma^2) - 1). The paper has no such case.
    """
    square = noise_multiplier**-2
    if square > 700:
        return math.inf
    distance = 4 * math.sinh(square / 4) if replace_one else math.expm1(square)
    return sampling_rate * math.sqrt(steps * distance)


def clt_noise(mu: float, sampling_rate: float, steps: float, *, replace_one: bool = False) -> float:
    """The noise multiplier at which the central limit theorem gives ``mu`` > 0: :func:`clt_mu` solved for sigma."""
    distance = mu**2 / (sampling_rate**2 * steps)
    return (4 * math.asinh(distance / 4) if replace_one else math.log1p(distance)) ** -0.5


def delta(epsilon: float, mu: float) -> float:
    """delta(epsilon; mu) = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2), exact for mu-GDP."""
    return math.exp(_log_delta(epsilon, mu))


def epsilon(delta: float, mu: float) -> float:
    """The least epsilon >= 0 at ``delta`` for mu-GDP: the inverse of :func:`delta`; infinite mu gives infinity."""
    if math.isinf(mu):
        return math.inf
    target = math.log(delta)
    if mu == 0 or _log_delta(0.0, mu) <= target:
        return 0.0
    high = max(mu * mu / 2 - mu * float(ndtri(delta)), 1e-12)  # drops the second, negative term
    if mu > LARGE_MU:  # which is less than what logs of delta are rounded by
        return high
    return float(brentq(lambda value: _log_delta(value, mu) - target, 0.0, high, xtol=1e-14, rtol=1e-12))


def mu(epsilon: float, delta: float) -> float:
    """The mu at which mu-GDP spends exactly ``epsilon`` at ``delta`` (GDP, Equation 7), from MIN_MU to MAX_MU."""
    target = math.log(delta)
    if _log_delta(epsilon, MIN_MU) >= target:
        return MIN_MU
    if _log_delta(epsilon, MAX_MU) <= target:
        return MAX_MU
    low, high = math.log(MIN_MU), math.log(MAX_MU)
    return math.exp(brentq(lambda log: _log_delta(epsilon, math.exp(log)) - target, low, high, xtol=1e-13))


def _log_delta(epsilon: float, mu: float) -> float:
    """Log of delta, in logs throughout so that neither term underflows."""
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    if not second < first:  # equal to rounding
        return -math.inf
    return first + math.log(-math.expm1(second - first))


def trade_off(alphas: np.ndarray, mu: float) -> np.ndarray:
    """G_mu(alpha) = Phi(Phi^-1(1 - alpha) - mu): least type II error at type I error alpha."""
    return np.asarray(ndtr(ndtri(1 - np.asarray(alphas)) - mu))
