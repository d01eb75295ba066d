"""Whatever is made of a release, and of what that was made of, carries the release.

Each chain begins with releases from one table: bounds that are found under DP, or trainings. It ends with a
training on the same table, whose bounds are public now, in a ledger of its own. What is certified there covers all of them.
A run names the entry that paid for it, and its lineage is bound to its weights: that of a sister run is refused.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import PRIVATE
from dpltm.privacy.account import Account
from dpltm.privacy.entry import Entry
from dpltm.privacy.mechanisms import NoisySgd, Selection
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.run import load_run

DELTA = ("--delta", "1e-4")
SCHEMA = '[column.one]\nkind = "number"\n{0}\n[column.two]\nkind = "number"\n{0}\n'
LABEL = '[column.ill]\nkind = "label"\nclasses = ["0", "1"]\n'

A = ("--dataset", "a.csv", "--records", "300", *DELTA)
FOUND, PUBLIC = ("--schema", "found.toml"), ("--schema", "public.toml")
FEW = ("--steps", "2", "--batch-size", "60", "--noise-multiplier", "5")
SET = ("--model", "mlp:4", "--rounds", "1", "--iterations", "2", "--batch-size", "20")
FIND = ("datasets", "schema", "a.csv", "--schema", "draft.toml", "--records", "300", "--private", "4", *DELTA,
        "--out", "found.toml", "--ledger", "found.jsonl")  # fmt: skip
UNDER_DP = ("generate", *A, *FOUND, "--criterion", "dp-train", "--epsilon", "9", *SET, "--out", "t")
MOVED = (
    ("tickets", "export", "t@1", "--out", "t.safetensors"),
    ("tickets", "import", "t.safetensors", "--dataset", "a.csv", *PUBLIC, "--model", "mlp:4", "--out", "u"),
)

HISTOGRAMS, TRAINING, SELECTION = "histograms", "training", "selection"

CHAINS: dict[str, tuple[tuple[tuple[str, ...], ...], tuple[str, ...], Iterable[str]]] = {
    "tickets of a found schema, one moved": ((FIND, UNDER_DP, *MOVED), ("train", "u@1", *FEW), {HISTOGRAMS, TRAINING}),
    "tickets of a found schema, compacted": (
        (FIND, UNDER_DP, ("tickets", "compact", "t@1", "--out", "u")), ("train", "u@1", *FEW), {HISTOGRAMS, TRAINING},
    ),
    "tickets of a found schema, for the same table again": (
        (FIND, UNDER_DP, ("tickets", "transfer", "t@1", "--dataset", "a.csv", *PUBLIC, "--out", "u")),
        ("train", "u@1", *FEW), {HISTOGRAMS, TRAINING},
    ),
    "tickets without data for a found schema": (
        (FIND, ("generate", "--dataset", "made0.npz", "--criterion", "random", *SET[:4], "--out", "t"),
         ("tickets", "transfer", "t@1", "--dataset", "a.csv", *FOUND, "--out", "u")),
        ("train", "u@1", *FEW), {HISTOGRAMS},
    ),
    "a winner drawn behind a found schema": (
        (FIND, ("generate", "--dataset", "b.csv", *PUBLIC, "--provenance", "public", *SET, "--out", "t"),
         ("select", "t", *A, *FOUND, "--eps1", "0.1", "--score", "additive", "--ledger", "drawn.jsonl")),
        ("train", "t", *FEW), {HISTOGRAMS, SELECTION},
    ),
    "a winner drawn behind it twice": (
        (FIND, ("generate", "--dataset", "b.csv", *PUBLIC, "--provenance", "public", *SET, "--out", "t"),
         *[("select", "t", *A, *FOUND, "--eps1", "0.1", "--score", "additive", "--ledger", "drawn.jsonl")] * 2),
        ("train", "t", *FEW), (HISTOGRAMS, SELECTION, SELECTION),
    ),
}  # fmt: skip


@pytest.fixture
def tables(cwd: Path) -> None:
    """Two tables, a draft and a public schema, and records that are nobody's."""
    draw = np.random.default_rng(0)
    for name in ("a", "b"):
        rows = [f"{one:.2f},{two:.2f},{int(one > two)}" for one, two in draw.uniform(0, 90, (300, 2))]
        (cwd / f"{name}.csv").write_text("\n".join(["one,two,ill", *rows]) + "\n")
    (cwd / "draft.toml").write_text(SCHEMA.format('bounds = "private"') + LABEL)
    (cwd / "public.toml").write_text(SCHEMA.format("bounds = [0, 90]\nmissing = true") + LABEL)
    np.savez(cwd / "made0.npz", x_train=np.zeros((40, 4), "u1"), y_train=np.arange(40) % 2)


def kind(entry: Entry) -> str:
    """What a release was."""
    if entry.of(Selection):
        return SELECTION
    return TRAINING if entry.of(NoisySgd) else HISTOGRAMS


@pytest.mark.one_of(3)
@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("name", CHAINS)
def test_what_a_training_is_made_of_counts(cli: Callable[..., Any], name: str) -> None:
    before, last, expected = CHAINS[name]
    for command in before:
        done = cli(*command, "--quiet")
        assert done.code == 0, (command, done.err)
    body = cli(*last, *A, *PUBLIC, *DELTA, "--ledger", "last.jsonl", "--out", "last", "--json").json
    lineage = load_run(Path("last")).lineage
    assert Counter(map(kind, lineage.paid)) == Counter((*expected, TRAINING))
    assert body["privacy"]["certified"]["epsilon"] == Account.of((), lineage).epsilon(1e-4)
    assert [kind(entry) for entry in open_ledger("last.jsonl").entries] == [TRAINING], "nothing is entered twice"


@pytest.mark.usefixtures("tables")
def test_private_records_that_a_schema_is_said_to_be_read_off(
    cli: Callable[..., Any], refused: Callable[..., str]
) -> None:
    train = ("train", "--dense", "--model", "mlp:4", *FEW, *A, *PUBLIC, "--out", "r", "--ledger", "l.jsonl")
    assert cli(*train, "--quiet").code == 0
    draft = ("datasets", "schema", "a.csv", "--from-public", "--label", "ill", "--out", "read.toml")
    assert "a is protected by a release on record" in refused(*draft, "--ledger", "l.jsonl")


# --- the entry of a run ---

OWN = f"{PRIVATE} --delta 1e-4"
NOISY = f"train --dense {OWN} --steps 2 --noise-multiplier 30"


def test_what_does_not_fit_the_weights_is_refused(cli):
    """The lineage of a sister run, though settings are equal, and so figures would be; and another entry."""
    for out in "ab":
        assert cli(f"{NOISY} --model mlp:8 --audit 60 --out {out}").code == 0
    shutil.copytree("b", "c")
    shutil.copy("a/lineage.json", "c/lineage.json")
    done = cli("audit c")
    exchanged = "belongs to another artifact; its weights, its masks or this file were exchanged"
    assert (done.code, done.err) == (2, f"error: c/lineage.json: {exchanged}\n")
    config = json.loads(Path("a/config.json").read_text())
    Path("a/config.json").write_text(json.dumps({**config, "entry": "0" * 64}))
    for name, problem in (("c", "c/lineage.json: belongs to another"), ("a", "a: its lineage holds no training with")):
        done = cli(f"report {name} -o {name}.html --json")
        body = json.loads(done.out)
        assert (done.code, body["privacy"]["certified"]["epsilon"]) == (1, "inf")
        assert body["problems"][0].startswith(problem)
