"""Normalisation of features: by public statistics, within a record, to a fixed norm; against loops in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dpltm.features.normalisation import NORM, ChannelStatistics, GroupNormalisation, fixed_norm


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
