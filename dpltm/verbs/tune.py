"""The search for settings: every one is tried on public records, under the budget and the noise of the private run.

No private record is read, so the search costs nothing; the records that it reads are declared public by it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dpltm.errors import InputError
from dpltm.features.inputs import Services, network_inputs, tensors
from dpltm.features.setup import declarations
from dpltm.filters import make_filter
from dpltm.networks import Network, model_spec
from dpltm.networks.evaluation import (
    accuracy,
    check_loss,
    check_metric,
    check_score,
    root_mean_squared_error,
    skill,
)
from dpltm.networks.own import OwnModel
from dpltm.options import check_choices, check_required, parse_numbers
from dpltm.options.data import FeatureOptions
from dpltm.options.network import check_set_decides
from dpltm.options.tune import TuneOptions, TuneRequest
from dpltm.privacy.account import Account, check_unprotected
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.checks import MAX_STEPS, check_count, check_delta_alone, check_epsilon, default_batch, steps_of
from dpltm.privacy.entry import Entry, Lineage, lineage_of, to_json
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import NoisySgd, Unprotected
from dpltm.privacy.statement import PrivacyReport, statement
from dpltm.randomness import noise
from dpltm.randomness.noise import FastSource
from dpltm.records import Arrays, Dataset
from dpltm.records.batches import Records
from dpltm.records.notes import bounds_notes, feature_notes
from dpltm.training.artifacts import TicketSet
from dpltm.training.config import TrainingConfig, settings_of
from dpltm.training.descent import cross_entropy, train
from dpltm.training.start import fresh, from_round

MAX_TRIALS = 10_000
"""Most settings that a search tries."""


@dataclass(frozen=True)
class Setting:
    """One combination. ``round`` is None without a ticket set."""

    round: int | None
    lr: float
    clip_norm: float
    epochs: float
    batch_size: float
    components: int | None = None


def check_request(request: TuneRequest) -> None:
    """Raise InputError for options that are out of range or contradict each other, whatever the tickets."""
    if request.set is not None:
        check_set_decides(request, request.model)
    named_rounds(request, of_set=request.set is not None)
    settings(request)


def settings(options: TuneOptions) -> list[Setting]:
    """Every combination, of no round yet; everything about the options that can be refused is."""
    check_epsilon("epsilon", options.epsilon)
    check_delta_alone(options.delta)
    records = options.for_records or 0
    if records < 1:
        raise InputError(f"`for_records`: {records} is not a positive whole number")
    check_count("repeats", options.repeats)
    check_count("trials", options.trials)
    if not options.delta < 1 / records:
        raise InputError(f"`delta`: {options.delta:g} is not below 1/n for {records} records; take a smaller one")
    if not 0 <= options.seed < 2**62:
        raise InputError(f"`seed`: {options.seed} is not between 0 and 2^62 - 1")
    lists = {}
    for name in ("lr", "clip_norm", "epochs", "batch_size"):
        given = getattr(options, name)
        lists[name] = [default_batch(records)] if given is None else parse_numbers(name, given)
        for value in lists[name]:
            if not 0 < value < math.inf:
                raise InputError(f"`{name}`: {value:g} is not a positive number")
    counts: list[int | None] = [*_components(options)] or [None]
    for value in lists["clip_norm"]:
        make_filter("clip", clip_norm=value)
    if math.prod(map(len, [*lists.values(), counts])) > MAX_TRIALS:
        raise InputError(
            f"`lr`, `clip_norm`, `epochs`, `batch_size`, `components`: more than {MAX_TRIALS:,} combinations; name fewer"
        )
    largest = max(lists["batch_size"])
    if largest > records:
        raise InputError(f"`batch_size`: {largest:g} is more than the {records} private records")
    tried = itertools.product(*lists.values())
    return [Setting(None, lr, norm, epochs, size, count) for lr, norm, epochs, size in tried for count in counts]


def to_try(options: TuneOptions, tickets: TicketSet | None) -> list[Setting]:
    """Return the settings of a search, with the rounds of the set; ``trials`` of them where that was asked for."""
    alike = settings(options)
    tried = [replace(setting, round=number) for number in _rounds(options, tickets) for setting in alike]
    if options.trials is not None:
        tried = random.Random(options.seed).sample(tried, min(options.trials, len(tried)))
    if len(tried) > MAX_TRIALS:
        raise InputError(f"`trials`: {len(tried):,} combinations; try at most {MAX_TRIALS:,} of them")
    return tried


def _rounds(options: TuneOptions, tickets: TicketSet | None) -> list[int | None]:
    named = named_rounds(options, of_set=tickets is not None)
    if tickets is None:
        return [None]
    if named is None:
        return [ticket.round for ticket in tickets.body.tickets if ticket.round] or [0]
    return [tickets.ticket(number).round for number in named]


def front_of(target: TicketSet | OwnModel | str, dataset: Dataset, count: int | None) -> tuple[Dataset, Network]:
    """Return the records behind the first ``count`` components of their features (None for all), and the network."""
    if count is not None:
        found = dataset.feature_map
        if found is None or found.projection is None or isinstance(target, TicketSet):
            raise InputError("`components`: only where features of `public` are projected in front of a whole network")
        dataset = replace(dataset, feature_map=found.projected_on(count))
    return dataset, target.body.spec if isinstance(target, TicketSet) else model_spec(target, dataset)


def _components(options: TuneOptions) -> list[int]:
    if options.components is None:
        return []
    values = parse_numbers("components", options.components)
    for value in values:
        if not (value.is_integer() and value >= 1):
            raise InputError(f"`components`: {value:g} is not a positive whole number")
    return [int(value) for value in values]


def widest_front(options: TuneOptions) -> FeatureOptions:
    """Return the options of the feature map with the most components that are tried: they hold all fewer ones."""
    return FeatureOptions(
        features=options.features, public=options.public, components=max(_components(options), default=None)
    )


def named_rounds(options: TuneOptions, of_set: bool) -> list[int] | None:
    """Return the rounds that were asked for; None where that is for the set to say."""
    if options.rounds is None:
        return None
    if not of_set:
        raise InputError("`rounds`: only for a ticket set; name SET, or leave it out")
    numbers = options.rounds.split(",")
    if not all(number.isdecimal() and len(number) < 5 for number in numbers):
        raise InputError(f"`rounds`: {options.rounds!r} is not a list of rounds, such as 0,3,6")
    return [int(number) for number in numbers]


HELD_OUT = 5
"""Fraction (a fifth) of public records, drawn by ``seed``, that is held out to score on without a test split."""


@dataclass(frozen=True)
class SearchPlan:
    """A search, settled before the first training.

    Attributes:
        fronts: the public records behind what stands in front of the network, and the network, for each number of
            components that is tried; of None alone where features are not projected, or the set remembers it.
    """

    options: TuneOptions
    tickets: TicketSet | None
    fronts: Mapping[int | None, tuple[Dataset, Network]]
    trainings: tuple[tuple[Setting, NoisySgd], ...]
    lineage: Lineage
    ledger: Ledger
    beside: tuple[Entry, ...]

    @property
    def dataset(self) -> Dataset:
        """The public records."""
        return next(iter(self.fronts.values()))[0]


@dataclass(frozen=True)
class Trial:
    """Outcome of one setting: its parameters, the ``scores`` of its trainings by the metric, and their mean.

    ``accuracies`` and ``accuracy`` are the same where accuracy is the metric, and None elsewhere.
    """

    round: int | None
    density: float
    lr: float
    clip_norm: float
    epochs: float
    batch_size: float
    components: int | None
    steps: int
    noise_multiplier: float
    score: float
    scores: list[float]
    accuracy: float | None
    accuracies: list[float] | None


@dataclass(frozen=True)
class SearchResult:
    """All trials, best first, and the report: the search costs nothing."""

    plan: SearchPlan
    trials: tuple[Trial, ...]
    privacy: PrivacyReport

    @property
    def best(self) -> Trial:
        """The one with the best mean score."""
        return self.trials[0]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The best setting as options of ``train``, with the lineage that it was searched on."""
        options, best = self.plan.options, self.best
        searched = {name: getattr(best, name) for name in ("lr", "clip_norm", "epochs", "batch_size")}
        if best.components is not None:
            searched["components"] = best.components
        fixed = {
            name: getattr(options, name)
            for name in ("epsilon", "delta", "optimizer", "schedule", "average", "accountant")
        }
        if options.metric != "accuracy":
            fixed["metric"] = options.metric
        return {**searched, **fixed, "lineage": json.dumps(to_json(self.plan.lineage))}


