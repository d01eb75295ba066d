"""Shapes of filters at points where they are known."""

from __future__ import annotations

import math

import pytest

from dpltm.filters import make_filter
from dpltm.reports.filter_shape import shape_of


def test_of_clipping() -> None:
    shape = shape_of(make_filter("clip", clip_norm=2.0))
    assert shape is not None
    assert (shape.what, shape.before[0], shape.before[-1]) == ("norm", 0.0, 8.0)
    expected = [min(before, 2.0) for before in shape.before]
    assert shape.after == pytest.approx(expected, rel=1e-5)


def test_of_tanh() -> None:
    shape = shape_of(make_filter("tanh", tanh_scale=3.0, tanh_range=0.5))
    assert shape is not None
    assert (shape.what, shape.before[0], shape.before[-1]) == ("value", -2.0, 2.0)
    assert shape.after == pytest.approx([3 * math.tanh(before / 0.5) for before in shape.before], rel=1e-5)


def test_filters_by_layer_have_none() -> None:
    assert shape_of(make_filter("per-layer")) is None
