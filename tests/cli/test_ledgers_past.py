"""What a ledger lost is noticed by the next command, however that came about; budgets hold whoever asks."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import LEDGER as OF_DIGITS
from commands import PRIVATE

TRAIN = f"train --dense {PRIVATE} --model mlp:2 --steps 1 --batch-size 64 --noise-multiplier"
LEDGER, OLDER, LINK = Path("l/l.jsonl"), Path("older.jsonl"), Path("link.jsonl")


@pytest.fixture
def work(tmp_path: Path, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    del cwd  # which ``cli`` would change to
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def lines() -> list[str]:
    return LEDGER.read_text().splitlines(keepends=True)


WAYS: dict[str, Callable[[], object]] = {
    "deleted with its folder": lambda: shutil.rmtree("l"),
    "an older copy of the whole folder": lambda: (shutil.rmtree("l"), shutil.copytree("folder", "l")),
    "a link that leads to an older copy now": lambda: (LINK.unlink(), LINK.symlink_to(OLDER)),
    "another ledger in its place": lambda: shutil.copy("other.jsonl", LEDGER),
}
"""Others are tried on the file alone, in tests/account/test_account_file.py."""


@pytest.mark.one_of(2)
@pytest.mark.usefixtures("work")
@pytest.mark.parametrize("way", WAYS)
def test_a_ledger_that_was_rolled_back_is_noticed(cli, way):
    """By whatever reads it or would enter something; what was lost can be put back, and it goes on."""
    LEDGER.parent.mkdir()
    for epsilon in (3, 2):
        assert cli(f"privacy budget {LEDGER} --epsilon {epsilon}").code == 0
    shutil.copytree("l", "folder")
    shutil.copy(LEDGER, OLDER)
    LINK.symlink_to(LEDGER)
    for path, epsilon in ((LINK, 1), ("other.jsonl", 5)):
        assert cli(f"privacy budget {path} --epsilon {epsilon}").code == 0
    shutil.copytree("l", "whole")
    head = json.loads(lines()[-1])["digest"][:12]
    WAYS[way]()
    named = LINK if "leads" in way else LEDGER
    train = f"{TRAIN} 50 --ledger {named} --out run"
    for command in (train, f"privacy budget {named} --epsilon 9", f"privacy budget {named}"):
        done = cli(command)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"error: {named}: ")
        assert head in done.err
        assert done.err.count("\n") == 1
    assert not Path("run").exists()
    shutil.rmtree("l", ignore_errors=True)
    shutil.copytree("whole", "l")
    LINK.unlink()
    LINK.symlink_to(LEDGER)
    assert cli(train).code == 0
    assert len(lines()) == 5


@pytest.mark.usefixtures("work")
def test_what_would_just_exceed_is_refused(cli):
    """A ten-thousandth too much; and of what a calibration leaves, nothing."""
    noise = "privacy noise --sampling-rate 64/719 --steps 1 --delta 1e-5 --json"
    settled = cli(f"{noise} --epsilon 1").json
    given = f"{TRAIN} {settled['noise_multiplier']!r} --out all"
    for factor, code in ((0.9999, 1), (1.0001, 0)):
        assert cli(f"privacy budget {OF_DIGITS} --epsilon {factor * settled['epsilon']}").code == 0
        assert cli(f"{given} --dry-run").code == code
    assert cli(given).code == 0
    assert cli(f"{TRAIN} 9 --out more").code == 1
    assert not Path("more").exists()
