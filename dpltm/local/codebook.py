"""One index a record: a public codebook of random directions, and a set of those that are near (privacy-model.md 6.3, 6.4).

Owner and server draw the same random directions from a public number. An owner ranks them by how well they point along
her record, signed or selected by its label, and reports one: of the k best with a fixed chance, else one of the others.

Directions come in opposite pairs, so that those of a codebook add up to nothing. With ``one-hot`` labels a candidate is a
direction and a class. With ``signed`` ones it is a direction with a random sign for every class, which is better at small
budgets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from scipy.special import bdtr, ndtr
from torch import Tensor

from dpltm.errors import InputError
from dpltm.features.normalisation import NORM
from dpltm.local.channels import MAX_CATEGORIES, WHOLE, Response, check
from dpltm.options import Range
from dpltm.randomness.noise import FastSource, RandomSource, gaussian

Labels = Literal["one-hot", "signed"]

PAIRS = (
    128  # N, pairs of opposite directions; for ten classes more gain under three parts in a hundred up to epsilon 8
)
TOGETHER = 16  # records that share a codebook, which is public; many more would make their errors alike
ALONE_FROM = 6.0  # epsilon from which every record has its own: coins blur less, so that shared directions would show
MESSAGE = np.dtype([("codebook", "<u4"), ("index", "<u2")])  # the number of the codebook, and the candidate


@dataclass(frozen=True)
class Codebook:
    """Codebook of ``near`` (k) likelier candidates, that turns a record of z-scores and its label into one index."""

    values: int
    classes: int
    epsilon: float
    labels: Labels
    near: int

    protocol: ClassVar[str] = "codebook"
    record_bytes: ClassVar[int] = MESSAGE.itemsize
    labels_are_public: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check("values", self.values, Range(1))
        check("classes", self.classes, Range(2, MAX_CATEGORIES // (2 * PAIRS)))
        check("near", self.near, Range(1, PAIRS))
        self.response  # noqa: B018 - refuses an epsilon out of range

    @property
    def candidates(self) -> int:
        """M."""
        return 2 * PAIRS * (self.classes if self.labels == "one-hot" else 1)

    @cached_property
    def response(self) -> Response:
        """How one of the candidates is reported."""
        return Response(self.candidates, self.epsilon, self.near)

    @property
    def certified(self) -> float:
        """Local epsilon of a record, label included."""
        return self.response.certified

    @property
    def nominal(self) -> float:
        """Epsilon that is claimed; coins are rounded to where they tell less, so that it holds."""
        return self.epsilon

    @property
    def records_per_codebook(self) -> int:
        return TOGETHER if self.epsilon < ALONE_FROM else 1

    def randomise(self, scores: np.ndarray, labels: np.ndarray, source: RandomSource) -> np.ndarray:
        """Return records as they are sent, ``(n, 6)`` uint8: ``MESSAGE``.

        Args:
            scores: ``(n, d)``; only their direction counts.
            labels: ``(n,)`` int64, below ``classes``.
            source: coins; secret.

        Guarantees:
            Each row is ``certified``-locally private (``Response.send``): exactly k candidates are near whatever the record
            is.
        """
        messages = np.empty(len(scores), MESSAGE)
        for start in range(0, len(scores), self.records_per_codebook):
            block = slice(start, start + self.records_per_codebook)
            number = int.from_bytes(source.random_bytes(4), "little")
            near = self.near_candidates(scores[block], labels[block], number)
            messages["codebook"][block] = number
            messages["index"][block] = self.response.send(near, source)
        return messages.view(np.uint8).reshape(-1, self.record_bytes)

    def near_candidates(self, scores: np.ndarray, labels: np.ndarray, number: int) -> np.ndarray:
        """Return the k candidates nearest to each record, ``(n, k)``, nearest first, of ties the first: private."""
        directions, signs = codewords(number, self.values, self.classes)
        along = scores.astype(np.float64) @ directions.T.astype(np.float64)
        if self.labels == "signed":
            along *= signs[:, labels].T
        best = np.argsort(np.concatenate([-along, along], axis=1), axis=1, kind="stable")[:, : self.near]
        return best if self.labels == "signed" else best + 2 * PAIRS * labels[:, None]

    def check(self, rows: np.ndarray) -> None:
        """Raise InputError if messages, ``(n, 6)``, hold an index that no candidate has."""
        largest = reports(rows)[1].max(initial=0)
        if largest >= self.candidates:
            raise InputError(f"an index is {largest}, and there are {self.candidates} candidates")


def codewords(number: int, values: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a public codebook, float32: a normal direction of each pair ``(N, d)``, its signs for classes ``(N, K)``."""
    source = FastSource(number)
    directions = gaussian(source, PAIRS * values).astype("f4").reshape(PAIRS, values)
    bits = np.frombuffer(source.random_bytes(PAIRS * classes), dtype=np.uint8).reshape(PAIRS, classes)
    return directions, np.where(bits & 1, 1.0, -1.0).astype("f4")


