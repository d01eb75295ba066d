"""Scattering: as a peer computes it, as a naive loop computes it, and what follows from its definition."""

from __future__ import annotations

import itertools
import math
import types
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

from dpltm.features.scattering import Scattering, paths
from refusals import refused


def images(count: int, height: int, width: int, seed: int = 0) -> Tensor:
    return torch.rand(count, height, width, generator=torch.Generator().manual_seed(seed))


# A peer


@pytest.fixture(scope="module")
def peer() -> types.ModuleType:
    """kymatio 0.3.0. Its three-dimensional part imports a function that scipy has removed since.

    It takes pi for 3.1415 in the norms of filters, which moves everything by some 0.006 %.
    """
    pytest.importorskip("kymatio")
    import scipy.special

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(scipy.special, "sph_harm", None, raising=False)
        import kymatio.torch
    return kymatio.torch


@pytest.mark.parametrize(
    ("scales", "angles", "height", "width"),
    [
        (1, 8, 8, 8),
        (2, 8, 28, 28),
        (2, 8, 8, 8),
        (2, 1, 11, 11),
        (3, 3, 9, 17),
        (4, 4, 40, 17),
    ],
)
def test_the_same_as_kymatio(peer, scales: int, angles: int, height: int, width: int):
    found = Scattering(scales, angles, (height, width))
    x = images(3, height, width)
    x[2] = (x[2] > 0.5).float() * 2 - 1
    expected = peer.Scattering2D(scales, (height, width), L=angles)(x)
    assert expected[2, 1:].abs().max() > 0.05
    assert found(x).shape == expected.shape == (3, found.feature_shape[2], *found.feature_shape[:2])
    torch.testing.assert_close(found(x), expected, rtol=0, atol=1e-4)


# The definition, in space, one product at a time (Bruna and Mallat 2013, equations 3 and 4; Andreux et al. 2020)


def on_torus(sizes: tuple[int, int], function) -> np.ndarray:
    """The sum of a function over all points that are one on a torus."""
    total = np.zeros(sizes, dtype=complex)
    for row, column in itertools.product(range(sizes[0]), range(sizes[1])):
        for up, left in itertools.product(range(-2, 3), repeat=2):
            total[row, column] += function(row + up * sizes[0], column + left * sizes[1])
    return total


def gabor(sizes: tuple[int, int], sigma: float, theta: float, xi: float, slant: float) -> np.ndarray:
    turn = np.array([[math.cos(theta), -math.sin(theta)], [math.sin(theta), math.cos(theta)]])
    form = turn @ np.diag([1, slant**2]) @ turn.T / (2 * sigma**2)

    def value(row: int, column: int) -> complex:
        point = np.array([row, column])
        phase = xi * (row * math.cos(theta) + column * math.sin(theta))
        return np.exp(-point @ form @ point + 1j * phase) * slant / (2 * math.pi * sigma**2)

    return on_torus(sizes, value)


def wavelet(sizes: tuple[int, int], j: int, theta: float, angles: int) -> np.ndarray:
    """A Gabor function less as much of its envelope as makes the mean zero."""
    shape = 0.8 * 2**j, theta
    wave, envelope = gabor(sizes, *shape, 3 * math.pi / 4 / 2**j, 4 / angles), gabor(sizes, *shape, 0, 4 / angles)
    return wave - envelope * wave.sum() / envelope.sum()


