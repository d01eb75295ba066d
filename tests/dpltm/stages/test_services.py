"""Features in memory: those of the map, in half precision, computed once; the same as from the cache on disk."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from dpltm.data import copies_of, from_arrays
from dpltm.features.feature_map import FeatureMap, make_feature_map
from dpltm.stages.progress import Silent
from dpltm.stages.services import MemoryFeatures, Services
from dpltm.tickets.feature_cache import FeatureCache

MAP = make_feature_map("unit:2", (4, 4), (0.0, 255.0))


@pytest.fixture(scope="module")
def dataset():
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (1140, 4, 4), dtype=np.uint8), draw.integers(0, 3, 1140)
    return from_arrays(x[40:], y[40:], test=(x[:40], y[:40]), classes=3)


class Watcher(Silent):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def progress(self, title: str, total: int):
        self.told.append((title, total))
        return contextlib.nullcontext(self.told.append)


def test_values_and_words(dataset, monkeypatch):
    rows: list[int] = []
    plain = FeatureMap.__call__
    monkeypatch.setattr(FeatureMap, "__call__", lambda self, x: (rows.append(len(x)), plain(self, x))[1])
    watcher, store = Watcher(), MemoryFeatures()
    values = store.features(dataset, dataset.train, MAP, progress=watcher)
    assert (values.dtype, values.shape) == (np.float16, (1100, 8))
    assert np.array_equal(values, plain(MAP, dataset.train.x).half().numpy())
    assert watcher.told == [("features of the training records of records", 1100), 512, 1024, 1100]
    assert store.features(dataset, dataset.train, MAP, progress=watcher) is values
    assert sum(rows) == 1100
    store.features(dataset, dataset.test, MAP, progress=watcher)
    assert watcher.told[-2:] == [("features of the test records of records", 40), 40]
    assert store.features(dataset, dataset.train, make_feature_map("unit", (4, 4), (0.0, 255.0))).shape == (1100, 16)


@pytest.mark.parametrize("augment", ["none", "flip"])
def test_the_same_as_on_disk(dataset, augment, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    in_memory = Services().features.features(dataset, dataset.train, MAP, augment)
    on_disk = FeatureCache().features(dataset, dataset.train, MAP, augment)
    assert in_memory.shape == on_disk.shape
    assert np.array_equal(in_memory, on_disk)


def test_features_of_copies(dataset):
    values = MemoryFeatures().features(dataset, dataset.test, MAP, "shift")
    copies = copies_of(dataset.test.x, "shift")
    assert values.shape == (40, copies.shape[1], 8)
    for copy in range(copies.shape[1]):
        np.testing.assert_allclose(values[:, copy], MAP(copies[:, copy]).numpy(), rtol=1e-3, atol=1e-3)
