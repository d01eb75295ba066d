"""A training as a stage: the order of entries, what comes out, what stays when it is interrupted."""

from __future__ import annotations

import contextlib
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpltm.errors import ArtifactError, DpltmError, InputError
from dpltm.features.feature_map import make_feature_map
from dpltm.networks import ModelSpec
from dpltm.privacy.events import GaussianEvent, GuaranteeEvent, TrainingEvent
from dpltm.privacy.old_ledger import Ledger
from dpltm.privacy.parts import total_epsilon
from dpltm.pruning.ticket_set import Winner
from dpltm.randomness import noise
from dpltm.randomness.keyed_source import KeyedSource
from dpltm.records.registry import RecordRegistry
from dpltm.stages.inputs import tensors
from dpltm.stages.services import Services
from dpltm.stages.starting_point import fresh, from_round, from_winner
from dpltm.stages.train import planned_report, train
from dpltm.training.evaluation import accuracy
from dpltm.training.private_loop import PrivateLoop
from dpltm.training.run import Run
from refusals import refused_after_it_ran
from stage_cases import CLASSES, FEATURES, a_draw, body, planned, records, ticket_set

LINEAR = ModelSpec("mlp", FEATURES, CLASSES)


def trained(**options: Any) -> Run:
    return train(planned(**options), Services())


def behind_unit(seed: int = 0, test: int = 0):
    dataset = records(seed, test=test)
    return replace(dataset, feature_map=make_feature_map("unit:1", dataset.train.x.shape[1:], dataset.bounds))


@pytest.fixture
def log(monkeypatch):
    """What happens, in order: entries of a ledger, and bytes that are drawn."""
    entries, inner = [], KeyedSource.random_bytes

    def draw(source: KeyedSource, count: int) -> memoryview:
        if entries[-1:] != ["drawn"]:
            entries.append("drawn")
        return inner(source, count)

    monkeypatch.setattr(KeyedSource, "random_bytes", draw)
    ledger = Ledger(
        persist=lambda events: entries.extend(type(event).__name__ for event in events), registry=RecordRegistry()
    )
    return SimpleNamespace(entries=entries, ledger=ledger)


# --- the order of entries ---


def test_everything_is_entered_before_anything_is_drawn(log):
    tickets = ticket_set(log.ledger.registry, "private", records(2))
    drawn = a_draw(log.ledger.registry.reference(records(0)), tickets)
    start = from_winner(Winner(2, (drawn,), (), tickets))
    plan = planned(ledger=log.ledger, start=start, noise_multiplier=5.0, eval_private=0.5)
    assert log.entries == []
    train(plan, Services())
    assert log.entries == ["ProvenanceEvent", "SelectionEvent", "GuaranteeEvent", "TrainingEvent", "drawn"]


def test_the_centre_is_entered_before_it_is_drawn(log):
    plan = planned(ledger=log.ledger, start=fresh(LINEAR, 0), dataset=behind_unit(), epsilon=3.0, centre=0.2)
    run = train(plan, Services())
    assert log.entries == ["ProvenanceEvent", "GaussianEvent", "TrainingEvent", "drawn"]
    assert run.feature_map.centre is not None
    with pytest.raises(InputError, match=r"^`ledger`: something was entered since this was planned; plan again$"):
        train(plan, Services())


def test_an_event_that_cannot_be_written_pays_for_nothing(monkeypatch):
    """The disk is full: nothing is drawn."""

    def full(_):
        raise ArtifactError("no space")

    monkeypatch.setattr(KeyedSource, "random_bytes", lambda *_: pytest.fail("drawn"))
    plan = planned(ledger=Ledger(persist=full, registry=RecordRegistry()), noise_multiplier=5.0)
    with pytest.raises(ArtifactError, match="no space"):
        train(plan, Services())


@pytest.mark.parametrize(
    ("place", "error", "kept"),
    [("Descent.run", KeyboardInterrupt(), True), ("noisy_gradients", InputError("no such layer"), False)],
)
def test_an_interrupted_training_stays_spent_and_what_cannot_be_trained_is_refused_before(
    monkeypatch, place, error, kept
):
    def stop(*_, **__):
        raise error

    ledger = Ledger(registry=RecordRegistry())
    plan = planned(ledger=ledger, noise_multiplier=5.0)
    monkeypatch.setattr(f"dpltm.stages.train.{place}", stop)
    with pytest.raises(type(error)):
        train(plan, Services())
    assert ledger.events == ((plan.event,) if kept else ())


