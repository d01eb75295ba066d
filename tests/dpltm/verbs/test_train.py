"""A training: what is refused, how the budget is divided, what is on record before what is drawn, and what comes out."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from dpltm.errors import ArtifactError, BudgetError, InputError
from dpltm.features.inputs import Services, tensors
from dpltm.networks import ModelSpec
from dpltm.networks.evaluation import accuracy
from dpltm.options.train import TrainOptions
from dpltm.privacy.account import Account, Planned
from dpltm.privacy.entry import Entry
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import GaussianRelease, Guarantee, Unprotected
from dpltm.randomness import noise
from dpltm.randomness.noise import KeyedSource
from dpltm.records import from_arrays
from dpltm.training.artifacts import Run, default_network, fresh, from_round, starting_point
from dpltm.verbs.train import plan, settle, stated, train_start
from maps import make_feature_map
from opened import arrays_of
from refusals import refused
from stage_cases import CLASSES, FEATURES, RECORDS, a_draw, body, kinds, planned, private_set, records, ticket_set

DENSE = ModelSpec("mlp", FEATURES, CLASSES)
LIVE = body().tickets[2].mask.live


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def trained(*, start=None, dataset=None, ledger=None, own=False, **options: Any) -> Run:
    length = {} if {"steps", "epochs"} & set(options) else {"steps": 2}
    start = from_round(ticket_set(), 2) if start is None else start
    dataset = records(0) if dataset is None else dataset
    return train_start(start, dataset, TrainOptions(**length, **options), ledger or Ledger(), own=own)


def behind_unit(seed: int = 0, test: int = 0):
    dataset = records(seed, test=test)
    return replace(dataset, feature_map=make_feature_map("unit:1", dataset.train.shape, dataset.bounds))


def refusal(error: type[Exception] = InputError, **options) -> str:
    return refused(planned, kind=error, **options)


def certified(plan) -> float:
    return stated(plan).certified.epsilon


def alone(mechanism, delta: float = 1e-5) -> float:
    return Planned(Account()).with_mechanism(mechanism).epsilon(delta)


ALLOCATION = {"sampling": "allocation:4"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": None, "noise_multiplier": math.nan}, "`noise_multiplier`: nan is not a number from 0 to 1e+06"),
        ({"batch_size": 201.0}, "`batch_size`: 201 is not between 0 and the 200 records of records0"),
        ({"filter": "tanh", "tanh_scale": -1.0}, "`tanh_scale`: -1.0 is not a number between 1e-06 and 1e+06"),
        (
            {"noise_multiplier": 1.0, "filter": "tanh", "noise": "nominal", "budget_stop": True},
            "`budget_stop`: holds for certified noise only; leave `noise` nominal out",
        ),
        (
            {"delta": 0.01},
            "`delta`: 0.01 is not between 0 and 1/n = 0.005 for 200 records or more; take a smaller one",
        ),
        *(
            ({"sampling": value}, f"`sampling`: {value!r} is neither poisson nor allocation:K, such as allocation:15")
            for value in ("shuffled", "allocation", "allocation:0", "allocation:1.5", "allocation:-3")
        ),
        (
            {**ALLOCATION, "adjacency": "replace-one"},
            "`sampling`: allocation is proven for `adjacency` add-remove alone; take it, or poisson",
        ),
        ({**ALLOCATION, "steps": 3}, "`sampling`: allocation:4 is not from 1 to the 3 `steps`"),
        (
            {"sampling": "allocation:2", "noise_multiplier": 1.0, "budget_stop": True},
            "`budget_stop`: does not go with `sampling` allocation:2; leave one of them out",
        ),
        ({**ALLOCATION, "epochs": 4.0}, "`epochs`: does not go with `sampling` allocation:4; leave one of them out"),
        (
            {**ALLOCATION, "steps": 8, "batch_size": 100.0},
            "`batch_size`: does not go with `sampling` allocation:4 and `steps`; leave one of them out",
        ),
        ({"lineage": "nothing"}, "lineage: not valid JSON"),
    ],
)
def test_options(options, message, ledger):
    assert refusal(ledger=ledger, **{"epsilon": 1.0, **options}) == message
    assert ledger.entries == ()


def test_an_accountant_that_knows_of_no_amplification_by_allocation_says_so(ledger):
    said = "`accountant` {} counts an allocation as if everybody knew who is in which step; pld does not"
    for accountant in ("pld", "rdp", "ma"):
        plan = planned(ledger=ledger, epsilon=1.0, sampling="allocation:2", steps=8, accountant=accountant)
        assert (said.format(accountant) in stated(plan).notes) == (accountant != "pld")


def test_a_start_that_says_too_little_or_too_much():
    tickets, dataset = ticket_set(), records(0)
    for target, options, message in (
        (tickets, {}, "`round` is missing: say which ticket of the set"),
        (tickets, {"round": 1, "dense": True}, "`round`, `dense`: the whole network is no ticket"),
        ("mlp:4", {"round": 1}, "`round`: mlp:4 is a network, which has none"),
        (None, {"round": 1}, "`round`: this is a network, which has none"),
    ):
        assert refused(starting_point, target, dataset, TrainOptions(), **options).startswith(message)
    whole, _ = starting_point(tickets, dataset, TrainOptions(), dense=True)
    assert (whole.round, whole.mask.density, whole.tickets) == (0, 1.0, tickets)


def test_test_records_that_the_ledger_protects(ledger):
    trained(ledger=ledger, dataset=records(2), noise_multiplier=5.0)
    mine, theirs = arrays_of(records(0).train), arrays_of(records(2).train)
    shown = from_arrays(*mine, test=theirs, classes=CLASSES, name="mine")
    held = ledger.entries
    with pytest.raises(InputError, match="is protected by a release on record"):
        trained(ledger=ledger, dataset=shown, noise_multiplier=5.0)
    assert ledger.entries == held
    assert trained(ledger=ledger, dataset=shown, noise_multiplier=5.0, eval_private=1.0).metrics[-1]["accuracy"] >= 0


# --- how the budget is divided ---


def test_the_epsilon_of_a_trial_is_that_of_its_own_lineage(ledger):
    first = trained(ledger=ledger, epsilon=1.0, steps=9)
    assert refusal(BudgetError, ledger=ledger, epsilon=1.0, steps=9).startswith("budget: on these records epsilon ")
    second = trained(ledger=ledger, epsilon=1.0, steps=9, own=True)
    assert first.privacy.certified.epsilon == second.privacy.certified.epsilon <= 1
    assert ledger.account().epsilon(1e-5) > 1.3


@pytest.mark.parametrize("budget", [0.3, 30.0])
def test_a_spent_budget(ledger, budget):
    trained(ledger=ledger, steps=30, epsilon=budget)
    message = refusal(BudgetError, ledger=ledger, steps=30, epsilon=budget)
    assert "set a larger `epsilon`" in message
    assert "(`ledger`, `population`)" in message
    assert planned(ledger=ledger, steps=30, epsilon=2 * budget).mechanism.steps == 30  # as the message says


@pytest.mark.one_of(2)
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
    trained(**given)
    assert refusal(BudgetError, **given, **options).startswith("budget: on these records epsilon ")


def test_a_paper_s_budget_is_divided_nominally(ledger):
    """As DPLTM's Theorem 3 has it, eps1 + eps2, of tickets made from the very records: nothing is certified."""
    tickets = private_set(ledger)
    a_draw(ledger, tickets, 0.5)
    start = from_round(tickets, 1)
    said = stated(planned(ledger=ledger, start=start, steps=30, epsilon=1.0))
    assert said.certified.epsilon == math.inf
    assert 0.998 < said.nominal.epsilon <= 1
    a_draw(ledger, tickets, 0.495)
    message = refusal(BudgetError, ledger=ledger, start=from_round(tickets, 1), steps=30, epsilon=1.0)
    assert message.startswith("budget: on these records nominal epsilon 0.995 goes to ")


