"""What a network is given: a map that is made or taken over, and its features, computed once, in memory as on disk."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpltm.features.feature_map import FeatureMap, make_feature_map
from dpltm.features.inputs import FeatureStore, network_inputs, take_over_map, with_feature_map
from dpltm.features.normalisation import NORM
from dpltm.privacy.entry import Lineage
from dpltm.records import from_arrays
from dpltm.records.notes import feature_notes
from opened import arrays_of
from refusals import refused
from set_entries import LINEAGES

MAP = make_feature_map("unit:2", (4, 4), (0.0, 255.0))


@pytest.fixture(scope="module")
def dataset():
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (1140, 4, 4), dtype=np.uint8), draw.integers(0, 3, 1140)
    return from_arrays(x[40:], y[40:], test=(x[:40], y[:40]), classes=3)


def test_values_that_are_computed_once(dataset, monkeypatch):
    rows: list[int] = []
    plain = FeatureMap.stored
    monkeypatch.setattr(FeatureMap, "stored", lambda self, x: (rows.append(len(x)), plain(self, x))[1])
    store = FeatureStore()
    found = store.features(dataset, dataset.train, MAP)
    values = arrays_of(found).x
    assert (values.dtype, values.shape) == (np.float16, (1100, 8))
    assert np.array_equal(values, plain(MAP, arrays_of(dataset.train).x).half().numpy())
    assert store.features(dataset, dataset.train, MAP) is found
    assert sum(rows) == 1100
    assert store.features(dataset, dataset.test, MAP).shape == (8,)
    assert store.features(dataset, dataset.train, make_feature_map("unit", (4, 4), (0.0, 255.0))).shape == (16,)


def images(seed: int, count: int = 60, shape: tuple[int, ...] = (6, 6), name: str = "mine"):
    draw = np.random.default_rng(seed)
    return from_arrays(
        draw.integers(0, 256, (count, *shape), dtype=np.uint8), draw.integers(0, 3, count), classes=3, name=name
    )


PRIVATE = images(0)
PRIVATE_LARGE = images(0, shape=(10, 8))


def test_records_as_they_are_and_a_map_that_needs_no_data():
    for features in (None, "none"):
        assert with_feature_map(PRIVATE, features) is PRIVATE
    found = with_feature_map(PRIVATE, "unit:2").feature_map
    assert (found.id, found.lineage) == (make_feature_map("unit:2", (6, 6), (0.0, 255.0)).id, Lineage())


def test_features_of_another_shape_that_mean_something_else():
    """As many random features of records of another width have other directions."""
    for text in ("fourier:16", "unit+fourier:16"):
        found = make_feature_map(text, (6, 6), (0.0, 255.0))
        message = refused(take_over_map, PRIVATE_LARGE, found, None, "the set")
        assert message.startswith(
            f"`features`: {found.text} was drawn for records of shape (6, 6), and these are of shape (10, 8)"
        )


def test_a_remembered_map():
    found = make_feature_map("unit:3", (6, 6), (0.0, 255.0))
    assert take_over_map(PRIVATE, found, None, "the set").feature_map is found
    assert take_over_map(PRIVATE, None, None, "the set") is PRIVATE
    assert refused(take_over_map, PRIVATE, found, "unit:3", "the set") == (
        "`features`: the set remembers what stands in front of its network; leave `features` out"
    )


def test_what_a_reader_should_know():
    assert feature_notes(PRIVATE) == []
    (found,) = feature_notes(replace(PRIVATE, lineage=LINEAGES["dp"]))
    assert found == "bounds and categories of the schema were found under DP, and what that cost counts"


def test_inputs():
    assert network_inputs(PRIVATE.train, PRIVATE) is PRIVATE.train
    dataset = with_feature_map(PRIVATE, "unit")
    centre = torch.full((36,), 0.1)
    centred = replace(dataset, feature_map=dataset.feature_map.centred_at(centre))
    plain = arrays_of(network_inputs(dataset.train, dataset)).x
    assert np.array_equal(arrays_of(network_inputs(centred.train, centred)).x, plain), (
        "they are centred where they are read"
    )
    np.testing.assert_allclose(np.linalg.norm(plain.astype("f8"), axis=1), NORM, rtol=1e-3)