def reports(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the codebook and the index of each message ``(n, 6)``, ``(n,)`` int64 both."""
    messages = np.ascontiguousarray(rows).view(MESSAGE)[:, 0]
    return messages["codebook"].astype(np.int64), messages["index"].astype(np.int64)


# --- what a server learns: a function of messages and of public numbers, which costs nothing ----------------------------

AT_ONCE = 4096  # messages whose directions are squared together
MOST_SQUARED = (
    1024  # values of a record up to which second moments are estimated: of more, they would be noise in 8 MB
)
MIN_SIGNAL = 1e-3  # squared distance of class means, of records of norm 1, below which noise may not push an estimate
STANDS_OUT = 5  # second moments are used only if they exceed their noise by so many of its standard deviations


def best_codebook(values: int, classes: int, epsilon: float) -> Codebook:
    """Return the codebook with the least noise at this epsilon, which depends on nothing but public numbers."""
    choices: tuple[Labels, ...] = ("one-hot", "signed")
    sizes = range(1, PAIRS + 1)
    return min((Codebook(values, classes, epsilon, labels, near) for labels in choices for near in sizes), key=noise)


def noise(codebook: Codebook) -> float:
    """Return the variance of one record's report in any direction, over the squared gain."""
    # a report adds a direction of variance 1 to one class of K, or to all of them with signs
    spread = codebook.classes ** (2 if codebook.labels == "signed" else 1)
    return spread / max(_gain(codebook), 1e-150) ** 2


def _gain(codebook: Codebook, power: int = 1) -> float:
    """g, or of power 2 h (privacy-model.md 6.4): what near directions have along the record more than all, others lack."""
    near, far = codebook.near, codebook.candidates - codebook.near
    p = near / (near + far * math.exp(-codebook.epsilon))
    of_all = power - 1  # the mean of a normal number is 0, and that of its square 1
    return (_best_mean(near, power) - of_all) * (p - (1 - p) * near / far)


@cache
def _best_mean(near: int, power: int) -> float:
    """Mean power of the k largest among the sizes of N standard normal numbers: order statistics, integrated."""
    z = np.linspace(0.0, 9.0, 4001)
    fewer = bdtr(near - 1, PAIRS - 1, 2 * ndtr(-z))  # of the others, larger ones
    density = 2 * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return float(PAIRS / near * np.trapezoid(z**power * density * fewer, z))


@dataclass(frozen=True)
class Estimates:
    """Unbiased estimates from messages of a codebook, for records u of norm 1.

    Attributes:
        means: of u in each class, times how frequent the class is over an equal share, ``(K, d)`` float64.
        variance: of each of these numbers that is due to the coins, for classes that are equally frequent.
        shares: how frequent the classes are, ``(K,)``; equal ones of ``signed`` messages, which tell nothing.
        moments: mean of u u^T, ``(d, d)`` float64; None of ``signed`` messages and above ``MOST_SQUARED`` values.
        deviation: of its numbers off the diagonal that is due to the coins, on average over them.
    """

    means: np.ndarray
    variance: float
    shares: np.ndarray
    moments: np.ndarray | None = None
    deviation: float = math.inf


def estimates(codebook: Codebook, rows: np.ndarray) -> Estimates:
    """Return estimates from messages ``(n, 6)`` uint8 of a codebook."""
    size, one_hot = codebook.values, codebook.labels == "one-hot"
    squared = one_hot and size <= MOST_SQUARED
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
            total += (more if one_hot else signs.T * more) @ directions
            along.append(directions[reported % PAIRS])
        if squared:
            z = np.concatenate(along).astype(np.float64)
            squares += z.T @ z
    means, variance = total * (codebook.classes / (len(rows) * _gain(codebook))), noise(codebook) / len(rows)
    shares = _shares(codebook, indices) if one_hot else np.full(codebook.classes, 1 / codebook.classes)
    if not squared:
        return Estimates(means, variance, shares)
    h = max(_gain(codebook, 2), 1e-150)
    longer = 1 + 2 * h / size  # a reported direction is longer along its record
    shared = 1 + (codebook.records_per_codebook - 1) / PAIRS  # and may be reported twice
    moments = (squares / len(rows) - np.eye(size)) / h
    return Estimates(means, variance, shares, moments, math.sqrt(longer * shared / len(rows)) / h)


def _shares(codebook: Codebook, indices: np.ndarray) -> np.ndarray:
    """Shares of the classes in one-hot reports, drawn to equal ones as far as their noise calls for, and not far below."""
    count, equal = len(indices), 1 / codebook.classes
    often = np.bincount(indices // (2 * PAIRS), minlength=codebook.classes)
    p, rest = codebook.response.truth / WHOLE, codebook.candidates - codebook.near
    same = p + (1 - p) * (2 * PAIRS - codebook.near) / rest  # chance of an index of the record's own class
    other = (1 - same) / (codebook.classes - 1)
    apart = (often / count - other) / (same - other) - equal
    blurred = codebook.classes * other * (1 - other) / count / (same - other) ** 2
    signal = max(float(np.square(apart).sum()) - blurred, 0.0)
    shares = np.maximum(equal + apart * signal / (signal + blurred), 0.1 * equal)
    return shares / shares.sum()


def nearest_mean(answer: Codebook, estimates: Estimates) -> dict[str, Tensor]:
    """Return the parameters of the linear network that takes features of norm ``NORM`` to the class whose mean is nearest.

    Means are drawn towards their own mean by as much as their noise, which is known, calls for (James and Stein 1961): at a
    small budget that is worth several points. Frequent classes are nearer; directions along which records of a class differ
    count for less, where that stands out from the noise (:func:`metric`).
    """
    shares = estimates.shares
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
    """Return the weights of directions in the distance to a mean, ``(d, d)``: one over how records of a class vary there.

    Args:
        within: estimated mean of (u - m) (u - m)^T, of records u and the means m of their classes, ``(d, d)``.
        deviation: of each of its numbers off the diagonal that is due to the coins.
    """
    size = len(within)
    apart = within - np.trace(within) / size * np.eye(size)
    # squares of nothing but noise add up to d (d + 1) deviation^2, give or take 2 d deviation^2; noise that is taken for
    # spread costs up to six points
    if np.square(apart).sum() <= (size + 1 + 2 * STANDS_OUT) * size * deviation**2:
        return np.eye(size)
    values, vectors = np.linalg.eigh(within)
    # noise moves eigenvalues by up to 2 sqrt(d) deviations (Wigner 1955); a quarter of that was chosen on kmnist-7k
    sizes = np.maximum(values, 0) + math.sqrt(size) * deviation / 2
    result: np.ndarray = (vectors * (sizes.mean() / sizes)) @ vectors.T
    return result
