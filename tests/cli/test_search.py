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

from dpltm.gradients import choose
from dpltm.privacy.private_search import gamma_for, tries
from dpltm.randomness.keyed_source import KeyedSource
from dpltm.tickets import checkpoint_files
from dpltm.training.descent import NoisyGradients
from dpltm.verbs.search import secret_draws

PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0", "--epsilon", "4", "--delta", "1e-4", "--accountant", "rdp")
SEARCH = ("tune", "--private", *PRIVATE, "--model", "mlp:4", "--lr", "0.5,1,2", "--batch-size", "100", "--epochs", "1")
SEVEN = (*SEARCH, "--tries", "4", "--out", "r")
"""Seven steps a try; and, with the keys below, four tries."""


@pytest.fixture
def keys(monkeypatch):
    """Has the next search make four tries, by keys that do not change; kernels tie, so that bits can be compared."""
    monkeypatch.setattr(choose.time, "perf_counter", itertools.count().__next__)
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


class Killed(BaseException):
    """The process is gone: nothing of ours handles this."""


def killed_at(cli, monkeypatch, number, *command):
    inner, left = NoisyGradients.backward, itertools.count(1)

    def backward(self):
        if next(left) == number:
            raise Killed
        inner(self)

    with monkeypatch.context() as patch:
        patch.setattr(NoisyGradients, "backward", backward)
        with pytest.raises(Killed):
            pytest.fail(str(cli(*command)))


def held(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@pytest.mark.usefixtures("keys")
def test_the_same_command_goes_on_to_the_same_bits_and_pays_once(cli, monkeypatch, tree, entries):
    """Killed in the first, in the third and in the last of four tries; other keys would show."""
    before = set(tree())
    body = cli(*SEVEN, "--ledger", "first.jsonl", "--json").json
    files = held("r")
    Path("r").rename("first")
    monkeypatch.setattr(checkpoint_files, "EVERY", 0.0)
    monkeypatch.setattr(checkpoint_files, "SHARE", 1e9)
    for number in (3, 18, 5):
        killed_at(cli, monkeypatch, number, *SEVEN)
        assert not Path("r").exists()
    spent = entries("digits.ledger.jsonl")
    again = cli(*SEVEN, "--json").json
    assert {**again, "seconds": 0} == {**body, "seconds": 0}
    assert held("r")["model.safetensors"] == files["model.safetensors"]
    assert [each["mechanism"] for entry in spent for each in entry["mechanisms"]] == ["search"]
    assert entries("digits.ledger.jsonl") == spent
    assert {name.split("/")[0] for name in set(tree()) - before} == {"r", "first", "first.jsonl", "first.key"}


def test_files_are_as_old_as_the_day_of_the_entry(cli, entries):
    """How long a search took would tell how many tries there were."""
    cli(*SEARCH, "--tries", "1.5", "--out", "r", "--quiet")
    entry = entries("digits.ledger.jsonl")[-1]
    begun = datetime.fromisoformat(entry["day"]).timestamp()
    times = [os.stat(path).st_mtime for path in (Path("r"), *Path("r").iterdir())]
    assert times == pytest.approx([begun] * len(times))


def test_a_winner_is_a_run_like_any_other(cli):
    cli("privacy", "budget", "all.jsonl", "--epsilon", "5", "--delta", "1e-4")
    body = cli(*SEARCH, "--tries", "1.5", "--ledger", "all.jsonl", "--json").json
    assert body["run"] == "digits-search.run"
    assert body["lr"] in (0.5, 1, 2)
    assert body["privacy"]["certified"]["epsilon"] <= 4
    assert cli("evaluate", body["run"], "--dataset", "digits", "--json").json["accuracy"] == body["accuracy"]
    once_more = cli(*SEARCH, "--tries", "1.5", "--ledger", "all.jsonl", "--out", "s")
    assert once_more.code in (1, 2)
    assert once_more.err.startswith("error: budget: ")


def test_a_dry_run_enters_nothing(cli, tree):
    before = tree()
    body = cli(*SEARCH, "--dry-run", "--json").json
    assert [row["lr"] for row in body["settings"]] == [0.5, 1, 2]
    assert body["privacy"]["certified"]["epsilon"] <= 4
    assert tree() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--out", "best.toml"),
            "--out: best.toml: with --private, it is the folder of a run; name it such as NAME.run",
        ),
        (("--for-records", "9"), "--for-records: with --private, the records of --dataset are the private ones"),
        (("pri", "--rounds", "9"), "pri@9: no such round; it has rounds 0 to 2"),
    ],
)
def test_refusals(cli, tree, options, message):
    before, command = tree(), SEARCH
    if options[0] == "pri":
        command = tuple(part for part in SEARCH if part not in ("--model", "mlp:4"))
    done = cli(*command, *options)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {message}")
    assert tree() == before


def test_options_of_a_private_search_want_the_word(cli):
    done = cli("tune", "--dataset", "digits", "--for-records", "700", "--epsilon", "1", "--tries", "3")
    assert done.err == "error: --tries: of a search on private records; add --private, or leave it out\n"
