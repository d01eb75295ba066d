"""Clipping: golden values, the bound is met and attained, bad norms."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpltm.errors import InputError
from dpltm.filters import Clip

norms = st.floats(0, 1e300)
clip_norms = st.floats(1e-6, 1e6)


def test_golden():
    norm = torch.tensor([0.0, 1e-40, 0.5, 2.0, 4.0, 2e20], dtype=torch.float64)
    assert Clip(2.0).factor(norm).tolist() == [1.0, 1.0, 1.0, 1.0, 0.5, 1e-20]


def test_small_gradients_pass_unchanged_and_large_ones_get_norm_c():
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(200, 7, generator=generator, dtype=torch.float64)
    norm = torch.linalg.vector_norm(gradients, dim=1)
    clip = Clip(float(norm.median()))
    clipped = gradients * clip.factor(norm)[:, None]
    small = norm <= clip.clip_norm
    assert 0 < int(small.sum()) < 200
    assert torch.equal(clipped[small], gradients[small])
    torch.testing.assert_close(
        torch.linalg.vector_norm(clipped[~small], dim=1), torch.full((200,), clip.clip_norm).double()[~small]
    )
    # the direction is kept
    torch.testing.assert_close(clipped * norm[:, None], gradients * torch.linalg.vector_norm(clipped, dim=1)[:, None])


@given(norms, clip_norms)
def test_never_above_c(norm, clip_norm):
    factor = Clip(clip_norm).factor(torch.tensor([norm], dtype=torch.float64)).item()
    assert 0 <= factor <= 1
    assert norm * factor <= clip_norm * (1 + 1e-15)
    assert math.isclose(norm * factor, min(norm, clip_norm), rel_tol=1e-15)


@pytest.mark.parametrize("live", [1, 26010])
def test_bound_is_c_for_any_size(live):
    assert Clip(1.5).certified_bound(live) == 1.5


def test_names_itself_and_claims_nothing_else():
    assert str(Clip(1.0)) == "clip(C=1)"
    assert Clip(1.0).nominal_bound is None
    assert Clip(1.0).kind == "radial"
    with pytest.raises(dataclasses.FrozenInstanceError):
        Clip(1.0).clip_norm = 2.0


@pytest.mark.parametrize("value", [0.0, -1.0, 9e-7, 1.1e6, math.nan, math.inf, -math.inf])
def test_bad_norms(value):
    with pytest.raises(InputError) as error:
        Clip(value)
    assert str(error.value) == f"`clip_norm`: {value} is not a number between 1e-06 and 1e+06"


def test_both_ends_are_allowed():
    assert Clip(1e-6).clip_norm == 1e-6
    assert Clip(1e6).clip_norm == 1e6
