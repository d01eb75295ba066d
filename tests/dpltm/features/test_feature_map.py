"""Feature maps: every row from its own record alone, of a fixed norm, under an id that tells maps apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from dpltm.features.feature_map import (
    FeatureMap,
    FrozenNetwork,
    channel_statistics,
    make_feature_map,
    principal_components,
)
from dpltm.features.normalisation import NORM, ChannelStatistics
from dpltm.features.transforms import Scattering
from dpltm.networks import ModelSpec, build
from dpltm.privacy.entry import Lineage
from refusals import refused
from set_entries import LINEAGES

NETWORK = ModelSpec("mlp:7,5", 9 * 8, 3)


def plain(shape: tuple[int, ...] = (9, 8), text: str = "scatter:2,4") -> FeatureMap:
    return make_feature_map(text, shape, (0.0, 255.0))


def of_statistics(shape: tuple[int, ...] = (9, 8)) -> FeatureMap:
    count = plain(shape).feature_shape[-1]
    generator = torch.Generator().manual_seed(3)
    mean, deviation = (torch.rand(count, generator=generator) / 10 for _ in range(2))
    return replace(plain(shape), lineage=LINEAGES["public"], statistics=ChannelStatistics(mean, deviation + 0.01))


def of_network(spec: ModelSpec = NETWORK, shape: tuple[int, ...] = (9, 8)) -> FeatureMap:
    network = FrozenNetwork(spec, {name: value.detach() for name, value in build(spec, 0).named_parameters()})
    return FeatureMap(network, shape, (0.0, 255.0), lineage=LINEAGES["dp"])


def with_weights(found: FeatureMap, **changes: Tensor) -> FeatureMap:
    """The same map of a network with other parameters."""
    assert isinstance(found.base, FrozenNetwork)
    network = FrozenNetwork(found.base.spec, {**found.base.parameters, **changes})
    return replace(found, base=network)


CASES = {
    "scatter": plain(),
    "colours": plain((9, 8, 3)),
    "statistics": of_statistics(),
    "random convolutions": plain((10, 9, 3), "conv:3"),
    "drawings": plain((12, 9), "drawings:40"),
    "joined": plain((12, 9), "drawings:20+scatter:1,3+unit"),
    "signals": plain((40, 3), "wavelets"),
    "values": plain((9, 8), "unit"),
    "averaged values": plain((20,), "unit:3"),
    "random directions": plain((20,), "fourier:64,0.5"),
    "network": of_network(),
    "convolutions": of_network(ModelSpec("cnn:14x15x1", 210, 4), (14, 15)),
}


def records(found: FeatureMap, count: int = 35, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *found.shape), dtype=np.uint8)


@pytest.fixture(params=CASES)
def found(request: pytest.FixtureRequest) -> FeatureMap:
    return CASES[request.param]


# Rows


def test_shapes_and_norms(found: FeatureMap):
    values = found(records(found))
    assert values.shape == (35, found.features)
    assert values.dtype == torch.float32
    assert not values.requires_grad
    torch.testing.assert_close(values.double().norm(dim=1), torch.full((35,), NORM).double(), rtol=1e-5, atol=0)
    assert len(values.unique(dim=0)) == 35
    assert found(records(found)[:0]).shape == (0, found.features)


def test_a_row_depends_on_its_own_record_alone(found: FeatureMap):
    x = records(found)
    values = found(x)
    for row in (0, 5, 34):
        other = np.where(np.arange(35).reshape(-1, *[1] * (x.ndim - 1)) == row, x, records(found, seed=1))
        assert torch.equal(found(other)[row], values[row])
        assert not torch.equal(found(other)[row - 1], values[row - 1])
    order = np.random.default_rng(2).permutation(35)
    for each in (found, replace(found, projection=principal_components(values, 5))):
        values = each(x)
        assert torch.equal(each(x[:3]), values[:3]), "however many records follow"
        assert torch.equal(each(x[:34]), values[:34])
        torch.testing.assert_close(each(x[order]), values[order], rtol=0, atol=1e-5)
        torch.testing.assert_close(torch.cat([each(x[:3]), each(x[3:])]), values, rtol=0, atol=1e-5)


def test_blank_records_give_numbers_and_values_beyond_the_bounds_saturate(found: FeatureMap):
    for value in (0, 255, 128):
        values = found(np.full((1, *found.shape), value, dtype=np.uint8))
        assert values.isfinite().all()
        assert (values.norm(dim=1) <= NORM * (1 + 1e-5)).all()
    x = records(found, 4).astype(np.float64)
    beyond = np.where(x > 200, 1e30, np.where(x < 50, -1e30, x))
    clipped = np.where(x > 200, 255.0, np.where(x < 50, 0.0, x))
    assert torch.equal(found(beyond), found(clipped))


# What rows are


def test_scattering_with_statistics_is_that_less_mean_over_deviation():
    found = of_statistics((9, 8, 2))
    x = records(found, 3)
    transform = Scattering(2, 4, (9, 8))
    for row, record in enumerate(x):
        colours = [transform(torch.from_numpy(record[None, :, :, colour] / 255).float())[0] for colour in range(2)]
        channels = torch.cat(colours)
        assert found.feature_shape == (*channels.shape[1:], len(channels))
        scaled = (channels - found.statistics.mean[:, None, None]) / found.statistics.deviation[:, None, None]
        flat = scaled.permute(1, 2, 0).flatten()  # pixel by pixel, as images are stored
        torch.testing.assert_close(found(x)[row], NORM * flat / flat.norm(), rtol=0, atol=1e-4)


def test_scattering_alone_is_normalised_within_the_record():
    """27 groups of 81 channels: three neighbours each have mean zero together, and the same deviation as others."""
    found = plain((9, 8), "scatter:2,8")
    values = found(records(found, 3)).view(3, *found.feature_shape)
    assert values.shape[-1] == 81
    groups = values.permute(0, 3, 1, 2).reshape(3, 27, -1)
    assert groups.mean(2).abs().max() < 1e-5
    deviations = groups.std(2, correction=0)
    torch.testing.assert_close(deviations, deviations[:, :1].expand(3, 27), rtol=1e-3, atol=0)


def test_statistics_are_means_and_deviations_over_records_and_pixels():
    found = plain((9, 8, 2))
    x = records(found, 40)
    values = found.transformed(x).double().numpy()
    for cuts in ([], [1, 8]):
        statistics = channel_statistics(found, iter(np.split(x, cuts)))
        np.testing.assert_allclose(statistics.mean, values.mean((0, 2, 3)), atol=1e-6)
        np.testing.assert_allclose(statistics.deviation, values.std((0, 2, 3)), rtol=1e-3, atol=1e-6)


def of_norm(values: np.ndarray) -> np.ndarray:
    return NORM * values / np.linalg.norm(values, axis=1, keepdims=True)


@pytest.mark.parametrize("projects", [False, True])
def test_a_network_gives_what_goes_into_its_last_layer(projects):
    """A projection has no activation behind it."""
    found = of_network(ModelSpec("mlp:project6", 72, 3)) if projects else of_network()
    x = records(found, 5)
    w = {name: value.double().numpy() for name, value in found.tensors.items()}
    values = x.reshape(5, -1) / 255
    for layer in ["project"] if projects else ["fc1", "fc2"]:
        values = values @ w[f"{layer}.weight"].T + w[f"{layer}.bias"]
        assert (values < 0).any()
        values = values if projects else np.maximum(values, 0)
    assert found.feature_shape == (6 if projects else 5,)
    np.testing.assert_allclose(found(x).numpy(), of_norm(values), atol=1e-4)


# Ids


def test_ids_differ_with_everything_that_decides_the_features():
    statistic, network = of_statistics(), of_network()
    mean, deviation = vars(statistic.statistics).values()
    shifted, bias = mean.clone(), network.tensors["fc1.bias"].clone()
    shifted[-1] += 1e-3
    bias[0] += 1e-3
    maps = [
        plain(),
        plain(text="scatter:2,5"),
        plain(text="scatter:1,4"),
        plain((8, 9)),
        plain((9, 8, 1)),
        replace(plain(), bounds=(0.0, 254.0)),
        replace(plain(), bounds=(-1.0, 255.0)),
        statistic,
        replace(statistic, statistics=ChannelStatistics(shifted, deviation)),
        replace(statistic, statistics=ChannelStatistics(deviation, mean)),
        network,
        with_weights(network, **{"fc1.bias": bias}),
        replace(network, bounds=(0.0, 1.0)),
        replace(network, shape=(72,)),
        of_network(ModelSpec("mlp:7,6", 72, 3)),
        of_network(ModelSpec("mlp:7,5", 72, 4)),
        # the same parameters in another architecture
        of_network(ModelSpec("cnn:14x15x1", 210, 4), (14, 15)),
        of_network(ModelSpec("cnn:15x14x1", 210, 4), (14, 15)),
    ]
    assert len({found.id for found in maps}) == len(maps)
    for one, other in ((plain(), plain()), (of_statistics(), statistic), (of_network(), network)):
        assert one.id == other.id
        assert len(one.id) == 64
    assert replace(network, lineage=Lineage()).id == network.id


# Other records


def test_maps_for_other_records():
    found = of_statistics()
    assert found.for_records((9, 8), (0.0, 255.0)) is found
    other = found.for_records((12, 10), (0.0, 1.0))
    assert (other.shape, other.bounds, other.text) == ((12, 10), (0.0, 1.0), found.text)
    assert other.lineage == LINEAGES["public"]
    assert other.statistics is found.statistics
    assert other(np.random.default_rng(0).random((2, 12, 10))).shape == (2, other.features)
    assert other.feature_shape != found.feature_shape
    network = of_network()
    x = records(network, 4)
    moved = network.for_records((72,), network.bounds)
    torch.testing.assert_close(moved(x.reshape(4, 72)), network(x), rtol=0, atol=1e-5)
    assert plain().for_records((9, 8, 3), (0.0, 255.0)).features == 3 * plain().features


@pytest.mark.parametrize(
    ("found", "shape", "high", "message"),
    [
        (
            of_network(),
            (72,),
            1,
            "the network in front was trained on values from 0 to 255, and these go from 0 to 1; ",
        ),
        (
            of_network(),
            (9, 9),
            255,
            "the network takes 72 features, but the records have 81; take one that was trained",
        ),
        (
            of_statistics(),
            (9, 8, 3),
            255,
            "statistics are of 25 channels, but records of shape (9, 8, 3) have 75; take",
        ),
    ],
)
def test_records_that_a_map_cannot_take(found: FeatureMap, shape, high, message: str):
    assert refused(found.for_records, shape, (0.0, float(high))).startswith(f"`features`: {message}")


def test_what_no_map_is_made_for():
    for text in ("none", "network:a.run"):
        assert refused(plain, text=text) == f"`features`: {text!r} is no map that is made without data"
    for shape in ((64,), (4, 4, 4, 4), (8, 8, 5), ()):
        assert refused(plain, shape) == (
            "`features`: scatter takes images, (height, width) or (height, width, colours), and a record here is of shape"
            f" {shape}; take unit"
        )
