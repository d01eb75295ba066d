"""Synthetic records under differential privacy: one Gaussian query for moments, and records drawn from the answer.

What a lottery ticket needs of the records is little: where features are active, how classes differ, which features go
together. Counts, sums and second moments tell that, in a single query with a single event. Ordinary training and pruning
on records that are drawn from the answer is post-processing of it, however long it takes.

The constants of this module were tuned on MNIST and KMNIST, as public benchmarks; no data at hand enters them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from dpltm.errors import InputError
from dpltm.features.inputs import Services, network_inputs, tensors
from dpltm.features.normalisation import NORM
from dpltm.features.setup import check_quantities
from dpltm.networks import ModelSpec, build, model_spec
from dpltm.networks.evaluation import accuracy
from dpltm.networks.state import put
from dpltm.options import check_choices
from dpltm.options.synthesize import SynthesizeOptions
from dpltm.privacy.account import Account, Planned
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.checks import check_count, check_epsilon
from dpltm.privacy.entry import RECORD, Entry, Lineage
from dpltm.privacy.ledger import Book, Ledger
from dpltm.privacy.mechanisms import Adjacency, GaussianRelease, NoisySgd
from dpltm.privacy.release import Once, Secret, pay, price
from dpltm.privacy.statement import PrivacyReport, statement
from dpltm.pruning.generation import GenerationConfig, train_dense
from dpltm.randomness.noise import KeyedSource, RandomSource
from dpltm.randomness.second_moments import (
    BITS,
    MAX_NOISE,
    ROWS,
    noisy_symmetric,
    noisy_whole,
    sum_of_squares,
    within_norm,
)
from dpltm.records import Dataset, at_unit, from_arrays, unit_range, unscale
from dpltm.records.notes import feature_notes, public_input_notes, test_notes, unit_notes
from dpltm.records.settle import MAX_NAME, check_delta

COUNT_WEIGHT, SUM_WEIGHT, SECOND_WEIGHT = 1 / 8, 1.0, 1 / 2
"""Share of the sensitivity that each part of the query takes up; its noise is divided by it.

Class sums are what tickets live on. Counts are large beside their noise. Second moments have so many coordinates that at
a small epsilon few of their directions rise above the noise, whatever they are given.
"""

SENSITIVITY = 9 / 8
"""L2 sensitivity of the query under add/remove: sqrt(1/64 + 1 + 1/4), which is 9/8 exactly. Replace-one doubles it."""

RMS = 1 / 3
"""Root mean square of the features of a synthetic record, about that of images in the unit range."""


MAX_VALUES = 2**28
"""Values of all synthetic records together: a gigabyte of them."""

PASSES, BATCH = 20, 400
"""Length of the scored network's training: passes over the synthetic records, and records per step."""

MAX_FEATURES = 8_192
"""Of records whose second moments are released: half a gigabyte of them, several times over."""

RECORDS = 20_000
"""Synthetic records where nobody says how many."""


@dataclass(frozen=True)
class Moments:
    """Answer of the query; whatever is made from it costs nothing more.

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
    """Return counts, class sums and second moments of the records' directions, all with Gaussian noise.

    A record (x, y) has direction u = x / norm(x), cut towards zero to multiples of 2^-16, and adds
    v = (e_y / 8, e_y outer u, svec(u u^T) / 2), where e_y is one-hot and svec takes the upper triangle with off-diagonals
    times sqrt 2. What is released is the sum of all v plus N(0, noise_std^2) on every coordinate, with
    ``noise_std = noise_multiplier * sensitivity``, each part divided by its weight (and the sqrt 2).

    Args:
        x: scaled features, ``(n, features)``, floating point, any values; private.
        y: labels, ``(n,)`` int64; private.
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
    if x.ndim != 2 or not x.is_floating_point() or x.shape[1] < 1:
        raise InputError(f"x: {x.dtype} of shape {tuple(x.shape)}; give floating point (records, features)")
    if y.dtype != torch.int64 or y.shape != x.shape[:1]:
        raise InputError(f"y: {y.dtype} of shape {tuple(y.shape)}; give one int64 label for each record of x")
    if not 0 <= noise_multiplier <= MAX_NOISE:
        raise InputError(f"noise_multiplier: {noise_multiplier} is not between 0 and {MAX_NOISE:g}")
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
    noisy_counts = noisy_whole(counts, std / COUNT_WEIGHT, 0, noise)
    return Moments(noisy_counts, noisy_whole(sums, std / SUM_WEIGHT, BITS, noise), released, std)


