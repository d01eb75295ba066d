"""Kinds of drawings, and drawings of a kind: one to four curved strokes, bent, warped and inked at random.

A stroke is much like a clothoid: its heading is a polynomial of arc length. A *kind* of drawing fixes the strokes; each
drawing of it has these jittered, slanted and warped, and inked with a pen of its own. All of it is a formula of a public
seed: no drawing by anybody was looked at. People who know handwriting wrote it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Generator, Tensor

SIDE = 28
"""Pixels of a drawing's side."""

STROKES, POINTS = 4, 24
"""Strokes of a kind, at most, and points of a stroke that are inked."""

COUNTS = (0.20, 0.35, 0.27, 0.18)
"""Shares of kinds with one to four strokes."""

STRAIGHT = 0.3
"""Share of strokes that hardly bend."""


@dataclass(frozen=True)
class Kinds:
    """Kinds of drawings. Lengths are in units of half a drawing, angles in radians.

    Attributes:
        middle: where each stroke has its mean, ``(kinds, strokes, 2)``.
        heading: of the stroke at its middle, ``(kinds, strokes)``.
        turn, bend: first and second coefficients of the heading over arc length, ``(kinds, strokes)``.
        length: of the stroke, ``(kinds, strokes)``.
        there: which strokes the kind has, ``(kinds, strokes)`` bool.
    """

    middle: Tensor
    heading: Tensor
    turn: Tensor
    bend: Tensor
    length: Tensor
    there: Tensor

    def __len__(self) -> int:
        return len(self.heading)

    def __getitem__(self, index: Tensor | slice) -> Kinds:
        return Kinds(*(getattr(self, field.name)[index] for field in fields(self)))


def draw_kinds(count: int, generator: Generator, alike: float = 0.5) -> Kinds:
    """Kinds that nobody has seen before.

    Args:
        count: how many.
        generator: of public bits.
        alike: share of kinds that come in pairs which differ in one stroke only: those are hard to tell apart.
    """
    shape = (count, STROKES)
    strokes = torch.multinomial(torch.tensor(COUNTS), count, True, generator=generator) + 1
    curved = torch.where(torch.rand(shape, generator=generator) < STRAIGHT, 0.1, 1.0)
    kinds = Kinds(
        middle=_uniform(generator, (*shape, 2), -0.65, 0.65),
        heading=_uniform(generator, shape, -math.pi, math.pi),
        turn=curved * 1.5 * torch.randn(shape, generator=generator),
        bend=curved * 1.8 * torch.randn(shape, generator=generator),
        length=_uniform(generator, shape, 0.5, 2.0),
        there=torch.arange(STROKES) < strokes[:, None],
    )
    pairs = int(alike * count) // 2
    if pairs:
        first, second = torch.arange(pairs), torch.arange(pairs, 2 * pairs)
        for field in fields(kinds):
            getattr(kinds, field.name)[second] = getattr(kinds, field.name)[first]
        _change_one(kinds, second, strokes[:pairs], generator)
    return kinds


def _change_one(kinds: Kinds, rows: Tensor, strokes: Tensor, generator: Generator) -> None:
    """Gives one stroke of each of these kinds another place, another heading or another curve, or all of it."""
    other = draw_kinds(len(rows), generator, alike=0.0)
    which = (torch.rand(len(rows), generator=generator) * strokes).long()
    how = torch.randint(4, (len(rows),), generator=generator)  # 0: all of it
    for name, change in (("middle", 1), ("heading", 2), ("turn", 3), ("bend", 3), ("length", 1)):
        values, news = getattr(kinds, name), getattr(other, name)[:, 0]
        changed = ((how == 0) | (how == change)).view(-1, *[1] * (news.ndim - 1))
        values[rows, which] = torch.where(changed, news, values[rows, which])


@torch.no_grad()
def draw(kinds: Kinds, generator: Generator) -> Tensor:
    """One drawing of each kind, bright ink on black, ``(kinds, 1, SIDE, SIDE)`` in 0..1.

    Args:
        kinds: repeated for as many drawings of one kind as are wanted.
        generator: of public bits.
    """
    count = len(kinds)
    there = kinds.there.repeat_interleave(POINTS, 1)
    x, y, length = _curves(kinds, generator)
    x, y = _slanted(x, y, generator)
    for _ in range(2):
        x, y = _warped(x, y, generator)
    # Into a box of its own size, near the middle.
    (left, right), (top, bottom) = (_ends(values, there) for values in (x, y))
    box = _uniform(generator, (count, 1), 17.0, 25.0)
    pixels = box / torch.maximum(right - left, bottom - top).clamp_min(0.3)
    x, y = (
        (values - (low + high) / 2) * pixels + (SIDE - 1) / 2 + 0.8 * torch.randn(count, 1, generator=generator)
        for values, low, high in ((x, left, right), (y, top, bottom))
    )
    return _inked(x, y, there, length.repeat_interleave(POINTS, 1) * pixels / POINTS, generator)


