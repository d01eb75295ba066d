"""A private search: tries at settings drawn at random, of which the best alone is released, with its setting and score.

How many tries there are is drawn first, and stays secret: what the search costs rests on that. It is in no artifact, and in
no figure that a caller gets; the checkpoint of an interrupted search has it, beside the keys (``training.checkpoint``). How
long a try takes is public, so whoever learns how long a search took learns of their number: the report says so.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from dpltm.errors import ArtifactError, DpltmError
from dpltm.gradients.choose import choices_made, repeat_choices
from dpltm.privacy.event_json import event_id, to_json
from dpltm.privacy.events import Event, SearchEvent
from dpltm.privacy.figures import figure
from dpltm.privacy.old_ledger import Ledger
from dpltm.privacy.parts import touching
from dpltm.privacy.private_search import tries
from dpltm.privacy.report import report
from dpltm.privacy.statement import PrivacyReport, json_figure
from dpltm.randomness.gaussian_mechanism import gaussian_mechanism
from dpltm.randomness.keyed_source import KEY, KeyedSource, source_of
from dpltm.randomness.noise import RandomSource, uniform
from dpltm.records.notes import test_notes
from dpltm.stages.going_on import check_same_work, entered_for, records_of
from dpltm.stages.inputs import inputs
from dpltm.stages.search_plan import PrivateSearchPlan
from dpltm.stages.search_plan import plan as plan
from dpltm.stages.services import Services
from dpltm.stages.train import NO_NAMED_LEDGER, config_of, events_behind, prepare
from dpltm.stages.train_plan import TrainingPlan
from dpltm.stages.train_state import Sources
from dpltm.training.checkpoint import AGAIN, NOT_KEPT, Checkpoint, Checkpoints
from dpltm.training.descent import Descent
from dpltm.training.evaluation import accuracy, count_correct
from dpltm.training.run import Run


@dataclass(frozen=True)
class _Best:
    """The winner so far.

    Attributes:
        setting: by number.
        score: noisy count of right answers.
        coin: that decides among equal scores, uniform in (0, 1).
        kernels: that its linear layers were computed with.
        parameters: of its network, in order.
    """

    setting: int
    score: float
    coin: float
    kernels: Mapping[str, str]
    parameters: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class _Position:
    """Where a search is: before a try that has drawn nothing yet. All of it is secret.

    Attributes:
        done: tries that are over.
        left: tries, with the next.
        draws: state of the source that decides all of the tries that are left.
        best: of the tries that are over.
    """

    done: int
    left: int
    draws: str
    best: _Best | None = None

    @classmethod
    def first(cls, gamma: float) -> _Position:
        """Before the first try: their number is drawn."""
        draws = KeyedSource()
        return cls(0, tries(gamma, *secret_draws(draws, 2)), draws.state)


def search(plan: PrivateSearchPlan, services: Services, checkpoints: Checkpoints = NOT_KEPT) -> Run:
    """Enters the events of a plan, and searches; or goes on with what they paid for.

    Args:
        plan: see ``plan``. Where a checkpoint is held, that of :func:`resumed`.
        services: progress, and where features come from.
        checkpoints: where the search is kept on the way, and what it goes on from. A try that was interrupted is made again,
            from the same keys.

    Returns:
        The run of the winner, with its report and the ledger.

    Raises:
        InputError: what cannot be trained, or something was entered since it was planned; nothing is spent then.
        BudgetError: a budget set on the records does not allow it; nothing more is entered then.

    Guarantees:
        The event is on record before the first draw. Nothing but the winner, its setting and its noisy score depends on the
        records.
    """
    ledger, held = plan.ledger, checkpoints.held
    if held is None:
        plan.before.check(ledger)
        position = _Position.first(plan.event.mechanism.gamma)
        _check_trainable(plan, services)
        checkpoints.keep(_checkpoint(plan, position))  # keys are on disk before they are paid for
        try:
            ledger.enter((*plan.lineage, plan.event), plan.before.events)
        except DpltmError:
            checkpoints.forget()
            raise
    else:
        services.progress.say("going on with the search; nothing more is spent")
        repeat_choices(held.state["choices"])
        position = _position_in(plan, held)
    spent = f"epsilon of the whole search {figure(report_on(plan, ledger.events).certified.epsilon)}"
    while position.left:
        position = _try(plan, position, services, checkpoints, spent)
        checkpoints.keep(_checkpoint(plan, position))
    assert position.best is not None
    return _winner(plan, position.best, services)


def secret_draws(source: RandomSource, count: int) -> list[float]:
    """Uniform numbers in (0, 1): of the number of tries, of a try's setting, of who wins among equal scores."""
    found: list[float] = uniform(source, count).tolist()
    return found


