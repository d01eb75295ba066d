"""A private search: tries at settings drawn at random, of which the best alone is released, with its setting and score.

Every try draws one of the settings, trains on the private records, and is scored by a noisy count of its right answers on
them (docs/privacy-model.md section 5.7). How many tries there are is drawn first, and stays secret: what the search costs
rests on that. It is in no artifact, and in no figure that a caller gets; the checkpoint of an interrupted search has it,
beside the keys (``training.checkpoint``). How long a try takes is public, so whoever learns how long a search took learns of
their number: the statement says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast

import numpy as np
import torch

from dpltm.errors import ArtifactError, InputError
from dpltm.features.inputs import Services, inputs, network_inputs
from dpltm.networks.evaluation import PricedScore, accuracy, check_score, count_correct
from dpltm.networks.own import OwnModel
from dpltm.networks.own_network import as_trained, check_scored_rows, source_facts
from dpltm.options import check_choices, check_required, recorded
from dpltm.options.train import TrainOptions
from dpltm.options.tune import PrivateTuneOptions
from dpltm.privacy.account import Account, Planned
from dpltm.privacy.calibration import calibrate_noise, calibrate_search, check_share
from dpltm.privacy.checkpoint import NOT_KEPT, Checkpoint, Checkpoints, Kept, reading, standing
from dpltm.privacy.describe import figure
from dpltm.privacy.entry import Entry, Lineage, lineage_of
from dpltm.privacy.ledger import Book, Ledger, facts_digest
from dpltm.privacy.mechanisms import NoisySgd, PrivateSearch
from dpltm.privacy.private_search import SCORE_NOISE, gamma_for, tries
from dpltm.privacy.release import Secret, pay
from dpltm.privacy.statement import PrivacyReport, json_figure, statement
from dpltm.randomness.gaussian_mechanism import gaussian_mechanism
from dpltm.randomness.noise import KEY, KeyedSource, RandomSource, source_of, uniform
from dpltm.records import Dataset
from dpltm.records.notes import shares_notes, test_notes
from dpltm.training.artifacts import Run, TicketSet, Winner
from dpltm.training.config import private_score
from dpltm.training.descent import Descent
from dpltm.training.release import Sources, Training, prepare
from dpltm.training.start import StartingPoint, starting_point
from dpltm.verbs.train import config_of, protected_units
from dpltm.verbs.train import settle as settle_training
from dpltm.verbs.tune import Setting, check_private_search, to_try

MOST = 200
"""Settings that a private search draws from, at most. More would be drawn from once in a while, and take long to price."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """A private search, settled: a release of ``dpltm.privacy.release``.

    Attributes:
        trainings: one a setting. Nothing pays for them alone: ``entry`` stands for all of them.
        entry: what pays for the search; a draft, or, of work that goes on, as it is on record.
        score: what tries are scored by; None for right answers, or the network's own score.
    """

    options: PrivateTuneOptions
    settings: tuple[Setting, ...]
    trainings: tuple[Training, ...]
    entry: Entry
    lineage: Lineage
    account: Account
    facts: Mapping[str, Any]
    beside: tuple[Entry, ...]
    services: Services
    score: PricedScore | None = None
    checkpoints: Checkpoints = NOT_KEPT

    @property
    def mechanism(self) -> PrivateSearch:
        """Its tries."""
        return cast(PrivateSearch, self.entry.of(PrivateSearch)[0])

    @property
    def dataset(self) -> Dataset:
        """Records to search on, with the feature map of the first setting."""
        return self.trainings[0].dataset

    def check(self) -> None:
        """Refuse nothing more: all that can be refused was, as it was planned and rehearsed."""

    def rehearse(self) -> None:
        """Refuse a network or records that cannot be trained, or features that cannot be had."""
        for training in {id(each.start): each for each in self.trainings}.values():
            training.rehearse()

    def draw(self, secret: Secret, at: Checkpoint | None) -> Iterator[Best]:
        """Search, and yield the best try. Arguments as :meth:`Release.draw`."""
        if at is None:
            position = _Position.first(self.mechanism.gamma, secret)
        else:
            self.services.progress.say("going on with the search; nothing more is spent")
            position = _position_in(self, at)
        paid = replace(self, entry=secret.entry)  # which checkpoints name
        spent = f"epsilon of the whole search {figure(planned_statement(self).certified.epsilon)}"
        while position.left:
            position = _try(paid, position, spent, secret)
            self.checkpoints.keep(_checkpoint(paid, position))
        assert position.best is not None
        yield position.best


def search(
    target: TicketSet | Winner | OwnModel | str,
    dataset: Dataset,
    options: PrivateTuneOptions,
    ledger: Ledger,
    services: Services | None = None,
    checkpoints: Checkpoints = NOT_KEPT,
) -> Run:
    """Pay for a private search and carry it out, or go on with what was paid for.

    Guarantees:
        What is refused costs nothing. An interrupted try is made again from the same keys.
        The entry is on record before the first draw. Nothing but the winner, its setting and its noisy score depends on the
        records.
    """
    settled = replace(settle(target, dataset, options, ledger, services or Services()), checkpoints=checkpoints)
    calibrated: dict[tuple[Entry, ...], PrivateSearch] = {}  # which takes seconds; what is declared does not change it

    def planned(book: Book, known: Entry | None) -> Search:
        paid = tuple(each for each in book.entries if each.paid)
        made = plan(settled, book, known, calibrated.get(paid))
        calibrated[paid] = made.mechanism
        return made

    paid = pay(planned, ledger, Kept(checkpoints, settled.facts))
    made = replace(cast(Search, paid.release), entry=paid.entry)
    (best,) = paid.values
    return _winner(made, best, paid.account, paid.lineage, ledger)


def settle(
    target: TicketSet | Winner | OwnModel | str,
    dataset: Dataset,
    options: PrivateTuneOptions,
    ledger: Ledger,
    services: Services,
) -> Search:
    """Settle, and refuse, everything about a private search whatever its noise."""
    check_required(options)
    check_choices(options)
    check_private_search(options)
    gamma = gamma_for(options.tries)
    dataset = protected_units(dataset, options)
    options = replace(options, for_records=dataset.records)
    named: TicketSet | OwnModel | str | None = target.tickets if isinstance(target, Winner) else target
    if named is None:
        raise InputError("`target`: a winner without its ticket set; take the one that select returned")
    tried = to_try(options, named if isinstance(named, TicketSet) else None)
    if len(tried) > MOST:
        raise InputError(
            f"`trials`: {len(tried):,} settings, and a private search draws from at most {MOST}; name fewer"
        )
    starts: dict[int | None, StartingPoint] = {}
    trainings = []
    for setting in tried:  # those of one network share its starting weights
        if setting.round not in starts:
            starts[setting.round] = starting_point(target, dataset, round=setting.round, seed=options.seed)
        start = starts[setting.round]
        trainings.append(settle_training(start, dataset, _training_options(options, setting), ledger, services))
    one = trainings[0]
    check_score(one.start.spec, "the score of a try")
    names = [item.name for item in fields(PrivateTuneOptions)]  # and none of where its files lie
    facts = {
        "options": {name: value for name in names if (value := getattr(options, name)) is not None},
        "records": one.facts["records"],
        "set": one.facts["ticket"],
        "model": one.facts["model"],
        "features": None if one.dataset.feature_map is None else one.dataset.feature_map.id,
        **source_facts(one.start.spec),
    }
    filters = " or ".join(dict.fromkeys(str(each.config.filter) for each in trainings))
    draft = PrivateSearch(tuple(each.mechanism for each in trainings), SCORE_NOISE, gamma)
    words = f"a search over {len(tried)} settings, {filters}"
    words += "" if options.metric == "accuracy" else f", by {options.metric}"
    score = private_score(options.metric, options.class_shares, one.dataset, one.start.spec.score)
    check_scored_rows(one.start.spec, one.dataset.bounds)
    return Search(
        options=options,
        settings=tuple(tried),
        trainings=tuple(trainings),
        entry=replace(one.entry, mechanisms=(draft,), words=words, facts=facts_digest(facts)),
        lineage=lineage_of(*(each.lineage for each in trainings)),
        account=one.account,
        facts=facts,
        beside=one.beside,
        services=services,
        score=score,
    )


def _training_options(options: PrivateTuneOptions, setting: Setting) -> TrainOptions:
    """One setting as options of a training; its noise is settled with that of the others."""
    shared = ("epsilon", "delta", "optimizer", "schedule", "average", "accountant", "seed", "unit", "per_unit")
    tried = ("lr", "clip_norm", "epochs", "batch_size")
    return TrainOptions(
        **{name: getattr(options, name) for name in shared}, **{name: getattr(setting, name) for name in tried}
    )


def plan(settled: Search, book: Book, known: Entry | None = None, noisy: PrivateSearch | None = None) -> Search:
    """Return a search with its noise, as what the ledger holds leaves room for; nothing is entered.

    Args:
        known: its entry, if it is on record already: then nothing is calibrated.
    """
    options, part, account = settled.options, settled.entry.part, book.account(settled.lineage)
    drafts = settled.mechanism.trainings
    if known is not None:
        (noisy,) = known.of(PrivateSearch)
        account = account.without(known)
    if noisy is None:
        settled.services.progress.say(f"calibrating noise to epsilon {options.epsilon:g} at delta {options.delta:g}")
        search = _with_noise(options, settled.mechanism, Planned(account, part))
    else:  # its noise, beside everything else as it is asked for now: the door compares the two
        pairs = zip(drafts, noisy.trainings, strict=False)  # of other numbers, the two differ
        as_paid = (replace(each, noise_multiplier=one.noise_multiplier) for each, one in pairs)
        search = replace(noisy, trainings=tuple(as_paid), gamma=settled.mechanism.gamma)
    entry = replace(settled.entry, mechanisms=(search,))
    trainings = (
        _with_mechanism(each, entry, mechanism)
        for each, mechanism in zip(settled.trainings, search.trainings, strict=False)
    )
    return replace(settled, trainings=tuple(trainings), entry=entry, account=account)


def _with_mechanism(training: Training, entry: Entry, mechanism: NoisySgd) -> Training:
    config = replace(training.config, noise_std=mechanism.noise_std)
    return replace(training, config=config, entry=replace(entry, mechanisms=(mechanism,)))


def _with_noise(options: PrivateTuneOptions, draft: PrivateSearch, before: Planned) -> PrivateSearch:
    """The search with its noise: that of each training is as large as if it were alone, times a factor common to all."""
    budget = options.epsilon or 0.0
    used = before.account.epsilon(options.delta, options.accountant)
    check_share(budget, used, before, options.delta)
    alone = (calibrate_noise(budget, options.delta, each, (), options.accountant) for each in draft.trainings)
    asked = replace(draft, trainings=tuple(alone), score_noise=SCORE_NOISE / (budget - used))
    return calibrate_search(budget, options.delta, asked, before, options.accountant)


@dataclass(frozen=True)
class Best:
    """Winner so far: its noisy ``score``, and its ``coin``, uniform in (0, 1), which decides among equal scores."""

    setting: int
    score: float
    coin: float
    kernels: Mapping[str, str]
    parameters: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class _Position:
    """Position of a search, before a try that has drawn nothing yet; ``left`` counts that one. All of it is secret."""

    done: int
    left: int
    draws: str
    best: Best | None = None

    @classmethod
    def first(cls, gamma: float, secret: Secret) -> _Position:
        """Before the first try: their number is drawn."""
        draws = KeyedSource(secret.child("tries"))
        return cls(0, tries(gamma, *secret_draws(draws, 2)), draws.state)


def secret_draws(source: RandomSource, count: int) -> list[float]:
    """Uniform numbers in (0, 1): of the number of tries, of a try's setting, of who wins among equal scores."""
    found: list[float] = uniform(source, count).tolist()
    return found


