"""Options of ``dpltm train``: what is printed of them, convolutional networks, devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")


def test_nominal_is_printed_below_certified(cli):
    options = ("--filter", "tanh", "--noise", "nominal", "--epsilon", "1")
    done = cli("train", "pub@2", *PRIVATE, "--steps", "2", *options, "--out", "r")
    lines = [line for line in done.out.splitlines() if " epsilon = " in line]
    assert lines[0].startswith("certified epsilon = ")
    assert lines[1].startswith("nominal epsilon = 0.99")
    assert lines[1].endswith("(claimed by: tanh paper's sensitivity; not proven)")
    assert len(lines) == 2


def test_declared_records_are_what_rates_come_from(cli, events):
    options = ("--records", "700", "--batch-size", "70", "--steps", "2", "--noise-multiplier", "5", "--json")
    body = cli("train", "pub@2", *PRIVATE, *options, "--out", "r").json
    assert body["sampling_rate"] == 0.1
    assert events("pub/ledger.jsonl")[-1]["sampling_rate"] == 0.1
    assert Path("r").is_dir()


# Convolutional network, device

IMAGES = ("--dataset", "images.npz", "--bounds", "0,255", "--classes", "3")
DENSE = ("train", "--dense", "--model", "mlp:4", *PRIVATE, "--noise-multiplier", "3", "--steps", "2", "--out", "new")


@pytest.fixture
def images(cwd: Path) -> tuple[str, ...]:
    """Options of 90 images of 28 x 28 in three classes, each with its own bright bar, and 30 to test on."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = rng.integers(0, 40, (120, 28, 28), dtype=np.uint8)
    for label in range(3):
        x[y == label, 8 * label : 8 * label + 10, 4:24] += 200
    np.savez(cwd / "images.npz", x_train=x[:90], y_train=y[:90], x_test=x[90:], y_test=y[90:])
    return IMAGES


def read(path: str) -> dict[str, Any]:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def test_the_convolutional_network_from_tickets_to_a_run(cli, images, events):
    """The size of the images comes from the records, once; from then on it is part of the network's name."""
    tiny = ("--model", "cnn", "--rounds", "1", "--prune", "0.5", "--iterations", "3", "--batch-size", "15")
    public, private = (*images, "--subset", "0.0:0.5"), (*images, "--subset", "0.5:1.0")
    made = cli("generate", *public, *tiny, "--provenance", "public", "--out", "s", "--json").json
    weights, biases = 16 * 64 + 32 * 16 * 16 + 32 * 512 + 3 * 32, 16 + 32 + 32 + 3
    assert [row["live"] for row in made["tickets"]] == [weights + biases, weights // 2 + biases]
    drawn = cli("select", "s", *private, "--eps1", "0.5", "--json").json
    assert drawn["winner"]["round"] in (0, 1)
    trained = cli("train", "s@1", *private, "--noise-multiplier", "3", "--steps", "2", "--out", "r", "--json").json
    assert (trained["live"], trained["round"]) == (weights // 2 + biases, 1)
    assert read("r/config.json")["model"] == "cnn:28x28x1"
    values = load_file("r/model.safetensors")
    assert values["conv1.weight"].shape == (16, 1, 8, 8)
    assert sum(int(np.count_nonzero(value)) for value in values.values()) == trained["live"]
    assert [event["kind"] for event in events("s/ledger.jsonl")] == ["provenance", "selection", "training"]
    judged = cli("evaluate", "r", *images, "--json").json
    assert (judged["records"], judged["accuracy"]) == (30, trained["accuracy"])


@pytest.mark.parametrize("model", ["cnn", "cnn:28x28x1"])
def test_the_convolutional_network_trains_dense(cli, images, model):
    options = (
        "--noise-multiplier",
        "0",
        "--steps",
        "12",
        "--batch-size",
        "90",
        "--lr",
        "0.2",
        "--optimizer",
        "momentum",
    )
    body = cli("train", "--dense", "--model", model, *images, *options, "--out", "r", "--json").json
    assert body["live"] == 26_010 - 7 * 33
    assert body["density"] == 1
    assert body["accuracy"] > 0.6, "a third is chance"
    assert read("r/config.json")["model"] == "cnn:28x28x1"
    assert cli("evaluate", "r", *images, "--json").json["accuracy"] == body["accuracy"]


GENERATE = ("generate", *PRIVATE, "--provenance", "public", "--out", "new")


@pytest.mark.parametrize("command", [GENERATE, DENSE], ids=["generate", "train"])
def test_images_too_small_for_the_convolutional_network(refused, command):
    """Digits are 8 x 8."""
    assert refused(*command, "--model", "cnn") == "--model: cnn:8x8x1: images must be at least 14 x 14"


@pytest.mark.parametrize("command", [GENERATE, DENSE], ids=["generate", "train"])
def test_images_of_another_size_than_the_records(refused, command):
    assert refused(*command, "--model", "cnn:28x28x1") == (
        "--model: cnn:28x28x1: such images have 784 features, but the records have 64"
    )


def test_records_that_are_no_images(cwd, refused):
    np.savez(cwd / "flat.npz", x_train=np.zeros((9, 784), dtype=np.uint8), y_train=np.arange(9) % 3)
    command = ("train", "--dense", *IMAGES[2:], "--dataset", "flat.npz", "--noise-multiplier", "3", "--out", "new")
    assert refused(*command, "--model", "cnn") == (
        "--model cnn: records of shape (784,) are no images; if they are flattened ones, say their size, as in cnn:28x28x1"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="cuda is there, so that nothing refuses it")
def test_a_device_that_is_not_there(refused):
    message = "--device: cuda is not there (no such device, or torch was built without it); use cpu"
    assert refused(*DENSE, "--device", "cuda") == message
    assert refused(*DENSE, "--device", "cuda", "--dry-run") == message
    assert refused("train", "pub@2", *PRIVATE, "--epsilon", "1", "--device", "cuda") == message