def _chunks(x: Tensor, y: Tensor, classes: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Whole directions and labels of the records that count, ``ROWS`` at a time."""
    for rows, labels in zip(x.split(ROWS), y.split(ROWS), strict=True):
        whole, labels = _whole_directions(rows.cpu()), labels.cpu()
        counted = whole.any(dim=1) & (labels >= 0) & (labels < classes)
        yield whole[counted], labels[counted]


def _whole_directions(x: Tensor) -> Tensor:
    """Each record over its norm, times 2^16, cut towards zero: whole numbers with norm at most 2^16; zero if unusable."""
    wide = x.to(torch.float64)
    wide = wide / wide.abs().amax(dim=1, keepdim=True)  # no square of what is left over- or underflows to matter
    wide = wide / wide.square().sum(dim=1, keepdim=True).sqrt()
    # The margin keeps rounding from ever lifting a norm above 1; the check is what the guarantee rests on. It also fails for
    # records that are zero or not finite, which are not numbers by now.
    return within_norm((wide * ((1 - 2.0**-30) * 2.0**BITS)).trunc())


def synthetic_records(
    moments: Moments, records: int, seed: int, *, value_range: tuple[float, float] = (-1.0, 1.0)
) -> tuple[Tensor, Tensor]:
    """Return records drawn from what was released, one Gaussian a class with common covariance (LDA).

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

    Guarantees:
        Post-processing of ``moments``: nothing else is read. Always finite. The same moments, seed, number of threads and
        kind of machine give the same bits.
    """
    low, high = value_range
    proportions, means, factor, rest = _denoised(moments)
    # Apart from theta0 and the order of batches, which dpltm.pruning.generation draws from the same seed.
    generator = torch.Generator().manual_seed(seed + 2**33)
    y = torch.multinomial(proportions, records, replacement=True, generator=generator)
    features, directions = factor.shape
    x = torch.randn(records, directions, generator=generator) @ factor.T
    x += torch.randn(records, features, generator=generator) * rest
    x += means[y]
    if low == 0:
        x.clamp_(min=0.0)
    norm = x.norm(dim=1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return (x / norm * (RMS * math.sqrt(features))).clamp(low, high), y


def _denoised(moments: Moments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Classes, means and covariance, each shrunk by what is known of its noise: Gaussians with a common covariance.

    They are proportions of the classes, ``(classes,)`` float64 of sum 1, and in float32 means ``(classes, features)``,
    factor ``(features, directions)`` and rest ``(features,)``: the covariance is factor factor^T + diag(rest^2).

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
    return proportions, means.float(), factor.float(), (missing * power).sqrt().float()


def _share(power: Tensor, noise: float) -> Tensor:
    """Return the part of a measured power that is not the noise's, from 0 to 1, ``(features,)``; 0 where there is none."""
    return torch.where(power > 0, (1 - noise / power).clamp(min=0), torch.zeros_like(power))


def draw_records(moments: Moments, dataset: Dataset, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return synthetic records as a network gets them: post-processing of ``moments``."""
    value_range = unit_range(dataset.bounds) if dataset.feature_map is None else (-NORM, NORM)
    return synthetic_records(moments, count, seed, value_range=value_range)


def one_each(dataset: Dataset, per_unit: int | None = None) -> Dataset:
    """Return the records as moments count them: of a person one, that of the lowest public hash, so that the bound holds."""
    if per_unit not in (None, 1) or dataset.train.slots not in (None, 1):
        raise InputError(f"`per_unit`: {per_unit}: of a person one record counts in moments; leave it out")
    return at_unit(dataset, RECORD, per_unit, 1)


def check_moments(dataset: Dataset, taker: str, fix: str) -> None:
    """Raise InputError, with ``taker`` first and ``fix`` last, for records whose moments are not released."""
    check_quantities(dataset, taker, fix)
    if dataset.labels is not None:
        raise InputError(f"{taker}: takes class numbers, and {dataset.name} has {dataset.labels}: {fix}")
    if dataset.features > MAX_FEATURES:
        raise InputError(
            f"{taker}: takes at most {MAX_FEATURES} features, since it releases their number squared; {dataset.name} has"
            f" {dataset.features}: {fix}"
        )


@dataclass(frozen=True, kw_only=True)
class Score:
    """Score of a network trained, without noise, on the synthetic records alone, by accuracy on the real test split."""

    model: str
    accuracy: float
    records: int


@dataclass(frozen=True, kw_only=True)
class SyntheticRecords:
    """Synthetic records, and their cost; ``score`` is None where there is no test split."""

    dataset: Dataset
    privacy: PrivacyReport
    ledger: Ledger = field(repr=False)
    mechanism: GaussianRelease
    score: Score | None = None

    @property
    def lineage(self) -> Lineage:
        """The release that they are post-processing of, with all that it is made of."""
        return self.dataset.lineage

    @property
    def x(self) -> np.ndarray:
        """Features, ``(n, ...)`` float32, shaped and scaled as the private ones."""
        return self.dataset.train.open(None).x

    @property
    def y(self) -> np.ndarray:
        """Labels, ``(n,)`` int64."""
        return self.dataset.train.open(None).y


@dataclass(frozen=True, kw_only=True)
class Synthesis:
    """Request for synthetic records, checked; nothing is spent yet."""

    dataset: Dataset
    options: SynthesizeOptions
    ledger: Ledger
    services: Services
    spec: ModelSpec

    def plan(self, book: Book, known: Entry | None = None) -> Once[Moments]:
        """Return the release, calibrated to what a ledger leaves of the budget."""
        del known  # nothing goes on: it is drawn at once
        dataset, options, part = self.dataset, self.options, self.ledger.part(self.dataset)
        account, adjacency = book.account(dataset.lineage), cast(Adjacency, options.adjacency)
        assert options.epsilon is not None
        self.services.progress.say(f"calibrating noise to epsilon {options.epsilon:g} at delta {options.delta:g}")
        bound = SENSITIVITY * (2.0 if adjacency == "replace-one" else 1.0)
        draft = NoisySgd(1.0, 1, 1.0, bound, adjacency=adjacency)
        noise = calibrate_noise(options.epsilon, options.delta, draft, Planned(account, part)).noise_multiplier
        words = "counts, sums and second moments of norm-bounded records, for synthetic ones"
        entry = Entry("release", part, (GaussianRelease(noise, bound, adjacency=adjacency),), words, unit=dataset.unit)

        def moments(secret: Secret) -> Moments:
            records = network_inputs(dataset.train, dataset, self.services)
            x, y = tensors(records.open(secret), dataset)
            y, source = y.flatten(), KeyedSource(secret.child("noise"))
            return release_moments(x, y, dataset.classes, noise_multiplier=noise, adjacency=adjacency, noise=source)

        return Once(entry, dataset.lineage, moments, beside=self.ledger.apart(dataset))

    def priced(self) -> tuple[GaussianRelease, PrivacyReport]:
        """Return the mechanism that would be released, and what the report would be."""
        release = self.plan(self.ledger.book)
        return release.entry.of(GaussianRelease)[0], self._report(price(release, self.ledger.book))

    def made(self) -> SyntheticRecords:
        """Pay for the moments, and return records drawn from them, without a score.

        Guarantees:
            The release is on record before any noise is drawn. The records are post-processing of it, and of public facts:
            the bounds, the number of classes and the shape of a record.
        """
        dataset, options = self.dataset, self.options

        paid = pay(self.plan, self.ledger)
        self.services.progress.say(f"releasing moments of {dataset.features} features")
        drawn, labels = draw_records(next(paid.values), dataset, options.records_out, options.seed)
        made = from_arrays(
            unscale(drawn.numpy(), dataset.bounds).reshape(-1, *dataset.row_shape),
            labels.numpy(),
            bounds=dataset.bounds,
            classes=dataset.classes,
            name=f"synthetic {dataset.name}"[:MAX_NAME],
            for_training=False,
        )
        facts: dict[str, Any] = {"records_origin": "described", "classes_origin": "described"}
        return SyntheticRecords(
            dataset=replace(made, synthetic=True, lineage=paid.lineage, **facts),
            privacy=self._report(paid.account),
            ledger=self.ledger,
            mechanism=paid.entry.of(GaussianRelease)[0],
        )

    def scored(self, made: SyntheticRecords) -> SyntheticRecords:
        """Return the records with the score of a network that was trained on them, where there is a test split.

        The training is ordinary: it is post-processing, and nothing but the test split is looked at beside.
        """
        dataset, spec, services = self.dataset, self.spec, self.services
        if dataset.test is None:
            return made
        x, y = tensors(made.dataset.train.open(None), made.dataset)
        batch = min(BATCH, len(y))
        config = GenerationConfig(
            rounds=1, iterations=max(1, PASSES * len(y) // batch), batch_size=batch, seed=self.options.seed
        )
        with services.progress.progress("training on synthetic records", config.iterations) as step:
            trained = train_dense(spec, x, y, config, lambda done, _: step(done))
        model = build(spec)
        put(model, trained.predictor or {})
        test = network_inputs(dataset.test, dataset, services).open(self.ledger.declared_test(dataset))
        found = accuracy(model, *tensors(test, dataset))
        return replace(made, score=Score(model=spec.text, accuracy=found, records=len(dataset.test)))

    def _report(self, account: Account) -> PrivacyReport:
        dataset, options = self.dataset, self.options
        notes = [*public_input_notes(dataset), *unit_notes(dataset), *feature_notes(dataset, options.delta)]
        notes.append(
            "the synthetic records are post-processing of what was spent: whatever is made of them costs these records"
            " nothing more, and using them beside other releases from these records adds up"
        )
        notes += test_notes(dataset)
        return statement(account, options.delta, adjacency=cast(Adjacency, options.adjacency), notes=notes)


def settle(dataset: Dataset, options: SynthesizeOptions, ledger: Ledger, services: Services) -> Synthesis:
    """Return what is asked for, checked before a ledger is looked at. Arguments as :func:`Synthesis`."""
    check_choices(options)
    if options.epsilon is None:
        raise InputError("`epsilon` is missing: what may be spent on these records, such as 1")
    check_epsilon("epsilon", options.epsilon)
    check_count("records_out", options.records_out)
    if not 0 <= options.seed < 2**63:
        raise InputError(f"`seed`: {options.seed} is not between 0 and 2^63 - 1")
    if dataset.synthetic:
        raise InputError(
            f"`dataset`: records of {dataset.name} are synthetic already, and cost nothing more; name the private ones"
        )
    dataset = one_each(dataset)
    check_moments(dataset, "`dataset`", "make tickets by dpltm generate `criterion` dp-train")
    if options.records_out * dataset.features > MAX_VALUES:
        raise InputError(
            f"`records_out`: {options.records_out:,} records of {dataset.features:,} features are more than a gigabyte; ask"
            f" for at most {MAX_VALUES // dataset.features:,}"
        )
    check_delta(options.delta, dataset)
    spec = model_spec(options.model, dataset)
    return Synthesis(dataset=dataset, options=options, ledger=ledger, services=services, spec=spec)
