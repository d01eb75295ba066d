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
from dpltm.features.feature_map import SplineMap
from dpltm.features.inputs import Services, network_inputs, tensors
from dpltm.filters import make_filter
from dpltm.networks import model_spec
from dpltm.networks.evaluation import accuracy, check_loss, check_no_target, check_score, skill
from dpltm.networks.own import OwnModel
from dpltm.options import STEP_SIZE, Range, parse_numbers
from dpltm.options.network import check_set_decides
from dpltm.options.train import TrainOptions
from dpltm.options.tune import TuneOptions, TuneRequest
from dpltm.privacy.account import Account, check_unprotected
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.checks import MAX_STEPS, default_batch, steps_of
from dpltm.privacy.entry import Entry, Lineage, lineage_of, to_json
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import NoisySgd, Unprotected
from dpltm.privacy.statement import PrivacyReport, statement
from dpltm.pruning.generation import Ticket
from dpltm.randomness import noise
from dpltm.randomness.noise import FastSource
from dpltm.records.batches import Records
from dpltm.records.dataset import Dataset
from dpltm.records.notes import bounds_notes, feature_notes
from dpltm.records.split import Arrays
from dpltm.training.artifacts import StartingPoint, TicketSet, default_network, fresh, from_round, in_front
from dpltm.training.descent import cross_entropy, train
from dpltm.training.plan import NoisySteps, check_metric

MAX_TRIALS = 10_000  # most combinations of a grid
HELD_OUT = 5  # fraction (a fifth) of public records, drawn by ``seed``, that is scored on where there is no test split

SEARCHED = ("lr", "clip_norm", "epochs", "batch_size")
"""Options of a training that a search decides, and lists of a search."""

Labelled = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Trial:
    """One combination of settings, with what the private training would be, and how it did."""

    round: int | None  # None without a ticket set
    lr: float
    clip_norm: float
    epochs: float
    batch_size: float
    density: float
    steps: int
    noise_multiplier: float
    score: float = math.nan  # by the metric: the mean of those of its trainings
    scores: tuple[float, ...] = ()
    accuracy: float | None = None  # the same where accuracy is the metric
    accuracies: tuple[float, ...] | None = None

    def __str__(self) -> str:
        values = {name.replace("_", " "): getattr(self, name) for name in ("round", *SEARCHED)}
        return ", ".join(f"{name} {value:g}" for name, value in values.items() if value is not None)


