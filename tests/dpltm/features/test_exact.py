"""Maps that owners of records compute: those of the library up to rounding, and the same bits everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpltm.features import exact
from dpltm.features.conventions import NORM
from dpltm.features.feature_map import FeatureMap, make_feature_map, principal_components

CASES = [
    ("drawings:400", (28, 28), (0.0, 255.0)),
    ("drawings:20", (8, 8), (0.0, 16.0)),
    ("drawings:50", (12, 10, 3), (-1.0, 1.0)),
    ("unit", (8, 8), (0.0, 255.0)),
    ("unit:3", (20,), (-3.0, 3.0)),
    ("unit:7", (5, 2), (-1.0, 4.0)),
]


def rows_of(shape: tuple[int, ...], bounds: tuple[float, float], seed: int = 0, count: int = 5) -> np.ndarray:
    low, high = bounds
    return np.random.default_rng(seed).uniform(low, high, (count, *shape)).astype(np.float32)


@pytest.mark.parametrize(("text", "shape", "bounds"), CASES)
def test_the_same_map_up_to_rounding(text, shape, bounds):
    known = make_feature_map(text, shape, bounds)
    x = rows_of(shape, bounds, count=12)
    found, expected = known.rows(x), known(x).numpy()
    assert (found.dtype, found.shape) == (np.float32, expected.shape)
    assert (found * expected).sum(1).min() / NORM**2 > 0.9999
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), NORM, rtol=1e-6)
    assert known.exact is not None
    assert (known.exact.id, known.exact.features) == (known.id, known.features)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(CASES), st.integers(0, 99), st.integers(1, 9))
def test_a_record_has_the_same_features_alone_and_among_others(case, seed, count):
    text, shape, bounds = case
    known, x = make_feature_map(text, shape, bounds), rows_of(shape, bounds, seed, count)
    found = known.rows(x)
    order = np.random.default_rng(seed).permutation(count)
    np.testing.assert_array_equal(known.rows(x[order]), found[order])
    np.testing.assert_array_equal(np.concatenate([known.rows(row[None]) for row in x]), found)


def test_blocks_of_records_do_not_matter(monkeypatch):
    known, x = make_feature_map("unit:2", (9,), (0.0, 1.0)), rows_of((9,), (0.0, 1.0), count=20)
    found = known.rows(x)
    monkeypatch.setattr(exact, "ROWS", 6)
    np.testing.assert_array_equal(known.rows(x), found)
    assert known.rows(x[:0]).shape == (0, 5)


def test_a_record_that_is_the_same_everywhere():
    """It has no direction under ``unit``: zeros, where rounding would make up one."""
    flat = np.full((1, 7), 0.1, np.float32)
    assert not make_feature_map("unit", (7,), (0.0, 1.0)).rows(flat).any()
    image = make_feature_map("drawings:9", (8, 8), (0.0, 1.0)).rows(np.full((1, 8, 8), 0.1, np.float32))
    assert np.linalg.norm(image) == pytest.approx(NORM, rel=1e-6)


def test_other_maps_are_computed_as_they_are():
    scatter, plain = make_feature_map("scatter:1,2", (8, 8), (0.0, 1.0)), make_feature_map("unit", (9,), (0.0, 1.0))
    x = rows_of((9,), (0.0, 1.0))
    projected = FeatureMap(plain.base, plain.shape, plain.bounds, projection=principal_components(plain(x), 2))
    for known in (scatter, projected, plain.centred_at(plain(x).mean(0))):
        assert known.exact is None
    np.testing.assert_array_equal(projected.rows(x), projected(x).numpy())
