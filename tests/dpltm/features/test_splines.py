"""Splines of a table: each feature beside its formula, and what a map keeps of pairs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from dpltm.errors import InputError
from dpltm.features import parse
from dpltm.features.feature_map import GRID, SplineMap, map_of
from dpltm.features.normalisation import NORM

NUMBERS = (0, 2)


@pytest.fixture(name="plain")
def _plain() -> SplineMap:
    """Of four columns, of which two are numbers."""
    found = map_of(parse("splines:6"), (4,), (0.0, 1.0), NUMBERS)
    assert isinstance(found, SplineMap)
    return found.with_slots(3)


def rows(count: int = 40) -> np.ndarray:
    x = np.random.default_rng(0).random((count, 4))
    x[:, 1] = x[:, 1] > 0.5
    x[:, 3] = 1 - x[:, 1]  # the other value of one category
    return x


def ready(plain: SplineMap) -> SplineMap:
    """The same with moments of those rows, and a pair."""
    return replace(plain.centred_at(plain.moment_rows(plain.stored(rows())).mean(0)), pairs=((0, 2),))


def test_hats_are_those_of_linear_interpolation(plain: SplineMap) -> None:
    """Whatever values a function has at the knots, its hats make the polygon through them."""
    x, knots = rows(), np.linspace(0, 1, 6)
    features = plain.of_single(plain.stored(x)).double().numpy()
    features /= features[:, :6].sum(1, keepdims=True)  # hats of a number add up to 1
    values = np.random.default_rng(1).normal(size=6)
    for place, column in enumerate(NUMBERS):
        found = features[:, 6 * place : 6 * place + 6] @ values
        np.testing.assert_allclose(found, np.interp(x[:, column], knots, values), atol=1e-5)
    np.testing.assert_allclose(features[:, 12:14], 4 * x[:, [0, 2]] - 2, atol=1e-5)
    np.testing.assert_allclose(features[:, 14:], x[:, [1, 3]], atol=1e-6)


def test_a_released_mean_says_where_columns_lie(plain: SplineMap) -> None:
    x, found = rows(), ready(plain)
    assert found.moments is not None
    np.testing.assert_allclose(found.moments, [x.mean(0), x.std(0)], atol=1e-5)
    z = np.clip((x - x.mean(0)) / x.std(0), -3, 3)
    np.testing.assert_allclose(found.standardised(found.stored(x)), z, atol=1e-4)


def test_a_pair_is_its_product_and_the_hats_of_both(plain: SplineMap) -> None:
    x, found = rows(), ready(plain)
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
    plain = map_of(parse("splines:6"), (4,), (0.0, 1.0), NUMBERS)
    assert isinstance(plain, SplineMap)
    found, x = ready(plain.with_slots(3)), np.array(values)
    features = found(x)
    assert (features.norm(dim=1) <= NORM * (1 + 1e-5)).all()
    assert (plain.moment_rows(plain.stored(x)).norm(dim=1) <= NORM * (1 + 1e-5)).all()
    torch.testing.assert_close(found(x[-1:]), features[-1:])


def test_an_id_is_of_numbers_slots_and_pairs(plain: SplineMap) -> None:
    found = ready(plain)
    others = [plain.with_slots(2), map_of(plain.base, (4,), (0.0, 1.0), (0,)), found, replace(found, pairs=((0, 1),))]
    assert len({plain.id, *(other.id for other in others)}) == 5
    assert found.uncentred.id == plain.id


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("splines:1", "`features`: splines:1: K must be 2 to 64; the usual is splines:6"),
        ("splines+unit", "`features`: splines:6+unit:1: splines stand alone; name them, or the others"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert str(caught.value) == said
