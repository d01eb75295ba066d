"""Runs: what is written loads again, and into plain PyTorch."""

from __future__ import annotations

import json
from collections import OrderedDict

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from dpltm.errors import ArtifactError
from dpltm.models import build
from dpltm.tickets.files import new_folder
from dpltm.tickets.run import load_run, write_run

METRICS = [{"step": 1, "epsilon": 0.5, "accuracy": None}, {"step": 2, "epsilon": "inf", "accuracy": 0.25}]


@pytest.fixture
def written(tmp_path, tickets, monkeypatch):
    """The ticket of round 2 as a run named r in the working folder; returns its model."""
    monkeypatch.chdir(tmp_path)
    model = build(tickets.spec)
    model.load_state_dict(tickets.tickets[2].predictor)
    config = {"model": "mlp:8", "features": 64, "classes": 10, "bounds": [0.0, 16.0], "more": {"a": 1}}
    with new_folder(tmp_path / "r") as folder:
        write_run(folder, config, model, tickets.tickets[2].mask, METRICS)
    return model


@pytest.fixture
def r(tmp_path, written):  # noqa: ARG001 - it is what writes the run
    """The path of the run."""
    return (tmp_path / "r").relative_to(tmp_path)


def refused(path):
    with pytest.raises(ArtifactError) as caught:
        load_run(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_round_trip(r, written, tickets):
    run = load_run(r)
    assert run.mask.same_as(tickets.tickets[2].mask)
    assert run.bounds == (0.0, 16.0)
    assert run.config["more"] == {"a": 1}
    assert run.path == r
    x = torch.rand(5, 64)
    assert torch.equal(run.model(x), written(x))


def test_files(r):
    assert sorted(path.name for path in r.iterdir()) == [
        "config.json",
        "environment.json",
        "mask.safetensors",
        "metrics.jsonl",
        "model.safetensors",
    ]
    assert [json.loads(line) for line in (r / "metrics.jsonl").read_text().splitlines()] == METRICS
    environment = json.loads((r / "environment.json").read_text())
    assert set(environment) == {"python", "platform", "dpltm", "torch", "numpy", "dp-accounting", "safetensors"}
    assert environment["torch"] == torch.__version__.partition("+")[0] or environment["torch"] == torch.__version__


def test_plain_pytorch(r, written, tickets):
    """No code of this package is needed to use a run."""
    plain = nn.Sequential(OrderedDict([("fc1", nn.Linear(64, 8)), ("relu1", nn.ReLU()), ("fc2", nn.Linear(8, 10))]))
    plain.load_state_dict(load_file(r / "model.safetensors"))
    x = torch.rand(5, 64)
    assert torch.equal(plain(x), written(x))
    for name, value in plain.named_parameters():
        pruned = ~tickets.tickets[2].mask[name]
        assert (value[pruned] == 0).all()
        assert (value[~pruned] != 0).any()


def test_mask_on_disk(r, raw, tickets):
    packed = raw.read(r / "mask.safetensors")
    mask = tickets.tickets[2].mask
    assert packed.keys() == mask.keys()
    ones = 0
    for name, value in mask.items():
        bits = raw.unpack(packed[name], tuple(value.shape))
        assert np.array_equal(bits, value.numpy())
        ones += int(bits.sum())
    assert ones == mask.live


@pytest.mark.parametrize(
    "change",
    [
        {"model": "vgg"},
        {"model": 5},
        {"features": "64"},
        {"features": True},
        {"classes": 0},
        {"bounds": [16, 0]},
        {"bounds": [0]},
        {"bounds": 5},
        {"bounds": ["a", "b"]},
        {"bounds": None},
    ],
    ids=repr,
)
def test_damaged_settings(r, change):
    path = r / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert refused(r) == "r/config.json: model, features, classes or bounds are missing or wrong"


@pytest.mark.parametrize("key", ["model", "features", "classes", "bounds"])
def test_missing_settings(r, key):
    path = r / "config.json"
    document = json.loads(path.read_text())
    del document[key]
    path.write_text(json.dumps(document))
    assert refused(r) == "r/config.json: model, features, classes or bounds are missing or wrong"


def test_other_documents(r):
    path = r / "config.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "schema": 2}))
    assert refused(r) == "r/config.json: schema 2 is newer than this version of dpltm reads (1); upgrade dpltm"
    path.write_text(json.dumps({**document, "format": "dpltm-ticket-set"}))
    assert refused(r) == "r/config.json: not a document of format 'dpltm-run'"
    path.unlink()
    assert refused(r) == "r: not a run (no config.json in it); name a folder made by dpltm train --out r"


@pytest.mark.parametrize("name", ["model.safetensors", "mask.safetensors"])
def test_damaged_tensors(r, raw, name):
    tensors = raw.read(r / name)
    raw.write(r / name, {key: value for key, value in tensors.items() if key != "fc1.bias"})
    assert refused(r).startswith(f"r/{name}: tensor 'fc1.bias': found none, expected ((")
    values, size = sum(value.nbytes for value in tensors.values()), (r / name).stat().st_size
    (r / name).write_bytes(b"hello")
    assert refused(r).startswith(f"r/{name}: 5 bytes, where {values} to ")
    (r / name).write_bytes(b"hello" * (max(values, size) // 5 + 1))
    assert refused(r) == f"r/{name}: not a valid safetensors file"
    (r / name).unlink()
    assert refused(r) == f"r/{name}: cannot be read: No such file or directory"


def test_a_pruned_weight_that_is_not_zero(r, raw, tickets):
    tensors = raw.read(r / "model.safetensors")
    place = (~tickets.tickets[2].mask["fc1.weight"]).nonzero()[0].tolist()
    tensors["fc1.weight"][tuple(place)] = 1.0
    raw.write(r / "model.safetensors", tensors)
    refused(r)
