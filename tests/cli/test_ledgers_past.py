"""What a ledger lost is noticed by the next command, however that came about; budgets hold in whatever ledger is named."""

from __future__ import annotations

import hashlib
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
    done = cli("privacy", "budget", ledger, *RECORDS, "--epsilon", epsilon, "--quiet")
    assert done.code == 0, done.err  # type: ignore[attr-defined]


@pytest.fixture
def ledger(cli, work) -> Path:
    """A ledger of three events, with its folder as it was before the last of them, and a link to it that was used."""
    del work
    budget(cli, 3)
    budget(cli, 2)
    shutil.copytree("l", "folder")
    shutil.copy(LEDGER, OLDER)
    LINK.symlink_to(LEDGER)
    budget(cli, 1, LINK)
    return LEDGER


def lines() -> list[str]:
    return LEDGER.read_text().splitlines(keepends=True)


def sealed(more: int) -> str:
    """The ledger with another budget in its last line, all digests made right, and so many lines more."""
    header, *entries = map(json.loads, lines())
    entries[-1]["event"]["epsilon"] = 100.0
    digest, text = "", [json.dumps(header)]
    for number, entry in enumerate([*entries, *entries[:more]], start=1):
        body = json.dumps(entry["event"], sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256((digest + body).encode()).hexdigest()
        text.append(json.dumps({"sequence": number, "event": entry["event"], "digest": digest}))
    return "".join(line + "\n" for line in text)


def replaced_folder() -> None:
    shutil.rmtree("l")
    shutil.copytree("folder", "l")


def swapped_link() -> None:
    LINK.unlink()
    LINK.symlink_to(OLDER)


WAYS: dict[str, Callable[[], object]] = {
    "deleted": lambda: LEDGER.unlink(),
    "deleted with its folder": lambda: shutil.rmtree("l"),
    "emptied": lambda: LEDGER.write_bytes(b""),
    "left with its first line": lambda: LEDGER.write_text(lines()[0]),
    "shortened by a line": lambda: LEDGER.write_text("".join(lines()[:-1])),
    "an older copy written over it": lambda: shutil.copy(OLDER, LEDGER),
    "an older copy renamed to it": lambda: OLDER.rename(LEDGER),
    "an older copy of the whole folder": replaced_folder,
    "a link to an older copy in its place": lambda: (LEDGER.unlink(), LEDGER.symlink_to(OLDER.absolute())),
    "a link that leads to an older copy now": swapped_link,
    "edited and sealed again": lambda: LEDGER.write_text(sealed(0)),
    "edited, sealed and longer": lambda: LEDGER.write_text(sealed(2)),
    "another ledger in its place": lambda: shutil.copy("other.jsonl", LEDGER),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_ledger_that_was_rolled_back_is_noticed(cli, ledger, way):
    """With both heads, by whatever reads it or would enter something; what was lost can be put back, and it goes on."""
    budget(cli, 5, Path("other.jsonl"))
    entered = lines()
    WAYS[way]()
    named = LINK if "leads" in way else ledger
    for command in (
        (*TRAIN, "--noise-multiplier", "50", "--ledger", named, "--out", "run"),
        ("privacy", "budget", named, *RECORDS, "--epsilon", "9"),
        ("privacy", "ledger", named),
    ):
        done = cli(*command)
        assert (done.code, done.out) == (2, "")
        last = json.loads(entered[-1])["digest"][:12]
        assert f", and held 3 events (head {last}) when it was last used: deleted, shortened, " in done.err
        assert done.err.startswith(f"error: {named}: holds ")
        assert done.err.count("(head ") == 2
        assert done.err.count("\n") == 1
    assert not Path("run").exists()
    assert cli("privacy", "restore", named, "--json").json["put_back"] >= 1
    held = [json.loads(line)["event"] for line in named.read_text().splitlines()[1:]]
    assert [event for line in entered[1:] if (event := json.loads(line)["event"]) not in held] == []
    assert cli(*TRAIN, "--noise-multiplier", "50", "--ledger", named, "--out", "run", "--quiet").code == 0


def test_a_budget_holds_for_runs_without_a_ledger_and_those_with_another(cli, work):
    """A dense run has a ledger of its own, which is gone when it is done: what it spent counts all the same."""
    budget(cli, 1)
    train = (*TRAIN, "--epsilon", "0.9", "--quiet")
    assert cli(*train, "--out", "first").code == 0
    for more in ((), ("--ledger", "second.jsonl"), ("--ledger", LEDGER), ("--dry-run",)):
        done = cli(*train, *more, "--out", "second")
        assert (done.code, done.err.count("\n")) == (1, 1)
        assert done.err.startswith("error: budget: this would bring digits[0.5:1.0] to epsilon ")
        assert "above the budget of 1 set on" in done.err
    assert {path.name for path in work.iterdir()} == {"l", "first"}
    others = [*train, "--out", "third"]
    others[others.index("0.5:1.0")] = "0.0:0.5"
    assert cli(*others).code == 0  # of nobody whom the budget is about
    (row,) = cli("privacy", "budget", LEDGER, "--json").json["budgets"]
    assert 0.8 < row["spent"] <= 0.9
    assert (row["epsilon"], row["elsewhere"]) == (1.0, 1)


def test_what_would_just_exceed_is_refused(cli, work):
    """1.0001 of a budget of 1.0; and of what a calibration leaves below it, nothing."""
    del work
    noise = ("privacy", "noise", "--sampling-rate", "64/898", "--steps", "1", "--delta", "1e-5", "--json")
    multiplier = cli(*noise, "--epsilon", "1.0001").json["noise_multiplier"]
    budget(cli, 1)
    given = (*TRAIN, "--noise-multiplier")
    assert cli(*given, multiplier, "--dry-run").code == 1
    assert cli(*given, 2 * multiplier, "--dry-run").code == 0
    assert cli(*TRAIN, "--epsilon", "1.0", "--out", "all", "--quiet").code == 0
    assert cli(*given, 2 * multiplier, "--out", "more", "--quiet").code == 1
    assert not Path("more").exists()


def test_a_run_folder_that_is_made_again_is_no_rolled_back_ledger(cli, cwd):
    """Nor is a ticket set: what the old one held stays on record, and counts."""
    budget(cli, 1, cwd / "budget.jsonl")
    for _ in range(2):
        shutil.rmtree("pub")
        made = ("--model", "mlp:8", "--rounds", "1", "--prune", "0.3", "--iterations", "2", "--batch-size", "32")
        public = ("--dataset", "digits", "--subset", "0.0:0.5", "--provenance", "public")
        assert cli("generate", *public, *made, "--out", "pub", "--quiet").code == 0
        done = cli("select", "pub", *RECORDS, "--eps1", "0.4", "--quiet")
        assert done.code == 0, done.err
        shutil.rmtree("r", ignore_errors=True)
    assert cli("select", "pub", *RECORDS, "--eps1", "0.4", "--quiet").code == 1


def test_two_processes_cannot_both_spend_the_last_of_it(work):
    """Whole commands, let go at the same moment; `python benchmarks/races.py --races 50` makes more races of them."""
    del work
    command = [sys.executable, str(ROOT / "benchmarks/races.py"), "--races", "1", "--json"]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert (body["races"], body["one_winner"], body["lost"], body["overspent"]) == (1, 1, 0, 0)
