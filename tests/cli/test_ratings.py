"""Ratings on the command line: one rating or one user as what is protected, and what the ledger makes of both."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dpltm.data import held_out_users, load
from dpltm.data.ratings import made_up
from dpltm.tickets.run import load_run

SMALL = ("--dataset", "movielens-small")
TRAIN = ("train", "--dense", *SMALL, "--model", "ncf")
SHORT = ("--steps", "2", "--batch-size", "40", "--noise-multiplier", "1")
ADAM = ("--optimizer", "adam", "--lr", "0.02", "--clip-norm", "2")

OF_RATINGS = [
    "the guarantee is for one rating, not for one person, who may have given many; --unit user protects all of them",
    "about one rating in five is a test rating, by a public hash of user and item; of the same users",
]
OF_USERS = [
    "a record is one user with at most 64 ratings, those of the lowest public hashes where there are more",
    "accuracy and rmse are those of held-out users, every fifth id, whose factors are zero: nothing was learnt of them",
]


@pytest.fixture
def lines():
    def read(path):
        return [json.loads(line) for line in Path(path).read_text().splitlines()]

    return read


def test_ratings_are_learnt(cli, lines):
    """Below what the mean of all ratings is off, 1.09, though with noise."""
    learning = ("--epochs", "12", "--batch-size", "400", "--noise-multiplier", "0.6", "--out", "r")
    body = cli(*TRAIN, *ADAM, *learning, "--json").json
    small = load("movielens-small")
    off = float(np.sqrt(np.mean((small.test.y - small.train.y.mean()) ** 2)))
    assert body["rmse"] < 0.93 * off
    certified = body["privacy"]["certified"]
    assert (certified["unit"], body["sampling_rate"], body["live"]) == ("record", 400 / 4800, 4930)
    assert body["privacy"]["notes"][:2] == OF_RATINGS
    metrics = lines("r/metrics.jsonl")
    assert (metrics[-1]["rmse"], metrics[-1]["accuracy"]) == (body["rmse"], body["accuracy"])
    assert all(set(line) == {"step", "epsilon", "accuracy", "rmse"} for line in metrics)
    evaluated = cli("evaluate", "r", *SMALL, "--json").json
    assert evaluated == {
        "run": "r", "dataset": "movielens-small", "records": 1211, "accuracy": body["accuracy"], "rmse": body["rmse"],
        "notes": [],
    }  # fmt: skip


def test_people_see_the_error(cli):
    shown = cli(*TRAIN, *SHORT, "--out", "r")
    assert "│ rmse " in shown.out
    assert "unit record" in shown.out


def test_users_are_protected(cli, events):
    body = cli(*TRAIN, *SHORT, "--unit", "user", "--out", "r", "--json").json
    assert body["privacy"]["certified"]["unit"] == "user"
    assert body["sampling_rate"] == 40 / 160
    assert body["privacy"]["notes"][:2] == OF_USERS
    # two tables of 200 users hold 15 numbers for each of them, and 40 users are held out
    assert body["live"] == 4930 - 40 * 15
    (event,) = events("r/ledger.jsonl")
    assert (event["unit"], event["adjacency"], event["sampling_rate"]) == ("user", "add-remove", 0.25)
    assert event["dataset"]["stop"] == 2**63 - 1, "how many ratings users gave is private"
    config = json.loads(Path("r/config.json").read_text())
    assert (config["unit"], config["features"]) == ("user", 2)
    run = load_run(Path("r"))
    out = torch.from_numpy(held_out_users(200))
    for table in ("user_product", "user_beside"):
        values = getattr(run.model.factors, table).weight
        assert not values[out].any(), "noise alone"
        assert values[~out].any(1).all()
    again = cli("evaluate", "r", *SMALL, "--json").json
    assert (again["records"], again["rmse"], again["accuracy"]) == (253, body["rmse"], body["accuracy"])


def test_few_ratings_a_user(cli):
    body = cli(*TRAIN, *SHORT, "--unit", "user", "--per-user", "3", "--dry-run", "--json").json
    assert body["privacy"]["notes"][0] == OF_USERS[0].replace("64", "3")


def test_delta_is_for_the_number_of_users(refused):
    assert refused(*TRAIN, *SHORT, "--unit", "user", "--delta", "0.01") == (
        "--delta: 0.01 is not between 0 and 1/n = 0.00625 for 160 users; take one well below it"
    )
    assert "for 4800 records" in refused(*TRAIN, *SHORT, "--delta", "0.01")


def test_batches_of_an_exact_size_are_no_larger_than_what_is_at_hand(refused):
    """4,789 ratings to train on, and 4,800 by the public figure."""
    made = ("generate", *SMALL, "--model", "ncf", "--rounds", "1", "--batch-size", "4790", "--out", "own")
    assert refused(*made, "--provenance", "private") == (
        "--batch-size: 4790 is more than there are records in movielens-small"
    )


def test_declared_records_are_users(cli):
    body = cli(*TRAIN, *SHORT, "--unit", "user", "--records", "150", "--dry-run", "--json").json
    assert body["sampling_rate"] == 40 / 150


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (*TRAIN, *SHORT, "--per-user", "3"),
            "--per-user: bounds what a user gives, so it goes with --unit user; leave it out, or add that",
        ),
        (
            (*TRAIN, *SHORT, "--unit", "user", "--subset", "0.5"),
            "--unit user: takes every user; leave --subset out, which is a range of ratings",
        ),
        (
            ("train", "--dense", "--dataset", "digits", *SHORT, "--unit", "user"),
            "--unit user: takes ratings by users, such as movielens, and digits holds none",
        ),
        (
            (*TRAIN, *SHORT, "--unit", "user", "--eval-private", "1"),
            "--eval-private: counts right answers one a record, and a user has many; leave it out",
        ),
        (("train", "--dense", *SMALL, *SHORT), "--model: mlp:300,100 takes quantities, but records of movielens-small hold"),
        (
            ("train", "--dense", "--dataset", "digits", "--model", "ncf", *SHORT),
            "--model ncf: takes ratings, positions of users and items in two tables, such as those of movielens",
        ),
        ((*TRAIN, *SHORT, "--unit", "person"), "--unit: 'person' is not one of record, user"),
        (("generate", *SMALL, "--model", "ncf", "--unit", "user"), "No such option: --unit"),
        (("tune", *SMALL, "--model", "ncf", "--unit", "user"), "No such option: --unit"),
    ],
)  # fmt: skip
def test_refused(refused, arguments, message):
    assert refused(*arguments).startswith(message)


def test_a_file_of_ones_own(cli, refused):
    ratings = made_up(20, 15, 150, 0)
    rows = zip(ratings.places.tolist(), ratings.stars.tolist(), strict=True)
    Path("mine.dat").write_text("".join(f"{user + 1}::{item + 1}::{stars}::0\n" for (user, item), stars in rows))
    small = ("train", "--dense", "--dataset", "mine.dat", "--model", "ncf", "--steps", "2", "--noise-multiplier", "1")
    body = cli(*small, "--out", "a", "--json").json
    assert body["live"] == 15 * (20 + 15) + 130
    assert (
        "the largest ids of users (20) and items (15) were read off the ratings and are treated as public; declare them with"
        " --users and --items"
    ) in body["privacy"]["notes"]
    users = cli(*small, "--users", "50", "--items", "30", "--unit", "user", "--out", "b", "--json").json
    assert users["live"] == 15 * (40 + 30) + 130
    assert not any("largest ids" in note for note in users["privacy"]["notes"])
    assert any(note.startswith("the number of users (16) was counted") for note in users["privacy"]["notes"])
    with Path("mine.dat").open("a") as stream:
        stream.write("1;2;3;4\n")
    assert refused(*small) == (
        "mine.dat: line 151 is b'1;2;3;4', not UserID::MovieID::Rating::Timestamp, whole numbers all; correct it"
    )


def test_both_units_in_one_ledger(cli, refused):
    """The same data, so they add up: for a rating. For a user nothing is certified any more."""
    both = (*SHORT, "--ledger", "l.jsonl", "--json")
    user = cli(*TRAIN, *both, "--unit", "user", "--out", "a").json["privacy"]
    record = cli(*TRAIN, *both, "--out", "b").json["privacy"]
    assert record["certified"]["unit"] == "record"
    assert record["certified"]["epsilon"] > user["certified"]["epsilon"]
    assert record["notes"][0].startswith("there are releases for users, which count at twice their sensitivity here")
    again = cli(*TRAIN, *both, "--unit", "user", "--out", "c").json["privacy"]
    assert (again["certified"]["unit"], again["certified"]["epsilon"]) == ("user", "inf")
    assert again["notes"][0].startswith("there are releases for single records, which certify nothing for a user")
    message = refused(*TRAIN, "--unit", "user", "--epsilon", "9", "--steps", "2", "--ledger", "l.jsonl", "--dry-run")
    assert message == (
        "--unit: the ledger, or what the ticket was made by, holds a release for single records of movielens-small,"
        " which certifies nothing for a user, so no budget for users can hold; take --unit record, or other records"
    )
    shown = cli("privacy", "ledger", "l.jsonl", "--json").json
    assert [row["unit"] for row in shown["events"]] == ["user", "record", "user"]
    assert shown["datasets"][0]["privacy"]["certified"]["unit"] == "record"


def test_tickets_made_for_ratings_certify_nothing_for_users(cli, refused):
    made = ("generate", *SMALL, "--model", "ncf", "--rounds", "1")
    cli(*made, "--criterion", "dp-train", "--epsilon", "1", "--iterations", "5", "--out", "dp", "--quiet")
    body = cli("train", "dp@1", *SMALL, *SHORT, "--unit", "user", "--out", "a", "--json").json
    assert (body["privacy"]["certified"]["unit"], body["privacy"]["certified"]["epsilon"]) == ("user", "inf")
    budget = ("--unit", "user", "--epsilon", "5", "--steps", "2")
    assert refused("train", "dp@1", *SMALL, *budget).startswith(
        "--unit: the ledger, or what the ticket was made by, holds"
    )
    cli(*made, "--criterion", "random", "--provenance", "data-free", "--out", "free", "--quiet")
    free = cli("train", "free@1", *SMALL, *budget, "--out", "b", "--json").json["privacy"]["certified"]
    assert free["unit"] == "user"
    assert 4.99 <= free["epsilon"] <= 5
    cli(*made, "--provenance", "private", "--iterations", "5", "--out", "own", "--quiet")
    own = cli("train", "own@1", *SMALL, *SHORT, "--unit", "user", "--out", "c", "--json").json["privacy"]
    assert own["certified"]["epsilon"] == "inf"


def test_budget_for_users(cli, refused):
    cli("privacy", "budget", "l.jsonl", *SMALL, "--epsilon", "2", "--unit", "user", "--quiet")
    shared = ("--steps", "2", "--batch-size", "40", "--ledger", "l.jsonl")
    assert refused(*TRAIN, *shared, "--noise-multiplier", "0.5", "--unit", "user", code=1).startswith(
        "budget: this would bring"
    )
    assert "to epsilon inf" in refused(*TRAIN, *shared, "--noise-multiplier", "50", code=1)
    cli(*TRAIN, *shared, "--noise-multiplier", "5", "--unit", "user", "--out", "a", "--quiet")
    (row,) = cli("privacy", "budget", "l.jsonl", "--json").json["budgets"]
    assert row["unit"] == "user"
    assert 0 < row["spent"] < 2


def test_predictions(cli):
    cli(*TRAIN, *SHORT, "--unit", "user", "--out", "r", "--quiet")
    np.savez("in.npz", x=np.array([[0, 5], [199, 119], [200, 0]]))
    body = cli("predict", "r", "--input", "in.npz", "--out", "out.npz", "--json").json
    assert (body["records"], body["saturated"]) == (3, 1)
    assert np.load("out.npz")["probabilities"].shape == (3, 5)


def test_listed(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("DPLTM_DATA", str(tmp_path / "home"))
    rows = {row["name"]: row for row in cli("datasets", "ls", "--json").json["datasets"]}
    assert [rows[name]["available"] for name in ("movielens", "movielens-like", "movielens-small")] == [
        "no",
        "yes",
        "yes",
    ]
    (tmp_path / "home" / "ml-1m").mkdir(parents=True)
    (tmp_path / "home" / "ml-1m" / "ratings.dat").write_text("1::1::5::1\n")
    rows = {row["name"]: row for row in cli("datasets", "ls", "--json").json["datasets"]}
    assert rows["movielens"] == {
        "name": "movielens", "kind": "ratings", "summary": "MovieLens 1M: films rated by users, 1 to 5", "available": "yes",
    }  # fmt: skip
    info = cli("datasets", "info", "movielens-small", "--json").json
    assert (info["records"], info["test_records"], info["tables"]) == (4800, 1211, [200, 120])
