"""Phase 3: a ticket is trained under differential privacy (docs/privacy-model.md section 4).

``plan`` settles and refuses everything, and spends nothing. ``train`` prepares, enters the events, and only then draws.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from dpltm.audit.plant import plant
from dpltm.errors import DpltmError
from dpltm.features.centre import release_mean
from dpltm.gradients.choose import repeat_choices
from dpltm.gradients.fused import compiler_at_hand
from dpltm.privacy.accountants import certified_by
from dpltm.privacy.best_of import alike, best_of_notes
from dpltm.privacy.event_json import event_id, ref_to_json
from dpltm.privacy.events import Event, GaussianEvent, TrainingEvent
from dpltm.privacy.figures import figure, percent
from dpltm.privacy.odometer import Odometer
from dpltm.privacy.parts import OnRecord, touching
from dpltm.privacy.report import report
from dpltm.privacy.statement import PrivacyReport, json_figure
from dpltm.randomness.keyed_source import source_of
from dpltm.randomness.noise import two_sided_geometric
from dpltm.records import Split
from dpltm.records.mapped import pieces
from dpltm.records.notes import NO_TEST, test_notes
from dpltm.records.units import ABSENT
from dpltm.stages.columns import columns_read
from dpltm.stages.front import is_origin_event, network_inputs
from dpltm.stages.head import head_facts, is_least_squares, newton, releases_note, second_moments, shrunk
from dpltm.stages.inputs import inputs
from dpltm.stages.microbatch_note import microbatch_note
from dpltm.stages.services import Services
from dpltm.stages.train_gradients import noisy_gradients
from dpltm.stages.train_plan import TrainingPlan
from dpltm.stages.train_plan import plan as plan
from dpltm.stages.train_ranks import begin, call
from dpltm.stages.train_state import CENTRE, SECOND, Passed, Sources, checkpoint_of, go_on, released_in
from dpltm.training.checkpoint import NOT_KEPT, Checkpoints
from dpltm.training.descent import Descent, NoisyGradients
from dpltm.training.evaluation import DIVERGED, accuracy, count_correct, has_diverged, root_mean_squared_error
from dpltm.training.ranks import Ranks, in_turn
from dpltm.training.run import Run

MEAN_ROWS = 1000
"""Records at a time when their mean is taken."""

NO_NAMED_LEDGER = "other releases from these records add up: name one `ledger` for all of them to have them counted"


def train(
    plan: TrainingPlan, services: Services, checkpoints: Checkpoints = NOT_KEPT, ranks: Ranks | None = None
) -> Run:
    """Enters the events of a plan, and trains; or goes on with what they paid for.

    Args:
        plan: see ``plan``; its model is trained in place, so each is for one run. Where a checkpoint is held, that of
            ``train_state.resumed``.
        services: progress, and where features come from.
        checkpoints: where the training is kept on the way, and what it goes on from.
        ranks: that share the work, of which this is rank 0; the others ``train_ranks.follow``. None for one process.

    Returns:
        The run, with its report and the ledger.

    Raises:
        InputError: what cannot be trained, or something was entered since it was planned; nothing is spent then.
        BudgetError: a budget set on the records does not allow it; nothing more is entered then.

    Guarantees:
        Every event is on record before the noisy value that it pays for is drawn. Whatever ends the training after that,
        the events stay. A step is noised once, whoever computes it how often (``dpltm.training.checkpoint``).
    """
    ledger, held = plan.ledger, checkpoints.held
    if plan.options.compile and compiler_at_hand():
        services.progress.say("compiling the filter")
    if held is None:
        plan.before.check(ledger)
    else:
        repeat_choices(held.state["choices"])
    if ranks is not None:
        call(ranks, plan)
    sources = (
        Sources.fresh(plan.options.noise, plan.options.audit is not None)
        if held is None
        else Sources.of(held.state["sources"])
    )
    descent = in_turn(ranks, lambda: Descent(prepare(plan, services, sources, ranks)))
    if held is None:
        checkpoints.keep(checkpoint_of(plan, descent, sources, Passed()))  # keys are on disk before they are paid for
        try:
            ledger.enter((*plan.lineage, plan.event), plan.before.events)
        except DpltmError:
            checkpoints.forget()
            raise
    else:
        services.progress.say(f"going on from {held.place}; nothing more is spent")
    if plan.centre is not None:
        plan = _centred(plan, plan.centre, services, sources, released_in(held, CENTRE))
    second = released_in(held, SECOND)
    if second is None and plan.second is not None:
        second = second_moments(plan.second, plan.dataset, services, sources.noise)
    if is_least_squares(plan.options):
        steps = newton(plan.start, plan.dataset, plan.second, second)
        descent = Descent(prepare(plan, services, sources), steps)
    elif plan.centre is not None:
        descent = Descent(prepare(plan, services, sources, ranks))
    passed = Passed() if held is None else go_on(plan, descent, held)
    if ranks is not None:
        begin(ranks, plan, descent, passed.reached(plan.options.stop_at))
    _descend(plan, descent, services, sources, passed, checkpoints, ranks, second)
    return Run(
        config_of(plan, descent.gradients.gradients.kernels),
        plan.start.model,
        plan.start.mask,
        plan.dataset.feature_map,
        tuple(passed.metrics),
        report_on(
            plan, ledger.events, passed.metrics[-1]["step"], diverged=has_diverged(plan.start.model, plan.start.spec)
        ),
        ledger,
        events_behind(plan, ledger.events),
        passed.seconds,
        observations=descent.gradients.canaries.observations,
    )


def planned_report(plan: TrainingPlan) -> PrivacyReport:
    """What the report would be, were the plan carried out."""
    return report_on(plan, (*plan.before.events, *plan.lineage, plan.event), plan.event.mechanism.steps)


def report_on(plan: TrainingPlan, held: tuple[Event, ...], taken: int, *, diverged: bool = False) -> PrivacyReport:
    """The report on the records that were trained on, from all that the ledger holds.

    Args:
        plan: of the training.
        held: by the ledger.
        taken: steps, of those that were paid for.
        diverged: whether the network that was trained gives no finite numbers.
    """
    options, notes, events = plan.options, list(plan.notes), touching(held, plan.records)
    mechanism = plan.event.mechanism
    trained = sum(isinstance(event, TrainingEvent) for event in events)
    if trained > 1:
        notes.append(
            f"{trained} training runs on these records are in the ledger; epsilon covers all of them together"
        )
        like = alike(events, plan.event)
        notes += best_of_notes(like, options.delta, certified_by(options.accountant), priced=False)
    if taken < mechanism.steps:
        notes.append(
            f"`stop_at` ended training after {taken} of {mechanism.steps} steps; the ledger keeps all of them"
        )
    if diverged:
        notes.append(DIVERGED)
    if not plan.names_ledger:
        notes.append(NO_NAMED_LEDGER)
    if plan.evaluations:
        notes.append(
            f"accuracy is that on the training records, with noise; its epsilon of {options.eval_private:g} is included"
        )
    else:
        notes += test_notes(plan.dataset) or ([] if plan.dataset.known else [NO_TEST])
    if is_least_squares(options):
        notes.append(releases_note(plan.second, plan.dataset))
    elif plan.centre is not None:
        notes.append(
            f"features are centred at their noisy mean, released for {100 * (options.centre or 0):g} % of the budget"
        )
    if options.audit is not None:
        notes.append(
            f"{options.audit:,} made-up records attacked this training (`audit`), at no cost to privacy and some to accuracy"
        )
    if options.microbatch is not None:
        notes.append(microbatch_note(plan.config, mechanism, plan.event.live, options.noise == "nominal"))
    if options.noise == "nominal":
        notes.append(
            "`noise` nominal adds as much noise as the paper would; the certified epsilon is what that is worth"
        )
    return report(events, options.delta, mechanism.adjacency, notes, options.accountant, mechanism.unit, held)


def facts(plan: TrainingPlan) -> dict[str, Any]:
    """The public facts of a training, known before it starts."""
    tickets, event, mechanism = plan.start.tickets, plan.event, plan.event.mechanism
    columns = columns_read(plan.dataset.schema, plan.start.mask, plan.dataset.feature_map)
    return {
        "ticket_set": None if tickets is None else tickets.label,
        "round": plan.start.round,
        "steps": mechanism.steps,
        "sampling_rate": mechanism.sampling_rate,
        "noise_multiplier": mechanism.noise_multiplier,
        "noise_std": plan.config.noise_std,
        "filter": event.filter,
        "groups": plan.config.groups,
        "sensitivity": mechanism.sensitivity,
        "live": event.live,
        "density": plan.start.mask.density,
        "optimizer": plan.config.optimizer,
        "lr": plan.config.lr,
        "schedule": plan.config.schedule,
        "average": plan.config.average,
        "centre": None if plan.centre is None else {"noise_multiplier": plan.centre.mechanism.noise_multiplier},
        "augment": plan.options.augment,
        "features": None if plan.dataset.feature_map is None else plan.dataset.feature_map.text,
        **head_facts(plan.options, plan.second),
        **({} if columns is None else {"columns": columns}),
    }


def config_of(plan: TrainingPlan, kernels: Mapping[str, str]) -> dict[str, Any]:
    """What the run says of its settings, and of the kernels that its layers were computed with."""
    spec, tickets = plan.start.spec, plan.start.tickets
    return {
        "model": spec.text,
        "features": spec.features,
        "classes": spec.classes,
        "bounds": list(plan.dataset.bounds),
        "bounds_origin": plan.dataset.bounds_origin,
        "records": ref_to_json(plan.records),
        "unit": plan.event.mechanism.unit,
        "event": event_id(plan.event),
        **({"table_schema": plan.dataset.schema} if plan.dataset.schema else {}),
        "ticket_set_id": None if tickets is None else tickets.id,
        "provenance": None if tickets is None else tickets.provenance,
        "round": plan.start.round,
        "expected_batch": plan.config.expected_batch,
        "divisor": plan.config.divisor,
        "test_records": None if plan.dataset.test is None or plan.evaluations else len(plan.dataset.test.y),
        "options": asdict(plan.options),
        "resolved": {**facts(plan), "kernels": dict(kernels)},
    }


def events_behind(plan: TrainingPlan, held: tuple[Event, ...]) -> tuple[Event, ...]:
    """Events of the ledger on any records that the run depends on, and what they say of its settings and features."""
    told = (plan.records, *plan.sources)
    return tuple(
        event
        for event in held
        if any(event.dataset.may_overlap(ref) for ref in told) or is_origin_event(event, plan.dataset)
    )


def prepare(plan: TrainingPlan, services: Services, sources: Sources, ranks: Ranks | None = None) -> NoisyGradients:
    """The training before its first draw: what cannot be trained is refused here, and nothing is spent yet.

    Args:
        plan: of the training.
        services: where features come from.
        sources: its random numbers.
        ranks: that share the work; None for one process.
    """
    dataset = plan.dataset
    if dataset.test is not None and not plan.evaluations:
        network_inputs(dataset.test, dataset, services)  # features that cannot be had are missed now
    if plan.centre is not None:
        network_inputs(dataset.train, dataset, services)
    gradients = noisy_gradients(plan.start, dataset, plan.options, plan.config, services, sources, ranks)
    if sources.audit is not None:
        coins = source_of(sources.audit.state)  # the same, however often this is called
        plant(gradients, plan.options.audit, plan.event.mechanism.adjacency, coins)
    return gradients


def _centred(
    plan: TrainingPlan, event: GaussianEvent, services: Services, sources: Sources, known: torch.Tensor | None
) -> TrainingPlan:
    """The plan with features centred at their mean, which is released here or ``known``. The event is on record already."""
    dataset = plan.dataset
    feature_map = dataset.feature_map
    assert feature_map is not None
    if known is not None:
        return replace(plan, dataset=replace(dataset, feature_map=feature_map.centred_at(known)))
    x = network_inputs(dataset.train, dataset, services)
    rows = _means(x, dataset.train)
    std = event.mechanism.noise_std
    centre = release_mean(rows, feature_map.features, dataset.records, std, sources.noise)
    if is_least_squares(plan.options):
        centre = shrunk(centre, std, dataset.records)
    return replace(plan, dataset=replace(dataset, feature_map=feature_map.centred_at(centre)))


def _means(x: np.ndarray, split: Split) -> Iterator[torch.Tensor]:
    """Features a record, ``(rows, features)``; of users the mean over what each gave, no longer than the longest."""
    done = 0
    for some in pieces(x, MEAN_ROWS):
        rows, labels = torch.from_numpy(np.array(some)), torch.tensor(split.y[done : done + len(some)])
        done += len(some)
        if split.slots is None:
            yield rows
            continue
        there = (labels != ABSENT).double()[..., None]
        yield (rows.double() * there).sum(1) / there.sum(1).clamp_min(1)


def _descend(
    plan: TrainingPlan,
    descent: Descent,
    services: Services,
    sources: Sources,
    passed: Passed,
    checkpoints: Checkpoints,
    ranks: Ranks | None,
    second: torch.Tensor | None,
) -> None:
    """Trains in place, from where ``passed`` is. The events are on record already."""
    options, mechanism, steps = plan.options, plan.event.mechanism, plan.event.mechanism.steps
    earlier = OnRecord(
        plan.records, touching((*plan.before.events, *plan.lineage), plan.records)
    )  # all but this training
    score, error = _score(plan, services, sources, len(passed.metrics)), _rating_error(plan, services)
    odometer = Odometer(earlier, mechanism, options.delta, certified_by(options.accountant))
    began, note = time.perf_counter() - passed.seconds, ""

    def measure(done: int) -> bool:
        nonlocal note
        if done in odometer.steps:
            measured = score(done == steps)
            passed.metrics.append({"step": done, "epsilon": json_figure(odometer.after(done)), "accuracy": measured})
            note = "" if measured is None else f", accuracy {percent(measured)}"
            if error is not None:
                off = error()
                passed.metrics[-1]["rmse"] = json_figure(off)
                note += f", rmse {off:.4g}"
        stop = passed.reached(options.stop_at)
        return stop if ranks is None or options.stop_at is None else ranks.same(stop)

    with services.progress.progress("training under DP", steps) as step:
        told = ""
        # the first step takes longer: kernels are timed in it, or compiled
        step(descent.step, "taking the first step" if descent.step == 0 else "going on")

        def between() -> None:
            nonlocal told
            passed.seconds = time.perf_counter() - began
            now = partial(checkpoint_of, plan, descent, sources, passed, second)
            if checkpoints.offer(now, figures=note != told):
                told = note
            step(descent.step, f"epsilon so far {figure(odometer.after(descent.step))}{told}")

        if passed.reached(options.stop_at):
            descent.end()
        else:
            descent.run(measure, between)
    plan.start.model.to("cpu")
    passed.seconds = time.perf_counter() - began


def _score(plan: TrainingPlan, services: Services, sources: Sources, measured: int) -> Callable[[bool], float | None]:
    """What measures accuracy at a checkpoint; its argument says whether it is the last.

    On the private records it releases a noisy count, at every checkpoint or at the last alone: each with the noise of the
    event that the plan made for it, which is on record, and of no other. None of them is left where none is paid for. The
    first ``measured`` were made before the training was interrupted.
    """
    model, dataset, device = plan.start.model, plan.dataset, plan.options.device
    if plan.evaluations:
        x, y = inputs(dataset.train, dataset, services, device)
        events = iter(plan.evaluations[measured if len(plan.evaluations) > 1 else 0 :])

        def release(last: bool) -> float | None:
            if not last and len(plan.evaluations) == 1:
                return None
            event = next(events)
            count = count_correct(model, x, y) + two_sided_geometric(sources.evaluation, event.mechanism.epsilon)
            return min(max(count / dataset.records, 0.0), 1.0)

        return release
    if dataset.test is None:
        return lambda _: None
    test = inputs(dataset.test, dataset, services, device)
    return lambda _: accuracy(model, *test)


def _rating_error(plan: TrainingPlan, services: Services) -> Callable[[], float] | None:
    """What measures by how many stars the network is wrong on the test split; None where there are no ratings there."""
    dataset = plan.dataset
    if not dataset.rated or dataset.test is None or plan.evaluations:
        return None
    test = inputs(dataset.test, dataset, services, plan.options.device)
    return lambda: root_mean_squared_error(plan.start.model, *test)
