"""Where maps and settings come from, all the way: ledgers, cards, exports, and what is refused for it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpltm.errors import ArtifactError
from dpltm.privacy.event_json import from_json
from dpltm.privacy.parts import total_epsilon
from dpltm.tickets import feature_cache

A, B = ("--dataset", "a.npz", "--classes", "3"), ("--dataset", "b.npz", "--classes", "3")
FEW = ("--steps", "4", "--delta", "1e-4")
DENSE = ("train", "--dense", *FEW)
MAP = ("--features", "unit", "--public", "a.npz", "--components", "5")
RANDOM = ("--model", "mlp", "--criterion", "random", "--rounds", "1")
TICKETS = ("--model", "mlp", "--provenance", "public", "--rounds", "1", "--iterations", "20", "--batch-size", "50")
IMPORT = ("tickets", "import", "t.safetensors", *B, "--model", "mlp")


@pytest.fixture
def done(cli, cwd):
    """Runs a command that must end well; there are records A and B."""
    draw = np.random.default_rng(0)
    for name in ("a", "b"):
        y = draw.integers(0, 3, 200)
        x = (draw.integers(0, 90, (200, 6, 6)) + 50 * y[:, None, None]).astype(np.uint8)
        np.savez(cwd / f"{name}.npz", x_train=x[:150], y_train=y[:150], x_test=x[150:], y_test=y[150:])

    def run(*arguments):
        found = cli(*arguments)
        assert found.code == 0, found.err

    return run


@pytest.fixture
def behind(done):
    """Runs on A without noise and under DP; tickets that were made from the public B behind the latter, and one exported."""
    done(*DENSE, *A, "--model", "mlp:8", "--noise-multiplier", "0", "--out", "free")
    done(*DENSE, *A, "--model", "mlp:8", "--epsilon", "3", "--out", "spent")
    done("generate", *B, *TICKETS, "--features", "network:spent", "--out", "t")
    done("tickets", "export", "t@1", "--to", "torch-prune", "--out", "t.safetensors")


def told(path: str) -> list[dict]:
    return [json.loads(line)["event"] for line in Path(path).read_text(encoding="utf-8").splitlines()[1:]]


@pytest.mark.usefixtures("behind")
def test_a_run_says_what_is_certified_for_the_records_of_the_network_in_front(cli):
    body = cli(
        *DENSE, *B, "--model", "mlp", "--features", "network:free", "--epsilon", "2", "--out", "r", "--json"
    ).json
    entered = told("r/ledger.jsonl")
    assert [event["kind"] for event in entered] == ["training", "provenance", "training"]
    assert body["privacy"]["certified"]["epsilon"] == total_epsilon([from_json(entered[-1])], 1e-4) < 10
    theirs = [from_json(event) for event in entered if event["dataset"]["name"] == "a"]
    assert total_epsilon(theirs, 1e-4) == float("inf")
    assert any(note.endswith("certified for those records is epsilon inf") for note in body["privacy"]["notes"])


@pytest.mark.usefixtures("behind")
def test_a_set_behind_a_network_is_not_handed_on_by_accident(cli, done, refused):
    done("generate", *B, *RANDOM, "--features", "network:free", "--out", "f")
    assert "a network trained on `a`, which goes with this folder" in Path("f/README.md").read_text(encoding="utf-8")
    assert "in front" in cli("tickets", "show", "f").out
    for more in ((), ("--yes",)):
        assert refused("tickets", "export", "f", "--out", "copy", *more, code=1) == (
            "f: holds a network trained on a with no mechanism, which is never handed on; export one ticket alone, as"
            " f@ROUND"
        )
    # random masks do not depend on what stands in front; those of trained ones do
    done("tickets", "export", "f@1", "--to", "state-dict", "--out", "f.safetensors")
    done("generate", *B, *TICKETS, "--features", "network:free", "--out", "p")
    for form in ("state-dict", "torch-prune", "onnx"):
        assert "add --yes" in refused("tickets", "export", "p@1", "--to", form, "--out", f"p.{form}", code=1)
    given = ("--to", "state-dict", "--yes", "--out", "p.safetensors")
    refused("tickets", "export", "p@1", *given, "--predictor", code=1)
    done("tickets", "export", "p@1", *given)
    message = refused("tickets", "export", "t", "--out", "copy", code=1)
    assert message.startswith("t: holds a network trained on a; certified for those records is")
    done("tickets", "export", "t", "--out", "copy", "--yes")


@pytest.mark.usefixtures("behind")
def test_a_ticket_behind_a_network_costs_its_records_the_same_after_export_and_import(cli, done, refused):
    assert refused(*IMPORT, "--out", "in") == (
        "--features is missing: the network in t.safetensors stands behind network features, made from a, whose tensors"
        " the file does not hold; name what they were made by, as --features network:RUN"
    )
    for features in ("network:free", "unit", "scatter:1,2"):
        assert refused(*IMPORT, "--features", features, "--out", "in") == (
            f"--features: {features} is not what the network in t.safetensors stands behind (network, made from a); name the"
            " very same"
        )
    done(*IMPORT, "--features", "network:spent", "--out", "in")
    front, again = (cli("tickets", "show", name, "--json").json["feature_map"] for name in ("t", "in"))
    assert front == again
    amount = (*FEW, "--noise-multiplier", "2")
    whole, back = (
        cli("train", f"{name}@1", *A, *amount, "--out", f"{name}.run", "--json").json for name in ("t", "in")
    )
    assert [event["kind"] for event in told("in.run/ledger.jsonl")] == ["training", "provenance", "training"]
    alone = total_epsilon([from_json(told("in.run/ledger.jsonl")[-1])], 1e-4)
    assert back["privacy"]["certified"]["epsilon"] == whole["privacy"]["certified"]["epsilon"] > alone
    onnx = pytest.importorskip("onnx", reason="the extra dpltm[onnx] is not installed")
    done("tickets", "export", "t@1", "--to", "onnx", "--out", "t.onnx")
    (entry,) = onnx.load("t.onnx").metadata_props
    stated = json.loads(entry.value)
    assert (entry.key, stated["feature_map"], stated["provenance"]) == ("dpltm_origin", front, "public")


@pytest.mark.parametrize("features", [(), ("--features", "scatter:1,2"), MAP], ids=["none", "scatter", "map"])
def test_features_come_back_where_the_file_holds_them(cli, done, refused, features):
    done("generate", *B, *RANDOM, *features, "--out", "t")
    done("tickets", "export", "t@1", "--to", "torch-prune", "--out", "t.safetensors")
    message = refused(*IMPORT, *(() if features == MAP else ("--features", "unit")), "--out", "in")
    assert message.startswith(
        {
            0: "--features: the network in t.safetensors takes records as they are; leave it out",
            2: "--features: unit is not what the network in t.safetensors stands behind (scatter:1,2)",
            6: "--features is missing: the network in t.safetensors stands behind unit",
        }[len(features)]
    )
    done(*IMPORT, *(MAP if features == MAP else ()), "--out", "in")
    front, again = (cli("tickets", "show", name, "--json").json["feature_map"] for name in ("t", "in"))
    assert front == again
    if features == MAP:
        assert "with statistics of `a`, declared public" in Path("t/README.md").read_text(encoding="utf-8")
        assert refused("train", "in@1", *A, *FEW, "--epsilon", "2").startswith("--public: a was declared public")


def test_statistics_of_public_records_are_known_under_every_key(done, refused, monkeypatch, tmp_path):
    """They are named by a fingerprint that anybody can compute, so whose key it was does not count."""
    done("generate", *B, *RANDOM, *MAP, "--out", "t")
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "another"))
    assert refused("train", "t@1", *A, *FEW, "--epsilon", "1").startswith("--public: a was declared public")
    done("train", "t@1", *B, *FEW, "--epsilon", "1", "--out", "r")


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


@pytest.mark.usefixtures("done")
@pytest.mark.parametrize("centre", ["", "centre = 0.1\n"])
def test_a_run_of_all_stages_behind_features(cli, centre):
    Path("all.toml").write_text(PIPELINE.format(epsilon=4.0, features="scatter:1,2", more=centre), encoding="utf-8")
    planned, done = (cli("run", "--config", "all.toml", "--out", "o", *dry, "--json") for dry in (("--dry-run",), ()))
    assert (done.json["train"]["features"], done.json["train"]["centre"] is None) == ("scatter:1,2", not centre)
    ours = done.json["privacy"]["certified"]["epsilon"]
    assert planned.json["privacy"]["certified"]["epsilon"] == pytest.approx(ours, rel=1e-3)
    assert ours <= 4


def test_a_run_of_all_stages_counts_the_network_in_front_before_it_starts(done, refused):
    done(*DENSE, *B, "--model", "mlp:8", "--epsilon", "3", "--out", "spent")
    Path("all.toml").write_text(PIPELINE.format(epsilon=3.0, features="network:spent", more=""), encoding="utf-8")
    for dry in (("--dry-run",), ()):
        message = refused("run", "--config", "all.toml", "--out", "o", *dry)
        assert message.startswith("--epsilon, --split: 0.9 of 3 is too little for the training; ")


def test_a_failure_that_could_be_seen_comes_before_the_budget(done, cli, monkeypatch):  # noqa: ARG001
    """With --centre the features without copies are needed too: where they cannot be made, nothing is spent."""
    made = feature_cache._make

    def full(path, split, found, copies, *more):
        if copies == 1 and len(split) == 150:
            raise ArtifactError("damaged")
        made(path, split, found, copies, *more)

    monkeypatch.setattr(feature_cache, "_make", full)
    options = ("--features", "unit", "--centre", "0.1", "--augment", "flip", "--epsilon", "1")
    assert cli(*DENSE, *B, "--model", "mlp", *options, "--out", "r").code == 2
    assert not list(Path().glob("r*"))
