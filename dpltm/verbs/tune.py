"""The search for settings: every one is tried on public records, under the budget and the noise of the private run.

No private record is read, so the search costs nothing; the records that it reads are declared public by it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
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
    check_priced,
    check_score,
    root_mean_squared_error,
    skill,
)
from dpltm.networks.own import OwnModel
from dpltm.options import check_choices, check_required, parse_numbers
from dpltm.options.network import check_set_decides
from dpltm.options.tune import PrivateTuneOptions, TuneOptions, TuneRequest
from dpltm.privacy.account import Account, check_unprotected
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.checkpoint import NOT_KEPT, Checkpoint, Checkpoints, check_same
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

MIN_TRIES, MAX_TRIES = 1.1, 1000
"""Tries of a private search, in the mean."""

PAID = ("tries", "dry_run", "unit", "per_unit", "class_shares")
"""Options of a private search alone."""


@dataclass(frozen=True)
class Setting:
    """One combination. ``round`` is None without a ticket set."""

    round: int | None
    lr: float
    clip_norm: float
    epochs: float
    batch_size: float


def check_request(request: TuneRequest) -> None:
    """Raise InputError for options that are out of range or contradict each other, whatever the tickets."""
    if request.set is not None:
        check_set_decides(request, request.model)
    named_rounds(request, of_set=request.set is not None)
    if request.private:
        if request.out is not None and request.out.endswith(".toml"):
            raise InputError(
                f"`out`: {request.out}: with `private`, it is the folder of a run; name it such as NAME.run"
            )
        check_private_search(request)
    elif given := [name for name in PAID if getattr(request, name) != getattr(TuneRequest, name)]:
        named, them = ", ".join(f"`{name}`" for name in given), "it" if len(given) == 1 else "them"
        raise InputError(f"{named}: of a search on private records; add `private`, or leave {them} out")
    else:
        check_for_records(request)
        settings(request)


def check_for_records(options: TuneOptions) -> None:
    """Raise InputError where a public search is not told how many private records its settings are for."""
    if options.for_records is None:
        raise InputError("`for_records` is missing: the public number of private records that the settings are for")


def check_private_search(options: PrivateTuneOptions) -> None:
    """Raise InputError for what a search on the private records has no use for, or cannot do."""
    if options.for_records is not None:
        raise InputError("`for_records`: with `private`, the records of `dataset` are the private ones; leave it out")
    check_priced(options.metric)
    if options.repeats != 1:
        raise InputError("`repeats`: with `private`, a try is one training; leave it out")
    if not MIN_TRIES <= options.tries <= MAX_TRIES:
        raise InputError(f"`tries`: {options.tries:g} in the mean is not between {MIN_TRIES:g} and {MAX_TRIES:,}")
    settings(options)


def settings(options: TuneOptions) -> list[Setting]:
    """Every combination, of no round yet; everything about the options that can be refused is."""
    check_epsilon("epsilon", options.epsilon)
    check_delta_alone(options.delta)
    if options.for_records is not None and options.for_records < 1:
        raise InputError(f"`for_records`: {options.for_records} is not a positive whole number")
    check_count("repeats", options.repeats)
    check_count("trials", options.trials)
    if not options.delta < 1 / (options.for_records or 1):
        raise InputError(
            f"`delta`: {options.delta:g} is not below 1/n for {options.for_records} records; take a smaller one"
        )
    if not 0 <= options.seed < 2**62:
        raise InputError(f"`seed`: {options.seed} is not between 0 and 2^62 - 1")
    lists = {}
    for name in ("lr", "clip_norm", "epochs", "batch_size"):
        given = getattr(options, name)
        lists[name] = [default_batch(options.for_records or 1)] if given is None else parse_numbers(name, given)
        for value in lists[name]:
            if not 0 < value < math.inf:
                raise InputError(f"`{name}`: {value:g} is not a positive number")
    for value in lists["clip_norm"]:
        make_filter("clip", clip_norm=value)
    if math.prod(map(len, lists.values())) > MAX_TRIALS:
        raise InputError(
            f"`lr`, `clip_norm`, `epochs`, `batch_size`: more than {MAX_TRIALS:,} combinations; name fewer"
        )
    largest = max(lists["batch_size"])
    if options.for_records is not None and largest > options.for_records:
        raise InputError(f"`batch_size`: {largest:g} is more than the {options.for_records} private records")
    return [Setting(None, lr, norm, epochs, size) for lr, norm, epochs, size in itertools.product(*lists.values())]


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
        dataset: the public records, behind what stands in front of the network.
    """

    options: TuneOptions
    tickets: TicketSet | None
    dataset: Dataset
    network: Network
    trainings: tuple[tuple[Setting, NoisySgd], ...]
    lineage: Lineage
    ledger: Ledger
    beside: tuple[Entry, ...]


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
    check_for_records(options)
    tried = to_try(options, tickets)
    if tickets is not None:
        dataset = tickets.takes(dataset)
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


