"""The search for settings: a grid, or random draws of it, tried on public records under budget and noise of the private run.

No private record is read, so the search costs nothing; the records that it reads are declared public by it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dpltm.errors import InputError
from dpltm.features.inputs import Services, network_inputs, tensors
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
from dpltm.options import parse_numbers
from dpltm.options.network import check_set_decides
from dpltm.options.tune import TuneOptions, TuneRequest
from dpltm.privacy.account import Account, check_unprotected
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.checks import MAX_STEPS, default_batch, steps_of
from dpltm.privacy.entry import Entry, Lineage, lineage_of, to_json
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import NoisySgd, Unprotected
from dpltm.privacy.statement import PrivacyReport, statement
from dpltm.randomness import noise
from dpltm.randomness.noise import FastSource
from dpltm.records import Arrays, Dataset, Split
from dpltm.records.batches import Records
from dpltm.records.notes import bounds_notes, feature_notes
from dpltm.training.artifacts import TicketSet
from dpltm.training.config import TrainingConfig, settings_of
from dpltm.training.descent import cross_entropy, train
from dpltm.training.start import fresh, from_round

MAX_TRIALS = 10_000
"""Most combinations of a grid."""

HELD_OUT = 5
"""Fraction (a fifth) of public records, drawn by ``seed``, that is held out to score on without a test split."""

SEARCHED = ("lr", "clip_norm", "epochs", "batch_size")
"""Options of a training that a search decides, and lists of a search."""

Labelled = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Setting:
    """One combination. ``round`` is None without a ticket set."""

    round: int | None
    lr: float
    clip_norm: float
    epochs: float
    batch_size: float


@dataclass(frozen=True)
class Trial(Setting):
    """Outcome of a setting: the ``scores`` of its trainings by the metric, and their mean.

    ``accuracies`` and ``accuracy`` are the same where accuracy is the metric, and None elsewhere.
    """

    density: float
    steps: int
    noise_multiplier: float
    score: float
    scores: list[float]
    accuracy: float | None
    accuracies: list[float] | None


@dataclass(frozen=True)
class SearchPlan:
    """A search, settled before the first training: the public records, the network, and each setting with its noise."""

    options: TuneOptions
    tickets: TicketSet | None
    dataset: Dataset
    network: Network
    trainings: tuple[tuple[Setting, NoisySgd], ...]
    lineage: Lineage
    ledger: Ledger
    beside: tuple[Entry, ...]


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
        options = self.plan.options
        fixed = {
            name: getattr(options, name)
            for name in ("epsilon", "delta", "optimizer", "schedule", "average", "accountant")
        }
        metric = {} if options.metric == "accuracy" else {"metric": options.metric}
        searched = {name: getattr(self.best, name) for name in SEARCHED}
        return {**searched, **fixed, **metric, "lineage": json.dumps(to_json(self.plan.lineage))}


def check_request(request: TuneRequest) -> None:
    """Raise InputError for options that are out of range or contradict each other, whatever the tickets."""
    if request.set is not None:
        check_set_decides(request, request.model)
    settings(request, named_rounds(request, of_set=request.set is not None))


def settings(options: TuneOptions, rounds: Iterable[int | None]) -> list[Setting]:
    """Every combination, or so many draws of them; everything about the options that can be refused is."""
    records = options.for_records or 1
    if not options.delta < 1 / records:
        raise InputError(f"`delta`: {options.delta:g} is not below 1/n for {records} records; take a smaller one")
    lists: list[list[float]] = []
    for name in SEARCHED:
        text = getattr(options, name)
        lists.append([default_batch(records)] if text is None else [*parse_numbers(name, text)])
        for value in lists[-1]:
            if not 0 < value < math.inf:
                raise InputError(f"`{name}`: {value:g} is not a positive number")
    for value in lists[1]:
        make_filter("clip", clip_norm=value)
    if (largest := max(lists[3])) > records:
        raise InputError(f"`batch_size`: {largest:g} is more than the {records} private records")
    rounds = [*rounds]
    if len(rounds) * math.prod(map(len, lists)) > MAX_TRIALS:
        names = ", ".join(f"`{name}`" for name in SEARCHED)
        raise InputError(f"{names}: more than {MAX_TRIALS:,} combinations; name fewer")
    grid = [Setting(number, *values) for number in rounds for values in itertools.product(*lists)]
    if options.trials is None:
        return grid
    return random.Random(options.seed).sample(grid, min(options.trials, len(grid)))


def named_rounds(options: TuneOptions, *, of_set: bool) -> list[int] | list[None]:
    """Return the rounds that were asked for; None alone where that is for the set to say, or there is none."""
    if options.rounds is None:
        return [None]
    if not of_set:
        raise InputError("`rounds`: only for a ticket set; leave it out")
    numbers = options.rounds.split(",")
    if not all(number.isdecimal() and len(number) < 5 for number in numbers):
        raise InputError(f"`rounds`: {options.rounds!r} is not a list of rounds, such as 0,3,6")
    return [int(number) for number in numbers]


def plan(target: TicketSet | OwnModel | str, dataset: Dataset, options: TuneOptions, ledger: Ledger) -> SearchPlan:
    """Settle, and refuse, everything about a search before the first training."""
    tickets = target if isinstance(target, TicketSet) else None
    rounds: list[Any] = named_rounds(options, of_set=tickets is not None)
    if tickets is not None:
        made = [ticket.round for ticket in tickets.body.tickets if ticket.round] or [0]
        rounds = made if options.rounds is None else [tickets.ticket(number).round for number in rounds]
    tried = settings(options, rounds)
    dataset = dataset if tickets is None else tickets.takes(dataset)
    network = target.body.spec if isinstance(target, TicketSet) else model_spec(target, dataset)
    check_metric(options.metric, dataset.rated, network.score)
    check_loss(network)
    check_score(network, "the score of a setting")
    trainings = tuple((setting, _private_training(options, setting)) for setting in tried)
    exposed = Entry("release", mechanisms=(Unprotected(),), words="settings with private tickets", unit=ledger.unit)
    drafts = (exposed,) if tickets is not None and tickets.provenance == "private" else ()
    check_unprotected(ledger.account(), drafts, allowed=False)
    public = ledger.public(dataset, "settings are searched on them")
    beside = (*public, *ledger.apart(dataset), *drafts)
    ledger.book.lacking(beside)
    lineage = lineage_of(dataset, dataset.feature_map, tickets)
    return SearchPlan(options, tickets, dataset, network, trainings, lineage, ledger, beside)


def _private_training(options: TuneOptions, setting: Setting) -> NoisySgd:
    rate = setting.batch_size / (options.for_records or 1)
    steps = steps_of(setting.epochs, rate)
    if steps > MAX_STEPS:
        raise InputError(f"`epochs`: {setting.epochs:g} are {steps:,} steps, more than {MAX_STEPS:,}; ask for fewer")
    draft = NoisySgd(rate, steps, noise_multiplier=1.0)
    return calibrate_noise(options.epsilon or 0.0, options.delta, draft, (), options.accountant)


def tune(plan: SearchPlan, services: Services) -> SearchResult:
    """Try every setting of a plan; in Python, within ``joblib.parallel_config("threading", n_jobs=N)``, N at a time."""
    from joblib import Parallel, delayed

    options = plan.options
    inputs = _inputs(plan, services)
    plan = replace(plan, lineage=plan.ledger.declare_once(*plan.beside) | plan.lineage)
    rows = _rows(plan, *inputs)
    trainings = [(*training, repeat) for training in plan.trainings for repeat in range(options.repeats)]
    keys = itertools.accumulate(trainings[1:], lambda key, _: hashlib.sha256(key).digest(), initial=noise.fresh_key())
    tries = (delayed(_try)(plan, *training, *rows, key) for training, key in zip(trainings, keys, strict=True))
    scores: list[float] = []
    with services.progress.progress(f"tuning on {plan.dataset.name}", len(trainings)) as step:
        # in this process: networks of one's own need not travel to another
        for score in Parallel(require="sharedmem", return_as="generator")(tries):
            scores.append(score)
            step(len(scores), f"{_describe(trainings[len(scores) - 1][0])}, no epsilon is spent")
    repeated = (scores[start : start + options.repeats] for start in range(0, len(scores), options.repeats))
    trials = [_trial(plan, *pair, of_setting) for pair, of_setting in zip(plan.trainings, repeated, strict=True)]
    trials.sort(key=lambda trial: trial.score if options.metric == "rmse" else -trial.score)
    return SearchResult(plan, tuple(trials), statement(Account(), options.delta, notes=_notes(plan)))


def _describe(setting: Setting) -> str:
    values = {name.replace("_", " "): value for name, value in vars(setting).items() if value is not None}
    return ", ".join(f"{name} {value:g}" for name, value in values.items())


def _inputs(plan: SearchPlan, services: Services) -> tuple[Split, Split | None]:
    """Return the records, behind features, to train and to score on; refuse what cannot be, before anything is declared."""
    dataset = plan.dataset
    inputs = network_inputs(dataset.train, dataset, services)
    if dataset.test is None and len(dataset.train) < HELD_OUT:
        raise InputError(
            f"`dataset`: {dataset.name} has no test split and {len(dataset.train)} records, too few to hold some out; name a"
            " `test` file"
        )
    if plan.options.metric == "auc":
        (dataset.test or dataset.train).check(_check_classes)
    return inputs, None if dataset.test is None else network_inputs(dataset.test, dataset, services)


def _check_classes(records: Arrays) -> None:
    if (records.y == records.y[:1]).all():
        raise InputError("`metric`: the records to score on are of one class, so there is no AUC; take accuracy")


def _rows(plan: SearchPlan, inputs: Split, test: Split | None) -> tuple[Labelled, Labelled]:
    """Return the public records that trials train on, and those that they are scored on."""
    dataset, ledger = plan.dataset, plan.ledger
    x, y = tensors(inputs.open(ledger.declared(dataset)), dataset)
    if test is not None:
        return (x, y), tensors(test.open(ledger.declared_test(dataset)), dataset)
    out = torch.zeros(len(y), dtype=torch.bool)
    drawn = torch.randperm(len(y), generator=torch.Generator().manual_seed(plan.options.seed))
    out[drawn[: len(y) // HELD_OUT]] = True
    return (x[~out], y[~out]), (x[out], y[out])


def _try(
    plan: SearchPlan, setting: Setting, mechanism: NoisySgd, repeat: int, rows: Labelled, test: Labelled, key: bytes
) -> float:
    """Return the score of one training on the public records, each step as noisy as the private one.

    The sum over a batch is divided by its expected size; where the public records are fewer than that, all of them take
    part and the noise shrinks along, so that the mean gradient is as noisy all the same.
    """
    options, count = plan.options, len(rows[1])
    batch = min(setting.batch_size, float(count))
    filter = make_filter("clip", clip_norm=setting.clip_norm)
    if plan.tickets is None or setting.round is None:
        start = fresh(plan.network, options.seed + repeat)
    else:
        start = from_round(plan.tickets, setting.round)
    noise_std = mechanism.noise_multiplier * filter.certified_bound(start.mask.live) * batch / setting.batch_size
    named = settings_of(options) | {"filter": filter, "lr": setting.lr, "steps": mechanism.steps}
    config = TrainingConfig(**named, sampling_rate=batch / count, expected_batch=batch, noise_std=noise_std)
    sampling, noise = (FastSource.of(hashlib.sha256(key + name).digest()) for name in (b"sampling", b"noise"))
    loss = start.spec.loss or cross_entropy
    train(start.model, start.mask, Records(*rows), config, sampling=sampling, noise=noise, loss=loss)
    if options.metric == "accuracy":
        return accuracy(start.model, *test, score=start.spec.score)
    if options.metric == "rmse":
        return root_mean_squared_error(start.model, *test)
    judged = skill(start.model, *test, metric=options.metric)
    return 0.0 if judged is None or judged.estimate is None else judged.estimate.value  # it diverged


def _trial(plan: SearchPlan, setting: Setting, mechanism: NoisySgd, scores: list[float]) -> Trial:
    tickets, density = plan.tickets, 1.0
    if tickets is not None and setting.round is not None:
        density = tickets.ticket(setting.round).mask.density
    mean, right = sum(scores) / len(scores), plan.options.metric == "accuracy"
    return Trial(
        **vars(setting),
        density=density,
        steps=mechanism.steps,
        noise_multiplier=mechanism.noise_multiplier,
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
    return [*notes, *feature_notes(plan.dataset), *bounds_notes(plan.dataset)]
