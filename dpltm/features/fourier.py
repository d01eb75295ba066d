"""Random Fourier features (Rahimi, Recht 2007): a linear layer behind them is nearly a machine of a Gaussian kernel.

The kernel is that between records on a sphere: their values from -1 to 1, one more that is the same for all, and then all of
them of norm 1 together. So one bandwidth suits records of many sizes and spreads, and nobody has to look at the data for it;
the value that is the same for all keeps what a record of few values would lose with its length.

Directions are drawn once, from a fixed public seed, so that features reveal nothing about anybody but their own record. A
cosine and a sine are taken of each: at equal numbers of features, that estimates large values of the kernel with less
variance than cosines with random phases (Sutherland, Schneider 2015), and the features of every record have the same norm.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dpltm.errors import InputError
from dpltm.randomness.noise import FastSource, gaussian

CONSTANT = 0.5
"""The value that is the same for all, over the root of the number of values of a record."""

SEED = 0
"""Decides the directions, which are public."""


class FourierFeatures:
    """Cosines, then sines, of a record along random directions.

    Args:
        count: features, an even number.
        gamma: the kernel is exp(-gamma |u - v|^2) between records u and v on the sphere.
        shape: of a record.

    Raises:
        InputError: an odd number of features.
    """

    channel_groups: int | None = None

    def __init__(self, count: int, gamma: float, shape: tuple[int, ...]) -> None:
        if count % 2:
            raise InputError(
                f"`features`: fourier:{count}: features come in pairs; take an even D, such as {count + 1}"
            )
        values, directions = math.prod(shape), count // 2
        self.feature_shape: tuple[int, ...] = (count,)
        drawn = torch.from_numpy(gaussian(FastSource(SEED), directions * (values + 1))).view(directions, values + 1)
        drawn *= math.sqrt(2 * gamma)
        self._constant = CONSTANT * math.sqrt(values)
        self._directions, self._offsets = drawn[:, :-1].float(), (self._constant * drawn[:, -1]).float()

    def __call__(self, x: Tensor) -> Tensor:
        """``(n, *shape)``, values from -1 to 1, to ``(n, features)``."""
        flat = x.flatten(1)
        norms = (flat.square().sum(1, keepdim=True) + self._constant**2).sqrt()
        phases = (flat @ self._directions.T + self._offsets) / norms
        return torch.cat([phases.cos(), phases.sin()], 1)
