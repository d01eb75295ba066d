"""What a ledger lost is noticed by the next command, however that came about; budgets hold whoever asks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from child_processes import PATIENCE
from programs import ROOT

RECORDS = ("--dataset", "digits", "--subset", "0.5:1.0")
TRAIN = ("train", "--dense", *RECORDS, "--model", "mlp:2", "--steps", "1", "--batch-size", "64")
LEDGER, OLDER, LINK = Path("l/l.jsonl"), Path("older.jsonl"), Path("link.jsonl")


@pytest.fixture
def work(tmp_path: Path, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    del cwd  # which ``cli`` would change to
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def budget(cli: Callable[..., object], epsilon: float, ledger: Path = LEDGER) -> None:
    done = cli("privacy", "budget", ledger, "--epsilon", epsilon, "--quiet")
    assert done.code == 0, done.err  # type: ignore[attr-defined]


@pytest.fixture
def ledger(cli, work) -> Path:
    """A ledger of three entries, with its folder as it was before the last of them, and a link to it that was used."""
    del work
    LEDGER.parent.mkdir()
    budget(cli, 3)
    budget(cli, 2)
    shutil.copytree("l", "folder")
    shutil.copy(LEDGER, OLDER)
    LINK.symlink_to(LEDGER)
    budget(cli, 1, LINK)
    return LEDGER


def lines() -> list[str]:
    return LEDGER.read_text().splitlines(keepends=True)


def replaced_folder() -> None:
    shutil.rmtree("l")
    shutil.copytree("folder", "l")


def swapped_link() -> None:
    LINK.unlink()
    LINK.symlink_to(OLDER)


WAYS: dict[str, Callable[[], object]] = {
    "deleted with its folder": lambda: shutil.rmtree("l"),
    "shortened by a line": lambda: LEDGER.write_text("".join(lines()[:-1])),
    "an older copy of the whole folder": replaced_folder,
    "a link to an older copy in its place": lambda: (LEDGER.unlink(), LEDGER.symlink_to(OLDER.absolute())),
    "a link that leads to an older copy now": swapped_link,
    "another ledger in its place": lambda: shutil.copy("other.jsonl", LEDGER),
}
"""Some more are tried on the file alone, in tests/account/test_account_file.py."""


@pytest.mark.parametrize("way", WAYS)
def test_a_ledger_that_was_rolled_back_is_noticed(cli, ledger, way):
    """By whatever reads it or would enter something; what was lost can be put back, and it goes on."""
    budget(cli, 5, Path("other.jsonl"))
    shutil.copytree("l", "whole")
    head = json.loads(lines()[-1])["digest"][:12]
    WAYS[way]()
    named = LINK if "leads" in way else ledger
    for command in (
        (*TRAIN, "--noise-multiplier", "50", "--ledger", named, "--out", "run"),
        ("privacy", "budget", named, "--epsilon", "9"),
        ("privacy", "budget", named),
    ):
        done = cli(*command)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"error: {named}: ")
        assert head in done.err
        assert done.err.count("\n") == 1
    assert not Path("run").exists()
    shutil.rmtree("l", ignore_errors=True)
    shutil.copytree("whole", "l")
    LINK.unlink()
    LINK.symlink_to(LEDGER)
    assert cli(*TRAIN, "--noise-multiplier", "50", "--ledger", named, "--out", "run", "--quiet").code == 0
    assert len(lines()) == 5


def test_a_budget_holds_for_all_records_of_its_ledger(cli, work):
    """Whatever part of them, and whether the ledger is named or found by the rule."""
    budget(cli, 1, Path("digits.ledger.jsonl"))
    train = (*TRAIN, "--noise-multiplier")
    (row,) = cli("privacy", "budget", "digits.ledger.jsonl", "--json").json["budgets"]
    assert (row["epsilon"], row["spent"]) == (1.0, 0.0)
    assert cli(*train, "2", "--out", "first", "--quiet").code == 0
    for more in ((), ("--ledger", work / "digits.ledger.jsonl"), ("--dry-run",)):
        done = cli(*train, "0.7", *more, "--out", "second")
        assert (done.code, done.err.count("\n")) == (1, 1)
        assert done.err.startswith("error: budget: this would bring the population to epsilon ")
    assert {path.name for path in work.iterdir()} == {"digits.ledger.jsonl", "digits.ledger.key", "first"}
    (row,) = cli("privacy", "budget", "digits.ledger.jsonl", "--json").json["budgets"]
    assert 0 < row["spent"] < 1


def test_what_would_just_exceed_is_refused(cli, work):
    """A ten-thousandth too much; and of what a calibration leaves, nothing."""
    del work
    noise = ("privacy", "noise", "--sampling-rate", "64/719", "--steps", "1", "--delta", "1e-5", "--json")
    settled = cli(*noise, "--epsilon", "1").json
    given = (*TRAIN, "--noise-multiplier", repr(settled["noise_multiplier"]))
    for factor, code in ((0.9999, 1), (1.0001, 0)):
        budget(cli, factor * settled["epsilon"], Path("digits.ledger.jsonl"))
        assert cli(*given, "--dry-run").code == code
    assert cli(*given, "--out", "all", "--quiet").code == 0
    assert cli(*TRAIN, "--noise-multiplier", "9", "--out", "more", "--quiet").code == 1
    assert not Path("more").exists()


def test_two_processes_cannot_both_spend_the_last_of_it(work):
    """Whole commands, let go at the same moment; `python benchmarks/races.py --races 50` makes more races of them."""
    del work
    command = [sys.executable, str(ROOT / "benchmarks/races.py"), "--races", "1", "--json"]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert (body["races"], body["one_winner"], body["lost"], body["overspent"]) == (1, 1, 0, 0)
