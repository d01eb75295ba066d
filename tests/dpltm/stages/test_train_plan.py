"""A training before it starts: what is refused, what is entered for whom, and how the budget is divided."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from dpltm.errors import BudgetError, InputError
from dpltm.features.feature_map import make_feature_map
from dpltm.networks import ModelSpec
from dpltm.privacy.event_json import ref_to_text, to_json
from dpltm.privacy.events import (
    SETTINGS,
    BudgetEvent,
    NonPrivateEvent,
    ProvenanceEvent,
)
from dpltm.privacy.mechanisms import Unprotected
from dpltm.privacy.old_ledger import Ledger
from dpltm.privacy.parts import total_epsilon
from dpltm.pruning.ticket_set import Winner
from dpltm.records import from_arrays
from dpltm.records.registry import RecordRegistry
from dpltm.stages.starting_point import default_network, fresh, from_round, from_winner, starting_point
from dpltm.stages.train import facts, planned_report
from entries import having
from refusals import refused
from stage_cases import CLASSES, FEATURES, a_draw, planned, records, ticket_set

DENSE = ModelSpec("mlp", FEATURES, CLASSES)


@pytest.fixture
def registry():
    return RecordRegistry()


@pytest.fixture
def ledger(registry):
    return Ledger(registry=registry)


def refusal(error: type[Exception] = InputError, **options) -> str:
    return refused(planned, kind=error, **options)


def behind_unit():
    dataset = records(0)
    return replace(dataset, feature_map=make_feature_map("unit:1", dataset.train.x.shape[1:], dataset.bounds))


def kinds(events) -> list[str]:
    return [type(event).__name__.removesuffix("Event").lower() for event in events]


# --- what is refused of the options ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": math.nan}, "`epsilon`: nan is not a positive number up to 10000"),
        *(
            (
                {"epsilon": None, "noise_multiplier": value},
                f"`noise_multiplier`: {value:g} is not a number from 0 to 1e+06",
            )
            for value in (-1.0, math.nan, math.inf)
        ),
        *(({"epochs": value}, f"`epochs`: {value:g} is not a positive number") for value in (0.0, math.nan, math.inf)),
        ({"steps": 10**8 + 1}, "`epochs`, `steps`: more than 100,000,000 steps; ask for fewer"),
        *(
            ({"batch_size": value}, f"`batch_size`: {value:g} is not between 0 and the 200 records of records0")
            for value in (201.0, 0.0, math.nan)
        ),
        ({"filter": "tanh", "tanh_scale": -1.0}, "`tanh_scale`: -1.0 is not a number between 1e-06 and 1e+06"),
        ({"lr": -1.0}, "`lr`: -1.0 is not a positive number"),
        ({"physical_batch": 0}, "`physical_batch`: 0 is not a positive whole number"),
        ({"seed": -1}, "`seed`: -1 is not between 0 and 2^63 - 1"),
        ({"eval_private": 0.0}, "`eval_private`: 0 is not a positive number up to 10000"),
        (
            {"noise_multiplier": 1.0, "filter": "tanh", "noise": "nominal", "budget_stop": True},
            "`budget_stop`: holds for certified noise only; leave `noise` nominal out",
        ),
        *(
            ({"centre": value}, f"`centre`: {value:g} is not a part between 0 and 1, such as 0.05")
            for value in (0.0, 1.0, math.nan)
        ),
        ({"delta": 0.01}, "`delta`: 0.01 is not between 0 and 1/n = 0.005 for 200 records; take one well below it"),
        ({"delta": 1e-16}, "`delta`: 1e-16 is below 1e-15, which the accountant does not resolve; take a larger one"),
        ({"tuned_on": "nothing"}, "`tuned_on`: not as dpltm tune writes it: NAME ID KEY CUT START STOP"),
    ],
)  # fmt: skip
def test_options(options, message, ledger):
    assert refusal(ledger=ledger, **{"epsilon": 1.0, **options}) == message
    assert ledger.events == ()


# --- what is refused of tickets and records ---


def test_a_start_that_says_too_little_or_too_much(ledger):
    tickets, dataset = ticket_set(ledger.registry), records(0)
    for target, options, message in (
        (tickets, {}, "`round` is missing: say which ticket of the set"),
        (tickets, {"round": 1, "dense": True}, "`round`, `dense`: the whole network is no ticket"),
        ("mlp:4", {"round": 1}, "`round`: mlp:4 is a network, which has none"),
        (Winner(1, ()), {}, "`ticket`: a winner without its ticket set"),
    ):
        assert refused(starting_point, target, dataset, **options).startswith(message)
    whole = starting_point(tickets, dataset, dense=True)
    assert (whole.round, whole.mask.density, whole.tickets) == (0, 1.0, tickets)


def test_records_of_another_shape():
    for width, classes, what in (
        (7, 3, "takes 6 features, but these has 7"),
        (6, 2, "has 3 classes, but these has 2"),
    ):
        others = from_arrays(np.zeros((60, width), np.uint8), np.arange(60) % classes, name="these")
        assert refusal(dataset=others, epsilon=1.0).startswith(f"tickets: its network {what}")
    images = from_arrays(np.zeros((60, 14, 14), np.uint8), np.arange(60) % CLASSES, name="images")
    cnn = fresh(ModelSpec("cnn:14x14x1", 196, CLASSES), 0)
    message = refusal(start=cnn, dataset=images, epsilon=1.0, augment="flip")
    assert message == "`augment`: flip goes with an mlp, not with cnn:14x14x1; take `augment` none"


# --- what is entered, and on whose records ---


def test_a_public_ticket_costs_nothing(ledger):
    plan = planned(ledger=ledger, noise_multiplier=5.0)
    assert (plan.lineage, plan.sources) == ((), (plan.start.tickets.source,))
    assert plan.event.dataset == plan.records
    assert planned_report(plan).certified.epsilon == total_epsilon([plan.event], 1e-5)


def test_a_ticket_made_with_no_mechanism_is_said_on_its_own_records(ledger):
    mine, theirs = records(0), records(1)
    for source, certified in ((mine, math.inf), (theirs, None)):
        tickets = ticket_set(ledger.registry, "private", source)
        plan = planned(ledger=ledger, start=from_round(tickets, 1), noise_multiplier=5.0)
        (said,) = plan.lineage
        assert (kinds([said]), said.dataset, said.provenance) == (["provenance"], tickets.source, "private")
        report = planned_report(plan)
        assert report.certified.epsilon == (total_epsilon([plan.event], 1e-5) if certified is None else certified)
        assert any("with no mechanism" in note for note in report.notes)


def test_what_a_dp_ticket_spent_is_entered_on_its_records(ledger):
    theirs = ledger.registry.reference(records(1))
    made = planned(ledger=ledger, dataset=records(1), start=fresh(DENSE, 0), noise_multiplier=3.0).event
    tickets = replace(ticket_set(ledger.registry, "dp", records(1)), events=(made,))
    plan = planned(ledger=ledger, start=from_round(tickets, 1), noise_multiplier=5.0)
    assert kinds(plan.lineage) == ["training", "provenance"]
    assert all(event.dataset.surely_overlaps(theirs) for event in plan.lineage)
    assert planned_report(plan).certified.epsilon == total_epsilon([plan.event], 1e-5)
    again = planned(ledger=Ledger(plan.lineage, registry=ledger.registry), start=plan.start, noise_multiplier=5.0)
    assert again.lineage == ()


def test_public_records_cannot_be_private(ledger):
    assert refusal(ledger=ledger, dataset=records(1), epsilon=1.0).startswith(
        "tickets: its tickets were made from records1, declared public, and records1 shares records with it; the same"
    )
    told = ProvenanceEvent(ledger.registry.reference(records(0), public=True), "public", "x")
    ledger.append(told)
    assert refusal(ledger=ledger, epsilon=1.0).startswith("`dataset`: the ledger has records0 down as public")


def test_private_records_cannot_become_public(ledger):
    """The ledger holds a release from the records that settings are said to have been searched on in public."""
    theirs = planned(ledger=ledger, dataset=records(2), start=fresh(DENSE, 0), noise_multiplier=5.0).event
    ledger.append(theirs)
    searched = ref_to_text(ledger.registry.reference(records(2), public=True))
    assert refusal(ledger=ledger, noise_multiplier=5.0, tuned_on=searched).startswith(
        "`dataset`, `public`: the ledger holds what was spent on records2, so they are private"
    )


def test_settings_that_were_searched_on_public_records(ledger):
    searched = ref_to_text(ledger.registry.reference(records(2), public=True))
    plan = planned(ledger=ledger, noise_multiplier=5.0, tuned_on=searched)
    (said,) = plan.lineage
    assert (said.provenance, said.ticket_set) == ("public", f"{SETTINGS}of dpltm tune")
    assert said.dataset.surely_overlaps(ledger.registry.look_at(records(2)))
    for below in ("{}", "", "[" * 10_000, json.dumps(to_json(replace(said, provenance="dp")))):
        assert refusal(ledger=ledger, noise_multiplier=5.0, tuned_on=f"{searched}\n{below}") == (
            "`tuned_on`: not as dpltm tune writes it: an event below its first line is none"
        )
    read_off = replace(said, dataset=ledger.registry.look_at(records(0)), ticket_set=f"{SETTINGS}of a schema")
    found = f"{searched}\n{json.dumps(to_json(read_off))}"
    assert refusal(ledger=ledger, noise_multiplier=5.0, tuned_on=found).startswith("`schema`: was read off records0")
    mine = ref_to_text(ledger.registry.reference(records(0), public=True))
    assert refusal(ledger=ledger, noise_multiplier=5.0, tuned_on=mine).startswith(
        "`tuned_on`: settings were searched on records0, declared public, and records0 shares records with it"
    )


def test_a_draw_is_entered_where_the_ledger_lacks_it(ledger):
    tickets, noise = ticket_set(ledger.registry), {"noise_multiplier": 5.0}
    drawn = a_draw(ledger.registry.reference(records(0)), tickets, adaptive=False)
    winner = Winner(2, (drawn,), (), tickets)
    plan = planned(ledger=ledger, start=from_winner(winner), **noise)
    assert (plan.start.round, plan.lineage) == (2, (drawn,))
    held = planned(ledger=Ledger((drawn,), registry=ledger.registry), start=from_winner(winner), **noise)
    assert held.lineage == ()
    assert planned_report(held).certified == planned_report(plan).certified
    ledger.append(planned(ledger=ledger, **noise).event)  # after which a draw counts as a later one
    assert planned(ledger=ledger, start=from_winner(winner), **noise).lineage == (having(drawn, adaptive=True),)
    other = planned(ledger=ledger, start=from_winner(winner, 1), **noise)  # a round that never won
    assert (other.start.round, other.lineage) == (1, ())


def test_a_draw_on_other_records_is_entered_on_them(ledger):
    tickets, theirs = ticket_set(ledger.registry), ledger.registry.reference(records(2))
    start = from_winner(Winner(2, (a_draw(theirs, tickets),), (), tickets))
    plan = planned(ledger=ledger, start=start, noise_multiplier=5.0)
    assert [event.dataset for event in plan.lineage] == [theirs]
    assert theirs in plan.sources
    assert planned_report(plan).certified.epsilon == total_epsilon([plan.event], 1e-5)
    assert "the winner was drawn on other records, records2, and depends on them" in planned_report(plan).notes


def test_a_round_taken_by_hand_brings_the_draws_of_the_ledger_of_its_set(ledger):
    """Which round won is not on record in memory: a draw may be behind any choice."""
    tickets = ticket_set(ledger.registry)
    drawn = a_draw(ledger.registry.reference(records(0)), tickets)
    kept = replace(tickets, ledger=Ledger((drawn,), registry=ledger.registry))
    plan = planned(ledger=ledger, start=starting_point(kept, records(0), round=1), noise_multiplier=5.0)
    assert plan.lineage == (drawn,)
    assert starting_point(kept, records(0), dense=True).drawn == ()


def test_test_records_that_the_ledger_protects(ledger):
    theirs = records(2)
    ledger.append(planned(ledger=ledger, dataset=theirs, start=fresh(DENSE, 0), noise_multiplier=5.0).event)
    x, y = theirs.train.x[:30], theirs.train.y[:30]
    mine = records(0).train
    shown = from_arrays(mine.x, mine.y, test=(x, y), classes=CLASSES, name="mine")
    assert refusal(ledger=ledger, dataset=shown, noise_multiplier=5.0) == (
        "`dataset`, `test`: 30 of the 30 test records of mine are records of records2, which the ledger protects, so"
        " accuracy there would show them; take them out"
    )
    assert planned(ledger=ledger, dataset=shown, noise_multiplier=5.0, eval_private=1.0).evaluations


# --- how the budget is divided ---


def test_the_budget_covers_what_the_ledger_holds(ledger):
    tickets = ticket_set(ledger.registry)
    ledger.append(a_draw(ledger.registry.reference(records(0)), tickets, 0.5))
    plan = planned(ledger=ledger, start=from_round(tickets, 2), epsilon=1.0)
    certified = planned_report(plan).certified.epsilon
    assert 0.998 < certified <= 1
    assert total_epsilon([plan.event], 1e-5) < 0.85
    assert certified == total_epsilon([*ledger.events, plan.event], 1e-5)
    assert len(ledger.events) == 1, "a plan enters nothing"
    assert plan.config.noise_std == facts(plan)["noise_multiplier"] * facts(plan)["sensitivity"]


REMEDY = (
    "; set a larger `epsilon`, a new budget for all of it together (another `ledger` leaves out what stands in this one"
    " alone, and both add up all the same)"
)


@pytest.mark.parametrize("budget", [0.3, 30.0])
def test_a_spent_budget(ledger, budget):
    ledger.append(planned(ledger=ledger, steps=30, epsilon=budget).event)
    assert refusal(BudgetError, ledger=ledger, steps=30, epsilon=budget).endswith(REMEDY)
    assert planned(ledger=ledger, steps=30, epsilon=2 * budget).event.mechanism.steps == 30  # as the message says


@pytest.mark.parametrize(
    "options",
    [
        {"noise_multiplier": 3.0, "budget_stop": True},
        {"noise_multiplier": 3000.0, "budget_stop": True},  # all of it fits the crumb
        {"eval_private": 1e-4},
        {"accountant": "rdp"},
        {"centre": 0.05},
    ],
    ids=str,
)
def test_whatever_else_takes_part_of_a_spent_budget(ledger, options):
    given = {"ledger": ledger, "start": fresh(DENSE, 0), "dataset": behind_unit(), "steps": 30, "epsilon": 1.0}
    ledger.append(planned(**given).event)
    message = refusal(BudgetError, **given, **options)
    assert message.startswith("budget: on these records epsilon ")
    assert "goes to 30 steps of training" in message
    assert message.endswith(REMEDY)


def test_a_paper_s_budget_is_divided_nominally(ledger):
    """As DPLTM's Theorem 3 has it, eps1 + eps2, of tickets made from the very records: nothing is certified."""
    tickets = ticket_set(ledger.registry, "private", records(0))
    start, ref = from_round(tickets, 1), ledger.registry.reference(records(0))
    ledger.append(a_draw(ref, tickets, 0.5))
    report = planned_report(planned(ledger=ledger, start=start, steps=30, epsilon=1.0))
    assert report.certified.epsilon == math.inf
    assert 0.998 < report.nominal.epsilon <= 1
    ledger.append(a_draw(ref, tickets, 0.495))
    message = refusal(BudgetError, ledger=ledger, start=start, steps=30, epsilon=1.0)
    assert message.startswith("budget: on these records nominal epsilon 0.995 goes to a winner drawn from 2 tick")
    assert " and 1 other release, which leaves less than 2 % of 1" in message


