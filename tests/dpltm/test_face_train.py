"""``dpltm.train`` and ``dpltm.tune``: arrays and keyword arguments, one ledger, the refusals of the command line."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import dpltm
from dpltm.data.registry import RecordRegistry
from dpltm.errors import BudgetError, InputError
from dpltm.privacy.events import ProvenanceEvent
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.parts import total_epsilon
from dpltm.stages.train import NO_NAMED_LEDGER
from dpltm.ticket_set import Winner
from stage_cases import CLASSES, a_draw, records, ticket_set

FEW = {"steps": 2, "classes": CLASSES}


@pytest.fixture
def tickets():
    """A set with a ledger of its own."""
    ledger = Ledger(registry=RecordRegistry())
    return replace(ticket_set(ledger.registry), ledger=ledger)


def arrays(seed: int):
    return records(seed).train.x, records(seed).train.y


def test_a_network_on_arrays():
    x, y = arrays(0)
    run = dpltm.train("mlp:4", x, y, epsilon=1.0, **FEW)
    assert run.privacy is not None
    assert run.ledger is not None
    assert 0.998 < run.privacy.certified.epsilon <= 1
    assert run.privacy.certified.epsilon == total_epsilon(run.ledger.events, 1e-5)
    assert NO_NAMED_LEDGER in run.privacy.notes
    assert run.model(torch.zeros(1, 6)).shape == (1, CLASSES)


def test_tensors_and_datasets_are_records_too():
    x, y = arrays(0)
    run = dpltm.train("mlp:4", torch.from_numpy(x), torch.from_numpy(y), noise_multiplier=9.0, **FEW)
    assert run.config["bounds"] == [0.0, 255.0]
    again = dpltm.train("mlp:4", records(0), noise_multiplier=9.0, steps=2)
    assert again.config["resolved"] == run.config["resolved"]


def test_a_test_split_is_measured_on():
    x, y = arrays(0)
    run = dpltm.train("mlp:4", x, y, test=arrays(5), noise_multiplier=9.0, **FEW)
    assert 0 <= run.metrics[-1]["accuracy"] <= 1


def test_what_is_trained_adds_up_in_the_ledger_of_the_set(tickets):
    x, y = arrays(0)
    one = dpltm.train(tickets, x, y, round=1, noise_multiplier=5.0, **FEW)
    two = dpltm.train(tickets, x, y, round=2, noise_multiplier=5.0, **FEW)
    assert one.ledger is two.ledger is tickets.ledger
    assert one.privacy is not None
    assert two.privacy is not None
    assert two.privacy.certified.epsilon > 1.3 * one.privacy.certified.epsilon
    with pytest.raises(BudgetError):
        dpltm.train(tickets, x, y, round=2, epsilon=one.privacy.certified.epsilon, **FEW)
    other = Ledger(registry=RecordRegistry())
    alone = dpltm.train(tickets, x, y, round=2, noise_multiplier=5.0, ledger=other, **FEW)
    assert alone.privacy is not None
    assert alone.privacy.certified == one.privacy.certified
    assert NO_NAMED_LEDGER not in alone.privacy.notes


def test_a_winner_brings_its_draw(tickets):
    x, y = arrays(0)
    assert tickets.ledger is not None
    registry = tickets.ledger.registry
    drawn = a_draw(registry.reference(records(0)), tickets)
    run = dpltm.train(Winner(2, (drawn,), (), tickets), x, y, noise_multiplier=5.0, **FEW)
    assert run.config["round"] == 2
    assert tickets.ledger.events[0] == drawn


def test_features_in_front():
    x, y = arrays(0)
    run = dpltm.train("mlp", x, y, features="unit", epsilon=5.0, centre=0.1, **FEW)
    assert run.config["resolved"]["features"] == "unit:1"
    assert [type(event).__name__ for event in run.events] == ["ProvenanceEvent", "GaussianEvent", "TrainingEvent"]


def test_a_set_remembers_what_stands_in_front(tickets):
    with pytest.raises(InputError) as caught:
        dpltm.train(tickets, *arrays(0), round=1, features="unit", epsilon=1.0, **FEW)
    assert str(caught.value) == (
        "`features`: tickets remembers what stands in front of its network; leave `features` out"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilonn": 1.0}, "`epsilonn`: no such option; did you mean `epsilon`?"),
        ({"epsilon": "much"}, "`epsilon`: 'much' is of type str, not float"),
        ({"epsilon": 1.0, "filter": "clamp"}, "`filter`: 'clamp' is not one of clip, "),
        ({"epsilon": 0.0}, "`epsilon`: 0 is not a positive number up to 10000"),
        ({"epsilon": 1.0, "delta": 0.1}, "`delta`: 0.1 is not between 0 and 1/n = 0.005 for 200 records"),
        ({}, "`epsilon` or `noise_multiplier`: give one of them"),
    ],
)
def test_refusals(tickets, options, message):
    with pytest.raises(InputError) as caught:
        dpltm.train(tickets, *arrays(0), round=1, **options, **FEW)
    assert str(caught.value).startswith(message)
    assert tickets.ledger.events == ()


# --- the search ---

SEARCH = {"for_records": 200, "epsilon": 2.0, "epochs": 1, "batch_size": 50}


def test_a_search_and_its_settings(tickets):
    found = dpltm.tune(tickets, *arrays(1), lr=[0.5, 1], classes=CLASSES, **SEARCH)
    assert {(trial.round, trial.lr) for trial in found.trials} == {(1, 0.5), (1, 1), (2, 0.5), (2, 1)}
    assert found.best.accuracy == max(trial.accuracy for trial in found.trials)
    assert tickets.ledger.events == ()
    run = dpltm.train(tickets, *arrays(0), round=found.best.round, classes=CLASSES, **found.settings)
    assert run.privacy is not None
    assert 1.99 < run.privacy.certified.epsilon <= 2
    assert run.config["options"]["lr"] == found.best.lr
    told = [event for event in tickets.ledger.events if isinstance(event, ProvenanceEvent)]
    assert [event.ticket_set for event in told] == ["settings of dpltm tune"]
    with pytest.raises(InputError, match=r"^`tuned_on`: settings were searched on records"):
        dpltm.train("mlp:4", *arrays(1), ledger=tickets.ledger, classes=CLASSES, **found.settings)


def test_private_records_are_not_searched_on(tickets):
    dpltm.train(tickets, *arrays(0), round=1, noise_multiplier=5.0, **FEW)
    with pytest.raises(InputError) as caught:
        dpltm.tune(tickets, *arrays(0), classes=CLASSES, **SEARCH)
    assert str(caught.value) == (
        "`dataset`: records is private to tickets (its ledger or its provenance says so), and a search declares its records"
        " public; take others"
    )
    with pytest.raises(InputError, match=r"is private to the ledger, and a search declares its records public"):
        dpltm.tune("mlp:4", *arrays(0), ledger=tickets.ledger, classes=CLASSES, **SEARCH)


@pytest.mark.parametrize("missing", ["for_records", "epsilon"])
def test_what_a_search_needs(missing):
    options = {key: value for key, value in SEARCH.items() if key != missing}
    with pytest.raises(InputError, match=rf"^`{missing}` is missing: "):
        dpltm.tune("mlp:4", *arrays(1), classes=CLASSES, **options)


def test_a_search_costs_nothing():
    found = dpltm.tune("mlp:4", *arrays(1), classes=CLASSES, lr=1, **SEARCH)
    assert found.privacy.certified.epsilon == 0
    assert not math.isnan(found.best.accuracy)
    assert found.best.round is None
