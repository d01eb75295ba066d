"""``dpltm tune --private``: the winner of a search is a run, interrupted or not, and no file tells how long it took."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import os
import sys
from datetime import datetime
from pathlib import Path

import pytest

from commands import LEDGER, PRIVATE, certified
from dpltm.privacy.private_search import gamma_for, tries
from dpltm.randomness.noise import KeyedSource
from dpltm.training.descent import NoisyGradients
from dpltm.verbs.search import secret_draws
from interruptions import Killed, die, ending, often

SEARCH = f"tune --private {PRIVATE} --epsilon 4 --delta 1e-4 --accountant rdp --model mlp:4 --lr 0.5,1,2 --epochs 1"
SEARCH += " --batch-size 100"
SEVEN = f"{SEARCH} --tries 4 --out r --json"
"""Seven steps a try; and, with the keys below, four tries."""


@pytest.fixture
def keys(monkeypatch):
    """Has the next search make four tries, by keys that do not change."""
    gamma = gamma_for(4.0)
    key = next(
        key
        for key in (number.to_bytes(32, "little") for number in range(1000))
        if tries(gamma, *secret_draws(KeyedSource(hmac.new(key, b"tries", hashlib.sha256).digest()), 2)) == 4
    )
    others = itertools.count(2000)

    def token_bytes(count):
        """The key of the release; and keys of ledgers."""
        asked = sys._getframe(1).f_code.co_filename
        return key if asked.endswith("release.py") else next(others).to_bytes(count, "little")

    monkeypatch.setattr("dpltm.privacy.release.secrets.token_bytes", token_bytes)


@pytest.mark.usefixtures("keys")
def test_the_same_command_goes_on_to_the_same_bits_and_pays_once(cli, monkeypatch, tree, entries):
    """Killed in the first, in the third and in the last of four tries; other keys would show."""
    before = set(tree())
    body = cli(f"{SEVEN} --ledger first.jsonl").json
    whole = Path("r/model.safetensors").read_bytes()
    Path("r").rename("first")
    often(monkeypatch)
    for number in (3, 18, 5):
        with ending(NoisyGradients, "backward", number, die), pytest.raises(Killed):
            cli(SEVEN)
        assert not Path("r").exists()
    spent = entries(LEDGER)
    again = cli(SEVEN).json
    assert again["privacy"]["certified"] == body["privacy"]["certified"]
    other = {"seconds": 0, "privacy": None}  # which names what either ledger holds as declared
    assert {**again, **other} == {**body, **other}
    assert Path("r/model.safetensors").read_bytes() == whole
    assert [each["mechanism"] for entry in spent for each in entry["mechanisms"]] == ["search"]
    assert entries(LEDGER) == spent
    assert {name.split("/")[0] for name in set(tree()) - before} == {"r", "first", "first.jsonl", "first.key"}


def test_a_winner_is_a_run_like_any_other(cli, entries):
    """Its files are as old as the day of the entry: how long a search took would tell how many tries there were."""
    cli("privacy budget all.jsonl --epsilon 5 --delta 1e-4")
    once = f"{SEARCH} --tries 1.5 --ledger all.jsonl"
    body = cli(f"{once} --json").json
    assert body["run"] == "digits-search.run"
    assert body["lr"] in (0.5, 1, 2)
    assert certified(body) <= 4
    assert cli(f"evaluate {body['run']} --dataset digits --json").json["accuracy"] == body["accuracy"]
    begun = datetime.fromisoformat(entries("all.jsonl")[-1]["day"]).timestamp()
    times = [os.stat(path).st_mtime for path in (Path(body["run"]), *Path(body["run"]).iterdir())]
    assert times == pytest.approx([begun] * len(times))
    again = cli(f"{once} --out s")
    assert again.code in (1, 2)
    assert again.err.startswith("error: budget: ")
