"""Synthetic records under differential privacy: one Gaussian query for moments, and records drawn from the answer.

What a lottery ticket needs of the records is little: where features are active, how classes differ, which features go
together. Counts, sums and second moments tell that, in a single query with a single event. Ordinary training and pruning
on records that are drawn from the answer is post-processing of it, however long it takes.

The constants of this module were tuned on MNIST and KMNIST, as public benchmarks; no data at hand enters them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dpltm.errors import InputError
from dpltm.privacy.mechanisms import Adjacency
from dpltm.randomness.noise import RandomSource
from dpltm.randomness.second_moments import (
    BITS,
    MAX_NOISE,
    ROWS,
    noisy_symmetric,
    noisy_whole,
    sum_of_squares,
    within_norm,
)

COUNT_WEIGHT, SUM_WEIGHT, SECOND_WEIGHT = 1 / 8, 1.0, 1 / 2
"""How much of the sensitivity each part of the query takes up; its noise is divided by it.

Class sums are what tickets live on. Counts are large beside their noise. Second moments have so many coordinates that at
a small epsilon few of their directions rise above the noise, whatever they are given.
"""

SENSITIVITY = 9 / 8
"""L2 sensitivity of the query under add/remove: sqrt(1/64 + 1 + 1/4), which is 9/8 exactly. Replace-one doubles it."""

RMS = 1 / 3
"""Root mean square of the features of a synthetic record, about that of images in the unit range."""


@dataclass(frozen=True)
class Moments:
    """What the query released; whatever is made from it costs nothing more.

    Records here are directions: features divided by the record's own L2 norm.

    Attributes:
        counts: noisy number of records of each class, ``(classes,)`` float64; may be negative.
        sums: noisy sum of the directions of each class, ``(classes, features)`` float64.
        second: noisy sum of the outer products of all directions with themselves, ``(features, features)`` float64,
            symmetric; not positive semi-definite, for the noise.
        noise_std: standard deviation of the noise on the weighted query (``release_moments``); public.
    """

    counts: Tensor
    sums: Tensor
    second: Tensor
    noise_std: float

    @property
    def counts_std(self) -> float:
        """Standard deviation of the noise on every count."""
        return self.noise_std / COUNT_WEIGHT

    @property
    def sums_std(self) -> float:
        """Standard deviation of the noise on every coordinate of the sums."""
        return self.noise_std / SUM_WEIGHT

    @property
    def second_std(self) -> float:
        """Standard deviation of the noise on every off-diagonal second moment; sqrt 2 times that on the diagonal."""
        return self.noise_std / (SECOND_WEIGHT * math.sqrt(2))


def release_moments(
    x: Tensor,
    y: Tensor,
    classes: int,
    *,
    noise_multiplier: float,
    adjacency: Adjacency = "add-remove",
    noise: RandomSource,
) -> Moments:
    """The query: counts, class sums and second moments of the records' directions, all with Gaussian noise.

    A record (x, y) has direction u = x / norm(x), cut towards zero to multiples of 2^-16, and adds
    v = (e_y / 8, e_y outer u, svec(u u^T) / 2), where e_y is one-hot and svec takes the upper triangle with off-diagonals
    times sqrt 2. What is released is the sum of all v plus N(0, noise_std^2) on every coordinate, with
    ``noise_std = noise_multiplier * sensitivity``, each part divided by its weight (and the sqrt 2).

    Args:
        x: scaled features, ``(n, features)``, floating point, any values; private.
        y: labels, ``(n,)`` int64; private.
        classes: public number of classes.
        noise_multiplier: noise standard deviation over the sensitivity, from 0 (no noise, and no privacy) to 1e6.
        adjacency: the relation; replace-one has twice the sensitivity, and so twice the noise.
        noise: random bits; cryptographic outside tests.

    Raises:
        InputError: shapes or dtypes that do not fit, or a noise multiplier out of range; never for values of records.

    Guarantees:
        A Gaussian mechanism with the given noise multiplier. The caller enters its event, with sensitivity
        ``SENSITIVITY`` (doubled for replace-one), before calling.

        Sensitivity: norm(v)^2 = 1/64 + norm(u)^2 + norm(u)^4 / 4, since norm(svec(u u^T)) = norm(u)^2, and this is at most
        81/64 if norm(u) <= 1. That is checked on the whole numbers 2^16 u, whose squares add up without rounding,
        and a record that failed it would be left out. Records that are zero, not finite, or have a label that is no
        class add v = 0. So whatever the values, adding or removing a record moves the sum by at most 9/8, and
        replacing one by at most 9/4.

        Floating point: sums over records are sums of whole numbers, exact in any order. ``gaussian_mechanism`` adds the
        noise, as real arithmetic would, and rounds to a public grid.
    """
    _check(x, y, classes, noise_multiplier)
    sensitivity = SENSITIVITY * (2.0 if adjacency == "replace-one" else 1.0)
    std, features = noise_multiplier * sensitivity, x.shape[1]
    counts = torch.zeros(classes, dtype=torch.int64)
    sums = torch.zeros(classes, features, dtype=torch.int64)
    second = torch.zeros(features, features, dtype=torch.int64)
    for whole, labels in _chunks(x, y, classes):
        counts += torch.bincount(labels, minlength=classes)
        sums.index_add_(0, labels, whole.to(torch.int64))
        second += sum_of_squares(whole)
    released = noisy_symmetric(second, std / SECOND_WEIGHT, noise)
    return Moments(
        noisy_whole(counts, std / COUNT_WEIGHT, 0, noise),
        noisy_whole(sums, std / SUM_WEIGHT, BITS, noise),
        released,
        std,
    )


def _check(x: Tensor, y: Tensor, classes: int, noise_multiplier: float) -> None:
    """Raises InputError for what can be told without the values."""
    if x.ndim != 2 or not x.is_floating_point() or x.shape[1] < 1:
        raise InputError(f"x: {x.dtype} of shape {tuple(x.shape)}; give floating point (records, features)")
    if y.dtype != torch.int64 or y.shape != x.shape[:1]:
        raise InputError(f"y: {y.dtype} of shape {tuple(y.shape)}; give one int64 label for each record of x")
    if classes < 1:
        raise InputError(f"classes: {classes} is not a positive whole number")
    if not 0 <= noise_multiplier <= MAX_NOISE:
        raise InputError(f"noise_multiplier: {noise_multiplier} is not between 0 and {MAX_NOISE:g}")


def _chunks(x: Tensor, y: Tensor, classes: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Whole directions and labels of the records that count, ``ROWS`` at a time."""
    for rows, labels in zip(x.split(ROWS), y.split(ROWS), strict=True):
        whole, labels = _whole_directions(rows.cpu()), labels.cpu()
        counted = whole.any(dim=1) & (labels >= 0) & (labels < classes)
        yield whole[counted], labels[counted]


