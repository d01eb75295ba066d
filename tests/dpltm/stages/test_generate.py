"""Phase 1 as a stage: what tickets depend on, what is entered before what, and what is refused with nothing spent."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from dp_accounting import dp_event
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

from dpltm.errors import BudgetError, InputError
from dpltm.features.feature_map import make_feature_map
from dpltm.options.generate import GenerateOptions
from dpltm.privacy.events import BudgetEvent, GaussianEvent, NonPrivateEvent, TrainingEvent
from dpltm.privacy.mechanisms import Unprotected
from dpltm.privacy.old_ledger import Ledger
from dpltm.pruning import DATA_FREE, DP_CRITERIA
from dpltm.pruning.ticket_set import TicketSet
from dpltm.randomness.keyed_source import KeyedSource
from dpltm.records import Dataset
from dpltm.stages import generate_dp
from dpltm.stages.generate import generate, plan, planned_report
from dpltm.stages.services import Services
from refusals import refused, refused_after_it_ran
from stage_cases import kinds
from stage_cases import plain_records as records

QUIET = Services()
# 48 and 24 weights: 14 and 7 go, then 10 and 5; 8 + 3 biases stay
DENSITIES, LIVE = [1.0, 51 / 72, 36 / 72], [83, 62, 47]
TINY = {"model": "mlp:8", "rounds": 2, "prune": "0.3", "iterations": 5, "batch_size": 32}
BARE = {"model": "mlp:8", "rounds": 2, "prune": "0.3"}


PRIVATE, PUBLIC = records(0), records(1, name="theirs")
TESTED = records(0, test=(PUBLIC.train.x, PUBLIC.train.y))


def options_of(criterion: str, **more) -> GenerateOptions:
    few = BARE if criterion in DATA_FREE and more.get("provenance") in (None, "data-free") else TINY
    return GenerateOptions(criterion=criterion, **{**few, **more})


def made(dataset: Dataset, options: GenerateOptions, ledger: Ledger | None = None) -> TicketSet:
    return generate(plan(dataset, options, ledger or Ledger(), QUIET), QUIET)


def certified(tickets: TicketSet) -> float:
    return tickets.privacy.certified.epsilon


def epsilon_of(event: TrainingEvent, delta: float = 1e-5) -> float:
    """dp-accounting's own figure for one training event."""
    step = dp_event.PoissonSampledDpEvent(
        event.mechanism.sampling_rate, dp_event.GaussianDpEvent(event.mechanism.noise_multiplier)
    )
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    return accountant.compose(dp_event.SelfComposedDpEvent(step, event.mechanism.steps)).get_epsilon(delta)


# What the tickets depend on, and what is entered


@pytest.mark.parametrize("criterion", DATA_FREE)
def test_without_data(criterion):
    ledger = Ledger()
    tickets = made(PRIVATE, options_of(criterion), ledger)
    assert ledger.events == ()
    assert (tickets.provenance, tickets.source, certified(tickets)) == ("data-free", None, 0.0)
    assert [ticket.mask.density for ticket in tickets.body.tickets] == DENSITIES
    assert [(ticket.accuracy, ticket.predictor) for ticket in tickets.body.tickets] == [(None, None)] * 3
    assert tickets.privacy.notes[1:] == (
        "no record was looked at, so the tickets cost nothing; they have no predictors: train one by its round",
    )
    scope = "global" if criterion == "synflow" else "layer"
    expected = {"rounds": 2, "prune": (0.3, 0.3), "criterion": criterion, "scope": scope, "seed": 0}
    assert tickets.config == expected
    assert made(PUBLIC, options_of(criterion, provenance="data-free")).id == tickets.id  # whatever the records


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("criterion", ["magnitude", "random", "init-magnitude", "synflow"])
def test_on_public_records(criterion, scope):
    ledger = Ledger()
    tickets = made(PUBLIC, options_of(criterion, scope=scope, provenance="public"), ledger)
    assert kinds(ledger) == ["public"]
    assert (ledger.events[0].ticket_set, ledger.events[0].dataset) == (tickets.id, tickets.source)
    assert (tickets.provenance, certified(tickets), tickets.is_scored) == ("public", 0.0, True)
    assert all(0 <= ticket.accuracy <= 1 for ticket in tickets.body.tickets)
    assert [ticket.mask.live for ticket in tickets.body.tickets] == LIVE
    by_layer = [int(tickets.ticket(2).mask[f"fc{number}.weight"].sum()) for number in (1, 2)]
    assert (by_layer == [24, 12]) == (scope == "layer")


@pytest.mark.parametrize("reveal", [False, True])
@pytest.mark.parametrize("criterion", ["magnitude", "random"])
def test_on_private_records(criterion, reveal):
    """Predictors were trained on them, whatever the masks look at; no text of a set shows their accuracies."""
    ledger = Ledger()
    tickets = made(PRIVATE, options_of(criterion, provenance="private", reveal=reveal), ledger)
    assert kinds(ledger) == ["private", *(["NonPrivateEvent"] if reveal else [])]
    assert certified(tickets) == math.inf
    told = f"{tickets!r} {tickets.body!r} {tickets.ticket(1)!r} {tickets.privacy!r} {tickets.config!r}"
    assert not any(repr(ticket.accuracy) in told for ticket in tickets.body.tickets if ticket.accuracy not in (0, 1))


