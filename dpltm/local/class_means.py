"""What many messages of a codebook tell, means and frequencies of classes, and which codebook tells most.

All of it is a function of messages or of public numbers, and costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache

import numpy as np
from scipy.special import bdtr, ndtr

from dpltm.errors import InputError
from dpltm.local.channels import MAX_EPSILON, WHOLE
from dpltm.local.codebook import NUMBER_BYTES, PAIRS, Codebook, Labels, codewords, indices


def gain(codebook: Codebook) -> float:
    """Mean of a reported direction along the record that it was ranked for, a number from 0 on.

    Those near point along the record by ``_best_mean`` on average; all others together, by as much the other way.
    """
    near, others = codebook.near, codebook.candidates - codebook.near
    p = near / (near + others * math.exp(-codebook.epsilon))
    return _best_mean(near) * (p - (1 - p) * near / others)


def noise(codebook: Codebook) -> float:
    """Variance of one record's report in any direction, over the squared gain: what an estimate is blurred by.

    A report adds a direction of variance 1 to one class of K, or to all of them with signs.
    """
    share = 1.0 if codebook.labels == "signed" else 1 / codebook.classes
    return codebook.classes**2 * share / max(gain(codebook), 1e-150) ** 2


def class_means(codebook: Codebook, files: Iterable[np.ndarray]) -> tuple[np.ndarray, float]:
    """Estimates of the mean direction of each class.

    They are right in the mean where classes are equally frequent, or where ``frequencies`` says how frequent they are.

    Args:
        codebook: that they are of.
        files: messages, ``(n, 6)`` uint8 each.

    Returns:
        ``(classes, d)`` float64; and the variance of each of its numbers that is due to the coins, for classes that
        are equally frequent.

    Raises:
        InputError: an index that no candidate has.
    """
    total, count = np.zeros((codebook.classes, codebook.values)), 0
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
    scale = codebook.classes / (max(count, 1) * gain(codebook))
    return total * scale, noise(codebook) / max(count, 1)


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
    estimates = (often / max(count, 1) - other) / (same - other)
    apart = estimates - equal
    blurred = codebook.classes * other * (1 - other) / max(count, 1) / (same - other) ** 2
    signal = max(float(np.square(apart).sum()) - blurred, 0.0)
    estimates = np.maximum(equal + apart * signal / (signal + blurred), 0.1 / codebook.classes)
    return estimates / estimates.sum()


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
def _best_mean(near: int) -> float:
    """Mean of the k largest among the sizes of N standard normal numbers: order statistics, integrated."""
    z = np.linspace(0.0, 9.0, 4001)
    fewer = bdtr(near - 1, PAIRS - 1, 2 * ndtr(-z))  # of the others, larger ones
    density = 2 * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return float(PAIRS / near * np.trapezoid(z * density * fewer, z))