def test_nothing_is_left_where_a_release_had_no_protection(ledger):
    ledger.declare(Entry("release", ledger.part(records(0)), (Unprotected(),), "scores"))
    plan = planned(ledger=ledger, noise_multiplier=5.0)
    assert certified(plan) == math.inf
    # as DPLTM divides it, where nothing can be certified any more
    assert stated(planned(ledger=ledger, epsilon=1.0)).nominal.epsilon <= 1
    said = "budget: the ledger holds an unprotected release from these records"
    assert refusal(BudgetError, ledger=ledger, epsilon=1.0, noise_multiplier=5.0, budget_stop=True).startswith(said)


def test_the_run_stops_where_the_budget_ends():
    plan = planned(steps=40, epsilon=1.0, noise_multiplier=2.0, budget_stop=True)
    taken = plan.mechanism.steps
    assert 0 < taken < 40
    assert (plan.mechanism.steps, plan.resolved["steps"]) == (taken, taken)
    assert f"`budget_stop` ends training after {taken} of 40 steps, before the one that would exceed" in plan.notes
    assert certified(plan) <= 1
    assert certified(planned(steps=taken + 1, noise_multiplier=2.0)) > 1


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_the_centre_of_features_is_a_release_within_the_budget(adjacency):
    options = {"steps": 6, "epsilon": 2.0, "centre": 0.2, "adjacency": adjacency, "batch_size": 50.0}
    plan = planned(start=fresh(DENSE, 0), dataset=behind_unit(), **options)
    mean, steps = plan.entry.mechanisms
    assert mean.sensitivity == (8.0 if adjacency == "add-remove" else 16.0)
    together = Planned(Account(), others=(mean,)).with_mechanism(steps).epsilon(1e-5)
    assert certified(plan) == together
    assert 1.99 < together <= 2
    # a fifth of the budget, where noise adds up by its inverse square
    whole = replace(mean, noise_multiplier=mean.noise_multiplier * math.sqrt(0.2))
    assert alone(whole) == pytest.approx(2, rel=5e-3)


