"""What the options of ``dpltm train`` do to the sensitivity, the noise and the two figures."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from dpltm.filters import FILTERS

PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
LIVE = 308  # of pub@2


@pytest.fixture
def train(cli):
    """Trains pub@2 for two steps with a ledger of its own and returns the answer."""

    def call(*options, out="r"):
        fixed = ("train", "pub@2", *PRIVATE, "--steps", "2", "--ledger", f"{out}.jsonl", "--out", out, "--json")
        return cli(*fixed, *options).json

    return call


def test_clip_norm_scales_the_noise_and_not_the_cost(train):
    one, half = train("--epsilon", "1", out="a"), train("--epsilon", "1", "--clip-norm", "0.5", out="b")
    assert (half["sensitivity"], half["filter"]) == (0.5, "clip(C=0.5)")
    assert half["noise_multiplier"] == one["noise_multiplier"]
    assert half["noise_std"] == one["noise_std"] / 2
    assert half["privacy"]["certified"] == one["privacy"]["certified"]


def test_tanh_means_clip_then_tanh(train):
    body = train("--filter", "tanh", "--clip-norm", "2", "--tanh-scale", "3", "--tanh-range", "0.5", "--epsilon", "1")
    bound = 3 * math.sqrt(LIVE) * math.tanh(2 / (0.5 * math.sqrt(LIVE)))  # docs/privacy-model.md section 4.2
    assert body["sensitivity"] == pytest.approx(bound, rel=2e-6)
    assert body["sensitivity"] >= bound
    assert body["filter"] == "clip(C=2) then tanh(c=3, k=0.5)"
    assert body["privacy"]["nominal"] is None
    assert 0.998 < body["privacy"]["certified"]["epsilon"] <= 1


def test_tanh_as_printed(train):
    """Calibrated to its certified bound, the claimed epsilon is far smaller, and is shown beside it."""
    body = train("--filter", "tanh", "--no-pre-clip", "--epsilon", "1")
    assert body["sensitivity"] == pytest.approx(math.sqrt(LIVE), rel=2e-6)
    assert 0.998 < body["privacy"]["certified"]["epsilon"] <= 1
    nominal = body["privacy"]["nominal"]
    assert nominal["source"] == "tanh paper's sensitivity"
    assert nominal["epsilon"] < 0.1


@pytest.mark.parametrize("pre_clip", [True, False])
def test_nominal_noise(train, pre_clip):
    """As much noise as the paper adds: the paper's figure is the budget, and the certified one is what that is worth."""
    options = () if pre_clip else ("--no-pre-clip",)
    body = train("--filter", "tanh", *options, "--clip-norm", "5", "--noise", "nominal", "--epsilon", "1")
    reference = train("--epsilon", "1", out="reference")
    assert body["noise_std"] == pytest.approx(reference["noise_multiplier"])
    assert body["noise_multiplier"] == pytest.approx(reference["noise_multiplier"] / body["sensitivity"])
    assert 0.998 < body["privacy"]["nominal"]["epsilon"] <= 1
    assert body["privacy"]["nominal"]["source"] == "tanh paper's sensitivity"
    assert body["privacy"]["certified"]["epsilon"] > 3
    assert (
        "--noise nominal adds as much noise as the paper would; the certified epsilon is what that is worth"
        in body["privacy"]["notes"]
    )


def test_nominal_noise_by_multiplier(train):
    body = train("--filter", "tanh", "--no-pre-clip", "--noise", "nominal", "--noise-multiplier", "2")
    assert body["noise_std"] == pytest.approx(2)
    assert body["noise_multiplier"] == pytest.approx(2 / math.sqrt(LIVE), rel=2e-6)


def test_nominal_is_printed_below_certified(cli):
    options = ("--filter", "tanh", "--noise", "nominal", "--epsilon", "1")
    done = cli("train", "pub@2", *PRIVATE, "--steps", "2", *options, "--out", "r")
    lines = [line for line in done.out.splitlines() if " epsilon = " in line]
    assert lines[0].startswith("certified epsilon = ")
    assert lines[1].startswith("nominal epsilon = 0.99")
    assert lines[1].endswith("(claimed by: tanh paper's sensitivity; not proven)")
    assert len(lines) == 2


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adagrad"])
def test_optimizers_have_the_same_guarantee(train, optimizer):
    body = train("--optimizer", optimizer, "--noise-multiplier", "4")
    assert body["optimizer"] == optimizer
    assert body["lr"] == {"sgd": 1.0, "momentum": 0.1, "adam": 0.002, "adagrad": 0.05}[optimizer]
    plain = train("--noise-multiplier", "4", out="plain")
    assert body["privacy"]["certified"] == plain["privacy"]["certified"]
    values, mask = load_file("r/model.safetensors"), load_file("r/mask.safetensors")
    assert sum(int((value != 0).sum()) for value in values.values()) == LIVE
    assert values.keys() == mask.keys()


