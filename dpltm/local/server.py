"""The server's side: what can be learned from messages.

All of it is a function of messages or of public numbers: post-processing, which costs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from scipy.special import bdtr, ndtr
from torch import Tensor

from dpltm.features.normalisation import NORM
from dpltm.local.channels import WHOLE
from dpltm.local.codebook import PAIRS, Codebook, Labels, codewords, reports
from dpltm.local.scheme import LABEL_BYTES, BitStrings, FixedPoint

AT_ONCE = 4096  # messages whose directions are squared together

MOST_SQUARED = 1024
"""Values of a record up to which second moments are estimated: of more, they would be noise in 8 MB and more."""


def gain(codebook: Codebook) -> float:
    """Return the mean of a reported direction along the record that it was ranked for, a number from 0 on.

    Directions near point along the record by ``_best_mean`` on average; all others together, by as much the other way.
    """
    return _best_mean(codebook.near) * _surplus(codebook)


def noise(codebook: Codebook) -> float:
    """Return the variance of one record's report in any direction, over the squared gain.

    A report adds a direction of variance 1 to one class of K, or to all of them with signs.
    """
    spread = codebook.classes ** (2 if codebook.labels == "signed" else 1)
    return spread / max(gain(codebook), 1e-150) ** 2


def moment_gain(codebook: Codebook) -> float:
    """Return h in E[z z^T] = I + h u u^T, of a reported direction z and the record u of norm 1 that it was ranked for.

    Across u a direction is normal whatever its rank. Along u, those near have mean square ``_best_mean(near, 2)``; all
    candidates together have 1, so the others lack what those near have more.
    """
    return (_best_mean(codebook.near, 2) - 1) * _surplus(codebook)


def _surplus(codebook: Codebook) -> float:
    """Chance of a near candidate, less that of another for each of the others that one near stands for."""
    near, far = codebook.near, codebook.candidates - codebook.near
    p = near / (near + far * math.exp(-codebook.epsilon))
    return p - (1 - p) * near / far


@dataclass(frozen=True)
class Estimates:
    """Unbiased estimates from messages of a codebook, for records u of norm 1.

    Attributes:
        means: of u in each class, times how frequent the class is over an equal share, ``(K, d)`` float64.
        variance: of each of these numbers that is due to the coins, for classes that are equally frequent.
        moments: mean of u u^T over all records, ``(d, d)`` float64. None of ``signed`` messages, at whose budgets its
            noise is many times what it is, and above ``MOST_SQUARED`` values.
        deviation: of its numbers off the diagonal that is due to the coins, on average over them.
    """

    means: np.ndarray
    variance: float
    moments: np.ndarray | None = None
    deviation: float = math.inf


def estimates(codebook: Codebook, rows: np.ndarray) -> Estimates:
    """Return estimates from messages ``(n, 6)`` uint8 of a codebook."""
    size = codebook.values
    squared = codebook.labels == "one-hot" and size <= MOST_SQUARED
    total, squares = np.zeros((codebook.classes, size)), np.zeros((size, size) if squared else 0)
    numbers, indices = reports(rows)
    order = np.argsort(numbers, kind="stable")
    for start in range(0, len(rows), AT_ONCE):
        block, along = order[start : start + AT_ONCE], list[np.ndarray]()
        distinct, starts = np.unique(numbers[block], return_index=True)
        for number, reported in zip(distinct, np.split(indices[block], starts[1:]), strict=True):
            directions, signs = codewords(int(number), size, codebook.classes)
            often = np.bincount(reported, minlength=codebook.candidates).reshape(-1, 2, PAIRS)
            more = often[:, 0] - often[:, 1]  # a direction less its opposite, for each class or for signs
            total += (more if codebook.labels == "one-hot" else signs.T * more) @ directions
            along.append(directions[reported % PAIRS])
        if squared:
            z = np.concatenate(along).astype(np.float64)
            squares += z.T @ z
    means, variance = total * (codebook.classes / (len(rows) * gain(codebook))), noise(codebook) / len(rows)
    if not squared:
        return Estimates(means, variance)
    h = max(moment_gain(codebook), 1e-150)
    longer = 1 + 2 * h / size  # a reported direction is longer along its record
    shared = 1 + (codebook.records_per_codebook - 1) / PAIRS  # and may be reported twice
    moments = (squares / len(rows) - np.eye(size)) / h
    return Estimates(means, variance, moments, math.sqrt(longer * shared / len(rows)) / h)


def frequencies(codebook: Codebook, rows: np.ndarray) -> np.ndarray:
    """Return how frequent the classes are, from one-hot messages, ``(classes,)``; signed ones tell nothing.

    Estimates are drawn towards equal shares by as much as their noise, which is known, calls for; none is below a
    tenth of an equal share.
    """
    equal = np.full(codebook.classes, 1 / codebook.classes)
    if codebook.labels == "signed":
        return equal
    count = len(rows)
    often = np.bincount(reports(rows)[1] // (2 * PAIRS), minlength=codebook.classes)
    p, rest = codebook.response.truth / WHOLE, codebook.candidates - codebook.near
    same = p + (1 - p) * (2 * PAIRS - codebook.near) / rest  # chance of an index of the record's own class
    other = (1 - same) / (codebook.classes - 1)
    shares = (often / count - other) / (same - other)
    apart = shares - equal
    blurred = codebook.classes * other * (1 - other) / count / (same - other) ** 2
    signal = max(float(np.square(apart).sum()) - blurred, 0.0)
    shares = np.maximum(equal + apart * signal / (signal + blurred), 0.1 / codebook.classes)
    return shares / shares.sum()


def best_codebook(values: int, classes: int, epsilon: float) -> Codebook:
    """Return the codebook with the least noise at this epsilon, which depends on nothing but public numbers."""
    choices: tuple[Labels, ...] = ("one-hot", "signed")
    sizes = range(1, PAIRS + 1)
    return min((Codebook(values, classes, epsilon, labels, near) for labels in choices for near in sizes), key=noise)


@cache
def _best_mean(near: int, power: int = 1) -> float:
    """Mean power of the k largest among the sizes of N standard normal numbers: order statistics, integrated."""
    z = np.linspace(0.0, 9.0, 4001)
    fewer = bdtr(near - 1, PAIRS - 1, 2 * ndtr(-z))  # of the others, larger ones
    density = 2 * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return float(PAIRS / near * np.trapezoid(z**power * density * fewer, z))


def _normal(form: FixedPoint) -> tuple[np.ndarray, np.ndarray]:
    """Return each bit's chance of 1 in a standard normal value, and how much that changes the value, ``(length,)`` each."""
    codes = np.arange(1 << (form.length - 1))
    edges = 2 * ndtr(codes * 2.0**-form.fraction) - 1
    mass = np.diff(edges, append=1.0)
    places = np.arange(form.length - 2, -1, -1)
    ones = np.array([mass[codes >> place & 1 == 1].sum() for place in places])
    mean = math.sqrt(2 / math.pi)  # of the size of such a value; the sign turns it round
    return np.array([0.5, *ones]), np.array([-2 * mean, *(2.0 ** (places - form.fraction))])


