"""A run names the entry that paid for it, and its lineage is bound to its weights: that of a sister run is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import dpltm
from commands import PRIVATE
from dpltm.tickets import save

OWN = f"{PRIVATE} --delta 1e-4"
TRAIN = f"train --dense {OWN} --steps 2 --noise-multiplier 30"
COMMANDS = {
    "network": f"{TRAIN} --model mlp:4",
    "least squares": f"train --dense --head least-squares --features unit {OWN} --epsilon 1",
}


def own(run: str) -> str:
    return str(json.loads(Path(run, "config.json").read_text())["entry"])


def behind(run: str) -> list[str]:
    """The ids in the lineage of a run, from the bare file."""
    return [entry["id"] for entry in json.loads(Path(run, "lineage.json").read_text())["lineage"]["entries"]]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_kind_of_training_names_its_entry(cli, entries, name):
    """Of two with the same settings in one ledger, each its own."""
    for out in "ab":
        assert cli(f"{COMMANDS[name]} --ledger {out if name != 'network' else 'l'}.jsonl --out {out}").code == 0
    paid = [entry["id"] for path in sorted(Path().glob("[abl].jsonl")) for entry in entries(str(path))]
    assert paid == [own("a"), own("b")] == [*behind("a"), *behind("b")]
    assert own("a") != own("b")


@pytest.mark.usefixtures("cwd")
def test_a_run_that_was_saved_from_python_names_its_entry():
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 255, (200, 6)).astype(np.uint8), np.arange(200) % 2
    settings = {"steps": 2, "noise_multiplier": 30.0, "batch_size": 20, "delta": 1e-3}
    ledger = dpltm.Ledger()
    run = dpltm.train("mlp:2", x, y, bounds=(0, 255), classes=2, name="own", ledger=ledger, **settings)
    save(run, "saved")
    assert [own("saved")] == behind("saved") == [entry.id for entry in ledger.entries if entry.paid]


def test_what_does_not_fit_the_weights_is_refused(cli):
    """The lineage of a sister run, though settings are equal, and so figures would be; and another entry."""
    for out in "ab":
        assert cli(f"{TRAIN} --model mlp:8 --audit 60 --out {out}").code == 0
    shutil.copytree("b", "c")
    shutil.copy("a/lineage.json", "c/lineage.json")
    done = cli("audit c")
    assert (done.code, done.err) == (
        2,
        "error: c/lineage.json: belongs to another artifact; its weights, its masks or this file were exchanged\n",
    )
    config = json.loads(Path("a/config.json").read_text())
    Path("a/config.json").write_text(json.dumps({**config, "entry": "0" * 64}))
    for name, problem in (("c", "c/lineage.json: belongs to another"), ("a", "a: its lineage holds no training with")):
        done = cli(f"report {name} -o {name}.html --json")
        body = json.loads(done.out)
        assert (done.code, body["privacy"]["certified"]["epsilon"]) == (1, "inf")
        assert body["problems"][0].startswith(problem)
