"""Leaves: shapes that hide one another, each with a colour, a pattern and a grain of its own, painted on grounds of noise.

Dead leaves (Lee, Mumford, Huang 2001) and noise of spectrum 1 / f^a (Field 1987) have statistics that photographs have too:
edges, occlusion, the same at every scale. All of it is a formula of a public seed: no image was looked at. People who know
photographs, and such statistics, wrote it.

Lengths are in units of half a canvas, angles in radians; colours are red, green and blue in 0..1, cut only in the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Generator, Tensor

SIDE, CANVAS = 32, 44
"""Pixels of an image's side, and of what it is cut from."""

TEXTURES = 96
"""Patterns of noise that leaves and grounds of the scenes of one call share."""

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
        """Leaves of a canvas."""
        return self.x.shape[1]

    def leaf(self, number: int) -> Leaves:
        """One leaf of every canvas, to be broadcast over its pixels: ``(canvases, 1, 1)`` each."""
        return Leaves(*(getattr(self, field.name)[:, number, None, None] for field in fields(self)))


def draw_leaves(shape: tuple[int, int], sizes: tuple[float, float], spread: float, generator: Generator) -> Leaves:
    """Leaves of all shapes.

    Args:
        shape: canvases, and leaves of each.
        sizes: the smallest and the largest radius; small ones are more, so that all scales look alike.
        spread: how far from the middle of the canvas they are, at most.
        generator: of public bits.
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


def paint(canvas: Tensor, leaves: Leaves, colours: Tensor, textures: Tensor) -> Tensor:
    """Paints leaves one over the other.

    Args:
        canvas: ``(canvases, 3, CANVAS, CANVAS)``.
        leaves: to paint.
        colours: ``(canvases, leaves, 3)``.
        textures: ``(TEXTURES, CANVAS, CANVAS)``.
    """
    line = (torch.arange(CANVAS) + 0.5) / CANVAS * 2 - 1
    rows, columns = line[:, None], line[None, :]
    for number in range(len(leaves)):
        one = leaves.leaf(number)
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


def draw_textures(generator: Generator) -> Tensor:
    """Noise of spectrum 1 / f^a, stretched, of mean 0 and variance 1: ``(TEXTURES, CANVAS, CANVAS)``."""
    slope = uniform(generator, (TEXTURES, 1, 1), 0.4, 2.2)
    stretch = torch.exp(0.3 * torch.randn(TEXTURES, 1, 1, generator=generator))
    down, across = torch.fft.fftfreq(CANVAS)[:, None] * stretch, torch.fft.rfftfreq(CANVAS)[None] / stretch
    frequency = (down**2 + across**2).sqrt().clamp_min(1 / CANVAS)
    shape = frequency.shape
    real, imaginary = (torch.randn(shape, generator=generator) for _ in range(2))
    noise = torch.fft.irfft2(torch.complex(real, imaginary) / frequency**slope, s=(CANVAS, CANVAS))
    return (noise - noise.mean((1, 2), keepdim=True)) / noise.flatten(1).std(1)[:, None, None]


def draw_colours(canvases: int, number: int, generator: Generator) -> Tensor:
    """Colours that go together, ``(canvases, number, 3)``: a palette of each canvas, which varies most in brightness.

    Args:
        canvases: how many.
        number: colours of each.
        generator: of public bits.
    """
    middle = uniform(generator, (canvases, 1, 3), 0.2, 0.8)
    own = torch.diag_embed(uniform(generator, (canvases, 3), 0.02, 0.22))
    bright = 0.25 / math.sqrt(3) * torch.randn(canvases, 1, 1, generator=generator)
    return middle + 1.3 * torch.randn(canvases, number, 3, generator=generator) @ (own + bright)


def uniform(generator: Generator, shape: tuple[int, ...], low: float, high: float) -> Tensor:
    """Numbers between two others.

    Args:
        generator: of public bits.
        shape: of what is returned.
        low: the least.
        high: the largest.
    """
    return torch.rand(shape, generator=generator) * (high - low) + low
