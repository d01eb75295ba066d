"""``dpltm tune``: every setting is tried under the noise that the private run will have, and the best can be trained."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from dpltm import tickets as artifacts
from dpltm.errors import InputError
from dpltm.verbs import tune as stage

PUBLIC = ("--dataset", "digits", "--subset", "0.0:0.5")
PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0", "--records", "700")
QUICK = ("--for-records", "700", "--epsilon", "2", "--epochs", "1", "--batch-size", "100", "--lr", "1")
"""Seven steps at a sampling rate of a seventh."""

TUNE = ("tune", *PUBLIC, *QUICK)


@pytest.fixture
def scores(monkeypatch):
    """Makes the search see these scores, one a training, and train nothing."""
    left = []
    monkeypatch.setattr(stage, "accuracy", lambda *_: left.pop(0))
    monkeypatch.setattr(stage, "train", lambda *_, **__: None)
    return left


def written(path):
    return tomllib.loads(Path(path).read_text(encoding="utf-8"))["train"]


def test_the_configuration_trains(cli, cwd, scores, monkeypatch, entries):
    """The file holds the best row and what all rows share, and train takes them from it."""
    scores += [0.2, 0.8]
    options = ("--lr", "0.5,0.75", "--clip-norm", "0.5", "--optimizer", "momentum", "--schedule", "linear")
    more = ("--average", "ema", "--accountant", "rdp", "--delta", "2e-6", "--model", "mlp:12", "--out", "best.toml")
    body = cli(*TUNE, *options, *more, "--json").json
    found = written("best.toml")
    source = found.pop("lineage")
    assert found == {
        "dense": True, "model": "mlp:12", "lr": 0.75, "clip-norm": 0.5, "epochs": 1, "batch-size": 100, "epsilon": 2,
        "delta": 2e-6, "optimizer": "momentum", "schedule": "linear", "average": "ema", "accountant": "rdp",
    }  # fmt: skip
    monkeypatch.undo()
    monkeypatch.chdir(cwd)
    run = cli("train", *PRIVATE, "--config", "best.toml", "--out", "r", "--json").json
    told = entries("digits.ledger.jsonl")
    assert [entry["kind"] for entry in told][-2:] == ["public", "release"]
    assert [entry["id"] for entry in json.loads(source)["entries"]] == [told[-2]["id"]]
    assert {entry.id for entry in artifacts.load("r").lineage.entries} == {entry["id"] for entry in told[-2:]}
    again = cli("train", *PUBLIC, "--config", "best.toml", "--out", "s", "--quiet", "--epsilon", "9")
    assert (again.code, "was declared public" in again.err) == (2, True), again.err
    assert run["noise_multiplier"] == body["best"]["noise_multiplier"]
    assert (run["lr"], run["steps"], run["optimizer"], run["sensitivity"]) == (0.75, 7, "momentum", 0.5)
    certified = run["privacy"]["certified"]
    assert (certified["accountant"], certified["delta"]) == ("rdp", 2e-6)
    assert 2 * (1 - 1e-3) <= certified["epsilon"] <= 2


@pytest.mark.parametrize("name", ["pub", "pub\N{ADMISSION TICKETS}"])
def test_the_configuration_of_a_ticket_trains(cli, cwd, scores, name):
    """A configuration names any folder."""
    scores += [0.2, 0.8]
    (cwd / "pub").rename(cwd / name)
    assert cli(*TUNE, name, "--out", "new/best.toml", "--quiet").code == 0
    assert written("new/best.toml")["ticket"] == f"{name}@2"
    plan = cli("train", *PRIVATE, "--config", "new/best.toml", "--dry-run", "--json").json
    assert (plan["ticket_set"], plan["round"], plan["lr"]) == (name, 2, 1)


def test_features_are_remembered(cli, scores):
    """By a ticket set, so that its configuration need not name them; by the configuration where there is no set."""
    tiny = ("--model", "mlp", "--rounds", "1", "--prune", "0.5", "--iterations", "2", "--batch-size", "32")
    scattered = ("--features", "scatter:1,4")
    assert cli("generate", *PUBLIC, *tiny, *scattered, "--provenance", "public", "--out", "f", "--quiet").code == 0
    for start, out, live in ((("f",), "set.toml", 400 + 10), (("--model", "mlp", *scattered), "dense.toml", 800 + 10)):
        scores += [0.5]
        assert cli(*TUNE, *start, "--out", out, "--quiet").code == 0
        plan = cli("train", *PRIVATE, "--config", out, "--dry-run", "--json").json
        assert (plan["features"], plan["live"]) == ("scatter:1,4", live)
    assert "features" not in written("set.toml")


def test_nothing_is_written_or_spent(cli, tree):
    """No file is written unless --out names one; that tickets were made from the same records is said."""
    before = tree()
    body = cli(*TUNE, "pub", "--json").json
    assert tree() == before
    assert (body["config"], body["privacy"]["certified"]["epsilon"]) == (None, 0)
    searched, flattered = body["privacy"]["notes"]
    assert searched.startswith("searched on digits, declared public: no private record was read")
    assert flattered == "the tickets were made from digits as well, which flatters them here"


def test_ten_rows_are_shown(cli, scores):
    scores += [number / 20 for number in range(12)]
    lines = cli(*TUNE, "--lr", ",".join(map(str, range(1, 13))), "--model", "mlp").out.splitlines()
    assert sum(line.startswith("│") for line in lines) == 10
    assert "2 more with --json" in lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("tune", *PUBLIC, "--epsilon", "1"),
            "--for-records is missing: the public number of private records",
        ),
        (("tune", *PUBLIC, "--for-records", "700"), "--epsilon is missing: Budget of the private training."),
        ((*TUNE, "pub", "--model", "mlp"), "--model: the ticket set decides the network; leave --model out"),
        (
            (*TUNE, "pub", "--features", "scatter"),
            "--features: pub remembers what stands in front of its network; leave --features out",
        ),
        ((*TUNE, "--out", "taken.toml"), "--out: taken.toml exists already; choose another name or remove it first"),
    ],
)
def test_refused_before_anything_is_trained(cwd, refused, monkeypatch, arguments, message):
    monkeypatch.setattr(stage, "train", lambda *_, **__: pytest.fail("a training began"))
    (cwd / "taken.toml").write_text("[train]\n")
    out = () if "--out" in arguments else ("--out", "best.toml")
    assert refused(*arguments, *out).startswith(message)


def test_an_error_while_training_leaves_no_configuration(refused, monkeypatch):
    def fail(*_, **__):
        raise InputError("no memory")

    monkeypatch.setattr(stage, "train", fail)
    assert refused(*TUNE, "--model", "mlp", "--out", "new/best.toml") == "no memory"
