"""Where maps come from, all the way: lineages, cards, exports, and what is refused for it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpltm.errors import ArtifactError
from dpltm.privacy.account import Account
from dpltm.privacy.entry import lineage_from_json
from dpltm.tickets import feature_files

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
    done(*DENSE, *A, "--model", "mlp:8", "--noise-multiplier", "0", "--ledger", "free.jsonl", "--out", "free")
    done(*DENSE, *A, "--model", "mlp:8", "--epsilon", "3", "--ledger", "spent.jsonl", "--out", "spent")
    done("generate", *B, *TICKETS, "--features", "network:spent", "--out", "t")
    done("tickets", "export", "t@1", "--to", "torch-prune", "--out", "t.safetensors")


def alone(folder: str) -> float:
    """What everything behind an artifact comes to, without any ledger."""
    body = json.loads(Path(folder, "lineage.json").read_text(encoding="utf-8"))
    return Account.of((), lineage_from_json(body["lineage"])).epsilon(1e-4)


@pytest.mark.usefixtures("behind")
def test_a_run_behind_a_network_without_protection_certifies_nothing(cli):
    own = ("--ledger", "l.jsonl", "--noise-multiplier", "2", "--out", "r", "--json")
    body = cli(*DENSE, *B, "--model", "mlp", "--features", "network:free", *own).json
    assert body["privacy"]["certified"]["epsilon"] == "inf"
    assert alone("r") == float("inf")


@pytest.mark.usefixtures("behind")
def test_a_set_behind_a_network_is_not_handed_on_by_accident(cli, done, refused):
    done("generate", *B, *RANDOM, "--features", "network:free", "--out", "f")
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
        "--features is missing: the network in t.safetensors stands behind network features, whose tensors"
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
    for name in ("t", "in"):
        own = ("--ledger", f"{name}.jsonl", "--noise-multiplier", "2", "--out", f"{name}.run", "--json")
        body = cli("train", f"{name}@1", *A, *FEW, *own).json
        assert body["privacy"]["certified"]["epsilon"] == alone(f"{name}.run") > alone("spent")
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
        assert "a was declared public" in refused("train", "in@1", *A, *FEW, "--epsilon", "2")


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
        message = refused("run", "--config", "all.toml", "--out", "o", *dry, code=1)
        assert message.startswith("budget: on these records epsilon ")


def test_a_failure_that_could_be_seen_comes_before_the_budget(done, cli, monkeypatch):  # noqa: ARG001
    """With --centre the features without copies are needed too: where they cannot be made, nothing is spent."""
    made = feature_files._make

    def full(path, split, found, augment, step):
        if augment == "none" and len(split) == 150:
            raise ArtifactError("damaged")
        made(path, split, found, augment, step)

    monkeypatch.setattr(feature_files, "_make", full)
    options = ("--features", "unit", "--centre", "0.1", "--augment", "flip", "--epsilon", "1")
    assert cli(*DENSE, *B, "--model", "mlp", *options, "--out", "r").code == 2
    assert not list(Path().glob("r*"))
