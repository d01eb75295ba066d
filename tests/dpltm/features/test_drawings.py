"""Drawings of a formula: what kinds are, that drawings of a kind are alike, and what the encoder makes of images."""

from __future__ import annotations

import pytest
import torch
from make_drawings import draw, draw_kinds

from dpltm.features.drawings import as_drawings
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