@dataclass(frozen=True)
class _Rows:
    """Public records that trials train on, and those that they are scored on."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def plan(target: TicketSet | OwnModel | str, dataset: Dataset, options: TuneOptions, ledger: Ledger) -> SearchPlan:
    """Settle, and refuse, everything about a search before the first training."""
    check_required(options)
    check_choices(options)
    tickets = target if isinstance(target, TicketSet) else None
    tried = to_try(options, tickets)
    if tickets is not None:
        dataset = tickets.takes(dataset)
    counts = {setting.components for setting in tried}
    fronts = {count: front_of(target, dataset, count) for count in sorted(counts, key=lambda count: count or 0)}
    for records, network in fronts.values():
        check_metric(options.metric, records.rated, network.score)
        check_loss(network)
        check_score(network, "the score of a setting")
    trainings = tuple((setting, _private_training(options, setting)) for setting in tried)
    exposed = Entry("release", mechanisms=(Unprotected(),), words="settings with private tickets", unit=ledger.unit)
    drafts = (exposed,) if tickets is not None and tickets.provenance == "private" else ()
    check_unprotected(ledger.account(), drafts, allowed=False)
    public = ledger.public(dataset, "settings are searched on them")
    beside = (*declarations(dataset, ledger, tested=False), *public, *ledger.apart(dataset), *drafts)
    ledger.book.lacking(beside)
    lineage = lineage_of(dataset, dataset.feature_map, tickets)
    return SearchPlan(options, tickets, fronts, trainings, lineage, ledger, beside)


def tune(plan: SearchPlan, services: Services) -> SearchResult:
    """Try every setting of a plan."""
    options = plan.options
    for dataset, _ in plan.fronts.values():
        _check_rows(dataset, services)
    if options.metric == "auc":
        scored = plan.dataset.train if plan.dataset.test is None else plan.dataset.test
        scored.check(_check_classes)
    plan = replace(plan, lineage=plan.ledger.declare_once(*plan.beside) | plan.lineage)
    rows = {count: _public_rows(dataset, plan, services) for count, (dataset, _) in plan.fronts.items()}
    key = noise.fresh_key()  # of the training that comes next
    scores: list[float] = []
    repeats, total = options.repeats, len(plan.trainings) * options.repeats
    with services.progress.progress(f"tuning on {plan.dataset.name}", total) as step:
        for done in range(total):
            setting, mechanism = plan.trainings[done // repeats]
            part, seed = rows[setting.components], options.seed + done % repeats
            step(done, f"{_describe(setting)}, no epsilon is spent")
            scores.append(_try(plan, setting, mechanism, part, seed, key))
            key = hashlib.sha256(key).digest()
            step(done + 1)
    each = [scores[start : start + repeats] for start in range(0, total, repeats)]
    trials = [_trial(plan, *pair, found) for pair, found in zip(plan.trainings, each, strict=True)]
    trials.sort(key=lambda trial: trial.score if options.metric == "rmse" else -trial.score)
    return SearchResult(plan, tuple(trials), statement(Account(), options.delta, notes=_notes(plan)))


def _describe(setting: Setting) -> str:
    values = {name.replace("_", " "): value for name, value in vars(setting).items() if value is not None}
    return ", ".join(f"{name} {value:g}" for name, value in values.items())


def _private_training(options: TuneOptions, setting: Setting) -> NoisySgd:
    rate = setting.batch_size / (options.for_records or 1)
    steps = steps_of(setting.epochs, rate)
    if steps > MAX_STEPS:
        raise InputError(f"`epochs`: {setting.epochs:g} are {steps:,} steps, more than {MAX_STEPS:,}; ask for fewer")
    draft = NoisySgd(rate, steps, noise_multiplier=1.0)
    return calibrate_noise(options.epsilon or 0.0, options.delta, draft, (), options.accountant)


def _check_rows(dataset: Dataset, services: Services) -> None:
    """Refuse features that cannot be had, and too few records to hold some out, before anything is declared."""
    for split in (dataset.train, dataset.test):
        if split is not None:
            network_inputs(split, dataset, services)
    if dataset.test is None and len(dataset.train) < HELD_OUT:
        raise InputError(
            f"`dataset`: {dataset.name} has no test split and {len(dataset.train)} records, too few to hold some out; name a"
            " `test` file"
        )


def _check_classes(records: Arrays) -> None:
    if (records.y == records.y[:1]).all():
        raise InputError("`metric`: the records to score on are of one class, so there is no AUC; take accuracy")


def _public_rows(dataset: Dataset, plan: SearchPlan, services: Services) -> _Rows:
    ledger, seed = plan.ledger, plan.options.seed
    records = network_inputs(dataset.train, dataset, services)
    x, y = tensors(records.open(ledger.declared(dataset)), dataset)
    if dataset.test is not None:
        test = network_inputs(dataset.test, dataset, services)
        return _Rows((x, y), tensors(test.open(ledger.declared_test(dataset)), dataset))
    out = torch.zeros(len(y), dtype=torch.bool)
    out[torch.randperm(len(out), generator=torch.Generator().manual_seed(seed))[: len(y) // HELD_OUT]] = True
    return _Rows((x[~out], y[~out]), (x[out], y[out]))


def _try(plan: SearchPlan, setting: Setting, mechanism: NoisySgd, rows: _Rows, seed: int, key: bytes) -> float:
    """Return the score of one training on the public records, each step as noisy as the private one.

    The sum over a batch is divided by its expected size; where the public records are fewer than that, all of them take
    part and the noise shrinks along, so that the mean gradient is as noisy all the same.
    """
    options, count = plan.options, len(rows.train[1])
    batch = min(setting.batch_size, float(count))
    filter = make_filter("clip", clip_norm=setting.clip_norm)
    if plan.tickets is None or setting.round is None:
        start = fresh(plan.fronts[setting.components][1], seed)
    else:
        start = from_round(plan.tickets, setting.round)
    noise_std = mechanism.noise_multiplier * filter.certified_bound(start.mask.live) * batch / setting.batch_size
    settings = settings_of(options) | {"filter": filter, "lr": setting.lr, "steps": mechanism.steps}
    config = TrainingConfig(**settings, sampling_rate=batch / count, expected_batch=batch, noise_std=noise_std)
    sampling, noise = (FastSource.of(hashlib.sha256(key + name).digest()) for name in (b"sampling", b"noise"))
    loss = start.spec.loss or cross_entropy
    train(start.model, start.mask, Records(*rows.train), config, sampling=sampling, noise=noise, loss=loss)
    if options.metric == "accuracy":
        return accuracy(start.model, *rows.test, score=start.spec.score)
    if options.metric == "rmse":
        return root_mean_squared_error(start.model, *rows.test)
    found = skill(start.model, *rows.test, metric=options.metric)
    return 0.0 if found is None or found.estimate is None else found.estimate.value  # it diverged


def _trial(plan: SearchPlan, setting: Setting, mechanism: NoisySgd, scores: list[float]) -> Trial:
    tickets, density = plan.tickets, 1.0
    if tickets is not None and setting.round is not None:
        density = tickets.ticket(setting.round).mask.density
    steps, noise, mean = mechanism.steps, mechanism.noise_multiplier, sum(scores) / len(scores)
    right = plan.options.metric == "accuracy"
    return Trial(
        **vars(setting),
        density=density,
        steps=steps,
        noise_multiplier=noise,
        score=mean,
        scores=scores,
        accuracy=mean if right else None,
        accuracies=scores if right else None,
    )


def _notes(plan: SearchPlan) -> list[str]:
    notes = [
        f"searched on {plan.dataset.name}, declared public: no private record was read, so the search costs nothing; its"
        " scores say which setting is best, not how good it will be elsewhere"
    ]
    made_from = set() if plan.tickets is None else {entry.part.name for entry in plan.tickets.lineage.entries}
    if plan.dataset.name in made_from:
        notes.append(f"the tickets were made from {plan.dataset.name} as well, which flatters them here")
    return [*notes, *feature_notes(plan.dataset, plan.options.delta), *bounds_notes(plan.dataset)]
