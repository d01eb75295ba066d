"""Public scaling: golden values, staying inside, order, and independence of the other records."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpltm.records import affine, count_outside, scale
from refusals import refused

ends = st.floats(-1e6, 1e6, width=32)


@st.composite
def bounds(draw):
    low, high = sorted((draw(ends), draw(ends)))
    assume(high - low > 1e-3)
    return low, high


@pytest.mark.parametrize(
    ("x", "limits", "expected"),
    [
        (np.array([[[0, 51], [102, 255]]], dtype=np.uint8), (0, 255), [[0, 0.2, 0.4, 1]]),
        (np.array([[-9.0, -2.0, 0.0, 1.0, 2.0, 9.0]]), (-2, 2), [[-1, -1, 0, 0.5, 1, 1]]),
        (np.array([[-9.0, -2.0, 0.0, 1.0, 2.0, 9.0]]), (0, 2), [[0, 0, 0, 0.5, 1, 1]]),
        (np.array([[-3e38, 3e38]], dtype=np.float32), (0, 1e-6), [[0, 1]]),
        (np.array([[-1e308, 1e308]]), (0, 1e-6), [[0, 1]]),
        (np.empty((0, 2, 3)), (0, 1), np.empty((0, 6))),
    ],
)
def test_scale_golden_and_saturating(x, limits, expected):
    scaled = scale(x, limits)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, expected, rtol=1e-6)


@given(st.data(), bounds(), st.sampled_from([np.bool_, np.uint8, np.int16, np.int64, "f2", "f4", "f8"]))
def test_every_record_by_itself_into_the_unit_range(data, limits, dtype):
    elements = {} if np.dtype(dtype).kind != "f" else {"elements": {"allow_nan": False, "allow_infinity": False}}
    x = data.draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=2, max_dims=3, max_side=4), **elements))
    before = x.copy()
    scaled = scale(x, limits)
    assert scaled.shape == (len(x), x[0].size)
    assert scaled.min() >= (0 if limits[0] >= 0 else -1)
    assert scaled.max() <= 1
    assert np.array_equal(x, before)
    assert np.array_equal(scale(x[-1:], limits), scaled[-1:])


@given(bounds(), st.floats(0, 1))
def test_inside_it_is_the_affine_map(limits, part):
    low, high = limits
    value = min(low + part * (high - low), high)
    multiplier, offset = affine(limits)
    assert scale(np.array([[value]]), limits)[0, 0] == pytest.approx(value * multiplier + offset, abs=1e-6)
    assert scale(np.array([limits]), limits)[0] == pytest.approx([0 if low >= 0 else -1, 1], abs=1e-6)


@pytest.mark.parametrize(
    ("dtype", "bounds", "values", "outside"),
    [
        (np.uint8, (0, 16), [0, 16, 17, 255], 2),
        (np.bool_, (0, 1), [False, True], 0),
        (np.int64, (0, 2**40), [2**40, 2**40 + 1, -1], 2),
        (np.float32, (0, 0.1), [0.1, 0.11, -0.0], 1),  # the float32 next to 0.1 is larger than 0.1
        (np.float64, (0, 0.1), [0.1, np.nextafter(0.1, 1), -5e-324], 2),
        (np.float16, (-1e6, 1e6), [65504, -65504], 0),  # half precision cannot hold such bounds
    ],
)
def test_how_many_values_saturate(dtype, bounds, values, outside):
    x = np.array(values, dtype=dtype)[:, None]
    assert count_outside(x, bounds) == outside
    clipped = np.clip(x.astype(np.longdouble), *np.asarray(bounds, dtype=np.longdouble))
    np.testing.assert_allclose(scale(x, bounds), scale(clipped.astype(np.float64), bounds), rtol=1e-3, atol=1e-7)


FINITE = "both ends must be finite; pass the public range of the features, LO,HI"
ORDER = "LO must be less than HI; swap or correct them"
PRECISION = "too narrow or too wide for single precision; rescale the features and their bounds"


@pytest.mark.parametrize(
    ("wrong", "shown", "reason"),
    [
        ((3, 1), "3,1", ORDER),
        ((0, math.inf), "0,inf", FINITE),
        ((math.nan, 1), "nan,1", FINITE),
        ((0, 1e-320), "0,1e-320", PRECISION),
        ((1e9, 1e9 + 1), "1000000000,1000000001", PRECISION),
    ],
)
def test_unusable_bounds(wrong, shown, reason):
    assert refused(affine, wrong) == f"`bounds` {shown}: {reason}"