def test_nothing_is_left_where_a_release_had_no_protection(ledger):
    ref = ledger.registry.reference(records(0))
    ledger.append(NonPrivateEvent(ref, Unprotected(), "scores"))
    message = refusal(BudgetError, ledger=ledger, epsilon=1.0)
    assert message.startswith("budget: the ledger holds an unprotected release from these records")
    assert planned_report(planned(ledger=ledger, noise_multiplier=5.0)).certified.epsilon == math.inf


def test_a_budget_that_is_set_on_the_records(ledger):
    ref = ledger.registry.reference(records(0))
    ledger.append(BudgetEvent(ref, 1.0, 1e-5))
    assert refusal(BudgetError, ledger=ledger, epsilon=2.0).startswith("budget: this would bring records0 to epsilon ")
    assert planned(ledger=ledger, epsilon=1.0).event.mechanism.steps == 2


def test_the_run_stops_where_the_budget_ends():
    plan = planned(steps=40, epsilon=1.0, noise_multiplier=2.0, budget_stop=True)
    taken = plan.event.mechanism.steps
    assert 0 < taken < 40
    assert (plan.config.steps, facts(plan)["steps"]) == (taken, taken)
    assert f"`budget_stop` ends training after {taken} of 40 steps, before the one that would exceed" in plan.notes
    assert planned_report(plan).certified.epsilon <= 1
    more = planned(steps=taken + 1, noise_multiplier=2.0)
    assert planned_report(more).certified.epsilon > 1


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_the_centre_of_features_is_a_release_within_the_budget(adjacency):
    options = {"steps": 6, "epsilon": 2.0, "centre": 0.2, "adjacency": adjacency, "batch_size": 50.0}
    plan = planned(start=fresh(DENSE, 0), dataset=behind_unit(), **options)
    told, mean = plan.lineage
    assert (kinds([told, mean]), mean) == (["provenance", "gaussian"], plan.centre)
    assert mean.mechanism.sensitivity == (8.0 if adjacency == "add-remove" else 16.0)
    certified = total_epsilon([mean, plan.event], 1e-5)
    assert planned_report(plan).certified.epsilon == certified
    assert 1.99 < certified <= 2
    # a fifth of the budget, where noise adds up by its inverse square
    alone = having(mean, noise_multiplier=mean.mechanism.noise_multiplier * math.sqrt(0.2))
    assert total_epsilon([alone], 1e-5) == pytest.approx(2, rel=5e-3)


