"""Features in front of a network, from the options to the ledger: what they cost wherever they go, and where they come from.

What is refused of the options is tested in ``tests/dpltm/features`` and, of whole commands, in ``test_refusals.py``.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from commands import PRIVATE as B
from commands import PUBLIC as A
from commands import certified, made_by
from dpltm.errors import ArtifactError
from dpltm.features.feature_map import make_feature_map
from dpltm.privacy.account import Account
from dpltm.privacy.entry import Lineage, lineage_from_json
from dpltm.records import load
from dpltm.tickets import feature_files
from opened import arrays_of

LINEAR = "--model mlp --rounds 2 --prune 0.3 --iterations 30 --batch-size 32"
SCATTERED = 81 * 2 * 2
"""Features of an image of 8 x 8: 1 + 2 * 8 + 8^2 channels in two windows of 4 pixels down and two across."""


@pytest.fixture(scope="module")
def made(tmp_path_factory, _own_config_home) -> Path:
    """In the place of the usual sets: ``sc``, linear tickets on scatter features of public records; and grey images of
    9 x 9, ``a.npz`` and ``b.npz``.
    """
    folder, draw = tmp_path_factory.mktemp("sets"), np.random.default_rng(0)
    for name in ("a", "b"):
        y = draw.integers(0, 3, 200)
        x = (draw.integers(0, 90, (200, 6, 6)) + 50 * y[:, None, None]).astype(np.uint8)
        np.savez(folder / f"{name}.npz", x_train=x[:150], y_train=y[:150], x_test=x[150:], y_test=y[150:])
    return made_by(
        folder, f"generate {A} {LINEAR} --provenance public --ledger public.jsonl --features scatter --out sc"
    )


ON_B = "--dataset b.npz --classes 3 --steps 4 --delta 1e-4"


@pytest.fixture(autouse=True)
def work(cwd) -> Path:
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
