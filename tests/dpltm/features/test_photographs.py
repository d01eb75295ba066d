"""Painted scenes: the seed decides all of them, and leaves hide what is behind them; what patches of them say of images."""

from __future__ import annotations

import itertools
import math

import make_photographs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from make_photographs import (
    CANVAS,
    DIRECTIONS,
    SIZE,
    TEXTURES,
    _dictionary,
    _draw_colours,
    _draw_leaves,
    _draw_textures,
    _paint,
    _patches,
    draw_views,
)
from torch import Generator

from dpltm.features import MAPS
from dpltm.features.feature_map import make_feature_map
from dpltm.features.photographs import PATCH, SIDE, WAVES, Photographs, as_photographs, turned, units_of


@pytest.fixture(autouse=True)
def _few_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_photographs, "PATCHES", 2000)


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def test_grey_is_three_equal_colours():
    x = torch.rand(2, 32, 32)
    assert torch.equal(as_photographs(x), as_photographs(x[..., None].expand(-1, -1, -1, 3)))


def test_an_image_of_the_size_is_taken_as_it_is():
    x = torch.rand(2, 32, 32, 3)
    assert torch.equal(as_photographs(x), x.permute(0, 3, 1, 2))


def test_there_are_as_many_directions_as_may_be_asked_for():
    most = MAPS["photographs"].parameters[0].high
    assert make_feature_map(f"photographs:{most}", (32, 32, 3), (0.0, 255.0))(images(1, 32, 32, 3)).shape == (1, most)


def test_the_mirror_image_says_the_same():
    x = images(3, 32, 32, 3)
    found = make_feature_map("photographs", (32, 32, 3), (0.0, 255.0))
    torch.testing.assert_close(found(x), found(x[:, :, ::-1].copy()), rtol=0, atol=1e-4)


@pytest.mark.long
def test_it_tells_apart_scenes_that_it_has_not_seen():
    """One view of each of 100 new scenes and things is known; of another view, the nearest known one says which it is."""
    views = draw_views(100, 2, torch.Generator().manual_seed(123456))
    known, other = (255 * views).round().byte().permute(0, 2, 3, 1).numpy().reshape(2, 100, 32, 32, 3)
    right = {}
    for name in ("photographs", "unit"):
        found = make_feature_map(name, (32, 32, 3), (0.0, 255.0))
        right[name] = int(((found(other) @ found(known).T).argmax(1) == torch.arange(100)).sum())
    assert right["photographs"] > 1.4 * right["unit"]
    assert right["photographs"] > 20


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


@given(st.integers(0, 2**31 - 1))
def test_every_view_is_an_image(seed):
    views = draw_views(6, 2, seeded(seed))
    assert views.shape == (12, 3, SIDE, SIDE)
    assert views.min() >= 0
    assert views.max() <= 1


