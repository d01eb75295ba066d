"""What a private search is before it starts: its settings, their noise, and the one event that pays for all of it.

Every try draws one of the settings, trains on the private records, and is scored by a noisy count of its right answers on
them. The best of a secret number of tries is released, and nothing of the others (docs/privacy-model.md section 5.7).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dpltm.errors import InputError
from dpltm.options.sections import check_choices, check_required
from dpltm.options.train import TrainOptions
from dpltm.options.tune import PrivateTuneOptions
from dpltm.privacy.calibration import calibrate_noise, calibrate_search, check_share
from dpltm.privacy.events import DatasetRef, Event, SearchEvent, TrainingEvent
from dpltm.privacy.lineage import check_never_private, to_enter
from dpltm.privacy.mechanisms import PrivateSearch
from dpltm.privacy.old_ledger import Ledger
from dpltm.privacy.parts import OnRecord, total_epsilon, touching
from dpltm.privacy.private_search import SCORE_NOISE, gamma_for
from dpltm.privacy.report import report
from dpltm.pruning.ticket_set import TicketSet, Winner
from dpltm.records import Dataset
from dpltm.stages.budget import check_unit
from dpltm.stages.checks import LedgerState
from dpltm.stages.services import Services
from dpltm.stages.starting_point import StartingPoint, starting_point
from dpltm.stages.train_lineage import sources_of
from dpltm.stages.train_plan import Draft, TrainingPlan, draft
from dpltm.stages.tune_settings import Setting, check_private, front_of, to_try

MOST = 200
"""Settings that a private search draws from, at most. More would be drawn from once in a while, and take long to price."""


@dataclass(frozen=True, kw_only=True)
class PrivateSearchPlan:
    """A private search, settled before any budget is spent.

    Attributes:
        options: as they were asked for.
        settings: that are tried.
        trainings: one a setting. Their events are entered nowhere: ``event`` stands for all of them.
        lineage: what is entered before the search (see ``TrainingPlan``).
        event: the search.
        notes: sentences for the report.
        ledger, before, names_ledger: as in ``TrainingPlan``.
    """

    options: PrivateTuneOptions
    settings: tuple[Setting, ...]
    trainings: tuple[TrainingPlan, ...]
    lineage: tuple[Event, ...]
    event: SearchEvent
    notes: tuple[str, ...]
    ledger: Ledger
    before: LedgerState
    names_ledger: bool

    @property
    def records(self) -> DatasetRef:
        """What is trained on."""
        return self.event.dataset

    @property
    def dataset(self) -> Dataset:
        """The same, behind what stands in front of the network of the first setting."""
        return self.trainings[0].dataset


def plan(
    target: TicketSet | Winner | str,
    dataset: Dataset,
    options: PrivateTuneOptions,
    ledger: Ledger,
    services: Services,
    *,
    names_ledger: bool = True,
) -> PrivateSearchPlan:
    """Everything about a private search that is settled, and refused, before budget is spent.

    Args:
        target: the tickets, or the name of a network, whose settings are searched.
        dataset: the private records; behind the map that the set remembers, if it has any.
        options: of the search.
        ledger: that it will be entered in. What it holds now counts; nothing is entered here.
        services: told that noise is being calibrated.
        names_ledger: whether the caller named the ledger. If not, the report says that other releases add up.

    Raises:
        DpltmError: bad input, records that may not be used so, or too small a budget.
    """
    check_required(options)
    check_choices(options)
    check_private(options)
    gamma = gamma_for(options.tries)
    options = replace(options, for_records=dataset.records)
    named = _set_or_network(target)
    tried = to_try(options, None if isinstance(named, str) else named)
    if len(tried) > MOST:
        raise InputError(
            f"`trials`: {len(tried):,} settings, and a private search draws from at most {MOST}; name fewer"
        )
    state, before = LedgerState(ledger), ledger.events
    asked = [_training_options(options, setting) for setting in tried]
    drafts = _drafts(target, dataset, tried, asked, ledger)
    records, unit_of = drafts[0].records, drafts[0].dataset
    if unit_of.unit == "user":
        raise InputError("`private`: a score counts right answers one a record, and a user has many; take unit record")
    lineage: tuple[Event, ...] = ()
    for each in drafts:
        lineage = (*lineage, *to_enter(each.lineage, (*before, *lineage)))
    known = touching((*lineage, *before), records)
    check_unit(asked[0], unit_of, known, records)
    services.progress.say(f"calibrating noise to epsilon {options.epsilon:g} at delta {options.delta:g}")
    search = _with_noise(options, drafts, OnRecord(records, known), gamma)
    filters = " or ".join(dict.fromkeys(str(each.config.filter) for each in drafts))
    event = SearchEvent(records, search, filters, max(each.start.mask.live for each in drafts))
    # refuses what the accountants of the report cannot take, or give, before it is paid for
    report((*known, event), options.delta, adjacency=search.adjacency, accountant=options.accountant)
    check_never_private(before, (*lineage, event))
    ledger.check_budgets((*lineage, event))
    return PrivateSearchPlan(
        options=options,
        settings=tuple(tried),
        trainings=tuple(
            _training(each, settings, event, number, ledger, state)
            for number, (each, settings) in enumerate(zip(drafts, asked, strict=True))
        ),
        lineage=lineage,
        event=event,
        notes=tuple(dict.fromkeys(note for each in drafts for note in each.notes)),
        ledger=ledger,
        before=state,
        names_ledger=names_ledger,
    )


def _set_or_network(target: TicketSet | Winner | str) -> TicketSet | str:
    if not isinstance(target, Winner):
        return target
    if target.tickets is None:
        raise InputError("`target`: a winner without its ticket set; take the one that select returned")
    return target.tickets


def _training_options(options: PrivateTuneOptions, setting: Setting) -> TrainOptions:
    """One setting as options of a training; its noise is settled with that of the others."""
    shared: dict[str, Any] = {
        name: getattr(options, name)
        for name in ("epsilon", "delta", "optimizer", "schedule", "average", "accountant", "seed")
    }
    return TrainOptions(
        lr=setting.lr,
        clip_norm=setting.clip_norm,
        epochs=setting.epochs,
        batch_size=setting.batch_size,
        **shared,
    )


def _drafts(
    target: TicketSet | Winner | str,
    dataset: Dataset,
    tried: list[Setting],
    asked: list[TrainOptions],
    ledger: Ledger,
) -> list[Draft]:
    """The training at each setting but for its noise; those of one network share its starting weights."""
    starts: dict[tuple[int | None, int | None], tuple[StartingPoint, Dataset]] = {}
    for setting in tried:
        of = (setting.round, setting.components)
        if of not in starts:
            records, _ = front_of(_set_or_network(target), dataset, setting.components)
            start = starting_point(target, records, round=setting.round, seed=asked[0].seed, registry=ledger.registry)
            starts[of] = (start, records)
    return [
        draft(*starts[setting.round, setting.components], options, ledger)
        for setting, options in zip(tried, asked, strict=True)
    ]


def _with_noise(options: PrivateTuneOptions, drafts: list[Draft], before: OnRecord, gamma: float) -> PrivateSearch:
    """The search with its noise: that of each training is as large as if it were alone, times a factor common to all."""
    budget, mechanism = options.epsilon or 0.0, drafts[0].mechanism
    used = total_epsilon(before.events, options.delta, options.accountant, unit=mechanism.unit)
    check_share(budget, used, before, options.delta, mechanism.unit)
    alone = (calibrate_noise(budget, options.delta, each.mechanism, (), options.accountant) for each in drafts)
    asked = PrivateSearch(tuple(alone), SCORE_NOISE / (budget - used), gamma)
    return calibrate_search(budget, options.delta, asked, before, options.accountant)


def _training(
    of: Draft, options: TrainOptions, event: SearchEvent, number: int, ledger: Ledger, state: LedgerState
) -> TrainingPlan:
    """One setting as a training, with its noise. It is entered nowhere."""
    mechanism = event.mechanism.trainings[number]
    return TrainingPlan(
        options=options,
        start=of.start,
        dataset=of.dataset,
        records=event.dataset,
        lineage=(),
        event=TrainingEvent(event.dataset, mechanism, str(of.config.filter), of.start.mask.live),
        config=replace(of.config, noise_std=mechanism.noise_std),
        notes=of.notes,
        evaluations=(),
        second=None,
        centre=None,
        sources=sources_of(of.start, of.dataset),
        ledger=ledger,
        before=state,
        names_ledger=True,
    )