def secret_sources(source: KeyedSource) -> Sources:
    """The random sources of one try, by keys that another one gives."""
    return Sources(*(KeyedSource(bytes(source.random_bytes(KEY))) for _ in range(3)))


def noisy_score(right: int, noise_std: float, source: RandomSource) -> float:
    """The Gaussian mechanism on a count of right answers, of which a record more or less changes at most 1.

    Args:
        right: the count; private.
        noise_std: of the noise.
        source: of the noise.
    """
    return float(gaussian_mechanism(np.array([float(right)]), noise_std, source)[0])


def _check_trainable(plan: PrivateSearchPlan, services: Services) -> None:
    """Raises InputError for a network or records that cannot be trained, or features that cannot be had."""
    for training in {id(each.start): each for each in plan.trainings}.values():
        prepare(_anew(training), services, Sources.fresh("secure"))


def _anew(training: TrainingPlan) -> TrainingPlan:
    """The same with a network of its own, to be trained in place."""
    return replace(training, start=replace(training.start, model=copy.deepcopy(training.start.model)))


def _try(
    plan: PrivateSearchPlan, position: _Position, services: Services, checkpoints: Checkpoints, spent: str
) -> _Position:
    """One try, and where the search is after it; who watches is told what is ``spent``."""
    draws = _draws_of(position)
    (first, coin), sources = secret_draws(draws, 2), secret_sources(draws)
    number = int(first * len(plan.trainings))  # each as likely, within 2^-44
    training = _anew(plan.trainings[number])
    model, dataset = training.start.model, training.dataset
    descent = Descent(prepare(training, services, sources))
    with services.progress.progress(f"try {position.done + 1}, training under DP", training.config.steps) as step:

        def between() -> None:
            checkpoints.offer(lambda: _checkpoint(plan, position))  # what is interrupted here is made again
            step(descent.step, spent)

        descent.run(None, between)
    right = count_correct(model, *inputs(dataset.train, dataset, services, "cpu"))
    score, best = noisy_score(right, plan.event.mechanism.score_noise, sources.evaluation), position.best
    if best is None or (score, coin) > (best.score, best.coin):
        trained = tuple(value.detach().clone() for value in model.parameters())
        best = _Best(number, score, coin, dict(descent.gradients.gradients.kernels), trained)
    return _Position(position.done + 1, position.left - 1, draws.state, best)


def _draws_of(position: _Position) -> KeyedSource:
    """The source at the beginning of a try."""
    source = source_of(position.draws)
    if not isinstance(source, KeyedSource):
        raise ArtifactError("the state of a random source is damaged")
    return source


def _winner(plan: PrivateSearchPlan, best: _Best, services: Services) -> Run:
    """The run of the best try; what is told of it depends on no other."""
    training, held = plan.trainings[best.setting], plan.ledger.events
    model, dataset = training.start.model, training.dataset
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), best.parameters, strict=True):
            parameter.copy_(value)
    measured = None
    if dataset.test is not None:
        measured = accuracy(model, *inputs(dataset.test, dataset, services, "cpu"))
    privacy = report_on(plan, held)
    settings = config_of(training, best.kernels)
    found = {
        "settings": len(plan.settings),
        "mean_tries": plan.options.tries,
        "clip_norm": plan.settings[best.setting].clip_norm,
        "score": min(max(best.score / dataset.records, 0.0), 1.0),
        "score_noise": plan.event.mechanism.score_noise / dataset.records,
    }
    steps = training.config.steps
    return Run(
        {
            **settings,
            "event": event_id(plan.event),
            "options": asdict(plan.options),
            "resolved": {**settings["resolved"], **found},
        },
        model,
        training.start.mask,
        dataset.feature_map,
        ({"step": steps, "epsilon": json_figure(privacy.certified.epsilon), "accuracy": measured},),
        privacy,
        plan.ledger,
        events_behind(training, held),
        0.0,  # beside how long all tries took, one's time would tell how many there were
    )


