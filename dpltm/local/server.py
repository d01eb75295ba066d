"""The server's side: networks that learn from randomised records. All of it is post-processing, and costs nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from dpltm.features.conventions import NORM
from dpltm.local.bit_inputs import network_inputs
from dpltm.local.bit_strings import BitStrings
from dpltm.local.class_means import Estimates, estimates, frequencies
from dpltm.local.codebook import Codebook

MIN_SIGNAL = 1e-3
"""Squared distance of class means, of records of norm 1, below which noise may not push an estimate of it."""

STANDS_OUT = 5
"""Second moments are used only if they exceed their noise by so many of its standard deviations."""


class Messages:
    """Messages in files, read as a network wants them, some at a time: more of them than fit into memory will do.

    Args:
        files: ``(n, record_bytes)`` uint8 each, mapped or in memory.
        answer: what they are.
        randomised: whether coins were tossed.
    """

    def __init__(self, files: Sequence[np.ndarray], answer: BitStrings, randomised: bool = True) -> None:
        small = [rows for rows in files if not isinstance(rows, np.memmap)]
        mapped = [rows for rows in files if isinstance(rows, np.memmap)]
        self._files = [np.concatenate(small), *mapped] if small else mapped  # many owners may send one message each
        self._answer, self._randomised = answer, randomised
        self._ends = np.cumsum([len(rows) for rows in self._files])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def labels(self) -> Tensor:
        """As they arrived, ``(n,)`` int64."""
        return torch.from_numpy(np.concatenate([self._answer.labels(rows) for rows in self._files]))

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        """What the network gets, ``(rows, inputs)`` float32."""
        places = np.arange(len(self))[index] if isinstance(index, slice) else index.numpy()
        rows = np.empty((len(places), self._answer.record_bytes), dtype=np.uint8)
        which = np.searchsorted(self._ends, places, side="right")
        for number, file in enumerate(self._files):
            here = which == number
            rows[here] = file[places[here] - (self._ends[number] - len(file))]
        return network_inputs(self._answer, rows, self._randomised)


def nearest_mean(answer: Codebook, files: Iterable[np.ndarray]) -> dict[str, Tensor]:
    """Parameters of the linear network that takes features of norm ``NORM`` to the class whose mean is nearest.

    Estimated means are drawn towards their own mean by as much as their noise, which is known, calls for (James and Stein
    1961): at a small budget that is worth several points. One-hot messages tell as well how frequent classes are, and along
    which directions records of a class differ; where that stands out from the noise, they count for less (:func:`metric`).
    From signed ones neither can be known: classes are taken to be equally frequent, and all directions count the same.
    """
    files = list(files)
    return of_estimates(answer, estimates(answer, files), frequencies(answer, files))


def of_estimates(answer: Codebook, told: Estimates, shares: np.ndarray) -> dict[str, Tensor]:
    """The same from what messages tell.

    Args:
        answer: that the messages are of.
        told: by them.
        shares: of the classes, as ``frequencies`` gives them.
    """
    means = told.means / (shares * answer.classes)[:, None]
    centre = means.mean(0)
    apart, noise = means - centre, told.variance * answer.values
    signal = max(float(np.square(apart).sum(1).mean()) - (1 - 1 / answer.classes) * noise, MIN_SIGNAL)
    means = centre + apart * signal / (signal + noise)
    weight = means
    if told.moments is not None:
        weight = means @ metric(told.moments - (means.T * shares) @ means, told.deviation)
    return {
        "fc1.weight": torch.from_numpy(weight / NORM).float(),
        "fc1.bias": torch.from_numpy(-(weight * means).sum(1) / 2).float(),
    }


def metric(within: np.ndarray, deviation: float) -> np.ndarray:
    """How much directions count in the distance to a mean: one over how records of a class vary along them.

    A symmetric matrix of nothing but noise of this deviation has squares that add up to d (d + 1) deviation^2, give or take
    2 d deviation^2. Unless those of ``within``, less its mean eigenvalue, exceed that by ``STANDS_OUT`` times as much, all
    directions count the same, and the nearest mean is left: noise taken for spread costs up to six points. Else eigenvalues,
    which the noise moves by up to 2 sqrt(d) deviations (Wigner 1955), are cut at 0, and a quarter of that is added to all:
    chosen on kmnist-7k.

    Args:
        within: estimated mean of (u - m) (u - m)^T, of records u and the means m of their classes, ``(d, d)``.
        deviation: of each of its numbers off the diagonal.

    Returns:
        ``(d, d)``, symmetric and positive; around 1.
    """
    size = len(within)
    apart = within - np.trace(within) / size * np.eye(size)
    if np.square(apart).sum() <= (size + 1 + 2 * STANDS_OUT) * size * deviation**2:
        return np.eye(size)
    values, vectors = np.linalg.eigh(within)
    sizes = np.maximum(values, 0) + math.sqrt(size) * deviation / 2
    result: np.ndarray = (vectors * (sizes.mean() / sizes)) @ vectors.T
    return result
