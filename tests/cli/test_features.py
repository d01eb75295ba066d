"""Features in front of a network, from the options to the ledger: what they cost wherever they go, and where they come from.

What is refused of the options is tested in ``tests/dpltm/features`` and, of whole commands, in ``test_refusals.py``.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from commands import PRIVATE as B
from commands import PUBLIC as A
from commands import certified, made_by
from dpltm.errors import ArtifactError
from dpltm.features import drawings
from dpltm.features.drawings import UNITS
from dpltm.features.feature_map import make_feature_map
from dpltm.privacy.account import Account
from dpltm.privacy.entry import Lineage, lineage_from_json
from dpltm.records import load
from dpltm.tickets import feature_files
from opened import arrays_of

LINEAR = "--model mlp --rounds 2 --prune 0.3 --iterations 30 --batch-size 32"
DENSE = f"train --dense --model mlp {B} --steps 4"
SCATTERED = 81 * 2 * 2
"""Features of an image of 8 x 8: 1 + 2 * 8 + 8^2 channels in two windows of 4 pixels down and two across."""


@pytest.fixture(scope="module")
def made(tmp_path_factory, _own_config_home) -> Path:
    """In the place of the usual sets: ``sc``, linear tickets on scatter features of public records; ``net``, a run on A.

    Of grey images of 9 x 9, ``a.npz`` and ``b.npz``: ``free``, a run on a without noise; ``spent``, one under DP; ``t``,
    tickets that were made from the public b behind the latter, and ``t.safetensors``, one exported.
    """
    folder, draw = tmp_path_factory.mktemp("sets"), np.random.default_rng(0)
    for name in ("a", "b"):
        y = draw.integers(0, 3, 200)
        x = (draw.integers(0, 90, (200, 6, 6)) + 50 * y[:, None, None]).astype(np.uint8)
        np.savez(folder / f"{name}.npz", x_train=x[:150], y_train=y[:150], x_test=x[150:], y_test=y[150:])
    images = "--dataset a.npz --classes 3 --model mlp:8 --steps 4 --delta 1e-4"
    return made_by(
        folder,
        f"generate {A} {LINEAR} --provenance public --ledger public.jsonl --features scatter --out sc",
        f"train --dense --model mlp:12 {A} --steps 8 --noise-multiplier 2 --out net",
        f"train --dense {images} --noise-multiplier 0 --ledger free.jsonl --out free",
        f"train --dense {images} --epsilon 3 --ledger spent.jsonl --out spent",
        f"generate {OF_B} {TICKETS} --features network:spent --ledger public.jsonl --out t",
        "tickets export t@1 --to torch-prune --out t.safetensors",
    )


OF_B = "--dataset b.npz --classes 3"
TICKETS = "--model mlp --provenance public --rounds 1 --iterations 20 --batch-size 50"
RANDOM = "--model mlp --criterion random --rounds 1"
IMPORT = f"tickets import t.safetensors {OF_B} --model mlp --out in"
ON_A, ON_B = (f"--dataset {name}.npz --classes 3 --steps 4 --delta 1e-4" for name in "ab")


@pytest.fixture(autouse=True)
def work(cwd) -> Path:
    """The working folder, with all of these in it."""
    return cwd


def lineage(folder: str) -> Lineage:
    return lineage_from_json(json.loads(Path(folder, "lineage.json").read_text())["lineage"])


def alone(*folders: str, delta: float = 1e-5) -> float:
    """What releases behind artifacts come to, each once, without any ledger."""
    found = Lineage()
    for folder in folders:
        found |= lineage(folder)
    return Account.of((), found).epsilon(delta)


def outputs(folder: str, values: np.ndarray) -> np.ndarray:
    """Classes that the linear layer of a run makes of features."""
    weights = load_file(f"{folder}/model.safetensors")
    return (values @ weights["fc1.weight"].T + weights["fc1.bias"]).argmax(1)


# --- from beginning to end ---


def test_a_set_remembers_what_stands_in_front_of_it(cli):
    document = json.loads(Path("sc/tickets.json").read_text())
    assert document["features"] == SCATTERED
    assert (document["feature_map"]["text"], document["feature_map"]["shape"]) == ("scatter:2,8", [8, 8])
    body = cli(f"train sc@1 {B} --epsilon 3 --epochs 2 --ledger l.jsonl --json --out r").json
    assert body["features"] == "scatter:2,8"
    assert body["accuracy"] > 0.6, "a linear network on features of a few hundred digits"
    assert [entry.kind for entry in lineage("r").entries] == ["public", "release"]
    assert 2.5 < certified(body) == alone("r") <= 3
    assert cli("evaluate r --dataset digits --json").json["accuracy"] == body["accuracy"]
    digits = load("digits")
    values = make_feature_map("scatter:2,8", (8, 8), (0.0, 16.0))(arrays_of(digits.test).x).numpy()
    assert np.mean(outputs("r", values) == arrays_of(digits.test).y) == pytest.approx(body["accuracy"], abs=0.006)


def test_random_fourier_features_from_training_to_predictions(cli):
    """Whoever writes its numbers in whatever way; behind it, the network is what numpy makes of the same features."""
    budget = "--epsilon 3 --steps 20 --batch-size 600 --lr 8 --optimizer momentum --centre 0.1 --clip-norm 0.2"
    body = cli(f"{DENSE} --features fourier:256,.50 {budget} --out r --json").json
    assert body["features"] == "fourier:256,0.5"
    assert 2.5 < certified(body) <= 3
    assert body["accuracy"] > 0.7, "a linear network on features of a few hundred digits"
    digits = load("digits")
    np.savez("new.npz", x=arrays_of(digits.test).x)
    assert cli("predict r --input new.npz --out p.npz").code == 0
    centre = load_file("r/features.safetensors")["centre"]
    values = make_feature_map("fourier:256,0.50", (8, 8), (0.0, 16.0))(arrays_of(digits.test).x).numpy() - centre
    values *= 8 / np.linalg.norm(values, axis=1, keepdims=True)
    assert np.mean(outputs("r", values) == np.load("p.npz")["label"]) > 0.99


LITTLE = "train --dense --model mlp --batch-size 400 --steps 6 --dataset digits --delta 1e-4 --features unit --json"


def test_a_run_remembers_its_centre(cli):
    """The centre is that of all records, with noise: 64 coordinates within three deviations of each together."""
    body = cli(f"{LITTLE} --centre 0.5 --epsilon 5 --out r").json
    assert json.loads(Path("r/config.json").read_text())["feature_map"]["centred"] is True
    centre, digits = load_file("r/features.safetensors")["centre"], load("digits")
    mean = make_feature_map("unit:1", (8, 8), (0.0, 16.0))(arrays_of(digits.train).x).mean(0).numpy()
    noise = body["centre"]["noise_multiplier"] * 8 / digits.records
    assert 0.3 < np.linalg.norm(centre - mean) / (noise * math.sqrt(64)) < 3
    assert cli("evaluate r --dataset digits --json").json["accuracy"] == body["accuracy"]


# --- networks in front ---


def test_a_network_of_these_records_is_counted_wherever_it_goes(cli, refused):
    """In its ledger, or in another one; through tickets behind it, exported and drawn from: once."""
    train = f"train --dense --model mlp {A} --features network:net --steps 4"
    for name, ledger in (("r", ""), ("s", "--ledger l.jsonl")):
        assert refused(f"{train} --epsilon 0.5 {ledger}", code=1).startswith("budget: ")
        body = cli(f"{train} --epsilon 5 {ledger} --out {name} --json").json
        assert 4.5 < certified(body) <= 5
        assert set(lineage("net").entries) < set(lineage(name).entries)
    assert certified(body) == alone("s")
    assert (
        cli(f"generate {B} {LINEAR} --provenance public --ledger p.jsonl --features network:net --out behind").code
        == 0
    )
    assert cli("tickets export behind --out copy").code == 1
    assert cli("tickets export behind --out copy --yes").code == 0
    assert cli(f"select copy {A} --eps1 0.1 --ledger copy.jsonl").code == 0
    body = cli(f"train copy {A} --noise-multiplier 2 --steps 4 --ledger copy.jsonl --out copy.run --json").json
    assert len(lineage("copy.run").paid) == 3
    assert certified(body) == alone("copy.run") > alone("net")


def test_a_run_behind_a_network_without_protection_certifies_nothing(cli):
    own = "--ledger l.jsonl --noise-multiplier 2 --out r --json"
    assert certified(cli(f"train --dense {ON_B} --model mlp --features network:free {own}").json) == float("inf")
    assert alone("r") == float("inf")


def test_a_set_behind_a_network_is_not_handed_on_by_accident(cli, refused):
    assert cli(f"generate {OF_B} {RANDOM} --features network:free --out f").code == 0
    assert "in front" in cli("tickets show f").out
    for more in ("", "--yes"):
        assert refused(f"tickets export f --out copy {more}", code=1).startswith(
            "f: holds a network trained on a with no "
        )
    # random masks do not depend on what stands in front; those of trained ones do
    assert cli("tickets export f@1 --to state-dict --out f.safetensors").code == 0
    assert cli(f"generate {OF_B} {TICKETS} --features network:free --ledger public.jsonl --out p").code == 0
    for form in ("state-dict", "torch-prune", "onnx"):
        assert "add --yes" in refused(f"tickets export p@1 --to {form} --out p.{form}", code=1)
    given = "tickets export p@1 --to state-dict --yes --out p.safetensors"
    refused(f"{given} --predictor", code=1)
    assert cli(given).code == 0
    assert refused("tickets export t --out copy", code=1).startswith(
        "t: holds a network trained on a; certified for those "
    )
    assert cli("tickets export t --out copy --yes").code == 0


def test_a_ticket_behind_a_network_costs_its_records_the_same_after_export_and_import(cli, refused):
    assert refused(IMPORT).startswith(
        "--features is missing: the network in t.safetensors stands behind network features"
    )
    for features in ("network:free", "unit", "scatter:1,2"):
        said = refused(f"{IMPORT} --features {features}")
        assert said.startswith(
            f"--features: {features} is not what the network in t.safetensors stands behind (network, "
        )
    assert cli(f"{IMPORT} --features network:spent").code == 0
    front, again = (cli(f"tickets show {name} --json").json["feature_map"] for name in ("t", "in"))
    assert front == again
    for name in ("t", "in"):
        own = f"--ledger {name}.jsonl --noise-multiplier 2 --out {name}.run --json"
        body = cli(f"train {name}@1 {ON_A} {own}").json
        assert certified(body) == alone(f"{name}.run", delta=1e-4) > alone("spent", delta=1e-4)


MAP = "--features unit --public a.npz --components 5"


@pytest.mark.parametrize("features", ["", "--features scatter:1,2", MAP], ids=["none", "scatter", "map"])
def test_features_come_back_where_the_file_holds_them(cli, refused, features):
    Path("t.safetensors").unlink()
    assert cli(f"generate {OF_B} {RANDOM} {features} --ledger l.jsonl --out new").code == 0
    assert cli("tickets export new@1 --to torch-prune --out t.safetensors").code == 0
    refused(IMPORT if features == MAP else f"{IMPORT} --features unit")
    assert cli(f"{IMPORT} {MAP if features == MAP else ''} --ledger l.jsonl").code == 0
    front, again = (cli(f"tickets show {name} --json").json["feature_map"] for name in ("new", "in"))
    assert front == again
    if features == MAP:
        assert "a was declared public" in refused(f"train in@1 {ON_A} --epsilon 2 --ledger l.jsonl")


def test_networks_that_cannot_stand_in_front(refused):
    path = Path("net/lineage.json")
    body = json.loads(path.read_text())
    path.write_text(json.dumps({**body, "lineage": {"entries": [], "heads": []}}))
    said = refused(f"{DENSE} --epsilon 1 --features network:net")
    assert said == "net/lineage.json: the digest does not match; it is damaged or was changed"
    path.unlink()
    assert "lineage.json" in refused(f"{DENSE} --epsilon 1 --features network:net")


# --- public statistics, and all stages ---


def test_statistics_are_entered_as_public_and_a_set_remembers_them(cli, entries):
    front = "--features scatter:1,3 --public a.npz"
    assert (
        cli(f"train --dense --model mlp {ON_B} --bounds 0,255 --epsilon 3 {front} --ledger l.jsonl --out r").code == 0
    )
    told, apart, trained = entries("l.jsonl")
    assert [told["kind"], apart["kind"], trained["kind"]] == ["public", "excluded", "release"]
    assert (told["part"]["name"], trained["part"]["name"]) == ("a", "b")
    assert json.loads(Path("r/config.json").read_text())["feature_map"]["lineage"]["entries"] == [told]
    plain = make_feature_map("scatter:1,3", (6, 6), (0.0, 255.0))
    values = plain.transformed(np.load("a.npz")["x_train"]).double().numpy()
    stored = load_file("r/features.safetensors")
    np.testing.assert_allclose(stored["mean"], values.mean((0, 2, 3)), atol=1e-5)
    np.testing.assert_allclose(stored["deviation"], values.std((0, 2, 3)), rtol=1e-3, atol=1e-5)
    assert cli(f"generate --dataset a.npz --classes 3 {TICKETS} {front} --ledger m.jsonl --out s").code == 0
    train = f"train s@1 {ON_B} --epsilon 3 --ledger n.jsonl --out"
    assert 2 < certified(cli(f"{train} u --json").json) <= 3
    assert next(entry.part.name for entry in lineage("u").entries if entry.kind == "public") == "a"
    os.remove("s/features.safetensors")
    assert cli(f"{train} v").err == "error: s/features.safetensors: cannot be read: No such file or directory\n"


PIPELINE = """
[run]
epsilon = {epsilon}
delta = 1e-4
[generate]
dataset = "a.npz"
classes = 3
provenance = "public"
features = "{features}"
model = "mlp"
rounds = 2
iterations = 10
batch-size = 50
[select]
score = "additive"
[train]
dataset = "b.npz"
classes = 3
steps = 4
{more}
"""
RUN = "run --config all.toml --out o --ledger l.jsonl"


def test_a_run_of_all_stages_counts_the_network_in_front_before_it_starts(cli, refused):
    assert cli(f"train --dense {ON_B} --model mlp:8 --epsilon 3 --ledger l.jsonl --out own").code == 0
    Path("all.toml").write_text(PIPELINE.format(epsilon=3.0, features="network:own", more=""), encoding="utf-8")
    for dry in ("--dry-run", ""):
        assert refused(f"{RUN} {dry}", code=1).startswith("budget: on these records epsilon ")


# --- what is kept of features, and made again ---


def test_a_failure_that_could_be_seen_comes_before_the_budget(cli, monkeypatch):
    """Where features of the records cannot be made, nothing is spent."""

    def damaged(*_):
        raise ArtifactError("damaged")

    monkeypatch.setattr(feature_files, "_written", damaged)
    options = "--features unit --centre 0.1 --epsilon 1 --ledger l.jsonl"
    done = cli(f"train --dense {ON_B} --model mlp {options} --out r")
    assert (done.code, done.err) == (2, "error: damaged\n")
    assert not list(Path().glob("[rl]*"))


def test_the_bundled_encoder_made_again(cli, cwd, monkeypatch):
    """From fewer drawings than the bundled one: what is written and said."""
    monkeypatch.setattr(drawings, "SAMPLE", 80)
    monkeypatch.setattr(drawings, "KINDS", 8)
    answer = cli("features make drawings --steps 1 --seed 5 --out d --json").json
    body = (cwd / "d").read_bytes()
    assert answer == {
        **{"file": "d", "bytes": len(body), "digest": hashlib.sha256(body).hexdigest(), "bundled": False},
        **{"command": "dpltm features make drawings --seed 5 --steps 1", "provenance": "data-free"},
        **{"torch": answer["torch"], "numpy": answer["numpy"]},
    }
    with safe_open(cwd / "d", "np") as file:
        assert json.loads(file.metadata()["made"])["command"] == answer["command"]
        assert file.get_tensor("directions").shape[1] == UNITS
