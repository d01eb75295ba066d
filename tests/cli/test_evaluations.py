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


def test_every_look_has_an_event_and_no_two_are_equal(cli, events, drawn):
    stopping = ("--steps", "40", "--eval-private", "0.5", "--stop-at", "1.0")
    body = cli("train", *SECOND, *DENSE, *stopping, "--out", "r", "--json").json
    counts = [event for event in events("r/ledger.jsonl") if event["kind"] == "guarantee"]
    assert len(counts) == 10
    assert len(drawn) == len(Path("r/metrics.jsonl").read_text().splitlines()) == body["steps_taken"] // 4
    assert drawn == [event["epsilon"] for event in counts][: len(drawn)] == [0.05] * len(drawn)
    times = [event["time"] for event in events("r/ledger.jsonl")]
    assert len(set(times)) == len(times) == 11


def test_the_mean_of_features_has_a_time_of_its_own(cli, events):
    centred = ("--features", "unit", "--centre", "0.5", "--epsilon", "5", "--steps", "3")
    plain = ("--dense", "--model", "mlp", "--eval-private", "0.5")
    assert cli("train", *SECOND, *plain, *centred, "--out", "r", "--quiet").code == 0
    told = [event for event in events("r/ledger.jsonl") if event["kind"] != "provenance"]
    assert [event["kind"] for event in told] == ["gaussian", "guarantee", "training"]
    assert len({event["time"] for event in told}) == 3