def secret_sources(source: KeyedSource) -> Sources:
    """Return the random sources of one try, by keys that another one gives."""
    return Sources(*(KeyedSource(bytes(source.random_bytes(KEY))) for _ in range(3)))


def noisy_score(right: int, noise_std: float, source: RandomSource) -> float:
    """Return a private count of right answers with Gaussian noise; a record or person more or less moves it by at most 1."""
    return float(gaussian_mechanism(np.array([float(right)]), noise_std, source)[0])


def _try(plan: Search, position: _Position, spent: str, secret: Secret) -> _Position:
    """One try, and where the search is after it; who watches is told what is ``spent``."""
    draws = _draws_of(position)
    (first, coin), sources = secret_draws(draws, 2), secret_sources(draws)
    number = int(first * len(plan.trainings))  # each as likely, within 2^-44
    training = plan.trainings[number].in_a_copy()
    model, dataset, services = training.start.model, training.dataset, plan.services
    opened = training.inputs.open(secret)
    descent = Descent(prepare(training, sources, opened))
    with services.progress.progress(f"try {position.done + 1}, training under DP", training.config.steps) as step:

        def between() -> None:
            plan.checkpoints.offer(lambda: _checkpoint(plan, position))  # what is interrupted here is made again
            step(descent.step, spent)

        descent.run(None, between)
    rule = plan.score or training.start.spec.score
    right = count_correct(model, *inputs(opened, dataset), score=rule)
    score, best = noisy_score(right, plan.mechanism.score_noise, sources.evaluation), position.best
    if best is None or (score, coin) > (best.score, best.coin):
        trained = tuple(value.detach().clone() for value in model.parameters())
        best = Best(number, score, coin, dict(descent.gradients.gradients.kernels), trained)
    return _Position(position.done + 1, position.left - 1, draws.state, best)


