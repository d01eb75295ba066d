"""A ``PrivateLoop`` in a program that ``torchrun`` started: one event, one noise, and the same gradient on every rank."""

import pytest

from ranked import Ranked

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
    assert second.value["canaries"] == "`audit`: rank 0 has the canaries of this loop; audit it there"
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
        ("tensors", "model parameter 0.weight: is split among ranks; leave the model whole on each"),
        ("shards", "model parameter 0.weight: is split among ranks; leave the model whole on each"),
    ],
)
def test_a_model_that_is_not_whole_is_refused_on_all_ranks(ranked: Ranked, how: str, said: str):
    first, second = ranked.run(2, "rank_work:split_up", how)
    assert first.value == second.value
    assert first.value["error"].startswith(said)
