"""Drawings of a formula: what kinds are, that drawings of a kind are alike, and that the seed decides all of it."""

from __future__ import annotations

import math
from dataclasses import fields

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor
from torch.nn import functional

from dpltm.features.drawings.strokes import SIDE, STROKES, Kinds, draw, draw_kinds


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