def _draws_of(position: _Position) -> KeyedSource:
    source = source_of(position.draws)
    if not isinstance(source, KeyedSource):
        raise ArtifactError("the state of a random source is damaged")
    return source


def _winner(plan: Search, best: Best, account: Account, lineage: Lineage, ledger: Ledger) -> Run:
    """Return the run of the best try; what is told of it depends on no other."""
    training = replace(
        plan.trainings[best.setting], entry=replace(plan.trainings[best.setting].entry, id=plan.entry.id)
    )
    model, dataset, services = training.start.model, training.dataset, plan.services
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), best.parameters, strict=True):
            parameter.copy_(value)
    measured = None
    if dataset.test is not None:
        test = network_inputs(dataset.test, dataset, services).open(ledger.declared_test(dataset))
        measured = accuracy(model, *inputs(test, dataset), score=training.start.spec.score)
    privacy = _stated(plan, account)
    settings = config_of(training, best.kernels)
    found = {
        "settings": len(plan.settings),
        "mean_tries": plan.options.tries,
        "clip_norm": plan.settings[best.setting].clip_norm,
        "score": _mean(plan, best.score),
        "score_noise": plan.mechanism.score_noise / (dataset.records * _scale(plan)),
    }
    steps = training.config.steps
    return Run(
        {
            **settings,
            "options": recorded(plan.options),
            "resolved": {**settings["resolved"], **found},
        },
        model,
        training.start.mask,
        dataset.feature_map,
        ({"step": steps, "epsilon": json_figure(privacy.certified.epsilon), "accuracy": measured},),
        privacy,
        ledger,
        lineage,
        0.0,  # beside how long all tries took, one's time would tell how many there were
        network=as_trained(training.start.spec, model),
    )


