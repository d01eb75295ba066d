"""Processes that die between two changes of the disk: results are whole or not there, and the next run is not blocked."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import dpltm
import dpltm.tickets
from deaths import dies_at
from dpltm.cli.main import run
from dpltm.pruning.ticket_set import Winner
from dpltm.tickets.store import problems

PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
TINY = ("--model", "mlp:8", "--rounds", "1", "--prune", "0.3", "--iterations", "2", "--batch-size", "32")
RUN = """
[run]
epsilon = 3.0
delta = 1e-4
[generate]
dataset = "digits"
subset = "0.0:0.5"
provenance = "public"
model = "mlp:4"
rounds = 1
iterations = 3
batch-size = 32
[select]
score = "additive"
[train]
dataset = "digits"
subset = "0.5:1.0"
steps = 3
"""


of_trainings = pytest.mark.skipif(
    torch.cuda.is_available(), reason="where there is a GPU, torch computes no gradients in a forked process"
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return work


def there(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def clear(folder: Path) -> None:
    """Empties a folder; nobody remembers how far ledgers in it had come."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree(folder.parent / "config", ignore_errors=True)


def kinds(path: str) -> Counter[str]:
    """Of releases what their first mechanism is, of anything else its kind."""
    lines = Path(path).read_text().splitlines()[1:] if Path(path).exists() else []
    entries = [json.loads(line)["entry"] for line in lines]
    return Counter(
        entry["mechanisms"][0]["mechanism"] if entry["kind"] == "release" else entry["kind"] for entry in entries
    )


def test_a_winner_is_saved_with_its_set_and_its_lineage_or_not_at_all(here):
    def arrays(seed):
        return np.random.default_rng(seed).integers(0, 256, (200, 6), dtype=np.uint8), np.arange(200) % 3

    tickets = dpltm.generate(*arrays(1), provenance="public", model="mlp:8", rounds=1, iterations=3, batch_size=32)
    winner = dpltm.select(tickets, *arrays(0), eps1=0.5, score="additive")
    number, whole = 1, 0
    while dies_at(number, lambda: dpltm.tickets.save(winner, "s"), here):
        if "s" not in there(here):
            assert there(here) == set() or all(name.startswith(".s.") for name in there(here))
            dpltm.tickets.save(winner, "s")
        else:
            whole += 1
        found = dpltm.tickets.load("s")
        assert isinstance(found, Winner)
        assert found.lineage == winner.lineage
        assert found.tickets is not None
        assert found.tickets.lineage == winner.tickets.lineage
        assert there(here) == {"s"}
        clear(here)
        number += 1
    assert number > 15
    assert whole == 0  # its place is the last thing that changes


@of_trainings
@pytest.mark.parametrize(
    ("how", "first"),
    [(("--provenance", "private"), 1), (("--criterion", "dp-train", "--epsilon", "2", "--delta", "1e-4"), 2)],
)
def test_tickets_are_there_with_their_lineage_and_their_accuracies_or_not_at_all(here, capsys, how, first):
    """Every fourth moment, of the one not those of the other."""
    command = ["generate", *PRIVATE, *how, *TINY, "--out", "o", "--quiet"]
    number, ended = first, 0
    while dies_at(number, partial(run, command), here):
        done, before = "o" in there(here), kinds("digits.ledger.jsonl")
        assert run(command) == (2 if done else 0)
        if done:
            assert capsys.readouterr().err.endswith("o exists already; choose another name or remove it first\n")
            ended += 1
        assert problems(Path("o")) == []
        assert kinds("digits.ledger.jsonl") >= before
        assert not done or kinds("digits.ledger.jsonl") == before
        files = {"o", "digits.ledger.jsonl", "digits.ledger.key", *({"o.private.json"} if "private" in how else ())}
        assert there(here) == files
        clear(here)
        number += 4
    assert number > 25
    assert ended > 0


@of_trainings
@pytest.mark.parametrize("first", [1, *(pytest.param(place, marks=pytest.mark.long) for place in (5, 9, 13))])
def test_a_run_goes_on_wherever_it_died(here, first):
    """Every sixteenth moment, and with make proofs every fourth."""
    Path("c.toml").write_text(RUN)
    command, number = ["run", "--config", "c.toml", "--out", "o", "--quiet"], first
    while dies_at(number, partial(run, command), here):
        spent = kinds("digits.ledger.jsonl")
        assert run(command) == 0
        assert there(Path("o")) == {"tickets", "run"}
        paid = kinds("digits.ledger.jsonl")
        assert paid >= spent
        assert paid["sgd"] == 1
        assert paid["selection"] <= 1 + spent["selection"]  # drawn again where it was not remembered yet
        clear(here)
        Path("c.toml").write_text(RUN)
        number += 16
    assert number > 60