def test_a_plan_runs_once():
    ledger = Ledger(registry=RecordRegistry())
    plan = planned(ledger=ledger, noise_multiplier=5.0)
    train(plan, Services())
    refused_after_it_ran(lambda each: train(each, Services()), plan)
    assert ledger.events == (plan.event,)


def test_threads_that_share_a_ledger_stay_within_their_budget():
    meeting = threading.Barrier(3)

    def meet(_):  # whoever is held up here lets the others in, if they can
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(0.2)

    ledger, train_on = Ledger(persist=meet, registry=RecordRegistry()), torch.nn.CrossEntropyLoss(reduction="none")
    budget = {"epsilon": 1.0, "delta": 1e-4, "ledger": ledger}
    loop = PrivateLoop(
        torch.nn.Linear(4, 3), train_on, np.zeros((9, 4)), np.zeros(9, int), batch_size=3, steps=3, **budget
    )
    starts = [*(partial(train, planned(**budget), Services()) for _ in range(2)), loop.__iter__]
    with ThreadPoolExecutor(3) as pool:
        refusals = [task.exception() for task in [pool.submit(start) for start in starts]]
    assert sorted(isinstance(error, DpltmError) for error in refusals) == [False, True, True]
    assert total_epsilon(ledger.events, 1e-4) <= 1.0


# --- what comes out ---


def test_the_run():
    plan = planned(noise_multiplier=2.0, dataset=records(0, test=60), steps=3)
    run = train(plan, Services())
    mask = body().tickets[2].mask
    assert run.mask.live == mask.live == plan.event.live
    for name, value in run.model.named_parameters():
        assert not value[~mask[name]].any()  # pruned weights are exactly zero
        assert value[mask[name]].all()  # and every live one has had noise
    assert [line["step"] for line in run.metrics] == [1, 2, 3]
    spent = [line["epsilon"] for line in run.metrics]
    assert spent == sorted(spent)
    assert spent[-1] == run.privacy.certified.epsilon
    assert run.privacy == planned_report(plan)
    assert run.metrics[-1]["accuracy"] == accuracy(run.model, *tensors(plan.dataset.test, plan.dataset, Services()))
    assert (run.ledger, run.events) == (plan.ledger, plan.ledger.events)
    assert total_epsilon(run.events, 1e-5) == run.privacy.certified.epsilon
    config = run.config
    assert (config["model"], config["round"], config["expected_batch"]) == ("mlp:8", 2, 50)
    assert (config["options"]["noise_multiplier"], config["options"]["batch_size"]) == (2.0, None)
    assert config["ticket_set_id"] == plan.start.tickets.id
    assert (run.spec, run.bounds) == (plan.start.spec, (0.0, 255.0))


def test_it_starts_from_theta0_and_differs_each_time():
    """Sampling and noise come from the system, never from the seed; the set's own weights stay as they were."""
    tickets = ticket_set(RecordRegistry())
    before = {name: value.clone() for name, value in tickets.body.theta0.items()}
    one, two = (trained(start=from_round(tickets, 2), noise_multiplier=3.0, lr=1e-6, seed=5) for _ in range(2))
    for name, value in one.model.named_parameters():
        expected = before[name] * tickets.body.tickets[2].mask[name]
        torch.testing.assert_close(value.detach(), expected, rtol=0, atol=1e-5)
        assert torch.equal(before[name], tickets.body.theta0[name])
    assert not torch.equal(one.model[0].weight, two.model[0].weight)


def test_the_run_holds_what_its_ledger_says_of_its_own_records():
    """Not of others, in the same ledger; of those that its ticket comes from."""
    registry = RecordRegistry()
    ledger = Ledger(registry=registry)
    other = train(planned(ledger=ledger, start=fresh(LINEAR, 0), dataset=records(3), noise_multiplier=4.0), Services())
    start = from_round(ticket_set(registry, "private", records(2)), 1)
    run = train(planned(ledger=ledger, start=start, noise_multiplier=5.0), Services())
    assert len(ledger.events) == 3
    assert (run.events, other.events) == (ledger.events[1:], ledger.events[:1])


