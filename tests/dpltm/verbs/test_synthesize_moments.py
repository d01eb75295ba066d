"""Moments and the records drawn from them: sensitivity on hostile neighbours, the noise, and what it may not break."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor

from dpltm.randomness.gaussian_mechanism import grid_step
from dpltm.randomness.noise import FastSource
from dpltm.verbs import synthesize as synthetic
from dpltm.verbs.synthesize import SENSITIVITY, Moments, release_moments, synthetic_records
from refusals import refused

FEATURES, CLASSES = 4, 3
HOSTILE = torch.tensor(
    [
        *([0.0] * 4, [-0.0, 0.0, 0.0, 1e-45], [1e-30] * 4, [1e30] * 4, [3.4e38] * 4, [1e30, 1e-30, -1e30, 0.0]),
        *([1.0, 0.0, 0.0, 0.0], [0.0, -5.0, 0.0, 0.0], [0.5] * 4, [-0.5] * 4, [1.0, 1.0, 0.0, 0.0], [3.0, 4.0, 0.0, 0.0]),
        *([math.nan, 0.0, 0.0, 0.0], [math.inf, 1.0, 1.0, 1.0], [-math.inf] * 4, [math.nan] * 4, [math.inf, math.nan, 0, 0]),
        *([1 / 3, 2 / 3, -2 / 3, 0.0], [1 - 2**-24, 2**-12, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4], [1.0, 1e-7, 1e-8, 1e-9]),
    ]
)  # fmt: skip
UNUSABLE = {0, 12, 13, 14, 15, 16}


def noiseless(x: Tensor, y: Tensor, classes: int = CLASSES) -> Moments:
    return release_moments(x, y, classes, noise_multiplier=0.0, noise=FastSource(0))


def squared_distance(one: Moments, other: Moments) -> Fraction:
    """Of two weighted queries, without any rounding; both triangles together stand for the sqrt 2."""
    total = Fraction(0)
    for name, weight in (("counts", Fraction(1, 64)), ("sums", Fraction(1)), ("second", Fraction(1, 4))):
        pairs = zip(getattr(one, name).flatten().tolist(), getattr(other, name).flatten().tolist(), strict=True)
        total += weight * sum(((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs), Fraction(0))
    return total


def same(one: Moments, other: Moments) -> bool:
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("counts", "sums", "second"))


def hostile_neighbours() -> tuple[Moments, list[Moments]]:
    """A set of all hostile records and some company, and the same with each hostile record once more."""
    generator = torch.Generator().manual_seed(5)
    x = torch.cat([HOSTILE, torch.randn(60, FEATURES, generator=generator) * 1e20])
    y = torch.randint(0, CLASSES, (len(x),), generator=generator)
    added = [noiseless(torch.cat([x, row[None]]), torch.cat([y, y[i : i + 1]])) for i, row in enumerate(HOSTILE)]
    return noiseless(x, y), added


def test_sensitivity_is_what_the_weights_come_to():
    weights = (synthetic.COUNT_WEIGHT, synthetic.SUM_WEIGHT, synthetic.SECOND_WEIGHT)
    assert sum(Fraction(weight) ** 2 for weight in weights) == Fraction(SENSITIVITY) ** 2


def test_adding_a_hostile_record_moves_the_query_by_at_most_the_sensitivity():
    base, added = hostile_neighbours()
    moved = [squared_distance(base, moments) for moments in added]
    assert max(moved) <= Fraction(SENSITIVITY) ** 2
    assert {i for i, distance in enumerate(moved) if distance == 0} == UNUSABLE
    # the bound is not slack either: a usable record moves it nearly as far
    assert all(distance > Fraction(0.999 * SENSITIVITY) ** 2 for i, distance in enumerate(moved) if i not in UNUSABLE)


def test_replacing_a_hostile_record_moves_the_query_by_at_most_twice_the_sensitivity():
    _, added = hostile_neighbours()
    moved = [squared_distance(one, other) for one, other in itertools.combinations(added, 2)]
    assert max(moved) <= (2 * Fraction(SENSITIVITY)) ** 2
    assert max(moved) > Fraction(SENSITIVITY) ** 2, "then replace-one would not need the double"


@given(
    npst.arrays(np.float32, (2, FEATURES), elements=st.floats(width=32, allow_nan=True, allow_infinity=True)),
    npst.arrays(np.int64, 2, elements=st.integers(-(2**63), 2**63 - 1) | st.integers(0, CLASSES - 1)),
)
def test_no_record_adds_more_than_the_sensitivity(x, y):
    whole, first = (noiseless(torch.from_numpy(x[:n]), torch.from_numpy(y[:n])) for n in (2, 1))
    assert squared_distance(whole, first) <= Fraction(SENSITIVITY) ** 2


@pytest.mark.parametrize("features", [1, 64, 3072])
def test_directions_of_many_features_are_whole_and_short(features):
    generator = torch.Generator().manual_seed(features)
    x = torch.cat([torch.randn(50, features, generator=generator), torch.ones(1, features), torch.eye(features)[:1]])
    whole = synthetic._whole_directions(torch.cat([x, x * 1e30, x * 1e-30]))
    assert torch.equal(whole, whole.trunc())
    squares = whole.to(torch.int64).square().sum(dim=1)
    assert squares.max() <= 4**synthetic.BITS
    assert squares.min() > 0.99 * 4**synthetic.BITS


def test_float64_records_of_any_size_count_and_labels_that_are_no_class_add_nothing():
    x = torch.tensor([[1e-320, 0.0], [1e308, 1e308], [5e-324, 1e308]], dtype=torch.float64)
    assert noiseless(x, torch.zeros(3, dtype=torch.int64), 1).counts.tolist() == [3.0]
    x = torch.ones(3, 2)
    assert same(noiseless(x, torch.tensor([-1, 3, 1])), noiseless(x[:1], torch.tensor([1])))


def test_moments_are_those_of_a_naive_loop():
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(synthetic.ROWS + 300, 6, generator=generator)
    y = torch.randint(0, CLASSES, (len(x),), generator=generator)
    counts, sums, second = np.zeros(CLASSES), np.zeros((CLASSES, 6)), np.zeros((6, 6))
    for row, label in zip(x.double().numpy(), y.tolist(), strict=True):
        direction = row / math.sqrt(sum(value * value for value in row))
        counts[label] += 1
        sums[label] += direction
        second += np.outer(direction, direction)
    moments = noiseless(x, y)
    cut = 1.01 * 2.0**-synthetic.BITS  # per record and coordinate
    assert np.array_equal(moments.counts.numpy(), counts)
    assert np.abs(moments.sums.numpy() - sums).max() <= cut * counts.max()
    assert np.abs(moments.second.numpy() - second).max() <= 2 * cut * len(x)


def test_sums_are_exact_in_any_order_and_grouping():
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(synthetic.ROWS + 500, 9, generator=generator)
    y = torch.randint(0, CLASSES, (len(x),), generator=generator)
    order, whole = torch.randperm(len(x), generator=generator), noiseless(x, y)
    assert same(whole, noiseless(x[order], y[order]))
    parts = [noiseless(x[:1234], y[:1234]), noiseless(x[1234:], y[1234:])]
    sums = (sum(getattr(part, name) for part in parts) for name in ("counts", "sums", "second"))
    assert same(whole, Moments(*sums, 0.0))


def test_noise_has_the_stated_deviation_on_every_coordinate_and_they_are_independent():
    """Releases of no records at all: nothing but noise."""
    x, y, source = torch.zeros(0, 9), torch.zeros(0, dtype=torch.int64), FastSource(8)
    releases = [release_moments(x, y, CLASSES, noise_multiplier=50.0, noise=source) for _ in range(500)]
    assert all(torch.equal(draw.second, draw.second.T) for draw in releases)
    upper = torch.triu_indices(9, 9)
    first, rows = (
        releases[0],
        [torch.cat([d.counts, d.sums.flatten(), d.second[upper[0], upper[1]]]) for d in releases],
    )
    draws = torch.stack(rows)
    pairs = torch.where(upper[0] == upper[1], math.sqrt(2), 1.0) * first.second_std
    stated = torch.cat([torch.full((CLASSES,), first.counts_std), torch.full((CLASSES * 9,), first.sums_std), pairs])
    # as the guarantee has it: the weighted coordinates, off-diagonals times sqrt 2, all have 50 sensitivities
    weights = torch.cat(
        [torch.full((CLASSES,), 1 / 8), torch.ones(CLASSES * 9), torch.where(upper[0] == upper[1], 0.5, 0.5**0.5)]
    )
    assert torch.allclose(stated * weights, torch.tensor(50 * SENSITIVITY))
    found = draws.std(dim=0)
    assert (found / stated - 1).abs().max() < 4.5 / math.sqrt(2 * len(draws))
    assert (draws.mean(dim=0) / stated).abs().max() < 4.5 / math.sqrt(len(draws))
    correlations = torch.corrcoef(draws.T) - torch.eye(draws.shape[1])
    assert correlations.abs().max() < 5 / math.sqrt(len(draws))


def test_replace_one_doubles_the_noise():
    x, y = torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64)
    one = release_moments(x, y, CLASSES, noise_multiplier=1e3, noise=FastSource(3))
    two = release_moments(x, y, CLASSES, noise_multiplier=1e3, adjacency="replace-one", noise=FastSource(3))
    assert two.noise_std == 2 * one.noise_std == 2e3 * SENSITIVITY
    assert torch.allclose(two.second, 2 * one.second, atol=1e-8)
    assert torch.allclose(two.sums, 2 * one.sums, atol=1e-4)
    assert torch.allclose(two.counts, 2 * one.counts, atol=2)


def test_only_points_of_the_grid_are_released():
    x, y = torch.rand(20, 5), torch.zeros(20, dtype=torch.int64)
    moments = release_moments(x, y, CLASSES, noise_multiplier=0.37, noise=FastSource(3))
    for part, bits, weight in ((moments.counts, 0, 1 / 8), (moments.sums, 16, 1.0), (moments.second, 32, 1 / 2)):
        steps = part / grid_step(moments.noise_std / weight / math.sqrt(2) * 2.0**bits) * 2.0**bits
        assert torch.equal(steps, steps.trunc())


def grouped(n: int = 6000, features: int = 12) -> tuple[Tensor, Tensor]:
    """Three classes in the unit range, of very different size."""
    generator = torch.Generator().manual_seed(4)
    y = torch.multinomial(torch.tensor([0.6, 0.3, 0.1]), n, replacement=True, generator=generator)
    centres = torch.rand(3, features, generator=generator)
    common = torch.randn(n, 1, generator=generator) * torch.linspace(-0.1, 0.1, features)
    return (centres[y] + common + 0.02 * torch.randn(n, features, generator=generator)).clamp(0, 1), y


def directions(x: Tensor) -> Tensor:
    return x / x.norm(dim=1, keepdim=True)


def test_with_little_noise_synthetic_records_have_the_moments_of_the_records():
    x, y = grouped()
    moments = release_moments(x, y, 3, noise_multiplier=0.1, noise=FastSource(1))
    made, labels = synthetic_records(moments, 6000, 0, value_range=(0.0, 1.0))
    assert torch.allclose(labels.bincount() / 6000, y.bincount() / 6000, atol=0.02)
    for label in range(3):
        real, drawn = directions(x[y == label]), directions(made[labels == label])
        assert (real.mean(dim=0) - drawn.mean(dim=0)).abs().max() < 0.01
    real, drawn = directions(x).T @ directions(x) / 6000, directions(made).T @ directions(made) / 6000
    assert float((real - drawn).norm() / real.norm()) < 0.02


@pytest.mark.parametrize(
    ("n", "features", "classes", "noise_multiplier"),
    [(0, 5, 2, 0.0), (500, 100, 100, 60.0), (500, 64, 2, 2.0**16), (3, 1, 2, 1.0)],
)
@pytest.mark.parametrize("value_range", [(0.0, 1.0), (-1.0, 1.0)])
def test_records_are_finite_and_in_range_whatever_the_noise(n, features, classes, noise_multiplier, value_range):
    generator = torch.Generator().manual_seed(8)
    x, y = torch.rand(n, features, generator=generator), torch.randint(0, classes, (n,), generator=generator)
    moments = release_moments(x, y, classes, noise_multiplier=noise_multiplier, noise=FastSource(2))
    made, labels = synthetic_records(moments, 2000, 3, value_range=value_range)
    assert (made.dtype, made.shape, labels.dtype) == (torch.float32, (2000, features), torch.int64)
    assert made.abs().max() > 0
    assert ((value_range[0] <= made) & (made <= value_range[1])).all()  # hence finite
    assert labels.unique().numel() == classes
    assert float(made.square().mean().sqrt()) <= synthetic.RMS * 1.001


def test_records_depend_on_the_moments_and_the_seed_alone():
    x, y = grouped(600)
    moments = release_moments(x, y, 3, noise_multiplier=1.0, noise=FastSource(1))
    first = synthetic_records(moments, 300, 5)
    x.zero_()
    torch.manual_seed(2)
    second, other = synthetic_records(moments, 300, 5), synthetic_records(moments, 300, 6)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 3).long()}, "x: torch.int64 of shape (2, 3); give floating point (records, features)"),
        ({"y": torch.zeros(3).long()}, "y: torch.int64 of shape (3,); give one int64 label for each record of x"),
        ({"noise_multiplier": math.nan}, "noise_multiplier: nan is not between 0 and 65536"),
        ({"noise_multiplier": 65536.5}, "noise_multiplier: 65536.5 is not between 0 and 65536"),
    ],
)
def test_a_query_that_cannot_be_is_refused(change, message):
    arguments = {"x": torch.zeros(2, 3), "y": torch.zeros(2).long(), "classes": 2, "noise_multiplier": 1.0} | change
    assert refused(release_moments, **arguments, noise=FastSource(0)) == message
