"""Painted scenes: the seed decides all of them, and leaves hide what is behind them; what patches of them say of images."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from make_photographs import DIRECTIONS, draw_views
from torch import Generator

from dpltm.features.feature_map import make_feature_map
from dpltm.features.photographs import PATCH, WAVES, Photographs, as_photographs, turned, units_of


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def test_grey_is_three_equal_colours():
    x = torch.rand(2, 32, 32)
    assert torch.equal(as_photographs(x), as_photographs(x[..., None].expand(-1, -1, -1, 3)))


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