def test_the_seed_decides_all_of_it():
    first, again, other = (draw_views(4, 1, seeded(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_textures_have_one_mean_and_variance():
    textures = _draw_textures(seeded(1))
    assert textures.shape == (TEXTURES, CANVAS, CANVAS)
    torch.testing.assert_close(textures.mean((1, 2)), torch.zeros(TEXTURES), rtol=0, atol=1e-4)
    torch.testing.assert_close(textures.flatten(1).std(1), torch.ones(TEXTURES), rtol=0, atol=1e-4)


def test_sizes_are_within_their_range():
    sizes = _draw_leaves((50, 20), (0.1, 0.9), 1.0, seeded(2)).size
    assert sizes.min() > 0.0999
    assert sizes.max() < 0.9001
    assert (sizes < 0.3).float().mean() > 0.5, "small ones are more"


def test_a_leaf_hides_what_is_behind_it_and_nothing_beside_it():
    leaves = _draw_leaves((1, 1), (0.3, 0.3001), 0.0, seeded(5))
    colours = _draw_colours(1, 1, seeded(6))
    black, white = (
        _paint(torch.full((1, 3, CANVAS, CANVAS), value), leaves, colours, torch.zeros(TEXTURES, CANVAS, CANVAS))
        for value in (0.0, 1.0)
    )
    differs = (white - black)[0, 0]
    assert differs[CANVAS // 2, CANVAS // 2] < 0.01
    assert differs[0, 0] > 0.99


def test_patches_have_no_mean_and_one_contrast():
    images = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    taken = _patches(images, torch.Generator().manual_seed(1))
    torch.testing.assert_close(taken.mean(1), torch.zeros(2000), rtol=0, atol=1e-5)
    assert (taken.square().mean(1) < 1).all()
    assert (taken.square().mean(1) > 0.8).all()  # the variance of uniform noise, 1/12, over itself and 0.01


def test_units_are_those_of_the_definition():
    """Patch by patch, in the words of the module: contrast, comparison, threshold, means by six waves, both ways."""
    generator = torch.Generator().manual_seed(2)
    image, filters = torch.rand(3, 8, 8, generator=generator), torch.randn(4, 3, PATCH, PATCH, generator=generator)
    filters, offset = filters - filters.mean((1, 2, 3), keepdim=True), torch.randn(4, generator=generator)
    lines = {
        0: (1.0, 1.0, 1.0),
        1: (1.5**0.5, 0.0, -(1.5**0.5)),
        2: (0.5**0.5, -(2**0.5), 0.5**0.5),
    }  # at three places
    shares = {0: 1.0, 1: math.exp(-0.35), 2: math.exp(-1.4)}
    total = torch.zeros(8, 6)
    for seen, row, column in itertools.product((image, image.flip(2)), range(3), range(3)):
        patch = seen[:, row : row + PATCH, column : column + PATCH]
        patch = (patch - patch.mean()) / (patch.var(correction=0) + 0.01).sqrt()
        like = (filters * patch).sum((1, 2, 3)) - offset
        least = 0.4 * like.square().mean().sqrt()
        units = torch.cat([like - least, -like - least]).clamp_min(0)
        for at, (down, across) in enumerate([(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (0, 2)]):
            here = shares[down] * lines[down][row] * shares[across] * lines[across][column]
            total[:, at] += units * here / 9 / 2
    alike, opposite = total.split(4)
    expected = torch.stack([alike - opposite, alike + opposite])
    torch.testing.assert_close(units_of(image[None], filters, offset)[0], expected, rtol=1e-4, atol=1e-4)


def test_images_beside_it_change_no_bit_of_an_image():
    generator = torch.Generator().manual_seed(3)
    images, filters = (
        torch.rand(3, 3, 32, 32, generator=generator),
        torch.randn(8, 3, PATCH, PATCH, generator=generator),
    )
    together = units_of(images, filters, torch.zeros(8))
    for at, image in enumerate(images):
        assert torch.equal(units_of(image[None], filters, torch.zeros(8))[0], together[at])


def test_images_may_want_a_gradient():
    """As one who asks which pixels an exported network goes by does."""
    generator = torch.Generator().manual_seed(5)
    images, filters = torch.rand(2, 3, 8, 8, generator=generator), torch.randn(4, 3, PATCH, PATCH, generator=generator)
    wanting = images.clone().requires_grad_()
    found = units_of(wanting, filters, torch.zeros(4))
    torch.testing.assert_close(found, units_of(images, filters, torch.zeros(4)))
    found.square().sum().backward()
    assert wanting.grad.isfinite().all()
    assert wanting.grad.any()


def test_units_are_turned_within_a_wave():
    """By loops: in each wave, with the sign and without, along each direction."""
    generator = torch.Generator().manual_seed(4)
    units, directions = torch.randn(3, 2, 5, 6, generator=generator), torch.randn(2, 2, 5, generator=generator)
    found = turned(units, directions).view(3, 2, 2, 6)
    for image, sign, at, wave in itertools.product(range(3), range(2), range(2), range(6)):
        expected = sum(float(directions[sign, at, unit] * units[image, sign, unit, wave]) for unit in range(5))
        assert float(found[image, sign, at, wave]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.long
def test_the_bundled_features_of_new_scenes_hardly_go_together_within_a_wave():
    """On scenes that nothing was fitted to. The first differ most, as their variance to the power of 0.2."""
    views = draw_views(600, 1, seeded(987)).permute(0, 2, 3, 1)
    found = Photographs(60, (32, 32, 3))
    features = found(views)
    spread = features.std(0)
    assert (spread[:-1] > 0.75 * spread[1:]).all(), "those that differ most are first"
    variance = (features / found._scale).var(0)
    assert float((spread[1] / spread[-1]).log() / (variance[1] / variance[-1]).log()) == pytest.approx(0.2, abs=0.03)
    sign, wave = found._kept // (DIRECTIONS * len(WAVES)), found._kept % len(WAVES)
    same = (sign[:, None] == sign) & (wave[:, None] == wave) & ~torch.eye(60, dtype=torch.bool)
    together = (torch.corrcoef(features.T) - torch.eye(60)).abs()
    assert together.mean() < 0.09, "600 samples of nothing in common have 0.033"
    assert same.sum() > 200
    assert together[same].mean() < 0.09


def test_filters_compare_whitened_patches():
    generator = torch.Generator().manual_seed(3)
    taken = _patches(torch.rand(40, 3, 32, 32, generator=generator), generator)
    filters, offset = _dictionary(taken, 2, generator)
    torch.testing.assert_close(filters.sum((1, 2, 3)), torch.zeros(SIZE), rtol=0, atol=1e-3)
    torch.testing.assert_close(taken.mean(0) @ filters.flatten(1).T, offset, rtol=0, atol=1e-3)