def convolved(values: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    return sum(kernel[place] * np.roll(values, place, (0, 1)) for place in np.ndindex(kernel.shape))


def averages(values: np.ndarray, every: int, step: int, spread: float) -> np.ndarray:
    """Averages at every ``step`` pixels of values that are known at every ``every`` pixels, without the outermost ones.

    The Gaussian has lost the frequencies that such a grid cannot tell apart.
    """
    for axis in (0, 1):
        count = values.shape[axis]
        u, f = np.arange(count * every), np.arange(-count / 2, count / 2) if every > 1 else np.arange(count)
        bell = sum(np.exp(-((u + shift * len(u)) ** 2) / (2 * spread**2)) for shift in range(-4, 5))
        bell = bell / (math.sqrt(2 * math.pi) * spread)
        spectrum = (bell * np.cos(2 * math.pi * np.outer(f, u) / len(u))).sum(1)
        kernel = (spectrum * np.cos(2 * math.pi * np.outer(np.arange(count), f) / count)).sum(1) / count
        rows = np.array([[kernel[(at - n) % count] for n in range(count)] for at in range(0, count, step // every)])
        values = np.moveaxis(np.tensordot(rows[1:-1], values, (1, axis)), 0, axis)
    return values


def naive(image: np.ndarray, scales: int, angles: int) -> dict[tuple[int, ...], np.ndarray]:
    """Coefficients by path: of the moduli, every 2^j-th is kept for the average behind wavelets of scale j."""
    step = 2**scales
    sizes = tuple(((size + step) // step + 1) * step for size in image.shape)
    before = [(whole - size) // 2 for whole, size in zip(sizes, image.shape, strict=True)]
    margins = [(first, whole - size - first) for first, whole, size in zip(before, sizes, image.shape, strict=True)]
    values = np.pad(image, margins, mode="reflect")
    theta = [(angles // 2 - 1 - k) * math.pi / angles for k in range(angles)]
    first = list(itertools.product(range(scales), range(angles)))
    moduli = {(): values}
    for j, k in first:
        moduli[j, k] = np.abs(convolved(values, wavelet(sizes, j, theta[k], angles)))
    for (j, k), (other, turn) in itertools.product(first, repeat=2):
        if other > j:
            assert j == 0, "those behind coarser wavelets would be sampled first"
            moduli[j, k, other, turn] = np.abs(convolved(moduli[j, k], wavelet(sizes, other, theta[turn], angles)))
    found = {}
    for path, value in moduli.items():
        every = 2 ** path[-2] if path else 1
        found[path] = averages(value[::every, ::every], every, step, 0.8 * 2 ** (scales - 1))
    return found


@pytest.mark.parametrize(("scales", "angles", "height", "width"), [(1, 3, 5, 6), (2, 2, 5, 6)])
def test_the_definition_one_product_at_a_time(scales: int, angles: int, height: int, width: int):
    x = images(1, height, width)
    expected = naive(x[0].double().numpy(), scales, angles)
    found = Scattering(scales, angles, (height, width))(x)[0]
    assert list(expected) == list(paths(scales, angles))
    torch.testing.assert_close(found, torch.from_numpy(np.stack(list(expected.values()))).float(), rtol=0, atol=1e-5)
    assert found[1:].abs().max() > 0.02


# What it refuses


@pytest.mark.parametrize(
    ("scales", "height", "width", "message"),
    [
        (2, 4, 9, "of 4 x 9 pixels are too small for J = 2, which averages over windows of 4; take scatter:1"),
        (2, 9, 3, "of 9 x 3 pixels are too small for J = 2, which averages over windows of 4; take scatter:1"),
        (8, 40, 256, "of 40 x 256 pixels are too small for J = 8, which averages over windows of 256; take scatter:5"),
        (1, 2, 9, "of 2 x 9 pixels are too small to scatter; take `features` none"),
    ],
)
def test_images_that_are_too_small(scales: int, height: int, width: int, message: str):
    assert refused(Scattering, scales, 4, (height, width)) == f"`features`: images {message}"
    if "take scatter:" in message:  # what it says to take can be taken
        assert Scattering(int(message[-1]), 1, (height, width)).feature_shape[0] >= 1


@pytest.mark.parametrize(("scales", "height", "width"), [(1, 3, 3), (2, 5, 8), (3, 9, 9)])
def test_the_smallest_images(scales: int, height: int, width: int):
    assert Scattering(scales, 2, (height, width))(images(1, height, width)).isfinite().all()
