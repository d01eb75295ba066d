"""Feature maps: every row from its own record alone, of a fixed norm, computed once, under an id that tells maps apart."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from dpltm.features import parse
from dpltm.features.feature_map import GRID, FeatureMap, SplineMap, map_of
from dpltm.features.inputs import FeatureStore, network_inputs, take_over_map, with_feature_map
from dpltm.features.normalisation import NORM, ChannelStatistics
from dpltm.features.transforms import Scattering
from dpltm.privacy.entry import Lineage
from dpltm.records import from_arrays
from dpltm.records.notes import feature_notes
from maps import make_feature_map
from opened import arrays_of
from refusals import refused
from set_entries import LINEAGES


def plain(shape: tuple[int, ...] = (9, 8), text: str = "scatter:2,4") -> FeatureMap:
    return make_feature_map(text, shape, (0.0, 255.0))


def of_statistics(shape: tuple[int, ...] = (9, 8)) -> FeatureMap:
    count = plain(shape).feature_shape[-1]
    generator = torch.Generator().manual_seed(3)
    mean, deviation = (torch.rand(count, generator=generator) / 10 for _ in range(2))
    return replace(plain(shape), lineage=LINEAGES["public"], statistics=ChannelStatistics(mean, deviation + 0.01))


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
}


def records(found: FeatureMap, count: int = 35, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *found.shape), dtype=np.uint8)


@pytest.fixture(params=CASES)
def found(request: pytest.FixtureRequest) -> FeatureMap:
    return CASES[request.param]


def test_shapes_and_norms(found: FeatureMap):
    values = found(records(found))
    assert values.shape == (35, found.features)
    assert values.dtype == torch.float32
    assert not values.requires_grad
    torch.testing.assert_close(values.double().norm(dim=1), torch.full((35,), NORM).double(), rtol=1e-5, atol=0)
    assert len(values.unique(dim=0)) == 35
    assert found(records(found)[:0]).shape == (0, found.features)


@pytest.mark.one_of(3)
def test_a_row_depends_on_its_own_record_alone(found: FeatureMap):
    x = records(found)
    values = found(x)
    for row in (0, 5, 34):
        other = np.where(np.arange(35).reshape(-1, *[1] * (x.ndim - 1)) == row, x, records(found, seed=1))
        assert torch.equal(found(other)[row], values[row])
        assert not torch.equal(found(other)[row - 1], values[row - 1])
    order = np.random.default_rng(2).permutation(35)
    assert torch.equal(found(x[:3]), values[:3]), "however many records follow"
    assert torch.equal(found(x[:34]), values[:34])
    torch.testing.assert_close(found(x[order]), values[order], rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.cat([found(x[:3]), found(x[3:])]), values, rtol=0, atol=1e-5)


def test_blank_records_give_numbers_and_values_beyond_the_bounds_saturate(found: FeatureMap):
    for value in (0, 255, 128):
        values = found(np.full((1, *found.shape), value, dtype=np.uint8))
        assert values.isfinite().all()
        assert (values.norm(dim=1) <= NORM * (1 + 1e-5)).all()
    x = records(found, 4).astype(np.float64)
    beyond = np.where(x > 200, 1e30, np.where(x < 50, -1e30, x))
    clipped = np.where(x > 200, 255.0, np.where(x < 50, 0.0, x))
    assert torch.equal(found(beyond), found(clipped))


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


def test_ids_differ_with_everything_that_decides_the_features():
    statistic = of_statistics()
    mean, deviation = vars(statistic.statistics).values()
    shifted = mean.clone()
    shifted[-1] += 1e-3
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
    ]
    assert len({found.id for found in maps}) == len(maps)
    for one, other in ((plain(), plain()), (of_statistics(), statistic)):
        assert one.id == other.id
        assert len(one.id) == 64


def test_maps_for_other_records():
    found = of_statistics()
    assert found.for_records((9, 8), (0.0, 255.0)) is found
    other = found.for_records((12, 10), (0.0, 1.0))
    assert (other.shape, other.bounds, other.text) == ((12, 10), (0.0, 1.0), found.text)
    assert other.lineage == LINEAGES["public"]
    assert other.statistics is found.statistics
    assert other(np.random.default_rng(0).random((2, 12, 10))).shape == (2, other.features)
    assert other.feature_shape != found.feature_shape
    assert plain().for_records((9, 8, 3), (0.0, 255.0)).features == 3 * plain().features


def test_records_that_a_map_cannot_take():
    said = "`features`: statistics are of 25 channels, but records of shape (9, 8, 3) have 75; take"
    assert refused(of_statistics().for_records, (9, 8, 3), (0.0, 255.0)).startswith(said)


class Rounding:
    """A transform, and a little that depends on the place of a record, or on the others."""

    def __init__(self, transform: Any, more: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._transform, self._more = transform, more

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transform, name)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        given = self._transform(rows)
        return given + 2.0**-20 * self._more(given)


@pytest.mark.parametrize(
    "more",
    [lambda rows: torch.arange(len(rows)).view(-1, 1, 1, 1), lambda rows: rows - rows.mean(0)],
    ids=["place", "others"],
)
def test_records_are_taken_one_by_one_where_others_move_their_last_bits(more):
    """As on a machine whose libraries round so."""
    x = np.random.default_rng(3).integers(0, 256, (70, 9, 8), dtype=np.uint8)
    made = replace(plain())
    made.__dict__["_transform"] = Rounding(made._transform, more)
    alone = torch.cat([made.stored(x[row : row + 1]) for row in range(len(x))])
    assert torch.equal(made.stored(x), alone)


def test_a_map_is_tried_once_for_all_pieces_of_a_split():
    rows = []
    made = replace(plain())
    made.__dict__["_transform"] = Rounding(made._transform, lambda given: rows.append(len(given)) or 0 * given)
    x = np.zeros((64, 9, 8), np.uint8)
    made.stored(x)
    rows.clear()
    made.stored(x)
    assert rows == [32, 32]


MAP = make_feature_map("unit:2", (4, 4), (0.0, 255.0))


@pytest.fixture(scope="module")
def of_1140():
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (1140, 4, 4), dtype=np.uint8), draw.integers(0, 3, 1140)
    return from_arrays(x[40:], y[40:], test=(x[:40], y[:40]), classes=3)


def test_values_that_are_computed_once(of_1140, monkeypatch):
    rows: list[int] = []
    plain = FeatureMap.stored
    monkeypatch.setattr(FeatureMap, "stored", lambda self, x: (rows.append(len(x)), plain(self, x))[1])
    store = FeatureStore()
    found = store.features(of_1140, of_1140.train, MAP)
    values = arrays_of(found).x
    assert (values.dtype, values.shape) == (np.float16, (1100, 8))
    assert np.array_equal(values, plain(MAP, arrays_of(of_1140.train).x).half().numpy())
    assert store.features(of_1140, of_1140.train, MAP) is found
    assert sum(rows) == 1100
    assert store.features(of_1140, of_1140.test, MAP).shape == (8,)
    assert store.features(of_1140, of_1140.train, make_feature_map("unit", (4, 4), (0.0, 255.0))).shape == (16,)


def of_grey(seed: int, count: int = 60, shape: tuple[int, ...] = (6, 6), name: str = "mine"):
    draw = np.random.default_rng(seed)
    return from_arrays(
        draw.integers(0, 256, (count, *shape), dtype=np.uint8), draw.integers(0, 3, count), classes=3, name=name
    )


PRIVATE = of_grey(0)
PRIVATE_LARGE = of_grey(0, shape=(10, 8))


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
        said = f"`features`: {found.text} was drawn for records of shape (6, 6), and these are of shape (10, 8)"
        assert message.startswith(said)


def test_a_remembered_map():
    found = make_feature_map("unit:3", (6, 6), (0.0, 255.0))
    assert take_over_map(PRIVATE, found, None, "the set").feature_map is found
    assert take_over_map(PRIVATE, None, None, "the set") is PRIVATE
    said = "`features`: the set remembers what stands in front of its network; leave `features` out"
    assert refused(take_over_map, PRIVATE, found, "unit:3", "the set") == said


def test_what_a_reader_should_know():
    assert feature_notes(PRIVATE) == []
    (found,) = feature_notes(replace(PRIVATE, lineage=LINEAGES["dp"]))
    assert found == "bounds and categories of the schema were found under DP, and what that cost counts"


def test_inputs():
    assert network_inputs(PRIVATE.train, PRIVATE) is PRIVATE.train
    of_1140 = with_feature_map(PRIVATE, "unit")
    centre = torch.full((36,), 0.1)
    centred = replace(of_1140, feature_map=of_1140.feature_map.centred_at(centre))
    plain = arrays_of(network_inputs(of_1140.train, of_1140)).x
    assert np.array_equal(arrays_of(network_inputs(centred.train, centred)).x, plain), (
        "they are centred where they are read"
    )
    np.testing.assert_allclose(np.linalg.norm(plain.astype("f8"), axis=1), NORM, rtol=1e-3)


NUMBERS = (0, 2)


@pytest.fixture(name="splines")
def _plain() -> SplineMap:
    """Of four columns, of which two are numbers."""
    found = map_of(parse("splines:6"), (4,), (0.0, 1.0), NUMBERS)
    assert isinstance(found, SplineMap)
    return replace(found, slots=3)


def of_columns(count: int = 40) -> np.ndarray:
    x = np.random.default_rng(0).random((count, 4))
    x[:, 1] = x[:, 1] > 0.5
    x[:, 3] = 1 - x[:, 1]  # the other value of one category
    return x


def ready(splines: SplineMap) -> SplineMap:
    """The same with moments of those rows, and a pair."""
    return replace(splines.centred_at(splines.moment_rows(splines.stored(of_columns())).mean(0)), pairs=((0, 2),))


def test_hats_are_those_of_linear_interpolation(splines: SplineMap) -> None:
    """Whatever values a function has at the knots, its hats make the polygon through them."""
    x, knots = of_columns(), np.linspace(0, 1, 6)
    features = splines.of_single(splines.stored(x)).double().numpy()
    features /= features[:, :6].sum(1, keepdims=True)  # hats of a number add up to 1
    values = np.random.default_rng(1).normal(size=6)
    for place, column in enumerate(NUMBERS):
        found = features[:, 6 * place : 6 * place + 6] @ values
        np.testing.assert_allclose(found, np.interp(x[:, column], knots, values), atol=1e-5)
    np.testing.assert_allclose(features[:, 12:14], 4 * x[:, [0, 2]] - 2, atol=1e-5)
    np.testing.assert_allclose(features[:, 14:], x[:, [1, 3]], atol=1e-6)


def test_a_released_mean_says_where_columns_lie(splines: SplineMap) -> None:
    x, found = of_columns(), ready(splines)
    assert found.moments is not None
    np.testing.assert_allclose(found.moments, [x.mean(0), x.std(0)], atol=1e-5)
    z = np.clip((x - x.mean(0)) / x.std(0), -3, 3)
    np.testing.assert_allclose(found.standardised(found.stored(x)), z, atol=1e-4)


def test_a_pair_is_its_product_and_the_hats_of_both(splines: SplineMap) -> None:
    x, found = of_columns(), ready(splines)
    features = found(x).double().numpy()[:, found.single :]
    z = found.standardised(found.stored(x)).double().numpy()
    product, share = features[:, 3 * GRID**2], NORM / 2  # of a half, a half
    np.testing.assert_allclose(product, share * np.sign(z[:, 0] * z[:, 2]), atol=1e-4)  # one product has one direction
    places = np.linspace(-2, 2, GRID)
    grid = np.stack([
        np.interp(z[:, 0], places, np.eye(GRID)[i]) * np.interp(z[:, 2], places, np.eye(GRID)[j])
        for i in range(GRID) for j in range(GRID)
    ], axis=1)  # fmt: skip
    np.testing.assert_allclose(features[:, : GRID**2], share * grid / np.linalg.norm(grid, axis=1)[:, None], atol=1e-3)
    assert not features[:, ~found.live[found.single :].numpy()].any(), "the two slots that are free"


@given(
    some.lists(some.lists(some.sampled_from([0.0, 1.0, 0.5, 1e-30, -7.0, 1e30]), min_size=4, max_size=4), min_size=1)
)
def test_no_row_is_longer_than_the_norm_and_none_depends_on_others(values: list[list[float]]) -> None:
    splines = map_of(parse("splines:6"), (4,), (0.0, 1.0), NUMBERS)
    assert isinstance(splines, SplineMap)
    found, x = ready(replace(splines, slots=3)), np.array(values)
    features = found(x)
    assert (features.norm(dim=1) <= NORM * (1 + 1e-5)).all()
    assert (splines.moment_rows(splines.stored(x)).norm(dim=1) <= NORM * (1 + 1e-5)).all()
    torch.testing.assert_close(found(x[-1:]), features[-1:])


def test_an_id_is_of_numbers_slots_and_pairs(splines: SplineMap) -> None:
    found = ready(splines)
    others = [
        replace(splines, slots=2),
        map_of(splines.base, (4,), (0.0, 1.0), (0,)),
        found,
        replace(found, pairs=((0, 1),)),
    ]
    assert len({splines.id, *(other.id for other in others)}) == 5
    assert found.uncentred.id == splines.id
