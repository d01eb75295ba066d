"""Records without labels, and how many of their values saturate."""

import numpy as np
import pytest

from dpltm.data import count_outside, load_records, scale

X = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64, np.float16, ">f4"])
def test_as_stored(tmp_path, dtype):
    np.savez(tmp_path / "t.npz", x=X.astype(dtype))
    found = load_records(str(tmp_path / "t.npz"))
    assert np.array_equal(found, X.astype(dtype))
    assert found.dtype == np.dtype(dtype).newbyteorder("=")


@pytest.mark.parametrize(
    ("dtype", "bounds", "values", "outside"),
    [
        (np.uint8, (0, 16), [0, 16, 17, 255], 2),
        (np.int8, (0, 100), [-1, -128, 0, 100, 101], 3),
        (np.bool_, (0, 1), [False, True], 0),
        (np.int64, (0, 2**40), [2**40, 2**40 + 1, -1], 2),
        (np.float32, (0, 0.1), [0.1, 0.11, -0.0], 1),  # the float32 next to 0.1 is larger than 0.1
        (np.float64, (0, 0.1), [0.1, np.nextafter(0.1, 1), -5e-324], 2),
        (np.float16, (-1e6, 1e6), [65504, -65504], 0),  # half precision cannot hold such bounds
        (np.float16, (0, 1), [65504, 1, 0], 1),
    ],
)
def test_count_outside(dtype, bounds, values, outside):
    x = np.array(values, dtype=dtype)[:, None]
    assert count_outside(x, bounds) == outside
    clipped = np.clip(x.astype(np.longdouble), *np.asarray(bounds, dtype=np.longdouble))
    np.testing.assert_allclose(scale(x, bounds), scale(clipped.astype(np.float64), bounds), rtol=1e-3, atol=1e-7)
