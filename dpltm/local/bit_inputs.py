"""What a network gets of bits that were sent: the server's side of ``dpltm.local.bit_strings``."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from scipy import special
from torch import Tensor

from dpltm.features.conventions import NORM
from dpltm.local.bit_strings import LABEL_BYTES, BitStrings
from dpltm.local.encoding import FixedPoint


def network_inputs(answer: BitStrings, rows: np.ndarray, randomised: bool = True) -> Tensor:
    """For each bit, the mean of what it adds to its value, given how it arrived.

    That knows the channel and takes z-scores for standard normal; it looks at one record alone, and no other.

    Args:
        answer: what the rows are.
        rows: ``(n, record_bytes)`` uint8.
        randomised: whether they went through the channel.

    Returns:
        ``(n, bits)`` float32; of randomised records the norm is ``NORM``, in the quadratic mean.
    """
    bits = torch.from_numpy(np.unpackbits(rows[:, :-LABEL_BYTES], axis=1, count=answer.inputs))
    low, high = _means(answer, randomised)
    return low + bits * (high - low)


@lru_cache(maxsize=8)
def _means(answer: BitStrings, randomised: bool) -> tuple[Tensor, Tensor]:
    """What a 0 and a 1 that arrive are worth, ``(bits,)`` each: Bayes's rule, bit by bit."""
    p, q = answer.channel.probabilities() if randomised else (np.ones(answer.inputs), np.zeros(answer.inputs))
    share, size = (np.tile(part, answer.values) for part in _normal(answer.form))
    arrived = share * p + (1 - share) * q
    ones = share * p / np.maximum(arrived, 1e-300)
    zeros = share * (1 - p) / np.maximum(1 - arrived, 1e-300)
    low, high = (_unit(answer) * size * (part - share) for part in (zeros, ones))
    return torch.from_numpy(low.astype("f4")), torch.from_numpy(high.astype("f4"))


def _unit(answer: BitStrings) -> float:
    """What inputs are multiplied by, so that those of randomised records have norm ``NORM``."""
    share, size = (np.tile(part, answer.values) for part in _normal(answer.form))
    p, q = answer.channel.probabilities()
    arrived = share * p + (1 - share) * q
    # variance of the mean of a bit, given how it arrived
    told = np.square(share * (1 - share) * (p - q)) / np.maximum(arrived * (1 - arrived), 1e-300)
    return NORM / math.sqrt(max(float(np.square(size) @ told), 1e-300))


def _normal(form: FixedPoint) -> tuple[np.ndarray, np.ndarray]:
    """How often each bit of a standard normal value is 1, and by how much that changes the value, ``(length,)`` each."""
    codes = np.arange(1 << (form.length - 1))
    edges = 2 * special.ndtr(codes * 2.0**-form.fraction) - 1
    mass = np.diff(edges, append=1.0)
    places = np.arange(form.length - 2, -1, -1)
    ones = np.array([mass[codes >> place & 1 == 1].sum() for place in places])
    mean = math.sqrt(2 / math.pi)  # of the size of such a value; the sign turns it round
    return np.array([0.5, *ones]), np.array([-2 * mean, *(2.0 ** (places - form.fraction))])