def tune(plan: SearchPlan, services: Services, checkpoints: Checkpoints = NOT_KEPT) -> SearchResult:
    """Try every setting of a plan; trainings that a checkpoint says have ended are not repeated."""
    options, held = plan.options, checkpoints.held
    _check_rows(plan.dataset, services)
    if options.metric == "auc":
        scored = plan.dataset.train if plan.dataset.test is None else plan.dataset.test
        scored.check(_check_classes)
    facts = {
        "records": plan.dataset.train.digest(plan.ledger.book.key),
        "set": plan.tickets and plan.tickets.id,
    }
    if held is not None:
        check_same(held.state["of"], facts)
    plan = replace(plan, lineage=plan.ledger.declare_once(*plan.beside) | plan.lineage)
    rows = _public_rows(plan, services)
    key = noise.fresh_key() if held is None else bytes.fromhex(held.state["key"])  # of the training that comes next
    scores: list[float] = [] if held is None else list(held.state["scores"])
    repeats, total = options.repeats, len(plan.trainings) * options.repeats
    with services.progress.progress(f"tuning on {plan.dataset.name}", total) as step:
        for done in range(len(scores), total):
            state = {"of": facts, "key": key.hex(), "scores": tuple(scores)}
            offer = partial(checkpoints.offer, partial(Checkpoint, f"training {done + 1} of {total}", state))
            setting, mechanism = plan.trainings[done // repeats]
            seed = options.seed + done % repeats
            step(done, f"{_describe(setting)}, no epsilon is spent")
            scores.append(_try(plan, setting, mechanism, rows, seed, key, offer))
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


def _public_rows(plan: SearchPlan, services: Services) -> _Rows:
    dataset, ledger, seed = plan.dataset, plan.ledger, plan.options.seed
    records = network_inputs(dataset.train, dataset, services)
    x, y = tensors(records.open(ledger.declared(dataset)), dataset)
    if dataset.test is not None:
        test = network_inputs(dataset.test, dataset, services)
        return _Rows((x, y), tensors(test.open(ledger.declared_test(dataset)), dataset))
    out = torch.zeros(len(y), dtype=torch.bool)
    out[torch.randperm(len(out), generator=torch.Generator().manual_seed(seed))[: len(y) // HELD_OUT]] = True
    return _Rows((x[~out], y[~out]), (x[out], y[out]))


def _try(
    plan: SearchPlan,
    setting: Setting,
    mechanism: NoisySgd,
    rows: _Rows,
    seed: int,
    key: bytes,
    offer: Callable[[], bool],
) -> float:
    """Return the score of one training on the public records, each step as noisy as the private one.

    The sum over a batch is divided by its expected size; where the public records are fewer than that, all of them take
    part and the noise shrinks along, so that the mean gradient is as noisy all the same.
    """
    options, count = plan.options, len(rows.train[1])
    batch = min(setting.batch_size, float(count))
    filter = make_filter("clip", clip_norm=setting.clip_norm)
    if plan.tickets is None or setting.round is None:
        start = fresh(plan.network, seed)
    else:
        start = from_round(plan.tickets, setting.round)
    noise_std = mechanism.noise_multiplier * filter.certified_bound(start.mask.live) * batch / setting.batch_size
    settings = settings_of(options) | {"filter": filter, "lr": setting.lr, "steps": mechanism.steps}
    config = TrainingConfig(**settings, sampling_rate=batch / count, expected_batch=batch, noise_std=noise_std)
    sampling, noise = (FastSource.of(hashlib.sha256(key + name).digest()) for name in (b"sampling", b"noise"))
    loss = start.spec.loss or cross_entropy
    source, told = Records(*rows.train), lambda _: offer() and None  # kept or not, the training goes on
    train(start.model, start.mask, source, config, sampling=sampling, noise=noise, loss=loss, progress=told)
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
