"""A run names the entry that paid for it, and its lineage is bound to its weights: that of a sister run is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpltm
from dpltm.tickets import save

PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0", "--delta", "1e-4")
TRAIN = ("train", "--dense", *PRIVATE, "--steps", "2", "--noise-multiplier", "30", "--quiet")


def own(run: str) -> str:
    return str(json.loads(Path(run, "config.json").read_text())["entry"])


def behind(run: str) -> list[str]:
    """The ids in the lineage of a run, from the bare file."""
    return [entry["id"] for entry in json.loads(Path(run, "lineage.json").read_text())["lineage"]["entries"]]


COMMANDS = {
    "network": (*TRAIN, "--model", "mlp:4"),
    "least squares": ("train", "--dense", "--head", "least-squares", "--features", "unit", *PRIVATE, "--epsilon", "1"),
    "search": ("tune", "--private", *PRIVATE, "--model", "mlp:4", "--lr", "1", "--batch-size", "100", "--epochs", "1",
               "--tries", "2", "--epsilon", "4", "--accountant", "rdp"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_every_kind_of_training_names_its_entry(
    cli: Callable[..., Any], entries: Callable[..., Any], name: str
) -> None:
    """Of two with the same settings in one ledger, each its own."""
    for out in "ab":
        assert cli(*COMMANDS[name], "--ledger", f"{out if name != 'network' else 'l'}.jsonl", "--out", out).code == 0
    paid = [entry["id"] for path in sorted(Path().glob("[abl].jsonl")) for entry in entries(str(path))]
    assert paid == [own("a"), own("b")] == [*behind("a"), *behind("b")]
    assert own("a") != own("b")


@pytest.mark.usefixtures("cwd")
def test_a_run_that_was_saved_from_python_names_its_entry() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 255, (200, 6)).astype(np.uint8), np.arange(200) % 2
    settings = {"steps": 2, "noise_multiplier": 30.0, "batch_size": 20, "delta": 1e-3}
    ledger = dpltm.Ledger()
    run = dpltm.train("mlp:2", x, y, bounds=(0, 255), classes=2, name="own", ledger=ledger, **settings)
    save(run, "saved")
    assert [own("saved")] == behind("saved") == [entry.id for entry in ledger.entries if entry.paid]


def test_the_lineage_of_a_sister_run_is_refused(cli: Callable[..., Any]) -> None:
    """Though settings are equal, and so figures would be."""
    for out in "ab":
        assert cli(*TRAIN, "--model", "mlp:8", "--audit", "60", "--out", out).code == 0
    shutil.copytree("b", "c")
    shutil.copy("a/lineage.json", "c/lineage.json")
    done = cli("report", "c", "-o", "c.html", "--json")
    body = json.loads(done.out)
    assert (done.code, body["problems"][0]) == (1, "c/lineage.json: belongs to another artifact")
    assert body["privacy"]["certified"]["epsilon"] == "inf"
    for command in (
        ("audit", "c"),
        ("train", "--dense", *PRIVATE, "--features", "network:c", "--epsilon", "1", "--steps", "2", "--out", "x"),
    ):
        done = cli(*command)
        assert (done.code, done.err) == (2, "error: c/lineage.json: belongs to another artifact\n")


def test_an_entry_that_the_lineage_lacks_is_told(cli: Callable[..., Any]) -> None:
    assert cli(*TRAIN, "--model", "mlp:8", "--out", "a").code == 0
    config = json.loads(Path("a/config.json").read_text())
    Path("a/config.json").write_text(json.dumps({**config, "entry": "0" * 64}))
    done = cli("report", "a", "-o", "a.html", "--json")
    body = json.loads(done.out)
    assert done.code == 1
    assert body["privacy"]["certified"]["epsilon"] == "inf"
    assert body["problems"][0] == "a: its lineage holds no training with its settings; the two do not fit each other"
