"""Transforms of records that are made without data: scattering, random convolutions, Fourier features, wavelets, averages.

Every record goes through by itself, and nothing is learned, so they reveal nothing about anybody but their own record.
Weights and directions are drawn once, from public seeds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dpltm.errors import InputError
from dpltm.features import Transform
from dpltm.features.normalisation import fixed_norm, normalised
from dpltm.randomness.noise import FastSource, gaussian, uniform
from dpltm.records.scaling import MAX_CHANNELS

LEAST = 8  # pixels of a side, at least, of an image that is resized


def image_size(kind: str, shape: tuple[int, ...], least: int, colours: Sequence[int]) -> tuple[int, int, int]:
    """Height, width and colours of a record as stored; InputError for sides below ``least`` or another number of colours."""
    height, width, count = (*shape, 1)[:3] if len(shape) in (2, 3) else (0, 0, 0)
    if min(height, width) < least or count not in colours:
        numbers = ", ".join(map(str, colours))
        raise InputError(
            f"`features`: {kind} takes images, (height, width) or (height, width, colours), of {least} by {least} pixels or"
            f" more in {numbers} colours, and a record here is of shape {shape}; take unit"
        )
    return height, width, count


def colours_first(images: Tensor) -> Tensor:
    """``(n, height, width)`` or ``(n, height, width, colours)`` to ``(n, colours, height, width)``."""
    return images.reshape(*images.shape[:3], -1).permute(0, 3, 1, 2)


GREY, COLOURED, SIDE = (32, 64), (32, 32, 64, 64), 3
ENLARGED = 56  # pixels of a side of an image of several colours, as the filters see it
GROUPS = 8  # groups of channels that are normalised within a record
COLOURS = range(1, MAX_CHANNELS + 1)


class RandomConvolutions(Transform):
    """The convolutional modules of LATENT (Arachchige et al. 2019, IV-A1), by public weights that ``seed`` decides.

    Nobody trains them (III-C), and linear classifiers on top of them do well (Pinto et al. 2009). Layers of 3 x 3 filters
    with ReLU come in pairs, each followed by maxima over 2 x 2 pixels. Grey images have one pair. Those of several colours
    are enlarged and have two, the first layer of each padded: sides of 56, 54, 27, 27, 25 and 12. Either makes 9,216 values.
    """

    channel_groups = GROUPS

    def __init__(self, seed: int, shape: tuple[int, ...]) -> None:
        height, width, colours = image_size("conv", shape, 6, COLOURS)
        self._padding, filters = (0, GREY) if colours == 1 else (1, COLOURED)
        rows, columns = ((height - 4) // 2, (width - 4) // 2) if colours == 1 else (12, 12)
        self.feature_shape = (rows, columns, filters[-1])
        source = FastSource(seed)
        self._weights = [_weights(source, *layer) for layer in zip(filters, (colours, *filters), strict=False)]

    def __call__(self, x: Tensor) -> Tensor:
        values = colours_first(x)
        if self._padding:
            values = functional.interpolate(values, (ENLARGED, ENLARGED), mode="bilinear", antialias=True)
        for first, second in zip(self._weights[::2], self._weights[1::2], strict=True):
            values = functional.conv2d(values, first, padding=self._padding).relu()
            values = functional.max_pool2d(functional.conv2d(values, second).relu(), 2)
        return values


def _weights(source: FastSource, filters: int, channels: int) -> Tensor:
    """Uniform weights of variance 2 / (inputs of a filter), so that values keep their size (He et al. 2015)."""
    inputs = channels * SIDE * SIDE
    values = (2 * uniform(source, filters * inputs) - 1) * math.sqrt(6 / inputs)
    return torch.from_numpy(values).float().view(filters, channels, SIDE, SIDE)


CONSTANT = 0.5  # the value that is the same for all, over the root of the number of values of a record
SEED = 0  # decides the directions, which are public


class FourierFeatures(Transform):
    """Random Fourier features (Rahimi, Recht 2007) of exp(-gamma |u - v|^2): ``count`` in all, cosines, then sines.

    u and v are records on a sphere: their values from -1 to 1, one more that is the same for all, and then all of them of
    norm 1 together. So one bandwidth suits records of many sizes, and a record of few values keeps its length. Cosine and
    sine estimate large values of the kernel better than cosines of random phases (Sutherland, Schneider 2015).
    """

    def __init__(self, count: int, gamma: float, shape: tuple[int, ...]) -> None:
        if count % 2:
            raise InputError(f"`features`: fourier:{count}: features come in pairs; take an even D, as {count + 1}")
        values = math.prod(shape)
        directions = count // 2
        self.feature_shape = (count,)
        drawn = torch.from_numpy(gaussian(FastSource(SEED), directions * (values + 1))).view(directions, values + 1)
        drawn *= math.sqrt(2 * gamma)
        self.constant = CONSTANT * math.sqrt(values)
        self.directions, self.offsets = drawn[:, :-1].float(), (self.constant * drawn[:, -1]).float()

    def __call__(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        norms = (flat.square().sum(1, keepdim=True) + self.constant**2).sqrt()
        phases = (flat @ self.directions.T + self.offsets) / norms
        return torch.cat([phases.cos(), phases.sin()], 1)


class NeighbourAverage(Transform):
    """Averages of ``width`` neighbouring values at a time, each record less its mean."""

    def __init__(self, width: int, shape: tuple[int, ...]) -> None:
        self.width = width
        self.feature_shape = (-(-math.prod(shape) // width),)
        if self.feature_shape == (1,):
            raise InputError(
                f"`features`: unit:{width} leaves nothing of records of shape {shape}: one value less its own mean is zero;"
                " take fourier, or none"
            )

    def __call__(self, x: Tensor) -> Tensor:
        values = x.flatten(1)
        if self.width > 1:
            values = functional.avg_pool1d(values[:, None], self.width, ceil_mode=True)[:, 0]
        return values - values.mean(1, keepdim=True)


MAX_FREQUENCY, WIDTH = 0.75 * math.pi, 0.3  # of the finest wavelet, in radians a sample; deviation over frequency
FLOOR = 1e-3  # added to the norm of a group, so that a signal which is as good as constant is not blown up


class Wavelets(Transform):
    """Wavelet moduli of signals of several channels, averaged over time: scattering of order one, in one dimension.

    Features are a mean and J Q moduli for each channel: J octaves of Q wavelets, below the finest. Where channels come in
    threes, as those of an accelerometer do, the length of every triple is a channel too, however the device was held.
    """

    def __init__(self, octaves: int, per_octave: int, shape: tuple[int, ...]) -> None:
        if len(shape) != 2 or shape[0] < 2**octaves:
            raise InputError(
                f"`features`: wavelets with J = {octaves} takes signals, (steps, channels), of {2**octaves} steps or more,"
                f" and a record here is of shape {shape}; take a smaller J, or unit"
            )
        steps, channels = shape
        self._triples = channels // 3 if channels % 3 == 0 else 0
        self._steps = steps
        self.feature_shape = ((channels + self._triples) * (1 + octaves * per_octave),)
        frequency = MAX_FREQUENCY * 2.0 ** -(np.arange(octaves * per_octave)[:, None] / per_octave)
        omega = 2 * math.pi * np.fft.fftfreq(2 * steps)
        spread = 2 * (WIDTH * frequency) ** 2
        mean = np.exp(-(frequency**2) / spread)  # taken off, so that a wavelet does not see the mean
        spectra = np.exp(-((omega - frequency) ** 2) / spread) - mean * np.exp(-(omega**2) / spread)
        self._spectra = torch.from_numpy(spectra).float()

    def __call__(self, x: Tensor) -> Tensor:
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


class Joined(Transform):
    """Features of several transforms, each normalised within a record and scaled to the same share of the norm."""

    def __init__(self, parts: Sequence[Transform]) -> None:
        self._parts = parts
        self.feature_shape = (sum(math.prod(part.feature_shape) for part in parts),)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([fixed_norm(normalised(part(x), part.channel_groups)) for part in self._parts], dim=1)


SPREAD, FREQUENCY = 0.8, 0.75 * math.pi  # of the finest wavelet, in pixels, in radians a pixel; then twice and half
SCATTER_GROUPS = 27  # groups of channels, for each colour channel of an image, that are normalised within a record


class Scattering(Transform):
    """Averages, over windows of 2^J pixels, of an image, of the moduli of its convolutions with Morlet wavelets, and of the
    moduli of those moduli's convolutions with coarser ones (Mallat 2012; Bruna and Mallat 2013).

    Under tight budgets a linear classifier on top of it is hard to beat (Tramer and Boneh 2021). Wavelets (J ``scales`` of L
    ``angles``), padding and the order of channels are those of Andreux et al. 2020; channels go colour by colour.
    """

    def __init__(self, scales: int, angles: int, shape: tuple[int, ...]) -> None:
        step = 2**scales
        height, width, colours = image_size(f"scatter with J = {scales}", shape, step + 1, COLOURS)
        self.scales, self.angles = scales, angles
        # a margin of at least half a window on every side, mirrored, and a whole number of windows in all
        self._sizes = tuple(((size + step) // step + 1) * step for size in (height, width))
        down, right = self._sizes[0] - height, self._sizes[1] - width
        self._margin = (right // 2, right - right // 2, down // 2, down - down // 2)
        rows, columns = (size // step - 2 for size in self._sizes)
        channels = 1 + scales * angles + scales * (scales - 1) // 2 * angles**2  # of order zero, one and two
        self.feature_shape = (rows, columns, colours * channels)
        self.channel_groups = SCATTER_GROUPS * colours
        wavelets = [torch.from_numpy(self._spectra(j)) for j in range(scales)]
        self._first = [_ready(wavelet, 2**j) for j, wavelet in enumerate(wavelets)]
        self._second = {
            (j1, j2): _ready(_folded(wavelets[j2], 2**j1), 2 ** (j2 - j1))
            for j1, j2 in itertools.combinations(range(scales), 2)
        }
        self._averages = [
            tuple(torch.from_numpy(self._average(size, at)).float() for size in self._sizes) for at in range(scales)
        ]

    def __call__(self, x: Tensor) -> Tensor:
        planes = colours_first(x).flatten(0, 1)  # of one colour each
        images = functional.pad(planes[:, None], self._margin, mode="reflect")
        spectrum = torch.fft.fft2(images)
        first, second = [self._averaged(images, 0)], []
        for j1 in range(self.scales):
            once = _modulus(spectrum, self._first[j1].to(images.device), 2**j1)
            first.append(self._averaged(once, j1))
            per_angle = []
            for j2 in range(j1 + 1, self.scales):
                wavelets = self._second[j1, j2].to(images.device)
                twice = _modulus(torch.fft.fft2(once)[:, :, None], wavelets, 2 ** (j2 - j1))
                per_angle.append(self._averaged(twice, j2))
            if per_angle:  # for every wavelet of the first order, those of the second by scale and angle
                second.append(torch.cat(per_angle, 2).flatten(1, 2))
        values = torch.cat((*first, *second), 1)
        return values.view(x.shape[0], -1, *values.shape[2:])

    def _averaged(self, values: Tensor, at: int) -> Tensor:
        """Return the averages of ``values``, which were sampled every 2^at pixels, every 2^J pixels; without the margin."""
        down, across = (matrix.to(values.device) for matrix in self._averages[at])
        return down @ values @ across.T

    def _spectra(self, j: int) -> np.ndarray:
        """Return the wavelets of one scale, ``(L, *self._sizes)``: real, since they are symmetric up to conjugation."""
        spread, frequency = SPREAD * 2**j, FREQUENCY / 2**j
        angles = [(self.angles // 2 - 1 - k) * math.pi / self.angles for k in range(self.angles)]
        slant = 4 / self.angles
        return np.stack([np.fft.fft2(_morlet(self._sizes, spread, angle, frequency, slant)).real for angle in angles])

    def _average(self, size: int, at: int) -> np.ndarray:
        """Return the matrix that averages one dimension, ``(windows, size / 2^at)``: a Gaussian is separable."""
        spread = SPREAD * 2 ** (self.scales - 1)
        spectrum = np.fft.fft(_gaussian(size, spread)).real
        if at:  # what lies beyond the frequencies of the coarser grid is left out before it would fold back
            spectrum[size // 2 ** (at + 1) : size - size // 2 ** (at + 1)] = 0
            spectrum = spectrum.reshape(2**at, -1).sum(0)
        kernel, step = np.fft.ifft(spectrum).real, 2 ** (self.scales - at)
        places = np.arange(1, len(kernel) // step - 1)[:, None] * step - np.arange(len(kernel))
        return kernel[places % len(kernel)]


def _ready(spectra: Tensor, step: int) -> Tensor:
    """Real spectra ``(L, h, w)`` as factors of the real and the imaginary part, ``(L, h, w, 2)``, over ``step`` squared."""
    return (spectra / step**2).float()[..., None].expand(*spectra.shape, 2).contiguous()


def _modulus(spectra: Tensor, wavelets: Tensor, step: int) -> Tensor:
    """Moduli of convolutions every ``step`` pixels: ``(..., 1, h, w)`` to ``(..., L, h/step, w/step)``."""
    height, width = (size // step for size in wavelets.shape[1:3])
    parts = torch.view_as_real(spectra)
    folded = None
    for row, column in itertools.product(range(step), range(step)):  # sampling folds the spectrum, and takes the mean
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
    """Return a Gaussian around 0 on a circle of ``size`` pixels, ``(size,)``; it sums to about 1."""
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
