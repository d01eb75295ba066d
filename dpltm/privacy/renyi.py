"""Renyi divergences of the mechanisms, and the two ways from them to (epsilon, delta).

Each function returns D_alpha(P || Q) at the given orders, for the worst pair of neighbours and the worse direction; for
adaptive composition they add up (Mironov 2017, Proposition 1). Orders are real numbers above 1. The divergence of a
Poisson-subsampled Gaussian is integrated numerically.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize_scalar

Divergence = Callable[[float], float]  # Renyi divergence as a function of the order alpha > 1
Conversion = Callable[[float, float, float], float]  # epsilon at delta from a divergence, its order and delta
MIN_ORDER, MAX_ORDER = 1 + 1e-4, 1e5  # orders that are tried; any gives a valid bound
_SLACK = 1e-14  # added to every integrated logarithm: more than its rounding error


@functools.lru_cache(maxsize=4096)
def sampled_gaussian(
    noise_multiplier: float, sampling_rate: float, order: float, *, replace_one: bool = False
) -> float:
    """D_alpha of one Poisson-subsampled Gaussian step, sensitivity 1.

    Add/remove: (1-q) N(0) + q N(1) against N(0), which is the worse of the two directions (Mironov, Talwar, Zhang 2019,
    Theorem 5). Replace-one: (1-q) N(0) + q N(-1/2) against (1-q) N(0) + q N(1/2), symmetric.

    The integrand is analytic up to a distance of pi sigma^2 from the real line, so the trapezoidal rule at steps of
    sigma^2/4 and sigma/8 is exact to rounding (Trefethen, Weideman 2014).
    """
    sigma, q = noise_multiplier, sampling_rate
    plain = order / (2 * sigma**2)  # sampling never costs more (quasi-convexity of the divergence)
    step = min(sigma / 8, sigma**2 / 4)
    if q == 1 or (order + 24 * sigma) / step > 1e6:
        return plain
    if replace_one:
        x = np.arange(0.5 - order - 12 * sigma, 0.5 + 12 * sigma, step)  # to 1/2 - alpha, where q is near 1
        top, bottom = _log_ratio(-x - 0.25, sigma, q, 0.5), _log_ratio(x - 0.25, sigma, q, 0.5)
        exponent = order * top + (1 - order) * bottom
    else:
        x = np.arange(-12 * sigma, order + 12 * sigma, step)
        exponent = order * _log_ratio(x - 0.5, sigma, q, 1.0)
    density = -((x / sigma) ** 2) / 2 + math.log(step / (sigma * math.sqrt(2 * math.pi)))
    terms = exponent + density
    slack = _SLACK + 4e-16 * float(np.abs(terms).max())
    most = float(terms.max())
    total = most + math.log(float(np.exp(terms - most).sum()))
    return min(plain, (max(total, 0.0) + slack) / (order - 1))


def _log_ratio(offset: np.ndarray, sigma: float, q: float, distance: float) -> np.ndarray:
    """ln of ((1-q) N(0) + q N(distance)) / N(0) at a point ``offset`` away from the middle of the two."""
    return np.logaddexp(math.log1p(-q), math.log(q) + distance * offset / sigma**2)


def bounded_range(epsilon: float, order: float) -> float:
    """D_alpha of an epsilon-bounded-range mechanism: the largest over its two-outcome pairs.

    Losses t and t - epsilon, the first with chance q(t) = (e^-t - e^-epsilon) / (1 - e^-epsilon) under Q, so that
    e^((alpha-1) D) = q e^(alpha t) + (1-q) e^(alpha (t - epsilon)): its derivative in t vanishes once
    (Dong, Durfee, Rogers 2019).
    """
    best = epsilon / 2  # to within alpha epsilon^2, where that is too small for the difference of logarithms
    if order * epsilon > 1e-6:
        best = epsilon + math.log((order - 1) / order)
        best += math.log(-math.expm1(-order * epsilon)) - math.log(-math.expm1(-(order - 1) * epsilon))
    t = min(max(best, 0.0), epsilon)
    chance = math.exp(-t) * math.expm1(t - epsilon) / math.expm1(-epsilon)
    if order * epsilon > _LARGE:
        log = order * t + math.log(chance * -math.expm1(-order * epsilon) + math.exp(-order * epsilon))
        return _divergence(log, epsilon, order)
    other = math.expm1(-t) / math.expm1(-epsilon)  # 1 - q; and q (e^t - 1) + (1-q) (e^(t-epsilon) - 1) = 0
    excess = chance * _bend(t, order) + other * _bend(t - epsilon, order)
    return _divergence(math.log1p(excess), epsilon, order)


def laplace(epsilon: float, order: float) -> float:
    """D_alpha of Laplace noise whose scale is the sensitivity over ``epsilon`` (Mironov 2017, Proposition 6)."""
    grow, fall = (order - 1) * epsilon, -order * epsilon
    if grow > _LARGE:
        log = np.logaddexp(math.log(order / (2 * order - 1)) + grow, math.log((order - 1) / (2 * order - 1)) + fall)
        return _divergence(float(log), epsilon, order)
    # The linear parts of both exponentials cancel: alpha (alpha-1) epsilon - (alpha-1) alpha epsilon.
    excess = (order * _above_line(grow) + (order - 1) * _above_line(fall)) / (2 * order - 1)
    return _divergence(math.log1p(excess), epsilon, order)


def randomized_response(epsilon: float, categories: int, order: float) -> float:
    """D_alpha of k-ary randomised response under replace-one: the true answer is e^epsilon as likely as any other. With two
    categories it dominates every epsilon-DP mechanism (Bun, Steinke 2016, Lemma B.2).

    With q = 1 / (e^epsilon + k - 1), e^((alpha-1) D) = q (e^(alpha epsilon) + e^((1-alpha) epsilon) + k - 2), which is
    1 + 4 q e^(epsilon/2) sinh(alpha epsilon / 2) sinh((alpha-1) epsilon / 2).
    """
    log_excess = epsilon / 2 - float(np.logaddexp(epsilon, math.log(categories - 1)))
    for x in (order * epsilon, (order - 1) * epsilon):
        log_excess += x / 2 + math.log(-math.expm1(-x))  # ln(2 sinh(x / 2))
    return _divergence(float(np.logaddexp(0.0, log_excess)), epsilon, order)


_LARGE = 30.0  # exponents above which sums of exponentials are added as logarithms: nothing cancels or overflows

_RELATIVE = 1e-11
"""Relative rounding error of a logarithm without cancellation, at most, for orders from ``MIN_ORDER`` on and epsilon from
1e-9 to 500, which is what ``accountant`` lets through."""


def _divergence(log: float, epsilon: float, order: float) -> float:
    """D_alpha from ln of e^((alpha-1) D), rounded up; never above epsilon, the divergence of order infinity."""
    return min(epsilon, log * (1 + _RELATIVE) / (order - 1))


def _above_line(x: float) -> float:
    """e^x - 1 - x, to rounding: above its tangent at 0, by x^2 / 2 where x is small."""
    if abs(x) > 0.5:
        return math.expm1(x) - x
    total = 0.0
    for k in range(16, 1, -1):  # x^k / k!, from the smallest on: the first left out is 1e-19 of the sum
        total = (1.0 + total) * x / k
    return total * x


def _bend(x: float, order: float) -> float:
    """e^(alpha x) - 1 - alpha (e^x - 1): by how much y^alpha exceeds its tangent at y = 1, for y = e^x."""
    return _above_line(order * x) - order * _above_line(x)


def modern_epsilon(divergence: float, order: float, delta: float) -> float:
    """Epsilon, perhaps below 0, at delta (Balle et al. 2020, Theorem 21; Canonne, Kamath, Steinke 2020, Prop. 12)."""
    return divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


def classical_epsilon(divergence: float, order: float, delta: float) -> float:
    """Epsilon at delta as the moments accountant converts (Abadi et al. 2016; Mironov 2017, Proposition 3)."""
    return divergence - math.log(delta) / (order - 1)


def best_epsilon(divergence: Divergence, delta: float, convert: Conversion = modern_epsilon) -> float:
    """The least epsilon over all real orders; an upper bound at whichever order the search ends."""

    def at(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        return convert(divergence(order), order, delta)

    grid = np.linspace(math.log(MIN_ORDER - 1), math.log(MAX_ORDER), 43)
    values = [at(point) for point in grid]
    best = int(np.argmin(values))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    refined = minimize_scalar(at, bounds=(low, high), method="bounded", options={"xatol": 1e-4})
    return max(0.0, min(values[best], float(refined.fun)))
