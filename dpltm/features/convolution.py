"""Two layers of random convolutions, as LATENT has in front of its randomised bits, computed without having seen any data.

LATENT's module (the first layers of its network for MNIST) is trained on the owner's records; weights that are drawn once
and fixed reveal nothing about anybody, and linear classifiers on top of them do well (Pinto et al. 2009). Filters are of
3 x 3, 32 and then 64 of them, each layer followed by ReLU, then maxima over 2 x 2 pixels: 9,216 values of an MNIST image.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from dpltm.errors import InputError
from dpltm.features.image import colours_first, image_size
from dpltm.randomness.noise import FastSource, uniform

FIRST, SECOND, SIDE = 32, 64, 3

GROUPS = 8
"""Groups of channels that are normalised within a record."""


class RandomConvolutions:
    """The module for images of one size; every image by itself.

    Args:
        seed: decides the weights, which are public.
        shape: of the images as stored.

    Raises:
        InputError: a record is no image, or too small.
    """

    channel_groups: int | None = GROUPS

    def __init__(self, seed: int, shape: tuple[int, ...]) -> None:
        height, width, colours = image_size("conv", shape)
        rows, columns = ((side - 2 * (SIDE - 1)) // 2 for side in (height, width))
        if min(rows, columns) < 1:
            raise InputError(
                f"`features`: conv takes images of 6 by 6 pixels or more, and these are {height} by {width}; take unit"
            )
        self.feature_shape: tuple[int, ...] = (rows, columns, SECOND)
        source = FastSource(seed)
        self._first = _weights(source, FIRST, colours)
        self._second = _weights(source, SECOND, FIRST)

    def __call__(self, x: Tensor) -> Tensor:
        """``(n, *shape)`` to ``(n, 64, height / 2 - 2, width / 2 - 2)``."""
        values = functional.conv2d(colours_first(x), self._first).relu()
        return functional.max_pool2d(functional.conv2d(values, self._second).relu(), 2)


def _weights(source: FastSource, filters: int, channels: int) -> Tensor:
    """Uniform weights of variance 2 / (inputs of a filter), so that values keep their size (He et al. 2015)."""
    inputs = channels * SIDE * SIDE
    values = (2 * uniform(source, filters * inputs) - 1) * math.sqrt(6 / inputs)
    return torch.from_numpy(values).float().view(filters, channels, SIDE, SIDE)