MIN_SIGNAL = 1e-3
"""Squared distance of class means, of records of norm 1, below which noise may not push an estimate of it."""

STANDS_OUT = 5  # second moments are used only if they exceed their noise by so many of its standard deviations


class Messages:
    """Messages ``(n, record_bytes)`` uint8 as a network wants them, a batch at a time: float32 ``(rows, bits)``.

    Of ``inputs`` "bits" it gets each bit as it arrived, 0 or 1 (LATENT, III-A9). Of "means" it gets the mean of what that
    adds to its value, given how it arrived: Bayes's rule, with the channel known and z-scores taken for standard normal, on
    each record by itself. Of randomised records the norm is then ``NORM``, in the quadratic mean. ``randomised`` says
    whether coins were tossed.
    """

    def __init__(
        self, rows: np.ndarray, answer: BitStrings, randomised: bool = True, inputs: str | None = "means"
    ) -> None:
        self._rows = rows
        self._answer = answer
        self._means = inputs != "bits"
        share, size = (np.tile(part, answer.values) for part in _normal(answer.form))
        p, q = answer.channel.probabilities()
        arrived = share * p + (1 - share) * q
        # variance of the mean of a bit, given how it arrived
        information = np.square(share * (1 - share) * (p - q)) / np.maximum(arrived * (1 - arrived), 1e-300)
        unit = NORM / math.sqrt(max(float(np.square(size) @ information), 1e-300))
        if not randomised:
            p, q = np.ones_like(p), np.zeros_like(q)
            arrived = share
        ones = share * p / np.maximum(arrived, 1e-300)
        zeros = share * (1 - p) / np.maximum(1 - arrived, 1e-300)
        self._low, self._high = (
            torch.from_numpy((unit * size * (part - share)).astype("f4")) for part in (zeros, ones)
        )

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def labels(self) -> Tensor:
        """As they arrived, ``(n,)`` int64."""
        return torch.from_numpy(self._answer.labels(self._rows))

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        """Return network inputs, ``(rows, bits)`` float32."""
        rows = self._rows[index if isinstance(index, slice) else index.numpy()]
        bits = torch.from_numpy(np.unpackbits(rows[:, :-LABEL_BYTES], axis=1, count=self._answer.channel.bits))
        return self._low + bits * (self._high - self._low) if self._means else bits.float()


def nearest_mean(answer: Codebook, rows: np.ndarray) -> dict[str, Tensor]:
    """Return the parameters of the linear network that takes features of norm ``NORM`` to the class whose mean is nearest.

    Estimated means are drawn towards their own mean by as much as their noise, which is known, calls for (James and Stein
    1961): at a small budget that is worth several points. One-hot messages tell as well how frequent classes are, and along
    which directions records of a class differ; where that stands out from the noise, they count for less (:func:`metric`).
    From signed ones neither can be known: classes are taken to be equally frequent, and all directions count the same.
    """
    return of_estimates(answer, estimates(answer, rows), frequencies(answer, rows))


def of_estimates(answer: Codebook, estimates: Estimates, shares: np.ndarray) -> dict[str, Tensor]:
    """Return the same from estimates, with shares of the classes as ``frequencies`` gives them."""
    means = estimates.means / (shares * answer.classes)[:, None]
    centre = means.mean(0)
    apart, noise = means - centre, estimates.variance * answer.values
    signal = max(float(np.square(apart).sum(1).mean()) - (1 - 1 / answer.classes) * noise, MIN_SIGNAL)
    means = centre + apart * signal / (signal + noise)
    weight = means
    if estimates.moments is not None:
        weight = means @ metric(estimates.moments - (means.T * shares) @ means, estimates.deviation)
    return {
        "fc1.weight": torch.from_numpy(weight / NORM).float(),
        "fc1.bias": torch.from_numpy(-(weight * means).sum(1) / 2).float(),
    }


def metric(within: np.ndarray, deviation: float) -> np.ndarray:
    """Return the weights of directions in the distance to a mean: one over how records of a class vary along them.

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