def test_replace_one_doubles_the_sensitivity(train, by_places):
    one = train(*by_places, "--epsilon", "1", out="a")
    two = train(*by_places, "--epsilon", "1", "--adjacency", "replace-one", out="b")
    assert two["sensitivity"] == 2 * one["sensitivity"]
    assert two["noise_std"] > one["noise_std"]
    assert two["privacy"]["certified"]["adjacency"] == "replace-one"
    assert 0.998 < two["privacy"]["certified"]["epsilon"] <= 1


def test_noise_multiplier_states_the_noise(train):
    less, more = train("--noise-multiplier", "1", out="a"), train("--noise-multiplier", "2", out="b")
    assert (less["noise_multiplier"], more["noise_multiplier"]) == (1, 2)
    assert less["privacy"]["certified"]["epsilon"] > more["privacy"]["certified"]["epsilon"] > 0


def test_fast_noise_is_pointed_out(train):
    body = train("--noise", "fast", "--noise-multiplier", "2")
    note = "--noise fast draws noise from a generator that is not cryptographic"
    assert note in body["privacy"]["notes"]
    assert note not in train("--noise-multiplier", "2", out="b")["privacy"]["notes"]


def test_epochs_are_counted_in_expected_batches(cli):
    options = ("--epochs", "2", "--batch-size", "71.9", "--noise-multiplier", "5", "--dry-run", "--json")
    body = cli("train", "pub@2", *PRIVATE, *options).json
    assert (body["sampling_rate"], body["steps"]) == (pytest.approx(0.1), 20)


def test_declared_records_are_what_rates_come_from(cli, events):
    options = ("--records", "700", "--batch-size", "70", "--steps", "2", "--noise-multiplier", "5", "--json")
    body = cli("train", "pub@2", *PRIVATE, *options, "--out", "r").json
    assert body["sampling_rate"] == 0.1
    assert events("pub/ledger.jsonl")[-1]["sampling_rate"] == 0.1
    assert Path("r").is_dir()


@pytest.mark.parametrize(
    ("name", "bound", "nominal"),
    [
        ("clip", 0.5, None),
        ("per-layer", 0.5, None),
        ("radial-tanh", 0.5, None),
        ("auto", 0.5, None),
        ("normalize", 0.5, None),
        ("tanh-clip", 0.5, None),
        ("tanh", 3 * math.sqrt(LIVE) * math.tanh(0.5 / (0.1 * math.sqrt(LIVE))), None),
        ("sigmoid", 3 * math.sqrt(LIVE), 1.0),
    ],
)
def test_every_filter_trains_with_its_own_bound(train, events, name, bound, nominal):
    """The bounds of docs/privacy-model.md section 4.2, at C = 0.5, c = 3, k = 0.1."""
    values = {"clip_norm": "0.5", "tanh_scale": "3", "tanh_range": "0.1"}
    known = [parameter.name for parameter in FILTERS[name].parameters if parameter.name in values]
    options = [part for one in known for part in (f"--{one.replace('_', '-')}", values[one])]
    body = train("--filter", name, *options, "--noise-multiplier", "2")
    assert body["sensitivity"] == pytest.approx(bound, rel=2e-6)
    assert body["sensitivity"] >= bound
    assert body["noise_std"] == 2 * body["sensitivity"]
    assert events("r.jsonl")[-1]["nominal_sensitivity"] == nominal
    assert (body["privacy"]["nominal"] is None) == (nominal is None)


