"""``dpltm tune``: every setting is tried under the noise that the private run will have, and the best can be trained."""

import json
import tomllib
from pathlib import Path

import pytest

from commands import LEDGER, PRIVATE, PUBLIC, certified
from dpltm import tickets as artifacts
from dpltm.verbs import tune as stage

TUNE = f"tune {PUBLIC} --for-records 700 --epsilon 2 --epochs 1 --batch-size 100 --lr 1"
"""Seven steps at a sampling rate of a seventh."""
TRAIN = f"train {PRIVATE} --records 700 --json --config"


@pytest.fixture
def scores(monkeypatch):
    """Makes the search see these scores, one a training, and train nothing."""
    left = []
    monkeypatch.setattr(stage, "accuracy", lambda *_, **__: left.pop(0))
    monkeypatch.setattr(stage, "train", lambda *_, **__: None)
    return left


def written(path):
    return tomllib.loads(Path(path).read_text(encoding="utf-8"))["train"]


def test_the_configuration_trains(cli, cwd, scores, monkeypatch, entries):
    """The file holds the best row and what all rows share, and train takes them from it."""
    scores += [0.2, 0.8]
    options = "--lr 0.5,0.75 --clip-norm 0.5 --optimizer momentum --schedule linear --average ema --accountant rdp"
    body = cli(f"{TUNE} {options} --delta 2e-6 --model mlp:12 --out best.toml --json").json
    found = written("best.toml")
    source = found.pop("lineage")
    assert found == {
        "dense": True, "model": "mlp:12", "lr": 0.75, "clip-norm": 0.5, "epochs": 1, "batch-size": 100, "epsilon": 2,
        "delta": 2e-6, "optimizer": "momentum", "schedule": "linear", "average": "ema", "accountant": "rdp",
    }  # fmt: skip
    monkeypatch.undo()
    monkeypatch.chdir(cwd)
    run = cli(f"{TRAIN} best.toml --out r").json
    told = entries(LEDGER)
    assert [entry["kind"] for entry in told][-2:] == ["public", "release"]
    assert [entry["id"] for entry in json.loads(source)["entries"]] == [told[-2]["id"]]
    assert {entry.id for entry in artifacts.load("r").lineage.entries} == {entry["id"] for entry in told[-2:]}
    again = cli(f"train {PUBLIC} --config best.toml --out s --epsilon 9")
    assert (again.code, "was declared public" in again.err) == (2, True), again.err
    assert run["noise_multiplier"] == body["best"]["noise_multiplier"]
    assert (run["lr"], run["steps"], run["optimizer"], run["sensitivity"]) == (0.75, 7, "momentum", 0.5)
    figure = run["privacy"]["certified"]
    assert (figure["accountant"], figure["delta"]) == ("rdp", 2e-6)
    assert 2 * (1 - 1e-3) <= certified(run) <= 2


def test_nothing_is_written_or_spent(cli, tree):
    """No file is written unless --out names one; that tickets were made from the same records is said."""
    before = tree()
    body = cli(f"{TUNE} pub --json").json
    assert tree() == before
    assert (body["config"], certified(body)) == (None, 0)
    searched, flattered = body["privacy"]["notes"]
    assert searched.startswith("searched on digits, declared public: no private record was read")
    assert flattered == "the tickets were made from digits as well, which flatters them here"