def _curves(kinds: Kinds, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Points of jittered strokes, ``(kinds, strokes * points)`` each, and the strokes' lengths."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*kinds.heading.shape, *shape, generator=generator)

    middle = kinds.middle + 0.07 * normal(2)
    heading = kinds.heading + 0.13 * normal()
    turn = kinds.turn * (1 + 0.15 * normal()) + 0.15 * normal()
    bend = kinds.bend * (1 + 0.15 * normal()) + 0.2 * normal()
    length = kinds.length * torch.exp(0.12 * normal())
    along = torch.linspace(-0.5, 0.5, POINTS)
    angle = heading[..., None] + 2 * turn[..., None] * along + bend[..., None] * (4 * along**2 - 1 / 3)
    points = []
    for axis, part in enumerate((angle.cos(), angle.sin())):
        values = torch.cumsum(part * (length / POINTS)[..., None], -1)
        points.append((values - values.mean(-1, keepdim=True) + middle[..., axis, None]).flatten(1))
    return points[0], points[1], length


def _slanted(x: Tensor, y: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Each drawing sheared, stretched and turned a little."""
    angle, shear, wide, high = (size * torch.randn(len(x), 1, generator=generator) for size in (0.14, 0.2, 0.13, 0.13))
    x, y = wide.exp() * (x + shear * y), high.exp() * y
    return angle.cos() * x - angle.sin() * y, angle.sin() * x + angle.cos() * y


def _warped(x: Tensor, y: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Each drawing along a slow wave."""
    waves = _uniform(generator, (len(x), 4, 1), 1.0, 3.5)
    phases = _uniform(generator, (len(x), 2, 1), 0.0, 2 * math.pi)
    sizes = 0.05 * torch.randn(len(x), 2, 1, generator=generator)
    moved_x = x + sizes[:, 0] * torch.sin(waves[:, 0] * x + waves[:, 1] * y + phases[:, 0])
    return moved_x, y + sizes[:, 1] * torch.sin(waves[:, 2] * moved_x + waves[:, 3] * y + phases[:, 1])


def _ends(values: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """Least and largest of the values that are there, ``(n, 1)`` each."""
    least = values.masked_fill(~there, math.inf).amin(1, keepdim=True)
    return least, values.masked_fill(~there, -math.inf).amax(1, keepdim=True)


def _inked(x: Tensor, y: Tensor, there: Tensor, apart: Tensor, generator: Generator) -> Tensor:
    """Gaussian dots at all points, whose ink adds up and saturates; ``x``, ``y`` and ``apart`` in pixels.

    The dots of a drawing are products over rows and columns: a product of two small matrices.
    """
    count, strokes = len(x), there.shape[1] // POINTS
    along = torch.linspace(-0.5, 0.5, POINTS).repeat(strokes)
    pen = torch.exp(0.35 * torch.randn(count, 1, generator=generator))
    each, taper = (
        (size * torch.randn(count, strokes, generator=generator)).repeat_interleave(POINTS, 1) for size in (0.1, 0.5)
    )
    width = (pen * torch.exp(each + taper * along)).clamp(0.45, 3.0)
    grid = torch.arange(float(SIDE))[:, None]
    across, down = (torch.exp(-(((grid - values[:, None]) / width[:, None]) ** 2) / 2) for values in (x, y))
    ink = torch.bmm(down * (there * (apart / width).clamp(max=1.5))[:, None], across.transpose(1, 2))
    strength = 1.6 * torch.exp(0.4 * torch.randn(count, 1, 1, generator=generator))
    image = 1 - torch.exp(-strength * ink)
    soft = torch.rand(count, 1, 1, generator=generator) < 0.5
    image = torch.where(soft, image, (2 * image - 0.5).clamp(0.0, 1.0))
    image = image * _uniform(generator, (count, 1, 1), 0.7, 1.0)
    grain = _uniform(generator, (count, 1, 1), 0.0, 0.06)
    return (image + grain * torch.randn(image.shape, generator=generator)).clamp(0.0, 1.0)[:, None]


def _uniform(generator: Generator, shape: tuple[int, ...], low: float, high: float) -> Tensor:
    return torch.rand(shape, generator=generator) * (high - low) + low