@pytest.mark.parametrize("criterion", DP_CRITERIA)
def test_under_dp(criterion):
    """There are no records that accuracies could be told of, but those of a test split. A map in front comes first."""
    ledger, front = Ledger(), make_feature_map("unit", (6,), PRIVATE.bounds)
    tickets = made(replace(PRIVATE, feature_map=front), options_of(criterion, epsilon=1.0), ledger)
    told, spent, said = ledger.events
    assert told.provenance == "data-free"
    assert (tickets.events, tickets.provenance) == ((spent,), "dp")
    assert (said.provenance, said.ticket_set, said.dataset) == ("dp", tickets.id, spent.dataset)
    assert 0.99 < certified(tickets) <= 1
    assert (tickets.config["criterion"], tickets.config["epsilon"]) == (criterion, 1.0)
    assert all(ticket.accuracy is None for ticket in tickets.body.tickets)
    if criterion == "dp-train":
        assert (spent.mechanism.steps, spent.mechanism.sampling_rate) == (5, 32 / 200)
        assert certified(tickets) == pytest.approx(epsilon_of(spent), rel=1e-3)
    else:
        assert isinstance(spent, GaussianEvent)
    tested = made(TESTED, options_of(criterion, epsilon=1.0))
    assert all(0 <= ticket.accuracy <= 1 for ticket in tested.body.tickets)


def test_late_rewinding_and_no_predictors():
    early = made(PUBLIC, options_of("magnitude", provenance="public"))
    late = options_of("magnitude", provenance="public", rewind=4)
    assert made(PUBLIC, late).id != early.id
    assert plan(PUBLIC, late, Ledger(), QUIET).steps == 5 + 2 * 1
    bare = made(PUBLIC, options_of("magnitude", provenance="public", no_predictors=True))
    assert (bare.is_scored, bare.id) == (False, early.id)


# Entered before it is used


@pytest.mark.parametrize("criterion", DP_CRITERIA)
def test_the_release_is_on_record_before_any_random_bit_is_drawn(criterion, monkeypatch):
    drawn: list[list[str]] = []

    class Watched(KeyedSource):
        def random_bytes(self, count: int) -> memoryview:
            drawn.append(kinds(ledger))
            return super().random_bytes(count)

    ledger = Ledger()
    monkeypatch.setattr(generate_dp, "KeyedSource", Watched)
    made(PRIVATE, options_of(criterion, epsilon=1.0), ledger)
    release = "TrainingEvent" if criterion == "dp-train" else "GaussianEvent"
    assert drawn
    assert all(held == [release] for held in drawn)


