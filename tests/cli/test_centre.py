"""dpltm train --centre, --augment, --components: what they cost, what they change, what they refuse."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpltm.features.feature_map import make_feature_map
from dpltm.privacy.event_json import from_json
from dpltm.privacy.parts import total_epsilon

DIGITS = ("--dataset", "digits", "--delta", "1e-4")
LINEAR = ("--dense", "--model", "mlp", "--batch-size", "400", "--steps", "6")
UNIT = ("--features", "unit")


@pytest.fixture
def events():
    def call(path):
        return [json.loads(line)["event"] for line in path.read_text().splitlines()[1:]]

    return call


def train(cli, *arguments, **changes):
    return cli("train", *LINEAR, *DIGITS, *arguments, "--json", **changes)


def test_the_run_remembers_its_centre(cli, cwd):
    body = train(cli, *UNIT, "--centre", "0.5", "--epsilon", "5", "--out", "r").json
    config = json.loads((cwd / "r" / "config.json").read_text())["feature_map"]
    assert config["centred"] is True
    centre = load_file(cwd / "r" / "features.safetensors")["centre"]
    from dpltm.data import load

    digits = load("digits")
    mean = make_feature_map("unit:1", (8, 8), (0.0, 16.0))(digits.train.x).mean(0).numpy()
    noise = body["centre"]["noise_multiplier"] * 8 / digits.records
    assert np.linalg.norm(centre - mean) < 3 * noise * math.sqrt(64)
    assert np.linalg.norm(centre - mean) > 0.3 * noise * math.sqrt(64)
    scored = cli("evaluate", "r", "--dataset", "digits", "--json").json
    assert scored["accuracy"] == body["accuracy"]


def test_a_dry_run_states_what_the_run_spends(cli, cwd):
    arguments = (*UNIT, "--centre", "0.1", "--epsilon", "1", "--out", "r")
    planned = train(cli, *arguments, "--dry-run").json
    assert not (cwd / "r").exists()
    assert not list(cwd.glob("*ledger*"))
    done = train(cli, *arguments).json
    for key in ("noise_multiplier", "centre", "steps", "features"):
        assert planned[key] == done[key]
    assert planned["privacy"]["certified"] == done["privacy"]["certified"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--centre", "0.1", "--epsilon", "1"),
            "--centre: needs features of a fixed norm; add --features unit, or a map that suits the records",
        ),
        (
            (*UNIT, "--centre", "0.1", "--noise-multiplier", "2"),
            "--centre: a part of a budget, so it needs --epsilon; --noise-multiplier states no budget",
        ),
        ((*UNIT, "--centre", "1", "--epsilon", "1"), "--centre: 1 is not a part between 0 and 1, such as 0.05"),
        ((*UNIT, "--centre", "nan", "--epsilon", "1"), "--centre: nan is not a part between 0 and 1, such as 0.05"),
        (
            (*UNIT, "--components", "5", "--epsilon", "1"),
            "--components: of public features; name their dataset with --public",
        ),
        (
            (*UNIT, "--public", "digits", "--epsilon", "1"),
            "--public: its statistics normalise scatter and conv features, its principal components (--components) any but"
            " those of a network; add --features, or leave it out",
        ),
        (
            (*UNIT, "--public", "digits", "--components", "5", "--epsilon", "1"),
            "--public: digits was declared public, and digits shares records with it; the same records"
            " cannot be private here: take another --public, --subset or --dataset",
        ),
    ],
)
def test_refusals(cli, cwd, arguments, message):
    before = sorted(cwd.rglob("*"))
    done = train(cli, *arguments, "--out", "r")
    assert (done.code, done.err) == (2, f"error: {message}\n")
    assert sorted(cwd.rglob("*")) == before


@pytest.mark.parametrize("features", [(), UNIT, ("--features", "scatter")], ids=["none", "unit", "scatter"])
def test_copies_cost_nothing(cli, cwd, features):
    plain = train(cli, *features, "--epsilon", "2", "--out", "a").json
    copies = train(cli, *features, "--epsilon", "2", "--augment", "shift-flip", "--out", "b").json
    assert copies["privacy"]["certified"] == plain["privacy"]["certified"]
    assert (plain["augment"], copies["augment"]) == ("none", "shift-flip")
    assert cli("evaluate", "b", "--dataset", "digits", "--json").json["accuracy"] == copies["accuracy"]
    assert (cwd / "b" / "model.safetensors").stat().st_size == (cwd / "a" / "model.safetensors").stat().st_size


def test_components_of_public_records(cli, cwd, events):
    public = ("--features", "unit", "--public", "public.npz", "--components", "6")
    rng = np.random.default_rng(0)
    np.savez("public.npz", x_train=rng.integers(0, 17, (90, 8, 8)).astype(np.uint8), y_train=rng.integers(0, 3, 90))
    body = train(cli, *public, "--epsilon", "2", "--out", "r").json
    assert body["live"] == 6 * 10 + 10
    told, training = events(cwd / "r" / "ledger.jsonl")
    assert (told["provenance"], told["dataset"]["name"], training["kind"]) == ("public", "public", "training")
    assert body["privacy"]["certified"]["epsilon"] == total_epsilon([from_json(training)], 1e-4)
    assert cli("evaluate", "r", "--dataset", "digits", "--json").json["accuracy"] == body["accuracy"]
    too_many = train(cli, *public[:-1], "65", "--epsilon", "2", "--out", "s")
    assert (too_many.code, too_many.err.startswith("error: --components: 65 is not from 1 to 64, ")) == (2, True)
