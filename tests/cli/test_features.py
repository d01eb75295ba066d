"""Features in front of a network, from the options to the ledger: what they cost wherever they go.

What is refused of the options is tested in ``tests/dpltm/stages/test_front.py`` and ``tests/dpltm/features``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpltm.cli.main import run as dpltm
from dpltm.features.feature_map import make_feature_map
from dpltm.privacy.event_json import from_json, ref_from_json
from dpltm.privacy.events import TrainingEvent
from dpltm.privacy.figures import figure
from dpltm.privacy.parts import total_epsilon
from dpltm.randomness import noise
from dpltm.records import key_id, load
from dpltm.records.registry import PUBLIC_KEY
from refs import reference

A, B = (("--dataset", "digits", "--subset", part) for part in ("0.0:0.5", "0.5:1.0"))
LINEAR = ("--model", "mlp", "--rounds", "2", "--prune", "0.3", "--iterations", "30", "--batch-size", "32")
DENSE = ("train", "--dense", "--model", "mlp", *B, "--steps", "4", "--out", "r")
SCATTERED = 81 * 2 * 2
"""Features of an image of 8 x 8: 1 + 2 * 8 + 8^2 channels in two windows of 4 pixels down and two across."""


@pytest.fixture(scope="module")
def sets(tmp_path_factory, _own_config_home) -> Path:
    """``sc``, linear tickets on scatter features of public records; ``net``, a run on A; ``same``, one on B."""
    folder = tmp_path_factory.mktemp("sets")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        quick = ("--steps", "8", "--noise-multiplier", "2", "--quiet")
        public = ("--provenance", "public", "--quiet")
        assert dpltm(["generate", *A, *LINEAR, *public, "--features", "scatter", "--out", "sc"]) == 0
        for name, part in (("net", A), ("same", B)):
            assert dpltm(["train", "--dense", "--model", "mlp:12", *part, *quick, "--out", name]) == 0
    return folder


@pytest.fixture(autouse=True)
def work(cwd, sets) -> Path:
    """The working folder, with all of these in it as well."""
    for path in sets.iterdir():
        shutil.copytree(path, cwd / path.name)
    return cwd


@pytest.fixture
def turned_away(work, refused):
    """``refused``; besides, no feature was kept and no budget spent."""

    def call(*arguments, code: int = 2) -> str:
        cache = Path(os.environ["XDG_CACHE_HOME"])
        before = sorted(cache.rglob("*"))
        message = refused(*arguments, code=code)
        assert sorted(cache.rglob("*")) == before
        assert not list(work.glob("*.jsonl"))
        return message

    return call


def trainings(events: list[dict]) -> list[TrainingEvent]:
    found = [from_json(event) for event in events]
    return [event for event in found if isinstance(event, TrainingEvent)]


def certified(body: dict) -> float:
    return body["privacy"]["certified"]["epsilon"]


# From beginning to end


def test_a_set_remembers_what_stands_in_front_of_it(cli, events):
    document = json.loads(Path("sc/tickets.json").read_text())
    assert document["features"] == SCATTERED
    assert (document["feature_map"]["text"], document["feature_map"]["shape"]) == ("scatter:2,8", [8, 8])
    assert not Path("sc/features.safetensors").exists()
    assert [event["ticket_set"] for event in events("sc/ledger.jsonl")] == [document["id"]]  # public: nothing to say
    options = ("train", "sc@1", *B, "--epsilon", "3", "--epochs", "2", "--json")
    dry, body = cli(*options, "--dry-run").json, cli(*options, "--out", "r").json
    assert body["features"] == dry["features"] == "scatter:2,8"
    assert body["accuracy"] > 0.6, "a linear network on features of a few hundred digits"
    said, told, trained = events("r/ledger.jsonl")
    assert (said["provenance"], said["ticket_set"]) == ("public", document["id"])
    label = f"features scatter:2,8 {document['feature_map']['id'][:8]}"
    assert (told["kind"], told["provenance"], told["ticket_set"]) == ("provenance", "data-free", label)
    assert certified(body) == certified(dry) == total_epsilon([from_json(trained)], 1e-5)
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


def test_a_winner_is_drawn_and_trained_on_features(cli, events):
    """Where the features come from is entered once, by whoever comes first."""
    cli("select", "sc", *B, "--eps1", "0.1", "--score", "additive", "--quiet")
    body = cli("train", "sc", *B, "--epsilon", "2", "--steps", "2", "--out", "r", "--json").json
    kinds = [event["kind"] for event in events("sc/ledger.jsonl")]
    assert kinds == ["provenance", "provenance", "selection", "training"]
    assert 1 < certified(body) <= 2


def test_tickets_made_under_dp_from_features(cli, events):
    options = ("--model", "mlp", "--rounds", "1", "--prune", "0.3", "--iterations", "4", "--batch-size", "32")
    release = ("--criterion", "dp-synthetic", "--epsilon", "1", "--features", "scatter:2,2")
    cli("generate", *B, *options, *release, "--out", "d", "--quiet")
    kinds = [event["kind"] for event in events("d/ledger.jsonl")]
    assert sorted(kinds) == ["gaussian", "provenance", "provenance"]
    body = cli("train", "d@1", *B, "--epsilon", "3", "--steps", "4", "--out", "r", "--json").json
    costs = [from_json(event) for event in events("r/ledger.jsonl") if event["kind"] in ("training", "gaussian")]
    assert certified(body) == total_epsilon(costs, 1e-5) > total_epsilon(costs[:1], 1e-5) > 0.8


def test_sets_made_from_a_set_keep_its_map(cli):
    found = json.loads(Path("sc/tickets.json").read_text())["feature_map"]
    cli("tickets", "export", "sc", "--out", "copy", "--quiet")
    cli("tickets", "transfer", "sc", "--dataset", "digits", "--out", "moved", "--quiet")
    for name in ("copy", "moved"):
        assert json.loads(Path(name, "tickets.json").read_text())["feature_map"] == found
        assert cli("tickets", "verify", name, "--json").json["ok"]


def test_random_fourier_features_from_training_to_predictions(cli, events):
    """Whoever writes its numbers in whatever way; behind it, the network is what numpy makes of the same features."""
    options = (*DENSE[:6], "--features", "fourier:256,.50", "--centre", "0.1", "--clip-norm", "0.2")
    budget = ("--epsilon", "3", "--steps", "20", "--batch-size", "600", "--lr", "8", "--optimizer", "momentum")
    body = cli(*options, *budget, "--subset", "0.5:1.0", "--out", "r", "--json").json
    assert body["features"] == "fourier:256,0.5"
    assert 2.5 < certified(body) <= 3
    assert body["accuracy"] > 0.7, "a linear network on features of a few hundred digits"
    assert [event["kind"] for event in events("r/ledger.jsonl")] == ["provenance", "gaussian", "training"]
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
    cli("generate", *A, *LINEAR, "--provenance", "public", "--features", "fourier:64", "--out", "t", "--quiet")
    assert json.loads(Path("t/tickets.json").read_text())["feature_map"]["text"] == "fourier:64,2"
    body = cli("train", "t@1", *B, "--epsilon", "2", "--steps", "2", "--out", "r", "--json").json
    assert (body["features"], certified(body) <= 2) == ("fourier:64,2", True)
    private = ("--for-records", "700", "--epsilon", "1", "--epochs", "1", "--batch-size", "70")
    cli("tune", *A, "--model", "mlp", "--features", "fourier:64,1.0", *private, "--out", "b.toml", "--quiet")
    trained = cli("train", *B, "--config", "b.toml", "--ledger", "l.jsonl", "--out", "s", "--json").json
    assert trained["features"] == "fourier:64,1"
    Path("l.jsonl").unlink()
    x, y = np.random.default_rng(0).integers(0, 17, (40, 8, 8), dtype=np.uint8), np.arange(40) % 10
    np.savez("theirs.npz", x_train=x, y_train=y)
    components = ("--public", "theirs.npz", "--components", "5", "--noise-multiplier", "2")
    projected = cli(*DENSE[:-2], *components, "--features", "fourier:64", "--out", "c", "--json").json
    config = json.loads(Path("c/config.json").read_text())
    assert (projected["features"], config["features"], config["feature_map"]["components"]) == ("fourier:64,2", 5, 5)
    refusal = turned_away(*DENSE[:-2], "--noise-multiplier", "2", "--features", "fourier:64,0", "--out", "d")
    assert refusal == (
        "--features: fourier:64,0: D must be 2 to 4096, and GAMMA positive, 0.001 to 1000; the usual is fourier:1024,2"
    )


# Networks in front


def test_a_network_trained_on_other_records_costs_nothing_on_these(cli, events):
    body = cli(*DENSE, "--features", "network:net", "--noise-multiplier", "2", "--json").json
    config = json.loads(Path("r/config.json").read_text())
    assert (config["features"], body["features"]) == (12, "network")
    theirs, own = trainings(events("r/ledger.jsonl"))
    assert [theirs] == trainings(events("net/ledger.jsonl"))
    assert certified(body) == total_epsilon([own], 1e-5)
    # what is handed on holds that network, so the reader is told what is certified for its records
    (said,) = [note for note in body["privacy"]["notes"] if "trained on other records" in note]
    assert said.endswith(f"certified for those records is epsilon {figure(total_epsilon([theirs], 1e-5))}")
    assert cli("evaluate", "r", "--dataset", "digits", "--json").json["accuracy"] == body["accuracy"]
    told = [event for event in events("r/ledger.jsonl") if event["kind"] == "provenance"]
    assert [(event["provenance"], event["dataset"]["start"]) for event in told] == [("dp", 0)]
    # whoever trains on the records of that network, with this one in front, pays for both
    kept = [from_json(event) for event in config["feature_map"]["events"]]
    assert kept == trainings(events("net/ledger.jsonl"))


def test_a_network_trained_on_these_records_is_counted(cli, events, turned_away):
    options = (*DENSE, "--features", "network:same", "--epsilon")
    assert turned_away(*options, "0.5", code=1).startswith("budget: ")
    dry, body = cli(*options, "5", "--dry-run", "--json").json, cli(*options, "5", "--json").json
    first, second = trainings(events("r/ledger.jsonl"))
    assert [first] == trainings(events("same/ledger.jsonl"))
    assert certified(body) == certified(dry) == total_epsilon([first, second], 1e-5)
    assert 4.5 < certified(body) <= 5


def test_its_events_count_wherever_a_set_behind_it_goes(cli, events):
    """Public tickets behind a network that was trained on what the set is then used on."""
    cli("generate", *A, *LINEAR, "--provenance", "public", "--features", "network:same", "--out", "behind", "--quiet")
    denied = cli("tickets", "export", "behind", "--out", "copy", "--quiet")
    assert (denied.code, "holds a network trained on" in denied.err) == (1, True)
    cli("tickets", "export", "behind", "--out", "copy", "--yes", "--quiet")
    theirs = trainings(events("same/ledger.jsonl"))
    for name, provenance in (("behind", ["dp", "public"]), ("copy", ["dp"])):  # of the ledger beside the set, if any
        cli("select", name, *B, "--eps1", "0.1", "--quiet")
        body = cli("train", name, *B, "--noise-multiplier", "2", "--steps", "4", "--out", f"{name}.run", "--json").json
        entered = events(f"{name}.run/ledger.jsonl")
        assert [event["provenance"] for event in entered if event["kind"] == "provenance"] == provenance
        costs = [from_json(event) for event in entered if event["kind"] != "provenance"]
        network, draw, training = costs
        assert [network] == theirs
        assert draw.mechanism.adaptive
        assert certified(body) == total_epsilon(costs, 1e-5) > total_epsilon([network, training], 1e-5)


def test_a_ledger_that_holds_its_events_already_does_not_get_them_twice(cli, events):
    options = (*DENSE, "--features", "network:same", "--noise-multiplier", "2", "--ledger", "l.jsonl", "--quiet")
    for name in ("r1", "r2"):
        cli(*options, "--out", name)
    assert [event["kind"] for event in events("l.jsonl")] == ["training", "provenance", "training", "training"]


def test_a_budget_is_not_raised_by_that_of_a_network(cli):
    """The run's ledger has a budget of its own, which is no release, and says nothing about another ledger."""
    cli("privacy", "budget", "wide.jsonl", *B, "--epsilon", "50", "--quiet")
    assert cli(*DENSE, "--model", "mlp:8", "--epsilon", "1", "--ledger", "wide.jsonl", "--out", "n").code == 0
    cli("privacy", "budget", "narrow.jsonl", *B, "--epsilon", "2", "--quiet")
    done = cli(*DENSE, "--features", "network:n", "--epsilon", "6", "--ledger", "narrow.jsonl", "--quiet")
    assert done.code == 1
    assert "above the budget of 2" in done.err


