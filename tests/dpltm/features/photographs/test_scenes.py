"""Painted scenes: the seed decides all of them, and leaves hide what is behind them."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from dpltm.features.photographs.learning import draw_views
from dpltm.features.photographs.leaves import CANVAS, SIDE, TEXTURES, draw_colours, draw_leaves, draw_textures, paint


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
    textures = draw_textures(seeded(1))
    assert textures.shape == (TEXTURES, CANVAS, CANVAS)
    torch.testing.assert_close(textures.mean((1, 2)), torch.zeros(TEXTURES), rtol=0, atol=1e-4)
    torch.testing.assert_close(textures.flatten(1).std(1), torch.ones(TEXTURES), rtol=0, atol=1e-4)


def test_sizes_are_within_their_range():
    sizes = draw_leaves((50, 20), (0.1, 0.9), 1.0, seeded(2)).size
    assert sizes.min() > 0.0999
    assert sizes.max() < 0.9001
    assert (sizes < 0.3).float().mean() > 0.5, "small ones are more"


def test_a_leaf_hides_what_is_behind_it_and_nothing_beside_it():
    leaves = draw_leaves((1, 1), (0.3, 0.3001), 0.0, seeded(5))
    colours = draw_colours(1, 1, seeded(6))
    black, white = (
        paint(torch.full((1, 3, CANVAS, CANVAS), value), leaves, colours, torch.zeros(TEXTURES, CANVAS, CANVAS))
        for value in (0.0, 1.0)
    )
    differs = (white - black)[0, 0]
    assert differs[CANVAS // 2, CANVAS // 2] < 0.01
    assert differs[0, 0] > 0.99
