"""Clipping: golden values, the bound is met and attained, bad norms."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpltm.filters import Clip
from refusals import refused


def test_golden():
    norm = torch.tensor([0.0, 1e-40, 0.5, 2.0, 4.0, 2e20], dtype=torch.float64)
    assert Clip(2.0).factor(norm).tolist() == [1.0, 1.0, 1.0, 1.0, 0.5, 1e-20]


@given(st.floats(0, 1e300), st.floats(1e-6, 1e6))
def test_the_norm_becomes_the_smaller_of_itself_and_c(norm, clip_norm):
    factor = Clip(clip_norm).factor(torch.tensor([norm], dtype=torch.float64)).item()
    assert 0 <= factor <= 1
    assert norm * factor <= clip_norm * (1 + 1e-15)
    assert math.isclose(norm * factor, min(norm, clip_norm), rel_tol=1e-15)


def test_names_itself_and_is_bounded_by_c_for_any_size():
    clip = Clip(1.5)
    assert (str(clip), clip.kind, clip.nominal_bound) == ("clip(C=1.5)", "radial", None)
    assert clip.certified_bound(1) == clip.certified_bound(26010) == 1.5
    with pytest.raises(dataclasses.FrozenInstanceError):
        clip.clip_norm = 2.0


@pytest.mark.parametrize("value", [0.0, -1.0, 9e-7, 1.1e6, math.nan, math.inf, -math.inf])
def test_norms_go_from_a_millionth_to_a_million(value):
    assert refused(Clip, value) == f"`clip_norm`: {value} is not a number between 1e-06 and 1e+06"
    assert (Clip(1e-6).clip_norm, Clip(1e6).clip_norm) == (1e-6, 1e6)
