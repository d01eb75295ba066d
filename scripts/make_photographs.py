"""Make the bundled dictionary of photographs again: from a formula and a seed, and no data. A minute or two on one core.

    python scripts/make_photographs.py [--seed 0] [--steps 8] [--out photographs.safetensors]

The bundled file is seed 0 with the usual rounds of k-means. Where torch rounds in the same way, the new file has the same
digest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from make_drawings import principal_axes, uniform, write_bundled
from torch import Generator, Tensor
from torch.nn import functional

from dpltm.features import PHOTOGRAPHS_DIGEST, PHOTOGRAPHS_FILE
from dpltm.features.photographs import CONTRAST, PATCH, SIDE, turned, units_of
from dpltm.networks.full_precision import threads

CANVAS = 44  # pixels of the side of what an image is cut from

# Leaves: shapes that hide one another, each with a colour, a pattern and a grain of its own, painted on grounds of noise.
#
# Dead leaves (Lee, Mumford, Huang 2001) and noise of spectrum 1 / f^a (Field 1987) have statistics that photographs have
# too: edges, occlusion, the same at every scale. All of it is a formula of a public seed: no image was looked at. People who
# know photographs, and such statistics, wrote it. Lengths are in units of half a canvas, angles in radians; colours are red,
# green and blue in 0..1, cut only in the end.

TEXTURES = 96  # patterns of noise that leaves and grounds of the scenes of one call share

POWERS = (1.0, 2.0, 2.0, 2.0, 6.0)
"""Of the norm whose ball a leaf is: a diamond, an ellipse (most of them), a rectangle."""


@dataclass(frozen=True)
class Leaves:
    """Leaves of each of some canvases, in the order in which they are painted; every tensor ``(canvases, leaves)``.

    Attributes:
        x, y: middle.
        size, stretch, angle: radius, the root of how much longer than wide, and where the long side points.
        power: of the norm whose ball it is.
        lobes, dent, phase: how often its edge goes in and out, how far, and from where.
        waves, heading, stripe: of a pattern of stripes: how many, where to, how strong; most leaves have none.
        grain, texture: strength of its noise, and which noise.
        along, across: how its brightness falls.
    """

    x: Tensor
    y: Tensor
    size: Tensor
    stretch: Tensor
    angle: Tensor
    power: Tensor
    lobes: Tensor
    dent: Tensor
    phase: Tensor
    waves: Tensor
    heading: Tensor
    stripe: Tensor
    grain: Tensor
    texture: Tensor
    along: Tensor
    across: Tensor

    def __len__(self) -> int:
        return self.x.shape[1]


def _draw_leaves(shape: tuple[int, int], sizes: tuple[float, float], spread: float, generator: Generator) -> Leaves:
    """Draw leaves, at most ``spread`` from the middle of the canvas.

    Args:
        sizes: the smallest and the largest radius; small ones are more, so that all scales look alike.
    """

    def within(low: float, high: float) -> Tensor:
        return uniform(generator, shape, low, high)

    def some(share: float) -> Tensor:
        return (within(0.0, 1.0) < share).float()

    def normal(size: float) -> Tensor:
        return size * torch.randn(shape, generator=generator)

    small, large = (size**-1.2 for size in sizes)
    return Leaves(
        x=within(-spread, spread),
        y=within(-spread, spread),
        size=within(large, small) ** (-1 / 1.2),
        stretch=normal(0.45).exp(),
        angle=within(0.0, math.pi),
        power=torch.tensor(POWERS)[torch.randint(len(POWERS), shape, generator=generator)],
        lobes=torch.randint(2, 8, shape, generator=generator).float(),
        dent=within(0.0, 0.35) * some(0.5),
        phase=within(0.0, 2 * math.pi),
        waves=within(math.log(2.0), math.log(14.0)).exp(),
        heading=within(0.0, math.pi),
        stripe=within(0.0, 0.25) * some(0.35),
        grain=0.22 * within(0.0, 1.0) ** 2,
        texture=torch.randint(TEXTURES, shape, generator=generator),
        along=normal(0.08),
        across=normal(0.08),
    )


def _paint(canvas: Tensor, leaves: Leaves, colours: Tensor, textures: Tensor) -> Tensor:
    """Leaves of colours ``(canvases, leaves, 3)``, one over the other on ``(canvases, 3, CANVAS, CANVAS)``."""
    line = (torch.arange(CANVAS) + 0.5) / CANVAS * 2 - 1
    rows, columns = line[:, None], line[None, :]
    for number in range(len(leaves)):
        one = Leaves(*(getattr(leaves, field.name)[:, number, None, None] for field in fields(leaves)))
        right, down = columns - one.x, rows - one.y
        cosine, sine = one.angle.cos(), one.angle.sin()
        u = (right * cosine + down * sine) / (one.size * one.stretch)
        v = (down * cosine - right * sine) / (one.size / one.stretch)
        radius = ((u.abs() + 1e-4) ** one.power + (v.abs() + 1e-4) ** one.power) ** (1 / one.power)
        radius = radius * (1 + one.dent * torch.cos(one.lobes * torch.atan2(v, u) + one.phase))
        cover = torch.sigmoid((1 - radius) * one.size * CANVAS * 1.2)
        across = right * one.heading.cos() + down * one.heading.sin()
        pattern = one.stripe * torch.sin(math.pi * one.waves * across) + one.along * u + one.across * v
        pattern = pattern + one.grain * textures[leaves.texture[:, number]]
        canvas = canvas + cover[:, None] * (colours[:, number, :, None, None] + pattern[:, None] - canvas)
    return canvas


def _draw_textures(generator: Generator) -> Tensor:
    """Noise of spectrum 1 / f^a, stretched, of mean 0 and variance 1: ``(TEXTURES, CANVAS, CANVAS)``."""
    slope = uniform(generator, (TEXTURES, 1, 1), 0.4, 2.2)
    stretch = torch.exp(0.3 * torch.randn(TEXTURES, 1, 1, generator=generator))
    down, across = torch.fft.fftfreq(CANVAS)[:, None] * stretch, torch.fft.rfftfreq(CANVAS)[None] / stretch
    frequency = (down**2 + across**2).sqrt().clamp_min(1 / CANVAS)
    shape = frequency.shape
    real, imaginary = (torch.randn(shape, generator=generator) for _ in range(2))
    noise = torch.fft.irfft2(torch.complex(real, imaginary) / frequency**slope, s=(CANVAS, CANVAS))
    return (noise - noise.mean((1, 2), keepdim=True)) / noise.flatten(1).std(1)[:, None, None]


def _draw_colours(canvases: int, number: int, generator: Generator) -> Tensor:
    """Colours that go together, ``(canvases, number, 3)``: a palette of each canvas, which varies most in brightness."""
    middle = uniform(generator, (canvases, 1, 3), 0.2, 0.8)
    own = torch.diag_embed(uniform(generator, (canvases, 3), 0.02, 0.22))
    bright = 0.25 / math.sqrt(3) * torch.randn(canvases, 1, 1, generator=generator)
    return middle + 1.3 * torch.randn(canvases, number, 3, generator=generator) @ (own + bright)


# The dictionary of patches of painted scenes, and directions along which scenes differ in it: from a seed alone.

ROUNDS = 8  # of k-means
SCENES = 80  # scenes and things that are painted at a time
SAMPLE = 6_000  # images that patches and directions are taken from, about, each of a scene of its own
PATCHES = 60_000  # patches that are taken from them
SIZE = 1024  # patches of the dictionary
DIRECTIONS = 512  # that units are turned along in each wave, with their sign and without
EVEN = 0.1  # added to variances before whitening, as a share of their mean

WHITENING = 0.3  # power of their variance that turned units are divided by

LEAST = 1e-7  # variance, as if of a turned unit that has less


def make(seed: int, rounds: int = ROUNDS, step: Callable[[int, str], None] | None = None) -> dict[str, np.ndarray]:
    """Make the bundled tensors, float16.

    Returns:
        ``filters`` and ``offset`` of patches, ``mean`` of units, ``directions`` that units are turned along in each wave,
        and the ``scale`` of each turned unit.
    """
    with threads(1):
        generator = Generator().manual_seed(seed)
        images = torch.cat([draw_views(SCENES, 1, generator) for _ in range(max(1, SAMPLE // SCENES))])
        filters, offset = (part.half() for part in _dictionary(_patches(images, generator), rounds, generator, step))
        units = units_of(images, filters.float(), offset.float())
        mean = units.mean(0).half()
        units -= mean
        rows = units.permute(1, 0, 3, 2).flatten(1, 2)
        directions = torch.stack([principal_axes(part, DIRECTIONS, 0.0).components for part in rows]).half()
        scale = turned(units, directions.float()).square().mean(0).clamp_min(LEAST) ** -WHITENING
    tensors = {"filters": filters, "offset": offset, "mean": mean, "directions": directions, "scale": scale.half()}
    return {name: value.contiguous().numpy() for name, value in tensors.items()}


def _patches(images: Tensor, generator: Generator) -> Tensor:
    """Patches from anywhere, each less its mean and over its deviation: ``(PATCHES, 3 * PATCH**2)``."""
    which = torch.randint(len(images), (PATCHES,), generator=generator)
    top, left = torch.randint(SIDE - PATCH + 1, (2, PATCHES), generator=generator)
    reach = torch.arange(PATCH)
    rows, columns = (top[:, None] + reach)[:, :, None], (left[:, None] + reach)[:, None, :]
    taken = images.permute(0, 2, 3, 1)[which[:, None, None], rows, columns].permute(0, 3, 1, 2).flatten(1)
    taken = taken - taken.mean(1, keepdim=True)
    return taken / (taken.square().mean(1, keepdim=True) + CONTRAST).sqrt()


def _dictionary(
    taken: Tensor, rounds: int, generator: Generator, step: Callable[[int, str], None] | None = None
) -> tuple[Tensor, Tensor]:
    """Filters and offset of a dictionary: directions of whitened patches ``(n, 3 * PATCH**2)``, by k-means on the sphere."""
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
    """Draw views of new scenes and things, ``(each * kinds, 3, SIDE, SIDE)`` in 0..1.

    Args:
        kinds: half of them scenes, half of them things.
        each: views of each; the first of all, in order, then the second of all, and so on.
    """
    textures = _draw_textures(generator)
    scenes, things = kinds // 2, kinds - kinds // 2
    number = 10 + 6 * _below(3, generator)
    canvas = _grounds(scenes, textures, generator)
    leaves = _draw_leaves((scenes, number), (0.1, 1.0), 1.2, generator)
    canvas = _paint(canvas, leaves, _draw_colours(scenes, number, generator), textures)
    parts = 3 + _below(6, generator)
    thing, colours = (
        _draw_leaves((things, parts), (0.15, 0.6), 0.45, generator),
        _draw_colours(things, parts, generator),
    )
    views = []
    for _ in range(each):
        ground = _grounds(things, textures, generator)
        nearly = colours + 0.04 * torch.randn(colours.shape, generator=generator)
        seen = _paint(ground, _jittered(thing, generator), nearly, textures)
        views += [_cut(canvas, (0.45, 0.95), generator), _cut(seen, (0.55, 1.05), generator)]
    return _lit(torch.cat(views), generator)


def _grounds(count: int, textures: Tensor, generator: Generator) -> Tensor:
    """Grounds: a colour that falls from top to bottom, noise, and up to nine leaves; ``(count, 3, CANVAS, CANVAS)``."""
    which = torch.randint(TEXTURES, (count,), generator=generator)
    noise = uniform(generator, (count, 1, 1, 1), 0.0, 0.25) * textures[which][:, None]
    fall = 0.2 * torch.randn(count, 1, 1, 1, generator=generator) * torch.linspace(-1, 1, CANVAS)[:, None]
    ground = uniform(generator, (count, 3, 1, 1), 0.2, 0.8) + noise + fall
    number = 3 * _below(4, generator)
    leaves = _draw_leaves((count, number), (0.08, 0.9), 1.2, generator)
    return _paint(ground, leaves, _draw_colours(count, number, generator), textures)


def _cut(canvas: Tensor, sizes: tuple[float, float], generator: Generator) -> Tensor:
    """Return one view of each canvas, a part of it, mirrored or not, turned and stretched: ``(n, 3, SIDE, SIDE)``.

    The part has a side between those of ``sizes``, as shares of the canvas.
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


def _lit(views: Tensor, generator: Generator) -> Tensor:
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
    x, y, angle, size = (
        spread * torch.randn(thing.x.shape, generator=generator) for spread in (0.04, 0.04, 0.12, 0.08)
    )
    return replace(thing, x=thing.x + x, y=thing.y + y, angle=thing.angle + angle, size=thing.size * size.exp())


def _below(limit: int, generator: Generator) -> int:
    return int(torch.randint(limit, (), generator=generator))


if __name__ == "__main__":
    write_bundled(PHOTOGRAPHS_FILE, PHOTOGRAPHS_DIGEST, make, ROUNDS)
