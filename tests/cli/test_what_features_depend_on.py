"""Where maps and settings come from, all the way: ledgers, cards, exports, and what is refused for it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpltm.cli.common import figure
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.event_json import from_json

A, B = ("--dataset", "a.npz", "--classes", "3"), ("--dataset", "b.npz", "--classes", "3")
LITTLE = ("--dense", "--model", "mlp", "--steps", "4", "--delta", "1e-4")
MAP = ("--features", "unit", "--public", "a.npz", "--components", "5")


@pytest.fixture
def records(cwd):
    draw = np.random.default_rng(0)
    for name in ("a", "b"):
        y = draw.integers(0, 3, 200)
        x = (draw.integers(0, 90, (200, 6, 6)) + 50 * y[:, None, None]).astype(np.uint8)
        np.savez(f"{name}.npz", x_train=x[:150], y_train=y[:150], x_test=x[150:], y_test=y[150:])
    return cwd


@pytest.fixture
def network(cli, records):
    """A run on A with no noise at all."""
    options = ("--dense", "--model", "mlp:8", "--steps", "4", "--noise-multiplier", "0", "--delta", "1e-4")
    assert cli("train", *A, *options, "--out", "free", "--quiet").code == 0
    return records


def told(path: str) -> list[dict]:
    return [json.loads(line)["event"] for line in Path(path).read_text(encoding="utf-8").splitlines()[1:]]


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize("amount", [("--epsilon", "2"), ("--noise-multiplier", "2")], ids=["budget", "noise"])
def test_a_run_says_what_is_certified_for_the_records_of_the_network_in_front(cli, amount):
    body = cli("train", *B, *LITTLE, "--features", "network:free", *amount, "--out", "r", "--json").json
    entered = told("r/ledger.jsonl")
    assert [event["kind"] for event in entered] == ["training", "provenance", "training"]
    own = from_json(entered[-1])
    assert body["privacy"]["certified"]["epsilon"] == epsilon([own], 1e-4) < 10
    assert epsilon([from_json(event) for event in entered if event["dataset"]["name"] == "a"], 1e-4) == float("inf")
    assert any(note.endswith("certified for those records is epsilon inf") for note in body["privacy"]["notes"])


@pytest.mark.usefixtures("network")
def test_a_set_says_so_and_is_not_handed_on_by_accident(cli):
    options = ("--model", "mlp", "--criterion", "random", "--rounds", "2", "--features", "network:free")
    assert cli("generate", *B, *options, "--out", "t", "--quiet").code == 0
    assert "a network trained on `a`, which goes with this folder" in Path("t/README.md").read_text(encoding="utf-8")
    assert "in front" in cli("tickets", "show", "t").out
    assert cli("tickets", "show", "t", "--json").json["feature_map"]["source"]["name"] == "a"
    refused = cli("tickets", "export", "t", "--out", "copy")
    assert (refused.code, f"epsilon {figure(float('inf'))}" in refused.err) == (1, True)
    assert not Path("copy").exists()
    assert cli("tickets", "export", "t", "--out", "copy", "--yes", "--quiet").code == 0


@pytest.mark.usefixtures("records")
def test_a_set_with_components_says_whose(cli):
    options = ("--model", "mlp", "--criterion", "random", "--rounds", "2")
    assert cli("generate", *B, *options, *MAP, "--out", "t", "--quiet").code == 0
    assert "with statistics of `a`, declared public" in Path("t/README.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("records")
def test_records_that_a_ledger_has_spent_on_are_not_public_afterwards(cli):
    cli("train", *A, *LITTLE, "--epsilon", "1", "--ledger", "l.jsonl", "--out", "r", "--quiet")
    before = Path("l.jsonl").read_bytes()
    for command in (
        ("train", *B, *LITTLE, *MAP, "--epsilon", "1", "--ledger", "l.jsonl", "--out", "s"),
        ("generate", *A, "--provenance", "public", "--rounds", "1", "--iterations", "5", "--batch-size", "50",
         "--ledger", "l.jsonl", "--out", "t"),
    ):  # fmt: skip
        done = cli(*command, "--quiet")
        assert done.code == 2
        assert done.err.startswith(
            "error: --dataset, --public: the ledger holds what was spent on a[0:150], so they are private"
        )
        assert Path("l.jsonl").read_bytes() == before
    assert not Path("s").exists()
    assert not Path("t").exists()


@pytest.mark.usefixtures("records")
def test_statistics_under_another_key_are_named(cli, monkeypatch, tmp_path):
    options = ("--model", "mlp", "--criterion", "random", "--rounds", "2")
    cli("generate", *B, *options, *MAP, "--out", "t", "--quiet")
    own = cli("train", "t@1", *A, "--epsilon", "1", "--delta", "1e-4", "--steps", "4", "--out", "r")
    assert (own.code, own.err.startswith("error: --public: a[0:150] was declared public")) == (2, True)
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "another"))
    body = cli("train", "t@1", *A, "--epsilon", "1", "--delta", "1e-4", "--steps", "4", "--out", "r", "--json").json
    assert any("under another fingerprint key" in note for note in body["privacy"]["notes"])


@pytest.mark.usefixtures("records")
@pytest.mark.parametrize("centre", ["", "centre = 0.1\n"])
def test_a_run_of_all_stages_behind_features(cli, centre):
    Path("all.toml").write_text(
        '[run]\nepsilon = 4.0\ndelta = 1e-4\n[generate]\ndataset = "a.npz"\nclasses = 3\nprovenance = "public"\n'
        'features = "scatter:1,2"\nmodel = "mlp"\nrounds = 2\niterations = 10\nbatch-size = 50\n'
        f'[select]\nscore = "additive"\n[train]\ndataset = "b.npz"\nclasses = 3\nsteps = 4\n{centre}',
        encoding="utf-8",
    )
    planned = cli("run", "--config", "all.toml", "--out", "o", "--dry-run", "--json")
    assert planned.code == 0, planned.err
    assert not Path("o").exists()
    done = cli("run", "--config", "all.toml", "--out", "o", "--json").json
    assert done["train"]["features"] == "scatter:1,2"
    assert (done["train"]["centre"] is None) == (not centre)
    ours = done["privacy"]["certified"]["epsilon"]
    assert planned.json["privacy"]["certified"]["epsilon"] == pytest.approx(ours, rel=1e-3)
    assert ours <= 4


@pytest.mark.usefixtures("network")
def test_a_run_of_all_stages_counts_the_network_in_front_before_it_starts(cli):
    options = ("--dense", "--model", "mlp:8", "--steps", "4", "--epsilon", "3", "--delta", "1e-4")
    cli("train", *B, *options, "--out", "spent", "--quiet")
    Path("all.toml").write_text(
        '[run]\nepsilon = 3.0\ndelta = 1e-4\n[generate]\ndataset = "a.npz"\nclasses = 3\nprovenance = "public"\n'
        'features = "network:spent"\nmodel = "mlp"\nrounds = 2\niterations = 10\nbatch-size = 50\n'
        '[select]\nscore = "additive"\n[train]\ndataset = "b.npz"\nclasses = 3\nsteps = 4\n',
        encoding="utf-8",
    )
    for dry in (("--dry-run",), ()):
        done = cli("run", "--config", "all.toml", "--out", "o", *dry)
        assert done.code != 0
        assert not Path("o").exists()


@pytest.mark.usefixtures("records")
def test_a_failure_that_could_be_seen_comes_before_the_budget(cli, monkeypatch):
    """With --centre the features without copies are needed too: where they cannot be kept, nothing is spent."""
    from dpltm.tickets import feature_cache

    made = feature_cache._make

    def full(path, split, found, copies, *more):
        if copies == 1 and len(split) == 150:
            raise OSError(28, "No space left on device")
        made(path, split, found, copies, *more)

    monkeypatch.setattr(feature_cache, "_make", full)
    options = ("--features", "unit", "--centre", "0.1", "--augment", "flip", "--epsilon", "1")
    done = cli("train", *B, *LITTLE, *options, "--out", "r")
    assert done.code == 2
    assert not list(Path().glob("r*"))
