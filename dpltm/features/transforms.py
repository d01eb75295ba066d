"""Transforms of records that are made without data: random convolutions, Fourier features, wavelets, averages, and several.

Every record goes through by itself, and nothing is learned, so they reveal nothing about anybody but their own record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dpltm.errors import InputError
from dpltm.features.image import colours_first, image_size
from dpltm.features.normalisation import GroupNormalisation, fixed_norm, pixels_first
from dpltm.features.registry import Transform
from dpltm.randomness.noise import FastSource, gaussian, uniform

FIRST, SECOND, SIDE = 32, 64, 3

GROUPS = 8
"""Groups of channels that are normalised within a record."""


# Two layers of random convolutions, as LATENT has in front of its randomised bits. LATENT's module (the first layers of its
# network for MNIST) is trained on the owner's records; weights that are drawn once and fixed reveal nothing about anybody,
# and linear classifiers on top of them do well (Pinto et al. 2009). Filters are of 3 x 3, 32 and then 64 of them, each layer
# followed by ReLU, then maxima over 2 x 2 pixels: 9,216 values of an MNIST image.


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


# Random Fourier features (Rahimi, Recht 2007): a linear layer behind them is nearly a machine of a Gaussian kernel.
#
# The kernel is that between records on a sphere: their values from -1 to 1, one more that is the same for all, and then all
# of them of norm 1 together. So one bandwidth suits records of many sizes and spreads, and nobody has to look at the data
# for it; the value that is the same for all keeps what a record of few values would lose with its length.
#
# Directions are drawn once, from a fixed public seed, so that features reveal nothing about anybody but their own record. A
# cosine and a sine are taken of each: at equal numbers of features, that estimates large values of the kernel with less
# variance than cosines with random phases (Sutherland, Schneider 2015), and the features of every record have the same norm.

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


class NeighbourAverage:
    """Averages of neighbouring values, each record less its mean.

    Args:
        width: values that are averaged at a time.
        shape: of a record.

    Raises:
        InputError: a record has fewer values.
    """

    channel_groups: int | None = None

    def __init__(self, width: int, shape: tuple[int, ...]) -> None:
        values = math.prod(shape)
        if width > values:
            raise InputError(f"`features`: unit:{width} averages more values than the {values} of a record")
        self.width = width
        self.feature_shape: tuple[int, ...] = (-(-values // width),)

    def __call__(self, x: Tensor) -> Tensor:
        """``(n, *shape)`` to ``(n, features)``."""
        values = x.flatten(1)
        if self.width > 1:
            values = functional.avg_pool1d(values[:, None], self.width, ceil_mode=True)[:, 0]
        return values - values.mean(1, keepdim=True)


# Wavelet moduli of signals of several channels, averaged over time: a scattering transform of order one, in one dimension.
#
# As with images, nothing is learned: the wavelets are fixed, so the map reveals nothing about anybody.

MAX_FREQUENCY, WIDTH = 0.75 * math.pi, 0.3
"""Frequency of the finest wavelet, in radians a sample, and deviation of every one as a part of its own frequency."""

FLOOR = 1e-3
"""Added to the norm of a group, so that a signal which is as good as constant is not blown up."""


class Wavelets:
    """The map for signals of one length; every signal by itself.

    Where channels come in threes, as those of an accelerometer do, the length of every triple is a channel as well: it does
    not depend on how the device was held.

    Args:
        octaves: J; the coarsest wavelet has a frequency 2^J times below the finest.
        each: Q; wavelets an octave.
        shape: of a signal, (steps, channels).

    Attributes:
        feature_shape: a mean and J Q moduli for each channel.

    Raises:
        InputError: a record is no signal, or shorter than the coarsest wavelet.
    """

    channel_groups: int | None = None

    def __init__(self, octaves: int, each: int, shape: tuple[int, ...]) -> None:
        if len(shape) != 2:
            raise InputError(
                f"`features`: wavelets takes signals, (steps, channels), and a record here is of shape {shape}; take"
                " unit, or scatter for images"
            )
        steps, channels = shape
        if steps < 2**octaves:
            raise InputError(
                f"`features`: signals of {steps} steps are too short for J = {octaves}; take wavelets:J with 2^J at"
                f" most {steps}"
            )
        self._triples = channels // 3 if channels % 3 == 0 else 0
        self._steps = steps
        self.feature_shape: tuple[int, ...] = ((channels + self._triples) * (1 + octaves * each),)
        frequency = MAX_FREQUENCY * 2.0 ** -(np.arange(octaves * each)[:, None] / each)
        omega = 2 * math.pi * np.fft.fftfreq(2 * steps)
        spread = 2 * (WIDTH * frequency) ** 2
        mean = np.exp(-(frequency**2) / spread)  # taken off, so that a wavelet does not see the mean
        spectra = np.exp(-((omega - frequency) ** 2) / spread) - mean * np.exp(-(omega**2) / spread)
        self._spectra = torch.from_numpy(spectra).float()

    def __call__(self, x: Tensor) -> Tensor:
        """``(n, steps, channels)`` to ``(n, features)``: means and moduli, each group centred and of norm 1."""
        x = x.transpose(1, 2)
        if self._triples:
            x = torch.cat([x, x.unflatten(1, (self._triples, 3)).norm(dim=2)], 1)
        mirrored = torch.cat([x, x.flip(2)], 2)
        filtered = torch.fft.ifft(torch.fft.fft(mirrored)[:, :, None] * self._spectra)
        moduli = filtered[..., : self._steps].abs().mean(3)
        return torch.cat([_centred(x.mean(2)), _centred(moduli.flatten(1).sqrt())], 1)


def _centred(group: Tensor) -> Tensor:
    group = group - group.mean(1, keepdim=True)
    return group / (group.norm(dim=1, keepdim=True) + FLOOR)


class Joined:
    """What several transforms make of a record, each normalised within it and scaled to the same share of the norm.

    Args:
        parts: transforms of records of one shape.
    """

    channel_groups: int | None = None

    def __init__(self, parts: Sequence[Transform]) -> None:
        self._parts = parts
        self.feature_shape: tuple[int, ...] = (sum(math.prod(part.feature_shape) for part in parts),)

    def __call__(self, x: Tensor) -> Tensor:
        """``(n, *shape)`` to ``(n, features)``."""
        return torch.cat([fixed_norm(_flat(part, x)) for part in self._parts], dim=1)


def _flat(part: Transform, x: Tensor) -> Tensor:
    values = part(x)
    return values if part.channel_groups is None else pixels_first(GroupNormalisation(part.channel_groups)(values))
