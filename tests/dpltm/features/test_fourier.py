"""Random Fourier features: against the definition record by record, and against the kernel that they stand for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dpltm.features.feature_map import FeatureMap, make_feature_map
from dpltm.features.normalisation import NORM
from dpltm.features.transforms import FourierFeatures
from refusals import refused

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


def test_more_features_are_nearer_the_kernel():
    x = table(40)
    points = np.array([on_sphere(record, BOUNDS) for record in x])
    kernel = np.exp(-2 * np.square(points[:, None] - points).sum(2))
    off = []
    for count in (64, 1024):
        features = make_feature_map(f"fourier:{count}", (16,), BOUNDS)(x).double().numpy() / NORM
        off.append(np.sqrt(np.square(features @ features.T - kernel).mean()))
    assert off[1] < off[0] / 2  # a quarter is expected


def test_a_row_is_that_of_its_record_alone():
    found, x = make_feature_map("fourier:128", (16,), BOUNDS), table(70)
    values = found(x)
    for row in (0, 31, 69):
        other = np.where(np.arange(70)[:, None] == row, x, 15 - x)
        assert torch.equal(found(other)[row], values[row])
        torch.testing.assert_close(found(x[row : row + 1])[0], values[row], rtol=0, atol=1e-5)


def test_the_unit_range_and_blank_records_do_not_matter():
    x = table(9).astype(np.float64)
    one, other = make_feature_map("fourier:64", (16,), BOUNDS), make_feature_map("fourier:64", (16,), (-7.5, 7.5))
    torch.testing.assert_close(one(x), other(x - 7.5), rtol=0, atol=1e-4)
    assert one.id != other.id
    for value in (0, 7.5, 15):
        blank = one(np.full((1, 16), value))
        torch.testing.assert_close(blank.norm(), torch.tensor(NORM))
    lengths = one(np.array([[1.0] * 16, [3.0] * 16])) / NORM  # a record of few values is more than its direction
    assert float(lengths[0] @ lengths[1]) < 0.999


def test_any_shape_of_record():
    x = table(3, (4, 4))
    for shape in ((16,), (4, 4), (2, 2, 4)):
        found = make_feature_map("fourier:32", shape, BOUNDS)
        assert (found.feature_shape, found.features, found.takes) == ((32,), 32, "any")
        assert torch.equal(
            found(x.reshape(3, *shape)), make_feature_map("fourier:32", (16,), BOUNDS)(x.reshape(3, 16))
        )


def test_the_same_map_however_it_is_written():
    def found(text: str) -> FeatureMap:
        return make_feature_map(text, (16,), BOUNDS)

    assert found("fourier").text == found("fourier:1024").text == found("fourier:1024,2.0").text == "fourier:1024,2"
    assert len({found(text).id for text in ("fourier", "fourier:1024", "fourier:1024,2", "fourier:1024,2.000")}) == 1
    assert len({found(text).id for text in ("fourier:1024,0.5", "fourier:1024,0.50", "fourier:1024,.5")}) == 1
    assert len({found(text).id for text in ("fourier", "fourier:512", "fourier:1024,1", "fourier:1024,2.1")}) == 4
    assert found("fourier:1024,0.5").id.startswith("96498bf08067db22")


def test_features_come_in_pairs():
    for call in (lambda: make_feature_map("fourier:7", (16,), BOUNDS), lambda: FourierFeatures(7, 1.0, (16,))):
        assert refused(call) == "`features`: fourier:7: features come in pairs; take an even D, such as 8"
