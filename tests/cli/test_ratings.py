"""Ratings on the command line: one rating or one user as what is protected, and what the ledger makes of both."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from dpltm.records import held_out_users, load
from dpltm.records.ratings import made_up
from dpltm.tickets.run import load_run
from opened import arrays_of

SMALL = "--dataset movielens-small"
TRAIN = f"train --dense {SMALL} --model ncf"
SHORT = "--steps 2 --batch-size 40 --noise-multiplier 1"


def test_ratings_are_learnt(cli):
    """Below what the mean of all ratings is off, 1.09, though with noise."""
    options = "--optimizer adam --lr 0.02 --clip-norm 2 --noise-multiplier 0.6 --epochs 12 --batch-size 400"
    body = cli(f"{TRAIN} {options} --out r --json").json
    small = load("movielens-small")
    assert body["rmse"] < 0.93 * float(
        np.sqrt(np.mean((arrays_of(small.test).y - arrays_of(small.train).y.mean()) ** 2))
    )
    unit = body["privacy"]["certified"]["unit"]
    assert (unit, body["sampling_rate"], body["live"]) == ("record", 400 / 4800, 4930)
    notes = " ".join(body["privacy"]["notes"])
    assert "the guarantee is for one rating, not for one person" in notes
    assert "about one rating in five is a test rating" in notes
    evaluated = cli(f"evaluate r {SMALL} --json").json
    assert (evaluated["records"], evaluated["rmse"], evaluated["notes"]) == (1211, body["rmse"], [])
    assert (evaluated["skill"], body["skill"]) == (None, None)  # ratings are quantities


def test_users_are_protected(cli, entries):
    body = cli(f"{TRAIN} {SHORT} --unit user --per-unit 3 --records 150 --out r --json").json
    assert body["privacy"]["certified"]["unit"] == "user"
    assert body["sampling_rate"] == 40 / 150, "declared records are users"
    notes = " ".join(body["privacy"]["notes"])
    assert "a record is one user with at most 3 ratings" in notes
    assert "those of held-out users" in notes
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
    again = cli(f"evaluate r {SMALL} --json").json
    assert (again["records"], again["rmse"], again["accuracy"]) == (253, body["rmse"], body["accuracy"])
    np.savez("in.npz", x=np.array([[0, 5], [199, 119], [200, 0]]))
    predicted = cli("predict r --input in.npz --out out.npz --json").json
    assert (predicted["records"], predicted["saturated"]) == (3, 1)
    assert np.load("out.npz")["probabilities"].shape == (3, 5)


def test_a_file_of_ones_own(cli):
    ratings = made_up(20, 15, 150, 0)
    rows = zip(ratings.places.tolist(), ratings.stars.tolist(), strict=True)
    Path("mine.dat").write_text("".join(f"{user + 1}::{item + 1}::{stars}::0\n" for (user, item), stars in rows))
    small = "train --dense --dataset mine.dat --model ncf --steps 2 --noise-multiplier 1 --json"
    body = cli(f"{small} --out a").json
    assert body["live"] == 15 * (20 + 15) + 130
    assert any("the largest ids of users (20) and items (15)" in note for note in body["privacy"]["notes"])
    users = cli(f"{small} --users 50 --items 30 --unit user --ledger users.jsonl --out b").json
    assert users["live"] == 15 * (40 + 30) + 130
    assert not any("largest ids" in note for note in users["privacy"]["notes"])


def test_a_ledger_protects_ratings_or_users(cli, refused):
    """A figure for one and a figure for the other are never added."""
    for first, other in (("", "--unit user"), ("--unit user", "")):
        own = f"{SHORT} --ledger {len(first)}.jsonl"
        assert cli(f"{TRAIN} {own} {first} --out a{len(first)}").code == 0
        assert refused(f"{TRAIN} {own} {other} --out b").startswith("--unit: ")
