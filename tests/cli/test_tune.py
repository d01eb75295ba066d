"""``dpltm tune``: every setting is tried under the noise that the private run will have, and the best can be trained."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from dpltm.privacy.events import DatasetRef, TrainingEvent
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.privacy.parts import total_epsilon

PUBLIC = ("--dataset", "digits", "--subset", "0.0:0.5")
PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0", "--records", "700")
QUICK = ("--for-records", "700", "--epsilon", "2", "--epochs", "1", "--batch-size", "100", "--lr", "1")
"""Seven steps at a sampling rate of a seventh."""

TUNE = ("tune", *PUBLIC, *QUICK)
COLUMNS = {
    "round", "density", "lr", "clip_norm", "epochs", "batch_size", "steps", "noise_multiplier", "accuracy", "accuracies",
}  # fmt: skip


def cost(row, records, delta=1e-5, accountant="pld"):
    """What the private run with the settings of a row costs, by the accountant alone."""
    rate = row["batch_size"] / records
    touched = DatasetRef("private", "0" * 32, "0" * 8, 0, records, "places")
    sigma = row["noise_multiplier"]
    event = TrainingEvent(touched, NoisySgd(rate, row["steps"], sigma, row["clip_norm"]), "clip", 1)
    return total_epsilon([event], delta, accountant)


@pytest.fixture
def trained(monkeypatch):
    """The networks that are scored, in order: a list that fills."""
    from dpltm import generation

    networks, judge = [], generation.accuracy

    def listening(model, x, y):
        networks.append({name: value.detach().clone() for name, value in model.named_parameters()})
        return judge(model, x, y)

    monkeypatch.setattr(generation, "accuracy", listening)
    return networks


@pytest.fixture
def scores(monkeypatch):
    """Makes the search see these scores, one a training, and train nothing."""
    from dpltm import generation, training

    left = []
    monkeypatch.setattr(generation, "accuracy", lambda *_: left.pop(0))
    monkeypatch.setattr(training, "train", lambda *_, **__: None)
    return left


# --- the noise ---


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_every_row_has_the_noise_of_the_private_run(cli, scores, accountant):
    """Each combination is calibrated for itself, to all of the budget and no more."""
    scores += [0.5] * 4
    lists = ("--epochs", "1,4", "--batch-size", "50,100", "--clip-norm", "0.5", "--delta", "1e-4")
    body = cli(*TUNE, "--model", "mlp", *lists, "--accountant", accountant, "--json").json
    rows = body["trials"]
    assert {(row["epochs"], row["batch_size"], row["steps"]) for row in rows} == {
        (1, 50, 14), (1, 100, 7), (4, 50, 56), (4, 100, 28),
    }  # fmt: skip
    for row in rows:
        assert 2 * (1 - 1e-3) <= cost(row, 700, 1e-4, accountant) <= 2
    assert len({row["noise_multiplier"] for row in rows}) == 4


def test_it_is_what_train_calibrates(cli, scores):
    """For as many private records as --for-records says."""
    scores += [0.5]
    row = cli(*TUNE, "--model", "mlp:8", "--json").json["best"]
    options = ("--epsilon", "2", "--epochs", "1", "--batch-size", "100", "--dry-run", "--json")
    planned = cli("train", "--dense", "--model", "mlp:8", *PRIVATE, *options).json
    assert row["noise_multiplier"] == planned["noise_multiplier"]
    assert row["steps"] == planned["steps"]


@pytest.mark.parametrize("public", [60, 4000])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_mean_gradients_are_as_noisy_as_the_private_ones(cli, cwd, trained, public, optimizer):
    """One step on records of zeros: no gradient but that of the biases, so the weights move by noise alone.

    The private batch is of 1,000 records: more than the smaller public set has, whose mean gradient is full all the same.
    """
    inputs, classes, batch, lr, clip = 700, 10, 1000, 3.0, 0.95
    labels = np.arange(public) % classes
    labels[: public // 2] = 0
    held_out = {"x_test": np.ones((10, inputs), np.uint8), "y_test": np.arange(10)}
    np.savez(cwd / "zeros.npz", x_train=np.zeros((public, inputs), np.uint8), y_train=labels, **held_out)
    budget = ("--for-records", "5000", "--epsilon", "1", "--epochs", "0.2", "--batch-size", str(batch))
    more = ("--clip-norm", str(clip), "--optimizer", optimizer, "--model", "mlp", "--seed", "3")
    row = cli("tune", "--dataset", "zeros.npz", *budget, "--lr", str(lr), *more, "--json").json["best"]
    assert row["steps"] == 1
    from dpltm.models import ModelSpec, build

    start = dict(build(ModelSpec("mlp", inputs, classes), 3).named_parameters())
    (end,) = trained
    (weight,) = (name for name in start if name.endswith("weight"))
    (bias,) = (name for name in start if name.endswith("bias"))
    expected = row["noise_multiplier"] * clip / batch
    moves = ((end[weight] - start[weight]) / lr).detach().double().flatten().numpy()
    count = len(moves)
    assert abs(moves.mean()) < 5 * expected / math.sqrt(count)
    assert abs((moves**2).mean() / expected**2 - 1) < 5 * math.sqrt(2 / count)  # 6 % for 7,000 weights
    # the gradient of the biases: a tenth less how frequent the class is; no record's norm, sqrt(0.9), is clipped
    gradient = 0.1 - np.bincount(labels, minlength=classes) / public
    spread = 0 if public < batch else 0.95 / math.sqrt(batch)  # who was drawn
    moved = -(end[bias] - start[bias]).detach().numpy() / lr
    np.testing.assert_allclose(moved, gradient, atol=6 * math.hypot(expected, spread))
    assert abs(gradient[0]) > 0.4


# --- what is tried ---


def test_all_combinations_the_best_first(cli, scores):
    scores += [0.1, 0.4, 0.3, 0.2]
    body = cli(*TUNE, "--lr", "1,2", "--clip-norm", "0.5,1", "--model", "mlp", "--json").json
    rows = body["trials"]
    assert [(row["lr"], row["clip_norm"], row["accuracy"]) for row in rows] == [
        (1, 1, 0.4), (2, 0.5, 0.3), (2, 1, 0.2), (1, 0.5, 0.1),
    ]  # fmt: skip
    assert body["best"] == rows[0]
    assert all(set(row) == COLUMNS for row in rows)
    assert all(row["round"] is None and row["density"] == 1 for row in rows)


def test_the_mean_of_repeats_decides(cli, scores):
    scores += [0.9, 0.1, 0.3, 0.6, 0.4, 0.5]
    rows = cli(*TUNE, "--lr", "1,2", "--repeats", "3", "--model", "mlp", "--json").json["trials"]
    assert [row["lr"] for row in rows] == [2, 1]
    assert [row["accuracies"] for row in rows] == [[0.6, 0.4, 0.5], [0.9, 0.1, 0.3]]
    assert [row["accuracy"] for row in rows] == pytest.approx([0.5, 1.3 / 3])


def test_repeats_start_from_other_weights(cli, trained):
    """Of a fresh network; a step size of next to nothing leaves them as they were drawn."""
    from dpltm.models import ModelSpec, build

    cli(*TUNE, "--lr", "1e-9", "--repeats", "2", "--seed", "5", "--model", "mlp:8", "--quiet")
    for seed, end in zip((5, 6), trained, strict=True):
        for name, value in build(ModelSpec("mlp:8", 64, 10), seed).named_parameters():
            torch.testing.assert_close(end[name], value.detach(), rtol=0, atol=1e-6)


def test_some_combinations_by_seed(cli, scores):
    """As many as asked for, none twice, the same for the same seed; all of them where there are fewer."""
    tried = []
    for seed in (1, 1, 2, 3, 4):
        scores[:] = [0.5] * 3
        lists = ("--lr", "1,2,3,4,5,6", "--clip-norm", "1,2", "--trials", "3", "--seed", str(seed))
        rows = cli(*TUNE, *lists, "--model", "mlp", "--json").json["trials"]
        tried.append({(row["lr"], row["clip_norm"]) for row in rows})
        assert len(rows) == len(tried[-1]) == 3
    assert tried[0] == tried[1]
    assert len({frozenset(some) for some in tried}) > 1
    scores[:] = [0.5] * 2
    assert len(cli(*TUNE, "--lr", "1,2", "--trials", "9", "--model", "mlp", "--json").json["trials"]) == 2


@pytest.mark.parametrize(("rounds", "expected"), [((), {1, 2}), (("--rounds", "2,0"), {0, 2})])
def test_rounds_of_a_set(cli, trained, rounds, expected):
    """Every ticket starts from the weights of the set, and what its mask prunes stays zero."""
    from dpltm.tickets.store import find_set

    body = cli(*TUNE, "pub", *rounds, "--lr", "1e-9", "--json").json
    assert {row["round"] for row in body["trials"]} == expected
    assert body["ticket_set"] == "pub"
    tickets = find_set("pub")
    for row in body["trials"]:
        assert row["density"] == tickets.ticket(row["round"]).mask.density
    kept = sorted(tickets.ticket(number).mask.live for number in expected)
    for end, live in zip(
        sorted(trained, key=lambda value: int(value["fc1.weight"].count_nonzero())), kept, strict=True
    ):
        biases = sum(len(value) for name, value in end.items() if name.endswith("bias"))
        weights = sum(int(value.count_nonzero()) for name, value in end.items() if name.endswith("weight"))
        assert weights + biases == live
        start = tickets.body.theta0["fc1.weight"]
        torch.testing.assert_close(end["fc1.weight"], start * (end["fc1.weight"] != 0), rtol=0, atol=1e-6)


def test_it_finds_what_trains(cli):
    """A step size of next to nothing leaves a network at chance; a usual one does not."""
    options = ("--lr", "1e-6,1", "--epochs", "10", "--epsilon", "100", "--model", "mlp:16")
    best, worst = cli(*TUNE, *options, "--json").json["trials"]
    assert (best["lr"], worst["lr"]) == (1, 1e-6)
    assert best["accuracy"] > 0.5 > 0.3 > worst["accuracy"]


def test_without_a_test_split_a_fifth_of_the_records_is_held_out(cli, cwd, monkeypatch):
    from dpltm import generation, training

    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (53, 6), dtype=np.uint8), rng.integers(0, 3, 53)
    np.savez(cwd / "whole.npz", x_train=x, y_train=y)
    seen = {}

    def train(model, mask, records, config, **_):
        del model, mask, config
        seen["train"] = records.take(np.arange(len(records)))

    def accuracy(model, *test):
        del model
        seen["test"] = test
        return 0.5

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(generation, "accuracy", accuracy)
    options = ("--dataset", "whole.npz", "--classes", "3", "--model", "mlp", *QUICK)
    assert cli("tune", *options, "--json").json["best"]["accuracy"] == 0.5
    # which fifth is drawn; no record is on both sides, and none is missing
    parts = {name: (found_x.numpy(), found_y.numpy()) for name, (found_x, found_y) in seen.items()}
    assert {name: len(part[1]) for name, part in parts.items()} == {"test": 10, "train": 43}
    found = np.vstack([np.column_stack(part) for part in parts.values()])
    wanted = np.column_stack([(x / 255).astype(np.float32), y])
    np.testing.assert_allclose(found[np.lexsort(found.T)], wanted[np.lexsort(wanted.T)], atol=1e-6)


def test_options_reach_the_training(cli, monkeypatch):
    from dpltm import generation, training

    configs = []
    monkeypatch.setattr(training, "train", lambda *arguments, **_: configs.append(arguments[3]))
    monkeypatch.setattr(generation, "accuracy", lambda *_: 0.5)
    chosen = ("--optimizer", "adam", "--schedule", "cosine", "--average", "poly", "--clip-norm", "0.25")
    row = cli(*TUNE, *chosen, "--model", "mlp", "--json").json["best"]
    (config,) = configs
    assert (config.optimizer, config.schedule, config.average, config.lr) == ("adam", "cosine", "poly", 1)
    assert (config.filter.clip_norm, config.steps, config.expected_batch) == (0.25, 7, 100)
    assert config.noise_std == pytest.approx(row["noise_multiplier"] * 0.25, rel=1e-12)


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
    "budget": ((*TUNE, "--epsilon", "0"), "--epsilon: 0 is not a positive number up to 10000"),
    "delta": ((*TUNE, "--delta", "1"), "--delta: 1 is not between 1e-15 and 1"),
    "delta of so many": (
        (*TUNE, "--delta", "0.002"),
        "--delta: 0.002 is not below 1/n for 700 records; take a smaller one",
    ),
    "records": ((*TUNE, "--for-records", "0"), "--for-records: 0 is not a positive whole number"),
    "repeats": ((*TUNE, "--repeats", "0"), "--repeats: 0 is not a positive whole number"),
    "trials": ((*TUNE, "--trials", "-1"), "--trials: -1 is not a positive whole number"),
    "seed": ((*TUNE, "--seed", "-1"), "--seed: -1 is not between 0 and 2^62 - 1"),
    "accountant": ((*TUNE, "--accountant", "clt"), "--accountant: 'clt' is not one of pld, rdp, ma"),
    "optimizer": ((*TUNE, "--optimizer", "lion"), "--optimizer: 'lion' is not one of sgd, momentum, adam, adagrad"),
    "lr": ((*TUNE, "--lr", "1,0"), "--lr: 0 is not a positive number"),
    "lr of no end": ((*TUNE, "--lr", "inf"), "--lr: inf is not a positive number"),
    "clip norm": ((*TUNE, "--clip-norm", "1,nan"), "--clip-norm: nan is not a positive number"),
    "epochs": ((*TUNE, "--epochs", "-2"), "--epochs: -2 is not a positive number"),
    "list": ((*TUNE, "--lr", "1,,2"), "--lr: '1,,2' is not a list of numbers separated by commas"),
    "batch": (
        (*TUNE, "--batch-size", "100,701"),
        "--batch-size: 701 is more than the 700 records of --for-records",
    ),
    "combinations": (
        (*TUNE, "--lr", ",".join(["1"] * 101), "--clip-norm", ",".join(["1"] * 100)),
        "--lr, --clip-norm, --epochs, --batch-size: more than 10,000 combinations; name fewer",
    ),
    "too small a budget": (
        (*TUNE, "--epsilon", "1e-6", "--delta", "1e-12"),
        "--epsilon: 1e-06 is too small to calibrate: even noise multiplier 16384 over 7 steps at sampling rate 0.143 spends"
        " more; raise --epsilon or take fewer steps",
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
    "rounds": ((*TUNE, "pub", "--rounds", "1,x"), "--rounds: '1,x' is not a list of rounds, such as 0,3,6"),
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
    from dpltm import training

    monkeypatch.setattr(training, "train", lambda *_, **__: pytest.fail("a training began"))
    (cwd / "taken.toml").write_text("[train]\n")
    arguments, message = REFUSED[case]
    out = () if "--out" in arguments else ("--out", "best.toml")
    assert refused(*arguments, *out) == message


def test_a_set_for_other_records(cwd, refused):
    np.savez(cwd / "thin.npz", x_train=np.eye(40, 7), y_train=np.arange(40) % 10)
    assert refused("tune", "pub", "--dataset", "thin.npz", "--bounds", "0,1", *QUICK, "--out", "best.toml") == (
        "pub: its network takes 64 features, but thin has 7; use records of the same shape, or carry it over with dpltm"
        " tickets transfer"
    )


def test_an_error_while_training_leaves_no_configuration(refused, monkeypatch):
    from dpltm import training
    from dpltm.errors import InputError

    def fail(*_, **__):
        raise InputError("no memory")

    monkeypatch.setattr(training, "train", fail)
    assert refused(*TUNE, "--model", "mlp", "--out", "new/best.toml") == "no memory"


# --- faults that were found while these tests were written ---


def test_fewer_than_five_records(cwd, refused):
    np.savez(cwd / "four.npz", x_train=np.zeros((4, 3), np.uint8), y_train=np.array([0, 1, 0, 1]))
    assert "four" in refused("tune", "--dataset", "four.npz", *QUICK, "--model", "mlp", "--out", "best.toml")


def test_a_clip_norm_that_no_filter_takes(refused, monkeypatch):
    from dpltm import training

    trainings = []
    monkeypatch.setattr(training, "train", lambda *_, **__: trainings.append(1))
    assert refused(*TUNE, "--model", "mlp", "--clip-norm", "1,1e9").startswith("--clip-norm: 1000000000.0 is not")
    assert not trainings


def test_more_steps_than_train_takes(refused, monkeypatch):
    from dpltm.privacy import calibration

    monkeypatch.setattr(calibration, "calibrate_noise", lambda *_: pytest.fail("calibrates for minutes"))
    assert refused(*TUNE, "--model", "mlp", "--epochs", "1e12").startswith("--epochs")


def test_the_private_records_of_a_set_are_not_public(refused):
    """``pri`` says of the same records that they are private: searching on them is not free."""
    assert "pri" in refused("tune", "pri", "--dataset", "digits", "--subset", "0.5:1.0", *QUICK)


def test_a_configuration_names_any_folder(cli, cwd, scores):
    (cwd / "pub").rename(cwd / "pub\N{ADMISSION TICKETS}")
    scores += [0.5]
    assert cli(*TUNE, "pub\N{ADMISSION TICKETS}", "--rounds", "1", "--out", "best.toml", "--quiet").code == 0
    written = tomllib.loads(Path("best.toml").read_text(encoding="utf-8"))
    assert written["train"]["ticket"] == "pub\N{ADMISSION TICKETS}@1"
