"""dpltm train --centre, --augment, --components: what they cost, and that a run remembers them."""

from __future__ import annotations

import json
import math

import numpy as np
from safetensors.numpy import load_file

from dpltm.features.feature_map import make_feature_map
from dpltm.privacy.account import Account
from dpltm.privacy.entry import entry_from_json
from dpltm.records import load

DIGITS = ("--dataset", "digits", "--delta", "1e-4", "--ledger", "l.jsonl")
LINEAR = ("train", "--dense", "--model", "mlp", "--batch-size", "400", "--steps", "6", *DIGITS, "--features", "unit")


def test_a_run_spends_what_its_dry_run_states_and_remembers_its_centre(cli, cwd, tree):
    """The centre is that of all records, with noise: 64 coordinates within three deviations of each together."""
    arguments, before = (*LINEAR, "--centre", "0.5", "--epsilon", "5", "--out", "r", "--json"), tree()
    planned = cli(*arguments, "--dry-run").json
    assert tree() == before
    body = cli(*arguments).json
    for key in ("noise_multiplier", "centre", "steps", "features"):
        assert planned[key] == body[key]
    assert planned["privacy"]["certified"] == body["privacy"]["certified"]
    assert json.loads((cwd / "r" / "config.json").read_text())["feature_map"]["centred"] is True
    centre, digits = load_file(cwd / "r" / "features.safetensors")["centre"], load("digits")
    mean = make_feature_map("unit:1", (8, 8), (0.0, 16.0))(digits.train.x).mean(0).numpy()
    noise = body["centre"]["noise_multiplier"] * 8 / digits.records
    assert 0.3 < np.linalg.norm(centre - mean) / (noise * math.sqrt(64)) < 3
    assert cli("evaluate", "r", "--dataset", "digits", "--json").json["accuracy"] == body["accuracy"]


def test_copies_cost_nothing(cli, cwd):
    options = (*LINEAR, "--epsilon", "2", "--json")
    plain = cli(*options, "--out", "a").json
    copies = cli(*options, "--augment", "shift-flip", "--ledger", "m.jsonl", "--out", "b").json
    assert copies["privacy"]["certified"] == plain["privacy"]["certified"]
    assert (plain["augment"], copies["augment"]) == ("none", "shift-flip")
    assert cli("evaluate", "b", "--dataset", "digits", "--json").json["accuracy"] == copies["accuracy"]
    assert (cwd / "b" / "model.safetensors").stat().st_size == (cwd / "a" / "model.safetensors").stat().st_size


def test_components_of_public_records(cli, entries):
    rng = np.random.default_rng(0)
    np.savez("public.npz", x_train=rng.integers(0, 17, (90, 8, 8)).astype(np.uint8), y_train=rng.integers(0, 3, 90))
    body = cli(*LINEAR, "--public", "public.npz", "--components", "6", "--epsilon", "2", "--out", "r", "--json").json
    assert body["live"] == 6 * 10 + 10
    told, training = entries("l.jsonl")
    assert (told["kind"], told["part"]["name"], training["kind"]) == ("public", "public", "release")
    assert body["privacy"]["certified"]["epsilon"] == Account((entry_from_json(training),)).epsilon(1e-4)
    assert cli("evaluate", "r", "--dataset", "digits", "--json").json["accuracy"] == body["accuracy"]


def test_refusals(cli, refused):
    said = refused(*LINEAR, "--centre", "nan", "--epsilon", "1", "--out", "r")
    assert said == "--centre: nan is not a part between 0 and 1, such as 0.05"
    done = cli(*LINEAR, "--public", "digits", "--components", "5", "--epsilon", "1", "--out", "r")
    assert done.code == 2
    assert "digits was declared public, and digits shares records with it" in done.err