@pytest.mark.parametrize(("stop_at", "count"), [(None, 1), (0.9, 10)])
def test_evaluations_on_the_records_are_paid_for_one_by_one(stop_at, count):
    plan = planned(steps=40, noise_multiplier=5.0, eval_private=0.5, stop_at=stop_at)
    assert plan.lineage == plan.evaluations
    assert [event.mechanism.epsilon for event in plan.evaluations] == [0.5 / count] * count
    assert len({event.time for event in (*plan.evaluations, plan.event)}) == count + 1


def test_stopping_on_private_records_must_be_paid_for():
    assert refusal(noise_multiplier=5.0, stop_at=0.9).startswith(
        "`stop_at`: records0 has no test split, and stopping on the private records is a release that nothing pays for"
    )
    assert planned(dataset=records(0, test=20), noise_multiplier=5.0, stop_at=0.9).lineage == ()
    assert refusal(noise_multiplier=5.0, eval_private=1e-9).startswith(
        "`eval_private`: 1e-09 over 1 evaluations is noth"
    )


# --- what nobody chose ---


def one_layer(**options):
    return planned(start=fresh(DENSE, 0), dataset=behind_unit(), **options)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize(("optimizer", "schedule", "farther"), [("sgd", "constant", 1), ("momentum", "linear", 5)])
