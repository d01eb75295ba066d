"""Public scaling: golden values, staying inside, order, and independence of the other records."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpltm.data import affine, scale
from dpltm.errors import DataError

ends = st.floats(-1e6, 1e6, width=32)
real = st.sampled_from([np.bool_, np.uint8, np.int16, np.int64, np.float16, np.float32, np.float64])


@st.composite
def bounds(draw):
    low, high = sorted((draw(ends), draw(ends)))
    assume(high - low > 1e-3)
    return low, high


@pytest.mark.parametrize(
    ("given_bounds", "expected"),
    [
        ((0, 1), (1.0, 0.0)),
        ((0, 16), (1 / 16, 0.0)),
        ((1, 3), (0.5, -0.5)),
        ((-1, 1), (1.0, 0.0)),
        ((-2, 2), (0.5, 0.0)),
        ((-1, 3), (0.5, -0.5)),
        ((-3, -1), (1.0, 2.0)),
    ],
)
def test_affine_golden(given_bounds, expected):
    multiplier, offset = affine(given_bounds)
    assert (multiplier, offset) == expected
    assert math.copysign(1, offset) == math.copysign(1, expected[1])


def test_scale_golden():
    x = np.array([[[0, 51], [102, 255]]], dtype=np.uint8)
    scaled = scale(x, (0, 255))
    assert scaled.dtype == np.float32
    assert scaled.shape == (1, 4)
    np.testing.assert_allclose(scaled, [[0, 0.2, 0.4, 1]], rtol=1e-6)


def test_values_outside_saturate():
    x = np.array([[-9.0, -2.0, 0.0, 1.0, 2.0, 9.0]])
    assert scale(x, (-2, 2)).tolist() == [[-1, -1, 0, 0.5, 1, 1]]
    assert scale(x, (0, 2)).tolist() == [[0, 0, 0, 0.5, 1, 1]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_largest_values_saturate_too(dtype):
    top = np.finfo(dtype).max
    assert scale(np.array([[-top, top]], dtype=dtype), (0, 1e-6)).tolist() == [[0, 1]]


def test_no_records():
    assert scale(np.empty((0, 2, 3)), (0, 1)).shape == (0, 6)


@given(st.data(), bounds())
def test_stays_in_the_unit_range(data, limits):
    dtype = data.draw(real)
    elements = {} if np.dtype(dtype).kind != "f" else {"elements": {"allow_nan": False, "allow_infinity": False}}
    x = data.draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=2, max_dims=3, max_side=4), **elements))
    before = x.copy()
    scaled = scale(x, limits)
    low = 0 if limits[0] >= 0 else -1
    assert scaled.shape == (len(x), x[0].size)
    assert scaled.min() >= low
    assert scaled.max() <= 1
    assert np.array_equal(x, before)


@given(bounds(), st.floats(0, 1))
def test_inside_it_is_the_affine_map(limits, part):
    low, high = limits
    value = min(low + part * (high - low), high)
    multiplier, offset = affine(limits)
    assert scale(np.array([[value]]), limits)[0, 0] == pytest.approx(value * multiplier + offset, abs=1e-6)


@given(bounds())
def test_bounds_go_to_the_ends(limits):
    scaled = scale(np.array([limits]), limits)[0]
    assert scaled == pytest.approx([0 if limits[0] >= 0 else -1, 1], abs=1e-6)


@given(bounds(), hnp.arrays(np.float32, (5, 2), elements={"allow_nan": False, "allow_infinity": False}))
def test_order_is_kept_and_records_do_not_touch(limits, x):
    scaled = scale(x, limits)
    rank = np.argsort(x[:, 0], kind="stable")
    assert (np.diff(scaled[rank, 0]) >= 0).all()
    assert np.array_equal(scale(x[2:3], limits), scaled[2:3])


FINITE = "both ends must be finite; pass the public range of the features, LO,HI"
ORDER = "LO must be less than HI; swap or correct them"
PRECISION = "too narrow or too wide for single precision; rescale the features and their bounds"


@pytest.mark.parametrize(
    ("wrong", "shown", "reason"),
    [
        ((3, 1), "3,1", ORDER),
        ((1, 1), "1,1", ORDER),
        ((0, math.inf), "0,inf", FINITE),
        ((math.nan, 1), "nan,1", FINITE),
        ((-1e308, 1e308), "-1e+308,1e+308", PRECISION),
        ((0, 1e-320), "0,1e-320", PRECISION),
        ((1e9, 1e9 + 1), "1000000000,1000000001", PRECISION),
    ],
)
def test_unusable_bounds(wrong, shown, reason):
    with pytest.raises(DataError) as caught:
        affine(wrong)
    assert str(caught.value) == f"`bounds` {shown}: {reason}"
