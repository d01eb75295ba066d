"""Phase 2: what a draw is entered on, what is entered before it, and what is refused with nothing spent."""

import copy
import itertools
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import dpltm
from dpltm.errors import DpltmError
from dpltm.features.inputs import Services
from dpltm.options.generate import GenerateOptions
from dpltm.options.select import SelectOptions
from dpltm.options.tickets import TransferOptions
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Selection, Unprotected
from dpltm.privacy.selection import SelectionPlan
from dpltm.records import Dataset, from_arrays
from dpltm.training.artifacts import Draws, TicketSet, Winner
from dpltm.verbs import generate as generating
from dpltm.verbs import select as verb
from dpltm.verbs.select import plan, select, select_public
from dpltm.verbs.transfer import transfer
from gradient_cases import Applied, Product
from refusals import refused

QUIET = Services()
ASKED = SelectOptions(eps1=0.5, score="additive")


def records(seed: int, count: int = 200, features: int = 6, name: str = "mine", classes: int = 3) -> Dataset:
    draw = np.random.default_rng(seed)
    x, y = draw.integers(0, 256, (count, features), dtype=np.uint8), np.arange(count) % 3
    return from_arrays(x, y, name=name, classes=classes, records=count)


PRIVATE, PUBLIC = records(0), records(1, name="theirs")


def made(dataset: Dataset, ledger: Ledger | None = None, **more) -> TicketSet:
    few = {} if more.get("criterion") == "random" and "provenance" not in more else {"iterations": 5, "batch_size": 32}
    options = GenerateOptions(model="mlp:8", rounds=2, prune="0.3", **few, **more)
    return generating.generate(generating.plan(dataset, options, ledger or Ledger(), QUIET))


@cache
def _made(provenance: str) -> TicketSet:
    if provenance == "dp":
        return made(PRIVATE, criterion="dp-train", epsilon=1.0)
    return made(PUBLIC if provenance == "public" else PRIVATE, provenance=provenance)


def tickets_of(provenance: str) -> TicketSet:
    """A set that nothing was drawn from yet."""
    return replace(_made(provenance), draws=Draws())


@pytest.fixture
def public() -> TicketSet:
    return tickets_of("public")


def drawn(tickets: TicketSet, dataset: Dataset = PRIVATE, options: SelectOptions = ASKED, ledger=None) -> Winner:
    return select(plan(tickets, dataset, options, ledger or Ledger(), QUIET))


def weighted() -> nn.Module:
    """No rule takes it, since the whole network owns a parameter; and torch.func does not either."""
    parts = {"query": nn.Parameter(torch.randn(6)), "head": nn.Linear(6, 3)}
    return Applied(lambda self, x: self.head(Product.apply(x, self.query)), **parts)


def mixes_in_training() -> nn.Module:
    """Mixes records while it is trained, and not when it scores."""
    return Applied(lambda self, x: self.head(x - x.mean(0) if self.training else x), head=nn.Linear(6, 3))


MAPS = {"": None, " behind a map": "unit"}


@pytest.mark.one_of(2)
@pytest.mark.parametrize("features", MAPS.values(), ids=MAPS)
@pytest.mark.parametrize("network", [weighted, mixes_in_training])
def test_a_network_that_no_training_takes_is_refused_before_a_draw(network, features):
    """In the words of the training, which would come after the draw was paid for."""
    given = {"rounds": 1, "iterations": 2, "batch_size": 20}
    behind = {} if features is None else {"features": features}
    tickets = dpltm.generate(PUBLIC, model=network, provenance="public", **given, **behind)
    ledger = Ledger()
    said = refused(dpltm.train, tickets, PRIVATE, round=1, noise_multiplier=4.0, steps=1, ledger=ledger)
    assert refused(plan, tickets, PRIVATE, ASKED, ledger, QUIET) == said
    assert refused(dpltm.select, tickets, PRIVATE, eps1=0.5, ledger=ledger) == said
    under_dp = {"criterion": "dp-train", "epsilon": 1.0, "ledger": ledger, **given, **behind}
    assert refused(dpltm.generate, PRIVATE, model=network, **under_dp) == said
    assert not ledger.entries
    assert dpltm.generate(PRIVATE, model=network, provenance="data-free", criterion="random", rounds=1).provenance


