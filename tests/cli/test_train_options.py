"""Convolutional networks in ``dpltm train``, trainings that diverge, and devices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from commands import PRIVATE

IMAGES = "--dataset images.npz --bounds 0,255 --classes 3"


@pytest.fixture
def _images(cwd: Path) -> None:
    """90 images of 28 x 28 in three classes, each with its own bright bar, and 30 to test on."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = rng.integers(0, 40, (120, 28, 28), dtype=np.uint8)
    for label in range(3):
        x[y == label, 8 * label : 8 * label + 10, 4:24] += 200
    np.savez(cwd / "images.npz", x_train=x[:90], y_train=y[:90], x_test=x[90:], y_test=y[90:])


@pytest.mark.usefixtures("_images")
def test_the_convolutional_network_from_tickets_to_a_run(cli):
    """The size of the images comes from the records, once; from then on it is part of the network's name."""
    tiny = "--model cnn --rounds 1 --prune 0.5 --iterations 3 --batch-size 15 --provenance public"
    made = cli(f"generate {IMAGES} --subset 0.0:0.5 {tiny} --out s --json").json
    weights, biases = 16 * 64 + 32 * 16 * 16 + 32 * 512 + 3 * 32, 16 + 32 + 32 + 3
    assert [row["live"] for row in made["tickets"]] == [weights + biases, weights // 2 + biases]
    trained = cli(f"train s@1 {IMAGES} --subset 0.5:1.0 --noise-multiplier 3 --steps 2 --out r --json").json
    assert json.loads(Path("r/config.json").read_text())["model"] == "cnn:28x28x1"
    values = load_file("r/model.safetensors")
    assert values["conv1.weight"].shape == (16, 1, 8, 8)
    live = {name: int(np.count_nonzero(value)) for name, value in values.items()}
    assert sum(count for name, count in live.items() if name.endswith("weight")) == weights // 2
    assert trained["live"] == weights // 2 + biases
    assert trained["live"] - 5 <= sum(live.values()), "biases begin at zero, where noise on a grid may leave a few"


def test_a_training_that_diverged_says_so(cli):
    """In its answer, in what is kept of it, and where it is evaluated: weights are released, and may be looked at."""
    few = "--model mlp:4 --steps 3 --lr 1e30 --epsilon 3 --delta 1e-4 --out r --json"
    (said,) = (n for n in cli(f"train --dense {PRIVATE} {few}").json["privacy"]["notes"] if "training diverged" in n)
    assert said in cli("evaluate r --dataset digits --json").json["notes"]
    assert said in Path("r/result.json").read_text(encoding="utf-8")


@pytest.mark.skipif(torch.cuda.is_available(), reason="cuda is there, so that nothing refuses it")
def test_a_device_that_is_not_there(refused):
    for more in ("", "--dry-run"):
        command = f"train --dense --model mlp:4 {PRIVATE} --noise-multiplier 3 --steps 2 --device cuda {more}"
        assert refused(command).startswith("--device: cuda is not there")
