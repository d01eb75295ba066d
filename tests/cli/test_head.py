"""dpltm train --head least-squares: what it spends, what it refuses, and that it goes on where it was stopped."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpltm.privacy import release
from dpltm.privacy.account import Account
from dpltm.privacy.entry import entry_from_json
from dpltm.tickets import checkpoint_files
from dpltm.training import least_squares
from dpltm.training.descent import NoisyGradients
from dpltm.training.least_squares import shrunk

BARE = ("train", "--dense", "--head", "least-squares", "--dataset", "digits", "--delta", "1e-4", "--ledger",
        "l.jsonl", "--out", "r")  # fmt: skip
UNIT = (*BARE, "--features", "unit")
BUDGET = ("--epsilon", "1")


def test_it_spends_what_its_dry_run_states_and_its_run_works_as_others_do(cli, tree, entries):
    before = tree()
    planned = cli(*UNIT, "--epsilon", "8", "--json", "--dry-run").json
    assert tree() == before
    body = cli(*UNIT, "--epsilon", "8", "--json").json
    for key in ("head", "noise_multiplier", "centre", "second_moments", "steps", "features"):
        assert planned[key] == body[key]
    assert planned["privacy"]["certified"] == body["privacy"]["certified"]
    assert 7.9 < body["privacy"]["certified"]["epsilon"] <= 8
    (entered,) = map(entry_from_json, entries("l.jsonl"))
    assert body["privacy"]["certified"]["epsilon"] == Account((entered,)).epsilon(1e-4)
    assert len(entered.mechanisms) == 3, "the mean of features, second moments of centred ones, and steps"
    assert body["accuracy"] > 0.85, "a plain nearest class mean has 0.88 of these, and chance 0.1"
    assert cli("evaluate", "r", "--dataset", "digits", "--json").json["accuracy"] == body["accuracy"]


def test_a_stated_noise_multiplier_is_that_of_the_whole(cli, entries):
    """The inverse squares of all parts add up to its own; second moments of 64 features are below the noise at 20."""
    for noise, parts in ((1.0, 3), (20.0, 2)):
        body = cli(*UNIT, "--noise-multiplier", noise, "--json").json
        assert (body["second_moments"] is not None) == (parts == 3)
        entered = entry_from_json(entries("l.jsonl")[-1]).mechanisms
        inverse = sum(getattr(one, "steps", 1) / one.noise_multiplier**2 for one in entered)
        assert len(entered) == parts
        assert 1 / math.sqrt(inverse) == pytest.approx(noise)
        Path("r").rename(f"r{parts}")


def test_second_moments_of_too_many_features_are_left_out_and_it_says_why(cli, cwd):
    """At so little noise, it is not for the noise."""
    x, y = np.random.default_rng(0).integers(0, 256, (40, 5000)).astype(np.uint8), np.arange(40) % 2
    for features, there in ((4999, True), (5000, False)):
        np.savez(cwd / "wide.npz", x_train=x[:, :features], y_train=y)
        wide = ("--dataset", "wide.npz", "--bounds", "0,255", "--features", "unit", "--noise-multiplier", "0.001")
        planned = cli(*BARE, *wide, "--dry-run", "--json").json
        assert (planned["second_moments"] is not None) == there
    notes = cli(*BARE, *wide, "--json").json["privacy"]["notes"]
    assert any("second moments are left out above 4,999 features" in note for note in notes)


def test_replace_one_has_twice_the_noise(cli):
    one, two = (
        cli(*UNIT, "--noise-multiplier", "1", "--adjacency", adjacency, "--dry-run", "--json").json
        for adjacency in ("add-remove", "replace-one")
    )
    assert two["noise_std"] == 2 * one["noise_std"]
    assert two["lr"] == one["lr"] / 2, "the step is as long as the noise allows"


def test_a_mean_that_noise_explains_is_taken_for_zero():
    """The positive part of James and Stein: 1 - (dimension times variance) / (squared norm)."""
    centre = torch.tensor([3.0, 4.0])
    assert torch.equal(shrunk(centre, 100 * math.sqrt(12.5), 100), torch.zeros(2)), "2 (sqrt 12.5)^2 = 25 = 3^2 + 4^2"
    assert torch.equal(shrunk(centre, 1e6, 100), torch.zeros(2))
    assert torch.allclose(shrunk(centre, 100 * 2.5, 100), centre / 2)
    assert torch.equal(shrunk(centre, 0.0, 100), centre)
    assert torch.equal(shrunk(torch.zeros(2), 1.0, 100), torch.zeros(2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*BARE, *BUDGET), "--head: least-squares needs features of a fixed norm; add --features unit, or a map that"
         " suits the records"),
        ((*UNIT, *BUDGET, "--model", "mlp:4"), "--head: least-squares fits one layer, and no mlp:4; leave --model out"),
        (("train", "pub", *BARE[2:], *BUDGET), "--head: least-squares fits a whole layer, and no ticket; name --dense"
         " without SET"),
        ((*UNIT, *BUDGET, "--noise", "nominal"), "--noise: nominal is the tanh paper's; with --head least-squares take"
         " secure or fast"),
        (UNIT, "--epsilon or --noise-multiplier: give one of them; --epsilon is the whole budget, such as 1"),
        ((*UNIT, *BUDGET, "--head", "ridge"), "--head: 'ridge' is not one of dp-sgd, least-squares"),
    ],
)  # fmt: skip
def test_refusals(refused, arguments, message):
    assert refused(*arguments) == message


@pytest.mark.parametrize(
    "option",
    [
        ("--filter", "normalize"), ("--clip-norm", "2"), ("--tanh-scale", "2"), ("--tanh-range", "2"), ("--no-pre-clip",),
        ("--epochs", "3"), ("--steps", "3"), ("--batch-size", "9"), ("--lr", "1"), ("--optimizer", "adam"),
        ("--schedule", "cosine"), ("--average", "ema"), ("--centre", "0.1"), ("--augment", "flip"), ("--audit", "9"),
        ("--budget-stop",), ("--stop-at", "0.5"), ("--precision", "bfloat16"), ("--compile",),
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_there_is_to_tune_elsewhere_is_refused(refused, option):
    message = f"{option[0]}: has no use with --head least-squares, which has nothing to tune; leave it out"
    assert refused(*UNIT, *BUDGET, *option) == message


def test_ranks_are_refused(refused, monkeypatch):
    for name, value in (("TORCHELASTIC_RUN_ID", "1"), ("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    assert refused(*UNIT, *BUDGET) == (
        "--head least-squares works in one process, and torchrun started 2: run it without torchrun"
    )


# Interrupted.


class Killed(BaseException):
    """The process is gone: nothing of ours handles this."""


@pytest.fixture
def keys(monkeypatch):
    """Has the next training draw its keys from a seed; a checkpoint is kept after every step."""
    monkeypatch.setattr(checkpoint_files, "EVERY", 0.0)
    monkeypatch.setattr(checkpoint_files, "SHARE", 1e9)

    def seed(number):
        counter = itertools.count(number * 1000)
        drawn = SimpleNamespace(token_bytes=lambda count: next(counter).to_bytes(count, "little"))
        monkeypatch.setattr(release, "secrets", drawn)

    return seed


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [(least_squares, "second_moments", 1), (NoisyGradients, "backward", 1), (NoisyGradients, "backward", 9)],
    ids=["after the mean", "after the second moments", "in the middle"],
)
def test_a_killed_run_goes_on_to_the_same_bits_and_pays_once(cli, keys, entries, monkeypatch, owner, name, call):
    """Other keys are at hand when it goes on, so equal bits can only come from those that were kept."""
    command = (*UNIT, "--epsilon", "8", "--eval-private", "1", "--quiet")
    keys(1)
    cli(*command, "--ledger", "whole.jsonl")
    whole = {
        file: (Path("r") / file).read_bytes()
        for file in ("model.safetensors", "features.safetensors", "metrics.jsonl")
    }
    Path("r").rename("whole")
    keys(1)
    left, inner = itertools.count(1), getattr(owner, name)

    def dying(*arguments):
        if next(left) == call:
            raise Killed
        return inner(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, dying)
        with pytest.raises(Killed):
            cli(*command)
    keys(2)
    assert cli(*command).code == 0
    assert {file: (Path("r") / file).read_bytes() for file in whole} == whole
    assert len(entries("l.jsonl")) == len(entries("whole.jsonl")) == 1
