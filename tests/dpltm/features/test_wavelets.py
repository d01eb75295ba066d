"""Wavelet moduli of signals, against sums written out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dpltm.features.feature_map import make_feature_map
from dpltm.features.transforms import Wavelets
from refusals import refused


def naive(signal: np.ndarray, octaves: int, each: int) -> np.ndarray:
    """The map of one signal ``(steps, channels)``, by convolutions in time with wavelets made by an inverse DFT sum."""
    steps, channels = signal.shape
    rows = list(signal.T)
    if channels % 3 == 0:
        rows += [np.sqrt(sum(rows[3 * k + axis] ** 2 for axis in range(3))) for k in range(channels // 3)]
    n = 2 * steps
    moduli = []
    for row in rows:
        mirrored = np.concatenate([row, row[::-1]])
        for k in range(octaves * each):
            xi = 0.75 * math.pi * 2 ** (-k / each)
            s = 0.3 * xi
            wavelet = np.zeros(n, dtype=complex)
            for m in range(n):
                omega = 2 * math.pi * (m if m < n / 2 else m - n) / n
                gain = math.exp(-((omega - xi) ** 2) / (2 * s * s))
                gain -= math.exp(-(xi**2) / (2 * s * s)) * math.exp(-(omega**2) / (2 * s * s))
                wavelet += gain * np.exp(2j * math.pi * m * np.arange(n) / n) / n
            out = [sum(mirrored[u] * wavelet[(t - u) % n] for u in range(n)) for t in range(steps)]
            moduli.append(np.abs(out).mean())

    def group(values: list[float]) -> np.ndarray:
        centred = np.array(values) - np.mean(values)
        return centred / (np.linalg.norm(centred) + 1e-3)

    return np.concatenate([group([row.mean() for row in rows]), group(list(np.sqrt(moduli)))])


@pytest.mark.parametrize(("channels", "octaves", "each"), [(2, 2, 1), (3, 3, 2), (6, 1, 1)])
def test_against_convolutions_in_time(channels, octaves, each):
    signals = np.random.default_rng(0).normal(size=(3, 12, channels))
    wavelets = Wavelets(octaves, each, (12, channels))
    found = wavelets(torch.from_numpy(signals).float()).numpy()
    assert found.shape == (3, *wavelets.feature_shape)
    np.testing.assert_allclose(found, [naive(signal, octaves, each) for signal in signals], atol=2e-5)


def test_values_are_averaged_centred_and_scaled():
    x = np.random.default_rng(0).uniform(-1, 1, (5, 7))
    found = make_feature_map("unit:3", (7,), (-1.0, 1.0))
    means = np.stack([x[:, :3].mean(1), x[:, 3:6].mean(1), x[:, 6]], 1)
    means -= means.mean(1, keepdims=True)
    expected = 8 * means / np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(found(x).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "shape", "message"),
    [
        ("wavelets:5,2", (31, 2), "signals of 31 steps are too short for J = 5; take wavelets:J with 2^J at most 31"),
        (
            "wavelets:5,2",
            (64,),
            "wavelets takes signals, (steps, channels), and a record here is of shape (64,); take un",
        ),
        ("unit:65", (8, 8), "unit:65 averages more values than the 64 of a record"),
    ],
)
def test_refusals(text, shape, message):
    assert refused(make_feature_map, text, shape, (0.0, 1.0)).startswith(f"`features`: {message}")
