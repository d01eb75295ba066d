"""Feature maps: every row from its own record alone, of a fixed norm, under an id that tells maps apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dpltm.errors import InputError
from dpltm.features.feature_map import FeatureMap, channel_statistics, make_feature_map
from dpltm.features.network import FrozenNetwork
from dpltm.features.normalisation import NORM, ChannelStatistics
from dpltm.features.scattering import Scattering
from dpltm.models import ModelSpec, build
from dpltm.privacy.events import DatasetRef, TrainingEvent
from dpltm.privacy.mechanisms import NoisySgd

SOURCE = DatasetRef("public", "ab" * 16, "01234567", 0, 100, "places")
SPENT = TrainingEvent(SOURCE, NoisySgd(0.5, 10, 3.0), "clip(C=1)", 9, time="2026-01-01T00:00:00Z")
NETWORK = ModelSpec("mlp:7,5", 9 * 8, 3)


def weights(spec: ModelSpec, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) / 4 for name, shape in spec.shapes().items()}


def plain(shape: tuple[int, ...] = (9, 8), text: str = "scatter:2,4") -> FeatureMap:
    return make_feature_map(text, shape, (0.0, 255.0))


def of_statistics(shape: tuple[int, ...] = (9, 8)) -> FeatureMap:
    count = plain(shape).feature_shape[-1]
    generator = torch.Generator().manual_seed(3)
    mean, deviation = (torch.rand(count, generator=generator) / 10 for _ in range(2))
    return replace(plain(shape), source=SOURCE, statistics=ChannelStatistics(mean, deviation + 0.01))


def of_network(spec: ModelSpec = NETWORK, shape: tuple[int, ...] = (9, 8)) -> FeatureMap:
    network = FrozenNetwork(spec, weights(spec))
    return FeatureMap(network, shape, (0.0, 255.0), source=SOURCE, events=(SPENT,))


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
    "signals": plain((40, 3), "wavelets"),
    "values": plain((9, 8), "unit"),
    "averaged values": plain((20,), "unit:3"),
    "network": of_network(),
    "convolutions": of_network(ModelSpec("cnn:14x15x1", 210, 4), (14, 15)),
}


def records(found: FeatureMap, count: int = 70, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *found.shape), dtype=np.uint8)


@pytest.fixture(params=CASES)
def found(request: pytest.FixtureRequest) -> FeatureMap:
    return CASES[request.param]


# Rows


def test_shapes_and_norms(found: FeatureMap):
    values = found(records(found))
    assert values.shape == (70, found.features)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values.double().norm(dim=1), torch.full((70,), NORM).double(), rtol=1e-5, atol=0)
    assert len(values.unique(dim=0)) == 70
    assert found(records(found)[:0]).shape == (0, found.features)


def test_a_row_depends_on_its_own_record_alone(found: FeatureMap):
    x = records(found)
    values = found(x)
    for row in (0, 5, 33, 69):
        other = np.where(np.arange(70).reshape(-1, *[1] * (x.ndim - 1)) == row, x, records(found, seed=1))
        assert torch.equal(found(other)[row], values[row])
        assert not torch.equal(found(other)[row - 1], values[row - 1])
    order = np.random.default_rng(2).permutation(70)
    torch.testing.assert_close(found(x[order]), values[order], rtol=0, atol=1e-5)
    for size in (1, 3, 32, 50):
        parts = torch.cat([found(x[start : start + size]) for start in range(0, 70, size)])
        torch.testing.assert_close(parts, values, rtol=0, atol=1e-5)


@pytest.mark.parametrize("value", [0, 255, 128])
def test_blank_records_give_numbers(found: FeatureMap, value: int):
    x = np.concatenate([np.full((1, *found.shape), value, dtype=np.uint8), records(found, 3)])
    values = found(x)
    assert values.isfinite().all()
    assert (values.norm(dim=1) <= NORM * (1 + 1e-5)).all()
    torch.testing.assert_close(values[1:], found(x[1:]), rtol=0, atol=1e-5)


def test_values_beyond_the_bounds_saturate(found: FeatureMap):
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
    for sizes in ([40], [1, 7, 32], [20, 20]):
        parts = iter(np.split(x, np.cumsum(sizes)[:-1]))
        statistics = channel_statistics(found, parts)
        for channel in range(found.feature_shape[-1]):
            one = values[:, channel].ravel()
            assert float(statistics.mean[channel]) == pytest.approx(one.mean(), abs=1e-6)
            assert float(statistics.deviation[channel]) == pytest.approx(one.std(), rel=1e-3, abs=1e-6)


def test_public_images_normalised_by_their_own_statistics():
    base = plain()
    x = records(base, 64)
    values = base.transformed(x)
    statistics = channel_statistics(base, iter([x]))
    scaled = (values - statistics.mean[:, None, None]) / statistics.deviation[:, None, None]
    torch.testing.assert_close(scaled.mean((0, 2, 3)), torch.zeros(values.shape[1]), rtol=0, atol=1e-3)
    torch.testing.assert_close(scaled.std((0, 2, 3), correction=0), torch.ones(values.shape[1]), rtol=1e-3, atol=0)


def of_norm(values: np.ndarray) -> np.ndarray:
    return NORM * values / np.linalg.norm(values, axis=1, keepdims=True)


def test_a_network_gives_what_goes_into_its_last_layer():
    found = of_network()
    x = records(found, 5)
    w = {name: value.double().numpy() for name, value in found.tensors.items()}
    hidden = np.maximum((x.reshape(5, -1) / 255) @ w["fc1.weight"].T + w["fc1.bias"], 0)
    hidden = np.maximum(hidden @ w["fc2.weight"].T + w["fc2.bias"], 0)
    assert found.feature_shape == (5,)
    np.testing.assert_allclose(found(x).numpy(), of_norm(hidden), atol=1e-4)


def test_a_projection_has_no_activation_behind_it():
    spec = ModelSpec("mlp:project6", 72, 3)
    found = of_network(spec)
    x = records(found, 5)
    w = {name: value.double().numpy() for name, value in found.tensors.items()}
    projected = (x.reshape(5, -1) / 255) @ w["project.weight"].T + w["project.bias"]
    assert (projected < 0).any()
    np.testing.assert_allclose(found(x).numpy(), of_norm(projected), atol=1e-4)


def test_a_convolutional_network_gives_its_units():
    found = CASES["convolutions"]
    x = records(found, 5)
    w = found.tensors
    values = torch.from_numpy(x / 255).float()[:, None]
    values = functional.relu(functional.conv2d(values, w["conv1.weight"], w["conv1.bias"], stride=2, padding=3))
    values = functional.max_pool2d(values, 2, 1)
    values = functional.relu(functional.conv2d(values, w["conv2.weight"], w["conv2.bias"], stride=2))
    values = functional.max_pool2d(values, 2, 1).flatten(1)
    values = functional.relu(functional.linear(values, w["fc1.weight"], w["fc1.bias"]))
    assert found.feature_shape == (32,)
    np.testing.assert_allclose(found(x).numpy(), of_norm(values.numpy()), atol=1e-4)


def test_the_last_layer_of_a_network_changes_nothing():
    found = of_network()
    other = with_weights(found, **{"fc3.weight": torch.ones(3, 5)})
    x = records(found, 5)
    assert torch.equal(other(x), found(x))


def test_a_map_takes_no_gradient_and_does_not_touch_the_random_state():
    state = torch.get_rng_state()
    found = of_network()
    assert not found(records(found, 2)).requires_grad
    assert torch.equal(torch.get_rng_state(), state)


# Ids


def test_ids_of_equal_maps_are_equal():
    for one, other in [(plain(), plain()), (of_statistics(), of_statistics()), (of_network(), of_network())]:
        assert one.id == other.id
        assert len(one.id) == 64
    assert replace(of_network(), source=replace(SOURCE, name="other"), events=()).id == of_network().id


def test_ids_differ_with_everything_that_decides_the_features():
    statistic, network = of_statistics(), of_network()
    assert statistic.statistics is not None
    mean, deviation = statistic.statistics.mean, statistic.statistics.deviation
    shifted = mean.clone()
    shifted[-1] += 1e-3
    bias = network.tensors["fc1.bias"].clone()
    bias[0] += 1e-3
    wider = ModelSpec("mlp:7,6", 72, 3)
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
        of_network(wider),
        of_network(ModelSpec("mlp:7,5", 72, 4)),
    ]
    assert len({found.id for found in maps}) == len(maps)


def test_the_label_says_what_it_is():
    assert plain().label == f"features scatter:2,4 {plain().id[:8]}"
    assert of_network().label == f"features network {of_network().id[:8]}"


# Other records


def test_maps_for_other_records():
    found = of_statistics()
    assert found.for_records((9, 8), (0.0, 255.0)) is found
    other = found.for_records((12, 10), (0.0, 1.0))
    assert (other.shape, other.bounds, other.source, other.text) == ((12, 10), (0.0, 1.0), SOURCE, found.text)
    assert other.statistics is found.statistics
    assert other.feature_shape != found.feature_shape
    x = np.random.default_rng(0).random((2, 12, 10))
    assert other(x).shape == (2, other.features)
    network = of_network()
    moved = network.for_records((72,), network.bounds)
    x = records(network, 4)
    torch.testing.assert_close(moved(x.reshape(4, 72)), network(x), rtol=0, atol=1e-5)
    assert refusal(network.for_records, (72,), (0.0, 1.0)) == (
        "`features`: the network in front was trained on values from 0 to 255, and these go from 0 to 1; rescale them, or"
        " say `bounds`"
    )
    assert plain().for_records((9, 8, 3), (0.0, 255.0)).features == 3 * plain().features


def refusal(call, *arguments) -> str:
    with pytest.raises(InputError) as error:
        call(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_records_that_a_map_cannot_take():
    assert refusal(of_statistics().for_records, (9, 8, 3), (0.0, 255.0)) == (
        "`features`: statistics are of 25 channels, but records of shape (9, 8, 3) have 75; take records with as many"
        " colours"
    )
    assert refusal(of_network().for_records, (9, 9), (0.0, 255.0)) == (
        "`features`: the network takes 72 features, but the records have 81; take one that was trained on records of the"
        " same shape"
    )


@pytest.mark.parametrize("shape", [(64,), (4, 4, 4, 4), (8, 8, 5), ()])
def test_what_is_no_image(shape: tuple[int, ...]):
    assert refusal(plain, shape) == (
        "`features`: scatter takes images, (height, width) or (height, width, colours), and a record here is of shape"
        f" {shape}; take unit"
    )


def test_images_that_are_too_small_are_refused_when_the_map_is_made():
    assert refusal(plain, (4, 9)) == (
        "`features`: images of 4 x 9 pixels are too small for J = 2, which averages over windows of 4; take scatter:1"
    )


def test_a_network_is_built_from_its_tensors_and_nothing_else():
    model = build(NETWORK, 3)
    found = with_weights(of_network(), **{name: value.detach() for name, value in model.named_parameters()})
    x = records(found, 6)
    with torch.no_grad():
        outputs = model[:-1](torch.from_numpy(x.reshape(6, -1) / 255).float())
    np.testing.assert_allclose(found(x).numpy(), of_norm(outputs.numpy()), atol=1e-5)


def test_only_maps_that_need_no_data_are_made_of_a_text():
    for text in ("none", "network:a.run"):
        assert refusal(make_feature_map, text, (9, 8), (0.0, 255.0)) == (
            f"`features`: {text!r} is no map that is made without data"
        )
