"""Make the bundled encoder of drawings again: from a formula and a seed, and no data. Under an hour on one core.

    python scripts/make_drawings.py [--seed 0] [--steps 2000] [--out drawings.safetensors]

The bundled file is seed 0 with the usual steps. Where torch rounds in the same way, the new file has the same digest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save
from torch import Generator, Tensor, nn
from torch.nn import functional

from dpltm.features import DRAWINGS_DIGEST, DRAWINGS_FILE
from dpltm.features.drawings import SIDE, UNITS, Encoder
from dpltm.networks.full_precision import threads

# Kinds of drawings, and drawings of a kind: one to four curved strokes, bent, warped and inked at random.
#
# A stroke is much like a clothoid: its heading is a polynomial of arc length. A *kind* of drawing fixes the strokes; each
# drawing of it has these jittered, slanted and warped, and inked with a pen of its own. All of it is a formula of a public
# seed: no drawing by anybody was looked at. People who know handwriting wrote it.

STROKES, POINTS = 4, 24  # strokes of a kind, at most, and points of a stroke that are inked
COUNTS = (0.20, 0.35, 0.27, 0.18)  # shares of kinds with one to four strokes
STRAIGHT = 0.3  # share of strokes that hardly bend


@dataclass(frozen=True)
class Kinds:
    """Kinds of drawings. Lengths are in units of half a drawing, angles in radians.

    Attributes:
        middle: mean place of each stroke, ``(kinds, strokes, 2)``.
        heading: of the stroke at its middle, ``(kinds, strokes)``.
        turn, bend: first and second coefficients of the heading over arc length, ``(kinds, strokes)``.
        length: of the stroke, ``(kinds, strokes)``.
        there: strokes that the kind has, ``(kinds, strokes)`` bool.
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
    """Draw new kinds, of which a share ``alike`` come in pairs that differ in one stroke: hard to tell apart."""
    shape = (count, STROKES)
    strokes = torch.multinomial(torch.tensor(COUNTS), count, True, generator=generator) + 1
    curved = torch.where(torch.rand(shape, generator=generator) < STRAIGHT, 0.1, 1.0)
    kinds = Kinds(
        middle=uniform(generator, (*shape, 2), -0.65, 0.65),
        heading=uniform(generator, shape, -math.pi, math.pi),
        turn=curved * 1.5 * torch.randn(shape, generator=generator),
        bend=curved * 1.8 * torch.randn(shape, generator=generator),
        length=uniform(generator, shape, 0.5, 2.0),
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
    """Give one stroke of each of these kinds another place, another heading or another curve, or all of it."""
    other = draw_kinds(len(rows), generator, alike=0.0)
    which = (torch.rand(len(rows), generator=generator) * strokes).long()
    how = torch.randint(4, (len(rows),), generator=generator)  # 0: all of it
    for name, change in (("middle", 1), ("heading", 2), ("turn", 3), ("bend", 3), ("length", 1)):
        values, news = getattr(kinds, name), getattr(other, name)[:, 0]
        changed = ((how == 0) | (how == change)).view(-1, *[1] * (news.ndim - 1))
        values[rows, which] = torch.where(changed, news, values[rows, which])


@dataclass(frozen=True)
class Projection:
    """``(n, features)`` less an offset ``(features,)``, onto components ``(count, features)``."""

    offset: Tensor
    components: Tensor

    def __call__(self, values: Tensor) -> Tensor:
        return (values - self.offset) @ self.components.T


def principal_axes(rows: Tensor, count: int, power: float, least: float = 1e-12) -> Projection:
    """Project onto the first principal components of rows, ``(n, width)``, each over its variance to a power.

    Of the two signs of a direction, its largest entry is positive.
    """
    wide = rows.double()
    mean = wide.mean(0)
    wide = wide - mean
    if len(wide) >= wide.shape[1]:
        variances, vectors = torch.linalg.eigh(wide.T @ wide / len(wide))
    else:  # the same from the other side, where that is smaller
        variances, vectors = torch.linalg.eigh(wide @ wide.T / len(wide))
        vectors = wide.T @ vectors / (len(wide) * variances.clamp_min(1e-30)).sqrt()
    variances, vectors = variances.flip(0)[:count], vectors.flip(1)[:, :count]
    vectors = vectors * vectors.gather(0, vectors.abs().argmax(0, keepdim=True)).sign()
    components = (vectors / variances.clamp_min(least * float(variances[0])) ** power).T
    return Projection(mean.float(), components.contiguous().float())


def uniform(generator: Generator, shape: tuple[int, ...], low: float, high: float) -> Tensor:
    """Public uniform numbers from ``low`` to ``high``."""
    return torch.rand(shape, generator=generator) * (high - low) + low


@torch.no_grad()
def draw(kinds: Kinds, generator: Generator) -> Tensor:
    """One drawing of each kind, bright ink on black, ``(kinds, 1, SIDE, SIDE)`` in 0..1."""
    count = len(kinds)
    there = kinds.there.repeat_interleave(POINTS, 1)
    x, y, length = _curves(kinds, generator)
    x, y = _slanted(x, y, generator)
    for _ in range(2):
        x, y = _warped(x, y, generator)
    # Into a box of its own size, near the middle.
    (left, right), (top, bottom) = (_ends(values, there) for values in (x, y))
    box = uniform(generator, (count, 1), 17.0, 25.0)
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
    angle, shear, wide, high = (size * torch.randn(len(x), 1, generator=generator) for size in (0.14, 0.2, 0.13, 0.13))
    x, y = wide.exp() * (x + shear * y), high.exp() * y
    return angle.cos() * x - angle.sin() * y, angle.sin() * x + angle.cos() * y


def _warped(x: Tensor, y: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    waves = uniform(generator, (len(x), 4, 1), 1.0, 3.5)
    phases = uniform(generator, (len(x), 2, 1), 0.0, 2 * math.pi)
    sizes = 0.05 * torch.randn(len(x), 2, 1, generator=generator)
    moved_x = x + sizes[:, 0] * torch.sin(waves[:, 0] * x + waves[:, 1] * y + phases[:, 0])
    return moved_x, y + sizes[:, 1] * torch.sin(waves[:, 2] * moved_x + waves[:, 3] * y + phases[:, 1])


def _ends(values: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
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
    image = image * uniform(generator, (count, 1, 1), 0.7, 1.0)
    grain = uniform(generator, (count, 1, 1), 0.0, 0.06)
    return (image + grain * torch.randn(image.shape, generator=generator)).clamp(0.0, 1.0)[:, None]


# Training the encoder to tell drawings apart, and directions of its units along which they differ: from drawings alone.
#
# Every step sees kinds that are new, some drawings of each, and learns which belong together (supervised contrastive loss,
# Khosla et al. 2020). What comes out is a function of the seed, and of how torch rounds on this machine.

STEPS = 2000  # of training. Three times as many tell drawings apart better, and serve images of other kinds worse
KINDS, EACH = 96, 3  # new kinds in a step, and drawings of each

TEMPERATURE, RATE, DECAY, WARMUP = 0.2, 2e-3, 1e-4, 100
"""Of the loss; of AdamW, whose rate rises for so many steps and then falls along a cosine."""

HEAD = 256  # numbers that the loss compares: a linear map of the units, left behind after training
SAMPLE = 20_000  # drawings that directions are taken from, about, each of a kind of its own

DIRECTIONS, WHITENING = 400, 0.4
"""Principal components that are kept, and the power of their variance that they are divided by."""


def make(seed: int, steps: int = STEPS, step: Callable[[int, str], None] | None = None) -> dict[str, np.ndarray]:
    """Make the tensors of the bundled file, float16: the encoder's, ``mean`` and ``directions`` of its units."""
    with threads(1):  # the order of sums, and with it the last bits, depends on their number
        encoder = _learn(seed, steps, step)
        narrow = {name: value.detach().half() for name, value in encoder.state_dict().items()}
        encoder.load_state_dict({name: value.float() for name, value in narrow.items()})
        axes = principal_axes(_units_of_drawings(encoder, seed + 1), DIRECTIONS, WHITENING, 1e-9)
        narrow |= {"mean": axes.offset.half(), "directions": axes.components.half()}
    return {name: value.contiguous().numpy() for name, value in narrow.items()}


def _learn(seed: int, steps: int = STEPS, step: Callable[[int, str], None] | None = None) -> Encoder:
    """An encoder trained on drawings; ``step`` is told how many drawings have one of their kind as nearest neighbour."""
    generator = Generator().manual_seed(seed)
    encoder, head = Encoder(), nn.Linear(UNITS, HEAD)
    for module in (*encoder.modules(), head):
        _initialise(module, generator)
    encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=RATE, weight_decay=DECAY)
    kind = torch.arange(KINDS).repeat(EACH)
    for done in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (done + 1) / WARMUP) * (1 + math.cos(math.pi * done / steps)) / 2
        images = draw(draw_kinds(KINDS, generator)[kind], generator)
        with torch.autocast("cpu", torch.bfloat16):
            units = encoder(images.contiguous(memory_format=torch.channels_last))
        near = functional.normalize(head(units.float()), dim=1)
        likeness = (near @ near.T / TEMPERATURE).fill_diagonal_(-math.inf)
        others = ~torch.eye(len(kind), dtype=torch.bool)
        same = (kind[:, None] == kind) & others
        loss = -torch.log_softmax(likeness, 1)[same].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step is not None:
            share = float((kind[likeness.argmax(1)] == kind).float().mean())
            step(done + 1, f"{share:.0%} recognised")
    return encoder


def _units_of_drawings(encoder: Encoder, seed: int) -> Tensor:
    generator = Generator().manual_seed(seed)
    with torch.no_grad():
        return torch.cat([encoder(draw(draw_kinds(KINDS, generator, 0.0), generator)) for _ in range(SAMPLE // KINDS)])


def _initialise(module: nn.Module, generator: Generator) -> None:
    """Uniform weights of variance 2 / inputs (He et al. 2015), zero biases."""
    if isinstance(module, (nn.Conv2d, nn.Linear)):
        nn.init.kaiming_uniform_(module.weight, nonlinearity="relu", generator=generator)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def write_bundled(
    file: str, digest: str, make: Callable[[int, int, Callable[[int, str], None]], dict[str, np.ndarray]], steps: int
) -> None:
    """Make a bundled file as the command line says, and tell whether it is the one of ``digest``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--out", type=Path, default=Path(file))
    options = parser.parse_args()
    if options.out.exists():
        parser.error(f"--out: {options.out} exists already")
    tensors = make(options.seed, options.steps, lambda done, note: print(done, note, file=sys.stderr))
    # the command that made the bundled files in 0.2: a part of their bytes
    command = f"dpltm features make {file.partition('.')[0]} --seed {options.seed} --steps {options.steps}"
    made = {"command": command, "provenance": "data-free", "torch": torch.__version__, "numpy": np.__version__}
    body = save(tensors, {"made": json.dumps(made)})
    options.out.write_bytes(body)
    same = hashlib.sha256(body).hexdigest() == digest
    print("the same as the bundled file" if same else "not the bundled file: other settings, versions, or rounding")


if __name__ == "__main__":
    write_bundled(DRAWINGS_FILE, DRAWINGS_DIGEST, make, STEPS)
