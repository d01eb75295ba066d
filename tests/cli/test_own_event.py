"""A run names the event that paid for it, so the ledger of a sister run with the same settings does not pass for its own."""

from __future__ import annotations

import hashlib
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
TRAIN = ("train", "--dense", *PRIVATE, "--steps", "2", "--noise-multiplier", "30")


def own(run: str) -> str:
    return str(json.loads(Path(run, "config.json").read_text())["event"])


def paid(run: str, kind: str = "training") -> list[str]:
    """The ids of the events of a kind in the ledger of a run, from the bare file."""
    events = [json.loads(line)["event"] for line in Path(run, "ledger.jsonl").read_text().splitlines()[1:]]
    texts = [json.dumps(event, sort_keys=True, separators=(",", ":")) for event in events if event["kind"] == kind]
    return [hashlib.sha256(text.encode()).hexdigest() for text in texts]


COMMANDS = {
    "network": (*TRAIN, "--model", "mlp:4"),
    "fast noise": (*TRAIN, "--model", "mlp:4", "--noise", "fast", "--eval-private", "0.5"),
    "centred": ("train", "--dense", *PRIVATE, "--steps", "2", "--features", "unit", "--centre", "0.1", "--epsilon", "1"),
    "least squares": ("train", "--dense", "--head", "least-squares", "--features", "unit", *PRIVATE, "--epsilon", "1"),
    "search": ("tune", "--private", *PRIVATE, "--model", "mlp:4", "--lr", "1", "--batch-size", "100", "--epochs", "1",
               "--tries", "2", "--epsilon", "4", "--accountant", "rdp"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.usefixtures("cwd")
def test_every_kind_of_training_names_its_event(cli: Callable[..., Any], name: str) -> None:
    """Whatever else stands in its ledger."""
    done = cli(*COMMANDS[name], "--out", "run", "--quiet")
    assert done.code == 0, done.err
    assert [own("run")] == paid("run", "search" if name == "search" else "training")


def test_of_two_trainings_in_one_ledger_each_run_names_its_own(cli: Callable[..., Any], cwd: Path) -> None:
    del cwd
    for out in "ab":
        assert cli(*TRAIN, "--model", "mlp:4", "--ledger", "l.jsonl", "--out", out, "--quiet").code == 0
    assert paid("b") == [own("a"), own("b")]
    assert own("a") != own("b")


@pytest.mark.usefixtures("cwd")
def test_a_run_that_was_saved_from_python_names_its_event() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 255, (200, 6)).astype(np.uint8), np.arange(200) % 2
    run = dpltm.train(
        "mlp:2",
        x,
        y,
        bounds=(0, 255),
        classes=2,
        steps=2,
        noise_multiplier=30.0,
        batch_size=20,
        delta=1e-3,
        name="own",
    )
    save(run, "saved")
    assert [own("saved")] == paid("saved")


@pytest.fixture
def sisters(cli: Callable[..., Any], cwd: Path) -> Callable[..., Any]:
    """Runs ``a`` and ``b`` with equal settings, and ``c``: a copy of ``b`` with the ledger of ``a``."""
    del cwd
    for out in "ab":
        assert cli(*TRAIN, "--model", "mlp:8", "--audit", "60", "--out", out, "--quiet").code == 0
    shutil.copytree("b", "c")
    shutil.copy("a/ledger.jsonl", "c/ledger.jsonl")
    return cli


def test_the_ledger_of_a_sister_run_is_refused_by_name(sisters: Callable[..., Any]) -> None:
    differs = f"holds {own('a')[:12]}, and the event of the run is {own('b')[:12]}: it is the ledger of another run"
    done = sisters("report", "c", "-o", "c.html", "--json")
    body = json.loads(done.out)
    assert (done.code, body["problems"][0]) == (1, f"c/ledger.jsonl: {differs}: its cost is not known")
    assert body["privacy"]["certified"]["epsilon"] == "inf"
    done = sisters("compare", "a", "c", "--json")
    assert [row["state"] for row in json.loads(done.out)["rows"]] == ["finished", "damaged"]
    for command in (
        ("audit", "c"),
        ("train", "--dense", *PRIVATE, "--features", "network:c", "--epsilon", "1", "--steps", "2", "--out", "x"),
    ):
        done = sisters(*command)
        assert (done.code, done.err) == (2, f"error: c: its ledger {differs}\n")


def test_a_run_of_an_older_version_is_compared_by_its_settings(sisters: Callable[..., Any]) -> None:
    path = Path("c/config.json")
    config = json.loads(path.read_text())
    del config["event"]
    path.write_text(json.dumps(config))
    assert sisters("report", "c", "-o", "c.html", "--json").json["problems"] == []
    assert sisters("audit", "c", "--json").code == 0
