"""Scattering: wavelet modulus coefficients of an image, computed without having seen any data.

A scattering transform (Mallat 2012; in two dimensions, Bruna and Mallat 2013) averages an image, the moduli of its
convolutions with Morlet wavelets, and the moduli of those moduli's convolutions with coarser wavelets, over windows of 2^J
pixels. It is fixed: no weight of it is learned, so that it reveals nothing about anybody. Under tight budgets a linear
classifier on top of it is hard to beat (Tramer and Boneh 2021).

Wavelets, padding and the order of channels are those of Andreux et al. 2020, so that results can be compared.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dpltm.errors import InputError
from dpltm.features.image import colours_first, image_size

SPREAD, FREQUENCY = 0.8, 0.75 * math.pi
"""Deviation in pixels, and frequency in radians a pixel, of the finest wavelet; coarser ones double and halve them."""

GROUPS = 27
"""Groups of channels, for each colour channel of an image, that are normalised within a record."""


def paths(scales: int, angles: int) -> tuple[tuple[int, ...], ...]:
    """Scales and angles ``(j1, angle1, j2, angle2)`` of every channel, in order: of order zero, one and two."""
    first = [(j, angle) for j in range(scales) for angle in range(angles)]
    second = [one + other for one in first for other in first if other[0] > one[0]]
    return ((), *first, *second)


class Scattering:
    """The transform for images of one size; every image by itself.

    Args:
        scales: J; averages are over windows of 2^J pixels.
        angles: L; wavelets a scale.
        shape: of the images as stored.

    Attributes:
        feature_shape: height, width and channels of the result; 1 + J L + J (J - 1) L^2 / 2 channels for each colour.

    Raises:
        InputError: a record is no image, or too small for J.
    """

    def __init__(self, scales: int, angles: int, shape: tuple[int, ...]) -> None:
        height, width, colours = image_size("scatter", shape)
        step = 2**scales
        if min(height, width) <= step:
            raise InputError(
                f"`features`: images of {height} x {width} pixels are too small for J = {scales}, which averages over"
                f" windows of {step}; take scatter:{_max_scales(min(height, width))}"
                if min(height, width) > 2
                else f"`features`: images of {height} x {width} pixels are too small to scatter; take `features` none"
            )
        self.scales, self.angles = scales, angles
        # a margin of at least half a window on every side, mirrored, and a whole number of windows in all
        self._sizes = tuple(((size + step) // step + 1) * step for size in (height, width))
        before = [(whole - size) // 2 for whole, size in zip(self._sizes, (height, width), strict=True)]
        after = [whole - size - first for whole, size, first in zip(self._sizes, (height, width), before, strict=True)]
        self._margin = (before[1], after[1], before[0], after[0])
        rows, columns = (size // step - 2 for size in self._sizes)
        self.feature_shape: tuple[int, ...] = (rows, columns, colours * len(paths(scales, angles)))
        self.channel_groups: int | None = GROUPS * colours
        wavelets = [torch.from_numpy(self._spectra(j)) for j in range(scales)]
        self._first = [_ready(one, 2**j) for j, one in enumerate(wavelets)]
        self._second = {
            (j1, j2): _ready(_folded(wavelets[j2], 2**j1), 2 ** (j2 - j1))
            for j1, j2 in itertools.combinations(range(scales), 2)
        }
        self._averages = [
            tuple(torch.from_numpy(self._average(size, at)).float() for size in self._sizes) for at in range(scales)
        ]

    def __call__(self, x: Tensor) -> Tensor:
        """``(n, *shape)`` to ``(n, channels, height, width)``, float32; channels colour by colour."""
        values = self._of_planes(colours_first(x).flatten(0, 1))
        return values.view(len(x), -1, *values.shape[2:])

    def _of_planes(self, images: Tensor) -> Tensor:
        """``(planes, height, width)`` to ``(planes, channels, height, width)``."""
        images = functional.pad(images[:, None], self._margin, mode="reflect")
        spectrum = torch.fft.fft2(images)
        first, second = [self._averaged(images, 0)], []
        for j1 in range(self.scales):
            one = _modulus(spectrum, self._first[j1].to(images.device), 2**j1)
            first.append(self._averaged(one, j1))
            per_angle = []
            for j2 in range(j1 + 1, self.scales):
                wavelets = self._second[j1, j2].to(images.device)
                two = _modulus(torch.fft.fft2(one)[:, :, None], wavelets, 2 ** (j2 - j1))
                per_angle.append(self._averaged(two, j2))
            if per_angle:  # for every wavelet of the first order, those of the second by scale and angle
                second.append(torch.cat(per_angle, 2).flatten(1, 2))
        return torch.cat((*first, *second), 1)

    def _averaged(self, values: Tensor, at: int) -> Tensor:
        """The averages of ``values``, which were sampled every 2^at pixels, every 2^J pixels; without the margin."""
        down, across = (matrix.to(values.device) for matrix in self._averages[at])
        return down @ values @ across.T

    def _spectra(self, j: int) -> np.ndarray:
        """The wavelets of one scale, ``(L, *self._sizes)``: real, since they are symmetric up to conjugation."""
        spread, frequency = SPREAD * 2**j, FREQUENCY / 2**j
        angles = [(self.angles // 2 - 1 - k) * math.pi / self.angles for k in range(self.angles)]
        slant = 4 / self.angles
        return np.stack([np.fft.fft2(_morlet(self._sizes, spread, angle, frequency, slant)).real for angle in angles])

    def _average(self, size: int, at: int) -> np.ndarray:
        """What averages one dimension: ``(windows, size / 2^at)``.

        A Gaussian is one along rows times one along columns, and so is its spectrum.
        """
        spread = SPREAD * 2 ** (self.scales - 1)
        spectrum = np.fft.fft(_gaussian(size, spread)).real
        if at:  # what lies beyond the frequencies of the coarser grid is left out before it would fold back
            spectrum[size // 2 ** (at + 1) : size - size // 2 ** (at + 1)] = 0
            spectrum = spectrum.reshape(2**at, -1).sum(0)
        kernel, step = np.fft.ifft(spectrum).real, 2 ** (self.scales - at)
        places = np.arange(1, len(kernel) // step - 1)[:, None] * step - np.arange(len(kernel))
        return kernel[places % len(kernel)]


def _max_scales(size: int) -> int:
    """The largest J for images of this many pixels."""
    return (size - 1).bit_length() - 1


def _ready(spectra: Tensor, step: int) -> Tensor:
    """Real spectra ``(L, h, w)`` as factors of the real and the imaginary part, ``(L, h, w, 2)``, over ``step`` squared."""
    return (spectra / step**2).float()[..., None].expand(*spectra.shape, 2).contiguous()


def _modulus(spectra: Tensor, wavelets: Tensor, step: int) -> Tensor:
    """Moduli of convolutions every ``step`` pixels: ``(..., 1, h, w)`` to ``(..., L, h/step, w/step)``.

    To sample every so many pixels is to fold the spectrum that many times, and to take the mean.

    Args:
        spectra: of what is convolved, complex.
        wavelets: from ``_ready``, ``(L, h, w, 2)``.
        step: pixels.
    """
    height, width = (size // step for size in wavelets.shape[1:3])
    parts, folded = torch.view_as_real(spectra), None
    for row, column in itertools.product(range(step), range(step)):
        rows, columns = slice(row * height, (row + 1) * height), slice(column * width, (column + 1) * width)
        part, factor = parts[..., rows, columns, :], wavelets[:, rows, columns, :]
        folded = part * factor if folded is None else folded.addcmul_(part, factor)
    assert folded is not None
    return torch.fft.ifft2(torch.view_as_complex(folded)).abs()


def _folded(spectra: Tensor, step: int) -> Tensor:
    """Spectra on a grid of ``step`` times fewer frequencies."""
    if step == 1:
        return spectra
    angles, height, width = spectra.shape
    low_pass = torch.ones(height, width, dtype=spectra.dtype)
    low_pass[height // (2 * step) : height - height // (2 * step)] = 0
    low_pass[:, width // (2 * step) : width - width // (2 * step)] = 0
    return (spectra * low_pass).view(angles, step, height // step, step, width // step).sum((1, 3))


def _gaussian(size: int, spread: float) -> np.ndarray:
    """A Gaussian around 0 on a circle of ``size`` pixels, ``(size,)``; it sums to about 1."""
    u = np.arange(size) + size * np.arange(-2, 3)[:, None]
    return (np.exp(-(u**2) / (2 * spread**2)) / (math.sqrt(2 * math.pi) * spread)).sum(0)


def _morlet(sizes: tuple[int, ...], spread: float, angle: float, frequency: float, slant: float) -> np.ndarray:
    """A wave within a Gaussian that is longer across it by 1 / ``slant``, less what makes its mean zero; on a torus."""
    wave, envelope = np.zeros(sizes, dtype=complex), np.zeros(sizes)
    for shift in itertools.product(range(-2, 3), repeat=2):
        u, v = np.ogrid[tuple(slice(k * size, (k + 1) * size) for k, size in zip(shift, sizes, strict=True))]
        along, across = u * math.cos(angle) + v * math.sin(angle), v * math.cos(angle) - u * math.sin(angle)
        gaussian = np.exp(-(along**2 + (slant * across) ** 2) / (2 * spread**2)) * slant / (2 * math.pi * spread**2)
        wave += gaussian * np.exp(1j * frequency * along)
        envelope += gaussian
    return wave - wave.sum() / envelope.sum() * envelope
