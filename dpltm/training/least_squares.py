"""``head`` least-squares: one layer behind features, with nothing to tune (docs/privacy-model.md 4.7).

Everything it learns comes from noisy sums over all records, each a Gaussian mechanism with a public share of the budget: the
mean of features; second moments; and sums of gradients, for a few damped Newton steps on the cross-entropy. Behind
``splines``, the features of a table, there are three more: class sums, by which the bias begins at the log odds; cross
moments, which say which pairs of columns become features; and at the end the excess of chances over outcomes.

The constants for images were chosen on kmnist-7k alone, with scattering and drawings, at epsilon 0.2 to 8; those for tables
on made tables that add up, that do not, and whose outcome is rare, at 1 and 3 (docs/results.md). Then they were frozen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.special import gammainccinv
from torch import Tensor, nn
from torch.nn import functional

from dpltm.errors import InputError
from dpltm.features.feature_map import CENTRE, PAIRS, FeatureMap, SplineMap
from dpltm.features.inputs import check_quantities
from dpltm.features.normalisation import NORM, noisy_sum
from dpltm.networks.masks import Mask
from dpltm.options.train import LEAST_SQUARES, TrainOptions
from dpltm.privacy.describe import percent
from dpltm.privacy.mechanisms import GaussianRelease, NoisySgd
from dpltm.randomness.noise import FastSource, RandomSource
from dpltm.randomness.second_moments import MAX_NOISE, SENSITIVITY, edge, release_second_moments
from dpltm.records.dataset import Dataset
from dpltm.records.made_up import bits_hold
from dpltm.records.split import Arrays, pieces
from dpltm.records.units import ABSENT
from dpltm.training.artifacts import StartingPoint, fresh
from dpltm.training.descent import target_parts
from dpltm.training.optimizers import CURVATURE, NewtonSteps

STEPS = 16  # of Newton's; eight lose half a point at most at epsilon 0.2 and 1

SHARES = {"mean": 0.05, "second": 0.1}
TABLE_SHARES = {"mean": 0.04, "labels": 0.01, "pairs": 0.1, "second": 0.08, "chances": 0.03}
OF_PERSONS_SHARES = {"pairs": 0.06, "chances": 0.07}
"""Parts of the budget, in the order of the draws; behind ``splines``; and there of persons, who are fewer than records: a
rare class has too few for less, and cross moments of means are less noisy."""

BOUNDS = {"mean": NORM, "labels": 1.0, "pairs": 1.0, "second": SENSITIVITY, "chances": 1.0}
"""By how much one record moves each, in L2 norm."""

REACH, MOST_INPUTS = 10.0, 5_000
"""Limits of second moments: they are left out where noise alone has eigenvalues above one in ``REACH`` records, for features
would have to be nearly one direction to rise above it; and of so many inputs, whose eigenvectors would take many minutes."""

SPREAD, TABLE_SPREAD = 0.18, 0.085
"""Standard deviation, before damping, of the noise in each weight, all steps added up; the second behind ``splines``."""

LONGEST = math.sqrt(2 * (NORM**2 + 1))
"""Norm of the longest gradient of one layer: |p - e_y| <= sqrt 2, and features have norm 8 beside the 1 of the bias."""

RESIDUALS, EVEN, SCREENED, LEAST_SCALE = 2.0, 0.5, 0.6, 0.01
"""Residuals of targets are clipped to ``RESIDUALS`` of their deviations; those of persons' labels to ``EVEN`` over the
deviation of single labels, at most ``RESIDUALS``. In cross moments it is ``SCREENED`` where classes are even; it grows
faster with rarity, or the cut would make columns that go together stand out of a rare class. A deviation is at least
``LEAST_SCALE``, in a range of 1."""

MOST_EXCESS, MOST_ROWS, OF_ROWS = 2.0, 8.0, 0.25
"""Of a person's rows, sums of chances less outcomes count up to ``MOST_EXCESS``; outcomes are counted beside them, of up to
about ``MOST_ROWS`` rows, by so small a part of the norm that the sums hardly have more noise."""

LONGEST_EXCESS = math.sqrt(2), math.sqrt(2) * MOST_EXCESS / math.sqrt(1 - OF_ROWS**2)
"""Of the chances of a record less its outcome; and of a person's sums of these."""

