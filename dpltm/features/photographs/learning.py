"""A dictionary of patches of painted scenes, and directions along which scenes differ in it: from a seed alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional

from dpltm.features.drawings.learning import directions, one_thread
from dpltm.features.photographs.feature_map import CONTRAST, PATCH, units_of
from dpltm.features.photographs.leaves import (
    CANVAS,
    SIDE,
    TEXTURES,
    Leaves,
    draw_colours,
    draw_leaves,
    draw_textures,
    paint,
    uniform,
)

ROUNDS = 8
"""Of k-means."""

SCENES = 80
"""Scenes and things that are painted at a time."""

SAMPLE = 6_000
"""Images that patches and directions are taken from, about, each of a scene of its own."""

PATCHES = 60_000
"""Patches that are taken from them."""

SIZE = 256
"""Patches of the dictionary."""

EVEN = 0.1
"""Added to variances before whitening, as a share of their mean."""

DIRECTIONS, WHITENING = 400, 0.25
"""Principal components that are kept, and the power of their variance that they are divided by."""

BATCH = 50
"""Images at a time."""


def make(seed: int, rounds: int = ROUNDS, step: Callable[[int, str], None] | None = None) -> dict[str, np.ndarray]:
    """The tensors of the bundled file, float16: ``filters`` and ``offset`` of patches, ``mean`` and ``directions`` of units.

    Args:
        seed: public.
        rounds: of k-means.
        step: told of the rounds done, with a note.
    """
    with one_thread():
        generator = Generator().manual_seed(seed)
        images = torch.cat([draw_views(SCENES, 1, generator) for _ in range(max(1, SAMPLE // SCENES))])
        filters, offset = (part.half() for part in dictionary(patches(images, generator), rounds, generator, step))
        units = torch.cat([units_of(some, filters.float(), offset.float()) for some in images.split(BATCH)])
        mean, found = (part.half() for part in directions(units, DIRECTIONS, WHITENING))
    tensors = {"filters": filters, "offset": offset, "mean": mean, "directions": found}
    return {name: value.contiguous().numpy() for name, value in tensors.items()}


def patches(images: Tensor, generator: Generator) -> Tensor:
    """Patches from anywhere, each less its mean and over its deviation: ``(PATCHES, 3 * PATCH**2)``."""
    which = torch.randint(len(images), (PATCHES,), generator=generator)
    top, left = torch.randint(SIDE - PATCH + 1, (2, PATCHES), generator=generator)
    reach = torch.arange(PATCH)
    rows, columns = (top[:, None] + reach)[:, :, None], (left[:, None] + reach)[:, None, :]
    taken = images.permute(0, 2, 3, 1)[which[:, None, None], rows, columns].permute(0, 3, 1, 2).flatten(1)
    taken = taken - taken.mean(1, keepdim=True)
    return taken / (taken.square().mean(1, keepdim=True) + CONTRAST).sqrt()


def dictionary(
    taken: Tensor, rounds: int, generator: Generator, step: Callable[[int, str], None] | None = None
) -> tuple[Tensor, Tensor]:
    """Filters and offset of a dictionary: directions of whitened patches, by k-means on the sphere.

    Args:
        taken: ``(n, 3 * PATCH**2)`` patches.
        rounds: of k-means.
        generator: says which patches it starts from.
        step: see :func:`make`.
    """
    mean = taken.mean(0)
    values, vectors = torch.linalg.eigh(((taken - mean).T @ (taken - mean) / len(taken)).double())
    whitening = (vectors / (values + EVEN * values.mean()).sqrt() @ vectors.T).float()
    white = functional.normalize((taken - mean) @ whitening, dim=1)
    middles = white[torch.randperm(len(white), generator=generator)[:SIZE]]
    for done in range(rounds):
        likeness, nearest = (white @ middles.T).max(1)
        sums = torch.zeros_like(middles).index_add_(0, nearest, white)
        middles = torch.where(sums.norm(dim=1, keepdim=True) > 0, functional.normalize(sums, dim=1), middles)
        if step is not None:
            step(done + 1, f"{float(likeness.mean()):.0%} alike")
    filters = middles @ whitening
    offset = filters @ mean
    filters = filters - filters.mean(1, keepdim=True)  # a patch has its own mean taken off: folded in here
    return filters.view(SIZE, 3, PATCH, PATCH), offset


# What patches are taken from: views of scenes, and views of things on grounds that change.
#
# A *scene* is a canvas of leaves; its views are parts of it. A *thing* is some leaves near one another; its views are
# painted anew, a little jittered, each on a ground of its own, so that the ground says nothing of the thing. Every view is
# then cut out, mirrored, turned a little, and gets light, contrast, colours and blur of its own.


def draw_views(kinds: int, each: int, generator: Generator) -> Tensor:
    """Views of scenes and things that nobody has seen before, ``(each * kinds, 3, SIDE, SIDE)`` in 0..1.

    Args:
        kinds: half of them scenes, half of them things.
        each: views of each; the first of all, in order, then the second of all, and so on.
        generator: of public bits.
    """
    textures = draw_textures(generator)
    scenes, things = kinds // 2, kinds - kinds // 2
    number = 10 + 6 * _below(3, generator)
    canvas = grounds(scenes, textures, generator)
    leaves = draw_leaves((scenes, number), (0.1, 1.0), 1.2, generator)
    canvas = paint(canvas, leaves, draw_colours(scenes, number, generator), textures)
    parts = 3 + _below(6, generator)
    thing, colours = draw_leaves((things, parts), (0.15, 0.6), 0.45, generator), draw_colours(things, parts, generator)
    views = []
    for _ in range(each):
        ground = grounds(things, textures, generator)
        nearly = colours + 0.04 * torch.randn(colours.shape, generator=generator)
        seen = paint(ground, _jittered(thing, generator), nearly, textures)
        views += [cut(canvas, (0.45, 0.95), generator), cut(seen, (0.55, 1.05), generator)]
    return lit(torch.cat(views), generator)


def grounds(count: int, textures: Tensor, generator: Generator) -> Tensor:
    """Grounds: a colour that falls from top to bottom, noise, and up to nine leaves; ``(count, 3, CANVAS, CANVAS)``.

    Args:
        count: how many.
        textures: noise, ``(TEXTURES, CANVAS, CANVAS)``.
        generator: of public bits.
    """
    which = torch.randint(TEXTURES, (count,), generator=generator)
    noise = uniform(generator, (count, 1, 1, 1), 0.0, 0.25) * textures[which][:, None]
    fall = 0.2 * torch.randn(count, 1, 1, 1, generator=generator) * torch.linspace(-1, 1, CANVAS)[:, None]
    ground = uniform(generator, (count, 3, 1, 1), 0.2, 0.8) + noise + fall
    number = 3 * _below(4, generator)
    leaves = draw_leaves((count, number), (0.08, 0.9), 1.2, generator)
    return paint(ground, leaves, draw_colours(count, number, generator), textures)


def cut(canvas: Tensor, sizes: tuple[float, float], generator: Generator) -> Tensor:
    """One view of each canvas, a part of it, mirrored or not, turned and stretched a little: ``(n, 3, SIDE, SIDE)``.

    Args:
        canvas: ``(n, 3, CANVAS, CANVAS)``.
        sizes: of the part, the smallest and the largest, as shares of the canvas.
        generator: of public bits.
    """
    count = len(canvas)
    size = uniform(generator, (count,), *sizes)
    stretch, angle = (0.12 * torch.randn(count, generator=generator) for _ in range(2))
    mirrored = torch.where(torch.rand(count, generator=generator) < 0.5, -1.0, 1.0)
    wide, high = size * stretch.exp(), size / stretch.exp()
    x, y = (uniform(generator, (count,), -1.0, 1.0) * (1 - side).clamp_min(0) for side in (wide, high))
    across = torch.stack([wide * mirrored * angle.cos(), -wide * angle.sin(), x], 1)
    down = torch.stack([high * mirrored * angle.sin(), high * angle.cos(), y], 1)
    grid = functional.affine_grid(torch.stack([across, down], 1), [count, 3, SIDE, SIDE], align_corners=False)
    return functional.grid_sample(canvas, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def lit(views: Tensor, generator: Generator) -> Tensor:
    """Views with light, contrast, colours, blur and grain of their own; an eighth of them without colours; cut to 0..1."""
    count = len(views)

    def normal(size: float, colours: int = 1) -> Tensor:
        return size * torch.randn(count, colours, 1, 1, generator=generator)

    def some(share: float) -> Tensor:
        return torch.rand(count, 1, 1, 1, generator=generator) < share

    views = views * normal(0.25).exp() + normal(0.08)
    mean = views.mean((1, 2, 3), keepdim=True)
    views = mean + (views - mean) * normal(0.25).exp()
    grey = views.mean(1, keepdim=True)
    views = grey + (views - grey) * normal(0.3).exp().masked_fill(some(0.12), 0.0) + normal(0.06, 3)
    blurred = functional.avg_pool2d(functional.pad(views, (1, 1, 1, 1), mode="reflect"), 3, 1)
    share = torch.rand(count, 1, 1, 1, generator=generator) * some(0.4)
    views = views + share * (blurred - views)
    return (views + 0.02 * torch.randn(views.shape, generator=generator)).clamp(0.0, 1.0)


def _jittered(thing: Leaves, generator: Generator) -> Leaves:
    """Leaves moved, turned and resized a little."""
    x, y, angle, size = (
        spread * torch.randn(thing.x.shape, generator=generator) for spread in (0.04, 0.04, 0.12, 0.08)
    )
    return replace(thing, x=thing.x + x, y=thing.y + y, angle=thing.angle + angle, size=thing.size * size.exp())


def _below(limit: int, generator: Generator) -> int:
    return int(torch.randint(limit, (), generator=generator))