def planned_report(plan: PrivateSearchPlan) -> PrivacyReport:
    """What the report would be, were the plan carried out."""
    return report_on(plan, (*plan.before.events, *plan.lineage, plan.event))


def report_on(plan: PrivateSearchPlan, held: tuple[Event, ...]) -> PrivacyReport:
    """The report on the records that were searched on, from all that the ledger holds."""
    options, mechanism, notes = plan.options, plan.event.mechanism, list(plan.notes)
    notes.append(
        f"the best of a secret number of tries, {options.tries:g} in the mean, each at one of {len(plan.settings)} settings"
        " drawn at random; that nobody knows how many there were is what the price rests on: tell nobody how long it took"
    )
    if not plan.names_ledger:
        notes.append(NO_NAMED_LEDGER)
    notes += test_notes(plan.dataset)
    events = touching(held, plan.records)
    return report(events, options.delta, mechanism.adjacency, notes, options.accountant, mechanism.unit, held)


def planned_facts(plan: PrivateSearchPlan) -> dict[str, Any]:
    """The public facts of a search, known before it starts."""
    mechanism = plan.event.mechanism
    return {
        "settings": [
            {**asdict(setting), "steps": each.steps, "noise_multiplier": each.noise_multiplier}
            for setting, each in zip(plan.settings, mechanism.trainings, strict=True)
        ],
        "mean_tries": plan.options.tries,
        "score_noise": mechanism.score_noise / plan.dataset.records,
    }


def _checkpoint(plan: PrivateSearchPlan, position: _Position) -> Checkpoint:
    """A search between two tries. Its words tell nothing of how many there are."""
    best, tensors = position.best, dict[str, np.ndarray]()
    state = {
        "of": _facts(plan),
        "events": [to_json(event) for event in (*plan.lineage, plan.event)],
        "step": position.done,
        "left": position.left,
        "draws": position.draws,
        "best": None,
        "choices": choices_made(),
    }
    if best is not None:
        state["best"] = {name: getattr(best, name) for name in ("setting", "score", "coin", "kernels")}
        tensors = {str(place): value.numpy() for place, value in enumerate(best.parameters)}
    return Checkpoint("the last try that was complete", state, tensors)


def _position_in(plan: PrivateSearchPlan, held: Checkpoint) -> _Position:
    """Where a search was when a checkpoint was taken.

    Raises:
        ArtifactError: it is damaged.
    """
    state, best = held.state, None
    try:
        if state["best"] is not None:
            number = state["best"]["setting"]
            shapes = [value.shape for value in plan.trainings[number].start.model.parameters()]
            found = tuple(torch.from_numpy(np.array(held.tensors[str(place)])) for place in range(len(shapes)))
            if [value.shape for value in found] != shapes:
                raise ValueError(shapes)
            best = _Best(parameters=found, **state["best"])
        position = _Position(state["step"], state["left"], state["draws"], best)
        _draws_of(position)
        if position.left < 0 or (best is None) != (position.done == 0):
            raise ValueError(position.left)
        return position
    except (KeyError, IndexError, TypeError, ValueError, DpltmError):
        raise ArtifactError(f"checkpoint: damaged, or of another version; {AGAIN}") from None


def resumed(plan: PrivateSearchPlan, held: Checkpoint, ledger: Ledger) -> PrivateSearchPlan:
    """The plan of an interrupted search, with the events that it entered.

    Args:
        plan: the same search planned anew, on what the ledger held then (``going_on.planned_on``).
        held: its checkpoint.
        ledger: as it is now.

    Raises:
        InputError: it is another search; what differs is named.
    """
    check_same_work(held, plan.dataset, _facts(plan))
    *lineage, event = entered_for((*plan.lineage, plan.event), held, plan.before.events, ledger)
    assert isinstance(event, SearchEvent)
    return replace(plan, lineage=tuple(lineage), event=event, ledger=ledger)


def _facts(plan: PrivateSearchPlan) -> dict[str, Any]:
    """What a search is of, beside its options."""
    start, feature_map = plan.trainings[0].start, plan.dataset.feature_map
    return {
        "records": records_of(plan.records, plan.dataset, plan.ledger.registry.key),
        "set": None if start.tickets is None else start.tickets.id,
        "model": start.spec.text,
        "features": None if feature_map is None else feature_map.id,
    }
