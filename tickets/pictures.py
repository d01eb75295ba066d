"""Masks as pictures for a page: PNG files inside it."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass

import matplotlib.image
import numpy as np

SIDE = 160
"""Points of a picture, at most, along either side; larger masks are averaged."""

MAX_LAYERS = 16
"""Of a page; the others have their densities in the table."""

GAP = 1
"""Points between kernels."""


@dataclass(frozen=True)
class Picture:
    """A picture of a mask.

    Attributes:
        title: what it shows.
        data: a URI that holds all of it.
        width, height: in points.
    """

    title: str
    data: str
    width: int
    height: int


def layer(name: str, mask: np.ndarray) -> Picture:
    """The mask of a weight: a row for each output, a column for each input, darker where more is live."""
    flat = mask.reshape(len(mask), -1)
    rows, columns = flat.shape
    return _picture(
        f"mask of {name}: {rows} outputs (rows) by {columns} inputs (columns)", _shrunk(flat.astype(np.float32))
    )


def first_layer(mask: np.ndarray, shape: tuple[int, ...] | None) -> Picture | None:
    """What the first layer of a network for images looks at.

    Args:
        mask: of its weight: ``(outputs, inputs)``, or of a convolution ``(outputs, channels, height, width)``.
        shape: of an image, (height, width) or (height, width, channels); None where that is not known.

    Returns:
        Of a linear layer, the share of its units that look at each pixel; of a convolution, its kernels side by side. None
        where neither makes sense.
    """
    if mask.ndim == 4 and max(mask.shape[2:]) > 1:
        kernels = mask.mean(axis=1, dtype=np.float32)[:SIDE]
        across = math.ceil(math.sqrt(len(kernels)))
        down, (height, width) = math.ceil(len(kernels) / across), kernels.shape[1:]
        sheet = np.full((down * (height + GAP) - GAP, across * (width + GAP) - GAP), np.nan, np.float32)
        for place, kernel in enumerate(kernels):
            top, left = place // across * (height + GAP), place % across * (width + GAP)
            sheet[top : top + height, left : left + width] = kernel
        return _picture(f"{len(kernels)} kernels of the first layer: darker where more channels are live", sheet)
    if mask.ndim != 2 or shape is None or mask.shape[1] != math.prod(shape):
        return None
    pixels = mask.mean(axis=0, dtype=np.float32).reshape(shape)
    pixels = pixels.mean(axis=2) if pixels.ndim == 3 else pixels
    most = f"{100 * float(pixels.max()):.0f} %"
    return _picture(
        f"share of the first layer's units that look at each pixel: darkest {most}", pixels / (pixels.max() or 1.0)
    )


def densities(masks: Mapping[str, np.ndarray]) -> list[tuple[str, str, int, float]]:
    """Of each parameter: name, shape, live coordinates, density."""
    return [
        (name, "x".join(map(str, mask.shape)), int(mask.sum()), float(mask.mean()) if mask.size else 0.0)
        for name, mask in masks.items()
    ]


def _shrunk(values: np.ndarray) -> np.ndarray:
    """Means over blocks, so that neither side is longer than ``SIDE``."""
    for axis in (0, 1):
        if (size := values.shape[axis]) > SIDE:
            edges = np.linspace(0, size, SIDE + 1).astype(int)
            counts = np.diff(edges)
            sums = np.add.reduceat(values, edges[:-1], axis=axis)
            values = sums / (counts[:, None] if axis == 0 else counts)
    return values


def _picture(title: str, shares: np.ndarray) -> Picture:
    """Shares from 0 (white) to 1 (dark blue); nan is grey."""
    light, dark, gap = np.array([255, 255, 255.0]), np.array([8, 48, 107.0]), np.array([190, 190, 190.0])
    known = np.nan_to_num(shares)[..., None]
    colours = np.where(np.isnan(shares)[..., None], gap, light + (dark - light) * known).round().astype(np.uint8)
    file = io.BytesIO()
    matplotlib.image.imsave(file, colours, format="png", metadata={"Software": "dpltm"})
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return Picture(title, f"data:image/png;base64,{data}", shares.shape[1], shares.shape[0])
