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

from dpltm.errors import InputError
from dpltm.features import MAPS
from dpltm.features.scattering import Scattering, paths


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
        (2, 8, 32, 32),
        (2, 8, 8, 8),
        (2, 5, 13, 9),
        (2, 1, 11, 11),
        (2, 2, 5, 7),
        (3, 6, 28, 33),
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


@pytest.mark.parametrize(
    ("scales", "angles", "height", "width"), [(1, 3, 5, 6), (1, 4, 4, 3), (2, 2, 7, 6), (2, 3, 5, 6)]
)
def test_the_definition_one_product_at_a_time(scales: int, angles: int, height: int, width: int):
    x = images(1, height, width)
    expected = naive(x[0].double().numpy(), scales, angles)
    found = Scattering(scales, angles, (height, width))(x)[0]
    assert list(expected) == list(paths(scales, angles))
    torch.testing.assert_close(found, torch.from_numpy(np.stack(list(expected.values()))).float(), rtol=0, atol=1e-5)
    assert found[1:].abs().max() > 0.02


# What follows from it


def test_paths():
    assert paths(1, 2) == ((), (0, 0), (0, 1))
    assert paths(2, 2) == (
        *((), (0, 0), (0, 1), (1, 0), (1, 1)),
        *((0, 0, 1, 0), (0, 0, 1, 1), (0, 1, 1, 0), (0, 1, 1, 1)),
    )
    three = [path for path in paths(3, 1) if len(path) == 4]
    assert three == [(0, 0, 1, 0), (0, 0, 2, 0), (1, 0, 2, 0)]


@pytest.mark.parametrize("scales", [1, 2, 3])
@pytest.mark.parametrize("angles", [1, 4, 7])
def test_number_of_channels(scales: int, angles: int):
    found = Scattering(scales, angles, (20, 23))
    assert found.feature_shape[2] == 1 + scales * angles + scales * (scales - 1) * angles**2 // 2
    assert found(images(1, 20, 23)).shape[1] == found.feature_shape[2] == len(paths(scales, angles))


@pytest.mark.parametrize("j", [0, 1, 2])
@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_a_plane_wave_is_loudest_on_its_own_path(j: int, k: int):
    """A wave of the frequency and direction of a wavelet: the channel that ``paths`` names, and no other."""
    turn = (1 - k) * math.pi / 4
    rows, columns = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    wave = torch.cos(0.75 * math.pi / 2**j * (rows * math.cos(turn) + columns * math.sin(turn)))
    first = Scattering(3, 4, (64, 64))(wave[None])[0, 1:13, 3:5, 3:5].mean((1, 2))
    loudest = int(first.argmax())
    assert paths(3, 4)[1 + loudest] == (j, k)
    assert float(first[loudest]) > 1.5 * float(first.sort().values[-2])


@pytest.mark.parametrize("value", [1.0, -0.25])
def test_a_constant_image_has_a_mean_and_nothing_else(value: float):
    found = Scattering(2, 8, (10, 12))(torch.full((1, 10, 12), value))[0]
    torch.testing.assert_close(found[0], torch.full_like(found[0], value), rtol=1e-4, atol=0)
    assert found[1:].abs().max() < 1e-5


def test_moduli_see_neither_sign_nor_offset_and_scale_along():
    x, transform = images(2, 11, 9), Scattering(2, 5, (11, 9))
    plain = transform(x)
    assert plain[:, 1:].abs().max() > 0.02
    torch.testing.assert_close(transform(-x)[:, 1:], plain[:, 1:], rtol=0, atol=1e-6)
    torch.testing.assert_close(transform(x + 2)[:, 1:], plain[:, 1:], rtol=0, atol=1e-5)
    torch.testing.assert_close(transform(4 * x), 4 * plain, rtol=0, atol=1e-5)


def test_a_transposed_image_turns_the_angles():
    """Its waves run at pi / 2 less their angle: of eight angles, number k becomes number 2 - k, around the circle."""
    x = images(2, 12, 12)
    transform = Scattering(2, 8, (12, 12))
    plain, turned = transform(x), transform(x.transpose(1, 2))
    place = {path: number for number, path in enumerate(paths(2, 8))}
    order = [
        place[tuple((2 - part) % 8 if number % 2 else part for number, part in enumerate(path))]
        for path in paths(2, 8)
    ]
    torch.testing.assert_close(turned, plain[:, order].transpose(2, 3), rtol=0, atol=1e-6)
    assert (turned - plain.transpose(2, 3)).abs().max() > 0.01


def test_every_image_by_itself_whatever_the_batch():
    x, transform = images(7, 13, 10), Scattering(2, 8, (13, 10))
    whole = transform(x)
    for rows in (1, 2, 3):
        parts = torch.cat([transform(x[start : start + rows]) for start in range(0, 7, rows)])
        torch.testing.assert_close(parts, whole, rtol=0, atol=1e-6)
    other = torch.cat([x[:3], images(4, 13, 10, seed=1)])
    assert torch.equal(transform(other)[:3], whole[:3])


# What it refuses


@pytest.mark.parametrize(
    ("scales", "height", "width", "message"),
    [
        (2, 4, 9, "of 4 x 9 pixels are too small for J = 2, which averages over windows of 4; take scatter:1"),
        (2, 9, 3, "of 9 x 3 pixels are too small for J = 2, which averages over windows of 4; take scatter:1"),
        (3, 8, 8, "of 8 x 8 pixels are too small for J = 3, which averages over windows of 8; take scatter:2"),
        (8, 40, 256, "of 40 x 256 pixels are too small for J = 8, which averages over windows of 256; take scatter:5"),
        (1, 2, 9, "of 2 x 9 pixels are too small to scatter; take `features` none"),
        (2, 1, 1, "of 1 x 1 pixels are too small to scatter; take `features` none"),
    ],
)
def test_images_that_are_too_small(scales: int, height: int, width: int, message: str):
    with pytest.raises(InputError) as error:
        Scattering(scales, 4, (height, width))
    assert str(error.value) == f"`features`: images {message}"
    if "take scatter:" in message:
        assert (
            Scattering(int(message[-1]), 1, (height, width)).feature_shape[0] >= 1
        )  # what it says to take can be taken


@pytest.mark.parametrize(("scales", "height", "width"), [(1, 3, 3), (2, 5, 8), (3, 9, 9)])
def test_the_smallest_images(scales: int, height: int, width: int):
    found = Scattering(scales, 2, (height, width))
    assert found(images(1, height, width)).isfinite().all()


@pytest.mark.parametrize(("scales", "angles"), [(0, 8), (9, 8), (2, 0), (2, 65), (-1, -1)])
def test_scales_that_are_none(scales: int, angles: int):
    with pytest.raises(InputError) as error:
        MAPS["scatter"].choice(scales, angles)
    assert str(error.value) == (
        f"`features`: scatter:{scales},{angles}: J must be 1 to 8 and L 1 to 64; the usual is scatter:2,8"
    )