LEAST_CURVATURE = 0.02  # of a class: p (1 - p) of one that has 2 %
CHANCE = 6.3e-5  # probability that one product is kept though it goes with no class
FAR = 0.15  # part of a class's share that noise may move its mean chance by, untold
MOST_PRODUCTS = 20_000  # sums of products that are screened: of more, those of numbers alone, or none
CLIPPED = 0.7  # norm that products of a record are clipped to, over the root of their number: just below the usual
ROWS = 1024  # records at a time, at most: no vector or thread has a remainder of so many
_SCALE = NORM**2 + 1  # squared norm of an input: features of norm 8, and the 1 that the bias multiplies

SECOND = "second_moments"  # what checkpoints and answers call `second`; `mean` is `CENTRE`
NEEDS_FEATURES = "needs features of a fixed norm; add `features` unit, or a map that suits the records"

_SETTLED = (
    "filter", "clip_norm", "tanh_scale", "tanh_range", "no_pre_clip", "microbatch", "class_weight",
    "epochs", "steps", "batch_size", "sampling", "lr", "optimizer", "schedule", "average", "budget_stop", "centre",
    "compile", "audit", "precision",
)  # fmt: skip
"""Options that the head settles, or has no use for."""


def with_head(options: TrainOptions, start: StartingPoint, dataset: Dataset) -> TrainOptions:
    """Return options that name the head: least-squares of one layer behind ``splines``, unless they say how steps go."""
    if options.head is not None:
        return options
    suits = isinstance(dataset.feature_map, SplineMap) and start.spec.text == "mlp" and not start.unprotected
    plain = not _asked(options) and options.noise in ("secure", "fast") and dataset.classes > 0
    return replace(options, head=LEAST_SQUARES if suits and plain else "dp-sgd")


def _asked(options: TrainOptions) -> list[str]:
    usual = TrainOptions()
    return [name for name in _SETTLED if getattr(options, name) != getattr(usual, name)]


def check_options(options: TrainOptions) -> None:
    """Raise InputError for options that do not go with the head."""
    for name in _asked(options):
        raise InputError(f"`{name}`: has no use with `head` least-squares, which has nothing to tune; leave it out")
    if options.noise not in ("secure", "fast"):
        raise InputError(f"`noise`: {options.noise} is not for `head` least-squares; take secure or fast")


def settled(
    options: TrainOptions, start: StartingPoint, dataset: Dataset
) -> tuple[TrainOptions, StartingPoint, Dataset]:
    """Return the options of the training that the head amounts to: all records in every step. Behind ``splines`` a whole
    network has room for pairs, and weights that begin at 0; a ticket is what it is."""
    check_quantities(dataset, "`head` least-squares", "take `head` dp-sgd")
    if dataset.feature_map is None:
        raise InputError(f"`head`: least-squares {NEEDS_FEATURES}")
    splines = isinstance(dataset.feature_map, SplineMap)
    if dataset.target is not None and not splines:  # its steps suit ranks, not numbers
        raise InputError("`head`: least-squares predicts numbers behind `features` splines alone; take those")
    if start.spec.text != "mlp":
        raise InputError(f"`head`: least-squares fits one layer, and no {start.spec.text}; leave it out, or `model`")
    options = replace(options, steps=STEPS, batch_size=float(dataset.records))
    if splines and start.tickets is None:
        dataset = with_room(dataset)
        start = fresh(replace(start.spec, features=dataset.features), options.seed)
        for parameter in start.model.parameters():
            nn.init.zeros_(parameter)
    return options, start, dataset


def with_room(dataset: Dataset) -> Dataset:
    """Return the dataset with room for pairs behind ``splines``; others as they are."""
    feature_map = dataset.feature_map
    if not isinstance(feature_map, SplineMap):
        return dataset
    slots = min(len(screened(feature_map, dataset.classes)), PAIRS)
    return replace(dataset, feature_map=replace(feature_map, slots=slots))


def from_public(dataset: Dataset, opened: Arrays, seed: int) -> Dataset:
    """Return the dataset behind ``splines`` with centre and pairs of these public records, at next to no seeded noise."""
    if not isinstance(dataset.feature_map, SplineMap):
        return dataset
    names = {*names_of(dataset)} - {"second", "chances"}
    before = {name: GaussianRelease(1e-3, BOUNDS[name]) for name in names}
    options, source = TrainOptions(head=LEAST_SQUARES), FastSource(seed)
    begun = prepared(options, dataset, Mask({}), before, lambda: opened, source, lambda _, draw: draw())
    return replace(dataset, feature_map=begun.feature_map)


