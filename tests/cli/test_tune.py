"""``dpltm tune``: every setting is tried under the noise that the private run will have, and the best can be trained."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from dpltm.stages import tune as stage

PUBLIC = ("--dataset", "digits", "--subset", "0.0:0.5")
PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0", "--records", "700")
QUICK = ("--for-records", "700", "--epsilon", "2", "--epochs", "1", "--batch-size", "100", "--lr", "1")
"""Seven steps at a sampling rate of a seventh."""

TUNE = ("tune", *PUBLIC, *QUICK)
COLUMNS = {
    "round", "density", "lr", "clip_norm", "epochs", "batch_size", "steps", "noise_multiplier", "accuracy", "accuracies",
}  # fmt: skip


@pytest.fixture
def scores(monkeypatch):
    """Makes the search see these scores, one a training, and train nothing."""
    left = []
    monkeypatch.setattr(stage, "accuracy", lambda *_: left.pop(0))
    monkeypatch.setattr(stage, "train", lambda *_, **__: None)
    return left


# --- what is written ---


def test_the_configuration_trains(cli, cwd, scores, monkeypatch):
    """The file holds the best row and what all rows share, and train takes them from it."""
    scores += [0.2, 0.8]
    options = ("--lr", "0.5,0.75", "--clip-norm", "0.5", "--optimizer", "momentum", "--schedule", "linear")
    more = ("--average", "ema", "--accountant", "rdp", "--delta", "2e-6", "--model", "mlp:12", "--out", "best.toml")
    body = cli(*TUNE, *options, *more, "--json").json
    assert (body["config"], body["best"]["lr"]) == ("best.toml", 0.75)
    found = tomllib.loads(Path("best.toml").read_text(encoding="utf-8"))
    source = found["train"].pop("tuned-on")
    assert found == {
        "train": {
            "dense": True, "model": "mlp:12", "lr": 0.75, "clip-norm": 0.5, "epochs": 1, "batch-size": 100, "epsilon": 2,
            "delta": 2e-6, "optimizer": "momentum", "schedule": "linear", "average": "ema", "accountant": "rdp",
        }
    }  # fmt: skip
    monkeypatch.undo()
    monkeypatch.chdir(cwd)
    run = cli("train", *PRIVATE, "--config", "best.toml", "--out", "r", "--json").json
    told = json.loads(Path("r/ledger.jsonl").read_text(encoding="utf-8").splitlines()[1])["event"]
    assert (told["provenance"], told["ticket_set"]) == ("public", "settings of dpltm tune")
    assert source == " ".join(str(told["dataset"][key]) for key in ("name", "id", "key_id", "cut", "start", "stop"))
    again = cli("train", *PUBLIC, "--config", "best.toml", "--out", "s", "--quiet")
    assert again.code == 2
    assert again.err.startswith("error: --tuned-on: settings were searched on ")
    assert not Path("s").exists()
    assert run["noise_multiplier"] == body["best"]["noise_multiplier"]
    assert (run["lr"], run["steps"], run["optimizer"]) == (0.75, 7, "momentum")
    assert (run["schedule"], run["average"], run["sensitivity"]) == ("linear", "ema", 0.5)
    assert run["live"] == 64 * 12 + 12 + 12 * 10 + 10
    certified = run["privacy"]["certified"]
    assert (certified["accountant"], certified["delta"]) == ("rdp", 2e-6)
    assert 2 * (1 - 1e-3) <= certified["epsilon"] <= 2


def test_the_configuration_of_a_ticket_trains(cli, scores):
    scores += [0.2, 0.8]
    cli(*TUNE, "pub", "--out", "new/best.toml", "--quiet")
    assert tomllib.loads(Path("new/best.toml").read_text(encoding="utf-8"))["train"]["ticket"] == "pub@2"
    plan = cli("train", *PRIVATE, "--config", "new/best.toml", "--dry-run", "--json").json
    assert (plan["ticket_set"], plan["round"], plan["lr"]) == ("pub", 2, 1)


def test_features_are_remembered(cli, tmp_path, monkeypatch):
    """By a ticket set, so that its configuration need not name them; by the configuration where there is no set."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tiny = ("--model", "mlp", "--rounds", "1", "--prune", "0.5", "--iterations", "2", "--batch-size", "32")
    scattered = ("--features", "scatter:1,4")
    assert cli("generate", *PUBLIC, *tiny, *scattered, "--provenance", "public", "--out", "f", "--quiet").code == 0
    features = 4 * 4 * (1 + 4)
    for start, out in ((("f",), "set.toml"), (("--model", "mlp", *scattered), "dense.toml")):
        assert cli(*TUNE, *start, "--out", out, "--quiet").code == 0
        plan = cli("train", *PRIVATE, "--config", out, "--dry-run", "--json").json
        assert plan["features"] == "scatter:1,4"
        live = (features * 10 // 2 if start == ("f",) else features * 10) + 10
        assert plan["live"] == live
    assert "features" not in Path("set.toml").read_text(encoding="utf-8")


def test_nothing_but_json_and_no_ledger(cli, tree):
    """No file is written unless --out names one; nothing is spent, and the answer says so."""
    before = tree()
    body = cli(*TUNE, "pub", "--json").json
    assert tree() == before
    assert set(body) == {
        "dataset", "ticket_set", "for_records", "epsilon", "best", "trials", "config", "privacy",
    }  # fmt: skip
    assert (body["dataset"], body["for_records"], body["epsilon"], body["config"]) == ("digits", 700, 2, None)
    assert all(set(row) == COLUMNS for row in (body["best"], *body["trials"]))
    assert body["privacy"]["certified"]["epsilon"] == 0
    assert body["privacy"]["nominal"] is None
    searched, flattered = body["privacy"]["notes"]
    assert searched.startswith("searched on digits, declared public: no private record was read")
    assert flattered == "the tickets were made from digits as well, which flatters them here"


def test_words_for_people(cli, scores):
    scores += [number / 20 for number in range(12)]
    done = cli(*TUNE, "--lr", ",".join(map(str, range(1, 13))), "--model", "mlp", "--out", "best.toml")
    lines = done.out.splitlines()
    assert (done.code, done.err, lines[0]) == (0, "", "best settings on digits")
    assert sum(line.startswith("│") for line in lines) == 10
    assert "2 more with --json" in lines
    assert "wrote best.toml" in lines
    scores += [0.5]
    quiet = cli(*TUNE, "--model", "mlp", "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")


# --- refusals ---

REFUSED = {
    "no records": (
        ("tune", *QUICK),
        "--dataset is missing: name the records to use (dpltm datasets ls lists what is at hand)",
    ),
    "no number": (
        ("tune", *PUBLIC, "--epsilon", "1"),
        "--for-records is missing: Public number of private records that the settings are for.",
    ),
    "no budget": (
        ("tune", *PUBLIC, "--for-records", "700"),
        "--epsilon is missing: Budget of the private training.",
    ),
    "accountant": ((*TUNE, "--accountant", "clt"), "--accountant: 'clt' is not one of pld, rdp, ma"),
    "list": ((*TUNE, "--lr", "1,,2"), "--lr: '1,,2' is not a list of numbers separated by commas"),
    "batch": (
        (*TUNE, "--batch-size", "100,701"),
        "--batch-size: 701 is more than the 700 records of --for-records",
    ),
    "network beside a set": (
        (*TUNE, "pub", "--model", "mlp"),
        "--model: the ticket set decides the network; leave --model out",
    ),
    "features beside a set": (
        (*TUNE, "pub", "--features", "scatter"),
        "--features: pub remembers what stands in front of its network; leave --features out",
    ),
    "rounds without a set": ((*TUNE, "--rounds", "1"), "--rounds: only for a ticket set; name SET, or leave it out"),
    "a round that is not there": (
        (*TUNE, "pub", "--rounds", "1,7"),
        "pub@7: no such round; it has rounds 0 to 2",
    ),
    "network": (
        (*TUNE, "--model", "gpt"),
        "--model: unknown network 'gpt'; known: mlp:WIDTH,WIDTH,... (such as mlp:300,100), mlp-tanh:...,"
        " cnn, latent, embed, embed-pad, lstm, gru, ncf",
    ),
    "set": ((*TUNE, "nowhere"), "nowhere: no ticket set there; make one with dpltm generate --out nowhere"),
    "no configuration": (
        (*TUNE, "--out", "best.json"),
        "--out: best.json is a configuration file; name it best.toml",
    ),
    "taken": (
        (*TUNE, "--out", "taken.toml"),
        "--out: taken.toml exists already; choose another name or remove it first",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_anything_is_trained(cwd, refused, monkeypatch, case):
    monkeypatch.setattr(stage, "train", lambda *_, **__: pytest.fail("a training began"))
    (cwd / "taken.toml").write_text("[train]\n")
    arguments, message = REFUSED[case]
    out = () if "--out" in arguments else ("--out", "best.toml")
    assert refused(*arguments, *out) == message


def test_an_error_while_training_leaves_no_configuration(refused, monkeypatch):
    from dpltm.errors import InputError

    def fail(*_, **__):
        raise InputError("no memory")

    monkeypatch.setattr(stage, "train", fail)
    assert refused(*TUNE, "--model", "mlp", "--out", "new/best.toml") == "no memory"


def test_the_private_records_of_a_set_are_not_public(refused):
    """``pri`` says of the same records that they are private: searching on them is not free."""
    assert "pri" in refused("tune", "pri", "--dataset", "digits", "--subset", "0.5:1.0", *QUICK)


def test_a_configuration_names_any_folder(cli, cwd, scores):
    (cwd / "pub").rename(cwd / "pub\N{ADMISSION TICKETS}")
    scores += [0.5]
    assert cli(*TUNE, "pub\N{ADMISSION TICKETS}", "--rounds", "1", "--out", "best.toml", "--quiet").code == 0
    written = tomllib.loads(Path("best.toml").read_text(encoding="utf-8"))
    assert written["train"]["ticket"] == "pub\N{ADMISSION TICKETS}@1"