@dataclass(frozen=True)
class SearchResult:
    """All trials, best first; the lineage of what they were searched on; and the report."""

    options: TuneOptions
    trials: tuple[Trial, ...]
    lineage: Lineage
    privacy: PrivacyReport

    @property
    def best(self) -> Trial:
        """The one with the best mean score."""
        return self.trials[0]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The best setting as options of ``train``, with the lineage that it was searched on."""
        names = ("epsilon", "delta", "optimizer", "schedule", "average", "accountant")
        searched = {name: getattr(self.best, name) for name in SEARCHED}
        fixed = {name: getattr(self.options, name) for name in names}
        metric = {} if self.options.judged_by == "accuracy" else {"metric": self.options.judged_by}
        return {**searched, **fixed, **metric, "lineage": json.dumps(to_json(self.lineage))}


def tune(
    target: TicketSet | OwnModel | str | None,
    dataset: Dataset,
    options: TuneOptions,
    ledger: Ledger,
    services: Services,
) -> SearchResult:
    """Try every setting; in Python, within ``joblib.parallel_config("threading", n_jobs=N)``, N at a time.

    Whatever can be refused is refused before the records are declared public.

    Args:
        target: whose settings are searched; None for the usual network.
    """
    from joblib import Parallel, delayed

    check_no_target(dataset, "tune")
    dataset, tickets = in_front(target, dataset, options.features), target if isinstance(target, TicketSet) else None
    settled = _settled(options, tickets)
    if isinstance(target, TicketSet):
        dataset, network = target.takes(dataset), target.body.spec
    else:
        network = model_spec(target or default_network(dataset), dataset)
    check_metric(options.judged_by, network.score)
    check_loss(network)
    check_score(network, "the score of a setting")
    lineage, rows, test = _rows(dataset, options, tickets, ledger, services)

    def attempt(trial: Trial, repeat: int, key: bytes) -> float:
        if tickets is None or trial.round is None:
            start = fresh(network, options.seed + repeat)
        else:
            start = from_round(tickets, trial.round)
        return _score(start, trial, options, rows, test, key)

    trainings = [(trial, repeat) for trial in settled for repeat in range(options.repeats)]
    keys = itertools.accumulate(trainings[1:], lambda key, _: hashlib.sha256(key).digest(), initial=noise.fresh_key())
    tries = (delayed(attempt)(*training, key) for training, key in zip(trainings, keys, strict=True))
    scores: dict[Trial, list[float]] = {trial: [] for trial in settled}
    with services.progress.progress(f"tuning on {dataset.name}", len(trainings)) as step:
        # in this process: networks of one's own need not travel to another
        parallel = Parallel(require="sharedmem", return_as="generator")
        for done, ((trial, _), score) in enumerate(zip(trainings, parallel(tries), strict=True), 1):
            scores[trial].append(score)
            step(done, f"{trial}, no epsilon is spent")
    trials = [replace(trial, score=sum(some) / len(some), scores=tuple(some)) for trial, some in scores.items()]
    if options.judged_by == "accuracy":
        trials = [replace(trial, accuracy=trial.score, accuracies=trial.scores) for trial in trials]
    trials.sort(key=lambda trial: -trial.score)
    notes = [
        f"searched on {dataset.name}, declared public: no private record was read, so the search costs nothing; its"
        " scores say which setting is best, not how good it will be elsewhere"
    ]
    if tickets is not None and dataset.name in {entry.part.name for entry in tickets.lineage.entries}:
        notes.append(f"the tickets were made from {dataset.name} as well, which flatters them here")
    if tickets is None and isinstance(dataset.feature_map, SplineMap):
        notes.append(
            "dpltm train fits this table with nothing to tune, and with settings by DP-SGD: compare AUC and chances of both"
        )
    notes += [*feature_notes(dataset), *bounds_notes(dataset)]
    return SearchResult(options, tuple(trials), lineage, statement(Account(), options.delta, notes=notes))


def check_request(request: TuneRequest) -> None:
    """Raise InputError for options that are refused whatever the tickets."""
    if request.set is not None:
        check_set_decides(request, request.model)
    _grid(request, [None])


def _settled(options: TuneOptions, tickets: TicketSet | None) -> list[Trial]:
    """Return the combinations to try, with the noise that the private training will have."""
    by_round: dict[int | None, Ticket | None] = {None: None}
    if tickets is not None:
        dense, *pruned = tickets.body.tickets
        by_round = {ticket.round: ticket for ticket in pruned or [dense]}
    if options.rounds is not None:
        numbers = options.rounds.split(",")
        if tickets is None or not all(map(str.isdecimal, numbers)):
            raise InputError(
                f"`rounds`: {options.rounds!r}: give rounds of SET, such as 0,3,6; without SET leave it out"
            )
        by_round = {int(number): tickets.ticket(int(number)) for number in numbers}
    trials = []
    for number, lr, clip_norm, epochs, batch_size in _grid(options, by_round):
        rate = batch_size / (options.for_records or 1)
        steps = steps_of(epochs, rate)
        if steps > MAX_STEPS:
            raise InputError(f"`epochs`: {epochs:g} are {steps:,} steps, more than {MAX_STEPS:,}; ask for fewer")
        draft = NoisySgd(rate, steps, noise_multiplier=1.0)
        noisy = calibrate_noise(options.epsilon or 0.0, options.delta, draft, accountant=options.accountant)
        ticket = by_round[number]
        density = 1.0 if ticket is None else ticket.mask.density
        trials.append(Trial(number, lr, clip_norm, epochs, batch_size, density, steps, noisy.noise_multiplier))
    return trials


def _grid(options: TuneOptions, rounds: Iterable[int | None]) -> list[tuple[Any, ...]]:
    """Return rounds with values of ``SEARCHED``: all, or so many draws."""
    records = options.for_records or 1
    if not options.delta < 1 / records:
        raise InputError(f"`delta`: {options.delta:g} is not below 1/n for {records} records; take a smaller one")
    lists: list[list[Any]] = [[*rounds]]
    for name in SEARCHED:
        text = getattr(options, name)
        lists.append([default_batch(records)] if text is None else [*parse_numbers(name, text)])
        within = Range(high=records if name == "batch_size" else STEP_SIZE.high, above=True)
        for value in lists[-1]:
            if value not in within:
                raise InputError(name, value, within.describe("a number"))
    if math.prod(map(len, lists)) > MAX_TRIALS:
        names = ", ".join(f"`{name}`" for name in SEARCHED)
        raise InputError(f"{names}: more than {MAX_TRIALS:,} combinations; name fewer")
    grid = list(itertools.product(*lists))
    return grid if options.trials is None else random.Random(options.seed).sample(grid, min(options.trials, len(grid)))


def _rows(
    dataset: Dataset, options: TuneOptions, tickets: TicketSet | None, ledger: Ledger, services: Services
) -> tuple[Lineage, Labelled, Labelled]:
    """Declare the records public; return the lineage of the search, and the rows to train on and to score on."""
    splits = [split for split in (dataset.train, dataset.test) if split is not None]
    if len(splits) == 1 and len(dataset.train) < HELD_OUT:
        raise InputError(
            f"`dataset`: {dataset.name} has no test split and {len(dataset.train)} records, too few to hold some out; name a"
            " `test` file"
        )
    exposed = Entry("release", mechanisms=(Unprotected(),), words="settings with private tickets", unit=ledger.unit)
    drafts = (exposed,) if tickets is not None and tickets.provenance == "private" else ()
    check_unprotected(ledger.account(), drafts, allowed=False)
    beside = (*ledger.public(dataset, "settings are searched on them"), *ledger.apart(dataset), *drafts)
    ledger.book.lacking(beside)
    if options.judged_by == "auc":
        splits[-1].check(_check_classes)
    inputs = [network_inputs(split, dataset, services) for split in splits]
    lineage = ledger.declare_once(*beside) | lineage_of(dataset, dataset.feature_map, tickets)
    x, y = tensors(inputs[0].open(ledger.declared(dataset)), dataset)
    if len(inputs) == 2:
        return lineage, (x, y), tensors(inputs[1].open(ledger.declared_test(dataset)), dataset)
    out = torch.zeros(len(y), dtype=torch.bool)
    drawn = torch.randperm(len(y), generator=torch.Generator().manual_seed(options.seed))
    out[drawn[: len(y) // HELD_OUT]] = True
    return lineage, (x[~out], y[~out]), (x[out], y[out])


def _check_classes(records: Arrays) -> None:
    if (records.y == records.y[:1]).all():
        raise InputError("`metric`: the records to score on are of one class, so there is no AUC; take accuracy")


def _score(
    start: StartingPoint, trial: Trial, options: TuneOptions, rows: Labelled, test: Labelled, key: bytes
) -> float:
    """Return the score of one training on the public records, each step as noisy as the private one."""
    # of fewer records than a batch all take part and the noise shrinks along: the mean gradient is as noisy all the same
    count = len(rows[1])
    batch = min(trial.batch_size, float(count))
    filter = make_filter("clip", clip_norm=trial.clip_norm)
    noise_std = trial.noise_multiplier * filter.certified_bound(start.mask.live) * batch / trial.batch_size
    moves = TrainOptions(optimizer=options.optimizer, schedule=options.schedule, average=options.average)
    steps = NoisySteps(filter, NoisySgd(batch / count, trial.steps, noise_std), batch, trial.lr, options=moves)
    sampling, noise = (FastSource.of(hashlib.sha256(key + name).digest()) for name in (b"sampling", b"noise"))
    loss = start.spec.loss or cross_entropy
    train(start.model, start.mask, Records(*rows), steps, sampling=sampling, noise=noise, loss=loss)
    if options.judged_by == "accuracy":
        return accuracy(start.model, *test, score=start.spec.score)
    judged = skill(start.model, *test, metric=options.judged_by)
    return 0.0 if judged is None or judged.estimate is None else judged.estimate.value  # it diverged