def _whole_directions(x: Tensor) -> Tensor:
    """Each record over its norm, times 2^16, cut towards zero: whole numbers with norm at most 2^16; zero if unusable.

    Args:
        x: ``(rows, features)``, any values.

    Returns:
        float64 of the same shape.
    """
    wide = x.to(torch.float64)
    wide = wide / wide.abs().amax(dim=1, keepdim=True)  # no square of what is left over- or underflows to matter
    wide = wide / wide.square().sum(dim=1, keepdim=True).sqrt()
    # The margin keeps rounding from ever lifting a norm above 1; the check is what the guarantee rests on. It also fails for
    # records that are zero or not finite, which are not numbers by now.
    return within_norm((wide * ((1 - 2.0**-30) * 2.0**BITS)).trunc())


def synthetic_records(
    moments: Moments, records: int, seed: int, *, value_range: tuple[float, float] = (-1.0, 1.0)
) -> tuple[Tensor, Tensor]:
    """Records drawn from what was released, one Gaussian a class with common covariance (linear discriminant analysis).

    Classes come as often as their noisy counts say, where these rise above the noise; the others about as often as noise
    would have it, for their sums are noise as well. Every record is scaled to a public norm: root mean square feature
    ``RMS`` (1/3), before values outside the range saturate.

    Args:
        moments: the answer of ``release_moments``, with any amount of noise.
        records: how many to draw, at least 1.
        seed: decides the draws, from 0 to 2^63 - 1.
        value_range: public range of a feature, ``dpltm.records.scaling.unit_range(bounds)``.

    Returns:
        Features, ``(records, features)`` float32 within ``value_range``, and labels, ``(records,)`` int64.

    Raises:
        InputError: no records asked for, a seed out of range, or a range without 0 in it.

    Guarantees:
        Post-processing of ``moments``: nothing else is read. Always finite. The same moments, seed, number of threads and
        kind of machine give the same bits.
    """
    low, high = value_range
    if records < 1:
        raise InputError(f"records: {records} is not a positive whole number")
    if not 0 <= seed < 2**63:
        raise InputError(f"`seed`: {seed} is not between 0 and 2^63 - 1")
    if not low <= 0 < high:
        raise InputError(f"value_range: {low:g},{high:g} does not hold 0; give the unit range, 0,1 or -1,1")
    mixture = _denoised(moments)
    # Apart from theta0 and the order of batches, which dpltm.pruning.generation draws from the same seed.
    generator = torch.Generator().manual_seed(seed + 2**33)
    y = torch.multinomial(mixture.proportions, records, replacement=True, generator=generator)
    directions, features = mixture.factor.shape[1], mixture.factor.shape[0]
    x = torch.randn(records, directions, generator=generator) @ mixture.factor.T
    x += torch.randn(records, features, generator=generator) * mixture.rest
    x += mixture.means[y]
    if low == 0:
        x.clamp_(min=0.0)
    norm = x.norm(dim=1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return (x / norm * (RMS * math.sqrt(features))).clamp(low, high), y


@dataclass(frozen=True)
class _Mixture:
    """Gaussians with a common covariance: factor factor^T + diag(rest^2).

    Attributes:
        proportions: of the classes, ``(classes,)`` float64, sum 1.
        means: ``(classes, features)`` float32.
        factor: ``(features, directions)`` float32; there may be no directions.
        rest: standard deviation of what no direction explains, ``(features,)`` float32.
    """

    proportions: Tensor
    means: Tensor
    factor: Tensor
    rest: Tensor


def _denoised(moments: Moments) -> _Mixture:
    """Classes, means and covariance, each shrunk by what is known of its noise.

    - Counts are raised to the standard deviation of their noise.
    - Feature by feature, class means lose the part of their power that is noise's (empirical Bayes, as James and Stein).
    - Of the covariance within classes, with uncertain features turned down, an eigenvalue l outside the bulk of the noise,
      which ends at e, becomes sqrt(l^2 - e^2), and the others 0 (Gavish and Donoho 2017, square matrices: the least
      Frobenius error). That leaves it positive semi-definite.
    - Directions have norm 1, so the total power is known. What is missing is noise in proportion to the features' power.
    """
    counts = moments.counts.clamp(min=max(moments.counts_std, 1.0))
    total, proportions = counts.sum(), counts / counts.sum()
    by_means = _share(moments.sums.square().mean(dim=0), moments.sums_std**2)
    diagonal = moments.second.diagonal().clamp(min=0)
    by_diagonal = _share(diagonal.square(), 2 * moments.second_std**2)
    means = by_means * moments.sums / counts[:, None]
    between = proportions @ means.square()

    certainty = torch.maximum(by_means, by_diagonal)
    within = moments.second / total - (means.T * proportions) @ means
    values, vectors = torch.linalg.eigh(certainty[:, None] * within * certainty)
    edge = 2 * moments.second_std / total * certainty.norm()
    shrunk = (values.clamp(min=0).square() - edge.square()).clamp(min=0).sqrt()
    positive = shrunk > 0

    power = torch.maximum(between, by_diagonal * diagonal / total)
    power = power / power.sum() if power.sum() > 0 else torch.full_like(power, 1 / len(power))
    missing = (1 - between.sum() - shrunk.sum()).clamp(min=0)
    factor = vectors[:, positive] * shrunk[positive].sqrt()
    return _Mixture(proportions, means.float(), factor.float(), (missing * power).sqrt().float())


def _share(power: Tensor, noise: float) -> Tensor:
    """Which part of a measured power is not the noise's, from 0 to 1, ``(features,)``; 0 where there is none at all."""
    return torch.where(power > 0, (1 - noise / power).clamp(min=0), torch.zeros_like(power))
