"""Phase 1: what tickets depend on, what is entered before what, and what is refused with nothing spent."""

import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

from dpltm.criteria import DATA_FREE, DP_CRITERIA
from dpltm.errors import InputError
from dpltm.features.inputs import Services
from dpltm.options.generate import GenerateOptions
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import NoisySgd, Unprotected
from dpltm.records import Dataset, from_arrays
from dpltm.training.artifacts import TicketSet
from dpltm.verbs import generate as verb
from dpltm.verbs.generate import generate, plan
from opened import arrays_of
from refusals import refused

QUIET = Services()
# 48 and 24 weights: 14 and 7 go, then 10 and 5; 8 + 3 biases stay
DENSITIES, LIVE = [1.0, 51 / 72, 36 / 72], [83, 62, 47]
TINY = {"model": "mlp:8", "rounds": 2, "prune": "0.3", "iterations": 5, "batch_size": 32}
BARE = {"model": "mlp:8", "rounds": 2, "prune": "0.3"}


def records(seed: int, count: int = 200, features: int = 6, name: str = "mine", **facts) -> Dataset:
    draw = np.random.default_rng(seed)
    x, y = draw.integers(0, 256, (count, features), dtype=np.uint8), np.arange(count) % 3
    return from_arrays(x, y, name=name, **{"classes": 3, "records": count, **facts})


PRIVATE, PUBLIC = records(0), records(1, name="theirs")
TESTED = records(0, test=arrays_of(PUBLIC.train))


def options_of(criterion: str, **more) -> GenerateOptions:
    few = BARE if criterion in DATA_FREE and more.get("provenance") in (None, "data-free") else TINY
    return GenerateOptions(criterion=criterion, **{**few, **more})


def made(dataset: Dataset, options: GenerateOptions, ledger: Ledger | None = None) -> TicketSet:
    return generate(plan(dataset, options, ledger or Ledger(), QUIET))


def certified(tickets: TicketSet) -> float:
    return tickets.privacy.certified.epsilon


def held(ledger: Ledger) -> list[tuple[str, type | None]]:
    """Kinds of its entries, with the mechanism of a release."""
    return [(entry.kind, type(entry.mechanisms[0]) if entry.mechanisms else None) for entry in ledger.entries]


def epsilon_of(mechanism: NoisySgd, delta: float = 1e-5) -> float:
    """dp-accounting's own figure for one training."""
    step = dp_event.PoissonSampledDpEvent(
        mechanism.sampling_rate, dp_event.GaussianDpEvent(mechanism.noise_multiplier)
    )
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    return accountant.compose(dp_event.SelfComposedDpEvent(step, mechanism.steps)).get_epsilon(delta)


@pytest.mark.parametrize("criterion", DATA_FREE)
def test_without_data(criterion):
    ledger = Ledger()
    tickets = made(PRIVATE, options_of(criterion), ledger)
    assert ledger.entries == ()
    assert (tickets.provenance, tickets.lineage.entries, certified(tickets)) == ("data-free", (), 0.0)
    assert [ticket.mask.density for ticket in tickets.body.tickets] == DENSITIES
    assert [(ticket.accuracy, ticket.predictor) for ticket in tickets.body.tickets] == [(None, None)] * 3
    scope = "global" if criterion == "synflow" else "layer"
    expected = {"rounds": 2, "prune": (0.3, 0.3), "criterion": criterion, "scope": scope, "seed": 0}
    assert tickets.config == expected
    assert made(PUBLIC, options_of(criterion, provenance="data-free")).id == tickets.id  # whatever the records


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("criterion", ["magnitude", "random", "init-magnitude", "synflow"])
def test_on_public_records(criterion, scope):
    ledger = Ledger()
    tickets = made(PUBLIC, options_of(criterion, scope=scope, provenance="public"), ledger)
    (entry,) = ledger.entries
    assert (entry.kind, entry.part, tickets.lineage.entries) == ("public", ledger.part(PUBLIC), (entry,))
    assert (tickets.provenance, certified(tickets), tickets.is_scored) == ("public", 0.0, True)
    assert all(0 <= ticket.accuracy <= 1 for ticket in tickets.body.tickets)
    assert [ticket.mask.live for ticket in tickets.body.tickets] == LIVE
    by_layer = [int(tickets.ticket(2).mask[f"fc{number}.weight"].sum()) for number in (1, 2)]
    assert (by_layer == [24, 12]) == (scope == "layer")


