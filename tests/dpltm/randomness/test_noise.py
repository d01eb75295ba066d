"""Random numbers: the exact grid of the uniforms, the law of the Gaussians, and where the bytes come from."""

import math
import os
import ssl

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpltm.randomness.noise import FastSource, SecureSource, gaussian, uniform

FIRST, LAST = bytes(8), b"\xff" * 8


class Fixed:
    """Hands out prepared bytes, and fails if more are asked for."""

    def __init__(self, data):
        self.data = data

    def random_bytes(self, count):
        assert count <= len(self.data), "more bytes than prepared"
        taken, self.data = self.data[:count], self.data[count:]
        return taken


# Uniform.


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20))
def test_uniform_is_inside_and_rises_with_its_bits(words):
    values = uniform(Fixed(np.array(words, dtype=np.uint64).tobytes()), len(words))
    assert values.dtype == np.float64
    assert ((values > 0) & (values <= 0.5)).all()
    order = np.argsort(words, kind="stable")
    assert (np.diff(values[order]) >= 0).all()
    assert abs(values - np.array(words, dtype=np.float64) / 2**64).max() <= 2**-53


@given(st.binary(min_size=8, max_size=8))
def test_uniform_is_symmetric(data):
    """On an even grid with half steps, the bits' complement is 1 - u exactly; both are multiples of 2^-53."""
    flipped = bytes(255 - byte for byte in data)
    value, mirrored = uniform(Fixed(data + flipped), 2)
    assert value != 0.5
    assert mirrored == 1 - value
    assert 1 - mirrored == value


def test_uniform_uses_every_bit_of_the_grid():
    """The low bits are random too: the last 20 bits of the grid index are uniform where float64 can hold them."""
    values = uniform(FastSource(2), 50_000)
    index = (values[values < 0.25] * 2.0**53).astype(np.int64) & (2**20 - 1)
    assert len(index) > 10_000
    assert stats.kstest((index + 0.5) / 2**20, "uniform").pvalue > 1e-3


# Gaussian.


def test_gaussian_law():
    """Over 60 seeds, the p-values of a test for normality are themselves uniform: no seed is picked."""
    values = [stats.kstest(gaussian(FastSource(seed), 20_001), "norm").pvalue for seed in range(60)]
    assert stats.kstest(values, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("count", [0, 1, 2, 11])
def test_as_many_values_as_asked_for(count):
    values = gaussian(FastSource(6), count)
    assert values.shape == uniform(FastSource(3), count).shape == (count,)
    assert len(set(values.tolist())) == count


def test_gaussian_is_box_and_muller():
    """From the same bytes, one value at a time with the math module."""
    values, u = gaussian(FastSource(7), 9), uniform(FastSource(7), 10)
    for index, value in enumerate(values):
        radius, angle = math.sqrt(-2 * math.log(u[index % 5])), 2 * math.pi * u[5 + index % 5]
        assert value == pytest.approx(radius * (math.cos(angle) if index < 5 else math.sin(angle)), abs=1e-12)


@pytest.mark.parametrize("data", [FIRST * 2, LAST * 2, FIRST + LAST, LAST + FIRST])
def test_gaussian_is_finite_at_the_ends(data):
    """Warnings are errors here, so a log of zero would show.

    Truncating the tail at t costs delta 2 Phi(-t) for every value: at the grid's end t is above 8.4 (5e-17).
    """
    low, high = uniform(Fixed(FIRST + LAST), 2)
    assert 0 < low < high < 1
    assert np.isfinite(gaussian(Fixed(data), 2)).all()
    assert gaussian(Fixed(FIRST * 2), 1)[0] > 8.4


# Sources.


def test_secure_source_is_the_cryptographic_one(monkeypatch):
    monkeypatch.setattr(ssl, "RAND_bytes", lambda count: b"\x07" * count)
    assert SecureSource().random_bytes(3) == b"\x07\x07\x07"


def test_a_forked_process_draws_other_bytes():
    """The state of OpenSSL's generator is copied by fork; it must notice."""
    read, write = os.pipe()
    SecureSource().random_bytes(1)
    if (child := os.fork()) == 0:
        os.write(write, SecureSource().random_bytes(32))
        os._exit(0)
    mine = SecureSource().random_bytes(32)
    os.waitpid(child, 0)
    assert os.read(read, 32) != mine
    os.close(read)
    os.close(write)


def test_fast_source_repeats_only_with_a_seed():
    assert FastSource(8).random_bytes(64) == FastSource(8).random_bytes(64)
    assert FastSource(8).random_bytes(64) != FastSource(9).random_bytes(64)
    assert FastSource().random_bytes(64) != FastSource().random_bytes(64)


def test_fast_source_is_keyed_by_256_bits_of_the_system(monkeypatch):
    """Unlike a seed of 31 bits, which an observer can search through."""
    asked, real = [], os.urandom
    monkeypatch.setattr(os, "urandom", lambda count: asked.append(count) or real(count))
    FastSource()
    assert sum(asked) == 32
