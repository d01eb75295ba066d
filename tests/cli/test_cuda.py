"""Whole commands with ``--device cuda``."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
TRAIN = ("train", "--dense", *PRIVATE, "--delta", "1e-4", "--epsilon", "4", "--steps", "60", "--batch-size", "128")


@pytest.mark.parametrize(
    "more",
    [
        ("--model", "mlp:32"),
        ("--model", "mlp:32", "--filter", "tanh"),
        ("--features", "scatter:1,2", "--optimizer", "momentum"),
        ("--model", "mlp:32", "--eval-private", "1", "--average", "ema"),
        ("--features", "unit", "--centre", "0.2"),
    ],
    ids=lambda more: " ".join(more),
)
def test_it_spends_what_the_processor_spends(cli: Callable, more: tuple[str, ...]) -> None:
    """The same certificate, a network that learns as well, and a run that any machine reads."""
    found = {}
    for device in ("cpu", "cuda"):
        found[device] = cli(
            *TRAIN, *more, "--device", device, "--out", device, "--ledger", f"{device}.jsonl", "--json"
        ).json
        assert not any(Path(".").glob(".*.checkpoint"))
    one, other = found.values()
    assert one["privacy"]["certified"] == other["privacy"]["certified"]
    assert one["accuracy"] - 0.15 < other["accuracy"]
    judged = cli("evaluate", "cuda", *PRIVATE, "--json").json
    assert judged["accuracy"] == pytest.approx(other["accuracy"], abs=0.005) or "--eval-private" in more