def test_centred_features():
    dataset = behind_unit(test=30)
    run = trained(start=fresh(LINEAR, 0), dataset=dataset, epsilon=5.0, centre=0.5)
    feature_map, mean = run.feature_map, next(event for event in run.events if isinstance(event, GaussianEvent))
    exact = dataset.feature_map(dataset.train.x).mean(0)
    std = mean.mechanism.noise_multiplier * mean.mechanism.sensitivity / dataset.records
    distance = float((feature_map.centre - exact).norm())
    assert 0.2 * std * math.sqrt(FEATURES) < distance < 3 * std * math.sqrt(FEATURES)


@pytest.mark.parametrize("noise", ["secure", "fast"])
def test_events_say_what_noise_was_made_of(noise):
    """So does the report of a later training, whatever its own noise."""
    dataset, ledger = behind_unit(), Ledger(registry=RecordRegistry())
    first = train(
        planned(start=fresh(LINEAR, 0), dataset=dataset, ledger=ledger, epsilon=5.0, centre=0.5, noise=noise),
        Services(),
    )
    later = train(planned(start=fresh(LINEAR, 0), dataset=dataset, ledger=ledger, noise_multiplier=9.0), Services())
    noisy = [event for event in ledger.events if isinstance(event, (GaussianEvent, TrainingEvent))]
    assert [event.noise for event in noisy] == [noise, noise, "secure"]
    told = "noise of 2 releases (`noise` fast) comes from a generator that is not cryptographic"
    for run in (first, later):
        assert any(note.startswith(told) for note in run.privacy.notes) == (noise == "fast")


# --- evaluations on the records, and stopping early ---


@pytest.fixture
def released(monkeypatch):
    """The epsilon of every count that is released, in order."""
    found, inner = [], noise.two_sided_geometric
    monkeypatch.setattr(
        "dpltm.stages.train.two_sided_geometric", lambda *given: (found.append(given[1]), inner(*given))[1]
    )
    return found


def test_an_evaluation_is_made_at_the_end_alone(released):
    run = trained(noise_multiplier=5.0, steps=20, eval_private=0.5)
    assert released == [0.5]
    assert [line["accuracy"] is None for line in run.metrics] == [True] * 9 + [False]
    assert 0 <= run.metrics[-1]["accuracy"] <= 1


def test_every_look_has_an_event_and_no_two_are_equal(released):
    run = trained(noise_multiplier=5.0, steps=40, eval_private=0.5, stop_at=1.0)
    counts = [event for event in run.events if isinstance(event, GuaranteeEvent)]
    assert len(counts) == 10
    assert len(released) == len(run.metrics) == run.metrics[-1]["step"] // 4
    assert released == [event.mechanism.epsilon for event in counts][: len(released)] == [0.05] * len(released)
    assert len({event.time for event in run.events}) == len(run.events) == 11


def test_stopping_early_pays_for_all_steps():
    plan = planned(dataset=records(0, test=30), noise_multiplier=5.0, steps=20, stop_at=0.01)
    run = train(plan, Services())
    assert run.metrics[-1]["step"] == 2
    assert run.privacy.certified == planned_report(plan).certified
    assert "`stop_at` ended training after 2 of 20 steps; the ledger keeps all of them" in run.privacy.notes
    assert next(event for event in run.events if isinstance(event, TrainingEvent)).mechanism.steps == 20


# --- how sums are computed ---


def test_how_sums_are_computed_reaches_the_engine_and_costs_the_same():
    plain = planned(noise_multiplier=4.0)
    other = planned(noise_multiplier=4.0, physical_batch=7, precision="bfloat16")
    assert other.config == replace(plain.config, physical_batch=7, precision="bfloat16")
    assert planned_report(other).certified == planned_report(plain).certified
    run = train(other, Services())
    assert (run.config["options"]["physical_batch"], run.config["options"]["precision"]) == (7, "bfloat16")
