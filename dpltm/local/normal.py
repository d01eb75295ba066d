"""Standard normal numbers that are the same on every machine: owners and server draw the same directions from a number.

Libraries round logarithms, sines and cosines each in their own way. Here they are polynomials, computed in float64 one
operation after the other, which IEEE 754 defines to the last bit; they err by a few units of the last place.
"""

from __future__ import annotations

import math

import numpy as np

from dpltm.randomness.noise import RandomSource, uniform

LOG_TERMS, TURN_TERMS = 10, 9
"""Of the power series: those that are left out are below 2^-53 of the sum."""

_COSINES, _SINES = np.array([1.0, 0.0, -1.0, 0.0, 1.0]), np.array([0.0, 1.0, 0.0, -1.0, 0.0])
"""Of whole quarters of a turn, from none to four."""


def portable_gaussian(source: RandomSource, count: int) -> np.ndarray:
    """``count`` independent standard normal float64 values, by Box and Muller (1958), as ``randomness.noise.gaussian``.

    Args:
        source: of public bits.
        count: how many.

    Guarantees:
        The same bits on every machine with IEEE 754; those of ``dpltm.randomness.noise.gaussian`` but for the last few.
    """
    half = (count + 1) // 2
    radius, angle = np.sqrt(-2.0 * _log(uniform(source, half))), uniform(source, half)
    cosine, sine = _turn(angle)
    return np.concatenate([radius * cosine, (radius * sine)[: count - half]])


def _log(values: np.ndarray) -> np.ndarray:
    """Natural logarithm of numbers in (0, 1): twice the area tangent of (m - 1) / (m + 1), for m near 1."""
    mantissa, exponent = np.frexp(values)
    small = mantissa < math.sqrt(0.5)
    mantissa *= 1.0 + small
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    area = ratio * _series(ratio * ratio, [1.0 / (2 * term + 1) for term in range(LOG_TERMS)])
    return 2.0 * area + (exponent - small) * math.log(2.0)


def _turn(angle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine of angles in whole turns, from 0 to 1: of at most an eighth of a turn, then by quarters."""
    quarter = np.rint(4.0 * angle)
    rest = (4.0 * angle - quarter) * (math.pi / 2)
    square = rest * rest
    cosine = _series(square, [(-1.0) ** term / math.factorial(2 * term) for term in range(TURN_TERMS)])
    sine = rest * _series(square, [(-1.0) ** term / math.factorial(2 * term + 1) for term in range(TURN_TERMS)])
    place = quarter.astype(np.intp)
    along, across = _COSINES[place], _SINES[place]  # 0, 1 or -1, so that nothing is rounded
    return along * cosine - across * sine, across * cosine + along * sine


def _series(square: np.ndarray, terms: list[float]) -> np.ndarray:
    """A polynomial by Horner's rule, constant term first."""
    total = np.full_like(square, terms[-1])
    for term in reversed(terms[:-1]):
        total *= square
        total += term
    return total