def test_an_evaluation_on_the_records_is_paid_for_and_made_at_the_end_alone(monkeypatch):
    released, inner, counter = [], noise.two_sided_geometric, "dpltm.training.release.two_sided_geometric"
    monkeypatch.setattr(counter, lambda *given: (released.append(given[1]), inner(*given))[1])
    run = trained(noise_multiplier=5.0, steps=20, eval_private=0.5)
    assert [each.epsilon for each in run.entry.of(Guarantee)] == released == [0.5]
    assert [line["accuracy"] is None for line in run.metrics] == [True] * 9 + [False]
    assert 0 <= run.metrics[-1]["accuracy"] <= 1
    assert planned(dataset=records(0, test=20), noise_multiplier=5.0).evaluations == ()
    assert refusal(noise_multiplier=5.0, eval_private=1e-9).startswith("`eval_private`: 1e-09 is nothing but noise")


def one_layer(**options):
    return planned(start=fresh(DENSE, 0), dataset=behind_unit(), **options)


@pytest.mark.parametrize(
    ("options", "farther"),
    [
        (
            {"optimizer": "sgd", "schedule": "constant", "adjacency": "replace-one", "epsilon": 0.5, "clip_norm": 0.2},
            1,
        ),
        ({"optimizer": "momentum", "schedule": "linear", "noise_multiplier": 7.0}, 5),
    ],
)
def test_behind_features_the_noise_sets_the_step(ledger, options, farther):
    plan = one_layer(ledger=ledger, steps=30, **options)
    step = plan.lr * plan.mechanism.noise_std / plan.expected_batch
    assert step * math.sqrt(30) * farther == pytest.approx(0.25)
    assert plan.notes[-1].startswith(f"`lr` is {plan.lr:.3g}, so that the noise")


def test_elsewhere_the_optimizer_sets_it_and_little_noise_ends_it(ledger):
    quiet = [one_layer(ledger=ledger, noise_multiplier=noise, steps=30).lr for noise in (0.0, 1e-3, 0.1)]
    assert quiet[0] == quiet[1] == quiet[2] < 30
    assert (default_network(records(0)), default_network(behind_unit())) == ("mlp:300,100", "mlp")
    assert planned(ledger=ledger, epsilon=0.5).lr == 1.0
    assert one_layer(ledger=ledger, epsilon=0.5, lr=0.25).lr == 0.25
    assert one_layer(ledger=ledger, epsilon=0.5, optimizer="adam").lr == 0.002
    deeper = ModelSpec("mlp:5", FEATURES, CLASSES)
    assert planned(start=fresh(deeper, 0), dataset=behind_unit(), ledger=ledger, epsilon=0.5).lr == 1.0
    assert planned(start=fresh(DENSE, 0), ledger=ledger, epsilon=0.5).lr == 1.0


@pytest.mark.parametrize(
    "options", [{"filter": "tanh", "clip_norm": 5.0}, {"filter": "tanh", "no_pre_clip": True}, {"filter": "sigmoid"}]
)
def test_nominal_noise(options):
    """As much noise as the paper adds: the paper's figure is the budget, and the certified one is what that is worth."""
    plan, reference = planned(noise="nominal", epsilon=1.0, **options), planned(epsilon=1.0)
    report, noise_std = stated(plan), plan.mechanism.noise_std
    assert noise_std == pytest.approx(reference.resolved["noise_multiplier"])
    assert plan.resolved["noise_multiplier"] == pytest.approx(noise_std / plan.resolved["sensitivity"])
    assert 0.998 < report.nominal.epsilon <= 1
    assert report.nominal.source == "tanh paper's sensitivity"
    assert report.certified.epsilon > 2
    plan = planned(noise="nominal", noise_multiplier=2.0, **options)
    assert plan.mechanism.noise_std == pytest.approx(2)
    assert plan.resolved["noise_multiplier"] == pytest.approx(2 / plan.resolved["sensitivity"])


