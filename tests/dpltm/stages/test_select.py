"""Phase 2 as a stage: what a draw is entered on, what is entered before it, and what is refused with nothing spent."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from dpltm.errors import BudgetError, DpltmError, InputError
from dpltm.features.feature_map import make_feature_map
from dpltm.options.generate import GenerateOptions
from dpltm.options.select import SelectOptions
from dpltm.privacy.events import BudgetEvent, SelectionEvent
from dpltm.privacy.old_ledger import Ledger
from dpltm.privacy.selection import SelectionPlan
from dpltm.pruning.ticket_set import TicketSet, Winner
from dpltm.records import Dataset
from dpltm.stages import generate as generate_stage
from dpltm.stages import select as select_stage
from dpltm.stages.select import plan, planned_report, select, select_public
from dpltm.stages.services import Services
from refusals import refused, refused_after_it_ran
from stage_cases import kinds
from stage_cases import plain_records as records

QUIET = Services()
ASKED = SelectOptions(eps1=0.5, score="additive")


PRIVATE, PUBLIC = records(0), records(1, name="theirs")


def tickets_of(dataset: Dataset, ledger: Ledger | None = None, **more) -> TicketSet:
    few = {} if more.get("criterion") == "random" and "provenance" not in more else {"iterations": 5, "batch_size": 32}
    options = GenerateOptions(model="mlp:8", rounds=2, prune="0.3", **few, **more)
    return generate_stage.generate(generate_stage.plan(dataset, options, ledger or Ledger(), QUIET), QUIET)


@pytest.fixture(scope="module")
def public() -> TicketSet:
    return tickets_of(PUBLIC, provenance="public")


@pytest.fixture(scope="module")
def private() -> TicketSet:
    return tickets_of(PRIVATE, provenance="private")


@pytest.fixture(scope="module")
def released() -> TicketSet:
    return tickets_of(PRIVATE, criterion="dp-synthetic", epsilon=1.0)


def drawn(tickets: TicketSet, dataset: Dataset = PRIVATE, options: SelectOptions = ASKED, ledger=None) -> Winner:
    return select(plan(tickets, dataset, options, ledger or Ledger(), QUIET), QUIET)


# What is entered


def test_a_draw_from_public_tickets(public):
    ledger = Ledger()
    winner = drawn(public, ledger=ledger)
    (event,) = ledger.events
    assert isinstance(event, SelectionEvent)
    mechanism = event.mechanism
    assert (mechanism.eps1, mechanism.certified_epsilon, mechanism.adaptive) == (0.5, 0.5, False)
    assert (event.sensitivity, event.candidates, event.ticket_set) == (1 / 200, 2, public.id)
    assert (winner.events, winner.earlier, winner.revealed) == ((event,), (), ())
    assert winner.round in (1, 2)
    assert winner.ticket is public.ticket(winner.round)
    assert winner.tickets.ledger is ledger
    assert 0 < winner.privacy.certified.epsilon <= 0.5
    assert winner.privacy.nominal.epsilon == 0.5


def test_no_count_is_taken_before_the_draw_is_on_record(public, monkeypatch):
    held: list[list[str]] = []
    count = select_stage.count_correct

    def watched(*given):
        held.append(kinds(ledger))
        return count(*given)

    ledger = Ledger()
    monkeypatch.setattr(select_stage, "count_correct", watched)
    drawn(public, ledger=ledger)
    assert held == [["SelectionEvent"]] * 2


def test_only_the_winner_depends_on_the_counts(public, monkeypatch):
    """With the draw fixed, whatever the records say changes nothing in what is returned."""
    monkeypatch.setattr(select_stage, "draw", lambda *_: 1)
    answers = []
    for right in (0, 200):
        monkeypatch.setattr(select_stage, "count_correct", lambda *_, right=right: right)
        winner = drawn(public)
        (event,) = winner.events
        fixed = replace(event, time="", dataset=replace(event.dataset, id="", content=""))
        answers.append((winner.round, fixed, winner.privacy, winner.revealed))
    assert answers[0] == answers[1]


def test_what_the_tickets_depend_on_comes_first(private, released):
    ledger = Ledger()
    winner = drawn(private, options=replace(ASKED, score="product", sensitivity="paper"), ledger=ledger)
    assert kinds(ledger) == ["private", "SelectionEvent"]
    assert winner.privacy.certified.epsilon == math.inf
    ledger = Ledger()
    winner = drawn(released, ledger=ledger)
    assert kinds(ledger) == ["GaussianEvent", "dp", "SelectionEvent"]
    assert ledger.events[2].mechanism.adaptive
    assert 1 < winner.privacy.certified.epsilon <= 1.5
    again = drawn(released, ledger=ledger)  # the release is known by now
    assert kinds(ledger)[3:] == ["SelectionEvent"]
    assert any(note.startswith("2 draws on these records are in the ledger") for note in again.privacy.notes)


def test_a_draw_is_what_its_event_says(public):
    """The plan of the mechanism and the event are one: epsilon, sensitivity, relation, candidates."""
    asked = SelectOptions(eps1=0.25, nu=3.0, mechanism="permute-and-flip", adjacency="replace-one")
    settled = plan(public, PRIVATE, asked, Ledger(), QUIET)
    densities = tuple(ticket.mask.density for ticket in public.body.tickets[1:])
    said = {"nu": 3.0, "mechanism": "permute-and-flip", "adjacency": "replace-one"}
    assert settled.draw == SelectionPlan(0.25, densities, 200, **said)
    mechanism = settled.event.mechanism
    assert (mechanism.draw, mechanism.certified_epsilon) == ("permute-and-flip", 0.25)
    assert settled.event.sensitivity == settled.draw.sensitivity
    assert mechanism.adjacency == planned_report(settled).certified.adjacency == "replace-one"


def test_draws_that_the_tickets_come_from_are_entered_as_well(public):
    first = drawn(public)
    of_winner = replace(public, draws=first.events)
    ledger = Ledger()
    winner = drawn(of_winner, ledger=ledger)
    assert ledger.events == (*first.events, *winner.events)
    assert winner.events[0].mechanism.adaptive
    assert winner.privacy.certified.epsilon > first.privacy.certified.epsilon


def test_an_unprotected_look_is_entered_and_returned(public):
    ledger = Ledger()
    winner = drawn(public, options=replace(ASKED, reveal=True), ledger=ledger)
    assert kinds(ledger) == ["SelectionEvent", "NonPrivateEvent"]
    assert winner.events == ledger.events
    assert winner.privacy.certified.epsilon == math.inf
    assert [row.round for row in winner.revealed] == [1, 2]
    assert sum(row.probability for row in winner.revealed) == pytest.approx(1)
    for row in winner.revealed:
        assert row.score == pytest.approx(row.accuracy - 0.05 * row.density)


def test_earlier_draws_go_along(public):
    ledger = Ledger()
    one = drawn(public, ledger=ledger)
    two = select(plan(public, PRIVATE, ASKED, ledger, QUIET, earlier=((one.round, one.events),)), QUIET)
    assert two.behind(two.round) == ledger.events
    assert (two.events[0].mechanism.adaptive, one.events[0].mechanism.adaptive) == (True, False)


def test_records_behind_the_map_that_the_tickets_were_made_with():
    """Another set of records is scored behind the same map, and where that comes from is entered first."""
    front = make_feature_map("unit", (6,), PUBLIC.bounds)
    ledger = Ledger()
    drawn(tickets_of(replace(PUBLIC, feature_map=front), provenance="public"), ledger=ledger)
    assert kinds(ledger) == ["data-free", "SelectionEvent"]


# A plan


def test_a_plan_spends_nothing_reports_what_would_be_spent_and_runs_once(released):
    ledger = Ledger()
    settled = plan(released, PRIVATE, replace(ASKED, reveal=True), ledger, QUIET)
    assert planned_report(settled).certified.epsilon == math.inf
    settled = plan(released, PRIVATE, ASKED, ledger, QUIET)
    assert ledger.events == ()
    assert planned_report(settled).certified == select(settled, QUIET).privacy.certified
    held = ledger.events
    refused_after_it_ran(lambda each: select(each, QUIET), settled)
    assert ledger.events == held


# Which sensitivity holds


@pytest.mark.parametrize("score", ["product", "additive"])
@pytest.mark.parametrize("provenance", ["public", "private", "dp"])
def test_exact_only_where_the_predictors_are_fixed(public, private, released, provenance, score):
    tickets = {"public": public, "private": private, "dp": released}[provenance]
    options = SelectOptions(eps1=0.5, score=score)
    if (provenance, score) == ("private", "additive"):
        message = refused(plan, tickets, PRIVATE, options, Ledger(), QUIET)
        assert message.startswith("`sensitivity`: exact does not hold, since these tickets' predictors were")
        return
    settled = plan(tickets, PRIVATE, options, Ledger(), QUIET)
    assert settled.draw.rule == ("paper" if provenance == "private" else "exact")
    assert plan(tickets, records(7), options, Ledger(), QUIET).draw.rule == "exact"  # whoever these records are


# Refused, with nothing entered


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"eps1": 1.0, "nu": -1.0}, "`nu`: -1.0 is not a number >= 0; 50 is DPLTM's"),
        (
            {"eps1": 1.0, "delta": 0.1},
            "`delta`: 0.1 is not between 0 and 1/n = 0.005 for 200 records; take one well below it",
        ),
    ],
)
def test_refused(public, given, message):
    ledger = Ledger()
    assert refused(plan, public, PRIVATE, SelectOptions(**given), ledger, QUIET) == message
    assert ledger.events == ()


def test_tickets_with_nothing_to_score():
    bare, rule = tickets_of(PUBLIC, criterion="random"), SelectOptions(rule="smallest-within")
    for ask in (lambda: plan(bare, PRIVATE, ASKED, Ledger(), QUIET), lambda: select_public(bare, rule)):
        assert refused(ask) == (
            "theirs: its tickets have no predictors to score; train one by its round, as in theirs@2"
        )


def test_records_of_another_shape_or_declared_public(public):
    ledger = Ledger()
    tickets_of(PRIVATE, ledger, provenance="public")
    for dataset, held, message in (
        (records(0, features=7), Ledger(), "theirs: its network takes 6 features, but mine has"),
        (records(0, classes=4), Ledger(), "theirs: its network has 3 classes, but mine has"),
        (PUBLIC, Ledger(), r"theirs: its tickets were made from .*, declared public, and .* shares"),
        (PRIVATE, ledger, r"`dataset`: the ledger has .* down as public"),
    ):
        before = held.events
        with pytest.raises(InputError, match=message):
            plan(public, dataset, ASKED, held, QUIET)
        assert held.events == before


def test_a_budget_on_the_records_holds(public):
    ledger, shown = Ledger(), replace(ASKED, reveal=True)
    ledger.append(BudgetEvent(ledger.registry.reference(PRIVATE), 1.0, 1e-5))
    for options, fits in ((shown, False), (ASKED, True), (ASKED, True), (ASKED, False)):
        if fits:
            drawn(public, options=options, ledger=ledger)
        else:
            with pytest.raises(BudgetError, match="above the budget of 1 set on"):
                plan(public, PRIVATE, options, ledger, QUIET)
    assert kinds(ledger) == ["BudgetEvent", "SelectionEvent", "SelectionEvent"]


# The paper's rule on public accuracies


def with_accuracies(tickets: TicketSet, *accuracies: float | None) -> TicketSet:
    measured = tuple(
        replace(ticket, accuracy=accuracy)
        for ticket, accuracy in itertools.zip_longest(tickets.body.tickets, accuracies)
    )
    return replace(tickets, body=replace(tickets.body, tickets=measured))


def test_the_sparsest_within_the_tolerance(public):
    rule = SelectOptions(rule="smallest-within", tolerance=0.05, max_density=0.8)
    for accuracies, chosen in (((0.9, 0.86, 0.86), 2), ((0.9, 0.86, 0.84), 1)):
        winner = select_public(with_accuracies(public, *accuracies), rule)
        assert (winner.round, winner.events) == (chosen, ())
        assert winner.privacy.certified.epsilon == 0
        assert winner.privacy.notes == (f"chosen on {public.source}, declared public: no private record was used",)
    with pytest.raises(DpltmError, match=r"no ticket of at most 80% density is within 0\.05 of the dense accuracy"):
        select_public(with_accuracies(public, 0.9, 0.8, 0.8), rule)
    for given in ({"tolerance": 2.0}, {"max_density": 0.0}):
        wrong = SelectOptions(rule="smallest-within", **given)
        assert refused(select_public, public, wrong) == "`tolerance`, `max_density`: must be between 0 and 1"


def test_the_rule_takes_public_accuracies_alone(private, released, public):
    rule = SelectOptions(rule="smallest-within")
    for tickets in (private, released):
        assert refused(select_public, with_accuracies(tickets, 0.9, 0.9, 0.9), rule).startswith(
            "`rule`: smallest-within looks at accuracies unprotected, so it needs public ones, and mine has provenance"
        )
    with pytest.raises(InputError, match="`rule`: theirs holds no accuracies to compare; use `rule` mechanism `eps1`"):
        select_public(with_accuracies(public, 0.9, None, 0.9), rule)
