"""A run names the entry that paid for it, and its lineage is bound to its weights: that of a sister run is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from commands import PRIVATE

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
    for out in "ab":
        assert cli(f"{COMMANDS[name]} --ledger {out if name != 'network' else 'l'}.jsonl --out {out}").code == 0
    paid = [entry["id"] for path in sorted(Path().glob("[abl].jsonl")) for entry in entries(str(path))]
    assert paid == [own("a"), own("b")] == [*behind("a"), *behind("b")]
    assert own("a") != own("b")


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
