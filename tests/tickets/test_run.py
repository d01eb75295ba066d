"""Runs: what is written loads again, and into plain PyTorch."""

import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from dpltm.networks import build
from dpltm.networks.masks import network_id
from dpltm.privacy.entry import Lineage
from dpltm.tickets.files import new_folder, write_lineage
from dpltm.tickets.run import AUDIT, load_run, read_observations, write_observations, write_run
from dpltm.training.canaries import Observations
from refusals import told

METRICS = [{"step": 1, "epsilon": 0.5, "accuracy": None}, {"step": 2, "epsilon": "inf", "accuracy": 0.25}]
R = Path("r")


SEEN = Observations(np.array([0.5, -3.0, 1e9]), np.array([True, False, True]), np.array([1.0, 1.0, 0.5]))
"""By an audit."""


@pytest.fixture(autouse=True)
def written(tmp_path, tickets, monkeypatch):
    """The ticket of round 2 as a run named r in the working folder, and what an audit saw; returns its model."""
    monkeypatch.chdir(tmp_path)
    model = build(tickets.spec)
    model.load_state_dict(tickets.tickets[2].predictor)
    config = {"model": "mlp:8", "features": 64, "classes": 10, "bounds": [0.0, 16.0], "more": {"a": 1}}
    with new_folder(R) as folder:
        write_run(folder, config, model, tickets.tickets[2].mask, METRICS)
        write_lineage(folder, Lineage(), network_id(model, tickets.tickets[2].mask))
    write_observations(Path(), SEEN)
    return model


def test_files(raw, tickets):
    tensors, documents = ("mask.safetensors", "model.safetensors"), ("config.json", "environment.json", "lineage.json")
    assert {path.name for path in R.iterdir()} == {*tensors, *documents, "metrics.jsonl"}
    assert [json.loads(line) for line in (R / "metrics.jsonl").read_text().splitlines()] == METRICS
    environment = json.loads((R / "environment.json").read_text())
    assert set(environment) == {"python", "platform", "dpltm", "torch", "numpy", "safetensors"}
    assert environment["torch"] in (torch.__version__, torch.__version__.partition("+")[0])
    packed, mask = raw.read(R / "mask.safetensors"), tickets.tickets[2].mask
    assert packed.keys() == mask.keys()
    for name, value in mask.items():
        assert np.array_equal(raw.unpack(packed[name], tuple(value.shape)), value.numpy())


def test_plain_pytorch(written, tickets):
    """No code of this package is needed to use a run."""
    plain = nn.Sequential(OrderedDict([("fc1", nn.Linear(64, 8)), ("relu1", nn.ReLU()), ("fc2", nn.Linear(8, 10))]))
    plain.load_state_dict(load_file(R / "model.safetensors"))
    x = torch.rand(5, 64)
    assert torch.equal(plain(x), written(x))
    for name, value in plain.named_parameters():
        assert (value[~tickets.tickets[2].mask[name]] == 0).all()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("model", ...), ("model", "vgg"), ("features", True), ("classes", 0)),
        *(("bounds", value) for value in ([16, 0], [0], ["a", "b"])),
    ],
)
def test_damaged_settings(raw, key, value):
    raw.edit(R / "config.json", signed=False, **{key: value})
    assert told(load_run, R) == "r/config.json: model, features, classes or bounds are missing or wrong"


def test_other_documents(raw):
    raw.edit(R / "config.json", signed=False, format="dpltm-ticket-set")
    assert told(load_run, R) == "r/config.json: not a document of format 'dpltm-run'"
    (R / "config.json").unlink()
    assert told(load_run, R) == "r: not a run (no config.json in it); name a folder made by dpltm train --out r"


def test_a_pruned_weight_that_is_not_zero(raw, tickets):
    tensors = raw.read(R / "model.safetensors")
    place = (~tickets.tickets[2].mask["fc1.weight"]).nonzero()[0].tolist()
    tensors["fc1.weight"][tuple(place)] = 1.0
    raw.write(R / "model.safetensors", tensors)
    assert told(load_run, R) == "r/model.safetensors: a pruned weight is not zero; model and mask do not fit"


# --- What an audit saw, on disk: it reads as it was written, or is refused ---


def test_of_a_training_without_an_audit_there_is_nothing(tmp_path):
    assert read_observations(Path(), None) is None
    (tmp_path / "other").mkdir()
    write_observations(Path("other"), None)
    assert read_observations(Path("other"), 3) is None


@pytest.mark.parametrize("count", [0, -1, True, 2.0, "3", 2**40])
def test_a_number_that_is_none(count):
    assert told(read_observations, Path(), count) == "config.json: audit is not a number of canaries"


@pytest.mark.parametrize(
    ("name", "value"), [("included", 0.5), ("included", np.nan), ("scores", np.nan), ("norms", 0.0), ("norms", np.nan)]
)
def test_values_that_no_audit_leaves(raw, name, value):
    tensors = raw.read(Path(AUDIT))
    tensors[name] = np.array([value, *tensors[name][1:]])
    raw.write(Path(AUDIT), tensors)
    assert told(read_observations, Path(), 3) == f"{AUDIT}: scores, coins or norms that no audit leaves"