Before = Mapping[str, GaussianRelease]
"""Releases beside the steps, by the names of ``TABLE_SHARES``, in the order in which they are drawn."""


def shares_of(dataset: Dataset) -> dict[str, float]:
    """Return the part of the budget of each release of the head, by name, in the order of the draws."""
    if not isinstance(dataset.feature_map, SplineMap):
        return SHARES
    return TABLE_SHARES | (OF_PERSONS_SHARES if dataset.of_persons else {})


def names_of(dataset: Dataset) -> list[str]:
    """Return the names of the releases of the head where second moments are measured; no pairs where they are known."""
    known = isinstance(dataset.feature_map, SplineMap) and not dataset.feature_map.screens
    return [name for name in shares_of(dataset) if name != "pairs" or not known]


def releases_of(mechanisms: tuple[GaussianRelease, ...], dataset: Dataset) -> Before:
    """Return those of an entry: all of the head, or all but second moments; or the mean alone of another head."""
    names = names_of(dataset)
    if len(mechanisms) < len(names):
        names.remove("second")
    return dict(zip(names, mechanisms, strict=False))


def release(name: str, draft: NoisySgd, multiplier: float, share: float) -> GaussianRelease:
    """Return what takes a share of a budget that ``multiplier`` would spend whole."""
    twice = 2.0 if draft.adjacency == "replace-one" else 1.0
    noise_multiplier = multiplier / math.sqrt(share)
    return GaussianRelease(noise_multiplier, BOUNDS[name] * twice, adjacency=draft.adjacency, bits=draft.bits)


def releases(dataset: Dataset, mask: Mask, draft: NoisySgd, multiplier: float) -> Before:
    """Return the releases beside the Newton steps; ``multiplier`` is that of one that would spend all the budget."""
    assert dataset.feature_map is not None  # as ``settled`` saw to
    inputs, shares = len(_live(dataset.feature_map, mask)) + 1, shares_of(dataset)
    by_name = {name: release(name, draft, multiplier, shares[name]) for name in names_of(dataset)}
    std = by_name["second"].noise_std
    # All of it is public: the rule looks at no record.
    measurable = std <= MAX_NOISE and REACH * edge(inputs, std) <= dataset.records
    if not measurable or inputs > MOST_INPUTS:
        del by_name["second"]
    return by_name


def for_steps(options: TrainOptions, before: Before, dataset: Dataset) -> TrainOptions:
    """Return the options that settle the noise of the steps: a stated noise multiplier is that of the whole.

    Guarantees:
        Gaussian mechanisms of noise multipliers s_i cost what one of s does, with 1/s^2 the sum of all 1/s_i^2. Releases
        with shares f_i take f_i/s^2 each, and T steps of multiplier s sqrt(T/(1 - sum of f_i)) the rest.
    """
    if options.noise_multiplier is None:
        return options
    rest = 1 - math.fsum(shares_of(dataset)[name] for name in before)
    return replace(options, noise_multiplier=options.noise_multiplier * math.sqrt(STEPS / rest))


Released = Callable[[str, Callable[[], Tensor]], Tensor]  # draws what has a name, unless a checkpoint has it
Compute = Callable[[Tensor, Tensor], Tensor]  # rows of what the map stores of records, and of their labels


@dataclass(frozen=True)
class Prepared:
    """What the steps begin with, as far as there is any: all of it was released."""

    feature_map: FeatureMap | None
    second: Tensor | None = None
    labels: Labels | None = None

    @property
    def scale(self) -> float:
        return 1.0 if self.labels is None else self.labels.scale