def test_rates_and_steps_come_from_the_public_number_of_records():
    """Epochs are counted in expected batches; a quarter of the records is a batch unless another is stated."""
    plan = planned(epochs=2.0, batch_size=20.0, noise_multiplier=5.0)
    assert (plan.resolved["sampling_rate"], plan.resolved["steps"]) == (pytest.approx(20 / RECORDS), 20)
    plan = planned(dataset=records(0, records=180), batch_size=18.0, noise_multiplier=5.0)
    assert (plan.resolved["sampling_rate"], plan.mechanism.sampling_rate, plan.expected_batch) == (0.1, 0.1, 18)
    plan = planned(noise_multiplier=5.0)
    assert (plan.expected_batch, plan.mechanism.sampling_rate) == (RECORDS / 4, 0.25)


@pytest.mark.parametrize(
    ("name", "options", "bound", "nominal"),
    [
        *((name, {"clip_norm": 0.5}, 0.5, None) for name in ("clip", "per-layer", "radial-tanh", "auto", "normalize")),
        ("tanh-clip", {"clip_norm": 0.5, "tanh_scale": 3.0, "tanh_range": 0.1}, 0.5, None),
        (
            "tanh",
            {"clip_norm": 0.5, "tanh_scale": 3.0, "tanh_range": 0.1},
            3 * math.sqrt(LIVE) * math.tanh(0.5 / (0.1 * math.sqrt(LIVE))),
            None,
        ),
        ("tanh", {"no_pre_clip": True}, math.sqrt(LIVE), 1.0),
        ("sigmoid", {"tanh_scale": 3.0, "tanh_range": 0.1}, 3 * math.sqrt(LIVE), 1.0),
    ],
)
def test_every_filter_has_its_own_bound(name, options, bound, nominal):
    """The bounds of docs/privacy-model.md section 4.2, at C = 0.5, c = 3, k = 0.1."""
    plan = planned(filter=name, noise_multiplier=2.0, **options)
    sensitivity = plan.resolved["sensitivity"]
    assert sensitivity == pytest.approx(bound, rel=2e-6)
    assert sensitivity >= bound
    assert plan.mechanism.noise_std == 2 * sensitivity
    assert plan.mechanism.nominal_sensitivity == nominal
    assert (stated(plan).nominal is None) == (nominal is None)


@pytest.mark.parametrize(
    ("options", "sources"),
    [
        ({"filter": "dpsr-cg"}, "sensitivity in the code of DPSR-CG"),
        (
            {"filter": "dpsr-cg", "microbatch": 4},
            "tanh paper's sensitivity for microbatches; sensitivity in the code of DPSR-CG",
        ),
        ({"filter": "dpsr-cg", "clip_norm": 10.0}, None),
        ({"filter": "dpsr-cg", "clip_norm": 10.0, "noise": "nominal"}, None),
    ],
)
def test_a_claim_names_its_sources_and_is_none_where_it_is_what_is_certified(options, sources):
    nominal = stated(planned(noise_multiplier=2.0, batch_size=40, **options)).nominal
    assert (None if nominal is None else nominal.source) == sources


def test_the_entry_is_on_record_before_anything_is_drawn(monkeypatch):
    happened, inner, enter = [], KeyedSource.random_bytes, Ledger.enter

    def draw(source: KeyedSource, count: int) -> memoryview:
        if happened[-1:] != ["drawn"]:
            happened.append("drawn")
        return inner(source, count)

    def entered(ledger: Ledger, draft: Entry, *given):
        found = enter(ledger, draft, *given)
        happened.append("+".join(type(each).__name__ for each in draft.mechanisms))
        return found

    monkeypatch.setattr(KeyedSource, "random_bytes", draw)
    monkeypatch.setattr(Ledger, "enter", entered)
    run = trained(start=fresh(DENSE, 0), dataset=behind_unit(), epsilon=3.0, centre=0.2, eval_private=0.5)
    assert happened == ["GaussianRelease+NoisySgd+Guarantee", "drawn"]
    assert run.feature_map.centre is not None