def _scale(plan: Search) -> float:
    return 1.0 if plan.score is None else plan.score.scale


def _mean(plan: Search, score: float) -> float:
    """Return what a noisy score says: accuracy, or the metric."""
    records = plan.dataset.records
    return min(max(score / records, 0.0), 1.0) if plan.score is None else plan.score.metric(score, records)


def planned_statement(plan: Search) -> PrivacyReport:
    """Return what the statement would be, were the search carried out."""
    drafts = (plan.entry,)
    return _stated(plan, plan.account + drafts)


def _stated(plan: Search, account: Account) -> PrivacyReport:
    options = plan.options
    notes = list(dict.fromkeys(note for each in plan.trainings for note in each.notes))
    notes.append(
        f"the best of a secret number of tries, {options.tries:g} in the mean, each at one of {len(plan.settings)} settings"
        " drawn at random; that nobody knows how many there were is what the price rests on: tell nobody how long it took"
    )
    notes += [*shares_notes(options.class_shares), *test_notes(plan.dataset)]
    return statement(account, options.delta, options.accountant, plan.mechanism.adjacency, notes)


def planned_facts(plan: Search) -> dict[str, Any]:
    """Return the public facts of a search, known before it starts."""
    mechanism = plan.mechanism
    return {
        "settings": [
            {**asdict(setting), "steps": each.steps, "noise_multiplier": each.noise_multiplier}
            for setting, each in zip(plan.settings, mechanism.trainings, strict=True)
        ],
        "mean_tries": plan.options.tries,
        "score_noise": mechanism.score_noise / (plan.dataset.records * _scale(plan)),
    }


def _checkpoint(plan: Search, position: _Position) -> Checkpoint:
    """Return a search between two tries. Its words tell nothing of how many there are."""
    best, tensors = position.best, dict[str, np.ndarray]()
    state = {**standing(plan.facts, plan.entry, position.done), "left": position.left, "draws": position.draws}
    state["best"] = None
    if best is not None:
        state["best"] = {name: getattr(best, name) for name in ("setting", "score", "coin", "kernels")}
        tensors = {str(place): value.numpy() for place, value in enumerate(best.parameters)}
    return Checkpoint("the last try that was complete", state, tensors)


def _position_in(plan: Search, held: Checkpoint) -> _Position:
    """Return the position of a search when a checkpoint was taken; ArtifactError if it is damaged."""
    state, best = held.state, None
    with reading():
        if state["best"] is not None:
            number = state["best"]["setting"]
            shapes = [value.shape for value in plan.trainings[number].start.model.parameters()]
            found = tuple(torch.from_numpy(np.array(held.tensors[str(place)])) for place in range(len(shapes)))
            if [value.shape for value in found] != shapes:
                raise ValueError(shapes)
            best = Best(parameters=found, **state["best"])
        position = _Position(state["step"], state["left"], state["draws"], best)
        _draws_of(position)
        if position.left < 0 or (best is None) != (position.done == 0):
            raise ValueError(position.left)
    return position
