"""Wavelet moduli of signals of several channels, averaged over time: a scattering transform of order one, in one dimension.

As with images, nothing is learned: the wavelets are fixed, so the map reveals nothing about anybody.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from dpltm.errors import InputError

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
