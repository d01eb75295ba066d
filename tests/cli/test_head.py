"""dpltm train --head least-squares: what it spends, and that its run works as others do."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import certified
from dpltm.privacy.account import Account
from dpltm.privacy.entry import entry_from_json
from dpltm.training.least_squares import shrunk

BARE = "train --dense --head least-squares --dataset digits --delta 1e-4 --ledger l.jsonl --out r --json"
UNIT = f"{BARE} --features unit"


def test_it_spends_what_is_in_its_ledger_and_its_run_works_as_others_do(cli, entries):
    body = cli(f"{UNIT} --epsilon 8").json
    (entered,) = map(entry_from_json, entries("l.jsonl"))
    assert 7.9 < certified(body) <= 8
    assert certified(body) == Account((entered,)).epsilon(1e-4)
    assert len(entered.mechanisms) == 3, "the mean of features, second moments of centred ones, and steps"
    assert body["accuracy"] > 0.85, "a plain nearest class mean has 0.88 of these, and chance 0.1"
    assert cli("evaluate r --dataset digits --json").json["accuracy"] == body["accuracy"]


def test_a_stated_noise_multiplier_is_that_of_the_whole(cli, entries):
    """The inverse squares of all parts add up to its own; second moments of 64 features are below the noise at 20."""
    for noise, parts in ((1.0, 3), (20.0, 2)):
        body = cli(f"{UNIT} --noise-multiplier {noise}").json
        assert (body["second_moments"] is not None) == (parts == 3)
        entered = entry_from_json(entries("l.jsonl")[-1]).mechanisms
        inverse = sum(getattr(one, "steps", 1) / one.noise_multiplier**2 for one in entered)
        assert len(entered) == parts
        assert 1 / math.sqrt(inverse) == pytest.approx(noise)
        Path("r").rename(f"r{parts}")


def test_second_moments_of_too_many_features_are_left_out_and_it_says_why(cli, cwd):
    x, y = np.random.default_rng(0).integers(0, 256, (40, 5000)).astype(np.uint8), np.arange(40) % 2
    for features, there in ((4999, True), (5000, False)):
        np.savez(cwd / "wide.npz", x_train=x[:, :features], y_train=y)
        wide = f"{BARE} --dataset wide.npz --bounds 0,255 --features unit --noise-multiplier 0.001 --dry-run"
        assert (cli(wide).json["second_moments"] is not None) == there
    notes = cli(wide).json["privacy"]["notes"]
    assert any("second moments are left out above 4,999 features" in note for note in notes)


def test_replace_one_has_twice_the_noise(cli):
    one, two = (
        cli(f"{UNIT} --noise-multiplier 1 --adjacency {adjacency} --dry-run").json
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


def test_ranks_are_refused(refused, monkeypatch):
    for name, value in (("TORCHELASTIC_RUN_ID", "1"), ("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    assert refused(f"{UNIT} --epsilon 1").startswith("--head least-squares works in one process")
