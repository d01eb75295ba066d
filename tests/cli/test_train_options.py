"""What the options of ``dpltm train`` do to the sensitivity, the noise and the two figures."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from safetensors.numpy import load_file

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
    bound = 3 * math.sqrt(LIVE) * math.tanh(2 / (0.5 * math.sqrt(LIVE)))  # PRIVACY.md section 4
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


def test_replace_one_doubles_the_sensitivity(train):
    one = train("--epsilon", "1", out="a")
    two = train("--epsilon", "1", "--adjacency", "replace-one", out="b")
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
    """The bounds of PRIVACY.md section 4, at C = 0.5, c = 3, k = 0.1."""
    options = ("--clip-norm", "0.5", "--tanh-scale", "3", "--tanh-range", "0.1", "--noise-multiplier", "2")
    body = train("--filter", name, *options)
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
