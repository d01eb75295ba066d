"""Transforms that are made without data: scattering, wavelets, convolutions, Fourier features."""

import math
import types
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

from dpltm.features.normalisation import NORM
from dpltm.features.transforms import RandomConvolutions, Scattering, Wavelets
from maps import make_feature_map
from refusals import refused


def images(count: int, height: int, width: int, seed: int = 0) -> Tensor:
    return torch.rand(count, height, width, generator=torch.Generator().manual_seed(seed))


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
    [(1, 8, 8, 8), (2, 8, 28, 28), (2, 1, 11, 11), (3, 3, 9, 17), (4, 4, 40, 17)],
)
def test_the_same_as_kymatio(peer, scales: int, angles: int, height: int, width: int):
    found = Scattering(scales, angles, (height, width))
    x = images(3, height, width)
    x[2] = (x[2] > 0.5).float() * 2 - 1
    expected = peer.Scattering2D(scales, (height, width), L=angles)(x)
    assert expected[2, 1:].abs().max() > 0.05
    assert found(x).shape == expected.shape == (3, found.feature_shape[2], *found.feature_shape[:2])
    torch.testing.assert_close(found(x), expected, rtol=0, atol=1e-4)


def test_golden():
    """Also where the peer is not installed, and closer than it takes pi."""
    found = Scattering(2, 2, (9, 11))((torch.arange(99.0).view(1, 9, 11) / 99) ** 2)[0, :, 1, 0]
    first = [0.35881528, 0.03595266, 0.00346632, 0.07329474, 0.00745493]
    second = [0.00575403, 0.00038712, 0.00037928, 0.00053350]
    torch.testing.assert_close(found, torch.tensor([*first, *second]), rtol=1e-4, atol=1e-7)


# --- Wavelet moduli of signals, against sums written out by hand ---


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


SHAPE = "and a record here is of shape"
IMAGE = "images, (height, width) or (height, width, colours), of {0} by {0} pixels or more in 1, 2, 3, 4 colours"


@pytest.mark.parametrize(
    ("text", "shape", "message"),
    [
        *(
            ("scatter:2,4", shape, f"scatter with J = 2 takes {IMAGE.format(5)}, {SHAPE} {shape}")
            for shape in ((64,), (5, 5, 4, 4), (8, 8, 5), (), (4, 9), (9, 4, 3))
        ),
        ("fourier:7", (16,), "fourier:7: features come in pairs; take an even D, as 8"),
        *(
            (
                "wavelets:5,2",
                shape,
                f"wavelets with J = 5 takes signals, (steps, channels), of 32 steps or more, {SHAPE} {shape}",
            )
            for shape in ((31, 2), (64,))
        ),
        ("unit:65", (8, 8), "unit:65 leaves nothing of records of shape (8, 8): one value less its own mean is zero"),
        ("unit", (1,), "unit:1 leaves nothing of records of shape (1,)"),
        ("conv", (5, 9), f"conv takes {IMAGE.format(6)}, {SHAPE} (5, 9); take unit"),
    ],
)
def test_refusals(text, shape, message):
    assert refused(make_feature_map, text, shape, (0.0, 1.0)).startswith(f"`features`: {message}")


# --- LATENT's convolutional modules, of random weights ---


def weights(seed, colours, filters):
    """Uniform numbers from the generator's bits, in the order of filters, channels, rows and columns."""
    generator = np.random.Generator(np.random.SFC64(seed))
    found = []
    for count, channels in zip(filters, (colours, *filters), strict=False):
        words = np.frombuffer(generator.bytes(8 * count * channels * 9), dtype=np.uint64) >> np.uint64(12)
        values = (2 * (words.astype(float) + 0.5) / 2**52 - 1) * math.sqrt(6 / (channels * 9))
        found.append(values.reshape(count, channels, 3, 3))
    return found


def convolve(image, kernels, padding=0):
    """One place at a time."""
    image = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
    height, width = image.shape[1] - 2, image.shape[2] - 2
    found = np.zeros((len(kernels), height, width))
    for row in range(height):
        for column in range(width):
            found[:, row, column] = (kernels * image[:, row : row + 3, column : column + 3]).sum((1, 2, 3))
    return np.maximum(found, 0)


def pooled(channels):
    height, width = channels.shape[1] // 2, channels.shape[2] // 2
    return channels[:, : 2 * height, : 2 * width].reshape(-1, height, 2, width, 2).max((2, 4))


def convolved(seed, shape, image):
    return RandomConvolutions(seed, shape)(torch.from_numpy(image[None]).float())[0].numpy()


@pytest.mark.parametrize(("shape", "seed"), [((7, 8), 0), ((28, 28), 5)])
def test_the_grey_module_one_place_at_a_time(shape, seed):
    image, (first, second) = np.random.default_rng(0).random(shape), weights(seed, 1, (32, 64))
    expected = pooled(convolve(convolve(image[None], first), second))
    assert (expected.size == 9216) == (shape == (28, 28)), "as the source has it of MNIST"
    np.testing.assert_allclose(convolved(seed, shape, image), expected, rtol=1e-4, atol=1e-5)