def test_what_accuracies_of_a_public_set_are_measured_on_is_public_too():
    """Whoever chooses a ticket sees them."""
    ledger = Ledger()
    tickets = made(TESTED, options_of("magnitude", provenance="public"), ledger)
    assert [entry.part for entry in ledger.entries] == [ledger.part(TESTED), ledger.part(TESTED.tested())]
    assert tickets.lineage.entries == ledger.entries
    held_out = replace(TESTED.tested(), records=200)
    assert "declared public" in refused(made, held_out, options_of("dp-train", epsilon=1.0), ledger)


def test_records_are_declared_public_once():
    ledger = Ledger()
    sets = [made(PUBLIC, options_of("magnitude", provenance="public", seed=seed), ledger) for seed in (0, 1)]
    assert sets[0].lineage.entries == sets[1].lineage.entries == ledger.entries
    assert len(ledger.entries) == 1


@pytest.mark.parametrize("reveal", [False, True])
@pytest.mark.parametrize("criterion", ["magnitude", "random"])
def test_on_private_records(criterion, reveal):
    """Predictors were trained on them, whatever the masks look at; no text of a set shows their accuracies."""
    ledger = Ledger()
    tickets = made(PRIVATE, options_of(criterion, provenance="private", reveal=reveal), ledger)
    assert held(ledger) == [("release", Unprotected)] * (2 if reveal else 1)
    assert (tickets.lineage.entries, certified(tickets)) == (ledger.entries, math.inf)
    told = f"{tickets!r} {tickets.body!r} {tickets.ticket(1)!r} {tickets.privacy!r} {tickets.config!r}"
    assert not any(repr(ticket.accuracy) in told for ticket in tickets.body.tickets if ticket.accuracy not in (0, 1))


@pytest.mark.parametrize("criterion", DP_CRITERIA)
def test_under_dp(criterion):
    """There are no records that accuracies could be told of, but those of a test split, which is declared apart."""
    ledger = Ledger()
    tickets = made(PRIVATE, options_of(criterion, epsilon=1.0), ledger)
    (entry,) = ledger.entries
    assert (tickets.lineage.entries, tickets.provenance, entry.part) == ((entry,), "dp", ledger.part(PRIVATE))
    assert 0.99 < certified(tickets) <= 1
    assert (tickets.config["criterion"], tickets.config["epsilon"]) == (criterion, 1.0)
    assert all(ticket.accuracy is None for ticket in tickets.body.tickets)
    (mechanism,) = entry.of(NoisySgd)
    assert (mechanism.steps, mechanism.sampling_rate) == (5, 32 / 200)
    assert certified(tickets) == pytest.approx(epsilon_of(mechanism), rel=1e-3)
    assert entry.words.startswith(f"tickets by {criterion}, ")
    ledger = Ledger()
    tested = made(TESTED, options_of(criterion, epsilon=1.0), ledger)
    assert all(0 <= ticket.accuracy <= 1 for ticket in tested.body.tickets)
    assert [kind for kind, _ in held(ledger)] == ["excluded", "release"]


def test_late_rewinding():
    early = made(PUBLIC, options_of("magnitude", provenance="public"))
    late = options_of("magnitude", provenance="public", rewind=4)
    assert made(PUBLIC, late).id != early.id
    assert plan(PUBLIC, late, Ledger(), QUIET).options.steps_of(3) == 5 + 2 * 1


