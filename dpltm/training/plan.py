"""The noisy steps of a training as a plan, and their sensitivity: how far one neighbour moves the filtered sum of a step.

**Microbatches** (docs/privacy-model.md 4.6): the filter F, of bound C, takes the mean gradient of a group of records. With
S_g the records of group g, of a public number G, which each record draws by a coin of its own (``sampling.in_chunks``),

    sum = F(m_1) + ... + F(m_G),    m_g = (1 / |S_g|) sum of the gradients of S_g; 0 for an empty group.               (1)

**Add/remove: 2 C.** Let D' be D with one record r more, and give all others the same coins on both sides. If r is not
sampled, both sums are equal. If r is sampled, into group g by its coin, every other group is what it was: the sum moves by

    v = F(m_g with r) - F(m_g without r),    |v| <= |F(m_g with r)| + |F(m_g without r)| <= 2 C.                       (2)

Given these coins, the releases are N(s) and (1 - q) N(s) + q N(s + v), which the pair of a sampled Gaussian step with
sensitivity 2 C dominates (privacy-model.md 5.2). The law of these coins does not depend on r, so joint convexity of the
hockey-stick divergence carries this over to their mixture.

**Replace-one: 4 C.** Give r and its replacement the same coins: the sum moves by 2 C at most. But the pair for sampled steps
(5.2) asks for more: each record alone, against its absence, may move it by half of the sensitivity, and that is 2 C by (2).

The papers account with C: the nominal sensitivity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from dpltm.errors import InputError
from dpltm.filters import Filter, check_compiles
from dpltm.filters.radial import DpsrCg
from dpltm.filters.trial import check_filter_bound
from dpltm.gradients import RecordGradients
from dpltm.networks import Batch, Network
from dpltm.networks.evaluation import PricedError, PricedScore, check_priced
from dpltm.networks.masks import Mask
from dpltm.options import METRICS, TARGET_METRICS, parse_numbers
from dpltm.options.train import TrainOptions
from dpltm.privacy.checks import participations_of
from dpltm.privacy.entry import Entry, to_json
from dpltm.privacy.mechanisms import Adjacency, AllocatedSgd, BandedSgd, Bits, NoisySgd
from dpltm.records.dataset import Dataset

FACTOR = 2.0  # by which one record moves the sum of filtered groups, at most, over the bound: (2)


@dataclass(frozen=True)
class NoisySteps:
    """The noisy steps of a training; all of it is public.

    Attributes:
        expected_batch: expected number of records of a step.
        class_weight: of a record's filtered gradient, by its label: from 0 to 1; None for 1. A person's is the mean.
    """

    filter: Filter
    mechanism: NoisySgd
    expected_batch: float
    lr: float = 1.0
    class_weight: tuple[float, ...] | None = None
    options: TrainOptions = TrainOptions()  # noqa: RUF009  (a frozen value)

    def __post_init__(self) -> None:
        check_filter_bound(self.filter)
        if self.options.compile:
            check_compiles(self.filter)
        if self.class_weight is not None and not all(0 <= weight <= 1 for weight in self.class_weight):
            raise InputError(f"`class_weight`: {self.class_weight} would exceed the bound; give numbers from 0 to 1")
        if (size := self.options.microbatch) is None:
            return
        if not 2 <= size <= self.expected_batch:
            raise InputError(
                f"`microbatch`: {size} is not a whole number from 2 to the {self.expected_batch:g} records that a step has"
                " on average (`batch_size`); leave it out to filter single records"
            )
        for name, value in (("compile", self.options.compile), ("class_weight", self.class_weight)):
            if value:
                raise InputError(f"`{name}`: is for gradients of single records; leave it out, or `microbatch`")

    @property
    def groups(self) -> int | None:
        """Public number of groups of records in a step; None where every record is filtered by itself."""
        size = self.options.microbatch
        return None if size is None else math.ceil(self.expected_batch / size)

    @property
    def divisor(self) -> float:
        """Divisor of noisy sums: the expected number of gradients that are filtered."""
        return float(self.groups or self.expected_batch)

    @property
    def strategy(self) -> tuple[float, ...]:
        """Of banded noise (``randomness.banded_noise``); empty for noise that is independent over steps."""
        return self.mechanism.strategy if isinstance(self.mechanism, BandedSgd) else ()

    @property
    def filtered(self) -> str:
        size = self.options.microbatch
        groups = "" if size is None else f" of groups of about {size} records"
        weights = ",".join(f"{weight:.3g}" for weight in self.class_weight or ())
        return f"{self.filter}{groups}" + (f" times class weights {weights}" if weights else "")

    def step_facts(self, mask: Mask) -> dict[str, Any]:
        mechanism = self.mechanism
        return {
            "steps": mechanism.steps,
            "sampling_rate": mechanism.sampling_rate,
            "noise_multiplier": mechanism.noise_multiplier,
            "noise_std": mechanism.noise_std,
            "filter": self.filtered,
            "groups": self.groups,
            "sensitivity": mechanism.sensitivity,
            "live": mask.live,
            "density": mask.density,
        }

    def run_config(
        self, network: Network, entry: Entry, bounds: tuple[float, float], of_persons: bool, **others: Any
    ) -> dict[str, Any]:
        """Return ``config.json`` of a run; ``others`` take the place of what a loop has, or stand beside it."""
        return {
            "model": network.text,
            "features": network.features,
            "classes": network.classes,
            "bounds": list(bounds),
            "bounds_origin": "declared",
            "part": to_json(entry.part),
            "unit": entry.unit,
            "of_persons": of_persons,
            "entry": entry.id,
            "ticket_set_id": None,
            "provenance": None,
            "round": None,
            "expected_batch": self.expected_batch,
            "divisor": self.divisor,
            "test_records": None,
            **others,
        }

    def step_notes(self, unit: str, engines: Iterable[RecordGradients] = ()) -> list[str]:
        """Return what is to be said of the steps, and of how ``engines`` take them, a sentence each."""
        notes = [engine.one_by_one.removeprefix("model: ") for engine in engines if engine.one_by_one]
        if self.options.audit is not None:
            notes.append(
                f"{self.options.audit:,} made-up records attacked this training (`audit`), at no cost to privacy and some"
                " to accuracy"
            )
        if self.groups is not None:
            notes.append(
                f"`microbatch`: a step filters the mean gradients of {self.groups} groups, and one {unit} moves one of them"
                " by twice the bound at most"
            )
        return notes


def sensitivity(filter: Filter, live: int, adjacency: Adjacency, microbatch: int | None = None) -> float:
    """Return the certified L2 change that one neighbour makes to the filtered sum: the bound, doubled for replace-one, and
    doubled for groups whose mean gradient is filtered."""
    bound = filter.certified_bound(live) * (1.0 if microbatch is None else FACTOR)
    return bound * (2.0 if adjacency == "replace-one" else 1.0)


def nominal_sensitivity(
    filter: Filter, live: int, adjacency: Adjacency, microbatch: int | None = None, *, asked: bool = False
) -> float | None:
    """Return the sensitivity that the filter's source claims, with groups as one record each; None for no claim, or,
    unless ``asked``, where the filter clips before, as its source does not."""
    printed = filter.kind != "element-wise" or filter.before is None
    bound = filter.nominal_bound if printed or asked else None
    if bound is None and microbatch is not None:
        bound = filter.certified_bound(live)
    return None if bound is None else bound * (2.0 if adjacency == "replace-one" else 1.0)


def noisy_steps(filter: Filter, live: int, rate: float, steps: int, options: TrainOptions) -> NoisySgd:
    """Return the steps of a training of so many live weights as a mechanism, for whose noise multiplier 1 stands."""
    adjacency, size = cast(Adjacency, options.adjacency), options.microbatch
    claim = nominal_sensitivity(filter, live, adjacency, size, asked=options.noise == "nominal")
    sources = [] if size is None else ["tanh paper's sensitivity for microbatches"]
    sources += ["sensitivity in the code of DPSR-CG"] if isinstance(filter, DpsrCg) else []
    source = "; ".join(sources) or "tanh paper's sensitivity"
    bits: Bits = "fast" if options.noise == "fast" else "secure"
    participations = participations_of(options.sampling)
    kind = NoisySgd if participations is None else partial(AllocatedSgd, participations=participations)
    return kind(
        rate, steps, 1.0, sensitivity(filter, live, adjacency, size), claim, "" if claim is None else source,
        adjacency=adjacency, bits=bits,
    )  # fmt: skip


def class_weights(
    weights: str | None,
    shares: str | None,
    classes: int | None,
    schema_shares: tuple[float, ...] = (),
    *,
    scored: bool = False,
) -> tuple[float, ...] | None:
    """Return what filtered gradients are multiplied by, class by class: the largest weight is 1; None for no weights.

    Args:
        weights: numbers with commas, or ``balanced``: the inverse of ``shares``, or of ``schema_shares``.
        classes: how many there are; None where nobody knows.
        scored: whether a metric takes the shares, too.
    """
    if weights == "balanced":
        numbers = _shares("`class_weight`: balanced", shares, classes, schema_shares)
        return tuple(min(numbers) / share for share in numbers)
    if shares is not None and not scored:
        raise InputError(
            "`class_shares`: only with `class_weight` balanced, or `metric` balanced-accuracy on private records; add one of"
            " them, or leave this out"
        )
    if weights is None:
        return None
    numbers = _by_class("class_weight", weights, classes)
    return tuple(weight / max(numbers) for weight in numbers)


def _shares(
    asker: str, shares: str | None, classes: int | None, schema_shares: tuple[float, ...]
) -> tuple[float, ...]:
    if shares is None and not schema_shares:
        raise InputError(
            f"{asker} needs public shares of the classes, such as `class_shares` 0.83,0.17, or a schema with them, as"
            " `private` of dpltm datasets schema finds; counting them in private records is a release that nothing pays for"
        )
    numbers = schema_shares if shares is None else _by_class("class_shares", shares, classes)
    if abs(math.fsum(numbers) - 1) > 0.01:
        raise InputError(f"`class_shares`: {shares} add up to {math.fsum(numbers):g}, not to 1")
    return numbers


def _by_class(name: str, text: str, classes: int | None) -> tuple[float, ...]:
    numbers = parse_numbers(name, text)
    if classes is not None and len(numbers) != classes:
        raise InputError(f"`{name}`: {len(numbers)} numbers for {classes} classes; give one for each, in their order")
    if not all(0 < number < math.inf for number in numbers):
        raise InputError(f"`{name}`: {text} holds what is not a positive number")
    return numbers


def check_metric(metric: str, score: Batch | None, target: tuple[float, float] | None = None) -> None:
    """Raise InputError for a metric of other labels, or beside a score of the user's own."""
    suited, others = (METRICS, TARGET_METRICS) if target is None else (TARGET_METRICS, METRICS)
    if metric in others:
        labels = "classes; `target_bounds` LO,HI declare a number" if target is None else "a number"
        raise InputError(f"`metric`: {metric} is not one of {', '.join(suited)}; these labels are {labels}")
    if score is not None and metric != METRICS[0]:
        raise InputError(f"`metric`: the `score` of the network takes the place of {metric}; leave it out")


def private_score(
    metric: str, shares: str | None, dataset: Dataset, own: Batch | None
) -> PricedScore | PricedError | None:
    """Return what a metric counts on private records, None for right answers, or the network's own score; InputError for one
    without a price, or that does not go with the records or the score, or without shares of the classes.
    """
    check_priced(metric)
    check_metric(metric, own, dataset.target)
    if dataset.target is not None:
        low, high = dataset.target
        return PricedError(metric, high - low)
    if metric == "balanced-accuracy":
        schema_shares = dataset.schema.class_shares
        return PricedScore(dataset.classes, _shares(f"`metric`: {metric}", shares, dataset.classes, schema_shares))
    return None