@pytest.mark.parametrize("budget", [{"epsilon": 0.5}, {"noise_multiplier": 7.0}])
@pytest.mark.parametrize("clip_norm", [0.2, 1.0])
def test_behind_features_the_noise_sets_the_step(ledger, adjacency, optimizer, schedule, farther, budget, clip_norm):
    options = {
        "optimizer": optimizer,
        "schedule": schedule,
        "clip_norm": clip_norm,
        "adjacency": adjacency,
        "steps": 30,
    }
    plan = one_layer(ledger=ledger, **budget, **options)
    config = plan.config
    step = config.lr * config.noise_std / config.expected_batch
    assert step * math.sqrt(30) * farther == pytest.approx(0.25)
    assert plan.notes[-1].startswith(f"`lr` is {config.lr:.3g}, so that the noise")


def test_with_little_noise_the_step_has_an_end(ledger):
    quiet = [one_layer(ledger=ledger, noise_multiplier=noise, steps=30).config.lr for noise in (0.0, 1e-3, 0.1)]
    assert quiet[0] == quiet[1] == quiet[2] < 30


def test_elsewhere_the_optimizer_sets_it(ledger):
    assert planned(ledger=ledger, epsilon=0.5).config.lr == 1.0
    assert one_layer(ledger=ledger, epsilon=0.5, lr=0.25).config.lr == 0.25
    assert one_layer(ledger=ledger, epsilon=0.5, optimizer="adam").config.lr == 0.002
    deeper = ModelSpec("mlp:5", FEATURES, CLASSES)
    assert planned(start=fresh(deeper, 0), dataset=behind_unit(), ledger=ledger, epsilon=0.5).config.lr == 1.0
    assert planned(start=fresh(DENSE, 0), ledger=ledger, epsilon=0.5).config.lr == 1.0


def test_behind_features_one_layer_is_trained():
    assert default_network(records(0)) == "mlp:300,100"
    assert default_network(behind_unit()) == "mlp"
