"""A spent budget is refused, whichever way it is asked for again: what calibration leaves of it buys nothing but noise."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpltm.privacy.describe import describe
from dpltm.privacy.event_json import from_json
from dpltm.privacy.parts import total_epsilon

PUBLIC = ("--dataset", "digits", "--subset", "0.0:0.5")
PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
DENSE = ("train", "--dense", "--model", "mlp:8", *PRIVATE, "--steps", "30", "--ledger", "l")
REMEDY = (
    "; set a larger --epsilon, a new budget for all of it together, or name another --ledger, which will be added up with"
    " this one"
)


def spend(cli, *arguments):
    done = cli(*arguments, "--quiet")
    assert done.code == 0, done.err


@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["train", "dry-run"])
def test_a_second_training_on_a_spent_budget(cli, refused, events, more):
    spend(cli, *DENSE, "--epsilon", "3", "--out", "r")
    (spent,) = [from_json(event) for event in events("l")]
    assert refused(*DENSE, "--epsilon", "3", "--out", "r2", *more, code=1) == (
        f"budget: on these records epsilon {total_epsilon([spent], 1e-5):.4g} goes to {describe(spent)} ({spent.time[:10]}),"
        f" which leaves less than 2 % of 3, nothing but noise{REMEDY}"
    )


def test_after_an_interrupted_training(cli, refused, events):
    """The event is on disk before the first step, and what it may have released is spent."""

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpltm.stages.train.descend", interrupt)
        assert cli(*DENSE, "--epsilon", "1", "--out", "r").code == 130
    assert [event["kind"] for event in events("l")] == ["training"]
    assert "goes to 30 steps of training" in refused(*DENSE, "--epsilon", "1", "--out", "r", code=1)


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", *PRIVATE, "--criterion", "dp-train", "--model", "mlp:8", "--rounds", "2", "--ledger", "l"),
        ("generate", *PRIVATE, "--criterion", "dp-synthetic", "--model", "mlp:8", "--rounds", "2", "--ledger", "l"),
    ],
    ids=["dp-train", "dp-synthetic"],
)
@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["", "dry-run"])
def test_tickets_take_part_of_the_budget(cli, refused, arguments, more):
    spend(cli, *DENSE, "--epsilon", "1", "--out", "r")
    message = refused(*arguments, *more, "--epsilon", "1", "--out", "again", code=1)
    assert message.startswith("budget: on these records epsilon ")
    assert "goes to 30 steps of training" in message
    assert message.endswith(REMEDY)


def test_a_draw_that_takes_nearly_all_is_named(cli, refused):
    spend(cli, "select", "pub", *PRIVATE, "--eps1", "0.99", "--ledger", "l")
    message = refused("train", "pub", *PRIVATE, "--steps", "30", "--ledger", "l", "--epsilon", "1", code=1)
    assert message.startswith("budget: on these records epsilon 0.98")
    assert "goes to a winner drawn from 2 tickets" in message


@pytest.mark.parametrize("taken", ["0.5", "0.9"])
def test_what_is_left_on_purpose_is_spent(cli, taken):
    spend(cli, "select", "pub", *PRIVATE, "--eps1", taken, "--ledger", "l")
    done = cli("train", "pub", *PRIVATE, "--steps", "30", "--ledger", "l", "--epsilon", "1", "--out", "r", "--json")
    assert done.json["privacy"]["certified"]["epsilon"] > 0.998


def test_whoever_has_named_a_ledger_is_not_told_to_name_one(cli):
    told = "other releases from these records add up: name one --ledger for all of them to have them counted"
    few = ("train", "--dense", "--model", "mlp:8", *PRIVATE, "--steps", "3", "--noise-multiplier", "5", "--json")
    assert told in cli(*few, "--out", "r").json["privacy"]["notes"]
    assert told not in cli(*few, "--out", "s", "--ledger", "l").json["privacy"]["notes"]
    assert told not in cli(*few, "--out", "t", "--ledger", "l", "--dry-run").json["privacy"]["notes"]
    assert Path("l").is_file()
