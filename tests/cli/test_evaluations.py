"""Counts that ``--eval-private`` releases: each has an event of its own, and is drawn with the noise of that event."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpltm import noise

FIRST = ("--dataset", "digits", "--subset", "0.0:0.5", "--delta", "1e-4")
SECOND = ("--dataset", "digits", "--subset", "0.5:1.0", "--delta", "1e-4")
DENSE = ("--dense", "--model", "mlp:8", "--noise-multiplier", "5")


@pytest.fixture
def drawn(monkeypatch):
    """The epsilon of every count that was released, in order."""
    found = []

    def draw(source, epsilon):
        found.append(epsilon)
        return noise_of(source, epsilon)

    noise_of = noise.two_sided_geometric
    monkeypatch.setattr("dpltm.stages.train.two_sided_geometric", draw)
    return found


def test_the_count_is_drawn_with_the_noise_of_its_own_event(cli, events, drawn):
    """Another run's evaluation, which comes along with the network in front, is on record first."""
    assert cli("train", *FIRST, *DENSE, "--steps", "3", "--eval-private", "5", "--out", "front", "--quiet").code == 0
    behind = (*SECOND, *DENSE, "--steps", "3", "--features", "network:front", "--eval-private", "0.1")
    assert cli("train", *behind, "--out", "r", "--quiet").code == 0
    assert drawn == [5.0, 0.1]
    ledger = Path("r/ledger.jsonl")
    assert [event["epsilon"] for event in events(str(ledger)) if event["kind"] == "guarantee"] == [5.0, 0.1]
