"""What work says on the way: what it does before the first step, and what is spent so far."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import dpltm
from dpltm.privacy.describe import figure
from probed import probed_once

__all__ = ["probed_once"]  # a network is probed once for all of these tests

RECORDS = np.random.default_rng(0).integers(0, 16, (60, 4)).astype(np.float32)
LABELS = np.arange(60) % 2
DATA = {"bounds": (0, 16), "classes": 2}
SMALL = {"model": "mlp:3", "rounds": 2, "iterations": 4, "batch_size": 8, "threads": 1}


class Watcher:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, str]] = []

    def say(self, text: str) -> None:
        del text

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[object]:
        yield lambda done, note="": self.told.append((f"{title}: {done}/{total}", done, note))


@pytest.mark.parametrize(
    ("provenance", "cost"),
    [("public", "no epsilon is spent"), ("private", "epsilon inf: no mechanism protects the records")],
)
def test_a_generation_says_what_it_costs(provenance: str, cost: str) -> None:
    watcher = Watcher()
    dpltm.generate(RECORDS, LABELS, provenance=provenance, progress=watcher, **DATA, **SMALL)
    assert watcher.told
    assert all(note.endswith(f", {cost}") for _, _, note in watcher.told)


def test_tickets_under_dp_say_the_epsilon_so_far() -> None:
    watcher = Watcher()
    options = {"criterion": "dp-train", "epsilon": 2.0, "delta": 1e-3} | SMALL
    made = dpltm.generate(RECORDS, LABELS, progress=watcher, **DATA, **options)
    assert watcher.told[0] == ("training under DP: 0/4", 0, "taking the first step")
    spent = [float(note.removeprefix("epsilon so far ")) for _, _, note in watcher.told[1:]]
    assert len(spent) == 4
    assert spent == sorted(spent)
    assert watcher.told[-1][2] == f"epsilon so far {figure(made.privacy.certified.epsilon)}"


def test_a_training_speaks_before_its_first_step() -> None:
    watcher = Watcher()
    tickets = dpltm.generate(RECORDS, LABELS, provenance="public", **DATA, **SMALL)
    others = {"x": 16 - RECORDS, "y": LABELS, **DATA}
    run = dpltm.train(
        tickets, **others, round=1, steps=3, batch_size=10, noise_multiplier=2.0, delta=1e-3, progress=watcher
    )
    assert watcher.told[0] == ("training under DP: 0/3", 0, "taking the first step")
    assert watcher.told[-1][2].startswith(f"epsilon so far {figure(run.privacy.certified.epsilon)}")


def test_a_search_says_what_it_tries() -> None:
    watcher = Watcher()
    options = {"lr": "0.5,1", "epochs": "1", "batch_size": "10", "for_records": 60, "epsilon": 2.0, "delta": 1e-3}
    test = {"test": (RECORDS[:20], LABELS[:20])}
    dpltm.tune("mlp:3", RECORDS[20:], LABELS[20:], **DATA, **test, **options, progress=watcher)
    said = [note for _, _, note in watcher.told if note]
    assert said == [f"lr {lr}, clip norm 1, epochs 1, batch size 10, no epsilon is spent" for lr in ("0.5", "1")]
