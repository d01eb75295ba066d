"""Ratings on the command line: one rating or one user as what is protected, and what the ledger makes of both."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dpltm.records import held_out_users, load
from dpltm.records.ratings import made_up
from dpltm.tickets.run import load_run

SMALL = ("--dataset", "movielens-small")
TRAIN = ("train", "--dense", *SMALL, "--model", "ncf")
SHORT = ("--steps", "2", "--batch-size", "40", "--noise-multiplier", "1")

OF_RATINGS = [
    "the guarantee is for one rating, not for one person, who may have given many; --unit user protects all of them",
    "about one rating in five is a test rating, by a public hash of user and item; of the same users",
]
OF_USERS = [
    "a record is one user with at most 64 ratings, those of the lowest public hashes where there are more",
    "accuracy and rmse are those of held-out users, every fifth id, whose factors are zero: nothing was learnt of them",
]


def test_ratings_are_learnt(cli):
    """Below what the mean of all ratings is off, 1.09, though with noise."""
    options = ("--optimizer", "adam", "--lr", "0.02", "--clip-norm", "2", "--noise-multiplier", "0.6")
    body = cli(*TRAIN, *options, "--epochs", "12", "--batch-size", "400", "--out", "r", "--json").json
    small = load("movielens-small")
    assert body["rmse"] < 0.93 * float(np.sqrt(np.mean((small.test.y - small.train.y.mean()) ** 2)))
    certified = body["privacy"]["certified"]
    assert (certified["unit"], body["sampling_rate"], body["live"]) == ("record", 400 / 4800, 4930)
    assert set(OF_RATINGS) <= set(body["privacy"]["notes"])
    evaluated = cli("evaluate", "r", *SMALL, "--json").json
    assert (evaluated["records"], evaluated["rmse"], evaluated["notes"]) == (1211, body["rmse"], [])


def test_users_are_protected(cli, entries):
    options = ("--per-unit", "3", "--records", "150")
    body = cli(*TRAIN, *SHORT, "--unit", "user", *options, "--out", "r", "--json").json
    assert body["privacy"]["certified"]["unit"] == "user"
    assert body["sampling_rate"] == 40 / 150, "declared records are users"
    assert {OF_USERS[0].replace("64", "3"), OF_USERS[1]} <= set(body["privacy"]["notes"])
    # two tables of 200 users hold 15 numbers for each of them, and 40 users are held out
    assert body["live"] == 4930 - 40 * 15
    *_, entry = entries("movielens-small.ledger.jsonl")
    (steps,) = entry["mechanisms"]
    assert (entry["unit"], steps["adjacency"], steps["sampling_rate"]) == ("user", "add-remove", 40 / 150)
    assert entry["part"]["stop"] == 2**63 - 1, "how many ratings users gave is private"
    config = json.loads(Path("r/config.json").read_text())
    assert (config["unit"], config["features"]) == ("user", 2)
    factors, out = load_run(Path("r")).model.factors, torch.from_numpy(held_out_users(200))
    for table in (factors.user_product.weight, factors.user_beside.weight):
        assert not table[out].any(), "noise alone"
        assert table[~out].any(1).all()
    again = cli("evaluate", "r", *SMALL, "--json").json
    assert (again["records"], again["rmse"], again["accuracy"]) == (253, body["rmse"], body["accuracy"])
    np.savez("in.npz", x=np.array([[0, 5], [199, 119], [200, 0]]))
    predicted = cli("predict", "r", "--input", "in.npz", "--out", "out.npz", "--json").json
    assert (predicted["records"], predicted["saturated"]) == (3, 1)
    assert np.load("out.npz")["probabilities"].shape == (3, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (*TRAIN, *SHORT, "--per-unit", "3"),
            "--per-unit: bounds what one person gives, so it goes with --unit-column, or with --unit user of ratings; leave"
            " it out, or add one of them",
        ),
        (
            (*TRAIN, *SHORT, "--unit", "user", "--subset", "0.5"),
            "--unit user: takes every user; leave --subset out, which is a range of ratings",
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
        (("generate", *SMALL, "--model", "ncf", "--unit", "user"), "--unit: dpltm generate has no such option"),
        (
            (*TRAIN, *SHORT, "--unit", "user", "--delta", "0.01"),
            "--delta: 0.01 is not between 0 and 1/n = 0.00625 for 160 users; take one well below it",
        ),
        # 4,789 ratings to train on, and 4,800 by the public figure
        (
            ("generate", *SMALL, "--model", "ncf", "--batch-size", "4790", "--provenance", "private"),
            "--batch-size: 4790 is more than there are records in movielens-small",
        ),
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
    users = cli(
        *small, "--users", "50", "--items", "30", "--unit", "user", "--ledger", "users.jsonl", "--out", "b", "--json"
    ).json
    assert users["live"] == 15 * (40 + 30) + 130
    assert not any("largest ids" in note for note in users["privacy"]["notes"])
    with Path("mine.dat").open("a") as stream:
        stream.write("1;2;3;4\n")
    assert refused(*small) == (
        "mine.dat: line 151 is b'1;2;3;4', not UserID::MovieID::Rating::Timestamp, whole numbers all; correct it"
    )


def test_a_ledger_protects_ratings_or_users(cli, refused):
    """A figure for one and a figure for the other are never added."""
    for first, other in (((), ("--unit", "user")), (("--unit", "user"), ())):
        own = ("--ledger", f"{len(first)}.jsonl")
        cli(*TRAIN, *SHORT, *own, *first, "--out", f"a{len(first)}", "--quiet")
        assert "ledger" in refused(*TRAIN, *SHORT, *own, *other, "--out", "b")


def test_tickets_made_for_ratings_are_none_for_users(cli, refused):
    made = ("generate", *SMALL, "--model", "ncf", "--rounds", "1")
    cli(*made, "--criterion", "dp-train", "--epsilon", "1", "--iterations", "5", "--out", "dp", "--quiet")
    users = ("--unit", "user", "--ledger", "users.jsonl")
    assert "protects one record" in refused("train", "dp@1", *SMALL, *SHORT, *users, "--out", "a")
    cli(*made, "--criterion", "random", "--provenance", "data-free", "--out", "free", "--quiet")
    budget = ("--epsilon", "5", "--steps", "2", "--out", "b", "--json")
    free = cli("train", "free@1", *SMALL, *users, *budget).json["privacy"]["certified"]
    assert free["unit"] == "user"
    assert 4.99 <= free["epsilon"] <= 5
