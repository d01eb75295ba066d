"""Features in memory: those of the map, in half precision, computed once; the same as from the cache on disk."""

from __future__ import annotations

import numpy as np
import pytest

from dpltm.features.feature_map import FeatureMap, make_feature_map
from dpltm.features.inputs import FeatureStore, Services
from dpltm.records import from_arrays
from dpltm.tickets.feature_files import FeatureCache
from opened import arrays_of

MAP = make_feature_map("unit:2", (4, 4), (0.0, 255.0))


@pytest.fixture(scope="module")
def dataset():
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (1140, 4, 4), dtype=np.uint8), draw.integers(0, 3, 1140)
    return from_arrays(x[40:], y[40:], test=(x[:40], y[:40]), classes=3)


def test_values_that_are_computed_once(dataset, monkeypatch):
    rows: list[int] = []
    plain = FeatureMap.__call__
    monkeypatch.setattr(FeatureMap, "__call__", lambda self, x: (rows.append(len(x)), plain(self, x))[1])
    store = FeatureStore()
    found = store.features(dataset, dataset.train, MAP)
    values = arrays_of(found).x
    assert (values.dtype, values.shape) == (np.float16, (1100, 8))
    assert np.array_equal(values, plain(MAP, arrays_of(dataset.train).x).half().numpy())
    assert store.features(dataset, dataset.train, MAP) is found
    assert sum(rows) == 1100
    assert store.features(dataset, dataset.test, MAP).shape == (8,)
    assert store.features(dataset, dataset.train, make_feature_map("unit", (4, 4), (0.0, 255.0))).shape == (16,)


def test_the_same_as_on_disk(dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    stores = Services().features, FeatureCache()
    in_memory, on_disk = (arrays_of(store.features(dataset, dataset.train, MAP)).x for store in stores)
    assert in_memory.shape == on_disk.shape
    assert np.array_equal(in_memory, on_disk)
