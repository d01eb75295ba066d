"""Clip norms that follow a quantile: what a record adds is bounded, with its count, and the norm gets to where it should."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpltm.filters import FILTERS, Clip, follows, make_filter
from refusals import refused

NORMS = st.floats(0, 1e300)


def added(filter, norm):
    """Norm of what a record adds, with its count, and the count."""
    norms = torch.tensor([norm], dtype=torch.float64)
    count = float(filter.counted(norms))
    return math.hypot(norm * float(filter.factor(norms)), count), count


@given(norm=NORMS, clip_norm=st.floats(1e-6, 1e6))
def test_no_record_adds_more_than_the_bound(norm, clip_norm):
    filter = Clip(clip_norm, clip_quantile=0.5)
    total, count = added(filter, norm)
    assert total <= filter.certified_bound(7) * (1 + 1e-12)
    assert abs(count) <= math.sqrt(0.02) * clip_norm * (1 + 1e-12)


def test_the_bound_is_reached_and_is_one_percent_above_the_norm():
    filter = Clip(2.0, clip_quantile=0.5)
    assert math.isclose(filter.certified_bound(7), 2.0 * math.sqrt(1.02))
    assert math.isclose(added(filter, 1e9)[0], filter.certified_bound(7))
    assert filter.certified_bound(7) / Clip(2.0).certified_bound(7) < 1.01


def test_counts_fall_along_a_line_around_the_norm():
    """From half below 0.9 C to minus half above 1.1 C, times 2 sqrt(0.02) C."""
    filter = Clip(3.0, clip_quantile=0.2)
    counts = filter.counted(3.0 * torch.tensor([0.0, 0.9, 0.95, 1.0, 1.05, 1.1, 9.0])) / (2 * math.sqrt(0.02) * 3.0)
    torch.testing.assert_close(counts, torch.tensor([0.5, 0.5, 0.25, 0.0, -0.25, -0.5, -0.5]))


@pytest.mark.parametrize("quantile", [0.05, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("start", [0.01, 1.0, 100.0])
def test_the_norm_gets_to_the_quantile_from_a_hundred_times_off(quantile, start):
    """On lognormal norms, without noise."""
    norms = torch.randn(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).mul(0.7).exp()
    filter = Clip(start, clip_quantile=quantile)
    for _ in range(60):
        filter = filter.after(float(filter.counted(norms).mean()))
    share = float((norms <= filter.clip_norm).double().mean())
    assert abs(share - quantile) < 0.02


def test_the_norm_stays_within_what_filters_take_whatever_the_noise():
    for count in (-1e9, 1e9):
        filter = Clip(1.0, clip_quantile=0.5)
        for _ in range(100):
            filter = filter.after(count)
        assert filter.clip_norm in (1e-6, 1e6)


def test_it_is_made_by_name_and_names_itself():
    assert make_filter("clip", clip_quantile=0.5) == Clip(1.0, clip_quantile=0.5)
    assert follows(make_filter("clip")) is None
    assert str(Clip(2.0, clip_quantile=0.5)) == "clip(C=2, quantile=0.5)"


def test_quantiles_out_of_range_and_other_filters_are_refused():
    for value in (-0.5, 0.04, 0.96, 1.0, math.nan):
        said = f"`clip_quantile`: {value} is not a number between 0.05 and 0.95"
        assert refused(make_filter, "clip", clip_quantile=value) == said
    for name in set(FILTERS) - {"clip"}:
        said = f"`clip_quantile`: only for `filter` clip, not {name}"
        assert refused(make_filter, name, clip_quantile=0.5).startswith(said)


@pytest.mark.parametrize("name", ["radial-tanh", "auto", "normalize"])
def test_of_other_radial_filters_the_norm_is_but_a_factor(name):
    """So one that moves would give the same once it is divided by, and take more noise."""
    norms = torch.tensor([1e-3, 0.5, 1.0, 40.0], dtype=torch.float64)
    one, other = (make_filter(name, clip_norm=norm).factor(norms) / norm for norm in (0.1, 10.0))
    torch.testing.assert_close(one, other)
