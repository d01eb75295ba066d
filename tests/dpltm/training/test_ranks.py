"""Several ranks: what they tell each other, that they end together, that they train as one process does; loops on ranks."""

import pytest
import torch

import rank_work
from dpltm.training import launcher
from dpltm.training.ranks import Ranks
from ranked import Ranked
from refusals import refused

CASES = (
    ("mlp:12", "clip", {}),
    ("mlp:12", "clip", {"expected_batch": 700.0}),  # two chunks at once
    ("mlp:12", "clip", {"expected_batch": 2900.0}),  # four, and two left over
    ("mlp:12", "per-layer", {"physical_batch": 7}),
    ("mlp:12", "tanh", {}),
    ("mlp:12", "clip", {"participations": 2}),
    ("mlp:12", "auto", {"precision": "bfloat16"}),
    ("cnn:28x28x1", "clip", {"physical_batch": 30}),
    ("mlp:20", "clip", {"microbatch": 3}),
    ("mlp:20", "tanh", {"microbatch": 3, "physical_batch": 30}),
    ("mlp:12", "clip", {"dropout": 0.5, "physical_batch": 30}),
    ("mlp:12", "tanh", {"dropout": 0.5, "microbatch": 3}),
    ("mlp:12", "clip", {"strategy": (1.0, 0.6, 0.4)}),
)


@pytest.mark.long
def test_one_and_four_ranks_train_the_same_bits(ranked: Ranked):
    """Of other ranks than the first, coins and noise are wrong on purpose: they may not be used."""
    found = {size: ranked.run(size, "rank_work:train_some", CASES) for size in (1, 4)}
    expected = found[1][0].value
    assert len(set(expected)) == len(CASES)
    for size, ranks in found.items():
        assert [rank.value for rank in ranks] == [expected] * size, ranks[0].err


@pytest.mark.one_of(6)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_process_alone_trains_nearly_the_same(case):
    """The oracle: no ranks at all. Its batches are others, so the last bits of float32 may be."""
    network, filter, more = case
    alone = [value.detach() for value in rank_work.trained(network, filter, None, **more).parameters()]
    shared = [value.detach() for value in rank_work.trained(network, filter, Ranks(), **more).parameters()]
    torch.testing.assert_close(shared, alone, rtol=0, atol=2e-3 if more.get("precision") else 1e-5)


def test_torchrun_is_known_by_its_environment(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert launcher.launched() is None, "others set these as well"
    launcher.check_alone("this")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert launcher.launched() == launcher.Place(1, 2, 0)
    said = "this works in one process, and torchrun started 2: run it without torchrun"
    assert refused(launcher.check_alone, "this") == said
    monkeypatch.setenv("WORLD_SIZE", "1")
    launcher.check_alone("this")


LOOP = "rank_work:loop"
PATIENTS = {"unit": "patient", "batch_size": 50}


def test_ranks_end_with_the_same_weights_and_one_event(ranked: Ranked):
    """At the noise that a process alone takes, which has joined no group and may round otherwise."""
    first, second = (rank.value for rank in ranked.run(2, LOOP))
    (alone,) = (rank.value for rank in ranked.run(1, LOOP))
    assert first.pop("weights") == second.pop("weights")
    assert (first.pop("entered"), second.pop("entered")) == (["NoisySgd"], [])
    assert first == second == {name: alone[name] for name in ("noise", "epsilon")}
    assert first["epsilon"] == pytest.approx(2.0, abs=0.01)


def test_the_ledger_of_rank_0_counts(ranked: Ranked):
    first, second = (rank.value for rank in ranked.run(2, LOOP, (), 1.5))
    assert first["noise"] == second["noise"]
    assert first["entered"] == ["Guarantee", "NoisySgd"]
    assert second["epsilon"] < first["epsilon"] <= 2, (
        "noise for what rank 0 had left, and no other rank spent anything"
    )
    errors = [rank.error for rank in ranked.run(2, LOOP, (), 2.5)]
    assert errors[0][0] == "BudgetError"
    assert errors[1] == ["BudgetError", f"rank 0: {errors[0][1]}"]


@pytest.mark.parametrize(
    ("own", "what"),
    [
        ([{"batch_size": 250}, {"batch_size": 251}], "`batch_size`: rank 0 has 250.0 and rank 1 251.0"),
        ([{}, {"epsilon": 1.0}], "`epsilon`: rank 0 has 2.0 and rank 1 1.0"),
        ([{}, {"row": 3}], "`x`, `y`: rank 1 has others than rank 0"),
        ([PATIENTS, {**PATIENTS, "each": 4}], "`units`: rank 1 has others than rank 0"),
        ([{}, {"seed": 1}], "model: rank 1 has others than rank 0"),
    ],
    ids=str,
)
def test_ranks_that_differ_are_refused(ranked: Ranked, own, what: str):
    said = f"{what}; start all ranks with the same command, files and versions"
    assert [rank.error for rank in ranked.run(2, LOOP, own)] == [["InputError", said]] * 2


def test_an_audit_is_that_of_rank_0(ranked: Ranked):
    first, second = ranked.run(2, LOOP, [{"audit": 200, "epsilon": None, "noise_multiplier": 2.0}] * 2)
    assert first.value["canaries"] == 200
    assert second.value["canaries"].endswith("audit it on rank 0 after its last step")
    assert first.value["weights"] == second.value["weights"]


def test_ranks_share_persons(ranked: Ranked):
    own = [PATIENTS] * 2
    first, second = ranked.run(2, LOOP, own)
    (alone,) = ranked.run(1, LOOP, own[:1])
    assert first.value["weights"] == second.value["weights"]
    assert first.value["noise"] == alone.value["noise"]


def test_a_loop_of_ranks_goes_on_nowhere_else(ranked: Ranked):
    said = "`save_every`: a loop of several ranks goes on nowhere else; leave it out"
    assert [rank.error for rank in ranked.run(2, LOOP, [{"save_every": 1}] * 2)] == [["InputError", said]] * 2


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            "wrapped",
            "model: 0 is wrapped in DistributedDataParallel; give the module itself, since ranks share the work",
        ),
        ("tensors", "model: 0.weight is split among ranks; leave the model whole on each"),
        ("shards", "model: 0.weight is split among ranks; leave the model whole on each"),
    ],
)
def test_a_model_that_is_not_whole_is_refused_on_all_ranks(ranked: Ranked, how: str, said: str):
    first, second = ranked.run(2, "rank_work:split_up", how)
    assert first.value == second.value
    assert first.value["error"].startswith(said)