@pytest.mark.parametrize("provenance", ["public", "private"])
def test_what_has_no_mechanism_is_on_record_before_a_record_is_looked_at(provenance, monkeypatch):
    looked: list[int] = []
    whole = verb.inputs
    monkeypatch.setattr(verb, "inputs", lambda *given: (looked.append(len(ledger.entries)), whole(*given))[1])
    ledger = Ledger()
    made(PRIVATE, options_of("magnitude", provenance=provenance), ledger)
    assert set(looked) == {1}


def test_a_plan_spends_nothing_and_reports_what_would_be_spent():
    ledger = Ledger()
    settled = plan(PRIVATE, options_of("dp-train", epsilon=1.0), ledger, QUIET)
    assert ledger.entries == ()
    assert settled.priced()["privacy"]["certified"] == generate(settled).privacy.to_json()["certified"]


REFUSED = [
    *(
        (
            {"criterion": criterion, "provenance": said},
            f"`provenance`: tickets by {criterion} are {suited}, not {said}",
        )
        for criterion, suited, others in (
            ("magnitude", "public or private", ("data-free", "dp")),
            ("synflow", "data-free, public or private", ("dp",)),
            ("dp-train", "dp", ("public", "private", "data-free")),
        )
        for said in others
    ),
    *(
        (given, f"`{name}`: is for `provenance` {suited}, not {provenance}; leave it out")
        for given, name, suited, provenance in (
            ({"criterion": "random", "epsilon": 1.0}, "epsilon", "dp", "data-free"),
            ({"criterion": "random", "iterations": 5}, "iterations", "public, private or dp", "data-free"),
            ({"criterion": "random", "rewind": 3}, "rewind", "public, private or dp", "data-free"),
            ({"provenance": "public", "reveal": True}, "reveal", "private", "public"),
        )
    ),
    ({"criterion": "random", "prune": "a,b"}, "`prune`: 'a,b' is not a list of numbers separated by commas"),
    (
        {},
        "`provenance` is missing: say public if these records are public, or private if they are not (then nothing can be"
        " certified for them)",
    ),
    ({"criterion": "dp-train"}, "`epsilon` is missing: what dp-train may spend on these records, such as 0.1"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_refused(given, message):
    ledger = Ledger()
    assert refused(plan, PRIVATE, options_of(**{"criterion": "magnitude", **given}), ledger, QUIET) == message
    assert ledger.entries == ()


def test_a_batch_is_measured_against_the_records_that_there_are():
    """Without a mechanism it is of exactly so many, and there may be fewer than the public number."""
    fewer = records(0, records=300)
    with pytest.raises(InputError, match=r"`batch_size`: 250 is more than .* in mine; say a smaller one"):
        plan(fewer, options_of("magnitude", provenance="public", batch_size=250), Ledger(), QUIET)
    assert plan(fewer, options_of("dp-train", epsilon=1.0, batch_size=250), Ledger(), QUIET).options.batch_size == 250


def test_a_set_of_a_sweep_has_a_budget_of_its_own():
    """The ledger counts it all the same."""
    ledger, options = Ledger(), options_of("dp-train", epsilon=1.0)
    for _ in range(2):
        tickets = generate(plan(PRIVATE, options, ledger, QUIET, own=True))
        assert 0.99 < certified(tickets) <= 1
    assert ledger.account().epsilon(1e-5) > 1.2


def test_guarantees_on_record_are_not_ended_by_the_way():
    """Once they are, further releases without protection change nothing."""
    ledger, options = Ledger(), options_of("magnitude", provenance="private")
    made(PRIVATE, options_of("dp-train", epsilon=1.0), ledger)
    assert refused(plan, PRIVATE, options, ledger, QUIET).startswith("`unprotected`: ")
    assert len(ledger.entries) == 1
    assert certified(made(PRIVATE, replace(options, unprotected=True), ledger)) == math.inf
    assert certified(made(PRIVATE, options, ledger)) == math.inf