def test_what_ends_the_training_leaves_the_release_on_record(monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    ledger = Ledger()
    monkeypatch.setattr(generate_dp.Descent, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        made(PRIVATE, options_of("dp-train", epsilon=1.0), ledger)
    monkeypatch.undo()
    assert kinds(ledger) == ["TrainingEvent"]
    with pytest.raises(BudgetError, match=r"so nothing is left of 0\.5"):
        plan(PRIVATE, options_of("dp-train", epsilon=0.5), ledger, QUIET)
    tickets = made(PRIVATE, options_of("dp-train", epsilon=2.0), ledger)
    assert tickets.events == ledger.events[1:2]  # the first one is not what these tickets were made of
    assert 1.9 < certified(tickets) <= 2


def test_a_plan_spends_nothing_reports_what_would_be_spent_and_runs_once():
    ledger = Ledger()
    settled = plan(PRIVATE, options_of("dp-train", epsilon=1.0), ledger, QUIET)
    assert ledger.events == ()
    assert planned_report(settled).certified == generate(settled, QUIET).privacy.certified
    held = ledger.events
    refused_after_it_ran(lambda each: generate(each, QUIET), settled)
    assert ledger.events == held


def test_a_budget_on_the_records_holds():
    ledger = Ledger()
    ledger.append(BudgetEvent(ledger.registry.reference(PRIVATE), 1.0, 1e-5))
    with pytest.raises(BudgetError, match="above the budget of 1 set on"):
        plan(PRIVATE, options_of("dp-train", epsilon=1.5), ledger, QUIET)
    assert len(ledger.events) == 1
    assert certified(made(PRIVATE, options_of("dp-train", epsilon=0.5), ledger)) <= 0.5


# Refused, with nothing entered

UNTRAINED = "`{}`: nothing is trained for data-free tickets; leave it out, or say `provenance` public"
SAY_DP = "`provenance`: {} makes tickets under DP; say dp, or leave it out"
SPENDS_NONE = "`epsilon`: only for `criterion` dp-train and dp-synthetic; {} spends none"
NOTHING_WITHHELD = "`reveal`: only for private tickets; those of provenance {} withhold nothing"
REFUSED = [
    (
        {"provenance": "data-free"},
        "`provenance`: magnitude looks at weights trained on the records, so it is not data-free; take `criterion` random,"
        " init-magnitude, synflow",
    ),
    (
        {"criterion": "synflow", "provenance": "dp", "epsilon": 1.0},
        "`provenance`: synflow spends nothing and is not DP; dp is for `criterion` dp-train and dp-synthetic",
    ),
    *(
        ({"criterion": criterion, "provenance": said, "epsilon": 1.0}, SAY_DP.format(criterion))
        for criterion, said in itertools.product(DP_CRITERIA, ("public", "private", "data-free"))
    ),
    ({"criterion": "random", "provenance": "data-free", "epsilon": 1.0}, SPENDS_NONE.format("random")),
    *(
        ({"criterion": "dp-train", "epsilon": value}, f"`epsilon`: {value:g} is not a positive number up to 10000")
        for value in (0.0, math.nan, 1e5)
    ),
    (
        {"criterion": "random", "rewind": 3},
        "`rewind`: needs a training to rewind into, and data-free tickets have none; leave it out",
    ),
    ({"criterion": "random", "prune": "a,b"}, "`prune`: 'a,b' is not a list of numbers separated by commas"),
    *(
        (
            {"provenance": "public", name: 10**12},
            f"`{name}`: 1,000,000,000,000 is more than 100,000,000; ask for fewer",
        )
        for name in ("iterations", "batch_size")
    ),
    ({"provenance": "public", "delta": 2.0}, "`delta`: 2 is not between 0 and 1"),
    *(
        ({"criterion": "random", name: value}, UNTRAINED.format(name))
        for name, value in (("batch_size", 32), ("lr", 0.1))
    ),
    ({"criterion": "random", "provenance": "data-free", "iterations": 5}, UNTRAINED.format("iterations")),
    ({"provenance": "public", "reveal": True}, NOTHING_WITHHELD.format("public")),
    ({"criterion": "random", "reveal": True}, NOTHING_WITHHELD.format("data-free")),
    ({"criterion": "dp-train", "epsilon": 1.0, "reveal": True}, NOTHING_WITHHELD.format("dp")),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_refused(given, message):
    ledger = Ledger()
    assert refused(plan, PRIVATE, options_of(**{"criterion": "magnitude", **given}), ledger, QUIET) == message
    assert ledger.events == ()


def test_a_batch_is_measured_against_the_records_that_there_are():
    """Without a mechanism it is of exactly so many, and there may be fewer than the public number."""
    fewer = records(0, records=300)
    with pytest.raises(InputError, match="`batch_size`: 250 is more than there are records in mine"):
        plan(fewer, options_of("magnitude", provenance="public", batch_size=250), Ledger(), QUIET)
    assert plan(fewer, options_of("dp-train", epsilon=1.0, batch_size=250), Ledger(), QUIET).config.batch_size == 250


def test_what_dp_criteria_cannot_do():
    """200 records in batches of 50 are 60 steps in 15 epochs, whatever other criteria take by default."""
    way = options_of("dp-synthetic", epsilon=1.0)
    message = refused(plan, records(0, 40, 8_193), way, Ledger(), QUIET)
    assert message.startswith("`criterion` dp-synthetic: takes at most 8192 features")
    late = GenerateOptions(criterion="dp-train", epsilon=1.0, rewind=60, **BARE)
    assert refused(plan, PRIVATE, late, Ledger(), QUIET).startswith("`rewind`: 60 is not a step from 0 to 59")


def test_records_are_not_both_spent_on_and_declared_public():
    spend, declare = options_of("dp-train", epsilon=1.0), options_of("magnitude", provenance="public")
    for first, second, message in (
        (spend, declare, "`dataset`, `public`: the ledger holds what was spent on mine"),
        (declare, spend, r"`dataset`: the ledger has .* down as public"),
    ):
        ledger = Ledger()
        made(PRIVATE, first, ledger)
        held = ledger.events
        with pytest.raises(InputError, match=message):
            plan(PRIVATE, second, ledger, QUIET)
        assert ledger.events == held


def test_nothing_is_certified_after_an_unprotected_release():
    ledger = Ledger()
    ledger.append(NonPrivateEvent(ledger.registry.reference(PRIVATE), Unprotected(), "all of it"))
    with pytest.raises(BudgetError):
        plan(PRIVATE, options_of("dp-train", epsilon=1.0), ledger, QUIET)


def test_a_test_split_of_records_that_are_protected():
    ledger = Ledger()
    made(PUBLIC, options_of("dp-train", epsilon=1.0), ledger)
    with pytest.raises(
        InputError, match="`dataset`, `test`: 200 of the 200 test records of mine are records of theirs"
    ):
        plan(TESTED, options_of("magnitude", provenance="private"), ledger, QUIET)
