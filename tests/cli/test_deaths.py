"""Processes that die between two changes of the disk: results are whole or not there, and the next run is not blocked."""

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import dpltm
import dpltm.tickets
from child_processes import PATIENCE
from commands import LEDGER, PRIVATE, words
from deaths import dies_at
from dpltm.cli.main import run
from dpltm.tickets.files import new_file, new_folder, replaced, staged_file
from dpltm.tickets.store import problems
from dpltm.training.artifacts import Winner
from programs import program
from recipes import RUN

TINY = "--model mlp:8 --rounds 1 --prune 0.3 --iterations 2 --batch-size 32"
of_trainings = pytest.mark.skipif(
    torch.cuda.is_available(), reason="where there is a GPU, torch computes no gradients in a forked process"
)


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """A child would draw what its parent draws after its death."""


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


def kinds() -> Counter[str]:
    """Of releases what their first mechanism is, of anything else its kind."""
    lines = Path(LEDGER).read_text().splitlines()[1:] if Path(LEDGER).exists() else []
    entries = [json.loads(line)["entry"] for line in lines]
    return Counter(
        entry["mechanisms"][0]["mechanism"] if entry["kind"] == "release" else entry["kind"] for entry in entries
    )


def all_moments(*fewer: int) -> list:
    """The first of these moments; with make proofs those that begin with the others, too."""
    return [fewer[0], *(pytest.param(first, marks=pytest.mark.long) for first in fewer[1:])]


@pytest.mark.parametrize("first", all_moments(1, 2))
def test_a_winner_is_saved_with_its_set_and_its_lineage_or_not_at_all(here, first):
    def arrays(seed):
        return np.random.default_rng(seed).integers(0, 256, (200, 6), dtype=np.uint8), np.arange(200) % 3

    tickets = dpltm.generate(*arrays(1), provenance="public", model="mlp:8", rounds=1, iterations=3, batch_size=32)
    winner = dpltm.select(tickets, *arrays(0), eps1=0.5, score="additive")
    number = first
    while dies_at(number, lambda: dpltm.tickets.save(winner, "s"), here):
        if there(here) != {"s"}:
            assert all(name.startswith(".s.") for name in there(here)), "its place changes last"
            dpltm.tickets.save(winner, "s")
        found = dpltm.tickets.load("s")
        assert isinstance(found, Winner)
        assert (found.lineage, found.tickets.lineage) == (winner.lineage, winner.tickets.lineage)
        assert there(here) == {"s"}
        clear(here)
        number += 2
    assert number > 15


@of_trainings
@pytest.mark.parametrize("first", all_moments(1, 3, 5, 7))
@pytest.mark.parametrize("how", ["--provenance private", "--criterion dp-train --epsilon 2 --delta 1e-4"])
def test_tickets_are_there_with_their_lineage_and_their_accuracies_or_not_at_all(here, capsys, how, first):
    command = words("generate", PRIVATE, how, TINY, "--out o --quiet")
    number, ended = first + ("dp-train" in how), 0
    while dies_at(number, partial(run, command), here):
        done, before = "o" in there(here), kinds()
        assert run(command) == (2 if done else 0)
        if done:
            assert capsys.readouterr().err.endswith("o exists already; choose another name or remove it first\n")
            ended += 1
        assert problems(Path("o")) == []
        assert kinds() >= before
        assert not done or kinds() == before
        assert there(here) == {"o", LEDGER, "digits.ledger.key"}
        clear(here)
        number += 8
    assert number > 25


@pytest.mark.long
@of_trainings
@pytest.mark.parametrize("first", all_moments(9, 1, 5, 13, 17, 21, 25, 29))
def test_a_run_goes_on_wherever_it_died(here, first):
    Path("c.toml").write_text(RUN)
    command, number = ["run", "--config", "c.toml", "--out", "o", "--quiet"], first
    while dies_at(number, partial(run, command), here):
        spent = kinds()
        assert run(command) == 0
        assert there(Path("o")) == {"tickets", "run", "recipe.json", "generate.json", "select.json"}
        paid = kinds()
        assert paid >= spent
        assert paid["sgd"] == 1
        assert paid["selection"] <= 1 + spent["selection"]  # drawn again where it was not remembered yet
        clear(here)
        Path("c.toml").write_text(RUN)
        number += 32
    assert number > 60


# --- what killed processes leave hidden, gone with the next run of the name, and never a live one's ---

HOLD = """
import sys, time
from pathlib import Path
from dpltm.tickets import files
with getattr(files, sys.argv[1])(Path(sys.argv[2])) as staging:
    if staging.is_dir():
        (staging / "tickets.json").write_text("half")
    else:
        staging.write_text("half")
    print("ready", flush=True)
    time.sleep(1e6)
"""
WAYS = {"new_folder": new_folder, "new_file": new_file, "replaced": replaced, "staged_file": staged_file}


@contextmanager
def writing(way: str, target: str) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of a write."""
    command = [sys.executable, "-c", HOLD, way, target]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def hidden() -> list[str]:
    return sorted(path.name for path in Path().iterdir() if path.name.startswith(".r."))


@pytest.mark.one_of(2)
@pytest.mark.parametrize("way", WAYS)
def test_the_next_write_removes_what_the_dead_left_and_nothing_of_the_living(cli, cwd, way):
    known = cli("tickets ls --json").json
    with writing(way, "r") as dying:
        (left,) = hidden()
        assert cli("tickets ls --json").json == known, "never shown"
        dying.kill()
        dying.wait(PATIENCE)
    assert hidden() == [left], "killed, so it could not tidy up"
    with writing(way, "r"):
        (own,) = hidden()
        assert own != left
        with WAYS[way](cwd / "r"):
            assert len(hidden()) == 2
            assert own in hidden(), "a live process is at it"
        assert hidden() == [own]


@pytest.mark.long
def test_a_training_that_is_killed_goes_on_and_pays_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``benchmarks/kills.py``, which kills more of them: equal weights can only come from the checkpoint."""
    kills = program("benchmarks/kills.py")
    steps = kills.WORK["train"].index("1500")
    command = (*kills.WORK["train"][:steps], "300", *kills.WORK["train"][steps + 1 :])
    monkeypatch.setitem(kills.WORK, "train", command)
    base = tmp_path / "base"
    base.mkdir()
    found = kills.measure("train", 2, 0.02, random.Random(1), base)
    assert found["faults"] == []
    assert found["kills"] >= 2