def test_nominal_noise_of_the_sigmoid_is_that_of_a_bound_of_one(train):
    body = train("--filter", "sigmoid", "--noise", "nominal", "--epsilon", "1")
    assert body["noise_std"] == pytest.approx(body["noise_multiplier"] * math.sqrt(LIVE), rel=1e-5)
    assert body["privacy"]["nominal"]["epsilon"] == pytest.approx(1, rel=2e-3)
    assert body["privacy"]["certified"]["epsilon"] > 100


# Convolutional network, physical batches, precision, device

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


def test_a_physical_batch_changes_no_weight_but_for_rounding(cli, monkeypatch):
    """Without noise and with every record in every step nothing else is left to chance; the rows are counted."""
    from dpltm.gradients import RecordGradients

    rows: list[int] = []
    inner = RecordGradients.filtered_sum

    def count(self: RecordGradients, x: Any, *rest: Any) -> Any:
        rows.append(len(x))
        return inner(self, x, *rest)

    monkeypatch.setattr(RecordGradients, "filtered_sum", count)
    weights = []
    options = ("--noise-multiplier", "0", "--steps", "2", "--batch-size", "60", "--optimizer", "adam", "--lr", "0.01")
    for number, physical in enumerate(((), ("--physical-batch", "7"), ("--physical-batch", "100000"))):
        small = ("--dataset", "digits", "--subset", "0:60", "--classes", "10")
        command = ("train", "--dense", "--model", "mlp:4", *small, *options, *physical)
        body = cli(*command, "--out", f"r{number}", "--json").json
        assert body["sampling_rate"] == 1
        weights.append(load_file(f"r{number}/model.safetensors"))
        assert read(f"r{number}/config.json")["options"]["physical_batch"] == (int(physical[1]) if physical else None)
    assert rows == [60] * 2 + ([7] * 8 + [4]) * 2 + [60] * 2
    for name, value in weights[0].items():
        np.testing.assert_allclose(weights[1][name], value, rtol=1e-3, atol=1e-5)
        assert (weights[2][name] == value).all()


@pytest.mark.parametrize("number", ["0", "-3"])
def test_a_physical_batch_that_is_none(refused, number):
    assert refused(*DENSE, "--physical-batch", number) == (
        f"--physical-batch: {number} is not a positive whole number"
    )


def test_bfloat16_is_used_and_costs_the_same(train, monkeypatch):
    from torch import nn

    outputs = set()
    inner = nn.Linear.forward

    def note(self: nn.Linear, x: Any) -> Any:
        out = inner(self, x)
        outputs.add(str(out.dtype))
        return out

    plain = train("--noise-multiplier", "4", out="plain")
    monkeypatch.setattr(nn.Linear, "forward", note)
    train("--noise-multiplier", "4", out="again")
    assert outputs == {"torch.float32"}
    body = train("--noise-multiplier", "4", "--precision", "bfloat16")
    assert "torch.bfloat16" in outputs
    assert body["privacy"]["certified"] == plain["privacy"]["certified"]
    assert (body["sensitivity"], body["noise_std"]) == (plain["sensitivity"], plain["noise_std"])
    assert read("r/config.json")["options"]["precision"] == "bfloat16"
    assert {str(value.dtype) for value in load_file("r/model.safetensors").values()} == {"float32"}


@pytest.mark.parametrize(("option", "value"), [("precision", "float16"), ("device", "gpu")])
def test_unknown_precision_and_device(refused, option, value):
    known = {"precision": "float32, bfloat16", "device": "cpu, cuda"}[option]
    assert refused(*DENSE, f"--{option}", value) == f"--{option}: {value!r} is not one of {known}"


@pytest.mark.skipif(torch.cuda.is_available(), reason="cuda is there, so that nothing refuses it")
def test_a_device_that_is_not_there(refused):
    message = "--device: cuda is not there (no such device, or torch was built without it); use cpu"
    assert refused(*DENSE, "--device", "cuda") == message
    assert refused(*DENSE, "--device", "cuda", "--dry-run") == message
    assert refused("train", "pub@2", *PRIVATE, "--epsilon", "1", "--device", "cuda") == message


@pytest.mark.parametrize("name", ["clip", "per-layer", "radial-tanh", "auto", "normalize"])
def test_there_is_nothing_to_compile_in_a_radial_filter(refused, name):
    assert refused(*DENSE, "--compile", "--filter", name) == (
        f"--compile: only for element-wise filters (tanh, tanh-clip, sigmoid); {name} has nothing to compile"
    )
