"""Exact hockey-stick divergences and the epsilons at which they reach delta, none of them through a grid of losses."""

import math
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr


def gaussian_delta(epsilon: Any, mu: float) -> Any:
    """Of mu-GDP: a Gaussian mechanism with sensitivity / deviation = mu (Balle and Wang 2018, Theorem 8)."""
    return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))


def gaussian_epsilon(mu: float, delta: float = 1e-5) -> float:
    """Of mu-GDP, for a delta below that of epsilon 0."""
    return float(brentq(lambda epsilon: gaussian_delta(epsilon, mu) - delta, 0.0, mu * mu + 50 * mu, xtol=1e-13))


def removed_delta(epsilon: Any, sigma: float, rate: float) -> Any:
    """Of ((1-q) N(0) + q N(1), N(0)): the loss rises with x, so that the worst set is a half line."""
    epsilon = np.asarray(epsilon, dtype=float)
    inside = 1 + (rate - 1) * np.exp(-epsilon)  # (e^eps - 1 + q) / e^eps; the loss never falls below log(1-q)
    reached = inside > 0
    x = sigma**2 * (epsilon + np.log(np.where(reached, inside, 1.0)) - math.log(rate)) + 0.5
    first = (1 - rate) * ndtr(-x / sigma) + rate * ndtr((1 - x) / sigma)
    return np.where(reached, first - np.exp(epsilon + log_ndtr(-x / sigma)), 1 - np.exp(np.minimum(epsilon, 0)))


def added_delta(epsilon: float, sigma: float, rate: float) -> float:
    """Of the same pair the other way: the loss falls with x and never exceeds -log(1-q)."""
    below = math.exp(-epsilon) - 1 + rate
    if below <= 0:
        return 0.0
    x = sigma**2 * math.log(below / rate) + 0.5
    second = (1 - rate) * ndtr(x / sigma) + rate * ndtr((x - 1) / sigma)
    return float(ndtr(x / sigma) - math.exp(epsilon) * second)


def step_epsilon(sigma: float, rate: float, delta: float) -> float:
    """Of one Poisson-subsampled Gaussian step under add/remove."""

    def excess(epsilon: float) -> float:
        return max(float(removed_delta(epsilon, sigma, rate)), added_delta(epsilon, sigma, rate)) - delta

    return float(brentq(excess, 0.0, 1 / sigma**2 + 50 / sigma, xtol=1e-12))


def hockey_stick(first: Any, second: Any, epsilon: float) -> float:
    """Of two distributions on finitely many outcomes."""
    return float(np.maximum(np.asarray(first) - math.exp(epsilon) * np.asarray(second), 0).sum())


def two_outcomes(loss: float, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """The bounded-range pair whose losses are ``loss`` and ``loss - epsilon``."""
    chance = math.expm1(loss - epsilon) / math.expm1(-epsilon)
    first = np.array([chance, 1 - chance])
    return first, first * np.exp([-loss, epsilon - loss])
