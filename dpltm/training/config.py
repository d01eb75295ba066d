"""The settings of a private training, and its sensitivity: how far one neighbour moves the filtered sum of a step.

**Microbatches**: the filter takes the mean gradient of a group of records in place of that of each record (Amian 2021).

A step has G groups, a public number. Every sampled record draws its group by a coin of its own (``sampling.in_chunks``), as
it drew its place in the sample. Let S_g be the records of group g, and F the filter, whose certified bound is C. Then

    sum = F(m_1) + ... + F(m_G),    m_g = (1 / |S_g|) sum of the gradients of S_g,                                     (1)

where an empty group adds 0 in place of F(m_g). The mean is over the realised size, as in the papers. That size is private,
and may divide here: it acts in front of the filter, and F bounds whatever it is given. What stands behind the filter, the
divisor of the noisy sum, is the public G.

**Add/remove: 2 C.** Let D' be D with one record r more. Give all other records the same coins on both sides, for sample and
group. If r is not sampled, both sums are equal. If r is sampled, into group g by its coin, every other group holds what it
held. So the sum moves by

    v = F(m_g with r) - F(m_g without r),    |v| <= |F(m_g with r)| + |F(m_g without r)| <= 2 C,                       (2)

and by C at most where r is alone in its group, since the other term is 0. (2) is reached: let the others of g agree, and let
r have a long gradient that points the other way. Given these coins, the releases are N(s) and (1 - q) N(s) + q N(s + v),
which the pair of a sampled Gaussian step with sensitivity 2 C dominates (privacy-model.md 5.2). The law of these coins does
not depend on r, so joint convexity of the hockey-stick divergence carries this over to their mixture.

**Replace-one: 4 C.** Give r and its replacement r' the same coins. Then one group changes, and the sum moves by 2 C at most.
But the pair for sampled steps (5.2) asks for more: each record alone, against its absence, may move the sum by half of the
sensitivity. That is 2 C by (2), so the sensitivity is 4 C. Were r' to draw a group of its own, two groups would change by
2 C each, sqrt(8) C in all, which is below 4 C too. At q = 1 the figure is twice what is needed.

**What it costs.** The mean over G = ceil(B / M) groups, B the expected batch, has noise of standard deviation 2 sigma C / G.
That is 2 B / G times the noise of single records at the same sigma, on a gradient of the same bound C: 2 M if M divides B.
B / G is because there are fewer groups, 2 by (2). A record's own share in the mean of its group is about 1 / M.

**Arithmetic.** Gradients are written out and averaged in float32, then norm and sum see the same numbers. Filtered means are
added up in float64. As everywhere in the engine, what one group contributes is taken as computed independently of the rows
beside it. That holds up to the last bits of float32, and a mean of long gradients that cancel can make them matter.

The papers account with C. That is the nominal sensitivity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

from dpltm.errors import InputError
from dpltm.filters import Filter, check_compiles, follows
from dpltm.filters.radial import DpsrCg
from dpltm.filters.trial import check_filter_bound
from dpltm.gradients.linear_layer import KERNELS
from dpltm.networks import Network
from dpltm.networks.evaluation import PricedScore, Score, check_metric, check_priced
from dpltm.networks.masks import Mask
from dpltm.networks.plain import check_lr
from dpltm.options import parse_numbers
from dpltm.privacy.entry import Entry, to_json
from dpltm.privacy.mechanisms import Adjacency, NoisySgd
from dpltm.records import Dataset
from dpltm.records.schema import class_shares
from dpltm.training.optimizers import AVERAGES, OPTIMIZERS, SCHEDULES, Average, Schedule

BALANCED = "balanced"
"""Weights of classes that are the inverse of their shares."""


def class_weights(
    given: str | None, shares: str | None, classes: int | None, known: tuple[float, ...] = (), *, scored: bool = False
) -> tuple[float, ...] | None:
    """Return what filtered gradients are multiplied by, class by class: the largest weight is 1; None where none is given.

    Args:
        given: numbers with commas, or ``BALANCED``.
        shares: of classes, public, for the latter; or those that are
        known: by a schema.
        classes: how many there are; None where nobody knows.
        scored: whether a metric takes the shares, too.
    """
    if given != BALANCED and shares is not None and not scored:
        raise InputError(
            "`class_shares`: only with `class_weight` balanced, or `metric` balanced-accuracy on private records; add one of"
            " them, or leave this out"
        )
    if given is None:
        return None
    if given == BALANCED:
        numbers = shares_of("`class_weight`: balanced", shares, classes, known)
        return tuple(min(numbers) / one for one in numbers)
    weights = _by_class("class_weight", given, classes)
    return tuple(one / max(weights) for one in weights)


def shares_of(asker: str, shares: str | None, classes: int | None, known: tuple[float, ...]) -> tuple[float, ...]:
    """Return the shares of the classes, for whoever asks. Other arguments as :func:`class_weights`."""
    if shares is None and not known:
        raise InputError(
            f"{asker} needs public shares of the classes, such as `class_shares` 0.83,0.17, or a schema with them, as"
            " dpltm datasets schema `private` finds; counting them in private records is a release that nothing pays for"
        )
    numbers = known if shares is None else _by_class("class_shares", shares, classes)
    if abs(math.fsum(numbers) - 1) > 0.01:
        raise InputError(f"`class_shares`: {shares} add up to {math.fsum(numbers):g}, not to 1")
    return numbers


def settings_of(options: object) -> dict[str, Any]:
    """Return the options that are settings of a training by their names, so that none is left out; a dataclass of them."""
    names = {item.name for item in fields(options)}  # type: ignore[arg-type]
    return {item.name: getattr(options, item.name) for item in fields(TrainingConfig) if item.name in names}


def _by_class(name: str, text: str, classes: int | None) -> tuple[float, ...]:
    numbers = parse_numbers(name, text)
    if classes is not None and len(numbers) != classes:
        raise InputError(f"`{name}`: {len(numbers)} numbers for {classes} classes; give one for each, in their order")
    if not all(0 < one < math.inf for one in numbers):
        raise InputError(f"`{name}`: {text} holds what is not a positive number")
    return numbers


def private_score(metric: str, shares: str | None, dataset: Dataset, own: Score | None) -> PricedScore | None:
    """Return what a metric counts on private records; None for right answers, or the network's own score.

    Raises:
        InputError: a metric without a price, or that does not go with the records or the score; no shares of the classes.
    """
    check_priced(metric)
    check_metric(metric, dataset.rated, own)
    if metric == "balanced-accuracy":
        known = class_shares(dataset.schema)
        return PricedScore(dataset.classes, shares_of(f"`metric`: {metric}", shares, dataset.classes, known))
    return PricedScore(dataset.classes) if metric == "rmse" else None


FACTOR = 2.0
"""Of the certified bound of a filter, what one record moves the sum of filtered groups by, at most: (2)."""


def check_microbatch(microbatch: int | None, batch: float) -> None:
    """Refuse a size of groups that there cannot be."""
    if microbatch is None:
        return
    if isinstance(microbatch, bool) or not isinstance(microbatch, int) or microbatch < 2:
        raise InputError(
            f"`microbatch`: {microbatch} is not a whole number of records from 2; leave it out to filter single records"
        )
    if microbatch > batch:
        raise InputError(
            f"`microbatch`: {microbatch} is more than the {batch:g} records that a step has on average (`batch_size`)"
        )


def number_of_groups(microbatch: int, batch: float) -> int:
    """G, groups of a step: public, and settled before the sample is drawn."""
    return math.ceil(batch / microbatch)


@dataclass(frozen=True)
class TrainingConfig:
    """A DP training run; all of it is public.

    Attributes:
        expected_batch: q times the public number of records; sums are divided by it.
        noise_std: standard deviation of the noise on each live coordinate of the sum.
        optimizer: ``sgd``, ``momentum`` (0.9), ``adam`` or ``adagrad``.
        physical_batch: most records that go through the network at once, whatever a step's sample holds; None takes
            what fits some memory (``RecordGradients.comfortable_batch``). Sums do not depend on it but for rounding.
        precision: of the passes; norms and sums are of what these leave, in float32 or better. In bfloat16 passes have one
            shape.
        compile: compile element-wise filters, and fill every batch up to a fixed shape so that it is done once; with no
            compiler at hand, neither.
        schedule: of the step size: ``constant``, or down to zero along a line or half a cosine.
        microbatch: about how many records have one gradient, their mean, which is filtered (``training.config``); None for
            one each.
        class_weight: what a record's filtered gradient is multiplied by, by its label: from 0 to 1; None for 1. Of a
            person's records it is their mean.
        participations: number of steps that a record takes part in, which are drawn beforehand: of all, the sampling rate;
            None for Poisson sampling.
        truncated_batch_size: most records, or persons, of a step; None for as many as their coins say.
        strategy: of banded noise (``randomness.banded_noise``), whose ``noise_std`` and ``sampling_rate`` these then are;
            empty for noise that is independent over steps.
    """

    filter: Filter
    sampling_rate: float
    steps: int
    expected_batch: float
    noise_std: float
    lr: float
    optimizer: Literal["sgd", "momentum", "adam", "adagrad"] = "sgd"
    physical_batch: int | None = None
    compile: bool = False
    precision: Literal["float32", "bfloat16"] = "float32"
    schedule: Schedule = "constant"
    average: Average = "none"
    kernels: Literal["auto", "float64", "dense", "sparse"] = "auto"
    microbatch: int | None = None
    class_weight: tuple[float, ...] | None = None
    participations: int | None = None
    truncated_batch_size: int | None = None
    strategy: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not hasattr(self.filter, "certified_bound"):
            raise InputError(f"`filter`: {self.filter!r:.80} is no filter; make one with dpltm.filters.make_filter")
        check_filter_bound(self.filter)
        if self.compile:
            check_compiles(self.filter)
        if not 0 < self.sampling_rate <= 1:
            raise InputError(f"Expected 0 < sampling_rate={self.sampling_rate} <= 1")
        if not (isinstance(self.steps, int) and self.steps >= 1):
            raise InputError(f"`steps`: {self.steps} is not a positive whole number")
        if not (self.expected_batch > 0 and math.isfinite(self.expected_batch)):
            raise InputError(f"`batch_size`: {self.expected_batch} is not positive")
        if not (self.noise_std >= 0 and math.isfinite(self.noise_std)):
            raise InputError(f"Expected finite noise_std={self.noise_std} >= 0")
        check_lr(self.lr)
        self._check_microbatch()
        precision: str = self.precision
        if precision == "float16":
            raise InputError("`precision`: float16 loses small gradients; use bfloat16")
        if precision not in ("float32", "bfloat16"):
            raise InputError(f"`precision`: unknown precision {precision!r}; known: float32, bfloat16")
        if self.physical_batch is not None and not (isinstance(self.physical_batch, int) and self.physical_batch >= 1):
            raise InputError(f"`physical_batch`: {self.physical_batch} is not a positive whole number")
        known: dict[str, Collection[str]] = {"optimizer": OPTIMIZERS, "schedule": SCHEDULES, "average": AVERAGES}
        known["kernels"] = KERNELS
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise InputError(f"`{name}`: unknown {name} {getattr(self, name)!r}; known: {', '.join(values)}")

    def _check_microbatch(self) -> None:
        check_microbatch(self.microbatch, self.expected_batch)
        if self.microbatch is not None and self.compile:
            raise InputError("`compile`: is for gradients of single records; leave it out, or `microbatch`")
        if self.class_weight is not None:
            if self.microbatch is not None:
                raise InputError(
                    "`class_weight`: a group of `microbatch` has records of several classes; leave one out"
                )
            if not all(0 <= one <= 1 for one in self.class_weight):
                raise InputError(
                    f"`class_weight`: {self.class_weight} would exceed the bound; give numbers from 0 to 1"
                )

    @property
    def unit(self) -> float:
        """What gradients are divided by at first: a clip norm that follows a quantile; else 1."""
        counting = follows(self.filter)
        return 1.0 if counting is None else counting.clip_norm

    @property
    def groups(self) -> int | None:
        """Number of groups of records in a step, which is public; None where every record is filtered by itself."""
        return None if self.microbatch is None else number_of_groups(self.microbatch, self.expected_batch)

    @property
    def divisor(self) -> float:
        """Divisor of noisy sums: the expected number of gradients that are filtered."""
        return self.expected_batch if self.groups is None else float(self.groups)

    @property
    def filtered(self) -> str:
        """The filter, and what it is applied to, in words."""
        groups = "" if self.microbatch is None else f" of groups of about {self.microbatch} records"
        weights = ",".join(f"{one:.3g}" for one in self.class_weight or ())
        return f"{self.filter}{groups}" + (f" times class weights {weights}" if weights else "")


def sensitivity(filter: Filter, live: int, adjacency: Adjacency, microbatch: int | None = None) -> float:
    """Return the certified L2 change that one neighbour makes to the filtered sum.

    It is the bound, doubled for replace-one, and doubled for groups whose mean gradient is filtered.
    """
    bound = filter.certified_bound(live) * (1.0 if microbatch is None else FACTOR)
    return bound * (2.0 if adjacency == "replace-one" else 1.0)


def nominal_sensitivity(
    filter: Filter, live: int, adjacency: Adjacency, asked: bool = False, microbatch: int | None = None
) -> float | None:
    """Return the sensitivity that the filter's source claims, with groups as one record each; None for no claim, or,
    unless ``asked``, where the filter clips before, as its source does not.
    """
    printed = filter.kind != "element-wise" or filter.before is None
    bound = filter.nominal_bound if printed or asked else None
    if bound is None and microbatch is not None:
        bound = filter.certified_bound(live)
    return None if bound is None else bound * (2.0 if adjacency == "replace-one" else 1.0)


def step_facts(mechanism: NoisySgd, config: TrainingConfig, mask: Mask) -> dict[str, Any]:
    """Return the public facts of noisy steps, as answers and ``config.json`` have them."""
    return {
        "steps": mechanism.steps,
        "sampling_rate": mechanism.sampling_rate,
        "noise_multiplier": mechanism.noise_multiplier,
        "noise_std": mechanism.noise_std,
        "filter": config.filtered,
        "groups": config.groups,
        "sensitivity": mechanism.sensitivity,
        "live": mask.live,
        "density": mask.density,
    }


def run_config(
    network: Network,
    entry: Entry,
    config: TrainingConfig,
    bounds: tuple[float, float],
    of_persons: bool,
    **others: Any,
) -> dict[str, Any]:
    """Return the settings that a run states, of a training or a loop: ``config.json``.

    Args:
        others: fields that take the place of those of a loop, or stand beside them.
    """
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
        "expected_batch": config.expected_batch,
        "divisor": config.divisor,
        "test_records": None,
        **others,
    }


def noisy_steps(
    filter: Filter,
    live: int,
    sampled: tuple[float, int],
    adjacency: str = "add-remove",
    microbatch: int | None = None,
    *,
    secure: bool = True,
    asked: bool = False,
    kind: Callable[..., NoisySgd] = NoisySgd,
) -> NoisySgd:
    """Return the steps of a training as a mechanism, for whose noise multiplier 1 stands.

    Args:
        live: number of live weights.
        sampled: sampling rate and number of steps.
        secure: whether all bits come from a cryptographic source.
        asked: as of :func:`nominal_sensitivity`.
    """
    relation = cast(Adjacency, adjacency)
    claim = nominal_sensitivity(filter, live, relation, asked, microbatch)
    return kind(
        *sampled,
        1.0,
        sensitivity(filter, live, relation, microbatch),
        claim,
        "" if claim is None else nominal_source(filter, microbatch),
        adjacency=relation,
        bits="secure" if secure else "fast",
    )


def nominal_source(filter: Filter, microbatch: int | None = None) -> str:
    """Return the sources of a claim. Arguments as :func:`nominal_sensitivity`."""
    own = "sensitivity in the code of DPSR-CG" if isinstance(filter, DpsrCg) else "tanh paper's sensitivity"
    if microbatch is None:
        return own
    return "; ".join(
        dict.fromkeys(["tanh paper's sensitivity for microbatches", *([own] if isinstance(filter, DpsrCg) else [])])
    )


def noise_ratio(config: TrainingConfig, mechanism: NoisySgd, live: int, nominal: bool) -> float:
    """Return the noise on the mean of a step, over that of the same training without groups."""
    alone = sensitivity(config.filter, live, mechanism.adjacency)
    multiplier = mechanism.noise_multiplier
    if nominal:
        alone = nominal_sensitivity(config.filter, live, mechanism.adjacency, asked=True) or alone
        multiplier = mechanism.nominal_noise_multiplier
    return (config.noise_std / config.divisor) / (multiplier * alone / config.expected_batch)


def step_notes(
    config: TrainingConfig, mechanism: NoisySgd, live: int, audit: int | None, *, nominal: bool = False, unit: str
) -> list[str]:
    """Return what is to be said of the steps of a training, a sentence each."""
    notes = []
    if audit is not None:
        notes.append(
            f"{audit:,} made-up records attacked this training (`audit`), at no cost to privacy and some to accuracy"
        )
    if follows(config.filter) is not None:
        notes.append(
            f"`clip_quantile`: the clip norm begins at {config.unit:g} and follows noisy counts, which share the noise of"
            " the sums; sensitivity and noise are those of the first step, and change with it"
        )
    if config.microbatch is not None:
        notes.append(microbatch_note(config, mechanism, live, nominal, unit))
    return notes


def microbatch_note(
    config: TrainingConfig, mechanism: NoisySgd, live: int, nominal: bool, unit: str = "record"
) -> str:
    """Return what groups do to the sensitivity and to the noise, in one sentence."""
    said = f"`microbatch`: a step filters the mean gradients of {config.groups} groups"
    said += f", and one {unit} moves one of them by twice the bound at most"
    if mechanism.noise_multiplier == 0:
        return said
    ratio = noise_ratio(config, mechanism, live, nominal)
    return f"{said}: the noise on their mean is {ratio:.3g} times that of single {unit}s"
