"""What is refused late, when records are read and noise was calibrated, leaves every file as it was: ledgers above all.

One command of each verb that declares something beside its release: a test split that is measured, public records that
features are fitted to, a look with no mechanism.
"""

from pathlib import Path

import numpy as np
import pytest

CLASSES = 3
MINE = ("--dataset", "mine.npz", "--classes", CLASSES)
FRONT = ("--features", "conv")
DENSE = ("train", "--dense", *MINE, "--delta", "1e-4", "--batch-size", "40", "--steps", "2")
TICKETS = ("--rounds", "1", "--iterations", "2", "--batch-size", "20", "--model", "mlp:4")
TUNE = ("tune", "--lr", "1", "--epochs", "1", "--delta", "1e-4")


@pytest.fixture(autouse=True)
def files(cwd: Path) -> None:
    draw = np.random.default_rng(0)
    for name, count, tested in (("mine", 120, 30), ("theirs", 90, 0), ("others", 90, 30), ("few", 4, 0)):
        x, y = draw.integers(0, 256, (count + tested, 8, 8), dtype=np.uint8), np.arange(count + tested) % CLASSES
        split = {"x_test": x[count:], "y_test": y[count:]} if tested else {}
        np.savez(cwd / f"{name}.npz", x_train=x[:count], y_train=y[:count], **split)


UNDER_DP = ("generate", *MINE, *TICKETS, *FRONT, "--criterion", "dp-train", "--delta", "1e-4", "--epsilon", "5")
COMMANDS = {
    "train": (*DENSE, *FRONT, "--noise-multiplier", "1", "--audit", "1000000"),
    "train, counts that nothing is left for": (*DENSE, *FRONT, "--noise-multiplier", "1", "--eval-private", "1e-9"),
    "generate under DP": (*UNDER_DP, "--out", "pub"),
    "generate from private records": ("generate", *MINE, *TICKETS, *FRONT, "--provenance", "private", "--out", "pub"),
    "generate from public records": ("generate", *MINE, *TICKETS, *FRONT, "--provenance", "public", "--out", "pub"),
    "tune": (*TUNE, "--dataset", "few.npz", "--classes", CLASSES, *FRONT, "--for-records", "100", "--epsilon", "1"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_in_a_fresh_folder(refused, name):
    assert refused(*COMMANDS[name])


@pytest.fixture
def guaranteed(cli) -> None:
    """A ledger that holds a training, and a budget that it has nearly used up."""
    assert cli(*DENSE, "--noise-multiplier", "9", "--out", "run", "--quiet").code == 0
    public = ("--dataset", "others.npz", "--classes", CLASSES, "--provenance", "public", "--ledger", "others.jsonl")
    assert cli("generate", *public, *TICKETS, "--out", "own", "--quiet").code == 0
    spent = cli("privacy", "ledger", "dpltm.ledger.jsonl", "--delta", "1e-4", "--json").json
    budget = 1.01 * spent["privacy"]["certified"]["epsilon"]
    assert cli("privacy", "budget", "dpltm.ledger.jsonl", "--epsilon", budget, "--delta", "1e-4").code == 0


AFTER = {
    "train": (*DENSE, *FRONT, "--noise-multiplier", "1"),
    "generate from private records": ("generate", *MINE, *TICKETS, *FRONT, "--provenance", "private"),
    "generate under DP": UNDER_DP,
    "select": ("select", "own", *MINE, "--eps1", "1", "--delta", "1e-4"),
    "tune": (*TUNE, *MINE, *FRONT, "--for-records", "100", "--epsilon", "1"),
    "evaluate": ("evaluate", "run", "--dataset", "others.npz", "--classes", CLASSES, "--bounds", "0,9"),
}  # fmt: skip


@pytest.mark.one_of(3)
@pytest.mark.parametrize("name", AFTER)
def test_where_the_ledger_holds_a_guarantee(guaranteed, cli, tree, name):
    """By the budget, or since it would end what was promised."""
    del guaranteed
    before = tree()
    done = cli(*AFTER[name])
    assert done.code in (1, 2), done
    assert tree() == before
