"""Arithmetic that gives the same bits on every machine: whole numbers in float64, few enough digits that no sum is rounded.

Libraries add up in the order that suits a processor, so rounded sums differ from one machine to the next. Here sums are of
whole numbers and stay below 2^53, where float64 holds each of them: any order gives the same. Whatever else is done goes
element by element with ``+``, ``-``, ``*``, ``/``, ``sqrt`` and ``rint``, which IEEE 754 defines to the last bit, or is a
change of sign, exponent or type.
"""

from __future__ import annotations

import math

import numpy as np

EXACT_BITS = 52
"""Of a sum; one less than float64 has, for what rounding to a grid adds."""


def bits_for(terms: int) -> int:
    """Bits of two kinds of factors, so that so many products of one with the other add up exactly."""
    return (EXACT_BITS - math.ceil(math.log2(max(terms, 1)))) // 2


def grid_bits(bound: float, most: int) -> int:
    """b up to ``most``, so that numbers up to ``bound`` are whole numbers below 2^``EXACT_BITS`` in units of 2^-b."""
    return min(most, EXACT_BITS - math.frexp(bound)[1])


def on_grid(values: np.ndarray, bits: int) -> np.ndarray:
    """Values in units of 2^-bits, rounded to whole numbers, float64."""
    return np.rint(np.ldexp(np.asarray(values, dtype=np.float64), bits))


def whole_rows(values: np.ndarray, bits: int) -> np.ndarray:
    """Rows ``(n, d)``, each times the power of two that makes its largest entry nearly 2^bits; rounded to whole numbers."""
    values = np.asarray(values, dtype=np.float64)
    _, exponent = np.frexp(np.abs(values).max(axis=1, keepdims=True, initial=0.0))
    return np.rint(np.ldexp(values, bits - exponent))


def fixed_norm(values: np.ndarray, norm: float) -> np.ndarray:
    """Rows ``(n, d)`` of this L2 norm, float32; rows of zeros stay zero."""
    whole = whole_rows(values, bits_for(values.shape[1]))
    size = np.sqrt(np.square(whole).sum(axis=1, keepdims=True))
    return (whole * (norm / np.maximum(size, 1.0))).astype(np.float32)
