"""Wavelet moduli of signals of several channels, averaged over time: a scattering transform of order one, in one dimension.

As with images, nothing is learned: the wavelets are fixed, so the map reveals nothing about anybody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpltm.errors import InputError

HIGHEST, WIDTH = 0.75 * math.pi, 0.3
"""Frequency of the finest wavelet, in radians a sample, and deviation of every one as a part of its own frequency."""

FLOOR = 1e-3
"""Added to the norm of a group, so that a signal which is as good as constant is not blown up."""


@dataclass(frozen=True)
class Bands:
    """What the map is decided by.

    Attributes:
        octaves: J; the coarsest wavelet has a frequency 2^J times below the finest.
        each: Q; wavelets an octave.
    """

    octaves: int = 5
    each: int = 2

    def __post_init__(self) -> None:
        if not (1 <= self.octaves <= 12 and 1 <= self.each <= 16):
            raise InputError(
                f"`features`: wavelets:{self.octaves},{self.each}: J must be 1 to 12, Q 1 to 16; the usual is wavelets:5,2"
            )


class Wavelets:
    """The map for signals of one length; every signal by itself.

    Where channels come in threes, as those of an accelerometer do, the length of every triple is a channel as well: it does
    not depend on how the device was held.

    Args:
        bands: J and Q.
        steps: samples of a signal.
        channels: of it.

    Attributes:
        features: numbers that come out: a mean and J Q moduli for each channel.

    Raises:
        InputError: the signal is shorter than the coarsest wavelet.
    """

    def __init__(self, bands: Bands, steps: int, channels: int) -> None:
        if steps < 2**bands.octaves:
            raise InputError(
                f"`features`: signals of {steps} steps are too short for J = {bands.octaves}; take wavelets:J with 2^J at"
                f" most {steps}"
            )
        self._triples = channels // 3 if channels % 3 == 0 else 0
        self._steps, self.features = steps, (channels + self._triples) * (1 + bands.octaves * bands.each)
        frequency = HIGHEST * 2.0 ** -(np.arange(bands.octaves * bands.each)[:, None] / bands.each)
        omega = 2 * math.pi * np.fft.fftfreq(2 * steps)
        spread = 2 * (WIDTH * frequency) ** 2
        mean = np.exp(-(frequency**2) / spread)  # taken off, so that a wavelet does not see the mean
        spectra = np.exp(-((omega - frequency) ** 2) / spread) - mean * np.exp(-(omega**2) / spread)
        self._spectra = torch.from_numpy(spectra).float()

    def __call__(self, signals: Tensor) -> Tensor:
        """``(batch, steps, channels)`` to ``(batch, self.features)``: means and moduli, each group centred and of norm 1."""
        x = signals.transpose(1, 2)
        if self._triples:
            x = torch.cat([x, x.unflatten(1, (self._triples, 3)).norm(dim=2)], 1)
        mirrored = torch.cat([x, x.flip(2)], 2)
        found = torch.fft.ifft(torch.fft.fft(mirrored)[:, :, None] * self._spectra)
        moduli = found[..., : self._steps].abs().mean(3)
        return torch.cat([_centred(x.mean(2)), _centred(moduli.flatten(1).sqrt())], 1)


def _centred(group: Tensor) -> Tensor:
    group = group - group.mean(1, keepdim=True)
    return group / (group.norm(dim=1, keepdim=True) + FLOOR)
