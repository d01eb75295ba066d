"""What patches are taken from: views of scenes, and views of things on grounds that change.

A *scene* is a canvas of leaves; its views are parts of it. A *thing* is some leaves near one another; its views are
painted anew, a little jittered, each on a ground of its own, so that the ground says nothing of the thing. Every view is
then cut out, mirrored, turned a little, and gets light, contrast, colours and blur of its own.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Generator, Tensor
from torch.nn import functional

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
