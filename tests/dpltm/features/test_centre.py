"""The noisy mean of features: its sensitivity under hostile rows, its noise, and what centring does."""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpltm.features import normalisation
from dpltm.features.feature_map import make_feature_map
from dpltm.features.normalisation import NORM, SENSITIVITY, release_mean
from dpltm.randomness.noise import FastSource

HOSTILE = [0.0, 1.0, -1.0, 1e-30, 1e30, 65504.0, math.inf, -math.inf, math.nan]


def total(rows: torch.Tensor) -> np.ndarray:
    """The sum alone: no noise, and divided by one."""
    return release_mean(iter([rows]), rows.shape[1], 1, 0.0, FastSource(0)).double().numpy()


@given(
    st.lists(st.lists(st.sampled_from(HOSTILE), min_size=3, max_size=3), min_size=1, max_size=6),
    st.lists(st.sampled_from(HOSTILE), min_size=3, max_size=3),
)
def test_one_record_moves_the_sum_by_no_more_than_its_sensitivity(others, one):
    with_it = torch.tensor([*others, one])
    without = torch.tensor(others)
    moved = np.linalg.norm(total(with_it) - total(without))
    assert moved <= SENSITIVITY * (1 + 1e-5)  # the result is rounded to float32, after the noise in a real release
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
            release_mean(iter(parts), 60, 1, 0.0, FastSource(0))
        return sums[0]

    with_it = summed(*(torch.cat([one, others]) if order == "first" else torch.cat([others, one])).split(1000))
    moved = with_it - summed(*others.split(999))
    assert np.array_equal(moved, summed(one))
    assert np.linalg.norm(moved) <= SENSITIVITY


def test_rows_of_the_usual_norm_count_in_full():
    rows = torch.randn(50, 20, generator=torch.Generator().manual_seed(0))
    rows *= NORM / rows.norm(dim=1, keepdim=True)
    found = release_mean(iter(rows.split(7)), 20, 50, 0.0, FastSource(0))
    torch.testing.assert_close(found, rows.mean(0), rtol=1e-5, atol=1e-6)


def test_noise_is_as_large_as_stated_and_divided_by_the_public_number():
    found = release_mean(iter([]), 20_000, 40, 12.0, FastSource(3)).double() * 40 / 12
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
