"""Features in front of a network, from the options to the ledger: what they cost wherever they go.

What is refused of the options is tested in ````tests/dpltm/features``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpltm.cli.main import run as dpltm
from dpltm.features.feature_map import make_feature_map
from dpltm.privacy.account import Account
from dpltm.privacy.entry import Lineage, lineage_from_json
from dpltm.records import load

A, B = (("--dataset", "digits", "--subset", part) for part in ("0.0:0.5", "0.5:1.0"))
LINEAR = ("--model", "mlp", "--rounds", "2", "--prune", "0.3", "--iterations", "30", "--batch-size", "32")
DENSE = ("train", "--dense", "--model", "mlp", *B, "--steps", "4", "--out", "r")
SCATTERED = 81 * 2 * 2
"""Features of an image of 8 x 8: 1 + 2 * 8 + 8^2 channels in two windows of 4 pixels down and two across."""


@pytest.fixture(scope="module")
def made(tmp_path_factory, _own_config_home) -> Path:
    """In the place of the usual sets: ``sc``, linear tickets on scatter features of public records; ``net``, a run on A."""
    folder = tmp_path_factory.mktemp("sets")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        quick = ("--steps", "8", "--noise-multiplier", "2", "--quiet")
        public = ("--provenance", "public", "--quiet", "--ledger", "public.jsonl")
        assert dpltm(["generate", *A, *LINEAR, *public, "--features", "scatter", "--out", "sc"]) == 0
        assert dpltm(["train", "--dense", "--model", "mlp:12", *A, *quick, "--out", "net"]) == 0
    return folder


@pytest.fixture(autouse=True)
def work(cwd) -> Path:
    """The working folder, with all of these in it."""
    return cwd


@pytest.fixture
def turned_away(refused):
    """``refused``; besides, no feature was kept."""

    def call(*arguments, code: int = 2) -> str:
        cache = Path(os.environ["XDG_CACHE_HOME"])
        before = sorted(cache.rglob("*"))
        message = refused(*arguments, code=code)
        assert sorted(cache.rglob("*")) == before
        return message

    return call


def lineage(folder: str) -> Lineage:
    return lineage_from_json(json.loads(Path(folder, "lineage.json").read_text())["lineage"])


def alone(*folders: str) -> float:
    """What releases behind artifacts come to, each once, without any ledger."""
    found = Lineage()
    for folder in folders:
        found |= lineage(folder)
    return Account.of((), found).epsilon(1e-5)


def certified(body: dict) -> float:
    return body["privacy"]["certified"]["epsilon"]


# From beginning to end


def test_a_set_remembers_what_stands_in_front_of_it(cli):
    document = json.loads(Path("sc/tickets.json").read_text())
    assert document["features"] == SCATTERED
    assert (document["feature_map"]["text"], document["feature_map"]["shape"]) == ("scatter:2,8", [8, 8])
    assert not Path("sc/features.safetensors").exists()
    options = ("train", "sc@1", *B, "--epsilon", "3", "--epochs", "2", "--ledger", "l.jsonl", "--json")
    dry, body = cli(*options, "--dry-run").json, cli(*options, "--out", "r").json
    assert body["features"] == dry["features"] == "scatter:2,8"
    assert body["accuracy"] > 0.6, "a linear network on features of a few hundred digits"
    assert [entry.kind for entry in lineage("r").entries] == ["public", "release"]
    assert certified(body) == certified(dry) == alone("r")
    assert 2.5 < certified(body) <= 3
    assert cli("evaluate", "r", "--dataset", "digits", "--json").json["accuracy"] == body["accuracy"]
    digits, weights = load("digits"), load_file("r/model.safetensors")
    values = make_feature_map("scatter:2,8", (8, 8), (0.0, 16.0))(digits.test.x).numpy()
    outputs = values @ weights["fc1.weight"].T + weights["fc1.bias"]
    assert np.mean(outputs.argmax(1) == digits.test.y) == pytest.approx(body["accuracy"], abs=0.006)
    assert cli("tickets", "compact", "r", "--out", "small").err == (
        "error: r: its network stands behind scatter:2,8 features, which a folder without dpltm cannot compute; compact"
        " SET@ROUND instead, and train that\n"
    )


def test_a_winner_is_drawn_and_trained_on_features(cli):
    cli("select", "sc", *B, "--eps1", "0.1", "--score", "additive", "--ledger", "l.jsonl", "--quiet")
    train = ("train", "sc", *B, "--epsilon", "2", "--steps", "2", "--ledger", "l.jsonl", "--out", "r", "--json")
    body = cli(*train).json
    assert 1 < certified(body) <= 2
    assert [entry.kind for entry in lineage("r").entries] == ["public", "release", "release"]


def test_tickets_made_under_dp_from_features(cli):
    options = ("--model", "mlp", "--rounds", "1", "--prune", "0.3", "--iterations", "4", "--batch-size", "32")
    release = ("--criterion", "dp-synthetic", "--epsilon", "1", "--features", "scatter:2,2")
    own = ("--ledger", "l.jsonl")
    cli("generate", *B, *options, *release, *own, "--out", "d", "--quiet")
    body = cli("train", "d@1", *B, *own, "--epsilon", "3", "--steps", "4", "--out", "r", "--json").json
    assert len(lineage("r").paid) == 2
    assert certified(body) == alone("r") > alone("d") > 0.8


def test_sets_made_from_a_set_keep_its_map(cli):
    found = json.loads(Path("sc/tickets.json").read_text())["feature_map"]
    cli("tickets", "export", "sc", "--out", "copy", "--quiet")
    cli("tickets", "transfer", "sc", "--dataset", "digits", "--out", "moved", "--quiet")
    for name in ("copy", "moved"):
        assert json.loads(Path(name, "tickets.json").read_text())["feature_map"] == found
        assert cli("tickets", "verify", name, "--json").json["ok"]


def test_random_fourier_features_from_training_to_predictions(cli):
    """Whoever writes its numbers in whatever way; behind it, the network is what numpy makes of the same features."""
    options = (*DENSE[:6], "--features", "fourier:256,.50", "--centre", "0.1", "--clip-norm", "0.2")
    budget = ("--epsilon", "3", "--steps", "20", "--batch-size", "600", "--lr", "8", "--optimizer", "momentum")
    body = cli(*options, *budget, "--subset", "0.5:1.0", "--out", "r", "--json").json
    assert body["features"] == "fourier:256,0.5"
    assert 2.5 < certified(body) <= 3
    assert body["accuracy"] > 0.7, "a linear network on features of a few hundred digits"
    assert cli("evaluate", "r", "--dataset", "digits", "--json").json["accuracy"] == body["accuracy"]
    digits = load("digits")
    np.savez("new.npz", x=digits.test.x)
    cli("predict", "r", "--input", "new.npz", "--out", "p.npz", "--quiet")
    centre, weights = load_file("r/features.safetensors")["centre"], load_file("r/model.safetensors")
    values = make_feature_map("fourier:256,0.50", (8, 8), (0.0, 16.0))(digits.test.x).numpy() - centre
    values *= 8 / np.linalg.norm(values, axis=1, keepdims=True)
    outputs = values @ weights["fc1.weight"].T + weights["fc1.bias"]
    assert np.mean(outputs.argmax(1) == np.load("p.npz")["label"]) > 0.99


def test_random_fourier_features_wherever_features_go(cli, turned_away):
    """Tickets, a search, and principal components of public records."""
    public = ("--provenance", "public", "--ledger", "public.jsonl", "--quiet")
    cli("generate", *A, *LINEAR, *public, "--features", "fourier:64", "--out", "t")
    assert json.loads(Path("t/tickets.json").read_text())["feature_map"]["text"] == "fourier:64,2"
    train = ("train", "t@1", *B, "--epsilon", "2", "--steps", "2", "--ledger", "1.jsonl", "--out", "r", "--json")
    body = cli(*train).json
    assert (body["features"], certified(body) <= 2) == ("fourier:64,2", True)
    private = ("--for-records", "700", "--epsilon", "1", "--epochs", "1", "--batch-size", "70")
    tune = ("tune", *A, "--model", "mlp", "--features", "fourier:64,1.0", "--ledger", "public.jsonl")
    cli(*tune, *private, "--out", "b.toml", "--quiet")
    trained = cli("train", *B, "--config", "b.toml", "--ledger", "l.jsonl", "--out", "s", "--json").json
    assert trained["features"] == "fourier:64,1"
    x, y = np.random.default_rng(0).integers(0, 17, (40, 8, 8), dtype=np.uint8), np.arange(40) % 10
    np.savez("theirs.npz", x_train=x, y_train=y)
    components = ("--public", "theirs.npz", "--components", "5", "--noise-multiplier", "2")
    projected = cli(*DENSE[:-2], *components, "--features", "fourier:64", "--out", "c", "--json").json
    config = json.loads(Path("c/config.json").read_text())
    assert (projected["features"], config["features"], config["feature_map"]["components"]) == ("fourier:64,2", 5, 5)
    refusal = turned_away(*DENSE[:-2], "--noise-multiplier", "2", "--features", "fourier:64,0", "--out", "d")
    assert refusal == (
        "--features: fourier:64,0: D must be 2 to 4096 and GAMMA must be 0.001 to 1000; the usual is fourier:1024,2"
    )


# Networks in front


def test_a_network_of_other_records_stands_in_front(cli):
    """Of disjoint parts of one published file: the costlier one counts, whatever is made of it."""
    body = cli(*DENSE, "--features", "network:net", "--noise-multiplier", "9", "--json").json
    config = json.loads(Path("r/config.json").read_text())
    assert (config["features"], body["features"]) == (12, "network")
    assert set(lineage("net").entries) < set(lineage("r").entries)
    assert certified(body) == alone("net") == alone("r")
    assert cli("evaluate", "r", "--dataset", "digits", "--json").json["accuracy"] == body["accuracy"]


def test_a_network_of_these_records_is_counted_wherever_it_goes(cli, refused):
    """In its ledger, or in another one; through tickets behind it, exported and drawn from: once."""
    options = ("--features", "network:net", "--steps", "4", "--epsilon")
    train = ("train", "--dense", "--model", "mlp", *A, *options)
    for ledger in ((), ("--ledger", "l.jsonl")):
        assert refused(*train, "0.5", *ledger, code=1).startswith("budget: ")
        name = f"r{len(ledger)}"
        body = cli(*train, "5", *ledger, "--out", name, "--json").json
        if ledger:
            assert certified(body) == alone(name)
        assert 4.5 < certified(body) <= 5
        assert set(lineage("net").entries) < set(lineage(name).entries)
    public = ("--provenance", "public", "--ledger", "public.jsonl", "--quiet")
    cli("generate", *B, *LINEAR, *public, "--features", "network:net", "--out", "behind")
    denied = cli("tickets", "export", "behind", "--out", "copy", "--quiet")
    assert denied.code == 1
    cli("tickets", "export", "behind", "--out", "copy", "--yes", "--quiet")
    for name in ("behind", "copy"):
        own = ("--ledger", f"{name}.jsonl")
        cli("select", name, *A, "--eps1", "0.1", *own, "--quiet")
        steps = ("--noise-multiplier", "2", "--steps", "4", *own, "--out", f"{name}.run", "--json")
        body = cli("train", name, *A, *steps).json
        assert len(lineage(f"{name}.run").paid) == 3
        assert certified(body) == alone(f"{name}.run") > alone("net")


# Public statistics


def write(path: str, x: np.ndarray, y: np.ndarray) -> None:
    np.savez(path, x_train=x[:-40], y_train=y[:-40], x_test=x[-40:], y_test=y[-40:])


@pytest.fixture
def pictures(work) -> None:
    """``public.npz`` and ``private.npz``, grey images of 9 x 9."""
    draw = np.random.default_rng(0)
    for name in ("public", "private"):
        y = draw.integers(0, 3, 300)
        write(work / f"{name}.npz", (draw.integers(0, 90, (300, 9, 9)) + 55 * y[:, None, None]).astype(np.uint8), y)


OWN = ("--dataset", "private.npz", "--bounds", "0,255", "--classes", "3", "--delta", "1e-4")
STATISTICS = ("--features", "scatter:1,3", "--public", "public.npz")


@pytest.mark.usefixtures("pictures")
def test_statistics_are_entered_as_public(cli, entries):
    little = ("--dense", "--model", "mlp", "--epsilon", "3", "--steps", "3")
    cli("train", *little, *OWN, *STATISTICS, "--out", "r", "--json")
    told, apart, trained = entries("dpltm.ledger.jsonl")
    assert [told["kind"], apart["kind"], trained["kind"]] == ["public", "excluded", "release"]
    assert (told["part"]["name"], trained["part"]["name"]) == ("public", "private")
    kept = json.loads(Path("r/config.json").read_text())["feature_map"]["lineage"]
    assert kept["entries"] == [told]
    plain = make_feature_map("scatter:1,3", (9, 9), (0.0, 255.0))
    values = plain.transformed(np.load("public.npz")["x_train"]).double().numpy()
    stored = load_file("r/features.safetensors")
    np.testing.assert_allclose(stored["mean"], values.mean((0, 2, 3)), atol=1e-5)
    np.testing.assert_allclose(stored["deviation"], values.std((0, 2, 3)), rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("pictures")
def test_a_set_remembers_statistics(cli):
    options = (*LINEAR, "--classes", "3", "--bounds", "0,255", "--provenance", "public", *STATISTICS)
    cli("generate", "--dataset", "public.npz", *options, "--out", "s", "--quiet")
    train = ("train", "s@1", *OWN, "--epsilon", "3", "--steps", "3", "--out")
    body = cli(*train, "r", "--json").json
    assert next(entry.part.name for entry in lineage("r").entries if entry.kind == "public") == "public"
    assert 2 < certified(body) <= 3
    os.remove("s/features.safetensors")
    assert cli(*train, "r2").err == "error: s/features.safetensors: cannot be read: No such file or directory\n"


def test_the_same_records_are_not_public_and_private(refused, cli):
    options = ("--features", "scatter:1,2", "--public", "digits", "--ledger", "l.jsonl", "--quiet")
    free = ("--criterion", "random", "--model", "mlp", "--rounds", "1")
    cli("generate", "--dataset", "digits", *free, *options, "--out", "free")
    for command in (
        (*DENSE, "--epsilon", "1", *options),
        ("generate", *B, *LINEAR, "--provenance", "private", *options, "--out", "s"),
        ("generate", *B, *LINEAR, "--criterion", "dp-train", "--epsilon", "1", *options, "--out", "s"),
        ("train", "free@1", *B, "--epsilon", "1", "--out", "r", "--ledger", "new.jsonl"),
    ):
        assert refused(*command).startswith(
            "--dataset: digits was declared public, and digits[0.5:1.0] shares records with it"
        )


# What is refused


def test_records_of_another_size_than_a_set_takes(turned_away):
    """13 pixels are three windows of 4; a pixel more than 8 changes nothing."""
    draw = np.random.default_rng(0)
    write("large.npz", draw.integers(0, 256, (300, 13, 13)).astype(np.uint8), draw.integers(0, 10, 300))
    records = ("--dataset", "large.npz", "--bounds", "0,255", "--classes", "10", "--delta", "1e-4")
    assert turned_away("train", "sc@1", *records, "--epsilon", "1", "--steps", "2", "--out", "r") == (
        "sc: its network takes 324 features, but large has 729; use records of the same shape, or carry it over with dpltm"
        " tickets transfer"
    )


def test_networks_that_cannot_stand_in_front(turned_away):
    assert turned_away(*DENSE, "--epsilon", "1", "--features", "network:nowhere") == (
        "nowhere: not a run (no config.json in it); name a folder made by dpltm train --out nowhere"
    )
    path = Path("net/lineage.json")
    body = json.loads(path.read_text())
    path.write_text(json.dumps({**body, "lineage": {"entries": [], "heads": []}}))
    assert turned_away(*DENSE, "--epsilon", "1", "--features", "network:net") == (
        "net/lineage.json: the digest does not match; it is damaged or was changed"
    )
    path.unlink()
    assert "lineage.json" in turned_away(*DENSE, "--epsilon", "1", "--features", "network:net")


def test_a_cache_that_cannot_be_written_costs_time_alone(cli, monkeypatch, tmp_path):
    (tmp_path / "no-folder").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no-folder"))
    for command in (
        ("train", "sc@1", *B, "--noise-multiplier", "5", "--steps", "2", "--out", "r"),
        ("select", "sc", *B, "--eps1", "0.1"),
        (*DENSE[:-1], "s", "--noise-multiplier", "5", "--features", "scatter"),
    ):
        assert cli(*command, "--quiet").code == 0