def test_the_coloured_module_one_place_at_a_time():
    """Sides of 56, 54, 27, 27, 25 and 12, as printed. An image of one colour each stays that when it is enlarged."""
    colours, kernels = np.array([0.2, 0.9, 0.4]), weights(3, 3, (32, 32, 64, 64))
    values, sides = np.broadcast_to(colours[:, None, None], (3, 56, 56)), []
    for number, kernel in enumerate(kernels):
        values = convolve(values, kernel, padding=1 if number in (0, 2) else 0)
        sides.append(values.shape[1])
        if number in (1, 3):
            values = pooled(values)
            sides.append(values.shape[1])
    assert sides == [56, 54, 27, 27, 25, 12]
    assert values.size == 9216, "as the source has it of CIFAR-10"
    found = convolved(3, (32, 32, 3), np.broadcast_to(colours, (32, 32, 3)).copy())
    np.testing.assert_allclose(found, values, rtol=1e-4, atol=1e-5)


# --- Random Fourier features: against the definition record by record, and against the kernel that they stand for ---


BOUNDS = (0.0, 15.0)


def table(count: int, shape: tuple[int, ...] = (16,), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 16, (count, *shape), dtype=np.uint8)


def on_sphere(record: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    """A record from -1 to 1, with half the root of its values behind it, of norm 1."""
    low, high = bounds
    values = [2 * (min(max(float(value), low), high) - low) / (high - low) - 1 for value in record.ravel()]
    point = np.array([*values, math.sqrt(len(values)) / 2])
    return point / np.linalg.norm(point)


def directions(count: int, values: int) -> np.ndarray:
    """Standard normal numbers of the generator's bits, by Box and Muller: all cosines first, then all sines."""
    generator, half = np.random.Generator(np.random.SFC64(0)), (count * values + 1) // 2
    words = np.frombuffer(generator.bytes(16 * half), dtype=np.uint64) >> np.uint64(12)
    radius, angle = ((words.astype(float) + 0.5) / 2**52).reshape(2, half)
    pairs = [math.sqrt(-2 * math.log(r)) * turn(2 * math.pi * a) for turn in (math.cos, math.sin)
             for r, a in zip(radius, angle, strict=True)]  # fmt: skip
    return np.array(pairs[: count * values]).reshape(count, values)


@pytest.mark.parametrize(
    ("text", "shape", "bounds"),
    [
        ("fourier:8,2", (5,), BOUNDS),
        ("fourier:6,0.3", (2, 2), (-10.0, 30.0)),
        ("fourier:2,5", (1,), (3.0, 9.0)),
        ("fourier", (4,), BOUNDS),
    ],
)
def test_the_definition_record_by_record(text, shape, bounds):
    found = make_feature_map(text, shape, bounds)
    count, gamma = found.base.parts[0][1]
    x = np.random.default_rng(1).uniform(bounds[0] - 2, bounds[1] + 2, (7, *shape))  # some saturate
    drawn = directions(count // 2, math.prod(shape) + 1)
    for record, features in zip(x, found(x).double().numpy(), strict=True):
        point = on_sphere(record, bounds)
        phases = [math.sqrt(2 * gamma) * sum(a * b for a, b in zip(row, point, strict=True)) for row in drawn]
        pairs = np.array([*map(math.cos, phases), *map(math.sin, phases)])
        np.testing.assert_allclose(features, NORM * pairs / math.sqrt(count / 2), atol=2e-5)


@pytest.mark.parametrize("gamma", [0.25, 2, 10])
def test_angles_are_those_of_the_kernel(gamma):
    """Each product is a mean of D / 2 independent cosines, so Hoeffding bounds how far any of the pairs is off.

    P(any of m off by t) <= 2 m exp(-t^2 (D / 2) / 2), which the bound below makes one in a million. The seed is fixed.
    """
    count, x = 4096, np.concatenate([table(12), table(12) // 4, table(2) + np.eye(2, 16, dtype=np.uint8)])
    found = make_feature_map(f"fourier:{count},{gamma}", (16,), (0.0, 16.0))
    features = found(x).double().numpy() / NORM
    points = np.array([on_sphere(record, (0.0, 16.0)) for record in x])
    kernel = np.exp(-gamma * np.square(points[:, None] - points).sum(2))
    pairs = len(x) * (len(x) - 1) / 2
    bound = math.sqrt(4 / count * math.log(2 * pairs * 1e6))
    np.testing.assert_allclose(features @ features.T, kernel, atol=bound)
    assert np.ptp(kernel) > 2 * bound, "another kernel would pass as well"
    np.testing.assert_allclose(np.diag(features @ features.T), 1, atol=1e-5)