def test_a_network_that_takes_no_person_is_refused_before_a_draw():
    few = {"rounds": 1, "iterations": 2, "batch_size": 20}
    tickets = dpltm.generate(PUBLIC, model=lambda: nn.Linear(6, 3), provenance="public", **few)
    x = np.random.default_rng(0).integers(0, 256, (200, 6), dtype=np.uint8)
    persons = {"units": np.arange(200) // 2, "unit": "user", "per_unit": 2}
    ledger = Ledger(unit="user")
    options = {**persons, "classes": 3, "delta": 1e-4, "ledger": ledger}
    said = refused(dpltm.train, tickets, x, np.arange(200) % 3, round=1, noise_multiplier=4.0, steps=1, **options)
    assert refused(dpltm.select, tickets, x, np.arange(200) % 3, eps1=0.5, **options) == said
    assert not ledger.entries


def test_a_draw_from_public_tickets(public):
    ledger, before = Ledger(), public.lineage
    winner = drawn(public, ledger=ledger)
    (entry,) = ledger.entries
    assert (entry.mechanisms, entry.part) == ((Selection(0.5, 0.5),), ledger.part(PRIVATE))
    assert winner.facts == {
        "eps1": 0.5,
        "mechanism": "exponential",
        "score": "additive",
        "sensitivity": {"rule": "exact", "value": 1 / 200},
    }
    assert winner.lineage.entries == public.lineage.entries == (*before.entries, entry)
    assert (winner.tickets, winner.revealed) == (public, ())
    assert winner.ticket is public.ticket(winner.round)
    assert winner.round in (1, 2)
    assert 0 < winner.privacy.certified.epsilon <= 0.5
    assert winner.privacy.nominal.epsilon == 0.5


def test_sets_that_share_the_tickets_carry_the_draw_whenever_they_were_made(public):
    """A copy, a transfer and a compaction made before: whoever takes the round that won from them chose by the draw."""
    other = records(2, features=8)
    before = (
        replace(public, name="b"),
        copy.copy(public),
        copy.deepcopy(public),
        transfer(public, other, TransferOptions())[0],
    )
    winner = drawn(public)
    assert all(winner.lineage.paid == each.lineage.paid for each in before)
    assert not made(PUBLIC, provenance="public").lineage.paid


def test_no_count_is_taken_before_the_draw_is_on_record_and_the_set_marked(public, monkeypatch):
    held: list[tuple[int, int]] = []
    count = verb.total_score

    def watched(*given, **named):
        held.append((len(ledger.entries), len(public.lineage.paid)))
        return count(*given, **named)

    ledger = Ledger()
    monkeypatch.setattr(verb, "total_score", watched)
    drawn(public, ledger=ledger)
    assert held == [(1, 1)] * 2


def test_only_the_winner_depends_on_the_counts(monkeypatch):
    """With the draw fixed, whatever the records say changes nothing in what is returned."""
    monkeypatch.setattr(verb.selection, "draw", lambda *_: 1)
    answers = []
    for right in (0, 200):
        monkeypatch.setattr(verb, "total_score", lambda *_, right=right, **__: right)
        winner = drawn(tickets_of("public"))
        drafts = [(entry.kind, entry.mechanisms, entry.words) for entry in winner.lineage.entries]
        answers.append((winner.round, drafts, winner.facts, winner.privacy, winner.revealed))
    assert answers[0] == answers[1]


def test_a_draw_is_what_its_entry_says(public):
    """The plan of the mechanism and the entry are one: epsilon, relation, candidates."""
    asked = SelectOptions(eps1=0.25, nu=3.0, mechanism="permute-and-flip", adjacency="replace-one")
    settled = plan(public, PRIVATE, asked, Ledger(), QUIET)
    densities = tuple(ticket.mask.density for ticket in public.body.tickets[1:])
    said = {"nu": 3.0, "mechanism": "permute-and-flip", "adjacency": "replace-one"}
    assert settled.settled == SelectionPlan(0.25, densities, 200, **said)
    assert settled.entry.mechanisms == (Selection(0.25, 0.25, draw="permute-and-flip", adjacency="replace-one"),)
    assert settled.priced().certified.adjacency == "replace-one"


def test_an_unprotected_look_is_entered_and_returned(public):
    ledger = Ledger()
    winner = drawn(public, options=replace(ASKED, reveal=True), ledger=ledger)
    assert [type(entry.mechanisms[0]) for entry in ledger.entries] == [Selection, Unprotected]
    assert winner.lineage.paid == public.lineage.paid == ledger.entries
    assert winner.privacy.certified.epsilon == math.inf
    assert [row["round"] for row in winner.revealed] == [1, 2]
    assert sum(row["probability"] for row in winner.revealed) == pytest.approx(1)
    for row in winner.revealed:
        assert row["score"] == pytest.approx(row["accuracy"] - 0.05 * row["density"])


def test_a_plan_spends_nothing_and_reports_what_would_be_spent():
    ledger, released = Ledger(), tickets_of("dp")
    settled = plan(released, PRIVATE, replace(ASKED, reveal=True), ledger, QUIET)
    assert settled.priced().certified.epsilon == math.inf
    settled = plan(released, PRIVATE, ASKED, ledger, QUIET)
    assert (ledger.entries, len(released.lineage.paid)) == ((), 1)
    assert settled.priced().certified == select(settled).privacy.certified


@pytest.mark.parametrize("score", ["product", "additive"])
@pytest.mark.parametrize("provenance", ["public", "private", "dp"])
def test_exact_only_where_the_predictors_are_fixed(provenance, score):
    """Private tickets know their records in the ledger that they were made in."""
    ledger, options = Ledger(), SelectOptions(eps1=0.5, score=score)
    tickets = made(PRIVATE, ledger, provenance="private") if provenance == "private" else tickets_of(provenance)
    assert plan(tickets, records(7), options, ledger, QUIET).settled.rule == "exact"
    if (provenance, score) == ("private", "additive"):
        message = refused(plan, tickets, PRIVATE, options, ledger, QUIET)
        assert message.startswith("`sensitivity`: exact does not hold, since these tickets' predictors were")
        return
    settled = plan(tickets, PRIVATE, options, ledger, QUIET)
    assert settled.settled.rule == ("paper" if provenance == "private" else "exact")


def test_tickets_with_nothing_to_score():
    said = "theirs: its tickets have no predictors to score; train one by its round, such as 2"
    assert refused(plan, made(PUBLIC, criterion="random"), PRIVATE, ASKED, Ledger(), QUIET) == said


def test_records_of_another_shape_or_declared_public():
    ledger = Ledger()
    public = made(PUBLIC, ledger, provenance="public")
    for dataset, message in (
        (records(0, features=7), "theirs: its network takes 6 features, but mine has"),
        (replace(PRIVATE, classes=4), "theirs: its network has 3 classes, but mine has"),
        (PUBLIC, "`dataset`: theirs was declared public, and theirs shares records"),
    ):
        assert refused(plan, public, dataset, ASKED, ledger, QUIET).startswith(message)
    assert len(ledger.entries) == 1


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
        assert (winner.round, winner.lineage) == (chosen, public.lineage)
        assert winner.privacy.certified.epsilon == 0
    with pytest.raises(DpltmError, match=r"no ticket of at most 80% density is within 0\.05 of the dense accuracy"):
        select_public(with_accuracies(public, 0.9, 0.8, 0.8), rule)


def test_the_rule_counts_no_projection():
    """It belongs to no ticket: all of it lives, whatever is pruned behind it, here to 0.4 x 0.4."""
    options = GenerateOptions(
        model="mlp:project64,8", rounds=2, prune="0.6", iterations=5, batch_size=32, provenance="public"
    )
    tickets = generating.generate(generating.plan(PUBLIC, options, Ledger(), QUIET))
    rule = SelectOptions(rule="smallest-within", tolerance=0.05, max_density=0.2)
    assert tickets.body.tickets[2].mask.density > 0.5
    assert select_public(with_accuracies(tickets, 0.9, 0.9, 0.9), rule).round == 2


def test_the_rule_takes_public_accuracies_alone(public):
    measured = (with_accuracies(tickets_of(name), 0.9, 0.9, 0.9) for name in ("private", "dp"))
    for tickets in (*measured, with_accuracies(public, 0.9, None, 0.9), made(PUBLIC, criterion="random")):
        said = f"`rule`: smallest-within compares public accuracies, and {tickets.label}, of provenance {tickets.provenance}"
        assert refused(select_public, tickets, SelectOptions(rule="smallest-within")).startswith(said)
