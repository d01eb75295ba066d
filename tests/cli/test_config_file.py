"""--config: a TOML file fills any option, flags override it, and a wrong file gets one line."""

import json
import tomllib
from pathlib import Path

import pytest

from commands import LEDGER, PRIVATE, PUBLIC, certified
from dpltm import tickets as artifacts
from dpltm.verbs import tune as stage

TRAIN = "train pub@1 --config c.toml"


@pytest.fixture
def config(cwd):
    return (cwd / "c.toml").write_text


def test_fills_and_is_overridden(cli, config):
    """Whether a mark of byte order stands in front or not."""
    config('\ufeffdataset = "digits"\nsubset = "0.5:1.0"\nsteps = 7\nnoise-multiplier = 3\nclip_norm = 0.5\n')
    filled = cli(f"{TRAIN} --dry-run --json").json
    assert (filled["steps"], filled["noise_multiplier"], filled["filter"]) == (7, 3.0, "clip(C=0.5)")
    overridden = cli(f"{TRAIN} --dry-run --json --steps 2 --clip-norm 2").json
    assert (overridden["steps"], overridden["noise_multiplier"], overridden["filter"]) == (2, 3.0, "clip(C=2)")


def test_positional_argument_and_switch_in_the_table_of_the_command(cli, config):
    config('[train]\nticket = "pub"\ndense = true\nnoise-multiplier = 3\nsteps = 2\n[generate]\nrounds = "many"\n')
    body = cli(f"train {PRIVATE} --config c.toml --dry-run --json").json
    assert (body["ticket_set"], body["round"], body["steps"]) == ("pub", 0, 2)


def test_lists_stand_for_numbers_with_commas(cli, config):
    config("prune = [0.5, 0.25]\nbounds = [0, 16]\n")
    options = "--model mlp:8 --rounds 1 --iterations 1 --provenance public --out new"
    body = cli(f"generate --config c.toml {options} --json").json
    assert body["tickets"][1]["density"] == (512 / 2 + 80 * 3 / 4) / 592


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("batch-sise = 1", "--config c.toml: --batch-sise: no such option; did you mean --batch-size?"),
        ("qqqq = 1", "--config c.toml: --qqqq: no such option; there are "),
        ('steps = "3"', "--config c.toml: --steps: '3' is not a whole number"),
        ("steps = true", "--config c.toml: --steps: True is not a whole number"),
        ("noise-multiplier = [1]", "--config c.toml: --noise-multiplier: a value of type list is not a number"),
        ("epsilon = -1", "--config c.toml: --epsilon: -1 is not a positive number"),
        ("train = 1\n[select]", "--config c.toml: train "),
        ("steps = ", "--config c.toml: not valid TOML: "),
        ("\x00", "--config c.toml: not valid TOML: "),
        ("steps = " + "[" * 9999, "--config c.toml: not valid TOML: "),
    ],
)
def test_bad_files(refused, config, text, culprit):
    config(text)
    assert refused(TRAIN, PRIVATE).startswith(culprit)


# --- dpltm tune writes such a file ---


TUNE = f"tune {PUBLIC} --for-records 700 --epsilon 2 --epochs 1 --batch-size 100 --lr 1"
"""Seven steps at a sampling rate of a seventh."""
TRAIN_IT = f"train {PRIVATE} --records 700 --json --config"


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
    run = cli(f"{TRAIN_IT} best.toml --out r").json
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
