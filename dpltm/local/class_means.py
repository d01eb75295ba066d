"""What many messages of a codebook tell, means and frequencies of classes and second moments, and which codebook tells most.

All of it is a function of messages or of public numbers, and costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import bdtr, ndtr

from dpltm.errors import InputError
from dpltm.local.channels import MAX_EPSILON, WHOLE
from dpltm.local.codebook import NUMBER_BYTES, PAIRS, Codebook, Labels, codewords, indices

AT_ONCE = 4096
"""Directions whose squares are added up at a time."""

MOST_SQUARED = 1024
"""Values of a record up to which second moments are estimated: of more, they would be noise in 8 MB and more."""


def gain(codebook: Codebook) -> float:
    """Mean of a reported direction along the record that it was ranked for, a number from 0 on.

    Those near point along the record by ``_best_mean`` on average; all others together, by as much the other way.
    """
    return _best_mean(codebook.near) * _surplus(codebook)


def noise(codebook: Codebook) -> float:
    """Variance of one record's report in any direction, over the squared gain: what an estimate is blurred by.

    A report adds a direction of variance 1 to one class of K, or to all of them with signs.
    """
    share = 1.0 if codebook.labels == "signed" else 1 / codebook.classes
    return codebook.classes**2 * share / max(gain(codebook), 1e-150) ** 2


def moment_gain(codebook: Codebook) -> float:
    """h in E[z z^T] = I + h u u^T, of a reported direction z and the record u of norm 1 that it was ranked for.

    Across u a direction is normal whatever its rank. Along u, those near have mean square ``_best_mean(near, 2)``; all
    candidates together have 1, so the others lack what those near have more.
    """
    return (_best_mean(codebook.near, 2) - 1) * _surplus(codebook)


def _surplus(codebook: Codebook) -> float:
    """Chance of a near candidate, less that of another for each of the others that one near stands for."""
    near, others = codebook.near, codebook.candidates - codebook.near
    p = near / (near + others * math.exp(-codebook.epsilon))
    return p - (1 - p) * near / others


@dataclass(frozen=True)
class Estimates:
    """What messages of a codebook tell of records u of norm 1, right in the mean.

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


def estimates(codebook: Codebook, files: Iterable[np.ndarray]) -> Estimates:
    """What messages tell.

    Args:
        codebook: that they are of.
        files: messages, ``(n, 6)`` uint8 each.

    Raises:
        InputError: an index that no candidate has.
    """
    total, count = np.zeros((codebook.classes, codebook.values)), 0
    squared = codebook.labels == "one-hot" and codebook.values <= MOST_SQUARED
    squares = _Squares(codebook.values) if squared else None
    for rows in files:
        codebook.check(rows)
        numbers = np.ascontiguousarray(rows[:, :NUMBER_BYTES]).view("<u4")[:, 0]
        reported = indices(rows)
        count += len(rows)
        order = np.argsort(numbers, kind="stable")
        distinct, starts = np.unique(numbers[order], return_index=True)
        for number, some in zip(distinct, np.split(reported[order], starts[1:]), strict=True):
            directions, signs = codewords(int(number), codebook.values, codebook.classes)
            often = np.bincount(some, minlength=codebook.candidates).reshape(-1, 2, PAIRS)
            more = often[:, 0] - often[:, 1]  # a direction less its opposite, for each class or for signs
            total += (more if codebook.labels == "one-hot" else signs.T * more) @ directions
            if squares is not None:
                squares.add(directions[some % PAIRS])
    seen = max(count, 1)
    means, variance = total * (codebook.classes / (seen * gain(codebook))), noise(codebook) / seen
    if squares is None:
        return Estimates(means, variance)
    h = max(moment_gain(codebook), 1e-150)
    along = 1 + 2 * h / codebook.values  # a reported direction is longer along its record
    shared = 1 + (codebook.records_per_codebook - 1) / PAIRS  # and may be reported twice
    moments = (squares.sum() - count * np.eye(codebook.values)) / (seen * h)
    return Estimates(means, variance, moments, math.sqrt(along * shared / seen) / h)


class _Squares:
    """The sum of z z^T, of many rows z at a time."""

    def __init__(self, values: int) -> None:
        self._total, self._rows, self._held = np.zeros((values, values)), list[np.ndarray](), 0

    def add(self, rows: np.ndarray) -> None:
        self._rows.append(rows)
        self._held += len(rows)
        if self._held >= AT_ONCE:
            self.sum()

    def sum(self) -> np.ndarray:
        if self._rows:
            rows = np.concatenate(self._rows).astype(np.float64)
            self._total += rows.T @ rows
            self._rows, self._held = [], 0
        return self._total


def frequencies(codebook: Codebook, files: Iterable[np.ndarray]) -> np.ndarray:
    """How frequent the classes are, by what one-hot messages tell of labels, ``(classes,)``; signed ones tell nothing.

    Estimates are drawn towards equal shares by as much as their noise, which is known, calls for; none is below a
    tenth of an equal share.
    """
    equal = np.full(codebook.classes, 1 / codebook.classes)
    if codebook.labels == "signed":
        return equal
    often, count = np.zeros(codebook.classes), 0
    for rows in files:
        often += np.bincount(indices(rows) // (2 * PAIRS), minlength=codebook.classes)
        count += len(rows)
    p, rest = codebook.truth / WHOLE, codebook.candidates - codebook.near
    same = p + (1 - p) * (2 * PAIRS - codebook.near) / rest  # chance of an index of the record's own class
    other = (1 - same) / (codebook.classes - 1)
    shares = (often / max(count, 1) - other) / (same - other)
    apart = shares - equal
    blurred = codebook.classes * other * (1 - other) / max(count, 1) / (same - other) ** 2
    signal = max(float(np.square(apart).sum()) - blurred, 0.0)
    shares = np.maximum(equal + apart * signal / (signal + blurred), 0.1 / codebook.classes)
    return shares / shares.sum()


def best_codebook(values: int, classes: int, epsilon: float) -> Codebook:
    """The codebook with the least noise at this epsilon, which depends on nothing but public numbers.

    Args:
        values: d, of a record.
        classes: of labels.
        epsilon: local epsilon of a message, above 0.

    Raises:
        InputError: epsilon out of range, or sizes that no codebook can have.
    """
    if not 0 < epsilon <= MAX_EPSILON:
        raise InputError(f"`epsilon`: {epsilon:g} is not a positive number up to {MAX_EPSILON:g}")
    choices: tuple[Labels, ...] = ("one-hot", "signed")
    codebooks = (
        Codebook(values, classes, epsilon, labels, near) for labels in choices for near in range(1, PAIRS + 1)
    )
    return min(codebooks, key=noise)


@cache
def _best_mean(near: int, power: int = 1) -> float:
    """Mean power of the k largest among the sizes of N standard normal numbers: order statistics, integrated."""
    z = np.linspace(0.0, 9.0, 4001)
    fewer = bdtr(near - 1, PAIRS - 1, 2 * ndtr(-z))  # of the others, larger ones
    density = 2 * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return float(PAIRS / near * np.trapezoid(z**power * density * fewer, z))