def prepared(
    options: TrainOptions,
    dataset: Dataset,
    mask: Mask,
    before: Before,
    opened: Callable[[], Arrays],
    noise: RandomSource,
    released: Released,
) -> Prepared:
    """Draw, in this order, mean, class sums, cross moments of pairs, and second moments: those that there are; ``opened``
    opens the records as they are stored for the map."""
    feature_map, records, labels, second = dataset.feature_map, dataset.records, None, None
    if "mean" not in before or feature_map is None:
        return Prepared(feature_map)
    plain = feature_map

    def noisy(name: str, width: int, compute: Compute, of_unit: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        return _noisy_sum(before[name], _rows(opened(), compute, of_unit), width, noise)

    def mean() -> Tensor:
        return (noisy("mean", plain.moment_count, lambda values, _: plain.moment_rows(values)) / records).float()

    centre = released(CENTRE, mean)
    if options.head == LEAST_SQUARES and not isinstance(plain, SplineMap):
        centre = shrunk(centre, before["mean"].noise_std, records)
    feature_map = plain.centred_at(centre)

    if "labels" in before:
        equal = torch.full((dataset.classes,), 1 / dataset.classes).double()
        plainly = Labels(dataset.target is not None, dataset.of_persons, equal)
        counts = released(
            "labels", lambda: noisy("labels", plainly.width, lambda _, codes: plainly.indicators(codes), plainly.rows)
        )
        labels = plainly.counted(counts, before["labels"].noise_std, records)
    if "pairs" in before and labels is not None and isinstance(feature_map, SplineMap):
        screen = Screen(feature_map, labels)
        cross = released("pairs", lambda: noisy("pairs", screen.width, screen.rows))
        feature_map = replace(feature_map, pairs=screen.kept(cross, before["pairs"].noise_std, records))
    if "second" in before:
        final = feature_map
        places = _live(final, mask)

        def scaled_inputs(values: Tensor, _: Tensor) -> Tensor:
            features = final.centred(values)[:, places]
            return torch.cat([features, features.new_ones(len(features), 1)], 1) / math.sqrt(_SCALE)

        second = released(SECOND, lambda: release_second_moments(
            _rows(opened(), scaled_inputs), len(places) + 1, before["second"].noise_std, noise,
        ))  # fmt: skip
    return Prepared(feature_map, second, labels)


def _noisy_sum(release: GaussianRelease, rows: Iterator[Tensor], width: int, noise: RandomSource) -> Tensor:
    # what one record adds is half of what one replaced changes
    bound = release.sensitivity / (2 if release.adjacency == "replace-one" else 1)
    return noisy_sum(rows, width, bound, release.noise_std, noise)


def _rows(
    opened: Arrays, compute: Compute, of_unit: Callable[[Tensor], Tensor] | None = None, *, summed: bool = False
) -> Iterator[Tensor]:
    """Rows that are computed of each record, ``(n, width)``; of a person their mean, or sum, which ``of_unit`` takes to
    what is summed. Rows of zeros fill the last of them up."""
    # each is computed beside as many others, since products of another size may round in another way; alone, where made-up
    # rows show that it depends on them even so

    def computed(rows: Tensor, codes: Tensor) -> Tensor:
        if codes.ndim == 1:
            of_units = compute(rows, codes.clamp_min(0))
        else:
            present = (codes != ABSENT)[..., None]
            of_each = compute(rows.flatten(0, 1), codes.flatten().clamp_min(0)).view(*codes.shape, -1).double()
            of_units = (of_each * present).sum(1)
            of_units = of_units if summed else of_units / present.sum(1).clamp_min(1)
        return of_units if of_unit is None else of_unit(of_units)

    slots = math.prod(opened.y.shape[1:])
    together = 2 ** max((ROWS // slots).bit_length() - 1, 0)
    like, first = torch.zeros(1, *opened.x.shape[1:]), torch.zeros(together, *opened.y.shape[1:], dtype=torch.int64)
    together = together if bits_hold(lambda rows: computed(rows, first), like, together) else 1
    done = 0
    for block in pieces(opened.x, together):
        count = len(block)
        values = np.zeros((together, *block.shape[1:]), np.float32)
        labels = np.full((together, *opened.y.shape[1:]), ABSENT)
        values[:count], labels[:count] = block, opened.y[done : done + count]
        done += count
        summands = computed(torch.from_numpy(values), torch.from_numpy(labels))
        summands[count:] = 0.0
        yield summands


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels as rows: indicators of their classes, or both parts of a target's range.

    Attributes:
        shares: of the classes, ``(classes,)`` float64; of both ends of the range of targets. Equal before they are counted.
        scale, screened: what residuals are clipped to, and those in cross moments; 1 where they do not spread.
        left: share of the variance of single labels that is left in persons' means; 1 elsewhere.
        doubt: standard deviation of the noise in each share, ``(classes,)``; infinite where noise hides it.
    """

    targets: bool
    of_persons: bool
    shares: Tensor
    scale: float = 1.0
    screened: float = 1.0
    left: float = 1.0
    doubt: Tensor = field(default_factory=lambda: torch.zeros(1))

    @property
    def classes(self) -> int:
        return len(self.shares)

    @property
    def spread(self) -> bool:
        """Tell whether what a unit adds may be anything between: of targets, and of persons, who have several labels."""
        return self.targets or self.of_persons

    @property
    def are_means(self) -> bool:
        return self.of_persons and not self.targets

    @property
    def width(self) -> int:
        return self.classes + self.spread

    def indicators(self, labels: Tensor) -> Tensor:
        """What chances are to be, ``(n, classes)``."""
        return target_parts(labels) if self.targets else functional.one_hot(labels, self.classes).float()

    def rows(self, indicators: Tensor) -> Tensor:
        """What class sums are of, ``(n, width)``, of norm 1 at most: where labels spread, their squared norm as well."""
        if not self.spread:
            return indicators
        return torch.cat([indicators, indicators.square().sum(1, keepdim=True)], 1) / math.sqrt(2)

    def counted(self, sums: Tensor, noise_std: float, records: int) -> Labels:
        """Return the same with shares by noisy sums of ``rows``, none below what the noise hides; and their scale."""
        if self.spread:
            sums, noise_std = sums * math.sqrt(2), noise_std * math.sqrt(2)
        hidden = max(2 * noise_std, 1.0)
        counts, plain = (sums[: self.classes].clamp_min(least) for least in (hidden, 1.0))
        doubt = torch.full_like(counts, noise_std / records).masked_fill(counts == hidden, math.inf)
        shares, plain = counts / counts.sum(), plain / plain.sum()
        if not self.spread:
            return replace(self, shares=shares, doubt=doubt)
        # mean squared distance from the shares, over the largest there is, which is 2: of two classes, the variance
        variance = (float(sums[-1]) / records - float(plain.square().sum())) / 2
        variance = max(variance, noise_std / (2 * records), LEAST_SCALE**2)
        single = (1 - float(plain.square().sum())) / 2
        many, left = min(EVEN / math.sqrt(single), RESIDUALS), min(variance / single, 1.0)
        few = min(SCREENED * ((1 - 1 / self.classes) / 2 / single) ** 2, RESIDUALS)
        many, few, left = (many, few, left) if self.are_means else (RESIDUALS, RESIDUALS, 1.0)
        scale, screened = (min(deviations * math.sqrt(variance), 1.0) for deviations in (many, few))
        return replace(self, shares=shares, scale=scale, screened=screened, left=left, doubt=doubt)


def _live_weights(feature_map: FeatureMap | None, mask: Mask) -> Tensor:
    (weights,) = (tensor for tensor in mask.values() if tensor.ndim == 2)
    return weights & feature_map.live if isinstance(feature_map, SplineMap) else weights


def _live(feature_map: FeatureMap, mask: Mask) -> Tensor:
    return _live_weights(feature_map, mask).any(0).nonzero()[:, 0]


def shrunk(centre: Tensor, noise_std: float, records: int) -> Tensor:
    """Return a released mean, shrunk by its noise: post-processing (James and Stein 1961, positive part)."""
    noise, power = len(centre) * (noise_std / records) ** 2, float(centre.double().square().sum())
    return centre * max(0.0, 1 - noise / power) if power > 0 else centre


def screened(feature_map: SplineMap, classes: int) -> Tensor:
    """Pairs of columns whose products may be screened, ``(products, 2)`` places, the first below the second; public."""
    for places in (torch.arange(feature_map.columns), torch.tensor(feature_map.numbers, dtype=torch.int64)):
        if math.comb(len(places), 2) * (1 if classes == 2 else classes) <= MOST_PRODUCTS:
            return places[torch.triu_indices(len(places), len(places), 1).T]
    return torch.zeros(0, 2, dtype=torch.int64)


@dataclass(frozen=True)
class Screen:
    """Cross moments of products of two columns with what is left of the labels once their shares are taken away."""

    feature_map: SplineMap
    labels: Labels

    @property
    def _two(self) -> bool:
        return self.labels.classes == 2  # where what is left of one class is that of the other, but for the sign

    @property
    def _longest(self) -> float:
        """Longest row of residuals: of two classes the larger share, else the distance of corners; or the scale, if less."""
        widest = 1.0 if self._two else math.sqrt(2)
        largest = float(self.labels.shares.max()) if self._two and not self.labels.targets else widest
        return min(largest, self.labels.screened * widest)

    @property
    def width(self) -> int:
        return len(self.pairs) * (1 if self._two else self.labels.classes)

    @cached_property
    def pairs(self) -> Tensor:
        return screened(self.feature_map, self.labels.classes)

    def rows(self, values: Tensor, labels: Tensor) -> Tensor:
        """Cross moments of each record, ``(n, width)``: products, clipped, times residuals, of norm 1 at most; those of a
        person's records may be longer, and their mean is clipped where it is summed."""
        z = self.feature_map.standardised(values)
        (first, second) = self.pairs.T
        products = z[:, first] * z[:, second]
        bound = CLIPPED * math.sqrt(products.shape[1])
        products = products / products.norm(dim=1, keepdim=True).clamp_min(bound)
        residuals = (self.labels.indicators(labels) - self.labels.shares.float()) / self._longest
        residuals = residuals[:, 1:] if self._two else residuals
        if self._two and not self.labels.are_means:
            residuals = residuals.clamp(-1, 1)
        return (products[:, :, None] * residuals[:, None]).flatten(1)

    def kept(self, cross: Tensor, noise_std: float, records: int) -> tuple[tuple[int, int], ...]:
        """Pairs whose moments stand out of noise and sampling, the farthest first."""
        count = len(self.pairs)
        variance = self.labels.shares * (1 - self.labels.shares) * self.labels.left / self._longest**2
        if self.labels.targets:
            variance = torch.full_like(variance, RESIDUALS**-2)
        variance = noise_std**2 + records * (variance[1:] if self._two else variance) / (CLIPPED**2 * count)
        statistic = (cross.view(count, -1).square() / variance).sum(1)
        best = statistic.argsort(descending=True)[: self.feature_map.slots]
        best = best[statistic[best] > 2 * gammainccinv(len(variance) / 2, CHANCE)]  # of a chi-square
        return tuple((first, second) for first, second in self.pairs[best].tolist())


def newton(start: StartingPoint, dataset: Dataset, release: GaussianRelease | None, begun: Prepared) -> NewtonSteps:
    """Return the steps for what was released; behind ``splines`` the bias begins at the log odds."""
    noise_std = 0.0 if release is None else release.noise_std
    curvature = torch.tensor([CURVATURE], dtype=torch.float64)
    live = _live_weights(begun.feature_map, start.mask)
    parameters = list(start.model.parameters())
    if begun.labels is not None:
        shares, classes = begun.labels.shares, begun.labels.classes
        # of K equal classes p (1 - p) K / (K - 1) is what the curvature is, but in the direction that moves no chance
        weights = (shares * (1 - shares)).clamp_min(LEAST_CURVATURE) / begun.scale
        curvature = weights * classes / (classes - 1)
        with torch.no_grad():
            parameters[1].copy_(shares.log())
    return NewtonSteps(parameters, begun.second, noise_std, _SCALE / dataset.records, curvature, live)


def excess_noise(release: GaussianRelease, classes: int, of_persons: bool) -> float:
    """Return the standard deviation of the noise in the excess of a class, in rows: of K that add up to 0; public."""
    return math.sqrt(1 - 1 / classes) * LONGEST_EXCESS[of_persons] * release.noise_std


def chance_notes(release: GaussianRelease | None, dataset: Dataset, shares: Sequence[float]) -> list[str]:
    """Return a note on how far noise, by two deviations, moves the mean chances of small classes of such shares; or none."""
    if release is None or dataset.target is not None:
        return []
    most = 2 * excess_noise(release, dataset.classes, dataset.of_persons)
    names = dataset.schema.class_names or range(dataset.classes)
    rows = {name: max(share * dataset.records, 1.0) for name, share in zip(names, shares, strict=False)}
    few = [
        f"of {name!r}, up to about {count:,.0f} {dataset.noun}s, by {percent(most / count, 0)} or more"
        for name, count in rows.items()
        if most / count > FAR
    ]
    if not few:
        return []
    return [f"noise alone moves the mean chance of a class: {'; '.join(few)} (two deviations)"]


@torch.no_grad()
def calibrate(
    model: nn.Module, begun: Prepared, release: GaussianRelease, opened: Callable[[], Arrays], noise: RandomSource,
    released: Released, records: float,
) -> None:  # fmt: skip
    """Move the bias of each class by the log of its share over its mean chance; once, at the end.

    An excess counts the less, the less it stands out of its noise (empirical Bayes). Chances began at noisy shares: the
    farther it is above the doubt of a share, the more of it is taken for the drift of chances.
    """
    feature_map, labels = begun.feature_map, begun.labels
    assert feature_map is not None
    assert labels is not None
    device = next(model.parameters()).device
    of_persons = labels.of_persons
    longest = LONGEST_EXCESS[of_persons]

    def residuals(values: Tensor, codes: Tensor) -> Tensor:
        # chances less what came true, over the longest that counts; and of persons what came true
        chances = torch.softmax(model(feature_map.centred(values).to(device)), 1).cpu()
        true = labels.indicators(codes)
        rows = (chances - true) / longest
        return torch.cat([rows, true * (OF_ROWS / MOST_ROWS)], 1) if of_persons else rows

    width = labels.classes * (1 + of_persons)
    sums = released(
        "chances", lambda: _noisy_sum(release, _rows(opened(), residuals, summed=of_persons), width, noise)
    )
    excess, true = sums[: labels.classes], sums[labels.classes :] * (MOST_ROWS / OF_ROWS)
    shares = labels.shares
    if of_persons:  # by rows, where counts of these stand out of their noise
        records, noise_std = max(float(true.sum()), 1.0), release.noise_std * MOST_ROWS / OF_ROWS
        off = true / records - labels.shares
        off = off * (1 - (3 * noise_std / (records * off)).square()).clamp_min(0)
        shares = (labels.shares + off).maximum(labels.shares / 4)
        shares = shares / shares.sum()
    excess = (excess - excess.mean()) * longest / records  # they add up to 0
    variance = (excess_noise(release, labels.classes, of_persons) / records) ** 2
    excess = excess / (1 + variance / excess.square())
    doubt = labels.doubt.square()
    drift = 1 - doubt / (2 * doubt + excess.square()).clamp_min(1e-300)  # from a half to 1
    drift = drift.masked_fill(labels.doubt.isinf(), 0.0)  # such shares are too large, and chances began there
    ratio = (shares + drift * excess) / (shares - (1 - drift) * excess).clamp_min(1e-9)
    list(model.parameters())[1].sub_(ratio.clamp(math.exp(-1), math.e).log().to(device))


def head_facts(options: TrainOptions, before: Before) -> dict[str, Any]:
    """Return what answers and ``config.json`` hold of the head."""
    facts: dict[str, Any] = {"head": options.head, "optimizer": "newton"}
    for name in ("second", *TABLE_SHARES) if "labels" in before else ("second",):
        release = before.get(name)
        key = {"second": SECOND, "mean": CENTRE}.get(name, name)
        facts[key] = None if release is None else {"noise_multiplier": release.noise_multiplier}
    return facts


WORDS = {
    "mean": "the mean of features",
    "labels": "class sums",
    "pairs": "which pairs of columns go together",
    "chances": "chances that are right on average",
    "second": "their second moments",
}
OF_PERSONS = {"labels": "class sums and their spread"}
OF_TARGETS = {"labels": "mean and spread of targets", "chances": "predictions that are right on average"}


def releases_note(before: Before, dataset: Dataset) -> str:
    """Return the note on how the budget was shared."""
    names = WORDS | (OF_PERSONS if dataset.of_persons else {}) | (OF_TARGETS if dataset.target is not None else {})
    shares = shares_of(dataset)
    parts = [f"{100 * shares[name]:g} % for {words}" for name, words in names.items() if name in before]
    left = ""
    if "second" not in before and dataset.features >= MOST_INPUTS:
        left = f"; second moments are left out above {MOST_INPUTS - 1:,} features, and accuracy may suffer: take fewer"
    elif "second" not in before:
        left = "; second moments would be less than their noise, so they are left out"
    return f"`head` least-squares spends {', '.join(parts)}, and the rest on {STEPS} Newton steps{left}"
