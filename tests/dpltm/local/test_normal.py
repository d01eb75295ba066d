"""Normal numbers that are the same on every machine: right to the last few bits, whatever they are drawn from."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpltm.local.codebook import _log, _turn, portable_gaussian
from dpltm.randomness.noise import FastSource, gaussian


class Constant:
    """The same byte again and again: the smallest and the largest number there is."""

    def __init__(self, byte: int) -> None:
        self._byte = bytes([byte])

    def random_bytes(self, count: int) -> bytes:
        return self._byte * count


@pytest.mark.parametrize("count", [1, 2, 7, 20_000])
def test_they_are_those_of_the_library(count):
    """By which messages were made in former versions: as float32 they are the same."""
    found, expected = portable_gaussian(FastSource(5), count), gaussian(FastSource(5), count)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(found.astype("f4"), expected.astype("f4"), rtol=2.0**-23)


@pytest.mark.parametrize("byte", [0, 255])
def test_the_largest_number_is_below_what_directions_allow(byte):
    (value,) = portable_gaussian(Constant(byte), 1)
    assert abs(value) <= math.sqrt(2 * 53 * math.log(2)) + 1e-12 < 2**4


@given(st.floats(2.0**-53, 1 - 2.0**-53))
def test_logarithms(value):
    assert _log(np.array([value]))[0] == pytest.approx(math.log(value), rel=1e-15)


@given(st.integers(0, 2**52 - 1))
def test_turns(place):
    """Angles as uniform numbers have them, (place + 1/2) / 2^52 of a turn."""
    turn = (place + 0.5) * 2.0**-52
    cosine, sine = _turn(np.array([turn]))
    assert cosine[0] == pytest.approx(math.cos(2 * math.pi * turn), abs=1e-15)
    assert sine[0] == pytest.approx(math.sin(2 * math.pi * turn), abs=1e-15)


def test_nothing_but_what_ieee_754_defines(monkeypatch):
    """No logarithm, sine, cosine or power of a library, each of which rounds in its own way."""

    def forbidden(*_, **__):
        raise AssertionError("a function that machines round differently")

    for name in ("log", "log1p", "log2", "exp", "exp2", "expm1", "sin", "cos", "tan", "power", "arctan2", "hypot"):
        monkeypatch.setattr(np, name, forbidden)
    assert np.isfinite(portable_gaussian(FastSource(1), 100)).all()
