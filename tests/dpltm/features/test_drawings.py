"""Drawings of a formula: what kinds are, that drawings of a kind are alike, and what the encoder makes of images."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from make_drawings import STROKES, Kinds, draw, draw_kinds
from torch import Generator, Tensor
from torch.nn import functional

from dpltm.features.drawings import SIDE, as_drawings
from dpltm.features.feature_map import make_feature_map


def drawing() -> torch.Tensor:
    """A bright ring on black, 28 by 28."""
    rows, columns = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    distance = ((rows - 13.5) ** 2 + (columns - 13.5) ** 2).sqrt()
    return torch.exp(-((distance - 8) ** 2) / 8)


def test_a_drawing_is_taken_as_it_is():
    image = drawing()
    assert torch.equal(as_drawings(image[None])[0, 0], image)
    assert torch.equal(as_drawings(image[None, :, :, None])[0, 0], image)


def test_dark_on_light_is_turned_round_image_by_image():
    image = drawing()
    both = as_drawings(torch.stack([image, 1 - image]))
    torch.testing.assert_close(both[0], both[1])


def test_colours_become_grey():
    image = drawing()
    coloured = torch.stack([image, torch.zeros(28, 28), image], dim=-1)
    torch.testing.assert_close(as_drawings(coloured[None])[0, 0], image * (0.299 + 0.114))


@pytest.mark.parametrize("shape", [(8, 8), (8, 13), (14, 14), (32, 32, 3), (64, 48), (100, 90, 1)])
def test_any_size_is_taken(shape):
    made = as_drawings(torch.rand(3, *shape))
    assert made.shape == (3, 1, 28, 28)
    assert made.min() >= 0
    assert made.max() <= 1
    features = make_feature_map("drawings:20", shape, (0.0, 255.0))(np.zeros((2, *shape), np.uint8))
    assert features.shape == (2, 20)
    assert features.isfinite().all()


def test_a_larger_picture_of_the_same_is_nearly_the_same():
    image = drawing()
    large = torch.nn.functional.interpolate(image[None, None], (56, 56), mode="bilinear")[0]
    assert float((as_drawings(large)[0, 0] - image).abs().max()) < 0.1


def test_a_tall_image_keeps_its_proportions():
    tall = torch.zeros(1, 28, 14)
    tall[0, :, 4:10] = 1.0
    made = as_drawings(tall)[0, 0]
    assert made[:, :11].sum() == made[:, 17:].sum() == 0
    assert made[:, 11:17].mean() == 1


@pytest.mark.long
def test_it_tells_apart_drawings_that_it_has_not_seen():
    """One drawing of each of 200 new kinds is known, some kinds hardly different; of another drawing of each, the nearest
    known one says the kind. Half a percent would be right by chance."""
    generator = torch.Generator().manual_seed(123456)
    kinds = draw_kinds(200, generator)
    known, other = ((255 * draw(kinds, generator)[:, 0]).round().byte().numpy() for _ in range(2))
    right = {}
    for name in ("drawings", "scatter", "unit"):
        found = make_feature_map(name, (28, 28), (0.0, 255.0))
        first, second = found(known), found(other)
        right[name] = int(((second @ first.T).argmax(1) == torch.arange(200)).sum())
    assert right["drawings"] > 80
    assert right["drawings"] > 1.4 * max(right["scatter"], right["unit"])


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


def repeated(kinds: Kinds, times: int) -> Kinds:
    return kinds[torch.arange(len(kinds)).repeat_interleave(times)]


@given(st.integers(0, 2**31 - 1))
def test_every_drawing_has_ink_and_paper(seed):
    generator = seeded(seed)
    images = draw(draw_kinds(16, generator), generator)
    assert images.shape == (16, 1, SIDE, SIDE)
    assert images.min() >= 0
    assert images.max() <= 1
    assert (images.amax((1, 2, 3)) > 0.25).all(), "ink; the faintest of 30,000 drawings has 0.52"
    assert (images.amin((1, 2, 3)) < 0.25).all(), (
        "paper; where four thick strokes cover most of it, 0.02 was the most seen"
    )


def test_the_seed_decides_all_of_it():
    first, again, other = (draw(draw_kinds(8, generator), generator) for generator in map(seeded, (3, 3, 4)))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_kinds_have_one_to_four_strokes():
    counts = draw_kinds(4000, seeded(0)).there.sum(1).bincount(minlength=STROKES + 1)
    assert counts[0] == 0
    share = counts[1:] / 4000
    assert torch.allclose(share, torch.tensor([0.2, 0.35, 0.27, 0.18]), atol=4 * math.sqrt(0.25 / 4000))


def test_pairs_differ_in_one_stroke():
    kinds = draw_kinds(40, seeded(1), alike=0.5)
    assert torch.equal(kinds.there[:10], kinds.there[10:20])
    differs = torch.zeros(10, STROKES, dtype=torch.bool)
    for field in fields(kinds):
        values: Tensor = getattr(kinds, field.name)
        differs |= (values[:10] != values[10:20]).view(10, STROKES, -1).any(2)
    assert torch.equal(differs.sum(1), torch.ones(10, dtype=torch.long))
    assert (differs & kinds.there[:10]).any(1).all(), "the stroke that differs is one that is drawn"


def test_drawings_of_a_kind_are_alike():
    """Blurred, most are nearer to another drawing of their kind than to any of 19 other kinds; by chance 5 % would be."""
    generator = seeded(2)
    images = draw(repeated(draw_kinds(20, generator, alike=0.0), 10), generator)
    blurred = functional.normalize(functional.avg_pool2d(images, 4).flatten(1) - 0.1, dim=1)
    likeness = (blurred @ blurred.T).fill_diagonal_(-1.0)
    kind = torch.arange(20).repeat_interleave(10)
    share = float((kind[likeness.argmax(1)] == kind).float().mean())
    assert 0.5 < share < 1.0
