"""The encoder of drawings without torch, in arithmetic that is the same on every machine (see ``dpltm.randomness.exact``).

Pixels, weights, and what each layer gives are put on fixed grids, so that all sums are of whole numbers. That moves units by
about 1e-4 of their size; between machines nothing moves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from dpltm.randomness.exact import bits_for, grid_bits, on_grid

PIXEL_BITS, UNIT_BITS = 16, 12
"""Digits behind the point of pixels, and of what layers give."""

WEIGHT_BITS = 24
"""Digits behind the point of weights, where there is room: all that float16 has."""

ROWS = 16
"""Images at a time: what fits the caches of a processor."""


@dataclass(frozen=True)
class Layer:
    """What a layer does, beside its tensors, which are ``layers.NUMBER.weight`` and ``layers.NUMBER.bias``.

    Attributes:
        kind: a convolution, a normalisation of groups of channels within an image, what drops negative values, or means of
            windows, in which padding counts as zeros.
        kernel: rows, and columns, of a window.
        stride, padding: of a convolution, or of windows.
        groups, eps: of a normalisation.
    """

    kind: Literal["convolution", "group-norm", "relu", "average"]
    kernel: int = 1
    stride: int = 1
    padding: int = 0
    groups: int = 1
    eps: float = 0.0


@dataclass(frozen=True)
class Architecture:
    """What the encoder is, beside its tensors.

    Attributes:
        layers: in order: a convolution, its normalisation and a ``relu``, several times, with or without an average behind.
        side: pixels of a drawing's side.
        pooled: rows and columns of windows that units are averaged over.
    """

    layers: tuple[Layer, ...]
    side: int
    pooled: int


class ExactEncoder:
    """Drawings to units of the encoder along its directions, each drawing by itself.

    Args:
        architecture: of the encoder.
        tensors: float16, by name: those of the layers, ``mean`` and ``directions`` of the units.

    Attributes:
        architecture: as given.
        side: pixels of a drawing's side.
        directions: how many there are.

    Guarantees:
        The same bits on every machine with IEEE 754, whatever the library, its threads or the number of drawings.
    """

    def __init__(self, architecture: Architecture, tensors: Mapping[str, np.ndarray]) -> None:
        layers, side, pooled = architecture.layers, architecture.side, architecture.pooled
        kinds = " ".join(layer.kind for layer in layers)
        if re.fullmatch("(convolution group-norm relu( average)? ?)+", kinds) is None:
            raise ValueError(f"Expected convolutions, each normalised and cut at zero, not {kinds}")
        self.architecture, self.side, self.directions = architecture, side, len(tensors["directions"])
        self._blocks: list[_Block | _Average] = []
        bits, largest = PIXEL_BITS, 1.0
        for number, layer in enumerate(layers):
            if layer.kind == "average":
                self._blocks.append(_Average(layer, side))
                side = self._blocks[-1].side
            if layer.kind != "convolution":
                continue
            parts = [
                tensors[f"layers.{place}.{name}"].astype(np.float64)
                for place in (number, number + 1)
                for name in ("weight", "bias")
            ]
            block = _Block(layer, layers[number + 1], parts, side, bits, largest)
            self._blocks.append(block)
            bits, largest, side = UNIT_BITS, block.largest, block.side
        edges = [(place * side // pooled, -(-(place + 1) * side // pooled)) for place in range(pooled)]
        self._windows = [(slice(*rows), slice(*columns)) for rows in edges for columns in edges]
        directions = tensors["directions"].astype(np.float64)
        self._mean = on_grid(tensors["mean"], UNIT_BITS)
        most = largest + float(np.abs(tensors["mean"]).max())
        bound = float(np.abs(directions).sum(axis=1).max()) * most * 2.0**UNIT_BITS
        self._directions = on_grid(directions, grid_bits(bound, WEIGHT_BITS)).T.copy()

    def __call__(self, drawings: np.ndarray) -> np.ndarray:
        """``(n, side, side)`` whole numbers, pixels in units of 2^-PIXEL_BITS, to ``(n, directions)`` float64.

        The unit of the answer is a public power of two, the same for all.
        """
        parts = [self._of_some(drawings[start : start + ROWS]) for start in range(0, len(drawings), ROWS)]
        return np.concatenate(parts) if parts else np.zeros((0, self._directions.shape[1]))

    def _of_some(self, drawings: np.ndarray) -> np.ndarray:
        values = drawings[..., None]
        for block in self._blocks:
            values = block(values)
        windows = [
            np.rint(window.sum(axis=(1, 2)) / (window.shape[1] * window.shape[2]))
            for window in (values[:, rows, columns] for rows, columns in self._windows)
        ]
        units = np.stack(windows, axis=2).reshape(len(values), -1)  # channel by channel, as torch has it
        result: np.ndarray = (units - self._mean) @ self._directions
        return result


class _Average:
    """Means of windows of whole numbers, put on the grid again; padding counts as zeros.

    Args:
        layer: the windows.
        side: rows, and columns, of what comes in.

    Attributes:
        side: rows, and columns, of what comes out.
    """

    def __init__(self, layer: Layer, side: int) -> None:
        self._layer, self.side = layer, (side + 2 * layer.padding - layer.kernel) // layer.stride + 1

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """``(n, side, side, channels)`` to the same of the new side, in the same units."""
        layer, reach = self._layer, self._layer.stride * (self.side - 1) + 1
        padded = np.pad(values, ((0, 0), (layer.padding,) * 2, (layer.padding,) * 2, (0, 0)))
        total = np.zeros((len(values), self.side, self.side, values.shape[3]))
        for row in range(layer.kernel):
            for column in range(layer.kernel):
                total += padded[:, row : row + reach : layer.stride, column : column + reach : layer.stride]
        mean: np.ndarray = np.rint(total / layer.kernel**2)
        return mean


class _Block:
    """A convolution, the normalisation of its channels within each image, and the cut at zero.

    Args:
        convolution, normalisation: what they do.
        parts: weight and bias of the one, then of the other, float64.
        side: rows, and columns, of what comes in.
        bits: digits behind the point of what comes in.
        largest: size of it, at most.

    Attributes:
        side: rows, and columns, of what comes out.
        largest: size of what comes out, at most.
    """

    def __init__(
        self, convolution: Layer, normalisation: Layer, parts: list[np.ndarray], side: int, bits: int, largest: float
    ) -> None:
        weight, bias, scale, shift = parts
        self._kernel, self._stride, self._padding = weight.shape[2], convolution.stride, convolution.padding
        self._groups, self._eps = normalisation.groups, normalisation.eps
        self.side = (side + 2 * self._padding - self._kernel) // self._stride + 1
        self._members = self.side**2 * len(weight) // self._groups  # numbers that share a mean
        bound = float((np.abs(weight).sum(axis=(1, 2, 3)) * largest + np.abs(bias)).max())
        room = grid_bits(bound * self._members * 2.0**bits, WEIGHT_BITS)
        self._weight = on_grid(weight, room).transpose(2, 3, 1, 0).reshape(-1, len(weight))
        self._bits = bits + room
        self._bias = on_grid(bias, self._bits)
        self._square_bits = bits_for(self._members)
        self._scale, self._shift = scale, np.ldexp(shift, UNIT_BITS)
        self.largest = float((np.abs(scale) * math.sqrt(self._members) + np.abs(shift)).max())

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """``(n, side, side, channels)`` whole numbers in units of 2^-bits to the same in units of 2^-UNIT_BITS."""
        rows = self._patches(values) @ self._weight
        rows += self._bias
        made = self._normalised(rows.reshape(len(values), self.side**2, -1))
        return made.reshape(len(values), self.side, self.side, -1)

    def _patches(self, values: np.ndarray) -> np.ndarray:
        """What each pixel of the answer is made of, ``(n side^2, kernel^2 channels)``."""
        count, side, _, channels = values.shape
        wide = side + 2 * self._padding
        padded = np.zeros((count, wide, wide, channels))
        inside = slice(self._padding, self._padding + side)
        padded[:, inside, inside] = values
        image, row, pixel, each = padded.strides
        shape = (count, self.side, self.side, self._kernel, self._kernel * channels)
        steps = (image, self._stride * row, self._stride * pixel, row, each)
        patches = np.lib.stride_tricks.as_strided(padded, shape, steps, writeable=False)
        return patches.reshape(count * self.side**2, -1)

    def _normalised(self, rows: np.ndarray) -> np.ndarray:
        """``(n, pixels, channels)`` whole numbers: each group of channels less its mean, over its deviation; cut at zero."""
        count, _, channels = rows.shape
        each = channels // self._groups

        def of_groups(values: np.ndarray) -> np.ndarray:
            return np.repeat(values, each, axis=1)[:, None]

        mean = rows.sum(axis=1).reshape(count, self._groups, each).sum(axis=2) / self._members
        rows -= of_groups(mean)
        peak = np.maximum(rows.max(axis=1), -rows.min(axis=1)).reshape(count, self._groups, each).max(axis=2)
        _, exponent = np.frexp(peak)
        down = exponent - self._square_bits  # so that squares add up exactly, however large or small the numbers are
        rows *= of_groups(np.ldexp(1.0, -down))
        np.rint(rows, out=rows)
        squares = np.einsum("npc,npc->nc", rows, rows).reshape(count, self._groups, each).sum(axis=2)
        variance = np.ldexp(squares / self._members, 2 * (down - self._bits))
        factor = np.ldexp(1.0 / np.sqrt(variance + self._eps), down - self._bits + UNIT_BITS)
        rows *= of_groups(factor) * self._scale
        rows += self._shift
        np.maximum(rows, 0.0, out=rows)
        return np.rint(rows, out=rows)


# Images as drawings without torch, in arithmetic that is the same on every machine (see ``dpltm.randomness.exact``).
#
# The rule is that of ``dpltm.features.drawings.feature_map.as_drawings``.

SHARE_BITS = 14
"""Digits behind the point of shares: of colours in the brightness of an image, of pixels in a resized one."""

GREY = (4899, 9617, 1868)
"""Red, green and blue, of 2^SHARE_BITS: 0.299, 0.587 and 0.114 (ITU-R BT.601)."""


def whole_drawings(x: np.ndarray, side: int) -> np.ndarray:
    """Images as the encoder knows them: ``(n, side, side)`` whole numbers in units of 2^-PIXEL_BITS, float64.

    Args:
        x: ``(n, height, width)`` or ``(n, height, width, colours)`` in 0..1, of one colour or three.
        side: of a drawing, pixels.
    """
    images = on_grid(x, PIXEL_BITS)
    if images.ndim == 4:
        images = _down(images @ np.array(GREY, dtype=np.float64)) if images.shape[3] == 3 else images[..., 0]
    top, bottom, left, right = images[:, 0], images[:, -1], images[:, 1:-1, 0], images[:, 1:-1, -1]
    edge = np.concatenate([top, bottom, left, right], axis=1)
    bright = 2 * edge.sum(axis=1) > edge.shape[1] * 2.0**PIXEL_BITS
    images = np.where(bright[:, None, None], 2.0**PIXEL_BITS - images, images)
    high, wide = images.shape[1:]
    if max(high, wide) != side:
        rows, columns = (max(1, round(side * each / max(high, wide))) for each in (high, wide))
        resized = np.matmul(np.matmul(_shares(high, rows), images), _shares(wide, columns).T)
        images = _down(_down(resized))
    drawings = np.zeros((len(images), side, side))
    down, across = ((side - each) // 2 for each in images.shape[1:])
    drawings[:, down : down + images.shape[1], across : across + images.shape[2]] = images
    return drawings


def _down(values: np.ndarray) -> np.ndarray:
    """Sums of pixels times shares, in units of pixels again."""
    result: np.ndarray = np.rint(np.ldexp(values, -SHARE_BITS))
    return result


@lru_cache(maxsize=16)
def _shares(size: int, target: int) -> np.ndarray:
    """What share each of ``size`` pixels has in each of ``target``: whole numbers that add up to 2^SHARE_BITS.

    A triangle as wide as two pixels of the coarser grid, as torch resizes with ``antialias``.
    """
    step = size / target
    reach = max(step, 1.0)
    shares = np.zeros((target, size))
    for place in range(target):
        middle = step * (place + 0.5)
        near = range(max(int(middle - reach + 0.5), 0), min(int(middle + reach + 0.5), size))
        weights = [max(0.0, 1.0 - abs((pixel - middle + 0.5) / reach)) for pixel in near]
        total = sum(weights)
        whole = [round(weight / total * 2**SHARE_BITS) for weight in weights]
        whole[whole.index(max(whole))] += 2**SHARE_BITS - sum(whole)
        shares[place, near.start : near.stop] = whole
    return shares