def test_the_run(ledger):
    dataset = records(0, test=60)
    run = trained(ledger=ledger, noise_multiplier=2.0, dataset=dataset, steps=3)
    mask = body().tickets[2].mask
    assert run.mask.live == mask.live
    for name, value in run.model.named_parameters():
        assert not value[~mask[name]].any()  # pruned weights are exactly zero
        assert value[mask[name]].all()  # and every live one has had noise
    assert [line["step"] for line in run.metrics] == [1, 2, 3]
    spent = [line["epsilon"] for line in run.metrics]
    assert spent == sorted(spent)
    assert spent[-1] == run.privacy.certified.epsilon
    assert run.metrics[-1]["accuracy"] == accuracy(run.model, *tensors(arrays_of(dataset.test), dataset))
    assert kinds(ledger) == ["excluded", "NoisySgd"]
    assert ledger.account(run.lineage).epsilon(1e-5) == run.privacy.certified.epsilon
    config = run.config
    assert (config["model"], config["round"], config["expected_batch"]) == ("mlp:8", 2, 50)
    assert (config["options"]["noise_multiplier"], config["options"]["batch_size"]) == (2.0, None)
    assert config["entry"] == run.entry.id == ledger.entries[-1].id
    assert run.bounds == (0.0, 255.0)
    damaged = replace(run, config={**config, "entry": "0" * 64})
    with pytest.raises(ArtifactError, match="its lineage holds no training with its settings"):
        _ = damaged.entry


def test_it_starts_from_theta0_and_differs_each_time():
    """Sampling and noise come from the system, never from the seed; the set's own weights stay as they were."""
    tickets = ticket_set()
    before = {name: value.clone() for name, value in tickets.body.theta0.items()}
    one, two = (trained(start=from_round(tickets, 2), noise_multiplier=3.0, lr=1e-6, seed=5) for _ in range(2))
    for name, value in one.model.named_parameters():
        expected = before[name] * tickets.body.tickets[2].mask[name]
        torch.testing.assert_close(value.detach(), expected, rtol=0, atol=1e-5)
        assert torch.equal(before[name], tickets.body.theta0[name])
    assert not torch.equal(one.model[0].weight, two.model[0].weight)


def test_centred_features():
    dataset = behind_unit(test=30)
    run = trained(start=fresh(DENSE, 0), dataset=dataset, epsilon=5.0, centre=0.5)
    (mean,) = run.entry.of(GaussianRelease)
    exact = dataset.feature_map(arrays_of(dataset.train).x).mean(0)
    std = mean.noise_std / dataset.records
    distance = float((run.feature_map.centre - exact).norm())
    assert 0.2 * std * math.sqrt(FEATURES) < distance < 3 * std * math.sqrt(FEATURES)


@pytest.mark.parametrize("bits", ["secure", "fast"])
def test_entries_say_what_noise_was_made_of(bits, ledger):
    """So does the statement on a later training, whatever its own noise."""
    given = {"start": fresh(DENSE, 0), "dataset": behind_unit(), "ledger": ledger}
    first = trained(**given, epsilon=5.0, centre=0.5, noise=bits)
    later = trained(**{**given, "start": fresh(DENSE, 0)}, noise_multiplier=9.0)
    assert {each.bits for each in first.entry.mechanisms} == {bits}
    told = "noise of 1 release (`noise` fast) comes from a generator that is not cryptographic"
    for run in (first, later):
        assert any(note.startswith(told) for note in run.privacy.notes) == (bits == "fast")


def test_a_training_goes_on_with_its_own_facts_alone(ledger):
    """What its entry says is compared with what is asked for now, and not with itself."""
    entry = train_start(from_round(ticket_set(), 2), records(0), TrainOptions(steps=2, epsilon=1.0), ledger).entry
    made = plan_again(entry, TrainOptions(steps=2, epsilon=1.0), ledger)
    assert replace(made.entry, id=entry.id, home=entry.home, sequence=1, day=entry.day) == entry
    for other in ({"clip_norm": 0.5}, {"batch_size": 20.0}, {"lr": 2.0}):
        made = plan_again(entry, TrainOptions(**{"steps": 2, "epsilon": 1.0, **other}), ledger)
        assert replace(made.entry, id=entry.id, home=entry.home, sequence=1, day=entry.day) != entry


def plan_again(entry, options, ledger):
    start, services = from_round(ticket_set(), 2), Services()
    return plan(settle(start, records(0), options, ledger, services), ledger.book, entered=entry)
