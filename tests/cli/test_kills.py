"""A training killed at random moments, and the same command again: ``benchmarks/kills.py``, which kills more of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from programs import program

kills = program("benchmarks/kills.py")


@pytest.mark.long
def test_a_training_that_is_killed_goes_on_and_pays_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other keys are injected wherever it goes on, so that equal weights can only come from the checkpoint."""
    steps = kills.WORK["train"].index("1500")
    command = (*kills.WORK["train"][:steps], "300", *kills.WORK["train"][steps + 1 :])
    monkeypatch.setitem(kills.WORK, "train", command)
    base = tmp_path / "base"
    base.mkdir()
    found = kills.measure("train", 2, 0.02, random.Random(1), base)
    assert found["faults"] == []
    assert found["kills"] >= 2