def test_a_network_from_a_ledger_with_a_draw_goes_into_one_with_other_releases(cli, events):
    """The draw was the first of its ledger; a dense network does not depend on it, so it stays there."""
    other = ("--steps", "2", "--noise-multiplier", "5", "--quiet")
    cli("train", "pub@1", *B, *other, "--ledger", "l.jsonl", "--out", "n1")
    cli("select", "pub", *B, "--eps1", "0.1", "--ledger", "drawn.jsonl", "--quiet")
    assert cli(*DENSE, *other, "--model", "mlp:8", "--ledger", "drawn.jsonl", "--out", "n").code == 0
    done = cli(*DENSE, *other, "--features", "network:n", "--ledger", "l.jsonl")
    assert done.code == 0, done.err
    kinds = [event["kind"] for event in events("l.jsonl")]
    assert kinds.count("training") == 3
    assert "selection" not in kinds


def test_a_count_is_drawn_with_the_noise_of_its_own_event(cli, events, monkeypatch):
    """Another run's evaluation, which comes along with the network in front, is on record first."""
    drawn, noise_of = [], noise.two_sided_geometric
    monkeypatch.setattr(
        "dpltm.stages.train.two_sided_geometric",
        lambda source, epsilon: drawn.append(epsilon) or noise_of(source, epsilon),
    )
    options = ("--dense", "--model", "mlp:8", "--noise-multiplier", "5", "--steps", "3", "--delta", "1e-4", "--quiet")
    assert cli("train", *A, *options, "--eval-private", "5", "--out", "front").code == 0
    assert cli("train", *B, *options, "--features", "network:front", "--eval-private", "0.1", "--out", "r").code == 0
    assert drawn == [5.0, 0.1]
    assert [event["epsilon"] for event in events("r/ledger.jsonl") if event["kind"] == "guarantee"] == drawn


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
def test_statistics_are_entered_as_public(cli, events):
    little = ("--dense", "--model", "mlp", "--epsilon", "3", "--steps", "3")
    body = cli("train", *little, *OWN, *STATISTICS, "--out", "r", "--json").json
    told, trained = events("r/ledger.jsonl")
    assert (told["kind"], told["provenance"], told["dataset"]["name"]) == ("provenance", "public", "public")
    public = reference(load("public.npz", classes=3), public=True)
    assert ref_from_json(told["dataset"]) == public
    assert (public.key_id, public.cut) == (key_id(PUBLIC_KEY), "whole")  # anybody can tell whose statistics they are
    assert (trained["kind"], trained["dataset"]["name"]) == ("training", "private")
    assert certified(body) == total_epsilon([from_json(trained)], 1e-4)
    assert json.loads(Path("r/config.json").read_text())["feature_map"]["source"] == told["dataset"]
    plain = make_feature_map("scatter:1,3", (9, 9), (0.0, 255.0))
    values = plain.transformed(np.load("public.npz")["x_train"]).double().numpy()
    stored = load_file("r/features.safetensors")
    np.testing.assert_allclose(stored["mean"], values.mean((0, 2, 3)), atol=1e-5)
    np.testing.assert_allclose(stored["deviation"], values.std((0, 2, 3)), rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("pictures")
def test_a_set_remembers_statistics_and_who_trains_it_enters_them(cli, events):
    options = (*LINEAR, "--classes", "3", "--bounds", "0,255", "--provenance", "public", *STATISTICS)
    cli("generate", "--dataset", "public.npz", *options, "--out", "s", "--quiet")
    train = ("train", "s@1", *OWN, "--epsilon", "3", "--steps", "3", "--out")
    body = cli(*train, "r", "--json").json
    features, tickets, scored, trained = events("r/ledger.jsonl")
    assert (scored["provenance"], scored["ticket_set"]) == ("public", "held-out test split")
    document = json.loads(Path("s/tickets.json").read_text())
    assert (tickets["provenance"], tickets["ticket_set"]) == ("public", document["id"])
    assert (features["provenance"], features["ticket_set"].startswith("features scatter:1,3 ")) == ("public", True)
    assert trained["kind"] == "training"
    assert 2 < certified(body) <= 3
    os.remove("s/features.safetensors")
    assert cli(*train, "r2").err == "error: s/features.safetensors: cannot be read: No such file or directory\n"


def test_the_same_records_are_not_public_and_private(turned_away, cli):
    options = ("--features", "scatter:1,2", "--public", "digits", "--quiet")
    free = ("--criterion", "random", "--model", "mlp", "--rounds", "1")
    cli("generate", "--dataset", "digits", *free, *options, "--out", "free")
    for command in (
        (*DENSE, "--epsilon", "1", *options),
        ("generate", *B, *LINEAR, "--provenance", "private", *options, "--out", "s"),
        ("generate", *B, *LINEAR, "--criterion", "dp-train", "--epsilon", "1", *options, "--out", "s"),
        ("train", "free@1", *B, "--epsilon", "1", "--out", "r"),
    ):
        assert turned_away(*command) == (
            "--public: digits was declared public, and digits[0.5:1.0] shares records with it; the same records cannot be"
            " private here: take another --public, --subset or --dataset"
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


def test_networks_that_cannot_stand_in_front(cli, turned_away):
    assert turned_away(*DENSE, "--epsilon", "1", "--features", "network:nowhere") == (
        "nowhere: not a run (no config.json in it); name a folder made by dpltm train --out nowhere"
    )
    cli("train", "pri@1", *A, "--noise-multiplier", "2", "--steps", "2", "--out", "through", "--quiet")
    assert turned_away(*DENSE, "--epsilon", "1", "--features", "network:through").startswith(
        "--features: through was trained from a ticket set, and a run does not keep what its masks"
    )
    path = Path("net/config.json")
    config = json.loads(path.read_text())
    for bad in (None, {}, "digits", {"name": "digits"}):
        path.write_text(json.dumps({**config, "records": bad}))
        assert turned_away(*DENSE, "--epsilon", "1", "--features", "network:net") == (
            "--features: net: its config.json does not say what it was trained on"
        )
    path.write_text(json.dumps(config))
    ledger = Path("net/ledger.jsonl")
    header, *entries = ledger.read_text().splitlines()
    event = json.loads(entries[0])["event"] | {"noise_multiplier": 50.0}  # and the digest made right
    digest = hashlib.sha256(json.dumps(event, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    shutil.copytree("net", "copy")  # under a name that no ledger is on record of
    sealed = json.dumps({"sequence": 1, "event": event, "digest": digest})
    Path("copy/ledger.jsonl").write_text(f"{header}\n{sealed}\n")
    assert turned_away(*DENSE, "--epsilon", "1", "--features", "network:copy") == (
        "copy: its ledger holds no training with its settings; the two do not fit each other"
    )
    ledger.write_text(ledger.read_text().splitlines()[0] + "\n")
    assert turned_away(*DENSE, "--epsilon", "1", "--features", "network:net") == (
        "--features: net: its ledger holds no training; it is incomplete, so nothing can be certified"
    )


def test_a_cache_that_cannot_be_written_costs_time_alone(cli, monkeypatch, tmp_path):
    (tmp_path / "no-folder").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no-folder"))
    for command in (
        ("train", "sc@1", *B, "--epsilon", "1", "--steps", "2", "--out", "r"),
        ("select", "sc", *B, "--eps1", "0.1"),
        (*DENSE, "--epsilon", "1", "--features", "scatter", "--out", "s"),
    ):
        assert cli(*command, "--quiet").code == 0
