"""Normalisation of features: by public statistics, within a record, to a fixed norm; against loops in float64."""

import math
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dpltm.features import normalisation
from dpltm.features.feature_map import make_feature_map
from dpltm.features.normalisation import (
    NORM,
    SENSITIVITY,
    ChannelStatistics,
    GroupNormalisation,
    fixed_norm,
    noisy_sum,
)
from dpltm.randomness.noise import FastSource


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_a_channel_that_hardly_varies_is_not_blown_up():
    """By ten thousand times what the channel that varies most is, and no more; where none varies, all stays finite."""
    values, mean = torch.ones(1, 3, 1, 1), torch.zeros(3)
    found = ChannelStatistics(mean, torch.tensor([2.0, 1e-9, 0.0]))(values).flatten()
    torch.testing.assert_close(found, torch.tensor([0.5, 5000.0, 5000.0]))
    assert ChannelStatistics(mean, torch.zeros(3))(values).isfinite().all()


@pytest.mark.parametrize(
    ("channels", "groups", "size"), [(6, 3, 2), (6, 6, 1), (10, 4, 5), (7, 3, 7), (81, 27, 3), (5, 27, 1)]
)
def test_groups_of_channels_within_a_record(channels: int, groups: int, size: int):
    """Where the number does not divide, the next smaller one that does: of 10 channels, 4 groups become 2 of 5."""
    values = random(2, channels, 3, 2) * 3 + 1
    found = GroupNormalisation(groups)(values)
    for record in range(2):
        for start in range(0, channels, size):
            block = values[record, start : start + size].double().numpy()
            expected = (block - block.mean()) / block.std()
            np.testing.assert_allclose(found[record, start : start + size].numpy(), expected, atol=1e-5)


def test_a_group_of_equal_values_is_zero_and_no_record_touches_another():
    values = random(3, 4, 2, 2)
    values[1] = 0.7
    found = GroupNormalisation(2)(values)
    assert found[1].abs().max() < 1e-2
    assert found.isfinite().all()
    other = values.clone()
    other[1:] = 1e4 * random(2, 4, 2, 2, seed=5)
    assert torch.equal(GroupNormalisation(2)(other)[0], found[0])


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8))
def test_every_row_has_the_norm(row: list[float]):
    values = torch.tensor([row, [1.0] * len(row)])
    found = fixed_norm(values)
    assert found.isfinite().all()
    size = math.sqrt(sum(value**2 for value in row))
    if size > 1e-6:
        assert float(found[0].double().norm()) == pytest.approx(NORM, rel=1e-4)
        scaled = torch.tensor([value * NORM / size for value in row])
        torch.testing.assert_close(found[0], scaled, rtol=1e-4, atol=1e-6)
    assert float(found[1].norm()) == pytest.approx(NORM, rel=1e-6)
    assert torch.equal(fixed_norm(torch.zeros(2, 3)), torch.zeros(2, 3))


HOSTILE = [0.0, 1.0, -1.0, 1e-30, 1e30, 65504.0, math.inf, -math.inf, math.nan]


def total(rows: torch.Tensor) -> np.ndarray:
    """The sum alone: no noise."""
    return noisy_sum(iter([rows]), rows.shape[1], SENSITIVITY, 0.0, FastSource(0)).numpy()


@given(
    st.lists(st.lists(st.sampled_from(HOSTILE), min_size=3, max_size=3), min_size=1, max_size=6),
    st.lists(st.sampled_from(HOSTILE), min_size=3, max_size=3),
)
def test_one_record_moves_the_sum_by_no_more_than_its_sensitivity(others, one):
    with_it = torch.tensor([*others, one])
    without = torch.tensor(others)
    moved = np.linalg.norm(total(with_it) - total(without))
    assert moved <= SENSITIVITY
    assert np.isfinite(total(with_it)).all()


@pytest.mark.parametrize("order", ["first", "last"])
def test_the_sum_rounds_nothing_however_many_records_there_are(order):
    """One record more moves it by what that record alone does, to the last bit; rounded sums would differ by far more."""
    rows = torch.rand(20_001, 60, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5
    one, others = (rows[:1], rows[1:]) if order == "first" else (rows[-1:], rows[:-1])

    def summed(*parts):
        """The sum before noise, as float64."""
        with mock.patch.object(normalisation, "gaussian_mechanism", lambda total, *_: sums.append(total) or total):
            sums: list[np.ndarray] = []
            noisy_sum(iter(parts), 60, SENSITIVITY, 0.0, FastSource(0))
        return sums[0]

    with_it = summed(*(torch.cat([one, others]) if order == "first" else torch.cat([others, one])).split(1000))
    moved = with_it - summed(*others.split(999))
    assert np.array_equal(moved, summed(one))
    assert np.linalg.norm(moved) <= SENSITIVITY


def test_rows_of_the_usual_norm_count_in_full():
    rows = torch.randn(50, 20, generator=torch.Generator().manual_seed(0))
    rows *= NORM / rows.norm(dim=1, keepdim=True)
    found = noisy_sum(iter(rows.split(7)), 20, NORM, 0.0, FastSource(0))
    torch.testing.assert_close(found.float(), rows.sum(0), rtol=1e-5, atol=1e-5)


def test_noise_is_as_large_as_stated():
    found = noisy_sum(iter([]), 20_000, 1.0, 12.0, FastSource(3)) / 12
    assert abs(float(found.std()) - 1) < 0.02  # its own deviation is 1 / sqrt(40,000) = 0.005
    assert abs(float(found.mean())) < 0.04


def test_features_are_centred_there_and_of_the_same_norm():
    plain = make_feature_map("unit:1", (6,), (0.0, 1.0))
    x = np.random.default_rng(0).random((9, 6))
    features = plain(x)
    middle = features.mean(0)
    found = plain.centred_at(middle)
    assert (found.uncentred.id, found.id) == (plain.id, found.id)
    assert found.id != plain.id
    by_hand = features - middle
    torch.testing.assert_close(found(x), NORM * by_hand / by_hand.norm(dim=1, keepdim=True))
    torch.testing.assert_close(found.centred(features), found(x))
    torch.testing.assert_close(found(x[3:4]), found(x)[3:4])
