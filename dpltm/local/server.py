"""The server's side: networks that learn from randomised records. All of it is post-processing, and costs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from dpltm.features.conventions import NORM
from dpltm.local.bit_inputs import network_inputs
from dpltm.local.bit_strings import BitStrings
from dpltm.local.class_means import class_means, frequencies
from dpltm.local.codebook import Codebook

MIN_SIGNAL = 1e-3
"""Squared distance of class means, of records of norm 1, below which noise may not push an estimate of it."""


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
    1961): at a small budget that is worth several points. Classes are as frequent as one-hot messages say; from signed ones,
    that cannot be known, and they are taken to be equally frequent.
    """
    files = list(files)
    return of_estimates(answer, *class_means(answer, files), frequencies(answer, files))


def of_estimates(answer: Codebook, means: np.ndarray, variance: float, shares: np.ndarray) -> dict[str, Tensor]:
    """The same from what messages tell.

    Args:
        answer: that the messages are of.
        means, variance: as ``class_means`` gives them.
        shares: of the classes, as ``frequencies`` gives them.
    """
    means = means / (shares * answer.classes)[:, None]
    centre = means.mean(0)
    apart, noise = means - centre, variance * answer.values
    signal = max(float(np.square(apart).sum(1).mean()) - (1 - 1 / answer.classes) * noise, MIN_SIGNAL)
    means = centre + apart * signal / (signal + noise)
    return {
        "fc1.weight": torch.from_numpy(means / NORM).float(),
        "fc1.bias": torch.from_numpy(-np.square(means).sum(1) / 2).float(),
    }
