"""``dpltm audit``: its JSON, and its exit code where what is certified falls."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
TRAIN = ("train", "--dense", *PRIVATE, "--model", "mlp:8", "--steps", "2", "--noise-multiplier", "30", "--audit", "60")
KEYS = {"lower_bound", "certified", "nominal", "method", "canaries", "confidence", "violates"}


@pytest.mark.usefixtures("cwd")
def test_the_exit_code_is_1_where_what_is_certified_is_refuted(cli):
    cli(*TRAIN, "--out", "r", "--quiet")
    file = Path("r/audit.safetensors")
    seen = load_file(file)
    number = np.arange(60.0)
    save_file({**seen, "included": (number % 2).astype(seen["included"].dtype), "scores": number // 2}, file)
    # scores that tell nothing; those of the run tell more than is certified in one run of twenty, by chance
    body = cli("audit", "r", "--json").json
    assert body.keys() >= KEYS
    assert body["violates"] == []
    assert body["canaries"] == 60
    save_file(
        {**seen, "scores": np.where(seen["included"] == 1, 1.0, -1.0)}, file
    )  # as if there were hardly any noise
    done = cli("audit", "r", "--json")
    assert done.code == 1
    found = json.loads(done.out)
    assert found["violates"] == ["certified"]
    assert found["lower_bound"] > 1 > found["certified"]
    assert "certified" in cli("audit", "r").out
    assert ": refuted" in cli("audit", "r").out


@pytest.mark.usefixtures("cwd")
def test_a_picture_that_exists_is_refused_under_its_own_name(refused):
    Path("there.png").write_text("mine")
    said = "--plot: there.png exists already; choose another name or remove it first"
    assert refused("audit", "demo", "--plot", "there.png") == said
    assert Path("there.png").read_text() == "mine"


@pytest.mark.usefixtures("cwd")
def test_too_few_canaries_are_refused_before_anything_is_spent(refused):
    said = "--audit: 5 canaries prove nothing at 95 % confidence, whatever is guessed; ask for at least 6, better 1000"
    assert refused(*TRAIN[:-1], "5", "--out", "r", "--ledger", "l.jsonl") == said
    assert not Path("r").exists()
    assert not Path("l.jsonl").exists()
